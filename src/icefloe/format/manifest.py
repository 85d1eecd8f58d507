"""Manifests: where the bytes of each chunk of some arrays are."""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from functools import cached_property
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, FormatError, InvalidInputError
from icefloe.format.chunk_table import (
    ChunkKind,
    ChunkRef,
    ChunkTable,
    sort_keys,
)
from icefloe.format.columns import Bytes, BytesColumn, concat_bytes, find_sorted, is_ascending
from icefloe.format.envelope import BULK_LEVEL, FileType, decompress, open_envelope
from icefloe.format.flatbuffer_blocks import BlockSection, SharedBlobs
from icefloe.format.flatbuffer_reader import Buffer, Tables, refuse
from icefloe.format.flatbuffer_writer import (
    BlobSection,
    Field,
    Link,
    Section,
    Spread,
    TableSection,
    VectorSection,
    number,
    seal_buffer,
)
from icefloe.format.ids import ChunkId, ManifestId, NodeId, has_repeated_node, id_rows
from icefloe.format.locations import LocationCompression, compress_locations, expand_locations

MAX_APPARENT_BYTES: Final = 2**31 - 2**20
"""Readers count a shared string once per reference and stop at 2 GiB."""

_ROW_APPARENT_BYTES: Final = 64


class _Manifest(IntEnum):
    """Slots of the root table."""

    ID = 0
    ARRAYS = 1
    LOCATION_DICTIONARY = 2
    COMPRESSION_ALGORITHM = 3


class _Array(IntEnum):
    """Slots of the references of one array."""

    NODE_ID = 0
    REFS = 1


class _Ref(IntEnum):
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


_NO_DICTIONARY, _ZSTD_DICTIONARY = 0, 1


# -- writing -------------------------------------------------------------------------------


