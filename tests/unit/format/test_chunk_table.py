"""Tables of chunk references: finding, choosing, combining."""

import numpy as np
import pytest

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.chunk_table import (
    ChunkKind,
    ChunkTable,
    InlineChunk,
    NativeChunk,
    VirtualChunk,
    concat_tables,
    sort_keys,
)
from icefloe.format.columns import BytesColumn
from tests.unit.format import samples
from tests.unit.format.oracle import references
from tests.unit.format.samples import grid, inline_table, mixed_table, native_table, virtual_table

SCALAR = np.empty((1, 0), np.uint32)


def coordinates(*rows: tuple[int, ...]) -> np.ndarray[tuple[int, int], np.dtype[np.uint32]]:
    return np.array(rows, np.uint32).reshape(len(rows), -1)


def numbered(*rows: tuple[int, ...], start: int = 0) -> ChunkTable:
    """Inline references whose bytes tell them apart."""
    return inline_table(coordinates(*rows), [b"%d" % (start + n) for n in range(len(rows))])


# -- making --------------------------------------------------------------------------------


def test_rows_are_sorted_by_coordinates() -> None:
    table = numbered((2, 0), (0, 9), (0, 10), (1, 1))
    assert table.coordinates.tolist() == [[0, 9], [0, 10], [1, 1], [2, 0]]
    assert [table.ref(row) for row in range(4)] == [
        InlineChunk(b"1"), InlineChunk(b"2"), InlineChunk(b"3"), InlineChunk(b"0"),
    ]  # fmt: skip


@pytest.mark.parametrize("rows", [coordinates((1, 2), (0, 0), (1, 2)), np.empty((2, 0), np.uint32)])
def test_a_coordinate_twice_is_refused(
    rows: np.ndarray[tuple[int, int], np.dtype[np.uint32]],
) -> None:
    with pytest.raises(InvalidInputError, match="more than once") as caught:
        inline_table(rows, [b"x"] * len(rows))
    assert caught.value.kind == ErrorKind.INVALID_CHUNK_INDEX


def test_equal_locations_are_kept_once() -> None:
    table = ChunkTable.virtual(
        grid(4),
        BytesColumn.from_strings(["s3://a", "s3://b", "s3://a", "s3://a"]),
        np.zeros(4, np.uint64),
        np.ones(4, np.uint64),
    )
    assert table.locations.to_strings() == ["s3://a", "s3://b"]
    assert table.targets.tolist() == [0, 1, 0, 0]


def test_native_references_may_share_a_chunk_object() -> None:
    ids = np.arange(12, dtype=np.uint8).reshape(1, 12)
    table = ChunkTable.native(
        grid(2),
        ids,
        np.array([5, 6], np.uint64),
        offsets=np.array([0, 5], np.uint64),
        targets=np.zeros(2, np.uint32),
    )
    first, second = table.ref(0), table.ref(1)
    assert isinstance(first, NativeChunk)
    assert isinstance(second, NativeChunk)
    assert first.id == second.id
    assert (second.offset, second.length) == (5, 6)


# -- finding -------------------------------------------------------------------------------


@pytest.mark.parametrize("table", [mixed_table(), virtual_table(), native_table(grid(3, 2, 4))])
def test_every_row_is_found(table: ChunkTable) -> None:
    for row, (index, reference) in enumerate(references(table)):
        assert table.row_of(index) == row
        assert table.find(index) == reference


def test_what_is_not_there_is_not_found() -> None:
    table = numbered((0, 0), (0, 2), (2, 0))
    for index in ((0, 1), (1, 0), (2, 1), (3, 0), (-1, 0), (0, 2**32), (0, -1)):
        assert table.find(index) is None
    assert ChunkTable.empty(2).find((0, 0)) is None


def test_an_array_without_dimensions_has_one_chunk() -> None:
    table = inline_table(SCALAR, [b"42"])
    assert table.find(()) == InlineChunk(b"42")
    assert table.dimensions == 0
    assert table.extents().shape == (0, 2)
    assert table.within(np.empty((0, 2), np.uint32)) is table
    assert len(table.without(SCALAR)) == 0
    assert table.overlay(inline_table(SCALAR, [b"43"])).find(()) == InlineChunk(b"43")
    assert ChunkTable.empty(0).find(()) is None


def test_extents_are_tight() -> None:
    assert numbered((3, 9), (5, 1)).extents().tolist() == [[3, 6], [1, 10]]
    highest = 2**32 - 2
    assert numbered((highest,)).extents().tolist() == [[highest, highest + 1]]
    with pytest.raises(InvalidInputError, match="one more than an array can have"):
        numbered((highest + 1,)).extents()


# -- choosing ------------------------------------------------------------------------------


def test_within_keeps_a_box() -> None:
    table = native_table(grid(6, 5))
    box = np.array([[1, 3], [2, 4]], np.uint32)
    part = table.within(box)
    assert part.coordinates.tolist() == [[1, 2], [1, 3], [2, 2], [2, 3]]
    assert part.find([2, 3]) == table.find([2, 3])
    assert table.within(table.extents()) == table
    assert len(table.within(np.array([[6, 9], [0, 5]], np.uint32))) == 0


def test_without_drops_what_exists() -> None:
    table = native_table(grid(3, 3))
    left = table.without(coordinates((0, 0), (2, 2), (7, 7)))
    assert len(left) == 7
    assert left.find([0, 0]) is None
    assert left.find([0, 1]) == table.find([0, 1])
    assert table.without(np.empty((0, 2), np.uint32)) is table
    assert table.without(coordinates((9, 9))) is table


