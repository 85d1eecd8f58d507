"""The snapshots that a repo object lists, as columns sorted by id."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from operator import lt
from typing import Final, Self, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from icefloe.errors import ErrorKind, InvalidInputError, SnapshotNotFoundError
from icefloe.format.columns import (
    Bools,
    Bytes,
    BytesColumn,
    Ints,
    find_sorted,
    is_ascending,
    ranges,
    splits_of,
)
from icefloe.format.flatbuffer_reader import Vectors, refuse
from icefloe.format.flatbuffer_scalar import ScalarTable
from icefloe.format.flatbuffer_writer import (
    OFFSET,
    Carried,
    Columns,
    TableShape,
    Tree,
    pack_tables,
)
from icefloe.format.ids import SnapshotId, id_rows, ids_of_rows, texts_of_rows
from icefloe.format.metadata import LateMetadata, Metadata, MetadataItems, read_items
from icefloe.records import Record, field, force_setattr

NO_PARENT = -1


class _Info:
    """Slots of one snapshot."""

    ID = 0
    PARENT_OFFSET = 1
    FLUSHED_AT = 2
    MESSAGE = 3
    METADATA = 4
    PRUNED = 5


_FIELDS: Final = (
    (_Info.METADATA, OFFSET),
    (_Info.FLUSHED_AT, "Q"),
    (_Info.MESSAGE, OFFSET),
    (_Info.PARENT_OFFSET, "i"),
    (_Info.ID, f"{SnapshotId.WIDTH}s"),
)
_SNAPSHOT: Final = TableShape(*_FIELDS)
_SNAPSHOT_WITH_PRUNED: Final = TableShape(*_FIELDS, (_Info.PRUNED, OFFSET))
_LEAD_BYTES: Final = _SNAPSHOT.lead_bytes
assert _SNAPSHOT_WITH_PRUNED.lead_bytes == _LEAD_BYTES
_PARENT_WORD: Final = (_LEAD_BYTES + _SNAPSHOT.at[_Info.PARENT_OFFSET]) // 4


class SnapshotEntry(Record):
    """The entry of a snapshot in the repo object."""

    id: SnapshotId
    parent: SnapshotId | None
    flushed_at: int
    """Microseconds since 1970, UTC."""
    message: str
    metadata: Metadata = field(default_factory=dict)
    pruned_ancestors: tuple[SnapshotId, ...] = ()
    """Ancestors that expiration took out of the history, whose logs still count; oldest first."""


class SnapshotTable(Record, eq=False):
    """Snapshots in columns; `parents` are row numbers, or `NO_PARENT`."""

    ids: Bytes
    parents: NDArray[np.int32]
    flushed_at: NDArray[np.uint64]
    messages: BytesColumn
    metadata: MetadataItems
    pruned_splits: Ints
    pruned_ids: Bytes
    spec_version: int = 2
    _written: BytesColumn | None = None
    """The tables of a file that lists these snapshots, once they were written."""

    @classmethod
    def from_entries(cls, entries: list[SnapshotEntry], spec_version: int = 2) -> Self:
        """Pack a list, in any order; each parent must be in it."""
        entries = sorted(entries, key=lambda entry: entry.id)
        rows = {entry.id: row for row, entry in enumerate(entries)}
        if len(rows) < len(entries):
            raise _repeated()
        unknown = {e.parent for e in entries} - rows.keys() - {None}
        if unknown:
            raise _not_listed(unknown.pop())
        parents = [NO_PARENT if e.parent is None else rows[e.parent] for e in entries]
        return cls(
            id_rows(SnapshotId, [entry.id for entry in entries]),
            np.array(parents, np.int32),
            np.array([entry.flushed_at for entry in entries], np.uint64),
            BytesColumn.from_strings([entry.message for entry in entries]),
            MetadataItems.encode([entry.metadata for entry in entries], spec_version),
            splits_of(np.array([len(e.pruned_ancestors) for e in entries], np.int64)),
            id_rows(
                SnapshotId,
                [pruned_ancestor for e in entries for pruned_ancestor in e.pruned_ancestors],
            ),
            spec_version,
        )

    @classmethod
    def read(cls, vectors: Vectors, spec_version: int) -> Self:
        """Read the snapshots of a repo object."""
        tables = vectors.tables()
        messages = tables.blobs(_Info.MESSAGE, required=True).column()
        messages.check_text()
        pruned = tables.vectors(_Info.PRUNED, SnapshotId.WIDTH)
        parents = tables.i32(_Info.PARENT_OFFSET)
        if len(parents) and (parents.min() < NO_PARENT or parents.max() >= len(parents)):
            refuse("the parent of a snapshot is not in the list")
        ids = tables.struct(_Info.ID, SnapshotId.WIDTH)
        if not is_ascending(ids.view(f"S{SnapshotId.WIDTH}").ravel()):
            refuse("the snapshots are not sorted by their ids")
        return cls(
            ids,
            parents,
            tables.u64(_Info.FLUSHED_AT),
            messages,
            MetadataItems.read(tables.vectors(_Info.METADATA)),
            pruned.splits(),
            pruned.byte_structs(SnapshotId.WIDTH),
            spec_version,
        )

    @classmethod
    def read_few(cls, tables: Sequence[ScalarTable], spec_version: int) -> Self:
        """Read the snapshots of a repo object one by one."""
        width = SnapshotId.WIDTH
        ids = [table.struct(_Info.ID, width) for table in tables]
        if not all(map(lt, ids, ids[1:])):
            refuse("the snapshots are not sorted by their ids")
        parents = [table.number(_Info.PARENT_OFFSET, "i") for table in tables]
        if not all(NO_PARENT <= parent < len(parents) for parent in parents):
            refuse("the parent of a snapshot is not in the list")
        pruned = [table.items(_Info.PRUNED, width) or b"" for table in tables]
        return cls(
            np.frombuffer(b"".join(ids), np.uint8).reshape(-1, width),
            np.array(parents, np.int32),
            np.array([table.number(_Info.FLUSHED_AT, "Q") for table in tables], np.uint64),
            BytesColumn.from_strings([table.text(_Info.MESSAGE) for table in tables]),
            read_items([table.optional_children(_Info.METADATA) or () for table in tables]),
            splits_of(np.array([len(raw) // width for raw in pruned], np.int64)),
            np.frombuffer(b"".join(pruned), np.uint8).reshape(-1, width),
            spec_version,
        )

    def write(self, tree: Tree, field: int, few: int) -> None:
        """Add the vector of snapshots to a file; up to `few` are written one by one."""
        if self._written is None:
            force_setattr(self, "_written", self._write(few))
        assert self._written is not None
        tree.packed_tables(self._written, _LEAD_BYTES, field)

    def _write(self, few: int) -> BytesColumn:
        if len(self) <= few:
            return BytesColumn.from_list([self._write_row(row) for row in range(len(self))])
        carried = [
            Carried.blobs(_Info.MESSAGE, self.messages),
            Carried(_Info.METADATA, self.metadata.packed()),
        ]
        shape = _SNAPSHOT
        if len(self.pruned_ids):
            counts = np.diff(self.pruned_splits)
            shape = _SNAPSHOT_WITH_PRUNED
            carried.append(Carried.items(_Info.PRUNED, counts, self.pruned_ids))
        columns: Columns = {
            _Info.PARENT_OFFSET: self.parents,
            _Info.FLUSHED_AT: self.flushed_at,
            _Info.ID: self.ids,
        }
        return pack_tables(len(self), shape, columns, carried)

    def _write_row(self, row: int) -> bytes:
        first, last = self.pruned_splits[row : row + 2].tolist()
        shape = _SNAPSHOT if first == last else _SNAPSHOT_WITH_PRUNED
        tree = Tree()
        position = tree.table(
            shape, self.flushed_at.item(row), self.parents.item(row), self._raw_id(row)
        )
        tree.blob(self.messages[row], position + shape.at[_Info.MESSAGE])
        self.metadata.write(tree, row, position + shape.at[_Info.METADATA])
        if first < last:
            raw = self.pruned_ids[first:last].tobytes()
            tree.items(last - first, raw, position + shape.at[_Info.PRUNED])
        return tree.row()

    def __len__(self) -> int:
        return len(self.parents)

    def row_of(self, snapshot: SnapshotId) -> int | None:
        """Find the row of a snapshot by binary search."""
        return find_sorted(len(self), snapshot.raw, self._raw_id)

    def _raw_id(self, row: int) -> bytes:
        raw: bytes = self.ids[row].tobytes()
        return raw

    def _known_row(self, snapshot: SnapshotId) -> int:
        row = self.row_of(snapshot)
        if row is None:
            raise _not_listed(snapshot)
        return row

    def id(self, row: int) -> SnapshotId:
        """Return the id of a row."""
        return SnapshotId(self.ids[row].tobytes())

    def entry(self, row: int) -> SnapshotEntry:
        """Return one row as an object."""
        parent = int(self.parents[row])
        return SnapshotEntry(
            self.id(row),
            None if parent == NO_PARENT else self.id(parent),
            int(self.flushed_at[row]),
            self.messages[row].decode(),
            self.metadata.decode(row, self.spec_version),
            tuple(self.pruned_ancestors(row)),
        )

    def pruned_ancestors(self, row: int) -> list[SnapshotId]:
        """Return the ancestors that expiration took out of the history, oldest first."""
        pruned = slice(self.pruned_splits[row], self.pruned_splits[row + 1])
        return ids_of_rows(SnapshotId, self.pruned_ids[pruned])

    def page(self, rows: Sequence[int]) -> "SnapshotPage":
        """Return many rows, of which nothing is converted yet."""
        return SnapshotPage(self, rows)

    def entries(self, rows: Sequence[int]) -> list[SnapshotEntry]:
        """Return many rows as objects: each column is converted once, for all of them."""
        picked = np.asarray(rows, np.int64)
        ids = ids_of_rows(SnapshotId, self.ids[picked])
        parents = self.parents[picked].tolist()
        named: dict[int, SnapshotId | None] = {NO_PARENT: None, **dict(zip(rows, ids, strict=True))}
        for parent in set(parents) - named.keys():
            named[parent] = self.id(parent)
        pruned = np.flatnonzero(np.diff(self.pruned_splits)[picked]).tolist()
        entries = [
            SnapshotEntry(snapshot, named[parent], flushed_at, message, metadata)
            for snapshot, parent, flushed_at, message, metadata in zip(
                ids,
                parents,
                self.flushed_at[picked].tolist(),
                self.messages.take(picked).to_strings(),
                self.metadata.decode_many(picked, self.spec_version),
                strict=True,
            )
        ]
        for position in pruned:
            entries[position] = self.entry(rows[position])
        return entries

    def ancestry(self, snapshot: SnapshotId) -> list[int]:
        """List the rows from a snapshot back to its root."""
        row = self._known_row(snapshot)
        parents = self.parents.tolist()
        rows = []
        for _ in parents:
            rows.append(row)
            row = parents[row]
            if row == NO_PARENT:
                break
        else:
            refuse("the history of a snapshot runs in a circle")
        return rows

    def kept(self, is_kept: Bools, shortened: "Mapping[int, Shortened]") -> Self:
        """Drop rows; those kept whose parents go must be `shortened`, and get other parents."""
        rows = np.flatnonzero(is_kept)
        parents = self.parents.copy()
        counts = np.diff(self.pruned_splits)
        for row, short in shortened.items():
            parents[row], counts[row] = short.parent, len(short.pruned_ids)
        numbers = np.full(len(self) + 1, NO_PARENT, np.int32)  # the last one is for NO_PARENT
        numbers[rows] = np.arange(len(rows))
        parents = numbers[parents[rows]]
        if ((parents == NO_PARENT) & (self.parents[rows] != NO_PARENT)).any():
            raise InvalidInputError("a snapshot cannot be dropped while another one follows it")
        splits = splits_of(counts[rows])
        pruned = np.empty((int(splits[-1]), SnapshotId.WIDTH), np.uint8)
        is_same = np.ones(len(self), np.bool_)
        is_same[list(shortened)] = False
        same = np.flatnonzero(is_same[rows])
        old, new = self.pruned_splits[rows[same]], splits[same]
        pruned[ranges(new, counts[rows[same]])] = self.pruned_ids[ranges(old, counts[rows[same]])]
        for row, short in shortened.items():
            if is_kept[row]:
                start = int(splits[numbers[row]])
                pruned[start : start + len(short.pruned_ids)] = short.pruned_ids
        return type(self)(
            self.ids[rows],
            parents,
            self.flushed_at[rows],
            self.messages.take(rows),
            self.metadata.take(rows),
            splits,
            pruned,
            self.spec_version,
        )

    def with_entry(self, entry: SnapshotEntry) -> Self:
        """Add a snapshot; the row numbers of later ones move up by one."""
        position = bisect_left(range(len(self)), entry.id.raw, key=self._raw_id)
        if position < len(self) and self._raw_id(position) == entry.id.raw:
            raise _repeated()
        parent = NO_PARENT if entry.parent is None else self._known_row(entry.parent)
        parents = _inserted(self.parents, position, [parent])
        parents += parents >= position
        pruned_at, new = self.pruned_splits.item(position), len(entry.pruned_ancestors)
        added = type(self)(
            _inserted(self.ids, position, id_rows(SnapshotId, [entry.id])),
            parents,
            _inserted(self.flushed_at, position, np.array([entry.flushed_at], np.uint64)),
            self.messages.with_rows(position, BytesColumn.from_strings([entry.message])),
            self.metadata.with_owner(position, entry.metadata, self.spec_version),
            np.concatenate(
                [self.pruned_splits[: position + 1], self.pruned_splits[position:] + new]
            ),
            _inserted(self.pruned_ids, pruned_at, id_rows(SnapshotId, entry.pruned_ancestors)),
            self.spec_version,
        )
        if self._written is not None:
            row = BytesColumn.from_list([added._write_row(position)])  # noqa: SLF001
            written = self._written.with_rows(position, row)
            written.data.view("<i4")[(written.splits[:-1] >> 2) + _PARENT_WORD] = parents
            force_setattr(added, "_written", written)
        return added


class Shortened(Record):
    """The remaining ancestry of a snapshot after some ancestors were removed."""

    parent: int
    """Row of the new parent."""
    pruned_ids: Bytes
    """All ancestors that were taken out before it, oldest first."""


_FIRST_ENTRIES: Final = 8
"""Rows that an iteration over a page converts first; the next portion has as many times more."""


class SnapshotPage(Sequence[SnapshotEntry]):
    """Some rows of a table: a sequence of entries, or a column of each of their properties."""

    __slots__ = ("_ids", "_picked", "_rows", "_table")

    def __init__(self, table: SnapshotTable, rows: Sequence[int]) -> None:
        self._table = table
        self._rows = rows
        self._picked = np.asarray(rows, np.int64)
        self._ids: list[str] | None = None

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, position: int) -> SnapshotEntry: ...
    @overload
    def __getitem__(self, position: slice) -> list[SnapshotEntry]: ...
    def __getitem__(self, position: int | slice) -> SnapshotEntry | list[SnapshotEntry]:
        if isinstance(position, slice):
            return self._table.entries(self._rows[position])
        return self._table.entry(self._rows[position])

    def __iter__(self) -> Iterator[SnapshotEntry]:
        for portion in self.portions():
            yield from portion[:]

    def portions(self) -> Iterator["SnapshotPage"]:
        """Split the page: columns convert many rows at once, but a search may end after a few."""
        start, count = 0, _FIRST_ENTRIES
        while start < len(self._rows):
            yield SnapshotPage(self._table, self._rows[start : start + count])
            start, count = start + count, _FIRST_ENTRIES * count

    def ids(self) -> list[str]:
        """Write out the ids."""
        if self._ids is None:
            self._ids = texts_of_rows(self._table.ids[self._picked])
        return self._ids

    def parents(self) -> list[str | None]:
        """Write out the ids of the parents."""
        parents = self._table.parents[self._picked]
        if (parents[:-1] == self._picked[1:]).all():  # a line of commits
            return [*self.ids()[1:], *self._texts_of_parents(parents[-1:])]
        return self._texts_of_parents(parents)

    def _texts_of_parents(self, parents: NDArray[np.int32]) -> list[str | None]:
        texts = texts_of_rows(self._table.ids[np.maximum(parents, 0)])
        is_root = (parents == NO_PARENT).tolist()
        return [None if alone else text for text, alone in zip(texts, is_root, strict=True)]

    def flushed_at(self) -> NDArray[np.uint64]:
        """Return the times, in microseconds since 1970."""
        return self._table.flushed_at[self._picked]

    def messages(self) -> list[str]:
        """Return the messages."""
        return self._table.messages.take(self._picked).to_strings()

    def metadata(self) -> LateMetadata:
        """Return the metadata by place in the page."""
        return LateMetadata(self._table.metadata.take(self._picked), self._table.spec_version)


def _inserted[T: np.generic](column: NDArray[T], row: int, rows: ArrayLike) -> NDArray[T]:
    return np.concatenate(
        [column[:row], rows, column[row:]], dtype=column.dtype, casting="same_kind"
    )


def _not_listed(snapshot: SnapshotId | None) -> SnapshotNotFoundError:
    return SnapshotNotFoundError(f"the repository does not list the snapshot {snapshot}")


def read_snapshot_id(table: ScalarTable) -> SnapshotId:
    """Read which snapshot an entry of the list is of."""
    return SnapshotId(table.struct(_Info.ID, SnapshotId.WIDTH))


def _repeated() -> InvalidInputError:
    return InvalidInputError(
        "a snapshot id occurs more than once: each commit makes a new one",
        ErrorKind.DUPLICATE_SNAPSHOT_ID,
    )
