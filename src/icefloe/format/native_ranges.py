"""The native chunks of an array without their coordinates: which bytes of which objects."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from icefloe.format.columns import Bytes


@dataclass(frozen=True, slots=True, eq=False)
class NativeRanges:
    """A row for each chunk, in the order of coordinates."""

    first: tuple[int, ...]
    """The coordinates of the first chunk."""
    chunk_ids: Bytes
    offsets: NDArray[np.uint64]
    lengths: NDArray[np.uint64]

    @property
    def nbytes(self) -> int:
        """Give the memory that the columns take."""
        return self.chunk_ids.nbytes + self.offsets.nbytes + self.lengths.nbytes

    def equals(self, other: "NativeRanges") -> bool:
        """Compare all rows."""
        return (
            np.array_equal(self.lengths, other.lengths)
            and np.array_equal(self.offsets, other.offsets)
            and np.array_equal(self.chunk_ids, other.chunk_ids)
        )

    def take(self, rows: slice) -> "NativeRanges":
        """Pick rows that follow each other."""
        return NativeRanges(
            self.first, self.chunk_ids[rows], self.offsets[rows], self.lengths[rows]
        )

    def take_all(self, parts: Sequence[slice]) -> "NativeRanges":
        """Pick several parts."""
        some = [self.take(part) for part in parts] or [self.take(slice(0))]
        return NativeRanges(
            self.first,
            np.concatenate([one.chunk_ids for one in some]),
            np.concatenate([one.offsets for one in some]),
            np.concatenate([one.lengths for one in some]),
        )
