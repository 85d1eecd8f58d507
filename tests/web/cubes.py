"""Arrays of many kinds, as other programs ask for them, with an independent reader beside."""

from pathlib import Path
from typing import Any

import cftime
import numpy as np
import xarray
import zarr

import icefloe
from icefloe.xarray import to_icechunk

FORMULA = "=1+1"


def weather() -> xarray.Dataset:
    """Return a map over time with packed values, whose latitudes run downwards."""
    generator = np.random.default_rng(7)
    hours = np.datetime64("2024-01-01", "ns") + np.arange(20) * np.timedelta64(6, "h")
    lat, lon = np.linspace(80, -80, 33, dtype="f4"), np.arange(-180, 180, 7.5)
    shape = (20, 33, 48)
    field = generator.uniform(240, 310, shape).round(2)
    field[generator.random(shape) < 0.1] = np.nan
    flags = generator.integers(0, 5, (33, 48)).astype("f4")
    flags[0] = np.nan
    return xarray.Dataset(
        {
            "t2m": (("time", "lat", "lon"), field, {"units": "K", "long_name": "Temperature"}),
            "rain": (("time", "lat", "lon"), generator.random(shape, "f4"), {"units": "mm"}),
            "flags": (("lat", "lon"), flags),
            "seen": (("time",), hours + np.timedelta64(90, "s")),
            "names": (("n",), np.array([FORMULA, "+2", 'a "quoted", text', "", "ü"])),
        },
        {
            "time": hours,
            "lat": ("lat", lat, {"units": "degrees_north"}),
            "lon": ("lon", lon, {"units": "degrees_east"}),
        },
    )


def climate() -> xarray.Dataset:
    """Return a year without a leap day, on longitudes from 0 to 360."""
    days = xarray.date_range("2024-01-01", periods=365, calendar="noleap", use_cftime=True)
    lat, lon = np.array([-45.0, 0.0, 45.0]), np.arange(0, 360, 22.5)
    field = np.arange(365 * 3 * 16, dtype="f8").reshape(365, 3, 16)
    return xarray.Dataset(
        {"tas": (("time", "lat", "lon"), field), "turned": (("lon", "lat"), field[0].T)},
        {
            "time": days,
            "lat": ("lat", lat, {"standard_name": "latitude"}),
            "lon": ("lon", lon, {"standard_name": "longitude"}),
        },
    )


_ENCODINGS: dict[str, dict[str, Any]] = {
    "t2m": {
        "dtype": "i2",
        "scale_factor": 0.01,
        "add_offset": 273.15,
        "_FillValue": -32768,
        "chunks": (4, 11, 16),
    },
    "rain": {"chunks": (2, 11, 16), "shards": (10, 33, 48)},
    "flags": {"dtype": "i1", "_FillValue": -1},
    "seen": {"units": "seconds since 2023-12-31", "dtype": "i8", "_FillValue": -1},
}


def write_cubes(folder: Path) -> icefloe.Repository:
    """Write all of them, and arrays without chunks that are far too large to read."""
    repository = icefloe.Repository.create(icefloe.local_filesystem_storage(str(folder)))
    session = repository.writable_session("main")
    to_icechunk(weather(), session, encoding=_ENCODINGS)
    climate_chunks = {"tas": {"chunks": (100, 3, 16)}}
    to_icechunk(climate(), session, group="climate", mode="a", encoding=climate_chunks)
    group = zarr.open_group(session.store, mode="a").create_group("odd")
    group.create_array(
        "many", shape=(5000, 10), chunks=(1, 10), dtype="f4", dimension_names=("step", "x")
    )
    group.create_array(
        "y", shape=(2, 3), dtype="f4", dimension_names=("y", "x"), fill_value=5
    )  # as grids with curved coordinates have it
    group.create_array("short", shape=(3,), dtype="f4", dimension_names=("x",))
    group.create_array("endless", shape=(2**50, 4), chunks=(2**20, 4), dtype="f8")
    group.create_array("lumps", shape=(8, 4096, 4096), chunks=(1, 4096, 4096), dtype="f8")
    group.create_array("bytes", shape=(1 << 27,), chunks=(1 << 24,), dtype="i1")
    group.create_array("complex", shape=(3,), dtype="c8")
    group.create_array("scalar", shape=(), dtype="i4")[...] = 42
    group.create_array("nothing", shape=(0, 3), dtype="f4")
    group.create_array("large", shape=(2,), dtype="i8")[:] = [2**60, 1]
    group.create_array("a name", shape=(3,), dtype="i4", dimension_names=("format",), fill_value=1)
    group.create_array("format", shape=(3,), dtype="f8", dimension_names=("format",))[:] = [1, 2, 3]
    session.commit("cubes")
    repository.create_tag("v1", repository.lookup_branch("main"))
    return repository


def times_of(values: Any) -> list[str]:
    """Return times of any calendar as ISO 8601."""
    flat = np.atleast_1d(values)
    if isinstance(flat[0], cftime.datetime):
        return [date.isoformat() for date in flat]
    return np.datetime_as_string(flat.astype("datetime64[s]")).tolist()  # type: ignore[no-any-return]
