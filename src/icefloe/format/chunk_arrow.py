"""Chunk tables as Arrow record batches, for Spark and everything else that speaks Arrow.

Plain columns are handed over without a copy, and so are locations of tables that hold
virtual references only: their targets are the indices of an Arrow dictionary already.
"""

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.arrow import pa
from icefloe.format.chunk_table import ChunkKind, ChunkTable
from icefloe.format.columns import Bools, BytesColumn
from icefloe.format.ids import ChunkId


def arrow_schema(dimensions: int) -> "pa.Schema":
    """Give the columns of a batch of references to an array of so many dimensions."""
    return pa.schema(
        [
            pa.field("coordinates", pa.list_(pa.uint32(), dimensions), nullable=False),
            pa.field("kind", pa.uint8(), nullable=False),
            pa.field("offset", pa.uint64(), nullable=False),
            pa.field("length", pa.uint64(), nullable=False),
            pa.field("location", pa.dictionary(pa.uint32(), pa.large_string())),
            pa.field("chunk_id", pa.binary(ChunkId.WIDTH)),
            pa.field("inline", pa.large_binary()),
            pa.field("etag", pa.dictionary(pa.int32(), pa.large_string())),
            pa.field("last_modified", pa.uint32()),
        ]
    )


def table_to_arrow(table: ChunkTable) -> "pa.RecordBatch":
    """Give a table to Arrow.

    >>> table = ChunkTable.inlined(np.array([[0]], np.uint32), BytesColumn.from_list([b"x"]))
    >>> table_to_arrow(table).column("inline").to_pylist()
    [b'x']
    """
    schema = arrow_schema(table.dimensions)
    flat = pa.array(np.ascontiguousarray(table.coordinates).reshape(-1))
    columns = {
        "coordinates": _fixed_size_list(flat, len(table), table.dimensions),
        "kind": pa.array(table.kinds),
        "offset": pa.array(table.offsets),
        "length": pa.array(table.lengths),
        "location": _locations(table),
        "chunk_id": _chunk_ids(table),
        "inline": _inline(table),
        "etag": _etags(table),
        "last_modified": _last_modified(table),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _fixed_size_list(flat: "pa.Array", rows: int, width: int) -> "pa.Array":
    kind = pa.list_(pa.uint32(), width)
    return pa.Array.from_buffers(kind, rows, [None], children=[flat])


def _rows(table: ChunkTable, kind: ChunkKind) -> Bools | None:
    """Say which rows are of a kind; `None` for all of them."""
    mask = table.kinds == kind
    return None if mask.all() and len(mask) else mask


def _locations(table: ChunkTable) -> "pa.DictionaryArray":
    mask = _rows(table, ChunkKind.VIRTUAL)
    indices = pa.array(table.targets, mask=None if mask is None else ~mask)
    return pa.DictionaryArray.from_arrays(indices, table.locations.to_arrow_strings())


def _chunk_ids(table: ChunkTable) -> "pa.Array":
    mask = table.kinds == ChunkKind.NATIVE
    kind = pa.binary(ChunkId.WIDTH)
    if not mask.any():
        return pa.nulls(len(table), kind)
    rows = np.zeros((len(table), ChunkId.WIDTH), np.uint8)
    rows[mask] = table.chunk_ids[table.targets[mask]]
    return pa.Array.from_buffers(kind, len(table), [_bitmap(mask), pa.py_buffer(rows)])


def _bitmap(mask: Bools) -> "pa.Buffer":
    return pa.py_buffer(np.packbits(mask, bitorder="little"))


def _inline(table: ChunkTable) -> "pa.Array":
    mask = table.kinds == ChunkKind.INLINE
    if not mask.any():
        return pa.nulls(len(table), pa.large_binary())
    rows = np.where(mask, table.targets, 0)
    return table.inline.to_arrow().take(pa.array(rows, mask=~mask))


def _etags(table: ChunkTable) -> "pa.DictionaryArray":
    if table.etag_rows is None:
        indices = pa.nulls(len(table), pa.int32())
    else:
        indices = pa.array(table.etag_rows, mask=table.etag_rows < 0)
    return pa.DictionaryArray.from_arrays(indices, table.etags.to_arrow_strings())


def _last_modified(table: ChunkTable) -> "pa.Array":
    if table.last_modified is None:
        return pa.nulls(len(table), pa.uint32())
    return pa.array(table.last_modified, mask=table.last_modified == 0)


def table_from_arrow(batch: "pa.RecordBatch") -> ChunkTable:
    """Take references from Arrow, in any order; each chunk may occur once."""
    missing = set(arrow_schema(1).names) - set(batch.schema.names)
    if missing:
        raise InvalidInputError(
            f"chunk references lack the columns {sorted(missing)}: see arrow_schema",
            ErrorKind.INVALID_VIRTUAL_REF,
        )
    kinds = batch.column("kind").to_numpy()
    coordinates = batch.column("coordinates")
    matrix = coordinates.flatten().to_numpy().reshape(len(kinds), coordinates.type.list_size)
    locations, targets = _from_dictionary(batch.column("location"))
    is_native, is_inline = kinds == ChunkKind.NATIVE, kinds == ChunkKind.INLINE
    chunk_ids = BytesColumn.from_arrow(batch.column("chunk_id").filter(pa.array(is_native)))
    inline = BytesColumn.from_arrow(batch.column("inline").filter(pa.array(is_inline)))
    for mask in (is_native, is_inline):
        if mask.any():
            targets = np.where(mask, np.cumsum(mask) - 1, targets)
    etags, etag_rows = _from_dictionary(batch.column("etag"))
    has_etag = batch.column("etag").is_valid().to_numpy(zero_copy_only=False)
    modified = batch.column("last_modified").fill_null(0).to_numpy()
    return ChunkTable(
        matrix,
        kinds,
        batch.column("offset").to_numpy(),
        batch.column("length").to_numpy(),
        targets.astype(np.uint32, copy=False),
        chunk_ids=chunk_ids.data.reshape(-1, ChunkId.WIDTH),
        locations=locations,
        inline=inline,
        etags=etags,
        etag_rows=np.where(has_etag, etag_rows, -1).astype(np.int32) if has_etag.any() else None,
        last_modified=modified if modified.any() else None,
    ).sorted()


def _from_dictionary(column: "pa.Array") -> tuple[BytesColumn, NDArray[np.integer]]:
    """Take distinct texts and the one of each row; plain strings are made distinct first."""
    if not isinstance(column, pa.DictionaryArray):
        column = column.dictionary_encode()
    indices: NDArray[np.integer] = column.indices.fill_null(0).to_numpy()
    return BytesColumn.from_arrow(column.dictionary), indices
