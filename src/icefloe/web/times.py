"""Arrays whose numbers are times: which dates the numbers stand for."""

from collections.abc import Mapping
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from icefloe.format.nodes import ArrayNode
from icefloe.pipeline.files.times import USUAL_MOMENTS, show_moment
from icefloe.records import Record
from icefloe.web import decoding
from icefloe.web.nodes import attributes_of, document_of, facts_of

NOT_A_TIME: Final = np.iinfo(np.int64).min
"""The number that numpy and xarray store for a missing time."""
_DAY: Final = 86_400
_SECONDS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "μs": 1e-6, "ns": 1e-9}
_DAYS: Final = {"D": 1, "W": 7}


class TimeScale(Record):
    """The times that the numbers of an array stand for."""

    seconds: float
    """The length of a unit."""
    origin: float
    """The time of the number 0, in seconds since 1970 of the same calendar."""
    calendar: str

    @classmethod
    def of(cls, node: ArrayNode) -> Self | None:
        """Read the metadata of an array; None if its values are no times."""
        kind, attributes = facts_of(node).data_type, attributes_of(node)
        if kind == "numpy.datetime64":
            seconds = _length_of_unit(document_of(node).get("data_type"))
            return None if seconds is None else cls(seconds, 0.0, "proleptic_gregorian")
        units = (
            decoding.time_units(attributes) if kind.startswith(("int", "uint", "float")) else None
        )
        if units is None:
            return None
        # Nanoseconds have the units of microseconds.
        seconds = units.step / (10**9 if decoding.is_nanoseconds(attributes) else 10**6)
        return cls(seconds, units.origin / 10**6, units.calendar)

    def label(self, number: float) -> str:
        """Return the date of a number; the time of day only if there is one.

        >>> TimeScale(86400, 0, "360_day").label(59), TimeScale(3600, 0, "standard").label(1.5)
        ('1970-02-30', '1970-01-01 01:30:00')
        """
        moment = round(self.origin + number * self.seconds) * 10**6
        if moment not in USUAL_MOMENTS:
            return f"{number:.10g}"
        return show_moment(moment, self.calendar).removesuffix(" 00:00:00")

    def length(self, number: float) -> str:
        """Return a difference of two times, in days or seconds.

        >>> TimeScale(3600, 0, "standard").length(36)
        '1.5 days'
        """
        seconds = number * self.seconds
        return f"{seconds / _DAY:.6g} days" if seconds >= _DAY else f"{seconds:.6g} seconds"

    def header(self, values: NDArray[np.float64]) -> tuple[NDArray[np.float64], dict[str, Any]]:
        """Return values counted from the first time, and what a script needs to show dates."""
        finite = values[np.isfinite(values)]
        base = float(finite.min()) if len(finite) else 0.0
        origin = self.origin + base * self.seconds
        moments = self.origin + finite * self.seconds
        described = {
            "origin": origin,
            "seconds": self.seconds,
            "calendar": self.calendar,
            "daily": not (moments % _DAY).any(),
        }
        return values - base, described


def mark_missing_times(
    values: NDArray[np.float64], raw: NDArray[Any], attributes: Mapping[str, Any]
) -> None:
    """Make NaN of the number that stands for a missing time, which no attribute tells."""
    if raw.dtype == np.int64 and decoding.time_units(attributes) is not None:
        values[raw == NOT_A_TIME] = np.nan


def _length_of_unit(data_type: Any) -> float | None:
    configuration = data_type.get("configuration") if isinstance(data_type, dict) else None
    if not isinstance(configuration, dict):
        return None
    unit, factor = configuration.get("unit"), configuration.get("scale_factor", 1)
    seconds = _SECONDS.get(str(unit), _DAYS.get(str(unit), 0) * _DAY)
    return float(seconds * factor) if seconds and isinstance(factor, int) else None
