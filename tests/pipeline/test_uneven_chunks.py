"""Chunks of months, of different lengths: references to them, appends, and readers."""

import pickle
import random
from pathlib import Path
from typing import Any

import icechunk
import netCDF4
import numpy as np
import pytest
import xarray
import zarr
from numpy.testing import assert_array_equal

import icefloe
from icefloe.errors import InvalidInputError
from icefloe.pipeline import CombineOptions, CopyOptions, MisfitsError
from icefloe.pipeline.local import virtualize_locally
from tests.pipeline.repositories import repository_for

UNEVEN = CombineOptions(("time", "x"), rectilinear=True, check_values="all")
CELLS = 2
"""Of each tile."""
SETTING = {"array.rectilinear_chunks": True}


def write(
    folder: Path, name: str, start: int, days: int, tile: int = 0, chunk: int | None = None
) -> str:
    path = folder / f"{name}_{start:03}_{tile}.nc"
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("time", None)
        file.createDimension("x", CELLS)
        file.createVariable("time", "i4", "time")[:] = np.arange(start, start + days)
        file.createVariable("x", "i4", "x")[:] = np.arange(CELLS) + CELLS * tile
        values = file.createVariable(
            name, "f8", ("time", "x"), zlib=True, chunksizes=(chunk or days, 1), fill_value=-9.0
        )
        values[:] = np.random.default_rng(start + tile).random((days, CELLS))
    return str(path)


def expected(urls: set[str]) -> dict[str, Any]:
    """Read files with netCDF4; steps and places without a file are NaN."""
    parts: dict[str, dict[tuple[int, int], float]] = {}
    for url in urls:
        with netCDF4.Dataset(url) as file:
            name = Path(url).stem.partition("_")[0]
            for day, row in zip(file["time"][:].tolist(), file[name][:].tolist(), strict=True):
                for place, value in zip(file["x"][:].tolist(), row, strict=True):
                    parts.setdefault(name, {})[day, place] = value
    days = sorted({day for cells in parts.values() for day, _ in cells})
    places = sorted({place for cells in parts.values() for _, place in cells})
    whole: dict[str, Any] = {
        name: np.array([[cells.get((day, x), np.nan) for x in places] for day in days])
        for name, cells in parts.items()
    }
    return {**whole, "time": days, "x": places}


def compare(dataset: xarray.Dataset, urls: set[str]) -> None:
    whole = expected(urls)
    assert set(dataset.variables) == set(whole)
    for name, values in whole.items():
        assert_array_equal(dataset[name].values, values, err_msg=name)


def opened(session: icefloe.Session, **options: Any) -> xarray.Dataset:
    dataset: xarray.Dataset = xarray.open_dataset(session, engine="icefloe", **options)  # type: ignore[arg-type]
    return dataset


@pytest.mark.parametrize("seed", range(3))
def test_months_arrive_in_any_order(tmp_path: Path, seed: int) -> None:
    choose = random.Random(seed)
    lengths = [choose.randint(1, 4) for _ in range(7)]
    months = list(zip(np.cumsum([0, *lengths[:-1]]).tolist(), lengths, strict=True))
    files = [("heat", *month, tile) for month in months for tile in range(2)]
    files += [("rain", *month, 0) for month in choose.sample(months, 4)]
    urls = [write(tmp_path, *file) for file in files]
    choose.shuffle(urls)
    repository = repository_for(tmp_path)
    icefloe.ingest(repository, urls[:4], UNEVEN, engine="local")
    there = set(urls[:4])
    for first, end, most in ((4, 7, 100), (7, 18, 3)):
        icefloe.append(repository, urls[first:end], engine="local", references_per_commit=most)
        there |= set(urls[first:end])
        compare(opened(repository.readonly_session("main")), there)


@pytest.fixture
def uneven(tmp_path: Path) -> tuple[icefloe.Repository, set[str]]:
    data = tmp_path / "data"
    data.mkdir()
    urls = {write(data, "heat", start, days) for start, days in ((0, 31), (31, 28), (59, 31))}
    storage = icefloe.local_filesystem_storage(str(tmp_path / "cube"))
    repository = repository_for(data, storage=storage)
    report = icefloe.ingest(repository, sorted(urls), UNEVEN, engine="local")
    assert "zarr.config.set({'array.rectilinear_chunks': True})" in report.scan.notes[-1]
    return repository, urls


def test_readers_need_no_setting(uneven: tuple[icefloe.Repository, set[str]]) -> None:
    repository, urls = uneven
    session = repository.readonly_session("main")
    lazy = opened(session, chunks={})
    assert lazy.heat.chunks == ((31, 28, 31), (1, 1))
    compare(lazy, urls)
    compare(pickle.loads(pickle.dumps(opened(session))), urls)
    compare(pickle.loads(pickle.dumps(lazy)), urls)
    assert_array_equal(icefloe.open(session)["heat"][25:65], expected(urls)["heat"][25:65])
    assert zarr.config.get("array.rectilinear_chunks") is False
    with pytest.raises(ValueError, match=r"array\.rectilinear_chunks"):
        zarr.open_array(session.store, path="heat", mode="r")


