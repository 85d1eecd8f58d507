"""Filters of listings and subscriptions: which part of a repository they stand for."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from icefloe.catalog.model import Filter
from icefloe.errors import ErrorKind, InvalidInputError

type Bound = float | datetime | None
"""The first or the last value of a coordinate; None without a limit."""

_MOST_NODES: Final = 1000
_MOST_RANGES: Final = 32


def check_filter(filter_: Filter) -> None:
    """Raise `InvalidInputError` for a filter that has more than one reading."""
    if len(filter_.nodes) > _MOST_NODES or len(filter_.ranges) > _MOST_RANGES:
        problem = f"a filter has at most {_MOST_NODES} nodes and {_MOST_RANGES} ranges"
        raise InvalidInputError(problem, ErrorKind.INVALID_REQUEST)
    for node in filter_.nodes:
        segments = node.split("/")[1:]
        if node != "/" and any(segment in {"", ".", ".."} for segment in segments):
            problem = f"{node!r} is not the path of a node: write it like /sea/temperature"
            raise InvalidInputError(problem, ErrorKind.INVALID_REQUEST)
    for dimension in filter_.ranges:
        first, last = bounds_of(filter_, dimension)
        if isinstance(first, datetime) != isinstance(last, datetime) and None not in (first, last):
            problem = f"the range of {dimension!r} mixes a number and a time"
            raise InvalidInputError(problem, ErrorKind.INVALID_REQUEST)


def bounds_of(filter_: Filter, dimension: str) -> tuple[Bound, Bound]:
    """Return the first and the last value of a dimension; text stands for a time in UTC.

    >>> bounds_of(Filter(ranges={"time": ("2026-01-01", None)}), "time")
    (datetime.datetime(2026, 1, 1, 0, 0, tzinfo=datetime.timezone.utc), None)
    """
    first, last = filter_.ranges.get(dimension, (None, None))
    return _bound(dimension, first), _bound(dimension, last)


def _bound(dimension: str, value: float | str | None) -> Bound:
    if not isinstance(value, str):
        return value
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        problem = f"{value!r} in the range of {dimension!r} is no time like 2026-01-31T12:00"
        raise InvalidInputError(problem, ErrorKind.INVALID_REQUEST) from None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def chosen_nodes(filters: Iterable[Filter], paths: Iterable[str]) -> set[str]:
    """Return the nodes that all filters include, with the groups that contain them.

    A group in a filter stands for everything below it.
    """
    chosen = set(paths)
    for filter_ in filters:
        if filter_.nodes:
            chosen = {p for p in chosen if any(_is_below(p, node) for node in filter_.nodes)}
    return chosen | {parent for path in chosen for parent in _parents(path)}


def _is_below(path: str, node: str) -> bool:
    return node in {"/", path} or path.startswith(f"{node}/")


def _parents(path: str) -> list[str]:
    segments = path.split("/")[1:-1]
    return ["/", *("/" + "/".join(segments[: end + 1]) for end in range(len(segments)))]
