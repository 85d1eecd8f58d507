"""Maintenance that dies, fails or races: nothing that is needed is lost, and a new run finishes."""

import multiprocessing
import os
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import icefloe
from icefloe.effects import run_blocking
from icefloe.errors import IcefloeError
from icefloe.storage import Storage
from icefloe.testing.faulty import (
    Fault,
    FaultyBackend,
    SimulatedCrash,
    every_crash,
    every_failure,
)
from icefloe.testing.invariants import check_repository_blocking
from icefloe.testing.schedules import (
    MUTABLE_KEYS,
    Schedule,
    ScheduleRun,
    SteppingStorage,
    WrappedStorage,
    all_schedules,
    run_schedule,
)
from icefloe.testing.servers import S3Endpoint
from tests.conformance.storages import s3_storage_at
from tests.faults.sessions import BIG, GROUP, array_document, prepared, put, put_chunk
from tests.property.reachable import listing, needed_by_refs, old_garbage, read, stored

SPECS = pytest.mark.parametrize("spec", [1, 2])
COLLECTED = ("snapshots/", "transactions/", "manifests/", "chunks/")


def copied(storage: Storage) -> Storage:
    """Make a storage with the same objects."""
    other = icefloe.in_memory_storage()
    for key, data in stored(storage.open()).items():
        run_blocking(other.open().put(key, data))
    return other


def with_a_past(spec: int) -> Storage:
    """Make a repository with versions to expire, and with garbage of every kind."""
    return copied(_with_a_past(spec))


@cache
def _with_a_past(spec: int) -> Storage:
    storage = prepared(spec)
    repo = icefloe.Repository.open(storage)

    def commit(branch: str, number: int, value: int) -> str:
        session = repo.writable_session(branch)
        run_blocking(put_chunk(session, number, value, BIG))
        return session.commit(f"{branch} {value}")

    first = commit("main", 1, 10)
    repo.create_tag("kept", first)
    repo.create_branch("old", commit("main", 1, 11))
    repo.create_branch("gone", first)
    commit("gone", 2, 12)
    repo.delete_branch("gone")
    session = repo.writable_session("main")
    run_blocking(put_chunk(session, 3, 13, BIG))
    session.flush("on its own")
    run_blocking(put_chunk(repo.writable_session("main"), 4, 14, BIG))  # never committed
    commit("main", 1, 15)
    return storage


def versions(storage: Storage) -> dict[str, dict[str, bytes | str]]:
    repo = icefloe.Repository.open(storage)
    refs = [{"branch": name} for name in repo.list_branches()]
    refs += [{"tag": name} for name in repo.list_tags()]
    ids = {one.id for ref in refs for one in repo.ancestry(**ref)}
    return {one: read(repo, one) for one in ids}


type Work = Callable[[icefloe.Repository], Any]


def expire(repo: icefloe.Repository) -> set[str]:
    return repo.expire_snapshots(datetime.now(UTC), delete_expired_branches=True)


def collect(repo: icefloe.Repository) -> icefloe.GCSummary:
    return repo.garbage_collect(datetime.now(UTC))


def collect_incrementally(repo: icefloe.Repository) -> icefloe.GCSummary:
    return repo.garbage_collect(datetime.now(UTC), incremental=True)


def expired(spec: int) -> Storage:
    return copied(_expired(spec))


@cache
def _expired(spec: int) -> Storage:
    storage = with_a_past(spec)
    expire(icefloe.Repository.open(storage))
    return storage


SCENARIOS: list[tuple[Work, Callable[[int], Storage]]] = [
    (expire, with_a_past),
    (collect, with_a_past),
    (collect, expired),
    (collect_incrementally, expired),
]
EACH = pytest.mark.parametrize(
    ("work", "make"), SCENARIOS, ids=["expire", "collect", "collect expired", "incremental"]
)


def run_with(storage: Storage, work: Work, *faults: Fault) -> tuple[Any, FaultyBackend]:
    made: list[FaultyBackend] = []

    def wrap(inner: Any) -> FaultyBackend:
        made.append(FaultyBackend(inner))
        return made[0]

    repo = icefloe.Repository.open(WrappedStorage(storage, wrap))
    steps = len(made[0].trace)
    shifted = [type(fault)(fault.step + steps, *_rest(fault)) for fault in faults]
    made[0]._faults = {fault.step: fault for fault in shifted}
    try:
        return work(repo), made[0]
    finally:
        made[0]._faults = {}


def _rest(fault: Fault) -> tuple[Any, ...]:
    return tuple(getattr(fault, name) for name in fault.__slots__ if name != "step")


def count_steps(spec: int, work: Work, make: Callable[[int], Storage]) -> int:
    storage = make(spec)
    opening = FaultyBackend(storage.open())
    icefloe.Repository.open(WrappedStorage(storage, lambda _: opening))
    _, backend = run_with(storage, work)
    return len(backend.trace) - len(opening.trace)


