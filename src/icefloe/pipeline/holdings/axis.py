"""The steps of a dataset along the dimension that its files were joined along, with names."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import InvalidInputError
from icefloe.pipeline.combining.placing import find_gaps
from icefloe.pipeline.combining.times import parse_units, show_moment
from icefloe.pipeline.files.facts import LoadedValues

_DAY: Final = 86_400_000_000
_DATES: Final = range(-1969 * 366 * _DAY, 8029 * 365 * _DAY)
"""Moments that all calendars have a date for: about the years 1 to 9999."""

_MOST_STEPS: Final = 1 << 62
"""Beyond this, sums of positions would overflow; nobody has that many."""


@dataclass(frozen=True, slots=True, eq=False)
class Axis:
    """The steps along one dimension; without values they are known by their numbers."""

    name: str
    length: int
    values: NDArray[Any] | None = None
    """What can be compared: moments in microseconds, or the numbers themselves."""
    calendar: str | None = None
    """Of moments; None for other numbers."""
    is_daily: bool = False
    """Whether all moments are midnights, so that dates are enough to name them."""

    @classmethod
    def of(cls, name: str, there: LoadedValues | int) -> "Axis":
        """Take what a dataset says of a dimension: its coordinate, or only a length.

        >>> days = LoadedValues(np.array([0, 1, 29]), "days since 2015-01-01", "360_day")
        >>> Axis.of("time", days).label(2)
        '2015-01-30'
        """
        if isinstance(there, int):
            return cls(name, min(there, _MOST_STEPS))
        if there.values.ndim != 1 or there.values.dtype.kind not in "iuf":
            return cls(name, len(there.values))
        try:
            units = parse_units(there.units, there.calendar)
            values = there.values if units is None else units.moments(there.values)
        except InvalidInputError:  # what nobody can read has numbers still
            return cls(name, len(there.values))
        if units is None:
            return cls(name, len(values), values)
        is_daily = not (values % _DAY).any()
        return cls(name, len(values), values, units.calendar, is_daily)

    def label(self, step: int) -> str:
        """Name a step: a date, a value, or its number."""
        return str(step) if self.values is None else self._show(self.values[step].item())

    def gaps(self) -> tuple[tuple[int, int], ...]:
        """Find steps behind which others seem to be missing, and about how many."""
        if self.values is None or len(self.values) < 3:
            return ()
        values = self.values.astype(np.float64)
        steps = np.diff(values)
        is_ordered = (steps > 0).all() or (steps < 0).all()
        return find_gaps(self.values) if is_ordered and np.isfinite(values).all() else ()

    def labels_between(self, step: int, missing: int) -> tuple[str, str]:
        """Name the first and the last of the steps that are missing behind one, about."""
        assert self.values is not None  # without values nothing is known to be missing
        before, behind = self.values[step].item(), self.values[step + 1].item()
        width = (behind - before) / (missing + 1)
        first, last = before + width, behind - width
        if self.values.dtype.kind in "iu":
            first, last = round(first), round(last)
        return self._show(first), self._show(last)

    def _show(self, value: float) -> str:
        if self.calendar is None:
            return str(value) if isinstance(value, int) else f"{value:.10g}"
        if int(value) not in _DATES:
            return str(value)
        text = show_moment(int(value), self.calendar)
        return text.partition(" ")[0] if self.is_daily else text
