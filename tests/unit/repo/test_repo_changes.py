"""The rules of the repo object: what each operation changes, enters in the log, and refuses."""

from collections.abc import Callable

import pytest

from icefloe.config import RepositoryConfig
from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    ErrorKind,
    FormatError,
    IcefloeError,
    InvalidInputError,
    ReadOnlyError,
    RefNotFoundError,
    RepositoryOfflineError,
    SessionStateError,
    SnapshotNotFoundError,
)
from icefloe.format.config_file import decode_config_flexbuffer
from icefloe.format.ids import INITIAL_SNAPSHOT_ID, SnapshotId
from icefloe.format.repo_info import RepoInfo, decode_repo_info, encode_repo_info
from icefloe.format.snapshot_table import SnapshotEntry
from icefloe.format.update_table import Status, UpdateEntry, UpdateKind, UpdateTable
from icefloe.repo import repo_changes
from icefloe.repo.repo_changes import (
    CREATE_TAG,
    DELETE_TAG,
    MOVE_NODE,
    AddDetached,
    Amend,
    Change,
    Commit,
    CreateBranch,
    CreateTag,
    DeleteBranch,
    DeleteTag,
    ResetBranch,
    SetConfig,
    SetFlag,
    SetMetadata,
    SetStatus,
    UpdateMetadata,
    apply_and_log,
    created,
    feature_flags,
    require_enabled,
    with_update,
)

CONFIG = RepositoryConfig(max_concurrent_requests=3)
START = 1_700_000_000_000_000
FIRST, SECOND, THIRD = (SnapshotId(bytes([n]) * 12) for n in (1, 2, 3))
ABSENT = SnapshotId(bytes([9]) * 12)


def entry(
    id_: SnapshotId, parent: SnapshotId | None, at: int, **more: tuple[SnapshotId, ...]
) -> SnapshotEntry:
    return SnapshotEntry(id_, parent, START + at, f"made at {at}", {"at": at}, **more)


def fresh() -> RepoInfo:
    return created(entry(INITIAL_SNAPSHOT_ID, None, 0), START)


def done(repo: RepoInfo, *changes: Change, cap: int = 1000) -> RepoInfo:
    """Make changes one after the other; copies are named B0, B1, and so on."""
    for number, change in enumerate(changes):
        now = START + 100 * (number + 1)
        repo = apply_and_log(change, repo, now=now, backup_name=f"B{number}", cap=cap)
    return decode_repo_info(encode_repo_info(repo))


def newest(repo: RepoInfo) -> UpdateEntry:
    return repo.updates.entry(0)


def refusal(repo: RepoInfo, change: Change, error: type[IcefloeError]) -> IcefloeError:
    with pytest.raises(error) as caught:
        change.apply(repo)
    return caught.value


COMMIT = Commit("main", INITIAL_SNAPSHOT_ID, entry(FIRST, None, 10))
NEXT = Commit("main", FIRST, entry(SECOND, None, 20))


class TestLog:
    def test_worked_example_with_a_cap_of_three(self) -> None:
        tags = [CreateTag(f"t{n}", INITIAL_SNAPSHOT_ID) for n in range(4)]
        repo = done(fresh(), *tags, cap=3)
        shown = [(each.name, each.backup_path) for each in repo.updates.entries()]
        assert shown == [("t3", None), ("t2", "B3"), ("t1", "B2")]
        assert repo.repo_before_updates == "B1"
        in_b1 = done(fresh(), *tags[:1], cap=3)
        shown = [(each.name, each.backup_path) for each in in_b1.updates.entries()]
        assert shown == [("t0", None), (None, "B0")]
        assert in_b1.repo_before_updates is None

    @pytest.mark.parametrize("cap", [0, 1])
    def test_the_newest_entry_is_always_kept(self, cap: int) -> None:
        tags = [CreateTag(f"t{n}", INITIAL_SNAPSHOT_ID) for n in range(2)]
        repo = done(fresh(), *tags, cap=cap)
        assert [each.name for each in repo.updates.entries()] == ["t1"]
        assert repo.repo_before_updates == "B1"

    def test_entries_whose_copy_is_unknown_are_no_place_to_cut(self) -> None:
        migrated = [UpdateEntry(UpdateKind.NEW_COMMIT, START - n, name="main", new=FIRST)
                    for n in range(5)]  # fmt: skip
        repo = with_update(
            RepoInfo(fresh().branches, fresh().snapshots, UpdateTable.from_entries(migrated)),
            UpdateEntry(UpdateKind.CONFIG_CHANGED, START + 1),
            backup_name="B0",
            cap=2,
        )
        assert len(repo.updates) == 6
        assert repo.repo_before_updates is None
        repo = with_update(
            repo, UpdateEntry(UpdateKind.CONFIG_CHANGED, START + 2), backup_name="B1", cap=2
        )
        assert [each.backup_path for each in repo.updates.entries()] == [None, "B1"]
        assert repo.repo_before_updates == "B0"

    def test_without_overflow_the_name_of_the_copy_stays(self) -> None:
        tags = [CreateTag(f"t{n}", INITIAL_SNAPSHOT_ID) for n in range(4)]
        repo = done(fresh(), *tags, cap=3)
        more = done(repo, CreateTag("t4", INITIAL_SNAPSHOT_ID), cap=1000)
        assert more.repo_before_updates == repo.repo_before_updates

    def test_times_increase_although_the_clock_stands_still_or_goes_back(self) -> None:
        repo = fresh()
        for number, now in enumerate([START, START - 5, START + 10]):
            change = CreateTag(f"t{number}", INITIAL_SNAPSHOT_ID)
            repo = apply_and_log(change, repo, now=now, backup_name="B", cap=9)
        times = [each.updated_at - START for each in repo.updates.entries()]
        assert times == [10, 2, 1, 0]


