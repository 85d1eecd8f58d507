"""A migration while others write in spec 1: acknowledged is migrated, refused is not.

Each actor makes one change through a repository that was opened in spec 1, while another migrates
it. Whatever the order of their requests: if the actor returns, the migrated repository has the
change; if it raises `RepositoryMigratedError`, it has not; `OutcomeUnknownError` leaves that open.
"""

import pickle
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import icefloe
from icefloe.effects import pause, run_blocking, stepped_context
from icefloe.errors import ErrorKind
from icefloe.storage import Backend, Storage
from icefloe.storage.wrapper import PrecededBackend
from icefloe.testing.schedules import (
    Outcome,
    Schedule,
    ScheduleRun,
    SteppingStorage,
    WrappedStorage,
    all_schedules,
    run_schedule,
)
from tests.faults.pasts import copied, versions, with_a_past
from tests.faults.sessions import BIG, prepared, put_chunk
from tests.property.reachable import stored
from tests.support.checking import check_repository_blocking

BYTES: Final = 77
"""A threshold for inline chunks that no repository has by itself."""


def with_refs() -> Storage:
    """Make a repository of spec 1 with a branch and a tag that can go."""
    storage = prepared(1)
    repo = icefloe.Repository.open(storage)
    main = repo.lookup_branch("main")
    repo.create_branch("side", main)
    repo.create_tag("named", main)
    return storage


ORIGIN: Final = with_refs()
MAIN: Final = icefloe.Repository.open(ORIGIN).lookup_branch("main")
FIRST: Final = [one.id for one in icefloe.Repository.open(ORIGIN).ancestry(branch="main")][-1]


@dataclass(frozen=True)
class Change:
    """What an actor does, and whether a repository has it."""

    begin: Callable[[icefloe.Repository], Coroutine[Any, Any, Any]]
    """Prepare everything; what is returned makes the change when it is run."""
    is_there: Callable[[icefloe.Repository, Any], bool]
    """Gets the repository, and what the change returned."""
    key: str
    """The file of spec 1 that is changed."""


def writing(repo: icefloe.Repository, number: int = 3) -> icefloe.Session:
    session = repo.writable_session("main")
    run_blocking(put_chunk(session, number, 9, BIG))
    return session


def messages(repo: icefloe.Repository) -> list[str]:
    return [one.message for one in repo.ancestry(branch="main")]


def with_config(repo: icefloe.Repository) -> Coroutine[Any, Any, None]:
    given = icefloe.RepositoryConfig(inline_chunk_threshold_bytes=BYTES)
    return repo.reopen(given).save_config_async()


def has_config(repo: icefloe.Repository, _: Any) -> bool:
    return repo.config.inline_chunk_threshold_bytes == BYTES


CHANGES: Final = {
    "commit": Change(
        lambda repo: writing(repo).commit_async("ours"),
        lambda repo, _: "ours" in messages(repo),
        "refs/branch.main/ref.json",
    ),
    "create branch": Change(
        lambda repo: repo.create_branch_async("new", MAIN),
        lambda repo, _: "new" in repo.list_branches() and repo.lookup_branch("new") == MAIN,
        "refs/branch.new/ref.json",
    ),
    "reset branch": Change(
        lambda repo: repo.reset_branch_async("side", FIRST),
        lambda repo, _: repo.lookup_branch("side") == FIRST,
        "refs/branch.side/ref.json",
    ),
    "delete branch": Change(
        lambda repo: repo.delete_branch_async("side"),
        lambda repo, _: "side" not in repo.list_branches(),
        "refs/branch.side/ref.json",
    ),
    "create tag": Change(
        lambda repo: repo.create_tag_async("new", MAIN),
        lambda repo, _: "new" in repo.list_tags() and repo.lookup_tag("new") == MAIN,
        "refs/tag.new/ref.json",
    ),
    "delete tag": Change(
        lambda repo: repo.delete_tag_async("named"),
        lambda repo, _: "named" not in repo.list_tags(),
        "refs/tag.named/ref.json.deleted",
    ),
    "save config": Change(with_config, has_config, "config.yaml"),
}

EVERY_CHANGE = pytest.mark.parametrize("name", CHANGES)


class PausingBackend(PrecededBackend):
    """Pauses before requests that can race with those of another actor."""

    def __init__(self, inner: Backend, reads: frozenset[str], writes: frozenset[str]) -> None:
        super().__init__(inner)
        self._reads = reads
        self._writes = writes

    async def _before(self, *keys: str, writes: bool) -> None:
        if (self._writes if writes else self._reads).intersection(keys):
            await pause()


