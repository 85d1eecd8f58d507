"""The same two commits meet in the reference and in our engine: what each makes of it."""

from collections.abc import Callable
from typing import Any

import icechunk as ic
import pytest

from icefloe import errors
from icefloe.transactions import conflicts
from tests.interop.sides import Reference
from tests.support.sides import Ours, furnish

pytestmark = pytest.mark.interop

type Edit = Callable[[Any, Any], object]

SOLVERS = ["detector", "ours", "theirs", "fail", "strict array", "strict group"]


def solver_of(module: Any, name: str) -> Any:
    selection = module.VersionSelection
    match name:
        case "detector":
            return module.ConflictDetector()
        case "ours":
            return module.BasicConflictSolver()
        case "theirs":
            return module.BasicConflictSolver(on_chunk_conflict=selection.UseTheirs)
        case "fail":
            return module.BasicConflictSolver(on_chunk_conflict=selection.Fail)
        case "strict array":
            return module.BasicConflictSolver(fail_on_delete_of_updated_array=True)
        case _:
            return module.BasicConflictSolver(fail_on_delete_of_updated_group=True)


def outcome(side: Any, module: Any, solver: str, ours: Edit, theirs: Edit, mode: str = "") -> Any:
    """Let two sessions meet; give the conflicts, or the tree after the commit of both."""
    furnish(side)
    session = side.begin_moving() if "ours" in mode else side.begin()
    ours(side, session)
    other = side.begin_moving() if "theirs" in mode else side.begin()
    theirs(side, other)
    side.commit(other)
    try:
        side.rebase(session, solver_of(module, solver))
    except (ic.RebaseFailedError, errors.RebaseFailedError) as failure:
        return {
            (
                int(one.conflict_type),  # type: ignore[arg-type] # an enum there
                # The reference leaves out which node was moved.
                "" if one.conflict_type == 11 else one.path,
                str(one.conflicted_chunks),
            )
            for one in failure.conflicts
        }
    side.commit(session, allow_empty=True)
    return side.tree()


SAME: dict[str, tuple[Edit, Edit]] = {
    "unrelated": (lambda s, x: s.write(x, "/a", 0), lambda s, x: s.write(x, "/a", 1)),
    "new node, existing node": (lambda s, x: s.array(x, "/n", 2), lambda s, x: s.group(x, "/n")),
    "new groups": (lambda s, x: s.group(x, "/n"), lambda s, x: s.group(x, "/n")),
    "new node in array": (
        lambda s, x: s.group(x, "/g/s/n"),
        lambda s, x: (s.delete(x, "/g/s"), s.array(x, "/g/s", 1)),
    ),
    "metadata twice": (lambda s, x: s.group(x, "/g", 1), lambda s, x: s.group(x, "/g", 2)),
    "array metadata twice": (
        lambda s, x: s.array(x, "/a", 8, mark=1),
        lambda s, x: s.array(x, "/a", 8, mark=2),
    ),
    "metadata of deleted array": (
        lambda s, x: s.array(x, "/a", 8, mark=1),
        lambda s, x: s.delete(x, "/a"),
    ),
    "metadata of deleted group": (
        lambda s, x: s.group(x, "/g", 1),
        lambda s, x: s.delete(x, "/g"),
    ),
    "chunks twice": (
        lambda s, x: [s.write(x, "/a", i, value=b"o") for i in (1, 2, 3)],
        lambda s, x: [s.write(x, "/a", i, value=b"t") for i in (2, 3, 4)],
    ),
    "chunk erased and written": (
        lambda s, x: s.erase(x, "/a", 5),
        lambda s, x: s.write(x, "/a", 5, value=b"t"),
    ),
    "chunk written and erased": (
        lambda s, x: s.write(x, "/a", 5, value=b"o"),
        lambda s, x: s.erase(x, "/a", 5),
    ),
    "chunks of deleted array": (lambda s, x: s.write(x, "/a", 0), lambda s, x: s.delete(x, "/a")),
    "chunks of updated array": (
        lambda s, x: s.write(x, "/a", 0),
        lambda s, x: s.array(x, "/a", 8, mark=1),
    ),
    "chunks of resized array": (
        lambda s, x: s.write(x, "/a", 7),
        lambda s, x: s.array(x, "/a", 4),
    ),
    "several at once": (
        lambda s, x: (s.write(x, "/a", 1), s.array(x, "/a", 8, mark=1), s.delete(x, "/h")),
        lambda s, x: (s.write(x, "/a", 1), s.array(x, "/a", 8, mark=2), s.group(x, "/h", 4)),
    ),
    "delete of updated array": (
        lambda s, x: s.delete(x, "/a"),
        lambda s, x: s.array(x, "/a", 8, mark=1),
    ),
    "delete of array with new chunks": (
        lambda s, x: s.delete(x, "/a"),
        lambda s, x: s.write(x, "/a", 0),
    ),
    "delete of updated group": (lambda s, x: s.delete(x, "/g"), lambda s, x: s.group(x, "/g", 1)),
    "delete of group with updated array": (
        lambda s, x: s.delete(x, "/g"),
        lambda s, x: s.write(x, "/g/x", 1),
    ),
    "delete and create over their update": (
        lambda s, x: (s.delete(x, "/a"), s.array(x, "/a", 2), s.write(x, "/a", 1, value=b"o")),
        lambda s, x: s.array(x, "/a", 8, mark=1),
    ),
    "delete of what they put another in the place of": (
        lambda s, x: s.delete(x, "/a"),
        lambda s, x: (s.delete(x, "/a"), s.array(x, "/a", 2), s.write(x, "/a", 1, value=b"t")),
    ),
    "delete on both sides": (lambda s, x: s.delete(x, "/g"), lambda s, x: s.delete(x, "/g")),
    "metadata over chunks": (
        lambda s, x: s.array(x, "/a", 8, mark=1),
        lambda s, x: s.write(x, "/a", 0, value=b"t"),
    ),
    "shift over chunks": (
        lambda s, x: s.shift(x, "/a", 1),
        lambda s, x: s.write(x, "/a", 6, value=b"t"),
    ),
}


