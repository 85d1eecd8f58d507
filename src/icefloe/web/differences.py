"""The difference of the values of two versions of an array, as a picture.

Only chunks that changed are read, in both versions: elsewhere the difference is zero. A picture
shows the box around all changed chunks, at a stride if it is large. Chunks beyond the limit of a
page are left blank, and the note of the picture says how many.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from math import ceil
from typing import Any, Final

import numpy as np
import zarr
from numpy.typing import NDArray

from icefloe.format.chunk_table import Coordinates
from icefloe.format.columns import Ints
from icefloe.format.nodes import ArrayNode
from icefloe.records import Record, replace
from icefloe.web.diffs import ArrayComparison
from icefloe.web.nodes import facts_of
from icefloe.web.pictures import (
    MOST_BYTES,
    MOST_CHUNKS,
    MOST_PIXELS,
    NotDrawableError,
    Picture,
    Plan,
    make_plan,
    open_array,
    picture_of,
    read_values,
)
from icefloe.web.regions import merged
from icefloe.web.times import TimeScale

_MOST_COLOURS: Final = 98
"""The percentile of the changes, other than zero, that has the strongest colour."""
_READERS: Final = 8
"""How many regions are read at the same time."""


class _Pixels(Record, eq=False):
    """The steps that a picture shows downwards or to the right."""

    axis: int | None
    """The dimension; None if none is drawn in this direction."""
    count: int
    chunks: Ints
    """The chunks that have at least one of the steps, in order."""
    edges: Ints
    """Where the pixels of each of these chunks begin, and where the last ones end."""

    def part(self, ranks: Sequence[int]) -> slice:
        """Return the pixels of some chunks, from one up to another."""
        return slice(int(self.edges[ranks[0]]), int(self.edges[ranks[1]]))


class _Part(Record, eq=False):
    """The values of some pixels in both versions."""

    pixels: tuple[slice, ...]
    old: NDArray[np.float64]
    new: NDArray[np.float64]


def plan_difference(comparison: ArrayComparison, index: Sequence[int] | None = None) -> Plan:
    """Decide how the difference is drawn; raise `NotDrawableError` if it cannot be.

    Without an index, the picture shows the plane in which most chunks changed.
    """
    if not comparison.has_same_grid:
        problem = "the chunks of the two versions have different shapes"
        raise NotDrawableError(f"{problem}: compare the values in Python")
    make_plan(comparison.before, comparison.old)  # raises an error if its values are no numbers
    plan = make_plan(comparison.after, comparison.new, index)
    common = _in_common(comparison)
    if not len(common):
        problem = "no chunk that both versions have room for changed"
        raise NotDrawableError(f"{problem}, so that there are no values to subtract")
    drawn, chunk_shape = _drawn(plan), facts_of(comparison.new).largest_chunk
    steps = list(plan.index)
    if index is None:
        others = [axis for axis in range(len(steps)) if axis not in drawn]
        planes, counts = np.unique(common[:, others], axis=0, return_counts=True)
        for axis, chunk in zip(others, planes[int(counts.argmax())].tolist(), strict=True):
            steps[axis] = chunk * chunk_shape[axis]
    for axis, step in enumerate(steps):
        if axis not in drawn and step >= comparison.old.array.shape[axis]:
            dimension = plan.dimensions[axis]
            position = f"{dimension.name} {dimension.axis.label(step)}"
            raise NotDrawableError(
                f"{position} is not in {comparison.before.name}: nothing to subtract"
            )
    window = list(plan.window)
    for axis in drawn:
        start = int(common[:, axis].min()) * chunk_shape[axis]
        stop = (int(common[:, axis].max()) + 1) * chunk_shape[axis]
        stop = min(stop, comparison.new.array.shape[axis])
        window[axis] = slice(start, stop, max(1, ceil((stop - start) / MOST_PIXELS)))
    return replace(plan, index=tuple(steps), window=tuple(window), in_part=(), note="")


def read_difference(comparison: ArrayComparison, index: Sequence[int] | None = None) -> Picture:
    """Read the values of the later version minus those of the earlier one."""
    plan = plan_difference(comparison, index)
    chunk_shape = facts_of(comparison.new).largest_chunk
    pixels = [_pixels(axis, plan, chunk_shape) for axis in (plan.rows, plan.columns)]
    plane = _in_plane(comparison, plan, chunk_shape)
    ranks = _ranks(plane, pixels)
    room = _room(comparison)
    values = np.zeros([own.count for own in pixels], np.float64)
    for box in merged(ranks[room:]).tolist():
        values[tuple(own.part(part) for own, part in zip(pixels, box, strict=True))] = np.nan
    arrays = [
        (open_array(version, node.path), node)
        for version, node in (
            (comparison.before, comparison.old),
            (comparison.after, comparison.new),
        )
    ]

    def read(box: list[list[int]]) -> _Part:
        parts = tuple(own.part(ranks) for own, ranks in zip(pixels, box, strict=True))
        return _Part(parts, *(_read_part(*array, plan, pixels, parts) for array in arrays))

    appeared, vanished = 0, 0
    with ThreadPoolExecutor(_READERS) as readers:  # chunks may be far
        for part in readers.map(read, merged(ranks[:room]).tolist()):
            is_missing = np.isnan(part.old), np.isnan(part.new)
            appeared += int((is_missing[0] & ~is_missing[1]).sum())
            vanished += int((is_missing[1] & ~is_missing[0]).sum())
            with np.errstate(invalid="ignore"):  # infinity minus infinity is missing
                values[part.pixels] = part.new - part.old
    note = _note(plan, len(plane), len(ranks), min(room, len(ranks)), appeared, vanished)
    picture = picture_of(comparison.new, replace(plan, note=note), values.astype(np.float32))
    units = picture.header["units"]
    if TimeScale.of(comparison.new) is not None:
        units = units.partition(" since ")[0]  # times subtracted are no times
    drawn = {"range": _range(values, picture.header["range"]), "units": units, "centred": True}
    header = {**picture.header, **drawn}
    return Picture(picture.values, header)


def _drawn(plan: Plan) -> list[int]:
    return [axis for axis in (plan.rows, plan.columns) if axis is not None]


def _in_common(comparison: ArrayComparison) -> Coordinates:
    """Return the changed chunks that the grids of both versions have."""
    old, new = comparison.old.array.num_chunks, comparison.new.array.num_chunks
    coordinates = comparison.coordinates
    return coordinates[(coordinates < np.minimum(old, new)).all(axis=1)]


def _in_plane(
    comparison: ArrayComparison, plan: Plan, chunk_shape: Sequence[int]
) -> NDArray[np.int64]:
    """Return the changed chunks of the plane that a plan shows: row and column."""
    common, drawn = _in_common(comparison), _drawn(plan)
    is_within = np.ones(len(common), np.bool_)
    for axis, step in enumerate(plan.index):
        if axis not in drawn:
            is_within &= common[:, axis] == step // chunk_shape[axis]
    chunks = np.zeros((int(is_within.sum()), 2), np.int64)
    for column, drawn_axis in enumerate((plan.rows, plan.columns)):
        if drawn_axis is not None:
            chunks[:, column] = common[is_within, drawn_axis]
    return chunks


def _pixels(axis: int | None, plan: Plan, chunk_shape: Sequence[int]) -> _Pixels:
    if axis is None:
        return _Pixels(None, 1, np.zeros(1, np.int64), np.array([0, 1]))
    window = plan.window[axis]
    steps = np.arange(window.start, window.stop, window.step)
    chunks, edges = np.unique(steps // chunk_shape[axis], return_index=True)
    return _Pixels(axis, len(steps), chunks, np.append(edges, len(steps)))


def _ranks(plane: NDArray[np.int64], pixels: Sequence[_Pixels]) -> Coordinates:
    """Return the chunks that have pixels, each as its rank among those along its direction."""
    for column, own in enumerate(pixels):
        plane = plane[np.isin(plane[:, column], own.chunks)]
    columns = [np.searchsorted(own.chunks, plane[:, n]) for n, own in enumerate(pixels)]
    return np.stack(columns, axis=1).astype(np.uint32)


def _room(comparison: ArrayComparison) -> int:
    """Return how many chunks of both versions a page may read."""
    sizes = [facts_of(node).chunk_bytes for node in (comparison.old, comparison.new)]
    if sum(sizes) > MOST_BYTES:
        size = f"{sum(sizes) >> 20} MiB, and a page reads {MOST_BYTES >> 20} MiB at most"
        raise NotDrawableError(f"a chunk in both versions has {size}: compare them in Python")
    return min(MOST_BYTES // max(1, sum(sizes)), MOST_CHUNKS // 2)


def _read_part(
    array: zarr.Array[Any],
    node: ArrayNode,
    plan: Plan,
    pixels: Sequence[_Pixels],
    parts: Sequence[slice],
) -> NDArray[np.float64]:
    """Read the pixels of some chunks; those that the array does not have are missing."""
    values = np.full([part.stop - part.start for part in parts], np.nan)
    window = list(plan.window)
    for own, part in zip(pixels, parts, strict=True):
        if own.axis is not None:
            start, _, stride = _bounds(plan.window[own.axis])
            first, last = start + part.start * stride, start + (part.stop - 1) * stride + 1
            window[own.axis] = slice(first, min(last, node.array.shape[own.axis]), stride)
            if window[own.axis].stop <= first:
                return values
    read = read_values(array, node, replace(plan, window=tuple(window)))
    values[: read.shape[0], : read.shape[1]] = read
    return values


def _bounds(window: slice) -> tuple[int, int, int]:
    return window.start, window.stop, window.step or 1


def _note(plan: Plan, changed: int, sampled: int, read: int, appeared: int, vanished: int) -> str:
    """Describe how the picture differs from the whole plane."""
    if not changed:
        return "No chunk of this plane changed."
    notes = []
    strides = [_bounds(plan.window[axis])[2] for axis in _drawn(plan)]
    if any(stride > 1 for stride in strides):
        names = [plan.dimensions[axis].name for axis in _drawn(plan)]
        pairs = zip(names, strides, strict=True)
        every = ", ".join(f"every {stride:,}th {name}" for name, stride in pairs if stride > 1)
        notes.append(f"Coarse: {every}.")
    if read < changed:
        notes.append(f"Partial: {read:,} of {changed:,} changed chunks were read.")
        if read < sampled:
            notes.append("The others are blank.")
    else:
        plural = "" if changed == 1 else "s"
        notes.append(f"{changed:,} changed chunk{plural} in this plane.")
    if appeared:
        notes.append(f"{appeared:,} values were missing before.")
    if vanished:
        notes.append(f"{vanished:,} values are missing now.")
    return " ".join(notes)


def _range(
    values: NDArray[np.float64], whole: dict[str, float | int] | None
) -> dict[str, float | int] | None:
    """Return the range of the values, with limits for colours that hide outliers and zeros."""
    changes = np.abs(values[np.isfinite(values) & (values != 0)])
    if whole is None or not len(changes):
        return whole
    high = float(np.percentile(changes, _MOST_COLOURS))
    return whole | {"low": -high, "high": high}
