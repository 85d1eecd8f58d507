"""A checked, columnar reader of flatbuffers.

Tables that lie at constant distances, as writers of many tables place them, are read by strides,
which is several times as fast as reading them one by one.
"""

from functools import cached_property
from typing import Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import FormatError
from icefloe.format.columns import Bools, Bytes, BytesColumn, Ints, concat_bytes, ranges, splits_of
from icefloe.format.envelope import MAX_DIMENSIONS
from icefloe.records import Record

_SHORTEST_ROW: Final = 64
"""Shorter rows are not worth looking for."""


class Grid(Record):
    """Rows of things, all of the same length, and all the same distance apart."""

    shape: tuple[int, int]
    steps: tuple[int, int]
    """In bytes, from a row to the next, and from a thing to the next."""

    @classmethod
    def of(cls, positions: Ints) -> "Grid | None":
        """Find the grid that things lie in, but for some at the end that fill no row."""
        steps = np.diff(positions[: _SHORTEST_ROW + 1])
        if len(steps) < _SHORTEST_ROW or (steps != steps[0]).any():
            return None
        step = int(steps[0])
        row_ends = np.flatnonzero(np.diff(positions) != step) + 1
        length = int(row_ends[0]) if len(row_ends) else len(positions)
        count = len(positions) // length
        starts = positions[: count * length : length]
        row_step = int(starts[1] - starts[0]) if count > 1 else 0
        within = row_ends[: np.searchsorted(row_ends, count * length)]
        if (np.diff(starts) != row_step).any() or not np.array_equal(
            within, length * np.arange(1, count)
        ):
            return None
        return cls((count, length), (row_step, step))

    def __len__(self) -> int:
        return self.shape[0] * self.shape[1]

    def read[T: np.generic](self, data: Bytes, first: int, into: NDArray[T]) -> None:
        """Copy all things, the first of which is at a position, into a column."""
        into.reshape(self.shape)[...] = np.ndarray(self.shape, into.dtype, data, first, self.steps)


type Presence = Bools | bool
"""Which tables have a field: one answer for all where they agree."""

BUDGET_FACTOR: Final = 16
FREE_BUDGET_BYTES: Final = 64 * 2**20

MIN_BUFFER_BYTES: Final = 8
_OUT_OF_TABLE: Final = "a field lies outside of its table"
_BATCH_BLOBS: Final = 1 << 16
_FEW_RUNS: Final = 4096
ITEM_COST_BYTES: Final = 16
_TABLE_COST_BYTES: Final = 32
"""What it takes to address an item or a table, beyond its own bytes."""


class Buffer:
    """The bytes of one flatbuffer, seen through every width they are read in."""

    def __init__(self, data: bytes | memoryview) -> None:
        self.size = len(data)
        if self.size < MIN_BUFFER_BYTES:
            refuse(f"a buffer of {self.size} bytes is too short to hold a table")
        # What is aligned and within the buffer lies in its whole words: no view needs the rest.
        self.u8 = np.frombuffer(data, np.uint8)
        self.u16: NDArray[np.uint16] = self.u8[: self.size & ~1].view("<u2")
        self.u32: NDArray[np.uint32] = self.u8[: self.size & ~3].view("<u4")
        self.i32: NDArray[np.int32] = self.u8[: self.size & ~3].view("<i4")
        self.u64: NDArray[np.uint64] = self.u8[: self.size & ~7].view("<u8")
        self.renew_budget()

    def root(self) -> "Tables":
        """Return the root table."""
        return Tables(self, self.u32[:1].astype(np.int64))

    def renew_budget(self) -> None:
        """Begin a new reading of the buffer, which may take as much as any other."""
        self._budget = BUDGET_FACTOR * self.size + FREE_BUDGET_BYTES

    def charge(self, size_bytes: int) -> None:
        """Account for something about to be read; refuse a structure that multiplies itself."""
        self._budget -= size_bytes
        if self._budget < 0:
            refuse("the structure refers to itself so often that it would not fit in memory")

    def check_range(self, starts: Ints, size_bytes: int | Ints, alignment: int) -> None:
        """Check that things of a size start within the buffer, aligned, and end within it."""
        if len(starts) == 0:
            return
        is_fixed = isinstance(size_bytes, int)
        last = int(starts.max()) + size_bytes if is_fixed else (starts + size_bytes).max()
        if starts.min() < 0 or last > self.size:
            refuse("an offset points outside of the buffer")
        if alignment > 1 and (np.bitwise_or.reduce(starts) & (alignment - 1)):
            refuse("an offset is not aligned to what it points at")


