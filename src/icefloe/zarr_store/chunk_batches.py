"""The references of an array in batches of columns."""

from collections.abc import AsyncIterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.chunk_table import ChunkKind, ChunkTable
from icefloe.format.ids import encode_ids
from icefloe.transactions.chunks import chunk_tables
from icefloe.transactions.nodes import require_array
from icefloe.transactions.session import SessionState

type ChunkBatch = tuple[
    np.ndarray[tuple[int, int], np.dtype[np.uint32]],
    np.ndarray[tuple[int], np.dtype[np.uint8]],
    list[str],
    np.ndarray[tuple[int], np.dtype[np.uint64]],
    np.ndarray[tuple[int], np.dtype[np.uint64]],
    dict[int, bytes],
]
"""Coordinates, kinds, locations, offsets, lengths, and the bytes of rows that hold them."""


async def chunk_batches(
    session: SessionState, path: str, batch_size: int
) -> AsyncIterator[ChunkBatch]:
    """Walk the references of an array, at most `batch_size` at a time."""
    if batch_size < 1:
        raise InvalidInputError(
            f"batch_size must be at least 1, got {batch_size}", ErrorKind.INVALID_CONFIG
        )
    node = require_array(session, path)
    async for table in chunk_tables(session, node):
        for first in range(0, len(table), batch_size):
            yield _batch(table.take(slice(first, first + batch_size)))


def _batch(table: ChunkTable) -> ChunkBatch:
    rows: Any = (table.coordinates, table.kinds, table.offsets, table.lengths)
    coordinates, kinds, offsets, lengths = (np.ascontiguousarray(column) for column in rows)
    return coordinates, kinds, _locations(table), offsets, lengths, _inline(table)


def _locations(table: ChunkTable) -> list[str]:
    """Return the location of virtual chunks, the id of native ones, nothing for inline ones."""
    texts: NDArray[np.object_] = np.full(len(table), "", object)
    native = table.kinds == ChunkKind.NATIVE
    if native.any():
        used, numbers = np.unique(table.targets[native], return_inverse=True)
        ids = np.array(encode_ids(table.chunk_ids[used]).astype(str).tolist(), object)
        texts[native] = ids[numbers]
    virtual = table.kinds == ChunkKind.VIRTUAL
    if virtual.any():
        used, numbers = np.unique(table.targets[virtual], return_inverse=True)
        locations = np.array(table.locations.take(used.astype(np.int64)).to_strings(), object)
        texts[virtual] = locations[numbers]
    answer: list[str] = texts.tolist()
    return answer


def _inline(table: ChunkTable) -> dict[int, bytes]:
    rows = np.flatnonzero(table.kinds == ChunkKind.INLINE)
    values = table.inline.take(table.targets[rows].astype(np.int64)).to_list()
    return dict(zip(rows.tolist(), values, strict=True))
