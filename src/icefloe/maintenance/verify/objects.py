"""Check the objects of references: chunk objects by one listing, foreign objects one by one."""

from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Final, Self

import numpy as np

from icefloe.errors import IcefloeError, InvalidInputError, ObjectNotFoundError
from icefloe.format.chunk_table import ChunkKind, ChunkTable, VirtualChunk
from icefloe.format.columns import Bools, Bytes, BytesColumn, Ints, concat_bytes
from icefloe.format.ids import ChunkId
from icefloe.format.layout import CHUNKS_PREFIX
from icefloe.maintenance.verify.findings import DamageKind
from icefloe.pacing import Pace, map_at_pace
from icefloe.records import MutableRecord, Record, field
from icefloe.storage import Backend, ObjectInfo
from icefloe.virtual_chunks.grouping import PlaceIndex
from icefloe.virtual_chunks.locations import shown
from icefloe.virtual_chunks.reader import VirtualReader, find_change
from icefloe.walk.reachability import ends_of, list_objects
from icefloe.walk.spill import (
    MAX_BYTES,
    KeyedColumn,
    Keys,
    KeySet,
    Values,
    keys_of_ids,
    keys_of_names,
    largest_of_each,
)

_PIECE_BYTES: Final = 16 * 2**20
"""Larger objects are read in pieces."""
_MOST_BYTES: Final = 512 * 2**20
"""Of pieces that are held at the same time."""


class Fault(IntEnum):
    """A defect of a chunk object."""

    MISSING = 1
    SHORT = 2
    UNREADABLE = 3


def objects_of(table: ChunkTable) -> Bytes:
    """List the chunk objects of native references, each once, in order."""
    rows = np.ascontiguousarray(table.chunk_ids[table.targets])
    names = np.unique(rows.view(f"S{ChunkId.WIDTH}").ravel())
    return names.view(np.uint8).reshape(-1, ChunkId.WIDTH)


class Faults(MutableRecord):
    """Chunk objects with something wrong, by key, in order."""

    keys: Keys = field(default_factory=lambda: np.empty(0, np.uint64))
    kinds: Bytes = field(default_factory=lambda: np.empty(0, np.uint8))
    sizes: Values = field(default_factory=lambda: np.empty(0, np.uint64))
    """How long they are; references beyond that are lost."""

    def __len__(self) -> int:
        return len(self.keys)

    def extended(self, keys: Keys, kind: Fault, sizes: Values) -> Self:
        """Add some."""
        keys = np.concatenate([self.keys, keys])
        kinds = np.concatenate([self.kinds, np.full(len(sizes), kind, np.uint8)])
        order = np.argsort(keys, kind="stable")
        return type(self)(keys[order], kinds[order], np.concatenate([self.sizes, sizes])[order])

    def concern(self, keys: Keys) -> Bools:
        """Return for each key whether its object is among these; there must be some."""
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        is_faulty: Bools = self.keys[places] == keys
        return is_faulty

    def lost_rows(self, table: ChunkTable) -> Iterator[tuple[Fault, Ints]]:
        """Find the references of an array that lead to these objects, by fault."""
        native = np.flatnonzero(table.kinds == ChunkKind.NATIVE)
        if len(native) == 0 or len(self.keys) == 0:
            return
        keys = keys_of_ids(table.chunk_ids)[table.targets[native]]
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        is_known = self.keys[places] == keys
        kinds, sizes, ends = self.kinds[places], self.sizes[places], ends_of(table)[native]
        for fault in Fault:
            rows = is_known & (kinds == fault)
            if fault is Fault.SHORT:
                rows &= ends > sizes
            if rows.any():
                yield fault, native[rows]

    def first_size(self, lost: ChunkTable) -> tuple[int, int]:
        """Return the length of the first object of references, and the length that they need."""
        keys = keys_of_ids(lost.chunk_ids)[lost.targets]
        first = keys_of_ids(objects_of(lost)[:1])[0]
        size = self.sizes[np.searchsorted(self.keys, first)]
        return int(size), int(ends_of(lost)[keys == first].max())


