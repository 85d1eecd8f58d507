"""Nodes of two versions compared in columns, against dictionaries."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.format.columns import BytesColumn
from icefloe.format.ids import NodeId
from icefloe.format.nodes import GroupNode, NodeTable
from icefloe.web import diffs

NAMES = st.sampled_from([f"/{letter}" for letter in "abcdefgh"])
NUMBERS = st.integers(0, 9)


@st.composite
def trees(draw: st.DrawFn) -> dict[str, NodeId]:
    """Draw groups: an id by path, both only once."""
    paths = draw(st.lists(NAMES, unique=True))
    numbers = draw(st.lists(NUMBERS, unique=True, min_size=len(paths), max_size=len(paths)))
    return {path: NodeId(bytes([number] * 8)) for path, number in zip(paths, numbers, strict=False)}


def table_of(tree: dict[str, NodeId]) -> NodeTable:
    return NodeTable.from_nodes([GroupNode(node, path, b"{}") for path, node in tree.items()])


@given(trees(), trees())
def test_nodes_pair_by_id_and_then_by_path(old: dict[str, NodeId], new: dict[str, NodeId]) -> None:
    tables = table_of(old), table_of(new)
    pairs = diffs.pair_nodes(*tables)
    paths = [table.paths.to_strings() for table in tables]
    by_id = {node: path for path, node in old.items()}
    same = {(by_id[node], path) for path, node in new.items() if node in by_id}
    left_old = set(old) - {source for source, _ in same}
    left_new = set(new) - {target for _, target in same}
    replaced = {(path, path) for path in left_old & left_new}
    found = [
        (paths[0][a], paths[1][b], bool(is_replaced))
        for a, b, is_replaced in zip(pairs.old, pairs.new, pairs.is_replaced, strict=True)
    ]
    assert sorted(found) == sorted(
        [(*pair, False) for pair in same] + [(*pair, True) for pair in replaced]
    )
    assert {paths[0][row] for row in pairs.deleted} == left_old - left_new
    assert {paths[1][row] for row in pairs.created} == left_new - left_old
    assert pairs.new.tolist() == sorted(pairs.new.tolist())


@pytest.mark.parametrize("few", [0, 2048])
@pytest.mark.parametrize("most_runs", [0, 64])
@given(
    left=st.lists(st.binary(max_size=3), min_size=1, max_size=8),
    right=st.lists(st.binary(max_size=3), min_size=1, max_size=8),
    data=st.data(),
)
def test_rows_are_compared_like_bytes(
    few: int, most_runs: int, left: list[bytes], right: list[bytes], data: st.DataObject
) -> None:
    rows = st.lists(
        st.tuples(st.integers(0, len(left) - 1), st.integers(0, len(right) - 1)), max_size=9
    )
    chosen = np.array(data.draw(rows), np.int64).reshape(-1, 2)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(diffs, "FEW_ROWS", few)
        patched.setattr(diffs, "_MOST_RUNS", most_runs)
        equal = diffs._equal(
            BytesColumn.from_list(left),
            chosen[:, 0],
            BytesColumn.from_list(right),
            chosen[:, 1],
        )
    assert equal.tolist() == [left[a] == right[b] for a, b in chosen.tolist()]
