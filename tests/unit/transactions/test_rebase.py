"""Sessions that others overtook: what goes together, what does not, and what is left after."""

import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from icefloe.effects import run_blocking
from icefloe.errors import ConflictError, ErrorKind, RebaseFailedError, SessionStateError
from icefloe.repo.repo_changes import CreateBranch, DeleteBranch, ResetBranch
from icefloe.transactions.conflicts import (
    BasicConflictSolver,
    Conflict,
    ConflictDetector,
    ConflictSolver,
    ConflictType,
    Resolution,
    VersionSelection,
    sound_resolutions,
)
from icefloe.transactions.session import SessionState
from tests.support.sides import Ours, furnish

type Edit = Callable[[Any, Any], object]

DETECT = ConflictDetector()
BASIC = BasicConflictSolver()
THEIRS = BasicConflictSolver(on_chunk_conflict=VersionSelection.UseTheirs)


@pytest.fixture(params=[1, 2])
def side(request: pytest.FixtureRequest) -> Ours:
    furnished: Ours = furnish(Ours(request.param))
    return furnished


@pytest.fixture
def spec_2() -> Ours:
    furnished: Ours = furnish(Ours())
    return furnished


def overtaken(side: Ours, ours: Edit, *theirs: Edit) -> SessionState:
    """Make a session with changes, then let others commit theirs."""
    session = side.begin()
    ours(side, session)
    for edit in theirs:
        other = side.begin()
        edit(side, other)
        side.commit(other)
    return session


def conflicts_of(
    side: Ours, session: SessionState, solver: ConflictSolver = DETECT
) -> list[Conflict]:
    before = side.status(session), session.snapshot_id
    with pytest.raises(RebaseFailedError) as failure:
        side.rebase(session, solver)
    assert failure.value.kind == ErrorKind.REBASE_FAILED
    assert (side.status(session), session.snapshot_id) == before
    return failure.value.conflicts


def kinds_of(conflicts: list[Conflict]) -> list[tuple[str, str]]:
    return [(one.conflict_type.name, one.path) for one in conflicts]


def test_unrelated_changes_go_together(side: Ours) -> None:
    session = overtaken(
        side,
        lambda s, x: (s.write(x, "/a", 0, value=b"o"), s.group(x, "/g/new")),
        lambda s, x: s.write(x, "/a", 1, value=b"t"),
        lambda s, x: s.delete(x, "/h"),
    )
    assert side.rebase(session, DETECT) == 2
    side.commit(session)
    tree = side.tree()
    assert "/h" not in tree
    assert "/g/new" in tree
    chunks = tree["/a"]
    assert chunks is not None
    assert (chunks[0,], chunks[1,], chunks[2,]) == (b"o", b"t", b"\x03")


def test_nothing_to_do(side: Ours) -> None:
    session = side.begin()
    side.write(session, "/a", 0)
    assert side.rebase(session, DETECT) == 0


@pytest.mark.parametrize("tries", [0, 1])
def test_commit_rebases_when_told_to(side: Ours, tries: int) -> None:
    session = overtaken(side, lambda s, x: s.write(x, "/a", 0), lambda s, x: s.write(x, "/a", 1))
    if tries == 0:
        with pytest.raises(ConflictError):
            side.commit(session, solver=DETECT, rebase_tries=0)
    else:
        side.commit(session, solver=DETECT, rebase_tries=1)
        assert set(side.tree()["/a"] or ()) == {(i,) for i in range(8)}


def test_chunks_on_both_sides(side: Ours) -> None:
    def ours(s: Ours, x: SessionState) -> None:
        for index in (1, 2, 3):
            s.write(x, "/a", index, value=b"o")

    def theirs(s: Ours, x: SessionState) -> None:
        s.write(x, "/a", 2, value=b"t")
        s.erase(x, "/a", 3)

    session = overtaken(side, ours, theirs)
    [conflict] = conflicts_of(side, session)
    assert conflict == Conflict(ConflictType.ChunkDoubleUpdate, "/a", [[2], [3]])
    assert conflict.conflicted_chunks == [[2], [3]]
    side.rebase(session, THEIRS)
    assert side.status(session).updated_chunks == {"/a": [[1]]}
    side.commit(session)
    chunks = side.tree()["/a"]
    assert chunks is not None
    assert (chunks[1,], chunks[2,], (3,) in chunks) == (b"o", b"t", False)


