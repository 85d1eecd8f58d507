"""Forks, moves, reindexing and diffs: the same steps in the reference and in our engine."""

from collections.abc import Callable
from typing import Any

import pytest

from icefloe import errors
from tests.interop.sides import Reference
from tests.support.sides import Ours, furnish

pytestmark = pytest.mark.interop

type Edit = Callable[[Any, Any], object]


def both(play: Callable[[Any], Any], spec: int = 2) -> Any:
    """Play on both sides; they must agree, up to the words of errors."""
    expected = _attempt(play, Reference(spec))
    found = _attempt(play, Ours(spec))
    assert found == expected
    return found


def _attempt(play: Callable[[Any], Any], side: Any) -> Any:
    furnish(side)
    try:
        return play(side)
    except Exception as error:
        kind = getattr(error, "kind", None)
        if kind is None:
            raise
        return str(kind)


def shown(diff: Any) -> dict[str, Any]:
    names = ("new", "deleted", "updated")
    lists = {f"{name}_{kind}": set(getattr(diff, f"{name}_{kind}")) for name in names
             for kind in ("groups", "arrays")}  # fmt: skip
    return {
        **{name: paths for name, paths in lists.items() if paths},
        "chunks": diff.updated_chunks,
        "moved": diff.moved_nodes,
    }


# -- merging ---------------------------------------------------------------------------------

MERGES: dict[str, tuple[Edit | None, Edit, Edit]] = {
    "apart": (None, lambda s, x: s.write(x, "/a", 0), lambda s, x: s.write(x, "/a", 1)),
    "same chunk": (
        None,
        lambda s, x: s.write(x, "/a", 0, value=b"1"),
        lambda s, x: s.write(x, "/a", 0, value=b"2"),
    ),
    "written and erased": (
        None,
        lambda s, x: s.write(x, "/a", 0, value=b"1"),
        lambda s, x: s.erase(x, "/a", 0),
    ),
    "same group created": (None, lambda s, x: s.group(x, "/n"), lambda s, x: s.group(x, "/n")),
    "same array created": (
        None,
        lambda s, x: s.array(x, "/n", 2),
        lambda s, x: s.array(x, "/n", 2),
    ),
    "different nodes created": (
        None,
        lambda s, x: (s.array(x, "/n", 2), s.write(x, "/n", 1)),
        lambda s, x: (s.array(x, "/m", 2), s.group(x, "/g/n")),
    ),
    "same update": (None, lambda s, x: s.group(x, "/g", 1), lambda s, x: s.group(x, "/g", 1)),
    "different updates": (
        None,
        lambda s, x: s.group(x, "/g", 1),
        lambda s, x: s.group(x, "/g", 2),
    ),
    "deleted, updated": (None, lambda s, x: s.delete(x, "/a"), lambda s, x: s.array(x, "/a", 9)),
    "updated, deleted": (None, lambda s, x: s.array(x, "/a", 9), lambda s, x: s.delete(x, "/a")),
    "deleted, written": (None, lambda s, x: s.delete(x, "/a"), lambda s, x: s.write(x, "/a", 1)),
    "written, deleted": (None, lambda s, x: s.write(x, "/a", 1), lambda s, x: s.delete(x, "/a")),
    "deleted by both": (None, lambda s, x: s.delete(x, "/a"), lambda s, x: s.delete(x, "/a")),
    "deleted, made again": (
        None,
        lambda s, x: s.delete(x, "/a"),
        lambda s, x: (s.delete(x, "/a"), s.array(x, "/a", 2)),
    ),
    "made again, deleted": (
        None,
        lambda s, x: (s.delete(x, "/a"), s.array(x, "/a", 2)),
        lambda s, x: s.delete(x, "/a"),
    ),
    "resized, written inside": (
        None,
        lambda s, x: s.array(x, "/a", 4),
        lambda s, x: s.write(x, "/a", 1, value=b"1"),
    ),
    "node of the session written": (
        lambda s, x: (s.array(x, "/n", 4), s.write(x, "/n", 0, value=b"0")),
        lambda s, x: s.write(x, "/n", 1, value=b"1"),
        lambda s, x: (s.array(x, "/n", 4, mark=1), s.write(x, "/n", 0, value=b"2")),
    ),
    "node of the session updated by both": (
        lambda s, x: s.array(x, "/n", 4),
        lambda s, x: s.array(x, "/n", 4, mark=1),
        lambda s, x: s.array(x, "/n", 4, mark=2),
    ),
}


