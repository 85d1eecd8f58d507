"""Every operation on a repository, with the storage failing or the process dying at every step.

Afterwards the repository is in the state before or in the state after, and usable; what was
reported as done is done; what was reported as failed can be repeated.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Unpack

import pytest

from icefloe.config import (
    RepositoryConfig,
    RepoUpdateRetryConfig,
    StorageRetriesSettings,
    StorageSettings,
    effective_storage_settings,
)
from icefloe.effects import run_blocking
from icefloe.errors import (
    ConflictError,
    OutcomeUnknownError,
    RefNotFoundError,
    RepositoryNotFoundError,
    StorageError,
)
from icefloe.format.ids import INITIAL_SNAPSHOT_ID, SnapshotId
from icefloe.format.snapshot import Snapshot
from icefloe.format.snapshot_table import SnapshotEntry
from icefloe.format.transaction_log import TransactionLog
from icefloe.format.update_table import Status
from icefloe.records import replace
from icefloe.repo import lifecycle
from icefloe.repo.context import RepoContext, settled
from icefloe.repo.repo_changes import (
    Commit,
    CreateBranch,
    CreateTag,
    DeleteBranch,
    DeleteTag,
    ResetBranch,
    SetConfig,
    SetFlag,
    SetMetadata,
    SetStatus,
    UpdateMetadata,
)
from icefloe.repo.repo_ledger import RepoObjectLedger
from icefloe.storage import Storage
from icefloe.storage.metering import Meter
from icefloe.storage.port import Backend, Buffer, ByteRange, Fetched, PutOptions, Version
from icefloe.storage.retrying import RetryingBackend
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
from tests.support.checking import check_repository_blocking

SPECS = pytest.mark.parametrize("spec_version", [1, 2])
SMALL = RepositoryConfig(inline_chunk_threshold_bytes=7)
NEW = SnapshotId(bytes([7]) * 12)

type State = dict[str, Any]
type Operation = Callable[[RepoContext], Awaitable[object]]


async def commit(context: RepoContext, new: SnapshotId = NEW) -> None:
    await commit_on(await context.ledger.branch_tip("main"), new, context)


async def commit_on(base: SnapshotId, new: SnapshotId, context: RepoContext) -> None:
    time = max(context.clock(), (await context.assets.load_snapshot(base)).flushed_at + 1)
    spec = context.spec_version
    parent = base if spec == 1 else None
    await context.assets.save_snapshot(
        Snapshot(new, time, "new", parent_id=parent, spec_version=spec)
    )
    await context.assets.save_transaction_log(TransactionLog(new))
    await context.ledger.update(Commit("main", base, SnapshotEntry(new, base, time, "new")))


OPERATIONS: dict[str, Operation] = {
    "commit": commit,
    "create branch": lambda c: c.ledger.update(CreateBranch("b", INITIAL_SNAPSHOT_ID)),
    "delete branch": lambda c: c.ledger.update(DeleteBranch("old")),
    "reset branch": lambda c: c.ledger.update(ResetBranch("old", SnapshotId(bytes([1]) * 12))),
    "create tag": lambda c: c.ledger.update(CreateTag("t", INITIAL_SNAPSHOT_ID)),
    "delete tag": lambda c: c.ledger.update(DeleteTag("old")),
    "config": lambda c: c.ledger.update(SetConfig(SMALL)),
}
OPERATIONS_OF_SPEC_2: dict[str, Operation] = {
    "set metadata": lambda c: c.ledger.update(SetMetadata({"a": 1})),
    "update metadata": lambda c: c.ledger.update(UpdateMetadata({"a": 1})),
    "status": lambda c: c.ledger.update(SetStatus(Status(1, 5, "why"))),
    "flag": lambda c: c.ledger.update(SetFlag("create_tag", False)),
}
CASES = [
    *((name, spec, work) for name, work in OPERATIONS.items() for spec in (1, 2)),
    *((name, 2, work) for name, work in OPERATIONS_OF_SPEC_2.items()),
]
PARAMETERS = {
    (name, spec): pytest.param(spec, work, id=f"{name}-{spec}") for name, spec, work in CASES
}
EVERY_OPERATION = pytest.mark.parametrize(("spec_version", "operation"), PARAMETERS.values())
EVERY_CONDITIONAL_WRITE = pytest.mark.parametrize(
    ("spec_version", "operation"),
    [each for name, each in PARAMETERS.items() if name != ("delete branch", 1)],
)


def prepared(spec_version: int) -> Storage:
    """Make a repository with one commit, a branch and a tag."""
    storage = Storage.new_in_memory()
    context = run_blocking(lifecycle.create(storage, spec_version=spec_version))
    run_blocking(commit(context, SnapshotId(bytes([1]) * 12)))
    run_blocking(context.ledger.update(CreateBranch("old", INITIAL_SNAPSHOT_ID)))
    run_blocking(context.ledger.update(CreateTag("old", INITIAL_SNAPSHOT_ID)))
    return storage


def state_of(storage: Storage) -> State:
    """Tell all that a repository says, except when it was said."""
    context = run_blocking(lifecycle.open_(storage))
    ledger = context.ledger
    state: State = {
        "branches": run_blocking(ledger.branches()),
        "tags": run_blocking(ledger.tags()),
        "config": run_blocking(ledger.load_config()),
    }
    if isinstance(ledger, RepoObjectLedger):
        repo = run_blocking(ledger.repo())
        state |= {
            "metadata": repo.metadata,
            "status": replace(repo.status, set_at=0),
            "flags": (repo.enabled_flags, repo.disabled_flags),
            "deleted": repo.deleted_tags,
            "snapshots": len(repo.snapshots),
            "operations": [entry.kind for entry in repo.updates.entries()],
        }
    return state


@dataclass
class Trial:
    """An operation on a fresh repository, through a storage with faults."""

    spec_version: int
    operation: Operation
    before: State = field(init=False)
    after: State = field(init=False)
    steps: int = field(init=False)

    def __post_init__(self) -> None:
        storage = prepared(self.spec_version)
        self.before = state_of(storage)
        backend = self.run(storage)
        self.after = state_of(storage)
        self.steps = len(backend.trace)
        assert self.before != self.after

    def run(self, storage: Storage, *faults: Fault) -> FaultyBackend:
        context = run_blocking(lifecycle.open_(storage))
        backend = FaultyBackend(context.backend, *faults)
        context = self.on(storage, backend)
        run_blocking(as_coroutine(self.operation(context)))
        return backend

    def on(self, storage: Storage, backend: Backend) -> RepoContext:
        """Open through a backend, without counting the steps of opening."""
        known = run_blocking(lifecycle.open_(storage))
        wrapped = WrappedStorage(storage, lambda _: backend)
        return RepoContext.of(
            wrapped, settled(wrapped, known.user_config), spec_version=self.spec_version, access={}
        )


def faulty(fault: Fault, backend: Backend) -> FaultyBackend:
    return FaultyBackend(backend, fault)


async def as_coroutine(work: Awaitable[object]) -> object:
    return await work


class TestChanges:
    @EVERY_OPERATION
    def test_dying_at_any_step(self, spec_version: int, operation: Operation) -> None:
        trial = Trial(spec_version, operation)
        for crash in every_crash(trial.steps):
            storage = prepared(spec_version)
            # A fault after a step that finds nothing does not strike.
            with suppress(SimulatedCrash):
                trial.run(storage, crash)
                assert state_of(storage) == trial.after
            check_repository_blocking(storage.open())
            now = state_of(storage)
            assert now in (trial.before, trial.after)
            if now == trial.before:
                trial.run(storage)
                assert state_of(storage) == trial.after

    @EVERY_OPERATION
    def test_failing_at_any_step(self, spec_version: int, operation: Operation) -> None:
        """The same object works again afterwards, whatever it remembers from before."""
        trial = Trial(spec_version, operation)
        for failure in every_failure(trial.steps):
            storage = prepared(spec_version)
            context = trial.on(storage, FaultyBackend(storage.open(), failure))
            with suppress(StorageError):
                run_blocking(as_coroutine(operation(context)))
                assert state_of(storage) == trial.after
            if state_of(storage) == trial.before:
                run_blocking(as_coroutine(operation(context)))
            assert state_of(storage) == trial.after
            check_repository_blocking(storage.open())

    @EVERY_OPERATION
    def test_passing_failures_are_not_seen(self, spec_version: int, operation: Operation) -> None:
        """With retries, as all storages at a distance have, nobody notices a lost answer."""
        trial = Trial(spec_version, operation)
        settings = effective_storage_settings(
            StorageSettings(retries=StorageRetriesSettings(5, 0, 0))
        )
        for failure in every_failure(trial.steps, retryable=True):
            storage = prepared(spec_version)
            backend = RetryingBackend(faulty(failure, storage.open()), settings, Meter())
            context = trial.on(storage, backend)
            run_blocking(as_coroutine(operation(context)))
            assert state_of(storage) == trial.after
            check_repository_blocking(storage.open())


@SPECS
class TestCreating:
    def steps(self, spec_version: int) -> int:
        storage = WrappedStorage(Storage.new_in_memory(), FaultyBackend)
        run_blocking(lifecycle.create(storage, SMALL, spec_version=spec_version))
        assert isinstance(storage.backend, FaultyBackend)
        return len(storage.backend.trace)

    def test_dying_at_any_step(self, spec_version: int) -> None:
        for crash in every_crash(self.steps(spec_version)):
            inner = Storage.new_in_memory()
            storage = WrappedStorage(inner, partial(faulty, crash))
            with pytest.raises(SimulatedCrash):
                run_blocking(lifecycle.create(storage, SMALL, spec_version=spec_version))
            self.check_whole_or_absent(inner)

    def test_failing_at_any_step(self, spec_version: int) -> None:
        for failure in every_failure(self.steps(spec_version)):
            inner = Storage.new_in_memory()
            storage = WrappedStorage(inner, partial(faulty, failure))
            with pytest.raises(StorageError):
                run_blocking(lifecycle.create(storage, SMALL, spec_version=spec_version))
            self.check_whole_or_absent(inner)

    def check_whole_or_absent(self, storage: Storage) -> None:
        try:
            found = run_blocking(lifecycle.fetch_config(storage))
        except RepositoryNotFoundError:
            return
        assert found is not None
        assert found.inline_chunk_threshold_bytes == 7
        check_repository_blocking(storage.open())


class LosesAnswers(FaultyBackend):
    """Says of the first writes of the repo object or a ref that nobody knows how they ended."""

    def __init__(
        self,
        inner: Backend,
        *,
        lands: bool,
        then: Callable[[], object] = lambda: None,
        times: int = 1,
        ends_silent: bool = False,
    ) -> None:
        super().__init__(inner)
        self._lands = lands
        self._then = then
        self._times = times
        self._ends_silent = ends_silent

    async def get(self, key: str, byte_range: ByteRange | None = None) -> Fetched:
        if self._ends_silent and self._times == 0:
            raise StorageError("no answer", key=key)
        return await super().get(key, byte_range)

    async def put(self, key: str, data: Buffer, **options: Unpack[PutOptions]) -> Version:
        has_condition = options.get("if_absent") or options.get("if_version") is not None
        is_lost = self._times > 0 and has_condition
        if is_lost:
            self._times -= 1
        if not is_lost or self._lands:
            version = await super().put(key, data, **options)
        if is_lost:
            self._then()
            raise OutcomeUnknownError("nobody knows", key=key)
        return version


class TestLostAnswers:
    @EVERY_OPERATION
    @pytest.mark.parametrize("lands", [True, False])
    def test_are_settled_by_reading(
        self, spec_version: int, operation: Operation, lands: bool
    ) -> None:
        trial = Trial(spec_version, operation)
        storage = prepared(spec_version)
        backend = LosesAnswers(storage.open(), lands=lands)
        context = trial.on(storage, backend)
        run_blocking(as_coroutine(operation(context)))
        assert state_of(storage) == trial.after
        check_repository_blocking(storage.open())

    @EVERY_CONDITIONAL_WRITE
    @pytest.mark.parametrize("lands", [True, False])
    def test_that_cannot_be_settled_are_reported(
        self, spec_version: int, operation: Operation, lands: bool
    ) -> None:
        trial = Trial(spec_version, operation)
        storage = prepared(spec_version)
        backend = LosesAnswers(storage.open(), lands=lands, ends_silent=True)
        context = trial.on(storage, backend)
        with pytest.raises(OutcomeUnknownError):
            run_blocking(as_coroutine(operation(context)))
        assert state_of(storage) == (trial.after if lands else trial.before)
        check_repository_blocking(storage.open())

    @pytest.mark.parametrize("lands", [True, False])
    @pytest.mark.parametrize("cap", [1, 2, 1000])
    def test_are_settled_although_others_went_on(self, lands: bool, cap: int) -> None:
        storage = Storage.new_in_memory()
        config = RepositoryConfig(num_updates_per_repo_info_file=cap)
        run_blocking(lifecycle.create(storage, config))
        other = run_blocking(lifecycle.open_(storage))

        def go_on() -> None:
            for number in range(5):
                run_blocking(other.ledger.update(CreateTag(f"t{number}", INITIAL_SNAPSHOT_ID)))

        backend = LosesAnswers(storage.open(), lands=lands, then=go_on)
        context = run_blocking(lifecycle.open_(WrappedStorage(storage, lambda _: backend)))
        run_blocking(context.ledger.update(CreateBranch("ours", INITIAL_SNAPSHOT_ID)))

        async def names() -> list[str | None]:
            return [entry.name async for entry in context.ledger.ops_log()]

        assert run_blocking(names()).count("ours") == 1
        check_repository_blocking(storage.open())

    def test_a_commit_that_others_built_upon_is_found_in_spec_1(self) -> None:
        storage = prepared(1)
        other = run_blocking(lifecycle.open_(storage))
        backend = LosesAnswers(
            storage.open(),
            lands=True,
            then=lambda: run_blocking(commit(other, SnapshotId(bytes([8]) * 12))),
        )
        context = run_blocking(lifecycle.open_(WrappedStorage(storage, lambda _: backend)))
        run_blocking(commit(context))
        check_repository_blocking(storage.open())

    def test_a_commit_is_written_until_an_answer_comes(self) -> None:
        storage = prepared(1)
        backend = LosesAnswers(storage.open(), lands=False, times=3)
        context = run_blocking(lifecycle.open_(WrappedStorage(storage, lambda _: backend)))
        run_blocking(commit(context))
        assert state_of(storage)["branches"]["main"] == NEW

    def test_a_commit_without_answers_ends_as_unknown(self) -> None:
        storage = prepared(1)
        backend = LosesAnswers(storage.open(), lands=False, times=1000)
        context = run_blocking(lifecycle.open_(WrappedStorage(storage, lambda _: backend)))
        with pytest.raises(OutcomeUnknownError):
            run_blocking(commit(context))

    @pytest.mark.parametrize("way", ["commit", "reset"])
    def test_a_commit_that_others_went_past_is_a_conflict(self, way: str) -> None:
        storage = prepared(1)
        other = run_blocking(lifecycle.open_(storage))
        theirs = INITIAL_SNAPSHOT_ID if way == "reset" else SnapshotId(bytes([8]) * 12)

        def go_on() -> None:
            if way == "reset":
                run_blocking(other.ledger.update(ResetBranch("main", theirs)))
            else:
                run_blocking(commit(other, theirs))

        backend = LosesAnswers(storage.open(), lands=False, then=go_on)
        context = run_blocking(lifecycle.open_(WrappedStorage(storage, lambda _: backend)))
        with pytest.raises(ConflictError) as caught:
            run_blocking(commit(context))
        assert caught.value.actual_parent == str(theirs)
        check_repository_blocking(storage.open())

    @pytest.mark.parametrize("lands", [True, False])
    def test_a_branch_that_is_gone_meanwhile_is_named(self, lands: bool) -> None:
        storage = prepared(1)
        other = run_blocking(lifecycle.open_(storage))
        backend = LosesAnswers(
            storage.open(),
            lands=lands,
            then=lambda: run_blocking(other.ledger.update(DeleteBranch("old"))),
        )
        context = run_blocking(lifecycle.open_(WrappedStorage(storage, lambda _: backend)))
        with pytest.raises(RefNotFoundError, match="old"):
            run_blocking(context.ledger.update(ResetBranch("old", SnapshotId(bytes([1]) * 12))))

    @SPECS
    @pytest.mark.parametrize("lands", [True, False])
    @pytest.mark.parametrize("number", [0, 1])
    def test_while_creating(self, spec_version: int, lands: bool, number: int) -> None:
        storage = Storage.new_in_memory()
        backend = LosesAnswers(storage.open(), lands=lands, times=number + 1)
        wrapped = WrappedStorage(storage, lambda _: backend)
        run_blocking(lifecycle.create(wrapped, SMALL, spec_version=spec_version))
        assert state_of(storage)["config"].inline_chunk_threshold_bytes == 7
        check_repository_blocking(storage.open())


class TestRaces:
    """Two writers, in every order in which their requests can reach the storage."""

    @staticmethod
    def play(
        spec_version: int, works: list[Operation], check: Callable[[Storage, ScheduleRun], None]
    ) -> int:
        def race(schedule: Schedule) -> ScheduleRun:
            storage = prepared(spec_version)
            contexts = [
                run_blocking(lifecycle.open_(SteppingStorage(storage, MUTABLE_KEYS))) for _ in works
            ]
            run = run_schedule(
                [as_coroutine(work(c)) for work, c in zip(works, contexts, strict=True)], schedule
            )
            check_repository_blocking(storage.open())
            check(storage, run)
            return run

        return len(list(all_schedules(race)))

    @SPECS
    def test_unrelated_changes_both_succeed(self, spec_version: int) -> None:
        def check(storage: Storage, run: ScheduleRun) -> None:
            assert all(outcome.succeeded for outcome in run.outcomes)
            state = state_of(storage)
            assert state["branches"].keys() == {"main", "old", "b"}
            assert state["tags"].keys() == {"old", "t"}

        works = [OPERATIONS["create branch"], OPERATIONS["create tag"]]
        assert self.play(spec_version, works, check) > 1

    @SPECS
    def test_of_two_commits_one_wins(self, spec_version: int) -> None:
        def check(storage: Storage, run: ScheduleRun) -> None:
            [lost] = [outcome for outcome in run.outcomes if not outcome.succeeded]
            assert isinstance(lost.error, ConflictError)
            tip = state_of(storage)["branches"]["main"]
            assert lost.error.actual_parent == str(tip)

        works: list[Operation] = [
            partial(commit_on, SnapshotId(bytes([1]) * 12), SnapshotId(bytes([n]) * 12))
            for n in (21, 22)
        ]
        assert self.play(spec_version, works, check) > 1

    @SPECS
    def test_a_name_is_given_once(self, spec_version: int) -> None:
        def check(storage: Storage, run: ScheduleRun) -> None:
            assert sorted(outcome.succeeded for outcome in run.outcomes) == [False, True]
            assert state_of(storage)["tags"]["t"] == INITIAL_SNAPSHOT_ID

        works = [OPERATIONS["create tag"], OPERATIONS["create tag"]]
        assert self.play(spec_version, works, check) > 1


def test_giving_up_says_so() -> None:
    """A writer that never gets a turn tells that, and how to be more patient."""
    storage = prepared(2)
    other = run_blocking(lifecycle.open_(storage))
    count = iter(range(1000))

    class AlwaysLate(FaultyBackend):
        async def copy(
            self, source: str, target: str, *, if_version: Version | None = None
        ) -> None:
            run_blocking(other.ledger.update(CreateTag(f"t{next(count)}", INITIAL_SNAPSHOT_ID)))
            await super().copy(source, target, if_version=if_version)

    patience = RepoUpdateRetryConfig(default=StorageRetriesSettings(7, 0, 0))
    config = RepositoryConfig(repo_update_retries=patience)
    backend = AlwaysLate(storage.open())
    context = run_blocking(lifecycle.open_(WrappedStorage(storage, lambda _: backend), config))
    with pytest.raises(ConflictError, match="repo_update_retries") as caught:
        run_blocking(context.ledger.update(CreateBranch("late", INITIAL_SNAPSHOT_ID)))
    assert caught.value.kind == "update-attempts-exhausted"
    assert next(count) == 7
    assert "late" not in run_blocking(other.ledger.branch_names())
