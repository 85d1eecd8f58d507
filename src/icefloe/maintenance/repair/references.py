"""Commit a new version of a branch, without references to lost data.

The versions before stay as they are: only what the branch shows from now on reads as if the lost
chunks had never been written. References that can be read are kept as they are.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Final

import numpy as np

from icefloe.effects import map_concurrently
from icefloe.errors import FormatError, InvalidInputError
from icefloe.format.chunk_table import ChunkTable, Coordinates
from icefloe.format.columns import Bools
from icefloe.format.ids import ManifestId, NodeId, SnapshotId
from icefloe.format.layout import manifest_key, snapshot_key
from icefloe.format.manifest import ManifestFile
from icefloe.format.nodes import ArrayNode, ManifestRef
from icefloe.format.snapshot import ManifestFiles, Snapshot
from icefloe.maintenance.repair.repair_log import RepairKind, Workshop
from icefloe.maintenance.verify.findings import boxes_of, joined_boxes
from icefloe.maintenance.verify.objects import (
    ChunkObjects,
    Faults,
    VirtualFaults,
    VirtualObjects,
    lost_virtual_rows,
    virtual_needs,
)
from icefloe.maintenance.verify.report import AffectedArray
from icefloe.manifests.build import NewManifest, Part, make_part
from icefloe.manifests.partition import Box
from icefloe.records import MutableRecord, field, replace
from icefloe.repo.context import RepoContext
from icefloe.repo.repo_changes import Commit
from icefloe.transactions.commit import write_version
from icefloe.transactions.manifest_writing import ManifestChanges
from icefloe.transactions.session import SessionMode, SessionState
from icefloe.walk.reachability import native_needs

MESSAGE: Final = "drop references to lost data"
_AT_ONCE: Final = 8
_MOST_NAMED: Final = 10_000_000
"""Chunks of a lost manifest that the log of the commit names, at most: it is not known which of
those it covered it had."""


class _LinkState(MutableRecord):
    """The references of an array in a manifest."""

    node: ArrayNode
    ref: ManifestRef
    table: ChunkTable | None
    """None: it cannot be read."""
    lost: Coordinates | None = None
    """Chunks whose references are dropped; None if none are."""
    is_loose: bool = False
    """Whether the extents differ from those of the chunks: then it is written again."""

    @property
    def is_sound(self) -> bool:
        return self.table is not None and self.lost is None and not self.is_loose


class _Survey(MutableRecord):
    """All references of a version."""

    links: list[_LinkState] = field(default_factory=list)
    files: dict[ManifestId, tuple[int, int]] = field(default_factory=dict)
    """Sizes in bytes and in references of the manifests that can be read."""


async def drop_references(shop: Workshop, context: RepoContext, branch: str) -> None:
    """Commit the intact part of the newest version of a branch, if some of it is lost."""
    tip = await context.ledger.writable_tip(branch)
    if (snapshot := await shop.snapshot(tip)) is None:
        shop.note(f"the newest version of {branch!r}, {tip}, is lost itself")
        return
    survey = await _read(shop, snapshot)
    await _find_lost(shop, context, survey)
    exact = _exact_list(snapshot, survey)
    if all(link.is_sound for link in survey.links) and exact is None:
        return
    session = SessionState(
        context,
        snapshot if exact is None else replace(snapshot, files=exact),
        SessionMode.writable,
        branch=branch,
    )
    manifests = await _manifests(context, survey)
    for link in survey.links:
        if link.lost is not None and len(link.lost):
            changes = session.changes.array(link.node.id, link.lost.shape[1])
            changes.delete_many(link.lost)
    version = await write_version(session, MESSAGE, {}, manifests=manifests)
    await context.ledger.update(Commit(branch, tip, version.entry))
    _tell(shop, branch, tip, version.snapshot.id, survey)


def _tell(shop: Workshop, branch: str, tip: SnapshotId, new: SnapshotId, survey: _Survey) -> None:
    affected = _affected(survey, tip)
    if affected:
        arrays = ", ".join(affected_array.path for affected_array in affected)
        message = (
            f"{branch!r}: the version {new} has no references any more to what is lost of"
            f" {arrays}, which reads as never written; older versions stay as they are"
        )
    else:
        message = f"{branch!r}: the version {new} has exact lists and extents of its manifests"
    keys = [snapshot_key(new)]
    shop.done(RepairKind.DROP_REFERENCES, message, keys, arrays=affected, versions=[new])


def _affected(survey: _Survey, tip: SnapshotId) -> list[AffectedArray]:
    regions: dict[str, list[Box]] = {}
    for link in survey.links:
        if link.table is None:
            regions.setdefault(link.node.path, []).append(link.ref.extents)
        elif link.lost is not None:
            regions.setdefault(link.node.path, []).extend(boxes_of(link.lost))
    return [
        AffectedArray(path, joined_boxes(boxes), (str(tip),)) for path, boxes in regions.items()
    ]


# -- reading -------------------------------------------------------------------------------


async def _read(shop: Workshop, snapshot: Snapshot) -> _Survey:
    survey = _Survey()
    nodes = snapshot.nodes
    arrays = [nodes.array(row) for row in np.flatnonzero(nodes.is_array).tolist()]
    users: dict[ManifestId, list[_LinkState]] = {}
    for node in arrays:
        for ref in node.array.manifests:
            link = _LinkState(node, ref, None)
            survey.links.append(link)
            users.setdefault(ref.id, []).append(link)

    async def read(manifest_id: ManifestId) -> None:
        loaded = await shop.load(
            manifest_key(manifest_id), lambda data: (ManifestFile(data), len(data))
        )
        if loaded is None or loaded[0].id != manifest_id:
            return
        manifest, size_bytes = loaded
        survey.files[manifest_id] = size_bytes, manifest.num_chunk_refs
        for link in users[manifest_id]:
            _take(link, manifest)

    await map_concurrently(read, users, limit=_AT_ONCE)
    return survey


def _take(link: _LinkState, manifest: ManifestFile) -> None:
    """Take the references of an array from a manifest, as far as they make sense."""
    array = link.node.array
    try:
        table = manifest.table(link.node.id)
    except (FormatError, InvalidInputError):
        return
    if len(table) == 0 or table.dimensions != len(array.num_chunks):
        return
    covered = np.array(
        [
            (first, min(last, count))
            for (first, last), count in zip(link.ref.extents, array.num_chunks, strict=True)
        ],
        np.uint32,
    ).reshape(-1, 2)
    inside = table.within(covered)
    if len(inside) == 0:
        return
    link.table = inside
    extents = tuple((int(first), int(last)) for first, last in inside.extents())
    link.is_loose = len(inside) < len(table) or extents != link.ref.extents


async def _find_lost(shop: Workshop, context: RepoContext, survey: _Survey) -> None:
    """Compare references with the objects that they lead to."""
    deep = shop.rules.deep
    foreign = VirtualObjects(context.virtual)
    faults = Faults()
    tables = [link.table for link in survey.links if link.table is not None]
    with ChunkObjects(context.backend) as chunks:
        for table in tables:
            chunks.add(*native_needs(table))
            if deep:
                foreign.add(virtual_needs(table))
        if tables:
            faults = await chunks.compare()
            if deep:
                faults, _ = await chunks.read_all(faults, concurrency=_AT_ONCE)
    virtual: VirtualFaults = (await foreign.look(concurrency=_AT_ONCE)).faults if deep else {}
    for link in survey.links:
        if link.table is None:
            link.lost = covered_chunks(link.ref, link.node.array.num_chunks)
            continue
        is_lost = _lost_rows(link.table, faults, virtual)
        if is_lost.any():
            link.lost = link.table.coordinates[is_lost]
            link.table = link.table.take(~is_lost)


def _lost_rows(table: ChunkTable, faults: Faults, virtual: VirtualFaults) -> Bools:
    is_lost: Bools = table.lengths == 0
    for _, rows in faults.lost_rows(table):
        is_lost[rows] = True
    for _, _, rows in lost_virtual_rows(virtual, table):
        is_lost[rows] = True
    return is_lost


def covered_chunks(ref: ManifestRef, num_chunks: Sequence[int]) -> Coordinates:
    """List the chunks that a manifest covers: those that a lost one had are among them.

    Of one that covers very many, none is listed.
    """
    edges = [
        (first, max(min(last, count), first))
        for (first, last), count in zip(ref.extents, num_chunks, strict=False)
    ]
    count = prod(last - first for first, last in edges)
    if count > _MOST_NAMED or len(edges) != len(num_chunks):
        return np.empty((0, len(num_chunks)), np.uint32)
    if not edges:
        return np.empty((1, 0), np.uint32)
    axes = [np.arange(first, last, dtype=np.uint32) for first, last in edges]
    return np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")], axis=1)


# -- writing -------------------------------------------------------------------------------


def _exact_list(snapshot: Snapshot, survey: _Survey) -> ManifestFiles | None:
    """Return the list of manifests as it should be; None if it is."""
    used = {link.ref.id for link in survey.links}
    files = [
        (manifest_id, *survey.files[manifest_id])
        for manifest_id in sorted(used & survey.files.keys())
    ]
    exact = ManifestFiles.from_list(files)
    listed = snapshot.manifests
    if used <= survey.files.keys() and (
        np.array_equal(exact.ids, listed.ids)
        and np.array_equal(exact.sizes_bytes, listed.sizes_bytes)
        and np.array_equal(exact.num_chunk_refs, listed.num_chunk_refs)
    ):
        return None
    return exact


async def _manifests(context: RepoContext, survey: _Survey) -> ManifestChanges:
    """Write manifests for the references that are left of damaged ones."""
    changed = {link.node.id for link in survey.links if not link.is_sound}
    refs: dict[NodeId, list[ManifestRef]] = {node_id: [] for node_id in changed}
    new: list[NewManifest] = []

    async def make(link: _LinkState) -> Part:
        assert link.table is not None
        return await make_part(context.assets, {link.node.id: link.table.compacted()})

    todo = [link for link in survey.links if not link.is_sound and _has_rows(link)]
    parts = await map_concurrently(make, todo, limit=context.write_concurrency)
    part_by_link = {id(link): part for link, part in zip(todo, parts, strict=True)}
    for link in survey.links:
        if link.node.id not in changed:
            continue
        if link.is_sound:
            refs[link.node.id].append(link.ref)
        elif (part := part_by_link.get(id(link))) is not None:
            new.append(part.manifest)
            refs[link.node.id].append(part.refs[link.node.id])
    return ManifestChanges(_linked(refs), tuple(new), ())


def _has_rows(link: _LinkState) -> bool:
    return link.table is not None and len(link.table) > 0


def _linked(
    refs: Mapping[NodeId, Sequence[ManifestRef]],
) -> dict[NodeId, tuple[ManifestRef, ...]]:
    return {
        node_id: tuple(sorted(some, key=lambda ref: ref.extents)) for node_id, some in refs.items()
    }
