"""Copies of many arrays, in one commit or in several.

Pure. A transaction log has a largest size, so copies of very many objects are cut into slabs of
whole rows of objects along the first dimension; each commit takes some of them.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from math import prod

from icefloe.pipeline.copying.layouts import CopyShape, Limits, RegionPlan, plan_regions
from icefloe.records import Record


class Slab(Record):
    """Some rows of target objects of an array, along its first dimension."""

    array: int
    first: int
    end: int
    objects: int


def cut_into_slabs(grids: Sequence[Sequence[int]], most: int) -> list[list[Slab]]:
    """Divide arrays into groups of slabs with at most this many objects each, one for each commit.

    Rows are never cut: a group of one row may have more.

    >>> [[(each.array, each.first, each.end) for each in wave] for wave in
    ...  cut_into_slabs([(4, 10), (3,)], 25)]
    [[(0, 0, 2)], [(0, 2, 4), (1, 0, 3)]]
    """
    waves: list[list[Slab]] = [[]]
    objects = 0
    for array, grid in enumerate(grids):
        rows, row_objects = (grid[0], prod(grid[1:])) if grid else (1, 1)
        first = 0 if row_objects else rows
        while first < rows:
            free = (most - objects) // row_objects
            if free < 1 and objects:
                waves.append([])
                objects = 0
                continue
            end = min(rows, first + max(free, 1))
            slab = Slab(array, first, end, (end - first) * row_objects)
            waves[-1].append(slab)
            objects += slab.objects
            first = end
    return [wave for wave in waves if wave]


class Regions(Record):
    """The regions of several slabs, numbered one after the other."""

    slabs: tuple[Slab, ...]
    plans: tuple[RegionPlan, ...]
    ends: tuple[int, ...]
    """For each slab, the number behind its last region."""

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    @property
    def memory_bytes(self) -> int:
        """What a task needs at most."""
        return max((plan.memory_bytes for plan in self.plans), default=0)

    @property
    def objects(self) -> int:
        """Count the objects that there are at most: those that hold nothing are left out."""
        return sum(slab.objects for slab in self.slabs)

    def find(self, number: int) -> tuple[int, int]:
        """Return the slab of a region, and its number there."""
        slab = bisect_right(self.ends, number)
        return slab, number - (self.ends[slab - 1] if slab else 0)


def plan_slabs(
    arrays: Sequence[CopyShape], paths: Sequence[str], slabs: Sequence[Slab], limits: Limits
) -> Regions:
    """Plan the regions of one commit."""
    plans = [
        plan_regions(arrays[slab.array], limits, (slab.first, slab.end), path=paths[slab.array])
        for slab in slabs
    ]
    return Regions(tuple(slabs), tuple(plans), tuple(accumulate(len(plan) for plan in plans)))
