"""The chunks of one array that a session changed.

Chunks written one at a time go to a small dictionary; whole tables of references are kept as
batches behind it. Both are folded into sorted columns when somebody needs to see them all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import numpy as np

from icefloe.format.chunk_table import (
    ChunkRef,
    ChunkTable,
    Coordinates,
    InlineChunk,
    NativeChunk,
    VirtualChunk,
    concat_tables,
    sort_keys,
)
from icefloe.format.columns import BytesColumn, is_ascending
from icefloe.format.ids import ChunkId, id_rows


class Missing(Enum):
    """Says that a session did not touch a chunk, which is not the same as deleting it."""

    MISSING = 0


MISSING: Final = Missing.MISSING

_FEW_ROWS: Final = 16
"""Tables up to this length are kept as objects."""

type Index = tuple[int, ...]
"""The coordinates of one chunk."""


@dataclass(frozen=True, slots=True)
class Settled:
    """All chunk changes of an array: references set, and coordinates deleted; none in both."""

    table: ChunkTable
    deleted: Coordinates


def table_of_refs(dimensions: int, refs: Mapping[Index, ChunkRef]) -> ChunkTable:
    """Turn references that were made one by one into columns."""
    native: dict[Index, NativeChunk] = {}
    virtual: dict[Index, VirtualChunk] = {}
    inline: dict[Index, InlineChunk] = {}
    for index, ref in refs.items():
        match ref:
            case NativeChunk():
                native[index] = ref
            case VirtualChunk():
                virtual[index] = ref
            case InlineChunk():
                inline[index] = ref
    tables = []
    if native:
        tables.append(_native_table(dimensions, native))
    if virtual:
        tables.append(_virtual_table(dimensions, virtual))
    if inline:
        data = BytesColumn.from_list([ref.data for ref in inline.values()])
        tables.append(ChunkTable.inlined(_matrix(dimensions, list(inline)), data))
    return concat_tables(tables) if tables else ChunkTable.empty(dimensions)


def _native_table(dimensions: int, refs: Mapping[Index, NativeChunk]) -> ChunkTable:
    return ChunkTable.native(
        _matrix(dimensions, list(refs)),
        id_rows(ChunkId, [ref.id for ref in refs.values()]),
        np.array([ref.length for ref in refs.values()], np.uint64),
        np.array([ref.offset for ref in refs.values()], np.uint64),
    )


def _virtual_table(dimensions: int, refs: Mapping[Index, VirtualChunk]) -> ChunkTable:
    rows = list(refs.values())
    etags = [ref.etag for ref in rows]
    has_etag = np.array([etag is not None for etag in etags], np.bool_)
    modified = np.array([ref.last_modified or 0 for ref in rows], np.uint32)
    etag_rows = np.where(has_etag, np.cumsum(has_etag) - 1, -1).astype(np.int32)
    return ChunkTable.virtual(
        _matrix(dimensions, list(refs)),
        BytesColumn.from_strings([ref.location for ref in rows]),
        np.array([ref.offset for ref in rows], np.uint64),
        np.array([ref.length for ref in rows], np.uint64),
        etags=BytesColumn.from_strings([etag for etag in etags if etag is not None]),
        etag_rows=etag_rows if has_etag.any() else None,
        last_modified=modified if modified.any() else None,
    )


def _matrix(dimensions: int, rows: Sequence[Index]) -> Coordinates:
    return np.array(rows, np.uint32).reshape(len(rows), dimensions)


class ArrayChanges:
    """The chunks of one array that a session set or deleted; the newest change wins.

    >>> changes = ArrayChanges(1)
    >>> changes.set((0,), InlineChunk(b"a"))
    >>> changes.delete((1,))
    >>> changes.get((0,)), changes.get((1,)), changes.get((2,))
    (InlineChunk(data=b'a'), None, <Missing.MISSING: 0>)
    """

    __slots__ = ("_batches", "_settled", "_singles", "dimensions", "revision")

    def __init__(self, dimensions: int) -> None:
        self.dimensions = dimensions
        self.revision = 0
        """Grows with every change, so that work done for one state is not used for another."""
        self._singles: dict[Index, ChunkRef | None] = {}
        self._batches: list[ChunkTable | Coordinates] = []
        """Older than the singles, oldest first; coordinates alone are deletions."""
        self._settled: Settled | None = None
        """Older than the batches."""

    def get(self, index: Index) -> ChunkRef | Missing | None:
        """Look up a chunk: its reference, `None` if deleted, `MISSING` if untouched."""
        found = self._singles.get(index, MISSING)
        if found is not MISSING or (self._settled is None and not self._batches):
            return found
        if self._batches:
            self._fold(list(self._batches))
            self._batches = []
        assert self._settled is not None
        if (ref := self._settled.table.find(index)) is not None:
            return ref
        return None if _contains(self._settled.deleted, index) else MISSING

    def set(self, index: Index, ref: ChunkRef) -> None:
        """Point a chunk at its bytes."""
        self._singles[index] = ref
        self.revision += 1

    def delete(self, index: Index) -> None:
        """Delete a chunk, whether it exists or not."""
        self._singles[index] = None
        self.revision += 1

    def put_table(self, table: ChunkTable) -> None:
        """Set many chunks at once."""
        if len(table) > _FEW_ROWS:
            self._push(table)
            return
        # A batch has a price of its own, whatever it holds: small ones by the thousand would
        # take more memory than their rows as objects do.
        for row, index in enumerate(table.coordinates.tolist()):
            self._singles[tuple(index)] = table.ref(row)
        self.revision += 1

    def delete_many(self, coordinates: Coordinates) -> None:
        """Delete many chunks at once."""
        self._push(coordinates)

    def drop(self, coordinates: Coordinates) -> None:
        """Forget what was done to some chunks."""
        settled = self.settled()
        self._settled = Settled(
            settled.table.without(coordinates), _without(settled.deleted, coordinates)
        )
        self.revision += 1

    def settled(self) -> Settled:
        """Fold everything into sorted columns, and keep it so."""
        batches = self._batches + self._singles_as_batches()
        if batches or self._settled is None:
            self._fold(batches)
            self._batches, self._singles = [], {}
        assert self._settled is not None
        return self._settled

    def touched(self) -> Coordinates:
        """List every coordinate that was set or deleted, sorted."""
        settled = self.settled()
        if len(settled.deleted) == 0:
            return settled.table.coordinates
        return _sorted_rows(np.concatenate([settled.table.coordinates, settled.deleted]))

    def is_empty(self) -> bool:
        """Say whether nothing was touched."""
        if self._singles:
            return False
        if self._batches:
            return all(len(batch) == 0 for batch in self._batches) and self._is_settled_empty()
        return self._is_settled_empty()

    def _is_settled_empty(self) -> bool:
        settled = self._settled
        return settled is None or not (len(settled.table) or len(settled.deleted))

    def copy(self) -> "ArrayChanges":
        """Copy in a moment: columns are shared, as they never change."""
        other = ArrayChanges(self.dimensions)
        other.revision = self.revision
        other._singles = dict(self._singles)
        other._batches = list(self._batches)
        other._settled = self._settled
        return other

    def __getstate__(self) -> tuple[int, Settled]:
        settled = self.settled()
        return self.dimensions, Settled(settled.table.compacted(), settled.deleted)

    def __setstate__(self, state: tuple[int, Settled]) -> None:
        dimensions, settled = state
        self.__init__(dimensions)  # type: ignore[misc]
        self._settled = settled

    def _push(self, batch: ChunkTable | Coordinates) -> None:
        self._batches += [*self._singles_as_batches(), batch]
        self._singles = {}
        self.revision += 1

    def _singles_as_batches(self) -> list[ChunkTable | Coordinates]:
        if not self._singles:
            return []
        kept = {index: ref for index, ref in self._singles.items() if ref is not None}
        gone = [index for index, ref in self._singles.items() if ref is None]
        batches: list[ChunkTable | Coordinates] = []
        if kept:
            batches.append(table_of_refs(self.dimensions, kept))
        if gone:
            batches.append(_matrix(self.dimensions, gone))
        return batches

    def _fold(self, newer: list[ChunkTable | Coordinates]) -> None:
        """Keep the newest change of each coordinate, all batches at once."""
        before = self._settled
        batches = list[ChunkTable | Coordinates]()
        if before is not None:
            batches += [before.table, before.deleted]
        batches = [batch for batch in [*batches, *newer] if len(batch)]
        if len(batches) == 1 and isinstance(batches[0], ChunkTable):
            self._settled = Settled(batches[0], np.empty((0, self.dimensions), np.uint32))
            return
        tables: list[ChunkTable] = []
        deletions = [np.empty((0, self.dimensions), np.uint32)]
        for batch, is_newest in zip(batches, _newest(batches), strict=True):
            if isinstance(batch, ChunkTable):
                tables.append(batch if is_newest.all() else batch.take(is_newest))
            else:
                deletions.append(batch[is_newest])
        table = concat_tables(tables) if tables else ChunkTable.empty(self.dimensions)
        self._settled = Settled(table, _sorted_rows(np.concatenate(deletions)))


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


def _sorted_rows(coordinates: Coordinates) -> Coordinates:
    [keys] = sort_keys(coordinates)
    return coordinates[np.argsort(keys, kind="stable")]


def _without(coordinates: Coordinates, dropped: Coordinates) -> Coordinates:
    mine, theirs = sort_keys(coordinates, dropped)
    return coordinates[~np.isin(mine, theirs)]


def _contains(coordinates: Coordinates, index: Index) -> bool:
    return bool(len(coordinates)) and bool((coordinates == np.array(index)).all(axis=1).any())
