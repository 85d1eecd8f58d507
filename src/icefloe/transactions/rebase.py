"""Put the changes of a session on top of what others committed meanwhile."""

from collections.abc import Sequence

from icefloe.effects import map_concurrently
from icefloe.errors import (
    ConflictError,
    ErrorKind,
    NotFoundError,
    RebaseFailedError,
    RefNotFoundError,
    SessionStateError,
)
from icefloe.format.ids import NodeId, SnapshotId
from icefloe.format.nodes import NodeTable
from icefloe.format.transaction_log import TransactionLog
from icefloe.records import Record
from icefloe.repo.transaction_logs import unite_logs
from icefloe.transactions.conflict_detection import detect, rows_of_paths
from icefloe.transactions.conflicts import (
    Conflict,
    ConflictSolver,
    ConflictType,
    Resolution,
    require_solver,
    sound_resolutions,
)
from icefloe.transactions.session import SessionMode, SessionState


async def rebase(session: SessionState, solver: ConflictSolver) -> int:
    """Move the base of a session to the tip of its branch; give the number of commits between.

    Where the solver cannot resolve a conflict, `RebaseFailedError` lists all of that commit, and
    the session stays on the last commit that went well, with all of its changes. A branch that
    was deleted leaves the session as it is.
    """
    _require_rebasing(session)
    require_solver(solver)
    with session.changes.frozen():
        return await replay(session, solver)


async def replay(session: SessionState, solver: ConflictSolver) -> int:
    """Rebase a session whose changes nobody else touches, as `commit` and `rebase` see to.

    Usually nothing conflicts: so all commits are first looked at as one, which costs their logs
    and a single snapshot. Only the outcome counts then: a node that they created and deleted
    again is in nobody's way. If anything conflicts, they are taken one at a time.
    """
    if session.branch is None:
        return 0
    try:
        steps = await _steps_since_base(session, session.branch)
    except RefNotFoundError:
        return 0
    if not steps:
        return 0
    logs = await _load_logs(session, steps)
    tip = steps[-1].snapshot
    if len(steps) > 1 and await _advance(session, tip, _united(logs, tip), None):
        return len(steps)
    for step, log in zip(steps, logs, strict=True):
        await _advance(session, step.snapshot, log, solver)
    return len(steps)


def _require_rebasing(session: SessionState) -> None:
    if session.fork_of is not None:
        raise SessionStateError(
            "a forked session cannot be rebased: merge it into the session it came from, "
            "and rebase that one",
            ErrorKind.COMMIT_NOT_ALLOWED,
        )
    if session.mode is SessionMode.readonly:
        raise SessionStateError(
            "a read-only session has nothing to rebase: open another with "
            "repo.readonly_session(branch) to see the present state",
            ErrorKind.COMMIT_NOT_ALLOWED,
        )


# -- the way from the base to the tip ------------------------------------------------------


class _Step(Record):
    """A commit to go over; `pruned` are earlier ones of which only the logs are left."""

    snapshot: SnapshotId
    pruned: tuple[SnapshotId, ...]


async def _steps_since_base(session: SessionState, branch: str) -> list[_Step]:
    """List the commits of a branch after the base of the session, oldest first."""
    base = session.snapshot_id
    steps: list[_Step] = []
    async for page in session.context.ledger.ancestry_pages(branch=branch):
        for entry in page:
            if entry.id == base:
                return steps[::-1]
            pruned = entry.pruned_ancestors
            if base in pruned:
                # The base itself was released from the history: go on from where it was.
                steps.append(_Step(entry.id, pruned[pruned.index(base) + 1 :]))
                return steps[::-1]
            steps.append(_Step(entry.id, pruned))
    raise ConflictError(
        str(base),
        str(steps[0].snapshot),
        f"branch {branch!r} was reset or amended: its history does not hold the snapshot "
        f"{base} any more, on which this session is based. The session keeps its changes; open "
        "a new one on the branch and make them again, or create a branch at that snapshot",
    )


async def _load_logs(session: SessionState, steps: Sequence[_Step]) -> list[TransactionLog]:
    """Load the log of each step, united with the logs of what was pruned before it."""
    wanted_logs = [
        (snapshot_id, snapshot_id in step.pruned)
        for step in steps
        for snapshot_id in (*step.pruned, step.snapshot)
    ]

    async def load(wanted_log: tuple[SnapshotId, bool]) -> TransactionLog:
        snapshot, is_pruned = wanted_log
        try:
            return await session.context.assets.load_transaction_log(snapshot)
        except NotFoundError as error:
            if not is_pruned:
                raise
            raise SessionStateError(
                f"cannot rebase: the transaction log of the expired snapshot {snapshot} is gone, "
                "so nobody knows what that commit changed. Open a new session on the branch and "
                "make the changes again",
                ErrorKind.REBASE_TX_LOG_PRUNED,
                snapshot=str(snapshot),
            ) from error

    limit = session.context.config.max_concurrent_requests
    loaded = iter(await map_concurrently(load, wanted_logs, limit=limit))
    return [
        _united([next(loaded) for _ in range(len(step.pruned) + 1)], step.snapshot)
        for step in steps
    ]


def _united(logs: Sequence[TransactionLog], snapshot: SnapshotId) -> TransactionLog:
    return logs[0] if len(logs) == 1 else unite_logs(logs, snapshot)


# -- one step --------------------------------------------------------------------------------


async def _advance(
    session: SessionState, target: SnapshotId, log: TransactionLog, solver: ConflictSolver | None
) -> bool:
    """Put the changes on top of a later snapshot, with all conflicts resolved or not at all."""
    snapshot = await session.context.assets.load_snapshot(target)
    conflicts = detect(session.changes, session.snapshot.nodes, log, snapshot.nodes)
    if conflicts:
        if solver is None:
            return False
        resolutions = [solver.solve(conflict) for conflict in conflicts]
        if any(
            chosen not in sound_resolutions(conflict)
            for conflict, chosen in zip(conflicts, resolutions, strict=True)
        ):
            raise RebaseFailedError(str(target), conflicts)
        for conflict, chosen in zip(conflicts, resolutions, strict=True):
            if chosen is Resolution.USE_THEIRS:
                _drop_chunks(session, conflict)
    _forget_replaced(session, snapshot.nodes)
    session.rest_on(snapshot)
    return True


def _drop_chunks(session: SessionState, conflict: Conflict) -> None:
    assert conflict.conflict_type is ConflictType.ChunkDoubleUpdate
    node, chunks = session.tree.find(conflict.path), conflict.coordinates
    assert node is not None
    assert chunks is not None
    session.changes.arrays[node.id].drop(chunks)


def _forget_replaced(session: SessionState, nodes: NodeTable) -> None:
    """Forget deletes of nodes that are gone and in whose place they put others.

    A change set deletes by path where that is quicker: it must not hit the new node.
    """
    deleted = session.changes.deleted
    if not deleted:
        return
    for path, row in rows_of_paths(nodes, [node.path for node in deleted.values()]).items():
        there = NodeId(nodes.ids[row].tobytes())
        if there not in deleted:
            for node_id in [node_id for node_id, node in deleted.items() if node.path == path]:
                del deleted[node_id]
