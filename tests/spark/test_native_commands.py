"""`icefloe ingest native` and `icefloe rechunk`, as a shell sees them."""

import json
from pathlib import Path
from typing import Any

import pytest
import xarray as xr
from typer.testing import CliRunner

import icefloe
from examples.archives import Fault, write_archive
from icefloe.cli.main import app
from tests.spark.archives import assert_complete
from tests.spark.copies import assert_same_values, group_of

pytestmark = pytest.mark.spark


def run(*arguments: str, code: int = 0) -> Any:
    result = CliRunner().invoke(app, [*arguments, "--engine=spark"])
    assert result.exit_code == code, result.output
    return result


def opened_at(path: Path) -> icefloe.Repository:
    return icefloe.Repository.open(icefloe.local_filesystem_storage(str(path)))


@pytest.mark.usefixtures("spark")
def test_files_to_chunks_to_shards(tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "data", 5, steps=2)
    first = ["ingest", "native", archive.pattern, "--repo", str(tmp_path / "cube")]
    done = run(*first, "--concat=time", "--chunks=time=4,lat=6", "--message=copied", "--json")
    report = json.loads(done.stdout)
    assert (report["scan"]["used"], report["written"]) == (5, 2 * 3 * 2 + 3)
    cube = opened_at(tmp_path / "cube")
    assert_complete(cube.readonly_session("main"), archive)
    again = ["rechunk", str(tmp_path / "cube"), "--repo", str(tmp_path / "series")]
    again += ["--chunks", "time=-1,lat=3", "--shards", "lat=6", "--codec=gzip", "--pack"]
    assert "committed" in run(*again, "--from-snapshot", report["snapshot"]).stdout
    series = opened_at(tmp_path / "series")
    temperature: Any = group_of(series)["temperature"]
    assert (temperature.chunks, temperature.shards) == ((10, 3, 16), (10, 6, 16))
    assert_same_values(group_of(series), group_of(cube))
    assert "overwrite" in run(*again, code=5).stderr


@pytest.mark.usefixtures("spark")
def test_misfits_are_listed(tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "data", 3, faults={1: Fault.DTYPE})
    arguments = ["ingest", "native", archive.pattern, "--concat=time"]
    failed = run(*arguments, "--repo", str(tmp_path / "cube"), code=4)
    assert archive.urls()[1] in failed.stdout
    done = run("ingest", archive.pattern, "--concat=time", "--repo", str(tmp_path / "cube"))
    assert "values are copied and unpacked, as 1 of 3 files does not fit" in done.stdout
    copied = xr.open_dataset(str(tmp_path / "cube"), engine="icefloe")
    with xr.open_mfdataset(archive.pattern, engine="h5netcdf") as files:
        xr.testing.assert_equal(copied.load(), files.load())


@pytest.mark.parametrize(
    ("option", "told"), [("--chunks=time", "DIM=N"), ("--memory=much", "256M or 2G")]
)
def test_options_that_cannot_be_read_are_told(tmp_path: Path, option: str, told: str) -> None:
    arguments = ["ingest", "native", "x.nc", "--concat=time", option]
    assert told in run(*arguments, "--repo", str(tmp_path / "cube"), code=2).stderr