def check_after(storage: Storage, before: dict[str, Any], work: Work) -> None:
    """What is left is whole, and the same work done again leaves what it would have left."""
    check_repository_blocking(storage.open())
    now = versions(storage)
    assert all(before[one] == files for one, files in now.items())
    if work is not expire:
        assert now == before
    again = work(icefloe.Repository.open(storage))
    if work is expire:
        assert icefloe.Repository.open(storage).list_branches() == {"main"}
    else:
        assert again.is_complete
        assert versions(storage) == before
        if work is collect:
            left = {key for key in listing(storage.open()) if key.startswith(COLLECTED)}
            assert left <= needed_by_refs(stored(storage.open()))


@SPECS
@EACH
def test_a_crash_at_every_step(spec: int, work: Work, make: Callable[[int], Storage]) -> None:
    steps = count_steps(spec, work, make)
    assert steps >= 2
    before = versions(make(spec))
    for crash in every_crash(steps):
        storage = make(spec)
        with pytest.raises(SimulatedCrash):
            run_with(storage, work, crash)
        check_after(storage, before, work)


@SPECS
@EACH
def test_a_failure_at_every_step(spec: int, work: Work, make: Callable[[int], Storage]) -> None:
    before = versions(make(spec))
    for fault in every_failure(count_steps(spec, work, make)):
        storage = make(spec)
        try:
            done, _ = run_with(storage, work, fault)
        except IcefloeError:
            pass
        else:
            assert not getattr(done, "is_complete", False), fault
            assert work is not expire, fault
        check_after(storage, before, work)


def test_what_cannot_be_read_is_not_guessed_at() -> None:
    storage = with_a_past(2)
    backend = storage.open()
    manifests = [key for key in needed_by_refs(stored(backend)) if key.startswith("manifests/")]
    run_blocking(backend.put(manifests[0], b"not a manifest" * 100))
    keys = listing(backend).keys()
    with pytest.raises(icefloe.FormatError):
        collect(icefloe.Repository.open(storage))
    assert listing(backend).keys() == keys


# -- races ---------------------------------------------------------------------------------


class Race:
    """A collection, or an expiration, and somebody who changes the repository meanwhile."""

    def __init__(self, spec: int, sweep: "Sweep", other: "Other", keys: tuple[str, ...]) -> None:
        self.spec, self.sweep, self.other, self.keys = spec, sweep, other, keys
        self.storage: Storage

    def play(self, schedule: Schedule) -> ScheduleRun:
        self.storage = with_a_past(self.spec)
        cutoff = datetime.now(UTC)
        repo = icefloe.Repository.open(SteppingStorage(self.storage, self.keys))
        work = [self.sweep(repo, cutoff), self.other(self.storage, self.keys)]
        return run_schedule(work, schedule)

    def check(self, run: ScheduleRun) -> None:
        swept, other = run.outcomes
        assert swept.error is None, swept.error
        check_repository_blocking(self.storage.open())
        found = versions(self.storage)
        if other.succeeded:
            assert other.result in found, run.choices
        else:
            assert isinstance(other.error, icefloe.NotFoundError | icefloe.ConflictError)


type Sweep = Callable[[icefloe.Repository, datetime], Coroutine[Any, Any, Any]]
type Other = Callable[[Storage, tuple[str, ...]], Coroutine[Any, Any, str]]


def collecting(repo: icefloe.Repository, cutoff: datetime) -> Coroutine[Any, Any, Any]:
    return repo.garbage_collect_async(cutoff)


def collecting_incrementally(repo: icefloe.Repository, cutoff: datetime) -> Any:
    return repo.garbage_collect_async(cutoff, incremental=True)


def expiring(repo: icefloe.Repository, cutoff: datetime) -> Coroutine[Any, Any, Any]:
    return repo.expire_snapshots_async(cutoff, delete_expired_branches=True)


def committing(storage: Storage, keys: tuple[str, ...]) -> Coroutine[Any, Any, str]:
    repo = icefloe.Repository.open(SteppingStorage(storage, keys))
    session = repo.writable_session("main")
    run_blocking(put_chunk(session, 5, 77, BIG))
    return session.commit_async("meanwhile", rebase_with=icefloe.ConflictDetector())


async def committing_to_the_old_branch(storage: Storage, keys: tuple[str, ...]) -> str:
    repo = await icefloe.Repository.open_async(SteppingStorage(storage, keys))
    session = await repo.writable_session_async("old")
    await put_chunk(session, 5, 77, BIG)
    return await session.commit_async("meanwhile")


def doomed(storage: Storage) -> str:
    """Find a version that nothing leads to."""
    repo = icefloe.Repository.open(storage)
    every: set[str] = {one["id"] for one in repo.inspect_repo_info()["snapshots"]}
    return min(every - versions(storage).keys())


def rescuing(storage: Storage, keys: tuple[str, ...]) -> Coroutine[Any, Any, str]:
    target = doomed(storage)

    async def create_tag() -> str:
        repo = await icefloe.Repository.open_async(SteppingStorage(storage, keys))
        await repo.create_tag_async("rescued", target)
        return target

    return create_tag()


def going_back(storage: Storage, keys: tuple[str, ...]) -> Coroutine[Any, Any, str]:
    target = doomed(storage)

    async def reset() -> str:
        repo = await icefloe.Repository.open_async(SteppingStorage(storage, keys))
        await repo.reset_branch_async("old", target)
        return target

    return reset()


