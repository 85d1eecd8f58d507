"""The repo object: its snapshots, its log of operations, its refs."""

import numpy as np
import pytest

from icefloe.errors import ErrorKind, FormatError, InvalidInputError, SnapshotNotFoundError
from icefloe.format.envelope import FileType
from icefloe.format.ids import INITIAL_SNAPSHOT_ID, SnapshotId
from icefloe.format.repo_info import RepoInfo, decode_repo_info, encode_repo_info
from icefloe.format.snapshot_table import NO_PARENT, SnapshotEntry, SnapshotTable
from icefloe.format.update_table import Status, UpdateKind, UpdateTable
from icefloe.records import replace
from tests.fuzz.bombs import Layout, enclosed
from tests.unit.format import oracle, samples
from tests.unit.format.samples import NOW, expanded, snapshot_id


def entries_of(table: SnapshotTable) -> list[SnapshotEntry]:
    return [table.entry(row) for row in range(len(table))]


# -- snapshots -----------------------------------------------------------------------------


def test_snapshots_are_sorted_by_id() -> None:
    table = SnapshotTable.from_entries(samples.snapshot_entries())
    assert [table.id(row) for row in range(3)] == [
        snapshot_id(3), snapshot_id(5), INITIAL_SNAPSHOT_ID,
    ]  # fmt: skip
    assert entries_of(table) == sorted(samples.snapshot_entries(), key=lambda entry: entry.id)
    for row in range(3):
        assert table.row_of(table.id(row)) == row
    assert table.row_of(snapshot_id(4)) is None
    assert len(SnapshotTable.from_entries([])) == 0


def test_history_runs_back_to_the_first() -> None:
    table = SnapshotTable.from_entries(samples.snapshot_entries())
    history = [table.id(row) for row in table.ancestry(snapshot_id(3))]
    assert history == [snapshot_id(3), snapshot_id(5), INITIAL_SNAPSHOT_ID]
    with pytest.raises(SnapshotNotFoundError, match="does not list") as caught:
        table.ancestry(snapshot_id(4))
    assert caught.value.kind == ErrorKind.SNAPSHOT_NOT_FOUND


@pytest.mark.parametrize(
    "rows", [[], [0], [0, 1, 2], [2, 1, 0], [1, 2], [2], [0, 2], [0] * 20 + [1, 2] * 300]
)
def test_columns_of_a_page_are_those_of_its_entries(rows: list[int]) -> None:
    """Rows that follow each other in a history take a short cut, and others do not."""
    table = SnapshotTable.from_entries(samples.snapshot_entries())
    entries = [table.entry(row) for row in rows]
    page = table.page(rows)
    assert list(page) == entries
    assert [entry for portion in page.portions() for entry in portion] == entries
    for portion, first in zip(page.portions(), (0, 8, 72, 584), strict=False):
        part = entries[first : first + len(portion)]
        assert portion.ids() == [str(entry.id) for entry in part]
        assert portion.parents() == [entry.parent and str(entry.parent) for entry in part]
        assert portion.messages() == [entry.message for entry in part]
        assert portion.flushed_at().tolist() == [entry.flushed_at for entry in part]
        metadata = portion.metadata()
        assert [metadata[position] for position in range(len(part))] == [
            entry.metadata for entry in part
        ]
        bare = [position for position, entry in enumerate(part) if not entry.metadata]
        assert metadata.owners_of_none() == bare


@pytest.mark.parametrize("parents", [[0, 0, 0], [1, 0, NO_PARENT], [1, 2, 0]])
def test_a_history_in_a_circle_is_refused(parents: list[int]) -> None:
    table = SnapshotTable.from_entries(samples.snapshot_entries())
    circle = replace(table, parents=np.array(parents, np.int32))
    with pytest.raises(FormatError, match="runs in a circle"):
        circle.ancestry(circle.id(0))


