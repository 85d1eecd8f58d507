"""Files added to a copy: the values are those of all files, and only new objects are written."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
from numpy.testing import assert_array_equal

import icefloe
from icefloe.pipeline import CombineOptions, CopyOptions, JobReport
from tests.pipeline.repositories import opened

TIME = CombineOptions(("time",), check_values="all")
DAYS = {1: 31, 2: 28, 3: 31, 4: 30}


def month(folder: Path, number: int, **how: Any) -> str:
    """Write a file with the days of a month."""
    times = np.arange(f"2001-{number:02}", f"2001-{number + 1:02}", dtype="M8[D]")
    days = (times - np.datetime64("2001-01-01")).astype("f8")
    return write(folder / f"{number}.nc", days, **how)


def write(
    path: Path, days: Any, *, kind: str = "f4", packing: Any = (), shift: float = 0, x: int = 6
) -> str:
    values = days[:, None] + np.arange(x) / 8 + shift
    dataset = xarray.Dataset(
        {"t": (("time", "x"), values), "height": ("x", np.arange(x) * 1.0)},
        {"time": ("time", days, {"units": "days since 2001-01-01"}), "x": np.arange(x) * 2},
        {"title": "months"},
    )
    encoding: Any = {"t": {"dtype": kind, "chunksizes": (min(7, len(days)), x), **dict(packing)}}
    dataset.to_netcdf(path, engine="h5netcdf", encoding=encoding)
    return path.as_uri()


def copied(folder: Path, urls: list[str], **how: Any) -> icefloe.Repository:
    repository = icefloe.Repository.create(icefloe.local_filesystem_storage(str(folder / "repo")))
    options = how.pop("options", TIME)
    icefloe.ingest(repository, urls, options, copy=CopyOptions.of(**how), engine="local")
    return repository


def appended(repository: icefloe.Repository, urls: list[str], **how: Any) -> JobReport:
    return icefloe.append(repository, urls, engine="local", **how)


def references(repository: icefloe.Repository, path: str) -> dict[tuple[int, ...], Any]:
    """Return the references of an array by the coordinates of their chunks."""
    session = repository.readonly_session("main")
    from icefloe.effects import iterate_blocking
    from icefloe.transactions.chunks import chunk_tables

    state = session._session
    return {
        tuple(cell): table.ref(row)
        for table in iterate_blocking(chunk_tables(state, state.tree.find(f"/{path}")))
        for row, cell in enumerate(table.coordinates.tolist())
    }


def same_as_files(repository: icefloe.Repository, urls: list[str], **how: Any) -> None:
    """Compare everything with what xarray makes of all files."""
    paths = [url.removeprefix("file://") for url in urls]
    expected = xarray.open_mfdataset(
        paths,
        engine="h5netcdf",
        combine="by_coords",
        data_vars="minimal",
        coords="minimal",
        compat="override",
        join="outer",
        **how,
    ).load()
    found = opened(repository.readonly_session("main"), **how).load()
    xarray.testing.assert_identical(found, expected)


@pytest.mark.parametrize("shards", [None, {"time": 20}])
@pytest.mark.parametrize("order", [(1, 2, 3), (2, 3, 1), (3, 2, 1), (2, 1, 3)])
def test_months(tmp_path: Path, shards: Any, order: Any) -> None:
    urls = {n: month(tmp_path, n) for n in order}
    repository = copied(tmp_path, [urls[order[0]]], chunks={"time": 10, "x": 3}, shards=shards)
    for n in order[1:]:
        report = appended(repository, list(urls.values())[: order.index(n) + 1])
        assert report.known == order.index(n)
    same_as_files(repository, list(urls.values()))
    assert appended(repository, list(urls.values())).snapshot is None
