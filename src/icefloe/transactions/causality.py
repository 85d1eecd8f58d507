"""The changes that a session knows of, so that two sessions find their common changes.

Every session is a writer of its own, and so is every copy of a fork that was unpickled. A writer
divides its work into periods: a period ends when its changes go elsewhere, by a fork, a pickle or
a merge. A change is stamped with its writer and the period. A session that takes in one change of
a period has all changes of that writer up to the end of the period, so that one number for each
writer tells what a session knows. Knowing a change means holding it, or something newer that
took its place.
"""

import secrets
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

type Stamp = tuple[int, int]
"""A writer and one of its periods; the first period is 1."""

type Clock = dict[int, int]
"""The newest known period of each known writer."""

type Origin = int
"""The row of a stamp in the list of a history: what changes are marked with."""


class History:
    """The stamps of one set of changes, and what its session knows.

    >>> session = History()
    >>> before = session.own
    >>> session.note_use()
    >>> fork = History(beneath=session.end_period())
    >>> session.own == before, fork.knows(session.stamps[before])
    (False, True)
    >>> fork.knows(session.stamps[session.own])
    False
    """

    __slots__ = ("_is_used", "_rows", "beneath", "held", "own", "stamps", "writer")

    def __init__(self, beneath: Mapping[int, int] | None = None) -> None:
        self.writer = secrets.randbits(63)
        """A name that no other writer has."""
        self.beneath: Clock = dict(beneath or {})
        """What the snapshot below the changes holds."""
        self.held: Clock = {}
        """What the changes hold, of ended periods."""
        self.stamps: list[Stamp] = [(self.writer, 1)]
        self._rows: dict[Stamp, Origin] = {self.stamps[0]: 0}
        self.own: Origin = 0
        """The origin of changes that are made now."""
        self._is_used = False

    def note_use(self) -> None:
        """Note that the present period has changes."""
        self._is_used = True

    def end_period(self) -> Clock:
        """End the present period, if it has changes, and return all that is known."""
        if self._is_used:
            writer, period = self.stamps[self.own]
            self.held[writer] = period
            self.own = self.origin_of((writer, period + 1))
            self._is_used = False
        return _united(self.beneath, self.held)

    def knows(self, stamp: Stamp) -> bool:
        """Return whether a change of an ended period is known."""
        writer, period = stamp
        return self.held.get(writer, 0) >= period or self.beneath.get(writer, 0) >= period

    def knows_all(self, clock: Mapping[int, int]) -> bool:
        """Return whether all changes of a clock are known."""
        return all(map(self.knows, clock.items()))

    def news_for(self, other: "History") -> NDArray[np.bool_]:
        """Mark the origins of this history that another one does not know."""
        return np.array([not other.knows(stamp) for stamp in self.stamps], np.bool_)

    def is_news_for(self, other: "History", origin: Origin) -> bool:
        """Return whether another history does not know a change of this one."""
        return not other.knows(self.stamps[origin])

    def take_in(self, other: "History") -> NDArray[np.uint32]:
        """Add another history to this one; return its origins as origins of this one.

        The present period of the other history must have ended.
        """
        self.held = _united(self.held, other.held)
        return np.array(
            [
                self.own if origin == other.own else self.origin_of(stamp)
                for origin, stamp in enumerate(other.stamps)
            ],
            np.uint32,
        )

    def origin_of(self, stamp: Stamp) -> Origin:
        """Return the row of a stamp, which is added if needed."""
        row = self._rows.setdefault(stamp, len(self.stamps))
        if row == len(self.stamps):
            self.stamps.append(stamp)
        return row

    def copy(self) -> "History":
        """Copy the state, for the same writer."""
        other = History(self.beneath)
        other.writer, other.own, other.held = self.writer, self.own, dict(self.held)
        other._is_used = self._is_used
        other.stamps, other._rows = list(self.stamps), dict(self._rows)
        return other

    def __getstate__(self) -> tuple[list[int], Origin, Clock, Clock]:
        """Pack what a copy needs; the present period must have ended."""
        numbers = [number for stamp in self.stamps for number in stamp]
        return numbers, self.own, self.beneath, self.held

    def __setstate__(self, state: tuple[list[int], Origin, Clock, Clock]) -> None:
        """Become another writer that knows the same."""
        numbers, own, beneath, periods = state
        self.__init__(beneath)  # type: ignore[misc]
        self.held, self.own = periods, own
        self.stamps = list(zip(numbers[::2], numbers[1::2], strict=True))
        self.stamps[own] = (self.writer, 1)  # nothing has this origin yet
        self._rows = {stamp: row for row, stamp in enumerate(self.stamps)}


def _united(first: Mapping[int, int], second: Mapping[int, int]) -> Clock:
    united = dict(first)
    for writer, period in second.items():
        if united.get(writer, 0) < period:
            united[writer] = period
    return united
