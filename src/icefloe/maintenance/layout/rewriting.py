"""Rewrite all manifests: the same references in a new layout, as one commit.

An array is partitioned again without loading all of its references. Stored pieces are distinguished
by their boxes and counts alone. Only a piece that a new boundary cuts is opened during planning;
the others are opened when their part is written.
"""

import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from icefloe.config import RepositoryConfig
from icefloe.effects import map_concurrently
from icefloe.errors import ConflictError, ErrorKind, InvalidInputError
from icefloe.format.chunk_table import ChunkTable, concat_tables
from icefloe.format.config_file import manifest_layout_json
from icefloe.format.ids import ManifestId, NodeId, SnapshotId, ids_of_rows
from icefloe.format.metadata import Metadata
from icefloe.format.nodes import ManifestRef
from icefloe.format.snapshot import Snapshot
from icefloe.maintenance.layout.survey import ArrayPieces, Piece, around, survey
from icefloe.manifests.build import ArrayState, Pack, Part, SplitArray, link_parts, make_part
from icefloe.manifests.packer import pack
from icefloe.manifests.partition import Blocks, Box, Cut, Layout, layout_of
from icefloe.records import Record, replace
from icefloe.repo.context import RepoContext
from icefloe.repo.repo_changes import Amend, Commit
from icefloe.transactions.collected_objects import publish
from icefloe.transactions.commit import (
    RESERVED_KEY,
    forget_superseded,
    log_to_replace,
    with_notes,
    write_version,
)
from icefloe.transactions.manifest_writing import ManifestChanges
from icefloe.transactions.session import SessionMode, SessionState
from icefloe.values.model import Progress

type Open = Callable[[Sequence[Piece]], Awaitable[list[ChunkTable]]]
"""Gives the references of some pieces."""


class Share(Record, eq=False):
    """References that belong together: pieces not opened yet, and rows of those that were."""

    pieces: tuple[Piece, ...]
    rows: ChunkTable | None = None

    @property
    def num_refs(self) -> int:
        """Count the references."""
        opened = 0 if self.rows is None else len(self.rows)
        return opened + sum(piece.num_refs for piece in self.pieces)

    @property
    def box(self) -> Box:
        """The box around them."""
        boxes = [piece.box for piece in self.pieces]
        if self.rows is not None:
            boxes.append(tuple((int(a), int(b)) for a, b in self.rows.extents()))
        return around(boxes)

    @property
    def only_piece(self) -> Piece | None:
        """The piece that this is, just as it is stored, in a manifest with nothing else."""
        if self.rows is None and len(self.pieces) == 1 and self.pieces[0].is_alone:
            return self.pieces[0]
        return None

    async def table(self, open_: Open) -> ChunkTable:
        """Return all references, with those of pieces that are opened for it."""
        opened = await open_(self.pieces) if self.pieces else []
        return concat_tables(opened if self.rows is None else [*opened, self.rows])


async def cut(whole: Share, layout: Layout, open_: Open) -> AsyncIterator[Share]:
    """Cut references into the parts that a layout wants, in the order of their places."""
    waiting = [whole]
    while waiting:
        share = waiting.pop()
        if not share.pieces:
            assert share.rows is not None
            for part in _cut_rows(share.rows, layout):
                yield Share((), part)
            continue
        next_cut = layout.next_cut(share.box, share.num_refs)
        if next_cut is None:
            yield share
            continue
        across = [piece for piece in share.pieces if _is_across(piece, next_cut)]
        if across:
            closed = tuple(piece for piece in share.pieces if piece not in across)
            share = replace(share, pieces=closed, rows=await _joined(share.rows, across, open_))
        waiting += [half for half in reversed(_halves(share, next_cut)) if half.num_refs]


def _cut_rows(rows: ChunkTable, layout: Layout) -> list[ChunkTable]:
    nothing = Blocks(np.empty((0, rows.dimensions, 2), np.int64), np.empty(0, np.int64))
    parts = layout.partition(rows.coordinates, nothing).parts
    return [rows if len(parts) == 1 else rows.take(part) for part in parts]


