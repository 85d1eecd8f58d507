"""A columnar writer of flatbuffers: sections are planned first, then written in order.

A buffer is a list of sections: many tables of one type, many vectors, many byte strings. Each
section knows the offsets of its rows before any byte exists, because offsets may only point
forward: parents are listed before their children. Writing then happens piece by piece, straight
into a compressor. Files with few tables are written one table at a time (`Tree`); packed
tables carry their vtable before them and their strings behind them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, chain
from math import prod
from struct import Struct, calcsize
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.columns import Bools, Bytes, BytesColumn, Ints, framed_bytes, ranges, splits_of
from icefloe.format.envelope import DEFAULT_LEVEL, MAX_BUFFER_BYTES, FileType, seal
from icefloe.records import MutableRecord, Record, field

IDENTIFIER: Final = b"Ichk"

_HEAD_BYTES: Final = 8
_BATCH_ITEMS: Final = 1 << 16


class Target(Protocol):
    """Something that offsets can point at, row by row."""

    def positions(self, rows: NDArray[np.integer]) -> Ints:
        """Return the positions of rows in the planned buffer."""
        ...


class Section(Target, Protocol):
    """A run of rows of one kind."""

    start: int
    """Where the section begins; set when the buffer is planned."""

    def size_bytes(self) -> int:
        """Return the size, a multiple of 8."""
        ...

    def pieces(self) -> Iterator[Bytes]:
        """Write the section, in order, in pieces."""
        ...


class Link(Record):
    """A column of offsets: for each row, which row of another section it points at."""

    target: Target
    rows: NDArray[np.integer] | None = None
    """`None`: row by row. Where the field is absent, any number will do."""

    def offsets_from(self, fields: Ints, first: int) -> Ints:
        """Return the values to store in fields that lie at these positions."""
        last = first + len(fields)
        rows = np.arange(first, last) if self.rows is None else self.rows[first:last]
        return self.target.positions(rows) - fields


class Tail(Record):
    """A column of offsets to whatever lies right behind each table."""


class Field(Record):
    """One field of a table section: numbers, rows of bytes (a struct), or offsets."""

    slot: int
    values: NDArray[np.generic] | Link | Tail
    present: Bools | None = None
    """Which tables have the field; `None` for all of them."""

    def dtype(self) -> np.dtype[np.generic]:
        """Return the type under which a table stores the field."""
        if isinstance(self.values, Link | Tail):
            return np.dtype("<u4")
        return np.dtype((self.values.dtype, self.values.shape[1:]))


def number(slot: int, values: NDArray[np.generic], default: int = 0) -> Field:
    """Make a scalar field; tables where it has its default do not store it."""
    stored = values != default
    return Field(slot, values, None if stored.all() else stored)


class RecordLayout:
    """The shape that all tables of a section share, and a vtable per set of present fields."""

    def __init__(self, rows: int, fields: Sequence[Field]) -> None:
        self.fields = [f for f in fields if f.present is None or f.present.any()]
        self.slots = 1 + max((f.slot for f in self.fields), default=-1)
        self._place_fields()
        self._make_vtables(rows)

    def _place_fields(self) -> None:
        """Put wide fields first, after the 4-byte link to the vtable, without gaps."""
        self.dtypes = {f.slot: f.dtype() for f in self.fields}
        widths = {slot: (kind.base.itemsize, kind.itemsize) for slot, kind in self.dtypes.items()}
        by_width = sorted(widths, key=lambda slot: -widths[slot][0])
        # An 8-byte field must lie at 8: one 4-byte field may go before it for free. The last one
        # given: in a chunk reference the place of its location, which repeats from block to block
        # as the link to the vtable beside it does, so that both compress as one.
        small = next((slot for slot in reversed(by_width) if widths[slot] == (4, 4)), None)
        if small is not None and any(widths[slot][0] == 8 for slot in by_width):
            by_width.remove(small)
            by_width.insert(0, small)
        self.offsets, position = dict[int, int](), 4
        for slot in by_width:
            base, size = widths[slot]
            position += -position % base
            self.offsets[slot] = position
            position += size
        self.table_bytes = position + -position % 4

    def _make_vtables(self, rows: int) -> None:
        codes, self.vtable_of_row = self._sets_of_fields(rows)
        raw = b"".join(map(self._vtable, codes))
        self.vtable_bytes = len(raw) // len(codes)
        self.vtables = np.frombuffer(raw + bytes(-len(raw) % 8), np.uint8)

    def _sets_of_fields(self, rows: int) -> tuple[list[int], Ints | None]:
        """List the sets of fields that tables have, a bit for each; which one each table has."""
        always = sum(1 << bit for bit, f in enumerate(self.fields) if f.present is None)
        if always + 1 == 1 << len(self.fields):
            return [always], None
        code = np.full(rows, always, np.int16)
        for bit, f in enumerate(self.fields):
            if f.present is not None:
                code |= f.present.astype(np.int16) << bit
        if (code == code[0]).all():
            return code[:1].tolist(), None
        codes, of_row = np.unique(code, return_inverse=True)
        return codes.tolist(), of_row

    def _vtable(self, code: int) -> bytes:
        places = [0] * self.slots
        for bit, f in enumerate(self.fields):
            if code >> bit & 1:
                places[f.slot] = self.offsets[f.slot]
        return np.array([4 + 2 * self.slots, self.table_bytes, *places], "<u2").tobytes()

    def record_dtype(self, stride: int, extra: dict[str, tuple[object, int]]) -> np.dtype[np.void]:
        """Describe one table, and what follows it within its stride, to numpy."""
        named = {"vtable": ("<i4", 0)} | extra
        named |= {f"slot{slot}": (kind, self.offsets[slot]) for slot, kind in self.dtypes.items()}
        return np.dtype(
            {
                "names": list(named),
                "formats": [kind for kind, _ in named.values()],
                "offsets": [position for _, position in named.values()],
                "itemsize": stride,
            }
        )

    def fill(
        self, records: NDArray[np.void], where: Ints, vtables_at: Ints | int, first: int
    ) -> None:
        """Write the fields of a run of tables that starts at row `first`."""
        rows = slice(first, first + len(records))
        records["vtable"] = where - vtables_at
        if self.vtable_of_row is not None:
            records["vtable"] -= self.vtable_bytes * self.vtable_of_row[rows].astype(np.int32)
        for f in self.fields:
            values: NDArray[np.generic]
            match f.values:
                case Link():
                    values = f.values.offsets_from(where + self.offsets[f.slot], first)
                case Tail():
                    values = np.array(self.table_bytes - self.offsets[f.slot])
                case _:
                    values = f.values[rows]
            if f.present is not None:
                values = np.where(f.present[rows].reshape(-1, *[1] * (values.ndim - 1)), values, 0)
            records[f"slot{f.slot}"] = values


class TableSection:
    """Tables of one type, side by side behind their vtables."""

    def __init__(self, rows: int, fields: Sequence[Field]) -> None:
        self.start = 0
        self.rows = rows
        self.layout = RecordLayout(rows, fields)
        self.stride = self.layout.table_bytes + -self.layout.table_bytes % 8

    def size_bytes(self) -> int:
        """Return the size."""
        return len(self.layout.vtables) + self.rows * self.stride

    def positions(self, rows: NDArray[np.integer]) -> Ints:
        """Return the positions of the tables."""
        where: Ints = rows * np.int64(self.stride) + (self.start + len(self.layout.vtables))
        return where

    def pieces(self) -> Iterator[Bytes]:
        """Write the vtables, then the tables."""
        yield self.layout.vtables
        dtype = self.layout.record_dtype(self.stride, {})
        for first in range(0, self.rows, _BATCH_ITEMS):
            rows = np.arange(first, min(first + _BATCH_ITEMS, self.rows))
            records = np.zeros(len(rows), dtype)
            self.layout.fill(records, self.positions(rows), self.start, first)
            yield records.view(np.uint8)


class BlobSection:
    """Strings or byte vectors, each with its length before it and a zero byte behind it."""

    def __init__(self, column: BytesColumn) -> None:
        self.start = 0
        self.column = column
        self.starts = splits_of(framed_bytes(column.lengths()))

    def size_bytes(self) -> int:
        """Return the size."""
        total = int(self.starts[-1])
        return total + -total % 8

    def positions(self, rows: NDArray[np.integer]) -> Ints:
        """Return the positions of the blobs."""
        where: Ints = self.starts[rows] + self.start
        return where

    def pieces(self) -> Iterator[Bytes]:
        """Write the blobs."""
        yield self.column.framed()
        yield np.zeros(-int(self.starts[-1]) % 8, np.uint8)


class VectorSection:
    """Vectors, one per row, whose items are numbers, structs of numbers, or links."""

    def __init__(self, counts: Ints, items: NDArray[np.generic] | Link) -> None:
        self.start = 0
        self.counts = counts
        self.items = items
        is_wide = not isinstance(items, Link) and items.dtype.itemsize == 8
        self.item_bytes = 4
        if not isinstance(items, Link):
            self.item_bytes = items.dtype.itemsize * prod(items.shape[1:])
        aligned = 8 if is_wide else 4
        self._lead = aligned - 4  # items, not the length before them, need the alignment
        sizes = 4 + counts * self.item_bytes
        self.starts = splits_of(sizes + -sizes % aligned)
        self.splits = splits_of(counts)

    def size_bytes(self) -> int:
        """Return the size."""
        total = self._lead + int(self.starts[-1])
        return total + -total % 8

    def positions(self, rows: NDArray[np.integer]) -> Ints:
        """Return the positions of the vectors."""
        where: Ints = self.starts[rows] + (self.start + self._lead)
        return where

    def pieces(self) -> Iterator[Bytes]:
        """Write all vectors."""
        out = np.zeros(self.size_bytes(), np.uint8)
        heads = self._lead + self.starts[:-1]
        out.view("<u4")[heads >> 2] = self.counts
        steps = np.arange(self.splits[-1]) - np.repeat(self.splits[:-1], self.counts)
        where = np.repeat(heads + 4, self.counts) + steps * self.item_bytes
        if isinstance(self.items, Link):
            out.view("<u4")[where >> 2] = self.items.offsets_from(self.start + where, 0)
        else:
            raw = np.ascontiguousarray(self.items).view(np.uint8).reshape(-1, self.item_bytes)
            width = np.gcd(self.item_bytes, 4)
            wide, narrow = out.view(f"<u{width}"), raw.view(f"<u{width}")
            for byte in range(narrow.shape[1]):
                wide[where // width + byte] = narrow[:, byte]
        yield out


class ListSection(MutableRecord, eq=False):
    """One vector, of offsets to each row of a section."""

    count: int
    target: Target
    start: int = 0

    def size_bytes(self) -> int:
        """Return the size."""
        size = 4 + 4 * self.count
        return size + -size % 8

    def positions(self, rows: NDArray[np.integer]) -> Ints:
        """Return the position of the vector."""
        return np.full(len(rows), self.start, np.int64)

    def pieces(self) -> Iterator[Bytes]:
        """Write the vector, a long one in pieces."""
        yield np.array([self.count], "<u4").view(np.uint8)
        for first in range(0, self.count, _BATCH_ITEMS):
            rows = np.arange(first, min(first + _BATCH_ITEMS, self.count))
            offsets = self.target.positions(rows) - (self.start + 4 + 4 * rows)
            yield offsets.astype("<u4").view(np.uint8)
        if self.count % 2 == 0:
            yield np.zeros(4, np.uint8)


def seal_buffer(
    sections: Sequence[Section],
    file_type: FileType,
    spec_version: int,
    *,
    level: int = DEFAULT_LEVEL,
) -> bytes:
    """Lay out sections, write and compress them, and add the file header.

    The first row of the first section is the root; parents stand before their children.
    """
    size_bytes = _HEAD_BYTES
    for section in sections:
        section.start = size_bytes
        size_bytes += section.size_bytes()
    if size_bytes > MAX_BUFFER_BYTES:
        raise InvalidInputError(
            f"a {file_type.attribute} file of {size_bytes} bytes before compression passes the "
            f"limit of {MAX_BUFFER_BYTES} that its 31-bit offsets set: split it",
            ErrorKind.LIMIT_EXCEEDED,
        )
    root = int(sections[0].positions(np.zeros(1, np.int64))[0])
    head = root.to_bytes(4, "little") + IDENTIFIER
    body = (piece.data for section in sections for piece in section.pieces())
    return seal(chain([head], body), size_bytes, file_type, spec_version, level=level)


OFFSET: Final = "x"
"""The type of a field that points at something, which is filled in later."""

_WORD: Final = Struct("<I")
_PADDINGS: Final = [bytes(4 - remainder) for remainder in range(4)]


class TableShape:
    """The positions of a table's fields, and the vtable that describes them.

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
        table = Struct(f"{layout}{padding}x")
        self.pack: Callable[..., bytes] = partial(table.pack, len(vtable))
        """Writes a table, given its values, whose offsets are still zero."""
        self._codes = [code for _, code in fields if code != OFFSET]
        self._vtable_bytes = len(vtable)
        self.alignment = alignment
        self.table_bytes = table.size
        # What goes before the table, for each number of bytes that may stand before that.
        self.leads = [bytes(-(used + len(vtable)) % alignment) + vtable for used in range(8)]
        self.lead_bytes = len(self.leads[0])

    def blank(self) -> bytes:
        """Write a vtable and a table of zeros behind it."""
        zeros = [b"" if code.endswith("s") else 0 for code in self._codes]
        return self.leads[0] + self.pack(*zeros)

    def entry(self, slot: int) -> int:
        """Return the position of a field's vtable entry within the lead."""
        return self.lead_bytes - self._vtable_bytes + 4 + 2 * slot


