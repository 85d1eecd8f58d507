"""Partition the references of an array into parts, one manifest each, as configured."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from icefloe.config.conditions import (
    COORDINATE_NAME,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    SplitAnd,
    SplitAnyArray,
    SplitAnyDimension,
    SplitAxis,
    SplitDimensionName,
    SplitNameMatches,
    SplitOr,
    SplitPathMatches,
)
from icefloe.config.effective import EffectiveSplitSizes
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.arrow import pa, pc
from icefloe.format.chunk_table import Coordinates, sort_keys
from icefloe.format.columns import Bools, BytesColumn, Ints
from icefloe.format.nodes import ArrayNode, ManifestRef
from icefloe.format.paths import node_name
from icefloe.records import Record

_COORDINATE: Final = re.compile(COORDINATE_NAME, re.ASCII)
_ENDING: Final = re.compile(r"\.\*([\w/]*)", re.ASCII)
"""Patterns for anything that ends in some letters."""


@lru_cache(maxsize=4096)
def is_found(regex: str, text: str) -> bool:
    """Search text for a pattern."""
    if regex == COORDINATE_NAME:  # ours, and asked for wherever nothing is configured
        return _COORDINATE.fullmatch(text) is not None
    return regex == ".*" or _search(regex, [text], f"{regex!r} in the manifest")[0]


def matches(pattern: str, texts: Sequence[str]) -> list[bool]:
    """Return which texts a pattern matches from end to end.

    >>> matches(".*/(lat|lon)", ["/lat", "/group/lon", "/latitude"])
    [True, True, False]
    """
    if (ending := _ENDING.fullmatch(pattern)) is not None:  # the usual ones, without Arrow
        return [text.endswith(ending[1]) for text in texts]
    return _search(rf"\A(?s:{pattern})\z", texts, f"{pattern!r} in the chunk-manifests")


def _search(regex: str, texts: Sequence[str], origin: str) -> list[bool]:
    """Search texts for a pattern; `origin` says how it was written, and where.

    Arrow's engine takes time linear in the text, whatever the pattern: the configuration of a
    repository may have been written by anybody.
    """
    try:
        is_match = pc.match_substring_regex(
            BytesColumn.from_strings(texts).to_arrow_strings(), regex
        )
    except pa.ArrowInvalid as error:
        raise InvalidInputError(
            f"{origin} configuration is no regular expression: {error}",
            ErrorKind.INVALID_CONFIG,
        ) from error
    answers: list[bool] = is_match.to_pylist()
    return answers


MAX_PART_REFS: Final = 32_768
"""Arrays with more references than these are split where nothing is configured: decision 011."""

type Edges = tuple[range, ...]
"""For each dimension, where one manifest ends and the next begins."""
type Boxes = NDArray[np.int64]
"""(n, dimensions, 2): first chunk and first chunk after, along each dimension."""
type Box = tuple[tuple[int, int], ...]
"""For each dimension, the first chunk and the first chunk after."""
type Cut = tuple[int, int]
"""An axis, and the first chunk of the later half."""
type Rows = slice | Ints
"""The rows of a table that make up a part."""


class Blocks(Record, eq=False):
    """Stored parts of an array that were not opened."""

    boxes: Boxes
    counts: Ints
    """How many references each has."""

    def __len__(self) -> int:
        return len(self.counts)


class Partition(Record, eq=False):
    """The cuts of an array into parts, and the parts that are missing."""

    parts: list[Rows]
    """Rows of the coordinates given, in order and none of them empty."""
    wanted: Ints
    """Blocks that belong into one of the parts: open them and ask again."""


class Layout(Protocol):
    """A way to cut an array."""

    def partition(self, coordinates: Coordinates, blocks: Blocks) -> Partition:
        """Cut references, sorted by their coordinates, next to what is stored already."""
        ...

    def next_cut(self, box: Box, num_refs: int) -> Cut | None:
        """Return the first cut of the references in a box, or None if they are one part.

        Cutting both halves in the same way leads to the same parts as `partition`.
        """
        ...


class GridLayout(Record):
    """Parts are the cells of a fixed grid."""

    edges: Edges

    def partition(self, coordinates: Coordinates, blocks: Blocks) -> Partition:
        """Cut at the edges; blocks that share a cell with references are wanted."""
        if len(coordinates) == 0:
            return Partition([], _none())
        if not any(self.edges):
            return Partition([slice(0, len(coordinates))], np.arange(len(blocks)))
        cells = np.empty(coordinates.shape, np.int64)
        for axis, cuts in enumerate(self.edges):
            cells[:, axis] = np.searchsorted(cuts, coordinates[:, axis], side="right")
        [keys] = sort_keys(cells.astype(np.uint32))
        order = np.argsort(keys, kind="stable")
        firsts = np.flatnonzero(np.append(True, np.diff(keys[order]) != 0))
        rows = np.split(order, firsts[1:]) if len(firsts) > 1 else [slice(0, len(order))]
        return Partition(list(rows), self._sharing(cells[order[firsts]], blocks))

    def next_cut(self, box: Box, num_refs: int) -> Cut | None:
        """Choose the edge in the middle of those inside of the box."""
        for axis, cuts in enumerate(self.edges):
            first, last = bisect_right(cuts, box[axis][0]), bisect_left(cuts, box[axis][1])
            if first < last:
                return axis, cuts[(first + last) // 2]
        return None

    def _sharing(self, filled: Ints, blocks: Blocks) -> Ints:
        """Find the blocks that reach into a cell with references."""
        low, high = np.empty((2, *blocks.boxes.shape[:2]), np.int64)
        for axis, cuts in enumerate(self.edges):
            low[:, axis] = np.searchsorted(cuts, blocks.boxes[:, axis, 0], side="right")
            high[:, axis] = np.searchsorted(cuts, blocks.boxes[:, axis, 1] - 1, side="right")
        return np.flatnonzero(boxes_holding(np.stack([low, high + 1], axis=2), filled))


class HalvingLayout(Record):
    """Halves what is too large, along one axis after the other, down to single chunks."""

    axes: tuple[int, ...]
    """The append dimension first, then the others: cut only if one step of it is too large."""
    max_refs: int = MAX_PART_REFS

    def partition(self, coordinates: Coordinates, blocks: Blocks) -> Partition:
        """Cut until no part, with the blocks that lie in it, has too many references.

        Blocks across an edge are the work of somebody else: they stay as they are, but for a
        part of our own that just became too large.
        """
        order = self._order(coordinates)
        ordered = coordinates if order is None else coordinates[order]
        parts: list[Rows] = []
        chosen_rows: list[Ints] = [_none()]
        waiting = [_Cell(0, len(ordered), np.arange(len(blocks)), 0)]
        while waiting:
            cell = waiting.pop()
            if cell.first == cell.last:
                continue  # blocks alone: nothing happens to them
            total = cell.last - cell.first + int(blocks.counts[cell.blocks].sum())
            if total > self.max_refs and cell.depth < len(self.axes):
                halves = self._halves(cell, ordered, blocks.boxes)
                waiting.extend(halves)
                if len(cell.blocks) == 1 and not any(len(half.blocks) for half in halves):
                    # Until now, the cell was this one part: it is not one any more.
                    chosen_rows.append(cell.blocks[blocks.counts[cell.blocks] <= self.max_refs])
                continue
            rows: Rows = slice(cell.first, cell.last)
            parts.append(rows if order is None else np.sort(order[rows]))
            chosen_rows.append(cell.blocks)
        return Partition(parts, np.sort(np.concatenate(chosen_rows)))

    def next_cut(self, box: Box, num_refs: int) -> Cut | None:
        """Halve the box if it has too many references, along the first axis that has an extent."""
        for axis in self.axes if num_refs > self.max_refs else ():
            low, high = box[axis][0], box[axis][1] - 1
            if low != high:
                return axis, middle(low, high)
        return None

    def _order(self, coordinates: Coordinates) -> Ints | None:
        """Sort by the axes in their order; None if rows are sorted so already."""
        if self.axes == tuple(range(len(self.axes))) or len(coordinates) < 2:
            return None
        [keys] = sort_keys(np.ascontiguousarray(coordinates[:, self.axes]))
        order: Ints = np.argsort(keys, kind="stable")
        return order

    def _halves(self, cell: "_Cell", ordered: Coordinates, boxes: Boxes) -> "list[_Cell]":
        """Cut a cell in two, the later half first; at the next axis if this one has no extent."""
        axis = self.axes[cell.depth]
        column = ordered[cell.first : cell.last, axis]
        inside = boxes[cell.blocks, axis]
        low = min(int(column[0]), int(inside[:, 0].min(initial=column[0])))
        high = max(int(column[-1]), int(inside[:, 1].max(initial=0)) - 1)
        if low == high:
            return [_Cell(cell.first, cell.last, cell.blocks, cell.depth + 1)]
        edge = middle(low, high)
        first_row = cell.first + int(np.searchsorted(column, edge))
        left, right = cell.blocks[inside[:, 1] <= edge], cell.blocks[inside[:, 0] >= edge]
        return [
            _Cell(first_row, cell.last, right, cell.depth),
            _Cell(cell.first, first_row, left, cell.depth),
        ]


class _Cell(Record, eq=False):
    """Rows and blocks that have not been cut yet; all have the same place on earlier axes."""

    first: int
    last: int
    blocks: Ints
    depth: int


def middle(low: int, high: int) -> int:
    """Choose the edge between two chunks that is a multiple of the largest power of two."""
    bit = (low ^ high).bit_length() - 1
    return high >> bit << bit


def _none() -> Ints:
    return np.empty(0, np.int64)


def boxes_of(extents: Sequence[tuple[tuple[int, int], ...]], dimensions: int) -> Boxes:
    """Stack boxes into one array."""
    return np.array(extents, np.int64).reshape(len(extents), dimensions, 2)


def boxes_of_refs(refs: Sequence[ManifestRef], grid: Sequence[int]) -> Boxes:
    """Stack the boxes of manifests; one without extents covers the whole grid."""
    everything = tuple((0, count) for count in grid)
    extents = [ref.extents or everything for ref in refs]
    return np.array(extents, np.int64).reshape(len(extents), len(grid), 2)


def boxes_holding(boxes: Boxes, coordinates: NDArray[Any]) -> Bools:
    """Return which boxes contain any of the coordinates."""
    is_holding = np.zeros(len(boxes), np.bool_)
    if not len(boxes) or not len(coordinates):
        return is_holding
    if boxes.shape[1] == 0:
        return ~is_holding
    # Only the boxes near the coordinates are looked at one by one: for an append, hardly any.
    first, last = coordinates.min(axis=0), coordinates.max(axis=0)
    near = np.flatnonzero(((boxes[:, :, 0] <= last) & (first < boxes[:, :, 1])).all(axis=1))
    axis = _most_divided(boxes[near]) if len(near) else 0
    ordered = coordinates
    if len(near) and np.any(np.diff(coordinates[:, axis].astype(np.int64)) < 0):
        ordered = coordinates[np.argsort(coordinates[:, axis], kind="stable")]
    for row in near.tolist():
        box = boxes[row]
        begin, end = np.searchsorted(ordered[:, axis], box[axis])
        rows = ordered[begin:end]
        is_holding[row] = bool(((box[:, 0] <= rows) & (rows < box[:, 1])).all(axis=1).any())
    return is_holding


def _most_divided(boxes: Boxes) -> int:
    """Choose the axis that tells most boxes apart."""
    return int(np.argmax([len(np.unique(boxes[:, axis, 0])) for axis in range(boxes.shape[1])]))


def boxes_meeting(boxes: Boxes, others: Boxes) -> Bools:
    """Return which boxes overlap any of the others."""
    met = np.zeros(len(boxes), np.bool_)
    for other in others:
        met |= ((boxes[:, :, 0] < other[:, 1]) & (other[:, 0] < boxes[:, :, 1])).all(axis=1)
    return met


_TIME_NAME: Final = r"(?i)(t|datetime|(.+_)?(time|date))"
"""Dimensions with such names are those that data sets grow along, wherever they stand."""


def layout_of(node: ArrayNode, rules: EffectiveSplitSizes | None) -> Layout:
    """Choose how an array is cut: by the rules that are for it, or by default if there is none.

    A rule that says not to split an array is one, too; `None` says that no rules were ever set.
    """
    array = node.array
    if rules is not None and any(_holds(condition, node.path) for condition, _ in rules):
        return GridLayout(split_edges(node, rules))
    names = array.dimension_names or (None,) * len(array.num_chunks)
    return HalvingLayout(append_order(names))


def append_order(names: Sequence[str | None]) -> tuple[int, ...]:
    """Put the dimension that an array grows along before the others.

    It is the first with the name of a time, or else the first of all.

    >>> append_order(["lat", "lon", "time"])
    (2, 0, 1)
    """
    times = [axis for axis, name in enumerate(names) if name and re.fullmatch(_TIME_NAME, name)]
    first = times[:1]
    return (*first, *(axis for axis in range(len(names)) if axis not in first))


def split_edges(node: ArrayNode, rules: EffectiveSplitSizes) -> Edges:
    """Return the edges at which an array is split into manifests.

    All rules whose condition holds for the array apply, in their order; along each dimension
    the first size that fits it counts.
    """
    array = node.array
    names = array.dimension_names or (None,) * len(array.num_chunks)
    sizes = [pair for condition, sizes in rules if _holds(condition, node.path) for pair in sizes]
    return tuple(
        range(size, count, size) if (size := _size(axis, name, sizes)) else range(0)
        for axis, (count, name) in enumerate(zip(array.num_chunks, names, strict=True))
    )


def _size(
    axis: int, name: str | None, sizes: Sequence[tuple[ManifestSplitDimCondition, int]]
) -> int | None:
    for condition, size in sizes:
        match condition:
            case SplitAnyDimension():
                return size
            case SplitAxis(wanted) if wanted == axis:
                return size
            case SplitDimensionName(regex) if name is not None and is_found(regex, name):
                return size
    return None


def _holds(condition: ManifestSplitCondition, path: str) -> bool:
    match condition:
        case SplitAnyArray():
            return True
        case SplitPathMatches(regex):
            return is_found(regex, path)
        case SplitNameMatches(regex):
            return is_found(regex, node_name(path))
        case SplitOr(conditions):
            return any(_holds(inner, path) for inner in conditions)
        case SplitAnd(conditions):
            return all(_holds(inner, path) for inner in conditions)
        case _:
            raise InvalidInputError(
                f"{condition!r} is no condition for splitting manifests", ErrorKind.INVALID_CONFIG
            )