@pytest.mark.parametrize("number", [0, 4, 6, 2**95])
def test_an_added_snapshot_shifts_the_others(number: int) -> None:
    table = SnapshotTable.from_entries(samples.snapshot_entries())
    added = SnapshotEntry(
        snapshot_id(number), snapshot_id(5), NOW + 99, "added", {"k": 1}, (snapshot_id(1),)
    )
    grown = table.with_entry(added)
    wanted = sorted([*samples.snapshot_entries(), added], key=lambda entry: entry.id)
    assert entries_of(grown) == wanted
    assert entries_of(table) == sorted(samples.snapshot_entries(), key=lambda entry: entry.id)
    history = [grown.id(row) for row in grown.ancestry(added.id)]
    assert history == [added.id, snapshot_id(5), INITIAL_SNAPSHOT_ID]


def test_snapshots_added_one_by_one() -> None:
    first = SnapshotEntry(INITIAL_SNAPSHOT_ID, None, 0, "first")
    table, wanted = SnapshotTable.from_entries([first]), [first]
    for number in (7, 3, 9, 1, 8, 2):
        added = SnapshotEntry(snapshot_id(number), wanted[-1].id, number, f"{number}")
        table = table.with_entry(added)
        wanted.append(added)
    assert entries_of(table) == sorted(wanted, key=lambda entry: entry.id)
    assert [table.entry(row) for row in table.ancestry(snapshot_id(2))] == wanted[::-1]


def test_a_parent_must_be_listed() -> None:
    table = SnapshotTable.from_entries(samples.snapshot_entries())
    with pytest.raises(SnapshotNotFoundError, match="does not list") as caught:
        table.with_entry(SnapshotEntry(snapshot_id(1), snapshot_id(2), 0, ""))
    assert caught.value.kind == ErrorKind.SNAPSHOT_NOT_FOUND


# -- operations ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", UpdateKind)
def test_every_kind_of_operation(kind: UpdateKind) -> None:
    entries = [samples.update_entry(kind, number) for number in range(3)]
    assert UpdateTable.from_entries(entries).entries() == entries
    repo = replace(samples.repo_info(), log=UpdateTable.from_entries(entries))
    data = encode_repo_info(repo)
    assert decode_repo_info(data).updates.entries() == entries
    assert oracle.read_repo(expanded(data))["updates"] == entries


def test_operations_of_all_kinds_interleaved() -> None:
    entries = samples.update_entries()
    data = encode_repo_info(samples.repo_info())
    read = decode_repo_info(data).updates
    assert read.entries() == entries
    again = replace(samples.repo_info(), log=read)
    assert oracle.read_repo(expanded(encode_repo_info(again)))["updates"] == entries


@pytest.mark.parametrize("status", [Status(), Status(1, NOW, ""), Status(2, 5, None)])
def test_statuses(status: Status) -> None:
    repo = replace(samples.repo_info(), status=status)
    assert decode_repo_info(encode_repo_info(repo)).status == status


# -- the whole -----------------------------------------------------------------------------


def test_everything_comes_back() -> None:
    repo = samples.repo_info()
    read = decode_repo_info(encode_repo_info(repo))
    for name in ("branches", "tags", "status", "metadata", "repo_before_updates", "config"):
        assert getattr(read, name) == getattr(repo, name)
    assert read.deleted_tags == ("Z", "gone")
    assert read.enabled_flags == (3,)
    assert read.disabled_flags == (4, 5)
    assert entries_of(read.snapshots) == entries_of(repo.snapshots)
    assert read.updates.entries() == repo.updates.entries()


def test_a_ref_must_point_at_a_listed_snapshot() -> None:
    repo = replace(samples.repo_info(), tags={"lost": snapshot_id(99)})
    with pytest.raises(InvalidInputError, match="'lost' points at snapshot") as caught:
        encode_repo_info(repo)
    assert caught.value.kind == ErrorKind.SNAPSHOT_NOT_FOUND


def test_a_repository_has_a_main_branch_and_a_log() -> None:
    repo = samples.repo_info()
    with pytest.raises(FormatError, match="no branch main"):
        decode_repo_info(encode_repo_info(replace(repo, branches={})))
    nothing = UpdateTable.from_entries([])
    with pytest.raises(FormatError, match="log of operations is empty"):
        decode_repo_info(encode_repo_info(replace(repo, log=nothing)))


