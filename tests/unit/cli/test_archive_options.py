"""Options of `ingest` for archives whose files do not fit at once; `append` remembers them."""

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from typer.testing import CliRunner

import icefloe
from icefloe.cli.main import app


def run(*arguments: str, code: int = 0) -> Any:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == code, result.output
    return result


def words(text: str) -> str:
    """Return text without line breaks."""
    return " ".join(text.split())


def write(folder: Path, year: int) -> None:
    """Write a file without time, whose variables lie in a group, on a grid that is a bit off."""
    folder.mkdir(exist_ok=True)
    values = np.full((3, 2), year, "f4")
    grid = xr.Dataset(
        {"t2m": (("latitude", "x"), values), "junk": (("x",), [1, 2])},
        {"latitude": [0.0, 1.0, 2.0 + (year - 2020) * 1e-7]},
    )
    grid.to_netcdf(folder / f"sst_{year}.nc", group="data/surface", engine="h5netcdf")


@pytest.mark.parametrize("kind", ["virtual", "native"])
def test_a_difficult_archive_in_one_command(tmp_path: Path, kind: str) -> None:
    archive, cube = tmp_path / "archive", tmp_path / "cube"
    for year in (2020, 2021):
        write(archive, year)
    options = [
        "--from-name=sst_%Y.nc",
        "--constant=member=3",
        "--tolerance=lat=1e-6",
        "--variables=t2m",
        "--rename=latitude=lat",
        "--rename=t2m=sst",
        "--source-group=data/surface",
    ]
    command = ["ingest", kind, f"{archive}/*.nc", "--concat=time", "--repo", str(cube)]
    result = run(*command, *options)
    assert "lat: 1 file has other values, by up to 1e-07" in result.stdout
    years = [2020, 2021]
    if kind == "virtual":
        write(archive, 2022)
        run("append", f"{archive}/*.nc", "--repo", str(cube))
        years.append(2022)
    prefix = f"{archive.as_uri()}/"
    access = {prefix: icefloe.credentials.LocalFileSystemAccess}
    repository = icefloe.Repository.open(
        icefloe.local_filesystem_storage(str(cube)),
        authorize_virtual_chunk_access=icefloe.containers_credentials(access),
    )
    found = xr.open_zarr(repository.readonly_session("main").store, consolidated=False, chunks=None)
    assert set(found.data_vars) == {"sst"}
    assert found.sst.dims == ("time", "lat", "x")
    assert found.member.item() == 3
    assert found.lat.values.tolist() == [0.0, 1.0, 2.0]
    assert found.time.dt.year.values.tolist() == years
    np.testing.assert_array_equal(found.sst.values[:, 1, 1], np.array(years, "f4"))


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("--tolerance=lat", "'lat' is not like NAME=NUMBER"),
        ("--tolerance=lat=wide", "'wide' is no number"),
        ("--constant=member", "'member' is not like NAME=VALUE"),
        ("--rename=a", "'a' is not like OLD=NEW"),
        ("--coordinate=a", "'a' is not like DIM=NAME"),
    ],
)
def test_options_that_cannot_be_read_are_refused(tmp_path: Path, option: str, text: str) -> None:
    command = ["ingest", "virtual", "*.nc", "--concat=time", "--repo", str(tmp_path / "cube")]
    assert text in words(run(*command, option, code=2).stderr)


def test_copies_of_one_hierarchy_have_no_such_options(tmp_path: Path) -> None:
    source = tmp_path / "a.zarr"
    xr.Dataset({"a": ("x", [1, 2])}).to_zarr(source, consolidated=False)
    command = ["ingest", "native", str(source), "--repo", str(tmp_path / "cube")]
    assert "give --concat" in run(*command, "--take-first=lat", code=2).stderr
    assert "give --concat" in run(*command, "--source-group=a", code=2).stderr


def write_days(folder: Path) -> None:
    for day in range(3):
        values = np.full((day + 1, 2), day, "f4")
        times = [f"2000-01-{1 + 5 * day + step:02}" for step in range(day + 1)]
        data = xr.Dataset(
            {"t2m": (("time", "x"), values)}, {"time": np.array(times, "datetime64[ns]")}
        )
        data.to_netcdf(folder / f"{day}.nc", engine="h5netcdf")