def test_our_chunks_are_kept_by_default(side: Ours) -> None:
    session = overtaken(
        side,
        lambda s, x: (s.write(x, "/a", 2, value=b"o"), s.erase(x, "/a", 3)),
        lambda s, x: (s.write(x, "/a", 2, value=b"t"), s.write(x, "/a", 3, value=b"t")),
    )
    side.commit(session, solver=BASIC)
    chunks = side.tree()["/a"]
    assert chunks is not None
    assert chunks[2,] == b"o"
    assert (3,) not in chunks


UNSOLVABLE: list[tuple[str, Edit, Edit, list[tuple[str, str]]]] = [
    (
        "the same path",
        lambda s, x: s.array(x, "/n", 1),
        lambda s, x: s.group(x, "/n"),
        [("NewNodeConflictsWithExistingNode", "/n")],
    ),
    (
        "in what is an array now",
        lambda s, x: s.group(x, "/g/s/n"),
        lambda s, x: (s.delete(x, "/g/s"), s.array(x, "/g/s", 1)),
        [("NewNodeInInvalidGroup", "/g/s")],
    ),
    (
        "in a group that they deleted",
        lambda s, x: (s.group(x, "/g/s/n"), s.group(x, "/g/s/n/m")),
        lambda s, x: s.delete(x, "/g"),
        [("NewNodeInInvalidGroup", "/g/s")],
    ),
    (
        "an array above theirs",
        lambda s, x: s.array(x, "/no/such", 1),
        lambda s, x: s.group(x, "/no/such/group"),
        [("NewNodeConflictsWithExistingNode", "/no/such")],
    ),
    (
        "metadata of both",
        lambda s, x: (s.group(x, "/g", 1), s.array(x, "/a", 8, mark=1)),
        lambda s, x: (s.group(x, "/g", 2), s.array(x, "/a", 8, mark=2)),
        [("ZarrMetadataDoubleUpdate", "/a"), ("ZarrMetadataDoubleUpdate", "/g")],
    ),
    (
        "metadata of what they deleted",
        lambda s, x: (s.group(x, "/g", 1), s.array(x, "/a", 8, mark=1)),
        lambda s, x: (s.delete(x, "/g"), s.delete(x, "/a")),
        [("ZarrMetadataUpdateOfDeletedArray", "/a"), ("ZarrMetadataUpdateOfDeletedGroup", "/g")],
    ),
    (
        "chunks of what they deleted",
        lambda s, x: s.write(x, "/g/x", 0),
        lambda s, x: s.delete(x, "/g"),
        [("ChunksUpdatedInDeletedArray", "/g/x")],
    ),
    (
        "chunks of what they resized",
        lambda s, x: s.write(x, "/a", 0),
        lambda s, x: s.array(x, "/a", 4),
        [("ChunksUpdatedInUpdatedArray", "/a")],
    ),
    (
        "a group that they filled",
        lambda s, x: s.delete(x, "/g"),
        lambda s, x: (s.group(x, "/g/s/n"), s.group(x, "/g/n")),
        [("DeleteOfUpdatedGroup", "/g"), ("DeleteOfUpdatedGroup", "/g/s")],
    ),
    (
        "a group that they filled, made again",
        lambda s, x: (s.delete(x, "/g"), s.array(x, "/g", 1)),
        lambda s, x: s.group(x, "/g/n"),
        [
            ("NewNodeConflictsWithExistingNode", "/g"),
            ("DeleteOfUpdatedGroup", "/g"),
        ],
    ),
    (
        "made again on both sides",
        lambda s, x: (s.delete(x, "/a"), s.array(x, "/a", 2)),
        lambda s, x: (s.delete(x, "/a"), s.array(x, "/a", 3)),
        [("NewNodeConflictsWithExistingNode", "/a"), ("DeleteOfUpdatedArray", "/a")],
    ),
]


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [case[1:] for case in UNSOLVABLE],
    ids=[c[0] for c in UNSOLVABLE],
)
def test_what_no_solver_may_resolve(
    side: Ours, ours: Edit, theirs: Edit, expected: list[tuple[str, str]]
) -> None:
    session = overtaken(side, ours, theirs)
    for solver in (DETECT, BASIC, THEIRS, _Reckless(Resolution.USE_OURS)):
        assert kinds_of(conflicts_of(side, session, solver)) == expected


