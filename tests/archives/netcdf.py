"""Archives of netCDF files, classic and 4, written and read by the library of their authors."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import xarray
from numpy.typing import NDArray

from tests.archives.cases import (
    COPIED,
    DECODED,
    UNEVEN,
    Case,
    Expected,
    Options,
    Refused,
    Write,
    variables_of,
    with_decoding,
)
from tests.archives.cases import without as leaving_out

LATITUDES = np.array([-30.0, 0.0, 30.0])
LONGITUDES = np.array([0.0, 90.0, 180.0, 270.0])
type Extra = Callable[[netCDF4.Dataset], object]


def numbers(*shape: int, seed: int = 0) -> NDArray[np.float64]:
    """Return numbers with many different bytes."""
    return np.random.default_rng(seed).uniform(-50, 50, shape)


def write_grid(
    path: Path,
    start: int = 0,
    steps: int = 2,
    *,
    form: Any = "NETCDF4",
    kind: Any = "f4",
    units: str = "hours since 2000-01-01",
    calendar: str = "standard",
    latitudes: NDArray[np.float64] = LATITUDES,
    is_record: bool = True,
    time_kind: str = "f8",
    packed: dict[str, Any] | None = None,
    extra: Extra | None = None,
    name: str = "t",
    **how: Any,
) -> None:
    """Write times, latitudes, longitudes and a field."""
    with netCDF4.Dataset(path, "w", format=form) as file:
        file.title = "made for a test"
        file.createDimension("time", None if is_record else steps)
        file.createDimension("lat", len(latitudes))
        file.createDimension("lon", len(LONGITUDES))
        times = file.createVariable("time", time_kind, ("time",))
        times.units, times.calendar, times.standard_name = units, calendar, "time"
        times[:] = np.arange(start, start + steps)
        file.createVariable("lat", "f8", ("lat",))[:] = latitudes
        file.createVariable("lon", "f4", ("lon",))[:] = LONGITUDES
        field = file.createVariable(name, kind, ("time", "lat", "lon"), **how)
        field.units, field.long_name = "K", "temperature"
        values = numbers(steps, len(latitudes), len(LONGITUDES), seed=start).round(1)
        if packed:
            field.setncatts(packed)
        field[:] = values if packed or np.dtype(kind).kind == "f" else values.astype(kind)
        if extra is not None:
            extra(file)


def two_files(**how: Any) -> Write:
    """Write two files of two times each."""

    def write(folder: Path) -> None:
        for number in range(2):
            write_grid(folder / f"part{number}.nc", 2 * number, **how)

    return write


def joined(
    paths: Sequence[Path], *, along: Sequence[str] = ("time",), **how: Any
) -> xarray.Dataset:
    """Read files with netCDF-C and join them as `open_mfdataset` does."""
    return xarray.open_mfdataset(
        paths,
        engine="netcdf4",
        combine="by_coords",
        data_vars="minimal",
        coords="minimal",
        compat="override",
        join="outer",
        combine_attrs="drop_conflicts",
        **how,
    ).load()


def read(paths: Sequence[Path]) -> Expected:
    return variables_of(joined(paths))


def read_groups(paths: Sequence[Path]) -> Expected:
    """Read all groups of one file."""
    groups = xarray.open_groups(paths[0], engine="netcdf4")
    return {
        f"{group}/{name}".strip("/"): variable.load()
        for group, dataset in groups.items()
        for name, variable in dataset.variables.items()
    }


def read_in_order(paths: Sequence[Path], **how: Any) -> Expected:
    """Join files in the order of their names, with the coordinates of the first."""
    datasets = [xarray.open_dataset(path, engine="netcdf4", **how) for path in paths]
    minimal: Any = {"data_vars": "minimal", "coords": "minimal", "compat": "override"}
    along = xarray.concat(datasets, "time", join="override", **minimal)
    return variables_of(along)


def without(*names: str) -> Callable[[Sequence[Path]], Expected]:
    """Read files without some variables."""

    def reader(paths: Sequence[Path]) -> Expected:
        return {name: values for name, values in read(paths).items() if name not in names}

    return reader


def alone_without(*names: str) -> Callable[[Sequence[Path]], Expected]:
    """Read one file without some variables."""

    def reader(paths: Sequence[Path]) -> Expected:
        with xarray.open_dataset(paths[0], engine="netcdf4", drop_variables=names) as dataset:
            return variables_of(dataset)

    return reader


def case(
    title: str, write: Write, reader: Any = read, *, family: str = "netCDF-4", **how: Any
) -> Case:
    return Case(family, title, how.pop("made_with", "netCDF4"), write, reader, **how)


# -- contents --------------------------------------------------------------------------------


def scalars(file: netCDF4.Dataset) -> None:
    file.createVariable("level", "i4", ())[...] = 850
    file.createVariable("crs", "S1", ())[...] = b"x"


def texts(file: netCDF4.Dataset) -> None:
    names = file.createVariable("names", str, ("lat",))
    names[:] = np.array(["south", "", "nördlich"], object)


def characters(file: netCDF4.Dataset) -> None:
    file.createDimension("letters", 5)
    names = file.createVariable("station", "S1", ("lat", "letters"))
    names[:] = netCDF4.stringtochar(np.array(["a", "bcdef", ""], "S5"))


def encoded_characters(file: netCDF4.Dataset) -> None:
    file.createDimension("letters", 8)
    names = file.createVariable("station", "S1", ("lat", "letters"))
    names._Encoding = "utf-8"
    names[:] = np.array(["Zürich", "Åre", ""])


def enumeration(file: netCDF4.Dataset) -> None:
    kinds = file.createEnumType(np.uint8, "cloud", {"clear": 0, "rain": 1, "missing": 255})
    clouds = file.createVariable("clouds", kinds, ("time", "lat"), fill_value=255)
    clouds[:] = np.array([[0, 1, 0], [1, 1, 255]], np.uint8)


def compound(file: netCDF4.Dataset) -> None:
    wind = np.dtype([("speed", "f4"), ("direction", "i2")])
    made = file.createCompoundType(wind, "wind_t")
    values = np.zeros(3, wind)
    values["speed"] = [1.5, 2.5, 3.5]
    file.createVariable("wind", made, ("lat",))[:] = values


def ragged(file: netCDF4.Dataset) -> None:
    made = file.createVLType(np.int32, "profile_t")
    values = np.empty(3, object)
    for row in range(3):
        values[row] = np.arange(row + 1, dtype=np.int32)
    file.createVariable("profile", made, ("lat",))[:] = values


def bounds(file: netCDF4.Dataset) -> None:
    file.createDimension("nv", 2)
    file["time"].bounds = "time_bnds"
    starts = np.asarray(file["time"][:])
    file.createVariable("time_bnds", "f8", ("time", "nv"))[:] = np.stack([starts, starts + 1], 1)


def inner_groups(file: netCDF4.Dataset) -> None:
    for path in ("model", "model/surface"):
        group = file.createGroup(path)
        group.createVariable("p", "f4", ("time", "lat", "lon"), chunksizes=(1, 3, 4))[:] = numbers(
            len(file.dimensions["time"]), 3, 4, seed=len(path)
        )


def curvilinear(file: netCDF4.Dataset) -> None:
    file.createDimension("y", 3)
    file.createDimension("x", 2)
    for name in ("latitude", "longitude"):
        file.createVariable(name, "f8", ("y", "x"))[:] = numbers(3, 2, seed=len(name))
    field = file.createVariable("sst", "f4", ("time", "y", "x"), chunksizes=(1, 3, 2))
    field.coordinates = "latitude longitude"
    field[:] = numbers(len(file.dimensions["time"]), 3, 2)


def many_records(file: netCDF4.Dataset) -> None:
    steps = len(file.dimensions["time"])
    file.createVariable("odd", "i2", ("time", "lat"))[:] = numbers(steps, 3, seed=4)
    file.createVariable("single", "i1", ("time",))[:] = np.arange(steps)
    file.createVariable("fixed", "f8", ("lat", "lon"))[:] = numbers(3, 4, seed=5)


def wide_integers(file: netCDF4.Dataset) -> None:
    for name, kind in (("u1", "u1"), ("u2", "u2"), ("u4", "u4"), ("i8", "i8"), ("u8", "u8")):
        file.createVariable(name, kind, ("time", "lat"), fill_value=False)[:] = np.array(
            [[0, 1, np.iinfo(kind).max], [2, 3, 4]], kind
        )


def unsigned_bytes(file: netCDF4.Dataset) -> None:
    field = file.createVariable("mask", "i1", ("time", "lat"))
    field.set_auto_maskandscale(False)
    field._Unsigned = "true"
    field[:] = np.array([[-1, 0, 1], [-128, 127, 2]], np.int8)


def names_of_all_kinds(file: netCDF4.Dataset) -> None:
    steps = len(file.dimensions["time"])
    for name in ("température", "2m air+temp", "a.b", "日射"):
        file.createVariable(name, "f4", ("time", "lat"))[:] = numbers(steps, 3, seed=len(name))


def marked_missing(file: netCDF4.Dataset) -> None:
    steps = len(file.dimensions["time"])
    field = file.createVariable("holes", "f4", ("time", "lat"), fill_value=-999.0)
    field.missing_value = np.float32(-999.0)
    field[:] = np.ma.masked_greater(numbers(steps, 3), 0)
    whole = file.createVariable("counts", "i2", ("time", "lat"), fill_value=-1)
    whole[:] = np.ma.masked_greater(np.arange(steps * 3).reshape(steps, 3), 3)


def boolean(folder: Path) -> None:
    for number in range(2):
        flags = numbers(2, 3, seed=number) > 0
        xarray.Dataset(
            {"dry": (("time", "x"), flags)}, {"time": [2 * number, 2 * number + 1]}
        ).to_netcdf(folder / f"{number}.nc", engine="netcdf4")


# -- several files ---------------------------------------------------------------------------


def months(chunk: int | None, lengths: Sequence[int] = (31, 29, 31), **how: Any) -> Write:
    """Write months in chunks of some days, or with one chunk for all days of a month."""

    def write(folder: Path) -> None:
        start = 0
        for number, steps in enumerate(lengths):
            write_grid(
                folder / f"{number}.nc",
                start,
                steps,
                units="days since 2000-01-01",
                chunksizes=(chunk or steps, 3, 4),
                **how,
            )
            start += steps

    return write


def other_units(folder: Path) -> None:
    write_grid(folder / "0.nc", 0, units="hours since 2000-01-01")
    write_grid(folder / "1.nc", 0, units="hours since 2000-01-02", kind="f4")


def finer_units(folder: Path) -> None:
    write_grid(folder / "0.nc", 0, units="hours since 2000-01-01")
    write_grid(folder / "1.nc", 120, units="minutes since 2000-01-01")


def packed_differently(folder: Path) -> None:
    for number, scale in enumerate((0.01, 0.02)):
        packed = {"scale_factor": scale, "add_offset": 10.0 * number}
        write_grid(folder / f"{number}.nc", 2 * number, kind="i2", packed=packed)


def rounded(folder: Path) -> None:
    write_grid(folder / "0.nc", 0)
    write_grid(folder / "1.nc", 2, latitudes=LATITUDES + 1e-9)


def something_missing(folder: Path) -> None:
    write_grid(folder / "0.nc", 0, extra=many_records)
    write_grid(folder / "1.nc", 2)


def variables_apart(folder: Path) -> None:
    for number in range(2):
        for name in ("t", "q"):
            write_grid(folder / f"{name}{number}.nc", 2 * number, name=name)


def tiles(folder: Path) -> None:
    for column, latitudes in enumerate((LATITUDES - 90, LATITUDES)):
        for row in range(2):
            write_grid(
                folder / f"{row}{column}.nc", 2 * row, latitudes=latitudes, fill_value=np.nan
            )


def hole_among_tiles(folder: Path) -> None:
    tiles(folder)
    (folder / "11.nc").unlink()


def without_times(folder: Path) -> None:
    for number in range(3):
        with netCDF4.Dataset(folder / f"{number}.nc", "w") as file:
            file.createDimension("time", 1)
            file.createDimension("x", 4)
            file.createVariable("t", "f4", ("time", "x"))[:] = numbers(1, 4, seed=number)


def scalar_times(folder: Path) -> None:
    for number in range(3):
        with netCDF4.Dataset(folder / f"{number}.nc", "w") as file:
            file.createDimension("x", 4)
            time = file.createVariable("time", "i4", ())
            time.units = "days since 2001-01-01"
            time[...] = number
            field = file.createVariable("t", "f4", ("x",))
            field.coordinates = "time"
            field[:] = numbers(4, seed=number)


def read_scalar_times(paths: Sequence[Path]) -> Expected:
    datasets = [xarray.open_dataset(path, engine="netcdf4") for path in paths]
    return variables_of(xarray.concat(datasets, "time"))


def other_kinds(folder: Path) -> None:
    write_grid(folder / "0.nc", 0, kind="f4")
    write_grid(folder / "1.nc", 2, kind="f8")


def other_codecs(folder: Path) -> None:
    write_grid(folder / "0.nc", 0, zlib=True)
    write_grid(folder / "1.nc", 2, zlib=True, shuffle=False, complevel=9)


def other_chunks(folder: Path) -> None:
    write_grid(folder / "0.nc", 0, chunksizes=(1, 3, 4))
    write_grid(folder / "1.nc", 2, chunksizes=(2, 3, 2))


def other_attributes(folder: Path) -> None:
    for number in range(2):
        path = folder / f"{number}.nc"
        write_grid(path, 2 * number)
        with netCDF4.Dataset(path, "a") as file:
            file.history = f"run {number}"
            file["t"].source = f"run {number}"


def variables_at_other_times(folder: Path) -> None:
    for name, starts in {"t": (0, 2), "u": (2, 4)}.items():
        for start in starts:
            write_grid(folder / f"{name}{start}.nc", start, name=name, fill_value=np.float32(-999))


def twice(folder: Path) -> None:
    for number in range(2):
        write_grid(folder / f"{number}.nc", number)


def empty_among_others(folder: Path) -> None:
    write_grid(folder / "0.nc", 0)
    write_grid(folder / "1.nc", 2, steps=0)
    write_grid(folder / "2.nc", 2)


def packed_with_holes(folder: Path) -> None:
    for number, scale in enumerate((0.01, 0.02)):
        packed = {"scale_factor": np.float32(scale), "add_offset": np.float32(number)}
        write_grid(folder / f"{number}.nc", 2 * number, kind="i2", fill_value=-32767, packed=packed)
        with netCDF4.Dataset(folder / f"{number}.nc", "a") as file:
            file["t"][1, 1] = np.ma.masked


def marked_differently(folder: Path) -> None:
    for number in range(2):
        write_grid(folder / f"{number}.nc", 2 * number, kind="i4", fill_value=-number - 1)
        with netCDF4.Dataset(folder / f"{number}.nc", "a") as file:
            file["t"][0, 1] = np.ma.masked
            file["t"].missing_value = np.int32(7)
            file["t"][0, 2] = 7


def signed_differently(folder: Path) -> None:
    for number, kind in enumerate(("i1", "u1")):
        write_grid(folder / f"{number}.nc", 2 * number, kind=kind, fill_value=False)
        with netCDF4.Dataset(folder / f"{number}.nc", "a") as file:
            file.set_auto_maskandscale(False)
            file["t"][:] = np.arange(24).reshape(2, 3, 4).astype(kind) * np.array(11, kind)
            if number == 0:
                file["t"].setncattr("_Unsigned", "true")


def marked_missing_somewhere(folder: Path) -> None:
    write_grid(folder / "0.nc", 0, extra=marked_missing)
    write_grid(folder / "1.nc", 2)


def read_with_gaps(paths: Sequence[Path]) -> Expected:
    """Join files along time; what some of them lack is missing there."""
    datasets = [xarray.open_dataset(path, engine="netcdf4") for path in paths]
    minimal: Any = {"coords": "minimal", "compat": "override", "join": "override"}
    fixed = [name for name in datasets[0].data_vars if "time" not in datasets[0][name].dims]
    along = xarray.concat(
        [dataset.drop_vars(fixed, errors="ignore") for dataset in datasets], "time", **minimal
    )
    return {**variables_of(along), **variables_of(datasets[0][fixed])}


def other_order(folder: Path) -> None:
    for number, order in enumerate(("big", "little")):
        write_grid(folder / f"{number}.nc", 2 * number, endian=order, chunksizes=(1, 3, 4))


def some_chunks(folder: Path) -> None:
    write_grid(folder / "0.nc", 0, is_record=False, contiguous=True)
    write_grid(folder / "1.nc", 2, chunksizes=(2, 2, 3), zlib=True)


def other_months(folder: Path) -> None:
    """Write months that agree in hardly anything."""
    kinds: tuple[tuple[int, dict[str, Any]], ...] = (
        (31, {"chunksizes": (7, 3, 4), "zlib": True}),
        (29, {"chunksizes": (10, 2, 4), "zlib": True, "complevel": 9}),
        (31, {"chunksizes": (7, 3, 4), "zlib": True}),
        (30, {"fletcher32": True, "chunksizes": (30, 1, 3)}),
    )
    start = 0
    for number, (steps, how) in enumerate(kinds):
        write_grid(folder / f"{number}.nc", start, steps, units="days since 2000-01-01", **how)
        start += steps


def other_tiles(folder: Path) -> None:
    for column, latitudes in enumerate((LATITUDES - 90, LATITUDES)):
        for row in range(2):
            write_grid(
                folder / f"{row}{column}.nc",
                3 * row,
                3,
                latitudes=latitudes,
                fill_value=np.nan,
                chunksizes=(2, 2, 1 + column),
                zlib=bool(row),
            )


def never_written(file: netCDF4.Dataset) -> None:
    field = file.createVariable("sparse", "f4", ("time", "lat", "lon"), chunksizes=(1, 3, 4))
    field[1] = numbers(3, 4)


def big(**how: Any) -> Write:
    return two_files(endian="big", chunksizes=(1, 3, 4), **how)


TOLERANT = Refused(
    "tolerance=", Options(combine={"tolerance": {"lat": 2e-9}}), word="`--tolerance`"
)
GAPS = Refused(
    "fill_missing=True", Options(combine={"fill_missing": True}), word="`--fill-missing`"
)
IN_ORDER = Refused("by='order'", Options(combine={"by": "order"}), word="`--in-order`")

CASES = (
    case("classic (CDF-1)", two_files(form="NETCDF3_CLASSIC"), family="netCDF-3"),
    case("64-bit offsets (CDF-2)", two_files(form="NETCDF3_64BIT_OFFSET"), family="netCDF-3"),
    case(
        "64-bit data (CDF-5), unsigned and 8-byte integers",
        two_files(form="NETCDF3_64BIT_DATA", extra=wide_integers),
        family="netCDF-3",
    ),
    case(
        "no record dimension",
        two_files(form="NETCDF3_CLASSIC", is_record=False),
        family="netCDF-3",
    ),
    case(
        "several record variables, some padded",
        two_files(form="NETCDF3_CLASSIC", extra=many_records),
        family="netCDF-3",
    ),
    case("characters", two_files(form="NETCDF3_CLASSIC", extra=characters), family="netCDF-3"),
    case(
        "packed to 2 bytes",
        two_files(
            form="NETCDF3_CLASSIC", kind="i2", packed={"scale_factor": 0.01, "add_offset": 3.0}
        ),
        family="netCDF-3",
    ),
    case(
        "bytes marked as unsigned",
        two_files(form="NETCDF3_CLASSIC", extra=unsigned_bytes),
        family="netCDF-3",
    ),
    case("classic model", two_files(form="NETCDF4_CLASSIC")),
    case("chunks", two_files(chunksizes=(1, 3, 2))),
    case("contiguous", two_files(is_record=False, contiguous=True)),
    case("zlib", two_files(chunksizes=(1, 3, 4), compression="zlib", shuffle=False)),
    case("zlib and shuffle", two_files(chunksizes=(1, 3, 4), compression="zlib")),
    case("checksums (Fletcher-32)", two_files(chunksizes=(1, 3, 4), fletcher32=True)),
    case("szip", two_files(chunksizes=(1, 3, 4), compression="szip"), virtual=COPIED),
    case("Zstandard", two_files(chunksizes=(1, 3, 4), compression="zstd")),
    case("bzip2", two_files(chunksizes=(1, 3, 4), compression="bzip2")),
    case(
        "Blosc",
        two_files(
            kind="i4",
            latitudes=np.linspace(-90, 90, 61),
            chunksizes=(1, 61, 4),
            compression="blosc_lz4",
        ),
    ),
    case(
        "quantised",
        two_files(chunksizes=(1, 3, 4), compression="zlib", significant_digits=3),
    ),
    case(
        "packed with scale and offset",
        two_files(kind="i2", packed={"scale_factor": 0.01, "add_offset": 3.0}),
    ),
    case("missing values", two_files(extra=marked_missing)),
    case("chunks never written", two_files(extra=never_written)),
    case("big-endian", big()),
    case("big-endian integers", big(kind="i4")),
    case("integers of all sizes", two_files(extra=wide_integers)),
    case("boolean, as xarray writes it", boolean, made_with="xarray, netCDF4"),
    case("scalar variables", two_files(extra=scalars)),
    case("text of any length", two_files(extra=texts)),
    case("characters", two_files(extra=characters)),
    case("characters with an encoding", two_files(extra=encoded_characters)),
    case("enumeration", two_files(extra=enumeration)),
    case(
        "compound type",
        two_files(extra=compound),
        without("wind"),
        virtual=leaving_out("wind"),
        native=leaving_out("wind"),
    ),
    case(
        "variable-length type",
        two_files(extra=ragged),
        without("profile"),
        virtual=leaving_out("profile"),
        native=leaving_out("profile"),
    ),
    case("groups", lambda folder: write_grid(folder / "0.nc", extra=inner_groups), read_groups),
    case("names with accents, spaces and signs", two_files(extra=names_of_all_kinds)),
    case("bounds of times", two_files(extra=bounds)),
    case("latitudes and longitudes of two dimensions", two_files(extra=curvilinear)),
    case("descending latitudes", two_files(latitudes=LATITUDES[::-1].copy())),
    case("times as integers", two_files(time_kind="i4")),
    case(
        "calendar without leap days",
        two_files(calendar="noleap", units="days since 2000-02-28"),
    ),
    case("calendar of 360 days", two_files(calendar="360_day", units="days since 2000-02-29")),
    case("times with another origin in each file", other_units),
    case("times in other units in each file", finer_units),
    case("days by month, not compressed", months(10)),
    case("days by month, chunks of a day", months(1, zlib=True)),
    case("days by month, chunks of a month", months(31, zlib=True), virtual=COPIED),
    case("days by month, chunks of 10 days", months(10, zlib=True), virtual=COPIED),
    case("days by month, a chunk for each month", months(None, zlib=True), virtual=UNEVEN),
    case("days by year, a chunk for 366 and for 365", months(366, (366, 365), zlib=True)),
    case("days by year, chunks of 73", months(73, (365, 365), zlib=True)),
    case(
        "packed differently in each file",
        packed_differently,
        virtual=DECODED,
        native=with_decoding(),
    ),
    case(
        "packed as numbers of 4 bytes, with missing values",
        packed_with_holes,
        virtual=DECODED,
        native=with_decoding(),
    ),
    case(
        "missing values marked differently",
        marked_differently,
        virtual=DECODED,
        native=with_decoding(),
    ),
    case(
        "bytes with and without a sign",
        signed_differently,
        virtual=DECODED,
        native=with_decoding(),
    ),
    case(
        "coordinates that differ by rounding",
        rounded,
        read_in_order,
        virtual=TOLERANT,
        native=TOLERANT,
    ),
    case(
        "variables missing in some files",
        something_missing,
        read_with_gaps,
        virtual=Refused(
            r"unpacked \(copy=CopyOptions.of\(decode=True\)\), .*\(fill_missing=True\)",
            word="copy, with `--decode` `--fill-missing`",
        ),
        native=with_decoding(fill_missing=True),
    ),
    case(
        "variables missing in some files, which know missing values",
        marked_missing_somewhere,
        read_with_gaps,
        virtual=GAPS,
        native=GAPS,
    ),
    case("each variable in files of its own", variables_apart),
    case("tiles of time and latitude", tiles, options=Options(("time", "lat"))),
    case("tiles, of which one is missing", hole_among_tiles, options=Options(("time", "lat"))),
    case(
        "no times, in the order of names",
        without_times,
        read_in_order,
        options=Options(combine={"by": "order"}),
    ),
    case("one time in each file, without a dimension", scalar_times, read_scalar_times),
    case("types that differ", other_kinds, virtual=DECODED, native=with_decoding()),
    case("compression that differs", other_codecs, virtual=COPIED),
    case("chunks that differ", other_chunks, virtual=COPIED),
    case("order of bytes that differs", other_order, virtual=COPIED),
    case("chunks in some files, none in others", some_chunks, virtual=COPIED),
    case("chunks and compression that differ in months", other_months, virtual=COPIED),
    case(
        "tiles of other chunks",
        other_tiles,
        options=Options(("time", "lat")),
        virtual=COPIED,
    ),
    case("attributes that differ", other_attributes),
    case("variables in files of their own, with other times", variables_at_other_times),
    case("times that overlap", twice, read_in_order, virtual=IN_ORDER, native=IN_ORDER),
    case("a file without any time", empty_among_others, read_in_order),
    case(
        "one variable left out",
        two_files(extra=many_records),
        without("odd"),
        options=Options(parse={"drop": ("odd",)}),
    ),
    case(
        "one group",
        two_files(extra=inner_groups),
        lambda paths: {
            **read_in_order(paths, group="model"),
            "surface/p": read_in_order(paths, group="model/surface")["p"],
        },
        options=Options(parse={"group": "model"}, combine={"by": "order"}),
    ),
)
