"""What we decode from files, held against what the reference says about the same repository."""

import datetime as dt
from typing import Any

import icechunk as ic
import numpy as np

from icefloe.format.chunk_table import (
    ChunkKind,
    ChunkRef,
    ChunkTable,
    Coordinates,
    InlineChunk,
    NativeChunk,
    VirtualChunk,
)
from icefloe.format.config_file import decode_config_flexbuffer
from icefloe.format.ids import ManifestId, NodeId, ids_of_rows
from icefloe.format.layout import chunk_key
from icefloe.format.manifest import ManifestFile
from icefloe.format.nodes import ArrayNode, ManifestRef, Node
from icefloe.format.repo_info import RepoInfo
from icefloe.format.snapshot import Snapshot
from icefloe.format.transaction_log import ID_LISTS, Move, TransactionLog
from icefloe.format.update_table import Status, UpdateEntry, UpdateKind
from icefloe.records import replace
from tests.interop.observing import contents, listed_snapshots, operations
from tests.interop.reference import RAW, Place
from tests.interop.rewriting import Decoded, decode_all


def assert_agreement(place: Place) -> Decoded:
    """Decode every file of a repository, and compare all of it with the reference's account."""
    repo = place.open()
    decoded = decode_all(place.path)
    snapshots = listed_snapshots(repo)
    for one in snapshots:
        snapshot = decoded.snapshots[one]
        assert describe_snapshot(snapshot) == _plain(repo.inspect_snapshot(one))
        _check_contents(place, decoded, snapshot, repo)
    for manifest in decoded.manifests.values():
        assert describe_manifest(manifest) == _manifest(repo.inspect_manifest(str(manifest.id)))
    for name, log in decoded.logs.items():
        assert str(log.id) == name
        theirs = _plain(repo.inspect_transaction_log(name))
        if "synthetic_composite" in theirs:  # one account of several logs
            del theirs["synthetic_composite"]
            assert describe_log(_united(decoded, log)) == theirs
        else:
            assert describe_log(log) == theirs
    if decoded.repo is not None:
        _check_repo_info(repo, decoded)
    else:
        _check_parents(repo, decoded, snapshots)
    return decoded


# -- descriptions of ours in the words of the reference ------------------------------------


def describe_snapshot(snapshot: Snapshot) -> dict[str, Any]:
    nodes = [snapshot.nodes.node(row) for row in range(len(snapshot.nodes))]
    files = snapshot.manifests
    return {
        "id": str(snapshot.id),
        "flushed_at": snapshot.flushed_at,
        "commit_message": snapshot.message,
        "metadata": snapshot.metadata,
        "manifests": [
            {"id": str(one), "size_bytes": size, "num_chunk_refs": refs}
            for one, size, refs in zip(
                ids_of_rows(ManifestId, files.ids),
                files.sizes_bytes.tolist(),
                files.num_chunk_refs.tolist(),
                strict=True,
            )
        ],
        "nodes": [_describe_node(node) for node in nodes],
    }


def _describe_node(node: Node) -> dict[str, Any]:
    about: dict[str, Any] = {"id": str(node.id), "path": node.path, "node_type": "group"}
    if not isinstance(node, ArrayNode):
        return about
    array = node.array
    names = array.dimension_names or (None,) * len(array.shape)
    return about | {
        "node_type": "array",
        "shape": [
            {"array_length": length, "num_chunks": chunks}
            | ({} if name is None else {"name": name})
            for length, chunks, name in zip(array.shape, array.num_chunks, names, strict=True)
        ],
        "manifest_refs": [
            {"id": str(ref.id), "extents": [list(extent) for extent in ref.extents]}
            for ref in array.manifests
        ],
    }