class _Reckless(ConflictSolver):
    def __init__(self, choice: Resolution) -> None:
        self.choice = choice

    def solve(self, conflict: Conflict) -> Resolution:
        return self.choice


def test_a_filled_group_names_what_would_be_orphaned(side: Ours) -> None:
    session = overtaken(
        side, lambda s, x: s.delete(x, "/g"), lambda s, x: (s.group(x, "/g/n"), s.group(x, "/g/m"))
    )
    [conflict] = conflicts_of(side, session, BASIC)
    assert conflict.new_nodes == ("/g/m", "/g/n")
    assert sound_resolutions(conflict) == frozenset()
    assert "/g/m" in str(conflict)


@pytest.mark.parametrize(
    ("theirs", "kind", "strict"),
    [
        (
            lambda s, x: s.array(x, "/g/x", 4, mark=1),
            ("DeleteOfUpdatedArray", "/g/x"),
            BasicConflictSolver(fail_on_delete_of_updated_array=True),
        ),
        (
            lambda s, x: s.write(x, "/g/x", 1),
            ("DeleteOfUpdatedArray", "/g/x"),
            BasicConflictSolver(fail_on_delete_of_updated_array=True),
        ),
        (
            lambda s, x: s.group(x, "/g/s", 1),
            ("DeleteOfUpdatedGroup", "/g/s"),
            BasicConflictSolver(fail_on_delete_of_updated_group=True),
        ),
    ],
)
def test_a_delete_stands_over_updates(
    side: Ours, theirs: Edit, kind: tuple[str, str], strict: ConflictSolver
) -> None:
    session = overtaken(side, lambda s, x: s.delete(x, "/g"), theirs)
    assert kinds_of(conflicts_of(side, session)) == [kind]
    assert kinds_of(conflicts_of(side, session, strict)) == [kind]
    side.commit(session, solver=BASIC)
    assert set(side.tree()) == {"/", "/a", "/h"}


def test_a_node_put_in_the_place_of_a_deleted_one_survives(side: Ours) -> None:
    session = overtaken(
        side,
        lambda s, x: (s.delete(x, "/g"), s.write(x, "/a", 0, value=b"o")),
        lambda s, x: (s.delete(x, "/g"), s.group(x, "/g", 7), s.array(x, "/g/x", 2)),
    )
    expected = [("DeleteOfUpdatedArray", "/g/x"), ("DeleteOfUpdatedGroup", "/g")]
    assert kinds_of(conflicts_of(side, session)) == expected
    side.commit(session, solver=BASIC)
    assert side.tree().keys() == {"/", "/a", "/g", "/g/x", "/h"}


def test_both_may_delete_the_same(side: Ours) -> None:
    session = overtaken(side, lambda s, x: s.delete(x, "/g"), lambda s, x: s.delete(x, "/g"))
    side.commit(session, solver=DETECT)
    assert set(side.tree()) == {"/", "/a", "/h"}


def test_metadata_over_chunks_is_no_conflict(side: Ours) -> None:
    session = overtaken(
        side,
        lambda s, x: s.array(x, "/a", 8, mark=5),
        lambda s, x: s.write(x, "/a", 2, value=b"t"),
    )
    side.commit(session, solver=DETECT)
    assert (side.tree()["/a"] or {})[2,] == b"t"


