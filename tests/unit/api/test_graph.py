"""The history of several branches, as text and as a drawing."""

import pickle
from collections.abc import Sequence
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe import AncestryGraph, Repository, in_memory_storage
from icefloe.format.ids import SnapshotId
from icefloe.format.snapshot_table import SnapshotEntry
from icefloe.repo.history import CommitGraph, lay_out

SVG = "{http://www.w3.org/2000/svg}"
MINUTE = 60_000_000


def commit(number: int, parent: int | None, message: str = "") -> SnapshotEntry:
    return SnapshotEntry(
        SnapshotId(bytes([number]) * 12),
        None if parent is None else SnapshotId(bytes([parent]) * 12),
        number * MINUTE,
        message or f"commit {number}",
        {},
    )


def ref(number: int) -> SnapshotId:
    return SnapshotId(bytes([number]) * 12)


FAMILY = lay_out(
    [
        [commit(4, 2), commit(2, 1), commit(1, 0), commit(0, None)],
        [commit(5, 3), commit(3, 1)],
        [commit(6, 2)],
        [commit(7, 1)],
    ],
    {"main": ref(4), "dev": ref(5), "exp": ref(6), "late": ref(7)},
    {"v1": ref(1)},
)


def drawing(graph: CommitGraph) -> list[str]:
    """Give the marks and what follows the time, which are all that a person looks at first."""
    lines = str(AncestryGraph(graph, plain=True)).splitlines()
    return [f"{line[:8].rstrip():8}{line[8:].split(' ', 3)[3]}" for line in lines]


def test_lanes_join_where_branches_began() -> None:
    assert drawing(FAMILY) == [
        "      ● (late) commit 7",
        "    ● │ (exp) commit 6",
        "  ● │ │ (dev) commit 5",
        "● │ │ │ (main) commit 4",
        "│ ● │ │ commit 3",
        "●─┼─╯ │ commit 2",
        "●─┴───╯ (tag: v1) commit 1",
        "●       commit 0",
    ]


def test_a_column_is_used_again_once_it_is_free() -> None:
    graph = lay_out(
        [
            [commit(5, 3), commit(3, 1), commit(1, 0), commit(0, None)],
            [commit(6, 5)],
            [commit(2, 1)],
        ],
        {},
        {},
    )
    assert {lane.column for lane in graph.lanes} == {0, 1}


@pytest.mark.parametrize("most", range(1, 9))
def test_the_newest_commits_are_drawn_as_in_the_whole(most: int) -> None:
    whole, part = drawing(FAMILY), drawing(FAMILY.newest(most))
    width = max(len(line) for line in part)
    assert [line.split() for line in part] == [line.split() for line in whole[:most]]
    assert width <= max(len(line) for line in whole)
    assert FAMILY.newest(most).is_complete == (most >= len(whole))


def test_colours_can_be_left_out() -> None:
    assert "\x1b[" in str(AncestryGraph(FAMILY))
    assert "\x1b" not in str(AncestryGraph(FAMILY, plain=True))


def test_messages_cannot_reach_the_terminal_or_the_page() -> None:
    nasty = "bad \x1b[2J\x07 <script>alert(1)</script>\nsecond line"
    graph = AncestryGraph(
        lay_out([[commit(0, None, nasty)]], {"<main>\x1b": ref(0)}, {"t&g": ref(0)}), plain=True
    )
    assert "\x1b" not in str(graph)
    assert "\x07" not in str(graph)
    assert "second line" not in str(graph)
    svg = graph._repr_svg_()
    assert "<script" not in svg
    assert "\x1b" not in svg
    ElementTree.fromstring(svg)


def test_the_drawing_shows_every_commit_and_name() -> None:
    root = ElementTree.fromstring(AncestryGraph(FAMILY)._repr_svg_())
    assert len(root.findall(f".//{SVG}circle")) == 8
    assert len(root.findall(f".//{SVG}path")) == 4
    words = "".join("".join(text.itertext()) for text in root.iter(f"{SVG}text"))
    for name in ("main", "dev", "exp", "late", "◆v1", "commit 3", str(ref(3))[:8]):
        assert name in words


