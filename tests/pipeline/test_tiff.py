"""TIFF files as GDAL and others write them: values, coordinates and attributes as rioxarray's."""

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
import rasterio.warp
import rasterio.windows
import rioxarray  # noqa: F401 - the accessor rio and the engine rasterio
import tifffile
import xarray
import zarr
from rasterio.enums import Resampling
from rasterio.transform import Affine, from_origin

from icefloe.errors import ErrorKind, SourceError
from icefloe.pipeline.combining.report import Report
from icefloe.pipeline.files.options import CombineOptions, ParseOptions
from icefloe.pipeline.files.parsing import parse_file, parse_or_report
from icefloe.pipeline.local import virtualize_locally
from tests.pipeline.repositories import opened, repository_for

pytestmark = [
    pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning"),
    pytest.mark.filterwarnings("ignore:Use `@` matmul"),  # within rioxarray
]

CHANCE = np.random.default_rng(5)
SMOOTH = np.add.outer(np.arange(53.0), np.arange(70.0))


def ingested(
    path: Path,
    *,
    overviews: bool = False,
    group: str | None = None,
    may_be_unchecked: bool = False,
) -> tuple[xarray.Dataset, Report]:
    """Ingest a file, with every value compared, and open the result."""
    session = repository_for(path.parent).writable_session("main")
    options = CombineOptions(("date",), by="order", check_values="all")
    parse = ParseOptions(("date",), overviews=overviews)
    report = virtualize_locally(session, path, options, parse=parse)
    assert report.checked is not None
    assert report.checked.values
    if not may_be_unchecked:
        assert not report.checked.unchecked
    return opened(session, group, mask_and_scale=False).load(), report


def values_of(bands: int, kind: str) -> Any:
    if kind == "bits":
        return CHANCE.integers(0, 2, (bands, 53, 70)).astype(np.uint8)
    factors = 1 + np.arange(bands).reshape(-1, 1, 1)
    values = SMOOTH * factors + CHANCE.integers(0, 3, (bands, 53, 70))
    if np.dtype(kind).kind == "c":
        return (values + 1j * SMOOTH).astype(kind)
    return (values / 3 if np.dtype(kind).kind == "f" else values % 250).astype(kind)


def write(path: Path, values: Any, **options: Any) -> None:
    with rasterio.open(
        path,
        "w",
        driver="GTiff",
        width=values.shape[2],
        height=values.shape[1],
        count=len(values),
        dtype=values.dtype,
        **{"crs": "EPSG:32633", "transform": from_origin(5e5, 4.6e6, 30, 30), **options},
    ) as file:
        file.write(values)


TILED = {"tiled": True, "blockxsize": 32, "blockysize": 16}
PIXEL, BAND = {"interleave": "pixel"}, {"interleave": "band"}


