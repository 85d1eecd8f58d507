"""Chunks that share an object, as the reference sees them."""

from pathlib import Path

import icechunk as ic
import numpy as np
import pytest
import zarr

from icefloe.effects import run_blocking
from icefloe.repo.lifecycle import create
from icefloe.storage import local_filesystem_storage
from icefloe.transactions.commit import commit
from icefloe.transactions.packing import PackingOptions
from icefloe.transactions.session import SessionMode, open_session
from icefloe.zarr_store import IcechunkStore


@pytest.mark.parametrize("spec_version", [1, 2])
def test_the_reference_reads_packed_chunks(tmp_path: Path, spec_version: int) -> None:
    place = str(tmp_path / "repository")
    context = run_blocking(create(local_filesystem_storage(place), spec_version=spec_version))
    tip = run_blocking(context.ledger.branch_tip("main"))
    packing = PackingOptions(max_chunk_bytes=1000, pack_bytes=10_000)
    session = run_blocking(
        open_session(context, tip, SessionMode.writable, branch="main", packing=packing)
    )
    data = np.arange(10_000, dtype="i8")
    array = zarr.create_array(
        IcechunkStore(session),
        name="a",
        shape=data.shape,
        chunks=(100,),
        dtype="i8",
        compressors=None,
    )
    array[:] = data
    run_blocking(commit(session, "packed"))
    objects = list((tmp_path / "repository" / "chunks").iterdir())
    assert 1 < len(objects) <= 20

    theirs = ic.Repository.open(ic.local_filesystem_storage(place))
    store = theirs.readonly_session("main").store
    np.testing.assert_array_equal(zarr.open_array(store, path="a", mode="r")[:], data)

    writer = theirs.writable_session("main")
    zarr.open_array(writer.store, path="a")[:100] = -1
    writer.commit("over some of them")
    again = theirs.readonly_session("main").store
    np.testing.assert_array_equal(zarr.open_array(again, path="a", mode="r")[100:], data[100:])
