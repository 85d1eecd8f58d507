"""Any metadata file as plain dictionaries, ready for JSON: for people who want to look inside."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import FormatError
from icefloe.format import DEFAULT_MAX_ROWS
from icefloe.format.chunk_table import ChunkKind, ChunkTable, Coordinates, InlineChunk, NativeChunk
from icefloe.format.envelope import Envelope, FileType, open_envelope
from icefloe.format.flexbuffers import decode_flexbuffer
from icefloe.format.ids import ManifestId, NodeId, ids_of_rows
from icefloe.format.manifest import ManifestFile
from icefloe.format.nodes import ArrayNode, Node
from icefloe.format.repo_info import decode_repo_info
from icefloe.format.snapshot import ManifestFiles, decode_snapshot
from icefloe.format.snapshot_table import SnapshotEntry
from icefloe.format.transaction_log import (
    ID_LISTS,
    Move,
    TransactionLog,
    decode_transaction_log,
)
from icefloe.format.update_table import Status, UpdateEntry, UpdateKind

type Description = dict[str, Any]


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_AVAILABILITY: Final = ("Online", "ReadOnly", "Offline")


def describe_file(
    data: bytes | bytearray | memoryview, max_rows: int = DEFAULT_MAX_ROWS
) -> Description:
    """Describe a snapshot, manifest, transaction log or repo object.

    Of each list at most `max_rows` entries are shown; how many were left out is said.
    """
    envelope = open_envelope(data)
    match envelope.file_type:
        case FileType.SNAPSHOT:
            content = _describe_snapshot(data, max_rows)
        case FileType.MANIFEST:
            content = _describe_manifest(data, max_rows)
        case FileType.TRANSACTION_LOG:
            content = describe_log(decode_transaction_log(data), max_rows)
        case FileType.REPO_INFO:
            content = _describe_repo(data, max_rows)
    return {"header": _describe_header(envelope), **content}


def _describe_header(envelope: Envelope) -> Description:
    name, _, version = envelope.writer.partition("-")
    return {
        "written_by": envelope.writer,
        "app_name": name,
        "app_version": version,
        "spec_version": f"{envelope.spec_version}.0",
        "file_type": envelope.file_type.attribute,
        "compression": "zstd",
    }


def _time(microseconds: int) -> str:
    try:
        moment = _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return f"{microseconds} microseconds since 1970"
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _listed(name: str, count: int, max_rows: int, describe: Callable[[int], object]) -> Description:
    """Describe the first entries of a list, and say how many there are beyond."""
    listed: Description = {name: [describe(row) for row in range(min(count, max_rows))]}
    if count > max_rows:
        listed[f"{name}_left_out"] = count - max_rows
    return listed


# -- snapshots -----------------------------------------------------------------------------


def _describe_snapshot(data: bytes | bytearray | memoryview, max_rows: int) -> Description:
    snapshot = decode_snapshot(data)
    files = snapshot.manifests
    parent = {} if snapshot.parent_id is None else {"parent_id": str(snapshot.parent_id)}
    return {
        "id": str(snapshot.id),
        **parent,
        "flushed_at": _time(snapshot.flushed_at),
        "commit_message": snapshot.message,
        "metadata": dict(snapshot.metadata),
        **_listed(
            "manifests", len(files), max_rows, lambda row: _describe_manifest_file(files, row)
        ),
        **_listed(
            "nodes",
            len(snapshot.nodes),
            max_rows,
            lambda row: _describe_node(snapshot.nodes.node(row)),
        ),
    }


def _describe_manifest_file(files: ManifestFiles, row: int) -> Description:
    return {
        "id": str(ManifestId(files.ids[row].tobytes())),
        "size_bytes": int(files.sizes_bytes[row]),
        "num_chunk_refs": int(files.num_chunk_refs[row]),
    }


def _describe_node(node: Node) -> Description:
    described: Description = {
        "id": str(node.id),
        "path": node.path,
        "node_type": "array" if isinstance(node, ArrayNode) else "group",
    }
    if isinstance(node, ArrayNode):
        names = node.array.dimension_names or (None,) * len(node.array.shape)
        described["shape"] = [
            {
                **({} if name is None else {"name": name}),
                "array_length": length,
                "num_chunks": count,
            }
            for name, length, count in zip(
                names, node.array.shape, node.array.num_chunks, strict=True
            )
        ]
        if node.array.dimension_names is not None:
            described["dimension_names"] = list(node.array.dimension_names)
        described["manifest_refs"] = [
            {"id": str(ref.id), "extents": [list(box) for box in ref.extents]}
            for ref in node.array.manifests
        ]
    described["zarr_metadata"] = _json_or_text(node.user_data)
    return described


def _json_or_text(data: bytes) -> Any:
    """Show stored JSON as such; anything else as text, never as an error."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return data.decode(errors="replace")


