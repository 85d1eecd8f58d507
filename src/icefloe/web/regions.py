"""Regions of the chunk grid: many chunks as few boxes, in chunks, steps and coordinates."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from icefloe.format.chunk_table import Coordinates
from icefloe.records import Record
from icefloe.walk import regions
from icefloe.web.chunks import Cells
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


class CellRegion(Record):
    """A box of cells of a drawn grid with chunks of the same kind."""

    kind: str
    spans: tuple[tuple[str, str], ...]
    """For each drawn dimension, its chunks, and their coordinates if they are known."""
    chunks: int


def describe_cells(
    cells: Cells,
    kinds: Mapping[str, NDArray[np.int64]],
    dimensions: Sequence[Dimension],
    chunk_shape: Sequence[int] | None,
) -> tuple[tuple[CellRegion, ...], int]:
    """Return the largest regions of a drawn grid by kind, and how many smaller ones there are.

    `kinds` has the number of chunks of each kind in each cell; `chunk_shape` is None for chunks of
    different lengths, which have no coordinates here.
    """
    boxes = [
        (kind, box, int(counts[slice(*box[0]), slice(*box[1])].sum()))
        for kind, counts in kinds.items()
        for box in merged(np.argwhere(counts).astype(np.uint32)).tolist()
    ]
    largest = sorted(range(len(boxes)), key=lambda number: -boxes[number][2])[:MOST_REGIONS]
    listed = []
    for number in sorted(largest):
        kind, box, count = boxes[number]
        spans = tuple(
            _cell_span(cells, direction, part, dimensions, chunk_shape)
            for direction, part in enumerate(box)
            if cells.axes[direction] is not None
        )
        listed.append(CellRegion(kind, spans, count))
    return tuple(listed), len(boxes) - len(listed)


def _cell_span(
    cells: Cells,
    direction: int,
    part: Sequence[int],
    dimensions: Sequence[Dimension],
    chunk_shape: Sequence[int] | None,
) -> tuple[str, str]:
    axis, edges = cells.axes[direction], cells.edges(direction)
    assert axis is not None
    first, last = edges[part[0]], edges[part[1]] - 1
    chunks = f"{first:,}" if first == last else f"{first:,} to {last:,}"
    dimension = dimensions[axis]
    if chunk_shape is None or dimension.values is None:
        return chunks, ""
    length = chunk_shape[axis]
    span = _span(dimension, first * length, min(dimension.length, (last + 1) * length) - 1)
    return chunks, span.text.removeprefix(f"{span.name} ")


def merged(coordinates: Coordinates) -> Boxes:
    """Merge chunks into boxes that hold them all and nothing else.

    >>> merged(np.array([[0, 1], [0, 2], [1, 1], [1, 2], [5, 0]], np.uint32)).tolist()
    [[[0, 2], [1, 3]], [[5, 6], [0, 1]]]
    """
    boxes = regions.regions(coordinates)
    return np.stack([boxes.firsts, boxes.ends], axis=2)


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
    listed = tuple(_region(box, chunk_shape, dimensions) for box in boxes[shown].tolist())
    chunks_left_out = int(sizes.sum() - sizes[shown].sum())
    is_exact = len(coordinates) <= MOST_MERGED
    return Regions(listed, len(boxes) - len(shown), chunks_left_out, is_exact)


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
