"""Regions of the chunk grid: many chunks as few boxes, in chunks, steps and coordinates."""

from collections.abc import Sequence
from math import prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from icefloe.format.chunk_table import Coordinates, sort_keys
from icefloe.format.columns import Bools, Ints, is_ascending
from icefloe.records import Record
from icefloe.web.pictures import Dimension

type Boxes = NDArray[np.int64]
"""(n, dimensions, 2): first chunk and first chunk after, along each dimension."""

MOST_REGIONS: Final = 100
"""How many regions a page lists."""
MOST_MERGED: Final = 1_000_000
"""More chunks than these are one region: the box around them."""


class Span(Record):
    """The part of a region along a dimension."""

    name: str
    first_step: int
    last_step: int
    first: str
    """The coordinate of the first step; its number if there is no coordinate."""
    last: str
    units: str
    is_whole: bool
    """Whether the region has all steps of the dimension."""
    has_coordinates: bool

    @property
    def text(self) -> str:
        """The span in words.

        >>> Span("lat", 0, 4, "40", "50", "degrees_north", False, True).text
        'lat 40 to 50 degrees_north'
        """
        units = f" {self.units}" if self.units else ""
        if self.first_step == self.last_step:
            return f"{self.name} {self.first}{units}"
        return f"{self.name} {self.first} to {self.last}{units}"


class Region(Record):
    """A box of chunks, in the coordinates of its dimensions."""

    spans: tuple[Span, ...]
    chunks: int

    @property
    def text(self) -> str:
        """The region in words."""
        return ", ".join(span.text for span in self.spans) or "the only value"


class Regions(Record):
    """The largest regions of some chunks."""

    regions: tuple[Region, ...]
    left_out: int
    """How many smaller regions there are besides."""
    chunks_left_out: int
    is_exact: bool
    """Whether all chunks of the regions are meant; otherwise this is the box around them."""


def merged(coordinates: Coordinates) -> Boxes:
    """Merge chunks, each of which occurs once, into boxes that hold them all and nothing else.

    Neighbours along the last dimension become one box, then equal boxes that are neighbours along
    the dimension before, and so on.

    >>> merged(np.array([[0, 1], [0, 2], [1, 1], [1, 2], [5, 0]], np.uint32)).tolist()
    [[[0, 2], [1, 3]], [[5, 6], [0, 1]]]
    """
    dimensions = coordinates.shape[1]
    if dimensions == 0 or len(coordinates) == 0:
        return np.empty((min(len(coordinates), 1), dimensions, 2), np.int64)
    [keys] = sort_keys(coordinates)
    if not is_ascending(keys):
        coordinates = coordinates[np.argsort(keys, kind="stable")]
    boxes = _runs(coordinates)
    for axis in reversed(range(dimensions - 1)):
        others = np.delete(boxes, axis, axis=1).reshape(len(boxes), -1)
        order = np.lexsort([boxes[:, axis, 0], *others.T])
        boxes, others = boxes[order], others[order]
        is_next = (others[1:] == others[:-1]).all(axis=1)
        is_next &= boxes[1:, axis, 0] == boxes[:-1, axis, 1]
        heads, tails = _edges(is_next)
        ends = boxes[tails, axis, 1]
        boxes = boxes[heads]
        boxes[:, axis, 1] = ends
    return boxes[np.lexsort(boxes[:, ::-1, 0].T)]


def _runs(coordinates: Coordinates) -> Boxes:
    """Merge sorted chunks that are neighbours along the last dimension."""
    last = coordinates[:, -1]
    is_next = (coordinates[1:, :-1] == coordinates[:-1, :-1]).all(axis=1)
    is_next &= last[1:] == last[:-1] + 1
    heads, tails = _edges(is_next)
    firsts = coordinates[heads].astype(np.int64)
    boxes = np.stack([firsts, firsts + 1], axis=2)
    boxes[:, -1, 1] = last[tails].astype(np.int64) + 1
    return boxes


def _edges(is_next: Bools) -> tuple[Ints, Ints]:
    """Return the first and the last row of each run of rows, which are at least one.

    >>> [rows.tolist() for rows in _edges(np.array([True, False, True]))]
    [[0, 2], [1, 3]]
    """
    heads = np.flatnonzero(np.append(True, ~is_next))
    return heads, np.append(heads[1:] - 1, len(is_next))


def describe(
    coordinates: Coordinates,
    chunk_shape: Sequence[int],
    dimensions: Sequence[Dimension],
    most: int = MOST_REGIONS,
) -> Regions:
    """Return the largest regions of some chunks, in the coordinates of the dimensions."""
    boxes = merged(coordinates) if len(coordinates) <= MOST_MERGED else _around(coordinates)
    sizes = (boxes[:, :, 1] - boxes[:, :, 0]).prod(axis=1)
    shown = np.argsort(-sizes, kind="stable")[:most]
    shown.sort()  # in the order of the grid
    regions = tuple(_region(box, chunk_shape, dimensions) for box in boxes[shown].tolist())
    chunks_left_out = int(sizes.sum() - sizes[shown].sum())
    is_exact = len(coordinates) <= MOST_MERGED
    return Regions(regions, len(boxes) - len(shown), chunks_left_out, is_exact)


def _around(coordinates: Coordinates) -> Boxes:
    """Return the box around chunks."""
    firsts, lasts = coordinates.min(axis=0), coordinates.max(axis=0)
    return np.stack([firsts, lasts.astype(np.int64) + 1], axis=1)[None]


def _region(
    box: list[list[int]], chunk_shape: Sequence[int], dimensions: Sequence[Dimension]
) -> Region:
    spans = [
        _span(dimension, first * length, min(dimension.length, last * length) - 1)
        for (first, last), length, dimension in zip(box, chunk_shape, dimensions, strict=True)
    ]
    return Region(tuple(spans), prod(last - first for first, last in box))


def _span(dimension: Dimension, first: int, last: int) -> Span:
    axis = dimension.axis
    return Span(
        dimension.name,
        first,
        last,
        axis.label(first),
        axis.label(last),
        dimension.units if axis.calendar is None else "",
        first == 0 and last == dimension.length - 1,
        axis.values is not None,
    )
