"""Work of several sessions at once, with a death or a failure at every single request.

Rebasing over another commit, merging a fork, packing small chunks. Afterwards the repository is
sound and holds a state that the work passes through; what was acknowledged is there, and the
work can be done again.
"""

from contextlib import suppress
from dataclasses import dataclass, field

import pytest

import icefloe
from icefloe.effects import run_blocking
from icefloe.errors import StorageError
from icefloe.storage import Storage
from icefloe.testing.faulty import (
    Crash,
    Fault,
    FaultyBackend,
    SimulatedCrash,
    every_crash,
    every_failure,
)
from icefloe.testing.schedules import WrappedStorage
from tests.faults.sessions import BIG, Seen, Work, prepared, put_chunk, seen_in
from tests.support.checking import check_repository_blocking


async def rebase(repo: icefloe.Repository) -> None:
    """Two commits, of which the first may be there without the second."""
    first = await repo.writable_session_async("main")
    second = await repo.writable_session_async("main")
    await put_chunk(first, 3, 9)
    await put_chunk(second, 4, 9, BIG)
    await first.commit_async("theirs")
    await second.commit_async("new", rebase_with=icefloe.ConflictDetector())


async def merge(repo: icefloe.Repository) -> None:
    session = await repo.writable_session_async("main")
    await put_chunk(session, 5, 1)
    fork = await session.fork_async()
    await put_chunk(fork, 6, 2, BIG)
    await session.merge_async(fork)
    later = await session.fork_async()
    await put_chunk(later, 6, 3, BIG)
    await session.merge_async(later, fork)
    await session.commit_async("new")


async def pack(repo: icefloe.Repository) -> None:
    session = await repo.writable_session_async("main", packing=True)
    await put_chunk(session, 1, 7, BIG)
    await put_chunk(session, 2, 8, BIG + 1)
    await session.commit_async("new")


async def transact(repo: icefloe.Repository) -> None:
    async with repo.transaction_async("main", message="new") as store:
        await put_chunk(store.session, 1, 7, BIG)


STATES_BETWEEN: dict[Work, int] = {rebase: 1, merge: 0, pack: 0, transact: 0}
EVERY_WORK = pytest.mark.parametrize("work", STATES_BETWEEN, ids=lambda work: work.__name__)
SPECS = pytest.mark.parametrize("spec", [1, 2])


@dataclass
class Trial:
    """One piece of work on a fresh repository, and the states that it passes through."""

    spec: int
    work: Work
    states: list[Seen] = field(default_factory=list)
    steps: int = field(init=False)

    def __post_init__(self) -> None:
        storage = prepared(self.spec)
        self.states.append(seen_in(storage))
        self.steps = len(self.run(storage).trace)
        after = seen_in(storage)
        for step in range(self.steps):
            storage = prepared(self.spec)
            with suppress(SimulatedCrash):
                self.run(storage, Crash(step, "after"))
            if (seen := seen_in(storage)) not in (*self.states, after):
                self.states.append(seen)
        self.states.append(after)
        assert len(self.states) == 2 + STATES_BETWEEN[self.work]

    def run(self, storage: Storage, *faults: Fault) -> FaultyBackend:
        wrapped = WrappedStorage(storage, lambda backend: FaultyBackend(backend, *faults))

        async def play() -> None:
            await self.work(await icefloe.Repository.open_async(wrapped))

        run_blocking(play())
        assert isinstance(wrapped.backend, FaultyBackend)
        return wrapped.backend


@SPECS
@EVERY_WORK
def test_dying_at_any_request(spec: int, work: Work) -> None:
    trial = Trial(spec, work)
    for crash in every_crash(trial.steps):
        storage = prepared(spec)
        # A fault after a request that finds nothing does not strike.
        with suppress(SimulatedCrash):
            trial.run(storage, crash)
            assert seen_in(storage) == trial.states[-1]
        check_repository_blocking(storage.open())
        assert seen_in(storage) in trial.states
        if seen_in(storage) == trial.states[0]:
            trial.run(storage)
            assert seen_in(storage) == trial.states[-1]


@SPECS
@EVERY_WORK
def test_failing_at_any_request(spec: int, work: Work) -> None:
    trial = Trial(spec, work)
    for failure in every_failure(trial.steps):
        storage = prepared(spec)
        with suppress(StorageError):
            trial.run(storage, failure)
            assert seen_in(storage) == trial.states[-1]
        check_repository_blocking(storage.open())
        assert seen_in(storage) in trial.states
