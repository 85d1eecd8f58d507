"""Branches, tags, history and settings behave alike in both versions of the format."""

from collections.abc import Coroutine, Iterator
from itertools import pairwise
from typing import Any

import pytest

from icefloe.config import RepositoryConfig
from icefloe.effects import run_blocking
from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    ErrorKind,
    FormatError,
    IcefloeError,
    InvalidInputError,
    ReadOnlyError,
    RefNotFoundError,
    SessionStateError,
    SnapshotNotFoundError,
)
from icefloe.format.ids import INITIAL_SNAPSHOT_ID, SnapshotId
from icefloe.format.layout import backup_key
from icefloe.format.snapshot import Snapshot
from icefloe.format.snapshot_table import SnapshotEntry
from icefloe.format.transaction_log import TransactionLog
from icefloe.format.update_table import Status, UpdateEntry, UpdateKind
from icefloe.repo import history, lifecycle
from icefloe.repo.context import RepoContext
from icefloe.repo.repo_changes import (
    AddDetached,
    Amend,
    Change,
    Commit,
    CreateBranch,
    CreateTag,
    DeleteBranch,
    DeleteTag,
    ResetBranch,
    SetFlag,
    SetMetadata,
    SetStatus,
    UpdateMetadata,
)
from icefloe.storage import Storage
from tests.support.checking import InvariantChecker

ABSENT = SnapshotId(bytes([9]) * 12)


class Clock:
    """A clock that goes on by one second each time somebody looks."""

    def __init__(self) -> None:
        self.now = 1_700_000_000_000_000

    def __call__(self) -> int:
        self.now += 1_000_000
        return self.now


class Repository:
    """A repository in memory, with commits of nothing."""

    def __init__(self, spec_version: int, config: RepositoryConfig | None = None) -> None:
        self.storage = Storage.new_in_memory()
        self.context = run_blocking(
            lifecycle.create(self.storage, config, spec_version=spec_version, clock=Clock())
        )
        self.ledger = self.context.ledger

    def commit(self, branch: str = "main", base: SnapshotId | None = None) -> SnapshotId:
        new, parent = SnapshotId.random(), base or run_blocking(self.ledger.branch_tip(branch))
        entry = save_empty(self.context, new, parent)
        run_blocking(self.ledger.update(Commit(branch, parent, entry)))
        return new

    def history(self, snapshot: SnapshotId) -> list[SnapshotEntry]:
        async def walk() -> list[SnapshotEntry]:
            return [entry async for entry in self.ledger.ancestry(snapshot)]

        return run_blocking(walk())

    def operations(self) -> list[UpdateEntry]:
        async def walk() -> list[UpdateEntry]:
            return [entry async for entry in self.ledger.ops_log()]

        return run_blocking(walk())

    def other(self) -> RepoContext:
        """Open it once more, as another process would."""
        return run_blocking(lifecycle.open_(self.storage, clock=self.context.clock))


def save_empty(context: RepoContext, new: SnapshotId, parent: SnapshotId) -> SnapshotEntry:
    spec = context.spec_version
    snapshot = Snapshot(
        new,
        context.clock(),
        f"commit {new}",
        metadata={"n": 1},
        parent_id=parent if spec == 1 else None,
        spec_version=spec,
    )
    run_blocking(context.assets.save_snapshot(snapshot))
    run_blocking(context.assets.save_transaction_log(TransactionLog(new)))
    return SnapshotEntry(new, parent, snapshot.flushed_at, snapshot.message, snapshot.metadata)


@pytest.fixture(params=[1, 2], ids=["spec1", "spec2"])
def repository(request: pytest.FixtureRequest) -> Iterator[Repository]:
    repository = Repository(request.param)
    yield repository
    InvariantChecker().check_blocking(repository.storage.open())


@pytest.fixture
def second() -> Iterator[Repository]:
    repository = Repository(2)
    yield repository
    InvariantChecker().check_blocking(repository.storage.open())


