"""Sets of chunks as boxes: what people can read, of any number of coordinates."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from icefloe.format.chunk_table import Coordinates
from icefloe.format.columns import Ints

type Box = tuple[tuple[int, int], ...]
"""First chunk and first chunk after, along each dimension; none for a scalar's only chunk."""

MOST_BOXES: Final = 100


def boxes_of(coordinates: Coordinates, most: int = MOST_BOXES) -> tuple[Box, ...]:
    """Cover chunks with boxes that hold nothing else.

    If it takes more than `most` of them, the one box around everything stands for all.

    >>> boxes_of(np.array([[0, 1], [0, 2], [1, 1], [1, 2], [5, 0]], np.uint32))
    (((0, 2), (1, 3)), ((5, 6), (0, 1)))
    """
    dimensions = coordinates.shape[1]
    if len(coordinates) == 0:
        return ()
    if dimensions == 0:
        return ((),)
    firsts = coordinates.astype(np.int64)
    return _covered(firsts, firsts + 1, most)


def joined_boxes(boxes: Sequence[Box], most: int = MOST_BOXES) -> tuple[Box, ...]:
    """Join boxes that touch, as far as they make boxes again; the same ones count once.

    >>> joined_boxes([((0, 2), (0, 3)), ((2, 4), (0, 3)), ((0, 2), (0, 3))])
    (((0, 4), (0, 3)),)
    """
    distinct = sorted(set(boxes))
    if len({len(box) for box in distinct}) != 1 or not distinct[0]:
        return tuple(distinct)
    edges = np.array(distinct, np.int64)
    return _covered(edges[:, :, 0], edges[:, :, 1], most)


def _covered(firsts: Ints, lasts: Ints, most: int) -> tuple[Box, ...]:
    for axis in reversed(range(firsts.shape[1])):
        firsts, lasts = _joined(firsts, lasts, axis)
    if len(firsts) > most:
        firsts, lasts = firsts.min(axis=0, keepdims=True), lasts.max(axis=0, keepdims=True)
    order = np.lexsort(firsts.T[::-1])
    rows = np.stack([firsts[order], lasts[order]], axis=2).tolist()
    return tuple(tuple((first, last) for first, last in row) for row in rows)


def _joined(firsts: Ints, lasts: Ints, axis: int) -> tuple[Ints, Ints]:
    """Join boxes that touch along an axis and are the same along all others."""
    others = [at for at in range(firsts.shape[1]) if at != axis]
    keys = [firsts[:, axis], *(part[:, at] for at in reversed(others) for part in (firsts, lasts))]
    order = np.lexsort(keys)
    firsts, lasts = firsts[order], lasts[order]
    starts = np.ones(len(firsts), np.bool_)
    starts[1:] = firsts[1:, axis] != lasts[:-1, axis]
    for at in others:
        starts[1:] |= firsts[1:, at] != firsts[:-1, at]
        starts[1:] |= lasts[1:, at] != lasts[:-1, at]
    rows = np.flatnonzero(starts)
    ends = np.append(rows[1:], len(firsts)) - 1
    joined = lasts[rows]
    joined[:, axis] = lasts[ends, axis]
    return firsts[rows], joined
