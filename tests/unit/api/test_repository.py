"""Repositories as users hold them, in both versions of the format."""

import asyncio
import pickle
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
import zarr

from icefloe import (
    AlreadyExistsError,
    Attribution,
    ConflictError,
    FormatError,
    InvalidInputError,
    PackingOptions,
    ReadOnlyError,
    RefNotFoundError,
    RepoAvailability,
    Repository,
    RepositoryConfig,
    RepositoryNotFoundError,
    RepoStatus,
    SessionMode,
    SessionStateError,
    SnapshotNotFoundError,
    SpecVersion,
    Storage,
    UpdateType,
    in_memory_storage,
    local_filesystem_storage,
)
from icefloe.format.ids import INITIAL_SNAPSHOT_ID

FIRST = str(INITIAL_SNAPSHOT_ID)


@pytest.fixture
def storage() -> Storage:
    return in_memory_storage()


@pytest.fixture(params=[1, 2], ids=["spec 1", "spec 2"])
def repository(request: pytest.FixtureRequest, storage: Storage) -> Repository:
    return Repository.create(storage, spec_version=request.param)


@pytest.fixture
def modern(storage: Storage) -> Repository:
    return Repository.create(storage)


def commit(repository: Repository, message: str, branch: str = "main") -> str:
    return repository.writable_session(branch).commit(message, allow_empty=True)


def kind_of(error: pytest.ExceptionInfo[BaseException]) -> str:
    return str(error.value.kind)  # type: ignore[attr-defined]


def test_it_begins_with_one_version(repository: Repository, storage: Storage) -> None:
    assert repository.list_branches() == {"main"}
    assert repository.list_tags() == set()
    assert repository.lookup_branch("main") == FIRST
    first = repository.lookup_snapshot(FIRST)
    assert first.message == "Repository initialized"
    assert first.parent_id is None
    assert first.written_at.tzinfo is not None
    assert Repository.exists(storage)
    assert Repository.fetch_spec_version(storage) == repository.spec_version
    assert repository.storage is storage
    assert Repository.fetch_config(storage) is None


def test_where_there_is_none(storage: Storage) -> None:
    assert not Repository.exists(storage)
    assert Repository.fetch_spec_version(storage) is None
    with pytest.raises(RepositoryNotFoundError):
        Repository.open(storage)


def test_open_or_create_does_either(storage: Storage) -> None:
    made = Repository.open_or_create(storage, create_version=1)
    new = commit(made, "something")
    opened = Repository.open_or_create(storage, create_version=2)
    assert opened.spec_version is SpecVersion.v1
    assert opened.lookup_branch("main") == new


def test_configuration_is_stored_merged_and_saved(storage: Storage) -> None:
    Repository.create(storage, RepositoryConfig(inline_chunk_threshold_bytes=7))
    over = RepositoryConfig(max_concurrent_requests=3)
    opened = Repository.open(storage, over, attribution=Attribution(client="tests"))
    assert opened.config.inline_chunk_threshold_bytes == 7
    assert opened.config.max_concurrent_requests == 3
    assert opened.attribution == Attribution(client="tests")
    stored = Repository.fetch_config(storage)
    assert stored is not None
    assert stored.max_concurrent_requests is None
    opened.save_config()
    again = Repository.open(storage).config
    assert again.max_concurrent_requests == 3
    other = opened.reopen(RepositoryConfig(inline_chunk_threshold_bytes=9))
    assert other.config.inline_chunk_threshold_bytes == 9
    assert other.config.max_concurrent_requests == 3
    assert opened.config.inline_chunk_threshold_bytes == 7


def test_the_configuration_given_out_is_a_copy(repository: Repository) -> None:
    repository.config.inline_chunk_threshold_bytes = 1
    assert repository.config.inline_chunk_threshold_bytes is None