def describe_manifest(manifest: ManifestFile) -> dict[str, Any]:
    arrays = []
    totals = dict.fromkeys(("total_chunk_refs", "total_inline", "total_native", "total_virtual"), 0)
    for node, table in manifest.tables().items():
        numbers = {kind: int((table.kinds == kind).sum()) for kind in ChunkKind}
        arrays.append(
            {
                "node_id": str(node),
                "num_chunk_refs": len(table),
                "num_inline": numbers[ChunkKind.INLINE],
                "num_native": numbers[ChunkKind.NATIVE],
                "num_virtual": numbers[ChunkKind.VIRTUAL],
            }
        )
        totals["total_chunk_refs"] += len(table)
        for kind, number in numbers.items():
            totals[f"total_{kind.name.lower()}"] += number
    return totals | {
        "id": str(manifest.id),
        "arrays": arrays,
        "num_arrays": len(manifest.nodes),
        "size_bytes": manifest.size_bytes,
    }


def describe_log(log: TransactionLog) -> dict[str, Any]:
    lists: dict[str, Any] = {name: [str(one) for one in log.nodes(name)] for name in ID_LISTS}
    return lists | {
        "updated_chunks": [
            {"node_id": str(node), "chunks": coordinates.tolist()}
            for node, coordinates in log.updated_chunks.items()
        ],
        "moved_nodes": [{"from": move.source, "to": move.target} for move in log.moves],
    }


def describe_info(info: RepoInfo) -> dict[str, Any]:
    entries = [info.snapshots.entry(row) for row in range(len(info.snapshots))]
    return {
        "spec_version": "2.0",
        "branches": {name: str(one) for name, one in info.branches.items()},
        "tags": {name: str(one) for name, one in info.tags.items()},
        "deleted_tags": list(info.deleted_tags),
        "metadata": info.metadata,
        "snapshots": [
            {
                "id": str(entry.id),
                "flushed_at": entry.flushed_at,
                "message": entry.message,
                "metadata": entry.metadata,
            }
            | ({} if entry.parent is None else {"parent_id": str(entry.parent)})
            for entry in entries
        ],
    }


_OPERATIONS = {
    UpdateKind.REPO_INITIALIZED: "RepoInitialized",
    UpdateKind.REPO_MIGRATED: "RepoMigrated",
    UpdateKind.CONFIG_CHANGED: "ConfigChanged",
    UpdateKind.METADATA_CHANGED: "MetadataChanged",
    UpdateKind.TAG_CREATED: "TagCreated",
    UpdateKind.TAG_DELETED: "TagDeleted",
    UpdateKind.BRANCH_CREATED: "BranchCreated",
    UpdateKind.BRANCH_DELETED: "BranchDeleted",
    UpdateKind.BRANCH_RESET: "BranchReset",
    UpdateKind.NEW_COMMIT: "NewCommit",
    UpdateKind.COMMIT_AMENDED: "CommitAmended",
    UpdateKind.NEW_DETACHED_SNAPSHOT: "NewDetachedSnapshot",
    UpdateKind.GC_RAN: "GCRan",
    UpdateKind.EXPIRATION_RAN: "ExpirationRan",
    UpdateKind.FEATURE_FLAG_CHANGED: "FeatureFlagChanged",
    UpdateKind.REPO_STATUS_CHANGED: "RepoStatusChanged",
}


def describe_operation(entry: UpdateEntry) -> tuple[Any, dt.datetime, str | None]:
    fields: dict[str, Any] = {}
    match entry.kind:
        case UpdateKind.REPO_MIGRATED:
            fields = {"from_version": entry.numbers[0], "to_version": entry.numbers[1]}
        case UpdateKind.FEATURE_FLAG_CHANGED:
            flag, value, is_set = entry.numbers
            fields = {"id": flag, "new_value": bool(value) if is_set else None}
        case UpdateKind.REPO_STATUS_CHANGED:
            assert entry.status is not None
            fields = {"status": ("RepoStatus", _describe_status(entry.status))}
        case UpdateKind.NEW_COMMIT | UpdateKind.COMMIT_AMENDED:
            fields["branch"] = entry.name
        case _ if entry.name is not None:
            fields["name"] = entry.name
    if entry.previous is not None:
        fields["previous_snap_id"] = str(entry.previous)
    if entry.new is not None:
        fields["new_snap_id"] = str(entry.new)
    name = _OPERATIONS[entry.kind]
    kind = (name, fields) if fields else f"icechunk.ops.UpdateType.{name}()"
    return kind, _moment(entry.updated_at), entry.backup_path


