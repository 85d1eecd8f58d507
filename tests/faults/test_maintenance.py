"""Maintenance that dies or fails: nothing that is needed is lost, and a new run finishes."""

from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from typing import Any

import pytest

import icefloe
from icefloe.effects import run_blocking
from icefloe.errors import IcefloeError
from icefloe.maintenance.clocks import PROBE_PREFIX
from icefloe.storage import Storage
from icefloe.testing.faulty import (
    Fault,
    FaultyBackend,
    SimulatedCrash,
    every_crash,
    every_failure,
)
from icefloe.testing.schedules import WrappedStorage
from tests.faults.pasts import copied, versions, with_a_past
from tests.property.reachable import listing, needed_by_refs, stored
from tests.support.checking import check_repository_blocking

SPECS = pytest.mark.parametrize("spec", [1, 2])
COLLECTED = ("snapshots/", "transactions/", "manifests/", "chunks/")

type Work = Callable[[icefloe.Repository], Any]


def expire(repo: icefloe.Repository) -> set[str]:
    return repo.expire_snapshots(datetime.now(UTC), delete_expired_branches=True)


def collect(repo: icefloe.Repository) -> icefloe.GCSummary:
    return repo.garbage_collect(datetime.now(UTC))


def collect_incrementally(repo: icefloe.Repository) -> icefloe.GCSummary:
    return repo.garbage_collect(datetime.now(UTC), incremental=True)


def expired(spec: int) -> Storage:
    return copied(_expired(spec))


@cache
def _expired(spec: int) -> Storage:
    storage = with_a_past(spec)
    expire(icefloe.Repository.open(storage))
    return storage


SCENARIOS: list[tuple[Work, Callable[[int], Storage]]] = [
    (expire, with_a_past),
    (collect, with_a_past),
    (collect, expired),
    (collect_incrementally, expired),
]
EACH = pytest.mark.parametrize(
    ("work", "make"), SCENARIOS, ids=["expire", "collect", "collect expired", "incremental"]
)


def run_with(storage: Storage, work: Work, *faults: Fault) -> tuple[Any, FaultyBackend]:
    made: list[FaultyBackend] = []

    def wrap(inner: Any) -> FaultyBackend:
        made.append(FaultyBackend(inner))
        return made[0]

    repo = icefloe.Repository.open(WrappedStorage(storage, wrap))
    steps = len(made[0].trace)
    shifted = [type(fault)(fault.step + steps, *_rest(fault)) for fault in faults]
    made[0]._faults = {fault.step: fault for fault in shifted}
    try:
        return work(repo), made[0]
    finally:
        made[0]._faults = {}


def _rest(fault: Fault) -> tuple[Any, ...]:
    return tuple(getattr(fault, name) for name in fault.__struct_fields__ if name != "step")


def opening_steps(storage: Storage) -> int:
    opening = FaultyBackend(storage.open())
    icefloe.Repository.open(WrappedStorage(storage, lambda _: opening))
    return len(opening.trace)


def count_steps(spec: int, work: Work, make: Callable[[int], Storage]) -> int:
    storage = make(spec)
    opening = opening_steps(storage)
    _, backend = run_with(storage, work)
    return len(backend.trace) - opening


def check_after(storage: Storage, before: dict[str, Any], work: Work) -> None:
    """What is left is whole, and the same work done again leaves what it would have left."""
    check_repository_blocking(storage.open())
    now = versions(storage)
    assert all(before[one] == files for one, files in now.items())
    if work is not expire:
        assert now == before
    again = work(icefloe.Repository.open(storage))
    if work is expire:
        assert icefloe.Repository.open(storage).list_branches() == {"main"}
    else:
        assert again.is_complete
        assert versions(storage) == before
        if work is collect:
            left = {key for key in listing(storage.open()) if key.startswith(COLLECTED)}
            assert left <= needed_by_refs(stored(storage.open()))


@SPECS
@EACH
def test_a_crash_at_every_step(spec: int, work: Work, make: Callable[[int], Storage]) -> None:
    steps = count_steps(spec, work, make)
    assert steps >= 2
    before = versions(make(spec))
    for crash in every_crash(steps):
        storage = make(spec)
        with pytest.raises(SimulatedCrash):
            run_with(storage, work, crash)
        check_after(storage, before, work)


@SPECS
@EACH
def test_a_failure_at_every_step(spec: int, work: Work, make: Callable[[int], Storage]) -> None:
    before = versions(make(spec))
    for fault in every_failure(count_steps(spec, work, make)):
        storage = make(spec)
        try:
            done, backend = run_with(storage, work, fault)
        except IcefloeError:
            pass
        else:
            assert not getattr(done, "is_complete", False), fault
            # An expiration needs no right to delete: its probe of the clock may stay.
            failed = backend.trace[opening_steps(storage) + fault.step]
            is_probe = failed.operation == "delete" and failed.key.startswith(PROBE_PREFIX)
            assert work is not expire or is_probe, fault
        check_after(storage, before, work)


def test_what_cannot_be_read_is_not_guessed_at() -> None:
    storage = with_a_past(2)
    backend = storage.open()
    manifests = [key for key in needed_by_refs(stored(backend)) if key.startswith("manifests/")]
    run_blocking(backend.put(manifests[0], b"not a manifest" * 100))
    keys = listing(backend).keys()
    with pytest.raises(icefloe.FormatError):
        collect(icefloe.Repository.open(storage))
    assert listing(backend).keys() == keys