def test_what_came_and_went_is_in_nobodys_way(side: Ours) -> None:
    session = overtaken(
        side,
        lambda s, x: s.group(x, "/n"),
        lambda s, x: s.array(x, "/n", 1),
        lambda s, x: s.delete(x, "/n"),
    )
    assert side.rebase(session, DETECT) == 2
    assert side.commit(session) == side.tip()


def test_a_failure_stays_on_the_last_good_commit(side: Ours) -> None:
    session = overtaken(
        side,
        lambda s, x: s.write(x, "/a", 1),
        lambda s, x: s.write(x, "/g/x", 1),
        lambda s, x: s.write(x, "/a", 1),
        lambda s, x: s.write(x, "/a", 5),
    )
    history = _history(side)
    with pytest.raises(RebaseFailedError) as failure:
        side.rebase(session, DETECT)
    assert failure.value.snapshot == str(history[1])
    assert session.snapshot_id == history[2]
    assert side.status(session).updated_chunks == {"/a": [[1]]}
    assert side.rebase(session, BASIC) == 2
    assert session.snapshot_id == history[0]


def test_a_failed_commit_changes_nothing_of_ours(side: Ours) -> None:
    """A commit that half of the solver's answers would settle drops no chunk of ours."""
    session = overtaken(
        side,
        lambda s, x: (s.write(x, "/a", 1), s.group(x, "/g", 1)),
        lambda s, x: (s.write(x, "/a", 1), s.group(x, "/g", 2)),
    )
    assert len(conflicts_of(side, session, THEIRS)) == 2


def _history(side: Ours) -> list[object]:
    async def walk() -> list[object]:
        return [entry.id async for entry in side.context.ledger.ancestry(side.tip())]

    return run_blocking(walk())


def test_a_branch_that_was_reset(side: Ours) -> None:
    session = overtaken(side, lambda s, x: s.write(x, "/a", 0))
    first = _history(side)[-1]
    run_blocking(side.context.ledger.update(ResetBranch("main", first)))  # type: ignore[arg-type]
    with pytest.raises(ConflictError, match="reset or amended") as failure:
        side.rebase(session, BASIC)
    assert failure.value.actual_parent == str(first)
    assert failure.value.expected_parent == str(session.snapshot_id)
    with pytest.raises(ConflictError, match="reset or amended"):
        side.commit(session, solver=BASIC)
    assert side.status(session).updated_chunks == {"/a": [[0]]}


def test_a_branch_that_was_deleted(side: Ours) -> None:
    run_blocking(side.context.ledger.update(CreateBranch("dev", side.tip())))
    session = side.begin("dev")
    side.write(session, "/a", 0)
    run_blocking(side.context.ledger.update(DeleteBranch("dev")))
    assert side.rebase(session, BASIC) == 0


def test_only_a_session_on_a_branch_is_rebased(side: Ours) -> None:
    for session in (side.at(side.tip()), side.fork(side.begin())):
        with pytest.raises(SessionStateError) as failure:
            side.rebase(session, DETECT)
        assert failure.value.kind == ErrorKind.COMMIT_NOT_ALLOWED


# -- moves -----------------------------------------------------------------------------------


def test_over_their_moves_nothing_goes(spec_2: Ours) -> None:
    session = spec_2.begin()
    spec_2.write(session, "/a", 0)
    other = spec_2.begin_moving()
    spec_2.move(other, "/g", "/i")
    spec_2.commit(other)
    assert kinds_of(conflicts_of(spec_2, session, BASIC)) == [
        ("MoveOperationCannotBeRebased", "/g")
    ]


