"""Chunks merged into regions, compared with plain sets of tuples."""

from itertools import product
from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from icefloe.web.regions import Boxes, merged


def chunks_in(boxes: Boxes) -> list[tuple[int, ...]]:
    return [chunk for box in boxes.tolist() for chunk in product(*(range(*part) for part in box))]


@st.composite
def chunk_sets(draw: st.DrawFn) -> tuple[int, set[tuple[int, ...]]]:
    """Draw boxes and single chunks, which may meet, of 0 to 4 dimensions."""
    dimensions = draw(st.integers(0, 4))
    part = st.tuples(st.integers(0, 6), st.integers(1, 3))
    boxes = draw(st.lists(st.tuples(*[part] * dimensions), max_size=6))
    chunks = {
        chunk for box in boxes for chunk in product(*(range(a, a + length) for a, length in box))
    }
    return dimensions, chunks


@given(chunk_sets(), st.randoms())
def test_regions_hold_each_chunk_once_and_nothing_else(
    drawn: tuple[int, set[tuple[int, ...]]], random: Random
) -> None:
    dimensions, chunks = drawn
    order = list(chunks)
    random.shuffle(order)
    boxes = merged(np.array(order, np.uint32).reshape(len(order), dimensions))
    assert sorted(chunks_in(boxes)) == sorted(chunks)


@given(chunk_sets())
def test_no_two_regions_are_halves_of_one(drawn: tuple[int, set[tuple[int, ...]]]) -> None:
    """The first dimension is merged last, so that nothing is left to merge along it."""
    dimensions, chunks = drawn
    boxes = merged(np.array(sorted(chunks), np.uint32).reshape(len(chunks), dimensions)).tolist()
    for left, right in product(boxes, boxes):
        if dimensions and left[1:] == right[1:]:
            assert left[0][1] != right[0][0]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 5)), min_size=1, max_size=4))
def test_a_box_of_chunks_is_one_region(box: list[tuple[int, int]]) -> None:
    chunks = list(product(*(range(first, first + length) for first, length in box)))
    boxes = merged(np.array(chunks, np.uint32)).tolist()
    assert boxes == [[[first, first + length] for first, length in box]]


def test_chunks_at_the_end_of_the_numbers() -> None:
    last = 2**32 - 1
    boxes = merged(np.array([[0, 0], [0, last], [last - 1, 5], [last, 5]], np.uint32)).tolist()
    assert boxes == [[[0, 1], [0, 1]], [[0, 1], [last, last + 1]], [[last - 1, last + 1], [5, 6]]]
