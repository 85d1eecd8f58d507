"""What becomes of the manifests of one array: which stay, and what goes into new ones."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from icefloe.effects import map_concurrently
from icefloe.engine.array_changes import Settled
from icefloe.engine.manifests.lookup import listed_in
from icefloe.engine.manifests.partition import (
    Blocks,
    Boxes,
    HalvingLayout,
    Partition,
    boxes_holding,
    boxes_meeting,
)
from icefloe.engine.manifests.splitting import layout_of
from icefloe.engine.session import SessionState
from icefloe.format.chunk_table import ChunkTable, Coordinates, Extents, concat_tables
from icefloe.format.columns import Bools, Ints
from icefloe.format.ids import ManifestId
from icefloe.format.manifest import Manifest
from icefloe.format.node_table import ManifestRef, Node

_NO_PLACES: Final = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class ArrayParts:
    """The references of an array after a change."""

    kept: tuple[ManifestRef, ...]
    """Manifests that stay as they are."""
    tables: tuple[ChunkTable, ...]
    """What is to be written, a manifest each."""

    @property
    def is_whole(self) -> bool:
        """Whether all of the array goes into one manifest, which it may share with others."""
        return not self.kept and len(self.tables) == 1


def is_modified(session: SessionState, node: Node) -> bool:
    """Say whether manifests of an array have to change: for other chunks, or a smaller grid."""
    array = node.array
    assert array is not None
    changes = session.changes.arrays.get(node.id)
    if changes is not None and not changes.is_empty():
        return True
    return any(
        last > count
        for ref in session.tree.manifests(node)
        for (_, last), count in zip(ref.extents, array.num_chunks, strict=False)
    )


async def divide(
    session: SessionState,
    node: Node,
    *,
    opened: AbstractSet[ManifestId],
    held: Mapping[ManifestId, Manifest],
) -> ArrayParts:
    """Put the changes of an array over what is stored, and cut the result.

    `opened` are manifests that cannot stay, whether they changed or not; `held` are some that
    the caller has in memory. Of the others only those are opened in which something changed, or
    that belong into one manifest with something that did.
    """
    layout = layout_of(node, session.context.config.manifest.split_sizes)
    work = _Work(session, node, held)
    if isinstance(layout, HalvingLayout) and work.most_refs <= layout.max_refs:
        table = await work.table(_NO_PLACES)  # there is nothing to cut
        return ArrayParts((), (table,) if len(table) else ())
    closed = work.closed(opened)
    while True:
        table = await work.table(closed)
        blocks = work.blocks(closed)
        partition = layout.partition(table.coordinates, blocks)
        is_cut = len(partition.parts) > 1
        tables = [table.take(rows) if is_cut else table for rows in partition.parts]
        missing = _missing(partition, tables, blocks)
        if not missing.any():
            break
        closed = closed[~missing]
    kept = tuple(work.before[place] for place in closed.tolist())
    return ArrayParts(kept, tuple(tables))


def _missing(partition: Partition, tables: Sequence[ChunkTable], blocks: Blocks) -> Bools:
    """Mark the blocks that have to be opened, too.

    Manifests must not overlap. Those that we cut never do; but blocks that somebody else cut in
    another way may lie between the references of one part.
    """
    missing = np.zeros(len(blocks), np.bool_)
    missing[partition.wanted] = True
    if len(blocks) and not missing.all():
        boxes = np.array([table.extents() for table in tables], np.int64)
        missing |= boxes_meeting(blocks.boxes, boxes.reshape(len(tables), *blocks.boxes.shape[1:]))
    return missing


class _Work:
    """The stored manifests of an array, and what was opened of them so far."""

    def __init__(
        self, session: SessionState, node: Node, held: Mapping[ManifestId, Manifest]
    ) -> None:
        assert node.array is not None
        self._session, self._node, self._held = session, node, held
        self.before = session.tree.manifests(node)
        counts = node.array.num_chunks
        self._dimensions = len(counts)
        self._grid: Extents = np.array([(0, n) for n in counts], np.uint32).reshape(-1, 2)
        self._tables: dict[int, ChunkTable] = {}
        settled = session.changes.settled(node.id) or _nothing(self._dimensions)
        self._new = settled.table.within(self._grid)
        self._deleted = settled.deleted
        ids = [ref.id for ref in self.before]
        self._sizes, self._counts = listed_in(session.manifest_files, ids)

    @property
    def most_refs(self) -> int:
        """Say how many references the array can have, at most."""
        return sum(self._counts) + len(self._new)

    @cached_property
    def _boxes(self) -> Boxes:
        everything = tuple((0, int(last)) for _, last in self._grid)
        boxes = [ref.extents or everything for ref in self.before]
        return np.array(boxes, np.int64).reshape(len(boxes), self._dimensions, 2)

    def closed(self, opened: AbstractSet[ManifestId]) -> Ints:
        """List the manifests that may stay: inside of the grid, and without a change in them."""
        last = self._grid[:, 1].astype(np.int64)
        is_inside = (self._boxes[:, :, 1] <= last).all(axis=1)
        touched = self._touched()
        is_touched = boxes_holding(self._boxes, touched)
        if len(touched):
            is_touched |= np.array([not ref.extents for ref in self.before], np.bool_)
        may_stay = is_inside & ~is_touched
        if opened:
            may_stay &= np.array([ref.id not in opened for ref in self.before], np.bool_)
        return np.flatnonzero(may_stay)

    def _touched(self) -> Coordinates:
        return np.concatenate([self._new.coordinates, self._deleted])

    def blocks(self, closed: Ints) -> Blocks:
        """Describe the manifests that are not opened."""
        return Blocks(self._boxes[closed], np.array(self._counts, np.int64)[closed])

    async def table(self, closed: Ints) -> ChunkTable:
        """Give all references but those in closed manifests, with the changes over them."""
        if not self.before:
            return self._new
        stay = set(closed.tolist())
        meets_grid = (self._boxes[:, :, 0] < self._grid[:, 1].astype(np.int64)).all(axis=1)
        needed = [n for n in range(len(self.before)) if n not in stay and meets_grid[n]]
        await self._load([place for place in needed if place not in self._tables])
        old = [self._tables[place] for place in needed if len(self._tables[place])]
        if not old:
            return self._new
        return concat_tables(old).overlay(self._new, self._deleted)

    async def _load(self, places: Sequence[int]) -> None:
        assets = self._session.context.assets

        async def load(place: int) -> ChunkTable:
            ref = self.before[place]
            file = self._held.get(ref.id)
            if file is None:
                file = await assets.load_manifest(ref.id, self._sizes[place])
            table = file.table(self._node.id)
            return table.within(self._grid) if len(table) else table

        limit = self._session.context.config.manifest.max_concurrent_manifest_fetches_during_commit
        loaded = await map_concurrently(load, places, limit=limit)
        self._tables.update(zip(places, loaded, strict=True))


def _nothing(dimensions: int) -> Settled:
    table = ChunkTable.empty(dimensions)
    return Settled(table, table.coordinates)
