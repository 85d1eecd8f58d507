"""Whether the foreign objects of virtual chunks are what they were: one look at each."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from icefloe.effects import map_concurrently
from icefloe.engine.dependencies.counts import PlaceIndex
from icefloe.engine.verification.chunk_objects import ends_of
from icefloe.engine.verification.damage import DamageKind
from icefloe.engine.verification.keyed import Values
from icefloe.engine.virtual import VirtualReader
from icefloe.engine.virtual.checksums import find_change
from icefloe.engine.virtual.urls import shown
from icefloe.errors import IcefloeError, ObjectNotFoundError
from icefloe.format.chunk_table import ChunkKind, ChunkTable, VirtualChunk
from icefloe.format.columns import BytesColumn, Ints, concat_bytes
from icefloe.storage import ObjectInfo

_PORTION: Final = 4096
"""Objects that are looked at before the next ones."""

type Checksum = tuple[str | None, int | None]
"""Etag and time of the last modification, as far as they were recorded."""


@dataclass(frozen=True, slots=True)
class VirtualNeeds:
    """What one array in one manifest needs of foreign objects."""

    locations: BytesColumn
    ends: Values
    """How far into each object references reach."""
    checksums: Ints
    """(n, 3): location, row of its etag or -1, time or 0; each combination once."""
    etags: BytesColumn


def virtual_needs(table: ChunkTable) -> VirtualNeeds:
    """Sum up the virtual references of an array, by location."""
    rows = np.flatnonzero(table.kinds == ChunkKind.VIRTUAL)
    if len(rows) == 0:
        empty = np.empty((0, 3), np.int64)
        return VirtualNeeds(BytesColumn.empty(), np.empty(0, np.uint64), empty, BytesColumn.empty())
    used, targets = np.unique(table.targets[rows], return_inverse=True)
    ends = np.zeros(len(used), np.uint64)
    np.maximum.at(ends, targets, ends_of(table)[rows])
    return VirtualNeeds(
        table.locations.take(used), ends, np.unique(_checksums(table, rows, targets), axis=0),
        table.etags,
    )  # fmt: skip


def _checksums(table: ChunkTable, rows: Ints, targets: Ints) -> Ints:
    columns = np.empty((len(rows), 3), np.int64)
    columns[:, 0] = targets
    columns[:, 1] = -1 if table.etag_rows is None else table.etag_rows[rows]
    columns[:, 2] = 0 if table.last_modified is None else table.last_modified[rows]
    return columns


@dataclass(frozen=True, slots=True)
class VirtualFault:
    """What is wrong with a foreign object."""

    kind: DamageKind
    message: str
    size_bytes: int = 0
    """References beyond are lost, in an object that is too short."""
    checksums: frozenset[Checksum] = frozenset()
    """References with one of these are lost, in an object that changed."""


type VirtualFaults = Mapping[bytes, VirtualFault]
"""By location."""


@dataclass(slots=True)
class _Outcome:
    fault: VirtualFault | None = None
    unchecked: str | None = None


@dataclass(slots=True)
class VirtualReport:
    """What came of looking at all foreign objects."""

    objects: int = 0
    faults: dict[bytes, VirtualFault] = field(default_factory=dict)
    unchecked: dict[str, str] = field(default_factory=dict)
    """Location to reason."""


class VirtualObjects:
    """Collects which foreign objects versions need, and looks at each once."""

    def __init__(self, reader: VirtualReader | None) -> None:
        self._reader = reader
        self._places = PlaceIndex()
        self._etags = PlaceIndex()
        self._ends: Values = np.empty(0, np.uint64)
        self._new: list[Ints] = []
        self._checksums: Ints = np.empty((0, 3), np.int64)

    def add(self, needs: VirtualNeeds) -> None:
        """Note what an array needs."""
        if len(needs.locations) == 0:
            return
        numbers = self._places.numbers(needs.locations)
        missing = len(self._places) - len(self._ends)
        self._ends = np.append(self._ends, np.zeros(missing, np.uint64))
        np.maximum.at(self._ends, numbers, needs.ends)
        rows = needs.checksums.copy()
        rows[:, 0] = numbers[rows[:, 0]]
        if len(needs.etags):
            etags = np.append(self._etags.numbers(needs.etags), -1)
            rows[:, 1] = etags[rows[:, 1]]
        self._new.append(rows)

    async def look(self, *, concurrency: int) -> VirtualReport:
        """Look at each object: whether it exists, is long enough, and has not changed."""
        report = VirtualReport(len(self._places))
        self._checksums = np.unique(np.concatenate([self._checksums, *self._new]), axis=0)
        self._new = []
        column = self._places.column if len(self._places) else concat_bytes([])
        for first in range(0, len(column), _PORTION):
            some = range(first, min(first + _PORTION, len(column)))
            locations = [column[number] for number in some]
            outcomes = await map_concurrently(
                lambda number: self._look(column[number].decode(), number), some, limit=concurrency
            )
            for raw, outcome in zip(locations, outcomes, strict=True):
                if outcome.fault is not None:
                    report.faults[raw] = outcome.fault
                if outcome.unchecked is not None:
                    report.unchecked[shown(raw.decode())] = outcome.unchecked
        return report

    async def _look(self, location: str, number: int) -> _Outcome:
        place = shown(location)
        if self._reader is None:
            return _Outcome(unchecked="the repository could not be opened to read its containers")
        try:
            info = await self._reader.look(location)
            policy = self._reader.locate(location).container.on_change
        except ObjectNotFoundError:
            message = f"{place} does not exist"
            return _Outcome(VirtualFault(DamageKind.NO_VIRTUAL_OBJECT, message))
        except IcefloeError as failure:
            return _Outcome(unchecked=failure.message)
        end = int(self._ends[number])
        if end > info.size_bytes:
            message = f"{end} bytes of {place} are needed, which has {info.size_bytes}"
            kind = DamageKind.SHORT_VIRTUAL_OBJECT
            return _Outcome(VirtualFault(kind, message, info.size_bytes))
        if policy == "off":
            return _Outcome()
        return _Outcome(self._change(location, number, info))

    def _change(self, location: str, number: int, info: ObjectInfo) -> VirtualFault | None:
        first, last = np.searchsorted(self._checksums[:, 0], [number, number + 1]).tolist()
        changed: set[Checksum] = set()
        message = ""
        for _, etag_row, modified in self._checksums[first:last].tolist():
            etag = None if etag_row < 0 else self._etags.column[etag_row].decode()
            chunk = VirtualChunk(location, 0, 0, etag, modified or None)
            if (change := find_change(chunk, info)) is not None:
                changed.add((etag, modified or None))
                message = (
                    f"{shown(location)} changed since chunks of it were recorded: {change.what}"
                    f" recorded {change.recorded}, found {change.found}"
                )
        if not changed:
            return None
        kind = DamageKind.CHANGED_VIRTUAL_OBJECT
        return VirtualFault(kind, message, checksums=frozenset(changed))


def lost_virtual_rows(
    faults: VirtualFaults, table: ChunkTable
) -> Iterator[tuple[VirtualFault, bytes, Ints]]:
    """Find the references of an array that lead to objects with something wrong."""
    if not faults:
        return
    is_virtual = table.kinds == ChunkKind.VIRTUAL
    for target, location in enumerate(table.locations.to_list()):
        if (fault := faults.get(location)) is None:
            continue
        rows = np.flatnonzero(is_virtual & (table.targets == target))
        match fault.kind:
            case DamageKind.SHORT_VIRTUAL_OBJECT:
                rows = rows[ends_of(table)[rows] > np.uint64(fault.size_bytes)]
            case DamageKind.CHANGED_VIRTUAL_OBJECT:
                kept = [_checksum(table, row) in fault.checksums for row in rows.tolist()]
                rows = rows[kept]
        if len(rows):
            yield fault, location, rows


def _checksum(table: ChunkTable, row: int) -> Checksum:
    etag_row = -1 if table.etag_rows is None else int(table.etag_rows[row])
    modified = 0 if table.last_modified is None else int(table.last_modified[row])
    return None if etag_row < 0 else table.etags[etag_row].decode(), modified or None
