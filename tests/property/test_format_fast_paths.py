"""What is done row by row for few rows equals what is done in columns for many."""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from icefloe.errors import FormatError
from icefloe.format import columns as kernels
from icefloe.format.chunk_table import ChunkTable
from icefloe.format.columns import FEW_ROWS, BytesColumn
from icefloe.format.envelope import FileType, decompress, open_envelope
from icefloe.format.flatbuffer_scalar import ScalarBuffer
from icefloe.format.flatbuffer_writer import OFFSET, TableShape, Tree, seal_buffer
from icefloe.format.ids import ManifestId, NodeId, SnapshotId, ids_of_rows
from icefloe.format.manifest import ManifestFile, encode_manifest
from icefloe.format.nodes import ArrayNode, ManifestRef, NodeTable, StoredNodes
from icefloe.format.repo_info import RepoInfo, decode_repo_info, encode_repo_info
from icefloe.format.snapshot import Snapshot, decode_snapshot, encode_snapshot, open_snapshot
from icefloe.format.snapshot_table import SnapshotEntry, SnapshotTable
from icefloe.format.transaction_log import (
    TransactionLog,
    decode_transaction_log,
    encode_transaction_log,
)
from icefloe.format.update_table import UpdateEntry
from icefloe.records import replace
from tests.property.test_format_files import (
    log_as_dict,
    logs,
    manifests,
    repo_as_dict,
    repos,
    snapshot_as_dict,
    snapshots,
    specs,
    updates,
)
from tests.property.test_format_tables import as_model
from tests.unit.format.samples import manifest_id, snapshot_id

fast = settings(max_examples=60)

MANY = 1000
"""More than any example has."""

short = st.binary(max_size=20)
long = st.binary(min_size=60, max_size=200)
even = st.integers(1, 3).flatmap(
    lambda width: st.lists(st.binary(min_size=width, max_size=width), max_size=30)
)
columns = (st.lists(short, max_size=30) | even | st.lists(long, max_size=10)).map(
    BytesColumn.from_list
)
texts = st.lists(st.text(max_size=5).map(str.encode) | short, max_size=8)


# -- columns -------------------------------------------------------------------------------


def by_numpy_and_by_arrow[T](work: Callable[[], T]) -> tuple[T, T]:
    """Do the same for columns that are taken for short ones, and for long ones."""
    by_numpy = work()
    with patch.object(kernels, "FEW_ROWS", 0):
        return by_numpy, work()


@given(columns, st.data())
@fast
def test_rows_are_picked_as_arrow_picks_them(column: BytesColumn, data: st.DataObject) -> None:
    picks = st.lists(st.integers(0, max(len(column) - 1, 0)), max_size=20 if len(column) else 0)
    rows = np.array(data.draw(picks), np.int64)
    starts, lengths = column.splits[rows], column.lengths()[rows]
    every = column.to_list()
    for found in (
        *by_numpy_and_by_arrow(lambda: column.take(rows)),
        *by_numpy_and_by_arrow(lambda: BytesColumn.gather(column.data, starts, lengths)),
    ):
        assert found.to_list() == [every[row] for row in rows.tolist()]


@given(columns)
@fast
def test_columns_compare_as_arrow_compares_them(column: BytesColumn) -> None:
    ascending, by_arrow = by_numpy_and_by_arrow(column.is_ascending)
    assert ascending == by_arrow
    order, their_order = by_numpy_and_by_arrow(column.sort_order)
    assert order.tolist() == their_order.tolist()
    for work in (column.runs, column.distinct):
        (ours, numbers), (theirs, their_numbers) = by_numpy_and_by_arrow(work)
        assert ours.to_list() == theirs.to_list()
        assert numbers.tolist() == their_numbers.tolist()


@given(columns)
@fast
def test_columns_are_framed_as_arrow_frames_them(column: BytesColumn) -> None:
    ours, theirs = by_numpy_and_by_arrow(column.framed)
    assert ours.tobytes() == theirs.tobytes()


@given(texts)
@fast
def test_text_is_what_arrow_takes_for_it(rows: list[bytes]) -> None:
    column = BytesColumn.from_list(rows)

    def unpacked() -> list[str] | None:
        try:
            column.check_text()
        except FormatError:
            with pytest.raises(FormatError, match="UTF-8"):
                column.to_strings()
            return None
        return column.to_strings()

    ours, theirs = by_numpy_and_by_arrow(unpacked)
    assert ours == theirs
    if ours is not None:
        assert ours == [row.decode() for row in rows]