@pytest.mark.parametrize("kind", ["", "virtual", "native"])
def test_without_concat_the_whole_command_is_suggested(tmp_path: Path, kind: str) -> None:
    write_days(tmp_path)
    cube = tmp_path / "cube"
    command = ["ingest", *kind.split(), f"{tmp_path}/*.nc", "--repo", str(cube), "--drop=junk"]
    failed = run(*command, code=5)
    assert "time (1 to 3 steps, other values in each file), x (2)" in words(failed.stderr)
    assert not cube.exists()
    [suggested] = [line for line in failed.stderr.splitlines() if line.startswith("Try: ")]
    _, program, *arguments = shlex.split(suggested)
    assert program == "icefloe"
    assert {"--drop=junk", "--concat=time"} < set(arguments)
    run(*arguments)
    assert cube.exists()


@pytest.mark.parametrize("kind", ["virtual", "native"])
def test_a_wrong_dimension_lists_those_that_there_are(tmp_path: Path, kind: str) -> None:
    write_days(tmp_path)
    command = ["ingest", kind, f"{tmp_path}/*.nc", "--repo", str(tmp_path / "cube")]
    failed = run(*command, "--concat=tme", code=5)
    assert "no file has the dimension 'tme'" in words(failed.stderr)
    assert "time (1 to 3 steps, other values in each file), x (2)" in words(failed.stderr)
    assert "with --concat time" in words(failed.stderr)
    assert not (tmp_path / "cube").exists()


def test_files_without_any_step_are_told_of_their_names(tmp_path: Path) -> None:
    for day in (1, 2):
        xr.Dataset({"a": ("x", [day])}).to_netcdf(tmp_path / f"{day}.nc", engine="h5netcdf")
    command = ["ingest", "virtual", f"{tmp_path}/*.nc", "--repo", str(tmp_path / "cube")]
    for arguments in ([], ["--concat=time"]):
        failed = words(run(*command, *arguments, code=5).stderr)
        assert "--from-name '*_%Y%m%d.nc'" in failed
        assert "--in-order" in failed


def test_a_command_names_the_option_that_lets_packed_files_fit(tmp_path: Path) -> None:
    """References, then a copy, then `--decode`, then `--fill-missing`: each message leads on."""
    values = {}
    for number in range(2):
        temperature = np.array([[10.0, 10.5], [np.nan, 12.0]]) + 40 * number
        data = xr.Dataset(
            {"t2m": (("time", "x"), temperature)}, {"time": [2 * number, 2 * number + 1]}
        )
        if number:
            data["rain"] = (("time", "x"), np.array([[1, 2], [3, 4]], "i2"))
        packed = {
            "dtype": "i2", "scale_factor": 0.5 / (number + 1), "add_offset": 9.0, "_FillValue": -9
        }  # fmt: skip
        data.to_netcdf(tmp_path / f"{number}.nc", engine="h5netcdf", encoding={"t2m": packed})
        values[number] = temperature
    cube = str(tmp_path / "cube")
    how = [f"{tmp_path}/*.nc", "--concat", "time", "--repo", cube]
    refused = run("ingest", "virtual", *how, code=4)
    shown = words(refused.stdout + refused.stderr)
    assert "(`icefloe ingest native` with --decode), with gaps" in shown
    assert "(--fill-missing)" in shown
    refused = run("ingest", "native", *how, "--decode", code=4)
    assert "(--fill-missing)" in words(refused.stdout + refused.stderr)
    run("ingest", "native", *how, "--decode", "--fill-missing")
    repository = icefloe.Repository.open(icefloe.local_filesystem_storage(cube))
    dataset = xr.open_zarr(repository.readonly_session("main").store, consolidated=False)
    np.testing.assert_array_equal(dataset.t2m, np.concatenate([values[0], values[1]]))
    np.testing.assert_array_equal(dataset.rain[2:], [[1, 2], [3, 4]])
    assert np.isnan(dataset.rain[:2]).all()
