"""Sessions as users hold them."""

import asyncio
import copy
import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import zarr

from icefloe import (
    BasicConflictSolver,
    ChunkType,
    ConflictDetector,
    ConflictError,
    ConflictType,
    Credentials,
    ForkSession,
    InvalidInputError,
    NodeNotFoundError,
    ReadOnlyError,
    RebaseFailedError,
    Repository,
    RepositoryConfig,
    Session,
    SessionMode,
    SessionStateError,
    VersionSelection,
    VirtualChunkContainer,
    in_memory_storage,
    local_filesystem_storage,
    local_filesystem_store,
)


def kind_of(error: pytest.ExceptionInfo[BaseException]) -> str:
    return str(error.value.kind)  # type: ignore[attr-defined]


def array_of(session: Session, path: str = "a") -> zarr.Array[Any]:
    return zarr.open_array(session.store, path=path)


def values(session: Session, path: str = "a") -> list[int]:
    return cast("list[int]", np.asarray(array_of(session, path)[:]).tolist())


def with_data(repository: Repository) -> Repository:
    with repository.transaction("main", message="data") as store:
        zarr.create_array(store, name="a", shape=4, chunks=1, dtype="i4", fill_value=0)[:] = 1
        zarr.create_group(store, path="g")
    return repository


@pytest.fixture(params=[1, 2], ids=["spec 1", "spec 2"])
def repository(request: pytest.FixtureRequest) -> Repository:
    return with_data(Repository.create(in_memory_storage(), spec_version=request.param))


@pytest.fixture
def modern() -> Repository:
    return with_data(Repository.create(in_memory_storage()))


@pytest.fixture
def local(tmp_path: Path) -> Repository:
    return with_data(Repository.create(local_filesystem_storage(str(tmp_path))))


def test_a_commit_ends_the_session(repository: Repository) -> None:
    session = repository.writable_session("main")
    before = session.snapshot_id
    array_of(session)[0] = 5
    assert session.has_uncommitted_changes
    assert session.status().updated_chunks == {"/a": [[0]]}
    new = session.commit("five")
    assert session.snapshot_id == new == repository.lookup_branch("main")
    assert repository.lookup_snapshot(new).parent_id == before
    assert (session.read_only, session.branch) == (True, None)
    assert session.status().is_empty()
    assert values(session) == [5, 1, 1, 1]
    with pytest.raises(ReadOnlyError):
        session.discard_changes()
    with pytest.raises(SessionStateError) as error:
        session.commit("again")
    assert kind_of(error) == "commit-not-allowed"


def test_nothing_is_only_committed_when_allowed(repository: Repository) -> None:
    session = repository.writable_session("main")
    with pytest.raises(SessionStateError, match="allow_empty") as error:
        session.commit("nothing")
    assert kind_of(error) == "no-changes-to-commit"
    assert session.commit("nothing", allow_empty=True) == repository.lookup_branch("main")


def test_changes_can_be_discarded(repository: Repository) -> None:
    session = repository.writable_session("main")
    array_of(session)[0] = 5
    session.discard_changes()
    assert not session.has_uncommitted_changes
    assert values(session) == [1, 1, 1, 1]


def test_amend_replaces_the_newest_commit(modern: Repository) -> None:
    replaced = modern.lookup_branch("main")
    session = modern.writable_session("main")
    array_of(session)[0] = 5
    new = session.amend("better", metadata={"why": "typo"})
    info = modern.lookup_snapshot(new)
    assert info.parent_id == modern.lookup_snapshot(replaced).parent_id
    assert (info.message, info.metadata) == ("better", {"why": "typo"})
    assert values(modern.readonly_session("main")) == [5, 1, 1, 1]


def test_flush_leaves_the_branch_alone(repository: Repository) -> None:
    tip = repository.lookup_branch("main")
    session = repository.writable_session("main")
    array_of(session)[0] = 5
    new = session.flush("aside")
    assert session.read_only
    assert repository.lookup_branch("main") == tip
    assert values(repository.readonly_session(snapshot_id=new)) == [5, 1, 1, 1]


def test_a_lost_race_is_a_conflict_that_names_both_parents(repository: Repository) -> None:
    late, quick = repository.writable_session("main"), repository.writable_session("main")
    base = late.snapshot_id
    array_of(late)[0] = 5
    array_of(quick)[1] = 6
    new = quick.commit("quick")
    with pytest.raises(ConflictError) as error:
        late.commit("late")
    assert (error.value.expected_parent, error.value.actual_parent) == (base, new)
    assert kind_of(error) == "commit-conflict"
    late.rebase(ConflictDetector())
    assert late.snapshot_id == new
    late.commit("late")
    assert values(repository.readonly_session("main")) == [5, 6, 1, 1]


