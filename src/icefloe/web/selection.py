"""The part of an array that a request asks for, and how many chunks that needs.

A request names positions (`lat=52.1`) and inclusive ranges (`time=2024-01-01:2024-02-01`) in
coordinate values, or steps by their numbers (`i.time=3`, `i.time=0:10`), and a stride
(`stride.time=10`). The result is the numbers of the steps along each dimension.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from math import ceil, isfinite, prod
from typing import Any, Final

import numpy as np
import zarr
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.nodes import ArrayNode
from icefloe.pipeline.files.times import date_moment
from icefloe.records import Record
from icefloe.web.nodes import document_of, inner_shape_of, lengths_in
from icefloe.web.pictures import MOST_BYTES, MOST_CHUNKS, Dimension

INDEX: Final = "i."
STRIDE: Final = "stride."
COORDINATE: Final = "sel."
"""Before the name of a dimension that is also the name of another parameter."""
METHODS: Final = ("nearest", "exact")

_DATE: Final = re.compile(
    r"(\d{4})(?:-(\d\d)(?:-(\d\d)(?:[T ](\d\d)(?::(\d\d)(?::(\d\d)(?:\.(\d{1,6}))?)?)?)?)?)?"
    r"(Z|[+-][01]\d:[0-5]\d)?",
    re.ASCII,
)
_CIRCLE: Final = 360.0
_MOST_GRID_CHUNKS: Final = 1_000_000
"""How many chunks a dimension may have, in a grid whose chunks have different sizes."""
_MOST_STEPS: Final = MOST_BYTES // 8
"""How many steps of a dimension a request may have."""
_SAME_PLACE: Final = 1e-9
"""By how many degrees a longitude may differ from itself when it is counted another way."""
_WHOLE: Final = re.compile(r"-?[0-9]{1,18}")

type Steps = NDArray[np.int64]


class TooLargeError(InvalidInputError):
    """A request asks for more than a page reads or answers; the message says how to narrow it."""

    default_kind = ErrorKind.LIMIT_EXCEEDED


class AxisSelection(Record, eq=False):
    """The steps along a dimension that a request asks for."""

    name: str
    steps: Steps
    is_position: bool
    """Whether the request named one step, so that the answer does not have the dimension."""

    @property
    def is_contiguous(self) -> bool:
        """Whether the steps follow each other without a gap."""
        return len(self.steps) > 0 and bool((np.diff(self.steps) == 1).all())

    def to_json(self) -> dict[str, Any]:
        """Return the steps as plain values: a range with a stride, or a list.

        >>> AxisSelection("lon", np.array([2, 5, 8]), is_position=False).to_json()
        {'start': 2, 'stop': 9, 'step': 3}
        >>> AxisSelection("lon", np.array([8, 9, 0]), is_position=False).to_json()
        {'steps': [8, 9, 0]}
        """
        steps = self.steps
        distances = np.unique(np.diff(steps)).tolist()
        if len(steps) == 0 or len(distances) > 1 or min(distances, default=1) < 1:
            return {"steps": steps.tolist()}
        start, stop = int(steps[0]), int(steps[-1]) + 1
        return {"start": start, "stop": stop, "step": distances[0] if distances else 1}


class Query(Record):
    """The selection of a request, as texts."""

    positions: Mapping[str, str]
    """Positions and ranges in coordinate values, by the name of the dimension."""
    indexes: Mapping[str, str]
    strides: Mapping[str, str]
    method: str = "nearest"

    @property
    def names(self) -> list[str]:
        """The names of all dimensions that the request mentions."""
        return [*dict.fromkeys([*self.positions, *self.indexes, *self.strides])]


def parse_query(parameters: Iterable[tuple[str, str]], reserved: Iterable[str] = ()) -> Query:
    """Sort the parameters of a request; those in `reserved` have another meaning.

    A parameter without a value counts as not given, as forms send those.
    """
    positions: dict[str, str] = {}
    indexes: dict[str, str] = {}
    strides: dict[str, str] = {}
    prefixes = {INDEX: indexes, STRIDE: strides, COORDINATE: positions}
    method = "nearest"
    others = {*reserved}
    for key, value in parameters:
        if not value or key in others:
            continue
        if key == "method":
            if value not in METHODS:
                raise _wrong(f"method is {' or '.join(METHODS)}, not {value!r}")
            method = value
            continue
        name, target = key, positions
        for prefix, parts in prefixes.items():
            if key.startswith(prefix):
                name, target = key.removeprefix(prefix), parts
        if name in target:
            raise _wrong(f"{key!r} is given twice")
        target[name] = value
    if both := sorted(positions.keys() & indexes.keys()):
        raise _wrong(f"{both[0]!r} is selected by value and by number: choose one")
    return Query(positions, indexes, strides, method)


def select(dimensions: Sequence[Dimension], query: Query) -> tuple[AxisSelection, ...]:
    """Return the steps along each dimension; raise `InvalidInputError` for a bad request."""
    names = [dimension.name for dimension in dimensions]
    for name in query.names:
        if name not in names:
            available = f"the dimensions {', '.join(names)}" if names else "no dimensions"
            raise _wrong(f"there is no dimension {name!r}: the data has {available}")
    return tuple(_select_axis(dimension, query) for dimension in dimensions)


def _select_axis(dimension: Dimension, query: Query) -> AxisSelection:
    name = dimension.name
    stride = _stride(name, query.strides.get(name))
    if (text := query.positions.get(name)) is not None:
        steps, is_position = _by_value(dimension, text, query.method)
        steps = steps[::stride]
    else:
        numbers, is_position = _by_number(dimension, query.indexes.get(name, ":"))
        numbers = numbers[::stride]
        if len(numbers) > _MOST_STEPS:
            raise TooLargeError(
                f"the selection has {len(numbers):,} steps of {name}, and a request has"
                f" {_MOST_STEPS:,} at most: choose a range, with {INDEX}{name}=0:1000"
            )
        steps = np.arange(numbers.start, numbers.stop, numbers.step, dtype=np.int64)
    if is_position and name in query.strides:
        raise _wrong(f"{STRIDE}{name} needs a range of {name}, not a position")
    return AxisSelection(name, steps, is_position)


def _stride(name: str, text: str | None) -> int:
    if text is None:
        return 1
    if not _WHOLE.fullmatch(text) or int(text) < 1:
        raise _wrong(f"{STRIDE}{name} is a whole number from 1, not {text[:100]!r}")
    return int(text)


def _by_number(dimension: Dimension, text: str) -> tuple[range, bool]:
    first, colon, last = text.partition(":")
    for part in (first, last) if colon else (first,):
        if not (_WHOLE.fullmatch(part) or (colon and not part)):
            raise _wrong(
                f"{INDEX}{dimension.name} is a number or a range like 0:10, not {text[:100]!r}"
            )
    length = dimension.length
    if not colon:
        step = int(first) + length if first.startswith("-") else int(first)
        if not 0 <= step < length:
            raise _wrong(f"{dimension.name} has the steps 0 to {length - 1}, not {text}")
        return range(step, step + 1), True
    numbers = range(length)[int(first) if first else None : int(last) if last else None]
    if not numbers and length:
        raise _wrong(f"{dimension.name} has the steps 0 to {length - 1}, none of them in {text}")
    return numbers, False


# By value


def _by_value(dimension: Dimension, text: str, method: str) -> tuple[Steps, bool]:
    if dimension.values is None:
        raise _wrong(
            f"{dimension.name} has no coordinates that are numbers or times: select its steps by"
            f" their numbers, with {INDEX}{dimension.name}"
        )
    values = _comparable(dimension)
    if not len(values):
        raise _wrong(f"{dimension.name} has no steps")
    bounds = _parse(dimension, text)
    if len(bounds) == 1:
        return np.array([_position(dimension, values, bounds[0], text, method)], np.int64), True
    steps = _range(dimension, values, *bounds)
    if not len(steps):
        raise _wrong(f"no {dimension.name} is in {text!r}: {_extent(dimension)}")
    return steps, False


def _comparable(dimension: Dimension) -> NDArray[Any]:
    """Return coordinates as numbers; times as microseconds."""
    assert dimension.values is not None
    if dimension.axis.calendar is not None and dimension.axis.values is not None:
        return dimension.axis.values
    return dimension.values


type Bound = tuple[float, float] | None
"""The first and the last moment of a date, or a number twice; None for an open end."""


def _parse(dimension: Dimension, text: str) -> list[Bound]:
    """Return a position, or both bounds of a range.

    Times contain colons, so that all places where a range could be divided are tried. A slash
    divides, too, as in ISO 8601.
    """
    if "/" in text:
        parts = [text.split("/")]
    elif (whole := _bound(dimension, text)) is not None:
        return [whole]
    else:
        cuts = [match.start() for match in re.finditer(":", text)][:16]
        parts = [[text[:cut], text[cut + 1 :]] for cut in cuts]
    readings: list[list[Bound]] = []
    for part in parts:
        if len(part) != 2:
            continue
        bounds = [_bound(dimension, side.strip()) for side in part]
        if all(bound or not side.strip() for bound, side in zip(bounds, part, strict=True)):
            readings.append(bounds)
    if len(readings) == 1:
        return readings[0]
    example = "a date such as 2024-05-01" if dimension.axis.calendar else "a number"
    if readings:
        raise _wrong(f"{text!r} can be divided in several ways: put a slash between the bounds")
    raise _wrong(
        f"{dimension.name} is {example}, or a range like first:last, not {text[:100]!r}:"
        f" {_extent(dimension)}"
    )


def _bound(dimension: Dimension, text: str) -> Bound:
    calendar = dimension.axis.calendar
    if calendar is not None:
        return _moments(text, calendar)
    try:
        number = float(text)
    except ValueError:
        return None
    if not isfinite(number):
        return None
    stored = dimension.axis.values
    if stored is not None and stored.dtype == np.float32:
        with np.errstate(over="ignore"):
            number = float(np.float32(number))  # 52.1 means the stored number nearest to it
    return number, number


def _moments(text: str, calendar: str) -> Bound:
    """Return the first and the last microsecond of a date, in ISO 8601; None for other texts.

    >>> first, last = _moments("2024-02", "standard")
    >>> (last + 1 - first) // 86_400_000_000
    29
    >>> first, last = _moments("2024-02-30", "360_day")
    >>> (last + 1 - first) // 3_600_000_000
    24
    """
    match = _DATE.fullmatch(text)
    if match is None:
        return None
    *groups, zone = match.groups()
    parts = [int(group) for group in groups[:6] if group is not None]
    if zone is not None and len(parts) < 4:
        return None
    fraction = groups[6]
    first = date_moment(parts, calendar)
    if first is None:
        return None
    if fraction is not None:
        first += int(fraction.ljust(6, "0"))
        length = 10 ** (6 - len(fraction))
    elif len(parts) >= 3:
        length = (86_400, 3600, 60, 1)[len(parts) - 3] * 10**6
    else:
        year, month = parts[0], parts[1] if len(parts) > 1 else 12
        following = [year + 1, 1] if month == 12 else [year, month + 1]
        end = date_moment(following, calendar)
        if end is None:
            return None
        length = end - first
    if zone not in (None, "Z"):
        offset = datetime.fromisoformat(f"2000-01-01T00:00:00{zone}").utcoffset()
        assert offset is not None
        first -= round(offset.total_seconds()) * 10**6
    return first, first + length - 1


def _position(
    dimension: Dimension, values: NDArray[Any], bound: Bound, text: str, method: str
) -> int:
    assert bound is not None
    target = bound[0]
    differences = np.abs(values.astype(np.float64) - target)
    if dimension.axis.calendar is not None:
        differences = np.abs(values - int(target)).astype(np.float64)
    if _is_circle(dimension):
        differences %= _CIRCLE
        differences = np.minimum(differences, _CIRCLE - differences)
    if not np.isfinite(differences).any():
        raise _wrong(
            f"the coordinates of {dimension.name} are missing: use {INDEX}{dimension.name}"
        )
    step = int(np.nanargmin(differences))
    if method == "exact" and differences[step] > (_SAME_PLACE if _is_circle(dimension) else 0):
        nearest = dimension.axis.label(step)
        raise _wrong(f"{dimension.name} has no step at {text}: the nearest one is {nearest}")
    if differences[step] > _widest_step(values):
        raise _wrong(f"{dimension.name} {text} is outside of the data: {_extent(dimension)}")
    return step


def _widest_step(values: NDArray[Any]) -> float:
    """Return the largest distance between neighbours; a position farther outside is refused."""
    distances = np.abs(np.diff(values.astype(np.float64)))
    finite = distances[np.isfinite(distances)]
    return float(finite.max()) if len(finite) else float("inf")


def _range(dimension: Dimension, values: NDArray[Any], first: Bound, last: Bound) -> Steps:
    low = -np.inf if first is None else first[0]
    high = np.inf if last is None else last[1]
    if _is_circle(dimension) and first is not None and last is not None:
        return _range_on_circle(values, low, high)
    if low > high and first is not None and last is not None:
        low, high = last[0], first[1]  # coordinates may run downwards, and requests, too
    return np.flatnonzero((values >= low) & (values <= high)).astype(np.int64)


def _range_on_circle(values: NDArray[Any], west: float, east: float) -> Steps:
    """Return the longitudes from west to east, whether they are counted to 180 or to 360.

    A range whose first bound is the greater one leads across the edge of the map.

    >>> _range_on_circle(np.arange(0.0, 360, 90), -90, 90).tolist()
    [3, 0, 1]
    """
    if values.min() <= west <= east <= values.max():
        return np.flatnonzero((values >= west) & (values <= east)).astype(np.int64)
    width = east - west if west <= east else (east - west) % _CIRCLE
    offsets = (values - west + _SAME_PLACE) % _CIRCLE
    chosen = np.flatnonzero(offsets <= width + 2 * _SAME_PLACE)
    order = np.argsort(offsets[chosen], kind="stable")
    if values[0] > values[-1]:
        order = order[::-1]
    return chosen[order].astype(np.int64)


def _is_circle(dimension: Dimension) -> bool:
    """Return whether coordinates are longitudes of which no two mean the same place."""
    values = dimension.values
    if dimension.role != "longitude" or values is None or not np.isfinite(values).all():
        return False
    return len(values) > 0 and bool(np.ptp(values) < _CIRCLE)


def _extent(dimension: Dimension) -> str:
    label = dimension.axis.label
    return f"it has {label(0)} to {label(dimension.length - 1)}" if dimension.length else "empty"


def _wrong(problem: str) -> InvalidInputError:
    return InvalidInputError(problem, ErrorKind.INVALID_REQUEST)


# Chunks


class Grid(Record, eq=False):
    """The chunks of an array along each dimension."""

    edges: tuple[NDArray[np.int64] | int, ...]
    """The length of all chunks, or the first step behind each chunk."""

    def chunks_of(self, axis: int, steps: Steps) -> Steps:
        """Return the numbers of the chunks that some steps are in, each once and in order."""
        edges = self.edges[axis]
        if isinstance(edges, int):
            return np.unique(steps // edges)
        return np.unique(np.searchsorted(edges, steps, "right")).astype(np.int64)

    def lengths_of(self, axis: int, chunks: Steps) -> Steps:
        """Return the lengths of some chunks."""
        edges = self.edges[axis]
        if isinstance(edges, int):
            return np.full(len(chunks), edges, np.int64)
        return np.diff(edges, prepend=0)[chunks]


def storage_grid(node: ArrayNode, open_array: Callable[[], zarr.Array[Any]]) -> Grid:
    """Return the chunks that are stored as objects or ranges.

    The array is opened only if its chunks have different sizes.
    """
    lengths = _regular(document_of(node), len(node.array.shape))
    if lengths is not None:
        return Grid(lengths)
    if max(node.array.num_chunks, default=0) > _MOST_GRID_CHUNKS:
        raise TooLargeError(f"{node.path} has more chunks along a dimension than a page counts")
    return Grid(tuple(np.cumsum(sizes, dtype=np.int64) for sizes in open_array().write_chunk_sizes))


def reading_grid(node: ArrayNode, array: zarr.Array[Any]) -> Grid:
    """Return the chunks that are decoded whole: those within a shard, if there are shards."""
    inner = inner_shape_of(document_of(node), len(node.array.shape))
    return storage_grid(node, lambda: array) if inner is None else Grid(inner)


def _regular(document: Mapping[str, Any], dimensions: int) -> tuple[int, ...] | None:
    grid = document.get("chunk_grid")
    if not isinstance(grid, dict) or grid.get("name") != "regular":
        return None
    return lengths_in(grid.get("configuration"), dimensions)


class ReadCost(Record):
    """The cost of a read: chunks, and the bytes of their values."""

    chunks: int
    size_bytes: int


def read_cost(grid: Grid, selection: Sequence[AxisSelection], item_bytes: int) -> ReadCost:
    """Count the chunks of a selection, and the bytes that they have when they are decoded."""
    count, values = 1, 1
    for axis, chosen in enumerate(selection):
        chunks = grid.chunks_of(axis, chosen.steps)
        count *= len(chunks)
        values *= int(grid.lengths_of(axis, chunks).sum())
    return ReadCost(count, values * item_bytes)


def check_cost(costs: Iterable[ReadCost], selection: Sequence[AxisSelection]) -> None:
    """Raise `TooLargeError` if reads together need more than a page reads."""
    all_costs = [*costs]
    chunks = sum(cost.chunks for cost in all_costs)
    size = sum(cost.size_bytes for cost in all_costs)
    if chunks > MOST_CHUNKS:
        raise TooLargeError(
            f"the selection is in {chunks:,} chunks, and one request reads {MOST_CHUNKS:,} at"
            f" most: {narrower(selection)}"
        )
    if size > MOST_BYTES:
        raise TooLargeError(
            f"the chunks of the selection have {ceil(size / 2**20):,} MiB, and one request reads"
            f" {MOST_BYTES >> 20} MiB at most: {narrower(selection)}"
        )


def narrower(selection: Sequence[AxisSelection]) -> str:
    """Return the advice how to ask for less."""
    wide = [axis for axis in selection if len(axis.steps) > 1]
    if not wide:
        return "read the array with Zarr or Icefloe"
    longest = max(wide, key=lambda axis: len(axis.steps))
    name, count = longest.name, len(longest.steps)
    return (
        f"choose a range of {name}, which has {count:,} steps here"
        f" ({name}=first:last or {INDEX}{name}=0:{max(1, count // 10)})"
    )


def size_of(selection: Sequence[AxisSelection]) -> int:
    """Return how many values a selection has."""
    return prod(len(axis.steps) for axis in selection)
