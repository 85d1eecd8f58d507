"""Archives of Zarr hierarchies, and of references in files: Kerchunk and DMR++."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import kerchunk.combine
import kerchunk.df
import kerchunk.hdf
import numcodecs
import numpy as np
import xarray
import zarr
from zarr.codecs import BloscCodec, GzipCodec, TransposeCodec, ZstdCodec

from tests.archives.cases import Case, Expected, Write, variables_of
from tests.archives.netcdf import marked_missing, numbers, read, two_files


def hierarchies(
    zarr_format: Any = 3, count: int = 2, kind: Any = "f4", nested: str = "", **how: Any
) -> Write:
    """Write hierarchies of two times each."""

    def write(folder: Path) -> None:
        for number in range(count):
            root = zarr.open_group(folder / f"{number}.zarr", mode="w", zarr_format=zarr_format)
            group = root.create_group(nested) if nested else root
            arrays = {
                "time": (np.arange(2 * number, 2 * number + 2), ("time",), {"chunks": (2,)}),
                "x": (np.arange(6.0), ("x",), {"chunks": (6,)}),
                "t": (
                    numbers(2, 6, seed=number).astype(kind),
                    ("time", "x"),
                    {"chunks": (1, 3), **how},
                ),
            }
            for name, (values, dims, given) in arrays.items():
                # xarray masks the fill value in format 2.
                names: dict[str, Any] = (
                    {"dimension_names": dims} if zarr_format == 3 else {"fill_value": None}
                )
                array = group.create_array(name, data=values, **{**names, **given})
                if zarr_format == 2:
                    array.attrs["_ARRAY_DIMENSIONS"] = list(dims)

    return write


def from_xarray(zarr_format: Any) -> Write:
    def write(folder: Path) -> None:
        for number in range(2):
            times = np.datetime64("2024-01-01", "ns") + np.arange(
                2 * number, 2 * number + 2
            ) * np.timedelta64(1, "D")
            values = numbers(2, 6, seed=number)
            values[0, 0] = np.nan
            xarray.Dataset(
                {"t": (("time", "x"), values)}, {"time": times, "name": ("x", list("abcdef"))}
            ).to_zarr(
                folder / f"{number}.zarr",
                zarr_format=zarr_format,
                encoding={
                    "t": {
                        "dtype": "i2",
                        "scale_factor": 0.01,
                        "_FillValue": -9999,
                        "chunks": (1, 6),
                    },
                    "time": {"units": "days since 2024-01-01"},
                },
            )

    return write


def read_zarr(paths: Sequence[Path]) -> Expected:
    """Read hierarchies with zarr-python, through xarray."""
    datasets = [xarray.open_zarr(path, chunks=None) for path in paths]
    along = xarray.concat(
        datasets, "time", data_vars="minimal", coords="minimal", compat="override"
    )
    return variables_of(along)


def read_nested(paths: Sequence[Path]) -> Expected:
    datasets = [xarray.open_zarr(path, group="model", chunks=None) for path in paths]
    along = xarray.concat(
        datasets, "time", data_vars="minimal", coords="minimal", compat="override"
    )
    return {f"model/{name}": variable for name, variable in along.load().variables.items()}


def unconsolidated(folder: Path) -> None:
    hierarchies(2)(folder)
    assert not list(folder.rglob(".zmetadata"))


def consolidated(zarr_format: Any) -> Write:
    def write(folder: Path) -> None:
        hierarchies(zarr_format)(folder)
        for path in folder.glob("*.zarr"):
            zarr.consolidate_metadata(path)

    return write


def kerchunk_json(folder: Path, **how: Any) -> None:
    two_files(chunksizes=(1, 3, 2), zlib=True, **how)(folder)
    for path in sorted(folder.glob("*.nc")):
        with path.open("rb") as file:
            made = kerchunk.hdf.SingleHdf5ToZarr(
                file, path.as_uri(), inline_threshold=100
            ).translate()
        path.with_suffix(".json").write_text(json.dumps(made))


def kerchunk_of_all(folder: Path) -> None:
    kerchunk_json(folder)
    singles = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    made = kerchunk.combine.MultiZarrToZarr(
        singles, concat_dims=["time"], identical_dims=["lat", "lon"]
    ).translate()
    for path in folder.glob("*.json"):
        path.unlink()
    (folder / "all.json").write_text(json.dumps(made))


def kerchunk_parquet(folder: Path) -> None:
    kerchunk_json(folder)
    for path in sorted(folder.glob("*.json")):
        kerchunk.df.refs_to_dataframe(json.loads(path.read_text()), str(path.with_suffix(".parq")))
        path.unlink()


def read_beside(paths: Sequence[Path]) -> Expected:
    """Read the netCDF files that references are of."""
    return read(sorted(paths[0].parent.glob("*.nc")))


DMRPP = """<?xml version="1.0" encoding="ISO-8859-1"?>
<Dataset xmlns="http://xml.opendap.org/ns/DAP/4.0#"
    xmlns:dmrpp="http://xml.opendap.org/dap/dmrpp/1.0.0#" dapVersion="4.0" dmrVersion="1.0"
    name="{name}" dmrpp:href="{href}" dmrpp:version="3.21">
    <Dimension name="time" size="2"/>
    <Dimension name="x" size="6"/>
    <Int64 name="time"><Dim name="/time"/>
        <dmrpp:chunks fillValue="0" byteOrder="LE">
            <dmrpp:chunk offset="{time}" nBytes="16"/>
        </dmrpp:chunks>
    </Int64>
    <Float32 name="t"><Dim name="/time"/><Dim name="/x"/>
        <dmrpp:chunks fillValue="0" byteOrder="LE">
            <dmrpp:chunkDimensionSizes>1 6</dmrpp:chunkDimensionSizes>
            <dmrpp:chunk offset="{first}" nBytes="24" chunkPositionInArray="[0,0]"/>
            <dmrpp:chunk offset="{second}" nBytes="24" chunkPositionInArray="[1,0]"/>
        </dmrpp:chunks>
    </Float32>