def test_a_commit_can_rebase_by_itself(
    repository: Repository, caplog: pytest.LogCaptureFixture
) -> None:
    late, quick = repository.writable_session("main"), repository.writable_session("main")
    array_of(late)[0] = 5
    array_of(quick)[0] = 6
    quick.commit("quick")
    with caplog.at_level(logging.INFO, logger="icefloe"):
        new = late.commit(
            "late",
            rebase_with=BasicConflictSolver(on_chunk_conflict=VersionSelection.UseTheirs),
        )
    assert values(repository.readonly_session("main"))[0] == 6
    told = [record.getMessage() for record in caplog.records]
    assert any("rebasing" in line for line in told)
    assert f"committed {new} to branch 'main'" in told


def test_contradictions_are_listed(repository: Repository) -> None:
    late, quick = repository.writable_session("main"), repository.writable_session("main")
    array_of(late)[:2] = 5
    array_of(quick)[:2] = 6
    new = quick.commit("quick")
    with pytest.raises(RebaseFailedError, match="Chunk double update at /a") as error:
        late.commit("late", rebase_with=ConflictDetector())
    assert error.value.snapshot == new
    [conflict] = error.value.conflicts
    assert conflict.conflict_type is ConflictType.ChunkDoubleUpdate
    assert conflict.conflicted_chunks == [[0], [1]]
    assert late.has_uncommitted_changes
    assert pickle.loads(pickle.dumps(error.value)).conflicts == [conflict]


def test_nodes_are_moved_in_sessions_of_their_own(modern: Repository) -> None:
    session = modern.rearrange_session("main")
    node = session.get_node_id("/a")
    session.move("/a", "/g/b")
    assert session.status().moved_nodes == [("/a", "/g/b")]
    session.commit("move")
    after = modern.readonly_session("main")
    assert after.get_node_id("/g/b") == node
    assert values(after, "g/b") == [1, 1, 1, 1]
    with pytest.raises(SessionStateError) as error:
        modern.writable_session("main").move("/g/b", "/a")
    assert kind_of(error) == "non-rearrange-session"
    with pytest.raises(SessionStateError):
        zarr.create_group(modern.rearrange_session("main").store, path="new")


def test_chunks_are_moved_without_being_copied(repository: Repository) -> None:
    session = repository.writable_session("main")
    array_of(session)[:] = [1, 2, 3, 4]
    session.shift_array("/a", [1])
    assert values(session) == [0, 1, 2, 3]
    session.reindex_array("/a", lambda index: [3 - next(iter(index))])
    assert values(session)[0] == 3
    with pytest.raises(InvalidInputError):
        session.shift_array("/a", [1, 1])


def test_chunks_are_found(repository: Repository) -> None:
    session = repository.writable_session("main")
    array_of(session)[2] = 9
    zarr.create_array(session.store, name="b", shape=(2, 2), chunks=1, dtype="i4")[1, 0] = 3
    assert sorted(session.chunk_coordinates("/a")) == [(0,), (1,), (2,), (3,)]
    assert list(session.chunk_coordinates("/b", batch_size=1)) == [(1, 0)]

    async def awaited() -> list[tuple[int, ...]]:
        return [one async for one in session.chunk_coordinates("/a")]

    assert len(asyncio.run(awaited())) == 4
    assert session.chunk_type("/a", [0]) is ChunkType.inline
    assert session.chunk_type("/b", (0, 0)) is ChunkType.uninitialized
    assert session.all_virtual_chunk_locations() == []
    with pytest.raises(NodeNotFoundError):
        session.chunk_type("/nowhere", [0])
    with pytest.raises(InvalidInputError) as error:
        session.chunk_type("/g", [0])
    assert kind_of(error) == "not-an-array"
    with pytest.raises(InvalidInputError, match="start with"):
        session.get_node_id("a")
    with pytest.raises(InvalidInputError, match="batch_size"):
        list(session.chunk_coordinates("/a", 0))


def test_virtual_chunks_are_listed_where_they_lie(tmp_path: Path) -> None:
    prefix = f"file://{tmp_path}/"
    config = RepositoryConfig()
    store = local_filesystem_store(str(tmp_path))
    config.set_virtual_chunk_container(VirtualChunkContainer(prefix, store, "files"))
    access = {prefix: Credentials.LocalFileSystemAccess()}
    repository = Repository.create(in_memory_storage(), config, access)
    assert repository.authorized_virtual_container_prefixes == {prefix}
    session = repository.writable_session("main")
    zarr.create_array(session.store, name="v", shape=3, chunks=1, dtype="i4")
    session.store.set_virtual_ref("v/c/0", "vcc://files/x", offset=0, length=4)
    session.store.set_virtual_ref("v/c/1", f"{prefix}x", offset=4, length=4)
    assert session.all_virtual_chunk_locations() == [f"{prefix}x"] * 2
    assert session.chunk_type("/v", [1]) is ChunkType.virtual
    assert session.chunk_type("/v", [2]) is ChunkType.uninitialized


