"""Manifests that other processes built, as the session that links them knows them.

Only what a snapshot lists is here, a few bytes for each manifest: the references stay in their
files. A region is the unit of building: its new manifests replace all manifests that it was built
over, and hold their references. `plan_parts` chooses them before anyone has all references.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.chunk_table import Coordinates, sort_keys
from icefloe.format.columns import Ints
from icefloe.format.ids import ManifestId
from icefloe.format.nodes import ManifestRef
from icefloe.manifests.build import NewManifest
from icefloe.manifests.partition import (
    Box,
    Boxes,
    GridLayout,
    HalvingLayout,
    Layout,
    boxes_meeting,
    boxes_of,
    boxes_of_refs,
    middle,
)
from icefloe.records import Record


class StoredManifest(Record):
    """A manifest of an array as it is stored: what somebody needs who builds over it."""

    ref: ManifestRef
    size_bytes: int
    num_refs: int
    """Of all arrays in it."""


class LinkedPart(Record):
    """A new manifest with references of one array only."""

    manifest: NewManifest
    box: Box
    """The exact box around its chunks."""

    @property
    def ref(self) -> ManifestRef:
        """The link from the array to the manifest."""
        return ManifestRef(self.manifest.id, self.box)


class LinkedRegion(Record):
    """The manifest of a region of an array; small enough to send by the thousand.

    >>> part = LinkedPart(NewManifest(ManifestId.random(), 512, 3), ((0, 2), (4, 7)))
    >>> region = LinkedRegion((part,), (ManifestId.random(),), num_changed=3)
    >>> LinkedRegion.from_bytes(region.to_bytes()) == region
    True
    """

    parts: tuple[LinkedPart, ...]
    """None if all references of the region were deleted."""
    replaced: tuple[ManifestId, ...] = ()
    """The manifests that it was built over."""
    num_changed: int = 0
    """How many chunks were set or deleted."""

    def to_bytes(self) -> bytes:
        """Pack the region for a journey to another process."""
        parts = [
            [
                str(part.manifest.id),
                part.manifest.size_bytes,
                part.manifest.num_chunk_refs,
                part.box,
            ]
            for part in self.parts
        ]
        return json.dumps(
            [parts, [str(manifest_id) for manifest_id in self.replaced], self.num_changed]
        ).encode()

    @classmethod
    def from_bytes(cls, packed: bytes) -> "LinkedRegion":
        """Unpack a region."""
        parts, replaced, num_changed = json.loads(packed)
        return cls(
            tuple(
                LinkedPart(
                    NewManifest(ManifestId.parse(manifest_id), size_bytes, num_refs),
                    tuple((int(first), int(last)) for first, last in box),
                )
                for manifest_id, size_bytes, num_refs, box in parts
            ),
            tuple(ManifestId.parse(manifest_id) for manifest_id in replaced),
            num_changed,
        )


@dataclass(frozen=True)
class LinkedArray:
    """All manifests that a session linked to an array."""

    regions: tuple[LinkedRegion, ...]

    @cached_property
    def parts(self) -> tuple[LinkedPart, ...]:
        """The manifests to link; one that a later region was built over is not among them."""
        return tuple(
            part
            for region in self.regions
            for part in region.parts
            if part.manifest.id not in self._built_over
        )

    @cached_property
    def _built_over(self) -> frozenset[ManifestId]:
        return frozenset(manifest_id for region in self.regions for manifest_id in region.replaced)

    @cached_property
    def replaced(self) -> frozenset[ManifestId]:
        """The manifests of the base snapshot whose place they take."""
        own = {part.manifest.id for region in self.regions for part in region.parts}
        return self._built_over - own

    @property
    def num_changed(self) -> int:
        """The number of chunks that were set or deleted."""
        return sum(region.num_changed for region in self.regions)

    def boxes(self, dimensions: int) -> Boxes:
        """Return the boxes around the references in each new manifest."""
        return boxes_of([part.box for part in self.parts], dimensions)

    def with_regions(self, more: Iterable[LinkedRegion]) -> "LinkedArray":
        """Link more, which may be built over some of these."""
        return LinkedArray((*self.regions, *more))

    def over(self, stored: Sequence[ManifestRef]) -> tuple[ManifestRef, ...]:
        """List the manifests of the array, given those of the base snapshot."""
        kept_refs = [ref for ref in stored if ref.id not in self.replaced]
        refs = [*kept_refs, *(part.ref for part in self.parts)]
        return tuple(sorted(refs, key=lambda ref: ref.extents))


_NO_CELLS: Final = np.empty(0, np.int64)


class NewReferences(Record, eq=False):
    """The extent of an array's new references, as the planning of manifests needs it."""

    positions: NDArray[np.integer]
    """Along the append dimension, ascending: every place with references must be among them."""
    counts: NDArray[np.integer]
    """How many references are at each of these places."""
    extents: tuple[tuple[int, int], ...] | None = None
    """A box around all of them; without it, they may be anywhere in the grid."""


