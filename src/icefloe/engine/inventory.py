"""What a session holds: nodes, which chunks exist, and how they are kept."""

from collections.abc import AsyncIterator, Sequence
from typing import Final

import numpy as np

from icefloe.engine.chunks import chunk_tables, find_ref
from icefloe.engine.nodes import require_array, require_node
from icefloe.engine.paths import ROOT, check_path
from icefloe.engine.session import SessionState
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.chunk_table import (
    ChunkKind,
    ChunkTable,
    InlineChunk,
    NativeChunk,
    VirtualChunk,
)
from icefloe.format.ids import NodeId
from icefloe.storage.chunk_type import ChunkType

_RELATIVE: Final = "vcc://"
"""What locations begin with that name a container."""


async def node_id(session: SessionState, path: str) -> NodeId:
    """Give the id that a node keeps for life."""
    return require_node(session, check_path(path)).id


async def chunk_type(session: SessionState, path: str, index: Sequence[int]) -> ChunkType:
    """Say how a chunk is kept; where an array has no chunk, that it has none."""
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
) -> AsyncIterator[tuple[int, ...]]:
    """Walk the coordinates of all chunks of an array; so many at a time become objects."""
    if batch_size < 1:
        raise InvalidInputError(
            f"batch_size must be at least 1, got {batch_size}", ErrorKind.INVALID_CONFIG
        )
    node = require_array(session, check_path(path))
    async for table in chunk_tables(session, node):
        for first in range(0, len(table), batch_size):
            for row in table.coordinates[first : first + batch_size].tolist():
                yield tuple(row)


async def virtual_locations(session: SessionState) -> list[str]:
    """List where the virtual chunks of all arrays lie: one entry for each chunk.

    Names of containers are replaced by where those are, as far as they are known.
    """
    found: list[str] = []
    for node in list(session.tree.below(ROOT)):
        if node.array is not None:
            async for table in chunk_tables(session, node):
                found += _locations(table)
    places = {one: _absolute(session, one) for one in set(found) if one.startswith(_RELATIVE)}
    return [places.get(one, one) for one in found] if places else found


def _absolute(session: SessionState, location: str) -> str:
    try:
        return session.context.virtual.absolute(location)
    except InvalidInputError:
        return location


def _locations(table: ChunkTable) -> list[str]:
    rows = np.flatnonzero(table.kinds == ChunkKind.VIRTUAL)
    return table.locations.take(table.targets[rows]).to_strings() if len(rows) else []
