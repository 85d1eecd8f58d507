"""Find the places that versions use, from one version to the next.

Versions come in lines, each newest first. A place is in use from the version in which the first
of its parts appears to the last version that has any of them. Only changes from version to version
are examined, so the work grows with the data written, not with how many versions share it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from icefloe.format.columns import Ints
from icefloe.format.ids import NodeId
from icefloe.records import Record
from icefloe.virtual_chunks.grouping import PartCounts

_NEVER: Final = np.iinfo(np.int64).max
_FEW_SHARE: Final = 16


@dataclass(slots=True)
class _Columns:
    """Columns with the facts about locations."""

    parts: Ints
    """How many parts of manifests of the present version have chunks there."""
    since: Ints
    """The position of the version at which they began to."""
    versions: Ints
    newest: Ints
    oldest: Ints
    chunks: Ints
    bytes_: Ints
    arrays: Ints

    @classmethod
    def empty(cls, count: int) -> "_Columns":
        zeros = [np.zeros(count, np.int64) for _ in cls.__slots__]
        columns = cls(*zeros)
        columns.newest[:] = _NEVER
        columns.oldest[:] = -1
        return columns


class UsedPlaces(Record):
    """The places that are used by any version, with ranks of the newest and oldest of those."""

    places: Ints
    chunks: Ints
    bytes_: Ints
    arrays: Ints
    versions: Ints
    newest: Ints
    oldest: Ints


class PlaceSummary:
    """Gathers which places are used; see the module."""

    def __init__(self) -> None:
        self._columns = _Columns.empty(0)
        self._position = 0
        self._rank = 0
        """Of the version before, in the line that is walked."""

    def resize(self, count: int) -> None:
        """Make room for this many places."""
        size = len(self._columns.parts)
        if count <= size:
            return
        larger = _Columns.empty(max(count, 2 * size))
        for name in _Columns.__slots__:
            getattr(larger, name)[:size] = getattr(self._columns, name)
        self._columns = larger

    def begin_line(self) -> None:
        """End what the last line used: another begins, with its newest version."""
        self._end(np.flatnonzero(self._columns.parts))
        self._columns.parts[:] = 0

    def take(self, rank: int, added: Sequence[PartCounts], removed: Sequence[PartCounts]) -> None:
        """Go on to the next older version; `rank` is its place among all, newest first."""
        columns = self._columns
        touched = self._union([*added, *removed])
        was_used = columns.parts[touched] > 0
        for part in removed:
            columns.parts[part.places] -= 1
        for part in added:
            columns.parts[part.places] += 1
        is_used = columns.parts[touched] > 0
        self._end(touched[was_used & ~is_used])
        begun = touched[is_used & ~was_used]
        columns.since[begun] = self._position
        self._set_counts(begun[rank < columns.newest[begun]], rank, added)
        self._rank = rank
        self._position += 1

    def finished(self) -> UsedPlaces:
        """Return all places that any version uses."""
        self.begin_line()
        columns = self._columns
        places = np.flatnonzero(columns.versions)
        return UsedPlaces(
            places,
            columns.chunks[places],
            columns.bytes_[places],
            columns.arrays[places],
            columns.versions[places],
            columns.newest[places],
            columns.oldest[places],
        )

    def _end(self, places: Ints) -> None:
        columns = self._columns
        columns.versions[places] += self._position - columns.since[places]
        columns.oldest[places] = np.maximum(columns.oldest[places], self._rank)

    def _set_counts(self, places: Ints, rank: int, added: Sequence[PartCounts]) -> None:
        """Describe places by this version, the newest that uses them so far.

        They were not in use before, so all their parts are among those just added.
        """
        columns = self._columns
        columns.newest[places] = rank
        for column in (columns.chunks, columns.bytes_, columns.arrays):
            column[places] = 0
        is_meant = np.zeros(len(columns.parts), np.bool_)
        is_meant[places] = True
        by_node: dict[NodeId, list[PartCounts]] = {}
        for part in added:
            by_node.setdefault(part.node, []).append(part)
            chosen = np.flatnonzero(is_meant[part.places])
            where = part.places[chosen]
            columns.chunks[where] += part.chunks[chosen]
            columns.bytes_[where] += part.bytes_[chosen]
        for parts in by_node.values():
            used = self._union(parts)
            columns.arrays[used[is_meant[used]]] += 1

    def _union(self, parts: Sequence[PartCounts]) -> Ints:
        """List all places of some parts, each once."""
        if len(parts) == 1:
            return parts[0].places
        if not parts:
            return np.empty(0, np.int64)
        if sum(len(part.places) for part in parts) * _FEW_SHARE < len(self._columns.parts):
            return np.unique(np.concatenate([part.places for part in parts]))
        is_there = np.zeros(len(self._columns.parts), np.bool_)
        for part in parts:
            is_there[part.places] = True
        return np.flatnonzero(is_there)
