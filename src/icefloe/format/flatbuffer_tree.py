"""Flatbuffers written one table at a time: for files, and parts of files, that have few.

What a table points at is written behind it, and a vtable stands right before each table. The
columnar writer (`icefloe.format.flatbuffer_writer`) takes over where there are many tables.

>>> from icefloe.format.flatbuffer_scalar import ScalarBuffer
>>> person = TableShape((1, "Q"), (0, OFFSET))
>>> tree = Tree()
>>> at = tree.table(person, 1815)
>>> tree.blob(b"Ada", at + person.at[0])
>>> root = ScalarBuffer(tree.whole_buffer()).root()
>>> root.blob(0), root.number(1, "Q")
(b'Ada', 1815)
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from struct import Struct, calcsize
from typing import Final

import numpy as np
from numpy.typing import NDArray

from icefloe.format.columns import Bytes, Ints
from icefloe.format.flatbuffer_writer import IDENTIFIER, Target

OFFSET: Final = "x"
"""The type of a field that points at something, which is filled in later."""

_HEAD_BYTES: Final = 8
_WORD: Final = Struct("<I")
_PADDINGS: Final = [bytes(4 - remainder) for remainder in range(4)]


class TableShape:
    """Where the fields of a table lie, and the vtable that says so.

    Fields are given as slot and type, a code of the `struct` module, in the order in which they
    lie in the table: after one word those of eight bytes, then words, then the rest.
    """

    def __init__(self, *fields: tuple[int, str]) -> None:
        self.at: dict[int, int] = {}
        layout, end, alignment = "<i", 4, 4
        for slot, code in fields:
            size = 4 if code == OFFSET else calcsize(f"<{code}")
            aligned = 4 if code.endswith("s") else size
            gap = -end % aligned
            self.at[slot] = end + gap
            layout += f"{gap}x" + ("4x" if code == OFFSET else code)
            end += gap + size
            alignment = max(alignment, aligned)
        padding = -end % 4
        slots = 1 + max(self.at, default=-1)
        entries = [4 + 2 * slots, end + padding, *(self.at.get(slot, 0) for slot in range(slots))]
        vtable = Struct(f"<{len(entries)}H").pack(*entries)
        self._struct = Struct(f"{layout}{padding}x")
        self._codes = [code for _, code in fields if code != OFFSET]
        self._vtable_bytes = len(vtable)
        self.alignment = alignment
        self.table_bytes = self._struct.size
        # What goes before the table, for each number of bytes that may stand before that.
        self.leads = [bytes(-(used + len(vtable)) % alignment) + vtable for used in range(8)]
        self.lead_bytes = len(self.leads[0])

    def pack(self, *values: int | bytes) -> bytes:
        """Write a table whose offsets are still zero."""
        return self._struct.pack(self._vtable_bytes, *values)

    def blank(self) -> bytes:
        """Write a vtable and a table of zeros behind it."""
        zeros = [b"" if code.endswith("s") else 0 for code in self._codes]
        return self.leads[0] + self.pack(*zeros)

    def entry(self, slot: int) -> int:
        """Say where in the lead the vtable's entry for a field lies."""
        return self.lead_bytes - self._vtable_bytes + 4 + 2 * slot


class Tree:
    """The tables, vectors and strings of a buffer, each placed where something points at it.

    As a section, it may point at other sections behind it.
    """

    def __init__(self) -> None:
        self.start = 0
        self._out = bytearray()
        self._root: int | None = None
        self._outside: list[tuple[int, Target]] = []

    def table(self, shape: TableShape, *values: int | bytes, field: int | None = None) -> int:
        """Add a table that a field points at; the first one is the root. Give its position."""
        out = self._out
        out += shape.leads[len(out) & 7]
        at = len(out)
        out += shape.pack(*values)
        if field is not None:
            _WORD.pack_into(out, field, at - field)
        elif self._root is None:
            self._root = at
        return at

    def blob(self, data: bytes, field: int) -> None:
        """Add a string or a vector of bytes."""
        out = self._out
        _WORD.pack_into(out, field, len(out) - field)
        length = len(data)
        out += length.to_bytes(4, "little")
        out += data
        out += _PADDINGS[length & 3]

    def items(self, count: int, data: bytes, field: int, *, alignment: int = 4) -> None:
        """Add a vector of numbers or structs."""
        out = self._out
        out += bytes(-(len(out) + 4) % alignment)
        _WORD.pack_into(out, field, len(out) - field)
        out += count.to_bytes(4, "little")
        out += data
        out += bytes(-len(data) % 4)

    def links(self, count: int, field: int) -> range:
        """Add a vector of offsets; give the fields in which they go."""
        out = self._out
        at = len(out)
        _WORD.pack_into(out, field, at - field)
        out += count.to_bytes(4, "little")
        out += bytes(4 * count)
        return range(at + 4, at + 4 + 4 * count, 4)

    def written_tables(self, tables: Sequence[bytes], lead_bytes: int, field: int) -> None:
        """Add a vector of tables that were written already, each in whole words after its lead."""
        out = self._out
        fields = self.links(len(tables), field)
        starts = accumulate(map(len, tables), initial=len(out) + lead_bytes)
        offsets = [start - each for each, start in zip(fields, starts, strict=False)]
        out[fields.start : fields.stop] = Struct(f"<{len(offsets)}I").pack(*offsets)
        out += b"".join(tables)

    def link_outside(self, target: Target, field: int) -> None:
        """Point at the first row of another section."""
        self._outside.append((field, target))

    def whole_buffer(self) -> bytes:
        """Give the buffer, if the tree is all there is in it."""
        self.start = _HEAD_BYTES
        root = _HEAD_BYTES + (self._root or 0)
        return b"".join([root.to_bytes(4, "little"), IDENTIFIER, *(p.data for p in self.pieces())])

    def row(self) -> bytes:
        """Give a tree that points at nothing else, to be moved to any multiple of eight."""
        return bytes(self._out) + bytes(-len(self._out) % 8)

    def size_bytes(self) -> int:
        """Give the size."""
        return len(self._out) + -len(self._out) % 8

    def positions(self, rows: NDArray[np.integer]) -> Ints:
        """Say where the root lies."""
        return np.full(len(rows), self.start + (self._root or 0), np.int64)

    def pieces(self) -> Iterator[Bytes]:
        """Write all of it."""
        first = np.zeros(1, np.int64)
        for field, target in self._outside:
            where = int(target.positions(first)[0]) - self.start
            _WORD.pack_into(self._out, field, where - field)
        yield np.frombuffer(bytes(self._out) + bytes(-len(self._out) % 8), np.uint8)
