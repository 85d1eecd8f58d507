"""What a forked child may do with the storages of its parent."""

import itertools
import os
import signal
import threading
import uuid
from pathlib import Path

import pytest

import icefloe
from icefloe.effects import run_blocking
from icefloe.errors import StorageError
from tests.conformance.storages import s3_storage_at
from tests.faults.sessions import GROUP, put
from tests.support.servers import S3Endpoint

CHILDREN = 15


@pytest.mark.server
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_of_a_process_that_made_requests_is_told_not_left_waiting(
    s3_endpoint: S3Endpoint,
) -> None:
    storage = s3_storage_at(s3_endpoint, f"forks/{uuid.uuid4().hex}")
    run_blocking(storage.open().put("object", b"x"))
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:  # pragma: no cover - another process
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # not what the test run does at a timeout
        signal.alarm(240)  # ends a child that waits forever
        try:
            run_blocking(storage.open().get("object"))
        except StorageError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answers:
        answer = answers.read().decode()
    os.waitpid(child, 0)
    assert "forkserver" in answer
    assert bytes(run_blocking(storage.open().get("object")).data) == b"x"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_children_commit_while_threads_of_their_parent_do(tmp_path: Path) -> None:
    """Whatever a thread is at when a child is made, the child does not wait for it."""
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(str(tmp_path)))
    first = repo.lookup_branch("main")
    branches = [f"thread-{number}" for number in range(3)]
    for branch in (*branches, "children"):
        repo.create_branch(branch, first)
    ended = threading.Event()

    def commit_often(branch: str) -> None:
        for number in itertools.count():
            if ended.is_set():
                return
            _commit(repo, branch, f"{number}")

    threads = [threading.Thread(target=commit_often, args=(branch,)) for branch in branches]
    for thread in threads:
        thread.start()
    statuses = [_child_commits(repo, f"child {number}") for number in range(CHILDREN)]
    ended.set()
    for thread in threads:
        thread.join()
    assert statuses == [0] * CHILDREN
    assert len(list(repo.ancestry(branch="children"))) == CHILDREN + 1


def _commit(repo: icefloe.Repository, branch: str, name: str) -> None:
    session = repo.writable_session(branch)
    run_blocking(put(session, f"{name}/zarr.json", GROUP))
    session.commit(name)


def _child_commits(repo: icefloe.Repository, name: str) -> int:
    if (child := os.fork()) == 0:  # pragma: no cover - another process
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(240)
        try:
            _commit(repo, "children", name)
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