# -- manifests -----------------------------------------------------------------------------


def _describe_manifest(data: bytes | bytearray | memoryview, max_rows: int) -> Description:
    file = ManifestFile(data)
    tables = list(file.tables().items())
    counts = sum((_kind_counts(table) for _, table in tables), np.zeros(len(ChunkKind) + 1, int))
    return {
        "id": str(file.id),
        "size_bytes": file.size_bytes,
        "num_arrays": len(tables),
        "total_chunk_refs": file.num_chunk_refs,
        "total_inline": int(counts[ChunkKind.INLINE]),
        "total_native": int(counts[ChunkKind.NATIVE]),
        "total_virtual": int(counts[ChunkKind.VIRTUAL]),
        "compression": {
            "uses_location_compression": file.has_location_dictionary,
            "num_compressed_refs": file.num_compressed_locations(),
        },
        **_listed(
            "arrays", len(tables), max_rows, lambda row: _describe_refs(*tables[row], max_rows)
        ),
    }


def _kind_counts(table: ChunkTable) -> NDArray[np.int64]:
    """Count the references of each kind."""
    return np.bincount(table.kinds, minlength=len(ChunkKind) + 1)


def _describe_refs(node: NodeId, table: ChunkTable, max_rows: int) -> Description:
    counts = _kind_counts(table).tolist()
    return {
        "node_id": str(node),
        "num_chunk_refs": len(table),
        "num_inline": counts[ChunkKind.INLINE],
        "num_native": counts[ChunkKind.NATIVE],
        "num_virtual": counts[ChunkKind.VIRTUAL],
        **_listed("chunks", len(table), max_rows, lambda row: _describe_ref(table, row)),
    }


def _describe_ref(table: ChunkTable, row: int) -> Description:
    described: Description = {"index": table.coordinates[row].tolist()}
    match ref := table.ref(row):
        case InlineChunk(inline):
            return described | {"kind": "inline", "length": len(inline), "data": inline.hex()}
        case NativeChunk():
            described |= {"kind": "native", "chunk_id": str(ref.id)}
        case _:
            described |= {"kind": "virtual", "location": ref.location}
            described |= {} if ref.etag is None else {"etag": ref.etag}
            if ref.last_modified is not None:
                described["last_modified"] = _time(ref.last_modified * 1_000_000)
    return described | {"offset": ref.offset, "length": ref.length}


# -- transaction logs ----------------------------------------------------------------------


def describe_log(log: TransactionLog, max_rows: int) -> Description:
    """Describe what a transaction log lists, at most `max_rows` entries of each list."""
    updated = list(log.updated_chunks.items())
    lists: Description = {}
    for name in ID_LISTS:
        ids = getattr(log, name)
        shown = [str(node) for node in ids_of_rows(NodeId, ids[:max_rows])]
        lists |= _listed(name, len(ids), max_rows, shown.__getitem__)
    return {
        "id": str(log.id),
        **lists,
        **_listed(
            "updated_chunks",
            len(updated),
            max_rows,
            lambda row: _describe_coordinates(*updated[row], max_rows),
        ),
        **_listed(
            "moved_nodes", len(log.moves), max_rows, lambda row: _describe_move(log.moves[row])
        ),
    }


