"""Copies of regions, in this process: all values, no object twice, none without data."""

from math import prod
from typing import Any

import hypothesis.extra.numpy as npst
import hypothesis.strategies as st
import numpy as np
import zarr
from hypothesis import given, settings
from numpy.testing import assert_array_equal

import icefloe
from icefloe.effects import run_blocking
from icefloe.format.chunk_table import ChunkTable, concat_tables
from icefloe.pipeline.copying.copies import array_copies, find_arrays, make_copies
from icefloe.pipeline.copying.layouts import LayoutOptions, Limits, cut_into_slabs, plan_slabs
from icefloe.pipeline.copying.origins import RepositorySource
from icefloe.pipeline.copying.transfer import CopyPlan, copy_regions
from icefloe.pipeline.writing.building import native_table
from icefloe.transactions.chunks import put_refs
from icefloe.transactions.nodes import require_array
from icefloe.transactions.packing import PackingOptions

NAMES = ["time", "y", "x"]
FEW_VALUES = st.sampled_from([0, 0, 0, 0, 7])


@st.composite
def cubes(draw: st.DrawFn) -> tuple[Any, list[int], dict[str, int], dict[str, int]]:
    shape = draw(npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=9))
    values = draw(npst.arrays(np.int16, shape, elements=FEW_VALUES))
    source = [draw(st.integers(1, 5)) for _ in shape]
    chunks = {name: draw(st.integers(1, 5)) for name in NAMES[: len(shape)]}
    shards = {
        name: chunk * draw(st.integers(1, 3))
        for name, chunk in chunks.items()
        if draw(st.booleans())
    }
    return values, source, chunks, shards


def repository() -> icefloe.Repository:
    config = icefloe.RepositoryConfig.default()
    config.inline_chunk_threshold_bytes = 24
    return icefloe.Repository.create(icefloe.in_memory_storage(), config)


@settings(max_examples=40)
@given(cubes(), st.integers(400, 4000), st.booleans(), st.integers(1, 30), st.integers(1, 2))
def test_copies_hold_what_the_source_holds(
    cube: tuple[Any, list[int], dict[str, int], dict[str, int]],
    memory: int,
    is_packed: bool,
    most: int,
    in_flight: int,
) -> None:
    values, lengths, chunks, shards = cube
    origin, target = repository(), repository()
    with origin.transaction("main", message="values") as store:
        made = zarr.create_array(
            store,
            name="inner/a",
            shape=values.shape,
            chunks=tuple(lengths),
            dtype=values.dtype,
            dimension_names=NAMES[: values.ndim],
            fill_value=0,
        )
        made[...] = values
    source = RepositorySource(origin.readonly_session("main"), "inner")
    layout = LayoutOptions(chunks, shards, None)
    found = find_arrays(source, layout)
    session = target.writable_session("main")
    make_copies(session.store, "copy", found, layout)
    [array] = found.arrays
    copies = array_copies(session.store, "copy", found)
    limits = Limits(max(memory, 4 * 10**4), cores=2, in_flight=in_flight)
    notes = [f"icefloe/jobs/test/{number}" for number in range(10_000)]
    tables: list[ChunkTable] = []
    for slabs in cut_into_slabs([array.shape.grid], most):
        regions = plan_slabs([array.shape], ["a"], slabs, limits)
        packing = PackingOptions(200, 400) if is_packed else None
        plan = CopyPlan(copies, regions, packing, limits.memory_bytes)
        numbers = range(len(regions))
        for copied in copy_regions(plan, numbers, source.array, target._context, notes.pop):
            tables.append(native_table([copied.references]))
            assert_noted(target, copied.notes, copied.references.locations)
    state = session._session
    node = require_array(state, "/copy/a")
    if tables:
        table = concat_tables(tables)
        assert len(np.unique(table.coordinates, axis=0)) == len(table)
        put_refs(state, node, table)
        assert len(table) == objects_with_data(values, array.layout.objects)
    else:
        assert not values.any()
    copy: Any = zarr.open_array(session.store, path="copy/a", mode="r")
    assert_array_equal(copy[...], values)


def assert_noted(target: icefloe.Repository, notes: tuple[str, ...], ids: tuple[str, ...]) -> None:
    """Check that all objects are named in notes."""
    backend = target._context.backend
    named = {
        key
        for note in notes
        for key in bytes(run_blocking(backend.get(note)).data).decode().split()
    }
    assert {f"chunks/{each}" for each in ids} <= named


def objects_with_data(values: Any, lengths: tuple[int, ...]) -> int:
    """Count the objects in which there is anything."""
    grid = [-(-side // length) for side, length in zip(values.shape, lengths, strict=True)]
    boxes = (
        tuple(
            slice(at * length, (at + 1) * length) for at, length in zip(cell, lengths, strict=True)
        )
        for cell in np.ndindex(*grid)
    )
    return sum(bool(np.any(values[box])) for box in boxes) if prod(values.shape) else 0
