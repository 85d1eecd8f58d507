"""Coarse values of an array for a picture: a map, an image or a line.

The server sends numbers and the browser paints them. A picture reads whole chunks, so what it may
read is limited: a plane that is too large is shown in part, and a chunk that is too large is not
read at all. The page tells which.
"""

import base64
import json
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from math import ceil, prod
from typing import Any, Final

import numpy as np
import zarr
from numpy.typing import NDArray

from icefloe.errors import IcefloeError, InvalidInputError
from icefloe.format.nodes import ArrayNode
from icefloe.format.paths import child_path, node_name, parent_path
from icefloe.pipeline.coverage import Axis
from icefloe.pipeline.files.facts import LoadedValues
from icefloe.records import Record
from icefloe.web import packing
from icefloe.web.nodes import ArrayFacts, attributes_of, facts_of, item_bytes
from icefloe.web.texts import shown_name
from icefloe.web.times import TimeScale, mark_missing_times
from icefloe.web.versions import Version
from icefloe.zarr_store.openings import with_rectilinear

MOST_PIXELS: Final = 512
"""How many values of a picture are beside each other, and one above the other."""
MOST_BYTES: Final = 64 << 20
"""How many bytes of decoded chunks a picture may need."""
MOST_CHUNKS: Final = 1024
"""How many chunks a picture may need."""
MOST_EXACT: Final = 64
"""How many rows and columns of a picture are asked for exactly."""
_MOST_COORDINATES: Final = 1_000_000
"""Coordinates of a longer dimension are not read; its steps are numbers then."""
_REGULAR: Final = 0.01
"""By which share of a step the steps of a regular grid may differ."""
_MOST_LABELS: Final = 7
"""At most this many labels are below an axis, or beside it."""
_FEWEST_LABELS: Final = 3
_MOST_BANDS: Final = 4
"""Dimensions with so few steps, as of colours or bounds, are not drawn if two others are longer."""
_EPOCH: Final = "microseconds since 1970-01-01"
_ANGLES: Final = (15.0, 30.0, 45.0, 60.0, 90.0)
"""Round numbers of degrees."""


class PictureKind(StrEnum):
    """How values are drawn."""

    MAP = "map"
    IMAGE = "image"
    LINE = "line"
    VALUE = "value"


class NotDrawableError(InvalidInputError):
    """An array, or a part of it, cannot be drawn; the message says why."""


class Dimension(Record, eq=False):
    """A dimension of an array, with its coordinate if there is one."""

    name: str
    length: int
    values: NDArray[np.float64] | None
    """The coordinates as numbers; None if there are none."""
    units: str
    role: str
    """`latitude`, `longitude`, or nothing."""
    axis: Axis

    @property
    def is_regular(self) -> bool:
        """Whether the coordinates have a fixed step."""
        if self.values is None or len(self.values) < 2 or not np.isfinite(self.values).all():
            return False
        steps = np.diff(self.values)
        return bool(steps[0] != 0 and np.ptp(steps) <= _REGULAR * abs(steps.mean()))


class Plan(Record, eq=False):
    """The part of an array that a picture shows: some dimensions, at a step of the others."""

    kind: PictureKind
    dimensions: tuple[Dimension, ...]
    rows: int | None
    """The dimension drawn downwards; None for a line or a value."""
    columns: int | None
    """The dimension drawn to the right; None for a value."""
    index: tuple[int, ...]
    """The step along each dimension; along a drawn one, it is near the middle of what is read."""
    window: tuple[slice, ...]
    """The part of each dimension that is read, with the stride."""
    in_part: tuple[int, ...] = ()
    """The drawn dimensions of which only a part is read."""
    note: str = ""
    """How the picture differs from the whole plane; empty if it does not."""


