"""Values of every kind that the format can store, made up from a seed."""

import random
from collections.abc import Sequence

import numpy as np

from icefloe.config import RepositoryConfig
from icefloe.format.chunk_table import ChunkTable, concat_tables
from icefloe.format.columns import BytesColumn
from icefloe.format.config_file import encode_config_flexbuffer
from icefloe.format.envelope import decompress, open_envelope
from icefloe.format.ids import INITIAL_SNAPSHOT_ID, ManifestId, NodeId, SnapshotId, id_rows
from icefloe.format.json_value import JsonValue
from icefloe.format.nodes import ArrayInfo, ArrayNode, GroupNode, ManifestRef, Node, NodeTable
from icefloe.format.repo_info import RepoInfo
from icefloe.format.snapshot import ManifestFiles, Snapshot
from icefloe.format.snapshot_table import SnapshotEntry, SnapshotTable
from icefloe.format.transaction_log import Move, TransactionLog
from icefloe.format.update_table import Status, UpdateEntry, UpdateKind, UpdateTable

_K = UpdateKind
NOW = 1_794_765_923_152_521


def node_id(number: int) -> NodeId:
    return NodeId(number.to_bytes(8, "big"))


def manifest_id(number: int) -> ManifestId:
    return ManifestId(number.to_bytes(12, "big"))


def snapshot_id(number: int) -> SnapshotId:
    return SnapshotId(number.to_bytes(12, "big"))


def expanded(data: bytes) -> bytes:
    """The buffer within a file."""
    return bytes(decompress(open_envelope(data).payload))


def grid(*sizes: int) -> np.ndarray[tuple[int, int], np.dtype[np.uint32]]:
    """All coordinates of a box, in order."""
    axes = np.meshgrid(*[np.arange(size) for size in sizes], indexing="ij")
    return np.stack([axis.ravel() for axis in axes], axis=1).astype(np.uint32)


def virtual_table(rows: int = 40, files: int = 7, *, checksums: bool = True) -> ChunkTable:
    """References into a few files, with every kind of checksum."""
    numbers = np.arange(rows)
    etag_rows = np.where(numbers % 3 == 1, numbers % 2, -1).astype(np.int32)
    modified = np.where(numbers % 3 == 2, 1_700_000_000 + numbers, 0).astype(np.uint32)
    return ChunkTable.virtual(
        grid(rows, 1),
        BytesColumn.from_strings([f"s3://bucket/year={2000 + n}/part é.nc" for n in range(files)]),
        (numbers * 400).astype(np.uint64),
        np.full(rows, 400, np.uint64),
        targets=(numbers % files).astype(np.uint32),
        etags=BytesColumn.from_strings(['"abc"', ""]) if checksums else None,
        etag_rows=etag_rows if checksums else None,
        last_modified=modified if checksums else None,
    )


def native_table(coordinates: np.ndarray[tuple[int, int], np.dtype[np.uint32]]) -> ChunkTable:
    rows = len(coordinates)
    ids = np.frombuffer(random.Random(rows).randbytes(12 * rows), np.uint8).reshape(-1, 12)
    lengths = np.arange(1, rows + 1).astype(np.uint64)
    return ChunkTable.native(coordinates, ids, lengths, offsets=lengths * 7)


def inline_table(
    coordinates: np.ndarray[tuple[int, int], np.dtype[np.uint32]], rows: Sequence[bytes]
) -> ChunkTable:
    return ChunkTable.inlined(coordinates, BytesColumn.from_list(rows))


def mixed_table() -> ChunkTable:
    """All three kinds interleaved in one array."""
    every = grid(5, 6)
    order = np.arange(30) % 3
    virtual = ChunkTable.virtual(
        every[order == 0],
        BytesColumn.from_strings(["s3://b/x.nc", "s3://b/y.nc"]),
        np.arange(10, dtype=np.uint64),
        np.arange(1, 11, dtype=np.uint64),
        targets=(np.arange(10) % 2).astype(np.uint32),
        etags=BytesColumn.from_strings(["tag"]),
        etag_rows=np.array([0, -1] * 5, np.int32),
    )
    inline = inline_table(every[order == 2], [bytes([n]) * n for n in range(1, 11)])
    return concat_tables([virtual, native_table(every[order == 1]), inline])


def manifest_tables() -> dict[NodeId, ChunkTable]:
    """Arrays of every kind, one of them without dimensions."""
    scalar = np.empty((1, 0), np.uint32)
    return {
        node_id(1): mixed_table(),
        node_id(2): virtual_table(),
        node_id(3): native_table(grid(2, 3, 2)),
        node_id(4): inline_table(scalar, [b"\0" * 8]),
        node_id(5): virtual_table(600, 600, checksums=False),
        node_id(6): ChunkTable.empty(2),
    }


