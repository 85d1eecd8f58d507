"""Lists that readers search must be in order: a wrong one would hide entries, so it is refused."""

import numpy as np
import pytest

from icefloe.errors import FormatError
from icefloe.format.chunk_table import ChunkTable
from icefloe.format.columns import BytesColumn
from icefloe.format.ids import INITIAL_SNAPSHOT_ID, ManifestId, NodeId, SnapshotId
from icefloe.format.layout import snapshot_key
from icefloe.format.manifest import ManifestFile, encode_manifest
from icefloe.format.nodes import GroupNode, NodeTable
from icefloe.format.repo_info import RepoInfo, decode_repo_info, encode_repo_info, open_repo_info
from icefloe.format.snapshot import Snapshot, decode_snapshot, encode_snapshot, open_snapshot
from icefloe.format.snapshot_table import SnapshotEntry, SnapshotTable
from icefloe.format.update_table import UpdateEntry, UpdateKind, UpdateTable
from icefloe.records import replace


@pytest.mark.parametrize("coordinates", [[[1], [0]], [[1], [1]], [[0, 1], [0, 0]], [[], []]])
def test_references_out_of_order_are_refused(coordinates: list[list[int]]) -> None:
    shuffled = np.array(coordinates, np.uint32).reshape(2, -1)
    ordered = np.array([[0], [1]], np.uint32)
    table = ChunkTable.inlined(ordered, BytesColumn.from_list([b"a", b"b"]))
    node = NodeId.random()
    data = encode_manifest(ManifestId.random(), {node: replace(table, coordinates=shuffled)})
    with pytest.raises(FormatError, match="sorted by their coordinates"):
        ManifestFile(data).tables()


def test_nodes_out_of_order_are_refused() -> None:
    nodes = NodeTable.from_nodes([GroupNode(NodeId.random(), path, b"{}") for path in ("/", "/a")])
    snapshot = Snapshot(SnapshotId.random(), 0, "", nodes.take(np.array([1, 0])))
    data = encode_snapshot(snapshot)
    with pytest.raises(FormatError, match="sorted by their paths"):
        decode_snapshot(data)
    with pytest.raises(FormatError, match="sorted by their paths") as caught:
        _ = open_snapshot(data).nodes  # when they are asked for
    assert snapshot_key(snapshot.id) in "".join(caught.value.__notes__)


def test_snapshots_out_of_order_are_refused() -> None:
    others = [SnapshotId(b"\xfe" * 12), SnapshotId(b"\xff" * 12)]
    entries = [SnapshotEntry(one, None, 0, "") for one in (INITIAL_SNAPSHOT_ID, *others)]
    table = SnapshotTable.from_entries(entries)
    updates = UpdateTable.from_entries([UpdateEntry(UpdateKind.REPO_INITIALIZED, 1)])
    repo = RepoInfo({"main": INITIAL_SNAPSHOT_ID}, table, updates)
    assert decode_repo_info(encode_repo_info(repo)).branches == repo.branches
    shuffled = replace(repo, history=replace(table, ids=table.ids[[0, 2, 1]]))
    data = encode_repo_info(shuffled)
    with pytest.raises(FormatError, match="sorted by their ids"):
        decode_repo_info(data)
    opened = open_repo_info(data)
    assert opened.branches == repo.branches
    for _ in range(2):
        with pytest.raises(FormatError, match="sorted by their ids"):
            _ = opened.snapshots  # when they are asked for
