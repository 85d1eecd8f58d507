"""Archives of GRIB messages, made and read by ecCodes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import eccodes
import numpy as np
import xarray

from tests.archives.cases import Case, Expected, Write

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


def read(paths: Sequence[Path]) -> Expected:
    """Read the values of all messages with ecCodes."""
    found: dict[str, xarray.Variable] = {}
    for path in paths:
        with path.open("rb") as file:
            while (handle := eccodes.codes_grib_new_from_file(file)) is not None:
                eccodes.codes_set(handle, "missingValue", 1e30)
                values = eccodes.codes_get_values(handle)
                values[values == 1e30] = np.nan
                found[f"{path.name} {len(found)}"] = xarray.Variable(("point",), values)
                eccodes.codes_release(handle)
    return found


def fields(
    found: Expected, expected: Expected
) -> dict[str, tuple[xarray.Variable, xarray.Variable]]:
    """Compare every field with the message that it equals; places without a message are NaN."""
    ours = []
    for path, variable in found.items():
        is_field = variable.ndim >= 2 and variable.dtype.kind == "f"
        if is_field and not path.endswith(("latitude", "longitude")):
            columns = variable.values.reshape(-1, variable.shape[-1] * variable.shape[-2])
            ours += [column for column in columns if not np.isnan(column).all()]
    assert len(ours) == len(expected)
    pairs = {}
    for name, values in expected.items():
        wanted = values.values
        number = next(
            (
                number
                for number, field in enumerate(ours)
                if field.shape == wanted.shape
                and np.allclose(field, wanted, rtol=1e-6, equal_nan=True)
            ),
            0,
        )
        pairs[name] = (xarray.Variable(("point",), ours.pop(number)), values)
    return pairs


def case(title: str, write: Write, **how: Any) -> Case:
    made_with = how.pop("made_with", "eccodes")
    how = {"files": "*.grib", "tolerance": 1e-6, "pair": fields, **how}
    return Case("GRIB", title, made_with, write, read, **how)


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
CASES = (
    case("GRIB2, one message", in_a_file(small(1))),
    case("GRIB2, levels and steps", in_a_file(*product(500, 850, hours=(6, 12)))),
    case("GRIB2, a file for each day", in_files(product(500), product(500, day=20240102))),
    case("GRIB2, two variables", in_a_file(small(1), small(2, shortName="q"))),
    case(
        "GRIB2, two kinds of levels",
        in_a_file(
            small(1),
            message(
                "regular_ll_sfc_grib2",
                seed=2,
                shortName="2t",
                **{k: SMALL[k] for k in ("Ni", "Nj", "bitsPerValue")},
            ),
        ),
    ),
    case(
        "GRIB2, ensemble",
        in_a_file(
            *(
                small(
                    n,
                    productDefinitionTemplateNumber=1,
                    perturbationNumber=n,
                    numberOfForecastsInEnsemble=3,
                )
                for n in range(3)
            )
        ),
    ),
    case("GRIB2, a hole in steps and levels", in_a_file(*product(500, 850, hours=(6, 12))[:3])),
    case("GRIB2, missing values", in_a_file(small(1, missing=True))),
    case("GRIB2, the same value everywhere", in_a_file(small(1, flat=True))),
    case("GRIB2, CCSDS", in_a_file(small(1, packingType="grid_ccsds"))),
    case("GRIB2, JPEG 2000", in_a_file(small(1, packingType="grid_jpeg"))),
    case("GRIB2, complex packing", in_a_file(small(1, packingType="grid_complex"))),
    case(
        "GRIB2, complex packing with differences",
        in_a_file(small(1, packingType="grid_complex_spatial_differencing")),
    ),
    case("GRIB2, IEEE numbers", in_a_file(small(1, packingType="grid_ieee"))),
    case(
        "GRIB2, regular Gaussian grid", in_a_file(message("regular_gg_sfc_grib2", shortName="2t"))
    ),
    case("GRIB2, reduced Gaussian grid", in_a_file(message("reduced_gg_pl_32_grib2"))),
    case("GRIB2, Lambert grid", in_a_file(message("regular_ll_pl_grib2", **LAMBERT))),
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
    case("spherical harmonics", in_a_file(message("sh_pl_grib2"))),
    case(
        "GRIB1 and GRIB2 in a file",
        in_a_file(small(1), message("regular_ll_pl_grib1", seed=2, level=850, shortName="t")),
    ),
)
