"""Pictures of regular grids as map tiles: Web Mercator, 256 by 256 pixels, PNG with a palette.

A pixel has the value of the nearest point of the grid, so that a tile reads only the chunks in
which its pixels are. At a zoom where these would be too many, several pixels share a value.
"""

import math
import struct
import zlib
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.nodes import ArrayNode
from icefloe.records import Record
from icefloe.web import decoding
from icefloe.web.data import open_checked, read_values
from icefloe.web.nodes import attributes_of
from icefloe.web.pictures import MOST_BYTES, MOST_CHUNKS, Dimension, dimensions_of
from icefloe.web.selection import (
    AxisSelection,
    Grid,
    Query,
    TooLargeError,
    read_cost,
    reading_grid,
    select,
)
from icefloe.web.versions import Version

PIXELS: Final = 256
"""The length of the sides of a tile."""
MOST_ZOOM: Final = 24
COLOURS: Final = {
    "viridis": "440154 482878 3e4989 31688e 26828e 1f9e89 35b779 6ece58 b5de2b fde725",
    "magma": "000004 180f3d 440f76 721f81 9e2f7f cd4071 f1605d fd9668 feca8d fcfdbf",
    "balance": "053061 2166ac 4393c3 92c5de d1e5f0 f7f7f7 fddbc7 f4a582 d6604d b2182b 67001f",
    "grey": "101010 f5f5f5",
}
"""Colour tables, by the colours that they lead through: those of the pictures of a page."""
MOST_LATITUDE: Final = 85.0511287798066
"""Where the map of Web Mercator ends."""
_CIRCLE: Final = 360.0
_COARSEST: Final = 32
"""How many pixels beside each other may share a value."""

type Colours = NDArray[np.uint8]


class TileArray(Record, eq=False):
    """An array that is drawn as tiles: its latitude, its longitude, steps of the others."""

    node: ArrayNode
    dimensions: tuple[Dimension, ...]
    selection: tuple[AxisSelection, ...]
    latitude: int
    """The number of the dimension."""
    longitude: int


class Style(Record):
    """How values become colours."""

    colours: str
    least: float
    greatest: float


def open_tiles(version: Version, node: ArrayNode, query: Query) -> TileArray:
    """Return an array with the steps that a request chose; the first ones where it chose none."""
    dimensions = dimensions_of(version, node)
    roles = {dimension.role: number for number, dimension in enumerate(dimensions)}
    if "latitude" not in roles or "longitude" not in roles:
        raise _wrong(f"{node.path} has no dimensions of latitude and longitude: it has no tiles")
    latitude, longitude = roles["latitude"], roles["longitude"]
    for number in (latitude, longitude):
        if not dimensions[number].is_regular:
            raise _wrong(f"{dimensions[number].name} is not regular: {node.path} has no tiles")
        if dimensions[number].name in query.names:
            raise _wrong(f"{dimensions[number].name} is chosen by the number of the tile")
    if query.strides:
        raise _wrong("tiles have no stride")
    others = [d.name for n, d in enumerate(dimensions) if n not in (latitude, longitude)]
    chosen = Query(
        query.positions,
        {**{name: "0" for name in others if name not in query.positions}, **query.indexes},
        {},
        query.method,
    )
    drawn = {dimensions[latitude].name: ":", dimensions[longitude].name: ":"}
    selection = select(dimensions, Query(chosen.positions, {**chosen.indexes, **drawn}, {}))
    for axis in selection:
        if axis.name in others and not axis.is_position:
            raise _wrong(f"a tile shows one step of {axis.name}, not a range")
    return TileArray(node, dimensions, selection, latitude, longitude)


def parse_style(parameters: Mapping[str, str], attributes: Mapping[str, Any]) -> Style:
    """Return the colours and the range of a request; the range may be that of the metadata."""
    colours = parameters.get("colours") or "viridis"
    if colours not in COLOURS:
        raise _wrong(f"colours is one of {', '.join(COLOURS)}, not {colours[:100]!r}")
    text = parameters.get("range")
    limits = _limits(text) if text else valid_range(attributes)
    if limits is None:
        raise _wrong(
            "the array does not say the range of its values: add range=least,greatest; the"
            " document tilejson.json beside the tiles has one"
        )
    return Style(colours, *limits)


def _limits(text: str) -> tuple[float, float]:
    try:
        least, greatest = (float(part) for part in text.split(","))
    except ValueError:
        raise _wrong(f"range is two numbers like 250,310, not {text[:100]!r}") from None
    if not (math.isfinite(least) and math.isfinite(greatest) and least < greatest):
        raise _wrong(f"range is a lesser and a greater number, not {text[:100]!r}")
    return least, greatest


