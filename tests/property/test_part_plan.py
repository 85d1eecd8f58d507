"""Regions built one by one, each knowing only its own references: as if all had been together."""

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from icefloe.format.chunk_table import Coordinates
from icefloe.format.ids import ManifestId
from icefloe.format.nodes import ManifestRef
from icefloe.manifests.partition import GridLayout, HalvingLayout, Layout, boxes_meeting, boxes_of
from icefloe.manifests.regions import NewReferences, PartPlan, StoredManifest, plan_parts
from tests.property.test_partition import box, from_scratch, stored_after

type Point = tuple[int, ...]
type Part = frozenset[Point]

GRID = (41, 7)
POINTS = st.tuples(st.integers(0, 40), st.integers(0, 6))
SETS = st.sets(POINTS, min_size=1, max_size=60)
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


def matrix(points: set[Point]) -> Coordinates:
    return np.array(sorted(points), np.uint32).reshape(len(points), -1)


def announced(layout: Layout, points: set[Point], *, extents: bool = False) -> NewReferences:
    axis = layout.axes[0] if isinstance(layout, HalvingLayout) else 0
    positions, counts = np.unique(matrix(points)[:, axis], return_counts=True)
    return NewReferences(positions, counts, box(frozenset(points)) if extents else None)


@dataclass
class Storage:
    """Stored manifests with what is in them."""

    parts: dict[ManifestId, Part]

    @classmethod
    def of(cls, parts: list[Part]) -> "Storage":
        return cls({ManifestId.random(): part for part in parts})

    def listed(self) -> list[StoredManifest]:
        return [
            StoredManifest(ManifestRef(one, box(part)), 100, len(part))
            for one, part in self.parts.items()
        ]

    def build(self, plan: PartPlan, new: set[Point]) -> list[Part]:
        """Build all regions to which references came; give all parts that there are then."""
        rows = matrix(new)
        numbers = plan.regions(rows).tolist()
        regions: dict[int, set[Point]] = {}
        for number, point in zip(numbers, map(tuple, rows.tolist()), strict=True):
            regions.setdefault(number, set()).add(point)
        left = dict(self.parts)
        built: list[Part] = []
        for number, points in regions.items():
            old = [left.pop(each.ref.id) for each in plan.stored_in(number)]
            built += from_scratch(plan.layout, points.union(*old))
        return [*left.values(), *built]


def require_sound(parts: list[Part], expected: set[Point]) -> None:
    assert sum(map(len, parts)) == len(expected)
    assert set().union(*parts) == expected
    for one, other in combinations([boxes_of([box(part)], 2) for part in parts], 2):
        assert not boxes_meeting(one, other).any()


@settings(max_examples=300)
@given(layout=LAYOUTS, batches=st.lists(SETS, max_size=4), new=SETS, extents=st.booleans())
def test_regions_built_apart_fit_together(
    layout: Layout, batches: list[set[Point]], new: set[Point], extents: bool
) -> None:
    stored: list[Part] = []
    for batch in batches:
        stored = stored_after(layout, stored, batch)
    storage = Storage.of(stored)
    plan = plan_parts(layout, GRID, storage.listed(), announced(layout, new, extents=extents))
    parts = storage.build(plan, new)
    require_sound(parts, new.union(*batches))
    if isinstance(layout, GridLayout):
        assert set(parts) == set(stored_after(layout, stored, new))
    if isinstance(layout, HalvingLayout):
        assert all(len(part) <= layout.max_refs for part in parts)


@settings(max_examples=300)
@given(
    layout=LAYOUTS,
    rows=st.sets(st.integers(0, 40), min_size=2),
    cut=st.integers(0, 40),
    late=st.sets(st.integers(0, 40)),
)
def test_full_rows_are_cut_as_in_one_commit(
    layout: Layout, rows: set[int], cut: int, late: set[int]
) -> None:
    """Where numbers say it all, regions are the parts that a commit of everything would cut."""
    before = {row for row in rows if row <= cut} - late
    old: set[Point] = {(row, column) for row in before for column in range(7)}
    new: set[Point] = {(row, column) for row in rows - before for column in range(7)}
    if not new:
        return
    stored = stored_after(layout, [], old) if old else []
    storage = Storage.of(stored)
    plan = plan_parts(layout, GRID, storage.listed(), announced(layout, new))
    if isinstance(layout, HalvingLayout) and layout.axes != (0, 1):
        require_sound(storage.build(plan, new), old | new)
    else:
        assert set(storage.build(plan, new)) == set(stored_after(layout, stored, new))


