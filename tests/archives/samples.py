"""Real files that come with packages."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import astropy.io.fits
import astropy.wcs
import h5py
import iris_sample_data
import scipy.io
import xarray

from tests.archives import fits, grib, hdf5, netcdf
from tests.archives.cases import Case, Expected, Options, variables_of

IRIS = Path(iris_sample_data.__file__).parent / "sample_data"
XARRAY = Path(xarray.__file__).parent / "tests" / "data"
SCIPY = Path(scipy.io.__file__).parent / "tests" / "data"
H5PY = Path(h5py.__file__).parent / "tests" / "data_files"
ASTROPY = Path(astropy.io.fits.__file__).parent / "tests" / "data"
WCS = Path(astropy.wcs.__file__).parent / "tests" / "data"


def nothing(_: Path) -> None:
    """Write nothing: the files exist."""


def read_alone(paths: Sequence[Path]) -> Expected:
    with xarray.open_dataset(paths[0], engine="netcdf4") as dataset:
        return variables_of(dataset)


def sample(folder: Path, files: str, package: str, along: str, **how: Any) -> Case:
    options = how.pop("options", Options((along,)))
    reader = how.pop("reader", read_alone)
    return Case(
        "Samples",
        f"{how.pop('title', files)}",
        package,
        nothing,
        reader,
        options,
        folder=folder,
        files=files,
        **how,
    )


def order(along: str) -> Options:
    return Options((along,), {"by": "order"})


def read_months(paths: Sequence[Path]) -> Expected:
    months = [xarray.open_dataset(path, engine="netcdf4") for path in paths]
    minimal: Any = {"data_vars": "minimal", "coords": "minimal", "compat": "override"}
    return variables_of(xarray.concat(months, "time_counter", **minimal))


MONTHS = Options(("time_counter",), combine={"coordinates": {"time_counter": "time_centered"}})
CASES = (
    sample(IRIS, "A1B_north_america.nc", "iris-sample-data", "time"),
    sample(IRIS, "E1_north_america.nc", "iris-sample-data", "time"),
    sample(IRIS, "SOI_Darwin.nc", "iris-sample-data", "time"),
    sample(IRIS, "atlantic_profiles.nc", "iris-sample-data", "depth"),
    sample(IRIS, "hybrid_height.nc", "iris-sample-data", "model_level_number"),
    sample(IRIS, "ostia_monthly.nc", "iris-sample-data", "time"),
    sample(IRIS, "rotated_pole.nc", "iris-sample-data", "grid_latitude"),
    sample(IRIS, "toa_brightness_stereographic.nc", "iris-sample-data", "y"),
    sample(IRIS, "vlstr_type.nc", "iris-sample-data", "time"),
    sample(IRIS, "orca2_votemper.nc", "iris-sample-data", "dim0", options=order("dim0")),
    sample(IRIS, "space_weather.nc", "iris-sample-data", "height"),
    sample(
        IRIS,
        "mesh_C4_synthetic_float.nc",
        "iris-sample-data",
        "nexample_C4_face",
        options=order("nexample_C4_face"),
    ),
    sample(
        IRIS / "NEMO",
        "*.nc",
        "iris-sample-data",
        "time_counter",
        title="NEMO/*.nc",
        reader=read_months,
        options=MONTHS,
    ),
    sample(
        IRIS,
        "polar_stereo.grib2",
        "iris-sample-data",
        "time",
        reader=grib.read(),
        pair=grib.same,
    ),
    sample(XARRAY, "example_1.nc", "xarray", "time", title="example_1.nc of xarray"),
    sample(XARRAY, "bears.nc", "xarray", "i"),
    sample(XARRAY, "example.grib", "xarray", "time", reader=grib.read(), pair=grib.same),
    sample(SCIPY, "example_1.nc", "scipy", "time", title="example_1.nc of scipy"),
    sample(SCIPY, "example_2.nc", "scipy", "Temperature", options=order("Temperature")),
    sample(
        SCIPY,
        "example_3_maskedvals.nc",
        "scipy",
        "dim1",
        options=Options(("dim1",), {"by": "order"}, {"drop": ("var6_char",)}),
        reader=netcdf.alone_without("var6_char"),
    ),
    sample(
        H5PY,
        "vlen_string_dset.h5",
        "h5py",
        "phony_dim_0",
        reader=hdf5.read_phony,
        options=order("phony_dim_0"),
    ),
    sample(
        ASTROPY,
        "arange.fits",
        "astropy",
        "night",
        reader=fits.read(),
        options=order("night"),
        pair=fits.images,
    ),
    sample(
        ASTROPY,
        "scale.fits",
        "astropy",
        "night",
        tolerance=1e-6,
        reader=fits.read(),
        options=order("night"),
        pair=fits.images,
    ),
    sample(
        ASTROPY,
        "test0.fits",
        "astropy",
        "night",
        reader=fits.read(),
        options=order("night"),
        pair=fits.images,
    ),
    sample(
        ASTROPY,
        "o4sp040b0_raw.fits",
        "astropy",
        "night",
        reader=fits.read_with_axes,
        options=order("night"),
        pair=fits.images,
    ),
    sample(
        ASTROPY,
        "comp.fits",
        "astropy",
        "night",
        reader=fits.read(),
        options=order("night"),
        pair=fits.images,
    ),
    sample(
        WCS,
        "j94f05bgq_flt.fits",
        "astropy",
        "night",
        reader=fits.read(),
        options=order("night"),
        pair=fits.images,
    ),
)
