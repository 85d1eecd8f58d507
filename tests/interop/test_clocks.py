"""Versions written with wrong clocks: the reference reads them, and what it does then."""

import asyncio
from datetime import timedelta
from pathlib import Path

import icechunk as ic
import pytest
from zarr.core.buffer import default_buffer_prototype

import icefloe
from icefloe.effects import run_blocking
from tests.faults.clocks import HOUR, opened
from tests.faults.sessions import BIG, GROUP, array_document, put, put_chunk
from tests.support.checking import check_repository_blocking

PROTOTYPE = default_buffer_prototype()
SPECS = pytest.mark.parametrize("spec", [1, 2])


def chunk_by_reference(repo: ic.Repository) -> bytes | None:
    store = repo.readonly_session("main").store
    found = asyncio.run(store.get("a/c/3", PROTOTYPE))
    return None if found is None else found.to_bytes()


def commit_by_reference(repo: ic.Repository, value: int) -> None:
    session = repo.writable_session("main")
    data = PROTOTYPE.buffer.from_bytes(bytes([value]) * BIG)
    asyncio.run(session.store.set("a/c/3", data))
    session.commit(f"by the reference: {value}")


@SPECS
@pytest.mark.parametrize("off", [-HOUR, HOUR], ids=["behind", "ahead"])
def test_the_reference_reads_and_goes_on(tmp_path: Path, spec: int, off: timedelta) -> None:
    storage = icefloe.local_filesystem_storage(str(tmp_path))
    repo = icefloe.Repository.create(storage, spec_version=spec)
    session = repo.writable_session("main")
    run_blocking(put(session, "zarr.json", GROUP))
    run_blocking(put(session, "a/zarr.json", array_document()))
    session.commit("prepared")
    for value in (1, 2):
        session = opened(storage, off).writable_session("main")
        run_blocking(put_chunk(session, 3, value, BIG))
        session.commit("with a wrong clock")
    reference = ic.Repository.open(ic.local_filesystem_storage(str(tmp_path)))
    assert chunk_by_reference(reference) == bytes([2]) * BIG
    assert len(list(reference.ancestry(branch="main"))) == 4
    if off < timedelta(0):
        commit_by_reference(reference, 3)
    else:  # it waits until its clock is past the newest version, and we do not
        with pytest.raises(ic.IcechunkError):
            commit_by_reference(reference, 3)
        session = icefloe.Repository.open(storage).writable_session("main")
        run_blocking(put_chunk(session, 3, 3, BIG))
        session.commit("with the right clock again")
    assert chunk_by_reference(reference) == bytes([3]) * BIG
    check_repository_blocking(storage.open())
