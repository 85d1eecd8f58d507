"""Parts of repositories and buckets as people write them, in options of commands and in forms."""

from collections.abc import Iterable

from icefloe.catalog.model import Filter, SharedPrefix
from icefloe.errors import ErrorKind, InvalidInputError

type _Bound = float | str | None


def read_filter(nodes: Iterable[str], ranges: Iterable[str]) -> Filter | None:
    """Read the nodes and the ranges of a filter; return None if there are none.

    >>> read_filter(["/sst"], ["time=2026-01-01..", "lat=-30..30"]).ranges
    {'time': ('2026-01-01', None), 'lat': (-30.0, 30.0)}
    """
    paths, bounds = tuple(nodes), dict[str, tuple[_Bound, _Bound]]()
    for text in ranges:
        dimension, equals, rest = text.partition("=")
        first, dots, last = (part.strip() for part in rest.partition(".."))
        if not (dimension.strip() and equals and dots) or first == last == "":
            problem = f"{text!r} is no range like DIM=FIRST..LAST, DIM=FIRST.. or DIM=..LAST"
            raise InvalidInputError(problem, ErrorKind.INVALID_REQUEST)
        bounds[dimension.strip()] = (_bound(first), _bound(last))
    return Filter(paths, bounds) if paths or bounds else None


def range_texts(filter_: Filter) -> list[str]:
    """Return the ranges of a filter as they are written.

    >>> range_texts(Filter(ranges={"time": ("2026-01-01", None), "lat": (-30.0, 30.0)}))
    ['time=2026-01-01..', 'lat=-30..30']
    """
    return [
        f"{dimension}={_text(first)}..{_text(last)}"
        for dimension, (first, last) in filter_.ranges.items()
    ]


def read_shared_prefix(text: str) -> SharedPrefix:
    """Read a part of a bucket.

    >>> read_shared_prefix("tapes/daily/")
    SharedPrefix(bucket='tapes', prefix='daily/')
    """
    bucket, _, prefix = text.partition("/")
    return SharedPrefix(bucket, prefix)


def _bound(text: str) -> _Bound:
    try:
        return float(text) if text else None
    except ValueError:
        return text


def _text(bound: _Bound) -> str:
    if bound is None:
        return ""
    return f"{bound:.17g}" if isinstance(bound, float | int) else bound
