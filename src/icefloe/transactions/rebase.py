"""Put the changes of a session on top of what others committed meanwhile.

`detect` finds what a session and another commit both changed. It is pure: two sets of changes and
two states of the tree go in, conflicts come out. Chunks are compared as columns, whatever their
number; nodes by sets of ids and paths.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Final

import numpy as np

from icefloe.effects import map_concurrently
from icefloe.errors import (
    ConflictError,
    ErrorKind,
    NotFoundError,
    RebaseFailedError,
    RefNotFoundError,
    SessionStateError,
)
from icefloe.format.chunk_table import Coordinates, are_among
from icefloe.format.columns import Bools, Bytes, Ints
from icefloe.format.ids import NodeId, SnapshotId, id_rows
from icefloe.format.nodes import ArrayNode, Node, NodeTable
from icefloe.format.paths import ancestors
from icefloe.format.transaction_log import TransactionLog, unite_logs
from icefloe.manifests.partition import Boxes, boxes_meeting, boxes_of_refs
from icefloe.records import Record
from icefloe.transactions.changes import ChangeSet
from icefloe.transactions.conflicts import (
    Conflict,
    ConflictSolver,
    ConflictType,
    Resolution,
    require_solver,
    sound_resolutions,
)
from icefloe.transactions.rearrange import find_move_faults
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


# -- conflicts -------------------------------------------------------------------------------

_FEW_PATHS: Final = 64  # found one by one, without looking at all nodes


def detect(
    changes: ChangeSet, base: NodeTable, theirs: TransactionLog, their_nodes: NodeTable
) -> list[Conflict]:
    """List the conflicts between our changes of `base` and a commit that led to `their_nodes`.

    Their log may unite several commits; what counts then is where they led.
    """
    if theirs.moves:
        moved = theirs.moves[0].source
        return [Conflict(ConflictType.MoveOperationCannotBeRebased, moved)]
    sides = _Sides(changes, base, theirs, their_nodes)
    return [
        *_moves(sides),
        *_new_nodes(sides),
        *_metadata(sides),
        *_chunks(sides),
        *_deletes(sides),
    ]


class _Sides(Record):
    changes: ChangeSet
    base: NodeTable
    theirs: TransactionLog
    their_nodes: NodeTable


def rows_of_paths(nodes: NodeTable, paths: Collection[str]) -> dict[str, int]:
    """Find the rows of those of some paths that exist, all at once."""
    if len(paths) <= _FEW_PATHS:
        row_by_path = {path: nodes.row_of(path) for path in paths}
        return {path: row for path, row in row_by_path.items() if row is not None}
    wanted_paths = {path.encode(): path for path in paths}
    rows = enumerate(nodes.paths.to_list())
    return {wanted_paths[path]: row for row, path in rows if path in wanted_paths}


def rows_of_ids(nodes: NodeTable, ids: Bytes) -> Ints:
    """Find the rows of the nodes, among some ids, that exist."""
    if len(ids) == 0 or len(nodes) == 0:
        return np.empty(0, np.int64)
    return np.flatnonzero(np.isin(_keys(nodes.ids), _keys(ids)))


def _keys(ids: Bytes) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    keys: np.ndarray[tuple[int], np.dtype[np.uint64]] = (
        np.ascontiguousarray(ids).view(np.uint64).ravel()
    )
    return keys


def _among(ids: Collection[NodeId], listed: Bytes) -> set[NodeId]:
    """Pick those of our ids that one of their lists holds."""
    if not ids or len(listed) == 0:
        return set()
    ours = list(ids)
    is_listed = np.isin(_keys(id_rows(NodeId, ours)), _keys(listed))
    return {ours[row] for row in np.flatnonzero(is_listed).tolist()}


# -- one function for each family of conflicts ---------------------------------------------


def _moves(sides: _Sides) -> Iterator[Conflict]:
    """Check that our moves still mean the same on their tree."""
    moves = sides.changes.moves
    if moves:
        for fault, path in find_move_faults(sides.base, sides.their_nodes, moves):
            yield Conflict(fault, path)


def _new_nodes(sides: _Sides) -> Iterator[Conflict]:
    changes = sides.changes
    created = {path: node for path, node in changes.nodes.items() if node.id in changes.created}
    if not created:
        return
    clashes = {
        path
        for path, row in rows_of_paths(sides.their_nodes, created).items()
        if _id_at(sides.their_nodes, row) not in changes.deleted
    }
    clashes |= _our_arrays_above_theirs(sides, created)
    for path in sorted(clashes):
        yield Conflict(ConflictType.NewNodeConflictsWithExistingNode, path)
    for path in sorted(_invalid_groups(sides, created)):
        yield Conflict(ConflictType.NewNodeInInvalidGroup, path)


def _our_arrays_above_theirs(sides: _Sides, created: dict[str, Node]) -> set[str]:
    """Find arrays of ours below which they created a node, where no group was needed before."""
    arrays = {path for path, node in created.items() if isinstance(node, ArrayNode)}
    if not arrays:
        return set()
    return {above for path in _their_new_paths(sides) for above in ancestors(path)} & arrays


def _invalid_groups(sides: _Sides, created: dict[str, Node]) -> set[str]:
    """Find what our new nodes would lie in that is an array now, or that they deleted."""
    above = {ancestor for path in created for ancestor in ancestors(path)} - created.keys()
    now = rows_of_paths(sides.their_nodes, above)
    before = rows_of_paths(sides.base, above)
    deleted = sides.changes.deleted

    def is_invalid(path: str) -> bool:
        if (row := now.get(path)) is not None:
            is_array = bool(sides.their_nodes.is_array[row])
            return is_array and _id_at(sides.their_nodes, row) not in deleted
        row = before.get(path)
        return row is not None and _id_at(sides.base, row) not in deleted

    invalid = {path for path in above if is_invalid(path)}
    nearest = (
        next((ancestor for ancestor in ancestors(path) if ancestor in invalid), None)
        for path in created
    )
    return {path for path in nearest if path is not None}


def _metadata(sides: _Sides) -> Iterator[Conflict]:
    changes, theirs = sides.changes, sides.theirs
    paths = {node.id: path for path, node in changes.nodes.items() if node.id in changes.updated}
    for kind, columns in (
        (
            ConflictType.ZarrMetadataDoubleUpdate,
            (theirs.updated_groups, theirs.updated_arrays),
        ),
        (ConflictType.ZarrMetadataUpdateOfDeletedArray, (theirs.deleted_arrays,)),
        (ConflictType.ZarrMetadataUpdateOfDeletedGroup, (theirs.deleted_groups,)),
    ):
        both = {node for column in columns for node in _among(paths, column)}
        for path in sorted(paths[node] for node in both):
            yield Conflict(kind, path)


def _chunks(sides: _Sides) -> Iterator[Conflict]:
    changes, theirs = sides.changes, sides.theirs
    written = {
        node: array
        for node, array in changes.arrays.items()
        if node not in changes.created and not array.is_empty()
    }
    linked = changes.links.keys() - changes.created
    for kind, column in (
        (ConflictType.ChunksUpdatedInDeletedArray, theirs.deleted_arrays),
        (ConflictType.ChunksUpdatedInUpdatedArray, theirs.updated_arrays),
    ):
        for path in sorted(_paths_of(sides.base, _among(written.keys() | linked, column))):
            yield Conflict(kind, path)
    for node in sorted(written.keys() & theirs.updated_chunks.keys()):
        ours = written[node].settled().touched()
        both = ours[are_among(ours, theirs.updated_chunks[node])]
        if len(both):
            [path] = _paths_of(sides.base, {node})
            yield Conflict(ConflictType.ChunkDoubleUpdate, path, both)
    for node in sorted(linked):
        yield from _links(sides, node)


def _links(sides: _Sides, node: NodeId) -> Iterator[Conflict]:
    """Find what keeps linked manifests from being put beside those that the array has now.

    Their chunks are not known here. So a change of theirs within the box of a linked manifest is
    a conflict, and so is anything that was done to a manifest that one was built over.
    """
    rows = rows_of_ids(sides.their_nodes, id_rows(NodeId, [node]))
    if len(rows) == 0:
        return  # they deleted it
    array = sides.their_nodes.array(int(rows[0])).array
    linked = sides.changes.links[node]
    [path] = _paths_of(sides.base, {node})
    dimensions = len(array.num_chunks)
    boxes = linked.boxes(dimensions)
    theirs = sides.theirs.updated_chunks.get(node)
    if theirs is not None and theirs.shape[1] == dimensions:
        both = theirs[_held_by(boxes, theirs)]
        if len(both):
            yield Conflict(ConflictType.ChunkDoubleUpdate, path, both, is_linked=True)
            return
    kept_refs = [ref for ref in array.manifests if ref.id not in linked.replaced]
    is_gone = len(array.manifests) - len(kept_refs) < len(linked.replaced)
    others = boxes_of_refs(kept_refs, array.num_chunks)
    if is_gone or (len(boxes) and boxes_meeting(others, boxes).any()):
        yield Conflict(ConflictType.ChunksUpdatedInUpdatedArray, path, is_linked=True)


def _held_by(boxes: Boxes, coordinates: Coordinates) -> Bools:
    is_inside = np.zeros(len(coordinates), np.bool_)
    for box in boxes:
        is_inside |= ((box[:, 0] <= coordinates) & (coordinates < box[:, 1])).all(axis=1)
    return is_inside


def _deletes(sides: _Sides) -> Iterator[Conflict]:
    deleted, theirs = sides.changes.deleted, sides.theirs
    if not deleted:
        return
    with_chunks = {node for node, chunks in theirs.updated_chunks.items() if len(chunks)}
    arrays = _among(deleted, theirs.updated_arrays) | (deleted.keys() & with_chunks)
    groups = _among(deleted, theirs.updated_groups)
    # Somebody put another node in the place of one that we deleted.
    replaced = _replaced_nodes(sides)
    arrays |= {node for node in replaced if deleted[node].is_array}
    groups |= replaced - arrays
    for path in sorted(deleted[node].path for node in arrays):
        yield Conflict(ConflictType.DeleteOfUpdatedArray, path)
    filled = _filled_groups(sides)
    for path in sorted({deleted[node].path for node in groups} | filled.keys()):
        kind = ConflictType.DeleteOfUpdatedGroup
        yield Conflict(kind, path, new_nodes=sorted(filled.get(path, ())))


def _replaced_nodes(sides: _Sides) -> set[NodeId]:
    """Find nodes that both sides deleted, where they created others instead."""
    deleted = sides.changes.deleted
    by_path = {node.path: node_id for node_id, node in deleted.items()}
    rows = rows_of_paths(sides.their_nodes, by_path)
    there = {path: _id_at(sides.their_nodes, row) for path, row in rows.items()}
    return {by_path[path] for path, node in there.items() if node not in deleted}


def _filled_groups(sides: _Sides) -> dict[str, list[str]]:
    """Find groups that we deleted and in which they created nodes, with those nodes.

    Where they deleted the group as well and made another, their nodes lie in that one.
    """
    deleted = sides.changes.deleted
    still_there = {
        path
        for path, row in rows_of_paths(
            sides.their_nodes, [node.path for node in deleted.values() if not node.is_array]
        ).items()
        if _id_at(sides.their_nodes, row) in deleted
    }
    filled: dict[str, list[str]] = {}
    if still_there:
        for path in _their_new_paths(sides):
            nearest = next(
                (ancestor for ancestor in ancestors(path) if ancestor in still_there), None
            )
            if nearest is not None:
                filled.setdefault(nearest, []).append(path)
    return filled


# -- nodes -----------------------------------------------------------------------------------


def _their_new_paths(sides: _Sides) -> list[str]:
    new = np.concatenate([sides.theirs.new_groups, sides.theirs.new_arrays])
    rows = rows_of_ids(sides.their_nodes, new)
    return sides.their_nodes.paths.take(rows).to_strings()


def _id_at(nodes: NodeTable, row: int) -> NodeId:
    return NodeId(nodes.ids[row].tobytes())


def _paths_of(nodes: NodeTable, ids: Collection[NodeId]) -> list[str]:
    rows = rows_of_ids(nodes, id_rows(NodeId, list(ids)))
    return nodes.paths.take(rows).to_strings()
