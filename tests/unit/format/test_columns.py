"""Columns of bytes: packing, gathering, sharing with Arrow."""

import numpy as np
import pyarrow as pa
import pytest

from icefloe.errors import FormatError
from icefloe.format.columns import BytesColumn, concat_bytes, ranges, splits_of, take_ragged

ROWS = [b"", b"a", b"twelve bytes", b"thirteen byte", b"x" * 5000, b"", b"\0\xff"]


def test_rows_come_back() -> None:
    column = BytesColumn.from_list(ROWS)
    assert len(column) == len(ROWS)
    assert column.to_list() == ROWS
    assert [column[row] for row in range(len(ROWS))] == ROWS
    assert column.lengths().tolist() == [len(row) for row in ROWS]


def test_strings_are_utf8() -> None:
    column = BytesColumn.from_strings(["é", ""])
    assert column.to_list() == ["é".encode(), b""]
    assert column.to_strings() == ["é", ""]


@pytest.mark.parametrize("bad", [b"\xff", b"\xed\xa0\x80", b"\xc3"])
def test_text_that_is_not_utf8_is_refused(bad: bytes) -> None:
    with pytest.raises(FormatError, match="not UTF-8"):
        BytesColumn.from_list([b"fine", bad]).to_strings()


def test_valid_halves_do_not_hide_a_character_cut_in_two() -> None:
    with pytest.raises(FormatError, match="not UTF-8"):
        BytesColumn.from_list([b"\xc3", b"\xa9"]).to_strings()


def test_gather_copies_short_long_empty_and_overlapping_slices() -> None:
    source = np.frombuffer(bytes(range(256)) * 40, np.uint8)
    starts = np.array([0, 5, 5, 10_000, 10_240, 3, 3], np.int64)
    lengths = np.array([0, 12, 13, 240, 0, 1, 9000], np.int64)
    whole = source.tobytes()
    expected = [whole[a : a + n] for a, n in zip(starts, lengths, strict=True)]
    column = BytesColumn.gather(source, starts, lengths)
    assert column.to_list() == expected
    assert not np.shares_memory(column.data, source)


