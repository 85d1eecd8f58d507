"""The native chunks of an array without their coordinates: which bytes of which objects."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from icefloe.format.columns import Bools, Bytes, Ints
from icefloe.format.ids import ChunkId


@dataclass(frozen=True, slots=True, eq=False)
class NativeRanges:
    """A row for each chunk, in the order of coordinates."""

    first: tuple[int, ...]
    """The coordinates of the first chunk."""
    chunk_ids: Bytes
    offsets: NDArray[np.uint64]
    lengths: NDArray[np.uint64]

    @classmethod
    def of_size(cls, first: tuple[int, ...], count: int) -> "NativeRanges":
        """Make room for as many rows, to be filled."""
        ids = np.empty((count, ChunkId.WIDTH), np.uint8)
        return cls(first, ids, np.empty(count, np.uint64), np.empty(count, np.uint64))

    @classmethod
    def joined(cls, first: tuple[int, ...], parts: Sequence["NativeRanges"]) -> "NativeRanges":
        """Copy parts, one behind the other."""
        every = [cls.of_size(first, 0), *parts]
        return cls(
            first,
            np.concatenate([part.chunk_ids for part in every]),
            np.concatenate([part.offsets for part in every]),
            np.concatenate([part.lengths for part in every]),
        )

    @property
    def nbytes(self) -> int:
        """Give the memory that the columns take."""
        return self.chunk_ids.nbytes + self.offsets.nbytes + self.lengths.nbytes

    @property
    def words(self) -> NDArray[np.uint32]:
        """See ids as words, which are compared more quickly than bytes."""
        return self.chunk_ids.view(np.uint32)

    def __len__(self) -> int:
        return len(self.lengths)

    def equals(self, other: "NativeRanges") -> bool:
        """Compare all rows at once."""
        return (
            np.array_equal(self.lengths, other.lengths)
            and np.array_equal(self.offsets, other.offsets)
            and np.array_equal(self.words, other.words)
        )

    def differs(self, other: "NativeRanges") -> Bools:
        """Compare row by row with as many others."""
        is_other: Bools = (self.lengths != other.lengths) | (self.offsets != other.offsets)
        is_other |= (self.words != other.words).any(axis=1)
        return is_other

    def take(self, rows: slice | Ints) -> "NativeRanges":
        """Pick rows."""
        return NativeRanges(
            self.first, self.chunk_ids[rows], self.offsets[rows], self.lengths[rows]
        )
