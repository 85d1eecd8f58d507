"""What `ingest` and `append` print leads on: to the next folder, to xarray, to lost files."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
from typer.testing import CliRunner

import icefloe
from examples.archives import Archive, write_archive
from icefloe.cli.main import app
from icefloe.pipeline import CombineOptions, MisfitsError, add_containers
from icefloe.pipeline.files.containers import as_prefix, wide_prefixes


def run(*arguments: str, code: int = 0) -> Any:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def years(tmp_path: Path) -> Archive:
    """Four files, of which the last one was delivered in the next year."""
    archive = write_archive(tmp_path / "archive" / "2024", 4)
    (tmp_path / "archive" / "2025").mkdir()
    shutil.move(archive.path(3), tmp_path / "archive" / "2025" / "last.nc")
    return archive


def opened_as_printed(output: str) -> xarray.Dataset:
    """Run the lines of Python at the end of an output."""
    first, second = output.partition("open it in Python:\n")[2].splitlines()[:2]
    names: dict[str, Any] = {}
    exec(f"{first.strip()}\n{second.strip()}", names)
    dataset: xarray.Dataset = names["dataset"]
    return dataset


def test_the_next_year_is_appended_and_the_printed_lines_open_all(
    years: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    repo = ["--repo", "cube", "--group", "model/run"]
    first = run("ingest", "virtual", years.pattern, *repo, "--concat=time")
    prefix = f"{(tmp_path / 'archive').as_uri()}/"
    assert f"may refer to files below {prefix}\n" in first.stdout
    with opened_as_printed(first.stdout) as dataset:
        assert dataset.temperature.shape[0] == 3
    second = run("append", "archive/2025/*.nc", *repo)
    assert "1 of 1 file fits" in second.stdout
    with opened_as_printed(second.stdout) as dataset:
        for number in range(4):
            found = dataset.temperature[number].values
            assert (found == years.expected_temperature(number)[0]).all()
    told = json.loads(run("append", "archive/2025/*.nc", *repo, "--json").stdout)
    assert told["containers"] == [prefix]
    assert "authorize=" in told["open"][1]


def test_the_next_year_is_added_to_a_copy_which_needs_no_files(
    years: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    repo = ["--repo", "cube", "--group", "model/run"]
    run("ingest", "native", years.pattern, *repo, "--concat=time", "--chunks=time=2", "--pack")
    told = json.loads(run("append", "archive/2025/*.nc", *repo, "--memory=64M", "--json").stdout)
    assert (told["copied"]["written"] > 0, told["holds"]["length"]) == (True, 4)
    assert "authorize=" not in told["open"][1]
    assert "4 of 4 steps" in run("coverage", "cube").stdout
    assert "last.nc" in run("sources", "cube").stdout
    assert "last.nc" not in run("dependencies", "cube").stdout
    shutil.rmtree(tmp_path / "archive" / "2025")
    gone = run("append", years.pattern, *repo)
    assert "last.nc: its values were copied" in gone.stdout
    assert "1 ingested file has disappeared, which the copy does not need" in gone.stdout
    refused = run("plan", years.pattern, *repo, code=5)
    assert "with `icefloe plan --native`" in " ".join(refused.stderr.split())
    shutil.rmtree(tmp_path / "archive")
    run("verify", "cube")
    with opened_as_printed("open it in Python:\n" + "\n".join(told["open"])) as dataset:
        for number in range(4):
            found = dataset.temperature[number].values
            assert (found == years.expected_temperature(number)[0]).all()


def test_the_year_before_is_appended(
    years: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run("ingest", "virtual", "archive/2025/*.nc", "--repo=cube", "--concat=time")
    done = run("append", years.pattern, "--repo=cube")
    assert "3 steps along 'time' came before existing ones" in done.stdout
    with opened_as_printed(done.stdout) as dataset:
        for number in range(4):
            found = dataset.temperature[number].values
            assert (found == years.expected_temperature(number)[0]).all()


def test_months_in_one_chunk_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number, days in enumerate((28, 31)):
        steps = np.arange(28 * number, 28 * number + days)
        dataset = xarray.Dataset({"t": (("time", "x"), steps[:, None])}, {"time": steps})
        encoding = {"t": {"chunksizes": (days, 1), "zlib": True}}
        dataset.to_netcdf(f"{number}.nc", engine="h5netcdf", encoding=encoding)
    command = ["ingest", "virtual", "*.nc", "--repo=cube", "--concat=time"]
    refused = run(*command, code=4)
    assert "by reference to chunks of different lengths (--rectilinear)" in refused.output
    done = run(*command, "--rectilinear")
    assert "zarr.config.set({'array.rectilinear_chunks': True})" in done.stdout
    with opened_as_printed(done.stdout) as dataset:
        assert dataset.t.encoding["chunks"] == ((28, 31), 1)
        assert dataset.t.values[:, 0].tolist() == list(range(59))


def test_the_printed_lines_open_groups(tmp_path: Path) -> None:
    for number in range(2):
        for group in ("land", "sea"):
            dataset = xarray.Dataset({"t": ("time", [float(number)])}, {"time": [number]})
            path = tmp_path / f"{number}.nc"
            dataset.to_netcdf(path, mode="a", group=group, engine="h5netcdf")
    repo = ["--repo", str(tmp_path / "cube")]
    done = run("ingest", "virtual", f"{tmp_path}/*.nc", *repo, "--concat=time")
    names: dict[str, Any] = {}
    exec(done.stdout.partition("open it in Python:\n")[2].replace("  ", ""), names)
    with names["tree"] as tree:
        assert {name: tree[name].t.values.tolist() for name in ("land", "sea")} == {
            "land": [0.0, 1.0],
            "sea": [0.0, 1.0],
        }


def test_a_folder_that_is_not_covered_is_named_with_its_option(
    years: Archive, tmp_path: Path
) -> None:
    repo = ["--repo", str(tmp_path / "cube")]
    run("ingest", "virtual", years.pattern, *repo, "--concat=time", f"--container={years.folder}")
    new = f"{tmp_path}/archive/2025/*.nc"
    refused = run("append", new, *repo, code=4)
    prefix = f"{(tmp_path / 'archive').as_uri()}/"
    assert f"add one with --container '{prefix}'" in refused.stdout
    assert refused.stdout.count("uncovered") == 1  # and the error does not repeat it
    appended = run("append", new, *repo, "--container", prefix)
    with opened_as_printed(appended.stdout) as dataset:
        assert dataset.sizes["time"] == 4
        assert dataset.temperature.values.size
    listed = json.loads(run("container", "list", str(tmp_path / "cube"), "--json").stdout)
    prefixes = [entry["url_prefix"] for entry in listed["containers"]]
    assert sorted(prefixes) == [prefix, f"{years.folder.as_uri()}/"]


def test_python_adds_the_folder_as_its_message_says(years: Archive, tmp_path: Path) -> None:
    repository = icefloe.Repository.create(icefloe.local_filesystem_storage(str(tmp_path / "cube")))
    repository = add_containers(repository, [years.folder])
    options = CombineOptions(("time",))
    icefloe.ingest(repository, years.pattern, options)
    new = f"{tmp_path}/archive/2025/*.nc"
    with pytest.raises(MisfitsError) as caught:
        icefloe.append(repository, new)
    advice = caught.value.report.misfits[0].message.partition("add one with ")[2]
    wider = eval(advice, {"icefloe": icefloe, "repository": repository})
    assert icefloe.append(wider, new).scan.used == 1


def test_copies_are_opened_without_leave(years: Archive, tmp_path: Path) -> None:
    repo = ["--repo", str(tmp_path / "cube")]
    copied = run("ingest", "native", years.pattern, *repo, "--concat=time")
    assert "authorize" not in copied.stdout
    with opened_as_printed(copied.stdout) as dataset:
        assert dataset.sizes["time"] == 3
    again = run("rechunk", *[str(tmp_path / "cube"), *repo], "--group=long", "--chunks=time=-1")
    with opened_as_printed(again.stdout) as dataset:
        assert dataset.temperature.encoding["chunks"][0] == 3


def test_files_that_disappeared_are_named(years: Archive, tmp_path: Path) -> None:
    cube = str(tmp_path / "cube")
    run("ingest", "virtual", years.pattern, "--repo", cube, "--concat=time")
    lost = years.path(1)
    lost.unlink()
    for sources in (years.pattern, f"{tmp_path}/archive/2025/*.nc"):
        told = run("append", sources, "--repo", cube).stdout
        assert f"disappeared since it was ingested: {lost.as_uri()}: " in told
        assert "put the file back" in told
    named = run("append", str(lost), "--repo", cube, "--json").stdout
    assert json.loads(named)["missing"] == [lost.as_uri()]
    damaged = run("verify", cube, code=10).stdout
    assert f"{lost.as_uri()} does not exist" in damaged
    assert "to do: put the file back" in damaged


@pytest.mark.parametrize(
    ("pattern", "prefix"),
    [
        ("s3://climate/era5/2024/*.nc", "s3://climate/era5/"),
        ("s3://climate/era5/year=2024/month=01/*.nc", "s3://climate/era5/"),
        ("s3://climate/era5/2024-01/*.nc", "s3://climate/era5/"),
        ("s3://climate/era5/20240131/t_*.nc", "s3://climate/era5/"),
        ("s3://climate/run/12/*.nc", "s3://climate/run/12/"),  # no date
        ("s3://climate/2024/*.nc", "s3://climate/2024/"),  # no whole bucket for convenience
        ("s3://climate/*/t.nc", "s3://climate/"),  # but if it is asked for
        ("az://climate/2024/*.nc", "az://climate/2024/"),
        ("file:///2024/*.nc", "file:///2024/"),
        ("file:///data/2024/*.nc", "file:///data/2024/"),
        ("file:///data/era5/2024/*.nc", "file:///data/era5/"),
        ("~/2024/*.nc", f"{(Path.home() / '2024').as_uri()}/"),
        ("~/data/2024/*.nc", f"{(Path.home() / 'data').as_uri()}/"),
    ],
)
def test_the_container_of_a_first_ingest(pattern: str, prefix: str) -> None:
    assert wide_prefixes([pattern]) == [prefix]


def test_a_container_is_a_folder() -> None:
    assert as_prefix("/data/era5") == "file:///data/era5/"
    with pytest.raises(icefloe.errors.InvalidInputError, match="a folder, not a pattern"):
        as_prefix("s3://era5/*.nc")
