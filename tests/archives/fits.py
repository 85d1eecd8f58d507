"""Archives of FITS files, made and read by astropy."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray
from astropy.io import fits
from astropy.wcs import WCS

from tests.archives.cases import Case, Expected, Options, Refused, Write
from tests.archives.netcdf import numbers

NIGHTS = Options(("night",), {"by": "order"})
type Units = Callable[[int], list[Any]]


def nights(make: Units, count: int = 2) -> Write:
    """Write one file a night."""

    def write(folder: Path) -> None:
        for night in range(count):
            fits.HDUList(make(night)).writeto(folder / f"{night}.fits")

    return write


def named(units: Any) -> Iterator[tuple[str, Any]]:
    """Yield the units of a file with names that differ."""
    seen: set[str] = set()
    for number, unit in enumerate(units):
        name = unit.name or str(number)
        name = f"{name}_{number}" if name in seen else name
        seen.add(name)
        yield name, unit


def read(*names: str) -> Any:
    """Read images with astropy, and put nights together."""

    def reader(paths: Sequence[Path]) -> Expected:
        found: dict[str, list[Any]] = {}
        for path in paths:
            with fits.open(path, memmap=False) as units:
                for name, unit in named(units):
                    if unit.is_image and unit.data is not None and (not names or name in names):
                        found.setdefault(name, []).append(np.array(unit.data))
        return {
            name: xarray.Variable(
                ("night", *(f"{axis}" for axis in range(images[0].ndim))), np.stack(images)
            )
            for name, images in found.items()
        }

    return reader


def cards(
    found: Expected, expected: Expected
) -> dict[str, tuple[xarray.Variable, xarray.Variable]]:
    """Make the world coordinates again of attributes, and compare them with those of the file."""
    frame = WCS(fits.Header(found["PRIMARY"].attrs))
    pixels = np.random.default_rng(0).random((20, frame.naxis)) * 5
    world = xarray.Variable(("pixel", "axis"), frame.all_pix2world(pixels, 0))
    made = WCS(fits.Header(expected["PRIMARY"].attrs))
    theirs = xarray.Variable(("pixel", "axis"), made.all_pix2world(pixels, 0))
    named = {name: (found[name], expected[name]) for name in expected}
    return {**named, "world": (world, theirs)}


def read_with_cards(paths: Sequence[Path]) -> Expected:
    """Read also the header, and the coordinates of all axes that depend on no other."""
    found = dict(read()(paths))
    header = fits.getheader(paths[0])
    image = found["PRIMARY"]
    found["PRIMARY"] = xarray.Variable(image.dims, image.values, dict(header))
    if header["NAXIS"] == 3:
        pixels = np.zeros((header["NAXIS3"], 3))
        pixels[:, 2] = np.arange(header["NAXIS3"])
        waves = WCS(header).all_pix2world(pixels, 0)[:, 2]
        found["PRIMARY_z"] = xarray.Variable(("z",), waves)
    return found


def read_with_axes(paths: Sequence[Path]) -> Expected:
    """Read also the coordinates of images whose two axes do not depend on each other."""
    found = dict(read()(paths))
    with fits.open(paths[0]) as units:
        for name, unit in named(units):
            if name not in found:
                continue
            for axis, letter in enumerate("xy"):
                length = unit.header[f"NAXIS{axis + 1}"]
                pixels = np.zeros((length, 2))
                pixels[:, axis] = np.arange(length)
                world = WCS(unit.header).all_pix2world(pixels, 0)[:, axis]
                found[f"{name}_{letter}"] = xarray.Variable((letter,), world)
    return found


def images(
    found: Expected, expected: Expected
) -> dict[str, tuple[xarray.Variable, xarray.Variable]]:
    """Compare by name; dimensions of FITS have none."""
    assert set(found) == set(expected)
    return {name: (found[name], variable) for name, variable in expected.items()}


def cube(night: int, kind: Any = "f4") -> Any:
    return numbers(3, 8, 5, seed=night).astype(kind)


def scaled(night: int) -> list[Any]:
    unit = fits.PrimaryHDU(cube(night, "i2"))
    unit.header["BSCALE"], unit.header["BZERO"] = 0.5, 100.0
    return [unit]


def blank(night: int) -> list[Any]:
    values = cube(night, "i2")
    values[0, 0] = -99
    unit = fits.PrimaryHDU(values)
    unit.header["BLANK"] = -99
    unit.header["BSCALE"], unit.header["BZERO"] = 0.5, 0.0
    return [unit]


def wcs(night: int) -> list[Any]:
    frame = WCS(naxis=2)
    frame.wcs.ctype = ["RA---TAN", "DEC--TAN"]
    frame.wcs.crval = [83.6, 22.0]
    frame.wcs.crpix = [3, 3]
    frame.wcs.cdelt = [-0.01, 0.01]
    return [fits.PrimaryHDU(cube(night)[0], frame.to_header())]


def spectra(night: int) -> list[Any]:
    frame = WCS(naxis=3)
    frame.wcs.ctype = ["RA---TAN", "DEC--TAN", "WAVE"]
    frame.wcs.crval = [83.6, 22.0, 500.0]
    frame.wcs.crpix = [3, 3, 1]
    frame.wcs.cdelt = [-0.01, 0.01, 2.5]
    frame.wcs.cunit = ["deg", "deg", "nm"]
    return [fits.PrimaryHDU(cube(night), frame.to_header())]


def only_tables(night: int) -> list[Any]:
    return [fits.PrimaryHDU(), table(night)[1]]


def unsigned(night: int) -> list[Any]:
    """Make integers of 8 bytes that no float holds."""
    values = np.arange(40, dtype="u8").reshape(8, 5) + np.uint64(2**63 + 2**53 + night)
    return [fits.PrimaryHDU(values)]


def packed(values: Any, **how: Any) -> list[Any]:
    return [fits.PrimaryHDU(), fits.CompImageHDU(values, name="SCI", **how)]


def packed_with_scale(night: int) -> list[Any]:
    unit = fits.CompImageHDU(cube(night, "i2"), name="SCI")
    unit.header["BSCALE"], unit.header["BZERO"] = 0.5, 100.0
    return [fits.PrimaryHDU(), unit]


def table(night: int) -> list[Any]:
    columns = fits.ColDefs([fits.Column("flux", "E", array=numbers(4, seed=night))])
    return [fits.PrimaryHDU(cube(night)), fits.BinTableHDU.from_columns(columns, name="STARS")]


def ascii_table(night: int) -> list[Any]:
    columns = fits.ColDefs([fits.Column("flux", "F10.3", array=numbers(4), ascii=True)])
    return [fits.PrimaryHDU(cube(night)), fits.TableHDU.from_columns(columns, name="STARS")]


def compressed(night: int, kind: str) -> list[Any]:
    return [
        fits.PrimaryHDU(),
        fits.CompImageHDU(
            cube(night, "i4"), compression_type=kind, tile_shape=(1, 4, 5), name="SCI"
        ),
    ]


def several(night: int) -> list[Any]:
    return [
        fits.PrimaryHDU(),
        *(fits.ImageHDU(cube(night + n), name=name) for n, name in enumerate(("SCI", "ERR"))),
        fits.ImageHDU(cube(night, "u1")[0], name="DQ"),
    ]


def same_names(night: int) -> list[Any]:
    return [
        fits.PrimaryHDU(),
        *(fits.ImageHDU(cube(night + n), name="SCI", ver=n + 1) for n in range(2)),
    ]


def alone(kind: str) -> Units:
    """Make an image of one type of numbers."""
    return lambda night: [fits.PrimaryHDU(cube(night, kind)[0])]


def compressed_by(kind: str) -> Units:
    return lambda night: compressed(night, kind)


def case(title: str, make: Units, reader: Any = None, **how: Any) -> Case:
    given = {"files": "*.fits", "pair": images, "options": NIGHTS, **how}
    return Case("FITS", title, "astropy", nights(make), reader or read(), **given)


NO_IMAGES = Refused("has no images: it has the tables 'STARS' only")
CASES = (
    *(
        case(f"image of {name}", alone(kind))
        for name, kind in (
            ("bytes", "u1"),
            ("2-byte integers", "i2"),
            ("4-byte integers", "i4"),
            ("8-byte integers", "i8"),
            ("4-byte numbers", "f4"),
            ("8-byte numbers", "f8"),
        )
    ),
    case("cube", lambda night: [fits.PrimaryHDU(cube(night))]),
    case("several images", several),
    case("images of the same name", same_names),
    case("scaled (BSCALE, BZERO)", scaled),
    case(
        "unsigned integers",
        lambda night: [fits.PrimaryHDU(cube(night, "f8").astype("i4").astype("u2"))],
    ),
    case("signed bytes", lambda night: [fits.PrimaryHDU(cube(night, "i1"))]),
    case("missing values (BLANK)", blank),
    case("unsigned integers of 8 bytes", unsigned),
    case("celestial coordinates", wcs, read_with_cards, pair=cards),
    case("celestial coordinates and wavelengths", spectra, read_with_cards, pair=cards),
    case("image and binary table", table, note="tables are left out"),
    case("image and ASCII table", ascii_table, note="tables are left out"),
    case(
        "tables only",
        only_tables,
        lambda _: {"none": xarray.Variable((), 0)},
        virtual=NO_IMAGES,
        native=NO_IMAGES,
    ),
    case(
        "compressed floats, quantised",
        lambda night: packed(cube(night), quantize_method=1),
        read("SCI"),
    ),
    case("compressed unsigned integers", lambda n: packed(cube(n, "f8").astype("u2")), read("SCI")),
    case("compressed, scaled", packed_with_scale, read("SCI")),
    *(
        case(f"compressed ({kind})", compressed_by(kind), read("SCI"))
        for kind in ("RICE_1", "GZIP_2", "HCOMPRESS_1")
    ),
)
