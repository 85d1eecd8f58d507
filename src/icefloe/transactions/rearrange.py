"""Move nodes and shift the chunks of arrays: references move, bytes stay where they are.

A session remembers its moves in the order in which they were made. A log has one entry for each
node that ends elsewhere, however it came there.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import index

import numpy as np

from icefloe.errors import (
    AlreadyExistsError,
    ErrorKind,
    InvalidInputError,
    NodeNotFoundError,
    ReadOnlyError,
    SessionStateError,
)
from icefloe.format.chunk_table import ChunkTable, Coordinates, are_among, concat_tables
from icefloe.format.columns import Ints
from icefloe.format.ids import NodeId, ids_of_rows
from icefloe.format.nodes import ArrayNode, Node, NodeTable
from icefloe.format.paths import check_path, is_below, parent_path, prefix_below
from icefloe.format.transaction_log import Move
from icefloe.records import replace
from icefloe.transactions.chunks import chunk_tables, require_in_grid
from icefloe.transactions.conflicts import ConflictType
from icefloe.transactions.nodes import chunk_grid_name, require_array
from icefloe.transactions.session import SessionMode, SessionState
from icefloe.transactions.tree import renamed


def move(session: SessionState, source: str, target: str) -> None:
    """Move a node, and all nodes below it, to another path.

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
    if isinstance(group, ArrayNode):
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
    return tuple(sorted(moves, key=lambda move: move.target.split("/")))


def _keys(nodes: NodeTable) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    keys: np.ndarray[tuple[int], np.dtype[np.uint64]] = (
        np.ascontiguousarray(nodes.ids).view(np.uint64).ravel()
    )
    return keys


