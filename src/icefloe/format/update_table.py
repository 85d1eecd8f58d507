"""The log of operations that a repo object keeps, newest first, as columns."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, FormatError
from icefloe.format.columns import Bools, Bytes, BytesColumn, Ints, concat_bytes, splits_of
from icefloe.format.flatbuffer_packed import Carried, Columns, PackedSection
from icefloe.format.flatbuffer_reader import Tables, Vectors
from icefloe.format.flatbuffer_scalar import ScalarTable
from icefloe.format.flatbuffer_tree import OFFSET, TableShape, Tree
from icefloe.format.flatbuffer_writer import (
    BlobSection,
    Field,
    Link,
    Section,
    TableSection,
    VectorSection,
    number,
)
from icefloe.format.ids import SnapshotId, id_rows


class UpdateKind(IntEnum):
    """What an operation did; the numbers are those of the stored union."""

    REPO_INITIALIZED = 1
    REPO_MIGRATED = 2
    CONFIG_CHANGED = 3
    METADATA_CHANGED = 4
    TAG_CREATED = 5
    TAG_DELETED = 6
    BRANCH_CREATED = 7
    BRANCH_DELETED = 8
    BRANCH_RESET = 9
    NEW_COMMIT = 10
    COMMIT_AMENDED = 11
    NEW_DETACHED_SNAPSHOT = 12
    GC_RAN = 13
    EXPIRATION_RAN = 14
    FEATURE_FLAG_CHANGED = 15
    REPO_STATUS_CHANGED = 16


@dataclass(frozen=True, slots=True)
class Status:
    """Whether a repository takes writes, and since when."""

    availability: int = 0
    """0 online, 1 read-only, 2 offline."""
    set_at: int = 0
    """Microseconds since 1970, UTC."""
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class UpdateEntry:
    """One operation; which of the later fields mean something depends on its kind."""

    kind: UpdateKind
    updated_at: int
    """Microseconds since 1970, UTC."""
    backup_path: str | None = None
    """Name of the copy of the repo object in which this entry was the newest."""
    name: str | None = None
    """Branch or tag."""
    previous: SnapshotId | None = None
    new: SnapshotId | None = None
    numbers: tuple[int, int, int] = (0, 0, 0)
    """Migration: from, to. Feature flag: id, new value, is set."""
    status: Status | None = None


class _Update(IntEnum):
    """Slots of one entry."""

    KIND = 0
    PAYLOAD = 1
    UPDATED_AT = 2
    BACKUP_PATH = 3


class _Status(IntEnum):
    AVAILABILITY = 0
    SET_AT = 1
    REASON = 2


@dataclass(frozen=True, slots=True)
class _Payload:
    """Which slot of its payload a kind keeps each thing in."""

    name: int | None = None
    previous: int | None = None
    new: int | None = None
    numbers: tuple[str, ...] = ()
    """Types of the numbers, in slots from 0."""
    status: int | None = None


_K = UpdateKind
_COMMIT_NAME, _COMMIT_NEW = 0, 1
_NAMED_WITH_PREVIOUS: Final = _Payload(name=0, previous=1)
_PAYLOADS: Final = dict.fromkeys(UpdateKind, _Payload()) | {
    _K.REPO_MIGRATED: _Payload(numbers=("u1", "u1")),
    _K.TAG_CREATED: _Payload(name=0),
    _K.TAG_DELETED: _NAMED_WITH_PREVIOUS,
    _K.BRANCH_CREATED: _Payload(name=0),
    _K.BRANCH_DELETED: _NAMED_WITH_PREVIOUS,
    _K.BRANCH_RESET: _NAMED_WITH_PREVIOUS,
    _K.NEW_COMMIT: _Payload(name=_COMMIT_NAME, new=_COMMIT_NEW),
    _K.COMMIT_AMENDED: _Payload(name=0, previous=1, new=2),
    _K.NEW_DETACHED_SNAPSHOT: _Payload(new=0),
    _K.FEATURE_FLAG_CHANGED: _Payload(numbers=("<u2", "u1", "u1")),
    _K.REPO_STATUS_CHANGED: _Payload(status=0),
}


_ENTRY: Final = TableShape(
    (_Update.PAYLOAD, OFFSET),
    (_Update.UPDATED_AT, "Q"),
    (_Update.BACKUP_PATH, OFFSET),
    (_Update.KIND, "B"),
)
_COMMIT: Final = TableShape((_COMMIT_NAME, OFFSET), (_COMMIT_NEW, f"{SnapshotId.WIDTH}s"))
_STATUS_WITHOUT_REASON: Final = TableShape((_Status.SET_AT, "Q"), (_Status.AVAILABILITY, "B"))
_STATUS: Final = TableShape(
    (_Status.REASON, OFFSET), (_Status.SET_AT, "Q"), (_Status.AVAILABILITY, "B")
)


def write_status(tree: Tree, status: Status, field: int) -> None:
    """Add one status."""
    shape = _STATUS_WITHOUT_REASON if status.reason is None else _STATUS
    at = tree.table(shape, status.set_at, status.availability, field=field)
    if status.reason is not None:
        tree.blob(status.reason.encode(), at + shape.at[_Status.REASON])


def read_status(table: ScalarTable) -> Status:
    """Read one status."""
    return Status(
        table.number(_Status.AVAILABILITY, "B"),
        table.number(_Status.SET_AT, "Q"),
        table.optional_text(_Status.REASON),
    )


@dataclass(frozen=True, slots=True, eq=False)
class StatusTable:
    """Statuses in columns; an empty reason stands for none unless `has_reason`."""

    availability: Bytes
    set_at: NDArray[np.uint64]
    reasons: BytesColumn
    has_reason: Bools

    @classmethod
    def from_list(cls, statuses: Sequence[Status]) -> Self:
        """Pack a list."""
        return cls(
            np.array([status.availability for status in statuses], np.uint8),
            np.array([status.set_at for status in statuses], np.uint64),
            BytesColumn.from_strings([status.reason or "" for status in statuses]),
            np.array([status.reason is not None for status in statuses], np.bool_),
        )

    @classmethod
    def read(cls, tables: Tables) -> Self:
        """Read status tables."""
        reasons = tables.blobs(_Status.REASON)
        column = reasons.column()
        column.check_text()
        return cls(
            tables.u8(_Status.AVAILABILITY), tables.u64(_Status.SET_AT), column, reasons.present
        )

    def status(self, row: int) -> Status:
        """Give one row as an object."""
        reason = self.reasons[row].decode() if self.has_reason[row] else None
        return Status(int(self.availability[row]), int(self.set_at[row]), reason)

    def sections(self) -> list[Section]:
        """Lay out the statuses: the first section has a table per row."""
        reasons = BlobSection(self.reasons)
        tables = TableSection(
            len(self.availability),
            [
                number(_Status.AVAILABILITY, self.availability),
                number(_Status.SET_AT, self.set_at),
                Field(_Status.REASON, Link(reasons), self.has_reason),
            ],
        )
        return [tables, reasons]

    def followed_by(self, other: Self) -> Self:
        """Put other statuses behind these."""
        return type(self)(
            np.concatenate([self.availability, other.availability]),
            np.concatenate([self.set_at, other.set_at]),
            concat_bytes([self.reasons, other.reasons]),
            np.concatenate([self.has_reason, other.has_reason]),
        )

    def take(self, rows: Ints) -> Self:
        """Pick rows."""
        return type(self)(
            self.availability[rows],
            self.set_at[rows],
            self.reasons.take(rows),
            self.has_reason[rows],
        )


@dataclass(frozen=True, slots=True, eq=False)
class UpdateTable:
    """Operations in columns, newest first; a column holds zeros where a kind has no such thing."""

    kinds: Bytes
    updated_at: NDArray[np.uint64]
    backup_paths: BytesColumn
    """Empty for none."""
    names: BytesColumn
    previous_ids: Bytes
    new_ids: Bytes
    numbers: NDArray[np.uint16]
    """(n, 3)."""
    statuses: StatusTable

    @classmethod
    def from_entries(cls, entries: Sequence[UpdateEntry]) -> Self:
        """Pack a list, newest first."""
        nobody = SnapshotId(bytes(SnapshotId.WIDTH))
        return cls(
            np.array([entry.kind for entry in entries], np.uint8),
            np.array([entry.updated_at for entry in entries], np.uint64),
            BytesColumn.from_strings([entry.backup_path or "" for entry in entries]),
            BytesColumn.from_strings([entry.name or "" for entry in entries]),
            id_rows(SnapshotId, [entry.previous or nobody for entry in entries]),
            id_rows(SnapshotId, [entry.new or nobody for entry in entries]),
            np.array([entry.numbers for entry in entries], np.uint16).reshape(-1, 3),
            StatusTable.from_list([entry.status or Status() for entry in entries]),
        )

    def __len__(self) -> int:
        return len(self.kinds)

    def entry(self, row: int) -> UpdateEntry:
        """Give one row as an object."""
        kind = UpdateKind(self.kinds[row])
        payload = _PAYLOADS[kind]
        first, second, third = self.numbers[row].tolist()
        return UpdateEntry(
            kind,
            int(self.updated_at[row]),
            self.backup_paths[row].decode() or None,
            None if payload.name is None else self.names[row].decode(),
            None if payload.previous is None else SnapshotId(self.previous_ids[row].tobytes()),
            None if payload.new is None else SnapshotId(self.new_ids[row].tobytes()),
            (first, second, third),
            None if payload.status is None else self.statuses.status(row),
        )

    def with_newest(self, entry: UpdateEntry, backup_path: str) -> Self:
        """Put an entry before all others; the one that was newest gets the name of its copy."""
        newest = self.from_entries([entry])
        paths = [newest.backup_paths, BytesColumn.from_strings([backup_path])]
        return type(self)(
            np.concatenate([newest.kinds, self.kinds]),
            np.concatenate([newest.updated_at, self.updated_at]),
            concat_bytes([*paths, self.backup_paths.slice(1, len(self))]),
            concat_bytes([newest.names, self.names]),
            np.concatenate([newest.previous_ids, self.previous_ids]),
            np.concatenate([newest.new_ids, self.new_ids]),
            np.concatenate([newest.numbers, self.numbers]),
            newest.statuses.followed_by(self.statuses),
        )

    def newest(self, count: int) -> Self:
        """Keep so many of the newest entries."""
        return type(self)(
            self.kinds[:count],
            self.updated_at[:count],
            self.backup_paths.slice(0, count),
            self.names.slice(0, count),
            self.previous_ids[:count],
            self.new_ids[:count],
            self.numbers[:count],
            self.statuses.take(np.arange(count)),
        )

    def entries(self) -> list[UpdateEntry]:
        """Give all rows as objects."""
        return [self.entry(row) for row in range(len(self))]

    @classmethod
    def read(cls, vectors: Vectors) -> Self:
        """Read the log of a repo object."""
        tables = vectors.tables()
        kinds = tables.u8(_Update.KIND)
        unknown = ~np.isin(kinds, list(UpdateKind))
        if unknown.any():
            raise FormatError(
                f"operation of unknown kind {kinds[unknown][0]} in the log: upgrade icefloe",
                ErrorKind.UNSUPPORTED_SPEC_VERSION,
            )
        payloads = tables.children(_Update.PAYLOAD)
        backup_paths = tables.blobs(_Update.BACKUP_PATH).column()
        backup_paths.check_text()
        return cls(
            kinds,
            tables.u64(_Update.UPDATED_AT),
            backup_paths,
            *_read_payloads(kinds, payloads),
        )

    def sections(self) -> list[Section]:
        """Lay out the log: the first section is the vector of entries."""
        by_kind: dict[int, TableSection] = {}
        below: list[Section] = []
        for kind in set(self.kinds.tolist()) - {UpdateKind.NEW_COMMIT}:
            rows = np.flatnonzero(self.kinds == kind)
            by_kind[kind], more = self._payload_tables(_PAYLOADS[UpdateKind(kind)], rows)
            below += [by_kind[kind], *more]
        others = Link(_ByKind(self.kinds, by_kind)) if by_kind else None
        carried = [
            Carried(_Update.PAYLOAD, self._commit_payloads(), _COMMIT.lead_bytes, others),
            Carried.blobs(_Update.BACKUP_PATH, self.backup_paths, self.backup_paths.lengths() > 0),
        ]
        columns: Columns = {_Update.UPDATED_AT: self.updated_at, _Update.KIND: self.kinds}
        tables = PackedSection(len(self), _ENTRY, columns, carried)
        every = VectorSection(np.array([len(self)]), Link(tables))
        return [every, tables, *below]

    def _commit_payloads(self) -> BytesColumn:
        """Lay out the payloads of commits, by far the most of all, to stand beside their entry."""
        commits = np.flatnonzero(self.kinds == UpdateKind.NEW_COMMIT)
        name = Carried.blobs(_COMMIT_NAME, self.names.take(commits))
        columns: Columns = {_COMMIT_NEW: self.new_ids[commits]}
        payloads = PackedSection(len(commits), _COMMIT, columns, [name]).column()
        lengths = np.zeros(len(self), np.int64)
        lengths[commits] = payloads.lengths()
        return BytesColumn(payloads.data, splits_of(lengths))

    def _payload_tables(self, payload: _Payload, rows: Ints) -> tuple[TableSection, list[Section]]:
        fields, below = [], list[Section]()
        if payload.name is not None:
            names, of_row = self.names.take(rows).distinct()
            below.append(BlobSection(names))
            fields.append(Field(payload.name, Link(below[0], of_row)))
        if payload.previous is not None:
            fields.append(Field(payload.previous, self.previous_ids[rows]))
        if payload.new is not None:
            fields.append(Field(payload.new, self.new_ids[rows]))
        for slot, kind in enumerate(payload.numbers):
            fields.append(number(slot, self.numbers[rows, slot].astype(kind)))
        if payload.status is not None:
            statuses = self.statuses.take(rows).sections()
            fields.append(Field(payload.status, Link(statuses[0])))
            below += statuses
        return TableSection(len(rows), fields), below


class _ByKind:
    """The payload of each entry, in the section of its kind."""

    def __init__(self, kinds: Bytes, sections: dict[int, TableSection]) -> None:
        self._kinds = kinds
        self._sections = sections

    def positions(self, rows: NDArray[np.integer]) -> Ints:
        """Say where payloads lie."""
        where = np.empty(len(self._kinds), np.int64)
        for kind, section in self._sections.items():
            of_kind = np.flatnonzero(self._kinds == kind)
            where[of_kind] = section.positions(np.arange(len(of_kind)))
        picked: Ints = where[rows]
        return picked


def _read_payloads(
    kinds: Bytes, payloads: Tables
) -> tuple[BytesColumn, Bytes, Bytes, NDArray[np.uint16], StatusTable]:
    count = len(kinds)
    names = _Scattered(count)
    previous_ids = np.zeros((count, SnapshotId.WIDTH), np.uint8)
    new_ids = np.zeros((count, SnapshotId.WIDTH), np.uint8)
    numbers = np.zeros((count, 3), np.uint16)
    status_rows, statuses = np.zeros(count, np.int64), StatusTable.from_list([Status()])
    for kind in np.unique(kinds).tolist():
        payload = _PAYLOADS[UpdateKind(kind)]
        mask = kinds == kind
        rows = np.flatnonzero(mask)
        tables = payloads.where(mask)
        if payload.name is not None:
            names.put(rows, tables.blobs(payload.name, required=True).column())
        if payload.previous is not None:
            previous_ids[rows] = tables.struct(payload.previous, SnapshotId.WIDTH)
        if payload.new is not None:
            new_ids[rows] = tables.struct(payload.new, SnapshotId.WIDTH)
        for slot, width in enumerate(payload.numbers):
            numbers[rows, slot] = tables.u8(slot) if width == "u1" else tables.u16(slot)
        if payload.status is not None:
            status_rows[rows] = 1 + np.arange(len(rows))
            statuses = statuses.followed_by(StatusTable.read(tables.children(payload.status)))
    return names.column(), previous_ids, new_ids, numbers, statuses.take(status_rows)


class _Scattered:
    """A column that is filled in any order; rows that nobody fills are empty."""

    def __init__(self, rows: int) -> None:
        self._sources = np.zeros(rows, np.int64)
        self._parts = [BytesColumn.from_list([b""])]
        self._count = 1

    def put(self, rows: Ints, texts: BytesColumn) -> None:
        """Fill some rows with text."""
        texts.check_text()
        self._sources[rows] = self._count + np.arange(len(rows))
        self._parts.append(texts)
        self._count += len(texts)

    def column(self) -> BytesColumn:
        """Give the whole column."""
        return concat_bytes(self._parts).take(self._sources)
