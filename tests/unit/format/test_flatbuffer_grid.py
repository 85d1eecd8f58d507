"""Grids: found only where everything lies in them, and read as if one by one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.format.columns import Ints
from icefloe.format.flatbuffer_reader import Grid


def laid_out(rows: int, length: int, row_step: int, step: int) -> Ints:
    starts = np.arange(rows)[:, None] * row_step
    return 10_000_000 + (starts + np.arange(length) * step).ravel()


@pytest.mark.parametrize("step", [48, 0, -40])
def test_one_row(step: int) -> None:
    assert Grid.of(laid_out(1, 1000, 0, step)) == Grid((1, 1000), (0, step))


def test_rows_with_gaps_between_them_and_an_incomplete_one() -> None:
    positions = laid_out(3, 512, 512 * 48 + 16, 48)
    grid = Grid((3, 512), (512 * 48 + 16, 48))
    assert Grid.of(positions) == grid
    assert Grid.of(np.append(positions, laid_out(1, 511, 0, 8))) == grid
    assert Grid.of(positions[:-1]) == Grid((2, 512), grid.steps)


def test_what_lies_anyhow_is_no_grid() -> None:
    positions = laid_out(4, 100, 8000, 48)
    assert Grid.of(positions[:50]) is None  # too few
    assert Grid.of(np.append(positions[:1] - 4, positions)) is None  # it begins otherwise
    uneven = positions.copy()
    uneven[200:300] += 4
    assert Grid.of(uneven) is None  # a row at another distance
    odd = positions.copy()
    odd[250] += 4
    assert Grid.of(odd) is None  # a thing in a row


@given(
    rows=st.integers(1, 5),
    length=st.integers(60, 130),
    steps=st.tuples(st.integers(-9000, 9000), st.integers(-64, 64)),
    moved=st.lists(st.integers(0, 700), max_size=2),
    cut=st.integers(0, 130),
)
def test_what_is_read_is_what_lies_there(
    rows: int, length: int, steps: tuple[int, int], moved: list[int], cut: int
) -> None:
    positions = laid_out(rows, length, *steps)
    positions = positions[: len(positions) - cut]
    for place in moved:
        positions[place:] += 1
    if (grid := Grid.of(positions)) is None:
        return
    positions -= positions.min()
    data = np.random.default_rng(0).integers(0, 256, int(positions.max()) + 2, np.uint8)
    found = np.empty(len(grid), "<u2")
    grid.read(data, int(positions[0]), found)
    wanted = data[positions] + 256 * data[positions + 1].astype(np.uint16)
    assert np.array_equal(found, wanted[: len(grid)])