def refuse(reason: str) -> NoReturn:
    """Raise `FormatError` for a buffer."""
    raise FormatError(f"damaged or hostile metadata file: {reason}")


class Blobs(Record):
    """Byte vectors or strings, one per table; `present` says which tables have one."""

    buffer: Buffer
    starts: Ints
    lengths: Ints
    present: Bools

    def column(self) -> BytesColumn:
        """Copy the bytes into a column; absent ones become empty rows."""
        self.buffer.charge(int(self.lengths.sum()))
        return BytesColumn.gather(self.buffer.u8, self.starts, self.lengths)

    def stored(self) -> tuple[BytesColumn, NDArray[np.uint32]]:
        """Copy each blob once, however many tables share it; also give the row for each table."""
        starts, lengths, rows = self._places()
        return BytesColumn.gather(self.buffer.u8, starts, lengths), rows

    def distinct(self) -> tuple[BytesColumn, NDArray[np.uint32]]:
        """Copy only what differs; also give the row of the column for each table."""
        runs, rows = self.runs()
        column, numbers = runs.distinct()
        return column, numbers[rows]

    def runs(self) -> tuple[BytesColumn, NDArray[np.uint32]]:
        """Copy what differs from the blob before; also give the row for each table.

        Blobs stored once and shared are recognised by their position before any byte is
        copied; repeated ones by their contents, in batches that fit in the processor's cache.
        """
        starts, lengths, rows = self._places()
        parts, numbers, count = list[BytesColumn](), np.empty(len(starts), np.uint32), 0
        for first in range(0, len(starts), _BATCH_BLOBS):
            batch = slice(first, first + _BATCH_BLOBS)
            part, part_rows = BytesColumn.gather(
                self.buffer.u8, starts[batch], lengths[batch]
            ).runs()
            parts.append(part)
            numbers[batch] = part_rows + np.uint32(count)
            count += len(part)
        return concat_bytes(parts), numbers[rows]

    def _places(self) -> tuple[Ints, Ints, NDArray[np.uint32]]:
        """List where blobs lie, each once; and for each table, which of them is its own.

        Tables that share a blob usually stand next to each other; only if that is not so is
        it worth sorting.
        """
        is_head = _heads_of_runs(self.starts)
        starts, lengths = self.starts[is_head], self.lengths[is_head]
        rows = (np.cumsum(is_head) - 1).astype(np.uint32)
        if int(lengths.sum()) > self.buffer.size:
            starts, firsts, numbers = np.unique(starts, return_index=True, return_inverse=True)
            lengths, rows = lengths[firsts], numbers.astype(np.uint32)[rows]
        self.buffer.charge(int(lengths.sum()))
        return starts, lengths, rows

    def where(self, mask: Bools) -> "Blobs":
        """Select the blobs of some of the tables."""
        return Blobs(self.buffer, self.starts[mask], self.lengths[mask], self.present[mask])


