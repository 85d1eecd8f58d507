"""Repair that dies or fails at any step: nothing is lost, and a new run finishes."""

from collections.abc import Callable
from contextlib import suppress
from functools import cache

import pytest
import zarr

import icefloe
from icefloe.effects import run_blocking
from icefloe.errors import IcefloeError
from icefloe.format.layout import REPO_KEY, branch_key
from icefloe.maintenance.repair.repair_log import RepairRules
from icefloe.maintenance.repair.run import repair
from icefloe.storage import Storage
from icefloe.testing.faulty import (
    Fail,
    Fault,
    FaultyBackend,
    SimulatedCrash,
    Step,
    every_crash,
)
from icefloe.testing.schedules import WrappedStorage
from tests.property.reachable import stored
from tests.support.checking import check_repository_blocking

_WRITES = frozenset({"put", "copy", "delete"})
_EACH_READ = 9  # there are hundreds
RULES = RepairRules(
    recover_versions=True,
    drop_lost_versions=True,
    drop_lost_references=True,
    drop_damaged_versions=True,
    rebuild_logs=True,
)


@cache
def whole(spec: int) -> dict[str, bytes]:
    repository = icefloe.Repository.create(
        icefloe.in_memory_storage(),
        icefloe.RepositoryConfig(inline_chunk_threshold_bytes=0),
        spec_version=spec,
    )
    for number in range(3):
        with repository.transaction("main", message=f"no. {number}") as store:
            zarr.create_array(store, name=f"a{number}", shape=4, chunks=2, dtype="u1")[:] = 7
    return stored(repository.storage.open())


def without(files: dict[str, bytes], *keys: str) -> dict[str, bytes]:
    return {key: data for key, data in files.items() if not key.startswith(keys)}


def first(files: dict[str, bytes], prefix: str) -> str:
    return min(key for key in files if key.startswith(prefix) and "1CECHNKREP0" not in key)


DAMAGES: dict[str, tuple[int, Callable[[dict[str, bytes]], dict[str, bytes]]]] = {
    "torn repo": (2, lambda files: files | {REPO_KEY: b"torn"}),
    "nothing but snapshots": (2, lambda files: without(files, REPO_KEY, "overwritten/")),
    "lost chunk": (2, lambda files: without(files, first(files, "chunks/"))),
    "lost chunk, spec 1": (1, lambda files: without(files, first(files, "chunks/"))),
    "lost snapshot": (2, lambda files: without(files, first(files, "snapshots/"))),
    "lost snapshot, spec 1": (1, lambda files: without(files, first(files, "snapshots/"))),
    "lost log": (2, lambda files: without(files, first(files, "transactions/"))),
    "lost main": (1, lambda files: without(files, branch_key("main"))),
}
EACH = pytest.mark.parametrize("name", DAMAGES)


def damaged(name: str) -> Storage:
    spec, damage = DAMAGES[name]
    storage = icefloe.in_memory_storage()
    for key, data in damage(whole(spec)).items():
        run_blocking(storage.open().put(key, data))
    return storage


def run_with(storage: Storage, *faults: Fault) -> list[Step]:
    backend = FaultyBackend(storage.open(), *faults)
    wrapped = WrappedStorage(storage, lambda _: backend)
    run_blocking(repair(wrapped, RULES, dry_run=False))
    return backend.trace


def check_after(storage: Storage, before: dict[str, bytes]) -> None:
    """All that was there is there, or kept; and the next run finishes the work."""
    now = stored(storage.open())
    kept = {data for key, data in now.items() if key.startswith("overwritten/")}
    for key, data in before.items():
        is_moved = key == branch_key("main") and data != b"torn"  # by a commit
        assert now[key] == data or data in kept or is_moved, key
    outcome = run_blocking(repair(storage, RULES, dry_run=False))
    assert outcome.after.damages == ()
    assert icefloe.Repository.open(storage).verify(deep=True).is_healthy
    check_repository_blocking(storage.open())


@EACH
def test_a_crash_at_every_write(name: str) -> None:
    """To die at a read is to die before the next write."""
    writes = [step.number for step in run_with(damaged(name)) if step.operation in _WRITES]
    assert writes
    crashes = 0
    for crash in every_crash(max(writes) + 1):
        if crash.step not in writes:
            continue
        storage = damaged(name)
        before = stored(storage.open())
        with suppress(SimulatedCrash):
            run_with(storage, crash)
            crashes -= 1  # a run may take a step less, for what it finds in a cache
        crashes += 1
        check_after(storage, before)
    assert crashes >= len(writes)


@pytest.mark.parametrize("name", ["torn repo", "lost chunk", "lost snapshot, spec 1"])
def test_failures(name: str) -> None:
    """What cannot be read for the moment is not taken for damaged."""
    trace = run_with(damaged(name))
    reads = [step.number for step in trace if step.operation not in _WRITES]
    writes = [step.number for step in trace if step.operation in _WRITES]
    faults = [Fail(step, "before") for step in reads[::_EACH_READ]]
    faults += [Fail(step, "before") for step in writes]
    faults += [Fail(step, "after") for step in writes]
    for fault in faults:
        storage = damaged(name)
        before = stored(storage.open())
        with suppress(IcefloeError):
            run_with(storage, fault)
        check_after(storage, before)
