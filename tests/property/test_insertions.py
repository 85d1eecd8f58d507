"""Steps, and chunks of any length, that are inserted among others, compared with plain lists."""

from itertools import accumulate
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from icefloe.format.columns import Ints
from icefloe.pipeline.combining.insertions import Insertions
from icefloe.pipeline.combining.uneven import (
    OwnChunks,
    cells_of_grid,
    fits,
    grid_of,
    join_cuts,
)
from icefloe.pipeline.files.facts import ANY_CHUNK


@given(
    st.integers(1, 12).flatmap(
        lambda length: st.tuples(
            st.just(length),
            st.dictionaries(st.integers(0, length - 1), st.integers(1, 3), max_size=4),
        )
    )
)
def test_steps_are_where_a_list_has_them(drawn: tuple[int, dict[int, int]]) -> None:
    length, runs = drawn
    inserted = Insertions(tuple(sorted(runs.items())))
    # Existing steps are their numbers, new ones the negative number of their run.
    steps: list[int] = []
    for step in range(length):
        run = sorted(runs).index(step) if step in runs else 0
        steps += [-1 - run] * runs.get(step, 0) + [step]
    assert inserted.steps == len(steps) - length
    assert inserted.moved(np.arange(length)).tolist() == [steps.index(n) for n in range(length)]
    places: Ints = np.arange(len(steps) + 2)  # also behind the last step
    expected = [-1 - step if step < 0 else -1 for step in steps]
    assert inserted.run_of(places).tolist() == [*expected, -1, -1]


CHUNKS = st.tuples(st.integers(1, 3), st.integers(1, 4))
"""Of a file: how many chunks, and their length."""
FILES = st.lists(st.tuples(CHUNKS, st.booleans()), max_size=2)
"""Files between two existing chunks, and whether they have the array."""


@given(st.lists(st.tuples(FILES, st.integers(1, 4)), max_size=5), FILES)
def test_uneven_chunks_are_where_a_list_has_them(
    existing: list[tuple[list[Any], int]], last: list[Any]
) -> None:
    expected: list[int] = []  # the lengths of all chunks
    there, edges, runs, own = [0], [0], list[tuple[int, int]](), list[OwnChunks]()
    for files, cell in [*existing, (last, 0)]:
        before = sum(expected)
        for (count, chunk), has_array in files:
            file = OwnChunks(sum(expected), count * chunk, chunk)
            own += [file] if has_array else []
            expected += [chunk] * count if has_array else [count * chunk]
            edges.append(file.start + file.length)
        if sum(expected) > before and cell:
            runs.append((there[-1], sum(expected) - before))
            edges.append(before)
        if cell:
            there.append(there[-1] + cell)
            expected.append(cell)
    cuts = join_cuts(sum(expected), there, Insertions(tuple(runs)), np.array(edges, np.int64), own)
    assert cuts.tolist() == [0, *accumulate(expected)]
    assert all(fits(cuts, file) for file in own)
    if not expected:
        return
    shape = (sum(expected), 7)
    cells, others = cells_of_grid(grid_of(shape, (ANY_CHUNK, 3), 0, cuts.tolist()))
    assert (others.chunk, cells.of(np.array([0]))[0]) == (3, 0)
    numbers: Ints = np.arange(len(expected))
    assert cells.starts(numbers).tolist() == cuts[:-1].tolist()
    assert [cells.span(number)[1] for number in numbers.tolist()] == expected
