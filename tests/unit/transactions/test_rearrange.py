"""Moves and relabelled chunks, where there is no reference to compare with."""

import json

import pytest

from icefloe.errors import (
    AlreadyExistsError,
    ErrorKind,
    InvalidInputError,
)
from icefloe.format.ids import NodeId
from icefloe.format.nodes import GroupNode, NodeTable
from icefloe.transactions import nodes
from icefloe.transactions.rearrange import net_moves
from icefloe.transactions.tree import renamed
from tests.support.sides import Ours, array_json, furnish


@pytest.fixture
def side() -> Ours:
    furnished: Ours = furnish(Ours())
    return furnished


def test_no_move_onto_nodes_without_a_group() -> None:
    side = Ours()
    session = side.begin()
    side.group(session, "/")
    side.group(session, "/g")
    side.group(session, "/b/g")
    side.commit(session)
    with pytest.raises(AlreadyExistsError) as failure:
        side.move(side.begin_moving(), "/g", "/b")
    assert failure.value.kind == ErrorKind.MOVE_WONT_OVERWRITE


@pytest.mark.parametrize("target", ["/b/", "/b//c", "/../b", "b", ""])
def test_no_move_to_what_is_no_path(side: Ours, target: str) -> None:
    with pytest.raises(InvalidInputError) as failure:
        side.move(side.begin_moving(), "/a", target)
    assert failure.value.kind == ErrorKind.INVALID_PATH


def test_chunks_are_read_under_the_new_name(side: Ours) -> None:
    session = side.begin_moving()
    side.move(session, "/a", "/g/s/a")
    side.move(session, "/g", "/i")
    before = side.tree()["/a"]
    assert side.tree(session)["/i/s/a"] == before
    side.commit(session)
    assert side.tree()["/i/s/a"] == before


def test_logs_are_sorted_by_segments() -> None:
    paths = ["/h", "/h/a", "/h/a-b", "/h/a/b", "/h/ab"]
    before = NodeTable.from_nodes([GroupNode(NodeId.random(), path, b"{}") for path in paths])
    moves = net_moves(before, renamed(before, "/h", "/k"))
    assert [move.target for move in moves] == ["/k", "/k/a", "/k/a/b", "/k/a-b", "/k/ab"]
    assert [move.source for move in moves] == ["/h", "/h/a", "/h/a/b", "/h/a-b", "/h/ab"]


def test_renaming_spares_names_that_only_begin_alike() -> None:
    paths = ["/é", "/é/x", "/éa", "/é-"]
    table = NodeTable.from_nodes(
        [GroupNode(NodeId.random(), path, path.encode()) for path in paths]
    )
    moved = renamed(table, "/é", "/a")
    nodes_found = [moved.node(row) for row in range(len(moved))]
    assert [node.path for node in nodes_found] == ["/a", "/a/x", "/é-", "/éa"]
    assert [node.user_data.decode() for node in nodes_found] == ["/é", "/é/x", "/é-", "/éa"]


@pytest.mark.parametrize("offset", [(), (1, 1)])
def test_an_offset_for_each_dimension(side: Ours, offset: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInputError) as failure:
        side.shift(side.begin(), "/a", *offset)
    assert failure.value.kind == ErrorKind.INVALID_CHUNK_INDEX


def test_a_scalar_has_nowhere_to_go(side: Ours) -> None:
    session = side.begin()
    side.array(session, "/scalar")
    side.write(session, "/scalar", value=b"v")
    side.shift(session, "/scalar")
    side.reindex(session, "/scalar", lambda index: index)
    assert side.tree(session)["/scalar"] == {(): b"v"}


def test_chunks_of_different_shapes_stay(side: Ours) -> None:
    session = side.begin()
    metadata = json.loads(array_json([10]))
    metadata["chunk_grid"] = {
        "name": "rectilinear",
        "configuration": {"kind": "inline", "chunk_shapes": [[2, 3, 5]]},
    }
    nodes.put_metadata(session, "/r", json.dumps(metadata).encode())
    with pytest.raises(InvalidInputError, match="rectilinear"):
        side.shift(session, "/r", 1)


@pytest.mark.parametrize("target", [[0, 0], [-1], [8], [1.0], []])
def test_reindex_refuses_what_is_no_chunk(side: Ours, target: list[int]) -> None:
    session = side.begin()
    with pytest.raises(InvalidInputError) as failure:
        side.reindex(session, "/a", lambda _: target)
    assert failure.value.kind == ErrorKind.INVALID_CHUNK_INDEX
    assert session.changes.is_empty()


def test_reindex_passes_on_what_a_function_raises(side: Ours) -> None:
    session = side.begin()
    with pytest.raises(ZeroDivisionError):
        side.reindex(session, "/a", lambda _: 1 // 0)
    assert session.changes.is_empty()