class Picture(Record, eq=False):
    """The values of a picture, and what a browser needs to label them."""

    values: NDArray[np.float32] | NDArray[np.float64]
    """Numbers with 32 bits; times have 64."""
    header: Mapping[str, Any]

    def to_bytes(self) -> bytes:
        """Return the length of the header in 4 bytes, the header as JSON, and the values.

        The header ends in blanks, so that the values begin at a multiple of 4 bytes. All numbers
        have the lowest byte first. If the header has `levels`, the values are packed; if it has
        `wide`, they have 64 bits.
        """
        is_wide = self.values.dtype == np.float64
        header = dict(self.header) | ({"wide": True} if is_wide else {})
        content = self.values.astype("<f8" if is_wide else "<f4").tobytes()
        if self.values.size > packing.MOST_PLAIN:
            header.pop("wide", None)
            packed = packing.pack(self.values.astype(np.float32))
            header |= {"levels": packed.levels, "rounding": packed.rounding}
            content = packed.content
        text = json.dumps(header, allow_nan=False, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 4)
        return len(text).to_bytes(4, "little") + text + content

    def exact(self, rows: Sequence[int], columns: Sequence[int]) -> "Picture":
        """Return the values of some rows and columns; there are so few that they are not packed.

        Raise `InvalidInputError` for rows and columns that the picture does not have.
        """
        for numbers, count in zip((rows, columns), self.values.shape, strict=True):
            if len(numbers) > MOST_EXACT or not all(0 <= number < count for number in numbers):
                problem = f"a part of this picture has at most {MOST_EXACT} rows and columns"
                raise InvalidInputError(f"{problem}, each from 0 to {count - 1}")
        values = self.values[np.ix_(rows, columns)]
        return Picture(values, {"shape": list(values.shape), "units": self.header["units"]})


# Planning


def dimensions_of(
    version: Version, node: ArrayNode, *, with_itself: bool = False
) -> tuple[Dimension, ...]:
    """Return the dimensions of an array with the coordinates beside it.

    `with_itself` makes the values of a coordinate the coordinates of its own dimension.
    """
    facts = facts_of(node)
    return tuple(
        _dimension(version, node, name, length, with_itself=with_itself)
        for name, length in zip(facts.dimensions, facts.shape, strict=True)
    )


def _dimension(
    version: Version, node: ArrayNode, name: str, length: int, *, with_itself: bool
) -> Dimension:
    plain = Dimension(name, length, None, "", "", Axis(name, length))
    coordinate = coordinate_of(version, node.path, name, length)
    if coordinate is None or (coordinate.path == node.path and not with_itself):
        return plain
    dimension: Dimension | None = version.dimensions.get(coordinate.path)
    if dimension is None:
        dimension = version.dimensions[coordinate.path] = (
            _read_dimension(version, coordinate) or plain
        )
    return dimension


def _read_dimension(version: Version, coordinate: ArrayNode) -> Dimension | None:
    """Read the coordinates of a dimension; None if they are no numbers or cannot be read."""
    name, attributes = node_name(coordinate.path), attributes_of(coordinate)
    units, calendar = _text(attributes, "units"), _text(attributes, "calendar")
    try:
        raw = np.asarray(open_array(version, coordinate.path)[:])
    except (IcefloeError, ValueError, OSError):
        return None  # a coordinate that cannot be read does not hide the data
    if raw.dtype.kind == "M" and not np.isnat(raw).any():
        raw, units, calendar = raw.astype("datetime64[us]").astype(np.int64), _EPOCH, ""
    if raw.dtype.kind not in "iuf":
        return None
    axis = Axis.of(name, LoadedValues(raw, units or None, calendar or None))
    values = _unpacked(raw, attributes)
    return Dimension(name, len(raw), values, shown_name(units), _role(name, attributes), axis)


def coordinate_of(version: Version, path: str, name: str, length: int) -> ArrayNode | None:
    """Return the nearest array with the name of a dimension, in a group above an array.

    None if it does not fit the dimension, or is too long to read.
    """
    group = parent_path(path)
    while group is not None:
        node = version.state.tree.find(child_path(group, name))
        if isinstance(node, ArrayNode):
            fits = node.array.shape == (length,) and length <= _MOST_COORDINATES
            return node if fits else None
        group = parent_path(group)
    return None


