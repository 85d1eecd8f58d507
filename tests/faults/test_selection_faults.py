"""Reads of whole selections where requests fail: typed errors, no partial result, no waiting."""

from typing import Any

import numpy as np
import pytest

import icefloe
from icefloe.config import StorageRetriesSettings, StorageSettings, effective_storage_settings
from icefloe.errors import StorageError
from icefloe.pacing import memory_budget
from icefloe.storage.metering import Meter
from icefloe.storage.retrying import RetryingBackend
from icefloe.testing.faulty import Fail, Fault, FaultyBackend, ShortRead
from icefloe.testing.schedules import WrappedStorage
from tests.property.test_selections import OURS, far_repository, opened

SETTINGS = effective_storage_settings(
    StorageSettings(retries=StorageRetriesSettings(max_tries=5, initial_backoff_ms=0))
)
VALUES = np.arange(600.0).reshape(60, 10)


@pytest.fixture(scope="module", params=["chunks", "shards"])
def storage(request: pytest.FixtureRequest) -> icefloe.Storage:
    storage = icefloe.in_memory_storage()
    session = far_repository(storage=storage, inline_bytes=0).writable_session("main")
    layout: dict[str, Any] = {"shape": VALUES.shape, "chunks": (1, 10), "dtype": "f8"}
    if request.param == "shards":
        layout["shards"] = (4, 10)
    opened(session.store, OURS, **layout)[:] = VALUES
    session.commit("60 chunks")
    return storage


def reader(storage: icefloe.Storage, *faults: Fault) -> tuple[Any, FaultyBackend]:
    faulty = FaultyBackend(storage.open(), *faults)
    wrapped = WrappedStorage(storage, lambda _: RetryingBackend(faulty, SETTINGS, Meter()))
    access = {"s3://far-away/": icefloe.s3_credentials(anonymous=True)}
    repository = icefloe.Repository.open(wrapped, authorize_virtual_chunk_access=access)
    return opened(repository.readonly_session("main").store, OURS), faulty


def steps_of_reading(storage: icefloe.Storage) -> tuple[int, int]:
    array, backend = reader(storage)
    before = len(backend.trace)
    np.testing.assert_array_equal(array[:], VALUES)
    return before, len(backend.trace)


@pytest.mark.parametrize("place", [0, 0.5, 1])
def test_a_request_that_fails_is_an_error_of_the_read(
    storage: icefloe.Storage, place: float
) -> None:
    first, after = steps_of_reading(storage)
    step = first + int(place * (after - 1 - first))
    for fault in (Fail(step, "before"), ShortRead(step, kept_bytes=3)):
        array, backend = reader(storage, fault)
        with pytest.raises(StorageError):
            array[:]
        assert memory_budget().held_bytes == 0
        np.testing.assert_array_equal(array[:], VALUES)  # the next read is not affected
        assert len(backend.trace) > step


def test_requests_that_fail_in_passing_are_made_again(storage: icefloe.Storage) -> None:
    first, after = steps_of_reading(storage)
    faults = [Fail(step, "after", retryable=True) for step in range(first, after, 3)]
    array, backend = reader(storage, *faults)
    np.testing.assert_array_equal(array[:], VALUES)
    assert len(backend.trace) > after


def test_a_write_that_fails_is_an_error_of_the_write() -> None:
    wrapped = WrappedStorage(
        icefloe.in_memory_storage(), lambda backend: FaultyBackend(backend, Fail(25, "before"))
    )
    session = far_repository(storage=wrapped, inline_bytes=0).writable_session("main")
    array = opened(session.store, OURS, shape=VALUES.shape, chunks=(1, 10), dtype="f8")
    with pytest.raises(StorageError, match="simulated failure"):
        array[:] = VALUES
    array[:] = VALUES
    assert memory_budget().held_bytes == 0
    np.testing.assert_array_equal(array[:], VALUES)