def _describe_status(status: Status) -> dict[str, Any]:
    names = ("online", "read_only", "offline")
    return {
        "availability": f"RepoAvailability.{names[status.availability]}",
        "limited_availability_reason": status.reason,
        "set_at": _moment(status.set_at),
    }


# -- accounts of the reference -------------------------------------------------------------


def _plain(inspected: dict[str, Any]) -> dict[str, Any]:
    """Drop the header; turn the text of times into microseconds."""
    assert inspected["header"]["compression"] == "zstd"
    about = {key: value for key, value in inspected.items() if key != "header"}
    if "flushed_at" in about:
        about["flushed_at"] = _micros(about["flushed_at"])
    return about


def _manifest(inspected: dict[str, Any]) -> dict[str, Any]:
    about = _plain(inspected)
    del about["compression"]
    return about


def _micros(text: str) -> int:
    since = dt.datetime.fromisoformat(text) - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    return since // dt.timedelta(microseconds=1)


def _moment(micros: int) -> dt.datetime:
    return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=micros)


# -- comparisons ---------------------------------------------------------------------------


def _check_repo_info(repo: ic.Repository, decoded: Decoded) -> None:
    info = decoded.repo
    assert info is not None
    theirs = _plain(repo.inspect_repo_info())
    for snapshot in theirs["snapshots"]:
        snapshot["flushed_at"] = _micros(snapshot["flushed_at"])
    ours = describe_info(info)
    assert {key: theirs[key] for key in ours} == ours
    assert dict(info.metadata) == repo.get_metadata()
    for name, tip in info.branches.items():
        rows = info.snapshots.ancestry(tip)
        history = [one.id for one in repo.ancestry(branch=name)]
        assert [str(info.snapshots.id(row)) for row in rows] == history
    flags = {flag.id: flag.setting for flag in repo.feature_flags()}
    assert {one for one, on in flags.items() if on is True} == set(info.enabled_flags or ())
    assert {one for one, on in flags.items() if on is False} == set(info.disabled_flags or ())
    status = repo.get_status()
    assert _describe_status(info.status) == {
        "availability": str(status.availability),
        "limited_availability_reason": status.limited_availability_reason,
        "set_at": status.set_at,
    }
    assert [describe_operation(entry) for entry in full_log(decoded)] == operations(repo)
    if info.config is not None:
        decode_config_flexbuffer(info.config)


def full_log(decoded: Decoded) -> list[UpdateEntry]:
    """Follow the log of operations through the backups of the repo object."""
    info, name = decoded.repo, None
    entries: list[UpdateEntry] = []
    while info is not None:
        newest, *older = info.updates.entries()
        # The newest entry of a backup was written before the backup had a name.
        entries += [replace(newest, backup_path=name), *older]
        name = info.repo_before_updates
        info = decoded.backups.get(name or "")
    return entries


def _united(decoded: Decoded, log: TransactionLog) -> TransactionLog:
    """Unite a log with those of the ancestors that expiration took out before it."""
    assert decoded.repo is not None
    row = decoded.repo.snapshots.row_of(log.id)
    assert row is not None
    pruned = decoded.repo.snapshots.entry(row).pruned_ancestors
    logs = [*(decoded.logs[str(one)] for one in pruned), log]
    chunks: dict[NodeId, Coordinates] = {}
    moves: dict[NodeId, Move] = {}
    for one in logs:
        for move in one.moves:
            moves[move.node] = replace(move, source=moves.get(move.node, move).source)
        for node, coordinates in one.updated_chunks.items():
            both = np.concatenate([chunks.get(node, coordinates[:0]), coordinates])
            chunks[node] = np.unique(both, axis=0)
    lists = {
        name: np.unique(np.concatenate([getattr(one, name) for one in logs]), axis=0)
        for name in ID_LISTS
    }
    ordered = sorted(moves.values(), key=lambda move: move.target.split("/"))
    chunks = dict(sorted(chunks.items()))
    return TransactionLog(log.id, **lists, updated_chunks=chunks, moves=tuple(ordered))


