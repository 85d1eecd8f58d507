"""Coordinates of archives that do not fit at once, compared with what xarray makes of the files."""

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import xarray as xr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import icefloe
from icefloe.errors import InvalidInputError
from icefloe.pipeline import CombineOptions, CopyOptions, EditableFile, MisfitsError, ParseOptions
from icefloe.pipeline.files.facts import Kind
from tests.pipeline.repositories import opened, repository_for

TIME = CombineOptions(("time",))


def write(path: Path, days: list[int] | None, *, lat: Any = (0.0, 1.0, 2.0), **data: Any) -> Path:
    """Write a file with `t2m` along time, lat and x; without days, along lat and x only."""
    steps = days or [0]
    values = np.arange(len(steps) * 6, dtype="f4").reshape(len(steps), 3, 2) + 10 * steps[0]
    dataset = xr.Dataset(
        {"t2m": (("time", "lat", "x"), values), "mask": (("lat", "x"), np.ones((3, 2), "i1"))},
        {"time": steps, "lat": np.array(lat)},
    )
    dataset.time.attrs["units"] = "days since 2000-01-01"
    if days is None:
        dataset = dataset.isel(time=0, drop=True)
    dataset.assign(data).to_netcdf(path, engine="h5netcdf")
    return path


def files_in(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.iterdir() if path.is_file())


def made(
    folder: Path, options: CombineOptions, parse: ParseOptions | None = None, **how: Any
) -> tuple[icefloe.Repository, Any]:
    """Ingest all files of a folder; return the repository and the report."""
    repository = repository_for(folder)
    return repository, icefloe.ingest(repository, files_in(folder), options, parse=parse, **how)


def cubes(
    folder: Path, options: CombineOptions, parse: ParseOptions | None = None, **how: Any
) -> list[xr.Dataset]:
    """Ingest all files of a folder by reference and as a copy."""
    by_reference, _ = made(folder, options, parse, **how)
    storage = icefloe.local_filesystem_storage(str(folder / "copy"))
    copied = icefloe.Repository.create(storage)
    icefloe.ingest(copied, files_in(folder), options, parse=parse, copy=CopyOptions.of(), **how)
    return [opened(repository.readonly_session("main")) for repository in (by_reference, copied)]


def combined_by_xarray(folder: Path, **how: Any) -> xr.Dataset:
    merging: dict[str, Any] = {"coords": "minimal", "data_vars": "minimal", "compat": "override"}
    with xr.open_mfdataset(files_in(folder), engine="h5netcdf", **merging, **how) as dataset:
        return dataset.load()


def misfits(folder: Path, options: CombineOptions, parse: ParseOptions | None = None) -> Any:
    with pytest.raises(MisfitsError) as caught:
        made(folder, options, parse)
    return caught.value.report.misfits


# -- coordinates that should be the same ----------------------------------------------------