def test_overlay_replaces_and_deletes() -> None:
    older = numbered((0,), (1,), (2,))
    newer = numbered((1,), (5,), start=10)
    united = older.overlay(newer, deleted=coordinates((2,), (1,)))
    assert references(united) == [
        ((0,), InlineChunk(b"0")),
        ((1,), InlineChunk(b"10")),
        ((5,), InlineChunk(b"11")),
    ]


def test_overlay_of_different_kinds_and_of_nothing() -> None:
    mixed, virtual = mixed_table(), virtual_table(3, 2)
    united = mixed.overlay(virtual)
    assert dict(references(united)) == dict(references(mixed)) | dict(references(virtual))
    assert ChunkTable.empty(2).overlay(virtual) == virtual
    assert virtual.overlay(ChunkTable.empty(2)) == virtual
    assert ChunkTable.empty(0).overlay(virtual) == virtual
    assert len(virtual.overlay(ChunkTable.empty(2), deleted=virtual.coordinates)) == 0


def test_concatenation_sorts_and_renumbers() -> None:
    first, second = virtual_table(4, 2), native_table(coordinates((0, 5), (9, 9)))
    united = concat_tables([second, first])
    assert references(united) == sorted(
        [*references(first), *references(second)], key=lambda pair: pair[0]
    )
    with pytest.raises(InvalidInputError, match="more than once"):
        concat_tables([first, first])


def test_concatenation_keeps_checksums_apart() -> None:
    with_etags = virtual_table(6, 2)
    without = ChunkTable.virtual(
        coordinates((50, 0)),
        BytesColumn.from_strings(["s3://z"]),
        np.zeros(1, np.uint64),
        np.ones(1, np.uint64),
    )
    other = ChunkTable.virtual(
        coordinates((60, 0)),
        BytesColumn.from_strings(["s3://z"]),
        np.zeros(1, np.uint64),
        np.ones(1, np.uint64),
        etags=BytesColumn.from_strings(["other"]),
        etag_rows=np.zeros(1, np.int32),
    )
    united = concat_tables([with_etags, without, other])
    assert united.find([50, 0]) == VirtualChunk("s3://z", 0, 1)
    assert united.find([60, 0]) == VirtualChunk("s3://z", 0, 1, "other")
    assert united.find([1, 0]) == with_etags.find([1, 0])


def test_compacting_drops_unused_targets() -> None:
    table = mixed_table()
    part = table.take(np.array([0, 1, 2, 6]))
    small = part.compacted()
    assert references(small) == references(part)
    assert len(small.locations) == 1
    assert len(small.chunk_ids) == 1
    assert len(small.inline) == 1
    assert len(part.locations) == 2


def test_equality_is_by_meaning() -> None:
    table = mixed_table()
    assert table == table.take(np.arange(len(table))).compacted()
    assert table != table.take(np.arange(len(table) - 1))
    assert table != "table"
    left, right = numbered((0,), (1,)), numbered((0,), (1,), start=1)
    assert left != right
    modified = virtual_table()
    assert modified != virtual_table(checksums=False)


def test_equality_of_rows_that_share_a_long_target() -> None:
    """Two tables whose rows, written out, would take 100 GB."""
    size, rows = 2**20, 100_000
    table = ChunkTable(
        grid(rows),
        np.full(rows, ChunkKind.INLINE, np.uint8),
        np.zeros(rows, np.uint64),
        np.full(rows, size, np.uint64),
        np.zeros(rows, np.uint32),
        inline=BytesColumn.from_list([bytes(size)]),
    )
    assert table == table.take(np.arange(rows))


# -- keys ----------------------------------------------------------------------------------


def test_keys_of_huge_boxes_sort_as_coordinates_do() -> None:
    most = 2**32 - 1
    rows = [(0, 0, 0), (0, 0, most), (0, 1, 0), (256, 0, 0), (most, 0, 1), (most, most, most)]
    [keys] = sort_keys(coordinates(*rows))
    assert keys.dtype.kind == "S"
    assert (keys[1:] > keys[:-1]).all()
    table = numbered(*reversed(rows))
    assert [tuple(row) for row in table.coordinates.tolist()] == rows
    assert table.find((most, 0, 1)) == InlineChunk(b"1")
    assert len(table.without(coordinates((256, 0, 0), (255, 0, 0)))) == 5
    with pytest.raises(InvalidInputError, match="more than once"):
        numbered(*rows, rows[3])


@pytest.mark.parametrize(
    "sizes", [(2**32 - 1,), (2**31, 2**31), (2**32 - 1, 2**31 - 1), (2**20, 2**20, 2**22)]
)
def test_keys_around_the_limit_of_64_bits(sizes: tuple[int, ...]) -> None:
    corners = coordinates(
        tuple(0 for _ in sizes),
        *(
            tuple(size - 1 if n == at else 0 for n, size in enumerate(sizes))
            for at in range(len(sizes))
        ),
        tuple(size - 1 for size in sizes),
    )
    corners = np.unique(corners, axis=0)
    [keys] = sort_keys(corners)
    assert (keys[1:] > keys[:-1]).all()


def test_keys_of_several_matrices_can_be_compared() -> None:
    small, large = coordinates((0, 1)), coordinates((0, 1), (5000, 70_000))
    mine, theirs = sort_keys(small, large)
    assert mine[0] == theirs[0]
    assert mine[0] != theirs[1]


def test_tables_hold_columns_not_copies() -> None:
    ids = np.zeros((3, 12), np.uint8)
    table = ChunkTable.native(grid(3), ids, np.ones(3, np.uint64))
    assert table.chunk_ids is ids
    assert np.shares_memory(table.take(slice(1, 3)).coordinates, table.coordinates)


def test_kinds_are_those_of_the_drop_in_type() -> None:
    assert samples.mixed_table().kinds.tolist()[:3] == [2, 1, 3]