</Dataset>
"""


def dmrpp(folder: Path) -> None:
    for number in range(2):
        path = folder / f"{number}.h5"
        with h5py.File(path, "w") as file:
            file.create_dataset("time", data=np.arange(2 * number, 2 * number + 2)).make_scale(
                "time"
            )
            file.create_dataset("x", data=np.arange(6.0)).make_scale("x")
            field = file.create_dataset(
                "t", data=numbers(2, 6, seed=number).astype("f4"), chunks=(1, 6)
            )
            field.dims[0].attach_scale(file["time"])
            field.dims[1].attach_scale(file["x"])
            chunks = [field.id.get_chunk_info(row).byte_offset for row in range(2)]
            text = DMRPP.format(
                name=path.name,
                href=path.as_uri(),
                time=file["time"].id.get_offset(),
                first=chunks[0],
                second=chunks[1],
            )
        (folder / f"{path.name}.dmrpp").write_text(text)


def read_described(paths: Sequence[Path]) -> Expected:
    found: dict[str, list[Any]] = {"time": [], "t": []}
    for path in paths:
        with h5py.File(path.with_suffix("")) as file:
            for name, parts in found.items():
                parts.append(file[name][...])
    dims = {"time": ("time",), "t": ("time", "x")}
    return {
        name: xarray.Variable(dims[name], np.concatenate(parts)) for name, parts in found.items()
    }


def case(
    title: str, write: Write, reader: Any = read_zarr, *, family: str = "Zarr", **how: Any
) -> Case:
    given: dict[str, Any] = {"files": "*.zarr", **how}
    return Case(family, title, given.pop("made_with", "zarr"), write, reader, **given)


Filter = Callable[..., Any]
CASES = (
    case("format 2", hierarchies(2)),
    case("format 2, consolidated", consolidated(2)),
    case("format 2, Blosc", hierarchies(2, compressors=numcodecs.Blosc())),
    case(
        "format 2, zlib and shuffle",
        hierarchies(2, filters=[numcodecs.Shuffle(4)], compressors=numcodecs.Zlib()),
    ),
    case(
        "format 2, delta filter",
        hierarchies(2, kind="i4", filters=[numcodecs.Delta("i4")], compressors=numcodecs.Zstd()),
    ),
    case("format 2, columns first", hierarchies(2, order="F")),
    case(
        "format 2, chunks in folders",
        hierarchies(2, chunk_key_encoding={"name": "v2", "separator": "/"}),
    ),
    case("format 2, big-endian", hierarchies(2, kind=">i4")),
    case(
        "format 2, chunks never written",
        hierarchies(2, fill_value=0, config={"write_empty_chunks": False}),
    ),
    case("format 2, packed, as xarray writes it", from_xarray(2), made_with="xarray"),
    case("format 3", hierarchies(3)),
    case("format 3, consolidated", consolidated(3)),
    case("format 3, not compressed", hierarchies(3, compressors=None)),
    case("format 3, Zstandard", hierarchies(3, compressors=ZstdCodec())),
    case("format 3, gzip", hierarchies(3, compressors=GzipCodec())),
    case("format 3, Blosc", hierarchies(3, compressors=BloscCodec())),
    case("format 3, transposed", hierarchies(3, filters=[TransposeCodec(order=(1, 0))])),
    case("format 3, shards", hierarchies(3, shards=(2, 6))),
    case(
        "format 3, keys of format 2",
        hierarchies(3, chunk_key_encoding={"name": "v2", "separator": "."}),
    ),
    case(
        "format 3, keys of format 2 in folders",
        hierarchies(3, chunk_key_encoding={"name": "v2", "separator": "/"}),
    ),
    case("format 3, packed, as xarray writes it", from_xarray(3), made_with="xarray"),
    case("format 3, arrays in a group", hierarchies(3, nested="model"), read_nested),
    case("format 3, one hierarchy", hierarchies(3, count=1)),
    case(
        "JSON for each file",
        kerchunk_json,
        read_beside,
        family="Kerchunk",
        files="*.json",
        made_with="kerchunk",
    ),
    case(
        "JSON, packed and missing values",
        lambda folder: kerchunk_json(
            folder,
            kind="i2",
            packed={"scale_factor": 0.01, "add_offset": 3.0},
            fill_value=-999,
            extra=marked_missing,
        ),
        read_beside,
        family="Kerchunk",
        files="*.json",
        made_with="kerchunk",
    ),
    case(
        "JSON for an archive",
        kerchunk_of_all,
        read_beside,
        family="Kerchunk",
        files="all.json",
        made_with="kerchunk",
    ),
    case(
        "parquet",
        kerchunk_parquet,
        read_beside,
        family="Kerchunk",
        files="*.parq",
        made_with="kerchunk",
    ),
    case(
        "a file for each HDF5 file",
        dmrpp,
        read_described,
        family="DMR++",
        files="*.dmrpp",
        made_with="by hand",
    ),
)