def test_a_small_difference_is_a_misfit_that_names_its_size_and_the_options(tmp_path: Path) -> None:
    for day in range(3):
        write(tmp_path / f"{day}.nc", [day], lat=[0.0, 1.0, 2.0 + 3e-7 * (day == 1)])
    [misfit] = misfits(tmp_path, TIME)
    assert misfit.kind is Kind.OTHER_COORDINATE
    assert "differ by up to 3e-07" in misfit.message
    assert "tolerance={'lat': 3e-07}" in misfit.message
    assert "take_first=('lat',)" in misfit.message


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    shifts=st.lists(st.floats(-1e-6, 1e-6), min_size=2, max_size=4),
    data=st.data(),
)
def test_within_a_tolerance_the_first_values_are_taken_as_xarray_overrides(
    tmp_path_factory: pytest.TempPathFactory, shifts: list[float], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("files")
    for day, shift in enumerate(shifts):
        write(folder / f"{day}.nc", [day], lat=[0.0, 1.0, 2.0 + shift])
    first = 2.0 + shifts[0]
    largest = max(abs(2.0 + shift - first) for shift in shifts)
    names = data.draw(st.sampled_from(["tolerance", "take_first"]))
    how: dict[str, Any] = {"tolerance": {"lat": largest}} if names == "tolerance" else {}
    options = CombineOptions(("time",), **(how or {"take_first": ("lat",)}))
    expected = combined_by_xarray(
        folder,
        combine="nested",
        concat_dim="time",
        join="override",
    )
    repository, report = made(folder, options)
    xr.testing.assert_identical(
        opened(repository.readonly_session("main")).drop_attrs(), expected.drop_attrs()
    )
    said = [note for note in report.scan.notes if note.startswith("lat: ")]
    assert len(said) == (largest > 0)
    if largest:
        assert f"by up to {largest:.3g}; those of the first file were taken" in said[0]
        smaller = CombineOptions(("time",), tolerance={"lat": largest * 0.99})
        assert {each.kind for each in misfits(folder, smaller)} == {Kind.OTHER_COORDINATE}


def test_appended_files_are_compared_with_the_dataset_and_options_are_remembered(
    tmp_path: Path,
) -> None:
    write(tmp_path / "0.nc", [0])
    strict, tolerant = repository_for(tmp_path), repository_for(tmp_path)
    icefloe.ingest(strict, files_in(tmp_path), TIME)
    lenient = CombineOptions(("time",), tolerance={"lat": 1e-6})
    icefloe.ingest(tolerant, files_in(tmp_path), lenient)
    write(tmp_path / "1.nc", [1], lat=[0.0, 1.0, 2.0000005])
    with pytest.raises(MisfitsError, match="differ by up to 5e-07"):
        icefloe.append(strict, files_in(tmp_path))
    report = icefloe.append(tolerant, files_in(tmp_path))
    assert "lat: 1 file has other values, by up to 5e-07; those of the dataset were taken" in (
        report.scan.notes
    )
    found = opened(tolerant.readonly_session("main"))
    assert found.lat.values.tolist() == [0.0, 1.0, 2.0]
    assert found.sizes["time"] == 2
    write(tmp_path / "2.nc", [2], lat=[0.0, 1.0, 3.0])
    with pytest.raises(MisfitsError, match=r"tolerance=\{'lat': 1\}"):
        icefloe.append(tolerant, files_in(tmp_path))


# -- coordinates that files do not have -------------------------------------------------------


def test_images_get_their_time_from_their_names(tmp_path: Path) -> None:
    images = {f"ndvi_2024{month:02}15.tif": np.full((16, 16), month, "u1") for month in (3, 1, 2)}
    for name, values in images.items():
        tifffile.imwrite(tmp_path / name, values, tile=(16, 16))
    for cube in cubes(tmp_path, TIME, ParseOptions(("time",), from_name="*_%Y%m%d.tif")):
        [variable] = cube.data_vars.values()
        assert variable.dims[0] == "time"
        assert [str(time)[:10] for time in cube.time.values] == [
            "2024-01-15", "2024-02-15", "2024-03-15",
        ]  # fmt: skip
        expected = [images[name] for name in sorted(images)]
        np.testing.assert_array_equal(variable.values[:, 0], expected)


@pytest.mark.parametrize(
    ("pattern", "name", "values"),
    [
        ("run_{member:d}.nc", "member", [2, 10]),
        ("run_{level:f}.nc", "level", [2.0, 10.0]),
        ("run_{scenario}.nc", "scenario", ["10", "2"]),
    ],
)
def test_fields_of_names_become_dimensions(
    tmp_path: Path, pattern: str, name: str, values: list[Any]
) -> None:
    for number in (2, 10):
        write(tmp_path / f"run_{number}.nc", [number])
    options = CombineOptions((name, "time"), take_first=())
    for number in (2, 10):
        write(tmp_path / f"run_{number}.nc", [5])
    found, _ = made(tmp_path, options, ParseOptions(options.concat, from_name=pattern))
    cube = opened(found.readonly_session("main"))
    assert cube.t2m.dims == (name, "time", "lat", "x")
    assert cube[name].values.tolist() == values
    for number in (7, 70):
        write(tmp_path / f"run_{number}.nc", [5])
    icefloe.append(found, files_in(tmp_path))
    kind = type(values[0])
    expected = sorted([*values, kind(7), kind(70)])
    assert opened(found.readonly_session("main"))[name].values.tolist() == expected


def test_files_whose_names_do_not_match_are_listed(tmp_path: Path) -> None:
    write(tmp_path / "a_20240101.nc", None)
    write(tmp_path / "other.nc", None)
    write(tmp_path / "a_20241301.nc", None)
    found = misfits(tmp_path, TIME, ParseOptions(("time",), from_name="*_%Y%m%d.nc"))
    assert [Path(each.url).name for each in found] == ["a_20241301.nc", "other.nc"]
    assert {each.kind for each in found} == {Kind.COORDINATE}
    assert "from_name='*_%Y%m%d.nc'" in found[1].message


def test_constants_are_coordinates_of_the_dataset(tmp_path: Path) -> None:
    for day in range(2):
        write(tmp_path / f"{day}.nc", [day])
    constants: dict[str, int | float | str] = {"member": 3, "model": "ifs", "height": 2.5}
    for cube in cubes(tmp_path, TIME, ParseOptions(("time",), constants=constants)):
        assert {name: cube.coords[name].item() for name in constants} == constants
    parse = ParseOptions(("member", "time"), constants={"member": 3})
    repository, _ = made(tmp_path, CombineOptions(("member", "time")), parse)
    assert opened(repository.readonly_session("main")).t2m.dims == ("member", "time", "lat", "x")


# -- names --------------------------------------------------------------------------------------


def test_variables_are_selected_and_renamed_as_by_xarray(tmp_path: Path) -> None:
    bounds = (("time", "nv"), np.array([[0.0, 1.0]]))
    for day in range(2):
        write(tmp_path / f"{day}.nc", [day], other=("x", [1, 2]), time_bnds=bounds)
    parse = ParseOptions(
        ("when",),
        variables=("t2m",),
        rename={"t2m": "temperature", "time": "when", "x": "longitude"},
    )
    whole = combined_by_xarray(tmp_path, combine="by_coords")
    expected = whole[["t2m"]].rename(parse.rename)
    for cube in cubes(tmp_path, CombineOptions(("when",)), parse):
        xr.testing.assert_identical(cube.drop_encoding(), expected.drop_encoding())


def test_a_file_without_any_of_the_variables_does_not_fit(tmp_path: Path) -> None:
    write(tmp_path / "0.nc", [0])
    [misfit] = misfits(tmp_path, TIME, ParseOptions(("time",), variables=("wind",)))
    assert misfit.kind is Kind.MISSING_VARIABLE
    assert "t2m" in misfit.message
    [misfit] = misfits(tmp_path, TIME, ParseOptions(("time",), rename={"wind": "w"}))
    assert "neither 'wind' nor 'w'" in misfit.message


# -- functions ------------------------------------------------------------------------------------


def by_name(file: EditableFile) -> EditableFile:
    file.rename({"t2m": "temperature"})
    file.drop("mask")
    file.set_coordinate("time", datetime(2000, 1, 1 + int(Path(file.url).stem)))
    file.attributes["title"] = "a cube"
    file.variables["temperature"].attributes["units"] = "K"
    return file


def same_in_xarray(dataset: xr.Dataset) -> xr.Dataset:
    day = np.datetime64(f"2000-01-{1 + int(Path(dataset.encoding['source']).stem):02}", "ns")
    named = dataset.rename(t2m="temperature").drop_vars("mask").expand_dims(time=[day])
    named.temperature.attrs["units"] = "K"
    return named.assign_attrs(title="a cube")


def test_a_function_changes_files_as_it_would_for_xarray(tmp_path: Path) -> None:
    for day in (4, 1, 9):
        write(tmp_path / f"{day}.nc", None)
    expected = combined_by_xarray(tmp_path, combine="by_coords", preprocess=same_in_xarray)
    for cube in cubes(tmp_path, TIME, preprocess=by_name):
        xr.testing.assert_equal(cube, expected)
        assert cube.attrs == {"title": "a cube"}
        assert cube.temperature.attrs == {"units": "K"}


def test_a_function_has_to_be_given_again(tmp_path: Path) -> None:
    write(tmp_path / "0.nc", None)
    repository, _ = made(tmp_path, TIME, preprocess=by_name)
    write(tmp_path / "1.nc", None)
    with pytest.raises(
        InvalidInputError, match=r"by_name, which cannot be remembered.*preprocess="
    ):
        icefloe.append(repository, files_in(tmp_path))
    icefloe.append(repository, files_in(tmp_path), preprocess=by_name)
    assert opened(repository.readonly_session("main")).sizes["time"] == 2


@pytest.mark.parametrize(
    ("function", "error", "text"),
    [
        (lambda file: 1 / 0, MisfitsError, "preprocess failed for .*ZeroDivisionError"),
        (lambda file: file.variables, InvalidInputError, "returned dict"),
        (lambda file: file.set_coordinate("lat", [1.0]), MisfitsError, "has 3 steps"),
        (lambda file: file.set_coordinate("z", [1.0]), MisfitsError, "no such dimension"),
        (lambda file: file.set_coordinate("z", 1j), InvalidInputError, "complex128"),
        (lambda file: file.values("wind"), MisfitsError, "no variable 'wind'"),
    ],
)
def test_faults_of_a_function_are_reported(
    tmp_path: Path, function: Callable[[EditableFile], Any], error: type[Exception], text: str
) -> None:
    write(tmp_path / "0.nc", [0])
    with pytest.raises(error, match=text):
        made(tmp_path, TIME, preprocess=function)
