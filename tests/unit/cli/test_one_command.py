"""`icefloe ingest` without a form: references where files allow that, copies where not."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from typer.testing import CliRunner

import icefloe
from icefloe.cli.main import COMMANDS, LazyCommand, app
from icefloe.pipeline import CombineOptions, CopyIfNeeded, CopyReason, JobReport, MisfitsError
from icefloe.reports import parse_bytes

VALUES = np.arange(6.0).reshape(3, 2)


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Go to an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def dataset(number: int, steps: Sequence[int] = (0, 1, 2)) -> xr.Dataset:
    """Return three steps of a variable."""
    times = np.array(steps) + 3 * number
    return xr.Dataset(
        {"t2m": (("time", "x"), VALUES + 10 * number)},
        {"time": ("time", times, {"units": "days since 2000-01-01"})},
    )


def write(name: str, number: int, **encoding: Any) -> None:
    """Write steps of a variable that is stored in its own way."""
    dataset(number).to_netcdf(name, engine="h5netcdf", encoding={"t2m": encoding})


def write_packed(count: int = 2) -> None:
    """Write files that fit only when they are unpacked."""
    for number in range(count):
        packed = {"dtype": "i2", "scale_factor": 0.5 / (number + 1), "_FillValue": -9}
        write(f"{number}.nc", number, **packed)


def run(*arguments: str, code: int = 0) -> Any:
    result = CliRunner().invoke(app, ["ingest", *arguments])
    assert result.exit_code == code, result.output
    return result


def opened(name: str = "cube") -> icefloe.Repository:
    prefix = f"{Path.cwd().as_uri()}/"
    access = {prefix: icefloe.credentials.LocalFileSystemAccess}
    return icefloe.Repository.open(
        icefloe.local_filesystem_storage(name),
        authorize_virtual_chunk_access=icefloe.containers_credentials(access),
    )


def assert_holds(numbers: list[int], name: str = "cube") -> None:
    """Compare all values with those that were written, as xarray reads them."""
    store = opened(name).readonly_session("main").store
    with xr.open_zarr(store, consolidated=False, chunks=None) as found:
        expected = np.concatenate([VALUES + 10 * number for number in numbers])
        np.testing.assert_array_equal(found.t2m, expected)


CUBE = ("--repo=cube", "--concat=time")


@pytest.mark.usefixtures("archive")
def test_files_that_fit_are_referred_to() -> None:
    for number in range(2):
        write(f"{number}.nc", number)
    done = run("*.nc", *CUBE, "--chunks=time=6", "--codec=gzip", "--json")
    report = json.loads(done.stdout)
    assert (report["form"], report["references"]) == ("reference", 2)
    assert report["not_needed"] == ["--chunks", "--codec"]
    assert [*report["containers"]] == [f"{Path.cwd().as_uri()}/"]
    assert_holds([0, 1])


@pytest.mark.usefixtures("archive")
def test_files_that_fit_only_unpacked_are_copied_which_is_told_before() -> None:
    write_packed()
    done = run("*.nc", *CUBE, "--chunks=time=6", "--codec=gzip")
    reason = f"1 of 2 files does not fit by reference: {Path('1.nc').absolute().as_uri()}: t2m:"
    [line] = done.stderr.splitlines()
    assert line.startswith("values are copied and unpacked (144 B before compression), ")
    assert reason in line
    assert "values are copied and unpacked, as 1 of 2 files does not fit" in done.stdout
    repository = opened()
    assert not repository.config.virtual_chunk_containers
    assert_holds([0, 1])
    array: Any = repository.readonly_session("main").store
    stored = xr.open_zarr(array, consolidated=False, chunks=None).t2m.encoding
    assert stored["chunks"] == (6, 2)
    assert "gzip" in str(stored["compressors"]).lower()


@pytest.mark.usefixtures("archive")
def test_the_report_of_copies_has_the_reason_and_stated_containers_stay(
    tmp_path: Path,
) -> None:
    for number, chunks in enumerate([(1, 2), (2, 1)]):
        write(f"{number}.nc", number, chunksizes=chunks)
    done = run("*.nc", *CUBE, "--container", str(tmp_path), "--json", "--plot=drawn.svg")
    report = json.loads(done.stdout)
    assert (report["form"], report["reason"]["decode"]) == ("copy", False)
    assert (report["reason"]["misfits"], report["reason"]["files"]) == (1, 2)
    assert report["reason"]["values_bytes"] == report["values_bytes"] == 2 * (48 + 24)
    assert "drawn in drawn.svg" in done.stderr
    assert [*(opened().config.virtual_chunk_containers or {})] == [f"{tmp_path.as_uri()}/"]
    assert_holds([0, 1])


@pytest.mark.usefixtures("archive")
@pytest.mark.parametrize("most", ["0", "143"])
def test_nothing_is_copied_above_the_limit(most: str) -> None:
    write_packed()
    failed = run("*.nc", *CUBE, "--most-copied", most, code=5)
    message, *_ = failed.stderr.splitlines()
    assert "would take 144 B before compression, which is more than" in message
    assert "allow more (--most-copied)" in message
    assert "1 of 2 files does not fit by reference" in message
    assert not Path("cube").exists()


def test_the_limit_is_that_of_the_library() -> None:
    [command] = [command for command in COMMANDS if command.name == "ingest"]
    assert isinstance(command, LazyCommand)
    [option] = [param for param in command.load().params if "--most-copied" in param.opts]
    assert parse_bytes(option.default) == CopyIfNeeded().most_bytes


@pytest.mark.usefixtures("archive")
def test_misfits_that_no_form_helps_leave_nothing_behind() -> None:
    write_packed()
    Path("2.nc").write_bytes(Path("1.nc").read_bytes()[:2000])
    before = sorted(Path.cwd().iterdir())
    failed = run("*.nc", *CUBE, code=4)
    words = " ".join(failed.stderr.split())
    assert "2 of 3 files do not fit, and nothing was written" in words
    assert "All files but 1 file fit as copies of their values, unpacked. Or" in words
    assert sorted(Path.cwd().iterdir()) == before
    run("*.nc", *CUBE, "--skip-misfits")  # what the message advises
    assert_holds([0, 1])


@pytest.mark.usefixtures("archive")
def test_files_are_left_out_only_if_no_form_has_them() -> None:
    """Not even where that is allowed: copies have more of these files than references."""
    write_packed()
    report = json.loads(run("*.nc", *CUBE, "--skip-misfits", "--json").stdout)
    assert (report["form"], report["scan"]["used"], report["scan"]["misfits"]) == ("copy", 2, [])
    assert_holds([0, 1])


@pytest.mark.usefixtures("archive")
def test_the_message_names_the_option_that_copies_need_too() -> None:
    write_packed(1)
    more = dataset(1).assign(rain=(("time", "x"), np.ones((3, 2), "i2")))
    more.to_netcdf("1.nc", engine="h5netcdf")
    failed = run("*.nc", *CUBE, code=4)
    words = " ".join(failed.stderr.split())
    assert "unpacked, with gaps for variables that some lack (--fill-missing)" in words
    assert "ingest native" not in words
    run("*.nc", *CUBE, "--fill-missing")
    store = opened().readonly_session("main").store
    with xr.open_zarr(store, consolidated=False, chunks=None) as found:
        np.testing.assert_array_equal(found.rain, [[np.nan] * 2] * 3 + [[1, 1]] * 3)


@pytest.mark.usefixtures("archive")
@pytest.mark.parametrize("times", [[0, 1, 2], [2, 0, 1]])
def test_a_single_file_needs_no_dimension(times: list[int]) -> None:
    """Also with times that are not in order, which xarray opens all the same."""
    dataset(0, times).to_netcdf("0.nc", engine="h5netcdf")
    run("0.nc", "--repo=cube")
    assert_holds([0])
    write("1.nc", 1)
    appended = CliRunner().invoke(app, ["append", "1.nc", "--repo=cube"])
    assert appended.exit_code == 0, appended.output
    assert_holds([0, 1])
    store = opened().readonly_session("main").store
    with xr.open_zarr(store, consolidated=False, decode_times=False) as found:
        assert found.time.values.tolist() == [*times, 3, 4, 5]


@pytest.mark.usefixtures("archive")
def test_a_single_file_may_have_groups_whose_steps_differ() -> None:
    steps = {"a": 2, "b": 3}
    for group, count in steps.items():
        data = xr.Dataset({"v": (("step", "x"), VALUES[:count])})
        data.to_netcdf("0.nc", mode="a", group=group, engine="h5netcdf")
    run("0.nc", "--repo=cube")
    store = opened().readonly_session("main").store
    for group, count in steps.items():
        with xr.open_zarr(store, group=group, consolidated=False, chunks=None) as found:
            np.testing.assert_array_equal(found.v, VALUES[:count])


@pytest.mark.usefixtures("archive")
def test_a_hierarchy_is_copied_as_it_is() -> None:
    data = xr.Dataset({"t2m": (("time", "x"), VALUES)})
    data.to_zarr("a.zarr", consolidated=False)
    done = run("a.zarr", "--repo=cube")
    size = "values are copied (48 B before compression): "
    why = "the source is a Zarr hierarchy or a repository, and no dimension was named"
    assert done.stderr == f"{size}{why}\n"
    assert f"values are copied, as {why}; 1 array" in done.stdout
    assert_holds([0])
    assert "--most-copied" in run("a.zarr", "--repo=other", "--most-copied=1", code=5).stderr
    assert not Path("other").exists()


@pytest.mark.usefixtures("archive")
def test_files_of_the_names_of_forms() -> None:
    for number, name in enumerate(["virtual", "native"]):
        write(name, number)
    run("./virtual", "./native", *CUBE)
    assert_holds([0, 1])
    run(*CUBE[1:], "--repo=other", "./virtual", "native")  # only the first word is a form
    assert_holds([0, 1], "other")
    for form in ("virtual", "native"):
        failed = run(form, *CUBE, code=2)
        assert f"{form} is a form of the command: write ./{form} for the file" in failed.stderr
        assert "Missing argument" in failed.stderr


@pytest.mark.usefixtures("archive")
def test_a_group_that_holds_files_is_kept() -> None:
    write_packed()
    run("0.nc", *CUBE)
    failed = run("*.nc", *CUBE, code=5)
    assert "holds a dataset of 1 file already" in failed.stderr
    failed = run("0.nc", *CUBE, "--overwrite", code=5)  # which replaces by copies only
    assert "holds a dataset of 1 file already" in failed.stderr
    run("*.nc", *CUBE, "--overwrite")
    assert_holds([0, 1])


@pytest.mark.usefixtures("archive")
def test_the_plan_is_for_the_form_that_files_need() -> None:
    write_packed()
    for pattern, form, size in (("0.nc", "reference", None), ("*.nc", "copy", 144)):
        command = ["plan", pattern, "--repo=cube", "--concat=time"]
        planned = CliRunner().invoke(app, [*command, "--json"])
        plan = json.loads(planned.stdout)
        assert (plan["form"], plan.get("values_bytes")) == (form, size)
        shown = CliRunner().invoke(app, command).stdout
        assert ("`icefloe ingest` copies the values" in shown) == (form == "copy")


@pytest.mark.usefixtures("archive")
def test_in_python_the_report_has_the_form_and_the_reason() -> None:
    write_packed()
    repository = icefloe.Repository.create(icefloe.local_filesystem_storage("cube"))
    time = CombineOptions(("time",))
    with pytest.raises(MisfitsError, match="no virtual chunk container"):
        icefloe.ingest(repository, "*.nc", time, copy="auto")  # which is no reason to copy
    told: list[CopyReason] = []
    copied = icefloe.ingest(
        repository, "*.nc", time, copy=CopyIfNeeded(on_copy=told.append, refused="no"), group="a"
    )
    assert [str(reason) for reason in told] == [
        "values are copied and unpacked (144 B before compression), which leaves them as xarray"
        " shows them: 2 of 2 files do not fit by reference: no"
    ]
    assert copied.snapshot is not None
    repository = icefloe.pipeline.add_containers(repository, ["."])
    referred = icefloe.ingest(repository, "0.nc", copy="auto", group="b")
    assert isinstance(referred, JobReport)
    assert (referred.form, referred.references) == ("reference", 1)