class TestRefs:
    def test_branches(self, repository: Repository) -> None:
        ledger = repository.ledger
        tip = repository.commit()
        run_blocking(ledger.update(CreateBranch("dev", INITIAL_SNAPSHOT_ID)))
        expected = {"main": tip, "dev": INITIAL_SNAPSHOT_ID}
        assert run_blocking(repository.other().ledger.branches()) == expected
        assert run_blocking(ledger.branch_names()) == {"main", "dev"}
        run_blocking(ledger.update(ResetBranch("dev", tip, expected=INITIAL_SNAPSHOT_ID)))
        assert run_blocking(ledger.branch_tip("dev")) == tip
        run_blocking(ledger.update(DeleteBranch("dev")))
        assert run_blocking(repository.other().ledger.branches()) == {"main": tip}

    def test_tags(self, repository: Repository) -> None:
        ledger = repository.ledger
        tip = repository.commit()
        run_blocking(ledger.update(CreateTag("t", tip)))
        run_blocking(ledger.update(CreateTag("u", INITIAL_SNAPSHOT_ID)))
        expected = {"t": tip, "u": INITIAL_SNAPSHOT_ID}
        assert run_blocking(repository.other().ledger.tags()) == expected
        assert run_blocking(ledger.tag_target("t")) == tip
        run_blocking(ledger.update(DeleteTag("t")))
        assert run_blocking(ledger.tag_names()) == {"u"}
        assert run_blocking(repository.other().ledger.tags()) == {"u": INITIAL_SNAPSHOT_ID}
        for gone in ("t", "never"):
            with pytest.raises(RefNotFoundError):
                run_blocking(ledger.tag_target(gone))
            with pytest.raises(RefNotFoundError):
                run_blocking(ledger.update(DeleteTag(gone)))
        with pytest.raises(AlreadyExistsError):
            run_blocking(ledger.update(CreateTag("t", tip)))
        with pytest.raises(AlreadyExistsError) as caught:
            run_blocking(ledger.update(CreateTag("u", tip)))
        assert caught.value.kind == ErrorKind.TAG_ALREADY_EXISTS

    @pytest.mark.parametrize("name", ["", "ключ", "a b%20", "branch.x"])
    def test_names(self, repository: Repository, name: str) -> None:
        run_blocking(repository.ledger.update(CreateBranch(name, INITIAL_SNAPSHOT_ID)))
        run_blocking(repository.ledger.update(CreateTag(name, INITIAL_SNAPSHOT_ID)))
        other = repository.other().ledger
        assert run_blocking(other.branch_names()) == {"main", name}
        assert run_blocking(other.tags()) == {name: INITIAL_SNAPSHOT_ID}

    def test_slashes_are_for_spec_2(self, repository: Repository) -> None:
        ledger = repository.ledger
        if ledger.lists_versions:
            run_blocking(ledger.update(CreateBranch("x/y", INITIAL_SNAPSHOT_ID)))
            assert run_blocking(ledger.branch_tip("x/y")) == INITIAL_SNAPSHOT_ID
            return
        for work in (
            ledger.update(CreateBranch("x/y", INITIAL_SNAPSHOT_ID)),
            ledger.update(CreateTag("x/y", INITIAL_SNAPSHOT_ID)),
            ledger.branch_tip("x/y"),
            ledger.tag_target("x/y"),
        ):
            with pytest.raises(InvalidInputError) as caught:
                run_blocking(work)
            assert caught.value.kind == ErrorKind.INVALID_REF_NAME

    def test_what_is_not_there(self, repository: Repository) -> None:
        ledger = repository.ledger
        of_refs: list[Coroutine[Any, Any, object]] = [
            ledger.branch_tip("dev"),
            ledger.update(DeleteBranch("dev")),
            ledger.update(ResetBranch("dev", INITIAL_SNAPSHOT_ID)),
        ]
        for work in of_refs:
            with pytest.raises(RefNotFoundError) as caught:
                run_blocking(work)
            assert caught.value.kind == ErrorKind.REF_NOT_FOUND
        of_snapshots: list[Coroutine[Any, Any, object]] = [
            ledger.update(CreateBranch("dev", ABSENT)),
            ledger.update(ResetBranch("main", ABSENT)),
            ledger.update(CreateTag("t", ABSENT)),
            ledger.entry(ABSENT),
        ]
        for work in of_snapshots:
            with pytest.raises(SnapshotNotFoundError):
                run_blocking(work)

    def test_what_is_there_already(self, repository: Repository) -> None:
        with pytest.raises(IcefloeError, match="exists already") as caught:
            run_blocking(repository.ledger.update(CreateBranch("main", INITIAL_SNAPSHOT_ID)))
        v1 = repository.context.spec_version == 1
        assert type(caught.value) is (ConflictError if v1 else AlreadyExistsError)

    def test_main_stays(self, repository: Repository) -> None:
        with pytest.raises(SessionStateError) as caught:
            run_blocking(repository.ledger.update(DeleteBranch("main")))
        assert caught.value.kind == ErrorKind.CANNOT_DELETE_MAIN

    def test_reset_of_a_branch_that_moved(self, repository: Repository) -> None:
        tip = repository.commit()
        with pytest.raises(ConflictError) as caught:
            run_blocking(
                repository.ledger.update(
                    ResetBranch("main", INITIAL_SNAPSHOT_ID, expected=INITIAL_SNAPSHOT_ID)
                )
            )
        assert caught.value.kind == ErrorKind.BRANCH_UPDATE_CONFLICT
        assert caught.value.actual_parent == str(tip)

    def test_deletion_of_a_branch_that_moved(self, repository: Repository) -> None:
        ledger = repository.ledger
        tip = repository.commit()
        run_blocking(ledger.update(CreateBranch("dev", INITIAL_SNAPSHOT_ID)))
        run_blocking(repository.other().ledger.update(ResetBranch("dev", tip)))
        with pytest.raises(ConflictError) as caught:
            run_blocking(ledger.update(DeleteBranch("dev", expected=INITIAL_SNAPSHOT_ID)))
        assert caught.value.kind == ErrorKind.BRANCH_UPDATE_CONFLICT
        assert caught.value.expected_parent == str(INITIAL_SNAPSHOT_ID)
        assert caught.value.actual_parent == str(tip)
        assert run_blocking(ledger.branches()) == {"main": tip, "dev": tip}
        run_blocking(ledger.update(DeleteBranch("dev", expected=tip)))
        assert run_blocking(repository.other().ledger.branches()) == {"main": tip}