def _role(name: str, attributes: Mapping[str, Any]) -> str:
    """Return whether a coordinate is a latitude or a longitude, by the CF conventions.

    >>> _role("y", {"units": "degrees_north"}), _role("longitude", {}), _role("time", {})
    ('latitude', 'longitude', '')
    """
    words = {_text(attributes, key).lower() for key in ("standard_name", "units")} | {name.lower()}
    if words & {"latitude", "lat"} or any(re.fullmatch("degrees?_?n(orth)?", w) for w in words):
        return "latitude"
    if words & {"longitude", "lon", "long"} or any(
        re.fullmatch("degrees?_?e(ast)?", w) for w in words
    ):
        return "longitude"
    return ""


def make_plan(version: Version, node: ArrayNode, index: Sequence[int] | None = None) -> Plan:
    """Decide how an array is drawn; raise `NotDrawableError` if it cannot be.

    `index` has a step for each dimension. Where an array is too large to be drawn whole, those of
    the drawn dimensions are in the part that is drawn; without an index, it is the middle.
    """
    facts, dimensions = facts_of(node), dimensions_of(version, node)
    _check_numbers(facts, "to draw")
    kind, rows, columns = _choose_axes(dimensions)
    drawn = [axis for axis in (rows, columns) if axis is not None]
    middle = (d.length // 2 if axis in drawn else 0 for axis, d in enumerate(dimensions))
    steps = tuple(index if index is not None else middle)
    if len(steps) != len(dimensions):
        problem = f"{node.path} has {len(dimensions)} dimensions, the index has {len(steps)}"
        raise NotDrawableError(problem)
    for step, dimension in zip(steps, dimensions, strict=True):
        if not 0 <= step < dimension.length:
            problem = f"{dimension.name} has the steps 0 to {dimension.length - 1}, not {step}"
            raise NotDrawableError(problem)
    window, in_part, note = _fit(facts, drawn, steps)
    return Plan(kind, dimensions, rows, columns, steps, window, in_part, note)


def _check_numbers(facts: ArrayFacts, purpose: str) -> None:
    if item_bytes(facts.data_type) is None or facts.data_type.startswith(("r", "complex")):
        raise NotDrawableError(f"values of the type {facts.data_type} are no numbers {purpose}")
    if 0 in facts.shape:
        raise NotDrawableError("the array is empty: a dimension has the length 0")


def _choose_axes(
    dimensions: tuple[Dimension, ...],
) -> tuple[PictureKind, int | None, int | None]:
    if not dimensions:
        return PictureKind.VALUE, None, None
    long = [number for number, dimension in enumerate(dimensions) if dimension.length > 1]
    roles = {dimension.role: number for number, dimension in enumerate(dimensions)}
    if "latitude" in roles and "longitude" in roles:
        rows, columns = roles["latitude"], roles["longitude"]
        if rows in long and columns in long:
            is_regular = dimensions[rows].is_regular and dimensions[columns].is_regular
            return (PictureKind.MAP if is_regular else PictureKind.IMAGE), rows, columns
    wide = [number for number in long if dimensions[number].length > _MOST_BANDS]
    if len(wide) >= 2:
        long = wide
    if len(long) >= 2:
        return PictureKind.IMAGE, long[-2], long[-1]
    return PictureKind.LINE, None, long[0] if long else len(dimensions) - 1


def _fit(
    facts: ArrayFacts, drawn: Sequence[int], steps: Sequence[int]
) -> tuple[tuple[slice, ...], tuple[int, ...], str]:
    """Return what a picture may read, the dimensions that it shows in part, and a note about it.

    Each part is that around the step along its dimension.
    """
    chunks = facts.part_shape
    counts = [ceil(facts.shape[axis] / chunks[axis]) for axis in drawn]
    most = _most_chunks(facts)
    whole = prod(counts)
    while prod(counts) > most:
        longest = counts.index(max(counts))
        counts[longest] = ceil(counts[longest] / 2)
    window = [slice(0, length) for length in facts.shape]
    in_part = []
    for axis, count in zip(drawn, counts, strict=True):
        all_chunks = ceil(facts.shape[axis] / chunks[axis])
        if count < all_chunks:
            in_part.append(axis)
        first = round((steps[axis] + 0.5) / chunks[axis] - count / 2)
        first = max(0, min(first, all_chunks - count))
        start = first * chunks[axis]
        stop = min(facts.shape[axis], (first + count) * chunks[axis])
        window[axis] = slice(start, stop, max(1, ceil((stop - start) / MOST_PIXELS)))
    note = ""
    if prod(counts) < whole:
        note = f"A part of the array: {prod(counts):,} of {whole:,} chunks."
    return tuple(window), tuple(in_part), note


def _most_chunks(facts: ArrayFacts) -> int:
    """Return how many chunks of an array a page may read; raise an error if none."""
    if facts.part_bytes > MOST_BYTES:
        sizes = f"{facts.part_bytes >> 20} MiB, and a page reads {MOST_BYTES >> 20} MiB at most"
        raise NotDrawableError(f"a chunk has {sizes}: read it in Python, or rechunk it")
    return max(1, min(MOST_BYTES // max(1, facts.part_bytes), MOST_CHUNKS))


# Reading


def open_array(version: Version, path: str) -> zarr.Array[Any]:
    """Open an array of a version with Zarr."""
    with with_rectilinear():
        return zarr.open_array(version.session.store, path=path.lstrip("/"), mode="r")


def read_picture(version: Version, node: ArrayNode, plan: Plan) -> Picture:
    """Read the values of a picture."""
    values = read_values(open_array(version, node.path), node, plan)
    scale = TimeScale.of(node)
    if scale is None:
        return picture_of(node, plan, values.astype(np.float32))
    times, described = scale.header(values)
    picture = picture_of(node, plan, times)
    return Picture(times, {**picture.header, "units": "", "times": described})


def read_values(array: zarr.Array[Any], node: ArrayNode, plan: Plan) -> NDArray[np.float64]:
    """Read the values of the part of an array that a plan shows, in rows and columns."""
    drawn = [axis for axis in (plan.rows, plan.columns) if axis is not None]
    selection = tuple(
        plan.window[axis] if axis in drawn else plan.index[axis]
        for axis in range(len(plan.dimensions))
    )
    raw = np.asarray(array[selection])
    values = _unpacked(raw, attributes_of(node), facts_of(node).fill_value)
    if plan.rows is not None and plan.columns is not None and plan.rows > plan.columns:
        values = values.T
    return np.atleast_2d(values)


def picture_of(
    node: ArrayNode, plan: Plan, values: NDArray[np.float32] | NDArray[np.float64]
) -> Picture:
    """Return values as a picture, with what a browser needs to label them."""
    facts = facts_of(node)
    axes = {"rows": plan.rows, "columns": plan.columns}
    header = {
        "kind": plan.kind,
        "name": shown_name(node_name(node.path)),
        "units": facts.units,
        "long_name": facts.long_name,
        "shape": list(values.shape),
        "range": _range(values),
        "note": plan.note,
        "axes": {
            name: {"dimension": axis} | _axis_header(plan.dimensions[axis], plan.window[axis])
            for name, axis in axes.items()
            if axis is not None
        },
        "index": [
            {
                "name": shown_name(dimension.name),
                "step": step,
                "label": dimension.axis.label(step),
            }
            for dimension, step in zip(plan.dimensions, plan.index, strict=True)
        ],
    }
    return Picture(values, header)


def _axis_header(dimension: Dimension, window: slice) -> dict[str, Any]:
    steps = np.arange(window.start, window.stop, window.step)
    values = steps.astype(np.float64) if dimension.values is None else dimension.values[steps]
    return {
        "name": shown_name(dimension.name),
        "units": dimension.units if dimension.axis.calendar is None else "",
        "start": window.start,
        "stride": window.step,
        "values": [value if np.isfinite(value) else None for value in values.tolist()],
        "labels": _round_labels(dimension, steps, values) or _even_labels(dimension, steps),
        "dates": None
        if dimension.axis.calendar is None
        else [dimension.axis.label(step) for step in steps.tolist()],
    }


def _even_labels(dimension: Dimension, steps: NDArray[np.int64]) -> list[list[int | str]]:
    """Return some steps at the same distance from each other, with their labels."""
    places = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), _MOST_LABELS)).astype(int))
    return [[int(step), dimension.axis.label(int(step))] for step in steps[places]]