def find_move_faults(
    base: NodeTable, theirs: NodeTable, moves: Iterable[tuple[str, str]]
) -> Iterator[tuple[ConflictType, str]]:
    """Yield why moves made on `base` would mean something else on another tree.

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
    meant, present = base.find(source), theirs.find(source)
    if meant is None or present is None or meant.id != present.id:
        return ConflictType.MoveOperationCannotBeRebased, source
    if _is_taken(theirs, target):
        return ConflictType.NewNodeConflictsWithExistingNode, target
    parent = parent_path(target)
    group = None if parent is None else theirs.find(parent)
    if group is None or isinstance(group, ArrayNode):
        return ConflictType.NewNodeInInvalidGroup, parent or target
    return None


def _is_taken(nodes: NodeTable, path: str) -> bool:
    """Return whether there is a node at a path, or below it without a group of its own."""
    below = prefix_below(path).encode()
    return nodes.row_of(path) is not None or any(
        other.startswith(below) for other in nodes.paths.to_list()
    )


type Relabel = Callable[[Iterable[int]], Iterable[int] | None]
"""From the coordinates of a chunk to others; `None` for a chunk that stays out of it."""


async def shift_array(session: SessionState, path: str, offset: Iterable[int]) -> None:
    """Move all chunks of an array by a number of chunks along each dimension.

    Chunks that would leave the grid are dropped; positions that no chunk moves to become empty.
    """
    node, table = await _all_refs(session, path)
    steps = _checked_offset(node, offset)
    moved = table.coordinates.astype(np.int64) + np.array(steps, np.int64)
    inside = ((moved >= 0) & (moved < np.array(node.array.num_chunks, np.int64))).all(axis=1)
    landed = _relabelled(table, np.flatnonzero(inside), moved[inside])
    left = table.coordinates[~are_among(table.coordinates, landed.coordinates)]
    _put(session, node, landed, left)


async def move_stored(
    session: SessionState,
    stored: SessionState,
    path: str,
    moved: Callable[[Ints], Ints],
    taken: Coordinates | None = None,
) -> None:
    """Move the chunks that an array has in one session to other positions, in another session.

    `moved` returns the new coordinates of chunks, no two of them alike. Positions that are taken
    keep what the other session has there, and get nothing.
    """
    session.require_writable()
    node = require_array(session, path)
    table = await _table_of(stored, require_array(stored, path))
    targets = moved(table.coordinates.astype(np.int64))
    rows = np.flatnonzero((targets != table.coordinates).any(axis=1))
    left = table.coordinates[rows]
    landed = _relabelled(table, rows, targets[rows])
    kept = table.coordinates[:0] if taken is None else taken
    landed = landed.take(np.flatnonzero(~are_among(landed.coordinates, kept)))
    left = left[~are_among(left, landed.coordinates) & ~are_among(left, kept)]
    _put(session, node, landed, left)


async def reindex_array(
    session: SessionState, path: str, forward: Relabel, backward: Relabel | None = None
) -> None:
    """Relabel the chunks of an array by a function from old to new coordinates.

    Where `forward` gives `None`, the chunk is not copied anywhere. Of several chunks that go to
    one place, the last in the order of coordinates wins. A position to which nothing goes keeps
    its chunk; with `backward`, the function from new to old coordinates, only if that names a
    chunk that existed. Positions that this session emptied go along like chunks, and after
    them. Nothing changes if a function fails or leaves the grid.
    """
    node, table = await _all_refs(session, path)
    rows: dict[tuple[int, ...], int] = {}
    for row, old in enumerate(table.coordinates.tolist()):
        new = forward(old)
        if new is not None:
            rows[_checked_index(node, new)] = row
    holes: dict[tuple[int, ...], None] = {}
    for old in _emptied(session, node).tolist():
        new = forward(old)
        if new is not None:
            holes[_checked_index(node, new)] = None
            rows.pop(_checked_index(node, new), None)
    targets = np.array(list(rows), np.int64).reshape(len(rows), table.dimensions)
    landed = _relabelled(table, np.array(list(rows.values()), np.int64), targets)
    vacated = np.array(list(holes), np.uint32).reshape(len(holes), table.dimensions)
    if backward is not None:
        left = table.coordinates[~are_among(table.coordinates, landed.coordinates)]
        empty = [not _names_chunk(table, backward(old)) for old in left.tolist()]
        vacated = np.concatenate([vacated, left[np.array(empty, np.bool_)]])
    _put(session, node, landed, vacated)


def _emptied(session: SessionState, node: ArrayNode) -> Coordinates:
    """Return the positions within the grid that this session made empty."""
    grid = np.array(node.array.num_chunks, np.uint32)
    settled = session.changes.settled(node.id)
    if settled is None:
        return np.empty((0, len(grid)), np.uint32)
    return settled.deleted[(settled.deleted < grid).all(axis=1)]


async def _all_refs(session: SessionState, path: str) -> tuple[ArrayNode, ChunkTable]:
    session.require_writable()
    node = require_array(session, check_path(path))
    _require_regular(node)
    return node, await _table_of(session, node)


async def _table_of(session: SessionState, node: ArrayNode) -> ChunkTable:
    tables = [table async for table in chunk_tables(session, node)]
    return concat_tables(tables or [ChunkTable.empty(len(node.array.num_chunks))])


def _require_regular(node: Node) -> None:
    name = chunk_grid_name(node.user_data, node.path)
    if name != "regular":
        raise InvalidInputError(
            f"the chunks of {node.path} cannot change places: its chunk grid is {name!r}, and "
            "only in a regular grid all chunks have the same shape",
            ErrorKind.INVALID_ARRAY_METADATA,
            path=node.path,
        )


def _checked_offset(node: ArrayNode, offset: Iterable[int]) -> list[int]:
    try:
        steps = [index(step) for step in offset]
    except TypeError:
        raise InvalidInputError(
            f"the chunks of {node.path} are shifted by whole numbers, a number for each dimension",
            ErrorKind.INVALID_CHUNK_INDEX,
            path=node.path,
        ) from None
    dimensions = len(node.array.num_chunks)
    if len(steps) != dimensions:
        raise InvalidInputError(
            f"{node.path} has {dimensions} dimensions, so its chunks are shifted by as many "
            f"numbers, not by {len(steps)}",
            ErrorKind.INVALID_CHUNK_INDEX,
            path=node.path,
        )
    # Beyond the grid is beyond the grid: this keeps the sums within 64 bits.
    return [
        max(-count, min(count, step))
        for step, count in zip(steps, node.array.num_chunks, strict=True)
    ]


def _checked_index(node: Node, index: Iterable[int]) -> tuple[int, ...]:
    checked = tuple(_whole(node, number) for number in index)
    require_in_grid(node, checked)
    return checked


def _whole(node: Node, number: object) -> int:
    if isinstance(number, int | np.integer):
        return int(number)
    raise InvalidInputError(
        f"a chunk of {node.path} cannot go to {number!r}: coordinates are whole numbers",
        ErrorKind.INVALID_CHUNK_INDEX,
        path=node.path,
    )


def _names_chunk(table: ChunkTable, index: Iterable[int] | None) -> bool:
    if index is None:
        return False
    numbers: Sequence[int] = [int(number) for number in index]
    return len(numbers) == table.dimensions and table.row_of(numbers) is not None


def _relabelled(table: ChunkTable, rows: Ints, targets: Ints) -> ChunkTable:
    return replace(table.take(rows), coordinates=targets.astype(np.uint32)).sorted()


def _put(session: SessionState, node: Node, landed: ChunkTable, vacated: Coordinates) -> None:
    with session.changes.writing() as changes:
        array = changes.array(node.id, landed.dimensions)
        if len(landed):
            array.put_table(landed)
        if len(vacated):
            array.delete_many(vacated)
