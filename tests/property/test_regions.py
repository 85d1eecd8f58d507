"""Regions of chunks against an obvious model: sets of positions."""

from itertools import product
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from icefloe.walk.regions import ChunkRuns, chunk_runs, elements_of, regions

GRIDS = npst.arrays(np.bool_, npst.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=7))


def positions(mask: npst.ArrayLike | Any) -> np.ndarray[Any, Any]:
    return np.argwhere(mask).astype(np.uint32)


def cells(box: list[tuple[int, int]]) -> set[tuple[int, ...]]:
    return set(product(*(range(first, end) for first, end in box)))


@given(GRIDS, st.randoms())
def test_regions_hold_the_chunks_and_nothing_else(mask: Any, random: Any) -> None:
    chunks = positions(mask)
    rows = [*chunks.tolist(), *chunks.tolist()[:2]]  # the same chunk may come twice
    random.shuffle(rows)
    shuffled = np.array(rows, np.uint32).reshape(len(rows), mask.ndim)
    found = regions(shuffled)
    boxes = found.pairs()
    covered = [cell for box in boxes for cell in cells(box)]
    assert len(covered) == len(set(covered))
    assert set(covered) == {tuple(chunk) for chunk in chunks.tolist()}
    assert found.is_exact
    assert regions(chunks).pairs() == boxes
    assert boxes == sorted(boxes, key=lambda box: [first for first, _ in box])


@given(npst.arrays(np.bool_, st.integers(0, 30)))
def test_regions_of_a_line_are_as_few_as_can_be(mask: Any) -> None:
    found = regions(positions(mask))
    runs = int(np.count_nonzero(np.diff(np.concatenate([[False], mask]).astype(int)) == 1))
    assert len(found) == runs


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 9)), min_size=1, max_size=3))
def test_a_box_is_one_region(box: list[tuple[int, int]]) -> None:
    extents = [(first, first + length) for first, length in box]
    chunks = np.array(sorted(cells(extents)), np.uint32)
    assert regions(chunks).pairs() == [extents]


@given(GRIDS, st.integers(0, 4))
def test_too_many_regions_become_the_box_around_them(mask: Any, most: int) -> None:
    chunks = positions(mask)
    exact, found = regions(chunks), regions(chunks, most)
    if len(exact) <= most:
        assert found.is_exact
        assert found.pairs() == exact.pairs()
    else:
        assert not found.is_exact
        around = [(int(c.min()), int(c.max()) + 1) for c in chunks.T]
        assert found.pairs() == [around]


SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=8)


@given(SIZES, st.data())
def test_elements_of_uneven_chunks(sizes: list[int], data: st.DataObject) -> None:
    grid = {"name": "rectilinear", "configuration": {"chunk_shapes": [_in_runs(sizes)]}}
    length = sum(sizes)
    runs = chunk_runs({"chunk_grid": grid}, [length], [len(sizes)])
    assert runs is not None
    owner = [chunk for chunk, size in enumerate(sizes) for _ in range(size)]
    first = data.draw(st.integers(0, len(sizes) - 1))
    end = data.draw(st.integers(first + 1, len(sizes)))
    [[start, stop]] = elements_of([(first, end)], runs)
    assert [first <= chunk < end for chunk in owner] == [
        start <= element < stop for element in range(length)
    ]


def _in_runs(sizes: list[int]) -> list[Any]:
    """Write equal sizes beside each other as [size, count], as Zarr does."""
    runs: list[list[int]] = []
    for size in sizes:
        if runs and runs[-1][0] == size:
            runs[-1][1] += 1
        else:
            runs.append([size, 1])
    return [size if count == 1 else [size, count] for size, count in runs]


@given(st.integers(1, 50), st.integers(1, 9))
def test_elements_of_regular_chunks(length: int, size: int) -> None:
    count = -(-length // size)
    grid = {"name": "regular", "configuration": {"chunk_shape": [size]}}
    runs = chunk_runs({"chunk_grid": grid}, [length], [count])
    assert runs == [ChunkRuns.of(length, [(size, count)])]
    for chunk in range(count):
        [[start, stop]] = elements_of([(chunk, chunk + 1)], runs)
        assert list(range(start, stop)) == [e for e in range(length) if e // size == chunk]


@given(GRIDS)
def test_chunks_far_apart_are_joined_alike(mask: Any) -> None:
    """Two chunks at the ends of a huge grid leave no room for single numbers."""
    chunks = positions(mask)
    near = regions(chunks).pairs()
    corner = np.full((1, mask.ndim), 2**32 - 1, np.uint32)
    far = regions(np.concatenate([chunks, corner])).pairs()
    assert far == [*near, [(2**32 - 1, 2**32)] * mask.ndim]


def test_grids_of_no_known_kind_have_no_elements() -> None:
    assert chunk_runs({}, [3], [1]) is None
    assert chunk_runs({"chunk_grid": {"name": "other", "configuration": {}}}, [3], [1]) is None
    short = {"name": "regular", "configuration": {"chunk_shape": []}}
    assert chunk_runs({"chunk_grid": short}, [3], [1]) is None


def test_an_array_without_dimensions_has_one_chunk() -> None:
    assert regions(np.zeros((1, 0), np.uint32)).pairs() == [[]]
    assert regions(np.zeros((0, 2), np.uint32)).pairs() == []
