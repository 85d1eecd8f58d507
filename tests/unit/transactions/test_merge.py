"""Forks and their way back into the session they came from."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from icefloe.effects import run_blocking
from icefloe.errors import ErrorKind, InvalidInputError, ReadOnlyError, SessionStateError
from icefloe.format.chunk_table import ChunkTable
from icefloe.format.ids import SnapshotId
from icefloe.storage import local_filesystem_storage
from icefloe.transactions import nodes
from icefloe.transactions.chunks import put_refs
from icefloe.transactions.conflicts import ConflictDetector
from icefloe.transactions.packing import PackingOptions
from icefloe.transactions.session import SessionMode, SessionState, open_session
from tests.support.sides import Ours, furnish


@pytest.fixture
def side(tmp_path: Path) -> Ours:
    furnished: Ours = furnish(Ours(storage=local_filesystem_storage(str(tmp_path))))
    return furnished


def travelled(session: SessionState) -> SessionState:
    """Send a session to another process, as far as it can tell."""
    arrived: SessionState = pickle.loads(pickle.dumps(session))
    return arrived


def test_workers_write_and_come_back(side: Ours) -> None:
    session = side.begin()
    side.array(session, "/n", 100)
    forks = [travelled(side.fork(session)) for _ in range(4)]
    for worker, fork in enumerate(forks):
        for index in range(worker * 25, worker * 25 + 25):
            side.write(fork, "/n", index, value=bytes([worker]) * 600)
    side.merge(session, *map(travelled, forks))
    side.commit(session)
    chunks = side.tree()["/n"]
    assert chunks == {(i,): bytes([i // 25]) * 600 for i in range(100)}


def test_a_fork_writes_nothing_if_nothing_changed(side: Ours) -> None:
    session = side.begin()
    before = _objects(side)
    fork = side.fork(session)
    assert fork.snapshot_id == session.snapshot_id
    assert _objects(side) == before
    assert fork.id != session.id
    assert fork.fork_of == session.id


def test_a_fork_begins_on_a_snapshot_that_nobody_lists(side: Ours) -> None:
    session = side.begin()
    side.write(session, "/a", 0, value=b"s")
    fork = side.fork(session)
    assert fork.snapshot_id != session.snapshot_id
    assert fork.changes.is_empty()
    assert not session.changes.is_empty()
    assert (side.tree(fork)["/a"] or {})[0,] == b"s"
    assert _listed(side) == [side.tip(), _root(side)]


def test_packed_chunks_come_along(side: Ours) -> None:
    session = run_blocking(
        open_session(
            side.context,
            side.tip(),
            SessionMode.writable,
            branch="main",
            packing=PackingOptions(),
        )
    )
    side.write(session, "/a", 0, value=b"s" * 1000)
    fork = side.fork(session)
    side.write(fork, "/a", 1, value=b"f" * 1000)
    side.merge(session, fork)
    side.commit(session)
    chunks = side.tree()["/a"] or {}
    assert (chunks[0,], chunks[1,]) == (b"s" * 1000, b"f" * 1000)


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        (SessionMode.readonly, ErrorKind.CANNOT_FORK_READ_ONLY_SESSION),
        (SessionMode.rearrange, ErrorKind.REARRANGE_SESSION_ONLY),
    ],
)
def test_what_cannot_be_forked(side: Ours, mode: SessionMode, kind: ErrorKind) -> None:
    session = run_blocking(open_session(side.context, side.tip(), mode, branch="main"))
    with pytest.raises(SessionStateError) as failure:
        side.fork(session)
    assert failure.value.kind == kind


def test_what_cannot_take_anything_in(side: Ours) -> None:
    fork = side.fork(side.begin())
    with pytest.raises(ReadOnlyError):
        side.merge(side.at(side.tip()), fork)
    with pytest.raises(SessionStateError) as failure:
        side.merge(side.begin_moving(), fork)
    assert failure.value.kind == ErrorKind.REARRANGE_SESSION_ONLY
    moving = side.begin_moving()
    side.move(moving, "/a", "/b")
    with pytest.raises(SessionStateError) as failure:
        side.merge(side.begin(), moving)
    assert failure.value.kind == ErrorKind.MERGE_NOT_ALLOWED


def refused(side: Ours, session: SessionState, *forks: SessionState, **options: Any) -> str:
    """Merge what cannot be merged: nothing at all may have changed."""
    before = side.status(session)
    with pytest.raises(SessionStateError) as failure:
        side.merge(session, *forks, **options)
    assert failure.value.kind == ErrorKind.MERGE_FAILED
    assert side.status(session) == before
    return str(failure.value)


# -- asked for: nobody missing, nobody twice -------------------------------------------------


def test_a_missing_worker_is_noticed_when_asked_for(side: Ours) -> None:
    session = side.begin()
    forks = [side.fork(session) for _ in range(3)]
    for index, fork in enumerate(forks):
        side.write(fork, "/a", index)
    expected = [fork.id for fork in forks]
    text = refused(side, session, *map(travelled, forks[:2]), expected=expected)
    assert forks[2].id in text
    assert forks[0].id not in text
    side.merge(session, *forks[:2])
    side.merge(session, forks[2], expected=expected)
    assert side.status(session).updated_chunks == {"/a": [[0], [1], [2]]}


def test_workers_that_were_merged_on_the_way_are_not_missing(side: Ours) -> None:
    session = side.begin()
    forks = [side.fork(session) for _ in range(4)]
    for index, fork in enumerate(forks):
        side.write(fork, "/a", index)
    side.merge(forks[0], forks[1])
    side.merge(forks[2], forks[3])
    side.merge(forks[0], travelled(forks[2]))
    side.merge(session, travelled(forks[0]), expected=[fork.id for fork in forks])
    assert side.status(session).updated_chunks == {"/a": [[0], [1], [2], [3]]}


@pytest.mark.parametrize("together", [True, False])
def test_two_workers_in_one_chunk_are_noticed_when_asked_for(side: Ours, together: bool) -> None:
    session = side.begin()
    first, second = side.fork(session), side.fork(session)
    for index in (1, 2, 3):
        side.write(first, "/a", index, value=b"1")
    side.erase(second, "/a", 3)
    side.write(second, "/a", 4)
    if together:
        text = refused(side, session, first, second, on_overlap="fail")
    else:
        side.merge(session, first)
        text = refused(side, session, second, on_overlap="fail")
    assert "/a" in text
    assert "[[3]]" in text


def test_siblings_that_are_merged_first_are_compared_too(side: Ours) -> None:
    session = side.begin()
    first, second = side.fork(session), side.fork(session)
    side.write(first, "/a", 1)
    side.write(second, "/a", 1)
    assert "/a" in refused(side, first, second, on_overlap="fail")


def test_a_fork_may_change_what_its_session_wrote_before(side: Ours) -> None:
    session = side.begin()
    side.write(session, "/a", 1, value=b"s")
    fork = side.fork(session)
    side.write(fork, "/a", 1, value=b"f")
    side.merge(session, fork, on_overlap="fail")
    assert (side.tree(session)["/a"] or {})[1,] == b"f"


def test_there_is_no_third_way(side: Ours) -> None:
    with pytest.raises(InvalidInputError, match="on_overlap"):
        side.merge(side.begin(), on_overlap="oldest")


def test_the_last_one_wins_by_default(side: Ours) -> None:
    session = side.begin()
    forks = [side.fork(session) for _ in range(3)]
    for number, fork in enumerate(forks):
        side.write(fork, "/a", 1, value=bytes([number]))
    side.merge(session, *forks)
    assert (side.tree(session)["/a"] or {})[1,] == b"\x02"


def test_commit_begins_anew(side: Ours) -> None:
    session = side.begin()
    fork = side.fork(session)
    side.write(fork, "/a", 1)
    side.merge(session, fork)
    session.discard_changes()
    later = side.fork(session)
    side.write(later, "/a", 1)
    side.merge(session, later, on_overlap="fail")
    assert fork.id not in session.merged_forks


# -- where the reference does damage -----------------------------------------------------------


def test_a_group_deleted_and_filled(side: Ours) -> None:
    session = side.begin()
    filling, deleting = side.fork(session), side.fork(session)
    side.group(filling, "/g/n")
    side.delete(deleting, "/g")
    assert "/g/n" in refused(side, session, filling, deleting)
    assert "/g/n" in refused(side, session, deleting, filling)


def test_a_node_below_an_array(side: Ours) -> None:
    session = side.begin()
    array, below = side.fork(session), side.fork(session)
    side.array(array, "/n", 1)
    side.group(below, "/n/m")
    assert "/n/m" in refused(side, session, array, below)


def test_a_group_and_an_array_of_one_name(side: Ours) -> None:
    session = side.begin()
    array, group = side.fork(session), side.fork(session)
    side.array(array, "/n", 1)
    side.group(group, "/n")
    assert "/n" in refused(side, session, array, group)


def test_a_fork_of_another_repository(side: Ours) -> None:
    foreign: Ours = furnish(Ours())
    fork = foreign.fork(foreign.begin())
    foreign.write(fork, "/a", 1)
    assert "forks of this session" in refused(side, side.begin(), fork)


def test_a_grandchild_without_the_child(side: Ours) -> None:
    session = side.begin()
    child = side.fork(session)
    side.array(child, "/n", 2)
    grandchild = side.fork(child)
    side.write(grandchild, "/n", 1)
    refused(side, session, grandchild)
    side.merge(session, grandchild, child)
    assert side.status(session).new_arrays == {"/n"}


def test_after_a_rebase_the_new_base_counts(side: Ours) -> None:
    session = side.begin()
    fork = side.fork(session)
    side.group(fork, "/n")
    other = side.begin()
    side.array(other, "/n", 1)
    side.commit(other)
    side.rebase(session, ConflictDetector())
    assert "/n" in refused(side, session, fork)


def test_what_the_session_deleted_can_be_made_again_by_a_fork(side: Ours) -> None:
    session = side.begin()
    side.delete(session, "/g")
    fork = side.fork(session)
    side.group(fork, "/g", 5)
    side.group(fork, "/g/n")
    side.merge(session, fork)
    side.commit(session)
    assert side.tree().keys() == {"/", "/a", "/g", "/g/n", "/h"}


def test_the_same_fork_twice_changes_nothing(side: Ours) -> None:
    session = side.begin()
    fork = side.fork(session)
    side.array(fork, "/n", 2)
    side.write(fork, "/n", 1)
    side.delete(fork, "/h")
    side.merge(session, fork)
    before = side.status(session)
    side.merge(session, travelled(fork))
    assert side.status(session) == before


def test_copies_of_a_fork_that_replaced_a_node_write_to_the_new_one_together(side: Ours) -> None:
    session = side.begin()
    fork = side.fork(session)
    side.delete(fork, "/a")
    side.array(fork, "/a", 2)
    copies = [travelled(fork), travelled(fork)]
    for index, copy in enumerate(copies):
        side.write(copy, "/a", index, value=b"new")
    side.merge(fork, *copies)
    side.merge(session, fork)
    side.commit(session)
    assert side.tree()["/a"] == {(0,): b"new", (1,): b"new"}


def test_copies_of_a_fork_that_replace_a_node_each_for_itself_contradict(side: Ours) -> None:
    session = side.begin()
    forks = [side.fork(session), side.fork(session)]
    for fork in forks:
        side.delete(fork, "/a")
        side.array(fork, "/a", 2)
    side.merge(session, forks[0])
    assert "/a" in refused(side, session, forks[1])


# -- what both sides know ----------------------------------------------------------------------


def chunk(side: Ours, session: SessionState, index: int, path: str = "/a") -> bytes | None:
    return (side.tree(session)[path] or {}).get((index,))


def test_a_copy_does_not_bring_back_an_old_chunk(side: Ours) -> None:
    session = side.begin()
    fork = side.fork(session)
    side.write(fork, "/a", 1, value=b"old")
    copies = [travelled(fork), travelled(fork)]
    side.write(copies[0], "/a", 1, value=b"new")
    side.write(copies[1], "/a", 2, value=b"other")
    side.merge(copies[0], copies[1], on_overlap="fail")
    side.merge(session, travelled(copies[0]), fork)
    assert (chunk(side, session, 1), chunk(side, session, 2)) == (b"new", b"other")


@pytest.mark.parametrize("is_nested", [True, False])
def test_a_fork_that_is_merged_again_undoes_nothing(side: Ours, is_nested: bool) -> None:
    session = side.begin()
    fork, other = side.fork(session), side.fork(session)
    side.write(fork, "/a", 1, value=b"fork")
    side.write(fork, "/a", 2, value=b"fork")
    side.merge(session, fork)
    side.write(session, "/a", 1, value=b"later")
    side.erase(session, "/a", 2)
    side.write(fork, "/a", 3, value=b"more")
    if is_nested:
        side.merge(other, fork)
    side.merge(session, travelled(other if is_nested else fork), on_overlap="fail")
    assert [chunk(side, session, index) for index in (1, 2, 3)] == [b"later", None, b"more"]


def test_a_fork_takes_in_the_fork_that_it_came_from(side: Ours) -> None:
    session = side.begin()
    fork = side.fork(session)
    side.array(fork, "/n", 4)
    side.write(fork, "/n", 0, value=b"before")
    side.write(fork, "/n", 1, value=b"before")
    nested = side.fork(fork)
    side.write(nested, "/n", 0, value=b"nested")
    side.write(fork, "/n", 2, value=b"after")
    side.merge(nested, fork)
    assert [chunk(side, nested, i, "/n") for i in range(3)] == [b"nested", b"before", b"after"]
    side.merge(session, nested, fork)
    assert side.tree(session)["/n"] == side.tree(nested)["/n"]


def test_a_fork_made_after_a_merge_knows_what_was_merged(side: Ours) -> None:
    session = side.begin()
    fork = side.fork(session)
    side.array(fork, "/n", 4)
    side.write(fork, "/n", 0, value=b"old")
    side.merge(session, fork)
    later = side.fork(session)
    side.write(later, "/n", 0, value=b"new")
    side.merge(later, fork)
    side.merge(session, later)
    assert chunk(side, session, 0, "/n") == b"new"


@pytest.mark.parametrize("is_deleted_first", [True, False])
def test_a_node_that_one_copy_deleted_stays_deleted(side: Ours, is_deleted_first: bool) -> None:
    session = side.begin()
    fork = side.fork(session)
    side.group(fork, "/n")
    copies = [travelled(fork), travelled(fork)]
    side.delete(copies[0], "/n")
    side.write(copies[1], "/a", 1)
    side.merge(session, *(copies if is_deleted_first else copies[::-1]))
    assert "/n" not in side.tree(session)
    assert side.status(session).new_groups == set()


def test_a_node_that_one_copy_deleted_and_the_other_changed(side: Ours) -> None:
    session = side.begin()
    fork = side.fork(session)
    side.array(fork, "/n", 2)
    copies = [travelled(fork), travelled(fork)]
    side.delete(copies[0], "/n")
    side.write(copies[1], "/n", 1)
    for order in (copies, copies[::-1]):
        refused(side, session, *order)


@pytest.mark.parametrize("mark", [1, 2])
def test_metadata_that_both_sides_changed_after_the_fork(side: Ours, mark: int) -> None:
    session = side.begin()
    side.group(session, "/g", 7)
    fork = side.fork(session)
    side.group(session, "/g", 1)
    side.group(fork, "/g", mark)
    if mark == 1:
        side.merge(session, fork)
    else:
        assert "both sides changed the metadata of /g" in refused(side, session, fork)


def test_a_chunk_outside_of_a_shape_that_the_other_side_chose(side: Ours) -> None:
    session = side.begin()
    writing, resizing = side.fork(session), side.fork(session)
    side.write(writing, "/a", 6)
    side.array(resizing, "/a", 4)
    for order in ((writing, resizing), (resizing, writing)):
        assert "outside of the new shape" in refused(side, session, *order)
    side.array(session, "/a", 4)
    assert "/a" in refused(side, session, writing)


def test_a_session_that_wrote_the_same_chunk_after_the_fork_is_noticed(side: Ours) -> None:
    session = side.begin()
    fork = side.fork(session)
    side.write(session, "/a", 1, value=b"s")
    side.write(fork, "/a", 1, value=b"f")
    assert "[[1]]" in refused(side, session, fork, on_overlap="fail")
    side.merge(session, fork)
    assert chunk(side, session, 1) == b"f"


def test_a_grandchild_that_wrote_over_chunks_of_a_child_waits_for_it(side: Ours) -> None:
    session = side.begin()
    child = side.fork(session)
    side.write(child, "/a", 1, value=b"child")
    grandchild = side.fork(child)
    side.write(grandchild, "/a", 1, value=b"grandchild")
    assert child.id in refused(side, session, travelled(grandchild))
    side.merge(session, travelled(grandchild), travelled(child))
    assert chunk(side, session, 1) == b"grandchild"


def test_changes_that_a_fork_discarded_are_not_known_any_more(side: Ours) -> None:
    session = side.begin()
    fork = side.fork(session)
    side.write(fork, "/a", 1, value=b"kept")
    copy = travelled(fork)
    fork.discard_changes()
    side.write(fork, "/a", 2, value=b"other")
    side.merge(session, fork)
    side.merge(session, copy)
    assert (chunk(side, session, 1), chunk(side, session, 2)) == (b"kept", b"other")


def test_two_sessions_that_take_in_each_other_at_once(side: Ours) -> None:
    session = side.begin()
    forks = [side.fork(session), side.fork(session)]
    for index, fork in enumerate(forks):
        side.write(fork, "/a", index, value=bytes([index]) * 2)
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(side.merge, forks, forks[::-1]))
    for fork in forks:
        assert [chunk(side, fork, index) for index in (0, 1)] == [b"\0\0", b"\1\1"]


def test_a_fork_does_not_carry_the_changes_of_its_session(side: Ours) -> None:
    session = side.begin()
    side.array(session, "/n", 50_000)
    empty = len(pickle.dumps(side.fork(session)))
    put_refs(session, nodes.require_array(session, "/n"), _references(0, 50_000))
    for number in range(50):
        side.group(session, f"/g/{number}")
    assert len(pickle.dumps(side.fork(session))) < empty + 100


def test_many_references_at_once(side: Ours) -> None:
    session = side.begin()
    side.array(session, "/n", 160_000)
    forks = [side.fork(session) for _ in range(16)]
    for worker, fork in enumerate(forks):
        table = _references(worker * 10_000, 10_000)
        put_refs(fork, nodes.require_array(fork, "/n"), table)
    side.merge(session, *forks, on_overlap="fail", expected=[fork.id for fork in forks])
    assert len(side.status(session).chunk_coordinates["/n"]) == 160_000


def _references(first: int, count: int) -> ChunkTable:
    rows = np.arange(first, first + count, dtype=np.uint32)
    return ChunkTable.native(
        rows.reshape(-1, 1),
        np.zeros((1, 12), np.uint8),
        np.full(count, 8, np.uint64),
        targets=np.zeros(count, np.uint32),
    )


def _objects(side: Ours) -> list[tuple[str, int]]:
    return sorted(side.storage.list_objects())


def _listed(side: Ours) -> list[SnapshotId]:
    async def walk() -> list[SnapshotId]:
        return [entry.id async for entry in side.context.ledger.ancestry(side.tip())]

    return run_blocking(walk())


def _root(side: Ours) -> SnapshotId:
    return _listed(side)[-1]
