"""Describe decoded files in the words that the reference uses in `expected.json`."""

from datetime import UTC, datetime
from typing import Any

import numpy as np

from icefloe.format.chunk_table import ChunkKind, ChunkTable
from icefloe.format.envelope import open_envelope
from icefloe.format.ids import ManifestId, NodeId
from icefloe.format.manifest import ManifestFile
from icefloe.format.nodes import ArrayInfo, ArrayNode, Node
from icefloe.format.repo_info import RepoInfo
from icefloe.format.snapshot import Snapshot
from icefloe.format.snapshot_table import SnapshotEntry
from icefloe.format.transaction_log import ID_LISTS, TransactionLog
from icefloe.format.update_table import UpdateEntry, UpdateKind
from tests.unit.format import oracle
from tests.unit.format.samples import expanded

AVAILABILITIES = ("Online", "ReadOnly", "Offline")


def moment(micros: int) -> str:
    """Write a time as the reference does: with three or six digits, or none."""
    when = datetime.fromtimestamp(micros // 10**6, UTC).replace(tzinfo=None)
    rest = micros % 10**6
    digits = f".{rest:06d}" if rest % 1000 else f".{rest // 1000:03d}" if rest else ""
    return f"{when.isoformat()}{digits}Z"


def header(data: bytes) -> dict[str, Any]:
    envelope = open_envelope(data)
    name, _, version = envelope.writer.partition("-")
    return {
        "app_name": name,
        "app_version": version,
        "compression": "zstd",
        "file_type": envelope.file_type.attribute,
        "spec_version": f"{envelope.spec_version}.0",
        "written_by": envelope.writer,
    }


def snapshot(found: Snapshot, data: bytes) -> dict[str, Any]:
    files = found.manifests
    return {
        "commit_message": found.message,
        "flushed_at": moment(found.flushed_at),
        "header": header(data),
        "id": str(found.id),
        "manifests": [
            {
                "id": str(ManifestId(files.ids[row].tobytes())),
                "num_chunk_refs": int(files.num_chunk_refs[row]),
                "size_bytes": int(files.sizes_bytes[row]),
            }
            for row in range(len(files))
        ],
        "metadata": dict(found.metadata),
        "nodes": [_node(one) for one in oracle.node_list(found.nodes)],
    }


def _node(found: Node) -> dict[str, Any]:
    described: dict[str, Any] = {"id": str(found.id), "path": found.path}
    if not isinstance(found, ArrayNode):
        return described | {"node_type": "group"}
    return described | {
        "node_type": "array",
        "manifest_refs": [
            {"id": str(ref.id), "extents": [list(pair) for pair in ref.extents]}
            for ref in found.array.manifests
        ],
        "shape": _shape(found.array),
    }


def _shape(array: ArrayInfo) -> list[dict[str, Any]]:
    names = array.dimension_names or (None,) * len(array.shape)
    return [
        {"array_length": length, "num_chunks": count} | ({} if name is None else {"name": name})
        for length, count, name in zip(array.shape, array.num_chunks, names, strict=True)
    ]


def manifest(found: ManifestFile, data: bytes) -> dict[str, Any]:
    arrays = [_array(node, table) for node, table in found.tables().items()]
    buffer = expanded(data)
    dictionary, compressed = oracle.dictionary(buffer), oracle.compressed_references(buffer)
    compression: dict[str, Any] = {
        "num_compressed_refs": compressed,
        "uses_location_compression": dictionary is not None,
    }
    if dictionary is not None:
        compression["dictionary_size_bytes"] = len(dictionary)
    return {
        "arrays": arrays,
        "compression": compression,
        "header": header(data),
        "id": str(found.id),
        "num_arrays": len(arrays),
        "size_bytes": found.size_bytes,
        "total_chunk_refs": found.num_chunk_refs,
        **{
            f"total_{kind}": sum(array[f"num_{kind}"] for array in arrays)
            for kind in ("inline", "native", "virtual")
        },
    }


def _array(node: NodeId, table: ChunkTable) -> dict[str, Any]:
    return {
        "node_id": str(node),
        "num_chunk_refs": len(table),
        "num_inline": int((table.kinds == ChunkKind.INLINE).sum()),
        "num_native": int((table.kinds == ChunkKind.NATIVE).sum()),
        "num_virtual": int((table.kinds == ChunkKind.VIRTUAL).sum()),
    }


def transaction_log(found: TransactionLog, data: bytes) -> dict[str, Any]:
    return {
        "header": header(data),
        **{name: [str(one) for one in found.nodes(name)] for name in ID_LISTS},
        "updated_chunks": [
            {"node_id": str(node), "chunks": np.asarray(chunks).tolist()}
            for node, chunks in found.updated_chunks.items()
        ],
        "moved_nodes": [{"from": move.source, "to": move.target} for move in found.moves],
    }


def repo_info(found: RepoInfo, data: bytes) -> dict[str, Any]:
    described: dict[str, Any] = {
        "branches": {name: str(one) for name, one in found.branches.items()},
        "deleted_tags": [*found.deleted_tags],
        "header": header(data),
        "latest_updates": [_update(entry) for entry in found.updates.entries()],
        "metadata": dict(found.metadata),
        "snapshots": [
            _snapshot_entry(found.snapshots.entry(row)) for row in range(len(found.snapshots))
        ],
        "spec_version": "2.0",
        "tags": {name: str(one) for name, one in found.tags.items()},
    }
    if found.repo_before_updates is not None:
        described["repo_before_updates"] = found.repo_before_updates
    return described


def _snapshot_entry(entry: SnapshotEntry) -> dict[str, Any]:
    parent = {} if entry.parent is None else {"parent_id": str(entry.parent)}
    return {
        "flushed_at": moment(entry.flushed_at),
        "id": str(entry.id),
        "message": entry.message,
        "metadata": dict(entry.metadata),
    } | parent


def _update(entry: UpdateEntry) -> dict[str, Any]:
    backup = {} if entry.backup_path is None else {"backup_path": entry.backup_path}
    return {
        "update_type": _update_type(entry),
        "updated_at": moment(entry.updated_at),
    } | backup


def update_name(kind: UpdateKind) -> str:
    return "".join(part.capitalize() for part in kind.name.split("_")).replace("Gc", "GC")


def _update_type(entry: UpdateEntry) -> dict[str, Any]:
    described: dict[str, Any] = {"type": f"{update_name(entry.kind)}Update"}
    if entry.name is not None:
        is_commit = entry.kind in {UpdateKind.NEW_COMMIT, UpdateKind.COMMIT_AMENDED}
        described["branch" if is_commit else "name"] = entry.name
    if entry.previous is not None:
        described["previous_snap_id"] = str(entry.previous)
    if entry.new is not None:
        described["new_snap_id"] = str(entry.new)
    first, second, _ = entry.numbers
    if entry.kind is UpdateKind.REPO_MIGRATED:
        described |= {"from_version": f"{first}.0", "to_version": f"{second}.0"}
    if entry.kind is UpdateKind.FEATURE_FLAG_CHANGED:
        # The reference names this one without the suffix.
        described |= {"type": "FeatureFlagChanged", "id": first, "new_value": bool(second)}
    if entry.status is not None:
        described["status"] = {
            "availability": AVAILABILITIES[entry.status.availability],
            "limited_availability_reason": entry.status.reason,
            "set_at": moment(entry.status.set_at),
        }
    return described
