"""Steps that are inserted among existing ones, and where existing steps go."""

import numpy as np
from numpy.typing import NDArray

from icefloe.records import Record

type Ints = NDArray[np.int64]


class Insertions(Record):
    """Runs of steps that are inserted along a dimension; existing steps stay in their order.

    >>> inserted = Insertions(((0, 3), (2, 1)))
    >>> inserted.moved(np.arange(4)).tolist()
    [3, 4, 6, 7]
    >>> inserted.run_of(np.arange(8)).tolist()
    [0, 0, 0, -1, -1, 1, -1, -1]
    """

    runs: tuple[tuple[int, int], ...] = ()
    """The existing position before which a run goes, ascending, and how many steps it has."""

    @property
    def steps(self) -> int:
        """Return how many steps are inserted."""
        return sum(count for _, count in self.runs)

    def moved(self, positions: Ints) -> Ints:
        """Return where existing steps go."""
        edges, totals = self._columns()
        moved: Ints = positions + totals[np.searchsorted(edges, positions, side="right")]
        return moved

    def run_of(self, positions: Ints) -> Ints:
        """Return the number of the run in which new positions lie; -1 for existing steps."""
        edges, totals = self._columns()
        runs = np.searchsorted(edges + totals[:-1], positions, side="right") - 1
        ends = np.append(edges + totals[1:], 0)  # the last one is that of number -1
        return np.where(positions < ends[runs], runs, -1)

    def parts(self, length: int) -> Ints:
        """Return the parts of so long a dimension that stay together: where each begins, where it
        begins after the insertion, and its length.

        >>> Insertions(((0, 2), (3, 4))).parts(5).tolist()
        [[0, 2, 3], [3, 9, 2]]
        """
        edges, _ = self._columns()
        starts = np.unique(np.append(edges, 0))
        return np.stack([starts, self.moved(starts), np.diff(starts, append=length)], axis=1)

    def in_chunks(self, length: int) -> "Insertions | None":
        """Return the chunks of a length that are inserted; None if chunks would be split.

        >>> Insertions(((4, 2),)).in_chunks(2), Insertions(((4, 2),)).in_chunks(4)
        (Insertions(runs=((2, 1),)), None)
        """
        if any(number % length for run in self.runs for number in run):
            return None
        return Insertions(tuple((position // length, n // length) for position, n in self.runs))

    def _columns(self) -> tuple[Ints, Ints]:
        """Return the positions of runs, and how many steps are inserted before each and in all."""
        columns = np.array(self.runs, np.int64).reshape(-1, 2)
        return columns[:, 0], np.concatenate([[0], np.cumsum(columns[:, 1])]).astype(np.int64)
