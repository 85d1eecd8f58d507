"""Archives of TIFF files, written by GDAL or tifffile, and read by the other one."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
import tifffile
import xarray
from rasterio.transform import from_origin

from tests.archives.cases import Case, Expected, Options, Write, variables_of

ROWS, COLUMNS = 48, 32
DAYS = Options(("day",), {"by": "order"})


def image(kind: Any = "u2", bands: int = 1, seed: int = 0) -> Any:
    """Return values that compress a little, in all bytes of a number."""
    shape = (bands, ROWS, COLUMNS)
    values = np.random.default_rng(seed).uniform(0, 250, shape)
    return (
        np.cumsum(values, axis=2).astype(kind)
        if np.dtype(kind).kind == "f"
        else values.astype(kind)
    )


def with_gdal(
    kind: Any = "uint16", bands: int = 1, days: int = 2, nodata: Any = None, **how: Any
) -> Write:
    """Write one file a day with GDAL."""

    def write(folder: Path) -> None:
        for day in range(days):
            profile = {
                "driver": "GTiff",
                "width": COLUMNS,
                "height": ROWS,
                "count": bands,
                "dtype": kind,
                "crs": "EPSG:32633",
                "transform": from_origin(500000, 5000000, 30, 30),
            } | how
            with rasterio.open(
                folder / f"scene_2024010{day + 1}.tif", "w", nodata=nodata, **profile
            ) as file:
                file.write(image(kind, bands, day))

    return write


def with_tifffile(kind: Any = "u2", bands: int = 0, days: int = 2, **how: Any) -> Write:
    def write(folder: Path) -> None:
        for day in range(days):
            values = image(kind, bands or 1, day)
            if not bands:
                values = values[0]
            elif how.get("planarconfig") == "contig":
                values = np.moveaxis(values, 0, -1)
            tifffile.imwrite(
                folder / f"scene_2024010{day + 1}.tif",
                values,
                **{"photometric": "minisblack", **how},
            )

    return write


def read(paths: Sequence[Path]) -> Expected:
    """Read days with GDAL, as rioxarray does."""
    days = [xarray.open_dataset(path, engine="rasterio") for path in paths]
    minimal: Any = {"coords": "minimal", "compat": "override", "data_vars": "all"}
    return variables_of(xarray.concat(days, "day", **minimal))


def overviews(folder: Path) -> None:
    with_gdal(tiled=True, blockxsize=16, blockysize=16)(folder)
    for path in folder.glob("*.tif"):
        with rasterio.open(path, "r+") as file:
            file.build_overviews([2, 4], rasterio.enums.Resampling.nearest)


def cog(folder: Path) -> None:
    for day in range(2):
        with rasterio.open(
            folder / f"scene_2024010{day + 1}.tif",
            "w",
            driver="COG",
            width=COLUMNS,
            height=ROWS,
            count=1,
            dtype="uint16",
            crs="EPSG:4326",
            transform=from_origin(10, 50, 0.1, 0.1),
            blocksize=128,
            compress="deflate",
        ) as file:
            file.write(image("uint16", 1, day))


def sparse(folder: Path) -> None:
    for day in range(2):
        with rasterio.open(
            folder / f"scene_2024010{day + 1}.tif",
            "w",
            driver="GTiff",
            width=COLUMNS,
            height=ROWS,
            count=1,
            dtype="uint16",
            tiled=True,
            blockxsize=16,
            blockysize=16,
            sparse_ok=True,
            nodata=7,
            crs="EPSG:32633",
            transform=from_origin(500000, 5000000, 30, 30),
        ) as file:
            file.write(
                image("uint16", 1, day)[:, :16, :16], window=rasterio.windows.Window(0, 0, 16, 16)
            )


def pages(folder: Path) -> None:
    for day in range(2):
        with tifffile.TiffWriter(folder / f"{day}.tif") as file:
            for page in range(3):
                file.write(image("u2", 1, 3 * day + page)[0], photometric="minisblack")


def read_plain(paths: Sequence[Path]) -> Expected:
    """Read images without a place on Earth with tifffile."""
    days = np.stack([np.atleast_3d(tifffile.imread(path).T).T for path in paths])
    return {
        "band_data": xarray.Variable(("day", "band", "y", "x"), days),
        "band": xarray.Variable(("band",), np.arange(1, days.shape[1] + 1)),
    }


def read_pages(paths: Sequence[Path]) -> Expected:
    days = [tifffile.imread(path, key=range(3)) for path in paths]
    return {"band_data": xarray.Variable(("day", "page", "y", "x"), np.stack(days))}


def bilevel(folder: Path) -> None:
    for day in range(2):
        tifffile.imwrite(folder / f"{day}.tif", image("u1", 1, day)[0] > 125)


def case(title: str, write: Write, reader: Any = read, **how: Any) -> Case:
    return Case(
        "TIFF",
        title,
        how.pop("made_with", "rasterio"),
        write,
        reader,
        files="*.tif",
        options=how.pop("options", DAYS),
        **how,
    )


def tiled(kind: str = "uint16", **how: Any) -> Write:
    return with_gdal(kind, tiled=True, blockxsize=16, blockysize=16, **how)


CASES = (
    case("strips", with_gdal(blockysize=16)),
    case("one strip", with_gdal(blockysize=ROWS)),
    case("tiles", tiled()),
    case("strips that do not divide the height", with_gdal(blockysize=20)),
    case("tiles that do not divide the image", with_gdal(tiled=True, blockxsize=32, blockysize=32)),
    *(
        case(f"{kind}", tiled(kind))
        for kind in ("uint8", "int8", "int16", "uint32", "int32", "float32", "float64")
    ),
    case("complex numbers", tiled("complex64")),
    case("64-bit integers", tiled("int64")),
    *(
        case(f"{name}", tiled(compress=name))
        for name in ("deflate", "lzw", "zstd", "packbits", "lzma")
    ),
    case("LERC", tiled("float32", compress="lerc")),
    case("JPEG", tiled("uint8", compress="jpeg"), tolerance=0.0),
    case(
        "WebP",
        with_gdal(
            "uint8",
            3,
            tiled=True,
            blockxsize=16,
            blockysize=16,
            compress="webp",
            webp_lossless=True,
            interleave="pixel",
        ),
    ),
    case(
        "JPEG, three bands as YCbCr",
        with_gdal(
            "uint8",
            3,
            tiled=True,
            blockxsize=16,
            blockysize=16,
            compress="jpeg",
            photometric="ycbcr",
            interleave="pixel",
        ),
    ),
    case("deflate, predictor 2", tiled(compress="deflate", predictor=2)),
    case("LZW, predictor 2, strips", with_gdal(compress="lzw", predictor=2, blockysize=16)),
    case("deflate, predictor 3", tiled("float32", compress="deflate", predictor=3)),
    case("ZSTD, predictor 3, float64", tiled("float64", compress="zstd", predictor=3)),
    case("BigTIFF", tiled(bigtiff="yes")),
    case("big-endian", tiled(endianness="big")),
    case("big-endian, predictor 2", tiled(endianness="big", compress="deflate", predictor=2)),
    case(
        "bands apart",
        with_gdal(bands=3, tiled=True, blockxsize=16, blockysize=16, interleave="band"),
    ),
    case(
        "bands by pixel",
        with_gdal(bands=3, tiled=True, blockxsize=16, blockysize=16, interleave="pixel"),
    ),
    case(
        "bands by pixel, deflate and predictor 2",
        with_gdal(
            bands=4,
            tiled=True,
            blockxsize=16,
            blockysize=16,
            interleave="pixel",
            compress="deflate",
            predictor=2,
        ),
    ),
    case("bands by pixel in strips", with_gdal(bands=3, interleave="pixel")),
    case("missing value in a tag", tiled("int16", nodata=-1)),
    case("overviews", overviews),
    case("cloud-optimised", cog, tolerance=1e-12),
    case("tiles never written", sparse),
    case("several pages", pages, read_pages, made_with="tifffile"),
    case("one bit for each pixel", bilevel, read_plain, made_with="tifffile"),
    case("half precision", with_tifffile("f2", tile=(16, 16)), read_plain, made_with="tifffile"),
    case(
        "big-endian in tiles",
        with_tifffile(byteorder=">", tile=(16, 16)),
        read_plain,
        made_with="tifffile",
    ),
    case(
        "bands apart in strips",
        with_tifffile(bands=3, planarconfig="separate", rowsperstrip=16),
        read_plain,
        made_with="tifffile",
    ),
)
