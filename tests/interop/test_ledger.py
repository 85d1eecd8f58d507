"""Refs, settings and the log of operations, changed by us and by the reference in turn."""

import datetime as dt
from pathlib import Path

import icechunk as ic
import pytest

from icefloe.config import RepositoryConfig
from icefloe.effects import run_blocking
from icefloe.format.ids import INITIAL_SNAPSHOT_ID, SnapshotId
from icefloe.format.snapshot import Snapshot
from icefloe.format.snapshot_table import SnapshotEntry
from icefloe.format.transaction_log import TransactionLog
from icefloe.format.update_table import Status, UpdateEntry
from icefloe.repo import lifecycle
from icefloe.repo.context import RepoContext
from icefloe.repo.repo_changes import (
    Commit,
    CreateBranch,
    CreateTag,
    DeleteBranch,
    DeleteTag,
    ResetBranch,
    SetFlag,
    SetMetadata,
    SetStatus,
)
from icefloe.storage import local_filesystem_storage
from tests.support.checking import check_repository_blocking

pytestmark = pytest.mark.interop

SPECS = pytest.mark.parametrize("spec", [1, 2])
FIRST = str(INITIAL_SNAPSHOT_ID)
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def ours(path: Path, config: RepositoryConfig | None = None) -> RepoContext:
    return run_blocking(lifecycle.open_(local_filesystem_storage(str(path)), config))


def theirs(path: Path, config: ic.RepositoryConfig | None = None) -> ic.Repository:
    return ic.Repository.open(ic.local_filesystem_storage(str(path)), config=config)


def created_by_us(path: Path, spec: int, config: RepositoryConfig | None = None) -> RepoContext:
    storage = local_filesystem_storage(str(path))
    return run_blocking(lifecycle.create(storage, config, spec_version=spec))


def created_by_them(
    path: Path, spec: int, config: ic.RepositoryConfig | None = None
) -> ic.Repository:
    storage = ic.local_filesystem_storage(str(path))
    return ic.Repository.create(storage, config=config, spec_version=spec)


def commit(context: RepoContext, message: str) -> SnapshotId:
    base = run_blocking(context.ledger.branch_tip("main"))
    new, spec = SnapshotId.random(), context.spec_version
    before = run_blocking(context.ledger.entry(base)).flushed_at
    snapshot = Snapshot(
        new,
        max(context.clock(), before + 1),
        message,
        metadata={"by": "us"},
        parent_id=base if spec == 1 else None,
        spec_version=spec,
    )
    run_blocking(context.assets.save_snapshot(snapshot))
    run_blocking(context.assets.save_transaction_log(TransactionLog(new)))
    entry = SnapshotEntry(new, base, snapshot.flushed_at, message, {"by": "us"})
    run_blocking(context.ledger.update(Commit("main", base, entry)))
    return new


def refs_of(context: RepoContext) -> tuple[dict[str, str], dict[str, str]]:
    branches, tags = run_blocking(context.ledger.branches()), run_blocking(context.ledger.tags())
    return (
        {name: str(at) for name, at in branches.items()},
        {name: str(at) for name, at in tags.items()},
    )


def their_refs(repo: ic.Repository) -> tuple[dict[str, str], dict[str, str]]:
    return (
        {name: repo.lookup_branch(name) for name in repo.list_branches()},
        {name: repo.lookup_tag(name) for name in repo.list_tags()},
    )


def log_of(context: RepoContext) -> list[tuple[int, str | None]]:
    async def walk() -> list[UpdateEntry]:
        return [entry async for entry in context.ledger.ops_log()]

    return [(entry.updated_at, entry.backup_path) for entry in run_blocking(walk())]


