"""Logs of commits, written again from what a version and its parent hold."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from icefloe.errors import FormatError, InvalidInputError
from icefloe.format.chunk_table import ChunkKind, ChunkTable, Coordinates, concat_tables, sort_keys
from icefloe.format.columns import Bools, Bytes, Ints
from icefloe.format.envelope import FileType, object_attributes
from icefloe.format.ids import (
    INITIAL_SNAPSHOT_ID,
    ChunkId,
    ManifestId,
    NodeId,
    SnapshotId,
    id_rows,
)
from icefloe.format.layout import manifest_key, transaction_log_key
from icefloe.format.manifest import ManifestFile
from icefloe.format.nodes import ArrayNode, ManifestRef, Node
from icefloe.format.snapshot import Snapshot
from icefloe.format.transaction_log import Move, TransactionLog, encode_transaction_log
from icefloe.maintenance.repair.histories import versions_with
from icefloe.maintenance.repair.references import covered_chunks
from icefloe.maintenance.repair.repair_log import RepairKind, Workshop
from icefloe.maintenance.verify.findings import DamageKind
from icefloe.maintenance.verify.log_rules import NodeStates
from icefloe.maintenance.verify.report import Damage
from icefloe.virtual_chunks.grouping import PlaceIndex

_WRONG: Final = frozenset({DamageKind.NO_LOG, DamageKind.BAD_LOG, DamageKind.UNTRUE_LOG})


async def rebuild_logs(
    shop: Workshop,
    damages: Iterable[Damage],
    parents: Mapping[SnapshotId, SnapshotId | None],
) -> None:
    """Write those logs again that are lost, damaged or untrue, where both versions can be read."""
    for snapshot_id in sorted(versions_with(damages, _WRONG) - {INITIAL_SNAPSHOT_ID}):
        if (parent_id := parents.get(snapshot_id)) is None:
            continue
        child, parent = await shop.snapshot(snapshot_id), await shop.snapshot(parent_id)
        if child is None or parent is None:
            continue
        log = await _Comparison(shop, parent, child).log()
        await shop.rewrite(
            RepairKind.REBUILD_LOG,
            f"the log of {log.id} is written again, from the differences to the version before",
            transaction_log_key(log.id),
            encode_transaction_log(log, spec_version=child.spec_version),
            object_attributes(FileType.TRANSACTION_LOG, child.spec_version),
            versions=[log.id],
        )


class _Comparison:
    """A version and its parent."""

    def __init__(self, shop: Workshop, parent: Snapshot, child: Snapshot) -> None:
        self._shop = shop
        self._child = child
        self._before, self._after = NodeStates(parent), NodeStates(child)
        self._manifests: dict[ManifestId, ManifestFile | None] = {}

    async def log(self) -> TransactionLog:
        """Return the log of the differences; all chunks of a lost manifest count as different."""
        before, after = self._before, self._after
        new = [after.node(node_id) for node_id in sorted(after.ids - before.ids)]
        gone = [before.node(node_id) for node_id in sorted(before.ids - after.ids)]
        pairs = [
            (before.node(node_id), after.node(node_id))
            for node_id in sorted(before.ids & after.ids)
            if before.state(node_id.raw) != after.state(node_id.raw)
        ]
        chunks: dict[NodeId, Coordinates] = {}
        for old, node in [*((None, node) for node in new), *pairs]:
            if isinstance(node, ArrayNode) and len(touched := await self._touched(old, node)):
                chunks[node.id] = touched
        moves = [
            Move(old.path, node.path, node.id, isinstance(node, ArrayNode))
            for old, node in pairs
            if old.path != node.path
        ]
        updated = [node for old, node in pairs if old.user_data != node.user_data]
        return TransactionLog(
            self._child.id,
            new_groups=_ids(new, arrays=False),
            new_arrays=_ids(new, arrays=True),
            deleted_groups=_ids(gone, arrays=False),
            deleted_arrays=_ids(gone, arrays=True),
            updated_arrays=_ids(updated, arrays=True),
            updated_groups=_ids(updated, arrays=False),
            updated_chunks=chunks,
            moves=tuple(sorted(moves, key=lambda move: move.target.split("/"))),
        )

    async def _touched(self, old: Node | None, new: ArrayNode) -> Coordinates:
        """List the chunks of an array that are not, or may not be, the same in both versions."""
        num_chunks = new.array.num_chunks
        had: tuple[ManifestRef, ...] = ()
        if isinstance(old, ArrayNode):
            had = old.array.manifests
        shared = {*had} & {*new.array.manifests}
        theirs = [ref for ref in had if ref not in shared and len(ref.extents) == len(num_chunks)]
        ours = [ref for ref in new.array.manifests if ref not in shared]
        grid = np.array([(0, count) for count in num_chunks], np.uint32).reshape(-1, 2)
        before, unknown = await self._tables(new.id, theirs, num_chunks)
        after, more = await self._tables(new.id, ours, num_chunks)
        before = before.within(grid) if len(before) else before
        return _sorted([_different(before, after), *unknown, *more])

    async def _tables(
        self, node: NodeId, refs: Iterable[ManifestRef], num_chunks: Sequence[int]
    ) -> tuple[ChunkTable, list[Coordinates]]:
        """Read the references of an array; give also the chunks of which none can be read."""
        tables: list[ChunkTable] = []
        unknown: list[Coordinates] = []
        for ref in refs:
            table = await self._table(node, ref)
            if table is None or (len(table) and table.dimensions != len(num_chunks)):
                unknown.append(covered_chunks(ref, num_chunks))
            elif len(table):
                tables.append(table)
        try:
            return concat_tables(tables) if tables else ChunkTable.empty(len(num_chunks)), unknown
        except InvalidInputError:  # they overlap
            return ChunkTable.empty(len(num_chunks)), [
                chunk_table.coordinates for chunk_table in tables
            ]

    async def _table(self, node: NodeId, ref: ManifestRef) -> ChunkTable | None:
        if ref.id not in self._manifests:
            manifest = await self._shop.load(manifest_key(ref.id), ManifestFile)
            self._manifests = {ref.id: manifest}  # one at a time is enough
        manifest = self._manifests[ref.id]
        try:
            return None if manifest is None else manifest.table(node)
        except (FormatError, InvalidInputError):
            return None


def _ids(nodes: Iterable[Node], *, arrays: bool) -> Bytes:
    return id_rows(NodeId, [node.id for node in nodes if isinstance(node, ArrayNode) is arrays])


def _different(before: ChunkTable, after: ChunkTable) -> Coordinates:
    """List the coordinates that only one table has, or whose references differ."""
    if len(before) == 0 or len(after) == 0:
        return np.concatenate([before.coordinates, after.coordinates])
    old, new = sort_keys(before.coordinates, after.coordinates)
    is_gone, is_new = ~np.isin(old, new), ~np.isin(new, old)
    ours, theirs = after.take(~is_new), before.take(~is_gone)
    changed = ours.coordinates[~_same_rows(theirs, ours)]
    return np.concatenate([before.coordinates[is_gone], after.coordinates[is_new], changed])


def _sorted(parts: Sequence[Coordinates]) -> Coordinates:
    """Put coordinates together in order, each once."""
    every = np.concatenate(parts)
    [keys] = sort_keys(every)
    return every[np.unique(keys, return_index=True)[1]]


def _same_rows(table: ChunkTable, other: ChunkTable) -> Bools:
    """Return which rows, of the same coordinates, refer to the same bytes.

    Virtual chunks with checksums count as different: to name too much does no harm.
    """
    same: Bools = (
        (table.kinds == other.kinds)
        & (table.offsets == other.offsets)
        & (table.lengths == other.lengths)
    )
    for kind in ChunkKind:
        rows = np.flatnonzero(same & (table.kinds == kind))
        if len(rows):
            mine, theirs = _targets(kind, table, other)
            same[rows] = mine[table.targets[rows]] == theirs[other.targets[rows]]
            if kind is ChunkKind.VIRTUAL and (_has_checksums(table) or _has_checksums(other)):
                same[rows] = False
    return same


def _targets(kind: ChunkKind, table: ChunkTable, other: ChunkTable) -> tuple[Ints, Ints]:
    """Number what chunks of a kind lead to, the same things in both tables alike."""
    if kind is ChunkKind.NATIVE:
        width = ChunkId.WIDTH
        ids = np.ascontiguousarray(np.concatenate([table.chunk_ids, other.chunk_ids]))
        _, numbers = np.unique(ids.view(f"V{width}").ravel(), return_inverse=True)
        return numbers[: len(table.chunk_ids)], numbers[len(table.chunk_ids) :]
    index = PlaceIndex()
    name = "locations" if kind is ChunkKind.VIRTUAL else "inline"
    return index.numbers(getattr(table, name)), index.numbers(getattr(other, name))


def _has_checksums(table: ChunkTable) -> bool:
    return table.etag_rows is not None or table.last_modified is not None
