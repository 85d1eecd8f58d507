"""Updates of a filtered subscription: `python -m bench service-following`.

A provider with very many chunks, of which few change. The first update writes all references, as
every update would without a comparison of versions; the second writes those that changed.
"""

import argparse
import time
from pathlib import Path
from typing import Final

import numpy as np
import zarr
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

import icefloe
from bench.measure import scratch
from icefloe.api.session import state_of
from icefloe.catalog.model import Filter
from icefloe.catalog.wire import FollowAnswer
from icefloe.format.chunk_table import ChunkTable
from icefloe.service.derivation import Provider, Side, derive
from icefloe.transactions.chunks import put_refs
from icefloe.transactions.nodes import require_array

_NAME: Final = "icefloe-provider"
_ARRAY: Final = "/heat"


def main(arguments: list[str]) -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench service-following")
    parser.add_argument("--chunks", type=int, default=200_000)
    parser.add_argument("--changed", type=int, default=10)
    options = parser.parse_args(arguments)
    title = f"{options.chunks} chunks, of which {options.changed} change"
    table = Table("update", "time", "bytes written", "references", title=title)
    with scratch() as folder:
        provider = _Provider(folder / "provider", options.chunks)
        rows = np.arange(options.chunks)
        spread = np.linspace(0, options.chunks - 1, options.changed).astype(int)
        for name, chosen in (
            ("all", rows),
            ("changed, at the end", rows[-options.changed :]),
            ("changed, all over the array", rows[spread]),
        ):
            provider.write(chosen)
            seconds, size_bytes, answer = provider.follow(folder / "subscriber")
            table.add_row(
                name, f"{seconds * 1e3:.0f} ms", f"{size_bytes:,}", f"{answer.references:,}"
            )
    Console().print(table)


class _Provider:
    """A repository whose references name chunk objects that nobody reads."""

    def __init__(self, folder: Path, chunks: int) -> None:
        self._folder = folder
        self._rng = np.random.default_rng(1)
        storage = icefloe.local_filesystem_storage(str(folder))
        self._repository = icefloe.Repository.create(storage)
        session = self._repository.writable_session("main")
        zarr.create_array(session.store, name=_ARRAY, shape=(chunks,), chunks=(1,), dtype="f8")
        session.commit("an array")

    def write(self, rows: NDArray[np.integer]) -> None:
        """Commit other references for some chunks."""
        session = self._repository.writable_session("main")
        count = len(rows)
        ids = self._rng.integers(0, 256, (count, 12), np.uint8)
        state = state_of(session)
        refs = ChunkTable.native(
            rows.astype(np.uint32).reshape(-1, 1), ids, np.full(count, 1 << 20, np.uint64)
        )
        put_refs(state, require_array(state, _ARRAY), refs)
        session.commit("chunks")

    def follow(self, folder: Path) -> tuple[float, int, FollowAnswer]:
        """Bring the subscriber to the newest version, in a process that knows nothing of it."""
        config = icefloe.RepositoryConfig.default()
        place = str(self._folder / "chunks")
        store = icefloe.local_filesystem_store(place)
        container = icefloe.VirtualChunkContainer(f"file://{place}/", store, _NAME)
        config.set_virtual_chunk_container(container)
        target = Side(icefloe.local_filesystem_storage(str(folder)), config, {})
        storage = icefloe.local_filesystem_storage(str(self._folder))
        origin = Provider("them", icefloe.Repository.open(storage))
        before = _size_bytes(folder)
        start = time.perf_counter()
        answer = derive(origin, target, None, Filter((_ARRAY,)), f"vcc://{_NAME}/", "an update")
        seconds = time.perf_counter() - start
        return seconds, _size_bytes(folder) - before, answer


def _size_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