def their_log(repo: ic.Repository) -> list[tuple[int, str | None]]:
    micro = dt.timedelta(microseconds=1)
    return [((each.updated_at - EPOCH) // micro, each.backup_path) for each in repo.ops_log()]


@SPECS
def test_what_we_create_opens_in_the_reference(spec: int, tmp_path: Path) -> None:
    context = created_by_us(tmp_path / "r", spec)
    repo = theirs(tmp_path / "r")
    assert int(repo.spec_version) == spec
    [first] = repo.ancestry(branch="main")
    assert (first.id, first.message) == (FIRST, "Repository initialized")
    assert first.metadata == {"__icechunk": {"is_root": True}}
    flushed_at = run_blocking(context.ledger.entry(INITIAL_SNAPSHOT_ID)).flushed_at
    assert first.written_at == EPOCH + dt.timedelta(microseconds=flushed_at)
    assert ic.Repository.fetch_config(repo.storage) is None


@SPECS
def test_refs_go_back_and_forth(spec: int, tmp_path: Path) -> None:
    path = tmp_path / "r"
    context = created_by_us(path, spec)
    repo = theirs(path)
    second = commit(context, "ours")
    run_blocking(context.ledger.update(CreateBranch("a b", second)))
    run_blocking(context.ledger.update(CreateTag("one", INITIAL_SNAPSHOT_ID)))
    run_blocking(context.ledger.update(CreateTag("gone", INITIAL_SNAPSHOT_ID)))
    run_blocking(context.ledger.update(DeleteTag("gone")))
    assert refs_of(context) == their_refs(repo)
    assert next(repo.ancestry(branch="main")).message == "ours"

    repo.create_branch("theirs", FIRST)
    repo.create_tag("two", str(second))
    repo.delete_tag("one")
    repo.delete_branch("a b")
    repo.reset_branch("main", FIRST)
    assert refs_of(context) == their_refs(repo)
    assert refs_of(ours(path)) == ({"main": FIRST, "theirs": FIRST}, {"two": str(second)})

    run_blocking(context.ledger.update(ResetBranch("main", second, expected=INITIAL_SNAPSHOT_ID)))
    run_blocking(context.ledger.update(DeleteBranch("theirs")))
    assert their_refs(repo) == refs_of(context)
    for deleted in ("one", "gone"):
        with pytest.raises(ic.AlreadyExistsError):
            repo.create_tag(deleted, FIRST)
    check_repository_blocking(context.backend)


@SPECS
def test_unusual_names_are_found_by_both(spec: int, tmp_path: Path) -> None:
    context = created_by_us(tmp_path / "r", spec)
    repo = theirs(tmp_path / "r")
    run_blocking(context.ledger.update(CreateBranch("наш a%", INITIAL_SNAPSHOT_ID)))
    repo.create_tag("их b%", FIRST)
    assert repo.lookup_branch("наш a%") == FIRST
    assert refs_of(context) == ({"main": FIRST, "наш a%": FIRST}, {"их b%": FIRST})


@SPECS
def test_commits_of_both_make_one_history(spec: int, tmp_path: Path) -> None:
    path = tmp_path / "r"
    repo = created_by_them(path, spec)
    context = ours(path)
    for number in range(3):
        commit(context, f"ours {number}")
        session = repo.writable_session("main")
        session.commit(f"theirs {number}", allow_empty=True)

    async def walk() -> list[SnapshotEntry]:
        tip = await context.ledger.branch_tip("main")
        return [entry async for entry in context.ledger.ancestry(tip)]

    mine = [(str(e.id), e.message, e.metadata) for e in run_blocking(walk())]
    assert mine == [(e.id, e.message, e.metadata) for e in repo.ancestry(branch="main")]
    assert len(mine) == 7


def test_settings_go_back_and_forth(tmp_path: Path) -> None:
    path = tmp_path / "r"
    context = created_by_us(path, 2)
    repo = theirs(path)
    run_blocking(context.ledger.update(SetMetadata({"a": [1, 2.5], "b": {"c": None}})))
    assert repo.get_metadata() == {"a": [1, 2.5], "b": {"c": None}}
    repo.update_metadata({"b": "x"})
    assert run_blocking(context.ledger.metadata()) == repo.get_metadata()

    run_blocking(context.ledger.update(SetFlag("create_tag", False)))
    assert [flag.name for flag in repo.disabled_feature_flags()] == ["create_tag"]
    with pytest.raises(ic.IcechunkError):
        repo.create_tag("t", FIRST)
    repo.set_feature_flag("create_tag", None)
    run_blocking(context.ledger.update(CreateTag("t", INITIAL_SNAPSHOT_ID)))

    run_blocking(context.ledger.update(SetStatus(Status(1, 1_700_000_000_000_000, "moving"))))
    status = repo.get_status()
    assert status.availability == ic.RepoAvailability.read_only
    assert status.limited_availability_reason == "moving"
    assert status.set_at == EPOCH + dt.timedelta(seconds=1_700_000_000)
    with pytest.raises(ic.ReadOnlyError):
        repo.create_tag("u", FIRST)
    repo.set_status(ic.RepoStatus(ic.RepoAvailability.online))
    assert run_blocking(context.ledger.status()).availability == 0
    assert log_of(context) == their_log(repo)
    check_repository_blocking(context.backend)


@pytest.mark.parametrize("cap", [1, 3, 1000])
def test_the_log_is_the_same_for_both(cap: int, tmp_path: Path) -> None:
    path = tmp_path / "r"
    context = created_by_us(path, 2, RepositoryConfig(num_updates_per_repo_info_file=cap))
    repo = theirs(path)
    for number in range(4):
        run_blocking(context.ledger.update(CreateTag(f"ours {number}", INITIAL_SNAPSHOT_ID)))
        repo.create_tag(f"theirs {number}", FIRST)
    assert len(log_of(context)) == 9
    assert log_of(context) == their_log(repo)
    check_repository_blocking(context.backend)


@SPECS
def test_configurations_go_back_and_forth(spec: int, tmp_path: Path) -> None:
    path = tmp_path / "r"
    created_by_us(path, spec, RepositoryConfig(inline_chunk_threshold_bytes=7))
    repo = theirs(path)
    assert repo.config.inline_chunk_threshold_bytes == 7
    changed = theirs(path, ic.RepositoryConfig(max_concurrent_requests=9))
    changed.save_config()
    context = ours(path, RepositoryConfig(get_partial_values_concurrency=3))
    shown = context.user_config
    assert (shown.inline_chunk_threshold_bytes, shown.max_concurrent_requests) == (7, 9)
    run_blocking(lifecycle.save_config(context))
    stored = ic.Repository.fetch_config(repo.storage)
    assert stored is not None
    assert stored.inline_chunk_threshold_bytes == 7
    assert stored.max_concurrent_requests == 9
    assert stored.get_partial_values_concurrency == 3
    check_repository_blocking(context.backend)


@SPECS
@pytest.mark.parametrize("given", [None, 7])
def test_a_configuration_at_creation_is_stored_alike(
    spec: int, given: int | None, tmp_path: Path
) -> None:
    created_by_them(
        tmp_path / "theirs", spec, ic.RepositoryConfig(inline_chunk_threshold_bytes=given)
    )
    created_by_us(tmp_path / "ours", spec, RepositoryConfig(inline_chunk_threshold_bytes=given))
    found = [
        run_blocking(lifecycle.fetch_config(local_filesystem_storage(str(tmp_path / name))))
        for name in ("theirs", "ours")
    ]
    assert found[0] == found[1]
    assert (found[0] is None) == (given is None)
    shown = [ours(tmp_path / name).user_config for name in ("theirs", "ours")]
    assert shown[0] == shown[1]
