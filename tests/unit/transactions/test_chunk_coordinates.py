"""Which chunks an array has is told from coordinates alone, and the same as from whole tables."""

import asyncio
from typing import Any

import numpy as np
import pytest
import zarr

from icefloe import Repository, Session, in_memory_storage
from icefloe.effects import run_blocking
from icefloe.format.flatbuffer_scalar import FEW_TABLES
from icefloe.transactions.chunks import chunk_coordinates, chunk_tables
from icefloe.transactions.nodes import require_array
from icefloe.zarr_store.listing import FlattenedIterator


@pytest.fixture
def repo() -> Repository:
    repo = Repository.create(in_memory_storage())
    session = repo.writable_session("main")
    options: dict[str, Any] = {"dtype": "u1", "compressors": None, "fill_value": 0}
    array = zarr.create_array(session.store, name="a", shape=(20, 10), chunks=(1, 1), **options)
    array[::2] = 1
    few = zarr.create_array(session.store, name="few", shape=(FEW_TABLES,), chunks=(1,), **options)
    few[5:8] = 1
    zarr.create_array(session.store, name="none", shape=(3,), chunks=(1,), **options)
    scalar = zarr.create_array(session.store, name="scalar", shape=(), chunks=(), **options)
    scalar[...] = 1
    session.commit("write")
    return repo


def from_tables(session: Session, path: str) -> list[tuple[int, ...]]:
    async def walk() -> list[tuple[int, ...]]:
        state = session._session
        tables = chunk_tables(state, require_array(state, path))
        return [tuple(row) async for table in tables for row in table.coordinates.tolist()]

    return sorted(run_blocking(walk()))


@pytest.mark.parametrize("batch_size", [1, 7, 1000])
def test_coordinates_are_those_of_the_tables(repo: Repository, batch_size: int) -> None:
    session = repo.readonly_session("main")
    counts = {"/a": 100, "/few": 3, "/none": 0, "/scalar": 1}
    for path, count in counts.items():
        found = sorted(session.chunk_coordinates(path, batch_size))
        assert found == from_tables(session, path)
        assert len(found) == count
    assert list(session.chunk_coordinates("/few")) == [(5,), (6,), (7,)]
    assert list(session.chunk_coordinates("/scalar")) == [()]


def test_changes_count(repo: Repository) -> None:
    session = repo.writable_session("main")
    array: Any = zarr.open_array(session.store, path="a")
    array[1, 3], array[2, 3] = 1, 0
    found = sorted(session.chunk_coordinates("/a"))
    assert (1, 3) in found
    assert found == from_tables(session, "/a")


def test_what_lies_outside_of_the_grid_is_gone(repo: Repository) -> None:
    session = repo.writable_session("main")
    array: Any = zarr.open_array(session.store, path="a")
    array.resize((20, 4))

    async def walk() -> list[int]:
        state = session._session
        found = chunk_coordinates(state, require_array(state, "/a"))
        return [int(each[:, 1].max()) async for each in found]

    assert max(run_blocking(walk())) == 3
    assert sorted(session.chunk_coordinates("/a")) == from_tables(session, "/a")


async def _batches() -> Any:
    for first in range(0, 9, 3):
        yield np.arange(first, first + 3).tolist()


def test_a_loop_that_stops_is_gone_on_with() -> None:
    flat = FlattenedIterator[int](_batches())
    for item in flat:
        if item == 4:
            break
    assert next(flat) == 5
    assert list(flat) == [6, 7, 8]
    assert list(flat) == []


def test_a_loop_that_awaits_is_gone_on_with() -> None:
    async def walk() -> tuple[list[int], int, list[int]]:
        flat = FlattenedIterator[int](_batches())
        before = []
        async for item in flat:
            before.append(item)
            if item == 1:
                break
        return before, await anext(flat), [item async for item in flat]

    assert asyncio.run(walk()) == ([0, 1], 2, [3, 4, 5, 6, 7, 8])


def test_closing_leaves_nothing() -> None:
    async def walk() -> list[int]:
        flat = FlattenedIterator[int](_batches())
        assert await anext(flat) == 0
        await flat.aclose()
        return [item async for item in flat]

    assert asyncio.run(walk()) == []
