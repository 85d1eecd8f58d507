"""Rewriting manifests while the storage fails, the process dies, or others commit.

The data is the same at all times; the layout is the old one or the new one.
"""

from contextlib import suppress

import pytest

import icefloe
from icefloe.config import (
    ManifestConfig,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
    RepositoryConfig,
)
from icefloe.effects import run_blocking
from icefloe.errors import StorageError
from icefloe.storage import Storage
from icefloe.testing.faulty import (
    Fault,
    FaultyBackend,
    SimulatedCrash,
    every_crash,
    every_failure,
)
from icefloe.testing.schedules import (
    MUTABLE_KEYS,
    Schedule,
    ScheduleRun,
    SteppingStorage,
    WrappedStorage,
    all_schedules,
    run_schedule,
)
from tests.faults.sessions import BIG, prepared, put_chunk, seen_in
from tests.support.checking import check_repository_blocking

ONE_EACH = RepositoryConfig(
    manifest=ManifestConfig(
        splitting=ManifestSplittingConfig.from_dict(
            {ManifestSplitCondition.AnyArray(): {ManifestSplitDimCondition.Any(): 1}}
        )
    )
)
WAYS = pytest.mark.parametrize(
    ("spec", "method"), [(1, "new_commit"), (2, "new_commit"), (2, "amend")]
)


def rewrite(storage: Storage, method: icefloe.CommitMethod) -> str:
    repo = icefloe.Repository.open(storage, ONE_EACH)
    return repo.rewrite_manifests("rewritten", branch="main", commit_method=method)


def through(storage: Storage, *faults: Fault) -> tuple[Storage, FaultyBackend]:
    backend = FaultyBackend(storage.open(), *faults)
    return WrappedStorage(storage, lambda _: backend), backend


def steps_of(spec: int, method: icefloe.CommitMethod) -> int:
    wrapped, backend = through(prepared(spec))
    rewrite(wrapped, method)
    return len(backend.trace)


def check(storage: Storage, files: dict[str, bytes]) -> bool:
    """See that nothing is lost; tell whether manifests were rewritten."""
    check_repository_blocking(storage.open())
    seen = seen_in(storage)
    assert seen.files == files
    is_rewritten = "rewritten" in seen.messages
    layout = icefloe.Repository.open(storage).manifest_layout()
    assert len(layout) == (2 if is_rewritten else 1)
    return is_rewritten


@WAYS
def test_dying_at_any_step(spec: int, method: icefloe.CommitMethod) -> None:
    files = seen_in(prepared(spec)).files
    outcomes = set()
    for crash in every_crash(steps_of(spec, method)):
        storage = prepared(spec)
        with suppress(SimulatedCrash):
            rewrite(through(storage, crash)[0], method)
        is_rewritten = check(storage, files)
        outcomes.add(is_rewritten)
        if not is_rewritten:
            rewrite(storage, method)
            assert check(storage, files)
    assert outcomes == {True, False}


@WAYS
def test_failing_at_any_step(spec: int, method: icefloe.CommitMethod) -> None:
    files = seen_in(prepared(spec)).files
    for failure in every_failure(steps_of(spec, method)):
        storage = prepared(spec)
        with suppress(StorageError):
            rewrite(through(storage, failure)[0], method)
        if not check(storage, files):
            rewrite(storage, method)
            assert check(storage, files)


@pytest.mark.parametrize("spec", [1, 2])
def test_all_orders_of_a_rewrite_and_a_commit(spec: int) -> None:
    """A commit that does not rebase may lose to the rewrite; the rewrite loses to nobody."""
    orders = set()
    storage = prepared(spec)

    def race(schedule: Schedule) -> ScheduleRun:
        nonlocal storage
        storage = prepared(spec)
        mine = icefloe.Repository.open(SteppingStorage(storage, MUTABLE_KEYS), ONE_EACH)
        theirs = icefloe.Repository.open(SteppingStorage(storage, MUTABLE_KEYS))
        session = theirs.writable_session("main")
        run_blocking(put_chunk(session, 3, 9, BIG))
        work = [
            mine.rewrite_manifests_async("rewritten", branch="main"),
            session.commit_async("theirs", rebase_with=icefloe.ConflictDetector()),
        ]
        return run_schedule(work, schedule)

    for run in all_schedules(race):
        assert all(outcome.succeeded for outcome in run.outcomes), run
        check_repository_blocking(storage.open())
        seen = seen_in(storage)
        assert seen.files["a/c/3"] == bytes([9]) * BIG
        orders.add(seen.messages[:2])
    assert orders == {("rewritten", "theirs"), ("theirs", "rewritten")}
