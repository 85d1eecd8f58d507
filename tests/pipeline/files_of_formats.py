"""Small files of every format, with all that their values can look like."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import eccodes
import h5py
import hdf5plugin
import numpy as np
import scipy.io
import tifffile
import zarr
from astropy.io import fits
from numpy.typing import NDArray

CHANCE = np.random.default_rng(11)
PACKED = CHANCE.integers(-3000, 3000, (4, 6, 5)).astype(np.int16)
NUMBERS = CHANCE.random((4, 6, 5))


@dataclass(frozen=True, slots=True)
class FileOfFormat:
    """A file, how it is ingested, and which array of it is stored in the file itself."""

    name: str
    write: Callable[[Path], None]
    reader: str
    path: str
    """Of an array whose references may be damaged."""
    concat: str = "time"
    unchecked: tuple[str, ...] = ()
    """Arrays that cannot be compared."""
    is_cut: bool = True
    """Whether the array has several chunks."""


def _scale(file: Any, name: str, values: Any, **attributes: Any) -> None:
    file.create_dataset(name, data=values).make_scale(name)
    file[name].attrs.update(attributes)


def _attach(dataset: Any, *scales: Any) -> None:
    for axis, scale in enumerate(scales):
        dataset.dims[axis].attach_scale(scale)


def write_netcdf4(path: Path) -> None:
    with h5py.File(path, "w") as file:
        _scale(file, "time", np.arange(4.0), units="hours since 2000-01-01")
        _scale(file, "y", np.arange(6, dtype=">f4"))
        _scale(file, "x", np.arange(5, dtype=np.float32))
        packed = file.create_dataset(
            "packed", data=PACKED, chunks=(1, 3, 5), compression="gzip", shuffle=True
        )
        packed.attrs.update(scale_factor=0.01, add_offset=273.15, _FillValue=np.int16(-32768))
        big = file.create_dataset("big_endian", data=NUMBERS.astype(">f8"), chunks=(2, 6, 5))
        holed = file.create_dataset(
            "holed", (4, 6, 5), np.float32, chunks=(1, 6, 5), fillvalue=-9.5, fletcher32=True
        )
        holed[1] = np.where(NUMBERS[1] > 0.5, np.nan, -0.0)
        contiguous = file.create_dataset("contiguous", data=NUMBERS.astype(np.float32))
        for dataset in (packed, big, holed, contiguous):
            _attach(dataset, file["time"], file["y"], file["x"])
        file.create_dataset("scalar", data=np.int32(7))
        flags = file.create_dataset("flags", data=NUMBERS[:, 0, 0] > 0.5)
        _attach(flags, file["time"])


def write_unusual_netcdf4(path: Path) -> None:
    """Text of several kinds, and a group, as only the general parser reads them."""
    with h5py.File(path, "w") as file:
        _scale(file, "time", np.arange(4.0))
        texts = file.create_dataset(
            "texts", data=["a", "", "längér", "d"], dtype=h5py.string_dtype()
        )
        fixed = file.create_dataset("fixed", data=np.array([b"ab", b"c", b"", b"def"]))
        chars = np.array([list(b"abc"), list(b"de "), list(b"f\0\0"), list(b"xxx")], np.uint8)
        names = file.create_dataset("names", data=chars.view("S1"), fillvalue=b"x")
        names.attrs["_FillValue"] = np.bytes_(b"x")
        for dataset in (texts, fixed, names):
            _attach(dataset, file["time"])
        below = file.create_group("model/surface")
        inner = below.create_dataset("t", data=NUMBERS, chunks=(1, 6, 5), **hdf5plugin.Zstd())
        _attach(inner, file["time"])


def write_netcdf3(path: Path) -> None:
    """Records of several variables that lie one behind the other, and fixed variables."""
    with scipy.io.netcdf_file(path, "w", version=2) as file:
        file.createDimension("time", None)
        file.createDimension("y", 6)
        file.createDimension("x", 5)
        file.createDimension("letters", 3)
        for name, kind, values in (("time", "f8", np.arange(4.0)), ("x", "f4", np.arange(5.0))):
            file.createVariable(name, kind, (name,))[:] = values
        packed = file.createVariable("packed", "i2", ("time", "y", "x"))
        packed.scale_factor = 0.5
        packed[:] = PACKED
        file.createVariable("single", "f4", ("time",))[:] = NUMBERS[:, 0, 0]
        file.createVariable("field", "f8", ("y", "x"))[:] = NUMBERS[0]
        file.createVariable("bytes", "b", ("y",))[:] = np.arange(-3, 3)
        names = file.createVariable("names", "c", ("time", "letters"))
        names._FillValue = "x"
        names[:] = np.array([list("abc"), list("de "), list("f  "), list("xyz")], "S1")
        file.createVariable("scalar", "i4", ()).data[...] = 7


def write_one_record_variable(path: Path) -> None:
    """A record of three bytes: alone in a file, it is not padded to four."""
    with scipy.io.netcdf_file(path, "w") as file:
        file.createDimension("time", None)
        file.createDimension("x", 3)
        file.createVariable("odd", "b", ("time", "x"))[:] = np.arange(12).reshape(4, 3)


def write_fits(path: Path) -> None:
    scaled = fits.ImageHDU(PACKED[0], name="SCALED")
    scaled.header["BSCALE"], scaled.header["BZERO"] = 0.1, 273.15
    fits.HDUList(
        [
            fits.PrimaryHDU(NUMBERS[0]),
            fits.ImageHDU(NUMBERS.astype(np.float32), name="CUBE"),
            scaled,
            fits.ImageHDU(PACKED[1].astype(np.uint16), name="UNSIGNED"),
        ]
    ).writeto(path)


def _tiff(**options: Any) -> Callable[[Path], None]:
    shape = options.pop("shape", (64, 96))
    kind = options.pop("kind", np.uint16)
    values = CHANCE.integers(0, 60000, shape).astype(kind)

    def write(path: Path) -> None:
        tifffile.imwrite(path, values, photometric="minisblack", **options)

    return write


def grib_message(
    hours: int,
    level: int,
    values: NDArray[np.float64],
    *,
    has_missing: bool = False,
    name: str = "t",
) -> bytes:
    """Write a field of 31 by 16 values."""
    handle = eccodes.codes_grib_new_from_samples("regular_ll_pl_grib2")
    settings: dict[str, Any] = {
        "Ni": 16,
        "Nj": 31,
        "shortName": name,
        "level": level,
        "dataDate": 20200101,
        "stepRange": str(hours),
        "bitsPerValue": 16,
    }
    if has_missing:
        settings |= {"bitmapPresent": 1, "missingValue": 9999.0}
    for key, value in settings.items():
        eccodes.codes_set(handle, key, value)
    eccodes.codes_set_values(handle, values)
    message: bytes = eccodes.codes_get_message(handle)
    eccodes.codes_release(handle)
    return message


def write_grib(path: Path) -> None:
    fields = 250 + 20 * CHANCE.random((4, 16 * 31))
    fields[2, ::7] = 9999.0
    places = [(hours, level) for hours in (6, 12) for level in (500, 850)]
    path.write_bytes(
        b"".join(
            grib_message(hours, level, field, has_missing=number == 2)
            for number, ((hours, level), field) in enumerate(zip(places, fields, strict=True))
        )
    )


def _zarr(zarr_format: Any) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        group = zarr.create_group(path, zarr_format=zarr_format)
        arrays: dict[str, tuple[Any, Any]] = {
            "time": (np.arange(4), (4,)),
            "t": (NUMBERS, (1, 6, 5)),
            "packed": (PACKED.astype(">i2"), (2, 3, 5)),
        }
        for name, (values, chunks) in arrays.items():
            names = ("time", "y", "x")[: values.ndim]
            given: dict[str, Any] = {"dimension_names": names} if zarr_format == 3 else {}
            array = group.create_array(name, data=values, chunks=chunks, **given)
            array.attrs["_ARRAY_DIMENSIONS"] = list(names)

    return write


def write_kerchunk(path: Path, *, moved_by: int = 0, first: int = 0) -> None:
    """Write references to a file beside this one; `moved_by` makes them lie."""
    data = path.with_suffix(".h5")
    with h5py.File(data, "w") as file:
        file.create_dataset("time", data=np.arange(first, first + 2, dtype=np.int32))
        values = np.random.default_rng(first).random((2, 6)).astype(np.float32)
        file.create_dataset("t", data=values, chunks=(1, 6))
        places = {
            "time/0": (file["time"].id.get_offset(), 8),
            **{
                f"t/{number}.0": (file["t"].id.get_chunk_info(number).byte_offset + moved_by, 24)
                for number in range(2)
            },
        }
    refs: dict[str, Any] = {".zgroup": json.dumps({"zarr_format": 2})}
    for name, shape, chunks, kind, dims in (
        ("time", [2], [2], "<i4", ["time"]),
        ("t", [2, 6], [1, 6], "<f4", ["time", "x"]),
    ):
        layout = {"zarr_format": 2, "shape": shape, "chunks": chunks, "dtype": kind, "order": "C"}
        layout |= {"fill_value": None, "compressor": None, "filters": None}
        refs[f"{name}/.zarray"] = json.dumps(layout)
        refs[f"{name}/.zattrs"] = json.dumps({"_ARRAY_DIMENSIONS": dims})
    refs |= {key: [data.as_uri(), *place] for key, place in places.items()}
    path.write_text(json.dumps({"version": 1, "refs": refs}))


GRIB_HEADERS = ("time", "step", "valid_time", "isobaricInhPa", "latitude", "longitude")

FILES = (
    FileOfFormat("netcdf4.nc", write_netcdf4, "h5py", "packed"),
    FileOfFormat("unusual.nc", write_unusual_netcdf4, "h5py", "model/surface/t"),
    FileOfFormat("records.nc", write_netcdf3, "scipy", "packed"),
    FileOfFormat("record.nc", write_one_record_variable, "scipy", "odd"),
    FileOfFormat("images.fits", write_fits, "astropy", "CUBE", "exposure", is_cut=False),
    FileOfFormat("strips.tif", _tiff(rowsperstrip=16), "tifffile", "band_data", "date"),
    FileOfFormat("tiles.tif", _tiff(tile=(32, 32), byteorder=">"), "tifffile", "band_data", "date"),
    FileOfFormat(
        "predictor.tif",
        _tiff(tile=(32, 32), compression="zlib", predictor=2),
        "tifffile",
        "band_data",
        "date",
    ),
    FileOfFormat(
        "bands.tif",
        _tiff(shape=(3, 64, 96), planarconfig="separate", tile=(32, 32)),
        "tifffile",
        "band_data",
        "date",
    ),
    FileOfFormat(
        "levels.grib2",
        write_grib,
        "eccodes",
        "t",
        unchecked=GRIB_HEADERS,
    ),
    FileOfFormat("two.zarr", _zarr(2), "zarr", "t"),
    FileOfFormat("three.zarr", _zarr(3), "zarr", "t"),
    FileOfFormat("references.json", write_kerchunk, "h5py", "t"),
)