class TestSnapshots:
    def test_commit(self) -> None:
        repo = done(fresh(), COMMIT)
        assert repo.branches == {"main": FIRST}
        assert repo_changes.snapshot_entry(repo, FIRST) == entry(FIRST, INITIAL_SNAPSHOT_ID, 10)
        made = newest(repo)
        assert (made.kind, made.name, made.new) == (UpdateKind.NEW_COMMIT, "main", FIRST)

    def test_commit_on_a_branch_that_moved(self) -> None:
        change = Commit("main", INITIAL_SNAPSHOT_ID, entry(SECOND, None, 20))
        error = refusal(done(fresh(), COMMIT), change, ConflictError)
        assert isinstance(error, ConflictError)
        assert error.kind == ErrorKind.COMMIT_CONFLICT
        assert error.expected_parent == str(INITIAL_SNAPSHOT_ID)
        assert error.actual_parent == str(FIRST)

    def test_commit_on_a_branch_that_is_gone(self) -> None:
        change = Commit("dev", INITIAL_SNAPSHOT_ID, entry(FIRST, None, 10))
        assert refusal(fresh(), change, RefNotFoundError).kind == ErrorKind.BRANCH_NOT_FOUND

    def test_commit_must_be_younger_than_its_parent(self) -> None:
        change = Commit("main", INITIAL_SNAPSHOT_ID, entry(FIRST, None, 0))
        assert refusal(fresh(), change, FormatError).kind == ErrorKind.SNAPSHOT_TIMESTAMP

    def test_amend_replaces_the_tip_and_inherits_what_was_pruned(self) -> None:
        pruned = entry(FIRST, None, 10, pruned_ancestors=(THIRD,))
        amended = Amend("main", FIRST, entry(SECOND, FIRST, 20))
        repo = done(fresh(), Commit("main", INITIAL_SNAPSHOT_ID, pruned), amended)
        assert repo.branches == {"main": SECOND}
        now = repo_changes.snapshot_entry(repo, SECOND)
        assert now == entry(SECOND, INITIAL_SNAPSHOT_ID, 20, pruned_ancestors=(THIRD,))
        assert repo.snapshots.row_of(FIRST) is not None
        made = newest(repo)
        assert (made.kind, made.previous, made.new) == (UpdateKind.COMMIT_AMENDED, FIRST, SECOND)

    @pytest.mark.parametrize("is_moving", [True, False])
    def test_amend_moves_other_branches_when_asked(self, is_moving: bool) -> None:
        before = done(
            fresh(),
            COMMIT,
            CreateBranch("same", FIRST),
            CreateBranch("other", INITIAL_SNAPSHOT_ID),
            CreateBranch("ahead", FIRST),
            Commit("ahead", FIRST, entry(THIRD, None, 15)),
            CreateTag("tag", FIRST),
        )
        change = Amend("main", FIRST, entry(SECOND, FIRST, 20), move_other_branches=is_moving)
        after = done(before, change)
        assert after.branches == {
            "main": SECOND,
            "same": SECOND if is_moving else FIRST,
            "other": INITIAL_SNAPSHOT_ID,
            "ahead": THIRD,
        }
        assert after.tags == {"tag": FIRST}
        assert repo_changes.snapshot_entry(after, THIRD).parent == FIRST
        assert len(after.updates) == len(before.updates) + 1

    def test_the_initial_commit_is_not_amended(self) -> None:
        change = Amend("main", INITIAL_SNAPSHOT_ID, entry(FIRST, None, 10))
        error = refusal(fresh(), change, SessionStateError)
        assert error.kind == ErrorKind.NO_AMEND_FOR_INITIAL_COMMIT

    def test_detached_snapshots_move_no_branch(self) -> None:
        repo = done(fresh(), AddDetached(entry(FIRST, INITIAL_SNAPSHOT_ID, 10)))
        assert repo.branches == {"main": INITIAL_SNAPSHOT_ID}
        assert repo_changes.snapshot_entry(repo, FIRST).parent == INITIAL_SNAPSHOT_ID
        assert newest(repo).kind == UpdateKind.NEW_DETACHED_SNAPSHOT
        assert newest(repo).new == FIRST


