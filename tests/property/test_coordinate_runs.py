"""Coordinates kept compressed: the same files as from columns, in whatever pieces they come."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from icefloe.format.chunk_table import Coordinates
from icefloe.format.ids import NodeId, SnapshotId
from icefloe.format.log_chunks import CoordinateRuns
from icefloe.format.transaction_log import (
    TransactionLog,
    decode_transaction_log,
    encode_transaction_log,
)

NODE, SNAPSHOT = NodeId(bytes(8)), SnapshotId(bytes(12))


def rows_of(points: set[tuple[int, ...]], dimensions: int) -> Coordinates:
    return np.array(sorted(points), np.uint32).reshape(len(points), dimensions)


@given(data=st.data(), dimensions=st.integers(0, 3), few=st.sampled_from([0, 64]))
def test_pieces_are_written_as_one_column(data: st.DataObject, dimensions: int, few: int) -> None:
    points = st.tuples(*[st.sampled_from([*range(12), 2**32 - 1])] * dimensions)
    pieces = data.draw(st.lists(st.lists(points, max_size=40), max_size=6))
    runs = CoordinateRuns(dimensions, merged_rows=1)
    for piece in pieces:
        runs.add(np.array(piece, np.uint32).reshape(len(piece), dimensions))
    united = rows_of({point for piece in pieces for point in piece}, dimensions)
    assert len(runs) == len(united)
    log = TransactionLog(SNAPSHOT, updated_chunks={NODE: united})
    expected = encode_transaction_log(log, few=few)
    assert encode_transaction_log(TransactionLog(SNAPSHOT), runs={NODE: runs}, few=few) == (
        expected
    )


@settings(max_examples=15)
@given(
    order=st.permutations([0, 1, 2]),
    parts=st.integers(1, 9),
    merged_rows=st.sampled_from([5000, 30_000, 2**21]),
    doubled=st.booleans(),
)
def test_many_rows_in_parts_along_any_axis(
    order: list[int], parts: int, merged_rows: int, doubled: bool
) -> None:
    """Parts along the first axis follow one another; along others they have to be merged."""
    grid = np.indices((9, 60, 250), np.uint32).reshape(3, -1).T
    runs = CoordinateRuns(3, merged_rows=merged_rows)
    axis = order[0]
    for part in range(parts):
        runs.add(grid[grid[:, axis] % parts == part])
        if doubled:
            runs.add(grid[part : part + 70_000])
    assert len(runs) == len(grid)
    assert runs.memory_bytes < grid.nbytes / (5 if not doubled else 2)
    batches = list(runs.batches(1000))
    assert [len(batch) for batch in batches] == [1000] * 135
    assert np.array_equal(np.concatenate(batches), grid)
    file = encode_transaction_log(TransactionLog(SNAPSHOT), runs={NODE: runs})
    assert np.array_equal(decode_transaction_log(file).updated_chunks[NODE], grid)


def test_runs_stand_in_place_of_what_a_log_has() -> None:
    runs = CoordinateRuns(1)
    runs.add(np.array([[4]], np.uint32))
    other = NodeId(b"another!")
    log = TransactionLog(
        SNAPSHOT, updated_chunks={NODE: rows_of({(1,)}, 1), other: rows_of({(9,)}, 1)}
    )
    found = decode_transaction_log(encode_transaction_log(log, runs={NODE: runs})).updated_chunks
    assert {node: rows.tolist() for node, rows in found.items()} == {NODE: [[4]], other: [[9]]}
