"""Honest files, however dense, stay far from the limits that stop hostile ones."""

import numpy as np
import pytest

from icefloe.errors import FormatError
from icefloe.format import flatbuffer_reader
from icefloe.format.envelope import decompress, open_envelope
from icefloe.format.flatbuffer_reader import Buffer
from icefloe.format.ids import INITIAL_SNAPSHOT_ID
from icefloe.format.manifest import ManifestFile, encode_manifest
from icefloe.format.nodes import ArrayInfo, ArrayNode, GroupNode, ManifestRef, NodeTable
from icefloe.format.repo_info import RepoInfo, decode_repo_info, encode_repo_info
from icefloe.format.snapshot import Snapshot, decode_snapshot, encode_snapshot
from icefloe.format.snapshot_table import SnapshotEntry, SnapshotTable
from icefloe.format.transaction_log import (
    TransactionLog,
    decode_transaction_log,
    encode_transaction_log,
)
from icefloe.format.update_table import UpdateEntry, UpdateKind, UpdateTable
from tests.unit.format import samples
from tests.unit.format.samples import grid, manifest_id, node_id, snapshot_id

ROWS = 20_000


@pytest.fixture(autouse=True)
def no_free_allowance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of what grows with the file must do, without what every file has for free."""
    monkeypatch.setattr(flatbuffer_reader, "FREE_BUDGET_BYTES", 0)
    monkeypatch.setattr(flatbuffer_reader, "BUDGET_FACTOR", flatbuffer_reader.BUDGET_FACTOR // 2)


def test_the_allowance_is_really_gone() -> None:
    data = encode_snapshot(Snapshot(INITIAL_SNAPSHOT_ID, 0, ""))
    buffer = Buffer(decompress(open_envelope(data).payload))
    with pytest.raises(FormatError):
        buffer.charge(8 * buffer.size + 1)


@pytest.mark.parametrize("dimensions", [1, 4])
def test_logs_of_many_chunks(dimensions: int) -> None:
    coordinates = grid(ROWS, *[1] * (dimensions - 1))
    log = TransactionLog(snapshot_id(1), updated_chunks={node_id(1): coordinates})
    read = decode_transaction_log(encode_transaction_log(log))
    assert np.array_equal(read.updated_chunks[node_id(1)], coordinates)


def test_logs_of_many_arrays() -> None:
    chunks = {node_id(n): grid(1) for n in range(ROWS // 10)}
    log = TransactionLog(snapshot_id(1), updated_chunks=chunks)
    assert len(decode_transaction_log(encode_transaction_log(log)).updated_chunks) == len(chunks)


def test_manifests_of_few_and_of_many_locations() -> None:
    for files in (1, 10, ROWS):
        table = samples.virtual_table(ROWS, files)
        data = encode_manifest(manifest_id(1), {node_id(1): table})
        assert ManifestFile(data).table(node_id(1)) == table


def test_manifests_of_tiny_inline_chunks() -> None:
    table = samples.inline_table(grid(ROWS), [b"x"] * ROWS)
    data = encode_manifest(manifest_id(1), {node_id(1): table})
    assert ManifestFile(data).table(node_id(1)) == table


def test_manifests_of_native_chunks_in_many_arrays() -> None:
    tables = {node_id(n): samples.native_table(grid(1)) for n in range(500)}
    assert ManifestFile(encode_manifest(manifest_id(1), tables)).tables() == tables


def test_snapshots_of_many_groups() -> None:
    nodes = [GroupNode(node_id(n), f"/{n}", b"") for n in range(ROWS)]
    snapshot = Snapshot(snapshot_id(1), 1, "", NodeTable.from_nodes(nodes))
    assert len(decode_snapshot(encode_snapshot(snapshot)).nodes) == ROWS


def test_snapshots_of_many_small_arrays() -> None:
    array = ArrayInfo((1,), (1,), ("x",), (ManifestRef(manifest_id(1), ((0, 1),)),))
    nodes = [ArrayNode(node_id(n), f"/{n}", b"", array) for n in range(ROWS)]
    for spec in (1, 2):
        snapshot = Snapshot(snapshot_id(1), 1, "", NodeTable.from_nodes(nodes), spec_version=spec)
        assert len(decode_snapshot(encode_snapshot(snapshot)).nodes) == ROWS


@pytest.mark.parametrize("kind", UpdateKind)
def test_repo_objects_of_many_operations(kind: UpdateKind) -> None:
    entry = samples.update_entry(kind, 0)
    small = UpdateEntry(
        kind, 0, None, entry.name and "", entry.previous, entry.new, status=entry.status
    )
    repo = RepoInfo(
        {"main": INITIAL_SNAPSHOT_ID},
        SnapshotTable.from_entries([SnapshotEntry(INITIAL_SNAPSHOT_ID, None, 0, "")]),
        UpdateTable.from_entries([small] * ROWS),
    )
    assert len(decode_repo_info(encode_repo_info(repo)).updates) == ROWS


def test_repo_objects_of_many_snapshots_and_refs() -> None:
    entries = [SnapshotEntry(snapshot_id(n), None, 0, "", {"a": 1}) for n in range(ROWS // 4)]
    repo = RepoInfo(
        {"main": snapshot_id(0)},
        SnapshotTable.from_entries(entries),
        UpdateTable.from_entries([UpdateEntry(UpdateKind.REPO_INITIALIZED, 0)]),
        tags={str(n): snapshot_id(n) for n in range(len(entries))},
        deleted_tags=tuple(f"x{n}" for n in range(ROWS)),
    )
    read = decode_repo_info(encode_repo_info(repo))
    assert len(read.snapshots) == len(read.tags) == len(entries)
