"""Tables that carry everything with them: before each its vtable, behind it its strings.

Such tables look alike from one to the next, offsets included, which is what compression needs:
all that is left are the bytes that really differ. And they may be moved as they are, so that a
list of them that grows by one is not written anew.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icefloe.format.columns import (
    Bools,
    Bytes,
    BytesColumn,
    Ints,
    framed_bytes,
    ranges,
    splits_of,
)
from icefloe.format.flatbuffer_tree import TableShape

type Columns = Mapping[int, NDArray[Any]]
"""Fields by slot: numbers, or rows of bytes."""


@dataclass(frozen=True, slots=True)
class Carried:
    """A field that points at bytes which lie behind its table."""

    slot: int
    rows: BytesColumn
    """What to lay there, for each table: whole words, or nothing if it lacks the field."""
    inner: int = 0
    """How far into those bytes the offset points."""

    @classmethod
    def blobs(cls, slot: int, column: BytesColumn, present: Bools | None = None) -> "Carried":
        """Carry strings or byte vectors."""
        framed = BytesColumn(column.framed(), splits_of(framed_bytes(column.lengths())))
        return cls(slot, framed if present is None else _emptied(framed, present))

    @classmethod
    def items(cls, slot: int, counts: Ints, items: Bytes) -> "Carried":
        """Carry vectors of structs of whole words; tables with an empty one lack the field."""
        words = counts * (items.shape[1] // 4)
        starts = splits_of(words + (counts > 0))
        data = np.zeros(int(starts[-1]), "<u4")
        heads = starts[:-1][counts > 0]
        data[heads] = counts[counts > 0]
        data[ranges(starts[:-1] + 1, words)] = np.ascontiguousarray(items).reshape(-1).view("<u4")
        return cls(slot, BytesColumn(data.view(np.uint8), 4 * starts))


def _emptied(column: BytesColumn, kept: Bools) -> BytesColumn:
    """Make rows empty that are not to be kept."""
    if kept.all():
        return column
    lengths = column.lengths()
    data = column.data[np.repeat(kept, lengths)]
    return BytesColumn(data, splits_of(np.where(kept, lengths, 0)))


def pack_tables(
    count: int, shape: TableShape, columns: Columns, carried: Sequence[Carried]
) -> BytesColumn:
    """Write tables of one type, each with what it carries, as rows of bytes.

    Each row begins with the shape's lead, and must come to lie at a multiple of its alignment.
    """
    sizes = [each.rows.lengths() for each in carried]
    places = list[Ints]()
    ends = np.full(count, shape.lead_bytes + shape.table_bytes, np.int64)
    for size in sizes:
        places.append(ends)
        ends = ends + size
    starts = splits_of(ends + -ends % shape.alignment)
    words = np.zeros(int(starts[-1]) >> 2, "<u4")
    firsts = starts[:-1] >> 2
    fixed = _fixed_parts(count, shape, columns, list(zip(carried, sizes, places, strict=True)))
    words[firsts[:, None] + np.arange(fixed.shape[1] >> 2)] = fixed.view("<u4")
    for each, size, at in zip(carried, sizes, places, strict=True):
        words[ranges(firsts + (at >> 2), size >> 2)] = each.rows.data.view("<u4")
    return BytesColumn(words.view(np.uint8), starts)


def _fixed_parts(
    count: int, shape: TableShape, columns: Columns, carried: Sequence[tuple[Carried, Ints, Ints]]
) -> Bytes:
    """Write the vtables and tables, which take as much room in each row."""
    parts = np.empty((count, shape.lead_bytes + shape.table_bytes), np.uint8)
    parts[:] = np.frombuffer(shape.blank(), np.uint8)
    for slot, values in columns.items():
        _put(parts, shape.lead_bytes + shape.at[slot], values)
    for each, size, at in carried:
        field = shape.lead_bytes + shape.at[each.slot]
        offsets = at + (each.inner - field)
        if not size.all():
            offsets = np.where(size > 0, offsets, 0)
            entry = shape.entry(each.slot)
            parts[size == 0, entry : entry + 2] = 0  # the field is absent
        _put(parts, field, offsets.astype("<u4"))
    return parts


class PackedSection:
    """Tables that were written already, each a multiple of eight bytes."""

    def __init__(self, rows: BytesColumn, lead_bytes: int) -> None:
        self.start = 0
        self._rows = rows
        self._lead_bytes = lead_bytes

    def size_bytes(self) -> int:
        """Give the size."""
        return len(self._rows.data)

    def positions(self, rows: NDArray[np.integer]) -> Ints:
        """Say where tables lie."""
        where: Ints = self._rows.splits[rows] + (self.start + self._lead_bytes)
        return where

    def pieces(self) -> Iterator[Bytes]:
        """Give all tables."""
        yield self._rows.data


def _put(parts: Bytes, at: int, values: NDArray[np.generic]) -> None:
    """Write a column of numbers or of rows of bytes into a matrix of bytes."""
    if len(parts):
        raw = np.ascontiguousarray(values).view(np.uint8).reshape(len(parts), -1)
        parts[:, at : at + raw.shape[1]] = raw