@pytest.mark.parametrize("width", [1, 12, 200])
def test_gather_copies_slices_of_one_length(width: int) -> None:
    source = np.frombuffer(bytes(range(200)), np.uint8)
    starts = np.array([0, 200 - width, 0, (200 - width) // 2], np.int64)
    column = BytesColumn.gather(source, starts, np.full(4, width))
    assert column.to_list() == [bytes(range(a, a + width)) for a in starts.tolist()]
    assert not np.shares_memory(column.data, source)


def test_rows_of_one_length_compare_as_bytes_wherever_they_begin() -> None:
    column = BytesColumn(np.frombuffer(b"?a\0a\0a\xffb\0!", np.uint8), np.array([1, 3, 5, 7, 9]))
    distinct, numbers = column.distinct()
    assert distinct.to_list() == [b"a\0", b"a\xff", b"b\0"]
    assert numbers.tolist() == [0, 0, 1, 2]
    assert distinct.is_ascending()
    assert not column.is_ascending()
    assert column.runs()[0] == distinct


@pytest.mark.parametrize("count", [0, 1])
def test_gather_of_nothing(count: int) -> None:
    nothing = np.zeros(count, np.int64)
    assert BytesColumn.gather(np.zeros(8, np.uint8), nothing, nothing).to_list() == [b""] * count


def test_take_repeats_and_reorders() -> None:
    column = BytesColumn.from_list(ROWS)
    assert column.take(np.array([6, 4, 4, 0])).to_list() == [ROWS[6], ROWS[4], ROWS[4], b""]
    assert column.take(np.empty(0, np.int64)).to_list() == []
    assert BytesColumn.empty().take(np.empty(0, np.uint32)).to_list() == []


def test_slices_share_memory() -> None:
    column = BytesColumn.from_list(ROWS)
    part = column.slice(1, 5)
    assert part.to_list() == ROWS[1:5]
    assert np.shares_memory(part.data, column.data)
    assert part.take(np.array([3, 0])).to_list() == [ROWS[4], ROWS[1]]
    assert column.slice(7, 7).to_list() == []


def test_distinct_numbers_rows_in_order_of_first_use() -> None:
    rows = [b"b", b"b", b"a", b"b", b"", b"a", b"a", b""]
    column, numbers = BytesColumn.from_list(rows).distinct()
    assert column.to_list() == [b"b", b"a", b""]
    assert numbers.tolist() == [0, 0, 1, 0, 2, 1, 1, 2]
    assert numbers.dtype == np.uint32


def test_distinct_of_different_rows_and_of_none() -> None:
    column, numbers = BytesColumn.from_list(ROWS[1:5]).distinct()
    assert column.to_list() == ROWS[1:5]
    assert numbers.tolist() == [0, 1, 2, 3]
    column, numbers = BytesColumn.empty().distinct()
    assert len(column) == len(numbers) == 0


def test_equality_is_by_rows() -> None:
    column = BytesColumn.from_list([b"ab", b"c"])
    assert column == BytesColumn.from_list([b"ab", b"c"])
    assert column != BytesColumn.from_list([b"a", b"bc"])
    assert column != BytesColumn.from_list([b"ab"])
    assert column != [b"ab", b"c"]
    assert column == BytesColumn.from_list([b"x", b"ab", b"c"]).slice(1, 3)


def address(array: np.ndarray[tuple[int], np.dtype[np.generic]]) -> int:
    return int(array.__array_interface__["data"][0])


def test_arrow_gets_the_same_memory() -> None:
    column = BytesColumn.from_list(ROWS)
    array = column.to_arrow()
    assert array.to_pylist() == ROWS
    _, offsets, data = array.buffers()
    assert data.address == address(column.data)
    assert offsets.address == address(column.splits)
    text = BytesColumn.from_strings(["a", "é" * 100])
    assert text.to_arrow_strings().buffers()[2].address == address(text.data)


@pytest.mark.parametrize("kind", [pa.large_binary(), pa.large_string()])
def test_arrow_gives_the_same_memory(kind: pa.DataType) -> None:
    array = pa.array(["a", "bcd", ""], kind)
    column = BytesColumn.from_arrow(array)
    assert column.to_list() == [b"a", b"bcd", b""]
    assert address(column.data) == array.buffers()[2].address
    assert address(column.splits) == array.buffers()[1].address


@pytest.mark.parametrize(
    "array",
    [
        pa.array(["a", "bcd", ""]),
        pa.array([b"a", b"bcd", b""]),
        pa.array(["a", "bcd", ""], pa.string_view()),
        pa.array(["a", "bcd", ""]).dictionary_encode(),
        pa.chunked_array([["a"], ["bcd", ""]]),
        pa.array(["zzz", "a", "bcd", "", "y"], pa.large_string()).slice(1, 3),
    ],
    ids=lambda array: str(array.type),
)
def test_other_arrow_arrays_are_converted(array: pa.Array) -> None:
    assert BytesColumn.from_arrow(array).to_list() == [b"a", b"bcd", b""]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_binary(), pa.binary_view()])
def test_empty_arrow_arrays(kind: pa.DataType) -> None:
    assert BytesColumn.from_arrow(pa.array([], kind)).to_list() == []
    assert BytesColumn.from_arrow(pa.chunked_array([], kind)).to_list() == []


def test_concatenation() -> None:
    parts = [ROWS[:2], [], ROWS[2:5], ROWS[5:]]
    columns = [BytesColumn.from_list(part) for part in parts]
    assert concat_bytes(columns).to_list() == ROWS
    assert concat_bytes(columns[:1]) is columns[0]
    cut = BytesColumn.from_list(ROWS)
    assert concat_bytes([cut.slice(3, 7), cut.slice(0, 3)]).to_list() == ROWS[3:] + ROWS[:3]


def test_ragged_columns() -> None:
    splits = splits_of(np.array([2, 0, 3]))
    assert splits.tolist() == [0, 2, 2, 5]
    assert ranges(np.array([10, 20, 30]), np.array([2, 0, 3])).tolist() == [10, 11, 30, 31, 32]
    new_splits, items = take_ragged(splits, np.array([2, 1, 0, 2]))
    assert new_splits.tolist() == [0, 3, 3, 5, 8]
    assert items.tolist() == [2, 3, 4, 0, 1, 2, 3, 4]
    assert ranges(np.empty(0, np.int64), np.empty(0, np.int64)).tolist() == []
