"""What dask's workers write through forks is all there after the merge."""

from pathlib import Path
from typing import Any, cast

import dask
import dask.array
import numpy as np
import pytest
import xarray as xr
import zarr
from distributed import Client

import icefloe
from icefloe.dask import computing_meta, store_dask
from icefloe.distributed import extract_session, merge_sessions
from icefloe.errors import InvalidInputError
from icefloe.xarray import to_icechunk


@pytest.fixture
def repository(tmp_path: Path) -> icefloe.Repository:
    return icefloe.Repository.create(icefloe.local_filesystem_storage(str(tmp_path / "repo")))


def empty_array(session: icefloe.Session, name: str, data: Any) -> None:
    zarr.create_array(
        session.store, name=name, shape=data.shape, chunks=data.chunksize, dtype=data.dtype
    )


def stored(repository: icefloe.Repository, name: str) -> Any:
    return zarr.open_array(repository.readonly_session("main").store, path=name, mode="r")[...]


def test_several_arrays_and_regions(repository: icefloe.Repository) -> None:
    session = repository.writable_session("main")
    wide = dask.array.arange(60, chunks=60).reshape(6, 10).rechunk((2, 3))
    empty_array(session, "wide", wide)
    zarr.create_array(session.store, name="long", shape=20, chunks=5, dtype="i8", fill_value=-1)
    zarr.create_array(session.store, name="scalar", shape=(), dtype="i8")
    fork = session.fork()
    session.merge(
        store_dask(
            sources=[wide, dask.array.ones(10, chunks=5, dtype="i8"), dask.array.asarray(5)],
            targets=[zarr.open_array(fork.store, path=name) for name in ("wide", "long", "scalar")],
            regions=[(slice(None), slice(None)), (slice(5, 15),), ()],
            split_every=2,
            scheduler="threads",
        )
    )
    session.commit("all of it")
    assert (stored(repository, "wide") == wide.compute()).all()
    assert stored(repository, "long").tolist() == [-1] * 5 + [1] * 10 + [-1] * 5
    assert stored(repository, "scalar") == 5


def test_processes_write_through_copies_of_the_fork(
    repository: icefloe.Repository, cluster: Client
) -> None:
    session = repository.writable_session("main")
    data = dask.array.from_array(np.arange(4000).reshape(40, 100), chunks=(5, 20))
    empty_array(session, "data", data)
    fork = session.fork()
    target = zarr.open_array(fork.store, path="data")
    merged = store_dask(sources=[data], targets=[target], split_every=3)
    session.merge(merged)
    session.commit("from two processes")
    assert (stored(repository, "data") == np.arange(4000).reshape(40, 100)).all()


def test_a_dataset_written_by_processes(repository: icefloe.Repository, cluster: Client) -> None:
    values = np.random.default_rng(0).normal(size=(30, 8))
    dataset = xr.Dataset(
        {"a": (("time", "x"), values), "b": ("time", np.arange(30))},
        coords={"time": np.arange(30)},
    )
    session = repository.writable_session("main")
    to_icechunk(dataset.chunk({"time": 4}), session)
    session.commit("write")
    session = repository.writable_session("main")
    to_icechunk(
        dataset.assign_coords(time=dataset.time + 30).chunk({"time": 30}),
        session,
        append_dim="time",
        align_chunks=True,
    )
    session.commit("append")
    found = xr.open_dataset(cast("Any", repository), engine="icefloe").load()
    assert found.sizes["time"] == 60
    xr.testing.assert_identical(found.isel(time=slice(0, 30)), dataset)
    assert (found.a[30:].values == values).all()


def test_a_dataset_read_by_processes(repository: icefloe.Repository, cluster: Client) -> None:
    session = repository.writable_session("main")
    to_icechunk(
        xr.Dataset({"a": ("x", np.arange(100))}), session, encoding={"a": {"chunks": (10,)}}
    )
    session.commit("write")
    lazy = xr.open_dataset(cast("Any", repository), engine="icefloe", chunks={})
    assert int(lazy.a.sum().compute()) == 4950


def test_targets_must_be_of_a_fork(repository: icefloe.Repository) -> None:
    session = repository.writable_session("main")
    data = dask.array.zeros(4, chunks=2)
    empty_array(session, "data", data)
    target = zarr.open_array(session.store, path="data")
    with pytest.raises(InvalidInputError, match=r"session\.fork"):
        store_dask(sources=[data], targets=[target])
    with pytest.raises(InvalidInputError, match="return_stored"):
        store_dask(sources=[data], targets=[target], return_stored=True)
    with pytest.raises(InvalidInputError, match="at least one"):
        store_dask(sources=[], targets=[])


def test_forks_are_merged_from_nested_lists(repository: icefloe.Repository) -> None:
    session = repository.writable_session("main")
    zarr.create_array(session.store, name="data", shape=3, chunks=1, dtype="i4", fill_value=0)
    forks = [session.fork() for _ in range(3)]
    for number, fork in enumerate(forks):
        zarr.open_array(fork.store, path="data")[number] = number + 1
    merged = merge_sessions([[forks[0]], [forks[1], forks[1]]], forks[2])
    assert merged is forks[0]
    session.merge(merged)
    session.commit("three")
    assert stored(repository, "data").tolist() == [1, 2, 3]


def test_what_cannot_be_merged(repository: icefloe.Repository) -> None:
    with pytest.raises(TypeError, match="takes forks"):
        merge_sessions(repository.writable_session("main"))  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="at least one"):
        merge_sessions([])


def test_an_array_elsewhere_has_no_session() -> None:
    with pytest.raises(InvalidInputError, match=r"session\.store"):
        extract_session(zarr.zeros((3,), store=zarr.storage.MemoryStore()))


def test_meta_is_computed_without_work() -> None:
    calls: list[int] = []
    wrapped = computing_meta(calls.append)
    assert wrapped(1, computing_meta=True).dtype == object  # type: ignore[call-arg]
    assert calls == []
    wrapped(1)
    assert calls == [1]
