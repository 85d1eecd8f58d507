"""Sessions that end while the storage fails or the process dies, at every step on the way.

Afterwards the repository is in the state before or in the state after, and whole. A session
that was told of a failure keeps its changes, and can try again.
"""

from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from icefloe.effects import run_blocking
from icefloe.errors import StorageError
from icefloe.format.ids import SnapshotId
from icefloe.format.nodes import ArrayNode
from icefloe.repo import lifecycle
from icefloe.repo.context import RepoContext, settled
from icefloe.repo.repo_ledger import RepoObjectLedger
from icefloe.storage import Storage
from icefloe.testing.faulty import (
    Fault,
    FaultyBackend,
    SimulatedCrash,
    every_crash,
    every_failure,
)
from icefloe.testing.schedules import WrappedStorage
from icefloe.transactions import chunks, commit, nodes, rearrange
from icefloe.transactions.session import SessionMode, SessionState, open_session
from tests.support.checking import check_repository_blocking
from tests.support.sides import array_json, group_json

LARGE = b"x" * 600
"""A chunk that is not stored inline."""

type State = dict[str, Any]
type Finish = Callable[[SessionState], Coroutine[Any, Any, SnapshotId]]


async def write(session: SessionState, path: str, index: int, data: bytes) -> None:
    await chunks.write_chunk(session, nodes.require_array(session, path), (index,), data)


async def edit(session: SessionState) -> None:
    """Change chunks and nodes, or places of nodes, as the session allows."""
    if session.mode is SessionMode.rearrange:
        rearrange.move(session, "/a", "/g/a")
        return
    nodes.put_metadata(session, "/c", array_json([4]))
    await write(session, "/c", 0, LARGE)
    await write(session, "/a", 1, b"small")
    nodes.delete_node(session, "/b")


@dataclass(frozen=True)
class Ending:
    """A way in which a session comes to its end."""

    mode: SessionMode
    finish: Finish
    spec_version: int = 2


ENDINGS = {
    "commit in spec 1": Ending(SessionMode.writable, lambda s: commit.commit(s, "new"), 1),
    "commit": Ending(SessionMode.writable, lambda s: commit.commit(s, "new")),
    "commit of moves": Ending(SessionMode.rearrange, lambda s: commit.commit(s, "new")),
    "amend": Ending(SessionMode.writable, lambda s: commit.amend(s, "new")),
    "amend with moves": Ending(SessionMode.rearrange, lambda s: commit.amend(s, "new")),
    "flush": Ending(SessionMode.writable, lambda s: commit.flush(s, "new")),
    "flush of moves": Ending(SessionMode.rearrange, lambda s: commit.flush(s, "new")),
}
EVERY_ENDING = pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)


def prepared(spec_version: int) -> Storage:
    """Make a repository with arrays in two commits."""
    storage = Storage.new_in_memory()
    context = run_blocking(lifecycle.create(storage, spec_version=spec_version))

    async def furnish() -> None:
        session = await begin(context, SessionMode.writable)
        nodes.put_metadata(session, "/g", group_json())
        nodes.put_metadata(session, "/a", array_json([4]))
        nodes.put_metadata(session, "/b", array_json([4]))
        await write(session, "/a", 0, b"first")
        await write(session, "/b", 0, LARGE)
        await commit.commit(session, "first")
        session = await begin(context, SessionMode.writable)
        await write(session, "/a", 2, b"second")
        await commit.commit(session, "second")

    run_blocking(furnish())
    return storage


async def begin(context: RepoContext, mode: SessionMode) -> SessionState:
    tip = await context.ledger.branch_tip("main")
    return await open_session(context, tip, mode, branch="main")


def state_of(storage: Storage) -> State:
    """Tell all that there is to see, without ids and times."""
    return run_blocking(_state_of(storage))


async def _state_of(storage: Storage) -> State:
    context = await lifecycle.open_(storage)
    session = await begin(context, SessionMode.readonly)
    tip = session.snapshot_id
    state: State = {
        "history": [entry.message async for entry in context.ledger.ancestry(tip)],
        "contents": await contents(session),
    }
    if isinstance(context.ledger, RepoObjectLedger):
        repo = await context.ledger.repo()
        state["snapshots"] = sorted(repo.snapshots.messages.to_strings())
        state["operations"] = [entry.kind for entry in repo.updates.entries()]
    return state


async def contents(session: SessionState) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for node in session.tree.below("/"):
        found[node.path] = None
        if isinstance(node, ArrayNode):
            found[node.path] = [
                await chunks.read_chunk(session, node, (index,)) for index in range(4)
            ]
    return found


@dataclass
class Trial:
    """A session on a fresh repository, through a storage with faults."""

    ending: Ending
    before: State = field(init=False)
    after: State = field(init=False)
    steps: int = field(init=False)

    def __post_init__(self) -> None:
        storage = prepared(self.ending.spec_version)
        self.before = state_of(storage)
        backend = FaultyBackend(storage.open())
        run_blocking(self.play(self.on(storage, backend)))
        self.after = state_of(storage)
        self.steps = len(backend.trace)
        assert self.before != self.after

    def on(self, storage: Storage, backend: FaultyBackend) -> RepoContext:
        """Open through a backend, without counting the steps of opening."""
        known = run_blocking(lifecycle.open_(storage))
        wrapped = WrappedStorage(storage, lambda _: backend)
        return RepoContext.of(
            wrapped, settled(wrapped, known.user_config), spec_version=known.spec_version, access={}
        )

    async def play(self, context: RepoContext) -> None:
        session = await begin(context, self.ending.mode)
        await edit(session)
        await self.ending.finish(session)

    def with_fault(self, fault: Fault) -> tuple[Storage, RepoContext]:
        storage = prepared(self.ending.spec_version)
        return storage, self.on(storage, FaultyBackend(storage.open(), fault))


@EVERY_ENDING
def test_dying_at_any_step(ending: Ending) -> None:
    trial = Trial(ending)
    for crash in every_crash(trial.steps):
        storage, context = trial.with_fault(crash)
        # A fault after a step that finds nothing does not strike.
        with suppress(SimulatedCrash):
            run_blocking(trial.play(context))
            assert state_of(storage) == trial.after
        check_repository_blocking(storage.open())
        assert state_of(storage) in (trial.before, trial.after)
        if state_of(storage) == trial.before:
            run_blocking(trial.play(run_blocking(lifecycle.open_(storage))))
            assert state_of(storage) == trial.after


@EVERY_ENDING
def test_failing_at_any_step(ending: Ending) -> None:
    trial = Trial(ending)
    for failure in every_failure(trial.steps):
        storage, context = trial.with_fault(failure)
        session: SessionState | None = None
        is_edited = False

        async def play() -> None:
            nonlocal session, is_edited
            session = session or await begin(context, ending.mode)  # noqa: B023 - run at once
            if not is_edited:
                await edit(session)
                is_edited = True
            await ending.finish(session)

        with suppress(StorageError):
            run_blocking(play())
            assert state_of(storage) == trial.after
        check_repository_blocking(storage.open())
        assert state_of(storage) in (trial.before, trial.after)
        if state_of(storage) == trial.before:
            run_blocking(play())
        assert state_of(storage) == trial.after
        check_repository_blocking(storage.open())
