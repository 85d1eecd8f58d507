"""Eight processes write in spec 1 while another one migrates: acknowledged is migrated."""

import multiprocessing
from dataclasses import dataclass, field
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path

import pytest

import icefloe
from icefloe.effects import run_blocking
from icefloe.storage import Storage
from tests.conformance.storages import s3_storage_at
from tests.faults.sessions import GROUP, array_document, put
from tests.support.checking import check_repository_blocking
from tests.support.servers import S3Endpoint

PROCESSES = 8
MOST_TURNS = 5_000
SPAWN = multiprocessing.get_context("spawn")  # nothing is shared, as on different machines


@dataclass
class Told:
    """What a process was told about its writes, in its own words."""

    branch: str
    committed: list[str] = field(default_factory=list)
    tagged: dict[str, str] = field(default_factory=dict)
    refused: str | None = None
    """The message of a commit, or the name of a tag, that was refused for certain."""


def write_until_migrated(
    storage: Storage, number: int, all_write: Barrier, stop: Event, told: "Queue[Told]"
) -> None:
    """Commit and tag, half of the processes on one branch, until that is refused."""
    own = Told("main" if number % 2 else f"branch-{number}")
    attempt = ""
    repo = icefloe.Repository.open(storage)
    try:
        for turn in range(MOST_TURNS):
            attempt = f"{number}-{turn}"
            session = repo.writable_session(own.branch)
            run_blocking(put(session, f"a/c/{number}", bytes([turn % 251 + 1])))
            made = session.commit(attempt, rebase_with=icefloe.ConflictDetector())
            own.committed.append(made)
            attempt = f"tag-{attempt}"
            repo.create_tag(attempt, made)
            own.tagged[attempt] = made
            if turn == 0:
                all_write.wait()
            if stop.is_set():
                break
    except icefloe.RepositoryMigratedError:
        own.refused = attempt
    except icefloe.OutcomeUnknownError:
        pass  # it may be there, or not
    except BaseException:
        all_write.abort()  # else the others would wait for ever
        raise
    finally:
        told.put(own)


def created(storage: Storage) -> Storage:
    repo = icefloe.Repository.create(storage, spec_version=1)
    session = repo.writable_session("main")
    run_blocking(put(session, "zarr.json", GROUP))
    run_blocking(put(session, "a/zarr.json", array_document(PROCESSES)))
    tip = session.commit("created")
    for number in range(0, PROCESSES, 2):
        repo.create_branch(f"branch-{number}", tip)
    return storage


def migrate_among_writers(storage: Storage, *, removes: bool) -> list[Told]:
    all_write, stop = SPAWN.Barrier(PROCESSES + 1), SPAWN.Event()
    told: Queue[Told] = SPAWN.Queue()
    workers = [
        SPAWN.Process(target=write_until_migrated, args=(storage, number, all_write, stop, told))
        for number in range(PROCESSES)
    ]
    for worker in workers:
        worker.start()
    try:
        all_write.wait()
        icefloe.migrate_repository(storage, delete_unused_v1_files=removes)
    finally:
        stop.set()
        accounts = [told.get() for _ in workers]
        for worker in workers:
            worker.join()
    assert [worker.exitcode for worker in workers] == [0] * PROCESSES
    return accounts


def check_accounts(storage: Storage, accounts: list[Told]) -> None:
    repo = icefloe.Repository.open(storage)
    assert repo.spec_version == 2
    tags = repo.list_tags()
    for own in accounts:
        history = list(repo.ancestry(branch=own.branch))
        assert set(own.committed) <= {one.id for one in history}
        assert own.tagged.keys() <= tags
        assert all(repo.lookup_tag(name) == target for name, target in own.tagged.items())
        if own.refused is not None:
            assert own.refused not in tags | {one.message for one in history}
    check_repository_blocking(storage.open())


def test_on_local_disk(tmp_path: Path) -> None:
    storage = created(icefloe.local_filesystem_storage(str(tmp_path)))
    check_accounts(storage, migrate_among_writers(storage, removes=False))


@pytest.mark.server
def test_on_an_object_store(s3_endpoint: S3Endpoint, prefix: str) -> None:
    storage = created(s3_storage_at(s3_endpoint, prefix))
    check_accounts(storage, migrate_among_writers(storage, removes=True))
