"""Check transaction logs against the differences between a version and its parent."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from icefloe.errors import InvalidInputError
from icefloe.format.chunk_table import ChunkTable, Coordinates, Extents, concat_tables, sort_keys
from icefloe.format.columns import Bytes, is_ascending
from icefloe.format.ids import ManifestId, NodeId, raw_rows
from icefloe.format.layout import transaction_log_key
from icefloe.format.nodes import ArrayNode, ManifestRef, Node
from icefloe.format.snapshot import Snapshot
from icefloe.format.transaction_log import ID_LISTS, Move, TransactionLog
from icefloe.maintenance.verify.findings import DamageKind, Findings
from icefloe.records import Record, replace

type TableReader = Callable[[ManifestRef, NodeId], Awaitable[ChunkTable | None]]
"""Gives the references of an array in a manifest; None where that was found to be damaged."""

type RefCounter = Callable[[ManifestId], int]

MOST_REFS: Final = 8_000_000
"""References that are compared at a time."""


class CommitStep(Record):
    """The step from a parent snapshot to its child."""

    child: Snapshot
    parent: Snapshot
    logs: Sequence[TransactionLog]
    """Its own, after those of ancestors that were taken out of the history."""
    is_whole: bool = True
    """Whether the logs cover the whole way: an old expiration may have shortened it."""

    @property
    def moves(self) -> tuple[Move, ...]:
        """Return the moves, in order."""
        return tuple(move for log in self.logs for move in log.moves)

    def ids(self, *names: str) -> set[NodeId]:
        """Unite lists of node ids of all logs."""
        return {node for log in self.logs for name in names for node in log.nodes(name)}

    def updated_chunks(self, node: NodeId) -> Coordinates | None:
        """Unite the chunks of a node that all logs name."""
        parts = [log.updated_chunks[node] for log in self.logs if node in log.updated_chunks]
        parts = [part for part in parts if len(part)]
        return np.concatenate(parts) if parts else None


class NodeStates:
    """The nodes of a version by their ids; objects are made only of those that differ."""

    def __init__(self, snapshot: Snapshot) -> None:
        nodes = snapshot.nodes
        self._nodes = nodes
        self.rows = {raw: row for row, raw in enumerate(raw_rows(nodes.ids))}
        self.ids = {NodeId(raw) for raw in self.rows}
        self._paths = nodes.paths.to_list()
        self._user_data = nodes.user_data.to_list()
        self._links = _link_bytes(snapshot)

    def node(self, node: NodeId) -> Node:
        """Make an object of one."""
        return self._nodes.node(self.rows[node.raw])

    def state(self, raw: bytes) -> tuple[bytes, bytes, bytes]:
        """Return what identifies the state of a node: path, metadata, manifests."""
        row = self.rows[raw]
        return self._paths[row], self._user_data[row], self._links[row]


def _link_bytes(snapshot: Snapshot) -> list[bytes]:
    """Return for each node bytes that identify its manifests, extents and grid."""
    nodes = snapshot.nodes
    manifests = nodes.manifest_splits.tolist()
    shapes = nodes.shape_splits.tolist()
    extent_splits = nodes.extent_splits.tolist()
    ids, grids, extents = (
        nodes.manifest_ids.tobytes(),
        nodes.num_chunks.tobytes(),
        nodes.extents.tobytes(),
    )
    width = nodes.manifest_ids.shape[1]
    return [
        b"%d:" % (b - a)
        + ids[a * width : b * width]
        + grids[4 * x : 4 * y]
        + b":"
        + extents[8 * extent_splits[a] : 8 * extent_splits[b]]
        for (a, b), (x, y) in zip(pairwise(manifests), pairwise(shapes), strict=True)
    ]


class LogRules:
    """Checks that logs say nothing wrong and leave nothing out."""

    def __init__(
        self, findings: Findings, table: TableReader, *, most_refs: int = MOST_REFS
    ) -> None:
        self._findings = findings
        self._table = table
        self._most_refs = most_refs

    async def check(self, step: CommitStep, count: RefCounter) -> None:
        """Check the logs of a commit; `count` says how many references a manifest has."""
        for log in step.logs:
            self._check_order(step, log)
        before, after = NodeStates(step.parent), NodeStates(step.child)
        self._check_ids(step, before, after)
        if not step.is_whole:
            return
        common = before.rows.keys() & after.rows.keys()
        changed = [raw for raw in sorted(common) if before.state(raw) != after.state(raw)]
        pairs = [(before.node(NodeId(raw)), after.node(NodeId(raw))) for raw in changed]
        self._check_moves(step, pairs, after)
        logged = step.ids("updated_arrays", "updated_groups", "new_arrays", "new_groups")
        for old, new in pairs:
            if old.user_data != new.user_data and new.id not in logged:
                self._report(
                    step, f": the metadata of {new.path} changed, which it does not say", new
                )
            if isinstance(old, ArrayNode) and isinstance(new, ArrayNode) and old.array != new.array:
                await self._check_chunks(step, old, new, count)
        for raw in sorted(after.rows.keys() - before.rows.keys()):
            node = after.node(NodeId(raw))
            if isinstance(node, ArrayNode) and node.array.manifests:
                nothing = replace(node, array=replace(node.array, manifests=()))
                await self._check_chunks(step, nothing, node, count)

    def _report(self, step: CommitStep, text: str, node: Node | None = None) -> None:
        self._findings.report(
            DamageKind.UNTRUE_LOG,
            f"log of {step.child.id}{text}",
            transaction_log_key(step.child.id),
            versions=[step.child.id],
            array=None if node is None else node.path,
        )

    # -- nodes -----------------------------------------------------------------------------

    def _check_ids(self, step: CommitStep, before: NodeStates, after: NodeStates) -> None:
        old = before.ids
        new = step.ids("new_groups", "new_arrays")
        deleted = step.ids("deleted_groups", "deleted_arrays")
        updated = step.ids("updated_groups", "updated_arrays")
        chunks = {node for log in step.logs for node in log.updated_chunks}
        for what, nodes in {
            "names as new a node that its parent has": new & old,
            "names as new a node that the snapshot lacks": new - after.ids - deleted,
            "names as deleted a node that the snapshot has": deleted & after.ids,
            "names as updated a node that the snapshot lacks": updated - after.ids - deleted,
            "names chunks of a node that the snapshot lacks": chunks - after.ids - deleted,
        }.items():
            for node_id in sorted(nodes):
                self._report(step, f" {what}: {node_id}")
        self._check_kinds(step, before, after)
        for node_id in sorted(chunks & after.ids):
            self._check_dimensions(step, after.node(node_id))
        if step.is_whole:
            for node_id in sorted(after.ids - old - new):
                node = after.node(node_id)
                self._report(step, f" does not name the new node {node.path}", node)
            for node_id in sorted(old - after.ids - deleted):
                self._report(step, f" does not name the deleted node {node_id}")

    def _check_kinds(self, step: CommitStep, before: NodeStates, after: NodeStates) -> None:
        """Check that lists of arrays name arrays, and lists of groups name groups."""
        for name in ID_LISTS:
            for states in (after, before):
                for node_id in sorted(step.ids(name) & states.ids):
                    node = states.node(node_id)
                    if isinstance(node, ArrayNode) != name.endswith("arrays"):
                        self._report(step, f": {node.path} in {name}", node)

    def _check_order(self, step: CommitStep, log: TransactionLog) -> None:
        """Check the order of lists: readers that search them miss entries that are out of order."""
        unsorted = [name for name in ID_LISTS if not _is_sorted(getattr(log, name))]
        nodes = [*log.updated_chunks]
        if nodes != sorted(nodes):
            unsorted.append("updated_chunks")
        unsorted += [
            f"the chunks of {node}"
            for node, chunks in log.updated_chunks.items()
            if not is_ascending(*sort_keys(chunks))
        ]
        targets = [move.target.split("/") for move in log.moves]
        if targets != sorted(targets):
            unsorted.append("moved_nodes")
        for name in unsorted:
            self._findings.report(
                DamageKind.BAD_LOG,
                f"log of {log.id}: {name}: not in order, or with something twice",
                transaction_log_key(log.id),
                versions=[step.child.id],
            )

    def _check_dimensions(self, step: CommitStep, node: Node) -> None:
        if not isinstance(node, ArrayNode):
            self._report(step, f" names chunks of the group {node.path}", node)
            return
        for log in step.logs:
            chunks = log.updated_chunks.get(node.id)
            if chunks is not None and len(chunks) and chunks.shape[1] != len(node.array.shape):
                self._report(
                    step, f" names chunks of {node.path} in {chunks.shape[1]} dimensions", node
                )

    def _check_moves(
        self, step: CommitStep, pairs: Iterable[tuple[Node, Node]], after: NodeStates
    ) -> None:
        moved = {move.node: move for move in step.moves}  # the last one of each node
        for old, new in pairs:
            if old.path != new.path and new.id not in moved:
                self._report(step, f" does not tell the move of {old.path} to {new.path}", new)
        for move in moved.values():
            if move.node not in after.ids or after.node(move.node).path != move.target:
                self._report(step, f" tells of a move to {move.target}, where the node is not")

    # -- chunks ----------------------------------------------------------------------------

    async def _check_chunks(
        self, step: CommitStep, old: ArrayNode, new: ArrayNode, count: RefCounter
    ) -> None:
        """Compare what the manifests that are not the same hold, less what the logs name."""
        dimensions = len(new.array.shape)
        logged = step.updated_chunks(new.id)
        if len(old.array.shape) != dimensions or (
            logged is not None and logged.shape[1] != dimensions
        ):
            return
        shared = {*old.array.manifests} & {*new.array.manifests}
        ours = [ref for ref in new.array.manifests if ref not in shared]
        theirs = [ref for ref in old.array.manifests if ref not in shared]
        refs = sum(count(ref.id) for ref in (*ours, *theirs))
        for slab in _slabs([*ours, *theirs], dimensions, -(-refs // self._most_refs)):
            before = await self._chunks(step, old, theirs, slab)
            after = await self._chunks(step, new, ours, slab)
            if before is None or after is None:
                return  # reported already
            if logged is not None:
                before, after = before.without(logged), after.without(logged)
            if old.array.num_chunks != new.array.num_chunks and len(before):
                # Chunks that a smaller grid cuts off are dropped without an entry.
                grid = np.array([(0, n) for n in new.array.num_chunks], np.uint32)
                before = before.within(grid)
            if before != after:
                self._report(step, f" does not name all chunks of {new.path} that changed", new)
                return

    async def _chunks(
        self, step: CommitStep, node: ArrayNode, refs: Iterable[ManifestRef], slab: Extents | None
    ) -> ChunkTable | None:
        dimensions = len(node.array.shape)
        pieces = []
        for ref in refs:
            if slab is not None and not _is_within(ref, slab):
                continue
            table = await self._table(ref, node.id)
            if table is None or table.dimensions != dimensions:
                return None
            if len(table):
                pieces.append(table if slab is None else table.within(slab))
        try:
            return concat_tables(pieces) if pieces else ChunkTable.empty(dimensions)
        except InvalidInputError as failure:
            self._report(step, f": {node.path} over all of its manifests: {failure}", node)
            return None


def _is_sorted(ids: Bytes) -> bool:
    return is_ascending(np.ascontiguousarray(ids).view(f"S{NodeId.WIDTH}").ravel())


def _slabs(refs: Sequence[ManifestRef], dimensions: int, count: int) -> list[Extents] | list[None]:
    """Cut what manifests cover into slabs along the first dimension; None stands for all of it."""
    if count <= 1 or dimensions == 0 or any(len(ref.extents) != dimensions for ref in refs):
        return [None]
    first = min(ref.extents[0][0] for ref in refs)
    last = max(ref.extents[0][1] for ref in refs)
    edges = np.unique(np.linspace(first, last, count + 1).astype(np.int64)).tolist()
    whole = [(0, 2**32 - 1)] * dimensions
    return [np.array([(a, b), *whole[1:]], np.uint32) for a, b in pairwise(edges)]


def _is_within(ref: ManifestRef, slab: Extents) -> bool:
    first, last = ref.extents[0]
    return bool(first < slab[0, 1] and slab[0, 0] < last)
