"""Manifests: where the bytes of each chunk of some arrays are."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from operator import lt
from typing import Final

import numpy as np

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.chunk_table import (
    ChunkKind,
    ChunkRef,
    ChunkTable,
    Coordinates,
    NativeChunk,
    RowFinder,
    sort_keys,
)
from icefloe.format.columns import (
    Bytes,
    BytesColumn,
    Ints,
    concat_bytes,
    find_sorted,
    is_ascending,
)
from icefloe.format.envelope import BULK_LEVEL, FileType, decompress, open_envelope
from icefloe.format.flatbuffer_reader import ITEM_COST_BYTES, Buffer, Tables, refuse
from icefloe.format.flatbuffer_scalar import FEW_TABLES, ScalarBuffer, ScalarTable
from icefloe.format.flatbuffer_writer import (
    OFFSET,
    ListSection,
    Section,
    TableShape,
    Tree,
    seal_buffer,
)
from icefloe.format.ids import ChunkId, ManifestId, NodeId
from icefloe.format.locations import LocationCompression, compress_locations
from icefloe.format.manifest_refs import (
    NativeRanges,
    NativeRefs,
    RefSlot,
    decode_table,
    read_index,
    read_ref,
    reference_section,
    write_refs,
)
from icefloe.records import Record

MAX_APPARENT_BYTES: Final = 2**31 - 2**20
"""Readers count a shared string once per reference and stop at 2 GiB."""

_ROW_APPARENT_BYTES: Final = 64


class _Manifest:
    """Slots of the root table."""

    ID = 0
    ARRAYS = 1
    LOCATION_DICTIONARY = 2
    COMPRESSION_ALGORITHM = 3


class _Array:
    """Slots of the references of one array."""

    NODE_ID = 0
    REFS = 1


_NO_DICTIONARY, _ZSTD_DICTIONARY = 0, 1

_ID_CODE: Final = f"{ManifestId.WIDTH}s"
_ROOT_V1: Final = TableShape((_Manifest.ID, _ID_CODE), (_Manifest.ARRAYS, OFFSET))
_ROOT: Final = TableShape(
    (_Manifest.ID, _ID_CODE), (_Manifest.ARRAYS, OFFSET), (_Manifest.COMPRESSION_ALGORITHM, "B")
)
_ROOT_WITH_DICTIONARY: Final = TableShape(
    (_Manifest.ID, _ID_CODE), (_Manifest.ARRAYS, OFFSET), (_Manifest.LOCATION_DICTIONARY, OFFSET)
)
_ARRAY: Final = TableShape((_Array.REFS, OFFSET), (_Array.NODE_ID, f"{NodeId.WIDTH}s"))

_PART_REFS: Final = 1 << 15
"""So many are decoded at a time: they fit in the processor's cache, with what is made of them."""

_FEW_LOOKUPS: Final = 8
_REFS_PER_LOOKUP: Final = 256
"""Decoding the coordinates of this many references costs about as much as one lookup without."""
_COORDINATES_BYTES: Final = 16
"""Of one reference: four dimensions, which few arrays exceed."""


# -- writing -------------------------------------------------------------------------------


