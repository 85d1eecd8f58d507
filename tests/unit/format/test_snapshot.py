"""Snapshots and their nodes."""

import numpy as np
import pytest

from icefloe.errors import ErrorKind, FormatError, InvalidInputError
from icefloe.format.columns import BytesColumn
from icefloe.format.envelope import FileType
from icefloe.format.ids import ManifestId
from icefloe.format.json_value import MAX_ENCODED_BYTES
from icefloe.format.layout import snapshot_key
from icefloe.format.metadata import MetadataItems
from icefloe.format.nodes import (
    ArrayInfo,
    ArrayNode,
    GroupNode,
    ManifestRef,
    Node,
    NodeTable,
    StoredNodes,
)
from icefloe.format.snapshot import (
    ManifestFiles,
    Snapshot,
    StoredFiles,
    decode_snapshot,
    encode_snapshot,
    open_snapshot,
)
from icefloe.records import replace
from tests.fuzz.bombs import Layout, enclosed
from tests.unit.format import oracle, samples
from tests.unit.format.samples import node_id, snapshot_id

ORDERED = ["/", "/z", "/z/a", "/z/a-b", "/z/a/b", "/z/ab", "/é"]


def group(path: str, number: int = 1) -> Node:
    return GroupNode(node_id(number), path, path.encode())


# -- nodes ---------------------------------------------------------------------------------


def test_paths_are_sorted_by_their_bytes() -> None:
    table = NodeTable.from_nodes([group(path) for path in reversed(ORDERED)])
    assert table.paths.to_strings() == ORDERED
    assert [table.row_of(path) for path in ORDERED] == list(range(len(ORDERED)))
    assert table.find("/z/a-b") == group("/z/a-b")
    for absent in ("", "/y", "/z/a-", "/zz", "/é/x"):
        assert table.find(absent) is None


def test_nodes_come_back() -> None:
    nodes = samples.nodes()
    table = NodeTable.from_nodes(nodes[::-1])
    assert oracle.node_list(table) == nodes
    assert oracle.node_list(NodeTable.from_nodes([])) == []


def test_rows_can_be_picked_and_repeated() -> None:
    nodes = samples.nodes()
    table = NodeTable.from_nodes(nodes).take(np.array([3, 1, 1, 0]))
    assert oracle.node_list(table) == [nodes[3], nodes[1], nodes[1], nodes[0]]
    assert oracle.node_list(table.take(np.empty(0, np.int64))) == []


def test_overlay_replaces_deletes_and_sorts() -> None:
    nodes = samples.nodes()
    older = NodeTable.from_nodes(nodes)
    changed = replace(nodes[1], user_data=b"new", array=ArrayInfo((7,), (7,), ("t",)))
    newer = NodeTable.from_nodes([group("/z/new", 9), changed])
    united = older.overlay(newer, ["/z", "/not there"])
    assert oracle.node_list(united) == [nodes[0], changed, nodes[2], group("/z/new", 9), nodes[4]]
    assert oracle.node_list(older.overlay(NodeTable.from_nodes([]))) == nodes
    assert oracle.node_list(NodeTable.from_nodes([]).overlay(older)) == nodes
    assert len(older.overlay(NodeTable.from_nodes([]), [node.path for node in nodes])) == 0


def test_a_deleted_path_may_be_created_anew() -> None:
    older = NodeTable.from_nodes([group("/a", 1)])
    newer = NodeTable.from_nodes([group("/a", 2)])
    assert oracle.node_list(older.overlay(newer, ["/a"])) == [group("/a", 2)]


# -- files ---------------------------------------------------------------------------------


@pytest.mark.parametrize("spec_version", [1, 2])
def test_everything_comes_back(spec_version: int) -> None:
    snapshot = samples.snapshot(spec_version)
    read = decode_snapshot(encode_snapshot(snapshot))
    assert oracle.node_list(read.nodes) == samples.nodes()
    for name in ("id", "flushed_at", "message", "metadata", "parent_id", "spec_version"):
        assert getattr(read, name) == getattr(snapshot, name)
    for name in ("ids", "sizes_bytes", "num_chunk_refs"):
        assert np.array_equal(getattr(read.manifests, name), getattr(snapshot.manifests, name))


def test_spec_2_keeps_no_parent() -> None:
    snapshot = replace(samples.snapshot(2), parent_id=snapshot_id(1))
    assert decode_snapshot(encode_snapshot(snapshot)).parent_id is None


