"""xarray objects come back as they were written, from any version and with any scheduler."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import dask.array
import numpy as np
import pytest
import xarray as xr

import icefloe
from icefloe.errors import InvalidInputError, ReadOnlyError
from icefloe.xarray import IcefloeBackend, to_icechunk


@pytest.fixture
def repository(tmp_path: Path) -> icefloe.Repository:
    return icefloe.Repository.create(icefloe.local_filesystem_storage(str(tmp_path / "repo")))


@pytest.fixture(params=["threads", "sync"])
def scheduler(request: pytest.FixtureRequest) -> Iterator[str]:
    with dask.config.set(scheduler=request.param):
        yield request.param


def weather(steps: int = 6, first: int = 0) -> xr.Dataset:
    """Make a dataset with all kinds of things in it."""
    random = np.random.default_rng(first)
    times = np.datetime64("2024-01-01", "ns") + np.arange(first, first + steps) * np.timedelta64(
        1, "D"
    )
    return xr.Dataset(
        {
            "t2m": (
                ("time", "lat"),
                random.normal(280, 5, (steps, 4)).astype("f4"),
                {"units": "K"},
            ),
            "count": (("time",), np.arange(first, first + steps), {}),
            "station": ((), 7),
        },
        coords={
            "time": times,
            "lat": [-30.0, -10.0, 10.0, 30.0],
            "name": ("lat", ["a", "b", "c", "d"]),
        },
        attrs={"title": "weather"},
    )


def chunked(dataset: xr.Dataset, size: int = 2) -> xr.Dataset:
    return dataset.chunk({"time": size})


def write(repository: icefloe.Repository, dataset: Any, **options: Any) -> str:
    session = repository.writable_session("main")
    to_icechunk(dataset, session, **options)
    return session.commit("write")


def opened(source: Any, **options: Any) -> xr.Dataset:
    return xr.open_dataset(source, engine="icefloe", **options)


def read(repository: icefloe.Repository, **options: Any) -> xr.Dataset:
    return opened(repository, **options).load()


def test_a_dataset_comes_back(repository: icefloe.Repository) -> None:
    write(repository, weather())
    xr.testing.assert_identical(read(repository), weather())


def test_a_group_and_an_array_come_back(repository: icefloe.Repository) -> None:
    write(repository, weather().t2m, group="deep/er")
    xr.testing.assert_identical(read(repository, group="deep/er").t2m, weather().t2m)


def test_an_array_without_a_name_comes_back(repository: icefloe.Repository) -> None:
    write(repository, xr.DataArray([1.0, 2.0], dims="x"))
    [variable] = read(repository).data_vars.values()
    assert variable.values.tolist() == [1.0, 2.0]


def test_encoding_is_followed(repository: icefloe.Repository) -> None:
    packed = {"t2m": {"dtype": "i2", "scale_factor": 0.01, "add_offset": 280.0, "_FillValue": -1}}
    write(repository, weather(), encoding=packed)
    raw = opened(repository, mask_and_scale=False)
    assert raw.t2m.dtype == np.int16
    xr.testing.assert_allclose(read(repository).t2m, weather().t2m, atol=0.01)


@pytest.mark.parametrize("lazy", [False, True])
def test_appending(repository: icefloe.Repository, lazy: bool) -> None:
    first, second = weather(4), weather(4, first=4)
    write(repository, first)
    write(repository, chunked(second, 4) if lazy else second, append_dim="time", mode="a")
    expected = xr.concat([first, second], "time", data_vars="minimal")
    xr.testing.assert_identical(read(repository), expected)


@pytest.mark.parametrize("lazy", [False, True])
def test_writing_a_region(repository: icefloe.Repository, lazy: bool) -> None:
    write(repository, weather(), encoding={"t2m": {"chunks": (2, 4)}, "count": {"chunks": (2,)}})
    part = weather().isel(time=slice(2, 4)).drop_vars(["lat", "name", "station"]) * 0
    write(repository, chunked(part) if lazy else part, region={"time": slice(2, 4)})
    found = read(repository)
    assert (found.t2m[2:4] == 0).all()
    xr.testing.assert_equal(found.t2m[:2], weather().t2m[:2])
    xr.testing.assert_equal(found.t2m[4:], weather().t2m[4:])


def test_a_region_is_found_by_its_coordinates(repository: icefloe.Repository) -> None:
    write(repository, weather())
    part = weather().isel(time=slice(4, 6))[["count"]].drop_vars(["lat", "name"], errors="ignore")
    write(repository, part + 100, region="auto")
    assert read(repository)["count"].values.tolist() == [0, 1, 2, 3, 104, 105]


def test_dask_arrays_come_back(repository: icefloe.Repository, scheduler: str) -> None:
    write(repository, chunked(weather(7)), split_every=2)
    xr.testing.assert_identical(read(repository), weather(7))


def test_dask_arrays_on_top_of_uncommitted_changes(repository: icefloe.Repository) -> None:
    session = repository.writable_session("main")
    to_icechunk(weather(), session, group="eager")
    to_icechunk(chunked(weather()), session, group="lazy")
    session.commit("both")
    for group in ("eager", "lazy"):
        xr.testing.assert_identical(read(repository, group=group), weather())


def test_blocks_that_share_a_chunk_are_refused_or_aligned(repository: icefloe.Repository) -> None:
    write(repository, weather(), encoding={"t2m": {"chunks": (3, 4)}})
    lazy = chunked(weather()[["t2m"]] * 2)
    with pytest.raises(ValueError, match="chunk"):
        write(repository, lazy, mode="a")
    write(repository, lazy, mode="a", align_chunks=True)
    xr.testing.assert_allclose(read(repository).t2m, weather().t2m * 2)


def test_a_failing_task_leaves_the_session_as_it_was(repository: icefloe.Repository) -> None:
    def fail(block: Any) -> Any:
        raise RuntimeError("the sensor is broken")

    broken = (
        weather()[["t2m"]]
        .chunk({"time": 2})
        .map(lambda each: each.copy(data=each.data.map_blocks(fail, dtype="f4")))
    )
    session = repository.writable_session("main")
    with pytest.raises(RuntimeError, match="broken"):
        to_icechunk(broken, session)
    assert not session.has_uncommitted_changes


def test_modes(repository: icefloe.Repository) -> None:
    write(repository, weather())
    with pytest.raises(FileExistsError):
        write(repository, weather())
    write(repository, weather(2)[["count"]], mode="w")
    assert set(read(repository).data_vars) == {"count"}


def test_a_read_only_session_is_refused(repository: icefloe.Repository) -> None:
    with pytest.raises(ReadOnlyError, match="writable_session"):
        to_icechunk(weather(), repository.readonly_session("main"))


def test_names_must_be_texts(repository: icefloe.Repository) -> None:
    with pytest.raises(InvalidInputError, match="rename"):
        write(repository, xr.Dataset({5: ("x", [1])}))


# -- opening -----------------------------------------------------------------------------------


def test_opening_by_url_path_storage_session_and_store(
    repository: icefloe.Repository, tmp_path: Path
) -> None:
    write(repository, weather())
    session = repository.readonly_session("main")
    place = tmp_path / "repo"
    for source in (f"file://{place}", str(place), place, session, session.store, repository):
        dataset = opened(source)
        xr.testing.assert_identical(dataset.load(), weather())
    with pytest.raises(InvalidInputError, match="one version"):
        opened(session, branch="main")


def test_opening_a_version(repository: icefloe.Repository) -> None:
    first = write(repository, weather(2)[["count"]])
    between = datetime.now(UTC)
    repository.create_tag("v1", first)
    repository.create_branch("old", first)
    write(repository, weather(3)[["count"]], mode="w")
    for chosen in (
        {"snapshot_id": first},
        {"tag": "v1"},
        {"branch": "old"},
        {"as_of": between},
        {"as_of": between, "branch": "main"},
    ):
        assert read(repository, **chosen).sizes["time"] == 2
    assert read(repository).sizes["time"] == 3


def test_opening_with_chunks_is_lazy(repository: icefloe.Repository) -> None:
    write(repository, weather(), encoding={"t2m": {"chunks": (2, 4)}})
    dataset = opened(repository, chunks={})
    assert dataset.t2m.chunks == ((2, 2, 2), (4,))
    xr.testing.assert_identical(dataset.compute(), weather())


def test_opening_a_tree(repository: icefloe.Repository) -> None:
    write(repository, weather(), group="a")
    write(repository, weather()[["count"]], group="a/b")
    tree = xr.open_datatree(cast("Any", repository), engine="icefloe")
    xr.testing.assert_identical(tree["a"].to_dataset().load(), weather())
    assert tree["a/b"].to_dataset()["count"].values.tolist() == [0, 1, 2, 3, 4, 5]


def test_only_what_is_surely_ours_is_claimed(
    repository: icefloe.Repository, tmp_path: Path
) -> None:
    guess = IcefloeBackend().guess_can_open
    assert guess(tmp_path / "repo")
    assert guess(repository)
    assert not guess(tmp_path)
    assert not guess("s3://bucket/repo")
    assert not guess(b"CDF")
    assert "icefloe" in xr.backends.list_engines()
    write(repository, weather())
    xr.testing.assert_identical(xr.open_dataset(tmp_path / "repo").load(), weather())
