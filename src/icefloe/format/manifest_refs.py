"""Single chunk references of a manifest: written and read one by one, where there are few."""

from collections.abc import Sequence
from enum import IntEnum
from struct import Struct
from typing import Final

import numpy as np
import zstandard

from icefloe.errors import FormatError
from icefloe.format.chunk_table import (
    ChunkKind,
    ChunkRef,
    ChunkTable,
    InlineChunk,
    NativeChunk,
    VirtualChunk,
)
from icefloe.format.columns import BytesColumn
from icefloe.format.envelope import MAX_DIMENSIONS
from icefloe.format.flatbuffer_reader import refuse
from icefloe.format.flatbuffer_scalar import ScalarTable, as_text
from icefloe.format.flatbuffer_tree import OFFSET, TableShape, Tree
from icefloe.format.ids import ChunkId, id_rows
from icefloe.format.locations import MAX_LOCATION_BYTES


class RefSlot(IntEnum):
    """Slots of one reference."""

    INDEX = 0
    INLINE = 1
    OFFSET = 2
    LENGTH = 3
    CHUNK_ID = 4
    LOCATION = 5
    ETAG = 6
    LAST_MODIFIED = 7
    COMPRESSED_LOCATION = 8


_RANGE: Final = ((RefSlot.INDEX, OFFSET), (RefSlot.OFFSET, "Q"), (RefSlot.LENGTH, "Q"))
_NATIVE: Final = TableShape(*_RANGE, (RefSlot.CHUNK_ID, f"{ChunkId.WIDTH}s"))
_VIRTUAL: Final = TableShape(*_RANGE, (RefSlot.LOCATION, OFFSET), (RefSlot.LAST_MODIFIED, "I"))
_VIRTUAL_WITH_ETAG: Final = TableShape(
    *_RANGE, (RefSlot.LOCATION, OFFSET), (RefSlot.ETAG, OFFSET), (RefSlot.LAST_MODIFIED, "I")
)
_INLINE: Final = TableShape((RefSlot.INDEX, OFFSET), (RefSlot.INLINE, OFFSET))


def write_refs(tree: Tree, table: ChunkTable, field: int) -> None:
    """Add the references of an array, one by one."""
    dimensions = table.dimensions
    index = Struct(f"<{dimensions}I")
    fields = tree.links(len(table), field)
    for row, (each, coordinates) in enumerate(zip(fields, table.coordinates.tolist(), strict=True)):
        match table.ref(row):
            case NativeChunk(chunk, offset, length):
                at = tree.table(_NATIVE, offset, length, chunk.raw, field=each)
                where = at + _NATIVE.at[RefSlot.INDEX]
            case VirtualChunk() as ref:
                where = _write_virtual(tree, ref, each)
            case InlineChunk(data):
                at = tree.table(_INLINE, field=each)
                where = at + _INLINE.at[RefSlot.INDEX]
                tree.blob(data, at + _INLINE.at[RefSlot.INLINE])
        tree.items(dimensions, index.pack(*coordinates), where)


def _write_virtual(tree: Tree, ref: VirtualChunk, field: int) -> int:
    """Add a virtual reference; give the field in which its coordinates go."""
    shape = _VIRTUAL if ref.etag is None else _VIRTUAL_WITH_ETAG
    at = tree.table(shape, ref.offset, ref.length, ref.last_modified or 0, field=field)
    tree.blob(ref.location.encode(), at + shape.at[RefSlot.LOCATION])
    if ref.etag is not None:
        tree.blob(ref.etag.encode(), at + shape.at[RefSlot.ETAG])
    return at + shape.at[RefSlot.INDEX]


def read_index(table: ScalarTable) -> tuple[int, ...]:
    """Read the coordinates of a reference."""
    raw = table.items(RefSlot.INDEX, 4, 4)
    if raw is None:
        refuse("a required field is missing")
    if len(raw) > 4 * MAX_DIMENSIONS:
        refuse(f"an array of {len(raw) // 4} dimensions; the most is {MAX_DIMENSIONS}")
    return tuple(memoryview(raw).cast("I")) if _IS_LITTLE else _unpack(raw)


_IS_LITTLE: Final = np.little_endian


def _unpack(raw: bytes) -> tuple[int, ...]:
    return Struct(f"<{len(raw) // 4}I").unpack(raw)


def read_ref(table: ScalarTable, dictionary: bytes | None) -> ChunkRef:
    """Read what a reference points at."""
    if (chunk := table.optional_struct(RefSlot.CHUNK_ID, ChunkId.WIDTH)) is not None:
        return NativeChunk(
            ChunkId(chunk), table.number(RefSlot.OFFSET, "Q"), table.number(RefSlot.LENGTH, "Q")
        )
    if (location := _read_location(table, dictionary)) is not None:
        return VirtualChunk(
            location,
            table.number(RefSlot.OFFSET, "Q"),
            table.number(RefSlot.LENGTH, "Q"),
            table.optional_text(RefSlot.ETAG),
            table.number(RefSlot.LAST_MODIFIED, "I") or None,
        )
    if (data := table.optional_blob(RefSlot.INLINE)) is not None:
        return InlineChunk(data)
    return refuse("a chunk reference is neither native, virtual nor inline")


