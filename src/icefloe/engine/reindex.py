"""Relabel the chunks of an array: references move, bytes stay where they are."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from operator import index

import numpy as np

from icefloe.engine.chunks import chunk_tables, require_in_grid
from icefloe.engine.nodes import require_array
from icefloe.engine.paths import check_path
from icefloe.engine.session import SessionState
from icefloe.engine.zarr_metadata import chunk_grid_name
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.chunk_table import ChunkTable, Coordinates, concat_tables, sort_keys
from icefloe.format.columns import Ints
from icefloe.format.node_table import Node

type Relabel = Callable[[Iterable[int]], Iterable[int] | None]
"""From the coordinates of a chunk to others; `None` for a chunk that stays out of it."""


async def shift_array(session: SessionState, path: str, offset: Iterable[int]) -> None:
    """Move all chunks of an array by a number of chunks along each dimension.

    Chunks that would leave the grid are dropped; positions that no chunk moves to become empty.
    """
    node, table = await _all_refs(session, path)
    steps = _checked_offset(node, offset)
    moved = table.coordinates.astype(np.int64) + np.array(steps, np.int64)
    assert node.array is not None
    inside = ((moved >= 0) & (moved < np.array(node.array.num_chunks, np.int64))).all(axis=1)
    landed = _relabelled(table, np.flatnonzero(inside), moved[inside])
    _put(session, node, landed, _not_in(table.coordinates, landed.coordinates))


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
        left = _not_in(table.coordinates, landed.coordinates)
        empty = [not _names_chunk(table, backward(old)) for old in left.tolist()]
        vacated = np.concatenate([vacated, left[np.array(empty, np.bool_)]])
    _put(session, node, landed, vacated)


def _emptied(session: SessionState, node: Node) -> Coordinates:
    """Give the positions within the grid that this session made empty."""
    assert node.array is not None
    grid = np.array(node.array.num_chunks, np.uint32)
    settled = session.changes.settled(node.id)
    if settled is None:
        return np.empty((0, len(grid)), np.uint32)
    return settled.deleted[(settled.deleted < grid).all(axis=1)]


async def _all_refs(session: SessionState, path: str) -> tuple[Node, ChunkTable]:
    session.require_writable()
    node = require_array(session, check_path(path))
    _require_regular(node)
    assert node.array is not None
    tables = [table async for table in chunk_tables(session, node)]
    return node, concat_tables(tables or [ChunkTable.empty(len(node.array.num_chunks))])


def _require_regular(node: Node) -> None:
    name = chunk_grid_name(node.user_data, node.path)
    if name != "regular":
        raise InvalidInputError(
            f"the chunks of {node.path} cannot change places: its chunk grid is {name!r}, and "
            "only in a regular grid all chunks have the same shape",
            ErrorKind.INVALID_ARRAY_METADATA,
            path=node.path,
        )


def _checked_offset(node: Node, offset: Iterable[int]) -> list[int]:
    assert node.array is not None
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
    wanted: Sequence[int] = [int(number) for number in index]
    return len(wanted) == table.dimensions and table.row_of(wanted) is not None


def _relabelled(table: ChunkTable, rows: Ints, targets: Ints) -> ChunkTable:
    return replace(table.take(rows), coordinates=targets.astype(np.uint32)).sorted()


def _not_in(coordinates: Coordinates, others: Coordinates) -> Coordinates:
    mine, theirs = sort_keys(coordinates, others)
    return coordinates[~np.isin(mine, theirs)]


def _put(session: SessionState, node: Node, landed: ChunkTable, vacated: Coordinates) -> None:
    with session.changes.writing() as changes:
        array = changes.array(node.id, landed.dimensions)
        if len(landed):
            array.put_table(landed)
        if len(vacated):
            array.delete_many(vacated)