def _round_labels(
    dimension: Dimension, steps: NDArray[np.int64], values: NDArray[np.float64]
) -> list[list[float | str]]:
    """Return the places of round numbers among the steps, with these numbers.

    There are none where the coordinate has no order or is a time.
    """
    changes = np.diff(values)
    is_ordered = bool((changes > 0).all() or (changes < 0).all())
    if dimension.axis.calendar is not None or not len(changes):
        return []
    if not is_ordered or not np.isfinite(values).all():
        return []
    low, high = sorted((float(values[0]), float(values[-1])))
    width = round_width(high - low, _MOST_LABELS - 1, is_angle="degree" in dimension.units)
    if dimension.values is None:
        width = max(width, 1.0)  # there is nothing between two steps
    multiples = np.arange(np.ceil(low / width), np.floor(high / width) + 1) * width
    if len(multiples) < _FEWEST_LABELS:
        return []
    order = slice(None) if changes[0] > 0 else slice(None, None, -1)
    places = np.interp(multiples, values[order], steps[order])
    return [
        [float(position), f"{multiple + 0.0:.10g}"]
        for position, multiple in zip(places.tolist(), multiples.tolist(), strict=True)
    ]


def round_width(span: float, most: int, *, is_angle: bool = False) -> float:
    """Return the least round number that divides a span into at most `most` parts.

    >>> round_width(358, 6, is_angle=True), round_width(0.47, 6)
    (60.0, 0.1)
    """
    least = span / most
    if is_angle and 10 < least <= _ANGLES[-1]:
        return next(angle for angle in _ANGLES if angle >= least)
    power = 10.0 ** np.floor(np.log10(least))
    return float(next(factor for factor in (1, 2, 5, 10) if factor * power >= least) * power)