def encode_manifest(
    manifest_id: ManifestId,
    arrays: Mapping[NodeId, ChunkTable],
    *,
    spec_version: int = 2,
    level: int = BULK_LEVEL,
    location_compression: LocationCompression | None = None,
    few: int = FEW_TABLES,
) -> bytes:
    """Write the references of some arrays as a manifest file.

    >>> import numpy as np
    >>> from icefloe.format.columns import BytesColumn
    >>> table = ChunkTable.inlined(np.array([[0], [1]], np.uint32),
    ...                            BytesColumn.from_list([b"a", b"bc"]))
    >>> node = NodeId.random()
    >>> file = ManifestFile(encode_manifest(ManifestId.random(), {node: table}))
    >>> file.find(node, [1])
    InlineChunk(data=b'bc')
    """
    nodes = sorted(arrays)
    tables = [arrays[node] for node in nodes]
    _check_apparent_size(tables)
    dictionary, compressed = None, None
    if location_compression is not None and spec_version > 1:
        dictionary, compressed = _compress_all(tables, location_compression)
    tree = Tree()
    if dictionary is not None:
        shape = _ROOT_WITH_DICTIONARY
        root = tree.table(shape, manifest_id.raw)
        tree.blob(dictionary, root + shape.at[_Manifest.LOCATION_DICTIONARY])
    elif spec_version > 1:
        shape = _ROOT
        root = tree.table(shape, manifest_id.raw, _NO_DICTIONARY)
    else:
        shape = _ROOT_V1
        root = tree.table(shape, manifest_id.raw)
    sections: list[Section] = [tree]
    fields = tree.links(len(nodes), root + shape.at[_Manifest.ARRAYS])
    for row, (node, table, field) in enumerate(zip(nodes, tables, fields, strict=True)):
        position = tree.table(_ARRAY, node.raw, field=field)
        refs = position + _ARRAY.at[_Array.REFS]
        if len(table) <= few and compressed is None:
            write_refs(tree, table, refs)
        else:
            block = reference_section(table, None if compressed is None else compressed[row])
            one_list = ListSection(len(table), block)
            tree.link_outside(one_list, refs)
            sections += [one_list, block]
    return seal_buffer(sections, FileType.MANIFEST, spec_version, level=level)


def _compress_all(
    tables: Sequence[ChunkTable], options: LocationCompression
) -> tuple[bytes | None, list[BytesColumn] | None]:
    virtual = sum(int((table.kinds == ChunkKind.VIRTUAL).sum()) for table in tables)
    if virtual < options.min_num_chunks:
        return None, None
    result = compress_locations(concat_bytes([table.locations for table in tables]), options)
    if result is None:
        return None, None
    frames, dictionary = result
    edges = np.cumsum([0, *(len(table.locations) for table in tables)])
    parts = [frames.slice(a, b) for a, b in pairwise(edges)]
    return dictionary, parts


def _check_apparent_size(tables: Sequence[ChunkTable]) -> None:
    most_bytes = 0  # as if each row had all strings to itself, which takes but a moment
    for table in tables:
        strings = len(table.locations.data) + len(table.inline.data)
        most_bytes += len(table) * (_ROW_APPARENT_BYTES + 4 * table.dimensions + strings)
    if most_bytes <= MAX_APPARENT_BYTES:
        return
    apparent = 0
    for table in tables:
        apparent += len(table) * (_ROW_APPARENT_BYTES + 4 * table.dimensions)
        for kind, column in (
            (ChunkKind.VIRTUAL, table.locations),
            (ChunkKind.INLINE, table.inline),
        ):
            mask = table.kinds == kind
            if mask.any():
                rows = table.targets if mask.all() else table.targets[mask]
                apparent += int(column.lengths()[rows].sum())
    if apparent > MAX_APPARENT_BYTES:
        rows = sum(map(len, tables))
        raise InvalidInputError(
            f"{rows} references read as {apparent} bytes, over the {MAX_APPARENT_BYTES} that "
            "other readers accept in one manifest: split them over several manifests",
            ErrorKind.LIMIT_EXCEEDED,
        )


# -- reading -------------------------------------------------------------------------------


