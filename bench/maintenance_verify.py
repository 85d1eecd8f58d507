"""Verification of a repository with a million references: ours alone, as the reference has none."""

import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np
import zarr

import icefloe
from bench.engine_location import Location
from bench.engine_rows import Group, Row, Scale
from bench.manifests_building import built
from bench.measure import measured
from icefloe.format.chunk_table import ChunkTable
from icefloe.format.ids import texts_of_rows

_REFERENCES: Final = 1_000_000
_OBJECTS: Final = 100_000
_MOST_SECONDS: Final = 3.0
_LENGTH: Final = 4


def _verify(lib: ModuleType, location: Location, scale: Scale) -> Mapping[str, float]:
    """Verify virtual references, then native ones, each with an object of its own."""
    virtual, native = location.below("virtual"), location.below("native")
    built(virtual, "default", 1, scale.of(_REFERENCES, _REFERENCES // 20))
    _build_native(native, scale.of(_OBJECTS, _OBJECTS // 20))
    figures = {}
    for name, at in (("", virtual), ("native ", native)):
        repo = lib.Repository.open(at.storage(lib))
        began = time.process_time()
        sample = measured(partial(_verified, repo))
        figures[f"{name}cpu"] = time.process_time() - began
        figures[f"{name}rss"] = sample.rss_growth_bytes
    return figures


def _verified(repo: Any) -> int:
    report = repo.verify()
    assert report.is_healthy, report
    return 0


def _build_native(location: Location, count: int) -> None:
    """Write chunk objects beside the repository: a commit of this many would take minutes."""
    repo = location.create(icefloe)
    session = repo.writable_session("main")
    zarr.create_array(session.store, name="a", shape=count, chunks=1, dtype="i4")
    ids = np.random.default_rng(7).integers(0, 256, (count, 12), dtype=np.uint8)
    folder = Path(location.path) / "chunks"
    folder.mkdir(parents=True)
    for name in texts_of_rows(ids):
        (folder / name).write_bytes(bytes(_LENGTH))
    rows = np.arange(count, dtype=np.uint32).reshape(-1, 1)
    state = session._session  # noqa: SLF001 - there is no public way to refer to such objects
    node = state.tree.find("/a")
    assert node is not None
    state.changes.put_table(node.id, ChunkTable.native(rows, ids, np.full(count, _LENGTH, "u8")))
    session.commit("references")


GROUPS: Final = {
    "verify": Group(
        _verify,
        (
            Row("cpu", "verify 1M references, CPU", at_most=_MOST_SECONDS),
            Row("rss", "verify 1M references, memory", unit="bytes"),
            Row("native cpu", "verify 100,000 chunk objects in a folder, CPU"),
            Row("native rss", "verify 100,000 chunk objects in a folder, memory", unit="bytes"),
        ),
        rounds=2,
        ours_only=True,
    ),
}