def test_branches(repository: Repository) -> None:
    first = commit(repository, "one")
    repository.create_branch("dev", first)
    assert repository.list_branches() == {"main", "dev"}
    second = commit(repository, "two", "dev")
    assert repository.lookup_branch("dev") == second
    assert repository.lookup_branch("main") == first
    with pytest.raises(ConflictError):
        repository.reset_branch("dev", FIRST, from_snapshot_id=first)
    repository.reset_branch("dev", FIRST, from_snapshot_id=second)
    assert repository.lookup_branch("dev") == FIRST
    repository.delete_branch("dev")
    with pytest.raises(RefNotFoundError):
        repository.lookup_branch("dev")
    with pytest.raises(SessionStateError) as error:
        repository.delete_branch("main")
    assert kind_of(error) == "cannot-delete-main"
    repository.create_branch("again", first)
    taken = ConflictError if repository.spec_version == 1 else AlreadyExistsError
    with pytest.raises(taken, match="exists"):
        repository.create_branch("again", first)


def test_tags_never_come_back(repository: Repository) -> None:
    repository.create_tag("v1", FIRST)
    assert repository.lookup_tag("v1") == FIRST
    repository.delete_tag("v1")
    assert repository.list_tags() == set()
    with pytest.raises(AlreadyExistsError):
        repository.create_tag("v1", FIRST)


def test_what_is_no_id_is_said_so(repository: Repository) -> None:
    for call in (
        lambda: repository.create_tag("t", "nonsense"),
        lambda: repository.lookup_snapshot("nonsense"),
        lambda: repository.readonly_session(snapshot_id="nonsense"),
        lambda: repository.inspect_snapshot("nonsense"),
    ):
        with pytest.raises(InvalidInputError, match="nonsense") as error:
            call()
        assert kind_of(error) == "invalid-snapshot-id"


def test_ancestry_goes_back_to_the_first(repository: Repository) -> None:
    one, two = commit(repository, "one"), commit(repository, "two")
    repository.create_tag("v1", one)
    assert [each.id for each in repository.ancestry(branch="main")] == [two, one, FIRST]
    assert [each.id for each in repository.ancestry(tag="v1")] == [one, FIRST]
    assert [each.id for each in repository.ancestry(snapshot_id=FIRST)] == [FIRST]
    times = [each.written_at for each in repository.ancestry(branch="main")]
    assert times == sorted(times, reverse=True)

    async def awaited() -> list[str]:
        return [each.id async for each in repository.async_ancestry(branch="main")]

    assert asyncio.run(awaited()) == [two, one, FIRST]


def test_ancestry_says_at_once_what_is_wrong(repository: Repository) -> None:
    with pytest.raises(RefNotFoundError):
        repository.ancestry(branch="nowhere")
    with pytest.raises(ValueError, match="exactly one"):
        repository.ancestry()
    with pytest.raises(ValueError, match="exactly one"):
        repository.async_ancestry(branch="main", tag="t")


def test_sessions_by_version_and_time(repository: Repository) -> None:
    one = commit(repository, "one")
    before = repository.lookup_snapshot(one).written_at
    two = commit(repository, "two")
    repository.create_tag("v1", one)
    assert repository.readonly_session("main").snapshot_id == two
    assert repository.readonly_session(tag="v1").snapshot_id == one
    assert repository.readonly_session(snapshot_id=one).snapshot_id == one
    assert repository.readonly_session("main", as_of=before).snapshot_id == one
    with pytest.raises(SnapshotNotFoundError) as error:
        repository.readonly_session("main", as_of=before - timedelta(days=1))
    assert kind_of(error) == "no-snapshot-at-time"
    with pytest.raises(InvalidInputError, match="time zone"):
        repository.readonly_session("main", as_of=datetime(2024, 1, 1))
    with pytest.raises(ValueError, match="branch"):
        repository.readonly_session(tag="v1", as_of=before)
    with pytest.raises(ValueError, match="exactly one"):
        repository.readonly_session()


def test_sessions_know_what_they_are(modern: Repository) -> None:
    readonly = modern.readonly_session("main")
    writable = modern.writable_session("main")
    rearrange = modern.rearrange_session("main")
    assert [each.mode for each in (readonly, writable, rearrange)] == [
        SessionMode.readonly,
        SessionMode.writable,
        SessionMode.rearrange,
    ]
    assert [each.read_only for each in (readonly, writable, rearrange)] == [True, False, False]
    assert [each.branch for each in (readonly, writable, rearrange)] == [None, "main", "main"]


