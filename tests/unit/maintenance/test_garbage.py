"""Garbage goes, by kind and by age; what anybody needs, or may come to need, stays."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import icefloe
from icefloe.effects import run_blocking
from icefloe.storage import Backend, Storage
from icefloe.storage.port import DeleteReport
from icefloe.storage.wrapper import BackendWrapper, PrecededBackend
from icefloe.testing.schedules import WrappedStorage
from tests.faults.sessions import BIG, prepared, put_chunk, seen_in
from tests.property.reachable import listing, stored
from tests.support.checking import check_repository_blocking

SPECS = pytest.mark.parametrize("spec", [1, 2])


def now() -> datetime:
    return datetime.now(UTC)


def with_garbage(spec: int = 2) -> tuple[Storage, icefloe.Repository]:
    """Make a repository with a version that nothing leads to, and a chunk never committed."""
    storage = prepared(spec)
    repo = icefloe.Repository.open(storage)
    repo.create_branch("gone", repo.lookup_branch("main"))
    session = repo.writable_session("gone")
    run_blocking(put_chunk(session, 2, 3, BIG))
    session.commit("gone")
    repo.delete_branch("gone")
    run_blocking(put_chunk(repo.writable_session("main"), 3, 4, BIG))
    return storage, repo


def count(storage: Storage, prefix: str) -> int:
    return sum(key.startswith(prefix) for key in listing(storage.open()))


@SPECS
def test_all_kinds_go(spec: int) -> None:
    storage, repo = with_garbage(spec)
    before = listing(storage.open())
    done = repo.garbage_collect(now())
    gone = before.keys() - listing(storage.open()).keys()
    assert done.snapshots_deleted == done.transaction_logs_deleted == done.manifests_deleted == 1
    assert done.chunks_deleted == 2
    assert done.bytes_deleted == sum(before[key].size_bytes for key in gone)
    assert done.is_complete
    check_repository_blocking(storage.open())


@SPECS
def test_what_is_young_stays(spec: int) -> None:
    storage = prepared(spec)
    repo = icefloe.Repository.open(storage)
    cutoff = now()
    session = repo.writable_session("main")
    run_blocking(put_chunk(session, 3, 4, BIG))
    assert repo.garbage_collect(cutoff).chunks_deleted == 0
    session.commit("in time")
    assert seen_in(storage).files["a/c/3"] == b"\x04" * BIG


@SPECS
def test_a_time_in_the_future_means_now(spec: int) -> None:
    """Objects that a storage dates after the beginning are not touched, whatever is asked."""
    storage, _ = with_garbage(spec)
    early = now() - timedelta(minutes=1)
    repo = icefloe.Repository.open(storage)
    context = repo._context
    object.__setattr__(context, "clock", lambda: int(early.timestamp() * 1e6))
    assert repo.garbage_collect(now() + timedelta(days=365)).chunks_deleted == 0


@SPECS
def test_a_commit_under_way_keeps_chunks_however_old(spec: int) -> None:
    """A young manifest that is in no version yet speaks for its chunks, and so does a snapshot."""
    storage = prepared(spec)
    repo = icefloe.Repository.open(storage)
    session = repo.writable_session("main")
    run_blocking(put_chunk(session, 3, 4, BIG))
    cutoff = now()
    before = stored(storage.open())
    session.flush("on its own")
    if spec == 2:  # as if the last step were still to come
        run_blocking(storage.open().put("repo", before["repo"]))
    assert repo.garbage_collect(cutoff).chunks_deleted == 0
    snapshots = [key for key in listing(storage.open()) if key.startswith("snapshots/")]
    young = [key for key in snapshots if listing(storage.open())[key].last_modified >= cutoff]
    run_blocking(storage.open().delete_many(young))
    assert repo.garbage_collect(cutoff).chunks_deleted == 0
    assert repo.garbage_collect(now()).chunks_deleted == 1


def test_versions_on_their_own_stay_while_they_are_young() -> None:
    storage = prepared(2)
    repo = icefloe.Repository.open(storage)
    session = repo.writable_session("main")
    run_blocking(put_chunk(session, 3, 4, BIG))
    cutoff = now()
    snapshot = session.flush("on its own")
    repo.garbage_collect(cutoff)
    assert repo.readonly_session(snapshot_id=snapshot).store.get_sync("a/c/3") is not None
    repo.garbage_collect(now())
    with pytest.raises(icefloe.SnapshotNotFoundError):
        repo.readonly_session(snapshot_id=snapshot)


@SPECS
def test_only_files_of_the_format_are_touched(spec: int) -> None:
    storage, repo = with_garbage(spec)
    strange = [
        "icefloe/jobs/log.json",
        "chunks/README",
        "chunks/000G40R40M30E209185g",
        "chunks/000G40R40M30E2091850/part",
        "manifests/ü00G40R40M30E209185G",
        "notes.txt",
    ]
    for key in strange:
        run_blocking(storage.open().put(key, b"mine"))
    kept = {key for key in listing(storage.open()) if key.startswith(("refs", "over", "config"))}
    repo.garbage_collect(now())
    assert listing(storage.open()).keys() >= {*strange, *kept}


@SPECS
def test_a_pack_stays_while_any_of_its_chunks_is_needed(spec: int) -> None:
    storage = prepared(spec)
    repo = icefloe.Repository.open(storage)
    session = repo.writable_session("main", packing=True)
    for number in range(2, 6):
        run_blocking(put_chunk(session, number, number, BIG))
    session.commit("packed")
    before = count(storage, "chunks/")
    for number in range(2, 6):
        session = repo.writable_session("main")
        run_blocking(put_chunk(session, number, 99, BIG))
        session.commit("written over")
        repo.expire_snapshots(now())
        repo.garbage_collect(now())
        expected = before + number - 1 - (number == 5)
        assert count(storage, "chunks/") == expected
        check_repository_blocking(storage.open())


def test_kinds_have_cutoffs_of_their_own() -> None:
    storage, repo = with_garbage()
    done = repo.garbage_collect(now(), cutoffs={"chunks": None, "transaction_logs": None})
    assert (done.chunks_deleted, done.transaction_logs_deleted) == (0, 0)
    assert (done.snapshots_deleted, done.manifests_deleted) == (1, 1)
    assert repo.garbage_collect(now(), cutoffs={"chunks": now()}).chunks_deleted == 2
    with pytest.raises(icefloe.InvalidInputError, match="'chunks'"):
        repo.garbage_collect(now(), cutoffs={"chunk": None})  # type: ignore[dict-item]
    check_repository_blocking(storage.open())


@SPECS
def test_versions_that_stay_keep_what_they_refer_to(spec: int) -> None:
    storage, repo = with_garbage(spec)
    done = repo.garbage_collect(now(), cutoffs={"snapshots": None})
    assert (done.snapshots_deleted, done.manifests_deleted, done.chunks_deleted) == (0, 0, 1)
    check_repository_blocking(storage.open())


@SPECS
@pytest.mark.parametrize("incremental", [False, True])
def test_a_dry_run_changes_nothing(spec: int, incremental: bool) -> None:
    storage, repo = with_garbage(spec)
    before = listing(storage.open())
    planned = repo.garbage_collect(now(), dry_run=True, incremental=incremental)
    assert listing(storage.open()) == before
    assert planned == repo.garbage_collect(now(), incremental=incremental)


class Listing(PrecededBackend):
    """Notes what is listed."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.listed: list[str] = []

    async def _before(self, *keys: str, writes: bool) -> None:
        del writes
        self.listed += keys

    async def head(self, key: str) -> Any:
        return await self.inner.head(key)


