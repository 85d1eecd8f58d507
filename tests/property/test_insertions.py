"""Steps that are inserted among others, compared with a plain list."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from icefloe.format.columns import Ints
from icefloe.pipeline.combining.insertions import Insertions


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