def test_transactions_commit_unless_they_fail(repository: Repository) -> None:
    with repository.transaction("main", message="add", metadata={"by": "test"}) as store:
        zarr.create_group(store)
    newest = next(repository.ancestry(branch="main"))
    assert (newest.message, newest.metadata) == ("add", {"by": "test"})

    def fail() -> None:
        with repository.transaction("main", message="never") as store:
            zarr.create_group(store, path="below")
            raise KeyError("oops")

    with pytest.raises(KeyError, match="oops"):
        fail()
    assert repository.lookup_branch("main") == newest.id


def test_awaited_transactions(repository: Repository) -> None:
    async def user() -> str:
        async with repository.transaction_async("main", message="add") as store:
            await store.set_if_not_exists(
                "zarr.json",
                zarr.core.buffer.default_buffer_prototype().buffer.from_bytes(
                    b'{"zarr_format": 3, "node_type": "group"}'
                ),
            )
        return (await repository.lookup_snapshot_async(repository.lookup_branch("main"))).message

    assert asyncio.run(user()) == "add"


def test_default_metadata_is_below_what_is_given(repository: Repository) -> None:
    repository.set_default_commit_metadata({"a": 1, "b": 1})
    assert repository.default_commit_metadata() == {"a": 1, "b": 1}
    session = repository.writable_session("main")
    new = session.commit("x", {"b": 2}, allow_empty=True)
    assert repository.lookup_snapshot(new).metadata == {"a": 1, "b": 2}
    assert repository.reopen().default_commit_metadata() == {"a": 1, "b": 1}


def test_metadata_of_the_repository(modern: Repository) -> None:
    modern.set_metadata({"title": "era5", "n": [1]})
    assert modern.update_metadata({"n": [2]}) == {"title": "era5", "n": [2]}
    assert modern.metadata == modern.get_metadata() == {"title": "era5", "n": [2]}


@pytest.mark.parametrize("availability", [RepoAvailability.read_only, RepoAvailability.offline])
def test_a_closed_repository_refuses_changes(
    modern: Repository, availability: RepoAvailability
) -> None:
    session = modern.writable_session("main")
    status = RepoStatus(availability, limited_availability_reason="moving house")
    modern.set_status(status)
    assert modern.status.availability is availability
    assert modern.status.limited_availability_reason == "moving house"
    for change in (
        lambda: modern.writable_session("main"),
        lambda: modern.rearrange_session("main"),
        lambda: modern.create_branch("b", FIRST),
        lambda: modern.create_tag("t", FIRST),
        lambda: session.commit("x", allow_empty=True),
    ):
        with pytest.raises(ReadOnlyError, match="moving house") as error:
            change()
        assert kind_of(error) == "read-only-repository"
    if availability is RepoAvailability.read_only:
        assert modern.readonly_session("main").snapshot_id == FIRST
    modern.set_status(RepoStatus(RepoAvailability.online))
    session.commit("x", allow_empty=True)


def test_feature_flags(modern: Repository) -> None:
    names = {flag.name for flag in modern.feature_flags()}
    assert names == {"move_node", "create_tag", "delete_tag"}
    assert modern.disabled_feature_flags() == []
    modern.set_feature_flag("create_tag", False)
    assert [flag.name for flag in modern.disabled_feature_flags()] == ["create_tag"]
    assert {flag.name for flag in modern.enabled_feature_flags()} == {"move_node", "delete_tag"}
    with pytest.raises(SessionStateError) as error:
        modern.create_tag("t", FIRST)
    assert kind_of(error) == "feature-flag-disabled"
    modern.set_feature_flag("move_node", False)
    with pytest.raises(SessionStateError):
        modern.rearrange_session("main")
    modern.set_feature_flag("create_tag", None)
    modern.create_tag("t", FIRST)


def test_the_log_tells_everything(modern: Repository) -> None:
    new = commit(modern, "x")
    modern.create_tag("t", new)
    modern.set_metadata({})
    kinds = [update.kind for update in modern.ops_log()]
    assert kinds == [
        UpdateType.MetadataChanged(),
        UpdateType.TagCreated("t"),
        UpdateType.NewCommit("main", new),
        UpdateType.RepoInitialized(),
    ]

    async def awaited() -> list[UpdateType]:
        return [update.kind async for update in modern.ops_log_async()]

    assert asyncio.run(awaited()) == kinds