@pytest.mark.parametrize("spec", [1, 2])
@pytest.mark.parametrize("name", MERGES)
def test_merging(name: str, spec: int) -> None:
    before, first, second = MERGES[name]

    def play(side: Any) -> Any:
        session = side.begin()
        if before is not None:
            before(side, session)
        forks = [side.fork(session), side.fork(session)]
        first(side, forks[0])
        second(side, forks[1])
        side.merge(session, *forks)
        seen = shown(side.status(session))
        side.commit(session, allow_empty=True)
        return seen, side.tree()

    both(play, spec)


FOLLOWED: dict[str, tuple[Edit, Edit]] = {
    "node deleted": (lambda s, x: s.array(x, "/n", 4), lambda s, x: s.delete(x, "/n")),
    "node made again": (
        lambda s, x: (s.array(x, "/n", 4), s.write(x, "/n", 1)),
        lambda s, x: (s.delete(x, "/n"), s.array(x, "/n", 2), s.write(x, "/n", 0)),
    ),
    "update updated": (lambda s, x: s.group(x, "/g", 1), lambda s, x: s.group(x, "/g", 2)),
    "update deleted": (lambda s, x: s.group(x, "/g", 1), lambda s, x: s.delete(x, "/g")),
    "written array deleted": (lambda s, x: s.write(x, "/a", 1), lambda s, x: s.delete(x, "/a")),
    "resized twice": (
        lambda s, x: (s.array(x, "/a", 9), s.write(x, "/a", 8)),
        lambda s, x: (s.array(x, "/a", 10), s.write(x, "/a", 9)),
    ),
}
"""What a session did before it was forked, and what the fork then did to the same node."""


@pytest.mark.parametrize("spec", [1, 2])
@pytest.mark.parametrize("name", FOLLOWED)
def test_a_fork_changes_what_its_session_did(name: str, spec: int) -> None:
    """The reference takes that for a contradiction."""
    first, second = FOLLOWED[name]

    def play(side: Any) -> Any:
        session = side.begin()
        first(side, session)
        fork = side.fork(session)
        second(side, fork)
        side.merge(session, fork)
        side.commit(session, allow_empty=True)
        return side.tree()

    def play_without_forks(side: Any) -> Any:
        session = side.begin()
        first(side, session)
        second(side, session)
        side.commit(session, allow_empty=True)
        return side.tree()

    assert _attempt(play, Reference(spec)) == "merge-failed"
    assert _attempt(play, Ours(spec)) == both(play_without_forks, spec)


def test_a_fork_sees_what_its_session_wrote() -> None:
    def play(side: Any) -> Any:
        session = side.begin()
        side.write(session, "/a", 0, value=b"s")
        side.array(session, "/n", 1)
        fork = side.fork(session)
        side.write(fork, "/n", 0, value=b"f")
        nested = side.fork(fork)
        side.write(nested, "/a", 1, value=b"n")
        seen = [side.tree(one) for one in (session, fork, nested)]
        side.merge(fork, nested)
        side.merge(session, fork)
        side.commit(session)
        return seen, side.tree()

    both(play)