@SPECS
def test_an_incremental_run_lists_no_chunks(spec: int) -> None:
    storage, repo = with_garbage(spec)
    repo.create_tag("kept", repo.lookup_branch("main"))
    noted: list[Listing] = []

    def wrap(inner: Backend) -> Listing:
        noted.append(Listing(inner))
        return noted[0]

    watched = icefloe.Repository.open(WrappedStorage(storage, wrap))
    done = watched.garbage_collect(now(), incremental=True)
    assert not {"chunks/", "manifests/"} & {*noted[0].listed}
    assert (done.snapshots_deleted, done.manifests_deleted, done.chunks_deleted) == (1, 1, 1)
    noted[0].listed.clear()
    assert watched.garbage_collect(now(), incremental=True).snapshots_deleted == 0
    assert not [key for key in noted[0].listed if key.startswith(("chunks/", "manifests/"))]
    assert repo.garbage_collect(now()).chunks_deleted == 1  # the one never committed
    check_repository_blocking(storage.open())


class Refusing(BackendWrapper):
    """Deletes nothing below a prefix."""

    def __init__(self, inner: Backend, prefix: str) -> None:
        super().__init__(inner)
        self._prefix = prefix

    async def delete_many(self, keys: Sequence[str]) -> DeleteReport:
        if keys[0].startswith(self._prefix):
            return DeleteReport(0, dict.fromkeys(keys, "not allowed"), frozenset(keys))
        return await self.inner.delete_many(keys)