class ManifestFile:
    """A manifest as it was stored, read on demand.

    Looking up one chunk searches the buffer in place; a whole array comes out as columns.
    """

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        envelope = open_envelope(data, FileType.MANIFEST)
        self.spec_version = envelope.spec_version
        self._scalar = ScalarBuffer(decompress(envelope.payload))
        root = self._scalar.root()
        self.id = ManifestId(root.struct(_Manifest.ID, ManifestId.WIDTH))
        self._places = self._find_arrays(root)
        """Id of each array to where its references start, and how many there are."""
        self._natives = NativeRefs(self._scalar.data)
        self._lookups: dict[bytes, int] = {}
        self._coordinates: dict[bytes, RowFinder] = {}
        """Of arrays that were looked at often, so that a lookup need not walk the buffer."""

    def _find_arrays(self, root: ScalarTable) -> dict[bytes, tuple[int, int]]:
        count = root.vector(_Manifest.ARRAYS, 4)[1]
        if count <= FEW_TABLES:
            arrays = root.children(_Manifest.ARRAYS)
            ids = [array.struct(_Array.NODE_ID, NodeId.WIDTH) for array in arrays]
            refs = [array.vector(_Array.REFS, 4) for array in arrays]
        else:
            tables = self._buffer.root().vectors(_Manifest.ARRAYS, required=True).tables()
            raw, width = tables.struct(_Array.NODE_ID, NodeId.WIDTH).tobytes(), NodeId.WIDTH
            ids = [raw[start : start + width] for start in range(0, len(raw), width)]
            lists = tables.vectors(_Array.REFS, required=True)
            refs = list(zip(lists.starts.tolist(), lists.counts.tolist(), strict=True))
        places = dict(zip(ids, refs, strict=True))
        if len(places) < count:
            refuse("a manifest lists an array twice")
        return places

    @cached_property
    def _buffer(self) -> Buffer:
        return Buffer(self._scalar.data)

    @property
    def size_bytes(self) -> int:
        """Return the size of the decompressed file."""
        return self._scalar.size

    @property
    def memory_bytes(self) -> int:
        """Return the memory that the file takes, with what lookups may add to it."""
        return self._scalar.size + self.num_chunk_refs * _COORDINATES_BYTES

    @cached_property
    def nodes(self) -> dict[NodeId, int]:
        """List the arrays of this manifest, each with its place in the file."""
        return {NodeId(raw): position for position, raw in enumerate(self._places)}

    @property
    def num_chunk_refs(self) -> int:
        """Count all references of all arrays."""
        return sum(count for _, count in self._places.values())

    @property
    def has_location_dictionary(self) -> bool:
        """Return whether locations are compressed one by one with a shared dictionary."""
        return self._dictionary is not None

    def num_compressed_locations(self) -> int:
        """Count the references whose location is compressed with the shared dictionary."""
        if not self.has_location_dictionary:
            return 0
        return sum(
            int(np.count_nonzero(refs.has(RefSlot.COMPRESSED_LOCATION)))
            for start, count in self._places.values()
            for _, refs in self._parts(start, count)
        )

    def table(self, node: NodeId, *, few: int = FEW_TABLES) -> ChunkTable:
        """Decode all references of an array into columns."""
        self._buffer.renew_budget()
        self._scalar.renew_budget()
        return self._decode(node.raw, few)

    def table_parts(self, node: NodeId, rows_at_once: int) -> Iterator[ChunkTable]:
        """Decode the references of an array a part at a time, which takes less memory."""
        start, count = self._places.get(node.raw, (0, 0))
        if count <= rows_at_once:
            yield self.table(node)
            return
        self._buffer.renew_budget()
        last: list[int] = []
        for first in range(0, count, rows_at_once):
            refs = self._refs(start + 4 * first, min(rows_at_once, count - first))
            table = decode_table(refs, self._dictionary)
            if table.coordinates[0].tolist() <= last:
                refuse("the references of an array are not sorted by their coordinates")
            last = table.coordinates[-1].tolist()
            yield table

    def coordinates(self, node: NodeId, *, few: int = FEW_TABLES) -> Coordinates:
        """Decode the coordinates of all references of an array, and nothing else."""
        start, count = self._places.get(node.raw, (0, 0))
        if count <= few:
            return self.table(node).coordinates
        return self._read_coordinates(start, count)

    def chunk_ids(self) -> Bytes:
        """List the chunk objects of all references, as often as they occur; nothing else."""
        self._buffer.renew_budget()
        self._scalar.renew_budget()
        parts = [np.empty((0, ChunkId.WIDTH), np.uint8)]
        for start, count in self._places.values():
            if count <= FEW_TABLES:
                tables = map(self._ref_table, range(start, start + 4 * count, 4))
                few = [table.optional_struct(RefSlot.CHUNK_ID, ChunkId.WIDTH) for table in tables]
                raw = b"".join(chunk_id for chunk_id in few if chunk_id is not None)
                parts.append(np.frombuffer(raw, np.uint8).reshape(-1, ChunkId.WIDTH))
            else:
                for _, refs in self._parts(start, count):
                    ids, is_native = refs.optional_struct(RefSlot.CHUNK_ID, ChunkId.WIDTH)
                    parts.append(ids if is_native.all() else ids[is_native])
        return np.concatenate(parts)

    def native_ranges(self, node: NodeId) -> NativeRanges | None:
        """Decode where in which objects the chunks of an array are, and nothing else.

        None if they are few, or if not all of them are native.
        """
        start, count = self._places.get(node.raw, (0, 0))
        if count <= FEW_TABLES:
            return None
        self._buffer.renew_budget()
        self._scalar.renew_budget()
        ranges = NativeRanges.of_size(read_index(self._ref_table(start)), count)
        for rows, refs in self._parts(start, count):
            ids, is_native = refs.optional_struct(RefSlot.CHUNK_ID, ChunkId.WIDTH)
            if not is_native.all():
                return None
            ranges.chunk_ids[rows] = ids
            ranges.offsets[rows] = refs.u64(RefSlot.OFFSET)
            ranges.lengths[rows] = refs.u64(RefSlot.LENGTH)
        return ranges

    def tables(self) -> dict[NodeId, ChunkTable]:
        """Decode everything."""
        self._buffer.renew_budget()
        self._scalar.renew_budget()
        return {NodeId(raw): self._decode(raw, FEW_TABLES) for raw in self._places}

    def _decode(self, node: bytes, few: int) -> ChunkTable:
        start, count = self._places.get(node, (0, 0))
        if count == 0:
            return ChunkTable.empty(0)
        if count <= few:
            return self._decode_few(start, count)
        return decode_table(self._refs(start, count), self._dictionary)

    def _decode_few(self, start: int, count: int) -> ChunkTable:
        tables = [self._ref_table(start + 4 * row) for row in range(count)]
        coordinates = [read_index(table) for table in tables]
        dimensions = len(coordinates[0])
        if any(len(coordinate) != dimensions for coordinate in coordinates):
            refuse("the coordinates of one array differ in their number of dimensions")
        if not all(map(lt, coordinates, coordinates[1:])):
            refuse("the references of an array are not sorted by their coordinates")
        refs = [read_ref(table, self._dictionary) for table in tables]
        return ChunkTable.from_refs(dict(zip(coordinates, refs, strict=True)), dimensions)

    def _ref_table(self, field: int) -> ScalarTable:
        return self._scalar.table(field + self._scalar.word(field))

    def find(self, node: NodeId, coordinates: Sequence[int]) -> ChunkRef | None:
        """Look up one chunk by binary search in the stored order, decoding one row only."""
        if (position := self._places.get(node.raw)) is None:
            return None
        if (coordinates_known := self._coordinates.get(node.raw)) is not None:
            row = coordinates_known.find(coordinates)
        else:
            self._scalar.renew_budget()
            row = self._row_of(node.raw, position, coordinates)
        if row is None:
            return None
        field = position[0] + 4 * row
        if (native := self._natives.read(field)) is not None:
            return native
        self._scalar.renew_budget()
        table = self._ref_table(field)
        ref = read_ref(table, self._dictionary)
        if isinstance(ref, NativeChunk):
            self._natives.learn(table)
        return ref

    def select(self, node: NodeId, coordinates: Coordinates) -> tuple[ChunkTable, Ints]:
        """Decode the references of some chunks, and find the row of each; -1 if it has none."""
        if len(coordinates) <= _FEW_LOOKUPS or node.raw not in self._places:
            refs = {index: self.find(node, index) for index in map(tuple, coordinates.tolist())}
            return _select_few(refs, coordinates)
        start, count = self._places[node.raw]
        finder = self._coordinates.get(node.raw)
        if finder is None:
            finder = self._coordinates[node.raw] = RowFinder(self._read_coordinates(start, count))
        rows = finder.find_many(coordinates)
        stored, numbers = np.unique(rows, return_inverse=True)
        if stored[0] < 0:
            stored, numbers = stored[1:], numbers - 1
        if len(stored) == 0:
            return ChunkTable.empty(coordinates.shape[1]), numbers
        self._buffer.renew_budget()
        self._buffer.charge(len(stored) * (4 + ITEM_COST_BYTES))
        self._buffer.check_range(np.array([start]), 4 * count, 4)
        positions = start + 4 * stored
        positions += self._buffer.u32[positions >> 2]
        return decode_table(Tables(self._buffer, positions), self._dictionary), numbers

    def _row_of(
        self, node: bytes, position: tuple[int, int], coordinates: Sequence[int]
    ) -> int | None:
        start, count = position
        times = self._lookups[node] = self._lookups.get(node, 0) + 1
        if times > _FEW_LOOKUPS + count // _REFS_PER_LOOKUP:
            self._coordinates[node] = RowFinder(self._read_coordinates(start, count))
            return self._coordinates[node].find(coordinates)
        return find_sorted(
            count, tuple(coordinates), lambda row: read_index(self._ref_table(start + 4 * row))
        )

    def _read_coordinates(self, start: int, count: int) -> Coordinates:
        self._buffer.renew_budget()
        refs = self._refs(start, count)
        coordinates = refs.vectors(RefSlot.INDEX, required=True).u32_matrix()
        if not is_ascending(sort_keys(coordinates)[0]):
            refuse("the references of an array are not sorted by their coordinates")
        return coordinates

    def _parts(self, start: int, count: int) -> Iterator[tuple[slice, Tables]]:
        """Address references a part at a time."""
        for first in range(0, count, _PART_REFS):
            rows = slice(first, min(first + _PART_REFS, count))
            yield rows, self._refs(start + 4 * first, rows.stop - first)

    def _refs(self, start: int, count: int) -> Tables:
        self._buffer.charge(count * (4 + ITEM_COST_BYTES))
        positions = np.arange(start, start + 4 * count, 4)
        self._buffer.check_range(positions[:1], 4 * count, 4)
        positions += self._buffer.u32[start >> 2 : (start >> 2) + count]
        return Tables(self._buffer, positions)

    @cached_property
    def _dictionary(self) -> bytes | None:
        root = self._scalar.root()
        algorithm = root.number(_Manifest.COMPRESSION_ALGORITHM, "B", _ZSTD_DICTIONARY)
        if algorithm > _ZSTD_DICTIONARY:
            refuse(f"unknown compression {algorithm} of locations")
        dictionary = root.optional_blob(_Manifest.LOCATION_DICTIONARY)
        return dictionary if algorithm == _ZSTD_DICTIONARY else None


