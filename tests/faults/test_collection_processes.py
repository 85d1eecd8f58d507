"""Processes that commit, fork, flush and read while others collect garbage: nothing is lost."""

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest

import icefloe
from icefloe.effects import run_blocking
from icefloe.storage import Storage
from tests.conformance.storages import s3_storage_at
from tests.faults.pasts import versions
from tests.faults.sessions import BIG, GROUP, array_document, put
from tests.property.reachable import listing, old_garbage, read
from tests.support.checking import check_repository_blocking
from tests.support.servers import S3Endpoint

SPECS = pytest.mark.parametrize("spec", [1, 2])
SPAWN = multiprocessing.get_context("spawn")  # nothing is shared, as on different machines

COMMITTERS = 2
COMMITS = 8
JOBS = 3
"""Commits of what two forks wrote in processes of their own."""
FORKED = COMMITTERS * COMMITS
"""The first chunk that forks write."""
CHUNKS = FORKED + 2 * JOBS
FLUSHED = bytes([200]) * BIG


def written(number: int) -> bytes:
    """What is in a chunk, whoever writes it."""
    return bytes([number + 1]) * BIG


def commit_often(storage: Storage, worker: int) -> None:
    repo = icefloe.Repository.open(storage)
    for turn in range(COMMITS):
        session = repo.writable_session("main")
        number = worker * COMMITS + turn
        run_blocking(put(session, f"a/c/{number}", written(number)))
        if turn == COMMITS // 2:
            run_blocking(put(session, "a/c/0", FLUSHED))
            repo.create_tag(f"flushed {worker}", session.flush("on its own"))
            session = repo.writable_session("main")
            run_blocking(put(session, f"a/c/{number}", written(number)))
        session.commit(f"worker {worker}, commit {turn}", rebase_with=icefloe.ConflictDetector())


def collect_until(storage: Storage, done: Event, cutoff: datetime) -> None:
    """Collect in turns what dropped versions leave behind, and all garbage."""
    repo, turn = icefloe.Repository.open(storage), 0
    while not done.is_set() or turn < 4:
        summary = repo.garbage_collect(cutoff, incremental=turn % 2 == 0)
        assert summary.is_complete, summary
        turn += 1


def read_until(storage: Storage, done: Event) -> None:
    """Read the newest version again and again: each chunk is whole, or not written yet."""
    repo, turn = icefloe.Repository.open(storage), 0
    while not done.is_set() or turn < 4:
        store = repo.readonly_session("main").store
        for number in range(CHUNKS):
            found = store.get_sync(f"a/c/{number}")
            assert found is None or found.to_bytes() == written(number)
        turn += 1


def write_in_fork(fork: icefloe.ForkSession, number: int) -> icefloe.ForkSession:
    run_blocking(put(fork, f"a/c/{number}", written(number)))
    return fork


def fork_often(storage: Storage) -> None:
    """Commit what was written in forks that went to other processes and came back."""
    repo = icefloe.Repository.open(storage)
    with ProcessPoolExecutor(1, mp_context=SPAWN) as pool:
        for job in range(JOBS):
            session = repo.writable_session("main")
            forks: list[Future[icefloe.ForkSession]] = [
                pool.submit(write_in_fork, session.fork(), FORKED + 2 * job + place)
                for place in (0, 1)
            ]
            session.merge(*(each.result() for each in forks))
            session.commit(f"forks {job}", rebase_with=icefloe.ConflictDetector())


type _Job = tuple[Callable[..., None], tuple[Any, ...]]


@contextmanager
def running(*jobs: _Job) -> Iterator[list[Any]]:
    processes = [SPAWN.Process(target=target, args=given) for target, given in jobs]
    for process in processes:
        process.start()
    try:
        yield processes
    finally:
        for process in processes:
            process.join()


def race(storage: Storage, cutoff: datetime) -> None:
    done = SPAWN.Event()
    lasting: list[_Job] = [(collect_until, (storage, done, cutoff)), (read_until, (storage, done))]
    committing: list[_Job] = [(commit_often, (storage, worker)) for worker in range(COMMITTERS)]
    with running(*lasting) as others:
        try:
            with running(*committing) as committers:
                fork_often(storage)
        finally:
            done.set()
    assert [job.exitcode for job in (*committers, *others)] == [0] * (COMMITTERS + 2)
    check(storage)


def check(storage: Storage) -> None:
    check_repository_blocking(storage.open())
    repo = icefloe.Repository.open(storage)
    store = repo.readonly_session("main").store
    for number in range(CHUNKS):
        found = store.get_sync(f"a/c/{number}")
        assert found is not None, number
        assert found.to_bytes() == written(number)
    for worker in range(COMMITTERS):
        flushed = read(repo, repo.lookup_tag(f"flushed {worker}"))
        assert flushed["a/c/0"] == FLUSHED


def created(storage: Storage, spec: int) -> datetime:
    """Make a repository with an array for all workers, and with garbage.

    Give a moment that the garbage was written before, and all that comes after: the storage's
    own clock may only tick once a second, so garbage is made until it does.
    """
    repo = icefloe.Repository.create(storage, spec_version=spec)
    session = repo.writable_session("main")
    run_blocking(put(session, "zarr.json", GROUP))
    run_blocking(put(session, "a/zarr.json", array_document(CHUNKS)))
    session.commit("created")
    for number in range(5):
        repo.create_branch("gone", repo.lookup_branch("main"))
        session = repo.writable_session("gone")
        run_blocking(put(session, f"a/c/{number}", b"x" * BIG))
        session.commit("goes")
        repo.delete_branch("gone")
    made = newest(storage)
    while newest(storage) == made:
        run_blocking(put(repo.writable_session("main"), "a/c/0", b"y" * BIG))
    return newest(storage)


def newest(storage: Storage) -> datetime:
    return max(info.last_modified for info in listing(storage.open()).values())


def check_garbage(storage: Storage, cutoff: datetime) -> None:
    """The garbage of before is gone, and what is left by now can be collected as well."""
    assert old_garbage(storage.open(), cutoff) == set()
    before = versions(storage)
    done = icefloe.Repository.open(storage).garbage_collect(datetime.now(UTC) + timedelta(days=1))
    assert done.is_complete
    assert versions(storage) == before


@SPECS
def test_on_local_disk(tmp_path: Path, spec: int) -> None:
    storage = icefloe.local_filesystem_storage(str(tmp_path))
    cutoff = created(storage, spec)
    race(storage, cutoff)
    check_garbage(storage, cutoff)


@pytest.mark.server
@SPECS
def test_on_an_object_store(s3_endpoint: S3Endpoint, prefix: str, spec: int) -> None:
    storage = s3_storage_at(s3_endpoint, prefix)
    cutoff = created(storage, spec)
    race(storage, cutoff)
    check_garbage(storage, cutoff)