def _range(
    values: NDArray[np.float32] | NDArray[np.float64],
) -> dict[str, float | int] | None:
    """Return the least and the greatest value, those that hide outliers, and what is missing."""
    finite = values[np.isfinite(values)].astype(np.float64)
    if not len(finite):
        return None
    low, high = np.percentile(finite, [2, 98]).tolist()
    return {
        "min": float(finite.min()),
        "max": float(finite.max()),
        "low": low,
        "high": high,
        "mean": float(finite.mean()),
        "missing": int(values.size - len(finite)),
    }


def _unpacked(
    raw: NDArray[Any], attributes: Mapping[str, Any], fill_value: Any = None
) -> NDArray[np.float64]:
    """Return values as the CF conventions mean them: missing ones as NaN, packed ones unpacked.

    >>> _unpacked(np.array([1, -9], "i2"), {"_FillValue": -9, "scale_factor": 0.5}).tolist()
    [0.5, nan]
    """
    if raw.dtype.kind in "mM":
        missing_time = np.isnat(raw)
        return np.where(missing_time, np.nan, raw.astype(np.int64).astype(np.float64))
    values = raw.astype(np.float64)
    markers = [attributes.get("_FillValue"), attributes.get("missing_value")]
    if markers == [None, None] and raw.dtype.kind == "f":
        markers = [fill_value]
        if fill_value == 0:  # the default of Zarr marks nothing
            markers = []
    for marker in markers:
        for number in map(_number, marker if isinstance(marker, list) else [marker]):
            if number is not None:
                values[raw == number] = np.nan
    mark_missing_times(values, raw, attributes)
    scale, offset = attributes.get("scale_factor"), attributes.get("add_offset")
    if isinstance(scale, int | float):
        values *= scale
    if isinstance(offset, int | float):
        values += offset
    return values


def _number(marker: Any) -> int | float | None:
    """Return the number that marks missing values; None if it is none.

    xarray stores floating-point markers as the Base64 of 8 bytes.

    >>> _number(-999), _number("AAAAAAAA8D8="), _number("missing")
    (-999, 1.0, None)
    """
    if isinstance(marker, int | float):
        return marker
    try:
        return float(np.frombuffer(base64.b64decode(marker, validate=True), "<f8").item())
    except (TypeError, ValueError):
        return None


def _text(attributes: Mapping[str, Any], key: str) -> str:
    value = attributes.get(key)
    return value if isinstance(value, str) else ""


# Series


