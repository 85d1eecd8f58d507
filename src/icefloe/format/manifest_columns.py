"""The references of an array in a manifest, all of them at once, in columns."""

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import FormatError
from icefloe.format.chunk_table import ChunkKind, ChunkTable, sort_keys
from icefloe.format.columns import Bools, Bytes, BytesColumn, concat_bytes, is_ascending
from icefloe.format.flatbuffer_blocks import BlockSection, SharedBlobs
from icefloe.format.flatbuffer_reader import Tables, refuse
from icefloe.format.flatbuffer_writer import Field, number
from icefloe.format.ids import ChunkId
from icefloe.format.locations import expand_locations
from icefloe.format.manifest_refs import RefSlot


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
    """Say for each kind that occurs which references are of it; None for all of them."""
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
    held = BytesColumn.empty()
    if is_inline.any():
        held, rows_held = inline.where(is_inline).stored()
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
        inline=held,
        etags=etags,
        etag_rows=etag_rows,
        last_modified=last_modified,
    )


def _decode_locations(
    refs: Tables, dictionary: bytes | None
) -> tuple[BytesColumn, NDArray[np.uint32], NDArray[np.bool_]]:
    """Give distinct locations, the one of each row, and which rows have one."""
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
    """Give distinct etags, the one of each row or -1, and the times; others have none of these."""
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