class TestCommits:
    def test_history(self, repository: Repository) -> None:
        made = [repository.commit() for _ in range(5)]
        found = repository.history(made[-1])
        assert [entry.id for entry in found] == [*reversed(made), INITIAL_SNAPSHOT_ID]
        assert [entry.parent for entry in found] == [*(e.id for e in found[1:]), None]
        assert found[0].message == f"commit {made[-1]}"
        assert found[0].metadata == {"n": 1}
        assert run_blocking(repository.ledger.entry(made[2])) == found[2]

    def test_on_a_branch_that_moved(self, repository: Repository) -> None:
        other = repository.other()
        moved = repository.commit()
        entry = save_empty(other, SnapshotId.random(), INITIAL_SNAPSHOT_ID)
        with pytest.raises(ConflictError) as caught:
            run_blocking(other.ledger.update(Commit("main", INITIAL_SNAPSHOT_ID, entry)))
        assert caught.value.kind == ErrorKind.COMMIT_CONFLICT
        assert caught.value.expected_parent == str(INITIAL_SNAPSHOT_ID)
        assert caught.value.actual_parent == str(moved)

    def test_on_a_branch_that_is_gone(self, repository: Repository) -> None:
        run_blocking(repository.ledger.update(CreateBranch("dev", INITIAL_SNAPSHOT_ID)))
        other = repository.other()
        run_blocking(repository.ledger.update(DeleteBranch("dev")))
        entry = save_empty(other, SnapshotId.random(), INITIAL_SNAPSHOT_ID)
        with pytest.raises(RefNotFoundError) as caught:
            run_blocking(other.ledger.update(Commit("dev", INITIAL_SNAPSHOT_ID, entry)))
        assert caught.value.kind == ErrorKind.BRANCH_NOT_FOUND

    def test_detached(self, repository: Repository) -> None:
        entry = save_empty(repository.context, SnapshotId.random(), INITIAL_SNAPSHOT_ID)
        run_blocking(repository.ledger.update(AddDetached(entry)))
        assert run_blocking(repository.other().ledger.entry(entry.id)) == entry
        run_blocking(repository.ledger.update(CreateTag("t", entry.id)))

    def test_amended(self, second: Repository) -> None:
        replaced = second.commit()
        entry = save_empty(second.context, SnapshotId.random(), replaced)
        run_blocking(second.ledger.update(Amend("main", replaced, entry)))
        found = [each.id for each in second.history(entry.id)]
        assert found == [entry.id, INITIAL_SNAPSHOT_ID]
        run_blocking(second.ledger.entry(replaced))

    def test_fast_history_is_the_same_as_row_by_row(self, second: Repository) -> None:
        tip = [second.commit() for _ in range(20)][-1]
        run_blocking(
            second.ledger.update(Amend("main", tip, save_empty(second.context, ABSENT, tip)))
        )
        repo = run_blocking(second.ledger.repo())
        assert repo is not None
        for snapshot in (tip, ABSENT):
            rows = repo.snapshots.ancestry(snapshot)
            assert repo.snapshots.entries(rows) == [repo.snapshots.entry(row) for row in rows]