@pytest.mark.parametrize(
    ("kind", "bands", "options", "is_standard"),
    [
        ("uint8", 1, {}, True),  # one strip
        ("int16", 3, {"blockysize": 10, **BAND}, False),  # the last strip is shorter
        ("int16", 3, {"blockysize": 10, **PIXEL, "ENDIANNESS": "BIG"}, False),
        ("uint16", 3, {**TILED, **PIXEL, "ENDIANNESS": "BIG"}, True),
        ("float32", 2, {**TILED, **BAND, "compress": "deflate"}, True),
        ("float64", 2, {**TILED, **PIXEL, "compress": "zstd"}, True),
        ("complex64", 1, {**TILED, "compress": "deflate"}, True),
        ("uint32", 3, {**TILED, **PIXEL, "compress": "lzw", "predictor": 2}, False),
        ("int8", 2, {**TILED, **BAND, "compress": "deflate", "predictor": 2}, False),
        ("int64", 2, {**TILED, **PIXEL, "compress": "zstd", "predictor": 2}, False),
        (
            "uint16",
            2,
            {"blockysize": 10, "compress": "deflate", "ENDIANNESS": "BIG", "predictor": 2, **PIXEL},
            False,
        ),
        ("float32", 3, {**TILED, **PIXEL, "compress": "deflate", "predictor": 3}, False),
        ("float64", 1, {"blockysize": 10, "compress": "lzw", "predictor": 3}, False),
        ("float32", 2, {**TILED, **PIXEL, "compress": "zstd", "predictor": 2}, False),
        ("uint8", 3, {**TILED, "compress": "packbits"}, False),
        ("uint16", 1, {**TILED, "compress": "lzma"}, False),
        ("float32", 1, {**TILED, "compress": "lerc"}, False),
        ("float64", 2, {**TILED, **PIXEL, "compress": "lerc_zstd"}, False),
        ("int16", 2, {**TILED, **BAND, "compress": "lerc_deflate"}, False),
        ("uint8", 3, {**TILED, "compress": "webp", "WEBP_LOSSLESS": "YES", **PIXEL}, False),
        ("uint8", 1, {**TILED, "compress": "jpeg"}, False),
        ("uint8", 3, {"compress": "jpeg", **PIXEL, "blockysize": 16}, False),
        ("uint8", 3, {**TILED, "compress": "jpeg", "photometric": "ycbcr", **PIXEL}, False),
        ("uint8", 3, {**TILED, "compress": "jpeg", **BAND}, False),
        ("bits", 1, {"NBITS": 1, "blockysize": 10}, False),
        ("bits", 2, {"NBITS": 1, **TILED, **PIXEL, "compress": "lzw"}, False),
        ("uint16", 2, {"NBITS": 12, **TILED, **PIXEL}, False),
        ("uint8", 2, {"BIGTIFF": "YES", **TILED}, True),
        ("uint16", 2, {"BIGTIFF": "YES", **TILED, "ENDIANNESS": "BIG", "SPARSE_OK": "TRUE"}, True),
    ],
    ids=str,
)
def test_pixels_of_gdal(
    tmp_path: Path, kind: str, bands: int, options: Mapping[str, Any], is_standard: bool
) -> None:
    path = tmp_path / "a.tif"
    write(path, values_of(bands, kind), **options)
    is_jpeg = options.get("compress") == "jpeg"
    # tifffile cannot read JPEG in separate bands
    dataset, _ = ingested(path, may_be_unchecked=is_jpeg and options.get("interleave") == "band")
    with rasterio.open(path) as file:
        expected = file.read()
    found = dataset["band_data"]
    assert found.dims == ("date", "band", "y", "x")
    assert found.dtype == expected.dtype
    if is_jpeg:  # decoders may round otherwise
        np.testing.assert_allclose(found.values[0].astype(int), expected.astype(int), atol=2)
    else:
        np.testing.assert_array_equal(found.values[0], expected)
    codecs = parse_file(path.as_uri(), ParseOptions(("date",))).metadata["band_data"]["codecs"]
    own = [codec for codec in codecs if codec["name"].startswith("icefloe.")]
    assert bool(own) is not is_standard  # zarr alone reads what it can


# -- names, coordinates, attributes ----------------------------------------------------------


