"""What a job left is removed, and nothing that any version uses, whoever made it."""

from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.effects import run_blocking
from icefloe.pipeline.running.orphans import JOB_METADATA, note_key
from icefloe.spark import discard_attempt, list_attempts

LARGE = 4000
"""So many bytes in a chunk are not kept in the manifest."""


@pytest.fixture(params=[1, 2])
def repository(request: pytest.FixtureRequest) -> icefloe.Repository:
    made = icefloe.Repository.create(icefloe.in_memory_storage(), spec_version=request.param)
    with made.transaction("main", message="array") as store:
        zarr.create_array(store, shape=(4, LARGE), chunks=(1, LARGE), dtype="u1", fill_value=0)
    return made


def set_row(session: icefloe.Session, row: int) -> None:
    zarr.open_array(session.store)[row] = np.full(LARGE, row + 1, np.uint8)


def keys_of(repository: icefloe.Repository, kind: str) -> set[str]:
    return {f"{kind}/{key}" for key, _ in repository.storage.list_objects(prefix=kind)}


def note(repository: icefloe.Repository, job: str, keys: Sequence[str]) -> None:
    backend = repository._context.backend
    run_blocking(backend.put(note_key(job, 0, 0), "\n".join(keys).encode()))


def test_versions_without_a_branch_keep_what_they_use(repository: icefloe.Repository) -> None:
    session = repository.writable_session("main")
    set_row(session, 0)
    anonymous = session.flush("nobody's", metadata={JOB_METADATA: "lost"})
    used = keys_of(repository, "manifests") | keys_of(repository, "chunks")
    note(repository, "other", sorted(used))
    assert discard_attempt(repository, "other") == 0
    assert used <= keys_of(repository, "manifests") | keys_of(repository, "chunks")
    kept = zarr.open_array(repository.readonly_session(snapshot_id=anonymous).store, mode="r")
    assert np.asarray(kept[0])[0] == 1


def test_later_versions_keep_what_a_job_wrote_whose_own_version_is_gone(
    repository: icefloe.Repository,
) -> None:
    session = repository.writable_session("main")
    set_row(session, 0)
    session.commit("of the job", metadata={JOB_METADATA: "lost"})
    written = sorted(keys_of(repository, "manifests") | keys_of(repository, "chunks"))
    session = repository.writable_session("main")
    set_row(session, 1)
    session.commit("on top")
    repository.expire_snapshots(datetime.now(UTC))
    repository.garbage_collect(datetime.now(UTC))
    [manifest] = [
        key
        for key in written
        if key not in keys_of(repository, "manifests") | keys_of(repository, "chunks")
    ]
    assert manifest.startswith("manifests/")
    note(repository, "lost", written)
    assert discard_attempt(repository, "lost") == 1  # the manifest, which is gone already
    assert list_attempts(repository) == []
    whole = zarr.open_array(repository.readonly_session("main").store, mode="r")
    assert np.asarray(whole[:2, 0]).tolist() == [1, 2]


def test_what_nobody_uses_goes(repository: icefloe.Repository) -> None:
    backend = repository._context.backend
    left = ["manifests/00000000000000000000", "chunks/00000000000000000000"]
    for key in left:
        run_blocking(backend.put(key, b"of an attempt that was lost"))
    note(repository, "lost", left)
    assert discard_attempt(repository, "lost") == 2
    assert not set(left) & (keys_of(repository, "manifests") | keys_of(repository, "chunks"))