def _check_parents(repo: ic.Repository, decoded: Decoded, snapshots: list[str]) -> None:
    for one in snapshots:
        parent = decoded.snapshots[one].parent_id
        history = [info.id for info in repo.ancestry(snapshot_id=one)]
        assert [str(parent)] == history[1:2] if parent is not None else len(history) == 1


def _check_contents(
    place: Place, decoded: Decoded, snapshot: Snapshot, repo: ic.Repository
) -> None:
    """Compare nodes and chunks of a snapshot, found by us, with what a session reads."""
    session = repo.readonly_session(snapshot_id=str(snapshot.id))
    theirs = contents(session)
    locations = []
    for row in range(len(snapshot.nodes)):
        node = snapshot.nodes.node(row)
        path = node.path.lstrip("/")
        assert theirs["bytes"][f"{path}/zarr.json".lstrip("/")] == node.user_data
        if not isinstance(node, ArrayNode):
            continue
        tables = [_in_extents(decoded, node.id, ref) for ref in node.array.manifests]
        ours = sorted(tuple(c) for table in tables for c in table.coordinates.tolist())
        assert ours == theirs["coordinates"][path]
        for number, (coordinates, kind) in enumerate(theirs["kinds"][path].items()):
            ref = next(found for table in tables if (found := table.find(coordinates)))
            assert _kind(ref) == kind
            if number % 40 == 0:
                assert _find(decoded, node, coordinates) == ref
            key = "/".join([path, "c", *map(str, coordinates)])
            if key in theirs["bytes"]:
                _check_chunk(place, ref, theirs["bytes"][key])
        for table in tables:
            virtual = table.targets[table.kinds == ChunkKind.VIRTUAL]
            locations += table.locations.take(virtual).to_strings()
    resolved = sorted(text.replace("vcc://data/", place.container) for text in locations)
    assert resolved == theirs["locations"]


def _in_extents(decoded: Decoded, node: NodeId, ref: ManifestRef) -> ChunkTable:
    table = decoded.manifests[str(ref.id)].table(node)
    return table.within(np.array(ref.extents, np.uint32).reshape(-1, 2))


def _find(decoded: Decoded, node: Node, coordinates: tuple[int, ...]) -> ChunkRef:
    """Look up a chunk as a reader does: the first manifest whose box holds it."""
    assert isinstance(node, ArrayNode)
    for ref in node.array.manifests:
        inside = zip(coordinates, ref.extents, strict=False)
        if all(first <= index < last for index, (first, last) in inside):
            found = decoded.manifests[str(ref.id)].find(node.id, coordinates)
            assert found is not None
            return found
    raise AssertionError(f"no manifest for chunk {coordinates} of {node.path}")


def _kind(ref: ChunkRef) -> str:
    names = {NativeChunk: "native", VirtualChunk: "virtual", InlineChunk: "inline"}
    return f"ChunkType.{names[type(ref)]}"


def _check_chunk(place: Place, ref: ChunkRef, theirs: bytes | tuple[str, str]) -> None:
    match ref:
        case InlineChunk(data):
            assert theirs == data
        case NativeChunk(chunk, offset, length):
            stored = (place.path / chunk_key(chunk)).read_bytes()
            assert theirs == stored[offset : offset + length]
        case VirtualChunk(location, offset, length):
            if isinstance(theirs, bytes):
                assert location.endswith("raw.bin")
                assert theirs == RAW[offset : offset + length]
