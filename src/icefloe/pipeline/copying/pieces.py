"""An array that is made of boxes of other arrays: where the values of a region come from. Pure."""

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from icefloe.pipeline.combining.insertions import Insertions
from icefloe.records import Record

type Ints = NDArray[np.int64]
type Box = tuple[slice, ...]
"""All slices have a start and a stop."""


class Overlap(Record):
    """The part of a piece that lies in a box."""

    source: int
    inside: Box
    """In the source."""
    target: Box
    """In the box."""


class Pieces(Record, eq=False):
    """Boxes that do not overlap, each with the array that has its values; one row for each.

    >>> two = Pieces.of([[0, 0], [3, 0]], [[3, 4], [2, 4]], [[0, 0], [3, 0]], [0, 0])
    >>> merged = two.merged()
    >>> len(merged), merged.lengths.tolist()
    (1, [[5, 4]])
    >>> [overlap] = two.within((slice(3, 4), slice(1, 3)))
    >>> overlap.inside
    (slice(3, 4, None), slice(1, 3, None))
    """

    starts: Ints
    """Where boxes begin."""
    lengths: Ints
    origins: Ints
    """Where they begin in their sources."""
    sources: Ints
    """Numbers of sources."""

    @classmethod
    def of(cls, starts: Any, lengths: Any, origins: Any, sources: Any) -> Self:
        """Return pieces of rows."""
        return cls(*(np.array(column, np.int64) for column in (starts, lengths, origins, sources)))

    def __len__(self) -> int:
        return len(self.sources)

    @property
    def volume(self) -> int:
        """Count the values that have a source."""
        return int(self.lengths.prod(axis=1).sum())

    def with_boxes(self, starts: Ints, lengths: Ints, *, source: int) -> Self:
        """Add boxes of one more source, in which they lie as in the array."""
        sources = np.full(len(starts), source, np.int64)
        return type(self)(
            *(
                np.concatenate(columns)
                for columns in (
                    (self.starts, starts),
                    (self.lengths, lengths),
                    (self.origins, starts),
                    (self.sources, sources),
                )
            )
        )

    def merged(self) -> Self:
        """Put pieces together that lie side by side, in the array as in their source."""
        merged = self
        for axis in range(self.starts.shape[1]):
            merged = merged._merged_along(axis)
        return merged

    def _merged_along(self, axis: int) -> Self:
        if len(self) < 2:
            return self
        others = [other for other in range(self.starts.shape[1]) if other != axis]
        moved = self.starts - self.origins
        same = np.concatenate(
            [self.starts[:, others], self.lengths[:, others], moved, self.sources[:, None]], axis=1
        )
        order = np.lexsort((self.starts[:, axis], *same.T[::-1]))
        starts, lengths, same = self.starts[order], self.lengths[order], same[order]
        ends = starts[:, axis] + lengths[:, axis]
        follows = (same[1:] == same[:-1]).all(axis=1) & (starts[1:, axis] == ends[:-1])
        first = np.flatnonzero(np.concatenate([[True], ~follows]))
        merged_lengths = lengths[first]
        last = np.append(first[1:], len(order)) - 1
        merged_lengths[:, axis] = ends[last] - starts[first, axis]
        kept = np.sort(first)
        return type(self)(
            starts[kept], merged_lengths, self.origins[order][kept], self.sources[order][kept]
        )

    def within(self, box: Box) -> Iterator[Overlap]:
        """Find the pieces that meet a box, in the order of their starts."""
        low = np.array([span.start for span in box], np.int64)
        high = np.array([span.stop for span in box], np.int64)
        begins = np.maximum(self.starts, low)
        ends = np.minimum(self.starts + self.lengths, high)
        rows = np.flatnonzero((begins < ends).all(axis=1))
        inside = begins - self.starts + self.origins
        for row in rows[np.lexsort(self.starts[rows].T[::-1])].tolist() if box else rows.tolist():
            lengths = ends[row] - begins[row]
            yield Overlap(
                int(self.sources[row]),
                _box(inside[row], lengths),
                _box(begins[row] - low, lengths),
            )


def _box(starts: Ints, lengths: Ints) -> Box:
    return tuple(
        slice(start, start + length)
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)
    )


def earlier_pieces(shape: Sequence[int], inserted: Sequence[Insertions]) -> Pieces:
    """Return an array that exists as pieces of what it becomes, given the new steps by axis.

    >>> inserted = Insertions(((0, 2), (3, 4)))
    >>> earlier_pieces((5, 2), (inserted, Insertions())).starts.tolist()
    [[2, 0], [9, 0]]
    """
    by_axis = [of_axis.parts(length) for length, of_axis in zip(shape, inserted, strict=True)]
    combinations = list(product(*by_axis))
    boxes = np.array(combinations, np.int64).reshape(len(combinations), len(by_axis), 3)
    origins, starts, lengths = (boxes[:, :, column] for column in range(3))
    return Pieces(starts, lengths, origins, np.zeros(len(boxes), np.int64))


_LONGEST_UNIT: Final = 1 << 16


def packed_starts(lengths: Ints, chunks: Sequence[int]) -> Ints:
    """Lay runs one behind the other so that no two share a chunk; the last is where all end.

    Runs that fill whole chunks of all arrays follow each other without a gap.

    >>> packed_starts(np.array([31, 29]), [10]).tolist()
    [0, 40, 70]
    """
    unit = math.lcm(*chunks)
    if unit > _LONGEST_UNIT:
        return np.concatenate([[0], np.cumsum(lengths + (max(chunks) - 1))]).astype(np.int64)
    return np.concatenate([[0], np.cumsum(-(-lengths // unit) * unit)]).astype(np.int64)
