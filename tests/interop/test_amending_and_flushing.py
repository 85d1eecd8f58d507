"""Amended commits and detached snapshots, made in turns by the reference and by us.

Whoever makes which step, both must see the same afterwards, and the same as if the reference
had made all of them.
"""

from collections.abc import Callable
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import icechunk as ic
import numpy as np
import pytest
import zarr

import icefloe
from tests.support.checking import check_repository_blocking

pytestmark = pytest.mark.interop

type Edit = Callable[[Any], object]
type Step = tuple[str, Edit]
type Turns = tuple[Any, ...]

OURS, THEIRS = icefloe, ic


def fill(value: int, *where: int, path: str = "a") -> Edit:
    def edit(session: Any) -> None:
        array = zarr.open_array(session.store, path=path)
        for at in where:
            array[at] = value

    return edit


def make(path: str, length: int = 4) -> Edit:
    def edit(session: Any) -> None:
        zarr.create_array(
            session.store, name=path, shape=length, chunks=1, dtype="i4", fill_value=0
        )

    return edit


def delete(path: str) -> Edit:
    return lambda session: zarr.open_group(session.store).__delitem__(path)


def mark(value: int, path: str = "g") -> Edit:
    return lambda session: zarr.open_group(session.store, path=path).attrs.update({"mark": value})


def move(source: str, target: str) -> Edit:
    return lambda session: session.move(source, target)


def several(*edits: Edit) -> Edit:
    def edit(session: Any) -> None:
        for each in edits:
            each(session)

    return edit


def nothing(session: Any) -> None:
    """Leave everything as it is."""


BASE: Final[Step] = (
    "commit",
    several(
        lambda session: zarr.create_group(session.store),
        lambda session: zarr.create_group(session.store, path="g"),
        make("a"),
        make("b"),
        fill(1, 0, 1),
    ),
)
SCENARIOS: Final[dict[str, list[Step]]] = {
    "chunks": [BASE, ("commit", fill(2, 1, 2)), ("amend", fill(3, 2, 3))],
    "the first commit": [BASE, ("amend", fill(3, 2, 3))],
    "a chain": [
        BASE,
        ("commit", fill(2, 0)),
        ("amend", fill(3, 0, 1)),
        ("amend", several(make("c"), fill(4, 2, path="c"))),
        ("amend", fill(5, 2, 3, path="c")),
    ],
    "a commit on top": [
        BASE,
        ("commit", fill(2, 0)),
        ("amend", fill(3, 1)),
        ("commit", fill(4, 2)),
        ("amend", fill(5, 2)),
    ],
    "undone": [BASE, ("commit", make("c")), ("amend", delete("c"))],
    "deleted and made again": [
        BASE,
        ("commit", delete("a")),
        ("amend", several(make("a", 2), fill(7, 1))),
    ],
    "made, then written and deleted": [
        BASE,
        ("commit", several(make("c"), fill(2, 0, path="c"), fill(2, 0, path="b"))),
        ("amend", several(fill(3, 1, path="c"), delete("b"))),
    ],
    "metadata": [BASE, ("commit", mark(1)), ("amend", several(mark(2), fill(3, 0)))],
    "nothing added": [BASE, ("commit", fill(2, 0)), ("amend", nothing)],
    "moves": [
        BASE,
        ("commit moves", move("/a", "/g/a")),
        ("amend moves", move("/b", "/g/b")),
        ("commit", fill(5, 3, path="g/a")),
    ],
    "moved twice": [
        BASE,
        ("commit moves", move("/a", "/g/a")),
        ("amend moves", move("/g", "/h")),
        ("amend moves", move("/h/a", "/a")),
    ],
    "moves, amended in an ordinary session": [
        BASE,
        ("commit moves", move("/a", "/g/a")),
        ("amend", fill(5, 3, path="g/a")),
    ],
    "moves on top of chunks": [
        BASE,
        ("commit", fill(2, 0)),
        ("amend moves", move("/a", "/g/a")),
    ],
    "flushed": [
        BASE,
        ("flush", several(fill(2, 0), make("c"))),
        ("commit", fill(3, 1)),
        ("flush", delete("a")),
    ],
    "flushed moves": [BASE, ("flush moves", move("/a", "/g/a")), ("commit", fill(3, 1))],
    "flushed between amendments": [
        BASE,
        ("commit", fill(2, 0)),
        ("flush", fill(8, 0, 3)),
        ("amend", fill(3, 1)),
        ("flush", mark(4)),
    ],
    "branched from a flushed snapshot": [
        BASE,
        ("flush", fill(2, 0)),
        ("branch at last", nothing),
        ("commit to branch", fill(3, 1)),
    ],
}


class Player:
    """Makes the steps of a scenario, each through one of the implementations."""

    def __init__(self, place: Path, turns: Turns) -> None:
        self.place = place
        self._turns = cycle(turns)
        self.made: list[str] = []
        turns[0].Repository.create(turns[0].local_filesystem_storage(str(place)))

    def play(self, steps: list[Step]) -> None:
        for number, (how, edit) in enumerate(steps):
            repository = opened(next(self._turns), self.place)
            try:
                made = self._make(repository, how, edit, f"{how} {number}")
            except (icefloe.IcechunkError, ic.IcechunkError) as refused:
                made = f"refused: {refused.kind}"
            self.made.append(made)

    def _make(self, repository: Any, how: str, edit: Edit, message: str) -> str:
        if how == "branch at last":
            repository.create_branch("branch", self.made[-1])
            return "branch"
        branch = "branch" if how == "commit to branch" else "main"
        moves = how.endswith("moves")
        begin = repository.rearrange_session if moves else repository.writable_session
        session = begin(branch)
        edit(session)
        metadata = {"step": message}
        match how.split(maxsplit=1)[0]:
            case "commit":
                return str(session.commit(message, metadata=metadata))
            case "amend":
                allow_empty = edit is nothing
                return str(session.amend(message, metadata=metadata, allow_empty=allow_empty))
        return str(session.flush(message, metadata=metadata))