class Tree(MutableRecord, eq=False):
    """The tables, vectors and strings of a buffer, each placed where something points at it.

    As a section, it may point at other sections behind it.
    """

    start: int = 0
    _out: bytearray = field(default_factory=bytearray)
    _root: int | None = None
    _outside: list[tuple[int, Target]] = field(default_factory=list)

    def table(self, shape: TableShape, *values: int | bytes, field: int | None = None) -> int:
        """Add a table that a field points at; the first one is the root. Give its position."""
        out = self._out
        out += shape.leads[len(out) & 7]
        position = len(out)
        out += shape.pack(*values)
        if field is not None:
            _WORD.pack_into(out, field, position - field)
        elif self._root is None:
            self._root = position
        return position

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
        position = len(out)
        _WORD.pack_into(out, field, position - field)
        out += count.to_bytes(4, "little")
        out += bytes(4 * count)
        return range(position + 4, position + 4 + 4 * count, 4)

    def written_tables(self, tables: Sequence[bytes], lead_bytes: int, field: int) -> None:
        """Add a vector of tables that were written already, each in whole words after its lead."""
        out = self._out
        fields = self.links(len(tables), field)
        starts = accumulate(map(len, tables), initial=len(out) + lead_bytes)
        offsets = [start - link for link, start in zip(fields, starts, strict=False)]
        out[fields.start : fields.stop] = Struct(f"<{len(offsets)}I").pack(*offsets)
        out += b"".join(tables)

    def packed_tables(self, tables: BytesColumn, lead_bytes: int, field: int) -> None:
        """Add a vector of tables that were written already, each a multiple of eight bytes."""
        out = self._out
        out += bytes(-len(out) % 8)
        fields = self.links(len(tables), field)
        out += bytes(-len(out) % 8)
        offsets = (
            tables.splits[:-1] + (len(out) + lead_bytes) - np.arange(fields.start, fields.stop, 4)
        )
        out[fields.start : fields.stop] = offsets.astype("<u4").tobytes()
        out += tables.data.data

    def link_outside(self, target: Target, field: int) -> None:
        """Point at the first row of another section."""
        self._outside.append((field, target))

    def row(self) -> bytes:
        """Return a tree that points at nothing else, to be moved to any multiple of eight."""
        return bytes(self._out) + bytes(-len(self._out) % 8)

    def size_bytes(self) -> int:
        """Return the size."""
        return len(self._out) + -len(self._out) % 8

    def positions(self, rows: NDArray[np.integer]) -> Ints:
        """Return the position of the root."""
        return np.full(len(rows), self.start + (self._root or 0), np.int64)

    def pieces(self) -> Iterator[Bytes]:
        """Write all of it."""
        first = np.zeros(1, np.int64)
        for link, target in self._outside:
            where = int(target.positions(first)[0]) - self.start
            _WORD.pack_into(self._out, link, where - link)
        yield np.frombuffer(bytes(self._out) + bytes(-len(self._out) % 8), np.uint8)


