"""Values read through a repository are those of the original files, for every format."""

import json
import struct
from pathlib import Path
from typing import Any

import h5py
import iris_sample_data
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tifffile
import xarray
import zarr
from astropy.io import fits
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from icefloe.errors import InvalidInputError
from icefloe.pipeline.combining.report import MisfitsError
from icefloe.pipeline.files.options import CombineOptions, Format, ParseOptions
from icefloe.pipeline.local import virtualize_locally
from tests.pipeline.repositories import opened, repository_for

SAMPLES = Path(iris_sample_data.__file__).parent / "sample_data"
FITS_SAMPLES = Path(fits.__file__).parent / "tests" / "data"
ALONG = {
    "A1B_north_america.nc": "time",
    "E1_north_america.nc": "time",
    "SOI_Darwin.nc": "time",
    "atlantic_profiles.nc": "depth",
    "hybrid_height.nc": "model_level_number",
    "ostia_monthly.nc": "time",
    "rotated_pole.nc": "grid_latitude",
    "toa_brightness_stereographic.nc": "y",
    "vlstr_type.nc": "time",
}


def assert_same(found: xarray.Dataset, expected: xarray.Dataset) -> None:
    assert set(found.variables) == set(expected.variables)
    for name, variable in expected.variables.items():
        assert found[name].dims == variable.dims
        assert_array_equal(found[name].values, variable.values, err_msg=str(name))


@pytest.mark.parametrize("name", ALONG)
def test_netcdf_samples(name: str) -> None:
    session = repository_for(SAMPLES).writable_session("main")
    virtualize_locally(session, SAMPLES / name, CombineOptions((ALONG[name],)))
    with xarray.open_dataset(SAMPLES / name, engine="h5netcdf") as expected:
        found = opened(session)
        assert_same(found, expected)
        assert found.attrs.keys() == expected.attrs.keys()


def test_months_of_a_calendar_with_360_days(tmp_path: Path) -> None:
    options = CombineOptions(("time_counter",), coordinates={"time_counter": "time_centered"})
    repository = repository_for(SAMPLES)
    session = repository.writable_session("main")
    paths = sorted((SAMPLES / "NEMO").glob("*.nc"))
    report = virtualize_locally(session, reversed(paths), options)
    assert (report.used, report.coverage.last) == (3, {"time_counter": "2015-03-16 00:00:00"})
    session.commit("three months")
    found = opened(repository.readonly_session("main"))
    months = [xarray.open_dataset(path, engine="h5netcdf") for path in paths]
    expected = xarray.concat(
        months,
        "time_counter",
        data_vars="minimal",
        coords="minimal",
        compat="override",
        join="override",
        combine_attrs="drop_conflicts",
    )
    assert_same(found, expected)
    assert found.attrs == expected.attrs
    assert found.time_centered.values[0].calendar == "360_day"
    for month in months:
        month.close()


def test_the_months_can_be_appended_one_by_one() -> None:
    options = CombineOptions(("time_counter",), coordinates={"time_counter": "time_centered"})
    session = repository_for(SAMPLES).writable_session("main")
    first, second, third = sorted((SAMPLES / "NEMO").glob("*.nc"))
    virtualize_locally(session, [first, second], options)
    virtualize_locally(session, third, options, append=True)
    at_once = repository_for(SAMPLES).writable_session("main")
    virtualize_locally(at_once, [first, second, third], options)
    assert_same(opened(session), opened(at_once))


def test_a_month_before_all_others_goes_before_them() -> None:
    options = CombineOptions(("time_counter",), coordinates={"time_counter": "time_centered"})
    session = repository_for(SAMPLES).writable_session("main")
    first, second, third = sorted((SAMPLES / "NEMO").glob("*.nc"))
    virtualize_locally(session, [second, third], options)
    virtualize_locally(session, first, options, append=True)
    at_once = repository_for(SAMPLES).writable_session("main")
    virtualize_locally(at_once, [first, second, third], options)
    assert_same(opened(session), opened(at_once))


def test_nothing_is_appended_by_a_coordinate_that_says_nothing() -> None:
    options = CombineOptions(("time_counter",), coordinates={"time_counter": "time_centered"})
    session = repository_for(SAMPLES).writable_session("main")
    first, second, third = sorted((SAMPLES / "NEMO").glob("*.nc"))
    virtualize_locally(session, [first, second], options)
    with pytest.raises(InvalidInputError, match="strictly monotonic"):
        virtualize_locally(session, third, CombineOptions(("time_counter",)), append=True)