def opened(module: Any, place: Path) -> Any:
    return module.Repository.open(module.local_filesystem_storage(str(place)))


def seen_by(module: Any, player: Player) -> dict[str, Any]:
    """Tell all that can be seen of a repository, without ids and times."""
    repository = opened(module, player.place)
    branches = sorted(repository.list_branches())
    names = {each: number for number, each in enumerate(player.made)}
    histories = {
        branch: [
            (names.get(each.id), names.get(each.parent_id), each.message, each.metadata)
            for each in repository.ancestry(branch=branch)
        ]
        for branch in branches
    }
    versions = [each for each in player.made if not each.startswith(("refused", "branch"))]
    return {
        "refused": [each for each in player.made if each.startswith("refused")],
        "histories": histories,
        "contents": [contents(repository, each) for each in versions],
        "changes": [changes(repository, each) for each in versions],
        "operations": [type(each.kind).__name__ for each in repository.ops_log()],
    }


def contents(repository: Any, snapshot: str) -> dict[str, Any]:
    root = zarr.open_group(repository.readonly_session(snapshot_id=snapshot).store, mode="r")
    return {
        path: dict(node.attrs) if isinstance(node, zarr.Group) else np.asarray(node[:]).tolist()
        for path, node in sorted(root.members(max_depth=None))
    }


def changes(repository: Any, snapshot: str) -> dict[str, Any]:
    parent = repository.lookup_snapshot(snapshot).parent_id
    diff = repository.diff(from_snapshot_id=parent, to_snapshot_id=snapshot)
    names = [f"{how}_{what}" for how in ("new", "deleted", "updated")
             for what in ("groups", "arrays")]  # fmt: skip
    return {
        **{name: sorted(getattr(diff, name)) for name in names},
        "chunks": {path: sorted(map(list, chunks)) for path, chunks in diff.updated_chunks.items()},
        "moved": sorted(map(tuple, diff.moved_nodes)),
    }


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any]]:
    @cache
    def play(name: str) -> dict[str, Any]:
        player = Player(tmp_path_factory.mktemp("theirs"), (THEIRS,))
        player.play(SCENARIOS[name])
        return seen_by(THEIRS, player)

    return play


TURNS: Final = {
    "ours": (OURS,),
    "ours first": (OURS, THEIRS),
    "theirs first": (THEIRS, OURS),
}


@pytest.mark.parametrize("turns", TURNS.values(), ids=TURNS)
@pytest.mark.parametrize("name", SCENARIOS)
def test_both_see_what_either_made(
    name: str, turns: Turns, tmp_path: Path, expected: Callable[[str], dict[str, Any]]
) -> None:
    player = Player(tmp_path, turns)
    player.play(SCENARIOS[name])
    assert seen_by(OURS, player) == expected(name)
    assert seen_by(THEIRS, player) == expected(name)
    check_repository_blocking(icefloe.local_filesystem_storage(str(tmp_path)).open())


def test_other_branches_follow_an_amended_commit_when_asked(tmp_path: Path) -> None:
    player = Player(tmp_path, (THEIRS,))
    player.play([BASE, ("commit", fill(2, 1, 2))])
    base, replaced = player.made
    theirs = opened(THEIRS, tmp_path)
    for branch, at in {"same": replaced, "older": base, "ahead": replaced}.items():
        theirs.create_branch(branch, at)
    theirs.create_tag("tag", replaced)
    ahead = theirs.writable_session("ahead")
    fill(9, 3)(ahead)
    child = ahead.commit("on top")
    operations = len(list(theirs.ops_log()))

    session = opened(OURS, tmp_path).writable_session("main")
    fill(3, 2, 3)(session)
    new = session.amend("amended", move_other_branches=True)

    for module in (OURS, THEIRS):
        repository = opened(module, tmp_path)
        tips = {branch: repository.lookup_branch(branch) for branch in repository.list_branches()}
        assert tips == {"main": new, "same": new, "older": base, "ahead": child}
        assert repository.lookup_tag("tag") == replaced
        assert [each.id for each in repository.ancestry(branch="same")][:2] == [new, base]
        assert [each.id for each in repository.ancestry(branch="ahead")][:3] == [
            child, replaced, base,
        ]  # fmt: skip
        assert contents(repository, new)["a"] == [1, 2, 3, 3]
        assert contents(repository, replaced)["a"] == [1, 2, 2, 0]
        assert len(list(repository.ops_log())) == operations + 1
    check_repository_blocking(icefloe.local_filesystem_storage(str(tmp_path)).open())

    theirs = opened(THEIRS, tmp_path)
    later = theirs.writable_session("same")
    fill(4, 0)(later)
    made = later.commit("goes on")
    assert opened(OURS, tmp_path).lookup_branch("same") == made
