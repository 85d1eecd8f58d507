"""The coordinates of very many chunks of one array, kept compressed until they are written.

They come in pieces, in any order; what is held of them is a small part of their bytes. Read back,
they are sorted and each is there once. Pieces that lie behind one another, as those of manifests
along the first dimension do, are read one at a time; others are merged a part at a time.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import zstandard

from icefloe.format.chunk_table import Coordinates, sort_keys
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
                    group[0].rows if len(group) == 1 else self._merged_count(group)
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

    def _merged_count(self, group: Sequence[_Run]) -> int:
        return sum(len(piece) for piece in self._pieces(group))

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