_NATIVE_FIELDS: Final = (
    (RefSlot.CHUNK_ID, ChunkId.WIDTH, 1),
    (RefSlot.OFFSET, 8, 8),
    (RefSlot.LENGTH, 8, 8),
)
_MOST_SHAPES: Final = 4096
_DISTANCE: Final = Struct("<i").unpack_from
_WORD: Final = Struct("<I").unpack_from
_LONG: Final = Struct("<Q").unpack_from


class NativeRefs:
    """Reads native references whose tables look like one that was read before.

    Nearly all tables of a manifest share a few vtables, so that checking them once is enough.
    What is new or odd is left to `read_ref`.
    """

    __slots__ = ("_data", "_shapes", "_size")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._size = len(data)
        self._shapes: dict[int, tuple[int, int, int, int]] = {}

    def learn(self, table: ScalarTable) -> None:
        """Note how a table looks that holds a native reference."""
        vtable, table_bytes, (chunk, offset, length) = table.shape(_NATIVE_FIELDS)
        if chunk and length and len(self._shapes) < _MOST_SHAPES:
            self._shapes[vtable] = table_bytes, chunk, offset, length

    def read(self, field: int) -> NativeChunk | None:
        """Read the reference that an item of a vector leads to, if its shape is known."""
        data = self._data
        at = field + _WORD(data, field)[0]
        if at & 3 or at > self._size - 4:
            return None
        shape = self._shapes.get(at - _DISTANCE(data, at)[0])
        if shape is None:
            return None
        table_bytes, chunk, offset, length = shape
        if at + table_bytes > self._size or (at + length) & 7:
            return None
        first = 0
        if offset:  # else it is not stored, as usual for what is 0
            if (at + offset) & 7:
                return None
            first = _LONG(data, at + offset)[0]
        raw = data[at + chunk : at + chunk + ChunkId.WIDTH]
        return NativeChunk(ChunkId(raw), first, _LONG(data, at + length)[0])


def _read_location(table: ScalarTable, dictionary: bytes | None) -> str | None:
    frame = table.optional_blob(RefSlot.COMPRESSED_LOCATION)
    if frame is None:
        return table.optional_text(RefSlot.LOCATION)
    if dictionary is None:
        raise FormatError("compressed locations without the dictionary to expand them")
    try:
        if zstandard.frame_content_size(frame) > MAX_LOCATION_BYTES:
            raise FormatError(f"a location expands beyond the limit of {MAX_LOCATION_BYTES} bytes")
        known = zstandard.ZstdDecompressor(dict_data=zstandard.ZstdCompressionDict(dictionary))
        return as_text(known.decompress(frame, MAX_LOCATION_BYTES))
    except zstandard.ZstdError as error:
        raise FormatError(f"a compressed location is damaged: {error}") from error


def table_of_refs(
    coordinates: Sequence[tuple[int, ...]], refs: Sequence[ChunkRef], dimensions: int
) -> ChunkTable:
    """Pack a few references, sorted by their coordinates, into columns."""
    chunks, locations, inline = list[ChunkId](), dict[str, int](), list[bytes]()
    etags, rows = dict[str, int](), list[tuple[int, int, int, int, int, int]]()
    for ref in refs:
        match ref:
            case NativeChunk(chunk, offset, length):
                rows.append((ChunkKind.NATIVE, offset, length, len(chunks), -1, 0))
                chunks.append(chunk)
            case VirtualChunk(location, offset, length, etag, modified):
                place = locations.setdefault(location, len(locations))
                etag_row = -1 if etag is None else etags.setdefault(etag, len(etags))
                row = (ChunkKind.VIRTUAL, offset, length, place, etag_row, modified or 0)
                rows.append(row)
            case InlineChunk(data):
                rows.append((ChunkKind.INLINE, 0, len(data), len(inline), -1, 0))
                inline.append(data)
    kinds, offsets, lengths, targets, etag_rows, modified_at = zip(*rows, strict=True)
    return ChunkTable(
        np.array(coordinates, np.uint32).reshape(len(rows), dimensions),
        np.array(kinds, np.uint8),
        np.array(offsets, np.uint64),
        np.array(lengths, np.uint64),
        np.array(targets, np.uint32),
        chunk_ids=id_rows(ChunkId, chunks),
        locations=BytesColumn.from_strings([*locations]),
        inline=BytesColumn.from_list(inline),
        etags=BytesColumn.from_strings([*etags]),
        etag_rows=np.array(etag_rows, np.int32) if etags else None,
        last_modified=np.array(modified_at, np.uint32) if any(modified_at) else None,
    )