def read_series(version: Version, node: ArrayNode, axis: int, index: Sequence[int]) -> Picture:
    """Read the values along a dimension at a point; every n-th step if they are in many chunks."""
    plan = make_plan(version, node, index)
    if not 0 <= axis < len(plan.dimensions):
        problem = f"{node.path} has {len(plan.dimensions)} dimensions, counted from 0; not {axis}"
        raise NotDrawableError(problem)
    facts = facts_of(node)
    length, chunk = facts.shape[axis], facts.part_shape[axis]
    most, needed = _most_chunks(facts), ceil(length / chunk)
    stride = max(1, ceil(length / (2 * MOST_PIXELS)))
    if needed > most:
        stride = max(stride, chunk * ceil(needed / most))
    note = "" if stride == 1 else f"Every {stride:,}th step of {length:,}."
    window = list(plan.window)
    window[axis] = slice(0, length, stride)
    line = Plan(PictureKind.LINE, plan.dimensions, None, axis, plan.index, tuple(window), (), note)
    return read_picture(version, node, line)


# Statistics


class Statistics(Record):
    """Figures about the values of an array."""

    is_exact: bool
    """Whether all values were read; otherwise the figures are of a sample."""
    values: int
    missing: int
    least: float | None
    greatest: float | None
    mean: float | None
    deviation: float | None


def shown_figures(node: ArrayNode, figures: Statistics) -> list[tuple[str, str]]:
    """Return the names and the texts of figures, times as dates."""
    scale, units = TimeScale.of(node), facts_of(node).units

    def plain(number: float) -> str:
        return f"{number:.6g} {units}".strip()

    label = plain if scale is None else scale.label
    named = (
        ("least", figures.least, label),
        ("mean", figures.mean, label),
        ("greatest", figures.greatest, label),
        ("standard deviation", figures.deviation, plain if scale is None else scale.length),
    )
    return [(name, show(number)) for name, number, show in named if number is not None]


_SAMPLE_CHUNKS: Final = 16
_MOST_EXACT_VALUES: Final = 1 << 22
"""Figures of arrays with more values, or with more chunks than the next number, are of a sample."""
_MOST_EXACT_CHUNKS: Final = 256


def _sample(facts: ArrayFacts) -> tuple[list[tuple[slice, ...]], bool]:
    """Return the parts of an array to compute with, and whether they are all."""
    if facts.num_values <= _MOST_EXACT_VALUES and facts.grid_chunks <= _MOST_EXACT_CHUNKS:
        return [tuple(slice(0, length) for length in facts.shape)], True
    total = prod(facts.num_parts)
    most = min(_SAMPLE_CHUNKS, _most_chunks(facts))
    numbers = np.unique(np.linspace(0, total - 1, min(total, most)).astype(np.int64))
    positions = [np.unravel_index(number, facts.num_parts) for number in numbers.tolist()]
    parts = [
        tuple(
            slice(int(part_index) * part, min(length, (int(part_index) + 1) * part))
            for part_index, part, length in zip(
                position, facts.part_shape, facts.shape, strict=True
            )
        )
        for position in positions
    ]
    return parts, len(parts) == total


def read_statistics(version: Version, node: ArrayNode) -> Statistics:
    """Compute figures about an array: of all values if they are few, else of some chunks."""
    facts = facts_of(node)
    _check_numbers(facts, "to compute with")
    parts, is_exact = _sample(facts)
    array, attributes = open_array(version, node.path), attributes_of(node)
    values, count, mean, squares = 0, 0, 0.0, 0.0
    least, greatest = np.inf, -np.inf
    for selection in parts:
        part = _unpacked(np.asarray(array[selection]), attributes, facts.fill_value)
        finite = part[np.isfinite(part)]
        values += part.size
        if not finite.size:
            continue
        # Sums of squares about the mean of each part lose no digits to a large mean.
        shift = float(finite.mean()) - mean
        weight = finite.size / (count + finite.size)
        squares += float(finite.var()) * finite.size + shift * shift * count * weight
        mean += shift * weight
        count += finite.size
        least, greatest = min(least, float(finite.min())), max(greatest, float(finite.max()))
    missing = values - count
    if not count:
        return Statistics(is_exact, values, missing, None, None, None, None)
    deviation = (squares / count) ** 0.5
    return Statistics(is_exact, values, missing, least, greatest, mean, deviation)
