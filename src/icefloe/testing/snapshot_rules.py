"""What must hold within one snapshot, and between a snapshot, its parent and its log."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from icefloe.errors import FormatError, InvalidInputError
from icefloe.format.chunk_table import ChunkKind, ChunkTable, Coordinates, concat_tables
from icefloe.format.ids import ChunkId, ManifestId, NodeId, ids_of_rows
from icefloe.format.layout import chunk_key, manifest_key
from icefloe.format.node_table import ArrayInfo, ManifestRef, Node
from icefloe.format.snapshot import Snapshot
from icefloe.format.transaction_log import Move, TransactionLog
from icefloe.testing.stored_files import StoredFiles


def nodes_of(snapshot: Snapshot) -> Iterator[Node]:
    """Give all nodes as objects."""
    return (snapshot.nodes.node(row) for row in range(len(snapshot.nodes)))


# -- one snapshot --------------------------------------------------------------------------


def check_snapshot(files: StoredFiles, snapshot: Snapshot) -> None:
    """Check nodes, manifests and chunks of one snapshot."""
    where = f"snapshot {snapshot.id}"
    nodes = list(nodes_of(snapshot))
    for node_id, times in Counter(node.id for node in nodes).items():
        files.require(times == 1, f"{where}: {times} nodes have the id {node_id}")
    named: set[ManifestId] = set()
    for node in nodes:
        _check_node(files, node, where)
        if node.array is not None:
            named |= {ref.id for ref in node.array.manifests}
            _check_chunks(files, node, node.array, where)
    _check_manifest_list(files, snapshot, named, where)


def _check_node(files: StoredFiles, node: Node, where: str) -> None:
    segments = node.path.split("/")
    is_path = node.path == "/" or (segments[0] == "" and not {"", ".", ".."} & {*segments[1:]})
    files.require(is_path, f"{where}: {node.path!r} is not an absolute path")
    try:
        document = json.loads(node.user_data)
    except ValueError as failure:
        files.report(f"{where}: the metadata of {node.path} is not JSON: {failure}")
        return
    kind = "group" if node.array is None else "array"
    found = document.get("node_type")
    files.require(found == kind, f"{where}: {node.path} is stored as {kind}, its metadata {found}")
    if node.array is not None and kind == found:
        shape = tuple(document.get("shape", ()))
        files.require(
            shape == node.array.shape,
            f"{where}: {node.path} has the shape {node.array.shape}, its metadata say {shape}",
        )


def _check_manifest_list(
    files: StoredFiles, snapshot: Snapshot, named: set[ManifestId], where: str
) -> None:
    listed = ids_of_rows(ManifestId, snapshot.manifests.ids)
    files.require(listed == sorted(set(listed)), f"{where}: its manifests are not listed in order")
    for one in sorted(named - set(listed)):
        files.report(f"{where}: an array uses the manifest {one}, which is not in the list")
    for one in sorted(set(listed) - named):
        files.report(f"{where}: it lists the manifest {one}, which no array uses")
    for row, one in enumerate(listed):
        manifest = files.manifest(one, where)
        if manifest is None:
            continue
        size, refs = snapshot.manifests.sizes_bytes[row], snapshot.manifests.num_chunk_refs[row]
        real = files.size_of(manifest_key(one))
        files.require(
            size == real, f"{where}: the manifest {one} has {real} bytes, the list says {size}"
        )
        files.require(
            refs == manifest.num_chunk_refs,
            f"{where}: the manifest {one} has {manifest.num_chunk_refs} references, "
            f"the list says {refs}",
        )


def _check_chunks(files: StoredFiles, node: Node, array: ArrayInfo, where: str) -> None:
    place = f"{where}: {node.path}"
    for first, second in combinations(array.manifests, 2):
        files.require(not _overlap(first, second), f"{place}: {first.id} and {second.id} overlap")
    for ref in array.manifests:
        table = _table(files, node, ref, where)
        if table is None:
            continue
        if len(table) == 0:
            files.report(f"{place}: the manifest {ref.id} holds nothing of it")
            continue
        if table.dimensions != len(array.num_chunks):
            files.report(f"{place}: {ref.id} has coordinates of {table.dimensions} dimensions")
            continue
        tight = tuple((int(first), int(last)) for first, last in table.extents())
        files.require(
            tight == ref.extents, f"{place}: {ref.id} covers {tight}, its extents say {ref.extents}"
        )
        grid = np.array(array.num_chunks, np.uint32)
        files.require(
            (table.coordinates < grid).all(), f"{place}: {ref.id} has chunks outside of the grid"
        )
        _check_targets(files, table, f"{place}: {ref.id}")


def _overlap(first: ManifestRef, second: ManifestRef) -> bool:
    # Empty extents contain everything: all() of nothing is true.
    pairs = zip(first.extents, second.extents, strict=False)
    return all(a[0] < b[1] and b[0] < a[1] for a, b in pairs)


def _table(files: StoredFiles, node: Node, ref: ManifestRef, where: str) -> ChunkTable | None:
    manifest = files.manifest(ref.id, where)
    if manifest is None:
        return None
    try:
        return manifest.table(node.id)
    except FormatError as failure:  # also when references are not sorted
        files.report(f"{where}: {node.path} in the manifest {ref.id}: {failure}")
        return None


def _check_targets(files: StoredFiles, table: ChunkTable, place: str) -> None:
    files.require((table.lengths > 0).all(), f"{place} refers to chunks of no length")
    native = table.kinds == ChunkKind.NATIVE
    ends = table.offsets[native] + table.lengths[native]
    furthest = np.zeros(len(table.chunk_ids), np.uint64)
    np.maximum.at(furthest, table.targets[native], ends)
    used = np.unique(table.targets[native])
    for chunk, end in zip(
        ids_of_rows(ChunkId, table.chunk_ids[used]), furthest[used].tolist(), strict=True
    ):
        size = files.size_of(chunk_key(chunk))
        if size is None:
            files.report(f"{chunk_key(chunk)} does not exist, but {place} needs it")
        else:
            files.require(
                end <= size, f"{place} needs {end} bytes of {chunk_key(chunk)}, which has {size}"
            )


# -- a snapshot, its parent and its log ----------------------------------------------------


@dataclass(frozen=True, slots=True)
class Step:
    """How a snapshot came from its parent."""

    child: Snapshot
    parent: Snapshot
    logs: Sequence[TransactionLog]
    """Its own, after those of ancestors that were taken out of the history."""
    is_whole: bool = True
    """Whether the logs cover the whole way: an old expiration may have shortened it."""

    @property
    def moves(self) -> tuple[Move, ...]:
        """Give the moves, in order."""
        return tuple(move for log in self.logs for move in log.moves)

    def ids(self, *names: str) -> set[NodeId]:
        """Unite lists of node ids of all logs."""
        return {node for log in self.logs for name in names for node in log.nodes(name)}

    def updated_chunks(self, node: NodeId) -> Coordinates | None:
        """Unite the chunks of a node that all logs name."""
        parts = [log.updated_chunks[node] for log in self.logs if node in log.updated_chunks]
        return np.concatenate(parts) if parts else None


def check_step(files: StoredFiles, step: Step) -> None:
    """Check that the logs of a commit tell what it did: nothing wrong, nothing left out."""
    where = f"log of {step.child.id}"
    before = {node.id: node for node in nodes_of(step.parent)}
    after = {node.id: node for node in nodes_of(step.child)}
    _check_ids(files, step, before.keys(), after, where)
    if not step.is_whole:
        return
    _check_moves(files, step, before, after, where)
    logged = step.ids("updated_arrays", "updated_groups", "new_arrays", "new_groups")
    for node_id in before.keys() & after.keys():
        old, new = before[node_id], after[node_id]
        files.require(
            old.user_data == new.user_data or node_id in logged,
            f"{where}: the metadata of {new.path} changed, which it does not say",
        )
        if old.array is not None and new.array is not None:
            _check_changed_chunks(files, step, old, new, where)


def _check_ids(
    files: StoredFiles,
    step: Step,
    before: Iterable[NodeId],
    after: dict[NodeId, Node],
    where: str,
) -> None:
    new, deleted = (
        step.ids("new_groups", "new_arrays"),
        step.ids("deleted_groups", "deleted_arrays"),
    )
    updated = step.ids("updated_groups", "updated_arrays")
    old = set(before)
    chunks = {node for log in step.logs for node in log.updated_chunks}
    for what, nodes in {
        "names as new a node that its parent has": new & old,
        "names as new a node that the snapshot lacks": new - after.keys() - deleted,
        "names as deleted a node that the snapshot has": deleted & after.keys(),
        "names as updated a node that the snapshot lacks": updated - after.keys() - deleted,
        "names chunks of a node that the snapshot lacks": chunks - after.keys() - deleted,
    }.items():
        for one in sorted(nodes):
            files.report(f"{where} {what}: {one}")
    for name, is_array in (("new_arrays", True), ("new_groups", False)):
        for node_id in sorted(step.ids(name) & after.keys()):
            node = after[node_id]
            files.require((node.array is not None) == is_array, f"{where}: {node.path} in {name}")
    for node_id in sorted(chunks & after.keys()):
        _check_chunk_dimensions(files, step, after[node_id], where)
    if step.is_whole:
        for node_id in sorted(after.keys() - old - new):
            files.report(f"{where} does not name the new node {after[node_id].path}")
        for node_id in sorted(old - after.keys() - deleted):
            files.report(f"{where} does not name the deleted node {node_id}")


def _check_chunk_dimensions(files: StoredFiles, step: Step, node: Node, where: str) -> None:
    if node.array is None:
        files.report(f"{where} names chunks of the group {node.path}")
        return
    for log in step.logs:
        chunks = log.updated_chunks.get(node.id)
        if chunks is not None and len(chunks):
            files.require(
                chunks.shape[1] == len(node.array.shape),
                f"{where} names chunks of {node.path} in {chunks.shape[1]} dimensions",
            )


def _check_moves(
    files: StoredFiles,
    step: Step,
    before: dict[NodeId, Node],
    after: dict[NodeId, Node],
    where: str,
) -> None:
    moved = {move.node: move for move in step.moves}  # the last one of each node
    for node_id in before.keys() & after.keys():
        old, new = before[node_id].path, after[node_id].path
        files.require(
            old == new or node_id in moved, f"{where} does not tell the move of {old} to {new}"
        )
    for move in moved.values():
        node = after.get(move.node)
        files.require(
            node is not None and node.path == move.target,
            f"{where} tells of a move to {move.target}, where the node is not",
        )


def _check_changed_chunks(files: StoredFiles, step: Step, old: Node, new: Node, where: str) -> None:
    assert old.array is not None
    assert new.array is not None
    if old.array == new.array:
        return
    before, after = _all_chunks(files, old, where), _all_chunks(files, new, where)
    if before is None or after is None:
        return  # already reported
    logged = step.updated_chunks(new.id)
    if logged is not None and len(logged):
        before, after = before.without(logged), after.without(logged)
    if old.array.num_chunks != new.array.num_chunks and len(before):
        # Chunks that a smaller grid cuts off go without a word.
        before = before.within(np.array([(0, n) for n in new.array.num_chunks], np.uint32))
    files.require(before == after, f"{where} does not name all chunks of {new.path} that changed")


def _all_chunks(files: StoredFiles, node: Node, where: str) -> ChunkTable | None:
    assert node.array is not None
    dimensions = len(node.array.shape)
    tables = [_table(files, node, ref, where) for ref in node.array.manifests]
    if any(table is None or table.dimensions != dimensions for table in tables):
        return None
    found = [table for table in tables if table is not None and len(table)]
    try:
        return concat_tables(found) if found else ChunkTable.empty(dimensions)
    except InvalidInputError as failure:
        files.report(f"{where}: {node.path} over all of its manifests: {failure}")
        return None
