"""The empty files that our locks need are nothing to the reference, nor to our own maintenance."""

import datetime as dt
from pathlib import Path

import icechunk
import pytest

import icefloe
from icefloe.effects import run_blocking
from tests.faults.sessions import BIG, GROUP, array_document, put

pytestmark = pytest.mark.interop
TOMORROW = dt.timedelta(days=1)


@pytest.mark.parametrize("spec_version", [1, 2])
def test_nobody_minds_lock_files(tmp_path: Path, spec_version: int) -> None:
    storage = icefloe.local_filesystem_storage(str(tmp_path))
    repo = icefloe.Repository.create(storage, spec_version=spec_version)
    for name, chunk in (("kept", 1), ("discarded", 2)):
        session = repo.writable_session("main")
        run_blocking(put(session, "zarr.json", GROUP))
        run_blocking(put(session, "a/zarr.json", array_document()))
        run_blocking(put(session, f"a/c/{chunk}", bytes([chunk]) * BIG))
        session.commit(name, rebase_with=icefloe.ConflictDetector())
    tips = [entry.id for entry in repo.ancestry(branch="main")]
    repo.reset_branch("main", tips[1])
    moment = dt.datetime.now(dt.UTC) + TOMORROW
    assert repo.garbage_collect(moment).chunks_deleted == 1
    lock_files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("#*")}
    assert "chunks/#0" in lock_files
    assert "#0" in lock_files  # the probe of a clock is deleted there, in both versions

    listed = {key for key, _ in storage.list_objects()}
    theirs = icechunk.local_filesystem_storage(str(tmp_path))
    assert not any("#" in key for key in listed)
    assert {key for key, _ in theirs.list_objects()} == listed
    reference = icechunk.Repository.open(theirs)
    assert next(entry.message for entry in reference.ancestry(branch="main")) == "kept"
    assert reference.garbage_collect(moment).chunks_deleted == 0
    assert {path for path in lock_files if not (tmp_path / path).exists()} == set()
    assert icefloe.Repository.open(storage).verify().is_healthy