class RunCells(Record, eq=False):
    """Cells that lie one behind the other in the order of the coordinates, axes rearranged."""

    axes: tuple[int, ...]
    starts: Coordinates
    """The first coordinates of each cell, those of the first cell all zero."""

    def numbers(self, coordinates: Coordinates) -> Ints:
        """Return the cell of each chunk."""
        if not self.axes:
            return np.zeros(len(coordinates), np.int64)
        ordered = np.ascontiguousarray(coordinates[:, self.axes])
        starts, keys = sort_keys(self.starts, ordered)
        numbers: Ints = np.searchsorted(starts, keys, side="right").astype(np.int64) - 1
        return numbers


class GridCells(Record):
    """The cells of a fixed grid."""

    edges: tuple[range, ...]

    def numbers(self, coordinates: NDArray[np.integer]) -> Ints:
        """Return the cell of each chunk."""
        numbers = np.zeros(len(coordinates), np.int64)
        for axis, cuts in enumerate(self.edges):
            numbers *= len(cuts) + 1
            numbers += np.searchsorted(cuts, coordinates[:, axis], side="right")
        return numbers


class PartPlan(Record, eq=False):
    """The regions of an array, each with the stored manifests that are rebuilt with it."""

    layout: Layout
    cells: RunCells | GridCells
    joined: Ints
    """Cells, ascending, that are not regions of their own."""
    joined_to: Ints
    """For each of these, the number of its region."""
    stored: Mapping[int, tuple[StoredManifest, ...]]
    """Number of a region to what is stored there; regions without anything are not listed."""

    def regions(self, coordinates: Coordinates) -> Ints:
        """Return the number of the region of each chunk."""
        numbers = self.cells.numbers(coordinates)
        if len(self.joined):
            places = np.minimum(np.searchsorted(self.joined, numbers), len(self.joined) - 1)
            numbers = np.where(self.joined[places] == numbers, self.joined_to[places], numbers)
        return numbers

    @property
    def most_regions(self) -> int:
        """The number of regions; some of a fixed grid may have no reference."""
        if isinstance(self.cells, RunCells):
            return len(self.cells.starts) - len(self.joined)
        return prod(len(cuts) + 1 for cuts in self.cells.edges) - len(self.joined)

    def stored_in(self, region: int) -> tuple[StoredManifest, ...]:
        """List the manifests that a builder of a region has to build over."""
        return self.stored.get(region, ())


def plan_parts(
    layout: Layout,
    grid: Sequence[int],
    stored: Sequence[StoredManifest],
    new: NewReferences,
) -> PartPlan:
    """Divide an array into regions, for references that are spread over several machines.

    `grid` is the number of chunks along each dimension, `stored` all manifests of the array.
    """
    boxes = boxes_of_refs([manifest.ref for manifest in stored], grid)
    if isinstance(layout, GridLayout):
        return _plan_grid(layout, stored, boxes)
    if isinstance(layout, HalvingLayout):
        return _HalvingPlan(layout, grid, stored, boxes, new).plan()
    raise InvalidInputError(
        f"an array cut by {type(layout).__name__} cannot be planned", ErrorKind.INVALID_CONFIG
    )


class _Groups:
    """Things that belong together, each group under the smallest of its numbers."""

    def __init__(self) -> None:
        self._above: dict[int, int] = {}

    def find(self, member: int) -> int:
        above = self._above
        while (top := above.get(member, member)) != member:
            above[member] = above.get(top, top)
            member = top
        return member

    def unite(self, members: Iterable[int]) -> int:
        tops = {self.find(member) for member in members}
        first = min(tops)
        self._above.update(dict.fromkeys(tops - {first}, first))
        return first

    def joined(self) -> tuple[Ints, Ints]:
        """List those that are not the first of their group, and whom they joined."""
        members = sorted(index for index in self._above if self.find(index) != index)
        if not members:
            return _NO_CELLS, _NO_CELLS
        return np.array(members), np.array([self.find(member) for member in members])


