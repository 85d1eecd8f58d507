"""What a session holds: nodes, which chunks exist, and how they are kept."""

from collections.abc import AsyncIterator, Sequence

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.chunk_table import (
    ChunkKind,
    ChunkTable,
    Coordinates,
    InlineChunk,
    NativeChunk,
    VirtualChunk,
)
from icefloe.format.columns import BytesColumn, is_ascending
from icefloe.format.ids import NodeId
from icefloe.format.nodes import ArrayNode
from icefloe.format.paths import ROOT, check_path
from icefloe.storage.chunk_type import ChunkType
from icefloe.transactions import chunks
from icefloe.transactions.chunks import chunk_tables, find_ref
from icefloe.transactions.nodes import require_array, require_node
from icefloe.transactions.session import SessionState
from icefloe.virtual_chunks.grouping import LocationQuery, PlaceIndex, absolute_all, canonical_all


async def node_id(session: SessionState, path: str) -> NodeId:
    """Return the id that a node keeps for life."""
    return require_node(session, check_path(path)).id


async def chunk_type(session: SessionState, path: str, index: Sequence[int]) -> ChunkType:
    """Return how a chunk is stored, or that it does not exist."""
    node = require_array(session, check_path(path))
    match await find_ref(session, node, tuple(index)):
        case NativeChunk():
            return ChunkType.native
        case VirtualChunk():
            return ChunkType.virtual
        case InlineChunk():
            return ChunkType.inline
        case None:
            return ChunkType.uninitialized


async def chunk_coordinates(
    session: SessionState, path: str, batch_size: int
) -> AsyncIterator[list[tuple[int, ...]]]:
    """Walk the coordinates of all chunks of an array; this many at a time become objects."""
    _check_batch_size(batch_size)
    node = require_array(session, check_path(path))
    async for coordinates in chunks.chunk_coordinates(session, node):
        for first in range(0, len(coordinates), batch_size):
            yield _as_tuples(coordinates[first : first + batch_size])


def _as_tuples(coordinates: Coordinates) -> list[tuple[int, ...]]:
    if coordinates.shape[1] == 0:
        return [()] * len(coordinates)
    # Column by column: half the time of making a tuple of each row.
    return list(zip(*coordinates.T.tolist(), strict=True))


async def virtual_locations(session: SessionState) -> list[str]:
    """List where the virtual chunks of all arrays lie: one entry for each chunk.

    Names of containers are replaced by where those are, as far as they are known. Entries for
    one object are one string.
    """
    all_locations: list[str] = []
    async for table in _virtual_tables(session):
        targets, locations = _targets(table)
        texts = _absolute(session, locations).to_strings()
        if len(targets) == len(texts) and is_ascending(targets):
            all_locations += texts
        else:
            all_locations += np.array(texts, np.object_)[targets].tolist()
    return all_locations


async def virtual_location_batches(
    session: SessionState, query: LocationQuery, *, is_distinct: bool, batch_size: int
) -> AsyncIterator[BytesColumn]:
    """Walk over where virtual chunks lie, at most this many locations at a time.

    Each place once, or one entry for each chunk.
    """
    _check_batch_size(batch_size)
    seen = PlaceIndex()
    async for table in _virtual_tables(session):
        targets, locations = _targets(table)
        absolute = _absolute(session, locations)
        if is_distinct:
            absolute, _ = absolute.distinct()
            before = len(seen)
            rows: NDArray[np.integer] = np.flatnonzero(seen.numbers(absolute) >= before)
        else:
            rows = targets
        if not query.is_everything:
            rows = rows[query.chosen(canonical_all(absolute))[rows]]
        for first in range(0, len(rows), batch_size):
            yield absolute.take(rows[first : first + batch_size])


async def _virtual_tables(session: SessionState) -> AsyncIterator[ChunkTable]:
    for node in list(session.tree.below(ROOT)):
        if isinstance(node, ArrayNode):
            async for table in chunk_tables(session, node):
                if (table.kinds == ChunkKind.VIRTUAL).any():
                    yield table


def _targets(table: ChunkTable) -> tuple[NDArray[np.integer], BytesColumn]:
    """Return the location of each virtual chunk, as a row of those that are used."""
    is_virtual = table.kinds == ChunkKind.VIRTUAL
    targets = table.targets if is_virtual.all() else table.targets[is_virtual]
    is_used = np.zeros(len(table.locations), np.bool_)
    is_used[targets] = True
    if is_used.all():
        return targets, table.locations
    numbers = np.cumsum(is_used) - 1
    return numbers[targets], table.locations.take(np.flatnonzero(is_used))


def _absolute(session: SessionState, locations: BytesColumn) -> BytesColumn:
    return absolute_all(locations, session.context.virtual.resolver.absolute)


def _check_batch_size(batch_size: int) -> None:
    if batch_size < 1:
        raise InvalidInputError(
            f"batch_size must be at least 1, got {batch_size}", ErrorKind.INVALID_CONFIG
        )
