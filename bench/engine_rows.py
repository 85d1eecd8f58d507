"""Groups of comparisons: one function for both sides, and the rows that it fills."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType

from bench.engine_location import Location

type Run = Callable[[ModuleType, Location, "Scale"], Mapping[str, float]]
"""Works with one implementation at an empty location, and gives a figure for each row."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much to do: everything, or a taste of it."""

    is_quick: bool = False

    def of(self, full: int, quick: int) -> int:
        return quick if self.is_quick else full


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    key: str
    text: str
    limit: float | None = None
    """Ratio to the reference that should not be exceeded."""
    unit: str = "ms"
    """`ms` of the seconds measured, or `bytes`, `count` or `ratio`."""
    theirs: tuple[str, ...] = ()
    """Figures of the reference to compare with, the best of which counts; its own by default."""
    at_most: float | None = None
    """An absolute limit in location of a ratio."""


@dataclass(frozen=True, slots=True)
class Group:
    """Rows that one function fills."""

    run: Run
    rows: tuple[Row, ...]
    on_s3: bool = False
    rounds: int = 3
    ours_only: bool = False
