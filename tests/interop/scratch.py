"""Repositories written by our encoders alone, from what zarr puts into a plain dict."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from icefloe.format.chunk_table import ChunkTable, concat_tables
from icefloe.format.columns import BytesColumn
from icefloe.format.ids import INITIAL_SNAPSHOT_ID, ChunkId, ManifestId, NodeId, SnapshotId, id_rows
from icefloe.format.layout import (
    REPO_KEY,
    branch_key,
    chunk_key,
    manifest_key,
    snapshot_key,
    tag_key,
    transaction_log_key,
)
from icefloe.format.locations import LocationCompression
from icefloe.format.manifest import encode_manifest
from icefloe.format.metadata import Metadata
from icefloe.format.nodes import ArrayInfo, ArrayNode, ManifestRef, NodeTable, node_of
from icefloe.format.repo_info import RepoInfo, encode_repo_info
from icefloe.format.snapshot import ManifestFiles, Snapshot, encode_snapshot
from icefloe.format.snapshot_table import SnapshotEntry, SnapshotTable
from icefloe.format.transaction_log import TransactionLog, encode_transaction_log
from icefloe.format.update_table import UpdateEntry, UpdateKind, UpdateTable

START = 1_600_000_000_000_000
"""Microseconds since 1970: when the first snapshot of such a repository was made."""

type Tables = Mapping[str, ChunkTable]
"""References by path of their array."""


@dataclass
class Writer:
    """Writes one repository of either spec version; each commit replaces all nodes."""

    path: Path
    spec: int = 2
    compression: LocationCompression | None = None
    entries: list[SnapshotEntry] = field(default_factory=list)
    updates: list[UpdateEntry] = field(default_factory=list)
    tags: dict[str, SnapshotId] = field(default_factory=dict)
    nodes: dict[str, NodeId] = field(default_factory=dict)

    def __post_init__(self) -> None:
        snapshot = Snapshot(
            INITIAL_SNAPSHOT_ID,
            START,
            "Repository initialized",
            metadata={"__icechunk": {"is_root": True}},
            spec_version=self.spec,
        )
        self._put(snapshot_key(snapshot.id), encode_snapshot(snapshot))
        if self.spec > 1:
            log = encode_transaction_log(TransactionLog(INITIAL_SNAPSHOT_ID))
            self._put(transaction_log_key(snapshot.id), log)
        self._link(snapshot, None, UpdateEntry(UpdateKind.REPO_INITIALIZED, START))

    def commit(
        self,
        message: str,
        zarr_json: Mapping[str, bytes],
        tables: Tables,
        metadata: Metadata | None = None,
    ) -> SnapshotId:
        """Store nodes, given by path, and one manifest with all of their references."""
        new = [path for path in zarr_json if path not in self.nodes]
        self.nodes |= {path: NodeId.random() for path in new}
        parent = self.entries[-1].id
        manifest = ManifestId.random()
        stored = {path: table for path, table in tables.items() if len(table)}
        data = encode_manifest(
            manifest,
            {self.nodes[path]: table for path, table in stored.items()},
            spec_version=self.spec,
            location_compression=self.compression,
        )
        files = [(manifest, len(data), sum(map(len, stored.values())))] if stored else []
        if stored:
            self._put(manifest_key(manifest), data)
        nodes = [
            node_of(self.nodes[path], path, text, _array_info(text, manifest, stored.get(path)))
            for path, text in zarr_json.items()
        ]
        snapshot = Snapshot(
            SnapshotId.random(),
            START + 1_000_000 * len(self.entries),
            message,
            NodeTable.from_nodes(nodes),
            ManifestFiles.from_list(files),
            metadata or {},
            parent if self.spec == 1 else None,
            self.spec,
        )
        self._put(snapshot_key(snapshot.id), encode_snapshot(snapshot))
        is_array = {node.path: isinstance(node, ArrayNode) for node in nodes}
        old = [self.nodes[p] for p in zarr_json if p not in new]
        log = TransactionLog(
            snapshot.id,
            new_groups=id_rows(NodeId, [self.nodes[p] for p in new if not is_array[p]]),
            new_arrays=id_rows(NodeId, [self.nodes[p] for p in new if is_array[p]]),
            updated_arrays=id_rows(
                NodeId, [n.id for n in nodes if n.id in old and is_array[n.path]]
            ),
            updated_chunks={self.nodes[path]: t.coordinates for path, t in stored.items()},
        )
        encoded = encode_transaction_log(log, spec_version=self.spec)
        self._put(transaction_log_key(snapshot.id), encoded)
        update = UpdateEntry(
            UpdateKind.NEW_COMMIT, snapshot.flushed_at + 5, name="main", new=snapshot.id
        )
        self._link(snapshot, parent, update)
        return snapshot.id

    def tag(self, name: str, snapshot: SnapshotId) -> None:
        """Name a snapshot."""
        self.tags[name] = snapshot
        if self.spec == 1:
            self._put(tag_key(name), _ref_json(snapshot))
        else:
            moment = self.updates[0].updated_at + 1
            self._record(UpdateEntry(UpdateKind.TAG_CREATED, moment, name=name))

    def put_chunk(self, data: bytes) -> ChunkId:
        """Store a chunk object."""
        chunk = ChunkId.random()
        self._put(chunk_key(chunk), data)
        return chunk

    def _link(self, snapshot: Snapshot, parent: SnapshotId | None, update: UpdateEntry) -> None:
        self.entries.append(
            SnapshotEntry(
                snapshot.id, parent, snapshot.flushed_at, snapshot.message, snapshot.metadata
            )
        )
        if self.spec == 1:
            self._put(branch_key("main"), _ref_json(snapshot.id))
        else:
            self._record(update)

    def _record(self, update: UpdateEntry) -> None:
        self.updates.insert(0, update)
        info = RepoInfo(
            {"main": self.entries[-1].id},
            SnapshotTable.from_entries(self.entries),
            UpdateTable.from_entries(self.updates),
            self.tags,
        )
        self._put(REPO_KEY, encode_repo_info(info))

    def _put(self, key: str, data: bytes) -> None:
        file = self.path / key
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)


def _ref_json(snapshot: SnapshotId) -> bytes:
    return json.dumps({"snapshot": str(snapshot)}, separators=(",", ":")).encode()


def _array_info(text: bytes, manifest: ManifestId, table: ChunkTable | None) -> ArrayInfo | None:
    about = json.loads(text)
    if about["node_type"] == "group":
        return None
    shape = tuple(about["shape"])
    chunks = about["chunk_grid"]["configuration"]["chunk_shape"]
    names = about.get("dimension_names")
    refs: tuple[ManifestRef, ...] = ()
    if table is not None:
        refs = (ManifestRef(manifest, tuple((int(a), int(b)) for a, b in table.extents())),)
    return ArrayInfo(
        shape,
        tuple(-(-n // c) if c else 0 for n, c in zip(shape, chunks, strict=True)),
        None if names is None else tuple(names),
        refs,
    )


def tables_of(
    stored: Mapping[str, Any], writer: Writer, inline_up_to: int = 64
) -> tuple[dict[str, bytes], dict[str, ChunkTable]]:
    """Turn the keys of a zarr store into nodes and references.

    Small chunks are kept inline; the others of an array are packed into one chunk object.
    """
    zarr_json: dict[str, bytes] = {}
    chunks: dict[str, dict[tuple[int, ...], bytes]] = {}
    for key, buffer in stored.items():
        if key.endswith("zarr.json"):
            zarr_json["/" + key.removesuffix("zarr.json").rstrip("/")] = buffer.to_bytes()
        else:
            path, _, index = f"/{key}/".partition("/c/")
            place = tuple(int(i) for i in index.split("/") if i)
            chunks.setdefault(path, {})[place] = buffer.to_bytes()
    tables = {}
    for path, of_array in chunks.items():
        small = {c: data for c, data in of_array.items() if len(data) <= inline_up_to}
        large = {c: data for c, data in of_array.items() if len(data) > inline_up_to}
        parts = []
        if small:
            column = BytesColumn.from_list(list(small.values()))
            parts.append(ChunkTable.inlined(_matrix(small), column))
        if large:
            lengths = np.array([len(data) for data in large.values()], np.uint64)
            pack = writer.put_chunk(b"".join(large.values()))
            parts.append(
                ChunkTable.native(
                    _matrix(large),
                    id_rows(ChunkId, [pack]),
                    lengths,
                    (np.cumsum(lengths) - lengths).astype(np.uint64),
                    np.zeros(len(large), np.uint32),
                )
            )
        tables[path] = concat_tables(parts)
    return zarr_json, tables


def _matrix(chunks: Mapping[tuple[int, ...], bytes]) -> np.ndarray[Any, np.dtype[np.uint32]]:
    return np.array(list(chunks), np.uint32).reshape(len(chunks), -1)