@settings(max_examples=300)
@given(
    layout=LAYOUTS,
    cuts=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 40)), max_size=8),
    old=SETS,
    new=SETS,
)
def test_what_others_cut_is_respected(
    layout: Layout, cuts: list[tuple[int, int]], old: set[Point], new: set[Point]
) -> None:
    """Manifests of any boxes that do not overlap, as another writer may have left them."""
    stored = [frozenset(old)]
    for axis, at in cuts:
        halves = [(part, frozenset(p for p in part if p[axis] < at)) for part in stored]
        stored = [half for part, low in halves for half in (low, part - low) if half]
    storage = Storage.of(stored)
    plan = plan_parts(layout, GRID, storage.listed(), announced(layout, new))
    require_sound(storage.build(plan, new), old | new)


def grid_points(rows: range, columns: range) -> set[Point]:
    return {(row, column) for row in rows for column in columns}


def test_an_append_touches_the_last_part_only() -> None:
    layout = HalvingLayout((0, 1), 14)
    old = grid_points(range(9), range(7))
    storage = Storage.of(stored_after(layout, [], old))
    new = grid_points(range(9, 20), range(7))
    plan = plan_parts(layout, GRID, storage.listed(), announced(layout, new))
    replaced = [each for found in plan.stored.values() for each in found]
    assert [each.ref.extents for each in replaced] == [((8, 9), (0, 7))]
    assert plan.most_regions == 6


def test_a_step_with_too_many_references_is_divided_among_tasks() -> None:
    layout = HalvingLayout((0, 1), 8)
    grid = (3, 4096)
    one_step = NewReferences(np.array([1]), np.array([4096]))
    plan = plan_parts(layout, grid, [], one_step)
    assert plan.most_regions == 512
    rows = np.stack([np.ones(4096, np.uint32), np.arange(4096, dtype=np.uint32)], axis=1)
    assert np.bincount(plan.regions(rows)).tolist() == [8] * 512


def test_a_manifest_of_somebody_else_stays_if_nothing_comes_into_it() -> None:
    layout = HalvingLayout((0, 1), 8)
    giant = frozenset(grid_points(range(13), range(7)))
    storage = Storage.of([giant])
    new = grid_points(range(13, 30), range(7))
    plan = plan_parts(layout, GRID, storage.listed(), announced(layout, new))
    assert plan.stored == {}
    late = new | {(5, 3)}
    plan = plan_parts(layout, GRID, storage.listed(), announced(layout, late))
    [found] = plan.stored.values()
    assert found == tuple(storage.listed())
    require_sound(storage.build(plan, late), late | giant)


def test_nothing_new_and_scalars() -> None:
    nothing = NewReferences(np.empty(0, np.int64), np.empty(0, np.int64))
    plan = plan_parts(HalvingLayout((0, 1), 8), GRID, [], nothing)
    assert plan.most_regions == 1
    stored = StoredManifest(ManifestRef(ManifestId.random(), ()), 10, 1)
    for layout in (HalvingLayout((), 8), GridLayout(())):
        plan = plan_parts(layout, (), [stored], NewReferences(np.array([0]), np.array([1])))
        assert plan.regions(np.empty((1, 0), np.uint32)).tolist() == [0]
        assert plan.stored_in(0) == (stored,)


def test_boxes_without_extents_cover_everything() -> None:
    stored = StoredManifest(ManifestRef(ManifestId.random(), ()), 10, 3)
    layout = HalvingLayout((0, 1), 2)
    plan = plan_parts(layout, GRID, [stored], announced(layout, {(40, 6)}))
    assert plan.stored_in(int(plan.regions(matrix({(40, 6)}))[0])) == (stored,)


def test_everything_is_found_whatever_the_box() -> None:
    """Coordinates near the largest that there are."""
    top = 2**32 - 2
    layout = HalvingLayout((2, 0, 1), 1)
    points: set[Point] = {(0, 0, top), (top, top, top), (top, 0, 5), (3, top, top - 1)}
    new = NewReferences(np.array([5, top - 1, top]), np.array([1, 1, 2]))
    plan = plan_parts(layout, (top + 1,) * 3, [], new)
    assert len(set(plan.regions(matrix(points)).tolist())) == 4
