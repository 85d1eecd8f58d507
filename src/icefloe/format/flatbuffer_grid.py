"""Things that lie at constant distances, as writers of very many tables put them.

They are read by strides, which is several times as quick as one by one.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from icefloe.format.columns import Bytes, Ints

_SHORTEST_ROW: Final = 64
"""Shorter rows are not worth looking for."""


@dataclass(frozen=True, slots=True)
class Grid:
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