def encode_manifest(
    manifest_id: ManifestId,
    arrays: Mapping[NodeId, ChunkTable],
    *,
    spec_version: int = 2,
    level: int = BULK_LEVEL,
    location_compression: LocationCompression | None = None,
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
    blocks = [
        _reference_section(table, None if compressed is None else compressed[number])
        for number, table in enumerate(tables)
    ]
    lists = [
        VectorSection(np.array([len(t)]), Link(b)) for t, b in zip(tables, blocks, strict=True)
    ]
    array_tables = TableSection(
        len(nodes),
        [
            Field(_Array.NODE_ID, id_rows(NodeId, nodes)),
            Field(_Array.REFS, Link(Spread(lists))),
        ],
    )
    array_list = VectorSection(np.array([len(nodes)]), Link(array_tables))
    fields = [
        Field(_Manifest.ID, id_rows(ManifestId, [manifest_id])),
        Field(_Manifest.ARRAYS, Link(array_list)),
    ]
    sections: list[Section] = [array_list, array_tables]
    if dictionary is not None:
        blob = BlobSection(BytesColumn.from_list([dictionary]))
        fields.append(Field(_Manifest.LOCATION_DICTIONARY, Link(blob)))
        sections.append(blob)
    elif spec_version > 1:
        algorithm = np.array([_NO_DICTIONARY], np.uint8)
        fields.append(number(_Manifest.COMPRESSION_ALGORITHM, algorithm, _ZSTD_DICTIONARY))
    for one_list, block in zip(lists, blocks, strict=True):
        sections += [one_list, block]
    sections.insert(0, TableSection(1, fields))
    return seal_buffer(sections, FileType.MANIFEST, spec_version, level=level)


def _reference_section(table: ChunkTable, compressed: BytesColumn | None) -> BlockSection:
    masks = {kind: _mask(table.kinds, kind) for kind in ChunkKind}
    has_range = _mask(table.kinds, ChunkKind.NATIVE, ChunkKind.VIRTUAL)
    fields = [
        Field(_Ref.OFFSET, table.offsets, has_range),
        Field(_Ref.LENGTH, table.lengths, has_range),
    ]
    native = masks[ChunkKind.NATIVE]
    if len(table.chunk_ids) and (native is None or native.any()):
        ids = table.chunk_ids[np.minimum(table.targets, len(table.chunk_ids) - 1)]
        fields.append(Field(_Ref.CHUNK_ID, ids, native))
    if table.last_modified is not None:
        fields.append(number(_Ref.LAST_MODIFIED, table.last_modified))
    virtual = masks[ChunkKind.VIRTUAL]
    if compressed is None:
        locations = SharedBlobs(_Ref.LOCATION, table.locations, table.targets, virtual)
    else:
        locations = SharedBlobs(_Ref.COMPRESSED_LOCATION, compressed, table.targets, virtual)
    blobs = [
        locations,
        SharedBlobs(_Ref.INLINE, table.inline, table.targets, masks[ChunkKind.INLINE]),
    ]
    if table.etag_rows is not None:
        blobs.append(SharedBlobs(_Ref.ETAG, table.etags, table.etag_rows, table.etag_rows >= 0))
    return BlockSection(table.coordinates, fields, blobs, coordinates_slot=_Ref.INDEX)


def _mask(kinds: Bytes, *wanted: ChunkKind) -> NDArray[np.bool_] | None:
    mask = np.isin(kinds, wanted) if len(wanted) > 1 else kinds == wanted[0]
    return None if mask.all() else mask


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
        self._buffer = Buffer(decompress(envelope.payload))
        self._root = self._buffer.root()
        self.id = ManifestId(self._root.struct(_Manifest.ID, ManifestId.WIDTH).tobytes())
        arrays = self._root.vectors(_Manifest.ARRAYS, required=True).tables()
        self._node_rows = arrays.struct(_Array.NODE_ID, NodeId.WIDTH)
        if has_repeated_node(self._node_rows):
            refuse("a manifest lists an array twice")
        self._refs = arrays.vectors(_Array.REFS, required=True)

    @property
    def size_bytes(self) -> int:
        """Give the memory that the decompressed file takes."""
        return self._buffer.size

    @cached_property
    def nodes(self) -> dict[NodeId, int]:
        """List the arrays of this manifest, each with its place in the file."""
        raw = self._node_rows.tobytes()
        width = NodeId.WIDTH
        return {NodeId(raw[at : at + width]): at // width for at in range(0, len(raw), width)}

    @property
    def num_chunk_refs(self) -> int:
        """Count all references of all arrays."""
        return int(self._refs.counts.sum())

    @property
    def has_location_dictionary(self) -> bool:
        """Say whether locations are compressed one by one with a shared dictionary."""
        return self._dictionary is not None

    def table(self, node: NodeId) -> ChunkTable:
        """Decode all references of an array into columns."""
        self._buffer.renew_budget()
        return self._decode(node)

    def _decode(self, node: NodeId) -> ChunkTable:
        if (place := self.nodes.get(node)) is None:
            return ChunkTable.empty(0)
        refs = self._refs.pick(slice(place, place + 1)).tables()
        return _decode_table(refs, self._dictionary)

    def tables(self) -> dict[NodeId, ChunkTable]:
        """Decode everything."""
        self._buffer.renew_budget()
        return {node: self._decode(node) for node in self.nodes}

    def find(self, node: NodeId, coordinates: Sequence[int]) -> ChunkRef | None:
        """Look up one chunk by binary search in the stored order, decoding a few rows only."""
        if (place := self.nodes.get(node)) is None:
            return None
        self._buffer.renew_budget()
        first, count = int(self._refs.starts[place]), int(self._refs.counts[place])

        def table_of(row: int) -> int:
            return self._buffer.follow(first + 4 * row)

        row = find_sorted(
            count,
            tuple(coordinates),
            lambda row: self._buffer.numbers(table_of(row), _Ref.INDEX),
        )
        if row is None:
            return None
        ref = Tables(self._buffer, np.array([table_of(row)]))
        return _decode_table(ref, self._dictionary).ref(0)

    @cached_property
    def _dictionary(self) -> bytes | None:
        blobs = self._root.blobs(_Manifest.LOCATION_DICTIONARY)
        algorithm = int(self._root.u8(_Manifest.COMPRESSION_ALGORITHM, _ZSTD_DICTIONARY)[0])
        if algorithm > _ZSTD_DICTIONARY:
            refuse(f"unknown compression {algorithm} of locations")
        has_one = blobs.present[0] and algorithm == _ZSTD_DICTIONARY
        return blobs.column()[0] if has_one else None


def _decode_table(refs: Tables, dictionary: bytes | None) -> ChunkTable:
    coordinates = refs.vectors(_Ref.INDEX, required=True).u32_matrix()
    if not is_ascending(sort_keys(coordinates)[0]):
        refuse("the references of an array are not sorted by their coordinates")
    ids, is_native = refs.optional_struct(_Ref.CHUNK_ID, ChunkId.WIDTH)
    locations, location_rows, is_virtual = _decode_locations(refs, dictionary)
    is_virtual &= ~is_native
    inline = refs.blobs(_Ref.INLINE)
    is_inline = inline.present & ~is_native & ~is_virtual
    if not (is_native | is_virtual | is_inline).all():
        refuse("a chunk reference is neither native, virtual nor inline")
    kinds = is_native * ChunkKind.NATIVE + is_virtual * ChunkKind.VIRTUAL
    kinds = (kinds + is_inline * ChunkKind.INLINE).astype(np.uint8)
    targets = location_rows
    lengths = refs.u64(_Ref.LENGTH)
    if is_native.any():
        targets = np.where(is_native, np.cumsum(is_native) - 1, targets)
        ids = ids[is_native]
    else:
        ids = ids[:0]
    held = BytesColumn.empty()
    if is_inline.any():
        held, rows_held = inline.where(is_inline).stored()
        targets = targets.astype(np.uint32)
        targets[is_inline] = rows_held
        lengths[is_inline] = inline.lengths[is_inline]
    etags, etag_rows, last_modified = _decode_checksums(refs)
    return ChunkTable(
        coordinates,
        kinds,
        refs.u64(_Ref.OFFSET),
        lengths,
        targets.astype(np.uint32, copy=False),
        chunk_ids=ids,
        locations=locations,
        inline=held,
        etags=etags,
        etag_rows=etag_rows,
        last_modified=last_modified,
    )


def _decode_locations(
    refs: Tables, dictionary: bytes | None
) -> tuple[BytesColumn, NDArray[np.uint32], NDArray[np.bool_]]:
    """Give distinct locations, the one of each row, and which rows have one."""
    compressed = refs.blobs(_Ref.COMPRESSED_LOCATION)
    plain = refs.blobs(_Ref.LOCATION)
    if not compressed.present.any():
        if not plain.present.any():
            return BytesColumn.empty(), np.zeros(len(refs), np.uint32), plain.present
        column, rows = plain.distinct()
        column.to_arrow_strings()  # must be text
        return column, rows, plain.present
    if dictionary is None:
        raise FormatError("compressed locations without the dictionary to expand them")
    is_compressed = compressed.present
    if is_compressed.all():
        frames, rows = compressed.runs()
        expanded = expand_locations(frames, dictionary, charge=refs.buffer.charge)
        column, numbers = expanded.distinct()
        column.to_arrow_strings()
        return column, numbers[rows], is_compressed
    return _decode_mixed(refs, dictionary)


def _decode_mixed(
    refs: Tables, dictionary: bytes
) -> tuple[BytesColumn, NDArray[np.uint32], NDArray[np.bool_]]:
    """Decode plain and compressed locations, or none, row by row kind: rare but valid."""
    compressed, plain = refs.blobs(_Ref.COMPRESSED_LOCATION), refs.blobs(_Ref.LOCATION)
    is_compressed, is_plain = compressed.present, plain.present & ~compressed.present
    frames, frame_rows = compressed.where(is_compressed).distinct()
    plain_column, plain_rows = plain.distinct()
    rows = plain_rows + np.uint32(len(frames))
    rows[is_compressed] = frame_rows
    expanded = expand_locations(frames, dictionary, charge=refs.buffer.charge)
    column = concat_bytes([expanded, plain_column])
    column.to_arrow_strings()
    return column, rows, is_compressed | is_plain


def _decode_checksums(
    refs: Tables,
) -> tuple[BytesColumn, NDArray[np.int32] | None, NDArray[np.uint32] | None]:
    etags, etag_rows = BytesColumn.empty(), None
    blobs = refs.blobs(_Ref.ETAG)
    if blobs.present.any():
        etags, rows = blobs.distinct()
        etags.to_arrow_strings()
        etag_rows = np.where(blobs.present, rows.astype(np.int32), np.int32(-1))
    modified = refs.u32(_Ref.LAST_MODIFIED)
    return etags, etag_rows, modified if modified.any() else None
