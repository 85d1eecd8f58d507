"""Moments of CF calendars as whole microseconds, so that files with different units compare.

`hours since 2000-01-01` in one file and `days since 1850-01-01` in the next mean the same moments;
what counts is the calendar. Only reference dates go through `cftime`, once for each distinct
unit; values are converted as columns.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, IcefloeError, InvalidInputError
from icefloe.records import Record

_SINCE: Final = re.compile(r"^\s*([A-Za-z]+)\s+since\s+(.+?)\s*$")
_MICROSECONDS: Final[dict[str, int]] = {
    **dict.fromkeys(("microsecond", "microseconds", "microsec", "microsecs"), 1),
    **dict.fromkeys(("millisecond", "milliseconds", "millisec", "millisecs", "msec", "ms"), 10**3),
    **dict.fromkeys(("second", "seconds", "sec", "secs", "s"), 10**6),
    **dict.fromkeys(("minute", "minutes", "min", "mins"), 60 * 10**6),
    **dict.fromkeys(("hour", "hours", "hr", "hrs", "h"), 3600 * 10**6),
    **dict.fromkeys(("day", "days", "d"), 86400 * 10**6),
}
_SAME_CALENDAR: Final = {
    "gregorian": "standard",
    "365_day": "noleap",
    "366_day": "all_leap",
}
_EPOCH: Final = "microseconds since 1970-01-01"
_DAY: Final = 86_400_000_000
USUAL_MOMENTS: Final = range(-1969 * 366 * _DAY, 8029 * 365 * _DAY)
"""Moments that all calendars have a date for: about the years 1 to 9999."""


class TimeUnits(Record):
    """The unit and the origin of a time coordinate."""

    step: int
    """Microseconds in one unit."""
    origin: int
    """The reference date, in microseconds since 1970 of the same calendar."""
    calendar: str

    def moments(self, values: NDArray[Any]) -> NDArray[np.int64]:
        """Return moments in microseconds since 1970.

        >>> units = parse_units("hours since 1970-01-02", "360_day")
        >>> units.moments(np.array([0.0, 1.5])) // 60_000_000
        array([1440, 1530])
        """
        if values.dtype.kind in "iu":
            counted = values.astype(np.int64) * self.step
        else:
            if not np.isfinite(values).all():
                raise InvalidInputError(
                    "a time coordinate has missing values", ErrorKind.BAD_METADATA
                )
            whole = np.floor(values.astype(np.float64))
            fraction = values.astype(np.float64) - whole
            counted = whole.astype(np.int64) * self.step
            counted += np.rint(fraction * self.step).astype(np.int64)
        return counted + self.origin

    def values(self, moments: NDArray[np.int64], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return the numbers that stand for moments; refuse to round to whole numbers."""
        whole, rest = np.divmod(moments - self.origin, self.step)
        if dtype.kind in "iu":
            if rest.any() or (whole != whole.astype(dtype)).any():
                raise InvalidInputError(
                    f"times cannot be written as {dtype} in these units without rounding",
                    ErrorKind.BAD_METADATA,
                )
            return whole.astype(dtype)
        return (whole + rest / self.step).astype(dtype)


@lru_cache(maxsize=4096)
def parse_units(units: str | None, calendar: str | None = None) -> TimeUnits | None:
    """Read CF units; None if they do not count time from a date.

    Units without a fixed length (months, years) are not taken: CF advises against them.
    """
    match = _SINCE.match(units) if units else None
    if match is None or (step := _MICROSECONDS.get(match[1].lower())) is None:
        return None
    name = (calendar or "standard").lower()
    name = _SAME_CALENDAR.get(name, name)
    cftime = _cftime()
    try:
        origin = cftime.num2date(0, f"microseconds since {match[2]}", name)
        return TimeUnits(step, int(cftime.date2num(origin, _EPOCH, name)), name)
    except (ValueError, OverflowError) as error:
        raise InvalidInputError(
            f"cannot understand the time units {units!r} in the calendar {calendar!r}: {error}",
            ErrorKind.BAD_METADATA,
        ) from None


def date_moment(parts: Sequence[int], calendar: str) -> int | None:
    """Return the beginning of a date (year, and perhaps month, day, hour, minute, second).

    In microseconds since 1970; None if the calendar has no such date.

    >>> date_moment([1970, 2], "360_day") // 86_400_000_000, date_moment([2023, 2, 29], "noleap")
    (30, None)
    """
    cftime = _cftime()
    year, month, day, *clock = [*parts, 1, 1][:3] if len(parts) < 3 else parts
    try:
        date = cftime.datetime(year, month, day, *clock, calendar=calendar)
        return int(cftime.date2num(date, _EPOCH, calendar))
    except (ValueError, OverflowError):
        return None


def show_moment(moment: int, calendar: str) -> str:
    """Write a moment as a date of its calendar.

    >>> show_moment(0, "360_day")
    '1970-01-01 00:00:00'
    """
    return str(_cftime().num2date(moment, _EPOCH, calendar))


def show_moments(moments: NDArray[np.int64], calendar: str) -> NDArray[np.object_]:
    """Write moments as dates of their calendar, in ISO 8601.

    Those beyond the years 1 to 9999 are None.

    >>> show_moments(np.array([0, 86_400_000_000 * 59]), "360_day").tolist()
    ['1970-01-01T00:00:00', '1970-02-30T00:00:00']
    """
    texts = np.full(moments.shape, None, np.object_)
    usual = (moments >= USUAL_MOMENTS.start) & (moments < USUAL_MOMENTS.stop)
    distinct, places = np.unique(moments[usual], return_inverse=True)
    if len(distinct):
        dates = _cftime().num2date(distinct, _EPOCH, calendar)
        written = np.array([date.isoformat() for date in dates], np.object_)
        texts[usual] = written[places]
    return texts


def _cftime() -> Any:
    try:
        import cftime
    except ImportError as missing:
        raise IcefloeError(
            'for times, cftime is needed: pip install "icefloe[virtual]"', ErrorKind.UNIMPLEMENTED
        ) from missing
    return cftime
