"""Transaction logs: order of what they list, and what they refuse."""

from collections.abc import Callable

import numpy as np
import pytest

from icefloe.errors import FormatError
from icefloe.format.envelope import FileType
from icefloe.format.ids import NodeId, id_rows
from icefloe.format.transaction_log import (
    ID_LISTS,
    Move,
    TransactionLog,
    decode_transaction_log,
    encode_transaction_log,
    sorted_coordinates,
    sorted_ids,
)
from tests.fuzz.bombs import Layout, enclosed
from tests.unit.format import samples
from tests.unit.format.samples import grid, node_id, snapshot_id


def same(left: TransactionLog, right: TransactionLog) -> bool:
    return (
        left.id == right.id
        and all(np.array_equal(getattr(left, n), getattr(right, n)) for n in ID_LISTS)
        and list(left.updated_chunks) == list(right.updated_chunks)
        and all(
            np.array_equal(chunks, right.updated_chunks[node])
            for node, chunks in left.updated_chunks.items()
        )
        and left.moves == right.moves
    )


@pytest.mark.parametrize("spec_version", [1, 2])
def test_everything_comes_back(spec_version: int) -> None:
    log = samples.transaction_log()
    assert same(decode_transaction_log(encode_transaction_log(log, spec_version=spec_version)), log)
    empty = TransactionLog(snapshot_id(1))
    data = encode_transaction_log(empty, spec_version=spec_version)
    assert same(decode_transaction_log(data), empty)


def test_lists_are_sorted_when_written() -> None:
    ids = [node_id(n) for n in (5, 2**40, 1)]
    log = TransactionLog(
        snapshot_id(1),
        new_arrays=id_rows(NodeId, ids),
        updated_chunks={
            node_id(9): grid(30, 2)[::-1],
            node_id(1): grid(3)[::-1],
        },
    )
    read = decode_transaction_log(encode_transaction_log(log))
    assert read.nodes("new_arrays") == sorted(ids)
    assert list(read.updated_chunks) == [node_id(1), node_id(9)]
    assert np.array_equal(read.updated_chunks[node_id(9)], grid(30, 2))
    assert np.array_equal(read.updated_chunks[node_id(1)], grid(3))


def test_moves_are_ordered_segment_by_segment() -> None:
    targets = ["/h/a", "/h/a/b", "/h/a-b", "/h/ab"]
    moves = tuple(
        Move(f"/old{n}", target, node_id(n), is_array=bool(n % 2))
        for n, target in enumerate(targets)
    )
    log = TransactionLog(snapshot_id(1), moves=moves[::-1])
    assert decode_transaction_log(encode_transaction_log(log)).moves == moves


@pytest.mark.parametrize("rows", [0, 1, 511, 512, 513, 1025])
def test_chunks_at_the_edges_of_blocks(rows: int) -> None:
    chunks = {node_id(1): grid(rows, 1, 1), node_id(2): grid(rows), node_id(3): grid(1, rows)}
    log = TransactionLog(snapshot_id(1), updated_chunks=chunks)
    read = decode_transaction_log(encode_transaction_log(log))
    for node, coordinates in chunks.items():
        assert read.updated_chunks[node].tolist() == coordinates.tolist()


def test_arrays_of_different_dimensions_may_alternate() -> None:
    chunks = {
        node_id(n): np.full((n % 7, n % 5), n, np.uint32)
        + np.arange(n % 7, dtype=np.uint32)[:, None]
        for n in range(200)
    }
    log = TransactionLog(snapshot_id(1), updated_chunks=chunks)
    read = decode_transaction_log(encode_transaction_log(log))
    assert list(read.updated_chunks) == list(chunks)
    for node, coordinates in chunks.items():
        assert read.updated_chunks[node].tolist() == coordinates.tolist()


def test_sorting_columns() -> None:
    ids = id_rows(NodeId, [node_id(n) for n in (256, 1, 0, 2**63)])
    assert sorted_ids(ids).tolist() == id_rows(
        NodeId, [node_id(n) for n in (0, 1, 256, 2**63)]
    ).tolist()  # fmt: skip
    assert sorted_ids(ids[:1]) is ids[:1] or sorted_ids(ids[:1]).tolist() == ids[:1].tolist()
    ordered = grid(4, 4)
    assert sorted_coordinates(ordered) is ordered
    assert np.array_equal(sorted_coordinates(ordered[::-1]), ordered)


def log_with(fields: dict[int, bytes | str], rest: Callable[[Layout], None]) -> bytes:
    layout = Layout()
    usual: dict[int, bytes | str] = dict.fromkeys(range(1, 8), "none")
    layout.table("root", usual | {0: bytes(12)} | fields)
    rest(layout)
    layout.vector("none", 0, b"")
    return enclosed(FileType.TRANSACTION_LOG, layout.finish())


def test_an_array_listed_twice_is_refused() -> None:
    def rest(layout: Layout) -> None:
        layout.links("arrays", ["array", "array"])
        layout.table("array", {0: bytes(8), 1: "none"})

    with pytest.raises(FormatError, match="chunks of an array twice"):
        decode_transaction_log(log_with({7: "arrays"}, rest))


def test_coordinates_of_different_lengths_are_refused() -> None:
    def rest(layout: Layout) -> None:
        layout.links("arrays", ["array"])
        layout.table("array", {0: bytes(8), 1: "chunks"})
        layout.links("chunks", ["one", "two"])
        layout.table("one", {0: "short"})
        layout.table("two", {0: "long"})
        layout.vector("short", 1, bytes(4))
        layout.vector("long", 2, bytes(8))

    with pytest.raises(FormatError, match="number of dimensions"):
        decode_transaction_log(log_with({7: "arrays"}, rest))


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_moves_must_be_complete(missing: int) -> None:
    fields: dict[int, bytes | str] = {0: "path", 1: "path", 2: bytes(8)}
    del fields[missing]

    def rest(layout: Layout) -> None:
        layout.links("moves", ["move"])
        layout.table("move", fields)
        layout.vector("path", 2, b"/a")

    with pytest.raises(FormatError, match="lacks its id or one of its paths"):
        decode_transaction_log(log_with({8: "moves"}, rest))


def test_a_node_moved_twice_is_refused() -> None:
    def rest(layout: Layout) -> None:
        layout.links("moves", ["move", "move"])
        layout.table("move", {0: "path", 1: "path", 2: bytes(8)})
        layout.vector("path", 2, b"/a")

    with pytest.raises(FormatError, match="moves a node twice"):
        decode_transaction_log(log_with({8: "moves"}, rest))


def test_logs_without_moves_are_of_older_writers() -> None:
    assert decode_transaction_log(log_with({}, lambda _: None)).moves == ()
