"""New manifests for all arrays of a snapshot, as the configuration wants them.

Nothing about the data changes. Manifests that are already as they should be stay. The others
are made in batches: at no time are more references in memory than a batch has, or than the
manifests have that are being taken apart.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import numpy as np

from icefloe.effects import map_concurrently
from icefloe.engine.context import RepoContext
from icefloe.engine.manifests.partition import Layout
from icefloe.engine.manifests.parts import Part, link_parts, make_part
from icefloe.engine.manifests.recutting import Share, cut
from icefloe.engine.manifests.sets import pack
from icefloe.engine.manifests.splitting import layout_of
from icefloe.engine.manifests.survey import ArrayPieces, Piece, survey
from icefloe.engine.manifests.writing import ManifestChanges
from icefloe.engine.manifests.written import ArrayState, Pack, SplitArray
from icefloe.format.chunk_table import ChunkTable, concat_tables
from icefloe.format.ids import ManifestId, NodeId, ids_of_rows
from icefloe.format.node_table import ManifestRef
from icefloe.format.snapshot import Snapshot
from icefloe.values.progress import Progress

_BATCH_REFS: Final = 1_000_000
"""Parts are written together until they have so many references."""
_NO_REVISION: Final = -1


class Relayout:
    """Makes the manifests; when asked again, for a newer snapshot, only of what is different."""

    def __init__(self, context: RepoContext, on_progress: Progress | None = None) -> None:
        self._context = context
        self._on_progress = on_progress
        self._limit = context.write_concurrency
        self._done = self._total = 0
        self._shared: set[ManifestId] = set()
        self._splits: dict[NodeId, SplitArray] = {}
        self._packs: dict[frozenset[NodeId], Pack] = {}

    async def manifests(self, snapshot: Snapshot) -> ManifestChanges:
        """Write what a snapshot needs that is not there, and say how arrays link to it."""
        arrays = await survey(self._context, snapshot)
        users = Counter(piece.manifest for array in arrays for piece in array.pieces)
        self._shared = {manifest for manifest, count in users.items() if count > 1}
        self._done, self._total = 0, sum(array.num_refs for array in arrays)
        wholes, splits = self._told_apart(arrays)
        refs: dict[NodeId, tuple[ManifestRef, ...]] = dict.fromkeys(_linking(snapshot), ())
        parts: list[Part] = []
        links, made = await self._pack(wholes)
        refs |= links
        parts += made
        for array, layout in splits:
            done = await self._split(array, layout)
            parts += done.parts
            new = [part.refs[array.node.id] for part in done.parts]
            refs[array.node.id] = link_parts(done.kept, new)
        return ManifestChanges(refs, tuple(part.manifest for part in parts), ())

    def _told_apart(
        self, arrays: Sequence[ArrayPieces]
    ) -> tuple[list[ArrayPieces], list[tuple[ArrayPieces, Layout]]]:
        """Tell arrays that go into one manifest from those that are split."""
        rules = self._context.config.manifest.split_sizes
        wholes, splits = [], []
        for array in arrays:
            layout = layout_of(array.node, rules)
            if layout.next_cut(array.box, array.num_refs) is None:
                wholes.append(array)
            else:
                splits.append((array, layout))
        return wholes, splits

    # -- arrays that go into one manifest, maybe with others -------------------------------

    async def _pack(
        self, wholes: Sequence[ArrayPieces]
    ) -> tuple[dict[NodeId, tuple[ManifestRef, ...]], list[Part]]:
        """Pack arrays from scratch, and write the manifests that are not there yet."""
        known = {array.node.id: array for array in wholes}
        plans = pack([array.facts for array in wholes], self._context.config.chunk_manifests)
        links: dict[NodeId, tuple[ManifestRef, ...]] = {
            array.node.id: (array.pieces[0].link,) for array in wholes
        }
        todo, parts = list[list[ArrayPieces]](), list[Part]()
        for plan in plans:
            members = [known[node] for node in plan.arrays]
            if _is_there(members):
                self._progress(_num_refs(members))
            else:
                todo.append(members)
        for batch in _batches(todo):
            parts += await map_concurrently(self._make_pack, batch, limit=self._limit)
            self._progress(sum(map(_num_refs, batch)))
        for part in parts:
            links |= {node: (ref,) for node, ref in part.refs.items()}
        return links, parts

    async def _make_pack(self, members: Sequence[ArrayPieces]) -> Part:
        states = {array.node.id: _state(array) for array in members}
        made = self._packs.get(frozenset(states))
        if made is None or made.states != states:
            tables = {
                array.node.id: await Share(array.pieces).table(partial(self._open, array))
                for array in members
            }
            made = Pack(states, await make_part(self._context.assets, tables))
            self._packs[frozenset(states)] = made
        return made.part

    # -- arrays with manifests of their own ------------------------------------------------

    async def _split(self, array: ArrayPieces, layout: Layout) -> SplitArray:
        state = _state(array)
        known = self._splits.get(array.node.id)
        if known is not None and known.state == state:
            self._progress(array.num_refs)
            return known
        kept, parts = list[ManifestRef](), list[Part]()
        todo, waiting = list[Share](), 0
        async for share in cut(Share(array.pieces), layout, partial(self._open, array)):
            if (piece := share.only_piece) is not None:
                kept.append(piece.link)
                self._progress(piece.num_refs)
                continue
            todo.append(share)
            waiting += share.num_refs
            if waiting >= _BATCH_REFS:
                parts += await self._make_parts(array, todo)
                todo, waiting = [], 0
        parts += await self._make_parts(array, todo)
        self._splits[array.node.id] = made = SplitArray(state, tuple(kept), tuple(parts))
        return made

    async def _make_parts(self, array: ArrayPieces, shares: Sequence[Share]) -> list[Part]:
        async def make(share: Share) -> Part:
            table = await share.table(partial(self._open, array))
            return await make_part(self._context.assets, {array.node.id: table.compacted()})

        parts = await map_concurrently(make, shares, limit=self._limit)
        self._progress(sum(share.num_refs for share in shares))
        return parts

    async def _open(self, array: ArrayPieces, pieces: Sequence[Piece]) -> list[ChunkTable]:
        """Read pieces; what was taken from a manifest whole need not be kept."""
        grid = np.array([(0, count) for count in array.num_chunks], np.uint32).reshape(-1, 2)
        assets = self._context.assets

        async def load(piece: Piece) -> ChunkTable:
            manifest = await assets.load_manifest(piece.manifest, piece.size_bytes)
            parts = [*manifest.table_parts(array.node.id, _BATCH_REFS)]
            del manifest  # a large one is to be gone before its parts are put together
            if piece.manifest not in self._shared:
                assets.forget_manifests([piece.manifest])
            return concat_tables([part.within(grid) for part in parts])

        limit = self._context.config.manifest.max_concurrent_manifest_fetches_during_commit
        return await map_concurrently(load, pieces, limit=limit)

    def _progress(self, num_refs: int) -> None:
        self._done += num_refs
        if self._on_progress is not None:
            self._on_progress(self._done, self._total)


def _state(array: ArrayPieces) -> ArrayState:
    return ArrayState(tuple(piece.ref for piece in array.pieces), _NO_REVISION, array.num_chunks)


def _num_refs(arrays: Sequence[ArrayPieces]) -> int:
    return sum(array.num_refs for array in arrays)


def _is_there(members: Sequence[ArrayPieces]) -> bool:
    """Say whether there is a manifest with just these arrays."""
    pieces = [piece for array in members for piece in array.pieces]
    first = pieces[0]
    if len(pieces) != len(members) or any(one.manifest != first.manifest for one in pieces):
        return False
    return _num_refs(members) == first.file_refs


def _batches(packs: Sequence[list[ArrayPieces]]) -> Iterator[list[list[ArrayPieces]]]:
    """Put manifests to be made together until they have enough references."""
    batch, waiting = list[list[ArrayPieces]](), 0
    for members in packs:
        batch.append(members)
        waiting += _num_refs(members)
        if waiting >= _BATCH_REFS:
            yield batch
            batch, waiting = [], 0
    if batch:
        yield batch


def _linking(snapshot: Snapshot) -> list[NodeId]:
    """List the arrays that link to manifests, whether those have references for them or not."""
    nodes = snapshot.nodes
    is_linking = nodes.is_array & (np.diff(nodes.manifest_splits) > 0)
    return ids_of_rows(NodeId, nodes.ids[is_linking])
