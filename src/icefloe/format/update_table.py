"""The log of operations that a repo object keeps, newest first, as columns."""

from collections.abc import Sequence
from enum import IntEnum
from functools import cache
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, FormatError
from icefloe.format.columns import Bytes, BytesColumn, Ints, concat_bytes
from icefloe.format.flatbuffer_reader import Tables, Vectors
from icefloe.format.flatbuffer_scalar import ScalarTable
from icefloe.format.flatbuffer_writer import (
    OFFSET,
    Carried,
    Columns,
    TableShape,
    Tree,
    pack_tables,
)
from icefloe.format.ids import SnapshotId, id_rows
from icefloe.records import Record, force_setattr


class UpdateKind(IntEnum):
    """The kind of an operation; the numbers equal those of the stored union."""

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


class Status(Record):
    """Whether a repository takes writes, and since when."""

    availability: int = 0
    """0 online, 1 read-only, 2 offline."""
    set_at: int = 0
    """Microseconds since 1970, UTC."""
    reason: str | None = None


class UpdateEntry(Record):
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


class _Update:
    """Slots of one entry."""

    KIND = 0
    PAYLOAD = 1
    UPDATED_AT = 2
    BACKUP_PATH = 3


class _Status:
    AVAILABILITY = 0
    SET_AT = 1
    REASON = 2


class _Payload(Record):
    """The slots of a payload's fields, for a kind of operation."""

    name: int | None = None
    previous: int | None = None
    new: int | None = None
    numbers: tuple[str, ...] = ()
    """Types of the numbers, in slots from 0, as the `struct` module names them."""
    status: int | None = None


_K = UpdateKind
_COMMIT_NAME, _COMMIT_NEW = 0, 1
_NAMED_WITH_PREVIOUS: Final = _Payload(name=0, previous=1)
_PAYLOADS: Final = dict.fromkeys(UpdateKind, _Payload()) | {
    _K.REPO_MIGRATED: _Payload(numbers=("B", "B")),
    _K.TAG_CREATED: _Payload(name=0),
    _K.TAG_DELETED: _NAMED_WITH_PREVIOUS,
    _K.BRANCH_CREATED: _Payload(name=0),
    _K.BRANCH_DELETED: _NAMED_WITH_PREVIOUS,
    _K.BRANCH_RESET: _NAMED_WITH_PREVIOUS,
    _K.NEW_COMMIT: _Payload(name=_COMMIT_NAME, new=_COMMIT_NEW),
    _K.COMMIT_AMENDED: _Payload(name=0, previous=1, new=2),
    _K.NEW_DETACHED_SNAPSHOT: _Payload(new=0),
    _K.FEATURE_FLAG_CHANGED: _Payload(numbers=("H", "B", "B")),
    _K.REPO_STATUS_CHANGED: _Payload(status=0),
}
_KINDS: Final = frozenset(UpdateKind)


_ENTRY: Final = TableShape(
    (_Update.PAYLOAD, OFFSET),
    (_Update.UPDATED_AT, "Q"),
    (_Update.BACKUP_PATH, OFFSET),
    (_Update.KIND, "B"),
)
_ENTRY_WITHOUT_PATH: Final = TableShape(
    (_Update.PAYLOAD, OFFSET), (_Update.UPDATED_AT, "Q"), (_Update.KIND, "B")
)
_COMMIT: Final = TableShape((_COMMIT_NAME, OFFSET), (_COMMIT_NEW, f"{SnapshotId.WIDTH}s"))
_STATUS_WITHOUT_REASON: Final = TableShape((_Status.SET_AT, "Q"), (_Status.AVAILABILITY, "B"))
_STATUS: Final = TableShape(
    (_Status.REASON, OFFSET), (_Status.SET_AT, "Q"), (_Status.AVAILABILITY, "B")
)


def write_status(tree: Tree, status: Status, field: int) -> None:
    """Add one status."""
    shape = _STATUS_WITHOUT_REASON if status.reason is None else _STATUS
    position = tree.table(shape, status.set_at, status.availability, field=field)
    if status.reason is not None:
        tree.blob(status.reason.encode(), position + shape.at[_Status.REASON])


def read_status(table: ScalarTable) -> Status:
    """Read one status."""
    return Status(
        table.number(_Status.AVAILABILITY, "B"),
        table.number(_Status.SET_AT, "Q"),
        table.optional_text(_Status.REASON),
    )


