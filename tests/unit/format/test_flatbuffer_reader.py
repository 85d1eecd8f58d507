"""The checked reader: what is missing, misplaced or multiplied is refused before use."""

import struct
from collections.abc import Callable

import numpy as np
import pytest

from icefloe.errors import FormatError
from icefloe.format.flatbuffer_reader import BUDGET_FACTOR, FREE_BUDGET_BYTES, Buffer, Tables
from tests.fuzz.bombs import Layout


def opened(fields: dict[int, bytes | str], *vectors: tuple[str, int, bytes]) -> Tables:
    layout = Layout()
    layout.table("root", fields)
    for name, count, data in vectors:
        layout.vector(name, count, data)
    return Buffer(layout.finish()).root()


def test_fields_come_out_as_columns() -> None:
    root = opened({0: b"\7", 1: b"\1\2", 2: struct.pack("<I", 2**31), 3: struct.pack("<Q", 2**63)})
    assert root.u8(0).tolist() == [7]
    assert root.u16(1).tolist() == [513]
    assert root.u32(2).tolist() == [2**31]
    assert root.i32(2).tolist() == [-(2**31)]
    assert root.u64(3).tolist() == [2**63]
    assert root.u8(9, 5).tolist() == [5]
    assert root.has(3).tolist() == [True]
    assert root.has(4).tolist() == [False]


def test_optional_things_may_be_absent() -> None:
    root = opened({0: b"x"})
    rows, present = root.optional_struct(1, 12)
    assert rows.tolist() == [[0] * 12]
    assert not present[0]
    assert root.blobs(1).column().to_list() == [b""]
    assert not root.vectors(1).present[0]
    assert len(root.vectors(1).tables()) == 0


@pytest.mark.parametrize(
    "read",
    [
        lambda root: root.struct(1, 12),
        lambda root: root.children(1),
        lambda root: root.blobs(1, required=True),
        lambda root: root.vectors(1, required=True),
    ],
)
def test_required_things_may_not(read: Callable[[Tables], object]) -> None:
    root = opened({0: b"x"})
    with pytest.raises(FormatError, match="missing"):
        read(root)


@pytest.mark.parametrize("size", range(8))
def test_buffers_too_short_for_a_table(size: int) -> None:
    with pytest.raises(FormatError, match="too short"):
        Buffer(bytes(size))


@pytest.mark.parametrize(
    ("root", "problem"),
    [(0xFFFFFFFF, "outside"), (0x7FFFFFFC, "outside"), (30, "outside|aligned"), (9, "aligned")],
)
def test_roots_that_point_nowhere(root: int, problem: str) -> None:
    buffer = Buffer(struct.pack("<I", root) + bytes(28))
    with pytest.raises(FormatError, match=problem):
        buffer.root()


@pytest.mark.parametrize(
    ("vtable", "problem"),
    [
        ((3, 8), "vtable has an impossible length"),
        ((2, 8), "vtable has an impossible length"),
        ((0, 8), "vtable has an impossible length"),
        ((7, 8), "vtable has an impossible length"),
        ((6, 3), "table has an impossible length"),
        ((0xFFFE, 8), "outside"),
        ((6, 0xFFFF), "outside"),
    ],
)
def test_impossible_vtables(vtable: tuple[int, int], problem: str) -> None:
    data = struct.pack("<I4xHHHxxi4x", 16, *vtable, 4, 8)
    with pytest.raises(FormatError, match=problem):
        Buffer(data).root()


@pytest.mark.parametrize("soffset", [-(2**31), 2**31 - 1, -9, 17, 1])
def test_vtables_that_lie_elsewhere(soffset: int) -> None:
    data = struct.pack("<I4xHHHxxi4x", 16, 6, 8, 4, soffset)
    with pytest.raises(FormatError):
        Buffer(data).root()


def test_fields_stay_within_their_table() -> None:
    data = struct.pack("<I4xHHHxxi4x", 16, 6, 8, 6, 8)
    root = Buffer(data).root()
    assert root.u8(0).tolist() == [0]
    with pytest.raises(FormatError, match="outside of its table"):
        root.u32(0)
    with pytest.raises(FormatError, match="outside of its table"):
        root.struct(0, 12)


