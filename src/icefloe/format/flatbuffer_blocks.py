"""Very many small tables, laid out so that compression sees how alike they are.

Rows come in blocks. A block holds its own vtables, then its tables, each with its short
vector of coordinates right behind it, then the strings that no later block needs. So the
offsets inside a block are small and repeat from block to block, each string is stored
once however many rows share it, and a block can be written as soon as it is planned.

Tables of coordinates alone are laid out tighter still, see `CoordinateSection`.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.columns import Bools, Bytes, BytesColumn, Ints, framed_bytes, splits_of
from icefloe.format.coordinate_runs import CoordinateRuns
from icefloe.format.envelope import MAX_DIMENSIONS
from icefloe.format.flatbuffer_writer import Field, Link, RecordLayout, Tail
from icefloe.records import Record

_BLOCK_BITS: Final = 9
_BLOCK_ROWS: Final = 1 << _BLOCK_BITS
_IN_BLOCK: Final = _BLOCK_ROWS - 1
_BATCH_BLOCKS: Final = 64


class SharedBlobs(Record):
    """A field of strings or byte vectors, stored once and shared between rows."""

    slot: int
    column: BytesColumn
    rows: NDArray[np.integer]
    """For each table, its row in the column."""
    present: Bools | None = None


def _dimensions_of(coordinates: NDArray[np.uint32] | CoordinateRuns) -> int:
    if isinstance(coordinates, CoordinateRuns):
        dimensions = coordinates.dimensions
    else:
        dimensions = int(coordinates.shape[1])
    if dimensions > MAX_DIMENSIONS:
        raise InvalidInputError(
            f"an array of {dimensions} dimensions; the most that can be stored is {MAX_DIMENSIONS}",
            ErrorKind.LIMIT_EXCEEDED,
        )
    return dimensions


class BlockSection:
    """Tables with a vector of coordinates each, in blocks."""

    def __init__(
        self,
        coordinates: NDArray[np.uint32],
        fields: Sequence[Field] = (),
        blobs: Sequence[SharedBlobs] = (),
        *,
        coordinates_slot: int = 0,
    ) -> None:
        self.start = 0
        self.rows, dimensions = len(coordinates), _dimensions_of(coordinates)
        self._coordinates = coordinates
        self._blobs = [
            _BlobsInBlocks(self, b) for b in blobs if b.present is None or b.present.any()
        ]
        links = [Field(b.slot, Link(b, b.rows), b.present) for b in self._blobs]
        self._layout = RecordLayout(self.rows, [Field(coordinates_slot, Tail()), *fields, *links])
        self._vector_at = self._layout.table_bytes
        unpadded = self._vector_at + 4 + 4 * dimensions
        self._stride = unpadded + -unpadded % 8
        self._plan_blocks()

    def _plan_blocks(self) -> None:
        count = -(-self.rows // _BLOCK_ROWS)
        block_rows = np.full(count, _BLOCK_ROWS, np.int64)
        if count:
            block_rows[-1] = self.rows - (count - 1) * _BLOCK_ROWS
        sizes = len(self._layout.vtables) + block_rows * self._stride
        for blobs in self._blobs:
            blobs.area_starts = sizes.copy()
            sizes += blobs.area_bytes
        paddings = -sizes % 8
        self._paddings: list[int] = paddings.tolist()
        self._block_starts = splits_of(sizes + paddings)
        for blobs in self._blobs:
            blobs.place(self._block_starts)

    def size_bytes(self) -> int:
        """Return the size."""
        return int(self._block_starts[-1])

    def positions(self, rows: NDArray[np.integer]) -> Ints:
        """Return the positions of the tables."""
        where: Ints = self._block_starts[rows >> _BLOCK_BITS] + (rows & _IN_BLOCK) * self._stride
        where += self.start + len(self._layout.vtables)
        return where

    def pieces(self) -> Iterator[Bytes]:
        """Write block after block; the tables of a batch of them are made at once."""
        count = len(self._paddings)
        block_bytes = _BLOCK_ROWS * self._stride
        for first in range(0, count, _BATCH_BLOCKS):
            last = min(first + _BATCH_BLOCKS, count)
            tables = self._records(first * _BLOCK_ROWS, min(last * _BLOCK_ROWS, self.rows))
            areas = [blobs.areas(first, last) for blobs in self._blobs]
            for number, padding in enumerate(self._paddings[first:last]):
                yield self._layout.vtables
                yield tables[number * block_bytes : (number + 1) * block_bytes]
                for area in areas:
                    yield area[number]
                if padding:
                    yield np.zeros(padding, np.uint8)

    def _records(self, first: int, last: int) -> Bytes:
        dimensions = self._coordinates.shape[1]
        tail: dict[str, tuple[object, int]] = {
            "count": ("<u4", self._vector_at),
            "coordinates": (("<u4", (dimensions,)), self._vector_at + 4),
        }
        rows = np.arange(first, last)
        where = self.positions(rows)
        records = np.zeros(len(rows), self._layout.record_dtype(self._stride, tail))
        vtables_at = self.start + self._block_starts[rows >> _BLOCK_BITS]
        self._layout.fill(records, where, vtables_at, first)
        records["count"] = dimensions
        if dimensions:
            records["coordinates"] = self._coordinates[first:last]
        return records.view(np.uint8)


class CoordinateSection:
    """Tables whose only field is a vector of coordinates, four bytes apart.

    A vtable says how far a field lies from the start of its table, so the tables of a block
    can be a column of links to their vtable, and the fields a column behind it. An offset to
    such a table then is the same for a whole block, and all offsets inside a block are the
    same in each: what is left to compress are the coordinates.
    """

    def __init__(self, coordinates: NDArray[np.uint32] | CoordinateRuns, slot: int = 0) -> None:
        self.start = 0
        self.rows, self._dimensions = len(coordinates), _dimensions_of(coordinates)
        self._coordinates = coordinates
        self._block_rows = min(_BLOCK_ROWS, self.rows)
        self._field_at = 4 * self._block_rows
        entries = [0] * slot + [self._field_at]
        vtable = np.array([4 + 2 * len(entries), self._field_at + 4, *entries], "<u2").tobytes()
        self.vtable = np.frombuffer(vtable + bytes(-len(vtable) % 8), np.uint8)
        self._vector_bytes = 4 + 4 * self._dimensions
        size = len(self.vtable) + self._block_rows * (8 + self._vector_bytes)
        self._block_bytes = size + -size % 8

    def size_bytes(self) -> int:
        """Return the size; the last block is as long as the others."""
        return int(self._block_bytes * -(-self.rows // max(self._block_rows, 1)))

    def positions(self, rows: NDArray[np.integer]) -> Ints:
        """Return the positions of the tables."""
        blocks, places = np.divmod(rows.astype(np.int64), self._block_rows)
        where: Ints = blocks * self._block_bytes + 4 * places
        where += self.start + len(self.vtable)
        return where

    def is_pointed_at(self, offsets: NDArray[np.uint32], distance: int) -> bool:
        """Return whether offsets, so far before the section, lead to its tables in their order."""
        whole = self.rows // self._block_rows * self._block_rows
        firsts = np.arange(0, self.rows, self._block_rows)
        # Tables and offsets are both four bytes apart: within a block all offsets are equal.
        expected = self.positions(firsts) - self.start + distance - 4 * firsts
        blocks = offsets[:whole].reshape(-1, self._block_rows)
        return bool(
            (blocks == expected[: len(blocks), None]).all()
            and (offsets[whole:] == expected[-1]).all()
        )

    def pieces(self) -> Iterator[Bytes]:
        """Write a batch of blocks at a time: all alike but for the coordinates."""
        if self.rows == 0:
            return
        block, vectors = self.template()
        for part in self._batches(self._block_rows * _BATCH_BLOCKS):
            count = -(-len(part) // self._block_rows)
            batch = np.tile(block, (count, 1))
            padded = np.zeros((count * self._block_rows, self._dimensions), np.uint32)
            padded[: len(part)] = part
            view = batch[:, vectors].reshape(count, self._block_rows, -1).copy()
            view[..., 4:] = padded.view(np.uint8).reshape(count, self._block_rows, -1)
            batch[:, vectors] = view.reshape(count, -1)
            yield batch.reshape(-1)

    def _batches(self, rows: int) -> Iterator[NDArray[np.uint32]]:
        if isinstance(self._coordinates, CoordinateRuns):
            yield from self._coordinates.batches(rows)
            return
        for first in range(0, self.rows, rows):
            yield self._coordinates[first : first + rows]

    def template(self) -> tuple[Bytes, slice]:
        """Make a block without its coordinates, and say where their vectors lie."""
        head, rows = len(self.vtable), self._block_rows
        places = np.arange(rows)
        tables = head + 4 * places
        fields = tables + self._field_at
        vectors = head + 8 * rows + self._vector_bytes * places
        block = np.zeros(self._block_bytes, np.uint8)
        block[:head] = self.vtable
        words = block.view("<u4")
        words[tables >> 2] = tables
        words[fields >> 2] = vectors - fields
        words[vectors >> 2] = self._dimensions
        return block, slice(head + 8 * rows, head + rows * (8 + self._vector_bytes))


def recognise_coordinates(
    words: NDArray[np.uint32], offsets_at: int, count: int
) -> NDArray[np.uint32] | None:
    """Read coordinates as `CoordinateSection` lays them out; None if they lie otherwise.

    `offsets_at` is where the offsets to `count` tables are. All that is not a coordinate is
    compared with what the section would write, so no offset needs to be followed.
    """
    rows = min(_BLOCK_ROWS, count)
    section = CoordinateSection(np.empty((rows, 0), np.uint32))
    head = len(section.vtable)
    start = offsets_at + int(words[offsets_at >> 2]) - head
    dimensions_at = (start + head + 8 * rows) >> 2
    if start < 0 or start % 4 or not 0 <= dimensions_at < len(words):
        return None
    dimensions = int(words[dimensions_at])
    if not 0 < dimensions <= MAX_DIMENSIONS:
        return None
    section = CoordinateSection(np.broadcast_to(np.uint32(0), (count, dimensions)))
    actual = words[start >> 2 : (start + section.size_bytes()) >> 2]
    if 4 * len(actual) != section.size_bytes():
        return None
    blocks = actual.reshape(-(-count // rows), -1)
    offsets = words[offsets_at >> 2 :][:count]
    if not section.is_pointed_at(offsets, start - offsets_at):
        return None
    template, vectors = section.template()
    fixed = vectors.start >> 2
    if (blocks[:, :fixed] != template.view("<u4")[:fixed]).any():
        return None
    rows_found = blocks[:, fixed : vectors.stop >> 2].reshape(-1, 1 + dimensions)
    if (rows_found[:, 0] != dimensions).any():
        return None
    return np.ascontiguousarray(rows_found[:count, 1:])


class _BlobsInBlocks:
    """The blobs of one field, each behind the last block that needs it."""

    area_starts: Ints

    def __init__(self, tables: BlockSection, blobs: SharedBlobs) -> None:
        self._tables = tables
        self._column = blobs.column
        self.slot, self.rows, self.present = blobs.slot, blobs.rows, blobs.present
        last_use = np.full(len(blobs.column), -1, np.int64)
        if blobs.present is None:
            last_use[blobs.rows] = np.arange(len(blobs.rows))
        else:
            users = np.flatnonzero(blobs.present)
            last_use[blobs.rows[users]] = users
        block_of = last_use // _BLOCK_ROWS  # -1 stays -1: a blob that no row uses is left out
        count = -(-len(blobs.rows) // _BLOCK_ROWS)
        is_sorted = not len(block_of) or bool((block_of[1:] >= block_of[:-1]).all())
        self._order = None if is_sorted else np.argsort(block_of, kind="stable")
        in_order = block_of if self._order is None else block_of[self._order]
        self._block_of = in_order
        self._edges = np.searchsorted(in_order, np.arange(count + 1))
        lengths = blobs.column.lengths()
        ordered = lengths if self._order is None else lengths[self._order]
        self._ends = splits_of(framed_bytes(ordered))
        self.area_bytes = np.diff(self._ends[self._edges])

    def place(self, block_starts: Ints) -> None:
        """Fix where each blob lies, once the sizes of all blocks are known."""
        edge = self._ends[self._edges[:-1]]
        shift = block_starts[:-1] + self.area_starts - edge
        in_order = self._ends[:-1] + (shift[self._block_of] if len(shift) else 0)
        if self._order is None:
            self._where = in_order
        else:
            self._where = np.empty_like(in_order)
            self._where[self._order] = in_order

    def positions(self, rows: NDArray[np.integer]) -> Ints:
        """Return the positions of the blobs."""
        # Tables without the field carry numbers that mean nothing here: clipped, never used.
        where: Ints = self._where.take(rows, mode="clip") + self._tables.start
        return where

    def areas(self, first: int, last: int) -> list[Bytes]:
        """Lay out the blobs of a run of blocks, a piece per block."""
        begin, end = self._edges[first], self._edges[last]
        if self._order is None:
            column = self._column.slice(begin, end)
        else:
            column = self._column.take(self._order[begin:end])
        data = column.framed()
        cuts = self._ends[self._edges[first : last + 1]] - self._ends[begin]
        return [data[a:b] for a, b in pairwise(cuts)]
