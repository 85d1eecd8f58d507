"""References of one repository in another: the same chunks, by manifests alone.

Chunk objects of the source become virtual chunks of the target, below a prefix that the target's
configuration names. Virtual chunks stay what they are, and inline chunks are copied. References
are columns from their manifests to the new ones.
"""

from collections.abc import Sequence

import numpy as np

from icefloe.errors import InternalError
from icefloe.format.chunk_table import ChunkKind, ChunkTable
from icefloe.format.columns import Bools, Bytes, BytesColumn, concat_bytes
from icefloe.format.ids import encode_ids
from icefloe.records import replace
from icefloe.transactions.chunks import chunk_tables, put_refs
from icefloe.transactions.nodes import put_metadata, require_array
from icefloe.transactions.session import SessionState

type ChunkBox = Sequence[tuple[int, int]]
"""First chunk, and first chunk after, along each dimension."""


def as_virtual(table: ChunkTable, prefix: str, rows: Bools | None = None) -> ChunkTable:
    """Refer to chunk objects as virtual chunks below a prefix: all of them, or only in some rows.

    >>> ids = np.zeros((1, 12), np.uint8)
    >>> table = ChunkTable.native(np.array([[0]], np.uint32), ids, np.array([8], np.uint64))
    >>> as_virtual(table, "vcc://source/").find([0]).location
    'vcc://source/00000000000000000000'
    """
    is_native = table.kinds == ChunkKind.NATIVE
    if rows is not None:
        is_native &= rows
    if not is_native.any():
        return table
    locations = _locations(table.chunk_ids, prefix)
    first = np.uint32(len(table.locations))
    return replace(
        table,
        kinds=np.where(is_native, np.uint8(ChunkKind.VIRTUAL), table.kinds),
        targets=np.where(is_native, table.targets + first, table.targets).astype(np.uint32),
        locations=concat_bytes([table.locations, locations]),
    ).compacted()


def _locations(ids: Bytes, prefix: str) -> BytesColumn:
    start = np.frombuffer(prefix.encode(), np.uint8)
    names = encode_ids(ids)
    letters = names.view(np.uint8).reshape(len(names), -1)
    texts = np.concatenate([np.broadcast_to(start, (len(names), len(start))), letters], axis=1)
    splits = np.arange(len(names) + 1, dtype=np.int64) * texts.shape[1]
    return BytesColumn(texts.ravel(), splits)


async def derive_array(
    source: SessionState,
    target: SessionState,
    path: str,
    metadata: bytes,
    box: ChunkBox,
    prefix: str | None,
) -> int:
    """Write an array whose chunks are those of a box of the source's array; count them.

    `metadata` is the array's `zarr.json` in the target, where no such array may exist yet. Without
    a prefix, chunk objects of the source are an error.
    """
    put_metadata(target, path, metadata)
    node, derived = require_array(source, path), require_array(target, path)
    extents = np.array(box, np.uint32).reshape(-1, 2)
    count = 0
    async for table in chunk_tables(source, node):
        part = table.within(extents)
        if len(part):
            moved = replace(part, coordinates=part.coordinates - extents[:, 0])
            if prefix is not None:
                moved = as_virtual(moved, prefix)
            elif (moved.kinds == ChunkKind.NATIVE).any():
                raise InternalError(f"{path} has chunks that are not to be referred to")
            put_refs(target, derived, moved)
            count += len(part)
    return count
