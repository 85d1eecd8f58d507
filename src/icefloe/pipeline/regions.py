"""How the chunks of an array are divided over manifests that are built apart from each other.

An array is cut into the cells of a grid, each a manifest. Cells have the sizes that somebody
configured, or else hold as many references as a manifest should, in powers of two along the
dimension that the array grows along: so appending never moves the cells that are there.

Manifests that exist already, and meet a cell in which something changes, are built anew together
with it: such cells make up one group.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icefloe.config.effective import EffectiveSplitSizes
from icefloe.engine.manifest_parts import Box
from icefloe.engine.partition import GridLayout, HalvingLayout
from icefloe.engine.splitting import layout_of
from icefloe.format.columns import Ints
from icefloe.format.ids import ManifestId
from icefloe.format.node_table import ManifestRef, Node


@dataclass(frozen=True, slots=True)
class RegionGrid:
    """The cells of an array, numbered row by row."""

    sizes: tuple[int, ...]
    """Chunks in a cell, along each dimension."""
    counts: tuple[int, ...]
    """Cells along each dimension."""

    def numbers(self, coordinates: NDArray[Any]) -> Ints:
        """Give the cell of each chunk.

        >>> RegionGrid((2, 10), (3, 1)).numbers(np.array([[0, 9], [3, 0], [4, 5]])).tolist()
        [0, 1, 2]
        """
        numbers = np.zeros(len(coordinates), np.int64)
        for axis, (size, count) in enumerate(zip(self.sizes, self.counts, strict=True)):
            numbers *= count
            numbers += coordinates[:, axis].astype(np.int64) // size
        return numbers

    def cells_within(self, box: Box) -> list[int]:
        """Number the cells that a box reaches into."""
        ranges = [
            range(first // size, -(-last // size))
            for (first, last), size in zip(box, self.sizes, strict=True)
        ]
        return [self._number(cell) for cell in product(*ranges)]

    def _number(self, cell: Sequence[int]) -> int:
        number = 0
        for at, count in zip(cell, self.counts, strict=True):
            number = number * count + at
        return number


def region_grid(node: Node, rules: EffectiveSplitSizes | None) -> RegionGrid:
    """Choose the cells of an array."""
    assert node.array is not None
    counts = tuple(max(1, count) for count in node.array.num_chunks)
    match layout_of(node, rules):
        case GridLayout(edges):
            sizes = tuple(
                cuts.step if len(cuts) else count for cuts, count in zip(edges, counts, strict=True)
            )
        case HalvingLayout(axes, max_refs):
            sizes = _fitting(counts, axes, max_refs)
        case _:
            sizes = counts
    cells = tuple(-(-count // size) for count, size in zip(counts, sizes, strict=True))
    return RegionGrid(sizes, cells)


def _fitting(counts: tuple[int, ...], axes: Sequence[int], max_refs: int) -> tuple[int, ...]:
    """Cut along one axis after the other until a cell has no more chunks than allowed."""
    sizes = list(counts)
    left = math.prod(counts)
    for axis in axes:
        below = left // counts[axis]
        if below <= max_refs:
            # Not more than the array has, so that a cell of a small array is all of it.
            sizes[axis] = min(counts[axis], 1 << (max_refs // below).bit_length() - 1)
            break
        sizes[axis], left = 1, below
    return tuple(sizes)


@dataclass(frozen=True, slots=True)
class OldManifest:
    """A manifest that is to be built anew."""

    id: ManifestId
    size_bytes: int
    box: Box


@dataclass(frozen=True, slots=True)
class RegionGroups:
    """Which cells are built together, and with which manifests that are there."""

    grid: RegionGrid
    group_of: Mapping[int, int] = field(default_factory=dict)
    """For cells that share a group with others or with manifests; any other is its own group."""
    old: Mapping[int, tuple[OldManifest, ...]] = field(default_factory=dict)
    """By group, the manifests to be replaced."""

    def groups(self, cells: Ints) -> Ints:
        """Give the group of each cell."""
        if not self.group_of:
            return cells
        distinct, rows = np.unique(cells, return_inverse=True)
        mapped = [self.group_of.get(cell, cell) for cell in distinct.tolist()]
        return np.array(mapped, np.int64)[rows]


def touched_cells(grid: RegionGrid, box: Box, spans: Mapping[int, NDArray[np.int64]]) -> list[int]:
    """Number the cells that new chunks may lie in.

    `spans` has, for axes along which only some places are new, rows of their first chunk and
    first chunk after; along the others it is all of the box.
    """
    along = []
    for axis, (size, (first, last)) in enumerate(zip(grid.sizes, box, strict=True)):
        if axis in spans:
            low, high = spans[axis][:, 0] // size, -(-spans[axis][:, 1] // size)
            along.append(_covered(low, high, grid.counts[axis]))
        else:
            along.append(list(range(first // size, max(-(-last // size), first // size + 1))))
    return [grid._number(cell) for cell in product(*along)]  # noqa: SLF001 - of this module


def _covered(low: Ints, high: Ints, count: int) -> list[int]:
    edges = np.zeros(count + 1, np.int64)
    np.add.at(edges, np.minimum(low, count), 1)
    np.add.at(edges, np.minimum(high, count), -1)
    found: list[int] = np.flatnonzero(np.cumsum(edges[:-1])).tolist()
    return found


def group_regions(
    grid: RegionGrid, touched: Iterable[int], before: Sequence[ManifestRef], sizes: Sequence[int]
) -> RegionGroups:
    """Find out which existing manifests have to be built anew, and with which cells."""
    changing = set(touched)
    everything = tuple(
        (0, size * count) for size, count in zip(grid.sizes, grid.counts, strict=True)
    )
    owner: dict[int, int] = {}

    def group(cell: int) -> int:
        while (above := owner.get(cell, cell)) != cell:
            cell = above
        return cell

    met: list[tuple[int, OldManifest]] = []
    for ref, size in zip(before, sizes, strict=True):
        box = ref.extents or everything
        cells = grid.cells_within(box)
        if changing.isdisjoint(cells):
            continue
        first = min(group(cell) for cell in cells)
        for cell in cells:
            owner[group(cell)] = first
        owner[first] = first
        met.append((first, OldManifest(ref.id, size, box)))
    old: dict[int, list[OldManifest]] = {}
    for cell, manifest in met:
        old.setdefault(group(cell), []).append(manifest)
    return RegionGroups(
        grid,
        {cell: group(cell) for cell in owner},
        {number: tuple(manifests) for number, manifests in old.items()},
    )
