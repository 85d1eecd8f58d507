"""Many processes on one S3 bucket, some of which are killed."""

import multiprocessing
import random
import time
from multiprocessing.synchronize import Barrier, Event

import pytest

from icefloe.config import StorageSettings
from icefloe.effects import run_blocking
from icefloe.storage import Backend, Storage
from icefloe.testing.storage_suite import increment, infos_of
from tests.conformance.storages import s3_storage_at
from tests.conformance.waiting import wait_for
from tests.support.servers import S3Endpoint

pytestmark = pytest.mark.server

PROCESSES = 8
INCREMENTS = 50
SPAWN = multiprocessing.get_context("spawn")  # nothing is shared, as on different machines
IN_PARTS = StorageSettings(minimum_size_for_multipart_upload=1 << 20)


def increment_often(storage: Storage) -> None:
    backend = storage.open()
    for _ in range(INCREMENTS):
        run_blocking(increment(backend, "counter"))


def write_for_ever(
    storage: Storage, size: int, number: int, all_are_here: Barrier, begun: Event
) -> None:
    """Overwrite one object, and create others, each of one repeated byte."""
    backend = storage.open(IN_PARTS)
    all_are_here.wait()  # else one of them fills the disk while the other starts
    turn = 0
    while True:
        content = bytes([turn % 256]) * size
        run_blocking(backend.put("shared", content))
        run_blocking(backend.put(f"own/{number}/{turn}", content, if_absent=True))
        begun.set()
        turn += 1


def read_whole(backend: Backend, key: str) -> bytes:
    return bytes(run_blocking(backend.get(key)).data)


def test_no_increment_is_lost_between_processes(s3_endpoint: S3Endpoint, prefix: str) -> None:
    storage = s3_storage_at(s3_endpoint, prefix)
    backend = storage.open()
    run_blocking(backend.put("counter", b"0"))
    workers = [SPAWN.Process(target=increment_often, args=(storage,)) for _ in range(PROCESSES)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * PROCESSES
    assert int(read_whole(backend, "counter")) == PROCESSES * INCREMENTS


@pytest.mark.parametrize(("size", "rounds"), [(200_000, 2), (11_000_000, 1)])
def test_killed_writers_leave_no_torn_object(
    s3_endpoint: S3Endpoint, prefix: str, size: int, rounds: int
) -> None:
    """Neither in one request nor in an upload in parts."""
    storage = s3_storage_at(s3_endpoint, prefix)
    backend = storage.open()
    moments = random.Random(20_240_501)
    for round_number in range(rounds):
        begun = [SPAWN.Event() for _ in range(2)]
        all_are_here = SPAWN.Barrier(len(begun))
        writers = [
            SPAWN.Process(
                target=write_for_ever,
                args=(storage, size, 2 * round_number + number, all_are_here, event),
                daemon=True,
            )
            for number, event in enumerate(begun)
        ]
        for writer in writers:
            writer.start()
        for event in begun:
            wait_for(event, *writers)
        for writer in writers:
            time.sleep(moments.uniform(0, 0.05))
            writer.kill()
            writer.join()
    listed = run_blocking(infos_of(backend))
    assert len(listed) >= 1 + 2 * rounds  # the shared one, and at least one of each writer
    for key, info in listed.items():
        content = read_whole(backend, key)
        assert len(content) == info.size_bytes == size
        assert content == content[:1] * size
