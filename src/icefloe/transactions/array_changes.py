"""The chunks of one array that a session changed.

Chunks written one at a time go to a small dictionary; whole tables of references are kept as
batches behind it. Both are folded into sorted columns when somebody needs to see them all.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icefloe.format.chunk_table import (
    ChunkRef,
    ChunkTable,
    Coordinates,
    are_among,
    concat_tables,
    sort_keys,
)
from icefloe.format.columns import is_ascending
from icefloe.records import Record, replace
from icefloe.transactions.causality import Origin


class Missing(Enum):
    """The sign that a session did not touch a chunk; a deleted chunk has None instead."""

    MISSING = 0


MISSING: Final = Missing.MISSING

_FEW_ROWS: Final = 16
"""Tables up to this length are kept as objects."""

type Index = tuple[int, ...]
"""The coordinates of one chunk."""


type Origins = Origin | NDArray[np.uint32]
"""The origin of every row; one number if all rows have the same."""


class Settled(Record):
    """All chunk changes of an array: references set, and coordinates deleted; none in both."""

    table: ChunkTable
    deleted: Coordinates
    table_origins: Origins = 0
    deleted_origins: Origins = 0

    def __len__(self) -> int:
        return len(self.table) + len(self.deleted)

    def of_origins(self, chosen: NDArray[np.bool_]) -> "Settled":
        """Keep the changes whose origins are marked."""
        in_table = _chosen_rows(self.table_origins, chosen)
        in_deleted = _chosen_rows(self.deleted_origins, chosen)
        return self.take(
            slice(None) if in_table.all() else np.broadcast_to(in_table, len(self.table)),
            slice(None) if in_deleted.all() else np.broadcast_to(in_deleted, len(self.deleted)),
        )

    def with_origins(self, renamed: NDArray[np.uint32]) -> "Settled":
        """Replace every origin by the number in its row."""
        return replace(
            self,
            table_origins=_renamed(self.table_origins, renamed),
            deleted_origins=_renamed(self.deleted_origins, renamed),
        )

    def without(self, coordinates: Coordinates) -> "Settled":
        """Leave out some chunks."""
        return self.take(
            ~are_among(self.table.coordinates, coordinates),
            ~are_among(self.deleted, coordinates),
        )

    def take(
        self, in_table: slice | NDArray[np.bool_], in_deleted: slice | NDArray[np.bool_]
    ) -> "Settled":
        """Keep some of the references, and some of the deletions."""
        return Settled(
            self.table if isinstance(in_table, slice) else self.table.take(in_table),
            self.deleted[in_deleted],
            _taken(self.table_origins, in_table),
            _taken(self.deleted_origins, in_deleted),
        )

    def touched(self) -> Coordinates:
        """List every coordinate that was set or deleted, sorted."""
        if len(self.deleted) == 0:
            return self.table.coordinates
        both = np.concatenate([self.table.coordinates, self.deleted])
        return both[_sort_order(both)]


type _Batch = tuple[ChunkTable | Coordinates, Origins | None]
"""References, or coordinates of deleted chunks; without origins, they are of the present one."""


class ArrayChanges:
    """The chunks of one array that a session set or deleted; the newest change wins.

    >>> from icefloe.format.chunk_table import InlineChunk
    >>> changes = ArrayChanges(1)
    >>> changes.set((0,), InlineChunk(b"a"))
    >>> changes.delete((1,))
    >>> changes.get((0,)), changes.get((1,)), changes.get((2,))
    (InlineChunk(data=b'a'), None, <Missing.MISSING: 0>)
    """

    __slots__ = (
        "_batches", "_foreign", "_settled", "_singles", "dimensions", "origin", "revision",
    )  # fmt: skip

    def __init__(self, dimensions: int, origin: Origin = 0) -> None:
        self.dimensions = dimensions
        self.origin = origin
        """The origin of changes that come without one; see `begin_origin`."""
        self.revision = 0
        """Grows with every change, so that work done for one state is not used for another."""
        self._singles: dict[Index, ChunkRef | None] = {}
        self._foreign: dict[Index, Origin] = {}
        """The origins of singles that are not of the present one."""
        self._batches: list[_Batch] = []
        """Older than the singles, oldest first; coordinates alone are deletions."""
        self._settled: Settled | None = None
        """Older than the batches."""

    def begin_origin(self, origin: Origin) -> None:
        """Start another origin for the changes from now on."""
        self.settled()
        self.origin = origin

    def get(self, index: Index) -> ChunkRef | Missing | None:
        """Look up a chunk: its reference, `None` if deleted, `MISSING` if untouched."""
        single = self._singles.get(index, MISSING)
        if single is not MISSING or (self._settled is None and not self._batches):
            return single
        if self._batches:
            self._fold(list(self._batches))
            self._batches = []
        assert self._settled is not None
        if (ref := self._settled.table.find(index)) is not None:
            return ref
        deleted = self._settled.deleted
        is_deleted = len(deleted) > 0 and bool((deleted == np.array(index)).all(axis=1).any())
        return None if is_deleted else MISSING

    def set(self, index: Index, ref: ChunkRef) -> None:
        """Point a chunk at its bytes."""
        self._put_single(index, ref)

    def delete(self, index: Index) -> None:
        """Delete a chunk, whether it exists or not."""
        self._put_single(index, None)

    def _put_single(self, index: Index, ref: ChunkRef | None) -> None:
        self._singles[index] = ref
        if self._foreign:
            self._foreign.pop(index, None)
        self.revision += 1

    def put_table(self, table: ChunkTable, origins: Origins | None = None) -> None:
        """Set many chunks at once."""
        if len(table) > _FEW_ROWS:
            self._push(table, origins)
            return
        # A batch has a price of its own, whatever it holds: small ones by the thousand would
        # take more memory than their rows as objects do.
        for row, index in enumerate(map(tuple, table.coordinates.tolist())):
            self._singles[index] = table.ref(row)
            if origins is not None:
                self._foreign[index] = origins if isinstance(origins, int) else int(origins[row])
            elif self._foreign:
                self._foreign.pop(index, None)
        self.revision += 1

    def delete_many(self, coordinates: Coordinates, origins: Origins | None = None) -> None:
        """Delete many chunks at once."""
        self._push(coordinates, origins)

    def drop(self, coordinates: Coordinates) -> None:
        """Forget what was done to some chunks."""
        self._settled = self.settled().without(coordinates)
        self.revision += 1

    def settled(self) -> Settled:
        """Fold everything into sorted columns, and keep it so."""
        batches = self._batches + self._singles_as_batches()
        if batches or self._settled is None:
            self._fold(batches)
            self._batches, self._singles, self._foreign = [], {}, {}
        assert self._settled is not None
        return self._settled

    def is_empty(self) -> bool:
        """Return whether nothing was touched."""
        return (
            not self._singles
            and (self._settled is None or len(self._settled) == 0)
            and all(len(batch) == 0 for batch, _ in self._batches)
        )

    def copy(self) -> "ArrayChanges":
        """Copy in a moment: columns are shared, as they never change."""
        other = ArrayChanges(self.dimensions, self.origin)
        other.revision = self.revision
        other._singles = dict(self._singles)
        other._foreign = dict(self._foreign)
        other._batches = list(self._batches)
        other._settled = self._settled
        return other

    def __getstate__(self) -> tuple[int, Origin, Settled]:
        settled = self.settled()
        return self.dimensions, self.origin, replace(settled, table=settled.table.compacted())

    def __setstate__(self, state: tuple[int, Origin, Settled]) -> None:
        dimensions, origin, settled = state
        self.__init__(dimensions, origin)  # type: ignore[misc]
        self._settled = settled

    def _push(self, batch: ChunkTable | Coordinates, origins: Origins | None) -> None:
        self._batches += [*self._singles_as_batches(), (batch, origins)]
        self._singles, self._foreign = {}, {}
        self.revision += 1

    def _singles_as_batches(self) -> list[_Batch]:
        if not self._singles:
            return []
        refs = {index: ref for index, ref in self._singles.items() if ref is not None}
        gone = [index for index, ref in self._singles.items() if ref is None]
        changes = list[ChunkTable | Coordinates]()
        if refs:
            changes.append(ChunkTable.from_refs(refs, self.dimensions))
        if gone:
            changes.append(np.array(gone, np.uint32).reshape(len(gone), self.dimensions))
        if not self._foreign:
            return [(rows, None) for rows in changes]
        batches = list[_Batch]()
        for rows in changes:
            coordinates = rows.coordinates if isinstance(rows, ChunkTable) else rows
            indices = map(tuple, coordinates.tolist())
            origins = [self._foreign.get(index, self.origin) for index in indices]
            batches.append((rows, np.array(origins, np.uint32)))
        return batches

    def _fold(self, newer: list[_Batch]) -> None:
        """Keep the newest change of each coordinate, all batches at once."""
        settled = self._settled
        batches = list[_Batch]()
        if settled is not None:
            batches += [
                (settled.table, settled.table_origins),
                (settled.deleted, settled.deleted_origins),
            ]
        batches = [(rows, origins) for rows, origins in [*batches, *newer] if len(rows)]
        if len(batches) == 1 and isinstance(table := batches[0][0], ChunkTable):
            origins = self.origin if batches[0][1] is None else batches[0][1]
            none = np.empty((0, self.dimensions), np.uint32)
            self._settled = Settled(table, none, origins, self.origin)
            return
        tables = list[ChunkTable]()
        deletions = list[Coordinates]()
        of_tables, of_deletions = list[tuple[int, Origins]](), list[tuple[int, Origins]]()
        newest = _newest([rows for rows, _ in batches])
        for (batch, batch_origins), is_newest in zip(batches, newest, strict=True):
            origins = _taken(self.origin if batch_origins is None else batch_origins, is_newest)
            if isinstance(batch, ChunkTable):
                tables.append(batch if is_newest.all() else batch.take(is_newest))
                of_tables.append((len(tables[-1]), origins))
            else:
                deletions.append(batch[is_newest])
                of_deletions.append((len(deletions[-1]), origins))
        table = concat_tables(tables) if tables else ChunkTable.empty(self.dimensions)
        deleted = np.concatenate([np.empty((0, self.dimensions), np.uint32), *deletions])
        order = _sort_order(deleted)
        self._settled = Settled(
            table,
            deleted[order],
            self._origins_of_tables(tables, of_tables),
            _taken(_joined(of_deletions, self.origin), order),
        )

    def _origins_of_tables(
        self, tables: Sequence[ChunkTable], origins: Sequence[tuple[int, Origins]]
    ) -> Origins:
        """Put the origins of tables in the order that the tables have together."""
        joined = _joined(origins, self.origin)
        if isinstance(joined, int) or len(tables) == 1:
            return joined
        return joined[_sort_order(np.concatenate([table.coordinates for table in tables]))]


def _newest(batches: Sequence[ChunkTable | Coordinates]) -> list[np.ndarray[Any, Any]]:
    """Mark, in each batch, the rows whose coordinates no later row has."""
    matrices = [b.coordinates if isinstance(b, ChunkTable) else b for b in batches]
    if len(matrices) == 1 and isinstance(batches[0], ChunkTable):
        return [np.ones(len(matrices[0]), np.bool_)]
    if not matrices:
        return []
    [keys] = sort_keys(np.concatenate(matrices))
    if is_ascending(keys):  # as when batches are set one after the other
        return [np.ones(len(matrix), np.bool_) for matrix in matrices]
    order = np.argsort(keys, kind="stable")
    ranked = keys[order]
    is_last = np.ones(len(order), np.bool_)
    is_last[:-1] = ranked[1:] != ranked[:-1]
    newest = np.zeros(len(order), np.bool_)
    newest[order[is_last]] = True
    return np.split(newest, np.cumsum([len(matrix) for matrix in matrices])[:-1])


def _sort_order(coordinates: Coordinates) -> slice | NDArray[np.intp]:
    [keys] = sort_keys(coordinates)
    return slice(None) if is_ascending(keys) else np.argsort(keys, kind="stable")


def _joined(parts: Sequence[tuple[int, Origins]], default: Origin) -> Origins:
    """Put the origins of several batches of this many rows one after the other."""
    filled = [(count, origins) for count, origins in parts if count]
    if not filled:
        return default
    first = filled[0][1]
    if isinstance(first, int) and all(
        isinstance(origins, int) and origins == first for _, origins in filled
    ):
        return first
    columns = [np.broadcast_to(np.asarray(origin, np.uint32), count) for count, origin in filled]
    return np.concatenate(columns)


def _chosen_rows(origins: Origins, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    return np.asarray(chosen[origins])


def _renamed(origins: Origins, renamed: NDArray[np.uint32]) -> Origins:
    return int(renamed[origins]) if isinstance(origins, int) else renamed[origins]


def _taken(origins: Origins, rows: slice | NDArray[Any]) -> Origins:
    return origins if isinstance(origins, int) else origins[rows]
