"""Our columnar codecs and a scalar reader and writer agree on every field."""

from typing import Any

import pytest

from icefloe.format.chunk_table import InlineChunk, NativeChunk, VirtualChunk
from icefloe.format.envelope import FileType
from icefloe.format.ids import ChunkId
from icefloe.format.manifest import ManifestFile, encode_manifest
from icefloe.format.metadata import encode_metadata_value
from icefloe.format.repo_info import decode_repo_info, encode_repo_info
from icefloe.format.snapshot import Snapshot, decode_snapshot, encode_snapshot
from icefloe.format.transaction_log import (
    ID_LISTS,
    TransactionLog,
    decode_transaction_log,
    encode_transaction_log,
)
from tests.unit.format import oracle, samples

HABITS = [
    pytest.param(oracle.Habits(), id="usual"),
    pytest.param(oracle.Habits(explicit_defaults=True), id="explicit defaults"),
    pytest.param(oracle.Habits(extras=True), id="extras"),
    pytest.param(oracle.Habits(explicit_defaults=True, identifier=False), id="no identifier"),
]
SPECS = pytest.mark.parametrize("spec_version", [1, 2])


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


def snapshot_as_dict(snapshot: Snapshot) -> dict[str, Any]:
    spec = snapshot.spec_version
    files = snapshot.manifests
    return {
        "id": snapshot.id,
        "parent_id": snapshot.parent_id,
        "flushed_at": snapshot.flushed_at,
        "message": snapshot.message,
        "metadata": [
            (name, encode_metadata_value(value, spec))
            for name, value in sorted(snapshot.metadata.items())
        ],
        "nodes": oracle.node_list(snapshot.nodes),
        "manifests": [
            (type(samples.manifest_id(0))(raw.tobytes()), int(size), int(refs))
            for raw, size, refs in zip(
                files.ids, files.sizes_bytes, files.num_chunk_refs, strict=True
            )
        ],
        "is_v2": spec > 1,
    }


@SPECS
def test_manifests_that_we_write(spec_version: int) -> None:
    tables = samples.manifest_tables()
    data = encode_manifest(samples.manifest_id(1), tables, spec_version=spec_version)
    manifest, arrays = oracle.read_manifest(samples.expanded(data))
    assert manifest == samples.manifest_id(1)
    assert arrays == {node: oracle.references(table) for node, table in tables.items()}
    assert list(arrays) == sorted(arrays)


@SPECS
@pytest.mark.parametrize("habits", HABITS)
def test_manifests_that_others_write(spec_version: int, habits: oracle.Habits) -> None:
    arrays: dict[Any, oracle.References] = {
        samples.node_id(1): [
            ((0, 0), NativeChunk(ChunkId(bytes(range(12))), 0, 2000)),
            ((0, 1), NativeChunk(ChunkId(bytes(12)), 2**40, 2**41)),
            ((0, 7), VirtualChunk("s3://bucket/é.nc", 0, 10)),
            ((1, 0), VirtualChunk("s3://bucket/é.nc", 2**63, 10, '"etag"', None)),
            ((1, 1), VirtualChunk("s3://bucket/b.nc", 5, 10, "", 1_700_000_000)),
            ((2, 0), InlineChunk(b"bytes")),
            ((3, 2**32 - 1), InlineChunk(b"")),
        ],
        samples.node_id(2): [((), InlineChunk(b"scalar"))],
        samples.node_id(3): [],
    }
    data = oracle.write_manifest(
        samples.manifest_id(5), arrays, spec_version=spec_version, habits=habits
    )
    file = ManifestFile(data)
    assert file.id == samples.manifest_id(5)
    assert file.spec_version == spec_version
    assert file.num_chunk_refs == 8
    assert {node: oracle.references(table) for node, table in file.tables().items()} == arrays
    for node, refs in arrays.items():
        for index, ref in refs:
            assert file.find(node, index) == ref
            assert file.table(node).find(index) == ref
        assert file.find(node, (9, 9)) is None