class Vectors(Record):
    """Vectors of fixed-size items, one per table; an absent vector has no items."""

    buffer: Buffer
    starts: Ints
    """Where the first item of each vector is."""
    counts: Ints
    present: Bools

    def pick(self, rows: slice | Ints) -> "Vectors":
        """Address the vectors of some of the tables."""
        return Vectors(self.buffer, self.starts[rows], self.counts[rows], self.present[rows])

    def splits(self) -> Ints:
        """Return where the items of each table begin in the flattened columns."""
        return splits_of(self.counts)

    def positions(self, item_bytes: int, alignment: int) -> Ints:
        """Locate all items of all vectors, one vector behind the other."""
        where: Ints
        total = int(self.counts.sum())
        if total == 0:
            return np.empty(0, np.int64)
        self.buffer.charge(total * (item_bytes + ITEM_COST_BYTES))
        self.buffer.check_range(self.starts, self.counts * item_bytes, 1)
        if len(self.starts) == 1:
            where = self.starts[0] + item_bytes * np.arange(total, dtype=np.int64)
        else:
            steps = ranges(np.zeros(len(self.counts), np.int64), self.counts)
            where = np.repeat(self.starts, self.counts) + item_bytes * steps
        self.buffer.check_range(where, item_bytes, alignment)
        return where

    def u64_structs(self, words: int) -> NDArray[np.uint64]:
        """Read all items as structs of 64-bit words."""
        where = self.positions(8 * words, 8) >> 3
        values: NDArray[np.uint64] = self.buffer.u64[where[:, None] + np.arange(words)]
        return values

    def u32_structs(self, words: int) -> NDArray[np.uint32]:
        """Read all items as structs of 32-bit words."""
        where = self.positions(4 * words, 4) >> 2
        values: NDArray[np.uint32] = self.buffer.u32[where[:, None] + np.arange(words)]
        return values

    def byte_structs(self, width: int) -> Bytes:
        """Read all items as rows of bytes."""
        return _byte_rows(self.buffer, self.positions(width, 1), width)

    def u32_matrix(self) -> NDArray[np.uint32]:
        """Read vectors that all have the same number of items as the rows of a matrix."""
        if len(self.counts) == 0:
            return np.empty((0, 0), np.uint32)
        width = int(self.counts[0])
        if (self.counts != width).any():
            refuse("the coordinates of one array differ in their number of dimensions")
        if width > MAX_DIMENSIONS:
            refuse(f"an array of {width} dimensions; the most is {MAX_DIMENSIONS}")
        self.buffer.charge(4 * width * len(self.counts))
        self.buffer.check_range(self.starts, 4 * width, 4)
        matrix = np.empty((len(self.counts), width), np.uint32)
        where = self.starts >> 2
        for dimension in range(width):
            matrix[:, dimension] = self.buffer.u32[where + dimension]
        return matrix

    def tables(self) -> "Tables":
        """Follow all items as offsets to tables."""
        where = self.positions(4, 4)
        return Tables(self.buffer, where + self.buffer.u32[where >> 2])


