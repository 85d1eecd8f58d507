"""A migration that dies, fails or races: the repository is of spec 1 or of spec 2, and whole."""

from typing import Any

import pytest

import icefloe
from icefloe.effects import run_blocking
from icefloe.errors import ErrorKind, IcefloeError, SessionStateError
from icefloe.storage import Storage
from icefloe.testing.faulty import (
    Fault,
    FaultyBackend,
    SimulatedCrash,
    Step,
    every_crash,
    every_failure,
)
from icefloe.testing.schedules import (
    Schedule,
    ScheduleRun,
    SteppingStorage,
    WrappedStorage,
    all_schedules,
    run_schedule,
)
from tests.faults.pasts import copied, versions, with_a_past
from tests.property.reachable import listing, stored
from tests.support.checking import check_repository_blocking


def with_tags() -> Storage:
    """Make a repository of spec 1 with a branch, tags, a deleted one, and a configuration."""
    storage = with_a_past(1)
    repo = icefloe.Repository.open(storage)
    repo.create_tag("deleted", repo.lookup_branch("main"))
    repo.delete_tag("deleted")
    repo.reopen(icefloe.RepositoryConfig(inline_chunk_threshold_bytes=77)).save_config()
    return storage


def migrate(storage: Storage, *, removes: bool) -> icefloe.MigrationReport:
    return icefloe.migrate_repository(storage, delete_unused_v1_files=removes)


def check(storage: Storage, before: dict[str, Any]) -> None:
    check_repository_blocking(storage.open())
    assert versions(storage) == before
    repo = icefloe.Repository.open(storage)
    assert repo.list_tags() == {"kept"}
    assert repo.config.inline_chunk_threshold_bytes == 77


def check_and_finish(storage: Storage, before: dict[str, Any]) -> None:
    check_repository_blocking(storage.open())
    try:
        migrate(storage, removes=True)
    except SessionStateError as error:
        assert error.kind == ErrorKind.INVALID_REPOSITORY_MIGRATION  # noqa: PT017 - it may be done
    check(storage, before)
    assert icefloe.Repository.open(storage).spec_version == 2
    left = [key for key in listing(storage.open()) if key.startswith(("refs/", "config"))]
    assert left == []


def traced(storage: Storage) -> list[Step]:
    backend = FaultyBackend(copied(storage).open())
    migrate(WrappedStorage(storage, lambda _: backend), removes=True)
    return backend.trace


def broken(storage: Storage, fault: Fault) -> Storage:
    return WrappedStorage(storage, lambda inner: FaultyBackend(inner, fault))


def test_a_crash_at_every_step() -> None:
    origin = with_tags()
    before = versions(origin)
    trace = traced(origin)
    assert len(trace) > 15
    for crash in every_crash(len(trace)):
        storage = copied(origin)
        with pytest.raises(SimulatedCrash):
            migrate(broken(storage, crash), removes=True)
        check_and_finish(storage, before)


def test_a_failure_at_every_step() -> None:
    origin = with_tags()
    before = versions(origin)
    trace = traced(origin)
    for fault in every_failure(len(trace)):
        storage = copied(origin)
        try:
            report = migrate(broken(storage, fault), removes=True)
        except IcefloeError:
            pass
        else:
            assert report.not_removed, fault
        check_and_finish(storage, before)


def test_a_dry_run_only_reads() -> None:
    storage = with_tags()
    before = stored(storage.open())
    storage.reset_request_counts()
    report = icefloe.migrate_repository(storage, dry_run=True, delete_unused_v1_files=True)
    counts = storage.request_counts()
    assert counts.put == counts.copy == counts.delete == 0
    assert stored(storage.open()) == before
    assert (report.branches, report.tags, report.deleted_tags) == (2, 1, 1)
    assert report.versions == len(versions(storage))
    done = migrate(storage, removes=True)
    assert done.repo_object_bytes == pytest.approx(report.repo_object_bytes, abs=64)
    assert done.old_files == done.old_files_removed == report.old_files == 6


def test_the_way_back() -> None:
    origin = with_tags()
    before = stored(origin.open())
    kept, removed = copied(origin), copied(origin)
    migrate(kept, removes=False)
    run_blocking(kept.open().delete_many(["repo"]))
    assert stored(kept.open()) == before
    migrate(removed, removes=True)
    backend, aside = removed.open(), "overwritten/spec-1/"
    for key in [key for key in listing(backend) if key.startswith(aside)]:
        run_blocking(backend.copy(key, key.removeprefix(aside)))
        run_blocking(backend.delete_many([key]))
    run_blocking(backend.delete_many(["repo"]))
    assert stored(backend) == before


# -- others --------------------------------------------------------------------------------


def test_two_migrations_at_the_same_time() -> None:
    def play(schedule: Schedule) -> ScheduleRun:
        storages[:] = [with_a_past(1)]
        stepping = SteppingStorage(storages[0], ("repo",))
        works = [icefloe.migrate_repository_async(stepping) for _ in range(2)]
        return run_schedule(works, schedule)

    storages: list[Storage] = []
    before = versions(with_a_past(1))
    for run in all_schedules(play, limit=20_000):
        assert any(one.succeeded for one in run.outcomes)
        for one in run.outcomes:
            assert one.succeeded or one.error.kind == ErrorKind.INVALID_REPOSITORY_MIGRATION  # type: ignore[union-attr]
        check_repository_blocking(storages[0].open())
        assert versions(storages[0]) == before
