"""A small repository of spec 2, written with the format layer alone, for tests to break."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from icefloe.format.chunk_table import ChunkTable, Coordinates
from icefloe.format.columns import BytesColumn
from icefloe.format.ids import INITIAL_SNAPSHOT_ID, ChunkId, ManifestId, NodeId, SnapshotId, id_rows
from icefloe.format.layout import (
    REPO_KEY,
    backup_key,
    chunk_key,
    manifest_key,
    snapshot_key,
    transaction_log_key,
)
from icefloe.format.manifest import ManifestFile, encode_manifest
from icefloe.format.nodes import ArrayInfo, ArrayNode, GroupNode, ManifestRef, Node, NodeTable
from icefloe.format.repo_info import RepoInfo, decode_repo_info, encode_repo_info
from icefloe.format.snapshot import ManifestFiles, Snapshot, decode_snapshot, encode_snapshot
from icefloe.format.snapshot_table import SnapshotEntry, SnapshotTable
from icefloe.format.transaction_log import (
    TransactionLog,
    decode_transaction_log,
    encode_transaction_log,
)
from icefloe.format.update_table import UpdateEntry, UpdateKind, UpdateTable
from icefloe.records import replace

FIRST, SECOND = SnapshotId(b"snapshot one"), SnapshotId(b"snapshot two")
INLINE, NATIVE = ManifestId(b"manifest one"), ManifestId(b"manifest two")
CHUNK = ChunkId(b"packed chunk")
GROUP, ARRAY = NodeId(b"group 01"), NodeId(b"array 01")
BACKUPS = ("repo.00000000000002.A", "repo.00000000000001.B")
CHUNK_BYTES = 20


def coordinates(*rows: tuple[int, ...]) -> Coordinates:
    return np.array(rows, np.uint32)


def group_node() -> Node:
    return GroupNode(GROUP, "/", json.dumps({"zarr_format": 3, "node_type": "group"}).encode())


def array_node(*manifests: ManifestRef, units: str = "K") -> Node:
    metadata = {"node_type": "array", "shape": [60], "attributes": {"units": units}}
    return ArrayNode(
        ARRAY, "/a", json.dumps(metadata).encode(), ArrayInfo((60,), (6,), None, manifests)
    )


class SmallRepository:
    """Files to change: two commits over the initial snapshot, one array in two manifests."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        inline = ChunkTable.inlined(coordinates((0,), (2,)), BytesColumn.from_list([b"a", b"b"]))
        native = ChunkTable.native(
            coordinates((3,), (4,)),
            id_rows(ChunkId, [CHUNK]),
            np.array([10, 10], np.uint64),
            np.array([0, 10], np.uint64),
            np.zeros(2, np.uint32),
        )
        self.files[chunk_key(CHUNK)] = bytes(CHUNK_BYTES)
        self.put_manifest(INLINE, {ARRAY: inline})
        self.put_manifest(NATIVE, {ARRAY: native})
        self._write_snapshots()
        self._write_repo_objects()

    def put_manifest(self, manifest: ManifestId, tables: dict[NodeId, ChunkTable]) -> None:
        self.files[manifest_key(manifest)] = encode_manifest(manifest, tables)

    def listed(self, *manifests: ManifestId) -> ManifestFiles:
        return ManifestFiles.from_list(
            [(one, len(self.files[manifest_key(one)]), 2) for one in manifests]
        )

    def _write_snapshots(self) -> None:
        first_ref = ManifestRef(INLINE, ((0, 3),))
        second_ref = ManifestRef(NATIVE, ((3, 5),))
        nodes = NodeTable.from_nodes
        for snapshot in (
            Snapshot(INITIAL_SNAPSHOT_ID, 10, "Repository initialized"),
            Snapshot(
                FIRST,
                20,
                "first",
                nodes([group_node(), array_node(first_ref)]),
                self.listed(INLINE),
                {"n": 1},
            ),
            Snapshot(
                SECOND,
                30,
                "second",
                nodes([group_node(), array_node(first_ref, second_ref, units="C")]),
                self.listed(INLINE, NATIVE),
            ),
        ):
            self.files[snapshot_key(snapshot.id)] = encode_snapshot(snapshot)
        for log in (
            TransactionLog(INITIAL_SNAPSHOT_ID),
            TransactionLog(
                FIRST,
                new_groups=id_rows(NodeId, [GROUP]),
                new_arrays=id_rows(NodeId, [ARRAY]),
                updated_chunks={ARRAY: coordinates((0,), (2,))},
            ),
            TransactionLog(
                SECOND,
                updated_arrays=id_rows(NodeId, [ARRAY]),
                updated_chunks={ARRAY: coordinates((3,), (4,))},
            ),
        ):
            self.files[transaction_log_key(log.id)] = encode_transaction_log(log)

    def _write_repo_objects(self) -> None:
        """Write the repo object and, with a limit of two entries, the backups of the two before."""
        entries = [
            SnapshotEntry(INITIAL_SNAPSHOT_ID, None, 10, "Repository initialized"),
            SnapshotEntry(FIRST, INITIAL_SNAPSHOT_ID, 20, "first", {"n": 1}),
            SnapshotEntry(SECOND, FIRST, 30, "second"),
        ]
        begun = UpdateEntry(UpdateKind.REPO_INITIALIZED, 10)
        first = UpdateEntry(UpdateKind.NEW_COMMIT, 20, name="main", new=FIRST)
        second = UpdateEntry(UpdateKind.NEW_COMMIT, 30, name="main", new=SECOND)
        newer, older = BACKUPS
        objects: dict[str, tuple[int, list[UpdateEntry], str | None]] = {
            backup_key(older): (1, [begun], None),
            backup_key(newer): (2, [first, replace(begun, backup_path=older)], None),
            REPO_KEY: (3, [second, replace(first, backup_path=newer)], older),
        }
        for key, (count, updates, before) in objects.items():
            known = entries[:count]
            self.files[key] = encode_repo_info(
                RepoInfo(
                    {"main": known[-1].id},
                    SnapshotTable.from_entries(known),
                    UpdateTable.from_entries(updates),
                    repo_before_updates=before,
                )
            )

    # -- changing one thing ----------------------------------------------------------------

    def change_snapshot(self, which: SnapshotId, change: Callable[[Snapshot], Snapshot]) -> None:
        key = snapshot_key(which)
        self.files[key] = encode_snapshot(change(decode_snapshot(self.files[key])))

    def change_log(self, which: SnapshotId, **fields: Any) -> None:
        key = transaction_log_key(which)
        log = replace(decode_transaction_log(self.files[key]), **fields)
        self.files[key] = encode_transaction_log(log)

    def change_array(self, which: SnapshotId, change: Callable[[Node], Node]) -> None:
        def with_array(snapshot: Snapshot) -> Snapshot:
            node = snapshot.nodes.find("/a")
            assert node is not None
            nodes = NodeTable.from_nodes([group_node(), change(node)])
            return replace(snapshot, contents=nodes)

        self.change_snapshot(which, with_array)

    def change_table(self, which: ManifestId, change: Callable[[ChunkTable], ChunkTable]) -> None:
        table = ManifestFile(self.files[manifest_key(which)]).table(ARRAY)
        self.put_manifest(which, {ARRAY: change(table)})

    def change_repo(self, change: Callable[[RepoInfo], RepoInfo], key: str = REPO_KEY) -> None:
        self.files[key] = encode_repo_info(change(decode_repo_info(self.files[key])))

    def change_entry(self, which: SnapshotId, **fields: Any) -> None:
        def with_entry(repo: RepoInfo) -> RepoInfo:
            entries = [repo.snapshots.entry(row) for row in range(len(repo.snapshots))]
            changed = [replace(e, **fields) if e.id == which else e for e in entries]
            return replace(repo, history=SnapshotTable.from_entries(changed))

        self.change_repo(with_entry)

    def change_updates(
        self, change: Callable[[list[UpdateEntry]], list[UpdateEntry]], key: str = REPO_KEY
    ) -> None:
        self.change_repo(
            lambda repo: replace(
                repo, log=UpdateTable.from_entries(change(repo.updates.entries()))
            ),
            key,
        )