def require_truth(change: Change, outcome: Outcome, repo: icefloe.Repository) -> None:
    """Compare what an actor was told with what a repository has."""
    is_there = change.is_there(repo, outcome.result)
    match outcome.error:
        case None:
            assert is_there or outcome.crashed
        case icefloe.RepositoryMigratedError():
            assert not is_there
        case error:
            assert isinstance(error, icefloe.OutcomeUnknownError), error


def finished(storage: Storage) -> icefloe.Repository:
    """Open a repository after its migration, which may have to be finished."""
    repo = icefloe.Repository.open(storage)
    if repo.spec_version == 1:
        icefloe.migrate_repository(storage)
        repo = icefloe.Repository.open(storage)
    assert repo.spec_version == 2
    check_repository_blocking(storage.open())
    return repo


class Race:
    """A migration and some changes, on a fresh repository each time.

    Turns are requests that can race: those for the repo object, those for the files that are
    changed, and the listing of branches and tags. What is only changed by its reader is not
    waited for.
    """

    def __init__(self, *names: str, removes: bool = False, migrations: int = 1) -> None:
        self.changes = [CHANGES[name] for name in names]
        self.changed = frozenset(change.key for change in self.changes)
        self.removes = removes
        self.migrations = migrations
        self.storage: Storage

    def opened(self, reads: frozenset[str]) -> icefloe.Repository:
        """Open the repository as another process would; from now on it pauses."""

        def pausing(inner: Backend) -> Backend:
            return PausingBackend(inner, reads, self.changed | {"repo"})

        return icefloe.Repository.open(WrappedStorage(self.storage, pausing))

    def migration(self) -> Coroutine[Any, Any, icefloe.Repository]:
        reads = self.changed | {"refs/"} | ({"repo"} if self.migrations > 1 else set())
        return icefloe.upgrade_icechunk_repository_async(
            self.opened(reads), dry_run=False, delete_unused_v1_files=self.removes
        )

    def change(self, change: Change) -> Coroutine[Any, Any, Any]:
        is_shared = self.removes or len(self.changes) > 1
        return change.begin(
            self.opened(frozenset({"repo"} | (self.changed if is_shared else set())))
        )

    def play(self, schedule: Schedule, crashes: dict[int, int] | None = None) -> ScheduleRun:
        self.storage = copied(ORIGIN)
        work: list[Coroutine[Any, Any, Any]] = [self.migration() for _ in range(self.migrations)]
        work += [self.change(change) for change in self.changes]
        for actor in work:
            stepped_context().run(actor.send, None)  # up to the first request that can race
        return run_schedule(work, schedule, crashes=crashes)

    def outcomes(self, run: ScheduleRun) -> tuple[Outcome, ...]:
        return run.outcomes[self.migrations :]

    def check(self, run: ScheduleRun) -> None:
        # What is acknowledged shows at every moment, also if the migration died.
        present = icefloe.Repository.open(self.storage)
        for change, outcome in zip(self.changes, self.outcomes(run), strict=True):
            if outcome.succeeded:
                assert change.is_there(present, outcome.result), run
        repo = finished(self.storage)
        for change, outcome in zip(self.changes, self.outcomes(run), strict=True):
            require_truth(change, outcome, repo)


def check_every_schedule(race: Race) -> set[type | None]:
    """Play every schedule; return how the change ended, as a class of error or None."""
    ends = set()
    for run in all_schedules(race.play, limit=20_000):
        race.check(run)
        migrating, [outcome] = run.outcomes[0], race.outcomes(run)
        assert migrating.succeeded, migrating.error
        ends.add(None if outcome.error is None else type(outcome.error))
    return ends


@pytest.mark.parametrize("name", ["commit", "create tag", "delete branch"])
def test_every_order_of_requests(name: str) -> None:
    ends = check_every_schedule(Race(name))
    assert ends == {None, icefloe.RepositoryMigratedError, icefloe.OutcomeUnknownError}


SCHEDULES: Final = st.lists(st.integers(0, 3), max_size=40)


@EVERY_CHANGE
@pytest.mark.parametrize("removes", [False, True], ids=["kept", "removed"])
@settings(max_examples=20)
@given(schedule=SCHEDULES)
def test_any_change(name: str, removes: bool, schedule: list[int]) -> None:
    race = Race(name, removes=removes)
    run = race.play(schedule)
    race.check(run)
    assert run.outcomes[0].succeeded, run.outcomes[0].error