def _is_across(piece: Piece, cut: Cut) -> bool:
    axis, edge = cut
    first, last = piece.box[axis]
    return first < edge < last


async def _joined(rows: ChunkTable | None, pieces: Sequence[Piece], open_: Open) -> ChunkTable:
    opened = await open_(pieces)
    return concat_tables(opened if rows is None else [rows, *opened])


def _halves(share: Share, cut: Cut) -> list[Share]:
    if not share.pieces:  # all is opened: rows are cut at once, and not copied time and again
        return [share]
    axis, edge = cut
    early = tuple(piece for piece in share.pieces if piece.box[axis][1] <= edge)
    late = tuple(piece for piece in share.pieces if piece.box[axis][0] >= edge)
    if share.rows is None:
        return [Share(early), Share(late)]
    is_early = share.rows.coordinates[:, axis] < edge
    return [
        Share(early, _or_none(share.rows.take(is_early))),
        Share(late, _or_none(share.rows.take(~is_early))),
    ]


def _or_none(rows: ChunkTable) -> ChunkTable | None:
    return rows if len(rows) else None


_BATCH_REFS: Final = 1_000_000
"""Parts are written together until they have this many references."""
_NO_REVISION: Final = -1


class Relayout:
    """Makes the manifests; a second call, for a newer snapshot, makes only those that differ."""

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
        links, new_parts = await self._pack(wholes)
        refs |= links
        parts += new_parts
        for array, layout in splits:
            done = await self._split(array, layout)
            parts += done.parts
            new = [part.refs[array.node.id] for part in done.parts]
            refs[array.node.id] = link_parts(done.kept, new)
        return ManifestChanges(refs, tuple(part.manifest for part in parts), ())

    def _told_apart(
        self, arrays: Sequence[ArrayPieces]
    ) -> tuple[list[ArrayPieces], list[tuple[ArrayPieces, Layout]]]:
        """Separate arrays that fit into one manifest from arrays that are split."""
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
        arrays_by_id = {array.node.id: array for array in wholes}
        plans = pack([array.facts for array in wholes], self._context.config.chunk_manifests)
        links: dict[NodeId, tuple[ManifestRef, ...]] = {
            array.node.id: (array.pieces[0].link,) for array in wholes
        }
        todo, parts = list[list[ArrayPieces]](), list[Part]()
        for plan in plans:
            members = [arrays_by_id[node] for node in plan.arrays]
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
        pack = self._packs.get(frozenset(states))
        if pack is None or pack.states != states:
            tables = {
                array.node.id: await Share(array.pieces).table(partial(self._open, array))
                for array in members
            }
            pack = Pack(states, await make_part(self._context.assets, tables))
            self._packs[frozenset(states)] = pack
        return pack.part

    # -- arrays with manifests of their own ------------------------------------------------

    async def _split(self, array: ArrayPieces, layout: Layout) -> SplitArray:
        state = _state(array)
        cached = self._splits.get(array.node.id)
        if cached is not None and cached.state == state:
            self._progress(array.num_refs)
            return cached
        kept_refs, parts = list[ManifestRef](), list[Part]()
        todo, waiting = list[Share](), 0
        async for share in cut(Share(array.pieces), layout, partial(self._open, array)):
            if (piece := share.only_piece) is not None:
                kept_refs.append(piece.link)
                self._progress(piece.num_refs)
                continue
            todo.append(share)
            waiting += share.num_refs
            if waiting >= _BATCH_REFS:
                parts += await self._make_parts(array, todo)
                todo, waiting = [], 0
        parts += await self._make_parts(array, todo)
        self._splits[array.node.id] = split = SplitArray(state, tuple(kept_refs), tuple(parts))
        return split

    async def _make_parts(self, array: ArrayPieces, shares: Sequence[Share]) -> list[Part]:
        async def make(share: Share) -> Part:
            table = await share.table(partial(self._open, array))
            return await make_part(self._context.assets, {array.node.id: table.compacted()})

        parts = await map_concurrently(make, shares, limit=self._limit)
        self._progress(sum(share.num_refs for share in shares))
        return parts

    async def _open(self, array: ArrayPieces, pieces: Sequence[Piece]) -> list[ChunkTable]:
        """Read pieces; a manifest of one array is not kept in memory."""
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
    """Return whether there is a manifest with just these arrays."""
    pieces = [piece for array in members for piece in array.pieces]
    first = pieces[0]
    if len(pieces) != len(members) or any(
        stored_piece.manifest != first.manifest for stored_piece in pieces
    ):
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


