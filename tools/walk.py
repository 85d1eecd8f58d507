"""Count the functions of Icefloe that common operations run: functions, modules, depth, calls.

    python -m tools.walk                   print a table
    python -m tools.walk --functions commit    list the functions of one operation, in order

The profiler sees each call of a Python function (`sys.setprofile`). A function counts once,
however often it runs; depth is the largest number of Icefloe's functions on the stack.
"""

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import numpy as np
import xarray
import zarr

import icefloe
from icefloe.pipeline import CombineOptions, container_at, container_prefixes, virtualize_locally

_PACKAGE: Final = str(Path(icefloe.__file__).parent)


class Walk:
    """The functions that ran, in the order of their first calls."""

    def __init__(self) -> None:
        self.calls: Counter[CodeType] = Counter()
        self.depth = 0

    @property
    def functions(self) -> list[str]:
        """The functions, as `module:qualified name`."""
        return [f"{_module(code)}:{code.co_qualname}" for code in self.calls]

    @property
    def modules(self) -> set[str]:
        """The modules of the functions."""
        return {_module(code) for code in self.calls}


def _module(code: CodeType) -> str:
    return str(Path(code.co_filename).relative_to(_PACKAGE).with_suffix("")).replace("/", ".")


@contextmanager
def walking() -> Iterator[Walk]:
    """Record the functions of Icefloe that this thread runs."""
    walk = Walk()

    def note(frame: FrameType, event: str, _argument: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(_PACKAGE):
            return
        if not code.co_name.startswith("<"):  # generator expressions and lambdas are no stations
            walk.calls[code] += 1
        depth, above = 0, frame
        while above is not None:
            depth += above.f_code.co_filename.startswith(_PACKAGE)
            above = above.f_back  # type: ignore[assignment]
        walk.depth = max(walk.depth, depth)

    sys.setprofile(note)
    try:
        yield walk
    finally:
        sys.setprofile(None)


def _repository() -> icefloe.Repository:
    """Create a repository with one array, on which each operation ran once before."""
    repository = icefloe.Repository.create(icefloe.in_memory_storage())
    with repository.transaction("main", message="first") as store:
        array = zarr.create_array(
            store, name="a", shape=(10_000,), chunks=(1_000,), dtype="f8", compressors=None
        )
        array[:] = np.arange(10_000.0)
    return repository


def read_chunk() -> Walk:
    """Read a chunk whose manifest is in memory."""
    store = _repository().readonly_session("main").store
    prototype = zarr.core.buffer.default_buffer_prototype()
    store.get_sync("a/c/0", prototype=prototype)
    with walking() as walk:
        store.get_sync("a/c/0", prototype=prototype)
    return walk


def write_chunk() -> Walk:
    """Write a chunk of an array that has some."""
    store = _repository().writable_session("main").store
    value = zarr.core.buffer.default_buffer_prototype().buffer.from_bytes(bytes(8_000))
    store.set_sync("a/c/0", value)
    with walking() as walk:
        store.set_sync("a/c/1", value)
    return walk


def commit_chunk() -> Walk:
    """Commit a chunk of an array."""
    repository = _repository()
    value = zarr.core.buffer.default_buffer_prototype().buffer.from_bytes(bytes(8_000))
    for message in ("warm", "measured"):
        session = repository.writable_session("main")
        session.store.set_sync("a/c/0", value)
        with walking() as walk:
            session.commit(message)
    return walk


def read_virtual_chunk() -> Walk:
    """Read a virtual chunk of a local file, a second time."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "data.bin").write_bytes(bytes(range(80)))
        prefix = f"file://{folder}/"
        config = icefloe.RepositoryConfig.default()
        container = icefloe.VirtualChunkContainer(prefix, icefloe.local_filesystem_store(folder))
        config.set_virtual_chunk_container(container)
        repository = icefloe.Repository.create(
            icefloe.in_memory_storage(),
            config,
            authorize_virtual_chunk_access={prefix: icefloe.Credentials.LocalFileSystemAccess()},
        )
        with repository.transaction("main", message="first") as store:
            zarr.create_array(store, name="a", shape=(80,), chunks=(80,), dtype="u1")
            store.set_virtual_ref("a/c/0", f"{prefix}data.bin", offset=0, length=80)
        store = repository.readonly_session("main").store
        prototype = zarr.core.buffer.default_buffer_prototype()
        store.get_sync("a/c/0", prototype=prototype)
        with walking() as walk:
            store.get_sync("a/c/0", prototype=prototype)
        return walk


def collect_garbage() -> Walk:
    """Collect the garbage of a repository with two versions."""
    repository = _repository()
    moment = datetime.now(UTC) - timedelta(days=1)
    repository.garbage_collect(moment)
    with walking() as walk:
        repository.garbage_collect(moment)
    return walk


def ingest_file() -> Walk:
    """Ingest a netCDF file by reference without Spark, and commit; another one came before it."""
    with tempfile.TemporaryDirectory() as folder:
        for day in (1, 2):
            data = xarray.Dataset({"t2m": (("time", "x"), [[280.0 + day]])}, {"time": [day]})
            data.to_netcdf(f"{folder}/day-{day}.nc", engine="h5netcdf")
        [prefix] = container_prefixes([f"{folder}/*.nc"])
        config = icefloe.RepositoryConfig.default()
        config.set_virtual_chunk_container(container_at(prefix))
        repository = icefloe.Repository.create(icefloe.in_memory_storage(), config)
        for day in (1, 2):
            session = repository.writable_session("main")
            options = CombineOptions(("time",))
            with walking() as walk:
                virtualize_locally(session, f"{folder}/day-{day}.nc", options, append=day > 1)
                session.commit("ingested")
        return walk


OPERATIONS: Final[dict[str, tuple[str, Callable[[], Walk]]]] = {
    "read": ("read a chunk, warm", read_chunk),
    "write": ("write a chunk", write_chunk),
    "commit": ("commit a chunk", commit_chunk),
    "virtual": ("read a virtual chunk, warm", read_virtual_chunk),
    "gc": ("collect garbage", collect_garbage),
    "ingest": ("ingest a netCDF file, without Spark", ingest_file),
}


def main() -> None:
    """Print the table, or the functions of one operation."""
    parser = argparse.ArgumentParser(description="Count the functions that operations run.")
    parser.add_argument("--functions", choices=list(OPERATIONS), help="list the functions")
    chosen = parser.parse_args().functions
    if chosen is not None:
        for function in OPERATIONS[chosen][1]().functions:
            print(function)
        return
    print("| operation | functions | modules | depth | calls |")
    print("|---|---|---|---|---|")
    for text, run in OPERATIONS.values():
        walk = run()
        counts = (len(walk.calls), len(walk.modules), walk.depth, walk.calls.total())
        print(f"| {text} | {' | '.join(map(str, counts))} |")


if __name__ == "__main__":
    main()