def _describe_coordinates(node: NodeId, coordinates: Coordinates, max_rows: int) -> Description:
    return {
        "node_id": str(node),
        "num_chunks": len(coordinates),
        **_listed("chunks", len(coordinates), max_rows, lambda row: coordinates[row].tolist()),
    }


def _describe_move(move: Move) -> Description:
    return {
        "from": move.source,
        "to": move.target,
        "node_id": str(move.node),
        "node_type": "array" if move.is_array else "group",
    }


# -- the repo object -----------------------------------------------------------------------


def _describe_repo(data: bytes | bytearray | memoryview, max_rows: int) -> Description:
    repo = decode_repo_info(data)
    described: Description = {
        "spec_version": "2.0",
        "branches": {name: str(snapshot) for name, snapshot in repo.branches.items()},
        "tags": {name: str(snapshot) for name, snapshot in repo.tags.items()},
        **_listed("deleted_tags", len(repo.deleted_tags), max_rows, repo.deleted_tags.__getitem__),
        **_listed(
            "snapshots",
            len(repo.snapshots),
            max_rows,
            lambda row: _describe_entry(repo.snapshots.entry(row), max_rows),
        ),
        "status": _describe_status(repo.status),
        "metadata": dict(repo.metadata),
        **_listed(
            "latest_updates",
            len(repo.updates),
            max_rows,
            lambda row: _describe_update(repo.updates.entry(row)),
        ),
    }
    if repo.repo_before_updates is not None:
        described["repo_before_updates"] = repo.repo_before_updates
    if repo.config is not None:
        described["config"] = _describe_config(repo.config)
    if repo.enabled_flags is not None:
        described["enabled_feature_flags"] = list(repo.enabled_flags)
    if repo.disabled_flags is not None:
        described["disabled_feature_flags"] = list(repo.disabled_flags)
    return described


def _describe_config(config: bytes) -> Any:
    try:
        return decode_flexbuffer(config)
    except FormatError as error:
        return f"cannot be read: {error}"


def _describe_entry(entry: SnapshotEntry, max_rows: int) -> Description:
    parent = {} if entry.parent is None else {"parent_id": str(entry.parent)}
    pruned = entry.pruned_ancestors
    return {
        "id": str(entry.id),
        **parent,
        "flushed_at": _time(entry.flushed_at),
        "message": entry.message,
        "metadata": dict(entry.metadata),
        **(
            _listed("pruned_ancestor_tx_logs", len(pruned), max_rows, lambda row: str(pruned[row]))
            if pruned
            else {}
        ),
    }


def _describe_status(status: Status) -> Description:
    is_known = status.availability < len(_AVAILABILITY)
    reason = {} if status.reason is None else {"limited_availability_reason": status.reason}
    return {
        "availability": _AVAILABILITY[status.availability] if is_known else status.availability,
        **reason,
        "set_at": _time(status.set_at),
    }


def _describe_update(entry: UpdateEntry) -> Description:
    backup = {} if entry.backup_path is None else {"backup_path": entry.backup_path}
    return {
        "update_type": {"type": _update_name(entry.kind), **_describe_payload(entry)},
        "updated_at": _time(entry.updated_at),
        **backup,
    }


def _update_name(kind: UpdateKind) -> str:
    return kind.name.title().replace("_", "").replace("Gc", "GC") + "Update"


def _describe_payload(entry: UpdateEntry) -> Description:
    first, second, third = entry.numbers
    match entry.kind:
        case UpdateKind.REPO_MIGRATED:
            return {"from_version": first, "to_version": second}
        case UpdateKind.FEATURE_FLAG_CHANGED:
            return {"id": first, "new_value": bool(second) if third else None}
    named = "branch" if entry.new is not None else "name"
    described: Description = {}
    if entry.name is not None:
        described[named] = entry.name
    if entry.previous is not None:
        described["previous_snap_id"] = str(entry.previous)
    if entry.new is not None:
        described["new_snap_id"] = str(entry.new)
    if entry.status is not None:
        described["status"] = _describe_status(entry.status)
    return described
