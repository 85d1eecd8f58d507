"""Decode a file completely, and touch everything that a user could touch."""

import json
from contextlib import suppress
from operator import lt

import numpy as np

from icefloe.errors import FormatError
from icefloe.format.chunk_table import ChunkTable, concat_tables
from icefloe.format.config_file import decode_config_flexbuffer, decode_config_yaml
from icefloe.format.description import describe_file
from icefloe.format.envelope import FileType
from icefloe.format.ids import ManifestId, NodeId, raw_rows
from icefloe.format.manifest import ManifestFile
from icefloe.format.repo_info import decode_repo_info, open_repo_info
from icefloe.format.snapshot import ManifestFiles, decode_snapshot, open_snapshot
from icefloe.format.transaction_log import ID_LISTS, decode_transaction_log

_MANY = 10_000
_ROWS = 4
"""How many rows of a table are turned into objects: its ends, not all of a long one."""


def exercise(file_type: FileType | None, data: bytes) -> None:
    """Read a file of some type (`None`: a configuration) to the last field."""
    with suppress(FormatError):  # what is wrong elsewhere in a file does not stop a lookup
        _look_up(file_type, data)
    if file_type is not None:
        json.dumps(describe_file(data, _ROWS))
    match file_type:
        case FileType.MANIFEST:
            _manifest(data)
        case FileType.SNAPSHOT:
            _snapshot(data)
        case FileType.TRANSACTION_LOG:
            _transaction_log(data)
        case FileType.REPO_INFO:
            _repo_info(data)
        case None:
            repr(decode_config_yaml(data))


def _look_up(file_type: FileType | None, data: bytes) -> None:
    """Read what those who want a single thing read."""
    match file_type:
        case FileType.SNAPSHOT:
            snapshot = open_snapshot(data)
            snapshot.contents.find("/")
            snapshot.files.size_of(ManifestId(bytes(ManifestId.WIDTH)))
        case FileType.REPO_INFO:
            repr(open_repo_info(data).branches)
        case _:
            pass


def is_refused(file_type: FileType | None, data: bytes) -> bool:
    """Read a file; whatever is wrong with it may only raise `FormatError`."""
    try:
        exercise(file_type, data)
    except FormatError:
        return True
    return False


def _some(rows: int) -> list[int]:
    return sorted({*range(min(rows, _ROWS)), *range(max(0, rows - _ROWS), rows)})


def _manifest(data: bytes) -> None:
    file = ManifestFile(data)
    assert file.num_chunk_refs >= 0
    assert file.size_bytes > 0
    for node in list(file.nodes)[:_ROWS]:
        file.find(node, (0,))
        file.find(node, (1, 2**32 - 1))
    for node, table in file.tables().items():
        _chunk_table(file, node, table)
        assert file.table(node, few=0) == table
    assert file.find(NodeId(b"nowhere!"), (0,)) is None


def _chunk_table(file: ManifestFile, node: NodeId, table: ChunkTable) -> None:
    for row in _some(len(table)):
        reference = table.ref(row)
        repr(reference)
        coordinates = table.coordinates[row].tolist()
        table.find(coordinates)
        file.find(node, coordinates)
    assert table.compacted() == table
    cut = len(table) // 2
    halves = [table.take(slice(0, cut)), table.take(slice(cut, None))]
    if table.dimensions and (table.coordinates[1:, 0] > table.coordinates[:-1, 0]).all():
        assert concat_tables(halves) == table


def _snapshot(data: bytes) -> None:
    snapshot = decode_snapshot(data)
    in_columns = decode_snapshot(data, few=0)
    assert in_columns.manifests.ids.tobytes() == snapshot.manifests.ids.tobytes()
    for row in _some(len(snapshot.nodes)):
        node = snapshot.nodes.node(row)
        assert in_columns.nodes.node(row) == node
        assert open_snapshot(data).contents.find(node.path) == node
    _manifest_list(data, snapshot.manifests)
    for row in _some(len(snapshot.nodes)):
        repr(snapshot.nodes.node(row))
    snapshot.nodes.find("/")
    snapshot.nodes.take(np.arange(len(snapshot.nodes)))
    assert len(snapshot.manifests.ids) == len(snapshot.manifests)
    repr((snapshot.id, snapshot.message, snapshot.metadata, snapshot.parent_id))


def _manifest_list(data: bytes, files: ManifestFiles) -> None:
    """Look manifests up one by one, unless the list is not sorted, which only hides some."""
    ids = list(map(ManifestId, raw_rows(files.ids)))
    is_sorted = all(map(lt, ids, ids[1:]))
    for row in _some(len(files)):
        found = open_snapshot(data).files.size_of(ids[row])
        assert found == files.sizes_bytes[row] or not is_sorted


def _transaction_log(data: bytes) -> None:
    log = decode_transaction_log(data)
    for name in ID_LISTS:
        repr(log.nodes(name)[:_ROWS])
    in_columns = decode_transaction_log(data, few=0)
    for node, coordinates in log.updated_chunks.items():
        assert coordinates.ndim == 2
        assert np.array_equal(in_columns.updated_chunks[node], coordinates)
    repr(log.moves[:_ROWS])


def _repo_info(data: bytes) -> None:
    repo = decode_repo_info(data)
    opened = open_repo_info(data)
    assert (opened.branches, opened.tags) == (repo.branches, repo.tags)
    assert opened.snapshots.ids.tobytes() == repo.snapshots.ids.tobytes()
    assert len(opened.updates) == len(repo.updates)
    for row in _some(len(repo.snapshots)):
        entry = repo.snapshots.entry(row)
        repr(entry)
        repo.snapshots.row_of(entry.id)
    for row in _some(len(repo.updates)):
        repr(repo.updates.entry(row))
    one_by_one, in_columns = (decode_repo_info(data, few=few) for few in (_MANY, 0))
    for row in _some(len(repo.snapshots)):
        assert one_by_one.snapshots.entry(row) == in_columns.snapshots.entry(row)
    for row in _some(len(repo.updates)):
        assert one_by_one.updates.entry(row) == in_columns.updates.entry(row)
    repr((repo.tags, repo.deleted_tags, repo.status, repo.metadata, repo.repo_before_updates))
    for snapshot in list(repo.branches.values())[:3]:
        repo.snapshots.ancestry(snapshot)
    if repo.config is not None:
        repr(decode_config_flexbuffer(repo.config))