def refusing(storage: Storage, prefix: str) -> icefloe.Repository:
    return icefloe.Repository.open(WrappedStorage(storage, lambda inner: Refusing(inner, prefix)))


def test_failures_are_counted_and_told() -> None:
    storage, _ = with_garbage()
    done = refusing(storage, "manifests/").garbage_collect(now())
    assert done.objects_failed_to_delete == 1
    assert done.manifests_deleted == 0
    assert done.throttled_batches == 1
    assert done.chunks_deleted == 2
    assert "not allowed" in done.delete_errors[0]
    assert not done.is_complete
    assert "not allowed" in repr(done)
    assert "not allowed" in done._repr_html_()


def test_too_many_failures_end_it() -> None:
    storage, _ = with_garbage()
    repo = refusing(storage, "snapshots/")
    done = repo.garbage_collect(now(), max_consecutive_delete_failures=0)
    assert done.skipped_phases == ["snapshots", "transaction_logs", "manifests", "chunks"]
    assert done.chunks_deleted == 0


def test_an_incremental_run_that_fails_can_begin_again() -> None:
    storage, repo = with_garbage()
    done = refusing(storage, "chunks/").garbage_collect(now(), incremental=True)
    assert done.skipped_phases == ["manifests", "transaction_logs", "snapshots"]
    assert repo.garbage_collect(now(), incremental=True).chunks_deleted == 1


def test_the_log_of_operations_tells() -> None:
    _, repo = with_garbage()
    repo.garbage_collect(now(), dry_run=True)
    newest = next(iter(repo.ops_log()))
    assert not isinstance(newest.kind, icefloe.UpdateType.GCRan)
    repo.garbage_collect(now())
    newest = next(iter(repo.ops_log()))
    assert isinstance(newest.kind, icefloe.UpdateType.GCRan)


def test_a_repository_that_takes_no_changes_is_left_alone() -> None:
    storage, repo = with_garbage()
    repo.set_status(icefloe.RepoStatus(icefloe.RepoAvailability.read_only))
    before = listing(storage.open())
    with pytest.raises(icefloe.ReadOnlyError):
        repo.garbage_collect(now())
    assert listing(storage.open()) == before
    assert repo.garbage_collect(now(), dry_run=True).chunks_deleted == 2


@SPECS
def test_small_limits_change_nothing(spec: int) -> None:
    storage, repo = with_garbage(spec)
    done = repo.garbage_collect(
        now(),
        max_snapshots_in_memory=1,
        max_compressed_manifest_mem_bytes=1,
        max_decoded_manifest_mem_bytes=1,
        max_concurrent_manifest_fetches=1,
        max_concurrent_deletes=1,
        max_concurrent_listings=1,
    )
    assert done.chunks_deleted == 2
    check_repository_blocking(storage.open())
    with pytest.raises(icefloe.InvalidInputError, match="max_concurrent_deletes"):
        repo.garbage_collect(now(), max_concurrent_deletes=0)
