"""The pictures at the end: two maps, a curve and the coverage, as SVG and as PNG."""

from datetime import datetime
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import xarray as xr
from matplotlib import dates as mdates
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

import icefloe
from examples.demo.reading import opened
from icefloe.pipeline import DatasetCoverage, Presence, read_coverage

type Field = NDArray[np.float64]

DEGREES = 2
TAG = "first-delivery"
LAND = "#c6c8cc"
NOW, BEFORE = "#e07b1a", "#1f83c6"
COLOURS = {
    Presence.PRESENT: ("present", "#2f8f5b"),
    Presence.LATE: ("came late", "#d9a514"),
    Presence.PARTIAL: ("in part", "#8fbf9f"),
    Presence.MISSING: ("missing", "#d65f5f"),
}
STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.titlesize": 10,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "icefloe",  # the same picture has the same bytes
}


def draw(repository: icefloe.Repository, path: Path) -> list[Path]:
    """Draw maps of the ocean, the temperature of all days, and the coverage, in two formats."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(10, 8.6), facecolor="white", layout="constrained")
        grid = figure.add_gridspec(4, 2, height_ratios=(4, 3, 0.55, 0.55))
        draw_maps(figure, [figure.add_subplot(grid[0, column]) for column in (0, 1)], repository)
        draw_curves(figure.add_subplot(grid[1, :]), repository)
        coverages = read_coverage(repository.readonly_session("main"))
        for row, coverage in enumerate(coverages, start=2):
            draw_coverage(figure.add_subplot(grid[row, :]), coverage)
        patches = [Patch(color=colour, label=word) for word, colour in COLOURS.values()]
        figure.legend(handles=patches, loc="outside lower center", ncols=4, frameon=False)
        written = [path.with_suffix(suffix) for suffix in (".svg", ".png")]
        figure.savefig(written[0], dpi=100, metadata={"Date": None})
        figure.savefig(written[1], dpi=130)
    return written


def draw_maps(figure: Figure, axes: list[Axes], repository: icefloe.Repository) -> None:
    """Draw the ocean of the last month, and its difference from the first one."""
    ocean = opened(repository, "ocean")
    dates = [
        f"{moment.year}-{moment.month:02}-{moment.day:02}" for moment in ocean.time_centered.values
    ]
    first, last = (on_degrees(ocean.isel(time_counter=month)) for month in (0, -1))
    maps: list[tuple[Field, str, tuple[float, float], str]] = [
        (last, "turbo", (-2, 30), f"surface of the ocean, {dates[-1]}"),
        (last - first, "RdBu_r", (-6, 6), f"change from {dates[0]} to {dates[-1]}"),
    ]
    for axis, (field, colours, (low, high), title) in zip(axes, maps, strict=True):
        image = axis.imshow(
            field,
            cmap=mpl.colormaps[colours].with_extremes(bad=LAND),
            vmin=low,
            vmax=high,
            origin="lower",
            extent=(-180, 180, -90, 90),
            aspect="auto",
            interpolation="nearest",
        )
        axis.set(title=title, xlabel="longitude [°]", ylabel="latitude [°]")
        axis.set_xticks(range(-180, 181, 60))
        axis.set_yticks(range(-90, 91, 30))
        figure.colorbar(image, ax=axis, label="temperature [°C]", extend="both", shrink=0.9)


def on_degrees(month: xr.Dataset) -> Field:
    """Average a month in squares of degrees: the grid of the model is bent in the north."""
    values = np.asarray(month.tos, np.float64).ravel()
    rows = ((np.asarray(month.nav_lat).ravel() + 90) / DEGREES).astype(int)
    columns = ((np.asarray(month.nav_lon).ravel() + 180) / DEGREES).astype(int)
    shape = (180 // DEGREES, 360 // DEGREES)
    is_sea = np.isfinite(values)
    squares = np.clip(rows, 0, shape[0] - 1) * shape[1] + np.clip(columns, 0, shape[1] - 1)
    sums = np.bincount(squares[is_sea], values[is_sea], shape[0] * shape[1])
    counts = np.bincount(squares[is_sea], minlength=shape[0] * shape[1])
    means = np.full(len(sums), np.nan)
    means[counts > 0] = sums[counts > 0] / counts[counts > 0]
    return means.reshape(shape)


def draw_curves(axis: Axes, repository: icefloe.Repository) -> None:
    """Draw all days as they are now, and above it as the first delivery had them."""
    for tag, label, colour in ((None, "now", NOW), (TAG, "the first delivery", BEFORE)):
        weather = opened(repository, "weather", tag)
        values = np.asarray(weather.temperature.isel(lat=-2).mean("lon"), np.float64)
        days = int(np.isfinite(values).sum())
        axis.plot(
            weather.time.values,
            values,
            color=colour,
            linewidth=0.8,
            label=f"{label}, {days:,} days",
        )
        latitude = float(weather.lat[-2])
    with_dates(axis)
    axis.set(title=f"mean temperature at {latitude:.0f}° north", ylabel="temperature [K]")
    axis.legend(loc="upper left", ncols=2)
    axis.margins(x=0.01)
    low, high = axis.get_ylim()
    axis.set_ylim(top=high + (high - low) / 4)  # room for the legend


def draw_coverage(axis: Axes, coverage: DatasetCoverage) -> None:
    """Draw what a dataset has, lacks, and got late, along its dates."""
    dates: Any = mdates  # has no types
    for row, family in enumerate(coverage.families):
        for span in family.spans:
            begin, end = (
                dates.date2num(datetime.fromisoformat(text)) for text in (span.first, span.last)
            )
            width = (end - begin) * span.steps / max(span.steps - 1, 1) or 1
            axis.broken_barh([(begin, width)], (row, 0.8), color=COLOURS[span.presence][1])
    files = sum(family.files for family in coverage.families)
    axis.set_title(f"{coverage.group}: {coverage.length:,} steps in {files:,} files", loc="left")
    axis.set_yticks([])
    axis.margins(x=0.01)
    with_dates(axis)


def with_dates(axis: Any) -> None:
    """Write dates below an axis, as short as they can be."""
    dates: Any = mdates  # has no types
    locator = dates.AutoDateLocator()
    axis.xaxis.set_major_locator(locator)
    axis.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))
