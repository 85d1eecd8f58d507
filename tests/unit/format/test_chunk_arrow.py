"""Chunk tables to Arrow and back."""

import numpy as np
import pyarrow as pa
import pytest

from icefloe.errors import InvalidInputError
from icefloe.format.chunk_arrow import arrow_schema, table_from_arrow, table_to_arrow
from icefloe.format.chunk_table import ChunkTable, concat_tables
from icefloe.format.columns import BytesColumn


def virtual(rows: int = 6) -> ChunkTable:
    return ChunkTable.virtual(
        np.arange(rows, dtype=np.uint32).reshape(-1, 1),
        BytesColumn.from_strings(["s3://a/x", "s3://a/y"]),
        np.arange(rows, dtype=np.uint64) * 10,
        np.full(rows, 10, np.uint64),
        targets=(np.arange(rows) % 2).astype(np.uint32),
        etags=BytesColumn.from_strings(["abc"]),
        etag_rows=np.where(np.arange(rows) == 1, 0, -1).astype(np.int32),
        last_modified=np.where(np.arange(rows) == 2, 7, 0).astype(np.uint32),
    )


def mixed() -> ChunkTable:
    native = ChunkTable.native(
        np.array([[10], [12]], np.uint32),
        np.arange(24, dtype=np.uint8).reshape(2, 12),
        np.array([100, 200], np.uint64),
    )
    inline = ChunkTable.inlined(
        np.array([[11], [13]], np.uint32), BytesColumn.from_list([b"one", b"three"])
    )
    return concat_tables([virtual(), native, inline])


def address(array: pa.Array, buffer: int = 1) -> int:
    where: int = array.buffers()[buffer].address
    return where


@pytest.mark.parametrize("table", [virtual(), mixed(), ChunkTable.empty(2)])
def test_round_trip(table: ChunkTable) -> None:
    batch = table_to_arrow(table)
    batch.validate(full=True)
    assert batch.schema == arrow_schema(table.dimensions)
    assert table_from_arrow(batch) == table


def test_scalars_have_coordinates_of_no_length() -> None:
    table = ChunkTable.inlined(np.empty((1, 0), np.uint32), BytesColumn.from_list([b"x"]))
    assert table_from_arrow(table_to_arrow(table)) == table


def test_nothing_is_copied_for_virtual_references() -> None:
    table = virtual()
    batch = table_to_arrow(table)
    assert address(batch.column("offset")) == table.offsets.ctypes.data
    assert address(batch.column("kind")) == table.kinds.ctypes.data
    assert address(batch.column("coordinates").flatten()) == table.coordinates.ctypes.data
    location = batch.column("location")
    assert address(location.indices) == table.targets.ctypes.data
    assert address(location.dictionary, 2) == table.locations.data.ctypes.data
    back = table_from_arrow(batch)
    assert back.offsets.ctypes.data == table.offsets.ctypes.data
    assert back.locations.data.ctypes.data == table.locations.data.ctypes.data


def test_any_order_and_slices_are_taken() -> None:
    table = mixed()
    batch = table_to_arrow(table)
    backwards = batch.take(pa.array(np.arange(len(table))[::-1]))
    assert table_from_arrow(backwards) == table
    assert table_from_arrow(batch.slice(3, 5)) == table.take(slice(3, 8))


def test_plain_strings_become_distinct_locations() -> None:
    batch = table_to_arrow(virtual())
    place = batch.schema.get_field_index("location")
    plain = batch.set_column(place, "location", batch.column("location").cast(pa.string()))
    back = table_from_arrow(plain)
    assert back == virtual()
    assert len(back.locations) == 2


def test_missing_columns_are_named() -> None:
    batch = table_to_arrow(virtual())
    with pytest.raises(InvalidInputError, match="location"):
        table_from_arrow(batch.drop_columns(["location"]))