class UpdateTable(Record, eq=False):
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
    statuses: tuple[Status | None, ...]
    """Of the few operations that set one."""
    _written: BytesColumn | None = None
    """The tables of a file with these entries, once they were written."""

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
            tuple(entry.status for entry in entries),
        )

    def __len__(self) -> int:
        return len(self.kinds)

    def entry(self, row: int) -> UpdateEntry:
        """Return one row as an object."""
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
            self.statuses[row],
        )

    def with_newest(self, entry: UpdateEntry, backup_path: str) -> Self:
        """Put an entry before all others; the one that was newest gets the name of its copy."""
        newest = self.from_entries([entry])
        paths = BytesColumn.from_strings([entry.backup_path or "", backup_path])
        table = type(self)(
            np.concatenate([newest.kinds, self.kinds]),
            np.concatenate([newest.updated_at, self.updated_at]),
            concat_bytes([paths, self.backup_paths.slice(1, len(self))]),
            self.names.with_rows(0, newest.names),
            np.concatenate([newest.previous_ids, self.previous_ids]),
            np.concatenate([newest.new_ids, self.new_ids]),
            np.concatenate([newest.numbers, self.numbers]),
            (*newest.statuses, *self.statuses),
        )
        if self._written is not None:
            changed = BytesColumn.from_list([table._write_row(row) for row in (0, 1)])  # noqa: SLF001
            written = concat_bytes([changed, self._written.slice(1, len(self))])
            force_setattr(table, "_written", written)
        return table

    def newest(self, count: int) -> Self:
        """Keep this many of the newest entries."""
        table = type(self)(
            self.kinds[:count],
            self.updated_at[:count],
            self.backup_paths.slice(0, count),
            self.names.slice(0, count),
            self.previous_ids[:count],
            self.new_ids[:count],
            self.numbers[:count],
            self.statuses[:count],
        )
        if self._written is not None:
            force_setattr(table, "_written", self._written.slice(0, count))
        return table

    def entries(self) -> list[UpdateEntry]:
        """Return all rows as objects."""
        return [self.entry(row) for row in range(len(self))]

    @classmethod
    def read(cls, vectors: Vectors) -> Self:
        """Read the log of a repo object."""
        tables = vectors.tables()
        kinds = tables.u8(_Update.KIND)
        unknown = ~np.isin(kinds, list(UpdateKind))
        if unknown.any():
            raise _unknown_kind(kinds[unknown][0])
        payloads = tables.children(_Update.PAYLOAD)
        backup_paths = tables.blobs(_Update.BACKUP_PATH).column()
        backup_paths.check_text()
        return cls(
            kinds,
            tables.u64(_Update.UPDATED_AT),
            backup_paths,
            *_read_payloads(kinds, payloads),
        )

    @classmethod
    def read_few(cls, tables: Sequence[ScalarTable]) -> Self:
        """Read the log of a repo object entry by entry."""
        return cls.from_entries([_read_entry(table) for table in tables])

    def write(self, tree: Tree, field: int, few: int) -> None:
        """Add the vector of entries to a file; up to `few` are written one by one."""
        if self._written is None:
            force_setattr(self, "_written", self._write(few))
        assert self._written is not None
        tree.packed_tables(self._written, _ENTRY.lead_bytes, field)

    def _write(self, few: int) -> BytesColumn:
        """Write commits, by far the most entries of a long log, at once, and others one by one."""
        is_commit = self.kinds == UpdateKind.NEW_COMMIT
        if len(self) <= few:
            is_commit[:] = False
        commits, others = np.flatnonzero(is_commit), np.flatnonzero(~is_commit)
        rows = [self._write_row(row) for row in others.tolist()]
        if len(commits) == 0:
            return BytesColumn.from_list(rows)
        written = concat_bytes([self._write_commits(commits), BytesColumn.from_list(rows)])
        return written.take(np.argsort(np.concatenate([commits, others])))

    def _write_commits(self, rows: Ints) -> BytesColumn:
        name = Carried.blobs(_COMMIT_NAME, self.names.take(rows))
        payloads = pack_tables(len(rows), _COMMIT, {_COMMIT_NEW: self.new_ids[rows]}, [name])
        paths = self.backup_paths.take(rows)
        carried = [
            Carried(_Update.PAYLOAD, payloads, _COMMIT.lead_bytes),
            Carried.blobs(_Update.BACKUP_PATH, paths, paths.lengths() > 0),
        ]
        columns: Columns = {
            _Update.UPDATED_AT: self.updated_at[rows],
            _Update.KIND: self.kinds[rows],
        }
        return pack_tables(len(rows), _ENTRY, columns, carried)

    def _write_row(self, row: int) -> bytes:
        path, kind = self.backup_paths[row], UpdateKind(self.kinds.item(row))
        shape = _ENTRY if path else _ENTRY_WITHOUT_PATH
        tree = Tree()
        entry = tree.table(shape, self.updated_at.item(row), kind)
        payload = _PAYLOADS[kind]
        values: list[int | bytes] = self.numbers[row, : len(payload.numbers)].tolist()
        if payload.previous is not None:
            values.append(self.previous_ids[row].tobytes())
        if payload.new is not None:
            values.append(self.new_ids[row].tobytes())
        inner = _payload_shape(payload)
        position = tree.table(inner, *values, field=entry + shape.at[_Update.PAYLOAD])
        if payload.name is not None:
            tree.blob(self.names[row], position + inner.at[payload.name])
        if payload.status is not None:
            write_status(tree, self.statuses[row] or Status(), position + inner.at[payload.status])
        if path:
            tree.blob(path, entry + shape.at[_Update.BACKUP_PATH])
        return tree.row()


