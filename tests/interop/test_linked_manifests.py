"""Manifests built apart and linked by one commit: the reference reads them and goes on."""

from pathlib import Path
from typing import Any

import icechunk as ic
import numpy as np
import pytest
import zarr

import icefloe
from icefloe.effects import run_blocking
from icefloe.format.chunk_table import ChunkTable, Coordinates
from icefloe.format.columns import BytesColumn
from icefloe.repo import lifecycle
from icefloe.repo.context import RepoContext
from icefloe.transactions.commit import commit
from icefloe.transactions.session import SessionMode, SessionState, open_session
from icefloe.zarr_store import IcechunkStore
from tests.support.built_elsewhere import link, log_writer
from tests.support.checking import InvariantChecker

WIDE = 8192
"""Four rows fill a manifest."""


def values(rows: int) -> np.ndarray[Any, Any]:
    return (np.arange(rows * WIDE, dtype="u1") + np.uint8(1)).reshape(rows, WIDE)


def coordinates(first: int, last: int) -> Coordinates:
    found = np.indices((last - first, WIDE), np.uint32).reshape(2, -1).T.copy()
    found[:, 0] += np.uint32(first)
    return found


def table(first: int, last: int) -> ChunkTable:
    data = values(last)[first:].ravel().tolist()
    return ChunkTable.inlined(
        coordinates(first, last), BytesColumn.from_list([bytes([value]) for value in data])
    )


async def begin(context: RepoContext) -> SessionState:
    tip = await context.ledger.branch_tip("main")
    return await open_session(context, tip, SessionMode.writable, branch="main")


def append(context: RepoContext, first: int, last: int, *, writes_log: bool) -> None:
    session = run_blocking(begin(context))
    zarr.open_group(IcechunkStore(session))["big"].resize((last, WIDE))  # type: ignore[union-attr]
    link(session, "/big", table(first, last))
    writer = log_writer(session, "/big", coordinates(first, last)) if writes_log else None
    run_blocking(commit(session, f"rows from {first}", log_writer=writer))


@pytest.mark.parametrize("spec", [1, 2])
def test_the_reference_reads_appends_and_compares(tmp_path: Path, spec: int) -> None:
    storage = icefloe.local_filesystem_storage(str(tmp_path))
    context = run_blocking(lifecycle.create(storage, spec_version=spec))
    session = run_blocking(begin(context))
    root = zarr.group(IcechunkStore(session))
    root.create_array(
        "big",
        shape=(0, WIDE),
        chunks=(1, 1),
        dtype="u1",
        compressors=None,
        dimension_names=("time", "x"),
    )
    run_blocking(commit(session, "an empty array"))
    append(context, 0, 6, writes_log=True)
    append(context, 6, 9, writes_log=False)
    run_blocking(InvariantChecker().check(context.backend))

    repo = ic.Repository.open(ic.local_filesystem_storage(str(tmp_path)))
    theirs = zarr.open_group(repo.readonly_session("main").store, mode="r")["big"]
    assert isinstance(theirs, zarr.Array)
    assert theirs.shape == (9, WIDE)
    for columns in (slice(0, 3), slice(WIDE - 2, WIDE)):
        assert np.array_equal(np.asarray(theirs[:, columns]), values(9)[:, columns])
    tips = [one.id for one in repo.ancestry(branch="main")]
    for first, last, one in [(6, 9, 0), (0, 6, 1)]:
        found = repo.diff(from_snapshot_id=tips[one + 1], to_snapshot_id=tips[one])
        listed = sorted(map(tuple, found.updated_chunks["/big"]))
        assert listed == list(map(tuple, coordinates(first, last).tolist()))

    writing = repo.writable_session("main")
    big = zarr.open_group(writing.store)["big"]
    assert isinstance(big, zarr.Array)
    big[8, :2] = [77, 78]
    writing.commit("two chunks by the reference")
    again = run_blocking(begin(run_blocking(lifecycle.open_(storage))))
    ours = zarr.open_group(IcechunkStore(again), mode="r")["big"]
    assert isinstance(ours, zarr.Array)
    assert np.asarray(ours[8, :4]).tolist() == [77, 78, *values(9)[8, 2:4].tolist()]
    run_blocking(InvariantChecker().check(context.backend))


def test_we_append_to_what_the_reference_wrote(tmp_path: Path) -> None:
    """Its manifest of the whole array stays, unless something comes into it."""
    repo = ic.Repository.create(ic.local_filesystem_storage(str(tmp_path)))
    writing = repo.writable_session("main")
    root = zarr.group(writing.store)
    big = root.create_array("big", shape=(2, WIDE), chunks=(1, 1), dtype="u1", compressors=None)
    big[0, :10] = values(2)[0, :10]
    big[1, :10] = values(2)[1, :10]
    writing.commit("by the reference")
    context = run_blocking(lifecycle.open_(icefloe.local_filesystem_storage(str(tmp_path))))
    append(context, 2, 8, writes_log=True)
    run_blocking(InvariantChecker().check(context.backend))
    repo = ic.Repository.open(ic.local_filesystem_storage(str(tmp_path)))
    theirs = zarr.open_group(repo.readonly_session("main").store, mode="r")["big"]
    assert isinstance(theirs, zarr.Array)
    assert np.array_equal(np.asarray(theirs[:, :10]), values(8)[:, :10])