CommitMethod: TypeAlias = Literal["new_commit", "amend"]  # noqa: UP040 - compared at run time
"""Whether changes become a commit of their own, or part of the newest one."""

_log = logging.getLogger(__name__)
_METHODS: Final = ("new_commit", "amend")
_MOST_TRIES: Final = 100


async def rewrite_manifests(
    context: RepoContext,
    message: str,
    *,
    branch: str,
    metadata: Mapping[str, Any] | None = None,
    commit_method: CommitMethod = "new_commit",
    on_progress: Progress | None = None,
) -> SnapshotId:
    """Lay out the manifests of a branch as the configuration says, and commit that.

    If the branch moves meanwhile, a new commit is tried again on top of it. To amend is refused
    then, with `ConflictError`: the commit to be replaced would be another than was meant.
    """
    if commit_method not in _METHODS:
        raise InvalidInputError(
            f"{commit_method!r} is no commit method: choose one of {', '.join(_METHODS)}",
            ErrorKind.INVALID_COMMIT_CONFIGURATION,
        )
    notes = _noted(metadata, context.user_config)
    relayout = Relayout(context, on_progress)
    tip = await context.ledger.writable_tip(branch)
    for attempt in range(_MOST_TRIES):
        try:
            async with nullcontext() if attempt == 0 else context.ledger.turn(branch):
                if attempt > 0:
                    tip = await context.ledger.writable_tip(branch)
                return await _rewrite(context, tip, branch, message, notes, commit_method, relayout)
        except ConflictError as conflict:
            is_lost_race = conflict.kind == ErrorKind.COMMIT_CONFLICT
            if commit_method == "amend" or not is_lost_race or attempt == _MOST_TRIES - 1:
                raise
            _log.info("branch %r moved: rewriting the manifests that it changed", branch)
    raise AssertionError("the last attempt returns or raises")


async def _rewrite(
    context: RepoContext,
    tip: SnapshotId,
    branch: str,
    message: str,
    notes: Metadata,
    method: CommitMethod,
    relayout: Relayout,
) -> SnapshotId:
    snapshot = await context.assets.load_snapshot(tip)
    session = SessionState(context, snapshot, SessionMode.writable, branch=branch)
    replaced = await log_to_replace(session) if method == "amend" else None
    manifests = await relayout.manifests(snapshot)
    version = await write_version(session, message, notes, replaced=replaced, manifests=manifests)
    change = (Commit if replaced is None else Amend)(branch, tip, version.entry)
    await publish(session, change, version.manifests)
    forget_superseded(session, version.snapshot)
    _log.info("rewrote the manifests of branch %r: %s", branch, version.snapshot.id)
    return version.snapshot.id


def _noted(metadata: Mapping[str, Any] | None, config: RepositoryConfig) -> Metadata:
    """Note the layout in the metadata of the commit, next to what else is noted there."""
    all_metadata = dict(metadata or {})
    before = all_metadata.get(RESERVED_KEY)
    notes = {**(before if isinstance(before, dict) else {}), **manifest_layout_json(config)}
    return with_notes(all_metadata, notes or None)