class WrittenManifest(Record, weakref=True):
    """A manifest of which we still have what it was made from."""

    id: ManifestId
    tables: Mapping[NodeId, ChunkTable]

    @property
    def memory_bytes(self) -> int:
        """Return the memory that the tables take."""
        return sum(table.memory_bytes for table in self.tables.values())

    def table(self, node: NodeId) -> ChunkTable:
        """Return all references of an array."""
        return self.tables[node] if node in self.tables else ChunkTable.empty(0)

    def table_parts(self, node: NodeId, rows_at_once: int) -> Iterator[ChunkTable]:
        """Yield the references of an array a part at a time."""
        table = self.table(node)
        for first in range(0, len(table), rows_at_once):
            yield table.take(slice(first, first + rows_at_once))

    def coordinates(self, node: NodeId) -> Coordinates:
        """Return the coordinates of all references of an array."""
        return self.table(node).coordinates

    def chunk_ids(self) -> Bytes:
        """List the chunk objects of all references."""
        none = np.empty((0, ChunkId.WIDTH), np.uint8)
        return np.concatenate([none, *(table.chunk_ids for table in self.tables.values())])

    def find(self, node: NodeId, coordinates: Sequence[int]) -> ChunkRef | None:
        """Look up one chunk."""
        table = self.tables.get(node)
        return None if table is None else table.find(coordinates)

    def select(self, node: NodeId, coordinates: Coordinates) -> tuple[ChunkTable, Ints]:
        """Return the references of some chunks, and the row of each; -1 if it has none."""
        table = self.table(node)
        return table, table.rows_of(coordinates)


def _select_few(
    refs: dict[tuple[int, ...], ChunkRef | None], coordinates: Coordinates
) -> tuple[ChunkTable, Ints]:
    present = {index: ref for index, ref in refs.items() if ref is not None}
    table = ChunkTable.from_refs(present, coordinates.shape[1])
    return table, table.rows_of(coordinates)


type Manifest = ManifestFile | WrittenManifest