type Columns = Mapping[int, NDArray[Any]]
"""Fields by slot: numbers, or rows of bytes."""


class Carried(Record):
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


def _emptied(column: BytesColumn, is_kept: Bools) -> BytesColumn:
    """Make rows empty that are not to be kept."""
    if is_kept.all():
        return column
    lengths = column.lengths()
    data = column.data[np.repeat(is_kept, lengths)]
    return BytesColumn(data, splits_of(np.where(is_kept, lengths, 0)))


def pack_tables(
    count: int, shape: TableShape, columns: Columns, carried: Sequence[Carried]
) -> BytesColumn:
    """Write tables of one type, each with what it carries, as rows of bytes.

    Each row begins with the shape's lead, and must come to lie at a multiple of its alignment.
    """
    sizes = [strings.rows.lengths() for strings in carried]
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
    for strings, size, position in zip(carried, sizes, places, strict=True):
        words[ranges(firsts + (position >> 2), size >> 2)] = strings.rows.data.view("<u4")
    return BytesColumn(words.view(np.uint8), starts)


def _fixed_parts(
    count: int, shape: TableShape, columns: Columns, carried: Sequence[tuple[Carried, Ints, Ints]]
) -> Bytes:
    """Write the vtables and tables, which take as much room in each row."""
    parts = np.empty((count, shape.lead_bytes + shape.table_bytes), np.uint8)
    parts[:] = np.frombuffer(shape.blank(), np.uint8)
    for slot, values in columns.items():
        _put(parts, shape.lead_bytes + shape.at[slot], values)
    for strings, size, position in carried:
        field = shape.lead_bytes + shape.at[strings.slot]
        offsets = position + (strings.inner - field)
        if not size.all():
            offsets = np.where(size > 0, offsets, 0)
            entry = shape.entry(strings.slot)
            parts[size == 0, entry : entry + 2] = 0  # the field is absent
        _put(parts, field, offsets.astype("<u4"))
    return parts


def _put(parts: Bytes, position: int, values: NDArray[np.generic]) -> None:
    """Write a column of numbers or of rows of bytes into a matrix of bytes."""
    if len(parts):
        raw = np.ascontiguousarray(values).view(np.uint8).reshape(len(parts), -1)
        parts[:, position : position + raw.shape[1]] = raw