@EVERY_CHANGE
@settings(max_examples=20)
@given(schedule=SCHEDULES, steps=st.integers(0, 9), removes=st.booleans())
def test_a_migration_that_dies(name: str, schedule: list[int], steps: int, removes: bool) -> None:
    race = Race(name, removes=removes)
    race.check(race.play(schedule, {0: steps}))


@settings(max_examples=60)
@given(
    schedule=st.lists(st.integers(0, 3), max_size=60),
    names=st.lists(st.sampled_from(sorted(CHANGES)), min_size=2, max_size=2, unique=True),
    deaths=st.dictionaries(st.integers(0, 1), st.integers(0, 12), max_size=1),
    removes=st.booleans(),
)
def test_two_migrations_and_two_changes(
    schedule: list[int], names: list[str], deaths: dict[int, int], removes: bool
) -> None:
    assume(set(names) != {"delete branch", "reset branch"})  # the same branch: one undoes the other
    race = Race(*names, removes=removes, migrations=2)
    run = race.play(schedule, deaths)
    race.check(run)
    for outcome in run.outcomes[:2]:
        if outcome.error is not None:
            assert isinstance(outcome.error, icefloe.IcefloeError)
            assert outcome.error.kind == ErrorKind.INVALID_REPOSITORY_MIGRATION


# -- maintenance ---------------------------------------------------------------------------


async def expire_and_collect(repo: icefloe.Repository) -> None:
    now = datetime.now(UTC)
    await repo.expire_snapshots_async(now, delete_expired_branches=True)
    await repo.garbage_collect_async(now)


@settings(max_examples=60)
@given(schedule=st.lists(st.integers(0, 1), max_size=80))
def test_maintenance_in_spec_1_deletes_nothing_that_is_migrated(schedule: list[int]) -> None:
    storage = with_a_past(1)
    keys = ("repo", "refs/", "snapshots/")

    def opened() -> icefloe.Repository:
        return icefloe.Repository.open(SteppingStorage(storage, keys))

    work: list[Coroutine[Any, Any, Any]] = [
        icefloe.upgrade_icechunk_repository_async(
            opened(), dry_run=False, delete_unused_v1_files=False
        ),
        expire_and_collect(opened()),
    ]
    migrating, maintaining = run_schedule(work, schedule).outcomes
    assert migrating.succeeded, migrating.error
    if maintaining.error is not None:
        assert isinstance(
            maintaining.error, icefloe.RepositoryMigratedError | icefloe.OutcomeUnknownError
        )
    check_repository_blocking(storage.open())
    assert icefloe.Repository.open(storage).spec_version == 2
    versions(storage)  # reads everything


def test_maintenance_in_spec_1_right_before_the_first_write() -> None:
    """What the migration read before is old then: snapshots have other parents, or are gone."""
    storage = with_a_past(1)
    turns: list[Coroutine[Any, Any, Any]] = [
        icefloe.upgrade_icechunk_repository_async(
            icefloe.Repository.open(
                WrappedStorage(
                    storage, lambda inner: PausingBackend(inner, frozenset(), frozenset({"repo"}))
                )
            ),
            dry_run=False,
            delete_unused_v1_files=False,
        ),
        expire_and_collect(icefloe.Repository.open(storage)),
    ]
    migrating, maintaining = run_schedule(turns, [0, 1]).outcomes
    assert migrating.succeeded, migrating.error
    assert maintaining.succeeded, maintaining.error
    check_repository_blocking(storage.open())
    assert icefloe.Repository.open(storage).list_branches() == {"main"}


# -- a repository that stays open ----------------------------------------------------------


def migrated(*, removes: bool) -> tuple[icefloe.Repository, icefloe.Session, Storage]:
    """Migrate a repository behind the back of somebody who has it open, and a session too."""
    storage = copied(ORIGIN)
    repo = icefloe.Repository.open(storage)
    session = writing(repo)
    icefloe.migrate_repository(storage, delete_unused_v1_files=removes)
    return repo, session, storage


