"""Eight processes commit at once, on local disk and on an object store: nothing is lost."""

import multiprocessing
from collections.abc import Callable
from pathlib import Path

import pytest

import icefloe
from icefloe.effects import run_blocking
from icefloe.storage import Storage
from tests.conformance.storages import s3_storage_at
from tests.faults.sessions import BIG, GROUP, array_document, put
from tests.support.checking import check_repository_blocking
from tests.support.servers import S3Endpoint

PROCESSES = 8
COMMITS = 25
SPAWN = multiprocessing.get_context("spawn")  # nothing is shared, as on different machines


def size_of(number: int) -> int:
    """Some chunks inline, some as objects."""
    return BIG if number % 5 == 0 else 1


def message_of(worker: int, turn: int) -> str:
    return f"worker {worker}, commit {turn}"


def commit_often(storage: Storage, worker: int) -> None:
    repo = icefloe.Repository.open(storage)
    for turn in range(COMMITS):
        session = repo.writable_session("main")
        number = worker * COMMITS + turn
        run_blocking(put(session, f"a/c/{number}", bytes([worker + 1]) * size_of(number)))
        session.commit(message_of(worker, turn), rebase_with=icefloe.ConflictDetector())


def created(storage: Storage, spec: int) -> Storage:
    session = icefloe.Repository.create(storage, spec_version=spec).writable_session("main")
    run_blocking(put(session, "zarr.json", GROUP))
    run_blocking(put(session, "a/zarr.json", array_document(PROCESSES * COMMITS)))
    session.commit("created")
    return storage


def run_all(work: Callable[[Storage, int], None], storage: Storage) -> None:
    workers = [SPAWN.Process(target=work, args=(storage, n)) for n in range(PROCESSES)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * PROCESSES


def check_nothing_lost(storage: Storage) -> None:
    repo = icefloe.Repository.open(storage)
    messages = [one.message for one in repo.ancestry(branch="main")]
    expected = {message_of(n, turn) for n in range(PROCESSES) for turn in range(COMMITS)}
    assert set(messages[:-2]) == expected
    assert len(messages) == PROCESSES * COMMITS + 2
    for worker in range(PROCESSES):  # each in the order of its own
        own = [one for one in messages if one.startswith(f"worker {worker},")]
        assert own == [message_of(worker, turn) for turn in reversed(range(COMMITS))]
    store = repo.readonly_session("main").store
    for number in range(PROCESSES * COMMITS):
        found = store.get_sync(f"a/c/{number}")
        assert found is not None
        assert found.to_bytes() == bytes([number // COMMITS + 1]) * size_of(number)
    check_repository_blocking(storage.open())


@pytest.mark.parametrize("spec", [1, 2])
def test_on_local_disk(tmp_path: Path, spec: int) -> None:
    storage = created(icefloe.local_filesystem_storage(str(tmp_path)), spec)
    run_all(commit_often, storage)
    check_nothing_lost(storage)


@pytest.mark.server
@pytest.mark.parametrize("spec", [1, 2])
def test_on_an_object_store(s3_endpoint: S3Endpoint, prefix: str, spec: int) -> None:
    storage = created(s3_storage_at(s3_endpoint, prefix), spec)
    run_all(commit_often, storage)
    check_nothing_lost(storage)