@pytest.mark.interop
def test_the_reference_reads_it(
    uneven: tuple[icefloe.Repository, set[str]], tmp_path: Path
) -> None:
    _, urls = uneven
    folder = str(tmp_path / "cube")
    prefix = f"{(tmp_path / 'data').as_uri()}/"
    theirs = icechunk.Repository.open(
        icechunk.local_filesystem_storage(folder),
        authorize_virtual_chunk_access={prefix: icechunk.credentials.LocalFileSystemAccess},
    )
    store: Any = theirs.readonly_session("main").store
    with zarr.config.set(SETTING):
        compare(xarray.open_zarr(store, consolidated=False, chunks=None), urls)


def test_copies_and_exports(uneven: tuple[icefloe.Repository, set[str]], tmp_path: Path) -> None:
    repository, urls = uneven
    copied = icefloe.Repository.create(icefloe.in_memory_storage())
    session = repository.readonly_session("main")
    icefloe.rechunk(copied, session, CopyOptions.of(chunks={"time": 10}), engine="local")
    found = zarr.open_array(copied.readonly_session("main").store, path="heat", mode="r")
    assert found.chunks == (10, 1)
    assert_array_equal(found[...], expected(urls)["heat"])
    repository.export_to_zarr(icefloe.local_filesystem_storage(str(tmp_path / "zarr")), "main")
    with zarr.config.set(SETTING):
        exported = zarr.open_array(tmp_path / "zarr" / "heat", mode="r")
        assert_array_equal(exported[...], expected(urls)["heat"])


def test_chunks_with_padding_cannot_be_referred_to(tmp_path: Path) -> None:
    urls = [write(tmp_path, "heat", 0, 31), write(tmp_path, "heat", 31, 28, chunk=10)]
    with pytest.raises(
        MisfitsError, match=r"(?s)chunks of 10 .* only 8 .* padding.*copy="
    ) as caught:
        icefloe.ingest(repository_for(tmp_path), urls, UNEVEN, engine="local")
    assert "rectilinear=True" not in caught.value.report.remedy
    with pytest.raises(InvalidInputError, match="gaps='leave'"):
        CombineOptions(("time",), gaps="leave", rectilinear=True)


def test_variables_in_order_have_chunks_of_their_own(tmp_path: Path) -> None:
    repository = repository_for(tmp_path)
    urls = [write(tmp_path, "heat", start, days) for start, days in ((0, 2), (2, 3), (5, 4))]
    urls += [write(tmp_path, "rain", start, days) for start, days in ((0, 4), (4, 5))]
    in_order = CombineOptions(("time",), by="order", rectilinear=True)
    icefloe.ingest(repository, [*urls[:2], urls[3]], in_order, engine="local")
    found = opened(repository.readonly_session("main"))
    assert found.heat.encoding["chunks"] == ((2, 3), 1)
    assert_array_equal(found.rain[:4], expected({urls[3]})["rain"])
    assert_array_equal(found.heat, expected(set(urls[:2]))["heat"])
    icefloe.append(repository, [urls[2], urls[4]], engine="local")
    found = opened(repository.readonly_session("main"))
    assert_array_equal(found.heat[:9], expected(set(urls[:3]))["heat"])
    assert_array_equal(found.rain[5:10], expected({urls[4]})["rain"])


def test_equal_chunks_become_uneven_if_they_end_with_the_steps(tmp_path: Path) -> None:
    last = write(tmp_path, "heat", 5, 3)
    for days in (4, 5):
        first = write(tmp_path, "heat", 0, days, chunk=2)
        session = repository_for(tmp_path).writable_session("main")
        virtualize_locally(session, first, CombineOptions(("time", "x")))
        if days % 2:
            with pytest.raises(MisfitsError, match=r"existing chunks of 2 steps .* do not end"):
                virtualize_locally(session, last, UNEVEN, append=True)
        else:
            virtualize_locally(session, last, UNEVEN, append=True)
            found = opened(session)
            assert found.heat.encoding["chunks"] == ((2, 2, 3), 1)
            compare(found, {first, last})


def test_a_file_within_a_chunk_is_a_misfit(tmp_path: Path) -> None:
    repository = repository_for(tmp_path)
    months = [write(tmp_path, "heat", 0, 3), write(tmp_path, "heat", 3, 2)]
    icefloe.ingest(repository, months, UNEVEN, engine="local")
    icefloe.append(repository, write(tmp_path, "rain", 5, 4), engine="local")
    with pytest.raises(MisfitsError, match=r"heat: its chunks of 2 .* not those of other files"):
        icefloe.append(repository, write(tmp_path, "heat", 5, 4, chunk=2), engine="local")