class TestRefs:
    def test_branches_come_move_and_go(self) -> None:
        repo = done(fresh(), COMMIT, CreateBranch("dev", INITIAL_SNAPSHOT_ID))
        assert repo.branches == {"main": FIRST, "dev": INITIAL_SNAPSHOT_ID}
        assert (newest(repo).kind, newest(repo).name) == (UpdateKind.BRANCH_CREATED, "dev")
        repo = done(repo, ResetBranch("dev", FIRST, INITIAL_SNAPSHOT_ID))
        assert repo.branches["dev"] == FIRST
        assert newest(repo).kind == UpdateKind.BRANCH_RESET
        assert newest(repo).previous == INITIAL_SNAPSHOT_ID
        repo = done(repo, DeleteBranch("dev"))
        assert repo.branches == {"main": FIRST}
        assert (newest(repo).kind, newest(repo).previous) == (UpdateKind.BRANCH_DELETED, FIRST)

    @pytest.mark.parametrize(
        ("change", "error", "kind"),
        [
            (
                CreateBranch("main", INITIAL_SNAPSHOT_ID),
                AlreadyExistsError,
                ErrorKind.BRANCH_ALREADY_EXISTS,
            ),
            (
                CreateBranch("dev", ABSENT),
                SnapshotNotFoundError,
                ErrorKind.SNAPSHOT_NOT_FOUND,
            ),
            (DeleteBranch("dev"), RefNotFoundError, ErrorKind.REF_NOT_FOUND),
            (
                ResetBranch("dev", INITIAL_SNAPSHOT_ID),
                RefNotFoundError,
                ErrorKind.REF_NOT_FOUND,
            ),
            (
                ResetBranch("main", ABSENT),
                SnapshotNotFoundError,
                ErrorKind.SNAPSHOT_NOT_FOUND,
            ),
            (
                ResetBranch("main", INITIAL_SNAPSHOT_ID, ABSENT),
                ConflictError,
                ErrorKind.BRANCH_UPDATE_CONFLICT,
            ),
            (
                CreateTag("t", ABSENT),
                SnapshotNotFoundError,
                ErrorKind.SNAPSHOT_NOT_FOUND,
            ),
            (DeleteTag("t"), RefNotFoundError, ErrorKind.REF_NOT_FOUND),
        ],
    )
    def test_refusals(self, change: Change, error: type[IcefloeError], kind: ErrorKind) -> None:
        assert refusal(fresh(), change, error).kind == kind

    def test_main_stays(self) -> None:
        with pytest.raises(SessionStateError) as caught:
            DeleteBranch("main")
        assert caught.value.kind == ErrorKind.CANNOT_DELETE_MAIN

    def test_tags_are_made_once_and_their_names_never_used_again(self) -> None:
        make = CreateTag("t", INITIAL_SNAPSHOT_ID)
        repo = done(fresh(), make)
        assert repo.tags == {"t": INITIAL_SNAPSHOT_ID}
        assert refusal(repo, make, AlreadyExistsError).kind == ErrorKind.TAG_ALREADY_EXISTS
        repo = done(repo, DeleteTag("t"))
        assert (repo.tags, repo.deleted_tags) == ({}, ("t",))
        assert newest(repo).kind == UpdateKind.TAG_DELETED
        assert newest(repo).previous == INITIAL_SNAPSHOT_ID
        assert refusal(repo, make, AlreadyExistsError).kind == ErrorKind.TAG_PREVIOUSLY_DELETED

    @pytest.mark.parametrize("name", ["x/y", "", "ключ", "a b%"])
    def test_any_name_will_do(self, name: str) -> None:
        repo = done(
            fresh(),
            CreateBranch(name, INITIAL_SNAPSHOT_ID),
            CreateTag(name, INITIAL_SNAPSHOT_ID),
        )
        assert name in repo.branches
        assert name in repo.tags


