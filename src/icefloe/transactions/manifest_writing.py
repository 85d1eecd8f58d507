"""Write the manifests of a new version: rewrite those with changes, keep the others.

For each array with changes, some manifests stay and the other references go into new ones. Arrays
that share a manifest are packed together.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property, partial
from math import prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from icefloe.assets import EncodedManifest
from icefloe.effects import map_concurrently
from icefloe.format.chunk_table import ChunkTable, Extents, concat_tables
from icefloe.format.columns import Bools, Ints
from icefloe.format.ids import ManifestId, NodeId, ids_of_rows
from icefloe.format.manifest import Manifest
from icefloe.format.nodes import ArrayNode, ManifestRef
from icefloe.manifests.build import (
    ArrayState,
    NewManifest,
    Pack,
    Part,
    SplitArray,
    WholeArray,
    link_parts,
    make_part,
)
from icefloe.manifests.lookup import listed_in, sizes_of
from icefloe.manifests.packer import ArrayFacts, closure, pack
from icefloe.manifests.partition import (
    Blocks,
    HalvingLayout,
    Partition,
    boxes_holding,
    boxes_meeting,
    boxes_of_refs,
    layout_of,
)
from icefloe.records import Record, field
from icefloe.transactions.session import SessionState
from icefloe.transactions.tree import BaseNodes


class SharedManifests:
    """The manifests that more than one array links to; most snapshots have few or none."""

    def __init__(self, base: BaseNodes, num_files: int) -> None:
        self._base = base
        table = base.table
        self._ids: NDArray[np.bytes_] = np.empty(0, f"S{ManifestId.WIDTH}")
        self._numbers: Ints = np.empty(0, np.int64)
        self._rows: Ints = np.empty(0, np.int64)
        self._known: dict[NodeId, set[ManifestId]] = {}
        self.exist = False
        """Whether any manifest is shared."""
        if len(table.manifest_ids) == num_files:
            return  # each is linked to once
        links = np.ascontiguousarray(table.manifest_ids).view(self._ids.dtype).ravel()
        self._ids, numbers, counts = np.unique(links, return_inverse=True, return_counts=True)
        is_shared = counts[numbers] > 1
        rows = np.repeat(np.arange(len(table)), np.diff(table.manifest_splits))
        self._numbers, self._rows = numbers[is_shared], rows[is_shared]
        self.exist = len(self._rows) > 0

    @cached_property
    def _by_manifest(self) -> tuple[Ints, Ints]:
        order = np.argsort(self._numbers, kind="stable")
        return self._numbers[order], self._rows[order]

    def of(self, node: NodeId) -> set[ManifestId]:
        """Find the shared manifests of an array."""
        if not self.exist:
            return set()
        if (manifests := self._known.get(node)) is None:
            row = self._base.find_row(node)
            first, last = (0, 0) if row is None else self._rows.searchsorted([row, row + 1])
            manifests = {self._manifest(number) for number in self._numbers[first:last].tolist()}
            self._known[node] = manifests
        return manifests

    def within(self, manifest: ManifestId) -> set[NodeId]:
        """Find the arrays in a manifest, if it is shared."""
        number = int(np.searchsorted(self._ids, np.frombuffer(manifest.raw, self._ids.dtype)[0]))
        numbers, rows = self._by_manifest
        first, last = np.searchsorted(numbers, [number, number + 1])
        if first == last or self._manifest(number) != manifest:
            return set()
        return set(ids_of_rows(NodeId, self._base.table.ids[rows[first:last]]))

    def _manifest(self, number: int) -> ManifestId:
        return ManifestId(self._ids[number : number + 1].tobytes())


def facts_of(node: ArrayNode, num_refs: int) -> ArrayFacts:
    """Return the facts of an array that decide which manifest it goes to."""
    return ArrayFacts(node.id, node.path, prod(node.array.num_chunks), num_refs)


def neighbour(
    session: SessionState, node_id: NodeId, manifest: Manifest, changed: ArrayNode | None
) -> WholeArray | None:
    """Take over an array that is all in one manifest, and to whose chunks nothing happened.

    `changed` is the array if its metadata are others than they were. There may be many such
    arrays, so nothing is made that is not needed.
    """
    nodes, row = session.base.table, session.base.row_by_id(node_id)
    table = manifest.table(node_id)
    if len(table) == 0:
        return None
    if changed is None:
        first, last = nodes.shape_splits[row : row + 2].tolist()
        chunks = prod(nodes.num_chunks[first:last].tolist())
        facts = ArrayFacts(node_id, nodes.paths[row].decode(), chunks, len(table))
    else:
        facts = facts_of(changed, len(table))
    link = int(nodes.manifest_splits[row])
    begin, end = nodes.extent_splits[link : link + 2].tolist()
    box = tuple((first, last) for first, last in nodes.extents[begin:end].tolist())
    return WholeArray(manifest.id, table, facts, box or None)


async def untouched_candidates(
    session: SessionState, others: Collection[NodeId]
) -> list[ArrayFacts]:
    """List the arrays in one manifest that nothing happened to.

    They are needed where the number of manifests is limited, because arrays may have to join one
    that is there already.
    """
    table, gone = session.base.table, session.changes.deleted
    rows = np.flatnonzero(table.is_array & (np.diff(table.manifest_splits) == 1)).tolist()
    nodes = [table.array(row) for row in rows]
    nodes = [node for node in nodes if node.id not in others and node.id not in gone]
    grown = {
        node.id: node for node in session.changes.nodes.values() if isinstance(node, ArrayNode)
    }
    counts = await _num_refs(session, nodes)
    return [
        facts_of(grown.get(node.id, node), count) for node, count in zip(nodes, counts, strict=True)
    ]


async def _num_refs(session: SessionState, nodes: list[ArrayNode]) -> list[int]:
    """Count references: what a snapshot says is enough, but for manifests of several arrays."""
    ids = [node.array.manifests[0].id for node in nodes]
    sizes, counts = listed_in(session.snapshot.manifests, ids)
    if not session.context.config.chunk_manifests.counts_initialized_chunks:
        return counts
    times = Counter(ids)
    result = []
    for node, manifest_id, size, count in zip(nodes, ids, sizes, counts, strict=True):
        if times[manifest_id] > 1:
            manifest = await session.context.assets.load_manifest(manifest_id, size)
            result.append(len(manifest.table(node.id)))
        else:
            result.append(count)
    return result


_NO_PLACES: Final = np.empty(0, np.int64)


class ArrayParts(Record, eq=False):
    """The references of an array after a change."""

    kept: tuple[ManifestRef, ...]
    """Manifests that stay as they are."""
    tables: tuple[ChunkTable, ...]
    """What is to be written, a manifest each."""


def is_modified(session: SessionState, node: ArrayNode) -> bool:
    """Return whether manifests of an array have to change: for other chunks, or a smaller grid."""
    changes = session.changes.arrays.get(node.id)
    if changes is not None and not changes.is_empty():
        return True
    return any(
        last > count
        for ref in session.tree.manifests(node)
        for (_, last), count in zip(ref.extents, node.array.num_chunks, strict=False)
    )


async def divide(
    session: SessionState,
    node: ArrayNode,
    *,
    opened: AbstractSet[ManifestId],
    loaded: Mapping[ManifestId, Manifest],
) -> ArrayParts:
    """Put the changes of an array over what is stored, and cut the result.

    `opened` are manifests that cannot stay, whether they changed or not; `held` are some that
    the caller has in memory. Of the others only those are opened in which something changed, or
    that belong into one manifest with something that did.
    """
    layout = layout_of(node, session.context.config.manifest.split_sizes)
    work = _Work(session, node, loaded)
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
    kept = tuple(work.before[row] for row in closed.tolist())
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
        self, session: SessionState, node: ArrayNode, loaded: Mapping[ManifestId, Manifest]
    ) -> None:
        self._session, self._node, self._held = session, node, loaded
        self.before = session.tree.manifests(node)
        counts = node.array.num_chunks
        self._grid: Extents = np.array([(0, n) for n in counts], np.uint32).reshape(-1, 2)
        self._tables: dict[int, ChunkTable] = {}
        settled = session.changes.settled(node.id)
        table = ChunkTable.empty(len(counts)) if settled is None else settled.table
        self._new = table.within(self._grid)
        self._deleted = table.coordinates[:0] if settled is None else settled.deleted
        ids = [ref.id for ref in self.before]
        self._sizes, self._counts = listed_in(session.manifest_files, ids)
        self.most_refs = sum(self._counts) + len(self._new)
        """The largest possible number of references of the array."""
        self._boxes = boxes_of_refs(self.before, counts)

    def closed(self, opened: AbstractSet[ManifestId]) -> Ints:
        """List the manifests that may stay: inside of the grid, and without a change in them."""
        last = self._grid[:, 1].astype(np.int64)
        is_inside = (self._boxes[:, :, 1] <= last).all(axis=1)
        touched = np.concatenate([self._new.coordinates, self._deleted])
        is_touched = boxes_holding(self._boxes, touched)
        if len(touched):
            is_touched |= np.array([not ref.extents for ref in self.before], np.bool_)
        may_stay = is_inside & ~is_touched
        if opened:
            may_stay &= np.array([ref.id not in opened for ref in self.before], np.bool_)
        return np.flatnonzero(may_stay)

    def blocks(self, closed: Ints) -> Blocks:
        """Describe the manifests that are not opened."""
        return Blocks(self._boxes[closed], np.array(self._counts, np.int64)[closed])

    async def table(self, closed: Ints) -> ChunkTable:
        """Return all references but those in closed manifests, with the changes over them."""
        if not self.before:
            return self._new
        stay = set(closed.tolist())
        meets_grid = (self._boxes[:, :, 0] < self._grid[:, 1].astype(np.int64)).all(axis=1)
        needed = [n for n in range(len(self.before)) if n not in stay and meets_grid[n]]
        missing = [row for row in needed if row not in self._tables]
        limit = self._session.context.config.manifest.max_concurrent_manifest_fetches_during_commit
        loaded = await map_concurrently(self._load, missing, limit=limit)
        self._tables.update(zip(missing, loaded, strict=True))
        old = [self._tables[row] for row in needed if len(self._tables[row])]
        if not old:
            return self._new
        return concat_tables(old).overlay(self._new, self._deleted)

    async def _load(self, row: int) -> ChunkTable:
        """Return the references of the array in a manifest, as far as they are in the grid."""
        ref = self.before[row]
        file = self._held.get(ref.id)
        if file is None:
            assets = self._session.context.assets
            file = await assets.load_manifest(ref.id, self._sizes[row])
        table = file.table(self._node.id)
        return table.within(self._grid) if len(table) else table


_HELD_BACK_BYTES: Final = 16 * 1024
"""Smaller manifests wait for the snapshot, to be written together with it: one wait less."""


class ManifestChanges(Record):
    """The manifests of arrays in a new version."""

    refs: Mapping[NodeId, tuple[ManifestRef, ...]]
    """For all arrays that the session changed, and those whose manifests were rewritten too."""
    new: tuple[NewManifest, ...]
    """The manifests that were made or linked; some of those may not be in use."""
    held_back: tuple[EncodedManifest, ...]
    """The files of new ones that are still to be written."""


async def write_manifests(session: SessionState) -> ManifestChanges:
    """Write the manifests of all arrays that a session changed, but for small ones.

    Those are for the caller to write, with the snapshot. A commit that lost a race finds here
    what it made before, unless the other commit changed the same manifests.
    """
    changed = _changed_arrays(session)
    deleted = {node_id for node_id, node in session.changes.deleted.items() if node.is_array}
    modified = {node_id for node_id, node in changed.items() if is_modified(session, node)}
    links = session.changes.links
    refs = {node_id: session.tree.manifests(node) for node_id, node in changed.items()}
    if not modified and not deleted and not links:
        return ManifestChanges(refs, (), ())
    shared = SharedManifests(session.base, len(session.snapshot.manifests))
    leaving = {link for link in links if not links[link].replaced.isdisjoint(shared.of(link))}
    touched = modified | deleted | leaving
    gone = deleted | {
        node_id for node_id in leaving - modified if shared.of(node_id) <= links[node_id].replaced
    }
    gathered = touched
    if shared.exist:
        gathered = closure(touched, shared.of, shared.within)
    rewriting = _Rewriting(session, shared, changed, session.context.write_concurrency)
    await rewriting.gather(gathered - gone, modified)
    packs = await rewriting.pack(touched)
    refs |= {link: link_parts((), refs[link]) for link in links}
    parts = [made_pack.part for made_pack in packs]
    for node_id, array in rewriting.arrays.items():
        if isinstance(array, SplitArray):
            refs[node_id] = link_parts(array.kept, [part.refs[node_id] for part in array.parts])
            parts.extend(array.parts)
    for made_pack in packs:
        refs |= {node_id: (ref,) for node_id, ref in made_pack.part.refs.items()}
    held_back = tuple(part.held_back for part in parts if part.held_back is not None)
    linked = [part.manifest for link in links.values() for part in link.parts]
    return ManifestChanges(refs, (*linked, *(part.manifest for part in parts)), held_back)


def _changed_arrays(session: SessionState) -> dict[NodeId, ArrayNode]:
    """List arrays with changed chunks, or changed metadata, as they are now."""
    changes = session.changes
    changed = {node.id: node for node in changes.nodes.values() if isinstance(node, ArrayNode)}
    for node_id in (*changes.arrays, *changes.links):
        if node_id not in changed and (row := session.base.find_row(node_id)) is not None:
            changed[node_id] = session.base.table.array(row)
    return changed


class _Rewriting(Record, eq=False):
    """Arrays whose manifests are made again, in one attempt to commit."""

    session: SessionState
    shared: SharedManifests
    changed: Mapping[NodeId, ArrayNode]
    limit: int
    """How many manifests to write at once."""
    arrays: dict[NodeId, SplitArray | WholeArray] = field(default_factory=dict)

    async def gather(self, nodes: AbstractSet[NodeId], modified: AbstractSet[NodeId]) -> None:
        """Prepare arrays: those that were modified, and those in one manifest with them."""
        opened: dict[NodeId, AbstractSet[ManifestId]] = dict.fromkeys(sorted(nodes), frozenset())
        if self.shared.exist:
            opened = {node_id: self.shared.of(node_id) for node_id in opened}
        others = nodes - modified - self.session.changes.links.keys()
        whole = self.session.base.only_manifests(others) if others else {}
        needed = {manifest_id for found in opened.values() for manifest_id in found}
        needed.update(whole.values())
        loaded = await self._load(needed) if needed else {}
        todo = []
        for node_id in opened:
            if node_id in whole:
                found = neighbour(
                    self.session, node_id, loaded[whole[node_id]], self.changed.get(node_id)
                )
                if found is not None:
                    self.arrays[node_id] = found
            else:
                base = self.session.base
                todo.append(self.changed.get(node_id) or base.table.array(base.row_by_id(node_id)))
        prepare = partial(self._prepare, opened, loaded)
        prepared = await map_concurrently(prepare, todo, limit=self.limit)
        self.arrays.update(zip((node.id for node in todo), prepared, strict=True))

    async def _load(self, ids: AbstractSet[ManifestId]) -> dict[ManifestId, Manifest]:
        """Load manifests that several arrays need, each once."""
        context, manifest_ids = self.session.context, sorted(ids)
        sizes = sizes_of(manifest_ids, self.session.snapshot.manifests)

        async def load(entry: tuple[ManifestId, int]) -> Manifest:
            return await context.assets.load_manifest(*entry)

        limit = context.config.manifest.max_concurrent_manifest_fetches_during_commit
        files = await map_concurrently(load, zip(manifest_ids, sizes, strict=True), limit=limit)
        return dict(zip(manifest_ids, files, strict=True))

    async def _prepare(
        self,
        opened: Mapping[NodeId, AbstractSet[ManifestId]],
        loaded: Mapping[ManifestId, Manifest],
        node: ArrayNode,
    ) -> SplitArray | WholeArray:
        """Cut an array; what is split is written at once, and need not be held in memory."""
        session = self.session
        changes = session.changes.arrays.get(node.id)
        revision = -1 if changes is None else changes.revision
        state = ArrayState(session.tree.manifests(node), revision, node.array.num_chunks)
        if (cached := session.written.array(node.id, state)) is not None:
            return cached
        parts = await divide(session, node, opened=opened[node.id], loaded=loaded)
        array: SplitArray | WholeArray
        if not parts.kept and len(parts.tables) == 1:
            # All of the array goes into one manifest, which it may share with others.
            table = parts.tables[0].compacted()
            array = WholeArray(state, table, facts_of(node, len(table)))
        else:
            new_parts = await map_concurrently(
                partial(self._make_part_of, node.id), parts.tables, limit=self.limit
            )
            array = SplitArray(state, parts.kept, tuple(new_parts))
        session.context.assets.forget_manifests(session.written.keep_array(node.id, array))
        return array

    async def _make_part_of(self, node: NodeId, table: ChunkTable) -> Part:
        return await make_part(
            self.session.context.assets,
            {node: table.compacted()},
            hold_back_bytes=_HELD_BACK_BYTES,
        )

    async def pack(self, modified: AbstractSet[NodeId]) -> list[Pack]:
        """Write the manifests of whole arrays; others that join them are gathered, too."""
        groups = await self._groups(modified)
        joining = {node_id for group in groups for node_id in group} - self.arrays.keys()
        if joining:
            await self.gather(joining, frozenset())
        made_packs = await map_concurrently(self._make_pack, groups, limit=self.limit)
        packs = [made_pack for made_pack in made_packs if made_pack is not None]
        superseded = self.session.written.keep_packs(packs)
        self.session.context.assets.forget_manifests(superseded)
        return packs

    async def _groups(self, modified: AbstractSet[NodeId]) -> list[tuple[NodeId, ...]]:
        """Return the arrays of each manifest to write, without manifests of unchanged arrays."""
        session, config = self.session, self.session.context.config.chunk_manifests
        wholes = {
            node_id: array
            for node_id, array in self.arrays.items()
            if isinstance(array, WholeArray)
        }
        if not wholes:
            return []
        candidates = [array.facts for array in wholes.values()]
        if any(array.cardinality is not None for array in config.sets):
            known_nodes = self.arrays.keys() | session.changes.links.keys()
            candidates += await untouched_candidates(session, known_nodes)
        if len(candidates) == 1 and (alone := candidates[0].node_id) in modified:
            return [(alone,)]  # by far the most frequent case: there is nothing to choose
        current = session.base.only_manifests(
            {candidate.node_id for candidate in candidates} | modified
        )
        plans = pack(candidates, config, current, modified)
        return [plan.arrays for plan in plans if not wholes.keys().isdisjoint(plan.arrays)]

    async def _make_pack(self, group: Sequence[NodeId]) -> Pack | None:
        """Write a manifest of some arrays, but for those that turned out to be split."""
        members = {node_id: self.arrays[node_id] for node_id in group if node_id in self.arrays}
        wholes = {
            node_id: member for node_id, member in members.items() if isinstance(member, WholeArray)
        }
        if not wholes:
            return None
        states = {node_id: whole.state for node_id, whole in wholes.items()}
        if (cached := self.session.written.pack(states)) is not None:
            return cached
        part = await make_part(
            self.session.context.assets,
            {node_id: whole.table for node_id, whole in wholes.items()},
            boxes={
                node_id: whole.box for node_id, whole in wholes.items() if whole.box is not None
            },
            hold_back_bytes=_HELD_BACK_BYTES,
        )
        return Pack(states, part)
