"""The columnar writer: layouts of tables, vectors and shared strings."""

from itertools import pairwise

import numpy as np
import pytest
from flatbuffers import number_types as kinds

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.columns import BytesColumn, framed_bytes
from icefloe.format.envelope import MAX_BUFFER_BYTES, FileType
from icefloe.format.flatbuffer_writer import (
    IDENTIFIER,
    BlobSection,
    Field,
    Link,
    RecordLayout,
    Section,
    TableSection,
    VectorSection,
    number,
    seal_buffer,
)
from icefloe.format.manifest_refs import BlockSection, SharedBlobs
from tests.unit.format.oracle import Row
from tests.unit.format.samples import expanded


def sealed(*sections: Section) -> bytes:
    return expanded(seal_buffer(sections, FileType.SNAPSHOT, 2))


def test_a_buffer_starts_with_its_root_and_identifier() -> None:
    buffer = sealed(TableSection(1, [Field(0, np.array([7], np.uint32))]))
    assert buffer[4:8] == IDENTIFIER == b"Ichk"
    assert Row.root(buffer).number(0, kinds.Uint32Flags) == 7


def test_fields_of_every_width_are_aligned() -> None:
    fields = [
        Field(0, np.array([1], np.uint8)),
        Field(1, np.array([2**63], np.uint64)),
        Field(2, np.array([3], np.uint16)),
        Field(3, np.arange(12, dtype=np.uint8).reshape(1, 12)),
        Field(4, np.array([-5], np.int32)),
    ]
    layout = RecordLayout(1, fields)
    for field in fields:
        width = field.dtype().base.itemsize
        assert layout.offsets[field.slot] % width == 0
        assert layout.offsets[field.slot] >= 4
    root = Row.root(sealed(TableSection(1, fields)))
    assert root.number(0, kinds.Uint8Flags) == 1
    assert root.number(1, kinds.Uint64Flags) == 2**63
    assert root.number(2, kinds.Uint16Flags) == 3
    assert root.struct(3, 12) == bytes(range(12))
    assert root.number(4, kinds.Int32Flags) == -5
    assert root.struct(5, 1) is None


def test_numbers_at_their_default_are_not_stored() -> None:
    values = np.array([0, 9, 0, 1], np.uint32)
    tables = TableSection(4, [number(0, values), number(1, values, 9), Field(2, values)])
    rows = Row.root(_list_of(tables)).rows(0)
    assert rows is not None
    assert [row.struct(0, 4) is None for row in rows] == [True, False, True, False]
    assert [row.struct(1, 4) is None for row in rows] == [False, True, False, False]
    assert [row.number(2, kinds.Uint32Flags) for row in rows] == [0, 9, 0, 1]
    assert [row.number(1, kinds.Uint32Flags, 9) for row in rows] == [0, 9, 0, 1]


def _list_of(tables: TableSection | BlockSection, *more: Section) -> bytes:
    vector = VectorSection(np.array([tables.rows]), Link(tables))
    return sealed(TableSection(1, [Field(0, Link(vector))]), vector, tables, *more)


def test_rows_share_what_they_link_to() -> None:
    blobs = BlobSection(BytesColumn.from_list([b"one", b"", b"three"]))
    links = Link(blobs, np.array([2, 0, 2, 1]))
    tables = TableSection(4, [Field(3, links, np.array([True, True, True, False]))])
    buffer = _list_of(tables, blobs)
    rows = Row.root(buffer).rows(0)
    assert rows is not None
    assert [row.blob(3) for row in rows] == [b"three", b"one", b"three", None]
    assert buffer.count(b"three") == 1