def hand_made(**changes: dict[int, bytes | str]) -> bytes:
    """A repo object with one of each, in which single fields can be broken."""
    tables: dict[str, dict[int, bytes | str]] = {
        "root": {
            0: b"\2", 1: "none", 2: "branches", 3: "none", 4: "snapshots", 5: "status",
            7: "updates",
        },
        "branch": {0: "main"},
        "snapshot": {0: bytes(12), 1: b"\xff" * 4, 3: "main"},
        "update": {0: b"\x0a", 1: "payload"},
        "payload": {0: "main", 1: bytes(12)},
        "status": {},
    }  # fmt: skip
    layout = Layout()
    layout.table("root", tables["root"] | changes.get("root", {}))
    layout.links("branches", ["branch"])
    layout.links("branches twice", ["branch", "branch"])
    layout.links("snapshots", ["snapshot"])
    layout.links("updates", ["update"])
    for name in ("branch", "snapshot", "update", "payload", "status"):
        layout.table(name, tables[name] | changes.get(name, {}))
    layout.vector("main", 4, b"main")
    layout.vector("latin", 1, b"\xe9")
    layout.vector("none", 0, b"")
    return enclosed(FileType.REPO_INFO, layout.finish())


def test_the_hand_made_one_is_sound() -> None:
    repo = decode_repo_info(hand_made())
    assert repo.branches == {"main": SnapshotId(bytes(12))}
    assert repo.metadata == {}
    assert repo.updates.entry(0).name == "main"


def word(value: int) -> bytes:
    return value.to_bytes(4, "little", signed=True)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"root": {0: b"\3"}}, "spec version 3: upgrade"),
        ({"root": {2: "none"}}, "no branch main"),
        ({"root": {7: "none"}}, "log of operations is empty"),
        ({"root": {2: "branches twice"}}, "same name"),
        ({"branch": {1: word(1)}}, "snapshot that is not in the list"),
        ({"branch": {0: "latin"}}, "not UTF-8"),
        ({"snapshot": {1: word(1)}}, "parent of a snapshot is not in the list"),
        ({"snapshot": {1: word(-2)}}, "parent of a snapshot is not in the list"),
        ({"snapshot": {3: "latin"}}, "not UTF-8"),
        ({"update": {0: b"\0"}}, "unknown kind 0"),
        ({"update": {0: b"\x11"}}, "unknown kind 17"),
        ({"update": {3: "latin"}}, "not UTF-8"),
        ({"payload": {0: "latin"}}, "not UTF-8"),
        ({"status": {2: "latin"}}, "not UTF-8"),
        ({"update": {0: b"\x0b"}}, "required field is missing"),
    ],
)
def test_broken_repo_objects_are_refused(
    changes: dict[str, dict[int, bytes | str]], problem: str
) -> None:
    with pytest.raises(FormatError, match=problem):
        decode_repo_info(hand_made(**changes))


def test_a_bare_repository() -> None:
    repo = RepoInfo(
        {"main": INITIAL_SNAPSHOT_ID},
        SnapshotTable.from_entries([SnapshotEntry(INITIAL_SNAPSHOT_ID, None, NOW, "first")]),
        UpdateTable.from_entries([samples.update_entry(UpdateKind.REPO_INITIALIZED, 0)]),
    )
    read = decode_repo_info(encode_repo_info(repo))
    assert read.branches == repo.branches
    assert read.tags == {}
    assert read.deleted_tags == ()
    assert read.status == Status()


def test_ids_are_listed_once() -> None:
    entries = samples.snapshot_entries()
    with pytest.raises(InvalidInputError, match="more than once"):
        SnapshotTable.from_entries([*entries, entries[0]])
    with pytest.raises(InvalidInputError, match="more than once"):
        SnapshotTable.from_entries(entries).with_entry(entries[0])
    with pytest.raises(SnapshotNotFoundError):
        SnapshotTable.from_entries([SnapshotEntry(snapshot_id(1), snapshot_id(2), 0, "")])