@pytest.mark.parametrize(
    ("length", "chunks"),
    [(10, 2), (10, 3), (10, 10), (0, 0), (1, 1), (2**63, 1), (2**64 - 1, 2**20), (7, 4)],
)
def test_numbers_of_chunks_survive_spec_1(length: int, chunks: int) -> None:
    """Spec 1 stores a length of chunks, from which readers get the number back."""
    node = ArrayNode(node_id(1), "/a", b"", ArrayInfo((length,), (chunks,)))
    snapshot = Snapshot(snapshot_id(1), 1, "", NodeTable.from_nodes([node]), spec_version=1)
    found = decode_snapshot(encode_snapshot(snapshot)).nodes.find("/a")
    assert found is not None
    assert isinstance(found, ArrayNode)
    chunk_length = -(-length // chunks) if chunks else 0
    expected = -(-length // chunk_length) if chunk_length else 0
    assert found.array.num_chunks == (expected,)
    assert found.array.shape == (length,)
    assert expected == chunks


def test_many_nodes() -> None:
    nodes = [
        ArrayNode(node_id(n), f"/g/{n:05d}", b"%d" % n, ArrayInfo((n, 3), (n, 1), ("y", "x")))
        if n % 3
        else group(f"/g/{n:05d}", n)
        for n in range(5000)
    ]
    snapshot = Snapshot(snapshot_id(1), 1, "", NodeTable.from_nodes(nodes))
    data = encode_snapshot(snapshot)
    assert oracle.node_list(decode_snapshot(data).nodes) == nodes
    assert oracle.read_snapshot(samples.expanded(data))["nodes"] == nodes


@pytest.mark.parametrize("spec_version", [1, 2])
def test_some_nodes_are_read_one_by_one_and_many_together(spec_version: int) -> None:
    paths = [f"/node {number:03d}" for number in range(100)]
    nodes = NodeTable.from_nodes([group(path) for path in paths])
    data = encode_snapshot(Snapshot(snapshot_id(1), 1, "", nodes, spec_version=spec_version))
    stored = open_snapshot(data).contents
    assert isinstance(stored, StoredNodes)
    wanted = ["/", "/node", "/node 0000", "/\ud800", "/z", *paths]
    assert [stored.find(path) for path in wanted] == [nodes.find(path) for path in wanted]
    assert stored.table().paths.to_strings() == paths


@pytest.mark.parametrize("num_manifests", [3, 300])
def test_an_array_is_looked_up_however_many_manifests_it_has(num_manifests: int) -> None:
    links = tuple(
        ManifestRef(samples.manifest_id(number), ((number, number + 1), (0, 2)))
        for number in range(num_manifests)
    )
    info = ArrayInfo((num_manifests, 2), (num_manifests, 2), None, links)
    array = ArrayNode(node_id(1), "/a", b"/a", info)
    nodes = NodeTable.from_nodes([group("/"), array, group("/b")])
    stored = open_snapshot(encode_snapshot(Snapshot(snapshot_id(1), 1, "", nodes))).contents
    assert isinstance(stored, StoredNodes)
    assert [stored.find(path) for path in ("/", "/a", "/b")] == [group("/"), array, group("/b")]


@pytest.mark.parametrize("spec_version", [1, 2])
def test_some_manifests_are_looked_up_and_many_read_together(spec_version: int) -> None:
    ids = [samples.manifest_id(number) for number in range(100)]
    listed = ManifestFiles.from_list([(one, 7 + n, n) for n, one in enumerate(ids) if n % 3])
    made = Snapshot(snapshot_id(1), 1, "", files=listed, spec_version=spec_version)
    stored = open_snapshot(encode_snapshot(made)).files
    assert isinstance(stored, StoredFiles if spec_version > 1 else ManifestFiles)
    assert len(stored) == len(listed)
    assert [stored.size_of(one) for one in ids] == [7 + n if n % 3 else 0 for n in range(100)]
    assert stored.table().num_chunk_refs.tolist() == listed.num_chunk_refs.tolist()


def test_damage_to_a_list_of_manifests_names_the_file() -> None:
    manifest = ManifestId(b"one manifest")
    listed = ManifestFiles.from_list([(manifest, 7, 1)])
    data = encode_snapshot(Snapshot(snapshot_id(1), 1, "", files=listed))
    contents = bytearray(samples.expanded(data))
    at = contents.index(manifest.raw)
    contents[at - 16 : at - 12] = b"\xff" * 4  # where its table leads to what describes it
    stored = open_snapshot(enclosed(FileType.SNAPSHOT, bytes(contents))).files
    for ask in (lambda: stored.size_of(manifest), stored.table):
        with pytest.raises(FormatError) as caught:
            ask()
        assert snapshot_key(snapshot_id(1)) in "".join(caught.value.__notes__)


def test_large_files_are_read_at_once() -> None:
    large = [replace(group(f"/{number}"), user_data=bytes(1 << 16)) for number in range(5)]
    data = encode_snapshot(Snapshot(snapshot_id(1), 1, "", NodeTable.from_nodes(large)))
    assert isinstance(open_snapshot(data).contents, NodeTable)
    assert isinstance(open_snapshot(data).files, ManifestFiles)


def test_manifest_files_are_sorted() -> None:
    files = ManifestFiles.from_list(
        [(samples.manifest_id(9), 1, 2), (samples.manifest_id(3), 3, 4)]
    )
    assert files.ids[:, -1].tolist() == [3, 9]
    assert len(ManifestFiles.from_list([])) == 0


# -- metadata ------------------------------------------------------------------------------


def test_metadata_is_bounded_as_a_whole() -> None:
    half = "x" * (MAX_ENCODED_BYTES // 2 + 1)
    with pytest.raises(InvalidInputError, match="the most is") as caught:
        MetadataItems.encode([{"a": half, "b": half}], 2)
    assert caught.value.kind == ErrorKind.LIMIT_EXCEEDED
    items = MetadataItems(
        np.array([0, 2]),
        BytesColumn.from_strings(["a", "b"]),
        BytesColumn.from_list([bytes(MAX_ENCODED_BYTES), b"x"]),
    )
    with pytest.raises(FormatError, match="would not fit in memory"):
        items.decode(0, 2)


def test_metadata_names_are_unique() -> None:
    one = MetadataItems.encode([{"a": 1}], 2)
    twice = MetadataItems(
        np.array([0, 2]), one.names.take(np.array([0, 0])), one.values.take(np.array([0, 0]))
    )
    with pytest.raises(FormatError, match="the same name"):
        twice.decode(0, 2)


# -- damage --------------------------------------------------------------------------------


def broken(
    node: dict[int, bytes | str], array: dict[int, bytes | str], shape: bytes = b""
) -> bytes:
    layout = Layout()
    layout.table("root", {0: bytes(12), 2: "nodes", 4: "none", 5: "none", 6: "none"})
    layout.links("nodes", ["node"])
    usual: dict[int, bytes | str] = {0: bytes(8), 1: "none", 2: "none", 3: b"\1", 4: "array"}
    layout.table("node", usual | node)
    usual = {0: "shape", 2: "none"}
    layout.table("array", usual | array)
    layout.vector("latin", 1, b"\xe9")
    layout.structs("shape", len(shape) // 16, shape)
    layout.vector("none", 0, b"")
    return enclosed(FileType.SNAPSHOT, layout.finish())


def pair(length: int, chunk: int) -> bytes:
    return length.to_bytes(8, "little") + chunk.to_bytes(8, "little")


@pytest.mark.parametrize(
    ("node", "array", "shape", "problem"),
    [
        ({3: b"\3"}, {}, b"", "neither a group nor an array"),
        ({3: b"\0"}, {}, b"", "neither a group nor an array"),
        ({1: "latin"}, {}, b"", "not UTF-8"),
        ({}, {}, pair(1, 0), "chunks of no length"),
        ({}, {}, pair(2**33, 1), "more chunks along a dimension"),
        ({}, {}, pair(2**64 - 1, 1), "more chunks along a dimension"),
        ({}, {0: (2**31).to_bytes(4, "little")}, b"", "outside"),
    ],
)
def test_broken_nodes_are_refused(
    node: dict[int, bytes | str], array: dict[int, bytes | str], shape: bytes, problem: str
) -> None:
    with pytest.raises(FormatError, match=problem):
        decode_snapshot(broken(node, array, shape))


def test_shapes_at_the_limits() -> None:
    shape = pair(0, 0) + pair(2**32 - 1, 1) + pair(2**64 - 1, 2**64 - 1) + pair(7, 5)
    array = decode_snapshot(broken({}, {}, shape)).nodes.array(0).array
    assert array.num_chunks == (0, 2**32 - 1, 1, 2)
