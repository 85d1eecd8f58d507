"""Whatever can be said is written, read back the same, and read the same by a scalar reader."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from icefloe.format.chunk_table import ChunkTable
from icefloe.format.ids import INITIAL_SNAPSHOT_ID, NodeId, SnapshotId, id_rows
from icefloe.format.locations import LocationCompression
from icefloe.format.manifest import ManifestFile, encode_manifest
from icefloe.format.metadata import encode_metadata_value
from icefloe.format.nodes import NodeTable
from icefloe.format.repo_info import (
    RepoInfo,
    decode_repo_info,
    encode_repo_info,
    open_repo_info,
)
from icefloe.format.snapshot import ManifestFiles, Snapshot, decode_snapshot, encode_snapshot
from icefloe.format.snapshot_table import SnapshotEntry, SnapshotTable
from icefloe.format.transaction_log import (
    ID_LISTS,
    Move,
    TransactionLog,
    decode_transaction_log,
    encode_transaction_log,
)
from icefloe.format.update_table import Status, UpdateEntry, UpdateKind, UpdateTable
from icefloe.records import replace
from tests.property.test_format_tables import in_order, models, node_models, table_of, text
from tests.unit.format import oracle
from tests.unit.format.samples import expanded, manifest_id, node_id, snapshot_id, update_entry

thorough = settings(max_examples=60)

specs = st.sampled_from([1, 2])
habits = st.builds(oracle.Habits, st.booleans(), st.booleans(), st.booleans())
node_ids = st.binary(min_size=8, max_size=8).map(NodeId)
snapshot_ids = st.binary(min_size=12, max_size=12).map(SnapshotId)
micros = st.integers(0, 2**64 - 1)
metadata: st.SearchStrategy[dict[str, Any]] = st.dictionaries(
    text, st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | text, max_size=4
)


@st.composite
def manifests(draw: st.DrawFn) -> dict[NodeId, ChunkTable]:
    nodes = draw(st.lists(node_ids, max_size=4, unique=True))
    sizes = [draw(st.integers(0, 3)) for _ in nodes]
    return {
        node: table_of(draw(models(size, max_size=12)), size)
        for node, size in zip(nodes, sizes, strict=True)
    }


@given(manifests(), specs, st.booleans())
@thorough
def test_manifests(tables: dict[NodeId, ChunkTable], spec_version: int, compress: bool) -> None:
    data = encode_manifest(
        manifest_id(1),
        tables,
        spec_version=spec_version,
        location_compression=LocationCompression(min_num_chunks=1) if compress else None,
    )
    wanted = {node: oracle.references(tables[node]) for node in sorted(tables)}
    file = ManifestFile(data)
    assert {node: oracle.references(table) for node, table in file.tables().items()} == wanted
    assert list(file.nodes) == list(wanted)
    for node, rows in wanted.items():
        for index, reference in rows[:3]:
            assert file.find(node, index) == reference
    if oracle.dictionary(expanded(data)) is None:
        assert oracle.read_manifest(expanded(data)) == (manifest_id(1), wanted)


@given(manifests(), specs, habits)
@thorough
def test_manifests_of_a_scalar_writer(
    tables: dict[NodeId, ChunkTable], spec_version: int, habits: oracle.Habits
) -> None:
    wanted = {node: oracle.references(tables[node]) for node in sorted(tables)}
    data = oracle.write_manifest(manifest_id(1), wanted, spec_version=spec_version, habits=habits)
    found = ManifestFile(data).tables()
    assert {node: oracle.references(table) for node, table in found.items()} == wanted


@st.composite
def logs(draw: st.DrawFn) -> TransactionLog:
    lists = {
        name: id_rows(NodeId, sorted(draw(st.lists(node_ids, max_size=4)))) for name in ID_LISTS
    }
    nodes = sorted(draw(st.lists(node_ids, max_size=4, unique=True)))
    chunks = {}
    for node in nodes:
        size = draw(st.integers(0, 3))
        rows = draw(
            st.lists(st.tuples(*[st.integers(0, 2**32 - 1)] * size), max_size=8, unique=True)
        )
        chunks[node] = np.array(sorted(rows), np.uint32).reshape(len(rows), size)
    moved = draw(st.lists(node_ids, max_size=3, unique=True))
    moves = [Move(draw(text), draw(text), node, draw(st.booleans())) for node in moved]
    ordered = tuple(sorted(moves, key=lambda move: move.target.split("/")))
    return TransactionLog(draw(snapshot_ids), **lists, updated_chunks=chunks, moves=ordered)


def log_as_dict(log: TransactionLog) -> dict[str, Any]:
    return {
        "id": log.id,
        **{name: log.nodes(name) for name in ID_LISTS},
        "updated_chunks": {
            node: [tuple(row) for row in chunks.tolist()]
            for node, chunks in log.updated_chunks.items()
        },
        "moves": log.moves,
    }


@given(logs(), specs, habits)
@thorough
def test_logs(log: TransactionLog, spec_version: int, habits: oracle.Habits) -> None:
    wanted = log_as_dict(log)
    data = encode_transaction_log(log, spec_version=spec_version)
    assert log_as_dict(decode_transaction_log(data)) == wanted
    assert oracle.read_log(expanded(data)) == wanted
    theirs = oracle.write_log(wanted, spec_version=2, habits=habits)
    assert log_as_dict(decode_transaction_log(theirs)) == wanted


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    nodes = draw(node_models())
    files = draw(
        st.lists(
            st.tuples(
                st.integers(0, 2**95).map(manifest_id),
                st.integers(0, 2**64 - 1),
                st.integers(0, 2**32 - 1),
            ),
            max_size=4,
        )
    )
    return Snapshot(
        draw(snapshot_ids),
        draw(micros),
        draw(text),
        NodeTable.from_nodes(in_order(nodes)),
        ManifestFiles.from_list(files),
        draw(metadata),
    )


def snapshot_as_dict(snapshot: Snapshot) -> dict[str, Any]:
    files = snapshot.manifests
    return {
        "id": snapshot.id,
        "parent_id": snapshot.parent_id,
        "flushed_at": snapshot.flushed_at,
        "message": snapshot.message,
        "metadata": [
            (name, encode_metadata_value(snapshot.metadata[name], snapshot.spec_version))
            for name in sorted(snapshot.metadata, key=str.encode)
        ],
        "nodes": oracle.node_list(snapshot.nodes),
        "manifests": [
            (type(manifest_id(0))(files.ids[row].tobytes()), *map(int, numbers))
            for row, numbers in enumerate(zip(files.sizes_bytes, files.num_chunk_refs, strict=True))
        ],
        "is_v2": snapshot.spec_version > 1,
    }


@given(snapshots(), habits)
@thorough
def test_snapshots(snapshot: Snapshot, habits: oracle.Habits) -> None:
    wanted = snapshot_as_dict(snapshot)
    data = encode_snapshot(snapshot)
    read = decode_snapshot(data)
    assert snapshot_as_dict(read) == wanted
    assert read.metadata == snapshot.metadata
    assert oracle.read_snapshot(expanded(data)) == wanted
    theirs = oracle.write_snapshot(wanted, spec_version=2, habits=habits)
    assert snapshot_as_dict(decode_snapshot(theirs)) == wanted


@given(snapshots(), st.none() | snapshot_ids)
@thorough
def test_snapshots_of_spec_1(snapshot: Snapshot, parent: SnapshotId | None) -> None:
    """Numbers of chunks are kept as lengths of chunks, so that only regular grids survive."""
    regular = replace(
        snapshot.nodes,
        num_chunks=np.minimum(snapshot.nodes.array_lengths, 1).astype(np.uint32),
    )
    old = replace(snapshot, spec_version=1, parent_id=parent, contents=regular)
    data = encode_snapshot(old)
    assert snapshot_as_dict(decode_snapshot(data)) == snapshot_as_dict(old)
    assert oracle.read_snapshot(expanded(data)) == snapshot_as_dict(old)


@st.composite
def updates(draw: st.DrawFn) -> list[UpdateEntry]:
    kinds = draw(st.lists(st.sampled_from(UpdateKind), min_size=1, max_size=10))
    entries = []
    for number, kind in enumerate(kinds):
        entry = update_entry(kind, number)
        changes: dict[str, Any] = {"updated_at": draw(micros)}
        if entry.name is not None:
            changes["name"] = draw(text)
        if entry.status is not None:
            changes["status"] = draw(statuses)
        entries.append(replace(entry, **changes))
    return entries


statuses = st.builds(Status, st.integers(0, 255), micros, st.none() | text)


@st.composite
def repos(draw: st.DrawFn) -> RepoInfo:
    ids = [INITIAL_SNAPSHOT_ID]
    entries = [SnapshotEntry(INITIAL_SNAPSHOT_ID, None, 0, "")]
    for one in draw(st.lists(snapshot_ids, max_size=6, unique=True)):
        if one in ids:
            continue
        pruned = draw(st.lists(snapshot_ids, max_size=3))
        parent = draw(st.none() | st.sampled_from(ids))
        entries.append(
            SnapshotEntry(one, parent, draw(micros), draw(text), draw(metadata), tuple(pruned))
        )
        ids.append(one)
    flags = st.none() | st.lists(st.integers(0, 2**16 - 1), max_size=4, unique=True)
    refs = st.dictionaries(text, st.sampled_from(ids), max_size=4)

    def drawn_flags() -> tuple[int, ...] | None:
        chosen = draw(flags)
        return None if chosen is None else tuple(sorted(chosen))

    return RepoInfo(
        draw(refs) | {"main": draw(st.sampled_from(ids))},
        SnapshotTable.from_entries(entries),
        UpdateTable.from_entries(draw(updates())),
        draw(refs),
        tuple(sorted(draw(st.lists(text, max_size=4, unique=True)), key=str.encode)),
        draw(statuses),
        draw(metadata),
        draw(st.none() | text),
        draw(st.none() | st.binary(max_size=20)),
        drawn_flags(),
        drawn_flags(),
    )


def repo_as_dict(repo: RepoInfo) -> dict[str, Any]:
    return {
        name: getattr(repo, name)
        for name in RepoInfo.__struct_fields__
        if name not in {"history", "log"}
    } | {
        "snapshots": [repo.snapshots.entry(row) for row in range(len(repo.snapshots))],
        "updates": repo.updates.entries(),
    }


@given(repos())
@thorough
def test_repo_objects(repo: RepoInfo) -> None:
    data = encode_repo_info(repo)
    assert repo_as_dict(decode_repo_info(data)) == repo_as_dict(repo)
    assert repo_as_dict(open_repo_info(data)) == repo_as_dict(repo)
    scalar = oracle.read_repo(expanded(data))
    assert scalar["branches"] == repo.branches
    assert scalar["tags"] == repo.tags
    assert scalar["updates"] == repo.updates.entries()
    assert scalar["status"] == repo.status
    assert scalar["deleted_tags"] == [*repo.deleted_tags]
    assert [one[:4] for one in scalar["snapshots"]] == [
        (entry.id, entry.parent, entry.flushed_at, entry.message)
        for entry in repo_as_dict(repo)["snapshots"]
    ]


@given(repos(), snapshot_ids, st.data())
@thorough
def test_adding_a_snapshot(repo: RepoInfo, one: SnapshotId, data: st.DataObject) -> None:
    table = repo.snapshots
    entries = [table.entry(row) for row in range(len(table))]
    parents = st.none() | st.sampled_from([entry.id for entry in entries])
    added = SnapshotEntry(one, data.draw(parents), 5, "added", {"k": 1}, (snapshot_id(1),))
    if table.row_of(one) is None:
        grown = table.with_entry(added)
        wanted = sorted([*entries, added], key=lambda entry: entry.id)
        assert [grown.entry(row) for row in range(len(grown))] == wanted


def test_node_ids_sort_as_their_bytes_do() -> None:
    assert sorted([node_id(256), node_id(1)]) == [node_id(1), node_id(256)]