class Tables:
    """Many tables of one type, addressed together; fields come out as columns."""

    def __init__(self, buffer: Buffer, positions: Ints) -> None:
        self.buffer = buffer
        self.positions = positions
        buffer.charge(_TABLE_COST_BYTES * len(positions))
        buffer.check_range(positions, 4, 4)
        grid = Grid.of(positions)
        vtables = positions - _numbers(buffer, buffer.i32, positions, grid)
        self._is_head = _heads_of_runs(vtables)
        self._vtables, self._vtable_of_run = _few_distinct(vtables[self._is_head])
        self._check_vtables()
        self._unite_vtables()
        # Only fields of tables that are alike are as far apart as the tables.
        self._grid = grid if len(self._vtables) == 1 else None
        buffer.check_range(positions, self._expand(self._table_bytes), 4)

    def __len__(self) -> int:
        return len(self.positions)

    def _check_vtables(self) -> None:
        buffer, vtables = self.buffer, self._vtables
        buffer.check_range(vtables, 4, 2)
        self._vtable_bytes = buffer.u16[vtables >> 1].astype(np.int64)
        self._table_bytes = buffer.u16[(vtables >> 1) + 1].astype(np.int64)
        buffer.check_range(vtables, self._vtable_bytes, 2)
        if (self._vtable_bytes < 4).any() or (self._vtable_bytes % 2).any():
            refuse("a vtable has an impossible length")
        if (self._table_bytes < 4).any():
            refuse("a table has an impossible length")

    def _unite_vtables(self) -> None:
        """Make one of vtables in a row that say the same: some writers repeat it every time."""
        words = self._vtable_bytes[:1] >> 1
        if len(self._vtables) < 2 or (self._vtable_bytes >> 1 != words).any():
            return
        contents = self.buffer.u16[(self._vtables >> 1)[:, None] + np.arange(words[0])]
        is_head = np.ones(len(contents), np.bool_)
        np.any(contents[1:] != contents[:-1], axis=1, out=is_head[1:])
        if not is_head.all():
            self._vtable_of_run = (np.cumsum(is_head) - 1)[self._vtable_of_run]
            self._vtables, self._vtable_bytes, self._table_bytes = (
                column[is_head] for column in (self._vtables, self._vtable_bytes, self._table_bytes)
            )

    @cached_property
    def _vtable_of(self) -> Ints:
        """The number of the vtable of each table: in runs, usually long ones."""
        return self._vtable_of_run[np.cumsum(self._is_head) - 1]

    def _expand(self, of_vtable: Ints) -> Ints | int:
        """Spread a value per vtable over the tables; one number where all agree."""
        if len(of_vtable) and (of_vtable == of_vtable[0]).all():
            return int(of_vtable[0])
        return of_vtable[self._vtable_of]

    def _field(self, slot: int, size_bytes: int, alignment: int) -> tuple[Ints, Presence]:
        """Locate a field in each table, and say which tables have it."""
        entry = 4 + 2 * slot
        if len(self._vtables) == 1:
            is_present = int(self._vtable_bytes[0]) >= entry + 2
            offset = int(self.buffer.u16[(int(self._vtables[0]) + entry) >> 1]) if is_present else 0
            if offset and offset + size_bytes > self._table_bytes[0]:
                refuse(_OUT_OF_TABLE)
            where = self.positions + offset
            self._check_alignment(where if offset else where[:0], alignment)
            return where, offset != 0
        known_ones = np.flatnonzero(self._vtable_bytes >= entry + 2)
        offsets = np.zeros(len(self._vtables), np.int64)
        offsets[known_ones] = self.buffer.u16[(self._vtables[known_ones] + entry) >> 1]
        if ((offsets + size_bytes > self._table_bytes) & (offsets != 0)).any():
            refuse(_OUT_OF_TABLE)
        spread = self._expand(offsets)
        where, present = self.positions + spread, spread != 0
        if not isinstance(present, bool):
            where = where[present]
        if present is not False:
            self._check_alignment(where, alignment)
        return where, present

    def _check_alignment(self, fields: Ints, alignment: int) -> None:
        """Check fields of tables, which lie within the buffer as the tables do."""
        if alignment > 1 and len(fields) and np.bitwise_or.reduce(fields) & (alignment - 1):
            refuse("an offset is not aligned to what it points at")

    def _scalar[T: np.generic](self, slot: int, view: NDArray[T], default: int) -> NDArray[T]:
        width = view.itemsize
        where, present = self._field(slot, width, width)
        if present is True:
            return _numbers(self.buffer, view, where, self._grid)
        values = np.full(len(self), default, view.dtype)
        if present is not False:
            values[present] = _numbers(self.buffer, view, where)
        return values

    def u8(self, slot: int, default: int = 0) -> Bytes:
        """Read a byte field."""
        return self._scalar(slot, self.buffer.u8, default)

    def u16(self, slot: int, default: int = 0) -> NDArray[np.uint16]:
        """Read a 16-bit field."""
        return self._scalar(slot, self.buffer.u16, default)

    def u32(self, slot: int, default: int = 0) -> NDArray[np.uint32]:
        """Read a 32-bit field."""
        return self._scalar(slot, self.buffer.u32, default)

    def i32(self, slot: int, default: int = 0) -> NDArray[np.int32]:
        """Read a signed 32-bit field."""
        return self._scalar(slot, self.buffer.i32, default)

    def u64(self, slot: int, default: int = 0) -> NDArray[np.uint64]:
        """Read a 64-bit field."""
        return self._scalar(slot, self.buffer.u64, default)

    def has(self, slot: int) -> Bools:
        """Return which tables have a field."""
        return self._spread(self._field(slot, 0, 1)[1])

    def _spread(self, present: Presence) -> Bools:
        if isinstance(present, bool):
            return np.full(len(self), present)
        return present

    def struct(self, slot: int, width: int) -> Bytes:
        """Read a required struct of bytes, such as an id."""
        rows, present = self.optional_struct(slot, width)
        if not present.all():
            refuse("a required field is missing")
        return rows

    def optional_struct(self, slot: int, width: int) -> tuple[Bytes, Bools]:
        """Read a struct of bytes; zeros where it is absent."""
        where, present = self._field(slot, width, 1)
        if present is True:
            return _byte_rows(self.buffer, where, width, self._grid), self._spread(present)
        rows = np.zeros((len(self), width), np.uint8)
        if present is not False:
            rows[present] = _byte_rows(self.buffer, where, width)
        return rows, self._spread(present)

    def _heads(self, slot: int, item_bytes: int, *, required: bool) -> tuple[Ints, Ints, Bools]:
        """Find the vectors of a field: where their items start, and how many."""
        where, present = self._field(slot, 4, 4)
        mask = self._spread(present)
        if required and not mask.all():
            refuse("a required field is missing")
        if present is False:
            nothing = np.zeros(len(self), np.int64)
            return nothing, nothing, mask
        starts, counts = _vector_heads(self.buffer, where, item_bytes)
        if mask.all():
            return starts, counts, mask
        all_starts, all_counts = np.zeros(len(self), np.int64), np.zeros(len(self), np.int64)
        all_starts[mask], all_counts[mask] = starts, counts
        return all_starts, all_counts, mask

    def blobs(self, slot: int, *, required: bool = False) -> Blobs:
        """Read a field of strings or byte vectors."""
        return Blobs(self.buffer, *self._heads(slot, 1, required=required))

    def vectors(self, slot: int, item_bytes: int = 4, *, required: bool = False) -> Vectors:
        """Read a field of vectors with items of a fixed size (4: numbers, or offsets)."""
        return Vectors(self.buffer, *self._heads(slot, item_bytes, required=required))

    def children(self, slot: int) -> "Tables":
        """Follow a required field that holds one table."""
        where, present = self._field(slot, 4, 4)
        if present is False or (present is not True and not present.all()):
            refuse("a required table is missing")
        return Tables(self.buffer, where + self.buffer.u32[where >> 2])

    def where(self, mask: Bools) -> "Tables":
        """Select some of the tables."""
        return Tables(self.buffer, self.positions[mask])


