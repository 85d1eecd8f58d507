"""The lock of a local repository: who can hold it, and how long others wait for it."""

import fcntl
import logging
import multiprocessing
import os
import pickle
import signal
import threading
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

import icefloe
from icefloe.config import RepositoryConfig, StorageSettings, StorageTimeoutSettings
from icefloe.effects import run_blocking
from icefloe.errors import StorageError
from icefloe.storage.directory import open_directory
from icefloe.storage.local import LocalBackend
from icefloe.storage.locks import hold_lock
from tests.conformance.waiting import wait_for
from tests.faults.sessions import GROUP, put
from tests.support.checking import check_repository_blocking

SPAWN = multiprocessing.get_context("spawn")
NOBODY = 65534


def committed(repo: icefloe.Repository, name: str) -> None:
    session = repo.writable_session("main")
    run_blocking(put(session, f"{name}/zarr.json", GROUP))
    session.commit(name)


def lock_all_that_can_be_opened(root: str, locked: Event, has_directory: Event) -> None:
    """Do what somebody can who may only read."""
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    for folder, _, files in os.walk(root):
        for path in (folder, *(f"{folder}/{name}" for name in files)):
            try:
                handle = os.open(path, os.O_RDONLY)
            except PermissionError:
                continue
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path == root:
                has_directory.set()
    locked.set()
    signal.pause()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("spec_version", [1, 2])
def test_who_may_only_read_cannot_hold_up_a_commit(tmp_path: Path, spec_version: int) -> None:
    root = tmp_path / "repository"
    for parent in (tmp_path, *tmp_path.parents):
        if not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o001)  # pytest's own folders are private
    storage = icefloe.local_filesystem_storage(str(root))
    repo = icefloe.Repository.create(storage, spec_version=spec_version)
    committed(repo, "first")
    root.chmod(0o755)
    locked, has_directory = SPAWN.Event(), SPAWN.Event()
    reader = SPAWN.Process(
        target=lock_all_that_can_be_opened, args=(str(root), locked, has_directory), daemon=True
    )
    reader.start()
    wait_for(locked, reader)
    try:
        assert has_directory.is_set()
        committed(repo, "second")
        repo.create_tag("done", repo.lookup_branch("main"))
    finally:
        reader.kill()
        reader.join()
    check_repository_blocking(storage.open())


@pytest.mark.parametrize(("folder", "file"), [(0o755, 0o600), (0o775, 0o660), (0o777, 0o666)])
def test_those_may_lock_who_may_write(tmp_path: Path, folder: int, file: int) -> None:
    tmp_path.chmod(folder)
    before = os.umask(0o077)
    try:
        parent = open_directory(str(tmp_path), "")
        with hold_lock(parent):
            pass
        os.close(parent)
    finally:
        os.umask(before)
    status = (tmp_path / "#0").stat()
    assert status.st_mode & 0o777 == file
    assert status.st_gid == tmp_path.stat().st_gid


def hold_and_tell(root: str, held: Event) -> None:
    with hold_lock(open_directory(root, "")):
        held.set()
        signal.pause()


def test_a_lock_is_not_waited_for_without_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    timeouts = StorageTimeoutSettings(operation_timeout_ms=1200)
    config = RepositoryConfig(storage=StorageSettings(timeouts=timeouts))
    storage = icefloe.local_filesystem_storage(str(tmp_path))
    repo = icefloe.Repository.create(storage, config=config)
    held = SPAWN.Event()
    holder = SPAWN.Process(target=hold_and_tell, args=(str(tmp_path), held), daemon=True)
    holder.start()
    wait_for(held, holder)
    try:
        with (
            caplog.at_level(logging.WARNING, "icefloe.storage.locks"),
            pytest.raises(StorageError) as caught,
        ):
            committed(repo, "refused")
    finally:
        holder.kill()
        holder.join()
    error = pickle.loads(pickle.dumps(caught.value))
    assert error.retryable
    assert error.context["lock"] == f"{tmp_path}/#0"
    assert f"process {holder.pid} " in str(error)
    assert "operation_timeout_ms" in str(error)
    assert any(f"process {holder.pid}" in record.getMessage() for record in caplog.records)
    committed(repo, "taken")  # nothing was left behind
    assert next(one.message for one in repo.ancestry(branch="main")) == "taken"


def test_a_lock_file_of_somebody_else_is_explained(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may open every file")
    backend = LocalBackend(str(tmp_path))
    run_blocking(backend.put("object", b"1"))
    (tmp_path / "#0").touch(mode=0o000)
    with pytest.raises(StorageError, match="lock file"):
        run_blocking(backend.put("object", b"2"))


def test_a_lock_file_that_was_deleted_locks_nothing(tmp_path: Path) -> None:
    parent = open_directory(str(tmp_path), "")
    has_lock, may_end = threading.Event(), threading.Event()

    def wait_and_hold() -> None:
        with hold_lock(parent):
            has_lock.set()
            may_end.wait()

    waiter = threading.Thread(target=wait_and_hold)
    with hold_lock(parent):
        waiter.start()
        waiter.join(0.2)  # it waits for the file that is about to go
        (tmp_path / "#0").unlink()
    has_lock.wait()
    with (tmp_path / "#0").open("r+b") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    may_end.set()
    waiter.join()
    os.close(parent)


def test_a_folder_that_is_no_storage_of_ours_gets_no_files(tmp_path: Path) -> None:
    plain = LocalBackend(str(tmp_path), encodes_keys=False)
    for content in (b"1", b"2"):
        run_blocking(plain.put("folder/object", content))
    run_blocking(plain.delete_many(["folder/object"]))
    assert list((tmp_path / "folder").iterdir()) == []
