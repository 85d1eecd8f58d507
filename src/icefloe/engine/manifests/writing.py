"""The manifests of a new version: those with changes are rewritten, the others are kept.

Arrays that need only one manifest may share it, as the manifest sets say. Whoever changes one of
them rewrites the manifest with all arrays in it, so these are gathered first. Arrays that are
split have manifests of their own. Manifests that were built elsewhere are linked as they are; only
if chunks of theirs were changed after that, they are opened.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from typing import Final

from icefloe.assets.files import EncodedManifest
from icefloe.effects import map_concurrently
from icefloe.engine.manifests.array_parts import divide, is_modified
from icefloe.engine.manifests.candidates import facts_of, neighbour, untouched_candidates
from icefloe.engine.manifests.lookup import sizes_of
from icefloe.engine.manifests.parts import NewManifest, Part, link_parts, make_part
from icefloe.engine.manifests.sets import ManifestPlan, closure, pack
from icefloe.engine.manifests.sharing import SharedManifests
from icefloe.engine.manifests.written import ArrayState, Pack, SplitArray, WholeArray
from icefloe.engine.session import SessionState
from icefloe.format.chunk_table import ChunkTable
from icefloe.format.ids import ManifestId, NodeId
from icefloe.format.manifest import Manifest
from icefloe.format.node_table import ManifestRef, Node

_HELD_BACK_BYTES: Final = 16 * 1024
"""Smaller manifests wait for the snapshot, to be written together with it: one wait less."""

type _Arrays = dict[NodeId, SplitArray | WholeArray]


@dataclass(frozen=True, slots=True)
class ManifestChanges:
    """Where the references of arrays are in a new version."""

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
    deleted = {one for one, node in session.changes.deleted.items() if node.is_array}
    modified = {one for one, node in changed.items() if is_modified(session, node)}
    shared = SharedManifests(session.base, len(session.snapshot.manifests))
    links = session.changes.links
    leaving = {one for one in links if not links[one].replaced.isdisjoint(shared.of(one))}
    touched = modified | deleted | leaving
    gone = deleted | {one for one in leaving - modified if shared.of(one) <= links[one].replaced}
    gathered = closure(touched, shared.manifests_of, shared.arrays_in)
    rewriting = _Rewriting(session, shared, changed)
    await rewriting.gather(gathered - gone, modified)
    packs = await rewriting.pack(touched)
    refs = {one: session.tree.manifests(node) for one, node in changed.items()}
    refs |= {one: link_parts((), refs[one]) for one in links}
    parts = [made.part for made in packs]
    for one, array in rewriting.arrays.items():
        if isinstance(array, SplitArray):
            refs[one] = link_parts(array.kept, [part.refs[one] for part in array.parts])
            parts.extend(array.parts)
    for made in packs:
        refs |= {one: (ref,) for one, ref in made.part.refs.items()}
    held_back = tuple(part.held_back for part in parts if part.held_back is not None)
    linked = [part.manifest for one in links.values() for part in one.parts]
    return ManifestChanges(refs, (*linked, *(part.manifest for part in parts)), held_back)


def _changed_arrays(session: SessionState) -> dict[NodeId, Node]:
    """List arrays with changed chunks, or changed metadata, as they are now."""
    changes = session.changes
    changed = {node.id: node for node in changes.nodes.values() if node.array is not None}
    for node_id in (*changes.arrays, *changes.links):
        if node_id not in changed and (node := session.base.by_id(node_id)) is not None:
            changed[node_id] = node
    return changed


class _Rewriting:
    """Arrays whose manifests are made anew, in one attempt to commit."""

    def __init__(
        self, session: SessionState, shared: SharedManifests, changed: Mapping[NodeId, Node]
    ) -> None:
        self._session = session
        self._shared = shared
        self._changed = changed
        self._limit = session.context.write_concurrency
        self.arrays: _Arrays = {}

    async def gather(self, nodes: AbstractSet[NodeId], modified: AbstractSet[NodeId]) -> None:
        """Prepare arrays: those that were modified, and those in one manifest with them."""
        opened = {one: self._shared.of(one) for one in sorted(nodes)}
        others = nodes - modified - self._session.changes.links.keys()
        whole = self._session.base.only_manifests(others)
        needed = {each for found in opened.values() for each in found}
        held = await self._load(needed.union(whole.values()))
        todo = []
        for one in opened:
            if one in whole:
                found = neighbour(self._session, one, held[whole[one]], self._changed.get(one))
                if found is not None:
                    self.arrays[one] = found
            else:
                todo.append(self._changed.get(one) or self._base_node(one))

        async def prepare(node: Node) -> SplitArray | WholeArray:
            return await self._prepare(node, opened[node.id], held)

        made = await map_concurrently(prepare, todo, limit=self._limit)
        self.arrays |= {node.id: array for node, array in zip(todo, made, strict=True)}

    def _base_node(self, node_id: NodeId) -> Node:
        node = self._session.base.by_id(node_id)
        assert node is not None
        return node

    async def _load(self, ids: AbstractSet[ManifestId]) -> dict[ManifestId, Manifest]:
        """Load manifests that several arrays need, each once."""
        context, wanted = self._session.context, sorted(ids)
        sizes = sizes_of(wanted, self._session.snapshot.manifests)

        async def load(item: tuple[ManifestId, int]) -> Manifest:
            return await context.assets.load_manifest(*item)

        limit = context.config.manifest.max_concurrent_manifest_fetches_during_commit
        files = await map_concurrently(load, zip(wanted, sizes, strict=True), limit=limit)
        return dict(zip(wanted, files, strict=True))

    async def _prepare(
        self, node: Node, opened: AbstractSet[ManifestId], held: Mapping[ManifestId, Manifest]
    ) -> SplitArray | WholeArray:
        """Cut an array; what is split is written at once, and need not be held in memory."""
        session = self._session
        state = _state(session, node)
        if (known := session.written.array(node.id, state)) is not None:
            return known
        parts = await divide(session, node, opened=opened, held=held)
        array: SplitArray | WholeArray
        if parts.is_whole:
            table = parts.tables[0].compacted()
            array = WholeArray(state, table, facts_of(node, len(table)))
        else:
            made = await map_concurrently(
                partial(self._make_part_of, node.id), parts.tables, limit=self._limit
            )
            array = SplitArray(state, parts.kept, tuple(made))
        session.context.assets.forget_manifests(session.written.keep_array(node.id, array))
        return array

    async def _make_part_of(self, node: NodeId, table: ChunkTable) -> Part:
        return await make_part(
            self._session.context.assets,
            {node: table.compacted()},
            hold_back_bytes=_HELD_BACK_BYTES,
        )

    async def pack(self, modified: AbstractSet[NodeId]) -> list[Pack]:
        """Write the manifests of whole arrays; others that join them are gathered, too."""
        plans = await self._plans(modified)
        joining = {one for plan in plans for one in plan.arrays} - self.arrays.keys()
        if joining:
            await self.gather(joining, frozenset())
        made = await map_concurrently(self._make_pack, plans, limit=self._limit)
        packs = [each for each in made if each is not None]
        superseded = self._session.written.keep_packs(packs)
        self._session.context.assets.forget_manifests(superseded)
        return packs

    async def _plans(self, modified: AbstractSet[NodeId]) -> list[ManifestPlan]:
        """Say which arrays share a manifest; plans of which nothing was changed are left out."""
        session, config = self._session, self._session.context.config.chunk_manifests
        wholes = {one: each for one, each in self.arrays.items() if isinstance(each, WholeArray)}
        if not wholes:
            return []
        candidates = [each.facts for each in wholes.values()]
        if any(each.cardinality is not None for each in config.sets):
            known = self.arrays.keys() | session.changes.links.keys()
            candidates += await untouched_candidates(session, known)
        current = session.base.only_manifests({each.node_id for each in candidates} | modified)
        plans = pack(candidates, config, current, modified)
        return [plan for plan in plans if not wholes.keys().isdisjoint(plan.arrays)]

    async def _make_pack(self, plan: ManifestPlan) -> Pack | None:
        """Write a manifest of some arrays, but for those that turned out to be split."""
        members = {one: self.arrays[one] for one in plan.arrays if one in self.arrays}
        wholes = {one: each for one, each in members.items() if isinstance(each, WholeArray)}
        if not wholes:
            return None
        states = {one: whole.state for one, whole in wholes.items()}
        if (known := self._session.written.pack(states)) is not None:
            return known
        part = await make_part(
            self._session.context.assets,
            {one: whole.table for one, whole in wholes.items()},
            boxes={one: whole.box for one, whole in wholes.items() if whole.box is not None},
            hold_back_bytes=_HELD_BACK_BYTES,
        )
        return Pack(states, part)


def _state(session: SessionState, node: Node) -> ArrayState:
    assert node.array is not None
    changes = session.changes.arrays.get(node.id)
    revision = -1 if changes is None else changes.revision
    return ArrayState(session.tree.manifests(node), revision, node.array.num_chunks)
