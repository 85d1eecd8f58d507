"""Wrong clocks: chunks of an open session stay, or its commit says that they are gone."""

import logging
import pickle
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

import icefloe
from icefloe.effects import run_blocking
from icefloe.errors import ErrorKind, SessionStateError
from icefloe.format.chunk_table import ChunkTable
from icefloe.format.ids import ChunkId, id_rows, texts_of_rows
from icefloe.storage import Storage
from icefloe.transactions.external_manifests import link_manifests
from tests.faults.clocks import FEW_MINUTES, HOUR, backend_of, now, opened, shifted
from tests.faults.sessions import BIG, GROUP, array_document, prepared, put, put_chunk, seen_in
from tests.property.reachable import listing
from tests.support.built_elsewhere import build_elsewhere
from tests.support.checking import check_repository_blocking

SPECS = pytest.mark.parametrize("spec", [1, 2])
OFF = pytest.mark.parametrize("off", [-HOUR, HOUR], ids=["behind", "ahead"])
INCREMENTAL = pytest.mark.parametrize("incremental", [False, True], ids=["full", "incremental"])
CHUNK = b"\x04" * BIG


# -- gc and the clock of the storage -----------------------------------------------------------


@SPECS
@OFF
@INCREMENTAL
@pytest.mark.parametrize("whole_seconds", [False, True], ids=["exact", "whole seconds"])
def test_a_session_survives_a_collector_with_a_wrong_clock(
    spec: int, off: timedelta, incremental: bool, whole_seconds: bool
) -> None:
    """Of the writer and the storage, the clocks agree; that of the collector is off."""
    inner = prepared(spec)
    storage = shifted(inner, -off, whole_seconds=whole_seconds)  # as the collector sees it
    session = opened(storage, -off).writable_session("main")
    run_blocking(put_chunk(session, 3, 4, BIG))
    done = opened(storage).garbage_collect(now() - FEW_MINUTES, incremental=incremental)
    assert done.is_complete
    assert done.objects_deleted == 0
    session.commit("in time")
    assert seen_in(inner).files["a/c/3"] == CHUNK
    check_repository_blocking(inner.open())


@SPECS
def test_garbage_goes_although_the_clock_is_ahead(spec: int) -> None:
    storage = shifted(prepared(spec), -HOUR)
    run_blocking(put_chunk(opened(storage).writable_session("main"), 3, 4, BIG))
    assert opened(storage).garbage_collect(now() - FEW_MINUTES).chunks_deleted == 0
    assert opened(storage).garbage_collect(now() + HOUR).chunks_deleted == 1


def test_a_wrong_clock_is_told(caplog: pytest.LogCaptureFixture) -> None:
    for off, told in ((-HOUR, "is ahead of"), (HOUR, "is behind"), (timedelta(0), "")):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "icefloe"):
            opened(shifted(prepared(2), off)).garbage_collect(now())
        assert told in caplog.text
        assert bool(caplog.text) == bool(off)


@SPECS
def test_no_probe_is_left_and_a_dry_run_writes_none(spec: int) -> None:
    storage = shifted(prepared(spec), timedelta(0))
    repo = opened(storage)
    before = len(backend_of(storage).writes)
    repo.garbage_collect(now(), dry_run=True)
    assert len(backend_of(storage).writes) == before
    repo.garbage_collect(now())
    assert any("clock" in key for key in backend_of(storage).writes)
    assert not any("clock" in key for key in listing(storage.open()))


@SPECS
def test_expiration_with_a_clock_that_is_ahead(spec: int) -> None:
    """Versions that are younger than asked for stay."""
    storage = shifted(prepared(spec), timedelta(0))
    for value in range(2):
        session = opened(storage).writable_session("main")
        run_blocking(put_chunk(session, 3, value, BIG))
        session.commit("more")
    ahead = opened(storage, HOUR)
    assert ahead.expire_snapshots(now(HOUR) - FEW_MINUTES) == set()
    assert len(ahead.expire_snapshots(now(HOUR))) == 2


# -- commits after a collection ----------------------------------------------------------------

type Prepare = Callable[[icefloe.Repository], icefloe.Session]


def with_chunk(repo: icefloe.Repository) -> icefloe.Session:
    session = repo.writable_session("main")
    run_blocking(put_chunk(session, 3, 4, BIG))
    return session


def with_pack(repo: icefloe.Repository) -> icefloe.Session:
    session = repo.writable_session("main", packing=True)
    run_blocking(put_chunk(session, 3, 4, BIG))
    assert session._session.packer is not None
    run_blocking(session._session.packer.flush())
    return session