class TestVersions:
    def test_are_found_by_every_name(self, repository: Repository) -> None:
        context, tip = repository.context, repository.commit()
        run_blocking(repository.ledger.update(CreateTag("t", tip)))
        for version in (
            history.resolve(context, branch="main"),
            history.resolve(context, tag="t"),
            history.resolve(context, snapshot_id=str(tip).lower()),
            history.resolve(context, snapshot_id=tip),
        ):
            assert run_blocking(version) == tip

    def test_at_a_time(self, repository: Repository) -> None:
        made = [INITIAL_SNAPSHOT_ID, *(repository.commit() for _ in range(3))]
        times = {entry.id: entry.flushed_at for entry in repository.history(made[-1])}
        for earlier, later in pairwise(made):
            for at, expected in ((times[later], later), (times[later] - 1, earlier)):
                found = history.resolve(repository.context, branch="main", as_of=at)
                assert run_blocking(found) == expected
        before = times[INITIAL_SNAPSHOT_ID] - 1
        with pytest.raises(SnapshotNotFoundError) as caught:
            run_blocking(history.resolve(repository.context, branch="main", as_of=before))
        assert caught.value.kind == ErrorKind.NO_SNAPSHOT_AT_TIME

    @pytest.mark.parametrize(
        "given",
        [
            {},
            {"branch": "main", "tag": "t"},
            {"tag": "t", "snapshot_id": str(ABSENT)},
            {"as_of": 1},
            {"tag": "t", "as_of": 1},
            {"snapshot_id": str(ABSENT), "as_of": 1},
            {"branch": "main", "tag": "t", "as_of": 1},
            {"snapshot_id": "zz"},
        ],
    )
    def test_must_be_named_well(self, repository: Repository, given: dict[str, str]) -> None:
        with pytest.raises(InvalidInputError):
            run_blocking(history.resolve(repository.context, **given))  # type: ignore[arg-type]

    def test_missing(self, repository: Repository) -> None:
        for work in (
            history.resolve(repository.context, branch="dev"),
            history.resolve(repository.context, tag="t"),
        ):
            with pytest.raises(RefNotFoundError):
                run_blocking(work)
        with pytest.raises(SnapshotNotFoundError):
            run_blocking(history.resolve(repository.context, snapshot_id=ABSENT))

    def test_ancestry_of_a_branch_takes_one_request(self, second: Repository) -> None:
        tip = second.commit()
        second.storage.reset_request_counts()

        async def walk() -> list[SnapshotId]:
            pages = history.ancestry(second.context, branch="main")
            return [entry.id async for page in pages for entry in page]

        assert run_blocking(walk()) == [tip, INITIAL_SNAPSHOT_ID]
        counts = second.storage.request_counts()
        assert (counts.get, counts.head, counts.list) == (1, 0, 0)


class TestSettings:
    def test_metadata(self, second: Repository) -> None:
        run_blocking(second.ledger.update(SetMetadata({"a": 1})))
        updated = run_blocking(second.ledger.update(UpdateMetadata({"b": [2]})))
        assert updated is not None
        assert updated.metadata == {"a": 1, "b": [2]}
        assert run_blocking(second.other().ledger.metadata()) == {"a": 1, "b": [2]}

    def test_status(self, second: Repository) -> None:
        run_blocking(second.ledger.writable_tip("main"))
        other = second.other()
        run_blocking(second.ledger.update(SetStatus(Status(1, 5, "for a while"))))
        assert run_blocking(other.ledger.status()) == Status(1, 5, "for a while")
        with pytest.raises(ReadOnlyError, match="for a while"):
            run_blocking(other.ledger.writable_tip("main"))
        with pytest.raises(ReadOnlyError, match="for a while"):
            run_blocking(other.ledger.update(CreateTag("t", INITIAL_SNAPSHOT_ID)))
        run_blocking(other.ledger.update(SetStatus(Status(0, 6))))
        run_blocking(second.ledger.update(CreateTag("t", INITIAL_SNAPSHOT_ID)))

    def test_flags(self, second: Repository) -> None:
        run_blocking(second.ledger.update(SetFlag("move_node", False)))
        other = second.other().ledger
        flags = {flag.name: flag.enabled for flag in run_blocking(other.flags())}
        assert flags == {"move_node": False, "create_tag": True, "delete_tag": True}
        with pytest.raises(SessionStateError):
            run_blocking(other.writable_tip("main", flag="move_node"))
        run_blocking(other.writable_tip("main", flag="create_tag"))

    def test_spec_1_has_none_of_it(self) -> None:
        ledger = Repository(1).ledger
        entry = SnapshotEntry(ABSENT, None, 0, "")
        for work in (
            ledger.metadata(),
            ledger.update(SetMetadata({})),
            ledger.update(UpdateMetadata({})),
            ledger.status(),
            ledger.update(SetStatus(Status())),
            ledger.flags(),
            ledger.update(SetFlag("create_tag", True)),
            ledger.writable_tip("main", flag="move_node"),
            ledger.update(Change()),
            ledger.update(Amend("main", INITIAL_SNAPSHOT_ID, entry)),
            anext(ledger.ops_log()),
        ):
            with pytest.raises(FormatError) as caught:
                run_blocking(work)  # type: ignore[arg-type]
            assert caught.value.kind == ErrorKind.UNSUPPORTED_SPEC_VERSION
        run_blocking(ledger.writable_tip("main"))
        assert run_blocking(ledger.repo()) is None