@pytest.mark.parametrize("spec", [1, 2])
@pytest.mark.parametrize("name", SAME)
def test_both_see_it_alike(name: str, spec: int) -> None:
    ours, theirs = SAME[name]
    for solver in SOLVERS:
        expected = outcome(Reference(spec), ic, solver, ours, theirs)
        assert outcome(Ours(spec), conflicts, solver, ours, theirs) == expected, solver


MOVES: dict[str, tuple[str, Edit, Edit]] = {
    "their move": (
        "theirs",
        lambda s, x: s.write(x, "/a", 0),
        lambda s, x: s.move(x, "/g", "/i"),
    ),
    "their move, nothing of ours": (
        "theirs",
        lambda s, x: None,
        lambda s, x: s.move(x, "/g", "/i"),
    ),
    "moves on both sides": (
        "ours and theirs",
        lambda s, x: s.move(x, "/a", "/b"),
        lambda s, x: s.move(x, "/g", "/i"),
    ),
    "our move of updated nodes": (
        "ours",
        lambda s, x: s.move(x, "/g", "/i"),
        lambda s, x: (s.write(x, "/g/x", 1, value=b"t"), s.group(x, "/g", 1)),
    ),
    "our move of a group with new nodes": (
        "ours",
        lambda s, x: s.move(x, "/g", "/i"),
        lambda s, x: s.group(x, "/g/n"),
    ),
}


@pytest.mark.parametrize("name", MOVES)
def test_both_see_moves_alike(name: str) -> None:
    mode, ours, theirs = MOVES[name]
    for solver in SOLVERS[:2]:
        expected = outcome(Reference(), ic, solver, ours, theirs, mode)
        assert outcome(Ours(), conflicts, solver, ours, theirs, mode) == expected


# The reference goes on in these cases, and what it commits is damaged or not what was meant.
STRICTER: dict[str, tuple[str, Edit, Edit, set[tuple[int, str, str]]]] = {
    "delete of a group in which they created a node": (
        "",
        lambda s, x: s.delete(x, "/g"),
        lambda s, x: s.group(x, "/g/n"),
        {(10, "/g", "None")},
    ),
    "new node in a group that they deleted": (
        "",
        lambda s, x: s.group(x, "/g/n"),
        lambda s, x: s.delete(x, "/g"),
        {(2, "/g", "None")},
    ),
    "deleted and created on both sides": (
        "",
        lambda s, x: (s.delete(x, "/a"), s.array(x, "/a", 2)),
        lambda s, x: (s.delete(x, "/a"), s.array(x, "/a", 3)),
        {(1, "/a", "None"), (9, "/a", "None")},
    ),
    "move onto a new node": (
        "ours",
        lambda s, x: s.move(x, "/a", "/b"),
        lambda s, x: s.group(x, "/b"),
        {(1, "/b", "None")},
    ),
    "move into a group that they deleted": (
        "ours",
        lambda s, x: s.move(x, "/a", "/g/b"),
        lambda s, x: s.delete(x, "/g"),
        {(2, "/g", "None")},
    ),
    "move into what is an array now": (
        "ours",
        lambda s, x: s.move(x, "/a", "/h/b"),
        lambda s, x: (s.delete(x, "/h"), s.array(x, "/h", 1)),
        {(2, "/h", "None")},
    ),
    "move of another node than was meant": (
        "ours",
        lambda s, x: s.move(x, "/a", "/b"),
        lambda s, x: (s.delete(x, "/a"), s.array(x, "/a", 2)),
        {(11, "", "None")},
    ),
}


@pytest.mark.parametrize("name", STRICTER)
def test_we_stop_where_the_reference_does_damage(name: str) -> None:
    mode, ours, theirs, expected = STRICTER[name]
    damaged = outcome(Reference(), ic, "detector", ours, theirs, mode)
    assert isinstance(damaged, dict), "the reference has become stricter: compare again"
    for solver in ("detector", "ours", "theirs"):
        assert outcome(Ours(), conflicts, solver, ours, theirs, mode) == expected