@pytest.mark.parametrize(
    ("target", "theirs", "expected"),
    [
        ("/b", lambda s, x: s.group(x, "/b"), ("NewNodeConflictsWithExistingNode", "/b")),
        ("/b", lambda s, x: s.group(x, "/b/c"), ("NewNodeConflictsWithExistingNode", "/b")),
        ("/b", lambda s, x: s.delete(x, "/a"), ("MoveOperationCannotBeRebased", "/a")),
        (
            "/b",
            lambda s, x: (s.delete(x, "/a"), s.array(x, "/a", 8)),
            ("MoveOperationCannotBeRebased", "/a"),
        ),
        ("/g/s/b", lambda s, x: s.delete(x, "/g"), ("NewNodeInInvalidGroup", "/g/s")),
        (
            "/g/s/b",
            lambda s, x: (s.delete(x, "/g/s"), s.array(x, "/g/s", 1)),
            ("NewNodeInInvalidGroup", "/g/s"),
        ),
    ],
)
def test_a_move_that_would_do_damage(
    spec_2: Ours, target: str, theirs: Edit, expected: tuple[str, str]
) -> None:
    session = spec_2.begin_moving()
    spec_2.move(session, "/a", target)
    other = spec_2.begin()
    theirs(spec_2, other)
    spec_2.commit(other)
    for solver in (DETECT, BASIC, _Reckless(Resolution.USE_OURS)):
        assert kinds_of(conflicts_of(spec_2, session, solver)) == [expected]


def test_moves_go_over_edits(spec_2: Ours) -> None:
    session = spec_2.begin_moving()
    spec_2.move(session, "/g", "/h/g")
    spec_2.move(session, "/h/g/x", "/x")
    other = spec_2.begin()
    spec_2.write(other, "/g/x", 1, value=b"t")
    spec_2.group(other, "/g", 3)
    spec_2.group(other, "/g/new")
    spec_2.delete(other, "/g/s")
    spec_2.commit(other)
    spec_2.commit(session, solver=DETECT)
    tree = spec_2.tree()
    assert tree.keys() == {"/", "/a", "/h", "/h/g", "/h/g/new", "/x"}
    assert tree["/x"] == {(1,): b"t"}


# -- values ----------------------------------------------------------------------------------


def test_conflicts_travel_with_their_error() -> None:
    chunks = np.array([[1, 2], [3, 4]], np.uint32)
    conflict = Conflict(ConflictType.ChunkDoubleUpdate, "/a", chunks)
    error = pickle.loads(pickle.dumps(RebaseFailedError("SNAPSHOT", [conflict])))
    assert error.conflicts == [conflict]
    assert error.conflicts[0].conflicted_chunks == [[1, 2], [3, 4]]
    assert hash(error.conflicts[0]) == hash(conflict)


def test_long_conflicts_are_shown_short() -> None:
    chunks = np.arange(100, dtype=np.uint32).reshape(-1, 1)
    assert "and 80 more" in str(Conflict(ConflictType.ChunkDoubleUpdate, "/a", chunks))


def test_conflict_types_read_well() -> None:
    assert [int(kind) for kind in ConflictType] == list(range(1, 12))
    assert str(ConflictType.NewNodeInInvalidGroup) == "New node in invalid group"
    assert str(ConflictType.ZarrMetadataUpdateOfDeletedArray) == (
        "Zarr metadata update of deleted array"
    )


def test_solvers_check_their_options() -> None:
    with pytest.raises(TypeError, match="VersionSelection"):
        BasicConflictSolver(on_chunk_conflict=1)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        ConflictSolver()  # type: ignore[abstract]


def test_threads_look_at_a_session_while_others_write(side: Ours) -> None:
    session = side.begin()
    side.array(session, "/n", 400)
    with ThreadPoolExecutor(4) as pool:
        writes = [pool.submit(side.write, session, "/n", index) for index in range(400)]
        seen = [len(side.status(session).updated_chunks.get("/n", ())) for _ in range(50)]
        for write in writes:
            write.result()
    assert seen == sorted(seen)
    assert len(side.status(session).updated_chunks["/n"]) == 400