def with_fork(repo: icefloe.Repository) -> icefloe.Session:
    """Write in a fork of a fork."""
    session = repo.writable_session("main")
    fork = session.fork()
    below = fork.fork()
    run_blocking(put_chunk(below, 3, 4, BIG))
    fork.merge(below)
    session.merge(fork)
    return session


PREPARED = pytest.mark.parametrize("make", [with_chunk, with_pack, with_fork])
ENDINGS: dict[str, Callable[[icefloe.Session], str]] = {
    "commit": lambda session: session.commit("late"),
    "rebase": lambda session: session.commit("late", rebase_with=icefloe.ConflictDetector()),
    "amend": lambda session: session.amend("late"),
    "flush": lambda session: session.flush("late"),
}


def aged(session: icefloe.Session) -> icefloe.Session:
    """Let a session of spec 1 have begun long ago: nothing there tells of collections."""
    state = session._session
    if state.context.spec_version == 1:
        state.known_update -= HOUR // timedelta(microseconds=1)
    return session


@PREPARED
@pytest.mark.parametrize(
    ("spec", "ending"), [(1, "commit"), (1, "rebase"), *((2, one) for one in ENDINGS)]
)
def test_a_commit_without_its_objects_is_refused(spec: int, ending: str, make: Prepare) -> None:
    storage = prepared(spec)
    repo = icefloe.Repository.open(storage)
    session = aged(make(repo))
    before = seen_in(storage)
    collected = icefloe.Repository.open(storage).garbage_collect(now())
    assert collected.chunks_deleted == 1
    if ending == "rebase":
        other = icefloe.Repository.open(storage).writable_session("main")
        run_blocking(put_chunk(other, 5, 5, BIG))
        other.commit("somebody else")
        before = seen_in(storage)
    for _ in range(2):  # the session keeps its changes, and the answer stays the same
        with pytest.raises(SessionStateError, match="Nothing was committed") as refused:
            ENDINGS[ending](session)
        assert refused.value.kind == ErrorKind.OBJECTS_COLLECTED
        assert refused.value.context["num_missing"] == 1
        assert str(refused.value.context["keys"]).startswith("['chunks/")
        assert pickle.loads(pickle.dumps(refused.value)).context == refused.value.context
    assert seen_in(storage) == before
    check_repository_blocking(storage.open())
    run_blocking(put_chunk(session, 3, 4, BIG))
    ENDINGS[ending](session)  # written again, it can be committed
    check_repository_blocking(storage.open())


@SPECS
@pytest.mark.parametrize("make", [with_chunk, with_pack, with_fork])
def test_a_commit_after_a_collection_that_kept_its_objects(spec: int, make: Prepare) -> None:
    storage = prepared(spec)
    session = aged(make(icefloe.Repository.open(storage)))
    icefloe.Repository.open(storage).garbage_collect(now() - HOUR)
    session.commit("in time")
    assert "a/c/3" in seen_in(storage).files
    check_repository_blocking(storage.open())


def test_a_fork_of_an_earlier_session(tmp_path: Path) -> None:
    """What it wrote is as old as the session that it came from, wherever it was written."""
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(str(tmp_path)))
    session = repo.writable_session("main")
    run_blocking(put(session, "zarr.json", GROUP))
    run_blocking(put(session, "a/zarr.json", array_document()))
    session.commit("prepared")
    fork = pickle.loads(pickle.dumps(repo.writable_session("main").fork()))
    run_blocking(put_chunk(fork, 3, 4, BIG))
    assert repo.garbage_collect(now() + HOUR).chunks_deleted == 1
    later = repo.writable_session("main")
    later.merge(pickle.loads(pickle.dumps(fork)))
    with pytest.raises(SessionStateError, match="Nothing was committed"):
        later.commit("late")


def with_200_chunks(storage: Storage) -> icefloe.Session:
    """Write many chunks, and let a collection run that keeps them."""
    session = icefloe.Repository.open(storage).writable_session("main")
    run_blocking(put(session, "many/zarr.json", array_document(200)))
    for number in range(200):
        run_blocking(put(session, f"many/c/{number}", bytes([number + 1]) * BIG))
    icefloe.Repository.open(storage).garbage_collect(now() - HOUR)
    return aged(session)


@SPECS
def test_a_listing_stands_for_many_requests(spec: int) -> None:
    storage = shifted(prepared(spec), timedelta(0))
    session = with_200_chunks(storage)
    backend_of(storage).looks.clear()
    session.commit("all of them")
    looks = backend_of(storage).looks
    assert [key for key in looks if key.startswith("chunks/")] == ["chunks/"]
    assert seen_in(storage).files["many/c/199"] == bytes([200]) * BIG


