"""How many virtual chunks of a manifest lie where, as columns."""

from collections.abc import Callable
from typing import Final

import numpy as np

from icefloe.format.chunk_table import ChunkKind, ChunkTable
from icefloe.format.columns import BytesColumn, Ints, concat_bytes
from icefloe.format.ids import NodeId
from icefloe.records import Record, replace
from icefloe.virtual_chunks.grouping import Grouped, LocationQuery, absolute_all, canonical_all

type PlaceGrouping = Callable[[BytesColumn, BytesColumn], Grouped]
"""Gives the place to which each location belongs, as it is recorded and as it is canonical."""

_LARGEST_CHUNK_BYTES: Final = 2**40
"""Chunks that claim to be larger count as this: no such chunk exists, and no sum overflows."""
_SMALL_SHARE: Final = 8


class LocalCounts(Record):
    """The virtual chunks of one array in one manifest, by place; each place occurs once."""

    node: NodeId
    places: BytesColumn
    chunks: Ints
    bytes_: Ints


class PartCounts(Record):
    """The same, with the numbers of places."""

    node: NodeId
    places: Ints
    chunks: Ints
    bytes_: Ints


class PlaceIndex:
    """Numbers places in the order in which they are met.

    >>> index = PlaceIndex()
    >>> index.numbers(BytesColumn.from_strings(["a", "b", "a"])).tolist()
    [0, 1, 0]
    >>> index.numbers(BytesColumn.from_strings(["c", "b"])).tolist()
    [2, 1]
    """

    def __init__(self) -> None:
        self._columns: list[BytesColumn] = []
        self._numbers: dict[bytes, int] | None = None
        self._count = 0
        self.size_bytes = 0
        """What the text of all places takes."""

    def __len__(self) -> int:
        return self._count

    @property
    def column(self) -> BytesColumn:
        """All places, in the order of their numbers."""
        if len(self._columns) != 1:
            self._columns = [concat_bytes(self._columns)]
        return self._columns[0]

    def numbers(self, places: BytesColumn) -> Ints:
        """Return the numbers of some places.

        Many are numbered by hashing all that are known once more; few are looked up.
        """
        if self._numbers is None and len(places) * _SMALL_SHARE >= self._count:
            count = self._count
            column, numbers = concat_bytes([*self._columns, places]).distinct()
            self._columns, self._count, self.size_bytes = [], 0, 0
            self._append(column)
            return numbers[count:].astype(np.int64)
        return self._look_up(places)

    def _look_up(self, places: BytesColumn) -> Ints:
        if self._numbers is None:
            self._numbers = {
                location: number for number, location in enumerate(self.column.to_list())
            }
        count, numbers = self._count, self._numbers
        found_numbers = [
            numbers.setdefault(location, len(numbers)) for location in places.to_list()
        ]
        result = np.array(found_numbers, np.int64)
        new, firsts = np.unique(result, return_index=True)
        self._append(places.take(firsts[new >= count]))
        return result

    def _append(self, places: BytesColumn) -> None:
        self._columns.append(places)
        self._count += len(places)
        self.size_bytes += len(places.data)


class _Sorted(Record):
    """What became of a column of locations: which are wanted, and where each of those belongs."""

    locations: BytesColumn
    wanted: Ints
    local: Ints
    """For each wanted location a row of `places`."""
    places: BytesColumn


class PlaceCounter:
    """Counts references by place.

    Args:
        absolute: replaces the name of a container in a location by where that is.
        query: which locations count.
        grouping: which place each belongs to; without it, all belong to their array.
    """

    def __init__(
        self, absolute: Callable[[str], str], query: LocationQuery, grouping: PlaceGrouping | None
    ) -> None:
        self._absolute = absolute
        self._query = query
        self._grouping = grouping
        self._last: _Sorted | None = None

    def count(self, table: ChunkTable, node: NodeId) -> LocalCounts:
        """Count the virtual chunks of a table."""
        is_virtual = table.kinds == ChunkKind.VIRTUAL
        rows = slice(None) if is_virtual.all() else np.flatnonzero(is_virtual)
        targets = table.targets[rows]
        if len(targets) == 0:
            nothing = np.empty(0, np.int64)
            return LocalCounts(node, BytesColumn.empty(), nothing, nothing)
        lengths = np.minimum(table.lengths[rows], _LARGEST_CHUNK_BYTES).astype(np.int64)
        chunks = np.bincount(targets, minlength=len(table.locations))
        bytes_ = _sums(targets, lengths, len(table.locations))
        used = np.flatnonzero(chunks)
        if len(used) == len(chunks):
            in_order = self._sorted(table.locations, node)
        else:
            in_order = self._sorted(table.locations.take(used), node)
            chunks, bytes_ = chunks[used], bytes_[used]
        count = len(in_order.places)
        return LocalCounts(
            node,
            in_order.places,
            _sums(in_order.local, chunks[in_order.wanted], count),
            _sums(in_order.local, bytes_[in_order.wanted], count),
        )

    def _sorted(self, locations: BytesColumn, node: NodeId) -> _Sorted:
        last = self._last
        if last is None or last.locations != locations:  # arrays often lie in the same files
            last = self._last = self._sort(locations)
        if self._grouping is None and len(last.wanted):
            return replace(last, places=BytesColumn.from_list([node.raw]))
        return last

    def _sort(self, locations: BytesColumn) -> _Sorted:
        canonical = canonical_all(absolute_all(locations, self._absolute))
        chosen = np.arange(len(locations))
        if not self._query.is_everything:
            chosen = np.flatnonzero(self._query.chosen(canonical))
            canonical = canonical.take(chosen)
        if self._grouping is None or len(chosen) == 0:
            return _Sorted(locations, chosen, np.zeros_like(chosen), BytesColumn.empty())
        recorded = locations if len(chosen) == len(locations) else locations.take(chosen)
        places, local = self._grouping(recorded, canonical)
        return _Sorted(locations, chosen, local, places)


def _sums(groups: "np.ndarray[tuple[int], np.dtype[np.integer]]", values: Ints, count: int) -> Ints:
    sums = np.zeros(count, np.int64)
    np.add.at(sums, groups, values)
    return sums
