"""Regions: sets of chunks as boxes that people can read.

Everything here works on columns: a box is a row of two matrices, of its first positions and of the
positions behind its last ones. Millions of chunks become boxes without an object for each.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, islice
from math import prod
from typing import Any, Final

import numpy as np

from icefloe.format.chunk_table import Coordinates
from icefloe.format.columns import Ints
from icefloe.records import Record

_LARGEST_NUMBER: Final = 2**62


class Regions(Record, eq=False):
    """Boxes in a grid, ordered by their first positions; a row for each."""

    firsts: Ints
    """The first position of a box along each dimension."""
    ends: Ints
    """The position behind the last one along each dimension."""
    is_exact: bool = True
    """Whether the boxes hold nothing but the chunks; otherwise they lie around the chunks."""

    def __len__(self) -> int:
        return len(self.firsts)

    def pairs(self) -> list[list[tuple[int, int]]]:
        """Return the boxes as lists of first positions and ends."""
        rows = np.stack([self.firsts, self.ends], axis=2).tolist()
        return [[(first, end) for first, end in row] for row in rows]


def regions(coordinates: Coordinates, most: int | None = None) -> Regions:
    """Cover chunks with boxes that hold nothing else.

    If it takes more than `most` of them, the one box around everything stands for all.

    >>> regions(np.array([[0, 1], [0, 2], [1, 1], [1, 2], [5, 0]], np.uint32)).pairs()
    [[(0, 2), (1, 3)], [(5, 6), (0, 1)]]
    """
    firsts, ends = _runs(coordinates)
    return _joined(firsts, ends, range(coordinates.shape[1] - 1), most)


def joined(firsts: Ints, ends: Ints, most: int | None = None) -> Regions:
    """Join boxes that touch, as far as they make boxes again; no two may be the same."""
    return _joined(firsts, ends, range(firsts.shape[1]), most)


def _joined(firsts: Ints, ends: Ints, axes: range, most: int | None) -> Regions:
    if len(firsts) == 0 or firsts.shape[1] == 0:  # an array without dimensions has one chunk
        return Regions(firsts[:1], ends[:1])
    for axis in reversed(axes):
        firsts, ends = _joined_along(firsts, ends, axis)
    is_exact = most is None or len(firsts) <= most
    if not is_exact:
        firsts, ends = firsts.min(axis=0, keepdims=True), ends.max(axis=0, keepdims=True)
    order = np.lexsort(firsts.T[::-1])
    return Regions(firsts[order], ends[order], is_exact)


def _runs(coordinates: Coordinates) -> tuple[Ints, Ints]:
    """Return the runs of chunks along the last dimension; the same chunk may come twice.

    A chunk is a single number here, which is quick to sort and to compare. Mostly there is nothing
    to sort: the chunks of a commit are in order.
    """
    if len(coordinates) == 0 or coordinates.shape[1] == 0:
        firsts = coordinates.astype(np.int64)
        return firsts, firsts + 1
    low = coordinates.min(axis=0).astype(np.int64)
    extents = coordinates.max(axis=0).astype(np.int64) - low + 1
    if prod(extents.tolist()) > _LARGEST_NUMBER:
        firsts = np.unique(coordinates.astype(np.int64), axis=0)
        return _joined_along(firsts, firsts + 1, firsts.shape[1] - 1)
    numbers = np.zeros(len(coordinates), np.int64)
    for axis, extent in enumerate(extents.tolist()):
        numbers *= extent
        numbers += coordinates[:, axis]
        numbers -= low[axis]
    if len(numbers) > 1 and not (numbers[1:] > numbers[:-1]).all():
        numbers = np.unique(numbers)
    starts = np.ones(len(numbers), np.bool_)
    starts[1:] = (numbers[1:] != numbers[:-1] + 1) | (numbers[1:] % extents[-1] == 0)
    rows = np.flatnonzero(starts)
    last_rows = np.append(rows[1:], len(numbers)) - 1
    shape = tuple(extents.tolist())
    firsts = np.stack(np.unravel_index(numbers[rows], shape), axis=1) + low
    ends = np.stack(np.unravel_index(numbers[last_rows], shape), axis=1) + low + 1
    return firsts, ends


def _joined_along(firsts: Ints, ends: Ints, axis: int) -> tuple[Ints, Ints]:
    """Join boxes that touch along an axis and are the same along all others."""
    others = [dimension for dimension in range(firsts.shape[1]) if dimension != axis]
    keys = [
        firsts[:, axis],
        *(part[:, dimension] for dimension in reversed(others) for part in (firsts, ends)),
    ]
    order = np.lexsort(keys)
    firsts, ends = firsts[order], ends[order]
    starts = np.ones(len(firsts), np.bool_)
    starts[1:] = firsts[1:, axis] != ends[:-1, axis]
    for dimension in others:
        starts[1:] |= firsts[1:, dimension] != firsts[:-1, dimension]
        starts[1:] |= ends[1:, dimension] != ends[:-1, dimension]
    rows = np.flatnonzero(starts)
    last_rows = np.append(rows[1:], len(firsts)) - 1
    longer = ends[rows]
    longer[:, axis] = ends[last_rows, axis]
    return firsts[rows], longer


class ChunkRuns(Record):
    """The chunks along a dimension, as runs of chunks of the same size."""

    length: int
    """The number of elements along the dimension."""
    chunks_before: tuple[int, ...]
    """For each run, the number of chunks before it."""
    elements_before: tuple[int, ...]
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, length: int, runs: Iterable[tuple[int, int]]) -> "ChunkRuns":
        """Describe a dimension by the size and the number of the chunks in each run.

        >>> chunks = ChunkRuns.of(25, [(10, 3)])
        >>> [chunks.start(number) for number in range(4)]
        [0, 10, 20, 25]
        """
        pairs = list(runs)
        chunks = accumulate((count for _, count in pairs), initial=0)
        elements = accumulate((size * count for size, count in pairs), initial=0)
        rows = len(pairs)
        return cls(
            length,
            tuple(islice(chunks, rows)),
            tuple(islice(elements, rows)),
            tuple(size for size, _ in pairs),
        )

    def start(self, chunk: int) -> int:
        """Return the first element of a chunk; behind the last chunk, the length."""
        row = bisect_right(self.chunks_before, chunk) - 1
        if row < 0:
            return 0
        start = self.elements_before[row] + (chunk - self.chunks_before[row]) * self.sizes[row]
        return min(start, self.length)


def chunk_runs(
    document: Mapping[str, Any], shape: Sequence[int], num_chunks: Sequence[int]
) -> list[ChunkRuns] | None:
    """Return the chunks of an array along each dimension; None if its grid is of no known kind.

    `document` is the metadata of the array.

    >>> grid = {"name": "rectilinear", "configuration": {"chunk_shapes": [[5, [3, 2]]]}}
    >>> [chunks] = chunk_runs({"chunk_grid": grid}, [11], [3])
    >>> [chunks.start(number) for number in range(4)]
    [0, 5, 8, 11]
    """
    match document.get("chunk_grid"):
        case {"name": "regular", "configuration": {"chunk_shape": [*sizes]}}:
            runs = [[(size, count)] for size, count in zip(sizes, num_chunks, strict=False)]
        case {"name": "rectilinear", "configuration": {"chunk_shapes": [*dimensions]}}:
            runs = [
                [(run, 1) if isinstance(run, int) else (run[0], run[1]) for run in dimension]
                for dimension in dimensions
            ]
        case _:
            return None
    if len(runs) != len(shape):
        return None
    return [ChunkRuns.of(length, pairs) for length, pairs in zip(shape, runs, strict=True)]


def elements_of(box: Sequence[tuple[int, int]], chunks: Sequence[ChunkRuns]) -> list[list[int]]:
    """Return a box of chunks in elements: the first one and the end, along each dimension.

    >>> elements_of([(1, 3)], [ChunkRuns.of(25, [(10, 3)])])
    [[10, 25]]
    """
    return [
        [runs.start(first), runs.start(end)] for (first, end), runs in zip(box, chunks, strict=True)
    ]
