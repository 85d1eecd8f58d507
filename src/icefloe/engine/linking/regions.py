"""Manifests built on other machines, linked by one commit.

Whoever commits never sees the references. The steps, and where they run:

1. `plan_array` (here): which regions there are, from numbers of references along one dimension.
2. `PartPlan.regions` (anywhere): the region of each new reference, from its coordinates.
3. `build_region` (anywhere): writes the manifests of one region, over what is stored in it.
4. `link_manifests` (here): puts them into a session, in which they can be read from then on.
5. `commit`, `amend` or `flush` (here), with a `log_writer` that has `write_log` run somewhere
   else. Without one, the chunks for the log are read from the new manifests.

Nothing that is built is visible before the commit; what was built for nothing is garbage.
"""

from collections.abc import Awaitable, Callable, Sequence

import numpy as np

from icefloe.assets.files import Assets
from icefloe.engine.linking.linked import LinkedArray, LinkedPart, LinkedRegion, StoredManifest
from icefloe.engine.linking.log import complete_log, write_log
from icefloe.engine.linking.plan import NewReferences, PartPlan, plan_parts
from icefloe.engine.manifests.lookup import listed_in
from icefloe.engine.manifests.partition import Blocks, Layout
from icefloe.engine.manifests.parts import Part, link_parts, make_part
from icefloe.engine.manifests.splitting import layout_of
from icefloe.engine.nodes import require_array
from icefloe.engine.session import SessionState
from icefloe.errors import ErrorKind, InvalidInputError, SessionStateError
from icefloe.format.chunk_table import ChunkTable, Coordinates, concat_tables
from icefloe.format.coordinate_runs import CoordinateRuns
from icefloe.format.envelope import MAX_BUFFER_BYTES
from icefloe.format.ids import ManifestId, NodeId
from icefloe.format.node_table import Node

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
    assert node.array is not None
    layout = layout_of(node, session.context.config.manifest.split_sizes)
    return plan_parts(layout, node.array.num_chunks, stored_manifests(session, node), new)


def stored_manifests(session: SessionState, node: Node) -> list[StoredManifest]:
    """List the manifests of an array, with those that are linked already."""
    refs = session.tree.manifests(node)
    sizes, counts = listed_in(session.manifest_files, [ref.id for ref in refs])
    return [StoredManifest(*each) for each in zip(refs, sizes, counts, strict=True)]


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
    old = [await _load(assets, node, each) for each in stored]
    inside = [each.within(extents) for each in old if len(each)]
    united = concat_tables(inside).overlay(table, deleted) if inside else table
    parts = await _write(assets, node, united, layout, before_writing)
    # Nobody here will ask for them again.
    assets.forget_manifests([part.manifest.id for part in parts])
    assets.forget_manifests([each.ref.id for each in stored])
    changed = CoordinateRuns(len(grid))
    for each in (table.coordinates, deleted):
        if each is not None:
            changed.add(each)
    replaced = tuple(each.ref.id for each in stored)
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


async def _load(assets: Assets, node: NodeId, stored: StoredManifest) -> ChunkTable:
    return (await assets.load_manifest(stored.ref.id, stored.size_bytes)).table(node)


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
    tables = [table.take(each) if len(rows) > 1 else table for each in rows]
    held_back = 0 if before_writing is None else MAX_BUFFER_BYTES
    made = [
        await make_part(assets, {node: each.compacted()}, hold_back_bytes=held_back)
        for each in tables
    ]
    if before_writing is not None:
        await before_writing([part.manifest.id for part in made])
    for part in made:
        if part.held_back is not None:
            await assets.save_manifest(part.held_back)
    return tuple(_linked(node, part) for part in made)


def _linked(node: NodeId, part: Part) -> LinkedPart:
    return LinkedPart(part.manifest, part.refs[node].extents)


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


def _require_inside(node: Node, part: LinkedPart) -> None:
    assert node.array is not None
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
    replaced = [one for region in regions for one in region.replaced]
    gone = set(replaced) - {ref.id for ref in refs}
    if gone or len(set(replaced)) < len(replaced):
        listed = ", ".join(sorted(str(one) for one in gone)) or "a manifest that two regions share"
        raise SessionStateError(
            f"regions of {node.path} were built over {listed}, which is not to be replaced in this "
            "session: plan and build them again from the snapshot that the session is based on",
            ErrorKind.NOT_ALLOWED,
            path=node.path,
        )
    kept = [ref for ref in refs if ref.id not in replaced]
    link_parts(kept, [part.ref for region in regions for part in region.parts])
