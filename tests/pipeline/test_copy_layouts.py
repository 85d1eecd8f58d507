"""Layouts of copies: what is asked for, what stays, and what cannot be."""

import pytest

from icefloe.errors import InvalidInputError
from icefloe.pipeline.copying.layouts import (
    ArrayLayout,
    LayoutOptions,
    SourceArray,
    check_dimensions,
    choose_layout,
)

CUBE = SourceArray(
    path="m/t2m",
    shape=(365, 180, 360),
    dimensions=("time", "lat", "lon"),
    chunks=(1, 180, 360),
    shards=None,
    item_bytes=4,
)
TIME = SourceArray(
    path="m/time", shape=(365,), dimensions=("time",), chunks=(1,), shards=None, item_bytes=8
)
SHARDED = SourceArray(
    path="mask",
    shape=(180, 360),
    dimensions=("lat", "lon"),
    chunks=(10, 10),
    shards=(90, 90),
    item_bytes=1,
)


def test_named_dimensions_change_and_others_stay() -> None:
    options = LayoutOptions({"time": -1, "lat": 20})
    assert choose_layout(CUBE, options) == ArrayLayout((365, 20, 360))
    assert choose_layout(SHARDED, options) == ArrayLayout((20, 10))
    assert choose_layout(SHARDED, LayoutOptions({"time": 5})) == ArrayLayout((10, 10), (90, 90))


def test_coordinates_are_not_cut_into_crumbs() -> None:
    assert choose_layout(TIME, LayoutOptions({"time": 5})) == ArrayLayout((365,))
    long = SourceArray(
        path="time", shape=(10**7,), dimensions=("time",), chunks=(100,), shards=None, item_bytes=8
    )
    assert choose_layout(long, LayoutOptions({"time": 5})) == ArrayLayout((131072,))
    assert choose_layout(long, LayoutOptions({"time": 10**6})) == ArrayLayout((10**6,))


def test_shards_hold_whole_chunks() -> None:
    options = LayoutOptions({"time": 30, "lat": 50}, {"time": 90, "lat": -1})
    assert choose_layout(CUBE, options) == ArrayLayout((30, 50, 360), (90, 200, 360))
    with pytest.raises(InvalidInputError, match="multiple of 30"):
        choose_layout(CUBE, LayoutOptions({"time": 30}, {"time": 40}))


def test_slips_of_the_pen_are_told() -> None:
    with pytest.raises(InvalidInputError, match="'day': there are lat, lon, time"):
        check_dimensions([CUBE], LayoutOptions({"day": 3}))
    with pytest.raises(InvalidInputError, match="positive"):
        LayoutOptions({"time": 0})
