"""Which row of a table holds a chunk, for who asks many times."""

from collections.abc import Sequence
from math import prod

import numpy as np

from icefloe.format.chunk_table import Coordinates, row_of_sorted


class RowFinder:
    """Finds coordinates in sorted and unique rows.

    Most arrays have all of their chunks: then a row is found by counting.

    >>> RowFinder(np.array([[4, 0], [4, 1], [5, 0], [5, 1]], np.uint32)).find((5, 0))
    2
    """

    __slots__ = ("_box", "_matrix")

    def __init__(self, matrix: Coordinates) -> None:
        self._box = _filled_box(matrix)
        self._matrix = matrix if self._box is None else matrix[:0]

    def find(self, wanted: Sequence[int]) -> int | None:
        """Give the row of some coordinates; `None` if there is none."""
        box = self._box
        if box is None:
            return row_of_sorted(self._matrix, wanted)
        if len(wanted) != len(box):
            return None
        row = 0
        for index, (first, count) in zip(wanted, box, strict=True):
            if not first <= index < first + count:
                return None
            row = row * count + index - first
        return row


def _filled_box(matrix: Coordinates) -> list[tuple[int, int]] | None:
    """Give first index and number of indices by dimension, if the rows leave out none of them."""
    if len(matrix) == 0:
        return None
    firsts, lasts = np.min(matrix, axis=0).tolist(), np.max(matrix, axis=0).tolist()
    box = [(first, last - first + 1) for first, last in zip(firsts, lasts, strict=True)]
    return box if prod(count for _, count in box) == len(matrix) else None