# -- a fixed grid --------------------------------------------------------------------------


def _plan_grid(layout: GridLayout, stored: Sequence[StoredManifest], boxes: Boxes) -> PartPlan:
    """Make a region of each cell; what somebody cut otherwise joins the cells that it meets."""
    cells = GridCells(layout.edges)
    groups = _Groups()
    first, last = cells.numbers(boxes[:, :, 0]), cells.numbers(boxes[:, :, 1] - 1)
    for row in np.flatnonzero(first != last).tolist():
        groups.unite(_cells_met(layout, boxes[row]).tolist())
    stored_by_region: dict[int, list[StoredManifest]] = {}
    for manifest, cell in zip(stored, first.tolist(), strict=True):
        stored_by_region.setdefault(groups.find(cell), []).append(manifest)
    return PartPlan(
        layout,
        cells,
        *groups.joined(),
        {region: tuple(manifests) for region, manifests in stored_by_region.items()},
    )


def _cells_met(layout: GridLayout, box: NDArray[np.int64]) -> Ints:
    numbers = np.zeros(1, np.int64)
    for axis, cuts in enumerate(layout.edges):
        begin = np.searchsorted(cuts, box[axis, 0], side="right")
        end = np.searchsorted(cuts, box[axis, 1] - 1, side="right")
        steps = np.arange(begin, end + 1)
        numbers = (numbers[:, None] * (len(cuts) + 1) + steps).ravel()
    return numbers


# -- halves --------------------------------------------------------------------------------


class _Cell(Record, eq=False):
    """A part of the array that was not cut yet."""

    box: tuple[tuple[int, int], ...]
    """Around the new references in it, as far as that is known; axes in the order of cutting."""
    count: int
    """How many of them there are, or may be."""
    blocks: Ints
    """The stored manifests that lie in it as a whole."""
    depth: int


