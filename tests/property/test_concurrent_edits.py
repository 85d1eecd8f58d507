"""Two writers at once: whatever is accepted is what one after the other would have made."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from icefloe.errors import RebaseFailedError, SessionStateError
from icefloe.format.chunk_table import are_among
from icefloe.format.ids import NodeId
from icefloe.format.nodes import ArrayNode, GroupNode, NodeTable
from icefloe.format.paths import parent_path
from icefloe.transactions import nodes
from icefloe.transactions.conflicts import BasicConflictSolver, ConflictDetector, VersionSelection
from icefloe.transactions.rebase import rows_of_paths
from icefloe.transactions.session import SessionState
from tests.support.checking import check_repository_blocking
from tests.support.sides import Ours, Tree, array_json, furnish, group_json

type Operation = tuple[str, str, int]

PATHS = ["/a", "/g", "/g/s", "/g/x", "/g/s/n", "/g/n", "/h", "/h/n", "/n", "/n/m"]
OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["group", "array", "write", "write", "erase", "delete"]),
        st.sampled_from(PATHS),
        st.integers(0, 3),
    ),
    max_size=4,
)


def perform(side: Ours, session: SessionState, operation: Operation) -> bool:
    """Do what makes sense; say whether anything was done."""
    what, path, number = operation
    node, parent = (
        session.tree.find(path),
        session.tree.find(parent_path(path) or "/"),
    )
    is_new = node is not None and node.id in session.changes.created
    match what:
        case "group" | "array":
            is_array = what == "array"
            if parent is None or isinstance(parent, ArrayNode):
                return False
            if node is not None and isinstance(node, ArrayNode) is not is_array:
                return False
            metadata = array_json([8 + number], number) if is_array else group_json(number)
            if node is not None and node.user_data == metadata:
                return False
            nodes.put_metadata(session, path, metadata)
        case "delete":
            # Creating and deleting leaves no trace, which is not what a repetition would do.
            if node is None or any(
                one.id in session.changes.created for one in session.tree.below(path)
            ):
                return False
            side.delete(session, path)
        case _:
            if node is None or not isinstance(node, ArrayNode):
                return False
            if what == "write":
                side.write(session, path, number, value=bytes([number, is_new]))
            else:
                side.erase(session, path, number)
    return True


def perform_all(side: Ours, session: SessionState, operations: list[Operation]) -> list[Operation]:
    return [one for one in operations if perform(side, session, one)]


def is_sound(tree: Tree) -> bool:
    """Every node lies in a group."""
    return all(
        (parent := parent_path(path)) is None or tree.get(parent, {}) is None for path in tree
    )


def lasting(operations: list[Operation]) -> list[Operation]:
    """Leave out changes of chunks whose array was deleted later: others may delete it, too."""
    return [
        (what, path, number)
        for index, (what, path, number) in enumerate(operations)
        if what in {"array", "group", "delete"}
        or not any(
            later == "delete" and f"{path}/".startswith(f"{deleted}/")
            for later, deleted, _ in operations[index + 1 :]
        )
    ]


def repeated(side: Ours, operations: list[Operation]) -> Tree:
    """Return the tree that a session on the tip sees after the same operations."""
    session = side.begin()
    for what, path, number in lasting(operations):
        match what:
            case "array":
                side.array(session, path, 8 + number, mark=number)
            case "group":
                side.group(session, path, number)
            case "delete":
                side.delete(session, path)
            case "write":
                node = nodes.require_array(session, path)
                is_new = node.id in session.changes.created
                side.write(session, path, number, value=bytes([number, is_new]))
            case _:
                side.erase(session, path, number)
    return side.tree(session)


@pytest.mark.parametrize("spec", [1, 2])
@settings(max_examples=50)
@given(OPERATIONS, st.lists(OPERATIONS, min_size=1, max_size=2))
@example([("write", "/g/x", 0), ("delete", "/g", 0)], [[("delete", "/g", 0)]])
def test_what_does_not_conflict_is_like_one_after_the_other(
    spec: int, ours: list[Operation], theirs: list[list[Operation]]
) -> None:
    side: Ours = furnish(Ours(spec))
    session = side.begin()
    done = perform_all(side, session, ours)
    for operations in theirs:
        other = side.begin()
        perform_all(side, other, operations)
        side.commit(other, allow_empty=True)
    try:
        side.rebase(session, ConflictDetector())
    except RebaseFailedError:
        return
    expected = repeated(side, done)
    side.commit(session, allow_empty=True)
    assert side.tree() == expected
    assert is_sound(expected)
    check_repository_blocking(side.context.backend)


@settings(max_examples=50)
@given(
    OPERATIONS, OPERATIONS, st.sampled_from([VersionSelection.UseOurs, VersionSelection.UseTheirs])
)
def test_no_solution_does_damage(
    ours: list[Operation], theirs: list[Operation], choice: VersionSelection
) -> None:
    side: Ours = furnish(Ours())
    session, other = side.begin(), side.begin()
    perform_all(side, session, ours)
    perform_all(side, other, theirs)
    side.commit(other, allow_empty=True)
    before = side.status(session)
    try:
        side.commit(session, solver=BasicConflictSolver(on_chunk_conflict=choice), allow_empty=True)
    except RebaseFailedError:
        assert side.status(session) == before
    assert is_sound(side.tree())
    check_repository_blocking(side.context.backend)


@settings(max_examples=50)
@given(OPERATIONS, OPERATIONS, OPERATIONS)
def test_what_merges_is_like_one_after_the_other(
    before: list[Operation], first: list[Operation], second: list[Operation]
) -> None:
    side: Ours = furnish(Ours())
    session = side.begin()
    perform_all(side, session, before)
    side.commit(session, allow_empty=True)
    session = side.begin()
    forks = side.fork(session), side.fork(session)
    done = [
        *perform_all(side, forks[0], first),
        *perform_all(side, forks[1], second),
    ]
    try:
        side.merge(session, *forks)
    except SessionStateError:
        assert session.changes.is_empty()
        return
    expected = repeated(side, done)
    side.commit(session, allow_empty=True)
    assert side.tree() == expected
    assert is_sound(expected)
    check_repository_blocking(side.context.backend)


COORDINATES: Callable[[int], Any] = lambda dimensions: st.sets(  # noqa: E731
    st.tuples(*[st.integers(0, 3) | st.integers(2**32 - 3, 2**32 - 1)] * dimensions), max_size=12
)


@given(st.integers(0, 4).flatmap(lambda n: st.tuples(st.just(n), COORDINATES(n), COORDINATES(n))))
def test_common_coordinates(drawn: tuple[int, set[Any], set[Any]]) -> None:
    dimensions, ours, theirs = drawn
    mine, other = (
        np.array(sorted(rows), np.uint32).reshape(len(rows), dimensions) for rows in (ours, theirs)
    )
    found = mine[are_among(mine, other)]
    assert list(map(tuple, found.tolist())) == sorted(ours & theirs)


@given(st.sets(st.integers(0, 300), max_size=200), st.sets(st.integers(0, 300), max_size=200))
def test_many_paths_are_found_as_few_are(there: set[int], wanted: set[int]) -> None:
    table = NodeTable.from_nodes([GroupNode(NodeId.random(), f"/{n}", b"{}") for n in there])
    paths = [f"/{n}" for n in wanted]
    found = rows_of_paths(table, paths)
    assert found == {path: row for path in paths if (row := table.row_of(path)) is not None}