class TestSettings:
    def test_metadata_is_replaced_or_merged_at_the_top(self) -> None:
        repo = done(
            fresh(),
            SetMetadata({"a": {"x": 1}, "b": 2}),
            UpdateMetadata({"a": {"y": 3}, "c": None}),
        )
        assert repo.metadata == {"a": {"y": 3}, "b": 2, "c": None}
        assert done(repo, SetMetadata({})).metadata == {}

    def test_config(self) -> None:
        repo = done(fresh(), SetConfig(CONFIG))
        assert decode_config_flexbuffer(repo.config or b"") == CONFIG
        assert newest(repo).kind == UpdateKind.CONFIG_CHANGED

    def test_flags_are_in_one_list_at_most(self) -> None:
        repo = done(fresh(), SetFlag(CREATE_TAG, False))
        assert (repo.enabled_flags, repo.disabled_flags) == (None, (4,))
        assert newest(repo).numbers == (4, 0, 1)
        repo = done(repo, SetFlag(CREATE_TAG, True))
        assert (repo.enabled_flags, repo.disabled_flags) == ((4,), ())
        assert newest(repo).numbers == (4, 1, 1)
        repo = done(repo, SetFlag(CREATE_TAG, None))
        assert (repo.enabled_flags, repo.disabled_flags) == ((), ())
        assert newest(repo).numbers == (4, 0, 0)
        assert {flag.setting for flag in feature_flags(repo)} == {None}

    @pytest.mark.parametrize(
        ("flag", "change"),
        [
            (CREATE_TAG, CreateTag("u", INITIAL_SNAPSHOT_ID)),
            (DELETE_TAG, DeleteTag("t")),
        ],
    )
    def test_disabled_features_are_refused(self, flag: str, change: Change) -> None:
        repo = done(fresh(), CreateTag("t", INITIAL_SNAPSHOT_ID))
        off = done(repo, SetFlag(flag, False))
        assert refusal(off, change, SessionStateError).kind == ErrorKind.FEATURE_FLAG_DISABLED
        done(off, SetFlag(flag, None), change)

    def test_requirements_of_others(self) -> None:
        off = done(fresh(), SetFlag(MOVE_NODE, False))
        require_enabled(fresh(), MOVE_NODE)
        with pytest.raises(SessionStateError, match="move_node"):
            require_enabled(off, MOVE_NODE)

    def test_unknown_flags_are_refused(self) -> None:
        error = refusal(fresh(), SetFlag("fly", True), InvalidInputError)
        assert error.kind == ErrorKind.INVALID_FEATURE_FLAG


class TestReadOnly:
    CHANGES: tuple[Callable[[], Change], ...] = (
        lambda: COMMIT,
        lambda: Amend("main", INITIAL_SNAPSHOT_ID, entry(FIRST, None, 10)),
        lambda: AddDetached(entry(FIRST, INITIAL_SNAPSHOT_ID, 10)),
        lambda: CreateBranch("b", INITIAL_SNAPSHOT_ID),
        lambda: DeleteBranch("b"),
        lambda: ResetBranch("main", INITIAL_SNAPSHOT_ID),
        lambda: CreateTag("t", INITIAL_SNAPSHOT_ID),
        lambda: DeleteTag("t"),
        lambda: SetMetadata({}),
        lambda: UpdateMetadata({}),
        lambda: SetConfig(CONFIG),
        lambda: SetFlag(CREATE_TAG, True),
    )

    @pytest.mark.parametrize("number", range(len(CHANGES)))
    @pytest.mark.parametrize("availability", [1, 2])
    def test_refuses_every_change_with_the_reason(self, number: int, availability: int) -> None:
        closed = done(fresh(), SetStatus(Status(availability, START, "being moved")))
        error = refusal(closed, self.CHANGES[number](), ReadOnlyError)
        assert error.kind == ErrorKind.READ_ONLY_REPOSITORY
        assert "being moved" in str(error)
        assert isinstance(error, RepositoryOfflineError) is (availability == 2)
        assert ("offline since" if availability == 2 else "read-only since") in str(error)

    def test_but_not_to_come_back_online(self) -> None:
        closed = done(fresh(), SetStatus(Status(1, START, None)))
        assert newest(closed).status == Status(1, START, None)
        again = done(closed, SetStatus(Status(0, START + 1, None)), COMMIT)
        assert again.branches == {"main": FIRST}