class _HalvingPlan:
    """Cuts as `HalvingLayout` does, with numbers of references in place of references."""

    def __init__(
        self,
        layout: HalvingLayout,
        grid: Sequence[int],
        stored: Sequence[StoredManifest],
        boxes: Boxes,
        new: NewReferences,
    ) -> None:
        self._layout, self._stored = layout, stored
        self._boxes = boxes[:, layout.axes]
        self._counts = np.array([manifest.num_refs for manifest in stored], np.int64)
        is_filled = new.counts > 0
        self._positions = new.positions[is_filled].astype(np.int64)
        self._ends = np.concatenate([[0], np.cumsum(new.counts[is_filled], dtype=np.int64)])
        extents = new.extents or tuple((0, count) for count in grid)
        self._extents = tuple(extents[axis] for axis in layout.axes)

    def plan(self) -> PartPlan:
        leaves = self._leaves()
        starts = np.array([self._start(leaf) for leaf in leaves], np.uint32)
        starts = starts.reshape(len(leaves), len(self._layout.axes))
        if not leaves:
            starts = np.zeros((1, len(self._layout.axes)), np.uint32)
        starts[0] = 0
        groups, members = self._kept_apart(leaves)
        stored = {
            region: tuple(self._stored[row] for row in sorted(places))
            for region, places in members.items()
            if places
        }
        cells = RunCells(self._layout.axes, starts)
        return PartPlan(self._layout, cells, *groups.joined(), stored)

    def _leaves(self) -> list[_Cell]:
        """Cut until no cell has too many references; give those that have new ones, in order."""
        total = int(self._ends[-1])
        if total == 0:
            return []
        box = self._extents
        if box:
            box = ((int(self._positions[0]), int(self._positions[-1]) + 1), *box[1:])
        leaves = []
        waiting = [_Cell(box, total, np.arange(len(self._stored)), 0)]
        while waiting:
            cell = waiting.pop()
            if cell.count == 0:
                continue  # stored ones alone: nothing happens to them
            total = cell.count + int(self._counts[cell.blocks].sum())
            if total > self._layout.max_refs and cell.depth < len(box):
                waiting.extend(self._halves(cell))
            else:
                leaves.append(cell)
        return leaves

    def _halves(self, cell: _Cell) -> list[_Cell]:
        """Cut a cell in two, the later half first; at the next axis if this one has no extent."""
        first, end = cell.box[cell.depth]
        inside = self._boxes[cell.blocks, cell.depth]
        low = min(first, int(inside[:, 0].min(initial=first)))
        high = max(end, int(inside[:, 1].max(initial=0))) - 1
        if low == high:
            return [_Cell(cell.box, cell.count, cell.blocks, cell.depth + 1)]
        edge = middle(low, high)
        left, right = cell.blocks[inside[:, 1] <= edge], cell.blocks[inside[:, 0] >= edge]
        return [self._clipped(cell, edge, end, right), self._clipped(cell, first, edge, left)]

    def _clipped(self, cell: _Cell, first: int, end: int, blocks: Ints) -> _Cell:
        """Take the new references of a cell in a range along the axis that is being cut."""
        depth, (old_first, old_end) = cell.depth, cell.box[cell.depth]
        first, end = max(first, old_first), min(end, old_end)
        if depth == 0:
            begin, stop = np.searchsorted(self._positions, [first, end]).tolist()
            count = int(self._ends[stop] - self._ends[begin])
            if count:
                first, end = int(self._positions[begin]), int(self._positions[stop - 1]) + 1
        else:  # nobody knows: as many as if they were spread evenly
            count = -(-cell.count * max(end - first, 0) // (old_end - old_first))
        return _Cell(
            (*cell.box[:depth], (first, end), *cell.box[depth + 1 :]), count, blocks, depth
        )

    def _start(self, leaf: _Cell) -> list[int]:
        depth = min(leaf.depth, len(leaf.box) - 1)
        return [first if axis <= depth else 0 for axis, (first, _) in enumerate(leaf.box)]

    def _kept_apart(self, leaves: Sequence[_Cell]) -> tuple[_Groups, dict[int, list[int]]]:
        """Unite cells until their boxes, with what is stored in them, meet nothing else.

        Stored manifests across an edge are the work of somebody else. They may stay where they
        are, unless new references are, or could be, within them.
        """
        groups = _Groups()
        members = {number: leaf.blocks.tolist() for number, leaf in enumerate(leaves)}
        hulls = np.array([self._hull(leaf) for leaf in leaves], np.int64)
        hulls = hulls.reshape(len(leaves), self._boxes.shape[1], 2)
        is_free = np.ones(len(self._stored), np.bool_)
        for leaf in leaves:
            is_free[leaf.blocks] = False
        # For an append, all that is left lies before the new references: there is nothing to do.
        is_near = (
            leaves
            and is_free.any()
            and boxes_meeting(self._boxes[is_free], _around(hulls)[None]).any()
        )
        waiting = list(range(len(leaves))) if is_near else []
        while waiting:
            number = waiting.pop()
            if groups.find(number) != number:
                continue
            hull = hulls[number]
            blocks = np.flatnonzero(is_free & boxes_meeting(self._boxes, hull[None])).tolist()
            cells = np.flatnonzero(boxes_meeting(hulls, hull[None])).tolist()
            others = {groups.find(cell) for cell in cells} - {number}
            if not blocks and not others:
                continue
            is_free[blocks] = False
            united = groups.unite([number, *others])
            members[united] = [
                *blocks, *(row for region in (number, *others) for row in members.pop(region))
            ]  # fmt: skip
            around = [hulls[[number, *others]], self._boxes[blocks]]
            hulls[united] = _around(np.concatenate(around))
            # Those that joined lie within: nobody needs to meet them any more.
            hulls[sorted({number, *others} - {united})] = 0
            waiting.append(united)
        return groups, members

    def _hull(self, leaf: _Cell) -> NDArray[np.int64]:
        own = np.array(leaf.box, np.int64).reshape(1, len(leaf.box), 2)
        return _around(np.concatenate([own, self._boxes[leaf.blocks]]))


def _around(boxes: Boxes) -> NDArray[np.int64]:
    return np.stack([boxes[:, :, 0].min(axis=0), boxes[:, :, 1].max(axis=0)], axis=1)
