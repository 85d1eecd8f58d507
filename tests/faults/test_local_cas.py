"""Compare-and-swap on the local file system: raced on by processes, some of which are killed."""

import multiprocessing
import os
import random
import signal
import time
from multiprocessing.context import ForkContext, SpawnContext
from multiprocessing.synchronize import Event
from pathlib import Path
from threading import Thread

import pytest

from icefloe.effects import run_blocking
from icefloe.errors import PreconditionFailedError
from icefloe.storage import Backend, local_filesystem_storage
from icefloe.storage.directory import open_directory
from icefloe.storage.local import LocalBackend
from icefloe.storage.locks import hold_lock
from icefloe.storage.port import Version
from icefloe.testing.storage_suite import increment, infos_of
from tests.conformance.waiting import wait_for

PROCESSES = 8
INCREMENTS = 50
PATIENCE_SECONDS = 120
"""How long to wait for what should happen at once."""
FORK = multiprocessing.get_context("fork")
SPAWN = multiprocessing.get_context("spawn")


def count_up(root: str, times: int) -> None:
    backend = local_filesystem_storage(root).open()
    for _ in range(times):
        run_blocking(increment(backend, "counter"))


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def read_count(root: Path) -> int:
    return int((root / "counter").read_bytes())


@pytest.mark.parametrize(
    ("context", "processes"), [(FORK, PROCESSES), (SPAWN, 3)], ids=["fork", "spawn"]
)
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_no_increment_is_lost_between_processes(
    tmp_path: Path, context: ForkContext | SpawnContext, processes: int
) -> None:
    run_blocking(LocalBackend(str(tmp_path)).put("counter", b"0"))
    workers = [
        context.Process(target=count_up, args=(str(tmp_path), INCREMENTS)) for _ in range(processes)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * processes
    assert read_count(tmp_path) == processes * INCREMENTS
    assert names_in(tmp_path) == ["#0", "counter"]


def test_no_increment_is_lost_between_threads(tmp_path: Path) -> None:
    run_blocking(LocalBackend(str(tmp_path)).put("counter", b"0"))
    threads = [Thread(target=count_up, args=(str(tmp_path), INCREMENTS)) for _ in range(PROCESSES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read_count(tmp_path) == PROCESSES * INCREMENTS


def write_for_ever(root: str, number: int, begun: Event) -> None:
    """Replace one object with and without a condition, and create others."""
    backend = LocalBackend(root)
    turn = 0
    while True:
        content = bytes([turn % 256]) * 50_000
        run_blocking(backend.put("plain", content))
        try:
            version = run_blocking(backend.head("swapped")).info.version
            run_blocking(backend.put("swapped", content, if_version=version))
        except PreconditionFailedError:
            pass
        run_blocking(backend.put(f"own/{number}/{turn}", content, if_absent=True))
        begun.set()
        turn += 1


def is_whole(content: bytes) -> bool:
    return len(content) == 50_000 and len(set(content)) == 1


def test_killed_writers_leave_nothing_torn_and_block_nobody(tmp_path: Path) -> None:
    backend = LocalBackend(str(tmp_path))
    run_blocking(backend.put("swapped", bytes(50_000)))
    moments = random.Random(20_240_501)
    for number in range(5):
        begun = SPAWN.Event()
        writer = SPAWN.Process(
            target=write_for_ever, args=(str(tmp_path), number, begun), daemon=True
        )
        writer.start()
        wait_for(begun, writer)
        time.sleep(moments.uniform(0, 0.02))
        writer.kill()
        writer.join()
        # A later writer gets through at once: no lock outlives its holder.
        version = run_blocking(backend.head("swapped")).info.version
        run_blocking(backend.put("swapped", bytes(50_000), if_version=version))
    listed = run_blocking(infos_of(backend))
    assert {key.split("/")[1] for key in listed if key.startswith("own/")} == set("01234")
    for key in listed:
        assert is_whole(bytes(run_blocking(backend.get(key)).data)), key


def hold_and_tell(root: str, held: Event) -> None:
    with hold_lock(open_directory(root, "")):
        held.set()
        signal.pause()


def test_a_dead_holder_does_not_block(tmp_path: Path) -> None:
    backend = LocalBackend(str(tmp_path))
    version = run_blocking(backend.put("object", b"1"))
    held = SPAWN.Event()
    holder = SPAWN.Process(target=hold_and_tell, args=(str(tmp_path), held), daemon=True)
    holder.start()
    wait_for(held, holder)
    waiter = Thread(target=replace, args=(backend, version), daemon=True)
    waiter.start()
    waiter.join(0.2)
    assert waiter.is_alive()  # the lock is real
    assert (tmp_path / "object").read_bytes() == b"1"
    holder.kill()
    waiter.join(PATIENCE_SECONDS)
    assert not waiter.is_alive()
    assert (tmp_path / "object").read_bytes() == b"2"
    holder.join()


def replace(backend: Backend, version: Version) -> None:
    run_blocking(backend.put("object", b"2", if_version=version))


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_does_not_inherit_a_lock(tmp_path: Path) -> None:
    """The parent of a long-lived child may die while another thread of it holds a lock."""
    reader, writer = os.pipe()
    middle = os.fork()
    if middle == 0:
        try:
            _fork_while_locked(str(tmp_path), writer)
        finally:
            os._exit(1)
    os.close(writer)  # so that the end of a child that tells nothing is seen
    grandchild = int(os.read(reader, 100))
    os.close(reader)
    os.waitpid(middle, 0)  # it was killed in the middle of its critical section
    try:
        backend = LocalBackend(str(tmp_path))
        version = run_blocking(backend.put("object", b"1"))
        done = Thread(target=replace, args=(backend, version), daemon=True)
        done.start()
        done.join(PATIENCE_SECONDS)
        assert not done.is_alive()
    finally:
        os.kill(grandchild, signal.SIGKILL)


def _fork_while_locked(root: str, writer: int) -> None:
    held = FORK.Event()
    Thread(target=hold_quietly, args=(root, held), daemon=True).start()
    held.wait()
    child = os.fork()
    if child == 0:
        signal.pause()
    os.write(writer, b"%d" % child)
    os.kill(os.getpid(), signal.SIGKILL)


def hold_quietly(root: str, held: Event) -> None:
    with hold_lock(open_directory(root, "")):
        held.set()
        time.sleep(60)


@pytest.mark.parametrize("change", ["put", "delete"])
def test_plain_changes_wait_for_a_swap(tmp_path: Path, change: str) -> None:
    """Else a swap could succeed on a state that was gone before it."""
    backend = LocalBackend(str(tmp_path))
    run_blocking(backend.put("object", b"1"))

    def alter() -> None:
        if change == "put":
            run_blocking(backend.put("object", b"2"))
        else:
            run_blocking(backend.delete_many(["object"]))

    waiter = Thread(target=alter)
    parent = open_directory(str(tmp_path), "")
    with hold_lock(parent):
        waiter.start()
        waiter.join(0.2)
        assert (tmp_path / "object").read_bytes() == b"1"
    waiter.join()
    os.close(parent)
    expected = {"put": b"2", "delete": None}[change]
    found = tmp_path / "object"
    assert (found.read_bytes() if found.exists() else None) == expected