@SPECS
def test_a_few_of_many_objects_are_missed(spec: int) -> None:
    storage = shifted(prepared(spec), timedelta(0))
    session = with_200_chunks(storage)
    state = session._session
    [settled] = [state.changes.settled(node) for node in state.changes.arrays]
    assert settled is not None
    gone = {f"chunks/{name}" for name in texts_of_rows(settled.table.chunk_ids[[0, 99]])}
    run_blocking(storage.open().delete_many(sorted(gone)))
    with pytest.raises(SessionStateError, match="/many") as refused:
        session.commit("not all of them")
    assert refused.value.context["num_missing"] == 2
    assert set(refused.value.context["keys"]) == gone  # type: ignore[call-overload] # a list


@SPECS
def test_chunks_in_linked_manifests_are_looked_for(spec: int) -> None:
    """As jobs on Spark commit them: the session itself has seen none of their references."""
    storage = prepared(spec)
    repo = icefloe.Repository.open(storage)
    session = repo.writable_session("main")
    state = session._session
    chunk = ChunkId.random()
    run_blocking(state.context.assets.save_chunk(chunk, CHUNK))
    table = ChunkTable.native(
        np.array([[3]], np.uint32),
        id_rows(ChunkId, [chunk]),
        np.array([BIG], np.uint64),
        np.array([0], np.uint64),
    )
    link_manifests(state, "/a", build_elsewhere(state, "/a", table))
    aged(session)
    icefloe.Repository.open(storage).garbage_collect(now() - HOUR)
    before = seen_in(storage)
    run_blocking(storage.open().delete_many([f"chunks/{chunk}"]))
    with pytest.raises(SessionStateError, match=str(chunk)):
        session.commit("late")
    assert seen_in(storage) == before
    run_blocking(state.context.assets.save_chunk(chunk, CHUNK))
    session.commit("in time")
    assert seen_in(storage).files["a/c/3"] == CHUNK


@pytest.mark.parametrize("is_collected", [False, True])
def test_a_collection_is_found_in_older_parts_of_the_log(is_collected: bool) -> None:
    """The repo object holds the newest operations only."""
    storage = shifted(prepared(2), timedelta(0))
    config = icefloe.RepositoryConfig(num_updates_per_repo_info_file=2)
    repo = icefloe.Repository.open(storage, config)
    session = with_chunk(repo)
    if is_collected:
        repo.garbage_collect(now())
    for name in "abcdef":
        repo.create_tag(name, repo.lookup_branch("main"))
    backend_of(storage).looks.clear()
    if is_collected:
        with pytest.raises(SessionStateError, match="garbage collection"):
            session.commit("late")
    else:
        session.commit("in time")
        assert not any(key.startswith("chunks/") for key in backend_of(storage).looks)


@SPECS
def test_an_ordinary_commit_looks_for_nothing(spec: int) -> None:
    storage = shifted(prepared(spec), timedelta(0))
    repo = icefloe.Repository.open(storage)
    repo.garbage_collect(now())  # before the session begins: no matter of its own
    session = with_chunk(repo)
    repo.create_branch("other", repo.lookup_branch("main"))
    backend_of(storage).looks.clear()
    session.commit("as always")
    assert not any(key.startswith(("chunks/", "snapshots/")) for key in backend_of(storage).looks)


# -- clocks of writers -------------------------------------------------------------------------


@SPECS
@OFF
def test_writers_with_wrong_clocks_take_turns(
    spec: int, off: timedelta, caplog: pytest.LogCaptureFixture
) -> None:
    """Versions stay in order; whoever is behind the newest one is told by how much."""
    storage = prepared(spec)
    with caplog.at_level(logging.WARNING, "icefloe"):
        for turn in range(4):
            session = opened(storage, off * (turn % 2)).writable_session("main")
            run_blocking(put_chunk(session, 3, turn + 1, BIG))
            session.commit(f"turn {turn}")
    repo = icefloe.Repository.open(storage)
    times = [version.written_at for version in repo.ancestry(branch="main")]
    assert times == sorted(set(times), reverse=True)
    warnings = [record.getMessage() for record in caplog.records]
    assert warnings
    assert all("behind the newest change" in text for text in warnings)
    assert any(float(text.split(" s behind")[0].split()[-1]) > 3500 for text in warnings)
    assert seen_in(storage).files["a/c/3"] == CHUNK
    check_repository_blocking(storage.open())


def test_clocks_that_differ_a_little_are_not_worth_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    storage = prepared(2)
    with caplog.at_level(logging.WARNING, "icefloe"):
        for off in (timedelta(milliseconds=300), timedelta(0)):
            session = opened(storage, off).writable_session("main")
            run_blocking(put_chunk(session, 3, 4, BIG))
            session.commit("soon")
    assert not caplog.records
