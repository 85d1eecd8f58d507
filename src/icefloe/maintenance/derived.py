"""References of one repository in another: the same chunks, by manifests alone.

Chunk objects of the source become virtual chunks of the target, below a prefix that the target's
configuration names. Virtual chunks stay what they are, and inline chunks are copied. References
are columns from their manifests to the new ones.
"""

from collections.abc import AsyncIterator, Container

import numpy as np

from icefloe.errors import InternalError
from icefloe.format.chunk_table import (
    ChunkKind,
    ChunkTable,
    Coordinates,
    are_among,
    concat_tables,
    equal_rows,
)
from icefloe.format.columns import Bools, Bytes, BytesColumn, concat_bytes
from icefloe.format.ids import ManifestId, encode_ids
from icefloe.format.nodes import ArrayNode, ManifestRef
from icefloe.records import Record, replace
from icefloe.transactions.chunks import chunk_tables, delete_chunks, put_refs
from icefloe.transactions.nodes import put_metadata, require_array
from icefloe.transactions.session import SessionState

type ChunkBox = tuple[tuple[int, int], ...]
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


def changes_between(before: ChunkTable, after: ChunkTable) -> tuple[ChunkTable, Coordinates]:
    """Return the references to set, and the chunks to delete, to get from one table to another.

    >>> def inline(*texts: bytes) -> ChunkTable:
    ...     places = np.arange(len(texts), dtype=np.uint32).reshape(-1, 1)
    ...     return ChunkTable.inlined(places, BytesColumn.from_list(list(texts)))
    >>> changed, gone = changes_between(inline(b"a", b"b", b"c"), inline(b"a", b"x"))
    >>> changed.coordinates.tolist(), gone.tolist()
    ([[1]], [[2]])
    """
    is_kept = are_among(before.coordinates, after.coordinates)
    is_changed = ~are_among(after.coordinates, before.coordinates)
    common = np.flatnonzero(~is_changed)
    is_changed[common] = ~equal_rows(before.take(is_kept), after.take(common))
    return after.take(is_changed).compacted(), before.coordinates[~is_kept]


class ArrayPart(Record, eq=False):
    """The chunks of an array within a box, counted from the first chunk of that box."""

    session: SessionState
    """A session without changes."""
    node: ArrayNode
    box: ChunkBox

    async def tables(self, known: Container[ManifestId] = ()) -> AsyncIterator[ChunkTable]:
        """Walk the references, but for those of known manifests, one manifest at a time."""
        extents = np.array(self.box, np.uint32).reshape(-1, 2)
        for manifest, size_bytes in self.session.lookup(self.node).sizes():
            if manifest in known:
                continue
            file = await self.session.context.assets.load_manifest(manifest, size_bytes)
            table = file.table(self.node.id)
            part = table.within(extents) if len(table) else table
            if len(part):
                yield replace(part, coordinates=part.coordinates - extents[:, 0])

    async def table(self, known: Container[ManifestId] = ()) -> ChunkTable:
        """Return the references, but for those of known manifests, in one table."""
        return _joined(self.node, [table async for table in self.tables(known)])

    def begins_like(self, other: "ArrayPart") -> bool:
        """Return whether chunks have the same numbers in another part."""
        return [first for first, _ in self.box] == [first for first, _ in other.box]

    def shared_manifests(self, other: "ArrayPart") -> set[ManifestId]:
        """Return the manifests from which another part has the same references."""
        if self.node.id != other.node.id:
            return set()
        common = {*self.links} & {*other.links}
        if self.box == other.box:
            return {ref.id for ref in common}
        boxes = self.box, other.box
        return {
            ref.id
            for ref in common
            if ref.extents and all(_is_inside(ref.extents, box) for box in boxes)
        }

    @property
    def links(self) -> tuple[ManifestRef, ...]:
        """The manifests of the whole array."""
        return self.session.lookup(self.node).manifests


def _is_inside(inner: ChunkBox, outer: ChunkBox) -> bool:
    pairs = zip(inner, outer, strict=True)
    return all(low >= first and high <= last for (low, high), (first, last) in pairs)


def _joined(node: ArrayNode, tables: list[ChunkTable]) -> ChunkTable:
    return concat_tables(tables) if tables else ChunkTable.empty(len(node.array.num_chunks))


def _referred(table: ChunkTable, path: str, prefix: str | None) -> ChunkTable:
    """Return how the target refers to chunks of the source."""
    if prefix is not None:
        return as_virtual(table, prefix)
    if (table.kinds == ChunkKind.NATIVE).any():
        raise InternalError(f"{path} has chunks that are not to be referred to")
    return table


async def part_changes(before: ArrayPart, after: ArrayPart) -> tuple[ChunkTable, Coordinates]:
    """Return the references that another part has, and the chunks that it has no more."""
    shared = before.shared_manifests(after)
    return changes_between(await before.table(shared), await after.table(shared))


async def derive_array(
    part: ArrayPart, target: SessionState, metadata: bytes, prefix: str | None
) -> int:
    """Write an array whose chunks are a part of an array of the source; count them.

    `metadata` is the array's `zarr.json` in the target, where no such array may exist yet. Without
    a prefix, chunk objects of the source are an error.
    """
    path = part.node.path
    put_metadata(target, path, metadata)
    derived = require_array(target, path)
    count = 0
    async for table in part.tables():
        put_refs(target, derived, _referred(table, path, prefix))
        count += len(table)
    return count


async def update_array(
    before: ArrayPart | None,
    part: ArrayPart,
    target: SessionState,
    metadata: bytes,
    prefix: str | None,
) -> int:
    """Change an array that was derived to what `derive_array` would write; count the changes.

    `before` is the part that the array refers to now. Of manifests that both parts share, nothing
    is read. Without `before`, all references of the array are compared.
    """
    path = part.node.path
    if before is not None and before.begins_like(part):
        changed, gone = await part_changes(before, part)
        changed = _referred(changed, path, prefix)
    else:
        present = require_array(target, path)
        old = _joined(present, [table async for table in chunk_tables(target, present)])
        changed, gone = changes_between(old, _referred(await part.table(), path, prefix))
    put_metadata(target, path, metadata)
    derived = require_array(target, path)
    put_refs(target, derived, changed)
    if len(gone):
        delete_chunks(target, derived, gone)
    return len(changed) + len(gone)