def _vector_heads(buffer: Buffer, fields: Ints, item_bytes: int) -> tuple[Ints, Ints]:
    """Follow offset fields to vectors: where their items start, and how many."""
    lengths_at = fields + buffer.u32[fields >> 2]
    buffer.check_range(lengths_at, 4, 4)
    counts = buffer.u32[lengths_at >> 2].astype(np.int64)
    starts = lengths_at + 4
    buffer.check_range(starts, counts * item_bytes, 1)
    return starts, counts


def _numbers[T: np.generic](
    buffer: Buffer, view: NDArray[T], where: Ints, grid: Grid | None = None
) -> NDArray[T]:
    """Read a number at each place, which is aligned to its width."""
    in_grid = 0 if grid is None else len(grid)
    # Dividing would take several times as long.
    items: Ints = where[in_grid:] >> (view.itemsize.bit_length() - 1)
    if grid is None:
        return view[items]
    numbers = np.empty(len(where), view.dtype)
    grid.read(buffer.u8, int(where[0]), numbers[:in_grid])
    numbers[in_grid:] = view[items]
    return numbers


def _byte_rows(buffer: Buffer, where: Ints, width: int, grid: Grid | None = None) -> Bytes:
    """Copy rows of a few bytes each."""
    rows = np.empty((len(where), width), np.uint8)
    in_grid = 0 if grid is None else len(grid)
    if grid is not None:
        grid.read(buffer.u8, int(where[0]), rows[:in_grid].view(f"V{width}"))
    _copy_rows(buffer, where[in_grid:], rows[in_grid:])
    return rows


def _copy_rows(buffer: Buffer, where: Ints, into: Bytes) -> None:
    """Copy rows that lie anywhere, by words where they are aligned."""
    by_word = into.shape[1] % 4 == 0 and not (np.bitwise_or.reduce(where) & 3 if len(where) else 0)
    view, first = (buffer.u32, where >> 2) if by_word else (buffer.u8, where)
    items = into.view(view.dtype)
    for byte in range(items.shape[1]):
        items[:, byte] = view[first + byte]


def _few_distinct(values: Ints) -> tuple[Ints, Ints]:
    """List values, without repeats if they are many, and the number of each."""
    if len(values) <= _FEW_RUNS:
        return values, np.arange(len(values))
    return np.unique(values, return_inverse=True)


def _heads_of_runs(values: Ints) -> Bools:
    """Mark each value that differs from the one before it."""
    is_head = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=is_head[1:])
    return is_head