def test_writable_sessions_do_not_travel(local: Repository) -> None:
    session = local.writable_session("main")
    for attempt in (pickle.dumps, copy.deepcopy):
        with pytest.raises(ValueError, match=r"session\.fork\(\)"):
            cast("Callable[[object], object]", attempt)(session)


def test_forks_write_elsewhere_and_come_back(local: Repository) -> None:
    session = local.writable_session("main", packing=True)
    array_of(session)[0] = 9
    fork = session.fork()
    assert isinstance(fork, ForkSession)
    assert (fork.mode, fork.branch) == (SessionMode.writable, None)
    there = pickle.loads(pickle.dumps(fork))
    assert there.fork_id == fork.fork_id
    array_of(there)[1] = 8
    back = pickle.loads(pickle.dumps(there))
    session.merge(back)
    session.commit("together")
    assert values(local.readonly_session("main")) == [9, 8, 1, 1]


def test_forks_cannot_end_a_transaction(repository: Repository) -> None:
    session = repository.writable_session("main")
    fork = session.fork()
    again = fork.fork()
    for call in (
        lambda: fork.commit("x"),
        lambda: fork.flush("x"),
        lambda: fork.rebase(ConflictDetector()),
    ):
        with pytest.raises(SessionStateError) as error:
            call()
        assert kind_of(error) == "commit-not-allowed"
    with pytest.raises(SessionStateError) as error:
        fork.merge(cast("ForkSession", session))
    assert kind_of(error) == "merge-not-allowed"
    array_of(again)[0] = 4
    fork.merge(again)
    session.merge(fork)
    assert values(session)[0] == 4
    with pytest.raises(SessionStateError) as error:
        repository.readonly_session("main").fork()
    assert kind_of(error) == "cannot-fork-read-only-session"


def test_missing_workers_and_overlaps_are_found_when_asked(repository: Repository) -> None:
    session = repository.writable_session("main")
    forks = [session.fork() for _ in range(3)]
    for number, fork in enumerate(forks):
        array_of(fork)[number] = 5
    with pytest.raises(SessionStateError, match="missing") as error:
        session.merge(*forks[:2], expected=forks)
    assert kind_of(error) == "merge-failed"
    assert not session.has_uncommitted_changes
    array_of(forks[2])[0] = 6
    with pytest.raises(SessionStateError, match="same chunks of /a"):
        session.merge(*forks, on_overlap="fail")
    assert not session.has_uncommitted_changes
    session.merge(*forks, expected=[fork.fork_id for fork in forks])
    assert values(session) == [6, 5, 5, 1]
    with pytest.raises(InvalidInputError, match="on_overlap"):
        session.merge(*forks, on_overlap="whatever")  # type: ignore[arg-type]


def test_awaited_twins_do_the_same(repository: Repository) -> None:
    async def user() -> str:
        session = await repository.writable_session_async("main")
        fork = await session.fork_async()
        await fork.shift_array_async("/a", [1])
        await session.merge_async(fork)
        assert await session.chunk_type_async("/a", [0]) is ChunkType.uninitialized
        assert await session.get_node_id_async("/a") == session.get_node_id("/a")
        await session.rebase_async(ConflictDetector())
        return await session.commit_async("shifted")

    new = asyncio.run(user())
    assert repository.lookup_branch("main") == new


def test_sessions_show_themselves(repository: Repository) -> None:
    session = repository.writable_session("main")
    zarr.create_group(session.store, path="<b>")
    assert "branch: main" in repr(session)
    assert "has_uncommitted_changes: True" in repr(session)
    shown = session._repr_html_()
    assert "a (4,)" in shown
    assert "&lt;b&gt;/" in shown
    assert "<b>/" not in shown
    for number in range(300):
        zarr.create_group(session.store, path=f"many{number}")
    assert "more" in session._repr_html_()


def test_a_store_knows_its_session(repository: Repository) -> None:
    session = repository.writable_session("main")
    assert session.store.session is session
    assert session.store == session.store
    assert session == session.store.session
    assert session != repository.writable_session("main")
    shown = session.config
    shown.virtual_chunk_containers = repository.config.virtual_chunk_containers
    assert shown == repository.config