@SPECS
def test_logs_that_we_write(spec_version: int) -> None:
    log = samples.transaction_log()
    data = encode_transaction_log(log, spec_version=spec_version)
    assert oracle.read_log(samples.expanded(data)) == log_as_dict(log)


@SPECS
@pytest.mark.parametrize("habits", HABITS)
def test_logs_that_others_write(spec_version: int, habits: oracle.Habits) -> None:
    written = log_as_dict(samples.transaction_log())
    if spec_version == 1:
        written["moves"] = ()
    data = oracle.write_log(written, spec_version=spec_version, habits=habits)
    assert log_as_dict(decode_transaction_log(data)) == written


@SPECS
def test_snapshots_that_we_write(spec_version: int) -> None:
    snapshot = samples.snapshot(spec_version)
    found = oracle.read_snapshot(samples.expanded(encode_snapshot(snapshot)))
    assert found == snapshot_as_dict(snapshot)


@SPECS
@pytest.mark.parametrize("habits", HABITS)
def test_snapshots_that_others_write(spec_version: int, habits: oracle.Habits) -> None:
    written = snapshot_as_dict(samples.snapshot(spec_version))
    data = oracle.write_snapshot(written, spec_version=spec_version, habits=habits)
    decoded = decode_snapshot(data)
    assert snapshot_as_dict(decoded) == written
    assert decoded.metadata == samples.METADATA


def test_old_and_new_shapes_may_meet_in_one_snapshot() -> None:
    """Arrays that a migration kept beside arrays that came later."""
    nodes = samples.nodes()
    writer = oracle.Writer(oracle.Habits())
    rows = [
        oracle._write_node(writer, node, spec_version=1 + place % 2)
        for place, node in enumerate(nodes)
    ]
    written = snapshot_as_dict(samples.snapshot(2))
    fields: dict[int, tuple[str, Any, Any]] = {
        0: ("struct", written["id"].raw, 0),
        2: ("offset", writer.offsets(rows), 0),
        4: ("offset", writer.text(""), 0),
        5: ("offset", writer.offsets([]), 0),
        6: ("offset", writer.structs([], 32, 8), 0),
    }
    data = writer.finish(writer.table(8, fields), FileType.SNAPSHOT, 2)
    assert oracle.node_list(decode_snapshot(data).nodes) == nodes


def test_repo_objects_that_we_write() -> None:
    repo = samples.repo_info()
    found = oracle.read_repo(samples.expanded(encode_repo_info(repo)))
    assert found["spec_version"] == 2
    assert found["tags"] == dict(repo.tags)
    assert found["branches"] == dict(repo.branches)
    assert list(found["branches"]) == ["", "dev", "main"]
    assert found["deleted_tags"] == ["Z", "gone"]
    assert found["status"] == repo.status
    assert found["updates"] == samples.update_entries()
    assert found["repo_before_updates"] == "repo.1"
    assert found["config"] == repo.config
    assert found["enabled_flags"] == [3]
    assert found["disabled_flags"] == [4, 5]
    expected = [
        (
            entry.id,
            entry.parent,
            entry.flushed_at,
            entry.message,
            [(n, encode_metadata_value(v, 2)) for n, v in sorted(entry.metadata.items())],
            [*entry.pruned_ancestors],
        )
        for entry in sorted(samples.snapshot_entries(), key=lambda entry: entry.id)
    ]
    assert found["snapshots"] == expected


def test_optional_parts_of_a_repo_object_stay_absent() -> None:
    full = samples.repo_info()
    bare = type(full)({"main": samples.snapshot_id(3)}, full.snapshots, full.updates)
    data = encode_repo_info(bare)
    found = oracle.read_repo(samples.expanded(data))
    for name in ("repo_before_updates", "config", "enabled_flags", "disabled_flags"):
        assert found[name] is None
        assert getattr(decode_repo_info(data), name) is None
    empty = type(full)(
        {"main": samples.snapshot_id(3)},
        full.snapshots,
        full.updates,
        enabled_flags=(),
        disabled_flags=(),
    )
    assert decode_repo_info(encode_repo_info(empty)).enabled_flags == ()
