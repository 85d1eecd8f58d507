"""Manifests built elsewhere and linked, while the storage fails or a process dies at every step.

Building, linking and committing are one job here: wherever it stops, nothing of it is to be seen,
or all of it. A job that was told of a failure can go on from its last step, or begin again.
"""

from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from icefloe.effects import run_blocking
from icefloe.errors import StorageError
from icefloe.format.chunk_table import ChunkTable
from icefloe.format.columns import BytesColumn
from icefloe.format.ids import SnapshotId
from icefloe.format.nodes import ArrayNode
from icefloe.format.transaction_log import TransactionLog
from icefloe.manifests.regions import NewReferences
from icefloe.repo import lifecycle
from icefloe.repo.context import RepoContext
from icefloe.testing.faulty import SimulatedCrash, every_crash, every_failure
from icefloe.transactions import commit, nodes
from icefloe.transactions.conflicts import ConflictDetector
from icefloe.transactions.external_manifests import (
    build_region,
    link_manifests,
    plan_array,
    write_log,
)
from icefloe.transactions.session import SessionMode, SessionState
from tests.faults.test_session_endings import Ending, Trial, begin, prepared, state_of, write
from tests.support.checking import check_repository_blocking
from tests.support.sides import array_json

CHUNKS = np.array([[1], [2], [3]], np.uint32)


def new_chunks() -> ChunkTable:
    return ChunkTable.inlined(CHUNKS, BytesColumn.from_list([b"one", b"two", b"three"]))


async def build_and_link(session: SessionState) -> None:
    """Replace what is stored of one array, and give chunks to another that is new."""
    nodes.put_metadata(session, "/c", array_json([4]))
    for path in ("/a", "/c"):
        node = nodes.require_array(session, path)
        assert isinstance(node, ArrayNode)
        plan = plan_array(session, path, NewReferences(CHUNKS[:, 0], np.ones(3, np.int64)))
        region = await build_region(
            session.context.assets,
            node.id,
            new_chunks(),
            layout=plan.layout,
            grid=node.array.num_chunks,
            stored=plan.stored_in(0),
        )
        link_manifests(session, path, [region])
    await write(session, "/b", 1, b"beside")


async def finish_elsewhere(session: SessionState, *, rebases: bool = False) -> SnapshotId:
    ids = [nodes.require_array(session, path).id for path in ("/a", "/c")]

    async def elsewhere(own: TransactionLog) -> None:
        await write_log(session.context.assets, own, [(one, CHUNKS) for one in ids])

    solver = ConflictDetector() if rebases else None
    return await commit.commit(session, "new", log_writer=elsewhere, solver=solver)


class Job(Trial):
    """Builds, links and commits."""

    async def play(self, context: RepoContext) -> None:
        session = await begin(context, SessionMode.writable)
        await build_and_link(session)
        await self.ending.finish(session)


JOBS = {
    "spec 1": (Job, Ending(SessionMode.writable, lambda s: commit.commit(s, "new"), 1)),
    "spec 2": (Job, Ending(SessionMode.writable, lambda s: commit.commit(s, "new"))),
    "log written elsewhere": (Job, Ending(SessionMode.writable, finish_elsewhere)),
    "amend": (Job, Ending(SessionMode.writable, lambda s: commit.amend(s, "new"))),
    "flush": (Job, Ending(SessionMode.writable, lambda s: commit.flush(s, "new"))),
}
EVERY_JOB = pytest.mark.parametrize(("kind", "ending"), JOBS.values(), ids=JOBS)


@EVERY_JOB
def test_dying_at_any_step(kind: type[Job], ending: Ending) -> None:
    trial = kind(ending)
    for crash in every_crash(trial.steps):
        storage, context = trial.with_fault(crash)
        with suppress(SimulatedCrash):  # one after a step that finds nothing does not strike
            run_blocking(trial.play(context))
            assert state_of(storage) == trial.after
        check_repository_blocking(storage.open())
        assert state_of(storage) in (trial.before, trial.after)
        if state_of(storage) == trial.before:
            run_blocking(trial.play(run_blocking(lifecycle.open_(storage))))
            assert state_of(storage) == trial.after


@EVERY_JOB
def test_failing_at_any_step(kind: type[Job], ending: Ending) -> None:
    trial = kind(ending)
    for failure in every_failure(trial.steps):
        storage, context = trial.with_fault(failure)
        session: SessionState | None = None

        async def play() -> None:
            nonlocal session
            if session is None:
                begun = await begin(context, SessionMode.writable)  # noqa: B023 - run at once
                await build_and_link(begun)
                session = begun
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


async def commit_other(context: RepoContext) -> None:
    other = await begin(context, SessionMode.writable)
    nodes.put_metadata(other, "/d", array_json([4]))
    await commit.commit(other, "other")


class LateJob(Job):
    """Commits after somebody else, and has its log written twice."""

    async def play(self, context: RepoContext) -> None:
        session = await begin(context, SessionMode.writable)
        await build_and_link(session)
        await commit_other(context)
        await self.ending.finish(session)


@pytest.mark.parametrize("spec_version", [1, 2])
def test_dying_while_rebasing(spec_version: int) -> None:
    def finish(session: SessionState) -> Coroutine[Any, Any, SnapshotId]:
        return finish_elsewhere(session, rebases=True)

    trial = LateJob(Ending(SessionMode.writable, finish, spec_version))
    storage = prepared(spec_version)
    run_blocking(commit_other(run_blocking(lifecycle.open_(storage))))
    between = state_of(storage)
    seen = []
    for crash in every_crash(trial.steps):
        storage, context = trial.with_fault(crash)
        with suppress(SimulatedCrash):
            run_blocking(trial.play(context))
            assert state_of(storage) == trial.after
        check_repository_blocking(storage.open())
        seen.append([trial.before, between, trial.after].index(state_of(storage)))
    assert set(seen) == {0, 1, 2}
    assert seen == sorted(seen)
