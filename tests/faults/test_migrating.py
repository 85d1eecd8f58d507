"""A migration that dies, fails or races: the repository is of spec 1 or of spec 2, and whole."""

from collections.abc import Coroutine
from typing import Any

import pytest

import icefloe
from icefloe.effects import run_blocking
from icefloe.errors import ConflictError, ErrorKind, IcefloeError, SessionStateError
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
from tests.faults.sessions import BIG, put_chunk
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


def is_absent(step: Step) -> bool:
    """Say whether a step looks for the object that a migration makes: there is no after then."""
    return (step.key, step.operation) == ("repo", "get")


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
        if is_absent(trace[crash.step]) and crash.moment == "after":
            continue
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
            is_void = is_absent(trace[fault.step]) and fault.moment == "after"
            assert report.not_removed or is_void, fault
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


class Race:
    """A migration, and somebody who goes on with spec 1 meanwhile."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        self.keys = keys
        self.storage: Storage

    def play(self, schedule: Schedule) -> ScheduleRun:
        self.storage = with_a_past(1)
        stepping = SteppingStorage(self.storage, self.keys)
        work = [icefloe.migrate_repository_async(stepping), self.committing()]
        return run_schedule(work, schedule)

    def committing(self) -> Coroutine[Any, Any, str]:
        repo = icefloe.Repository.open(SteppingStorage(self.storage, self.keys))
        session = repo.writable_session("main")
        run_blocking(put_chunk(session, 5, 77, BIG))
        return session.commit_async("meanwhile")

    def check(self, run: ScheduleRun) -> bool:
        """Say whether it was migrated; nothing that was committed before may be lost then."""
        migrated, committed = run.outcomes
        assert committed.succeeded
        check_repository_blocking(self.storage.open())
        repo = icefloe.Repository.open(self.storage)
        ids = [one.id for one in repo.ancestry(branch="main")]
        if migrated.succeeded:
            assert repo.spec_version == 2
            if committed.result not in ids:  # then it came after all that a migration can see
                backend = self.storage.open()
                assert committed.result.encode() in stored(backend)["refs/branch.main/ref.json"]
                with pytest.raises(ConflictError, match="went on using spec version 1"):
                    migrate(self.storage, removes=True)
            return True
        assert isinstance(migrated.error, ConflictError), migrated.error
        assert migrated.error.kind == ErrorKind.INVALID_REPOSITORY_MIGRATION
        assert repo.spec_version == 1
        assert committed.result in ids
        return False


def test_every_order_of_requests_with_a_commit_in_spec_1() -> None:
    race = Race(("repo", "refs/branch.main"))
    outcomes = [race.check(run) for run in all_schedules(race.play, limit=20_000)]
    assert {True, False} == {*outcomes}
    assert outcomes.count(False) > 5


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