SHORT_RACES: list[tuple[int, Sweep, Other]] = [
    (2, expiring, committing),
    (2, expiring, committing_to_the_old_branch),
    (2, expiring, rescuing),
]
RACES: list[tuple[int, Sweep, Other]] = [
    *((spec, sweep, committing) for spec in (1, 2) for sweep in (collecting, expiring)),
    (1, collecting_incrementally, committing),
    (2, collecting_incrementally, committing),
    (2, collecting, rescuing),
    (2, collecting_incrementally, rescuing),
    (2, collecting, going_back),
]


def _race_name(value: Any) -> str:
    return getattr(value, "__name__", str(value))


@pytest.mark.parametrize(("spec", "sweep", "other"), SHORT_RACES, ids=_race_name)
def test_every_order_of_requests_for_what_changes(spec: int, sweep: Sweep, other: Other) -> None:
    race = Race(spec, sweep, other, MUTABLE_KEYS)
    count = 0
    for run in all_schedules(race.play, limit=20_000):
        count += 1
        race.check(run)
    assert count > 5


@pytest.mark.parametrize(("spec", "sweep", "other"), RACES, ids=_race_name)
@settings(max_examples=40, deadline=None)
@given(schedule=st.lists(st.integers(0, 1), max_size=80))
def test_random_orders_of_all_requests(
    spec: int, sweep: Sweep, other: Other, schedule: list[int]
) -> None:
    race = Race(spec, sweep, other, ("",))
    race.check(race.play(schedule))


# -- processes -----------------------------------------------------------------------------

WORKERS = 3
COMMITS = 8
SPAWN = multiprocessing.get_context("spawn")
LONGEST_SESSION = timedelta(seconds=60)


def commit_often(storage: Storage, worker: int) -> None:
    repo = icefloe.Repository.open(storage)
    for turn in range(COMMITS):
        session = repo.writable_session("main")
        data = bytes([worker + 1]) * BIG
        if turn % 3 == 0:
            fork = session.fork()
            run_blocking(put(fork, f"a/c/{worker * COMMITS + turn}", data))
            session.merge(fork)
        else:
            run_blocking(put(session, f"a/c/{worker * COMMITS + turn}", data))
        session.commit(f"worker {worker}, commit {turn}", rebase_with=icefloe.ConflictDetector())


def collect_often(storage: Storage, incremental: int) -> None:
    repo = icefloe.Repository.open(storage)
    for _ in range(6):
        done = repo.garbage_collect(
            datetime.now(UTC) - LONGEST_SESSION, incremental=bool(incremental)
        )
        assert done.is_complete, done


def race_processes(storage: Storage) -> None:
    jobs = [SPAWN.Process(target=commit_often, args=(storage, n)) for n in range(WORKERS)]
    jobs += [SPAWN.Process(target=collect_often, args=(storage, n)) for n in (0, 1)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    assert [job.exitcode for job in jobs] == [0] * len(jobs)
    check_repository_blocking(storage.open())
    store = icefloe.Repository.open(storage).readonly_session("main").store
    for number in range(WORKERS * COMMITS):
        found = store.get_sync(f"a/c/{number}")
        assert found is not None
        assert found.to_bytes() == bytes([number // COMMITS + 1]) * BIG


def created(storage: Storage, spec: int) -> Storage:
    """Make a repository with an array for all workers, and with old garbage."""
    repo = icefloe.Repository.create(storage, spec_version=spec)
    session = repo.writable_session("main")
    run_blocking(put(session, "zarr.json", GROUP))
    run_blocking(put(session, "a/zarr.json", array_document(WORKERS * COMMITS)))
    session.commit("created")
    repo.create_branch("gone", repo.lookup_branch("main"))
    for number in range(5):
        session = repo.writable_session("gone")
        run_blocking(put(session, f"a/c/{number}", b"x" * BIG))
        session.commit("goes")
    repo.delete_branch("gone")
    return storage


@SPECS
def test_processes_on_local_disk(tmp_path: Path, spec: int) -> None:
    storage = created(icefloe.local_filesystem_storage(str(tmp_path)), spec)
    long_ago = time.time() - 2 * LONGEST_SESSION.total_seconds()
    for path in tmp_path.rglob("*"):
        if path.is_file():
            os.utime(path, (long_ago, long_ago))
    race_processes(storage)
    garbage = old_garbage(storage.open(), datetime.now(UTC) - LONGEST_SESSION)
    assert garbage == set()
    assert len([key for key in listing(storage.open()) if key.startswith("chunks/")]) <= (
        WORKERS * COMMITS
    )


@pytest.mark.server
@SPECS
def test_processes_on_an_object_store(s3_endpoint: S3Endpoint, prefix: str, spec: int) -> None:
    storage = created(s3_storage_at(s3_endpoint, prefix), spec)
    race_processes(storage)
    before = versions(storage)
    done = icefloe.Repository.open(storage).garbage_collect(datetime.now(UTC) + timedelta(days=1))
    assert done.is_complete
    assert versions(storage) == before
    check_repository_blocking(storage.open())
