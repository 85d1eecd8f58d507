"""Several lazy writes into one session before it commits: each builds on those before it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, cast

import dask
import dask.array
import icechunk
import numpy as np
import pytest
import xarray as xr
import zarr
from distributed import Client

import icefloe
from icefloe.dask import store_dask
from icefloe.xarray import to_icechunk

SPECS: Final = pytest.mark.parametrize("spec", [1, 2])


@pytest.fixture(params=["threads", "processes"])
def workers(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "processes":
        request.getfixturevalue("cluster")
        yield request.param
        return
    with dask.config.set(scheduler="threads"):
        yield request.param


class Place:
    """A repository in a folder, opened by both implementations."""

    def __init__(self, folder: Path, spec: int) -> None:
        self._folder = str(folder)
        storage = icefloe.local_filesystem_storage(self._folder)
        self.repository = icefloe.Repository.create(storage, spec_version=spec)

    def check(self, expected: xr.Dataset) -> None:
        """Both implementations read what was committed, value by value."""
        ours = xr.open_dataset(cast("Any", self.repository), engine="icefloe").load()
        xr.testing.assert_identical(ours, expected)
        storage = icechunk.local_filesystem_storage(self._folder)
        session = icechunk.Repository.open(storage).readonly_session("main")
        theirs = xr.open_zarr(cast("Any", session.store), consolidated=False).load()
        xr.testing.assert_identical(theirs, expected)


@pytest.fixture
def opened(tmp_path: Path) -> Callable[[int], Place]:
    return lambda spec: Place(tmp_path / "repo", spec)


def field(rows: slice, columns: slice, name: str = "a") -> xr.Dataset:
    """Cut a piece out of an endless field."""
    x, y = np.arange(rows.start, rows.stop), np.arange(columns.start, columns.stop)
    values = x[:, None] * 1000 + y[None, :]
    return xr.Dataset({name: (("x", "y"), values)}, coords={"x": x, "y": y})


def lazily(dataset: xr.Dataset) -> xr.Dataset:
    return dataset.chunk({"x": 2, "y": 3})


@SPECS
def test_the_same_session_twice(opened: Callable[[int], Place], workers: str, spec: int) -> None:
    place = opened(spec)
    first, second = field(slice(0, 4), slice(0, 6)), field(slice(0, 4), slice(0, 6), "b")
    session = place.repository.writable_session("main")
    to_icechunk(lazily(first), session)
    to_icechunk(lazily(second), session, mode="a")
    session.commit("two variables")
    place.check(first.merge(second))


@SPECS
def test_a_group_replaced_before_the_commit(
    opened: Callable[[int], Place], workers: str, spec: int
) -> None:
    place = opened(spec)
    session = place.repository.writable_session("main")
    to_icechunk(lazily(field(slice(0, 8), slice(0, 6), "old")), session)
    replacement = field(slice(2, 6), slice(0, 9))
    to_icechunk(lazily(replacement), session, mode="w")
    session.commit("the second try")
    place.check(replacement)


@SPECS
@pytest.mark.parametrize("is_committed", [True, False])
def test_appends_along_two_dimensions(
    opened: Callable[[int], Place], workers: str, spec: int, is_committed: bool
) -> None:
    place = opened(spec)
    session = place.repository.writable_session("main")
    to_icechunk(lazily(field(slice(0, 4), slice(0, 6))), session)
    if is_committed:
        session.commit("the beginning")
        session = place.repository.writable_session("main")
    to_icechunk(lazily(field(slice(4, 8), slice(0, 6))), session, append_dim="x")
    to_icechunk(lazily(field(slice(0, 8), slice(6, 12))), session, append_dim="y")
    to_icechunk(lazily(field(slice(8, 10), slice(0, 12))), session, append_dim="x")
    session.commit("grown in three steps")
    place.check(field(slice(0, 10), slice(0, 12)))


@SPECS
def test_values_replaced_and_appended(
    opened: Callable[[int], Place], workers: str, spec: int
) -> None:
    place = opened(spec)
    session = place.repository.writable_session("main")
    whole = field(slice(0, 8), slice(0, 6))
    to_icechunk(lazily(whole.isel(x=slice(0, 4)) * 0), session)
    to_icechunk(lazily(whole.isel(x=slice(4, 8))), session, append_dim="x")
    part = lazily(whole.isel(x=slice(0, 4))[["a"]].drop_vars(["x", "y"]))
    to_icechunk(part, session, region={"x": slice(0, 4), "y": slice(0, 6)})
    session.commit("zeros, more, values")
    found = xr.open_dataset(cast("Any", place.repository), engine="icefloe").load()
    place.check(found)
    assert (found.a.values == whole.a.values).all()


def test_a_chunk_written_before_and_after_the_fork_travelled(
    opened: Callable[[int], Place], cluster: Client
) -> None:
    """Copies of a fork that did not touch a chunk do not bring its old value back."""
    repository = opened(2).repository
    session = repository.writable_session("main")
    zarr.create_array(session.store, name="a", shape=40, chunks=1, dtype="i8")
    fork = session.fork()
    target = zarr.open_array(fork.store, path="a")
    target[...] = -1
    data = dask.array.arange(40, chunks=1)
    session.merge(store_dask(sources=[data], targets=[target], split_every=2))
    session.commit("all of them again")
    found = zarr.open_array(repository.readonly_session("main").store, path="a", mode="r")[...]
    assert np.asarray(found).tolist() == list(range(40))