def as_rioxarray_stores(path: Path, folder: Path) -> Any:
    """Return the attributes by variable that rioxarray and xarray write to Zarr."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dataset = xarray.open_dataset(path, engine="rasterio", mask_and_scale=False)
        dataset.to_zarr(folder / "peer.zarr", mode="w", zarr_format=3, consolidated=False)
    return zarr.open_group(folder / "peer.zarr", mode="r")


@pytest.mark.parametrize(
    ("crs", "transform", "options"),
    [
        ("EPSG:32633", from_origin(5e5, 4.6e6, 30, 30), {"nodata": -999}),
        ("EPSG:4326", from_origin(-180, 90, 0.1, 0.2), {"nodata": np.nan}),
        ("EPSG:3857", Affine(10, 0, 3, 0, 10, 4), {}),  # from south to north
        ("EPSG:3035", Affine(10, 2, 3, 1, -10, 4), {}),  # rotated
        ("EPSG:3413", from_origin(-2e6, 2e6, 1e3, 1e3), {"nodata": 1e30}),
        ("EPSG:2154", from_origin(6e5, 6.8e6, 5, 5), {"TIFFTAG": 1}),
        ("EPSG:4258", from_origin(0, 50, 1, 1), {"AREA_OR_POINT": "Point"}),
        ("EPSG:5070", from_origin(0, 50, 1, 1), {}),
        ("EPSG:9707", from_origin(0, 50, 1, 1), {"GEOTIFF_VERSION": "1.1"}),  # with heights
        ("EPSG:27700", from_origin(0, 50, 1, 1), {}),
    ],
    ids=str,
)
def test_coordinates_and_attributes_are_those_of_rioxarray(
    tmp_path: Path, crs: str, transform: Affine, options: Mapping[str, Any]
) -> None:
    path = tmp_path / "a.tif"
    given = dict(options)
    area = given.pop("AREA_OR_POINT", None)
    has_tags = given.pop("TIFFTAG", None)
    write(path, values_of(3, "float32"), crs=crs, transform=transform, **given)
    with rasterio.open(path, "r+") as file:
        file.descriptions = ("red", "nir", None)
        file.scales, file.offsets = (0.1,) * 3, (1.0,) * 3
        file.units = ("m", "m", "K")
        file.update_tags(FOO="bar")
        file.update_tags(1, OF_BAND="x")
        if area:
            file.update_tags(AREA_OR_POINT=area)
        if has_tags:
            file.update_tags(TIFFTAG_SOFTWARE="made up", TIFFTAG_DATETIME="2020:01:02 03:04:05")
    dataset, _ = ingested(path)
    peer = as_rioxarray_stores(path, tmp_path)
    session_attributes = {
        name: dict(dataset[name].attrs) for name in ("band_data", "spatial_ref", "band")
    }
    ours, theirs = session_attributes["band_data"], dict(peer["band_data"].attrs)
    assert ours.pop("grid_mapping", None) == theirs.pop("grid_mapping", None) == "spatial_ref"
    theirs.pop("_FillValue", None)  # xarray adds one to floats, and encodes the number
    number = xarray.open_dataarray(path, engine="rasterio", mask_and_scale=False).attrs.get(
        "_FillValue"
    )
    assert ("_FillValue" in ours) == (number is not None)
    if number is not None:
        np.testing.assert_array_equal(ours.pop("_FillValue"), number)
    assert ours == {name: value for name, value in theirs.items() if name != "coordinates"}
    assert session_attributes["spatial_ref"] == dict(peer["spatial_ref"].attrs)
    assert dataset.band.values.tolist() == [1, 2, 3]
    assert ("x" in dataset.coords) == ("x" in peer)
    if "x" in peer:
        for name in ("x", "y"):
            np.testing.assert_allclose(dataset[name].values, peer[name][...], rtol=1e-15)
    assert set(dataset.coords) >= {"spatial_ref", "band"}
    assert dataset.band_data.rio.crs == rasterio.open(path).crs
    assert dataset.band_data.rio.transform().almost_equals(transform)


@pytest.mark.parametrize(
    "crs",
    [
        "+proj=sinu +lon_0=0 +R=6371007.181 +units=m",  # of MODIS
        "+proj=laea +lat_0=45 +lon_0=10 +datum=WGS84 +units=m",
        "+proj=aea +lat_1=20 +lat_2=50 +lat_0=35 +lon_0=-90 +ellps=GRS80 +units=m",
        "+proj=lcc +lat_1=30 +lat_2=60 +lat_0=38.5 +lon_0=262.5 +R=6371229 +units=m",
        "+proj=tmerc +lat_0=1 +lon_0=12 +k=0.9 +x_0=7 +y_0=8 +datum=WGS84 +units=m",
        "+proj=stere +lat_0=90 +lat_ts=70 +lon_0=-45 +datum=WGS84 +units=m",
        "+proj=eqc +lat_ts=10 +lon_0=20 +datum=WGS84 +units=m",
        "+proj=longlat +R=6371229",
    ],
)
def test_reference_systems_without_a_code(tmp_path: Path, crs: str) -> None:
    path = tmp_path / "a.tif"
    write(path, values_of(1, "uint8"), crs=rasterio.crs.CRS.from_string(crs))
    dataset, report = ingested(path)
    with rasterio.open(path) as file:
        expected = file.crs
    found = rasterio.crs.CRS.from_wkt(dataset.spatial_ref.attrs["crs_wkt"])
    points = rasterio.warp.transform(expected, found, [1000.0, 20.0], [2000.0, 30.0])
    np.testing.assert_allclose(points[:2], [[1000.0, 20.0], [2000.0, 30.0]], atol=1e-6)
    assert not report.notes


def test_an_unknown_reference_system_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "a.tif"
    crs = "+proj=lcc +lat_1=30 +lat_2=60 +lon_0=9 +datum=WGS84 +units=us-ft"
    write(path, values_of(1, "uint8"), crs=rasterio.crs.CRS.from_string(crs))
    dataset, report = ingested(path)
    assert "crs_wkt" not in dataset.spatial_ref.attrs
    assert dataset.spatial_ref.attrs["geo_keys"]["3078"] == 30
    assert any("reference system" in note for note in report.notes)


def test_a_plain_image_has_no_coordinates_of_pixels(tmp_path: Path) -> None:
    tifffile.imwrite(tmp_path / "a.tif", values_of(1, "uint8")[0], rowsperstrip=53)
    dataset, _ = ingested(tmp_path / "a.tif")
    assert set(dataset.variables) == {"band_data", "band"}
    codecs = parse_file((tmp_path / "a.tif").as_uri(), ParseOptions(("date",)))
    assert codecs.facts.parser == "icefloe"


def test_holes_are_missing_values(tmp_path: Path) -> None:
    path = tmp_path / "a.tif"
    with rasterio.open(
        path, "w", driver="GTiff", width=64, height=64, count=1, dtype="int16", nodata=-7,
        tiled=True, blockxsize=16, blockysize=16, SPARSE_OK="TRUE",
    ) as file:  # fmt: skip
        window = rasterio.windows.Window(16, 16, 16, 16)
        file.write(np.ones((1, 16, 16), np.int16), window=window)
    dataset, _ = ingested(path)
    with rasterio.open(path) as file:
        np.testing.assert_array_equal(dataset.band_data[0], file.read())
    assert len(parse_file(path.as_uri(), ParseOptions(("date",))).references["band_data"]) == 1


# -- several pages ---------------------------------------------------------------------------


def test_overviews_and_masks(tmp_path: Path) -> None:
    path = tmp_path / "a.tif"
    values = CHANCE.integers(1, 200, (2, 64, 96)).astype(np.uint8)
    write(path, values, tiled=True, blockxsize=32, blockysize=32)
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True), rasterio.open(path, "r+") as file:
        file.write_mask(CHANCE.integers(0, 2, (64, 96)).astype(bool))
        file.build_overviews([2, 4], Resampling.nearest)
    plain, report = ingested(path)
    assert any("overviews are left out" in note for note in report.notes)
    with rasterio.open(path) as file:
        np.testing.assert_array_equal(plain.band_data[0], file.read())
        np.testing.assert_array_equal(plain.mask[0], file.dataset_mask())
    for number in (1, 2):
        small, _ = ingested(path, overviews=True, group=f"overview_{number}")
        with rasterio.open(path, overview_level=number - 1) as file:
            np.testing.assert_array_equal(small.band_data[0], file.read())
            assert small.band_data.rio.transform().almost_equals(file.transform)
            x, _ = file.xy(0, np.arange(file.width))
        np.testing.assert_allclose(small.x, x)


@pytest.mark.parametrize(
    ("options", "shape", "names"),
    [
        ({"photometric": "minisblack"}, (5, 20, 30), ("page",)),
        ({"imagej": True, "metadata": {"axes": "TZCYX"}}, (2, 3, 2, 20, 30), ("t", "z", "c")),
        ({"ome": True, "metadata": {"axes": "TCZYX"}}, (2, 2, 3, 20, 30), ("t", "c", "z")),
        ({"photometric": "rgb", "tile": (16, 16)}, (4, 20, 30, 3), ("page", "band")),
    ],
)
def test_stacks_of_pages(
    tmp_path: Path, options: Any, shape: tuple[int, ...], names: tuple[str, ...]
) -> None:
    path = tmp_path / "a.ome.tif" if "ome" in options else tmp_path / "a.tif"
    values = CHANCE.integers(0, 60000, shape).astype(np.uint16)
    tifffile.imwrite(path, values, **options)
    dataset, _ = ingested(path)
    assert dataset.band_data.dims == ("date", *names, "y", "x")
    expected = np.moveaxis(values, -1, -3) if "band" in names else values
    np.testing.assert_array_equal(dataset.band_data[0], expected)


def test_pages_of_other_kinds_are_groups(tmp_path: Path) -> None:
    path = tmp_path / "a.tif"
    with tifffile.TiffWriter(path) as file:
        for size, kind in ((40, np.uint8), (24, np.uint8), (40, np.uint8), (24, np.uint8)):
            file.write(CHANCE.integers(0, 99, (size, size)).astype(kind), tile=(16, 16))
    dataset, report = ingested(path)
    assert dataset.band_data.shape == (1, 2, 40, 40)
    small, _ = ingested(path, group="image_1")
    assert small.band_data.shape == (1, 2, 24, 24)
    assert any("pages 1, 3" in note and "'image_1'" in note for note in report.notes)


def test_pyramids_below_a_page(tmp_path: Path) -> None:
    path = tmp_path / "a.ome.tif"
    values = CHANCE.integers(0, 250, (64, 64)).astype(np.uint8)
    with tifffile.TiffWriter(path, ome=True) as file:
        file.write(values, subifds=1, tile=(32, 32))
        file.write(values[::2, ::2], subfiletype=1, tile=(32, 32))
    small, _ = ingested(path, overviews=True, group="overview_1")
    np.testing.assert_array_equal(small.band_data[0, 0], values[::2, ::2])


# -- what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"compress": "ccittfax4", "NBITS": 1}, "CCITT Group 4"),
        ({"dtype": "complex_int16"}, "samples of 32 bits"),
    ],
)
def test_what_is_not_supported_is_named(tmp_path: Path, options: Any, text: str) -> None:
    path = tmp_path / "a.tif"
    kind = options.get("dtype", "uint8")
    with rasterio.open(
        path, "w", driver="GTiff", width=8, height=8, count=1, **{"dtype": kind, **options}
    ) as file:
        if kind == "uint8":
            file.write(np.ones((1, 8, 8), np.uint8))
    with pytest.raises(SourceError, match=text) as caught:
        parse_file(path.as_uri(), ParseOptions(("date",)))
    assert caught.value.kind == ErrorKind.SOURCE_UNSUPPORTED


def test_damaged_files_are_refused_at_every_length(tmp_path: Path) -> None:
    whole = tmp_path / "a.tif"
    write(whole, values_of(2, "uint16"), **TILED, compress="deflate")
    data = whole.read_bytes()
    path = tmp_path / "b.tif"
    for length in [*range(4, 400, 7), len(data) - 1]:
        path.write_bytes(data[:length])
        with pytest.raises(SourceError) as caught:
            parse_file(path.as_uri(), ParseOptions(("date",)))
        assert caught.value.kind in {ErrorKind.SOURCE_TRUNCATED, ErrorKind.SOURCE_DAMAGED}
    for place in range(8, 300):
        changed = bytearray(data)
        changed[place] ^= 0xFF
        path.write_bytes(changed)
        parse_or_report(path.as_uri(), ParseOptions(("date",)))  # knows every failure


def test_chunks_of_tiff_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "a.tif"
    write(path, values_of(1, "uint8"), **TILED, compress="lzw")
    session = repository_for(tmp_path).writable_session("main")
    virtualize_locally(session, path, CombineOptions(("date",), by="order"))
    array = zarr.open_array(session.store, path="band_data", mode="r+")
    with pytest.raises(SourceError, match="rechunk"):
        array[0, 0, 0, 0] = 1
    assert json.loads(json.dumps(array.metadata.to_dict()["codecs"]))[0]["name"] == "icefloe.tiff"


def test_a_mosaic_is_joined_by_coordinates(tmp_path: Path) -> None:
    values = CHANCE.integers(0, 250, (1, 64, 64)).astype(np.uint8)
    for row in range(2):
        for column in range(2):
            part = values[:, 32 * row : 32 * row + 32, 32 * column : 32 * column + 32]
            corner = from_origin(10.0 + 32 * column, 90.0 - 32 * row, 1, 1)
            tile = {"tiled": True, "blockxsize": 16, "blockysize": 16}
            write(tmp_path / f"{row}{column}.tif", part, transform=corner, **tile)
    session = repository_for(tmp_path).writable_session("main")
    virtualize_locally(session, tmp_path / "*.tif", CombineOptions(("y", "x")))
    mosaic = opened(session)
    np.testing.assert_array_equal(mosaic.band_data, values)
    assert mosaic.band_data.rio.crs.to_epsg() == 32633
    assert mosaic.band_data.rio.transform() == from_origin(10, 90, 1, 1)