def nodes() -> list[Node]:
    refs = (
        ManifestRef(manifest_id(7), ()),
        ManifestRef(manifest_id(9), ((0, 3), (0, 2))),
        ManifestRef(manifest_id(8), ((3, 5), (0, 2))),
    )
    return [
        GroupNode(node_id(1), "/", b'{"node_type":"group"}'),
        ArrayNode(
            node_id(2), "/a", b'{"shape":[5,2]}', ArrayInfo((10, 2), (5, 2), ("y", None), refs[1:])
        ),
        ArrayNode(node_id(3), "/a b", b"{ }", ArrayInfo((), (), None, refs[:1])),
        GroupNode(node_id(5), "/z", b"x" * 300),
        ArrayNode(node_id(4), "/é", b"", ArrayInfo((0, 4), (0, 2), (None, "y"))),
    ]


METADATA: dict[str, JsonValue] = {
    "author": "golden",
    "list": [1, 2.5, None],
    "map": {"k": True},
    "é": "é",
}


def snapshot(spec_version: int) -> Snapshot:
    return Snapshot(
        snapshot_id(77),
        NOW,
        "message é",
        NodeTable.from_nodes(nodes()),
        ManifestFiles.from_list([(manifest_id(9), 1000, 10), (manifest_id(8), 2**33, 0)]),
        dict(METADATA),
        INITIAL_SNAPSHOT_ID if spec_version == 1 else None,
        spec_version,
    )


def transaction_log() -> TransactionLog:
    return TransactionLog(
        snapshot_id(77),
        new_groups=id_rows(NodeId, [node_id(1), node_id(9)]),
        new_arrays=id_rows(NodeId, [node_id(2)]),
        deleted_groups=id_rows(NodeId, [node_id(3)]),
        deleted_arrays=id_rows(NodeId, [node_id(n) for n in range(20, 40)]),
        updated_arrays=id_rows(NodeId, [node_id(5)]),
        updated_groups=id_rows(NodeId, [node_id(6)]),
        updated_chunks={
            node_id(2): grid(3, 4),
            node_id(5): np.empty((1, 0), np.uint32),
            node_id(7): grid(700),
        },
        moves=(
            Move("/a", "/h/a", node_id(5), is_array=True),
            Move("/b", "/h/a/é", node_id(6), is_array=False),
            Move("/c", "/h/a-b", node_id(7), is_array=True),
        ),
    )


def update_entry(kind: UpdateKind, number: int) -> UpdateEntry:
    """One entry with everything set that its kind can hold."""
    has_name = kind in {
        _K.TAG_CREATED, _K.TAG_DELETED, _K.BRANCH_CREATED, _K.BRANCH_DELETED, _K.BRANCH_RESET,
        _K.NEW_COMMIT, _K.COMMIT_AMENDED,
    }  # fmt: skip
    has_previous = kind in {_K.TAG_DELETED, _K.BRANCH_DELETED, _K.BRANCH_RESET, _K.COMMIT_AMENDED}
    has_new = kind in {_K.NEW_COMMIT, _K.COMMIT_AMENDED, _K.NEW_DETACHED_SNAPSHOT}
    numbers = {_K.REPO_MIGRATED: (1, 2, 0), _K.FEATURE_FLAG_CHANGED: (300, 1, 1)}
    return UpdateEntry(
        kind,
        NOW - number,
        None if number == 0 else f"repo.{number}",
        f"name é {number}" if has_name else None,
        snapshot_id(100 + number) if has_previous else None,
        snapshot_id(200 + number) if has_new else None,
        numbers.get(kind, (0, 0, 0)),
        Status(1, NOW, "frozen é") if kind is _K.REPO_STATUS_CHANGED else None,
    )


def update_entries() -> list[UpdateEntry]:
    return [update_entry(kind, number) for number, kind in enumerate([*UpdateKind] * 2)]


def snapshot_entries() -> list[SnapshotEntry]:
    return [
        SnapshotEntry(INITIAL_SNAPSHOT_ID, None, NOW, "Repository initialized", {"__icechunk": {}}),
        SnapshotEntry(snapshot_id(5), INITIAL_SNAPSHOT_ID, NOW + 5, "five é", dict(METADATA)),
        SnapshotEntry(
            snapshot_id(3),
            snapshot_id(5),
            NOW + 9,
            "three",
            pruned_ancestors=(snapshot_id(8), snapshot_id(7)),
        ),
    ]


def repo_info() -> RepoInfo:
    return RepoInfo(
        {"main": snapshot_id(3), "dev": snapshot_id(5), "": INITIAL_SNAPSHOT_ID},
        SnapshotTable.from_entries(snapshot_entries()),
        UpdateTable.from_entries(update_entries()),
        tags={"v1": snapshot_id(5), "é": snapshot_id(3)},
        deleted_tags=("gone", "Z"),
        status=Status(1, NOW, "frozen"),
        metadata=dict(METADATA),
        repo_before_updates="repo.1",
        config=encode_config_flexbuffer(RepositoryConfig(inline_chunk_threshold_bytes=7)),
        enabled_flags=(3,),
        disabled_flags=(5, 4),
    )
