"""Jobs compare values before they write anything: virtual, appended or native."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
import zarr
from astropy.io import fits

from examples.archives import write_archive
from icefloe.errors import ErrorKind, SourceError
from icefloe.pipeline.combining.report import ValuesMismatchError
from icefloe.pipeline.files.options import CombineOptions, ParseOptions
from icefloe.spark import append, ingest, rechunk, virtualize
from tests.pipeline.files_of_formats import write_grib, write_kerchunk, write_netcdf3
from tests.pipeline.repositories import opened
from tests.spark.archives import TIME, assert_sound, stored_repository
from tests.spark.test_commands import run

pytestmark = pytest.mark.spark


def write_references(folder: Path, files: int, *, lies: int | None = None) -> str:
    """Write files that point at others; one of them may point at the wrong bytes."""
    folder.mkdir(exist_ok=True)
    for number in range(files):
        moved = 4 if number == lies else 0
        write_kerchunk(folder / f"{number}.json", first=2 * number, moved_by=moved)
    return str(folder / "*.json")


def test_a_lie_stops_every_kind_of_job(spark: Any, tmp_path: Path) -> None:
    pattern = write_references(tmp_path / "data", 4, lies=3)
    repository = stored_repository(tmp_path)
    before = repository.storage.list_objects()
    with pytest.raises(ValuesMismatchError, match=r"3\.json.*chunk \[6, 0\]") as caught:
        virtualize(spark, repository, pattern, TIME)
    assert caught.value.kind == ErrorKind.SOURCE_VALUES
    assert repository.storage.list_objects() == before
    with pytest.raises(ValuesMismatchError):
        ingest(spark, repository, pattern, TIME)
    assert repository.storage.list_objects() == before
    good = [str(tmp_path / "data" / f"{number}.json") for number in range(3)]
    report = virtualize(spark, repository, good, TIME)
    assert report.scan.checked is not None
    assert (report.scan.checked.files, report.scan.checked.chunks) == (2, 6)
    committed = repository.lookup_branch("main")
    with pytest.raises(ValuesMismatchError):
        append(spark, repository, pattern)
    assert repository.lookup_branch("main") == committed
    assert_sound(repository)
    unseen = append(spark, repository, pattern, check_values="none")
    assert (unseen.scan.checked, unseen.commits) == (None, 1)


def test_a_sample_may_miss_what_all_find(spark: Any, tmp_path: Path) -> None:
    pattern = write_references(tmp_path / "data", 5, lies=2)
    repository = stored_repository(tmp_path)
    with pytest.raises(ValuesMismatchError, match=r"2\.json"):
        virtualize(spark, repository, pattern, CombineOptions(("time",), check_values="all"))
    report = virtualize(spark, repository, pattern, TIME)  # the first file and the last one
    assert report.scan.checked is not None
    assert report.scan.checked.files == 2
    again = append(spark, repository, pattern, check_values="all")
    assert (again.snapshot, again.scan.checked) == (None, None)


def test_native_copies_are_checked_and_opened(spark: Any, tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "data", 4)
    repository = stored_repository(tmp_path)
    report = ingest(spark, repository, archive.pattern, TIME, check_values="all")
    assert report.scan is not None
    assert report.scan.checked is not None
    assert (report.scan.checked.files, report.notes) == (4, ())
    assert "4 files compared (h5py)" in report.summary()
    hierarchy = tmp_path / "hierarchy.zarr"
    group = zarr.create_group(hierarchy, zarr_format=3)
    bad = group.create_array("bad", data=np.ones((4, 2)), dimension_names=("time", "x"))
    bad.attrs["_FillValue"] = "no number"
    committed = repository.lookup_branch("main")
    along = CombineOptions(("time",), by="order")
    with pytest.raises(SourceError, match="could not open the array 'bad'") as caught:
        ingest(spark, repository, hierarchy, along, group="other")
    assert caught.value.kind == ErrorKind.SOURCE_UNOPENABLE
    assert repository.lookup_branch("main") == committed
    assert_sound(repository)
    copied = rechunk(spark, repository, hierarchy, group="other")  # as it is, for whatever purpose
    assert "xarray could not open the array 'bad'" in copied.notes[0]


def test_virtual_data_that_cannot_be_opened_is_not_committed(spark: Any, tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "data" / "a.zarr", zarr_format=3)
    bad = group.create_array("bad", data=np.ones((4, 2)), dimension_names=("time", "x"))
    bad.attrs["_FillValue"] = "no number"
    repository = stored_repository(tmp_path)
    before = repository.storage.list_objects()
    options = CombineOptions(("time",), by="order")
    with pytest.raises(SourceError, match="could not open the array 'bad'"):
        virtualize(spark, repository, str(tmp_path / "data" / "a.zarr"), options)
    assert repository.storage.list_objects() == before


def test_formats_side_by_side(spark: Any, tmp_path: Path) -> None:
    """What cannot be compared is part of the report; the rest is compared on the workers."""
    (tmp_path / "data").mkdir()
    write_grib(tmp_path / "data" / "a.grib2")
    write_netcdf3(tmp_path / "data" / "a.nc")
    repository = stored_repository(tmp_path)
    grib = virtualize(spark, repository, str(tmp_path / "data/a.grib2"), TIME, group="grib")
    assert grib.scan.checked is not None
    assert set(grib.scan.checked.readers) == {"eccodes"}
    assert {item.path.rpartition("/")[2] for item in grib.scan.checked.unchecked} >= {"time"}
    classic = virtualize(spark, repository, str(tmp_path / "data/a.nc"), TIME, group="classic")
    assert classic.scan.checked is not None
    assert (set(classic.scan.checked.readers), classic.scan.checked.unchecked) == ({"scipy"}, ())
    session = repository.readonly_session("main")
    assert opened(session, "classic").names.values[0] == b"abc"


@pytest.mark.usefixtures("spark")
def test_commands(tmp_path: Path) -> None:
    pattern = write_references(tmp_path / "data", 5, lies=2)
    repo = ["--repo", str(tmp_path / "cube")]
    common = [pattern, "--concat=time", *repo]
    failed = run("ingest", "virtual", *common, "--check-values=all", code=4)
    assert "2.json" in failed.stdout
    assert "source-values" in failed.stderr
    as_json = run("ingest", "native", *common, "--check-values=all", "--json", code=4)
    [mismatch] = json.loads(as_json.stdout)["mismatches"]
    assert (mismatch["path"], mismatch["reader"], mismatch["chunk"]) == ("t", "h5py", [4, 0])
    assert not Path(repo[1]).exists()
    shown = run("ingest", "virtual", *common).stdout
    assert "values in 6 chunks of 2 files compared (h5py)" in shown
    write_kerchunk(tmp_path / "data" / "5.json", first=10, moved_by=4)
    run("append", pattern, *repo, code=4)
    assert "committed" in run("append", pattern, *repo, "--check-values=none").stdout


@pytest.mark.usefixtures("spark")
def test_compressed_images_are_compared_with_another_reader(tmp_path: Path) -> None:
    image = np.random.default_rng(1).integers(0, 250, (64, 64)).astype(np.int16)
    packed = fits.CompImageHDU(image, compression_type="RICE_1", name="SCI")
    units = [fits.PrimaryHDU(), fits.ImageHDU(image, name="PLAIN"), packed]
    (tmp_path / "data").mkdir()
    for number in range(2):
        fits.HDUList(units).writeto(tmp_path / "data" / f"{number}.fits")
    arguments = ["ingest", "virtual", str(tmp_path / "data" / "*.fits"), "--concat=exposure"]
    arguments += ["--in-order", "--repo", str(tmp_path / "cube"), "--json"]
    report = json.loads(run(*arguments).stdout)
    assert report["scan"]["checked"]["readers"] == {"astropy": 4}
    with xarray.open_dataset(tmp_path / "cube", engine="icefloe", authorize=True) as dataset:
        for name in ("PLAIN", "SCI"):
            np.testing.assert_array_equal(dataset[name], [image, image])


@pytest.mark.parametrize("wanted", ["0", "-3", "some", "1.5"])
@pytest.mark.parametrize("command", [["ingest", "virtual"], ["ingest", "native"], ["append"]])
def test_numbers_of_files_that_make_no_sense(
    tmp_path: Path, command: list[str], wanted: str
) -> None:
    concat = [] if command == ["append"] else ["--concat=time"]
    repo = f"--repo={tmp_path / 'cube'}"
    failed = run(*command, "x.nc", *concat, repo, f"--check-values={wanted}", code=2)
    assert "--check-values" in failed.stderr
    assert not (tmp_path / "cube").exists()


def test_a_group_of_the_files_is_where_readers_look(spark: Any, tmp_path: Path) -> None:
    import h5py

    (tmp_path / "data").mkdir()
    with h5py.File(tmp_path / "data" / "a.h5", "w") as file:
        file.create_dataset("model/surface/t", data=np.arange(4.0), chunks=(1,))
        file.create_dataset("surface/t", data=np.arange(4.0) + 9, chunks=(1,))
    repository = stored_repository(tmp_path)
    parse = ParseOptions(("phony_dim_0",), group="model")
    options = CombineOptions(("phony_dim_0",), by="order")
    report = virtualize(spark, repository, str(tmp_path / "data" / "a.h5"), options, parse=parse)
    assert report.scan.checked is not None
    assert report.scan.checked.values == 4
