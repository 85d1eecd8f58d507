"""Regions of a copy: every target object in exactly one, within memory, reads counted right."""

from itertools import product
from math import prod

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import assume, given

from icefloe.errors import InvalidInputError
from icefloe.pipeline.copying.layouts import (
    CopyShape,
    Limits,
    cut_into_slabs,
    plan_regions,
    plan_slabs,
    reads_along,
)

LENGTHS = st.integers(1, 12)


@st.composite
def arrays(draw: st.DrawFn) -> CopyShape:
    dimensions = draw(st.integers(0, 3))

    def lengths(least: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(least, 14)) for _ in range(dimensions))

    return CopyShape(lengths(0), draw(st.sampled_from([1, 4, 8])), lengths(1), lengths(1))


def met(box: tuple[slice, ...], lengths: tuple[int, ...]) -> list[tuple[int, ...]]:
    """List the chunks of such lengths that a box meets."""
    ranges = [
        range(each.start // length, -(-each.stop // length))
        for each, length in zip(box, lengths, strict=True)
    ]
    return list(product(*ranges))


@given(arrays(), st.integers(1, 60_000), st.integers(1, 8), st.integers(1, 4))
def test_every_object_is_written_once_and_memory_is_kept_to(
    array: CopyShape, memory: int, cores: int, in_flight: int
) -> None:
    limits = Limits(memory, cores, in_flight)
    under_way = max(2 * array.bytes_of(array.read), 3 * array.bytes_of(array.write))
    if memory < array.bytes_of(array.write) + in_flight * under_way:
        with pytest.raises(InvalidInputError, match="memory_per_task"):
            plan_regions(array, limits)
        return
    plan = plan_regions(array, limits)
    written = np.zeros(array.grid, np.int64)
    reads = 0
    for number in range(len(plan)):
        box = plan.box(number)
        values = array.item_bytes * prod(each.stop - each.start for each in box)
        assert values + in_flight * under_way <= plan.memory_bytes <= memory
        assert all(each.start % unit == 0 for each, unit in zip(box, array.write, strict=True))
        objects = met(box, array.write)
        assert len(objects) == plan.objects(number)
        for cell in objects:
            written[cell] += 1
        reads += len(met(box, array.read))
    assert (written == 1).all()
    assert reads == plan.reads


@given(st.integers(0, 30), st.integers(0, 60), LENGTHS, LENGTHS)
def test_reads_are_counted_without_looking(first: int, span: int, length: int, chunk: int) -> None:
    starts = range(first, first + span, length)
    counted = sum(
        -(-min(start + length, first + span) // chunk) - start // chunk for start in starts
    )
    assert reads_along(first, span, length, chunk) == counted


@given(arrays())
def test_with_room_for_all_of_it_no_chunk_is_read_twice_by_one_core(array: CopyShape) -> None:
    assume(prod(array.shape))
    plan = plan_regions(array, Limits(2**40, cores=1))
    grid = [-(-length // chunk) for length, chunk in zip(array.shape, array.read, strict=True)]
    assert plan.reads == prod(grid)


def test_regions_end_where_chunks_of_both_sides_do() -> None:
    array = CopyShape((1200, 500), 4, (10, 500), (15, 100))
    plan = plan_regions(array, Limits(2 * 2**20, cores=2))
    assert plan.lengths[0] % 30 == 0
    assert plan.lengths[1] == 500
    assert plan.reads == 120
    assert len(plan) >= 8


def test_all_cores_have_something_to_do_though_chunks_are_read_twice() -> None:
    array = CopyShape((64, 512, 512), 4, (1, 512, 512), (64, 32, 32))
    alone = plan_regions(array, Limits(2**31, cores=1))
    many = plan_regions(array, Limits(2**31, cores=16))
    assert (len(alone), alone.reads) == (1, 64)
    assert len(many) >= 2


def test_what_does_not_fit_is_told() -> None:
    with pytest.raises(InvalidInputError, match="memory_per_task") as caught:
        plan_regions(CopyShape((100,), 8, (100,), (100,)), Limits(1000), path="a/b")
    assert "'a/b'" in str(caught.value)


@given(st.lists(arrays(), max_size=4), st.integers(1, 60))
def test_slabs_cover_everything_once(found: list[CopyShape], most: int) -> None:
    waves = cut_into_slabs([array.grid for array in found], most)
    written = [np.zeros(array.grid, np.int64) for array in found]
    for wave in waves:
        assert len({slab.array for slab in wave}) == len(wave)
        rows = [slab.objects // (slab.end - slab.first) for slab in wave]
        assert sum(slab.objects for slab in wave) <= max(most, *rows)
        regions = plan_slabs(found, [""] * len(found), wave, Limits(2**30, cores=2))
        assert regions.objects == sum(slab.objects for slab in wave)
        for number in range(len(regions)):
            slab, region = regions.find(number)
            array = regions.slabs[slab].array
            for cell in met(regions.plans[slab].box(region), found[array].write):
                written[array][cell] += 1
    assert all((each == 1).all() for each in written)