def test_long_columns_give_what_short_ones_give() -> None:
    rows = [b"%d" % (number // 3) for number in range(3 * FEW_ROWS)]
    column = BytesColumn.from_list(rows)
    numbers: NDArray[np.int64] = np.arange(len(rows) - 1, -1, -1)
    assert column.take(numbers).to_list() == rows[::-1]
    distinct, of_row = column.distinct()
    assert distinct.to_list() == list(dict.fromkeys(rows))
    assert of_row.tolist() == [number // 3 for number in range(3 * FEW_ROWS)]
    assert [rows[row] for row in column.sort_order().tolist()] == sorted(rows)
    assert column.framed().tobytes() == b"".join(
        len(row).to_bytes(4, "little") + row + bytes(4 - len(row) % 4) for row in rows
    )


@given(columns, columns, st.data())
@fast
def test_rows_are_inserted(column: BytesColumn, more: BytesColumn, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(column)))
    rows = column.to_list()
    assert column.with_rows(at, more).to_list() == rows[:at] + more.to_list() + rows[at:]


# -- tables --------------------------------------------------------------------------------

NUMBERS = {"Q": 2**64 - 1, "I": 2**32 - 1, "i": 2**31 - 1, "H": 2**16 - 1, "B": 255}
fields = st.lists(st.sampled_from([*NUMBERS, "12s", OFFSET]), max_size=7)


@given(fields, st.data())
@fast
def test_trees_are_read_as_written(codes: list[str], data: st.DataObject) -> None:
    slots = data.draw(st.permutations(range(len(codes))))
    shape = TableShape(*zip(slots, codes, strict=True))
    values: dict[int, Any] = {
        slot: data.draw(st.binary(min_size=12, max_size=12))
        if code in {"12s", OFFSET}
        else data.draw(st.integers(0, NUMBERS[code]))
        for slot, code in zip(slots, codes, strict=True)
    }
    tree = Tree()
    outer = TableShape((0, OFFSET))
    (place,) = tree.links(1, tree.table(outer) + outer.at[0])
    packed = [values[slot] for slot, code in zip(slots, codes, strict=True) if code != OFFSET]
    at = tree.table(shape, *packed, field=place)
    for slot, code in zip(slots, codes, strict=True):
        if code == OFFSET:
            tree.blob(values[slot], at + shape.at[slot])
    payload = open_envelope(seal_buffer([tree], FileType.MANIFEST, 2)).payload
    (table,) = ScalarBuffer(decompress(payload)).root().children(0)
    for slot, code in zip(slots, codes, strict=True):
        match code:
            case "12s":
                assert table.struct(slot, 12) == values[slot]
            case str() if code == OFFSET:
                assert table.blob(slot) == values[slot]
            case _:
                assert table.number(slot, code) == values[slot]
    assert table.optional_blob(len(codes)) is None


# -- files ---------------------------------------------------------------------------------


@given(manifests(), specs)
@fast
def test_manifests(tables: dict[NodeId, ChunkTable], spec_version: int) -> None:
    for written in (0, MANY):
        data = encode_manifest(manifest_id(1), tables, spec_version=spec_version, few=written)
        file = ManifestFile(data)
        assert file.num_chunk_refs == sum(map(len, tables.values()))
        for node, table in tables.items():
            one_by_one, in_columns = (file.table(node, few=few) for few in (MANY, 0))
            assert one_by_one == in_columns
            assert as_model(one_by_one) == as_model(table)
            for coordinates, ref in as_model(table).items():
                assert file.find(node, coordinates) == ref
                assert table.find(coordinates) == ref


@given(logs(), specs)
@fast
def test_logs(log: TransactionLog, spec_version: int) -> None:
    for written in (0, MANY):
        data = encode_transaction_log(log, spec_version=spec_version, few=written)
        for read in (0, MANY):
            assert log_as_dict(decode_transaction_log(data, few=read)) == log_as_dict(log)


@given(snapshots())
@fast
def test_snapshots(snapshot: Snapshot) -> None:
    for written in (0, MANY):
        data = encode_snapshot(snapshot, few=written)
        for read in (0, MANY):
            found = decode_snapshot(data, few=read)
            assert snapshot_as_dict(found) == snapshot_as_dict(snapshot)


@given(snapshots(), st.text(max_size=4))
@fast
def test_nodes_are_found_one_by_one(snapshot: Snapshot, other: str) -> None:
    data = encode_snapshot(snapshot)
    for path in [*snapshot.nodes.paths.to_strings(), f"/{other}"]:
        found = open_snapshot(data).contents
        assert isinstance(found, StoredNodes)
        assert found.find(path) == snapshot.nodes.find(path)
    assert snapshot_as_dict(open_snapshot(data)) == snapshot_as_dict(snapshot)


@given(snapshots())
@fast
def test_manifests_are_found_one_by_one(snapshot: Snapshot) -> None:
    files = snapshot.manifests
    for written in (0, MANY):
        data = encode_snapshot(snapshot, few=written)
        assert len(open_snapshot(data).files) == len(files)
        for one in [*ids_of_rows(ManifestId, files.ids), ManifestId.random()]:
            assert open_snapshot(data).files.size_of(one) == files.size_of(one)


@given(
    st.lists(st.binary(min_size=12, max_size=12), min_size=1, max_size=12, unique=True), st.data()
)
@fast
def test_adding_a_snapshot_equals_packing_all(raw: list[bytes], data: st.DataObject) -> None:
    entries = list[SnapshotEntry]()
    for number, one in enumerate(raw):
        parent = data.draw(st.sampled_from([None, *(entry.id for entry in entries)]))
        pruned = tuple(SnapshotId(bytes([byte]) * 12) for byte in data.draw(short)[:2])
        metadata = {f"key {place}": number for place in range(number % 3)}
        entries.append(
            SnapshotEntry(SnapshotId(one), parent, number, f"n{number}", metadata, pruned)
        )
    table = SnapshotTable.from_entries(entries[:1])
    for entry in entries[1:]:
        table = table.with_entry(entry)
    wanted = SnapshotTable.from_entries(entries)
    assert [table.entry(row) for row in range(len(table))] == [
        wanted.entry(row) for row in range(len(wanted))
    ]


@given(repos())
@fast
def test_repo_objects(repo: RepoInfo) -> None:
    data = encode_repo_info(repo)
    for read in (0, MANY):
        found = decode_repo_info(data, few=read)
        assert repo_as_dict(found) == repo_as_dict(repo)
        for written in (0, MANY):
            # Read again, because a table remembers how it was written.
            rewritten = encode_repo_info(decode_repo_info(data, few=read), few=written)
            assert repo_as_dict(decode_repo_info(rewritten)) == repo_as_dict(repo)


@given(repos(), updates(), st.data())
@fast
def test_a_repo_object_that_grows_equals_one_written_anew(
    repo: RepoInfo, log: list[UpdateEntry], data: st.DataObject
) -> None:
    for number, update in enumerate(log):
        encode_repo_info(repo)  # so that the next state is made from what was written
        new = SnapshotEntry(
            SnapshotId(data.draw(st.binary(min_size=12, max_size=12))),
            repo.branches["main"],
            number,
            f"commit {number}",
            {"number": number} if number % 2 else {},
            (snapshot_id(1),) if number % 3 == 1 else (),
        )
        if repo.snapshots.row_of(new.id) is None:
            repo = replace(repo, history=repo.snapshots.with_entry(new))
        log_now = repo.updates.with_newest(update, f"copy {number}")
        repo = replace(repo, log=log_now.newest(data.draw(st.integers(1, len(log_now)))))
    grown = encode_repo_info(repo, few=MANY)
    again = decode_repo_info(grown)
    assert repo_as_dict(again) == repo_as_dict(repo)
    assert repo_as_dict(decode_repo_info(encode_repo_info(again, few=0))) == repo_as_dict(repo)


# -- changes of few rows -------------------------------------------------------------------


@given(snapshots(), st.data())
@fast
def test_manifests_are_exchanged_as_nodes_are(snapshot: Snapshot, data: st.DataObject) -> None:
    table = snapshot.nodes
    refs = st.lists(
        st.builds(
            ManifestRef,
            st.integers(0, 9).map(manifest_id),
            st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=2).map(tuple),
        ),
        max_size=3,
    ).map(tuple)
    arrays = np.flatnonzero(table.is_array).tolist()
    chosen = data.draw(st.dictionaries(st.sampled_from(arrays), refs)) if arrays else {}
    nodes = [table.node(row) for row in chosen]
    exchanged = [
        replace(node, array=replace(node.array, manifests=chosen[row]))
        for row, node in zip(chosen, nodes, strict=True)
        if isinstance(node, ArrayNode)
    ]
    wanted = table.overlay(NodeTable.from_nodes(exchanged))
    found = table.with_manifests(chosen)
    assert [found.node(row) for row in range(len(found))] == [
        wanted.node(row) for row in range(len(wanted))
    ]


@given(manifests(), st.data())
@fast
def test_few_rows_go_as_many_do(tables: dict[NodeId, ChunkTable], data: st.DataObject) -> None:
    for table in tables.values():
        rows = data.draw(st.lists(st.integers(0, max(len(table) - 1, 0)), max_size=6))
        picked = table.take(np.array(rows[: len(rows) if len(table) else 0], np.int64)).coordinates
        wanted = [row for row in range(len(table)) if row not in rows]
        assert table.without(picked) == table.take(np.array(wanted, np.int64))
        assert table.without(np.concatenate([picked] * 9)) == table.without(picked)
        assert table.without(picked).compacted() == table.without(picked)
