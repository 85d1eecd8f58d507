"""Any metadata file as plain dictionaries, ready for JSON: for people who want to look inside."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import numpy as np

from icefloe.errors import FormatError
from icefloe.format.chunk_table import ChunkKind, ChunkTable, InlineChunk, NativeChunk
from icefloe.format.envelope import Envelope, FileType, open_envelope
from icefloe.format.flexbuffers import decode_flexbuffer
from icefloe.format.ids import NodeId, encode_ids
from icefloe.format.manifest import ManifestFile
from icefloe.format.node_table import Node
from icefloe.format.repo_info import decode_repo_info
from icefloe.format.snapshot import decode_snapshot
from icefloe.format.snapshot_table import SnapshotEntry
from icefloe.format.transaction_log import ID_LISTS, decode_transaction_log
from icefloe.format.update_table import Status, UpdateEntry, UpdateKind

type Description = dict[str, Any]

DEFAULT_MAX_ROWS: Final = 1000

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_AVAILABILITY: Final = ("Online", "ReadOnly", "Offline")


def describe_file(
    data: bytes | bytearray | memoryview, max_rows: int = DEFAULT_MAX_ROWS
) -> Description:
    """Describe a snapshot, manifest, transaction log or repo object.

    At most `max_rows` chunks of each array are listed; how many were left out is said.
    """
    envelope = open_envelope(data)
    match envelope.file_type:
        case FileType.SNAPSHOT:
            content = _describe_snapshot(data)
        case FileType.MANIFEST:
            content = _describe_manifest(data, max_rows)
        case FileType.TRANSACTION_LOG:
            content = _describe_log(data, max_rows)
        case FileType.REPO_INFO:
            content = _describe_repo(data)
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


# -- snapshots -----------------------------------------------------------------------------


def _describe_snapshot(data: bytes | bytearray | memoryview) -> Description:
    snapshot = decode_snapshot(data)
    files = snapshot.manifests
    parent = {} if snapshot.parent_id is None else {"parent_id": str(snapshot.parent_id)}
    return {
        "id": str(snapshot.id),
        **parent,
        "flushed_at": _time(snapshot.flushed_at),
        "commit_message": snapshot.message,
        "metadata": dict(snapshot.metadata),
        "manifests": [
            {"id": name.decode(), "size_bytes": size, "num_chunk_refs": refs}
            for name, size, refs in zip(
                encode_ids(files.ids).tolist(),
                files.sizes_bytes.tolist(),
                files.num_chunk_refs.tolist(),
                strict=True,
            )
        ],
        "nodes": [_describe_node(snapshot.nodes.node(row)) for row in range(len(snapshot.nodes))],
    }


def _describe_node(node: Node) -> Description:
    described: Description = {
        "id": str(node.id),
        "path": node.path,
        "node_type": "group" if node.array is None else "array",
    }
    if node.array is not None:
        described["shape"] = [
            {"array_length": length, "num_chunks": count}
            for length, count in zip(node.array.shape, node.array.num_chunks, strict=True)
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
    arrays = [_describe_refs(node, table, max_rows) for node, table in file.tables().items()]
    totals = {
        f"total_{kind}": sum(array[f"num_{kind}"] for array in arrays)
        for kind in ("inline", "native", "virtual")
    }
    return {
        "id": str(file.id),
        "size_bytes": file.size_bytes,
        "num_arrays": len(arrays),
        "total_chunk_refs": file.num_chunk_refs,
        **totals,
        "uses_location_compression": file.has_location_dictionary,
        "arrays": arrays,
    }


def _describe_refs(node: NodeId, table: ChunkTable, max_rows: int) -> Description:
    counts = np.bincount(table.kinds, minlength=len(ChunkKind) + 1).tolist()
    return {
        "node_id": str(node),
        "num_chunk_refs": len(table),
        "num_inline": counts[ChunkKind.INLINE],
        "num_native": counts[ChunkKind.NATIVE],
        "num_virtual": counts[ChunkKind.VIRTUAL],
        "chunks": [_describe_ref(table, row) for row in range(min(len(table), max_rows))],
        "chunks_left_out": max(len(table) - max_rows, 0),
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


def _describe_log(data: bytes | bytearray | memoryview, max_rows: int) -> Description:
    log = decode_transaction_log(data)
    return {
        "id": str(log.id),
        **{name: [str(node) for node in log.nodes(name)] for name in ID_LISTS},
        "updated_chunks": [
            {
                "node_id": str(node),
                "num_chunks": len(coordinates),
                "chunks": coordinates[:max_rows].tolist(),
                "chunks_left_out": max(len(coordinates) - max_rows, 0),
            }
            for node, coordinates in log.updated_chunks.items()
        ],
        "moved_nodes": [
            {
                "from": move.source,
                "to": move.target,
                "node_id": str(move.node),
                "node_type": "array" if move.is_array else "group",
            }
            for move in log.moves
        ],
    }


# -- the repo object -----------------------------------------------------------------------


def _describe_repo(data: bytes | bytearray | memoryview) -> Description:
    repo = decode_repo_info(data)
    described: Description = {
        "spec_version": "2.0",
        "branches": {name: str(snapshot) for name, snapshot in repo.branches.items()},
        "tags": {name: str(snapshot) for name, snapshot in repo.tags.items()},
        "deleted_tags": list(repo.deleted_tags),
        "snapshots": [
            _describe_entry(repo.snapshots.entry(row)) for row in range(len(repo.snapshots))
        ],
        "status": _describe_status(repo.status),
        "metadata": dict(repo.metadata),
        "latest_updates": [_describe_update(entry) for entry in repo.updates.entries()],
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


def _describe_entry(entry: SnapshotEntry) -> Description:
    parent = {} if entry.parent is None else {"parent_id": str(entry.parent)}
    described = {
        "id": str(entry.id),
        **parent,
        "flushed_at": _time(entry.flushed_at),
        "message": entry.message,
        "metadata": dict(entry.metadata),
    }
    if entry.pruned_ancestors:
        described["pruned_ancestor_tx_logs"] = [str(one) for one in entry.pruned_ancestors]
    return described


def _describe_status(status: Status) -> Description:
    known = status.availability < len(_AVAILABILITY)
    reason = {} if status.reason is None else {"limited_availability_reason": status.reason}
    return {
        "availability": _AVAILABILITY[status.availability] if known else status.availability,
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