# -- moves -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "moves",
    [
        [("/a", "/b")],
        [("/g", "/h/g"), ("/h/g/x", "/x")],
        [("/a", "/g/a1"), ("/g", "/i"), ("/h", "/a")],
        [("/a", "/t"), ("/g", "/a"), ("/t", "/g")],
        [("/a", "/b"), ("/b", "/a")],
        [("/no", "/b")],
        [("/a", "/g")],
        [("/a", "/a")],
        [("/g", "/g/s/g")],
        [("/", "/b")],
        [("/a", "/")],
        [("/a", "/no/b")],
        [("/g", "/a/g")],
        [("a", "b")],
    ],
    ids=str,
)
def test_moving(moves: list[tuple[str, str]]) -> None:
    def play(side: Any) -> Any:
        start = side.tip()
        session = side.begin_moving()
        for source, target in moves:
            side.move(session, source, target)
        seen = shown(side.status(session)), side.tree(session)
        end = side.commit(session)
        return seen, side.tree(), shown(side.diff(start, end))

    both(play)


@pytest.mark.parametrize(
    "edit",
    [
        lambda s, x: s.write(x, "/a", 0),
        lambda s, x: s.group(x, "/n"),
        lambda s, x: s.shift(x, "/a", 1),
    ],
)
def test_nothing_but_moves_while_rearranging(edit: Edit) -> None:
    assert both(lambda side: edit(side, side.begin_moving())) == "rearrange-session-only"


def test_no_moves_elsewhere() -> None:
    both(lambda side: side.move(side.begin(), "/a", "/b"))
    both(lambda side: side.move(side.at(side.tip()), "/a", "/b"))


# -- shift and reindex -----------------------------------------------------------------------


