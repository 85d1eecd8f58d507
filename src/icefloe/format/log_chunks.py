"""The coordinates of the chunks in a transaction log: kept compressed, and laid out tightly.

`CoordinateRuns` holds the coordinates of very many chunks of one array, a small part of their
bytes, until they are written. They come in pieces, in any order; read back, they are sorted and
each is there once. Pieces that lie behind one another, as those of manifests along the first
dimension do, are read one at a time; others are merged a part at a time. `CoordinateSection` is
how coordinates lie in a file, `recognise_coordinates` reads that layout at once, and
`spaced_coordinates` that of writers which put the coordinates of each chunk beside its table.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import zstandard
from numpy.typing import NDArray

from icefloe.format.chunk_table import Coordinates, sort_keys
from icefloe.format.columns import Bytes, Ints
from icefloe.format.envelope import MAX_DIMENSIONS, check_dimensions
from icefloe.format.flatbuffer_scalar import ScalarTable
from icefloe.records import Record

_RUN_ROWS: Final = 1 << 16
_SAMPLE_ROWS: Final = 1 << 12
_MERGED_ROWS: Final = 1 << 21
"""About this many rows are expanded and sorted at once where pieces have to be merged."""
_QUICK_LEVEL: Final = 1

type _Index = tuple[int, ...]


class _Run(Record):
    """Sorted rows, column after column, compressed."""

    first: _Index
    last: _Index
    rows: int
    data: bytes
    samples: tuple[_Index, ...]
    """Every this many rows one, the first included."""

    @classmethod
    def of(cls, matrix: Coordinates) -> "_Run":
        columns = np.ascontiguousarray(matrix.T)
        packed = zstandard.ZstdCompressor(level=_QUICK_LEVEL).compress(columns.data)
        data = bytes(memoryview(packed))  # without the room that the compressor had asked for
        samples = tuple(map(tuple, matrix[::_SAMPLE_ROWS].tolist()))
        return cls(samples[0], tuple(matrix[-1].tolist()), len(matrix), data, samples)

    def expanded(self) -> Coordinates:
        dimensions = len(self.first)
        flat = np.frombuffer(zstandard.ZstdDecompressor().decompress(self.data), np.uint32)
        return np.ascontiguousarray(flat.reshape(dimensions, self.rows).T)


class CoordinateRuns:
    """Coordinates of one array.

    >>> runs = CoordinateRuns(1)
    >>> runs.add(np.array([[7], [3]], np.uint32))
    >>> runs.add(np.array([[3], [5]], np.uint32))
    >>> len(runs), [batch.ravel().tolist() for batch in runs.batches(2)]
    (3, [[3, 5], [7]])
    """

    def __init__(self, dimensions: int, *, merged_rows: int = _MERGED_ROWS) -> None:
        self.dimensions = dimensions
        self._merged_rows = merged_rows
        self._runs: list[_Run] = []
        self._has_scalar = False
        self._count: int | None = 0

    @property
    def memory_bytes(self) -> int:
        """Return the memory that the coordinates take as they are kept."""
        return sum(len(run.data) for run in self._runs)

    def add(self, coordinates: Coordinates) -> None:
        """Add coordinates, some of which may be there already."""
        if len(coordinates) == 0:
            return
        self._count = None
        if self.dimensions == 0:  # a scalar: its chunks are all the same one
            self._has_scalar = True
            return
        matrix = _distinct(coordinates)
        for first in range(0, len(matrix), _RUN_ROWS):
            self._runs.append(_Run.of(matrix[first : first + _RUN_ROWS]))

    def __len__(self) -> int:
        if self._count is None:
            if self.dimensions == 0:
                self._count = int(self._has_scalar)
            else:
                self._count = sum(
                    group[0].rows if len(group) == 1 else sum(map(len, self._pieces(group)))
                    for group in self._groups()
                )
        return self._count

    def batches(self, rows: int) -> Iterator[Coordinates]:
        """Yield all distinct coordinates, sorted, in batches of rows."""
        if self.dimensions == 0:
            if self._has_scalar:
                yield np.empty((1, 0), np.uint32)
            return
        pieces = (piece for group in self._groups() for piece in self._pieces(group))
        yield from _of_equal_length(pieces, rows)

    def _groups(self) -> Iterator[list[_Run]]:
        """Sort runs into groups, so that each group lies behind the one before."""
        group: list[_Run] = []
        last: _Index = ()
        for run in sorted(self._runs, key=lambda run: run.first):
            if group and run.first > last:
                yield group
                group = []
            last = max(last, run.last) if group else run.last
            group.append(run)
        if group:
            yield group

    def _pieces(self, group: Sequence[_Run]) -> Iterator[Coordinates]:
        if len(group) == 1:
            yield group[0].expanded()
            return
        samples = sorted({sample for run in group for sample in run.samples})
        step = max(self._merged_rows // _SAMPLE_ROWS, 1)
        beginnings: list[_Index | None] = [*samples[::step], None]
        for begin, end in pairwise(beginnings):
            assert begin is not None
            parts = [
                _between(run.expanded(), begin, end)
                for run in group
                if run.last >= begin and (end is None or run.first < end)
            ]
            yield _distinct(np.concatenate(parts))


def _distinct(coordinates: Coordinates) -> Coordinates:
    """Sort rows, and keep each once."""
    [keys] = sort_keys(coordinates)
    if bool((keys[1:] > keys[:-1]).all()):
        return coordinates
    _, rows = np.unique(keys, return_index=True)
    return coordinates[rows]


def _between(matrix: Coordinates, begin: _Index, end: _Index | None) -> Coordinates:
    stop = len(matrix) if end is None else _place_of(matrix, end)
    return matrix[_place_of(matrix, begin) : stop]


def _place_of(matrix: Coordinates, index: _Index) -> int:
    """Find the first of some sorted rows that is not before another."""
    low, high = 0, len(matrix)
    for dimension, number in enumerate(index):
        column = matrix[:, dimension]
        first = bisect_left(column, number, low, high)
        last = bisect_left(column, number + 1, first, high)
        if first == last:
            return first
        low, high = first, last
    return low


def _of_equal_length(pieces: Iterable[Coordinates], rows: int) -> Iterator[Coordinates]:
    pending: list[Coordinates] = []
    count = 0
    for piece in pieces:
        pending.append(piece)
        count += len(piece)
        if count < rows:
            continue
        joined = np.concatenate(pending) if len(pending) > 1 else pending[0]
        whole = count // rows * rows
        for first in range(0, whole, rows):
            yield joined[first : first + rows]
        pending, count = [joined[whole:]], count - whole
    if count:
        yield np.concatenate(pending)


_BLOCK_ROWS: Final = 1 << 9
_BATCH_BLOCKS: Final = 64


class CoordinateSection:
    """Tables whose only field is a vector of coordinates, four bytes apart.

    A vtable says how far a field lies from the start of its table, so the tables of a block
    can be a column of links to their vtable, and the fields a column behind it. An offset to
    such a table then is the same for a whole block, and all offsets inside a block are the
    same in each: what is left to compress are the coordinates.
    """

    def __init__(self, coordinates: NDArray[np.uint32] | CoordinateRuns, slot: int = 0) -> None:
        self.start = 0
        self.rows, self._dimensions = (
            len(coordinates),
            check_dimensions(
                coordinates.dimensions
                if isinstance(coordinates, CoordinateRuns)
                else int(coordinates.shape[1])
            ),
        )
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


def spaced_coordinates(
    words: NDArray[np.uint32], first: ScalarTable, offsets_at: int, count: int, slot: int = 0
) -> NDArray[np.uint32] | None:
    """Read coordinates that lie, with their tables, at one distance from each other; else None.

    `offsets_at` is where the offsets to at least two tables are, `first` the table that the first
    one leads to. If the others are as far from their tables as it is, and nothing leads out of the
    buffer, all coordinates are there to be copied.
    """
    offsets = words[offsets_at >> 2 :][:count]
    step = int(offsets[1]) - int(offsets[0]) + 4
    table = offsets_at + int(offsets[0])
    _, table_bytes, [field_at] = first.shape(((slot, 4, 4),))
    if step % 4 or not field_at:
        return None
    start, dimensions = first.vector(slot, 4)
    begin, end = min(table, start - 4), max(table + table_bytes, start + 4 * dimensions)
    to_last = step * (count - 1)
    is_inside = min(begin, begin + to_last) >= 0 and max(end, end + to_last) <= 4 * len(words)
    goes_on = table + to_last >= offsets_at + 4 * (count - 1)  # offsets only lead forwards
    if not (is_inside and goes_on and 0 < dimensions <= MAX_DIMENSIONS):
        return None

    def columns(at: int, number: int = 1) -> NDArray[np.uint32]:
        return np.ndarray((count, number), words.dtype, words, at, (step, 4))

    is_even = (
        _has_steps(offsets, step - 4)
        and _has_steps(columns(table)[:, 0], step)  # from each table to the vtable of the first
        and _has_steps(columns(table + field_at)[:, 0], 0)
        and _has_steps(columns(start - 4)[:, 0], 0)
    )
    return columns(start, dimensions).copy() if is_even else None


def _has_steps(values: NDArray[np.uint32], step: int) -> bool:
    """Return whether each value is so much more than the one before it, or less."""
    return bool((values[1:] - values[:-1] == np.uint32(step % 2**32)).all())