def valid_range(attributes: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return the range of values that the metadata of an array say, by the CF conventions.

    >>> valid_range({"valid_min": 0, "valid_max": 9.5}), valid_range({"units": "K"})
    ((0.0, 9.5), None)
    """
    both = attributes.get("actual_range", attributes.get("valid_range"))
    if not isinstance(both, list):
        both = [attributes.get("valid_min"), attributes.get("valid_max")]
    if len(both) != 2 or not all(type(limit) in (int, float) for limit in both):
        return None
    least, greatest = map(float, both)
    is_range = math.isfinite(least) and math.isfinite(greatest) and least < greatest
    return (least, greatest) if is_range else None


# The map


def longitudes(zoom: int, column: int, step: int = 1) -> NDArray[np.float64]:
    """Return the longitude of the middle of each pixel, or of each block of `step` pixels.

    >>> longitudes(0, 0, 128).tolist()
    [-90.0, 90.0]
    """
    pixels = (np.arange(PIXELS // step) + 0.5) * step
    middles: NDArray[np.float64] = (column + pixels / PIXELS) / 2**zoom * _CIRCLE - 180
    return middles


def latitudes(zoom: int, row: int, step: int = 1) -> NDArray[np.float64]:
    """Return the latitude of the middle of each pixel, from north to south.

    >>> latitudes(1, 0, 256).round(3).tolist()
    [66.513]
    """
    pixels = (np.arange(PIXELS // step) + 0.5) * step
    upwards = math.pi * (1 - 2 * (row + pixels / PIXELS) / 2**zoom)
    middles: NDArray[np.float64] = np.degrees(np.arctan(np.sinh(upwards)))
    return middles


def nearest(dimension: Dimension, coordinates: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the step of a regular dimension nearest to each coordinate; -1 outside of it.

    A point of the grid stands for its surroundings up to half a step.
    """
    values = dimension.values
    assert values is not None
    step = (values[-1] - values[0]) / (len(values) - 1)
    distances = coordinates - values[0]
    if dimension.role == "longitude":
        # From half a step before the first point, once around the world in the direction of steps.
        distances = (distances + step / 2) % math.copysign(_CIRCLE, step) - step / 2
    steps = np.floor(distances / step + 0.5).astype(np.int64)
    return np.where((steps >= 0) & (steps < len(values)), steps, -1)


# Reading


class _Window(Record, eq=False):
    """The steps of a grid that a tile needs."""

    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    step: int
    """How many pixels beside each other share a value."""


def read_tile(
    version: Version, tiles: TileArray, zoom: int, column: int, row: int
) -> NDArray[np.float64]:
    """Read the value of each pixel of a tile; NaN where there is none."""
    check_tile(zoom, column, row)
    array = open_checked(version, tiles.node)
    if array.dtype.kind not in "biuf":
        raise _wrong(f"values of the type {array.dtype} have no colours")
    item_bytes = array.dtype.itemsize
    window = _fit(tiles, reading_grid(tiles.node, array), item_bytes, (zoom, column, row))
    values = np.full((PIXELS // window.step,) * 2, np.nan)
    inside = np.ix_(window.rows >= 0, window.columns >= 0)
    if values[inside].size:
        selection = _selection(tiles, window)
        raw = read_values(tiles.node, array, selection)
        decoded = decoding.decode(raw, attributes_of(tiles.node))
        if decoded.dtype.kind not in "biuf":
            raise _wrong("times have no colours")
        plane = decoded.astype(np.float64)
        if tiles.latitude > tiles.longitude:
            plane = plane.T
        steps = [axis.steps for axis in selection]
        places = [
            np.searchsorted(steps[number], positions[positions >= 0])
            for number, positions in (
                (tiles.latitude, window.rows),
                (tiles.longitude, window.columns),
            )
        ]
        values[inside] = plane[np.ix_(*places)]
    return values.repeat(window.step, 0).repeat(window.step, 1)


def check_tile(zoom: int, column: int, row: int) -> None:
    """Refuse a tile that no map has."""
    if not 0 <= zoom <= MOST_ZOOM:
        raise _wrong(f"the zoom is 0 to {MOST_ZOOM}, not {zoom}")
    if column >= 2**zoom or row >= 2**zoom:
        raise _wrong(f"at zoom {zoom} the numbers of tiles end at {2**zoom - 1}")


def _fit(tiles: TileArray, grid: Grid, item_bytes: int, tile: tuple[int, int, int]) -> _Window:
    """Return the finest window of a tile that a page may read."""
    zoom, column, row = tile
    step = 1
    while True:
        window = _Window(
            nearest(tiles.dimensions[tiles.latitude], latitudes(zoom, row, step)),
            nearest(tiles.dimensions[tiles.longitude], longitudes(zoom, column, step)),
            step,
        )
        cost = read_cost(grid, _selection(tiles, window), item_bytes)
        if cost.chunks <= MOST_CHUNKS and cost.size_bytes <= MOST_BYTES:
            return window
        step *= 2
        if step > _COARSEST:
            raise TooLargeError(
                f"a tile at zoom {zoom} needs {cost.chunks:,} chunks with {cost.size_bytes >> 20:,}"
                f" MiB, and a tile reads {MOST_CHUNKS:,} chunks and {MOST_BYTES >> 20} MiB at most:"
                " zoom in, or rechunk the array"
            )


def _selection(tiles: TileArray, window: _Window) -> tuple[AxisSelection, ...]:
    chosen = [*tiles.selection]
    for number, positions in ((tiles.latitude, window.rows), (tiles.longitude, window.columns)):
        steps = np.unique(positions[positions >= 0])
        chosen[number] = AxisSelection(chosen[number].name, steps, is_position=False)
    return tuple(chosen)


# Colours


def to_png(values: NDArray[np.float64], style: Style) -> bytes:
    """Return a picture with a palette; missing values are transparent."""
    return encode_png(palette_numbers(values, style), palette(style.colours))


def palette_numbers(values: NDArray[np.float64], style: Style) -> Colours:
    """Return the number of the colour of each value: 0 for missing ones, 1 to 255 for others."""
    shares = (values - style.least) / (style.greatest - style.least)
    numbers = 1 + np.round(254 * np.clip(np.nan_to_num(shares, nan=0.0), 0, 1))
    return np.where(np.isnan(values), 0, numbers).astype(np.uint8)


def palette(name: str) -> Colours:
    """Return 256 colours, of which the first one stands for missing values.

    >>> palette("grey")[[0, 1, 255]].tolist()
    [[0, 0, 0], [16, 16, 16], [245, 245, 245]]
    """
    stops = np.array([[*bytes.fromhex(stop)] for stop in COLOURS[name].split()], np.float64)
    shares = np.linspace(0, len(stops) - 1, 255)
    table = np.stack([np.interp(shares, np.arange(len(stops)), stops[:, k]) for k in range(3)], 1)
    return np.concatenate([np.zeros((1, 3)), table.round()]).astype(np.uint8)


def encode_png(numbers: Colours, colours: Colours) -> bytes:
    """Write a picture as PNG: a number of a colour for each pixel; the first is transparent."""
    height, width = numbers.shape
    rows = np.concatenate([np.zeros((height, 1), np.uint8), numbers], 1)
    parts = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
        (b"PLTE", colours.tobytes()),
        (b"tRNS", b"\0"),
        (b"IDAT", zlib.compress(rows.tobytes(), 6)),
        (b"IEND", b""),
    )
    chunks = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


# Description


def bounds(tiles: TileArray) -> tuple[float, float, float, float]:
    """Return west, south, east and north of a grid, as far as the map shows it."""
    south, north = _edges(tiles.dimensions[tiles.latitude])
    west, east = _edges(tiles.dimensions[tiles.longitude])
    if east - west >= _CIRCLE:
        west, east = -180.0, 180.0
    elif east > 180:
        shift = _CIRCLE * math.floor((west + 180) / _CIRCLE)
        west, east = west - shift, east - shift
        if east > 180:
            west, east = -180.0, 180.0
    return west, max(south, -MOST_LATITUDE), east, min(north, MOST_LATITUDE)


def _edges(dimension: Dimension) -> tuple[float, float]:
    values = dimension.values
    assert values is not None
    half = abs(float(values[-1] - values[0])) / (len(values) - 1) / 2
    least, greatest = sorted((float(values[0]), float(values[-1])))
    return least - half, greatest + half


def finest_zoom(tiles: TileArray) -> int:
    """Return the zoom at which a pixel is no larger than a point of the grid."""
    longitude = tiles.dimensions[tiles.longitude]
    west, east = _edges(longitude)
    step = (east - west) / longitude.length
    return max(0, min(MOST_ZOOM, math.ceil(math.log2(_CIRCLE / (PIXELS * step)))))


def coarsest_zoom(version: Version, tiles: TileArray) -> int:
    """Return the lowest zoom of which a tile in the middle of the grid can be read."""
    array = open_checked(version, tiles.node)
    grid, item_bytes = reading_grid(tiles.node, array), array.dtype.itemsize
    west, south, east, north = bounds(tiles)
    for zoom in range(finest_zoom(tiles)):
        tile = (zoom, *_tile_at(zoom, (west + east) / 2, (south + north) / 2))
        try:
            _fit(tiles, grid, item_bytes, tile)
        except TooLargeError:
            continue
        return zoom
    return finest_zoom(tiles)


def _tile_at(zoom: int, longitude: float, latitude: float) -> tuple[int, int]:
    """Return column and row of the tile that has a place.

    >>> _tile_at(1, 10, 50), _tile_at(0, 180, -80)
    ((1, 0), (0, 0))
    """
    count = 2**zoom
    upwards = math.asinh(math.tan(math.radians(latitude)))
    column = int((longitude + 180) / _CIRCLE * count)
    row = int((1 - upwards / math.pi) / 2 * count)
    return min(max(column, 0), count - 1), min(max(row, 0), count - 1)


def _wrong(problem: str) -> InvalidInputError:
    return InvalidInputError(problem, ErrorKind.INVALID_REQUEST)
