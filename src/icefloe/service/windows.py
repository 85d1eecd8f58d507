"""Coordinates of a version: which of their indices a range of values stands for.

A range begins at a chunk, because a chunk is referred to as a whole. What a subscriber wants is
widened to whole chunks. What a provider offers is narrowed to whole chunks, so that no byte
outside of the offer is referred to.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from math import ceil, lcm
from typing import Any, Final

import numpy as np
import zarr
from numpy.typing import NDArray

from icefloe.api.session import Session
from icefloe.catalog.model import Filter
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.nodes import ArrayNode, Node
from icefloe.service.domain.filters import Bound, bounds_of

_UNITS: Final = {
    "second": 1.0,
    "sec": 1.0,
    "minute": 60.0,
    "min": 60.0,
    "hour": 3600.0,
    "hr": 3600.0,
    "day": 86400.0,
    "millisecond": 1e-3,
    "microsecond": 1e-6,
    "nanosecond": 1e-9,
}
_SINCE: Final = re.compile(r"([a-z]+?)s? since (\d{4}-\d{1,2}-\d{1,2}.*)", re.IGNORECASE)
_CALENDARS: Final = frozenset({"standard", "gregorian", "proleptic_gregorian"})

type Window = tuple[int, int]
"""First index, and first index after."""


def coordinate_of(nodes: Mapping[str, Node], path: str, name: str | None) -> str:
    """Find the coordinate of a dimension: in the group of an array, or in one above."""
    folder = path
    while folder:
        folder = folder.rsplit("/", 1)[0]
        node = nodes.get(f"{folder}/{name}")
        if isinstance(node, ArrayNode) and len(node.array.shape) == 1:
            return node.path
    problem = f"{path} has the dimension {name!r}, for which there is no coordinate"
    raise InvalidInputError(f"{problem}: leave out its range", ErrorKind.INVALID_REQUEST)


def chunk_shape(node: Node) -> tuple[int, ...]:
    """Return the size of the chunks of an array, which must all have the same."""
    grid = json.loads(node.user_data)["chunk_grid"]
    if grid["name"] != "regular":
        problem = f"{node.path} has chunks of different sizes, which a range cannot cut"
        raise InvalidInputError(problem, ErrorKind.INVALID_REQUEST)
    return tuple(grid["configuration"]["chunk_shape"])


def step_of(
    nodes: Mapping[str, Node], coordinates: Mapping[str, tuple[str | None, ...]], along: str
) -> int:
    """Return the number of indices at whose multiples chunks of all arrays begin."""
    return lcm(
        *(
            size
            for path, paths in coordinates.items()
            if len(paths) > 1
            for size, other in zip(chunk_shape(nodes[path]), paths, strict=True)
            if other == along
        )
    )


def wanted_window(
    session: Session,
    nodes: Mapping[str, Node],
    path: str,
    step: int,
    filters: Iterable[Filter],
) -> Window:
    """Return the indices that filters want, from the beginning of a chunk."""
    first, last = 0, _size(nodes, path)
    for filter_ in filters:
        low, high = _indices(session, nodes, path, filter_)
        first, last = max(first, low // step * step), min(last, high)
    return first, max(first, last)


def offered_window(
    session: Session,
    nodes: Mapping[str, Node],
    path: str,
    step: int,
    offered: Filter,
    wanted_filter: Filter | None,
) -> Window:
    """Return the indices that are wanted within the whole chunks that are offered."""
    low, high = _indices(session, nodes, path, offered)
    size = _size(nodes, path)
    low, high = ceil(low / step) * step, high if high == size else high // step * step
    first, last = wanted_window(
        session, nodes, path, step, () if wanted_filter is None else (wanted_filter,)
    )
    first, last = max(first, low), min(last, high)
    return first, max(first, last)


def _size(nodes: Mapping[str, Node], path: str) -> int:
    node = nodes[path]
    assert isinstance(node, ArrayNode)
    return node.array.shape[0]


def _indices(session: Session, nodes: Mapping[str, Node], path: str, filter_: Filter) -> Window:
    """Return which indices of a coordinate have values within the range of a filter."""
    name = path.rsplit("/", 1)[1]
    if name not in filter_.ranges:
        return 0, _size(nodes, path)
    array = zarr.open_array(session.store, path=path, mode="r")
    values = np.asarray(array[:])
    number = _numbers(path, dict(array.attrs), values)
    bounds = [number(bound) for bound in bounds_of(filter_, name)]
    return indices_between(path, values, *bounds)


def indices_between(path: str, values: NDArray[Any], first: Any, last: Any) -> Window:
    """Return the indices of sorted values from a first to a last one, both included.

    >>> indices_between("/x", np.array([30.0, 20.0, 10.0]), 15.0, None)
    (0, 2)
    """
    steps = values[1:] > values[:-1]
    descends = len(steps) > 0 and not steps[0]
    ordered = values[::-1] if descends else values
    if not (ordered[1:] > ordered[:-1]).all():
        problem = f"the values of the coordinate {path} are not sorted: it cannot have a range"
        raise InvalidInputError(problem, ErrorKind.INVALID_REQUEST)
    low = 0 if first is None else int(np.searchsorted(ordered, first, "left"))
    high = len(values) if last is None else int(np.searchsorted(ordered, last, "right"))
    high = max(low, high)
    return (len(values) - high, len(values) - low) if descends else (low, high)


def _numbers(
    path: str, attributes: Mapping[str, Any], values: NDArray[Any]
) -> Callable[[Bound], Any]:
    """Return a function that writes a bound as the values of a coordinate are written."""
    if values.dtype.kind == "M":
        return lambda bound: None if bound is None else _as_datetime64(path, bound)
    match = _SINCE.fullmatch(str(attributes.get("units", "")).strip())
    calendar = str(attributes.get("calendar", "standard")).lower()

    def number(bound: Bound) -> Any:
        if not isinstance(bound, datetime):
            return bound
        unit = _UNITS.get(match[1].lower()) if match else None
        if match is None or unit is None or calendar not in _CALENDARS:
            problem = f"the coordinate {path} has no times in a calendar that is known here"
            raise InvalidInputError(f"{problem}: use numbers", ErrorKind.INVALID_REQUEST)
        try:
            since = datetime.fromisoformat(_padded(match[2]))
        except ValueError:
            problem = f"the units of the coordinate {path} begin at no known time: {match[0]!r}"
            raise InvalidInputError(problem, ErrorKind.INVALID_REQUEST) from None
        since = since.replace(tzinfo=UTC) if since.tzinfo is None else since
        return (bound - since) / timedelta(seconds=1) / unit

    return number


def _as_datetime64(path: str, bound: Bound) -> np.datetime64:
    if not isinstance(bound, datetime):
        problem = f"the coordinate {path} has times: write the range like 2026-01-31"
        raise InvalidInputError(problem, ErrorKind.INVALID_REQUEST)
    return np.datetime64(bound.astimezone(UTC).replace(tzinfo=None))


def _padded(text: str) -> str:
    """Write a date like 1900-1-1 with two digits each."""
    date, _, rest = text.strip().replace("T", " ").partition(" ")
    year, month, day = date.split("-")
    hours = rest.removesuffix("UTC").strip().removesuffix(".0")
    return f"{year}-{int(month):02}-{int(day):02}" + (f" {hours}" if hours else "")