def test_a_long_history_is_cut_in_the_drawing() -> None:
    many = [
        SnapshotEntry(SnapshotId(n.to_bytes(12)), SnapshotId((n - 1).to_bytes(12)), n, "x", {})
        for n in range(600, 0, -1)
    ]
    svg = AncestryGraph(lay_out([many], {}, {}))._repr_svg_()
    assert "100 older commits" in svg
    ElementTree.fromstring(svg)


def test_clocks_that_go_wrong_put_no_parent_above_its_child() -> None:
    late_parent = SnapshotEntry(ref(1), None, 100, "parent", {})
    early_child = SnapshotEntry(ref(2), ref(1), 50, "child", {})
    graph = lay_out([[early_child, late_parent]], {}, {})
    assert [row.entry.message for row in graph.rows] == ["child", "parent"]


@st.composite
def forests(draw: st.DrawFn) -> list[list[SnapshotEntry]]:
    """Draw histories: each commit has an earlier one as its parent."""
    parents: list[int | None] = [None]
    parents += [draw(st.integers(0, number - 1)) for number in range(1, draw(st.integers(1, 20)))]
    known: set[int] = set()
    lines: list[list[SnapshotEntry]] = []
    for tip in draw(st.permutations(range(len(parents)))):
        line = []
        at: int | None = tip
        while at is not None and at not in known:
            known.add(at)
            line.append(commit(at, parents[at]))
            at = parents[at]
        if line:
            lines.append(line)
    return lines


@given(forests())
def test_lanes_never_share_a_column_and_join_to_the_left(
    lines: Sequence[Sequence[SnapshotEntry]],
) -> None:
    graph = lay_out(lines, {}, {})
    assert len(graph.rows) == sum(map(len, lines))
    for number, lane in enumerate(graph.lanes):
        assert lane.joins is None or lane.joins < lane.column
        for other in graph.lanes[:number]:
            apart = lane.last_row < other.first_row or other.last_row < lane.first_row
            assert apart or lane.column != other.column
    position = {row.entry.id: at for at, row in enumerate(graph.rows)}
    for row in graph.rows:
        if row.entry.parent is not None:
            assert position[row.entry.parent] > position[row.entry.id]
    str(AncestryGraph(graph))
    ElementTree.fromstring(AncestryGraph(graph)._repr_svg_())


@pytest.fixture
def repository() -> Repository:
    made = Repository.create(in_memory_storage())

    def add(branch: str, message: str) -> str:
        return made.writable_session(branch).commit(message, allow_empty=True)

    first = add("main", "one")
    made.create_branch("dev", first)
    add("dev", "two")
    made.create_tag("gone-branch", add("main", "three"))
    made.reset_branch("main", first)
    return made


def messages(graph: AncestryGraph) -> list[str]:
    return [row.entry.message for row in graph.graph.rows]


def test_a_repository_draws_all_that_branches_and_tags_reach(repository: Repository) -> None:
    whole = repository.ancestry_graph(plain=True)
    assert messages(whole) == ["three", "two", "one", "Repository initialized"]
    assert "(tag: gone-branch) three" in str(whole)
    assert pickle.loads(pickle.dumps(whole)) == whole


def test_a_repository_draws_one_version(repository: Repository) -> None:
    assert messages(repository.ancestry_graph(branch="dev"))[0] == "two"
    assert messages(repository.ancestry_graph(tag="gone-branch"))[0] == "three"
    tip = repository.lookup_branch("main")
    assert messages(repository.ancestry_graph(snapshot_id=tip))[0] == "one"
    with pytest.raises(ValueError, match="exactly one"):
        repository.ancestry_graph(branch="dev", tag="gone-branch")
