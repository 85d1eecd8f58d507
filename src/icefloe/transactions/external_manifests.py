"""Link manifests that were built on other machines, by one commit, and write its transaction log.

The log lists every chunk that was set or deleted, and the committing process does not have them.
So the log is completed where they are known: from pieces of coordinates (`write_log`), or from the
manifests themselves (`save_log`).
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from icefloe.assets import Assets
from icefloe.errors import ErrorKind, InvalidInputError, SessionStateError
from icefloe.format.chunk_table import ChunkKind, ChunkTable, Coordinates, are_among, concat_tables
from icefloe.format.columns import Bools, BytesColumn, concat_bytes
from icefloe.format.envelope import MAX_BUFFER_BYTES
from icefloe.format.ids import ManifestId, NodeId
from icefloe.format.log_chunks import CoordinateRuns
from icefloe.format.manifest import Manifest
from icefloe.format.nodes import ArrayNode, Node
from icefloe.format.transaction_log import TransactionLog, encode_transaction_log
from icefloe.manifests.build import link_parts, make_part
from icefloe.manifests.lookup import listed_in
from icefloe.manifests.partition import Blocks, Layout, layout_of
from icefloe.manifests.regions import (
    LinkedArray,
    LinkedPart,
    LinkedRegion,
    NewReferences,
    PartPlan,
    StoredManifest,
    plan_parts,
)
from icefloe.transactions.nodes import require_array
from icefloe.transactions.session import SessionState

type Touched = Iterable[tuple[NodeId, Coordinates]]
"""Chunks that were set or deleted: of each array in any number of pieces, in any order."""


def complete_log(own: TransactionLog, touched: Touched, *, spec_version: int = 2) -> bytes:
    """Encode the log of a commit: what the session knew of, and the chunks that it did not.

    Pieces are taken one at a time, and held compressed.
    """
    return encode_transaction_log(own, spec_version=spec_version, runs=_gathered(own, touched))


async def write_log(assets: Assets, own: TransactionLog, touched: Touched) -> None:
    """Write the log of a commit to where it belongs, completed as `complete_log` does."""
    await assets.save_transaction_log(own, _gathered(own, touched))


def _gathered(own: TransactionLog, touched: Touched) -> dict[NodeId, CoordinateRuns]:
    runs: dict[NodeId, CoordinateRuns] = {}
    for node, coordinates in touched:
        _add(runs, own, node, coordinates)
    return runs


def _add(
    runs: dict[NodeId, CoordinateRuns], own: TransactionLog, node: NodeId, chunks: Coordinates
) -> None:
    if len(chunks) == 0:
        return
    if node not in runs:
        runs[node] = CoordinateRuns(chunks.shape[1])
        runs[node].add(own.updated_chunks.get(node, chunks[:0]))
    runs[node].add(chunks)


# -- from the manifests ----------------------------------------------------------------------


async def save_log(session: SessionState, own: TransactionLog) -> None:
    """Write the log of a commit, with the chunks that its linked manifests tell of.

    They are read one region at a time. Where a region was built over stored manifests, the two
    are compared: a chunk that was set to what it was already is not listed.
    """
    runs: dict[NodeId, CoordinateRuns] = {}
    for node, linked in session.changes.links.items():
        async for chunks in _changed_by(session, node, linked):
            _add(runs, own, node, chunks)
    await session.context.assets.save_transaction_log(own, runs)


async def _changed_by(
    session: SessionState, node: NodeId, linked: LinkedArray
) -> AsyncIterator[Coordinates]:
    for region in linked.regions:
        sizes = {part.manifest.id: part.manifest.size_bytes for part in region.parts}
        if not region.replaced:
            for manifest_id, size in sizes.items():
                yield (await _load_briefly(session, manifest_id, size)).coordinates(node)
            continue
        listed = listed_in(session.manifest_files, list(region.replaced))[0]
        old = zip(region.replaced, listed, strict=True)
        yield changed_between(
            [(await _load_briefly(session, *entry)).table(node) for entry in old],
            [(await _load_briefly(session, *entry)).table(node) for entry in sizes.items()],
        )


async def _load_briefly(
    session: SessionState, manifest_id: ManifestId, size_bytes: int
) -> Manifest:
    """Load a manifest; one that was not in memory does not stay there."""
    assets = session.context.assets
    if (cached := assets.held_manifest(manifest_id)) is not None:
        return cached
    manifest = await assets.load_manifest(manifest_id, size_bytes)
    assets.forget_manifests([manifest_id])
    return manifest


def changed_between(before: Sequence[ChunkTable], after: Sequence[ChunkTable]) -> Coordinates:
    """List the chunks that two states of a part of an array do not have in common."""
    old, new = (
        concat_tables([table for table in some if len(table)] or [_NONE])
        for some in (before, after)
    )
    if not len(old) or not len(new):
        return new.coordinates if len(new) else old.coordinates
    was_there = are_among(new.coordinates, old.coordinates)
    is_there = are_among(old.coordinates, new.coordinates)
    left, right = old.take(is_there), new.take(was_there)
    return np.concatenate(
        [
            old.coordinates[~is_there],
            new.coordinates[~was_there],
            right.coordinates[_differing(left, right)],
        ]
    )


_NONE: Final = ChunkTable.empty(0)


def _differing(left: ChunkTable, right: ChunkTable) -> Bools:
    """Mark the rows in which two tables with the same coordinates differ."""
    differs: Bools = (
        (left.kinds != right.kinds)
        | (left.offsets != right.offsets)
        | (left.lengths != right.lengths)
        | (_modified(left) != _modified(right))
    )
    kinds = np.where(differs, 0, left.kinds)
    native = np.flatnonzero(kinds == ChunkKind.NATIVE)
    ids = left.chunk_ids[left.targets[native]] != right.chunk_ids[right.targets[native]]
    differs[native] |= ids.any(axis=1)
    for kind, name in ((ChunkKind.VIRTUAL, "locations"), (ChunkKind.INLINE, "inline")):
        rows = np.flatnonzero(kinds == kind)
        ours, theirs = left.targets[rows], right.targets[rows]
        differs[rows] |= _unlike(getattr(left, name), ours, getattr(right, name), theirs)
    etags, other_etags = _etag_rows(left), _etag_rows(right)
    differs |= (etags >= 0) != (other_etags >= 0)
    rows = np.flatnonzero((etags >= 0) & (other_etags >= 0))
    differs[rows] |= _unlike(left.etags, etags[rows], right.etags, other_etags[rows])
    return differs


def _unlike(
    left: BytesColumn, ours: NDArray[np.integer], right: BytesColumn, theirs: NDArray[np.integer]
) -> Bools:
    """Compare rows of two columns, each distinct one once."""
    _, numbers = concat_bytes([left, right]).distinct()
    unlike: Bools = numbers[ours] != numbers[len(left) :][theirs]
    return unlike


def _etag_rows(table: ChunkTable) -> NDArray[np.int32]:
    return np.full(len(table), -1, np.int32) if table.etag_rows is None else table.etag_rows


def _modified(table: ChunkTable) -> NDArray[np.uint32]:
    return np.zeros(len(table), np.uint32) if table.last_modified is None else table.last_modified


__all__ = [
    "BeforeWriting",
    "LinkedRegion",
    "NewReferences",
    "PartPlan",
    "StoredManifest",
    "build_region",
    "complete_log",
    "link_manifests",
    "plan_array",
    "plan_parts",
    "stored_manifests",
    "write_log",
]

type BeforeWriting = Callable[[Sequence[ManifestId]], Awaitable[None]]
"""Told of the manifests that are about to be written."""


# -- before ----------------------------------------------------------------------------------


def plan_array(session: SessionState, path: str, new: NewReferences) -> PartPlan:
    """Divide an array, as the session sees it, into regions for new references."""
    node = require_array(session, path)
    layout = layout_of(node, session.context.config.manifest.split_sizes)
    return plan_parts(layout, node.array.num_chunks, stored_manifests(session, node), new)


def stored_manifests(session: SessionState, node: Node) -> list[StoredManifest]:
    """List the manifests of an array, with those that are linked already."""
    refs = session.tree.manifests(node)
    sizes, counts = listed_in(session.manifest_files, [ref.id for ref in refs])
    return [StoredManifest(*columns) for columns in zip(refs, sizes, counts, strict=True)]


# -- elsewhere -------------------------------------------------------------------------------


async def build_region(
    assets: Assets,
    node: NodeId,
    table: ChunkTable,
    *,
    layout: Layout,
    grid: Sequence[int],
    stored: Sequence[StoredManifest] = (),
    deleted: Coordinates | None = None,
    before_writing: BeforeWriting | None = None,
) -> LinkedRegion:
    """Write the manifests of one region: new references over those that are stored in it.

    `layout` and `stored` are those of the plan, `grid` the number of chunks of the array along
    each dimension. Memory is needed for the references of one region. If the task is tried again,
    what an earlier attempt wrote is not used.
    """
    _require_valid(table, grid)
    extents = np.array([(0, count) for count in grid], np.uint32).reshape(-1, 2)
    old = [
        (await assets.load_manifest(manifest.ref.id, manifest.size_bytes)).table(node)
        for manifest in stored
    ]
    inside = [manifest.within(extents) for manifest in old if len(manifest)]
    united = concat_tables(inside).overlay(table, deleted) if inside else table
    parts = await _write(assets, node, united, layout, before_writing)
    # Nobody here will ask for them again.
    assets.forget_manifests([part.manifest.id for part in parts])
    assets.forget_manifests([manifest.ref.id for manifest in stored])
    changed = CoordinateRuns(len(grid))
    for manifest in (table.coordinates, deleted):
        if manifest is not None:
            changed.add(manifest)
    replaced = tuple(manifest.ref.id for manifest in stored)
    return LinkedRegion(parts, replaced, num_changed=len(changed))


def _require_valid(table: ChunkTable, grid: Sequence[int]) -> None:
    if len(table) == 0:
        return
    is_inside = table.dimensions == len(grid) and bool(
        (table.coordinates < np.array(grid, np.uint64)).all()
    )
    if not is_inside:
        raise InvalidInputError(
            f"a reference is outside of the grid of {tuple(grid)} chunks: give the array its new "
            "shape before manifests are built for it",
            ErrorKind.INVALID_CHUNK_INDEX,
        )
    if (table.lengths == 0).any():
        index = tuple(table.coordinates[int((table.lengths == 0).argmax())].tolist())
        raise InvalidInputError(
            f"the reference of chunk {index} has no bytes: leave it out",
            ErrorKind.ZERO_LENGTH_CHUNK,
        )


async def _write(
    assets: Assets,
    node: NodeId,
    table: ChunkTable,
    layout: Layout,
    before_writing: BeforeWriting | None,
) -> tuple[LinkedPart, ...]:
    if len(table) == 0:
        return ()
    alone = Blocks(np.empty((0, table.dimensions, 2), np.int64), np.empty(0, np.int64))
    rows = layout.partition(table.coordinates, alone).parts
    tables = [table.take(row) if len(rows) > 1 else table for row in rows]
    held_back = 0 if before_writing is None else MAX_BUFFER_BYTES
    parts = [
        await make_part(assets, {node: part_table.compacted()}, hold_back_bytes=held_back)
        for part_table in tables
    ]
    if before_writing is not None:
        await before_writing([part.manifest.id for part in parts])
    for part in parts:
        if part.held_back is not None:
            await assets.save_manifest(part.held_back)
    return tuple(LinkedPart(part.manifest, part.refs[node].extents) for part in parts)


# -- after -----------------------------------------------------------------------------------


def link_manifests(session: SessionState, path: str, regions: Sequence[LinkedRegion]) -> None:
    """Link manifests that were built for an array; nothing of them is read.

    The array must have its final shape. Its chunks may be changed in the session after this, but
    not before. Manifests that regions were built over have to be those of the array still.
    """
    session.require_writable()
    node = require_array(session, path)
    if not regions:
        return
    _require_untouched(session, node)
    for region in regions:
        for part in region.parts:
            _require_inside(node, part)
    _require_current(session, node, regions)
    with session.changes.writing() as changes:
        before = changes.links.get(node.id)
        changes.put_link(
            node.id,
            LinkedArray(tuple(regions)) if before is None else before.with_regions(regions),
        )
        session.forget_views()


def _require_untouched(session: SessionState, node: Node) -> None:
    changes = session.changes.arrays.get(node.id)
    if changes is not None and not changes.is_empty():
        raise SessionStateError(
            f"chunks of {node.path} were changed in this session, so that nobody could say which "
            "are newer: link manifests first, or in a session of their own",
            ErrorKind.UNCOMMITTED_CHANGES,
            path=node.path,
        )


def _require_inside(node: ArrayNode, part: LinkedPart) -> None:
    grid = node.array.num_chunks
    if len(part.box) != len(grid) or any(
        not 0 <= first < last <= count for (first, last), count in zip(part.box, grid, strict=True)
    ):
        raise InvalidInputError(
            f"the manifest {part.manifest.id} covers {part.box}, which is not within the grid of "
            f"{grid} chunks of {node.path}: resize the array first",
            ErrorKind.INVALID_CHUNK_INDEX,
            path=node.path,
        )


def _require_current(session: SessionState, node: Node, regions: Sequence[LinkedRegion]) -> None:
    refs = session.tree.manifests(node)
    replaced = [manifest_id for region in regions for manifest_id in region.replaced]
    gone = set(replaced) - {ref.id for ref in refs}
    if gone or len(set(replaced)) < len(replaced):
        listed = (
            ", ".join(sorted(str(manifest_id) for manifest_id in gone))
            or "a manifest that two regions share"
        )
        raise SessionStateError(
            f"regions of {node.path} were built over {listed}, which is not to be replaced in this "
            "session: plan and build them again from the snapshot that the session is based on",
            ErrorKind.NOT_ALLOWED,
            path=node.path,
        )
    kept_refs = [ref for ref in refs if ref.id not in replaced]
    link_parts(kept_refs, [part.ref for region in regions for part in region.parts])
