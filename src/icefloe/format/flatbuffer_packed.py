"""Tables that carry everything with them: before each its vtable, behind it its strings.

Such tables look alike from one to the next, offsets included, which is what compression needs:
all that is left are the bytes that really differ.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from icefloe.format.columns import Bools, Bytes, BytesColumn, Ints, splits_of
from icefloe.format.flatbuffer_writer import Field, Link, RecordLayout


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
        framed = BytesColumn(column.framed(), splits_of(_framed_bytes(column.lengths())))
        return cls(slot, framed if present is None else _emptied(framed, present))


def _framed_bytes(lengths: Ints) -> Ints:
    return 8 + (lengths & ~3)


def _emptied(column: BytesColumn, kept: Bools) -> BytesColumn:
    """Make rows empty that are not to be kept."""
    if kept.all():
        return column
    lengths = column.lengths()
    data = column.data[np.repeat(kept, lengths)]
    return BytesColumn(data, splits_of(np.where(kept, lengths, 0)))


def scattered(column: BytesColumn, rows: Ints, count: int) -> BytesColumn:
    """Spread rows over a longer column whose other rows are empty."""
    lengths = np.zeros(count, np.int64)
    lengths[rows] = column.lengths()
    return BytesColumn(column.data, splits_of(lengths))


class PackedSection:
    """Tables of one type, one behind the other, each with what it carries."""

    def __init__(self, count: int, fields: Sequence[Field], carried: Sequence[Carried]) -> None:
        self.start = 0
        self.rows = count
        self._fields = [f for f in fields if f.present is None or f.present.any()]
        self._carried = carried
        self._sizes = [each.rows.lengths() for each in carried]
        places = [
            Field(each.slot, np.zeros(count, "<u4"), None if each.elsewhere else sizes > 0)
            for each, sizes in zip(carried, self._sizes, strict=True)
        ]
        self._layout = RecordLayout(count, [*self._fields, *places])
        alignment = max([4, *(f.dtype().base.itemsize for f in self._fields)])
        self._lead = self._layout.vtable_bytes + -self._layout.vtable_bytes % alignment
        fixed = self._lead + self._layout.table_bytes
        ends = np.full(count, fixed, np.int64)
        self._carried_at = list[Ints]()
        for sizes in self._sizes:
            self._carried_at.append(ends)
            ends = ends + sizes
        self._starts = splits_of(ends + -ends % alignment)

    def size_bytes(self) -> int:
        """Give the size."""
        total = int(self._starts[-1])
        return total + -total % 8

    def positions(self, rows: NDArray[np.integer]) -> Ints:
        """Say where tables lie."""
        where: Ints = self._starts[rows] + (self.start + self._lead)
        return where

    def column(self) -> tuple[BytesColumn, int]:
        """Give the tables as rows of bytes to be carried, and where in them a table begins."""
        return BytesColumn(self._whole()[: self._starts[-1]], self._starts), self._lead

    def pieces(self) -> Iterator[Bytes]:
        """Write all tables."""
        yield self._whole()

    def _whole(self) -> Bytes:
        out = np.zeros(self.size_bytes(), np.uint8)
        words = out.view("<u4")
        firsts = self._starts[:-1] >> 2
        fixed = self._fixed_parts().view("<u4").reshape(self.rows, -1)
        words[firsts[:, None] + np.arange(fixed.shape[1])] = fixed
        for each, sizes, at in zip(self._carried, self._sizes, self._carried_at, strict=True):
            counts = sizes >> 2
            source = each.rows.data.view("<u4")
            shift = firsts + (at >> 2) - splits_of(counts)[:-1]
            words[np.repeat(shift, counts) + np.arange(len(source))] = source
        return out

    def _fixed_parts(self) -> Bytes:
        """Write the vtables and tables, which take as much room in each row."""
        layout = self._layout
        vtables = layout.vtables[: len(layout.vtables) // layout.vtable_bytes * layout.vtable_bytes]
        vtables = vtables.reshape(-1, layout.vtable_bytes)
        parts = np.zeros((self.rows, self._lead + layout.table_bytes), np.uint8)
        chosen = vtables[0] if layout.vtable_of_row is None else vtables[layout.vtable_of_row]
        parts[:, self._lead - layout.vtable_bytes : self._lead] = chosen
        records = parts[:, self._lead :].view(layout.record_dtype(layout.table_bytes, {}))[:, 0]
        where = self.positions(np.arange(self.rows))
        layout.fill(records, where, where - layout.vtable_bytes, 0)
        records["vtable"] = layout.vtable_bytes  # each has its own, right before it
        for each, sizes, at in zip(self._carried, self._sizes, self._carried_at, strict=True):
            name, field = f"slot{each.slot}", layout.offsets.get(each.slot)
            if field is None:
                continue
            inside = at + (each.inner - self._lead - field)
            if each.elsewhere is None:
                records[name] = np.where(sizes > 0, inside, 0)
            else:
                outside = each.elsewhere.offsets_from(where + field, 0)
                records[name] = np.where(sizes > 0, inside, outside)
        return parts