@pytest.mark.parametrize("count", [5, 2**31, 2**32 - 1])
def test_vectors_stay_within_the_buffer(count: int) -> None:
    root = opened({0: "items"}, ("items", count, bytes(8)))
    for item_bytes in (1, 4, 8):
        if count * item_bytes > 12:
            with pytest.raises(FormatError, match="outside"):
                root.vectors(0, item_bytes)


def test_misaligned_vectors_are_refused() -> None:
    root = opened({0: "items"}, ("items", 1, bytes(20)))
    vectors = root.vectors(0, 16)
    with pytest.raises(FormatError, match="not aligned"):
        vectors.u64_structs(2)


def test_rows_of_coordinates_must_be_equally_long() -> None:
    layout = Layout()
    layout.table("root", {0: "rows"})
    layout.links("rows", ["a", "b"])
    layout.table("a", {0: "one"})
    layout.table("b", {0: "two"})
    layout.vector("one", 1, bytes(4))
    layout.vector("two", 2, bytes(8))
    vectors = Buffer(layout.finish()).root().vectors(0).tables().vectors(0)
    assert vectors.splits().tolist() == [0, 1, 3]
    with pytest.raises(FormatError, match="number of dimensions"):
        vectors.u32_matrix()


def test_too_many_dimensions_are_refused() -> None:
    root = opened({0: "index"}, ("index", 1025, bytes(4100)))
    with pytest.raises(FormatError, match="1025 dimensions"):
        root.vectors(0).u32_matrix()


def shared_blob(tables: int, size: int) -> Tables:
    layout = Layout()
    layout.table("root", {0: "rows"})
    layout.links("rows", ["a", "b"] * (tables // 2))
    layout.table("a", {0: "blob"})
    layout.table("b", {0: "other"})
    layout.vector("blob", size, b"a" * size)
    layout.vector("other", size, b"b" * size)
    return Buffer(layout.finish()).root().vectors(0).tables()


def test_shared_blobs_are_copied_once_wherever_their_tables_stand() -> None:
    size = 2**20
    blobs = shared_blob(2000, size).blobs(0)
    for column, rows in (blobs.stored(), blobs.distinct()):
        assert len(column) == 2
        assert [column[int(row)][:1] for row in rows[:4]] == [b"a", b"b", b"a", b"b"]
        assert len(column.data) == 2 * size


def test_multiplied_bytes_are_refused_before_they_are_copied() -> None:
    with pytest.raises(FormatError, match="refers to itself so often"):
        shared_blob(2000, 2**20).blobs(0).column()


def test_the_budget_grows_with_the_buffer_and_can_be_renewed() -> None:
    buffer = Buffer(bytes(1024))
    whole = BUDGET_FACTOR * 1024 + FREE_BUDGET_BYTES
    buffer.charge(whole)
    with pytest.raises(FormatError, match="refers to itself"):
        buffer.charge(1)
    buffer.renew_budget()
    buffer.charge(whole)


def test_repeated_offsets_are_charged_for_every_table() -> None:
    layout = Layout()
    layout.table("root", {0: "rows"})
    layout.repeated_link("rows", 400_000, "vector of rows")
    layout.table("vector of rows", {0: "inner"})
    layout.repeated_link("inner", 400_000, "leaf")
    layout.table("leaf", {0: b"x"})
    rows = Buffer(layout.finish()).root().vectors(0).tables()
    with pytest.raises(FormatError, match="refers to itself"):
        rows.vectors(0).tables()


def test_tables_may_differ_in_their_fields() -> None:
    layout = Layout()
    layout.table("root", {0: "rows"})
    layout.links("rows", ["full", "none", "full", "some"])
    layout.table("full", {0: b"\1", 1: "text"})
    layout.table("none", {})
    layout.table("some", {1: "text"})
    layout.vector("text", 2, b"hi")
    tables = Buffer(layout.finish()).root().vectors(0).tables()
    assert tables.u8(0, 9).tolist() == [1, 9, 1, 9]
    assert tables.blobs(1).column().to_list() == [b"hi", b"", b"hi", b"hi"]
    assert tables.has(1).tolist() == [True, False, True, True]
    picked = tables.where(np.array([False, True, False, True]))
    assert picked.u8(0).tolist() == [0, 0]
    with pytest.raises(FormatError, match="missing"):
        tables.blobs(1, required=True)
