"""Archives of GRIB messages, made and read by ecCodes."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cfgrib
import eccodes
import numpy as np
import xarray

from tests.archives.cases import Case, Expected, Options, Read, Refused, Write

SMALL: dict[str, Any] = {"Ni": 16, "Nj": 31, "bitsPerValue": 16, "shortName": "t", "level": 500}


def message(
    sample: str = "regular_ll_pl_grib2",
    *,
    seed: int = 0,
    missing: bool = False,
    flat: bool = False,
    **keys: Any,
) -> bytes:
    """Make a message from a sample of ecCodes."""
    handle = eccodes.codes_grib_new_from_samples(sample)
    for key, value in {"dataDate": 20240101, "dataTime": 0, **keys}.items():
        eccodes.codes_set(handle, key, value)
    if missing:
        eccodes.codes_set(handle, "bitmapPresent", 1)
        eccodes.codes_set(handle, "missingValue", 9999.0)
    size = eccodes.codes_get_long(handle, "numberOfDataPoints")
    values = 250 + 20 * np.random.default_rng(seed).random(size) * (not flat)
    if missing:
        values[::7] = 9999.0
    eccodes.codes_set_values(handle, values)
    made: bytes = eccodes.codes_get_message(handle)
    eccodes.codes_release(handle)
    return made


def small(seed: int, **keys: Any) -> bytes:
    """Make a message of 31 by 16 values."""
    return message(seed=seed, **{**SMALL, **keys})


def in_a_file(*messages: bytes) -> Write:
    return lambda folder: (folder / "a.grib").write_bytes(b"".join(messages))


def in_files(*files: Sequence[bytes]) -> Write:
    def write(folder: Path) -> None:
        for number, messages in enumerate(files):
            (folder / f"{number}.grib").write_bytes(b"".join(messages))

    return write


TIME = ("time",)


def read(concat: Sequence[str] = TIME, groups: Mapping[str, Any] | None = None, **how: Any) -> Read:
    """Read files with cfgrib: a dataset of each, or one by group for some filters of its keys."""

    def opened(path: Path, keys: Mapping[str, Any]) -> xarray.Dataset:
        given = {"indexpath": "", "errors": "raise", "squeeze": False, **how}
        dataset = cfgrib.open_dataset(
            path, filter_by_keys=dict(keys), values_dtype=np.dtype("f8"), **given
        )
        single = [
            name
            for name, length in dataset.sizes.items()
            if length == 1 and name not in {*concat, "latitude", "longitude", "y", "x"}
        ]
        squeezed: xarray.Dataset = dataset.squeeze(single).load()
        return squeezed

    def reader(paths: Sequence[Path]) -> Expected:
        found: dict[str, xarray.Variable] = {}
        for group, keys in (groups or {"": {}}).items():
            parts: Any = [opened(path, keys) for path in paths]
            whole = xarray.combine_by_coords(
                parts,
                data_vars="minimal",
                coords="minimal",
                compat="override",
                join="outer",
                combine_attrs="override",
            )
            below = f"{group}/" if group else ""
            found |= {f"{below}{name}": each for name, each in whole.variables.items()}
        return found

    return reader


def same(found: Expected, expected: Expected) -> dict[str, tuple[xarray.Variable, xarray.Variable]]:
    """Compare names, dimensions and attributes with those of cfgrib."""
    assert set(found) == set(expected)
    for path, variable in expected.items():
        ours = found[path]
        assert ours.dims == variable.dims, path
        given = {key: told for key, told in variable.attrs.items() if key != "GRIB_missingValue"}
        written = {key: told for key, told in ours.attrs.items() if key in given}
        assert json.dumps(written, sort_keys=True) == json.dumps(
            given, sort_keys=True, default=lambda told: told.tolist()
        ), path
        if "GRIB_paramId" in given:
            assert ours.dtype == np.float64
    return {path: (found[path], variable) for path, variable in expected.items()}


def case(title: str, write: Write, reader: Read | None = None, **how: Any) -> Case:
    how = {"made_with": "eccodes", "files": "*.grib", "pair": same, **how}
    return Case("GRIB", title, how.pop("made_with"), write, reader or read(), **how)


def product(
    *levels: int, hours: Sequence[int] = (6,), day: int = 20240101, **keys: Any
) -> list[bytes]:
    return [
        small(100 * hour + level + day, stepRange=str(hour), level=level, dataDate=day, **keys)
        for hour in hours
        for level in levels
    ]


LAMBERT: dict[str, Any] = {
    "gridType": "lambert",
    "Nx": 12,
    "Ny": 10,
    "numberOfDataPoints": 120,
    "DxInMetres": 10000,
    "DyInMetres": 10000,
    "latitudeOfFirstGridPointInDegrees": 40.0,
    "longitudeOfFirstGridPointInDegrees": 5.0,
    "LaDInDegrees": 45.0,
    "LoVInDegrees": 10.0,
    "Latin1InDegrees": 45.0,
    "Latin2InDegrees": 45.0,
    "shortName": "t",
    "bitsPerValue": 16,
}
GAUSSIAN: dict[str, Any] = {"shortName": "2t"}
SURFACE: dict[str, Any] = {key: SMALL[key] for key in ("Ni", "Nj", "bitsPerValue")}


def surface(seed: int, name: str, **keys: Any) -> bytes:
    """Make a message of the surface, or of a height above it."""
    return message("regular_ll_sfc_grib2", seed=seed, shortName=name, **{**SURFACE, **keys})


def member(number: int, **keys: Any) -> bytes:
    """Make a message of an ensemble."""
    return small(
        number,
        productDefinitionTemplateNumber=1,
        perturbationNumber=number,
        numberOfForecastsInEnsemble=3,
        **keys,
    )


def total(seed: int, start: int, end: int) -> bytes:
    """Make a message of rain that fell within some hours."""
    return surface(
        seed, "tp", productDefinitionTemplateNumber=8, stepType="accum", stepRange=f"{start}-{end}"
    )


def one_hour(hour: int) -> list[bytes]:
    return product(500, 850, hours=(hour,))


def together(*messages: bytes) -> bytes:
    """Put fields of edition 2 into one message; those behind the first share its identification."""
    parts = [messages[0][16:-4]]
    for other in messages[1:]:
        position = 16
        while other[position + 4] not in {3, 4}:
            position += int.from_bytes(other[position : position + 4])
        parts.append(other[position:-4])
    body = b"".join(parts) + b"7777"
    return messages[0][:8] + (16 + len(body)).to_bytes(8) + body


def with_headings(folder: Path) -> None:
    """Write bulletins, as they come over the network of weather services."""
    parts = [b"\x01\r\r\n123\r\r\nHHXA50 ECMF 010000\r\r\n" + each for each in product(500, 850)]
    (folder / "a.grib").write_bytes(b"".join(parts) + b"\r\r\n\x03")


def twice(folder: Path) -> None:
    messages = product(500, 850)
    (folder / "a.grib").write_bytes(b"".join([*messages, messages[0]]))


def percentile(number: int) -> bytes:
    return surface(number, "2t", productDefinitionTemplateNumber=6, percentileValue=number)


ROTATED: dict[str, Any] = {
    **SURFACE,
    "gridType": "rotated_ll",
    "latitudeOfSouthernPoleInDegrees": -39.0,
    "longitudeOfSouthernPoleInDegrees": 18.0,
}
POLAR: dict[str, Any] = {
    "gridType": "polar_stereographic",
    "Nx": 12,
    "Ny": 10,
    "numberOfDataPoints": 120,
    "DxInMetres": 60000,
    "DyInMetres": 60000,
    "latitudeOfFirstGridPointInDegrees": 32.0,
    "longitudeOfFirstGridPointInDegrees": 225.0,
    "LaDInDegrees": 60.0,
    "orientationOfTheGridInDegrees": 249.0,
    "shortName": "t",
    "bitsPerValue": 16,
}
STEPS = Options(("step",))
VALID = Options(("valid_time",))
SEVERAL = {
    "isobaricInhPa": {"typeOfLevel": "isobaricInhPa"},
    "heightAboveGround_2": {"typeOfLevel": "heightAboveGround", "level": 2},
    "heightAboveGround_10": {"typeOfLevel": "heightAboveGround", "level": 10},
}
CASES = (
    case("GRIB2, one message", in_a_file(small(1))),
    case("GRIB2, levels and steps", in_a_file(*product(500, 850, hours=(6, 12)))),
    case("GRIB2, a file for each day", in_files(product(500), product(500, day=20240102))),
    case(
        "GRIB2, a file for each step",
        in_files(one_hour(6), one_hour(12), one_hour(18)),
        read(("step",)),
        options=STEPS,
    ),
    case(
        "GRIB2, a file for each run and step",
        in_files(
            *(
                product(500, hours=(hour,), day=day)
                for day in (20240101, 20240102)
                for hour in (0, 6)
            )
        ),
        read(("time", "step")),
        options=Options(("time", "step")),
    ),
    case(
        "GRIB2, times for which fields are valid",
        in_files(one_hour(6), one_hour(12)),
        read(("valid_time",), time_dims=("valid_time",)),
        options=VALID,
    ),
    case(
        "GRIB2, a file for each member",
        in_files(*([member(number)] for number in range(3))),
        read(("number",)),
        options=Options(("number",)),
    ),
    case(
        "GRIB2, a file for each level",
        in_files([small(1, level=850)], [small(2, level=500)]),
        read(("isobaricInhPa",)),
        options=Options(("isobaricInhPa",)),
    ),
    case(
        "GRIB2, minutes",
        in_a_file(*(small(n, indicatorOfUnitOfTimeRange=0, forecastTime=15 * n) for n in range(3))),
    ),
    case("GRIB2, two variables", in_a_file(small(1), small(2, shortName="q"))),
    case("GRIB2, two kinds of levels", in_a_file(small(1), surface(2, "2t"))),
    case(
        "GRIB2, levels that do not fit together",
        in_a_file(*product(500, 850), surface(2, "2t"), surface(3, "10u"), surface(4, "10v")),
        read(groups=SEVERAL),
        note="a group for each kind of level",
    ),
    case(
        "GRIB2, one group of several",
        in_a_file(*product(500, 850), surface(2, "2t"), surface(3, "10u")),
        read(groups={"": SEVERAL["isobaricInhPa"]}),
        options=Options(parse={"group": "isobaricInhPa"}),
        note="`--source-group`",
    ),
    case(
        "GRIB2, analysis and forecast",
        in_a_file(
            small(1, typeOfProcessedData=0),
            *(small(hour, typeOfProcessedData=1, stepRange=str(hour)) for hour in (6, 12)),
        ),
        read(
            groups={
                "isobaricInhPa_an": {"dataType": "an"},
                "isobaricInhPa_fc": {"dataType": "fc"},
            }
        ),
        note="a group for each",
    ),
    case(
        "GRIB2, moments and sums",
        in_a_file(
            *(surface(n, "2t", stepRange=str(n)) for n in (0, 6, 12)),
            total(1, 0, 6),
            total(2, 0, 12),
        ),
        read(
            groups={
                "heightAboveGround": {"shortName": "2t"},
                "surface": {"shortName": "tp"},
            }
        ),
        note="a group for each",
    ),
    case("GRIB2, ensemble", in_a_file(*(member(number) for number in range(3)))),
    case(
        "GRIB2, a hole in steps and levels",
        in_a_file(*product(500, 850, hours=(6, 12))[:3]),
        note="fields that are not there read as NaN; the report counts them",
    ),
    case("GRIB2, a message twice", twice),
    case(
        "GRIB2, percentiles",
        in_a_file(small(1), percentile(10), percentile(90)),
        virtual=Refused(
            r"same coordinates.*'t2m'.*drop=\('t2m',\)",
            Options(parse={"drop": ("t2m",)}),
            read(groups={"": {"shortName": "t"}}),
            "`--drop`",
        ),
        native=Refused(
            r"same coordinates.*'t2m'.*drop=\('t2m',\)",
            Options(parse={"drop": ("t2m",)}),
            read(groups={"": {"shortName": "t"}}),
            "`--drop`",
        ),
    ),
    case(
        "GRIB2, several fields in a message",
        in_a_file(together(small(1, shortName="u"), small(2, shortName="v"))),
    ),
    case("GRIB2, bulletins with headings", with_headings),
    case(
        "GRIB2, model levels",
        in_a_file(*(small(n, typeOfLevel="hybrid", level=n) for n in (1, 2, 3))),
    ),
    case(
        "GRIB2, layers of soil",
        in_a_file(
            *(
                message(
                    "regular_ll_sfc_grib2",
                    seed=n,
                    **SURFACE,
                    discipline=2,
                    parameterCategory=3,
                    parameterNumber=18,
                    typeOfFirstFixedSurface=106,
                    typeOfSecondFixedSurface=106,
                    scaleFactorOfFirstFixedSurface=2,
                    scaledValueOfFirstFixedSurface=7 * n,
                    scaleFactorOfSecondFixedSurface=2,
                    scaledValueOfSecondFixedSurface=7 * n + 7,
                )
                for n in (0, 1)
            )
        ),
    ),
    case("GRIB2, missing values", in_a_file(small(1, missing=True))),
    case("GRIB2, the same value everywhere", in_a_file(small(1, flat=True))),
    case("GRIB2, CCSDS", in_a_file(small(1, packingType="grid_ccsds"))),
    case("GRIB2, JPEG 2000", in_a_file(small(1, packingType="grid_jpeg"))),
    case("GRIB2, complex packing", in_a_file(small(1, packingType="grid_complex"))),
    case(
        "GRIB2, complex packing with differences",
        in_a_file(small(1, packingType="grid_complex_spatial_differencing")),
    ),
    case(
        "GRIB2, packed in several ways",
        in_files(product(500), product(500, day=20240102, packingType="grid_ccsds")),
    ),
    case("GRIB2, IEEE numbers", in_a_file(small(1, packingType="grid_ieee"))),
    case(
        "GRIB2, IEEE numbers of 8 bytes", in_a_file(small(1, packingType="grid_ieee", precision=2))
    ),
    case("GRIB2, regular Gaussian grid", in_a_file(message("regular_gg_sfc_grib2", **GAUSSIAN))),
    case("GRIB2, reduced Gaussian grid", in_a_file(message("reduced_gg_pl_32_grib2"))),
    case("GRIB2, Lambert grid", in_a_file(message("regular_ll_pl_grib2", **LAMBERT))),
    case("GRIB2, rotated grid", in_a_file(message(**{**ROTATED, "shortName": "t"}))),
    case("GRIB2, polar stereographic grid", in_a_file(message(**POLAR))),
    case(
        "GRIB2, Lambert grid, a file for each day",
        in_files([message(seed=1, **LAMBERT)], [message(seed=2, dataDate=20240102, **LAMBERT)]),
    ),
    case(
        "GRIB2, across the meridian of Greenwich",
        in_a_file(
            small(
                1,
                longitudeOfFirstGridPointInDegrees=340.0,
                longitudeOfLastGridPointInDegrees=10.0,
                iDirectionIncrementInDegrees=2.0,
            )
        ),
    ),
    case(
        "GRIB2, rows from south to north",
        in_a_file(
            small(
                1,
                jScansPositively=1,
                latitudeOfFirstGridPointInDegrees=0.0,
                latitudeOfLastGridPointInDegrees=60.0,
            )
        ),
    ),
    case(
        "GRIB2, points in columns",
        in_a_file(small(1, jPointsAreConsecutive=1)),
        virtual=Refused(r"points of its grid go along columns.*drop=\('t',\)"),
        native=Refused(r"points of its grid go along columns.*drop=\('t',\)"),
    ),
    case("GRIB1, one message", in_a_file(message("regular_ll_sfc_grib1", shortName="2t"))),
    case(
        "GRIB1, levels",
        in_a_file(*(message("regular_ll_pl_grib1", seed=n, level=n) for n in (500, 850))),
    ),
    case(
        "GRIB1, missing values",
        in_a_file(message("regular_ll_sfc_grib1", shortName="2t", missing=True)),
    ),
    case(
        "GRIB1, second-order packing",
        in_a_file(message("regular_ll_sfc_grib1", shortName="2t", packingType="grid_second_order")),
    ),
    case("GRIB1, regular Gaussian grid", in_a_file(message("regular_gg_pl_grib1"))),
    case("GRIB1, reduced Gaussian grid", in_a_file(message("reduced_gg_pl_32_grib1"))),
    case("GRIB2, spherical harmonics", in_a_file(message("sh_pl_grib2"))),
    case("GRIB1, spherical harmonics", in_a_file(message("sh_pl_grib1"))),
    case(
        "GRIB1 and GRIB2 in a file",
        in_a_file(small(1), message("regular_ll_pl_grib1", seed=2, level=850, shortName="t")),
        read(groups={"isobaricInhPa_500": {"edition": 2}, "isobaricInhPa_850": {"edition": 1}}),
        note="a group for each",
    ),
)
