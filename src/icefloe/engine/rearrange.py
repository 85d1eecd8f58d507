"""Moves of nodes: only the paths change, so no chunk and no manifest is written.

A session remembers its moves in the order in which they were made. A log has one entry for each
node that ends elsewhere, however it came there.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from icefloe.engine.conflicts import ConflictType
from icefloe.engine.paths import check_path, is_below, parent_path, prefix_below
from icefloe.engine.session import SessionMode, SessionState
from icefloe.engine.tree import renamed
from icefloe.errors import (
    AlreadyExistsError,
    ErrorKind,
    NodeNotFoundError,
    ReadOnlyError,
    SessionStateError,
)
from icefloe.format.ids import NodeId, ids_of_rows
from icefloe.format.node_table import NodeTable
from icefloe.format.transaction_log import Move


def move(session: SessionState, source: str, target: str) -> None:
    """Give a node, and all below it, another path.

    Nothing is overwritten, and no group is created on the way.
    """
    check_path(source)
    check_path(target)
    _require_rearrange(session)
    tree = session.tree
    if tree.find(source) is None:
        raise NodeNotFoundError(f"cannot move {source}: there is no group or array", path=source)
    if target == source or is_below(target, source):
        raise SessionStateError(
            f"cannot move {source} to {target}: a node cannot lie within itself",
            ErrorKind.MOVE_INTO_SELF_OR_DESCENDANT,
            path=source,
        )
    if tree.paths_below(target):
        raise AlreadyExistsError(
            f"cannot move {source} to {target}, where there is a node already: "
            "choose another path, or delete that node in a writable session first",
            ErrorKind.MOVE_WONT_OVERWRITE,
            path=target,
        )
    _require_group(session, target)
    session.move(source, target)


def _require_rearrange(session: SessionState) -> None:
    if session.mode is SessionMode.readonly:
        raise ReadOnlyError(
            "this session is read-only: open another with repo.rearrange_session(branch)",
            ErrorKind.READ_ONLY_SESSION,
        )
    if session.mode is not SessionMode.rearrange:
        raise SessionStateError(
            "nodes can only be moved in a session of their own: commit this one, then open "
            "another with repo.rearrange_session(branch)",
            ErrorKind.NON_REARRANGE_SESSION,
        )


def _require_group(session: SessionState, target: str) -> None:
    parent = parent_path(target)
    assert parent is not None  # the root is within nothing, and no node can move onto it
    group = session.tree.find(parent)
    if group is None:
        raise SessionStateError(
            f"cannot move a node to {target}: there is no group {parent}; create it in a "
            "writable session first",
            ErrorKind.MOVE_DESTINATION_PARENT_MISSING,
            path=target,
        )
    if group.array is not None:
        raise SessionStateError(
            f"cannot move a node to {target}: {parent} is an array, and only groups hold nodes",
            ErrorKind.MOVE_DESTINATION_PARENT_NOT_GROUP,
            path=target,
        )


def moves_made(session: SessionState) -> tuple[Move, ...]:
    """List the nodes of the base snapshot that the session moved, as a log has them."""
    if not session.changes.moves:
        return ()
    return net_moves(session.snapshot.nodes, session.base.table)


def net_moves(before: NodeTable, after: NodeTable) -> tuple[Move, ...]:
    """Compare the paths of the same nodes before and after moves; ordered by target."""
    old, new = np.argsort(_keys(before)), np.argsort(_keys(after))
    moves = [
        Move(source, target, node, is_array)
        for source, target, node, is_array in zip(
            before.paths.take(old).to_strings(),
            after.paths.take(new).to_strings(),
            ids_of_rows(NodeId, before.ids[old]),
            before.is_array[old].tolist(),
            strict=True,
        )
        if source != target
    ]
    return tuple(sorted(moves, key=lambda one: one.target.split("/")))


def _keys(nodes: NodeTable) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    keys: np.ndarray[tuple[int], np.dtype[np.uint64]] = (
        np.ascontiguousarray(nodes.ids).view(np.uint64).ravel()
    )
    return keys


def find_move_faults(
    base: NodeTable, theirs: NodeTable, moves: Iterable[tuple[str, str]]
) -> Iterator[tuple[ConflictType, str]]:
    """Say what keeps moves, made on `base`, from meaning the same on another tree.

    The first fault ends the search: what comes after it builds on a move that did not happen.
    """
    for source, target in moves:
        fault = _move_fault(base, theirs, source, target)
        if fault is not None:
            yield fault
            return
        base, theirs = renamed(base, source, target), renamed(theirs, source, target)


def _move_fault(
    base: NodeTable, theirs: NodeTable, source: str, target: str
) -> tuple[ConflictType, str] | None:
    meant, found = base.find(source), theirs.find(source)
    if meant is None or found is None or meant.id != found.id:
        return ConflictType.MoveOperationCannotBeRebased, source
    if _is_taken(theirs, target):
        return ConflictType.NewNodeConflictsWithExistingNode, target
    parent = parent_path(target)
    group = None if parent is None else theirs.find(parent)
    if group is None or group.array is not None:
        return ConflictType.NewNodeInInvalidGroup, parent or target
    return None


def _is_taken(nodes: NodeTable, path: str) -> bool:
    """Say whether there is a node at a path, or below it without a group of its own."""
    below = prefix_below(path).encode()
    return nodes.row_of(path) is not None or any(
        other.startswith(below) for other in nodes.paths.to_list()
    )
