"""A session that packs writes to memory; what it reads may be far away all the same."""

from typing import Any

import numpy as np
import pytest
import zarr
from zarr.abc.store import _store_supports_sync_io

import icefloe
from icefloe.repo.context import RepoContext
from icefloe.testing.schedules import WrappedStorage
from tests.property.test_selections import OURS, near_repository, opened
from tests.unit.transactions.test_reading_ahead import Gathering, GatheringBackend

VALUES = np.arange(200.0).reshape(40, 5)
AT_ONCE = 30
"""More than the threads for chunks on this machine."""


@pytest.fixture(params=["chunks", "shards"])
def session_and_requests(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> tuple[icefloe.Session, Gathering]:
    """Return a session that packs, of a repository that counts as far away."""
    storage, gathering = icefloe.in_memory_storage(), Gathering()
    layout: dict[str, Any] = {"shape": VALUES.shape, "chunks": (1, 5), "dtype": "f8"}
    if request.param == "shards":
        layout |= {"shards": (1, 10), "chunks": (1, 5)}
    repository = near_repository(storage=storage, inline_bytes=0)
    with repository.transaction("main", message="rows") as store:
        opened(store, OURS, **layout)[:] = VALUES
    monkeypatch.setattr(RepoContext, "is_near", False)
    wrapped = WrappedStorage(storage, lambda backend: GatheringBackend(backend, gathering))
    session = icefloe.Repository.open(wrapped).writable_session("main", packing=True)
    assert _store_supports_sync_io(session.store)
    return session, gathering


def test_it_reads_a_selection_at_once(
    session_and_requests: tuple[icefloe.Session, Gathering],
) -> None:
    session, gathering = session_and_requests
    array = opened(session.store, OURS)
    gathering.begin(expected=AT_ONCE)
    np.testing.assert_array_equal(array[:], VALUES)


def test_it_reads_the_chunks_that_it_changes_in_part_at_once(
    session_and_requests: tuple[icefloe.Session, Gathering],
) -> None:
    session, gathering = session_and_requests
    array = opened(session.store, OURS)
    expected = VALUES.copy()
    gathering.begin(expected=AT_ONCE)
    array[:, 2] = expected[:, 2] = -1
    np.testing.assert_array_equal(array[:], expected)
    session.commit("a column")
    again = zarr.open_array(session.store, path="a", mode="r")
    np.testing.assert_array_equal(np.asarray(again[:]), expected)