def test_months_whose_coordinate_says_nothing_are_reported() -> None:
    session = repository_for(SAMPLES).writable_session("main")
    with pytest.raises(MisfitsError) as caught:
        virtualize_locally(session, SAMPLES / "NEMO" / "*.nc", CombineOptions(("time_counter",)))
    assert caught.value.report.counts() == {"duplicate": 2}
    assert not session.has_uncommitted_changes


def test_grib() -> None:
    from gribberish import parse_grib_array

    session = repository_for(SAMPLES).writable_session("main")
    virtualize_locally(session, SAMPLES / "polar_stereo.grib2", CombineOptions(("time",)))
    found = opened(session)
    message = (SAMPLES / "polar_stereo.grib2").read_bytes()
    expected = np.asarray(parse_grib_array(message, 0)).reshape(found.t.shape)
    assert_array_equal(found.t.values, expected)
    assert found.valid_time.values == np.datetime64("2013-05-20T06:00:00", "ns")
    assert found.t.attrs["standard_name"] == "air_temperature"


def netcdf3(steps: NDArray[np.float64], data: NDArray[np.int16]) -> bytes:
    """Write the classic format: a record variable, and one of fixed size."""

    def name(text: str) -> bytes:
        raw = text.encode()
        return struct.pack(">i", len(raw)) + raw + bytes(-len(raw) % 4)

    def text_attribute(key: str, text: str) -> bytes:
        return name(key) + struct.pack(">i", 2) + name(text)

    def variable(key: str, dims: list[int], attrs: bytes, kind: int, size: int, at: int) -> bytes:
        listed = struct.pack(">i", len(dims)) + struct.pack(f">{len(dims)}i", *dims)
        return name(key) + listed + attrs + struct.pack(">iii", kind, size, at)

    columns = data.shape[1]
    padded = -(-columns * 2 // 4) * 4
    units = struct.pack(">ii", 12, 1) + text_attribute("units", "days since 2001-01-01")
    none = struct.pack(">ii", 0, 0)

    def header(x_at: int, first: int) -> bytes:
        return b"".join(
            [
                b"CDF\x01",
                struct.pack(">i", len(steps)),
                struct.pack(">ii", 10, 2) + name("time") + struct.pack(">i", 0),
                name("x") + struct.pack(">i", columns),
                none,
                struct.pack(">ii", 11, 3),
                variable("x", [1], none, 5, 4 * columns, x_at),
                variable("time", [0], units, 6, 8, first),
                variable("height", [0, 1], none, 3, padded, first + 8),
            ]
        )

    x_at = len(header(0, 0))
    body = np.arange(columns, dtype=">f4").tobytes()
    records = [
        struct.pack(">d", step) + row.astype(">i2").tobytes() + bytes(padded - 2 * columns)
        for step, row in zip(steps, data, strict=True)
    ]
    return header(x_at, x_at + len(body)) + body + b"".join(records)


def test_netcdf3(tmp_path: Path) -> None:
    height = np.arange(25, dtype=np.int16).reshape(5, 5)
    (tmp_path / "b.nc").write_bytes(netcdf3(np.arange(3.0, 5), height[3:]))
    (tmp_path / "a.nc").write_bytes(netcdf3(np.arange(3.0), height[:3]))
    session = repository_for(tmp_path).writable_session("main")
    virtualize_locally(session, tmp_path / "*.nc", CombineOptions(("time",)))
    found = opened(session)
    assert_array_equal(found.height.values, height)
    assert_array_equal(found.x.values, np.arange(5))
    assert found.time.values[-1] == np.datetime64("2001-01-05")


@pytest.mark.parametrize("name", ["test0.fits", "arange.fits", "scale.fits"])
def test_fits(name: str) -> None:
    session = repository_for(FITS_SAMPLES).writable_session("main")
    options = CombineOptions(("exposure",), by="order")
    virtualize_locally(session, FITS_SAMPLES / name, options)
    found = opened(session, decode_cf=False)
    with fits.open(FITS_SAMPLES / name) as units:
        images = [unit.data for unit in units if unit.data is not None]
        assert len(images) == len(found)
        for image, variable in zip(images, found.data_vars.values(), strict=True):
            np.testing.assert_allclose(variable.values[0], image)


@pytest.mark.parametrize(
    "options", [{"compression": "zlib"}, {"compression": "zlib", "predictor": 2}, {}]
)
def test_a_series_of_tiffs(tmp_path: Path, options: dict[str, Any]) -> None:
    images = np.random.default_rng(3).integers(0, 60000, (3, 64, 96)).astype(np.uint16)
    for number, image in enumerate(images):
        tifffile.imwrite(tmp_path / f"{number}.tif", image, tile=(32, 32), **options)
    session = repository_for(tmp_path).writable_session("main")
    virtualize_locally(session, tmp_path / "*.tif", CombineOptions(("date",), by="order"))
    assert_array_equal(opened(session).band_data.values[:, 0], images)


def write_hdf5(path: Path, first: int) -> NDArray[np.float32]:
    values = np.random.default_rng(first).random((2, 6)).astype(np.float32)
    with h5py.File(path, "w") as file:
        file.create_dataset("time", data=np.arange(first, first + 2, dtype=np.int32))
        file["time"].make_scale("time")
        file.create_dataset("x", data=np.arange(6, dtype=np.float32))
        file["x"].make_scale("x")
        array = file.create_dataset("t", data=values, chunks=(1, 6))
        array.dims[0].attach_scale(file["time"])
        array.dims[1].attach_scale(file["x"])
    return values


def places(path: Path) -> dict[str, list[tuple[int, int]]]:
    with h5py.File(path) as file:
        chunks = [file["t"].id.get_chunk_info(n) for n in range(2)]
        return {
            "t": [(each.byte_offset, each.size) for each in chunks],
            **{
                name: [(file[name].id.get_offset(), file[name].id.get_storage_size())]
                for name in ("time", "x")
            },
        }


def test_kerchunk_json(tmp_path: Path) -> None:
    expected = []
    for number in range(2):
        data = tmp_path / f"{number}.h5"
        expected.append(write_hdf5(data, 2 * number))
        found = places(data)
        arrays = {
            "time": ([2], [2], "<i4", ["time"]),
            "x": ([6], [6], "<f4", ["x"]),
            "t": ([2, 6], [1, 6], "<f4", ["time", "x"]),
        }
        refs: dict[str, Any] = {".zgroup": json.dumps({"zarr_format": 2})}
        for name, (shape, chunks, kind, dims) in arrays.items():
            refs[f"{name}/.zarray"] = json.dumps(
                {
                    "zarr_format": 2,
                    "shape": shape,
                    "chunks": chunks,
                    "dtype": kind,
                    "order": "C",
                    "fill_value": None,
                    "compressor": None,
                    "filters": None,
                }
            )
            refs[f"{name}/.zattrs"] = json.dumps({"_ARRAY_DIMENSIONS": dims})
            for at, (offset, size) in enumerate(found[name]):
                key = f"{at}.0" if len(shape) == 2 else str(at)
                refs[f"{name}/{key}"] = [data.as_uri(), offset, size]
        (tmp_path / f"{number}.json").write_text(json.dumps({"version": 1, "refs": refs}))
    session = repository_for(tmp_path).writable_session("main")
    virtualize_locally(session, tmp_path / "*.json", CombineOptions(("time",)))
    found_dataset = opened(session)
    assert_array_equal(found_dataset.t.values, np.concatenate(expected))
    assert found_dataset.time.values.tolist() == [0, 1, 2, 3]


DMRPP = """<?xml version="1.0" encoding="ISO-8859-1"?>
<Dataset xmlns="http://xml.opendap.org/ns/DAP/4.0#"
    xmlns:dmrpp="http://xml.opendap.org/dap/dmrpp/1.0.0#" dapVersion="4.0" dmrVersion="1.0"
    name="{name}" dmrpp:href="OPeNDAP_DMRpp_DATA_ACCESS_URL">
  <Dimension name="time" size="2"/>
  <Dimension name="x" size="6"/>
  <Int32 name="time"><Dim name="/time"/>
    <dmrpp:chunks byteOrder="LE"><dmrpp:chunk offset="{time[0]}" nBytes="{time[1]}"/></dmrpp:chunks>
  </Int32>
  <Float32 name="x"><Dim name="/x"/>
    <dmrpp:chunks byteOrder="LE"><dmrpp:chunk offset="{x[0]}" nBytes="{x[1]}"/></dmrpp:chunks>
  </Float32>
  <Float32 name="t"><Dim name="/time"/><Dim name="/x"/>
    <dmrpp:chunks byteOrder="LE">
      <dmrpp:chunkDimensionSizes>1 6</dmrpp:chunkDimensionSizes>
      <dmrpp:chunk offset="{t0[0]}" nBytes="{t0[1]}" chunkPositionInArray="[0,0]"/>
      <dmrpp:chunk offset="{t1[0]}" nBytes="{t1[1]}" chunkPositionInArray="[1,0]"/>
    </dmrpp:chunks>
  </Float32>
</Dataset>
"""


def test_dmrpp(tmp_path: Path) -> None:
    expected = []
    for number in range(2):
        data = tmp_path / f"{number}.h5"
        expected.append(write_hdf5(data, 2 * number))
        found = places(data)
        text = DMRPP.format(
            name=data.name,
            time=found["time"][0],
            x=found["x"][0],
            t0=found["t"][0],
            t1=found["t"][1],
        )
        (tmp_path / f"{number}.h5.dmrpp").write_text(text)
    session = repository_for(tmp_path).writable_session("main")
    virtualize_locally(session, tmp_path / "*.dmrpp", CombineOptions(("time",)))
    assert_array_equal(opened(session).t.values, np.concatenate(expected))


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_zarr(tmp_path: Path, zarr_format: Any) -> None:
    values = np.random.default_rng(5).random((4, 6))
    for number in range(2):
        part = values[2 * number : 2 * number + 2]
        dataset = xarray.Dataset(
            {"t": (("time", "x"), part)}, {"time": [2 * number, 2 * number + 1]}
        )
        dataset.to_zarr(
            tmp_path / f"{number}.zarr",
            zarr_format=zarr_format,
            consolidated=False,
            encoding={"t": {"chunks": (1, 6)}},
        )
    session = repository_for(tmp_path).writable_session("main")
    urls = [tmp_path / "0.zarr", tmp_path / "1.zarr"]
    virtualize_locally(session, urls, CombineOptions(("time",)))
    assert_array_equal(opened(session).t.values, values)


def test_kerchunk_parquet(tmp_path: Path) -> None:
    data = tmp_path / "0.h5"
    expected = write_hdf5(data, 0)
    target = tmp_path / "refs.parq"
    (target / "t").mkdir(parents=True)
    layout = {
        "zarr_format": 2,
        "shape": [2, 6],
        "chunks": [1, 6],
        "dtype": "<f4",
        "order": "C",
        "fill_value": None,
        "compressor": None,
        "filters": None,
    }
    metadata = {
        ".zgroup": {"zarr_format": 2},
        "t/.zarray": layout,
        "t/.zattrs": {"_ARRAY_DIMENSIONS": ["time", "x"]},
    }
    (target / ".zmetadata").write_text(json.dumps({"metadata": metadata, "record_size": 2}))
    offsets, sizes = zip(*places(data)["t"], strict=True)
    columns = {"path": [data.as_uri()] * 2, "offset": offsets, "size": sizes, "raw": [None] * 2}
    table = pa.table(columns).cast(
        pa.schema(
            [
                ("path", pa.string()),
                ("offset", pa.int64()),
                ("size", pa.int64()),
                ("raw", pa.binary()),
            ]
        )
    )
    pq.write_table(table, target / "t" / "refs.0.parq")
    session = repository_for(tmp_path).writable_session("main")
    virtualize_locally(session, target, CombineOptions(("time",), by="order"))
    assert_array_equal(opened(session).t.values, expected)


def test_a_group_of_the_file_and_one_of_the_repository(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        group = file.create_group("model/surface")
        group.create_dataset("time", data=np.arange(2))
        group["time"].make_scale("time")
        group.create_dataset("t", data=np.arange(2.0), chunks=(1,)).dims[0].attach_scale(
            group["time"]
        )
    session = repository_for(tmp_path).writable_session("main")
    virtualize_locally(
        session,
        tmp_path / "a.h5",
        CombineOptions(("time",)),
        parse=ParseOptions(("time",), format=Format.HDF5, group="model"),
        group="some/where",
    )
    assert opened(session, "some/where/surface").t.values.tolist() == [0.0, 1.0]
    assert sorted(zarr.open_group(session.store, mode="r").group_keys()) == ["some"]