class ChunkObjects:
    """Collects what versions need of chunk objects, and compares it with the stored objects."""

    def __init__(self, backend: Backend, *, max_bytes: int = MAX_BYTES) -> None:
        self._backend = backend
        self._max_bytes = max_bytes
        self._needed = KeyedColumn(max_bytes)
        self.objects = 0
        """How many chunk objects are needed, once they have been compared."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._needed.close()

    def add(self, keys: Keys, ends: Values) -> None:
        """Note what an array needs."""
        self._needed.add(keys, ends)

    async def compare(self) -> Faults:
        """List all chunk objects once, and find those that are missing or too short."""
        with KeyedColumn(self._max_bytes) as present:
            async for batch in self._backend.list(CHUNKS_PREFIX):
                skip = len(CHUNKS_PREFIX)
                keys, is_id = keys_of_names([info.key[skip:] for info in batch])
                sizes = np.array([info.size_bytes for info in batch], np.uint64)
                present.add(keys[is_id], sizes[is_id])
            if self._needed.is_spilled != present.is_spilled:
                self._needed.spill()
                present.spill()
            faults = Faults()
            for needed, stored in zip(self._needed.shards(), present.shards(), strict=True):
                faults = self._compare(needed, stored, faults)
        return faults

    def _compare(
        self, needed: tuple[Keys, Values], stored: tuple[Keys, Values], faults: Faults
    ) -> Faults:
        keys, ends = largest_of_each(*needed)
        self.objects += len(keys)
        there, sizes = largest_of_each(*stored)
        if len(keys) == 0:
            return faults
        if len(there) == 0:
            return faults.extended(keys, Fault.MISSING, np.zeros(len(keys), np.uint64))
        places = np.minimum(np.searchsorted(there, keys), len(there) - 1)
        is_there = there[places] == keys
        size = sizes[places]
        is_short = is_there & (size < ends)
        lost = keys[~is_there]
        faults = faults.extended(lost, Fault.MISSING, np.zeros(len(lost), np.uint64))
        return faults.extended(keys[is_short], Fault.SHORT, size[is_short])

    async def read_all(self, faults: Faults, *, concurrency: int) -> tuple[Faults, list[str]]:
        """Read every chunk object that is needed, to its end; give also what could not be read.

        Nothing tells what the bytes should be, so that all there is to see is whether the storage
        still has as many of them as it says.
        """
        unchecked, bad, pace = list[str](), list[str](), Pace()
        with KeySet(self._max_bytes) as needed_keys:
            for needed, _ in self._needed.shards():
                needed_keys.add(needed)
            async for batch in list_objects(self._backend, CHUNKS_PREFIX, needed_keys.contains):
                largest = max((info.size_bytes for info in batch), default=0)
                outcomes = await map_at_pace(
                    self._read,
                    batch,
                    pace=pace,
                    most=concurrency,
                    size_of=lambda info: info.size_bytes,
                    at_once=_MOST_BYTES // min(max(largest, 1), _PIECE_BYTES),
                )
                for info, is_sound in zip(batch, outcomes, strict=True):
                    if not is_sound:
                        (unchecked if is_sound is None else bad).append(info.key)
        keys, _ = keys_of_names([key.removeprefix(CHUNKS_PREFIX) for key in bad])
        zeros = np.zeros(len(bad), np.uint64)
        return faults.extended(keys, Fault.UNREADABLE, zeros), unchecked

    async def _read(self, info: ObjectInfo) -> bool | None:
        """Read an object whole; None if the storage did not answer."""
        try:
            for first in range(0, info.size_bytes, _PIECE_BYTES):
                last = min(first + _PIECE_BYTES, info.size_bytes)
                if len((await self._backend.get(info.key, (first, last))).data) != last - first:
                    return False
        except (ObjectNotFoundError, InvalidInputError):
            return False
        except IcefloeError:
            return None
        return True


_PORTION: Final = 4096
"""Objects that are examined at a time."""

type Checksum = tuple[str | None, int | None]
"""Etag and time of the last modification, as far as they were recorded."""


class VirtualNeeds(Record):
    """The external objects that an array's references in a manifest need."""

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


class VirtualFault(Record):
    """A defect of an external object."""

    kind: DamageKind
    message: str
    size_bytes: int = 0
    """References beyond are lost, in an object that is too short."""
    checksums: frozenset[Checksum] = frozenset()
    """References with one of these are lost, in an object that changed."""


type VirtualFaults = Mapping[bytes, VirtualFault]
"""By location."""


class _Outcome(MutableRecord):
    fault: VirtualFault | None = None
    unchecked: str | None = None


class VirtualReport(MutableRecord):
    """The result of checking all external objects."""

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
        report, pace = VirtualReport(len(self._places)), Pace()
        self._checksums = np.unique(np.concatenate([self._checksums, *self._new]), axis=0)
        self._new = []
        column = self._places.column if len(self._places) else concat_bytes([])
        for first in range(0, len(column), _PORTION):
            some = range(first, min(first + _PORTION, len(column)))
            locations = [column[number] for number in some]
            outcomes = await map_at_pace(
                lambda number: self._look(column[number].decode(), number),
                some,
                pace=pace,
                most=concurrency,
                size_of=lambda _: 1,
            )
            for raw, outcome in zip(locations, outcomes, strict=True):
                if outcome.fault is not None:
                    report.faults[raw] = outcome.fault
                if outcome.unchecked is not None:
                    report.unchecked[shown(raw.decode())] = outcome.unchecked
        return report

    async def _look(self, location: str, number: int) -> _Outcome:
        address = shown(location)
        if self._reader is None:
            return _Outcome(unchecked="the repository could not be opened to read its containers")
        try:
            info = await self._reader.look(location)
            policy = self._reader.resolver.locate(location).container.on_change
        except ObjectNotFoundError:
            message = f"{address} does not exist"
            return _Outcome(VirtualFault(DamageKind.NO_VIRTUAL_OBJECT, message))
        except IcefloeError as failure:
            return _Outcome(unchecked=failure.message)
        end = int(self._ends[number])
        if end > info.size_bytes:
            message = f"{end} bytes of {address} are needed, which has {info.size_bytes}"
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
                is_lost = [_checksum(table, row) in fault.checksums for row in rows.tolist()]
                rows = rows[is_lost]
        if len(rows):
            yield fault, location, rows


def _checksum(table: ChunkTable, row: int) -> Checksum:
    etag_row = -1 if table.etag_rows is None else int(table.etag_rows[row])
    modified = 0 if table.last_modified is None else int(table.last_modified[row])
    return None if etag_row < 0 else table.etags[etag_row].decode(), modified or None