def relabelled(edit: Edit, prepare: Edit | None = None) -> Any:
    def play(side: Any) -> Any:
        session = side.begin()
        side.array(session, "/m", 3, 3)
        for i in range(9):
            side.write(session, "/m", i // 3, i % 3, value=bytes([i + 1]))
        side.erase(session, "/m", 1, 1)
        side.commit(session)
        session = side.begin()
        if prepare is not None:
            prepare(side, session)
        edit(side, session)
        seen = shown(side.status(session))["chunks"], side.tree(session)
        side.commit(session, allow_empty=True)
        return seen, side.tree()

    return both(play)


@pytest.mark.parametrize("offset", [(1,), (-2,), (0,), (9,), (-(2**31),)], ids=str)
def test_shift(offset: tuple[int, ...]) -> None:
    relabelled(lambda s, x: s.shift(x, "/a", *offset))


@pytest.mark.parametrize("offset", [(1, -1), (0, 1), (-2, -2), (3, 0)], ids=str)
def test_shift_in_two_dimensions(offset: tuple[int, int]) -> None:
    relabelled(lambda s, x: s.shift(x, "/m", *offset))


def test_shift_over_uncommitted_chunks() -> None:
    relabelled(
        lambda s, x: s.shift(x, "/a", 2), lambda s, x: s.write(x, "/a", 3, value=b"uncommitted")
    )


FORWARD: dict[str, Callable[[Any], Any]] = {
    "around": lambda c: [(c[0] + 1) % 8],
    "up": lambda c: [c[0] + 1] if c[0] < 7 else None,
    "even to odd": lambda c: [c[0] + 1] if c[0] % 2 == 0 else None,
    "all to one": lambda c: [0],
    "same": list,
    "nowhere": lambda c: None,
    "outside": lambda c: [c[0] + 1],
}
BACKWARD: dict[str, Callable[[Any], Any] | None] = {
    "not given": None,
    "nothing": lambda c: None,
    "existing": lambda c: [0],
    "outside": lambda c: [99],
    "up": lambda c: [c[0] - 1] if c[0] > 0 else None,
}


@pytest.mark.parametrize("backward", BACKWARD)
@pytest.mark.parametrize("forward", FORWARD)
def test_reindex(forward: str, backward: str) -> None:
    ahead, back = FORWARD[forward], BACKWARD[backward]
    relabelled(
        lambda s, x: s.reindex(
            x, "/a", lambda c: ahead(list(c)), back and (lambda c: back(list(c)))
        )
    )


def test_reindex_by_transposing() -> None:
    relabelled(lambda s, x: s.reindex(x, "/m", lambda c: list(c)[::-1], lambda c: list(c)[::-1]))


@pytest.mark.parametrize("path", ["/g", "/no", "a"])
def test_only_arrays_are_shifted(path: str) -> None:
    both(lambda side: side.shift(side.begin(), path, 1))


# -- diffs -----------------------------------------------------------------------------------

HISTORIES: dict[str, list[Edit | list[tuple[str, str]]]] = {
    "created, deleted": [
        lambda s, x: (s.array(x, "/n", 2), s.write(x, "/n", 0)),
        lambda s, x: s.delete(x, "/n"),
    ],
    "updated, deleted": [
        lambda s, x: (s.array(x, "/a", 8, mark=1), s.write(x, "/a", 0), s.group(x, "/g", 1)),
        lambda s, x: (s.delete(x, "/a"), s.delete(x, "/g")),
    ],
    "deleted, made again": [lambda s, x: s.delete(x, "/a"), lambda s, x: s.array(x, "/a", 2)],
    "made again at once": [
        lambda s, x: (s.delete(x, "/a"), s.array(x, "/a", 2), s.write(x, "/a", 1))
    ],
    "created, updated": [
        lambda s, x: s.array(x, "/n", 4),
        lambda s, x: (s.array(x, "/n", 4, mark=1), s.write(x, "/n", 1)),
        lambda s, x: (s.write(x, "/n", 2), s.write(x, "/n", 1)),
    ],
    "created and deleted at once": [lambda s, x: (s.group(x, "/n"), s.delete(x, "/n"))],
    "erased": [lambda s, x: s.erase(x, "/a", 5)],
    "moved and changed": [
        lambda s, x: s.write(x, "/g/x", 0),
        [("/g", "/i")],
        lambda s, x: (s.write(x, "/i/x", 1), s.array(x, "/i/x", 4, mark=1)),
    ],
    "moved, deleted": [[("/g", "/i")], lambda s, x: s.delete(x, "/i")],
    "created, moved, deleted": [
        lambda s, x: s.group(x, "/n"),
        [("/n", "/m")],
        lambda s, x: s.delete(x, "/m"),
    ],
    "moved there and back": [[("/g", "/i")], [("/i", "/g")]],
    "moved twice": [[("/g", "/b")], [("/a", "/z")], [("/z", "/c")]],
    "another in its place": [lambda s, x: s.delete(x, "/a"), [("/g", "/a")]],
}


@pytest.mark.parametrize("name", HISTORIES)
def test_diffs(name: str) -> None:
    def play(side: Any) -> Any:
        versions = [side.tip()]
        seen = []
        for edit in HISTORIES[name]:
            if isinstance(edit, list):
                session = side.begin_moving()
                for source, target in edit:
                    side.move(session, source, target)
            else:
                session = side.begin()
                edit(side, session)
            seen.append(shown(side.status(session)))
            versions.append(side.commit(session, allow_empty=True))
        return seen, [
            shown(side.diff(before, after))
            for i, before in enumerate(versions)
            for after in versions[i + 1 :]
        ]

    both(play)


@pytest.mark.parametrize("spec", [1, 2])
def test_diffs_follow_the_history(spec: int) -> None:
    def play(side: Any) -> Any:
        first = side.tip()
        session = side.begin()
        side.write(session, "/a", 0)
        return side.diff(side.commit(session), first)

    assert both(play, spec) == "bad-snapshot-chain-for-diff"
    assert both(lambda side: side.diff(side.tip(), side.tip()), spec) == (
        "bad-snapshot-chain-for-diff"
    )


def test_the_errors_have_the_same_classes() -> None:
    """Kinds are compared above; their classes are what handlers catch."""
    side: Any = furnish(Ours())
    with pytest.raises(errors.AlreadyExistsError):
        side.move(side.begin_moving(), "/a", "/g")
    with pytest.raises(errors.NodeNotFoundError):
        side.move(side.begin_moving(), "/no", "/b")
    with pytest.raises(errors.ReadOnlyError):
        side.move(side.at(side.tip()), "/a", "/b")
    with pytest.raises(errors.SessionStateError):
        side.move(side.begin_moving(), "/g", "/g/g")