def test_spec_1_refuses_what_came_later(storage: Storage) -> None:
    old = Repository.create(storage, spec_version=SpecVersion.v1)
    for call in (
        old.get_metadata,
        old.get_status,
        old.feature_flags,
        old.ops_log,
        old.inspect_repo_info,
        lambda: old.rearrange_session("main"),
        lambda: old.set_metadata({}),
        lambda: old.set_status(RepoStatus(RepoAvailability.online)),
    ):
        with pytest.raises(FormatError) as error:
            call()
        assert kind_of(error) == "unsupported-spec-version"


def test_versions_are_compared(repository: Repository) -> None:
    with repository.transaction("main", message="one") as store:
        zarr.create_array(store, name="a", shape=4, chunks=1, dtype="i4")[:] = 1
    one = repository.lookup_branch("main")
    with repository.transaction("main", message="two") as store:
        zarr.open_array(store, path="a")[2] = 7
    diff = repository.diff(from_snapshot_id=one, to_branch="main")
    assert diff.updated_chunks == {"/a": [[2]]}
    assert not diff.new_arrays
    assert repository.diff(from_snapshot_id=FIRST, to_branch="main").new_arrays == {"/a"}
    with pytest.raises(InvalidInputError) as error:
        repository.diff(from_branch="main", to_snapshot_id=one)
    assert kind_of(error) == "bad-snapshot-chain-for-diff"
    with pytest.raises(ValueError, match="exactly one"):
        repository.diff(from_branch="main")


def test_files_can_be_looked_into(repository: Repository) -> None:
    session = repository.writable_session("main")
    zarr.create_array(session.store, name="a", shape=4, chunks=1, dtype="i4")[:] = 1
    new = session.commit("data")
    [manifest] = repository.list_manifest_files(new)
    assert manifest.num_chunk_refs == 4
    assert repository.inspect_manifest(manifest.id)["total_chunk_refs"] == 4
    cut = repository.inspect_manifest(manifest.id, max_rows=1)
    assert cut["arrays"][0]["chunks_left_out"] == 3
    assert {node["path"] for node in repository.inspect_snapshot(new)["nodes"]} == {"/", "/a"}
    assert repository.inspect_transaction_log(new)["updated_chunks"][0]["num_chunks"] == 4
    if repository.spec_version == 2:
        assert repository.inspect_repo_info()["branches"] == {"main": new}


def test_packed_chunks_share_objects(tmp_path: Path) -> None:
    storage = local_filesystem_storage(str(tmp_path))
    config = RepositoryConfig(inline_chunk_threshold_bytes=0)
    repository = Repository.create(storage, config)
    options = PackingOptions(max_chunk_bytes=1024, pack_bytes=4096)
    for packing, objects in ((False, 20), (options, 1), (True, 1)):
        before = len(list((tmp_path / "chunks").glob("*"))) if (tmp_path / "chunks").exists() else 0
        session = repository.writable_session("main", packing=packing)
        name = f"a{objects}{packing is True}"
        array = zarr.create_array(session.store, name=name, shape=20, chunks=1, dtype="i4")
        array[:] = range(1, 21)
        session.commit("data")
        assert len(list((tmp_path / "chunks").glob("*"))) - before == objects
        read = zarr.open_array(repository.readonly_session("main").store, path=name)
        assert np.asarray(read[:]).tolist() == list(range(1, 21))


def test_repositories_travel(tmp_path: Path) -> None:
    storage = local_filesystem_storage(str(tmp_path))
    repository = Repository.create(storage)
    repository.set_default_commit_metadata({"by": "me"})
    copy = pickle.loads(pickle.dumps(repository))
    assert copy.default_commit_metadata() == {"by": "me"}
    new = commit(copy, "from the copy")
    assert repository.lookup_branch("main") == new
    session = pickle.loads(pickle.dumps(repository.readonly_session("main")))
    assert session.read_only
    assert session.snapshot_id == new


def test_repositories_show_themselves(repository: Repository) -> None:
    assert "icefloe.Repository" in repr(repository)
    assert f"<td>main</td><td>{FIRST[:8]}</td>" in repository._repr_html_()


def test_a_broken_storage_does_not_break_the_display(modern: Repository, storage: Storage) -> None:
    modern.create_branch("<script>", FIRST)
    assert "<script>" not in modern._repr_html_()

    async def lose() -> None:
        await storage.open().delete_many(["repo"])

    asyncio.run(lose())
    assert "not known" in modern._repr_html_()
