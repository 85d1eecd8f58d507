"""The references of one array in a manifest: all of them in columns, or single ones.

Single references are encoded and decoded one by one, where there are few. Native ranges are the
byte ranges of chunk objects without the coordinates of their chunks.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from struct import Struct
from typing import Final

import numpy as np
import zstandard
from numpy.typing import NDArray

from icefloe.errors import FormatError
from icefloe.format.chunk_table import (
    ChunkKind,
    ChunkRef,
    ChunkTable,
    InlineChunk,
    NativeChunk,
    VirtualChunk,
    sort_keys,
)
from icefloe.format.columns import (
    Bools,
    Bytes,
    BytesColumn,
    Ints,
    concat_bytes,
    framed_bytes,
    is_ascending,
    splits_of,
)
from icefloe.format.envelope import MAX_DIMENSIONS, check_dimensions
from icefloe.format.flatbuffer_reader import Tables, refuse
from icefloe.format.flatbuffer_scalar import ScalarTable, as_text
from icefloe.format.flatbuffer_writer import (
    OFFSET,
    Field,
    Link,
    RecordLayout,
    TableShape,
    Tail,
    Tree,
    number,
)
from icefloe.format.ids import ChunkId
from icefloe.format.locations import MAX_LOCATION_BYTES, expand_locations
from icefloe.records import Record


class NativeRanges(Record, eq=False):
    """A row for each chunk, in the order of coordinates."""

    first: tuple[int, ...]
    """The coordinates of the first chunk."""
    chunk_ids: Bytes
    offsets: NDArray[np.uint64]
    lengths: NDArray[np.uint64]

    @classmethod
    def of_size(cls, first: tuple[int, ...], count: int) -> "NativeRanges":
        """Make room for as many rows, to be filled."""
        ids = np.empty((count, ChunkId.WIDTH), np.uint8)
        return cls(first, ids, np.empty(count, np.uint64), np.empty(count, np.uint64))

    @classmethod
    def joined(cls, first: tuple[int, ...], parts: Sequence["NativeRanges"]) -> "NativeRanges":
        """Copy parts, one behind the other."""
        every = [cls.of_size(first, 0), *parts]
        return cls(
            first,
            np.concatenate([part.chunk_ids for part in every]),
            np.concatenate([part.offsets for part in every]),
            np.concatenate([part.lengths for part in every]),
        )

    @property
    def nbytes(self) -> int:
        """Return the memory that the columns take."""
        return self.chunk_ids.nbytes + self.offsets.nbytes + self.lengths.nbytes

    @property
    def words(self) -> NDArray[np.uint32]:
        """See ids as words, which are compared more quickly than bytes."""
        return self.chunk_ids.view(np.uint32)

    def __len__(self) -> int:
        return len(self.lengths)

    def equals(self, other: "NativeRanges") -> bool:
        """Compare all rows at once."""
        return (
            np.array_equal(self.lengths, other.lengths)
            and np.array_equal(self.offsets, other.offsets)
            and np.array_equal(self.words, other.words)
        )

    def differs(self, other: "NativeRanges") -> Bools:
        """Compare row by row with as many others."""
        is_other: Bools = (self.lengths != other.lengths) | (self.offsets != other.offsets)
        is_other |= (self.words != other.words).any(axis=1)
        return is_other

    def take(self, rows: slice | Ints) -> "NativeRanges":
        """Pick rows."""
        return NativeRanges(
            self.first, self.chunk_ids[rows], self.offsets[rows], self.lengths[rows]
        )


# -- writing many ----------------------------------------------------------------------------

_BLOCK_BITS: Final = 9
_BLOCK_ROWS: Final = 1 << _BLOCK_BITS
_IN_BLOCK: Final = _BLOCK_ROWS - 1
_BATCH_BLOCKS: Final = 64


class SharedBlobs(Record):
    """A field of strings or byte vectors, stored once and shared between rows."""

    slot: int
    column: BytesColumn
    rows: NDArray[np.integer]
    """For each table, its row in the column."""
    present: Bools | None = None


class BlockSection:
    """Tables with a vector of coordinates each, in blocks, so that compression sees them as alike.

    Rows come in blocks. A block holds its own vtables, then its tables, each with its short vector
    of coordinates right behind it, then the strings that no later block needs. So the offsets
    inside a block are small and repeat from block to block, each string is stored once however
    many rows share it, and a block can be written as soon as it is planned.
    """

    def __init__(
        self,
        coordinates: NDArray[np.uint32],
        fields: Sequence[Field] = (),
        blobs: Sequence[SharedBlobs] = (),
        *,
        coordinates_slot: int = 0,
    ) -> None:
        self.start = 0
        self.rows, dimensions = len(coordinates), check_dimensions(int(coordinates.shape[1]))
        self._coordinates = coordinates
        self._blobs = [
            _BlobsInBlocks(self, b) for b in blobs if b.present is None or b.present.any()
        ]
        links = [Field(b.slot, Link(b, b.rows), b.present) for b in self._blobs]
        self._layout = RecordLayout(self.rows, [Field(coordinates_slot, Tail()), *fields, *links])
        self._vector_at = self._layout.table_bytes
        unpadded = self._vector_at + 4 + 4 * dimensions
        self._stride = unpadded + -unpadded % 8
        self._plan_blocks()

    def _plan_blocks(self) -> None:
        count = -(-self.rows // _BLOCK_ROWS)
        block_rows = np.full(count, _BLOCK_ROWS, np.int64)
        if count:
            block_rows[-1] = self.rows - (count - 1) * _BLOCK_ROWS
        sizes = len(self._layout.vtables) + block_rows * self._stride
        for blobs in self._blobs:
            blobs.area_starts = sizes.copy()
            sizes += blobs.area_bytes
        paddings = -sizes % 8
        self._paddings: list[int] = paddings.tolist()
        self._block_starts = splits_of(sizes + paddings)
        for blobs in self._blobs:
            blobs.place(self._block_starts)

    def size_bytes(self) -> int:
        """Return the size."""
        return int(self._block_starts[-1])

    def positions(self, rows: NDArray[np.integer]) -> Ints:
        """Return the positions of the tables."""
        where: Ints = self._block_starts[rows >> _BLOCK_BITS] + (rows & _IN_BLOCK) * self._stride
        where += self.start + len(self._layout.vtables)
        return where

    def pieces(self) -> Iterator[Bytes]:
        """Write block after block; the tables of a batch of them are made at once."""
        count = len(self._paddings)
        block_bytes = _BLOCK_ROWS * self._stride
        for first in range(0, count, _BATCH_BLOCKS):
            last = min(first + _BATCH_BLOCKS, count)
            tables = self._records(first * _BLOCK_ROWS, min(last * _BLOCK_ROWS, self.rows))
            areas = [blobs.areas(first, last) for blobs in self._blobs]
            for block, padding in enumerate(self._paddings[first:last]):
                yield self._layout.vtables
                yield tables[block * block_bytes : (block + 1) * block_bytes]
                for area in areas:
                    yield area[block]
                if padding:
                    yield np.zeros(padding, np.uint8)

    def _records(self, first: int, last: int) -> Bytes:
        dimensions = self._coordinates.shape[1]
        tail: dict[str, tuple[object, int]] = {
            "count": ("<u4", self._vector_at),
            "coordinates": (("<u4", (dimensions,)), self._vector_at + 4),
        }
        rows = np.arange(first, last)
        where = self.positions(rows)
        records = np.zeros(len(rows), self._layout.record_dtype(self._stride, tail))
        vtables_at = self.start + self._block_starts[rows >> _BLOCK_BITS]
        self._layout.fill(records, where, vtables_at, first)
        records["count"] = dimensions
        if dimensions:
            records["coordinates"] = self._coordinates[first:last]
        return records.view(np.uint8)


class _BlobsInBlocks:
    """The blobs of one field, each behind the last block that needs it."""

    area_starts: Ints

    def __init__(self, tables: BlockSection, blobs: SharedBlobs) -> None:
        self._tables = tables
        self._column = blobs.column
        self.slot, self.rows, self.present = blobs.slot, blobs.rows, blobs.present
        last_use = np.full(len(blobs.column), -1, np.int64)
        if blobs.present is None:
            last_use[blobs.rows] = np.arange(len(blobs.rows))
        else:
            users = np.flatnonzero(blobs.present)
            last_use[blobs.rows[users]] = users
        block_of = last_use // _BLOCK_ROWS  # -1 stays -1: a blob that no row uses is left out
        count = -(-len(blobs.rows) // _BLOCK_ROWS)
        is_sorted = not len(block_of) or bool((block_of[1:] >= block_of[:-1]).all())
        self._order = None if is_sorted else np.argsort(block_of, kind="stable")
        in_order = block_of if self._order is None else block_of[self._order]
        self._block_of = in_order
        self._edges = np.searchsorted(in_order, np.arange(count + 1))
        lengths = blobs.column.lengths()
        ordered = lengths if self._order is None else lengths[self._order]
        self._ends = splits_of(framed_bytes(ordered))
        self.area_bytes = np.diff(self._ends[self._edges])

    def place(self, block_starts: Ints) -> None:
        """Fix where each blob lies, once the sizes of all blocks are known."""
        edge = self._ends[self._edges[:-1]]
        shift = block_starts[:-1] + self.area_starts - edge
        in_order = self._ends[:-1] + (shift[self._block_of] if len(shift) else 0)
        if self._order is None:
            self._where = in_order
        else:
            self._where = np.empty_like(in_order)
            self._where[self._order] = in_order

    def positions(self, rows: NDArray[np.integer]) -> Ints:
        """Return the positions of the blobs."""
        # Tables without the field carry numbers that mean nothing here: clipped, never used.
        where: Ints = self._where.take(rows, mode="clip") + self._tables.start
        return where

    def areas(self, first: int, last: int) -> list[Bytes]:
        """Lay out the blobs of a run of blocks, a piece per block."""
        begin, end = self._edges[first], self._edges[last]
        if self._order is None:
            column = self._column.slice(begin, end)
        else:
            column = self._column.take(self._order[begin:end])
        data = column.framed()
        cuts = self._ends[self._edges[first : last + 1]] - self._ends[begin]
        return [data[a:b] for a, b in pairwise(cuts)]


def reference_section(table: ChunkTable, compressed: BytesColumn | None) -> BlockSection:
    """Lay the references out for a file, their locations perhaps compressed."""
    masks = _masks(table.kinds)
    fields, blobs = list[Field](), list[SharedBlobs]()
    if ChunkKind.NATIVE in masks or ChunkKind.VIRTUAL in masks:
        has_range = table.kinds != ChunkKind.INLINE if ChunkKind.INLINE in masks else None
        fields.append(Field(RefSlot.OFFSET, table.offsets, has_range))
        fields.append(Field(RefSlot.LENGTH, table.lengths, has_range))
    if ChunkKind.NATIVE in masks:
        ids = table.chunk_ids[np.minimum(table.targets, len(table.chunk_ids) - 1)]
        fields.append(Field(RefSlot.CHUNK_ID, ids, masks[ChunkKind.NATIVE]))
    if table.last_modified is not None:
        fields.append(number(RefSlot.LAST_MODIFIED, table.last_modified))
    if ChunkKind.VIRTUAL in masks:
        slot, locations = RefSlot.LOCATION, table.locations
        if compressed is not None:
            slot, locations = RefSlot.COMPRESSED_LOCATION, compressed
        blobs.append(SharedBlobs(slot, locations, table.targets, masks[ChunkKind.VIRTUAL]))
    if ChunkKind.INLINE in masks:
        inline = masks[ChunkKind.INLINE]
        blobs.append(SharedBlobs(RefSlot.INLINE, table.inline, table.targets, inline))
    if table.etag_rows is not None:
        blobs.append(SharedBlobs(RefSlot.ETAG, table.etags, table.etag_rows, table.etag_rows >= 0))
    return BlockSection(table.coordinates, fields, blobs, coordinates_slot=RefSlot.INDEX)


def _masks(kinds: Bytes) -> dict[ChunkKind, NDArray[np.bool_] | None]:
    """Return a mask of references for each kind that occurs; None stands for all references."""
    counts = np.bincount(kinds, minlength=len(ChunkKind) + 1).tolist()
    return {
        kind: None if counts[kind] == len(kinds) else kinds == kind
        for kind in ChunkKind
        if counts[kind]
    }


def decode_table(refs: Tables, dictionary: bytes | None) -> ChunkTable:
    """Read references, with the dictionary of compressed locations if there is one."""
    coordinates = refs.vectors(RefSlot.INDEX, required=True).u32_matrix()
    if not is_ascending(sort_keys(coordinates)[0]):
        refuse("the references of an array are not sorted by their coordinates")
    ids, is_native = refs.optional_struct(RefSlot.CHUNK_ID, ChunkId.WIDTH)
    locations, location_rows, is_virtual = _decode_locations(refs, dictionary)
    is_virtual &= ~is_native
    inline = refs.blobs(RefSlot.INLINE)
    is_inline = inline.present & ~is_native & ~is_virtual
    if not (is_native | is_virtual | is_inline).all():
        refuse("a chunk reference is neither native, virtual nor inline")
    kinds = is_native * ChunkKind.NATIVE + is_virtual * ChunkKind.VIRTUAL
    kinds = (kinds + is_inline * ChunkKind.INLINE).astype(np.uint8)
    targets = location_rows
    lengths = refs.u64(RefSlot.LENGTH)
    if is_native.any():
        targets = np.where(is_native, np.cumsum(is_native) - 1, targets)
        ids = ids[is_native]
    else:
        ids = ids[:0]
    inline_bytes = BytesColumn.empty()
    if is_inline.any():
        inline_bytes, rows_held = inline.where(is_inline).stored()
        targets = targets.astype(np.uint32)
        targets[is_inline] = rows_held
        lengths[is_inline] = inline.lengths[is_inline]
    etags, etag_rows, last_modified = _decode_checksums(refs, is_virtual)
    return ChunkTable(
        coordinates,
        kinds,
        refs.u64(RefSlot.OFFSET),
        lengths,
        targets.astype(np.uint32, copy=False),
        chunk_ids=ids,
        locations=locations,
        inline=inline_bytes,
        etags=etags,
        etag_rows=etag_rows,
        last_modified=last_modified,
    )


def _decode_locations(
    refs: Tables, dictionary: bytes | None
) -> tuple[BytesColumn, NDArray[np.uint32], NDArray[np.bool_]]:
    """Return distinct locations, the one of each row, and which rows have one."""
    compressed = refs.blobs(RefSlot.COMPRESSED_LOCATION)
    plain = refs.blobs(RefSlot.LOCATION)
    if not compressed.present.any():
        if not plain.present.any():
            return BytesColumn.empty(), np.zeros(len(refs), np.uint32), plain.present
        column, rows = plain.distinct()
        column.check_text()
        return column, rows, plain.present
    if dictionary is None:
        raise FormatError("compressed locations without the dictionary to expand them")
    is_compressed = compressed.present
    if is_compressed.all():
        frames, rows = compressed.runs()
        expanded = expand_locations(frames, dictionary, charge=refs.buffer.charge)
        column, numbers = expanded.distinct()
        column.check_text()
        return column, numbers[rows], is_compressed
    return _decode_mixed(refs, dictionary)


def _decode_mixed(
    refs: Tables, dictionary: bytes
) -> tuple[BytesColumn, NDArray[np.uint32], NDArray[np.bool_]]:
    """Decode plain and compressed locations, or none, row by row kind: rare but valid."""
    compressed, plain = refs.blobs(RefSlot.COMPRESSED_LOCATION), refs.blobs(RefSlot.LOCATION)
    is_compressed, is_plain = compressed.present, plain.present & ~compressed.present
    frames, frame_rows = compressed.where(is_compressed).distinct()
    plain_column, plain_rows = plain.distinct()
    rows = plain_rows + np.uint32(len(frames))
    rows[is_compressed] = frame_rows
    expanded = expand_locations(frames, dictionary, charge=refs.buffer.charge)
    column = concat_bytes([expanded, plain_column])
    column.check_text()
    return column, rows, is_compressed | is_plain


def _decode_checksums(
    refs: Tables, is_virtual: Bools
) -> tuple[BytesColumn, NDArray[np.int32] | None, NDArray[np.uint32] | None]:
    """Return the distinct etags, the number of each row (-1 for none), and the times."""
    if not is_virtual.any():
        return BytesColumn.empty(), None, None
    etags, etag_rows = BytesColumn.empty(), None
    blobs = refs.blobs(RefSlot.ETAG).where(is_virtual)
    if blobs.present.any():
        etags, rows = blobs.distinct()
        etags.check_text()
        etag_rows = np.full(len(refs), -1, np.int32)
        etag_rows[is_virtual] = np.where(blobs.present, rows.astype(np.int32), np.int32(-1))
    modified = np.where(is_virtual, refs.u32(RefSlot.LAST_MODIFIED), np.uint32(0))
    return etags, etag_rows, modified if modified.any() else None


class RefSlot:
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
    for row, (link, coordinates) in enumerate(zip(fields, table.coordinates.tolist(), strict=True)):
        match table.ref(row):
            case NativeChunk(chunk, offset, length):
                position = tree.table(_NATIVE, offset, length, chunk.raw, field=link)
                where = position + _NATIVE.at[RefSlot.INDEX]
            case VirtualChunk() as ref:
                where = _write_virtual(tree, ref, link)
            case InlineChunk(data):
                position = tree.table(_INLINE, field=link)
                where = position + _INLINE.at[RefSlot.INDEX]
                tree.blob(data, position + _INLINE.at[RefSlot.INLINE])
        tree.items(dimensions, index.pack(*coordinates), where)


def _write_virtual(tree: Tree, ref: VirtualChunk, field: int) -> int:
    """Add a virtual reference; give the field in which its coordinates go."""
    shape = _VIRTUAL if ref.etag is None else _VIRTUAL_WITH_ETAG
    position = tree.table(shape, ref.offset, ref.length, ref.last_modified or 0, field=field)
    tree.blob(ref.location.encode(), position + shape.at[RefSlot.LOCATION])
    if ref.etag is not None:
        tree.blob(ref.etag.encode(), position + shape.at[RefSlot.ETAG])
    return position + shape.at[RefSlot.INDEX]


def read_index(table: ScalarTable) -> tuple[int, ...]:
    """Read the coordinates of a reference."""
    raw = table.items(RefSlot.INDEX, 4, 4)
    if raw is None:
        refuse("a required field is missing")
    if len(raw) > 4 * MAX_DIMENSIONS:
        refuse(f"an array of {len(raw) // 4} dimensions; the most is {MAX_DIMENSIONS}")
    if np.little_endian:
        return tuple(memoryview(raw).cast("I"))
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

    def __init__(self, data: bytes | memoryview) -> None:
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
        position = field + _WORD(data, field)[0]
        if position & 3 or position > self._size - 4:
            return None
        shape = self._shapes.get(position - _DISTANCE(data, position)[0])
        if shape is None:
            return None
        table_bytes, chunk, offset, length = shape
        if position + table_bytes > self._size or (position + length) & 7:
            return None
        first = 0
        if offset:  # else it is not stored, as usual for what is 0
            if (position + offset) & 7:
                return None
            first = _LONG(data, position + offset)[0]
        raw = data[position + chunk : position + chunk + ChunkId.WIDTH]
        return NativeChunk(ChunkId(bytes(raw)), first, _LONG(data, position + length)[0])


def _read_location(table: ScalarTable, dictionary: bytes | None) -> str | None:
    frame = table.optional_blob(RefSlot.COMPRESSED_LOCATION)
    if frame is None:
        return table.optional_text(RefSlot.LOCATION)
    if dictionary is None:
        raise FormatError("compressed locations without the dictionary to expand them")
    try:
        if zstandard.frame_content_size(frame) > MAX_LOCATION_BYTES:
            raise FormatError(f"a location expands beyond the limit of {MAX_LOCATION_BYTES} bytes")
        decompressor = zstandard.ZstdDecompressor(
            dict_data=zstandard.ZstdCompressionDict(dictionary)
        )
        return as_text(decompressor.decompress(frame, MAX_LOCATION_BYTES))
    except zstandard.ZstdError as error:
        raise FormatError(f"a compressed location is damaged: {error}") from error