class TestOperationsLog:
    def repository(self, cap: int) -> Repository:
        repository = Repository(2, RepositoryConfig(num_updates_per_repo_info_file=cap))
        for number in range(8):
            run_blocking(repository.ledger.update(CreateTag(f"t{number}", INITIAL_SNAPSHOT_ID)))
        return repository

    @pytest.mark.parametrize("cap", [1, 3, 1000])
    def test_is_complete_whatever_a_file_may_hold(self, cap: int) -> None:
        repository = self.repository(cap)
        found = repository.operations()
        assert [entry.name for entry in found] == [*(f"t{n}" for n in range(7, -1, -1)), None]
        assert found[-1].kind == UpdateKind.REPO_INITIALIZED
        assert found[0].backup_path is None
        copies = {key for key, _ in repository.storage.list_objects(prefix="overwritten")}
        assert {entry.backup_path for entry in found[1:]} == copies
        InvariantChecker().check_blocking(repository.storage.open())

    def test_ends_where_a_copy_is_missing(self) -> None:
        repository = self.repository(3)
        repo = run_blocking(repository.ledger.repo())
        assert repo is not None
        assert repo.repo_before_updates is not None
        copy = backup_key(repo.repo_before_updates)
        run_blocking(repository.storage.open().delete_many([copy]))
        assert [entry.name for entry in repository.operations()] == ["t7", "t6", "t5"]


class TestRequests:
    """How many requests things take in spec 2, where each is a way to a distant storage."""

    def test_an_update_takes_a_copy_and_a_write(self, second: Repository) -> None:
        other = second.other()
        for number in range(2):
            second.storage.reset_request_counts()
            run_blocking(other.ledger.update(CreateTag(f"t{number}", INITIAL_SNAPSHOT_ID)))
            counts = second.storage.request_counts()
            assert (counts.get, counts.copy, counts.put) == (0, 1, 1)
            assert (counts.head, counts.list) == (0, 0)

    def test_after_somebody_else_it_takes_a_look_too(self, second: Repository) -> None:
        other = second.other()
        run_blocking(second.ledger.update(CreateTag("ours", INITIAL_SNAPSHOT_ID)))
        second.storage.reset_request_counts()
        run_blocking(other.ledger.update(CreateTag("theirs", INITIAL_SNAPSHOT_ID)))
        counts = second.storage.request_counts()
        assert (counts.get, counts.copy, counts.put) == (1, 2, 1)
        assert run_blocking(second.ledger.tag_names()) == {"ours", "theirs"}

    def test_refusals_are_looked_up_before(self, second: Repository) -> None:
        other = second.other()
        run_blocking(second.ledger.update(CreateBranch("dev", INITIAL_SNAPSHOT_ID)))
        run_blocking(other.ledger.update(DeleteBranch("dev")))
        assert run_blocking(second.ledger.branch_names()) == {"main"}

    def test_what_did_not_change_is_not_decoded_again(self, second: Repository) -> None:
        first = run_blocking(second.ledger.repo())
        assert run_blocking(second.ledger.repo()) is first
        second.other()
        run_blocking(second.other().ledger.update(CreateTag("t", INITIAL_SNAPSHOT_ID)))
        assert run_blocking(second.ledger.repo()) is not first
