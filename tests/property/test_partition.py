"""Where arrays are cut depends on their references, not on how these came to be."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.format.ids import ManifestId
from icefloe.format.nodes import ManifestRef
from icefloe.format.snapshot import ManifestFiles
from icefloe.manifests.lookup import ArrayLookup
from icefloe.manifests.partition import (
    Blocks,
    GridLayout,
    HalvingLayout,
    Layout,
    boxes_holding,
    boxes_meeting,
    boxes_of,
)

type Point = tuple[int, ...]
type Part = frozenset[Point]
type Box = tuple[tuple[int, int], ...]

POINTS = st.tuples(st.integers(0, 40), st.integers(0, 6))
BATCHES = st.lists(st.sets(POINTS, min_size=1, max_size=30), min_size=1, max_size=8)
LAYOUTS = st.sampled_from(
    [
        HalvingLayout((0, 1), 1),
        HalvingLayout((0, 1), 8),
        HalvingLayout((1, 0), 8),
        HalvingLayout((0, 1), 1000),
        GridLayout((range(7, 41, 7), range(4, 7, 4))),
        GridLayout((range(0), range(0))),
    ]
)


def box(part: Part) -> Box:
    return tuple((min(at), max(at) + 1) for at in zip(*part, strict=True))


def blocks(parts: list[Part]) -> Blocks:
    counts = np.array([len(part) for part in parts], np.int64)
    return Blocks(boxes_of([box(part) for part in parts], 2), counts)


def cut(layout: Layout, points: set[Point], closed: list[Part]) -> tuple[list[Part], list[int]]:
    rows = sorted(points)
    found = layout.partition(np.array(rows, np.uint32).reshape(-1, 2), blocks(closed))
    order = np.arange(len(rows))
    parts = [frozenset(rows[row] for row in order[part].tolist()) for part in found.parts]
    return parts, found.wanted.tolist()


def from_scratch(layout: Layout, points: set[Point]) -> set[Part]:
    return set(cut(layout, points, [])[0])


def stored_after(layout: Layout, stored: list[Part], new: set[Point]) -> list[Part]:
    """Do what a commit does: open what holds a new point, then what the layout wants as well."""
    touched = np.array(sorted(new), np.uint32).reshape(-1, 2)
    is_open = boxes_holding(blocks(stored).boxes, touched)
    while True:
        closed = [part for part, opened in zip(stored, is_open, strict=True) if not opened]
        points = set(new).union(*(p for p, opened in zip(stored, is_open, strict=True) if opened))
        parts, wanted = cut(layout, points, closed)
        if not wanted:
            return [*closed, *parts]
        for place in wanted:
            is_open[stored.index(closed[place])] = True


@given(layout=LAYOUTS, batches=BATCHES)
def test_the_way_does_not_matter(layout: Layout, batches: list[set[Point]]) -> None:
    stored: list[Part] = []
    for batch in batches:
        stored = stored_after(layout, stored, batch)
    assert len(stored) == len(set(stored))
    assert set(stored) == from_scratch(layout, set().union(*batches))


@given(layout=LAYOUTS, points=st.sets(POINTS, max_size=150))
def test_parts_hold_everything_once_and_are_apart(layout: Layout, points: set[Point]) -> None:
    parts, wanted = cut(layout, points, [])
    assert wanted == []
    assert sum(map(len, parts)) == len(points)
    assert set().union(*parts) == points
    if isinstance(layout, HalvingLayout):
        assert all(len(part) <= layout.max_refs for part in parts)
    for one, other in combinations([blocks([part]).boxes for part in parts], 2):
        assert not boxes_meeting(one, other).any()


@given(length=st.integers(0, 3000), more=st.integers(1, 400))
def test_an_append_leaves_full_parts_alone(length: int, more: int) -> None:
    layout = HalvingLayout((0,), 64)

    def parts(end: int) -> list[tuple[int, int]]:
        rows = np.arange(end, dtype=np.uint32)[:, None]
        none = Blocks(np.empty((0, 1, 2), np.int64), np.empty(0, np.int64))
        found = layout.partition(rows, none).parts
        return [(part.start, part.stop) for part in found if isinstance(part, slice)]

    before, after = parts(length), parts(length + more)
    assert len(before) <= length // 64 + 1
    gone = set(before) - set(after)
    assert gone <= set(before[-1:]), "only the last part, which is not full, changes"
    assert all(first % 64 == 0 for first, _ in after)


def test_rows_larger_than_a_part_are_cut_along_the_next_axis() -> None:
    layout = HalvingLayout((0, 1), 8)
    points: set[Point] = {(row, column) for row in range(3) for column in range(12)}
    boxes = {box(part) for part in from_scratch(layout, points)}
    assert boxes == {((row, row + 1), span) for row in range(3) for span in ((0, 8), (8, 12))}


def test_blocks_across_an_edge_are_left_alone() -> None:
    layout = HalvingLayout((0,), 8)
    new = np.array([[2], [3], [12], [13]], np.uint32)
    for boxes, counts in ([((5, 11),)], [9]), ([((4, 5),), ((5, 11),)], [1, 6]):
        found = layout.partition(new, Blocks(boxes_of(boxes, 1), np.array(counts)))
        assert found.parts == [slice(0, 2), slice(2, 4)]
        assert len(boxes) - 1 not in found.wanted.tolist()


def test_a_part_that_became_too_large_is_opened() -> None:
    layout = HalvingLayout((0,), 8)
    only = Blocks(boxes_of([((5, 11),)], 1), np.array([6]))
    found = layout.partition(np.array([[2], [3], [12], [13]], np.uint32), only)
    assert found.wanted.tolist() == [0]


@given(boxes=st.lists(st.tuples(POINTS, POINTS), max_size=12), points=st.sets(POINTS, max_size=20))
def test_boxes_that_hold_points_are_found(
    boxes: list[tuple[Point, Point]], points: set[Point]
) -> None:
    ranges = [tuple((min(a, b), max(a, b) + 1) for a, b in zip(*two, strict=True)) for two in boxes]
    expected = [any(_inside(point, each) for point in points) for each in ranges]
    shuffled = np.array(sorted(points, key=lambda p: p[::-1]), np.uint32).reshape(-1, 2)
    assert boxes_holding(boxes_of(ranges, 2), shuffled).tolist() == expected


def _inside(point: Point, within: Box) -> bool:
    return all(a <= at < b for at, (a, b) in zip(point, within, strict=True))


@given(layout=LAYOUTS, points=st.sets(POINTS, min_size=1, max_size=150))
def test_lookup_finds_what_a_scan_finds(layout: Layout, points: set[Point]) -> None:
    refs = [ManifestRef(ManifestId.random(), box(part)) for part in from_scratch(layout, points)]
    files = ManifestFiles.from_list([(ref.id, 100 + n, n) for n, ref in enumerate(refs)])
    sizes = {ref.id: 100 + n for n, ref in enumerate(refs)}
    lookup = ArrayLookup(tuple(refs), files)
    for index in np.ndindex(42, 8):
        held = [ref.id for ref in refs if _inside(index, ref.extents)]
        assert lookup.find(index) == (held[0] if held else None)
    assert all(lookup.size_of(one) == size for one, size in lookup.sizes())
    assert dict(lookup.sizes()) == sizes


@pytest.mark.parametrize("spiral", [True, False])
def test_lookup_finds_its_way_where_no_straight_cut_does(spiral: bool) -> None:
    boxes: list[Box] = [
        ((0, 2), (0, 4)),
        ((2, 6), (0, 2)),
        ((4, 6), (2, 6)),
        ((0, 4), (4, 6)),
        ((2, 4), (2, 4)),
    ]
    if not spiral:
        boxes[0] = ()
    refs = tuple(ManifestRef(ManifestId.random(), each) for each in boxes)
    lookup = ArrayLookup(refs, ManifestFiles.from_list([]))
    for index in np.ndindex(7, 7):
        held = [ref.id for ref in refs if not ref.extents or _inside(index, ref.extents)]
        assert lookup.find(index) == (held[0] if held else None)