@cache
def _payload_shape(payload: _Payload) -> TableShape:
    offsets = [slot for slot in (payload.name, payload.status) if slot is not None]
    structs = [slot for slot in (payload.previous, payload.new) if slot is not None]
    return TableShape(
        *((slot, OFFSET) for slot in offsets),
        *enumerate(payload.numbers),
        *((slot, f"{SnapshotId.WIDTH}s") for slot in structs),
    )


def _read_entry(table: ScalarTable) -> UpdateEntry:
    number = table.number(_Update.KIND, "B")
    if number not in _KINDS:
        raise _unknown_kind(number)
    kind, content = UpdateKind(number), table.child(_Update.PAYLOAD)
    payload = _PAYLOADS[kind]

    def snapshot(slot: int | None) -> SnapshotId | None:
        return None if slot is None else SnapshotId(content.struct(slot, SnapshotId.WIDTH))

    numbers = [content.number(slot, code) for slot, code in enumerate(payload.numbers)]
    first, second, third = (*numbers, 0, 0, 0)[:3]
    return UpdateEntry(
        kind,
        table.number(_Update.UPDATED_AT, "Q"),
        table.optional_text(_Update.BACKUP_PATH) or None,
        None if payload.name is None else content.text(payload.name),
        snapshot(payload.previous),
        snapshot(payload.new),
        (first, second, third),
        None if payload.status is None else read_status(content.child(payload.status)),
    )


def _unknown_kind(number: int) -> FormatError:
    return FormatError(
        f"operation of unknown kind {number} in the log: upgrade icefloe",
        ErrorKind.UNSUPPORTED_SPEC_VERSION,
    )


def _read_payloads(
    kinds: Bytes, payloads: Tables
) -> tuple[BytesColumn, Bytes, Bytes, NDArray[np.uint16], tuple[Status | None, ...]]:
    count = len(kinds)
    names = _Scattered(count)
    previous_ids = np.zeros((count, SnapshotId.WIDTH), np.uint8)
    new_ids = np.zeros((count, SnapshotId.WIDTH), np.uint8)
    numbers = np.zeros((count, 3), np.uint16)
    statuses: list[Status | None] = [None] * count
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
            numbers[rows, slot] = tables.u8(slot) if width == "B" else tables.u16(slot)
        if payload.status is not None:
            for row, status in zip(
                rows.tolist(), _read_statuses(tables.children(payload.status)), strict=True
            ):
                statuses[row] = status
    return names.column(), previous_ids, new_ids, numbers, tuple(statuses)


def _read_statuses(tables: Tables) -> list[Status]:
    reasons = tables.blobs(_Status.REASON)
    texts = [
        text if present else None
        for text, present in zip(
            reasons.column().to_strings(), reasons.present.tolist(), strict=True
        )
    ]
    availability, set_at = tables.u8(_Status.AVAILABILITY), tables.u64(_Status.SET_AT)
    return list(map(Status, availability.tolist(), set_at.tolist(), texts))


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
        """Return the whole column."""
        return concat_bytes(self._parts).take(self._sources)
