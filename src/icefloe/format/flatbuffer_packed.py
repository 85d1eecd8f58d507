"""Tables that carry everything with them: before each its vtable, behind it its strings.

Such tables look alike from one to the next, offsets included, which is what compression needs:
all that is left are the bytes that really differ.
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
from icefloe.format.flatbuffer_writer import Link

type Columns = Mapping[int, NDArray[Any]]
"""Fields by slot: numbers, or rows of bytes."""


@dataclass(frozen=True, slots=True)
class Carried:
    """A field that points at bytes which lie behind its table."""

    slot: int
    rows: BytesColumn
    """What to lay there, for each table: whole words, or nothing."""
    inner: int = 0
    """How far into those bytes the offset points."""
    elsewhere: Link | None = None
    """What to point at from tables that carry nothing; `None`: they lack the field."""

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


class PackedSection:
    """Tables of one type, one behind the other, each with what it carries."""

    def __init__(
        self,
        count: int,
        shape: TableShape,
        columns: Columns,
        carried: Sequence[Carried],
    ) -> None:
        self.start = 0
        self.rows = count
        self._shape = shape
        self._columns = columns
        self._carried = carried
        self._sizes = [each.rows.lengths() for each in carried]
        self._carried_at = list[Ints]()
        ends = np.full(count, shape.lead_bytes + shape.table_bytes, np.int64)
        for sizes in self._sizes:
            self._carried_at.append(ends)
            ends = ends + sizes
        self._starts = splits_of(ends + -ends % shape.alignment)

    def size_bytes(self) -> int:
        """Give the size."""
        total = int(self._starts[-1])
        return total + -total % 8

    def positions(self, rows: NDArray[np.integer]) -> Ints:
        """Say where tables lie."""
        where: Ints = self._starts[rows] + (self.start + self._shape.lead_bytes)
        return where

    def column(self) -> BytesColumn:
        """Give the tables as rows of bytes to be carried; each begins with the shape's lead."""
        return BytesColumn(self._whole()[: self._starts[-1]], self._starts)

    def pieces(self) -> Iterator[Bytes]:
        """Write all tables."""
        yield self._whole()

    def _whole(self) -> Bytes:
        out = np.zeros(self.size_bytes(), np.uint8)
        words = out.view("<u4")
        firsts = self._starts[:-1] >> 2
        fixed = self._fixed_parts().view("<u4")
        words[firsts[:, None] + np.arange(fixed.shape[1])] = fixed
        for each, sizes, at in zip(self._carried, self._sizes, self._carried_at, strict=True):
            counts = sizes >> 2
            words[ranges(firsts + (at >> 2), counts)] = each.rows.data.view("<u4")
        return out

    def _fixed_parts(self) -> Bytes:
        """Write the vtables and tables, which take as much room in each row."""
        shape = self._shape
        parts = np.empty((self.rows, shape.lead_bytes + shape.table_bytes), np.uint8)
        parts[:] = np.frombuffer(shape.blank(), np.uint8)
        for slot, values in self._columns.items():
            _put(parts, shape.lead_bytes + shape.at[slot], values)
        for each, sizes, at in zip(self._carried, self._sizes, self._carried_at, strict=True):
            field = shape.lead_bytes + shape.at[each.slot]
            offsets = at + (each.inner - field)
            if each.elsewhere is not None:
                outside = each.elsewhere.offsets_from(self._starts[:-1] + (self.start + field), 0)
                offsets = np.where(sizes > 0, offsets, outside)
            elif not sizes.all():
                offsets = np.where(sizes > 0, offsets, 0)
                entry = shape.entry(each.slot)
                parts[sizes == 0, entry : entry + 2] = 0  # the field is absent
            _put(parts, field, offsets.astype("<u4"))
        return parts


def _put(parts: Bytes, at: int, values: NDArray[np.generic]) -> None:
    """Write a column of numbers or of rows of bytes into a matrix of bytes."""
    if len(parts):
        raw = np.ascontiguousarray(values).view(np.uint8).reshape(len(parts), -1)
        parts[:, at : at + raw.shape[1]] = raw