WRITES: Final[dict[str, Callable[[icefloe.Repository], Any]]] = {
    "create_branch": lambda repo: repo.create_branch("new", MAIN),
    "reset_branch": lambda repo: repo.reset_branch("side", FIRST),
    "delete_branch": lambda repo: repo.delete_branch("side"),
    "create_tag": lambda repo: repo.create_tag("new", MAIN),
    "delete_tag": lambda repo: repo.delete_tag("named"),
    "save_config": lambda repo: repo.save_config(),
    "expire_snapshots": lambda repo: repo.expire_snapshots(datetime.now(UTC)),
    "garbage_collect": lambda repo: repo.garbage_collect(datetime.now(UTC)),
}
READS: Final[dict[str, Callable[[icefloe.Repository], Any]]] = {
    "list_branches": lambda repo: repo.list_branches(),
    "list_tags": lambda repo: repo.list_tags(),
    "lookup_branch": lambda repo: repo.lookup_branch("main"),
    "lookup_tag": lambda repo: repo.lookup_tag("named"),
    "ancestry": lambda repo: list(repo.ancestry(branch="main")),
    "readonly_session": lambda repo: repo.readonly_session("main"),
    "writable_session": lambda repo: repo.writable_session("main"),
}


def require_refusal(work: Callable[[], Any]) -> None:
    with pytest.raises(icefloe.RepositoryMigratedError, match=r"migrated.*open it again") as caught:
        work()
    assert caught.value.kind == "repository-migrated"
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (type(copy), str(copy), copy.kind) == (
        icefloe.RepositoryMigratedError,
        str(caught.value),
        caught.value.kind,
    )


@pytest.mark.parametrize("removes", [False, True], ids=["kept", "removed"])
@pytest.mark.parametrize("name", WRITES)
def test_writes_are_refused_afterwards(name: str, removes: bool) -> None:
    repo, _, storage = migrated(removes=removes)
    before = stored(storage.open())
    require_refusal(lambda: WRITES[name](repo))
    assert stored(storage.open()) == before


@pytest.mark.parametrize("removes", [False, True], ids=["kept", "removed"])
@pytest.mark.parametrize("ending", ["commit", "flush"])
def test_sessions_are_refused_afterwards(ending: str, removes: bool) -> None:
    _, session, storage = migrated(removes=removes)
    before = versions(storage)
    fork = session.fork()
    run_blocking(put_chunk(fork, 4, 8, BIG))
    session.merge(fork)
    require_refusal(lambda: getattr(session, ending)("ours"))
    assert versions(storage) == before


@pytest.mark.parametrize("name", READS)
def test_reads_are_refused_when_the_old_files_are_gone(name: str) -> None:
    repo, _, _ = migrated(removes=True)
    require_refusal(lambda: READS[name](repo))


def test_a_clone_of_what_is_gone_is_refused() -> None:
    repo, _, _ = migrated(removes=True)
    require_refusal(lambda: repo.clone_to(icefloe.in_memory_storage()))


@pytest.mark.parametrize("name", READS)
def test_reads_go_on_while_the_old_files_are_kept(name: str) -> None:
    repo, _, _ = migrated(removes=False)
    READS[name](repo)


def test_an_interrupted_migration_hides_nothing() -> None:
    """It is of spec 1 for us, read-only for others, and is finished by another migration."""
    race = Race("commit")
    for steps in range(8):
        run = race.play([0] * 30, {0: steps})
        storage, [outcome] = race.storage, race.outcomes(run)
        repo = icefloe.Repository.open(storage)
        has_repo_object = "repo" in stored(storage.open())
        if outcome.succeeded or not has_repo_object or repo.spec_version == 2:
            continue
        require_refusal(partial(repo.create_tag, "new", MAIN))
        assert repo.lookup_branch("main") == MAIN
        assert isinstance(outcome.error, icefloe.RepositoryMigratedError)
        assert "icefloe migrate" in outcome.error.message
        assert finished(storage).spec_version == 2
        return
    raise AssertionError("no migration died between its two writes")


# -- what it costs -------------------------------------------------------------------------


def requests_of(storage: Storage, work: Callable[[], Any]) -> icefloe.RequestCounts:
    storage.reset_request_counts()
    work()
    return storage.request_counts()


def test_a_commit_in_spec_1_costs_two_more_requests() -> None:
    storage = copied(ORIGIN)
    session = writing(icefloe.Repository.open(storage))
    counts = requests_of(storage, lambda: session.commit("ours"))
    assert counts.head == 2


def test_a_commit_in_spec_2_costs_none() -> None:
    storage = prepared(2)
    session = writing(icefloe.Repository.open(storage))
    assert requests_of(storage, lambda: session.commit("ours")).head == 0