@pytest.mark.parametrize("counts", [[0], [3], [2, 0, 3], [], [0, 0], [1, 1, 1]])
@pytest.mark.parametrize("kind", ["u2", "u4", "u8", "3u1", "2u4", "4u8"])
def test_vectors_of_numbers_and_structs(counts: list[int], kind: str) -> None:
    dtype = np.dtype(f"<{kind[1:]}") if kind[0] != "u" else np.dtype(f"<{kind}")
    shape = (sum(counts), int(kind[0])) if kind[0] != "u" else (sum(counts),)
    items = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    width = items.itemsize * (shape[1] if len(shape) > 1 else 1)
    vectors = VectorSection(np.array(counts, np.int64), items)
    tables = TableSection(len(counts), [Field(0, Link(vectors))])
    rows = Row.root(_list_of(tables, vectors)).rows(0)
    assert rows is not None
    found = [row.items(0, width) for row in rows]
    edges = np.cumsum([0, *counts])
    assert found == [[items[place].tobytes() for place in range(a, b)] for a, b in pairwise(edges)]


def test_strings_end_with_a_zero_byte() -> None:
    rows = [b"", b"a", b"ab", b"abc", b"abcd", b"x" * 1000]
    column = BytesColumn.from_list(rows)
    laid_out = column.framed().tobytes()
    at = 0
    for row, size in zip(rows, framed_bytes(column.lengths()).tolist(), strict=True):
        assert laid_out[at : at + 4] == len(row).to_bytes(4, "little")
        assert laid_out[at + 4 : at + 4 + len(row)] == row
        padding = laid_out[at + 4 + len(row) : at + size]
        assert padding == bytes(len(padding))
        assert 1 <= len(padding) <= 4
        assert size % 4 == 0
        at += size
    assert at == len(laid_out)


class Huge(BlobSection):
    """A section that claims a size, and is never written."""

    def __init__(self, size: int) -> None:
        super().__init__(BytesColumn.empty())
        self._size = size

    def size_bytes(self) -> int:
        return self._size


def test_buffers_of_two_gib_are_refused_before_they_are_written() -> None:
    root = TableSection(1, [Field(0, np.array([7], np.uint32))])
    with pytest.raises(InvalidInputError, match="split it") as caught:
        seal_buffer([root, Huge(MAX_BUFFER_BYTES)], FileType.MANIFEST, 2)
    assert caught.value.kind == ErrorKind.LIMIT_EXCEEDED


# -- blocks --------------------------------------------------------------------------------


def block_rows(
    count: int, distinct: int, *, spread: bool
) -> tuple[bytes, list[bytes], list[tuple[int, ...]]]:
    texts = [b"<location %06d>" % n for n in range(distinct)]
    targets = (
        np.arange(count) % distinct if spread else np.arange(count) * distinct // max(count, 1)
    )
    coordinates = np.stack([np.arange(count), np.arange(count) * 3], axis=1).astype(np.uint32)
    section = BlockSection(
        coordinates,
        [Field(2, np.arange(count).astype(np.uint64))],
        [SharedBlobs(1, BytesColumn.from_list(texts), targets)],
    )
    wanted = [texts[target] for target in targets.tolist()]
    return _list_of(section), wanted, [tuple(row) for row in coordinates.tolist()]


@pytest.mark.parametrize("spread", [True, False])
@pytest.mark.parametrize("distinct", [1, 3, 600])
@pytest.mark.parametrize("count", [0, 1, 511, 512, 513, 1025, 40_000])
def test_blocks_at_their_edges(count: int, distinct: int, spread: bool) -> None:
    buffer, wanted, coordinates = block_rows(count, distinct, spread=spread)
    rows = Row.root(buffer).rows(0)
    assert rows is not None
    assert len(rows) == count
    sampled = {*range(min(count, 1100)), *range(max(0, count - 600), count)}
    for place in sampled:
        assert rows[place].blob(1) == wanted[place]
        assert tuple(rows[place].numbers(0) or ()) == coordinates[place]
        assert rows[place].number(2, kinds.Uint64Flags) == place
    for text in set(wanted):
        assert buffer.count(text) == 1, "a string that far blocks share is stored once"
    assert buffer.count(b"<location") == len(set(wanted)), "one that nobody uses is left out"
