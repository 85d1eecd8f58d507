"""Copies and exports of repositories far away: many requests under way, within the memory."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.format.chunk_table import ChunkTable, concat_tables
from icefloe.pipeline.copying import transfer
from icefloe.pipeline.copying.copies import array_copies, find_arrays, make_copies
from icefloe.pipeline.copying.layouts import (
    MEMORY_PER_TASK,
    CopyOptions,
    LayoutOptions,
    cut_into_slabs,
    plan_slabs,
)
from icefloe.pipeline.copying.origins import RepositorySource
from icefloe.pipeline.copying.transfer import CopyPlan, copy_regions
from icefloe.pipeline.writing.building import native_table
from icefloe.transactions.chunks import put_refs
from icefloe.transactions.nodes import require_array
from icefloe.transactions.selections import read_request
from icefloe.zarr_store import exporting, selections
from tests.property.reachable import stored
from tests.property.test_selections import far_repository

AT_ONCE = 16


class Gathering:
    """Lets calls go on as soon as this many are under way; fails if they never are."""

    def __init__(self, expected: int) -> None:
        self._expected, self._under_way, self.most = expected, 0, 0
        self._changed = threading.Condition()

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        async def counted(*args: Any, **kwargs: Any) -> Any:
            with self._changed:
                self._under_way += 1
                self.most = max(self.most, self._under_way)
                self._changed.notify_all()
                assert self._changed.wait_for(lambda: self.most >= self._expected, timeout=120)
            try:
                return await function(*args, **kwargs)
            finally:
                with self._changed:
                    self._under_way -= 1

        return counted


def copied(origin: icefloe.Repository, layout: LayoutOptions) -> tuple[Any, int]:
    """Copy everything in one task to a repository far away; return the group and the memory."""
    target = far_repository(inline_bytes=0)
    source = RepositorySource(origin.readonly_session("main"))
    found = find_arrays(source, layout)
    session = target.writable_session("main")
    make_copies(session.store, "", found, layout)
    limits = CopyOptions(layout).limits(1, is_near=False)
    [slabs] = cut_into_slabs([shape.grid for shape in found.shapes], 1000)
    regions = plan_slabs(found.shapes, found.paths, slabs, limits)
    notes = [f"icefloe/jobs/test/{number}" for number in range(100)]
    documents = array_copies(session.store, "", found)
    plan = CopyPlan(documents, regions, None, limits.memory_bytes)
    tables: dict[int, list[ChunkTable]] = {}
    numbers = range(len(regions))
    for part in copy_regions(plan, numbers, source.array, target._context, notes.pop):
        tables.setdefault(part.array, []).append(native_table([part.references]))
    for number, path in enumerate(found.paths):
        node = require_array(session._session, f"/{path}")
        put_refs(session._session, node, concat_tables(tables[number]))
    return zarr.open_group(session.store, mode="r"), regions.memory_bytes


def test_a_task_reads_and_writes_many_small_objects_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = np.random.default_rng(0).random((64, 100))
    origin = far_repository(inline_bytes=0)
    with origin.transaction("main", message="64 chunks") as store:
        zarr.create_array(
            store, name="a", shape=(64, 100), chunks=(1, 100), dtype="f8",
            dimension_names=["row", "column"],
        )[:] = values  # fmt: skip
    reading, writing = Gathering(AT_ONCE), Gathering(AT_ONCE)
    monkeypatch.setattr(selections, "read_request", reading.around(read_request))
    take = transfer.ObjectWriter.take
    monkeypatch.setattr(transfer.ObjectWriter, "take", writing.around(take))
    group, memory_bytes = copied(origin, LayoutOptions({"column": 50}, {}, None))
    np.testing.assert_array_equal(group["a"][:], values)
    assert memory_bytes <= MEMORY_PER_TASK


def test_a_task_copies_small_arrays_together(monkeypatch: pytest.MonkeyPatch) -> None:
    origin = far_repository(inline_bytes=0)
    with origin.transaction("main", message="20 arrays of one chunk") as store:
        for number in range(20):
            zarr.create_array(store, name=f"a{number}", data=np.full(10, 1 + number))
    with monkeypatch.context() as patched:
        reading = Gathering(AT_ONCE)
        patched.setattr(selections, "read_request", reading.around(read_request))
        with zarr.config.set({selections.AHEAD_BYTES: 0}):  # which would request some of them
            group, _ = copied(origin, LayoutOptions())
    for number in range(20):
        np.testing.assert_array_equal(group[f"a{number}"][:], np.full(10, 1 + number))


def test_small_arrays_are_exported_together(monkeypatch: pytest.MonkeyPatch) -> None:
    repository = far_repository(inline_bytes=0)
    with repository.transaction("main", message="30 arrays of one chunk") as store:
        for number in range(30):
            zarr.create_array(store, name=f"group/a{number}", data=np.full(10, 1 + number))
    reading = Gathering(30)
    monkeypatch.setattr(exporting, "read_request", reading.around(read_request))
    target = icefloe.in_memory_storage()
    report = repository.export_to_zarr(target, "main", deep=True)
    assert (report.arrays, report.chunks, report.chunks_compared) == (30, 30, 30)
    assert reading.most == 30
    assert sum(key.endswith("/c/0") for key in stored(target.open())) == 30


def test_an_export_keeps_as_many_requests_under_way_as_a_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    repository = far_repository(inline_bytes=0)
    with repository.transaction("main", message="300 chunks") as store:
        zarr.create_array(store, name="a", data=np.arange(1, 301), chunks=1)
    reading = Gathering(60)
    monkeypatch.setattr(exporting, "read_request", reading.around(read_request))
    target = icefloe.in_memory_storage()
    repository.export_to_zarr(target, "main")
    assert reading.most >= 60
    assert sum("/c/" in key for key in stored(target.open())) == 300


def test_chunks_of_a_pack_are_exported_with_one_request() -> None:
    storage = icefloe.in_memory_storage()
    repository = far_repository(storage=storage, inline_bytes=0)
    session = repository.writable_session("main", packing=True)
    array = zarr.create_array(
        session.store, name="a", shape=1000, chunks=1, dtype="i4", compressors=None, fill_value=-1
    )
    array[:] = np.arange(1000)
    session.commit("a thousand chunks in one object")
    reader = repository.readonly_session("main")
    assert zarr.open_array(reader.store, path="a", mode="r")[3] == 3  # the manifest
    storage.reset_request_counts()
    target = icefloe.in_memory_storage()
    repository.export_to_zarr(target, snapshot_id=reader.snapshot_id)
    assert storage.request_counts().get_ranges == 1
    written = stored(target.open())
    numbers = [int.from_bytes(written[f"a/c/{number}"], "little") for number in range(1000)]
    assert numbers == list(range(1000))
