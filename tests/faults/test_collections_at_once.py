"""Two collections at the same time: nothing that is needed goes, and each object counts once."""

import multiprocessing
from collections.abc import Coroutine, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import icefloe
from icefloe.storage import Storage
from icefloe.testing.schedules import ScheduleRun, SteppingStorage, run_schedule
from tests.conformance.storages import s3_storage_at
from tests.faults.collection_actors import Actor, Keys, collecting, collecting_incrementally
from tests.faults.pasts import versions, with_a_past
from tests.faults.test_collection_processes import created
from tests.property.reachable import listing
from tests.support.checking import check_repository_blocking
from tests.support.servers import S3Endpoint

SPAWN = multiprocessing.get_context("spawn")
LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
COLLECTED = ("snapshots/", "transactions/", "manifests/", "chunks/")


def collecting_old_files(storage: Storage, keys: Keys) -> Coroutine[Any, Any, Any]:
    """Collect with an early cut-off: what another collection deletes is young here, and kept."""
    repo = icefloe.Repository.open(SteppingStorage(storage, keys))
    return repo.garbage_collect_async(LONG_AGO)


PAIRS: list[tuple[Actor, ...]] = [
    (collecting, collecting),
    (collecting, collecting_old_files),
    (collecting_incrementally, collecting_old_files),
    (collecting, collecting_incrementally),
]


def names(value: Any) -> str:
    if isinstance(value, tuple):
        return "-".join(map(names, value))
    return getattr(value, "__name__", str(value))


EVERY_PAIR = pytest.mark.parametrize(
    ("spec", "actors"), [(spec, pair) for spec in (1, 2) for pair in PAIRS], ids=names
)


def files_in(storage: Storage) -> set[str]:
    return {key for key in listing(storage.open()) if key.startswith(COLLECTED)}


def play(spec: int, actors: Sequence[Actor], schedule: Sequence[int]) -> ScheduleRun:
    storage = with_a_past(spec)
    needed, before = versions(storage), files_in(storage)
    run = run_schedule([actor(storage, ("",)) for actor in actors], schedule)
    deleted = 0
    for outcome in run.outcomes:
        assert outcome.error is None, run
        assert outcome.result.is_complete, (outcome.result, run)
        deleted += outcome.result.objects_deleted
    assert deleted == len(before - files_in(storage)) > 0
    assert versions(storage) == needed
    check_repository_blocking(storage.open())
    return run


@EVERY_PAIR
def test_one_is_held_up_at_every_step(spec: int, actors: tuple[Actor, ...]) -> None:
    plain = play(spec, actors, ())
    for place, outcome in enumerate(plain.outcomes):
        for steps in range(1, outcome.steps + 1):
            play(spec, actors, [place] * steps + [1 - place] * 1000)


@EVERY_PAIR
@settings(max_examples=15)
@given(schedule=st.lists(st.integers(0, 1), max_size=80))
def test_random_orders(spec: int, actors: tuple[Actor, ...], schedule: list[int]) -> None:
    play(spec, actors, schedule)


def collect(storage: Storage, cutoff: datetime) -> tuple[int, bool]:
    summary = icefloe.Repository.open(storage).garbage_collect(cutoff)
    return summary.objects_deleted, summary.is_complete


def collect_twice(storage: Storage) -> tuple[int, int]:
    """Collect in two processes at once; return what they counted, and what went."""
    cutoff = created(storage, 2)
    needed, before = versions(storage), files_in(storage)
    with ProcessPoolExecutor(2, mp_context=SPAWN) as pool:
        found = list(pool.map(collect, [storage] * 2, [cutoff] * 2))
    assert all(is_complete for _, is_complete in found)
    assert versions(storage) == needed
    check_repository_blocking(storage.open())
    return sum(count for count, _ in found), len(before - files_in(storage))


def test_two_processes_on_local_disk(tmp_path: Path) -> None:
    counted, gone = collect_twice(icefloe.local_filesystem_storage(str(tmp_path)))
    assert counted == gone > 0


@pytest.mark.server
def test_two_processes_on_an_object_store(s3_endpoint: S3Endpoint, prefix: str) -> None:
    """The store does not tell who deleted an object, so both may count it, each once."""
    counted, gone = collect_twice(s3_storage_at(s3_endpoint, prefix))
    assert 0 < gone <= counted <= 2 * gone
