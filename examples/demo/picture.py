"""The picture at the end: a map, a curve and the coverage, as SVG without any library."""

import base64
import struct
import zlib
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import icefloe
from examples.demo.reading import opened
from icefloe.pipeline import coverage_svg, read_coverage

type Field = NDArray[np.float64]
type Curve = list[tuple[float, float]]

WARM = ((48, 18, 59), (70, 107, 227), (40, 187, 236), (164, 252, 60), (251, 126, 33), (122, 4, 3))
CHANGE = ((5, 48, 97), (67, 147, 195), (247, 247, 247), (214, 96, 77), (103, 0, 31))
LAND = (198, 200, 204)
MAP_WIDTH, MAP_HEIGHT, MARGIN, WIDTH = 366, 300, 14, 760
STYLE = (
    "<style>.picture { font-family: sans-serif; font-size: 13px; fill: #24292f }"
    " .curve { fill: none; stroke-width: 1.2 }</style>"
)


def draw(repository: icefloe.Repository, path: Path) -> Path:
    """Draw two maps of the ocean, the temperature of all days, and the coverage."""
    ocean = opened(repository, "ocean").tos
    last, first = (np.asarray(ocean.isel(time_counter=at), np.float64)[::-1] for at in (-1, 0))
    now, before = (mean_of_days(repository, tag) for tag in (None, "first-delivery"))
    right = MARGIN + MAP_WIDTH
    parts = [
        *drawn_map(MARGIN, 14, last, WARM, (-2, 30), "the ocean's surface in March, -2 to 30 °C"),
        *drawn_map(right, 14, last - first, CHANGE, (-6, 6), "since January, -6 to 6 °C"),
        *drawn_curves(360, now, before),
    ]
    below = coverage_svg(read_coverage(repository.readonly_session("main")))
    parts.append(below.replace("<svg ", '<svg y="560" ', 1))
    height = 560 + int(below.split('height="', 1)[1].split('"', 1)[0])
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}"'
        f' viewBox="0 0 {WIDTH} {height}" role="img" aria-label="the result">{STYLE}'
        f'<rect width="{WIDTH}" height="{height}" fill="#fbfcfd"/>' + "\n".join(parts) + "</svg>",
        encoding="utf-8",
    )
    return path


def mean_of_days(repository: icefloe.Repository, tag: str | None) -> NDArray[np.float64]:
    """Read a curve in the north out of all files; days that are missing are not a number."""
    weather = opened(repository, "weather", tag)
    return np.asarray(weather.temperature.isel(lat=-2).mean("lon"), np.float64)


def drawn_map(
    x: int, y: int, field: Field, colours: Any, limits: tuple[float, float], title: str
) -> list[str]:
    """Put a map and its title at a place."""
    low, high = limits
    at = np.clip((field - low) / (high - low), 0, 1) * (len(colours) - 1)
    steps = np.arange(len(colours))
    is_land = np.isnan(field)
    channels = [
        np.where(is_land, land, np.interp(np.where(is_land, 0, at), steps, channel))
        for land, channel in zip(LAND, zip(*colours, strict=True), strict=True)
    ]
    image = base64.b64encode(png(np.stack(channels, -1).astype(np.uint8))).decode()
    return [
        f'<text class="picture" x="{x}" y="{y + 12}">{title}</text>',
        f'<image x="{x}" y="{y + 20}" width="{MAP_WIDTH - 8}" height="{MAP_HEIGHT}"'
        f' preserveAspectRatio="none" href="data:image/png;base64,{image}"/>',
    ]


def png(pixels: NDArray[np.uint8]) -> bytes:
    """Write an image; the format needs no more than this."""
    height, width, _ = pixels.shape
    rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)
    parts = {
        b"IHDR": struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0),
        b"IDAT": zlib.compress(rows.tobytes()),
        b"IEND": b"",
    }
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in parts.items()
    )


def drawn_curves(y: int, now: Field, before: Field) -> list[str]:
    """Draw all days as they are now, and above it as the first delivery had them."""
    height = 130
    low, high = np.nanmin(now), np.nanmax(now)
    scale = (WIDTH - 2 * MARGIN) / max(len(now) - 1, 1)
    parts = [
        f'<text class="picture" x="{MARGIN}" y="{y}">temperature in the north:'
        f" {len(before)} days in the first delivery, some of them missing,"
        f" and {len(now)} days now</text>"
    ]
    for values, colour in ((now, "#e07b1a"), (before, "#1f83c6")):
        places = [
            (MARGIN + at * scale, y + 20 + height * (1 - (value - low) / (high - low)))
            for at, value in enumerate(values.tolist())
        ]
        parts += [polyline(run, colour) for run in unbroken(places)]
    return parts


def unbroken(places: Curve) -> list[Curve]:
    """Cut a curve where there is nothing."""
    runs = groupby(places, key=lambda place: bool(np.isfinite(place[1])))
    return [list(run) for is_there, run in runs if is_there]


def polyline(run: Curve, colour: str) -> str:
    """Draw one piece of a curve."""
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in run)
    return f'<polyline class="curve" stroke="{colour}" points="{points}"/>'
