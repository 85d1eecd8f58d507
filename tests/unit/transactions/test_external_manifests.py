"""Linked manifests in a session: reading, changing, committing, rebasing, and what is refused."""

import pickle
import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import icefloe
from icefloe.config import ChunkManifestsConfig, ManifestRule, ManifestSet, RepositoryConfig
from icefloe.effects import iterate_blocking, run_blocking
from icefloe.errors import (
    ConflictError,
    ErrorKind,
    InvalidInputError,
    RebaseFailedError,
    SessionStateError,
)
from icefloe.format.chunk_table import (
    ChunkTable,
    Coordinates,
    InlineChunk,
    NativeChunk,
    VirtualChunk,
)
from icefloe.format.ids import ChunkId, ManifestId, NodeId
from icefloe.format.transaction_log import TransactionLog, decode_transaction_log
from icefloe.manifests.build import NewManifest
from icefloe.manifests.partition import HalvingLayout
from icefloe.manifests.regions import LinkedPart, LinkedRegion
from icefloe.records import replace
from icefloe.repo import lifecycle
from icefloe.testing.invariants import check_repository_blocking
from icefloe.transactions import chunks, commit, nodes
from icefloe.transactions.conflicts import (
    BasicConflictSolver,
    Conflict,
    ConflictDetector,
    ConflictType,
    VersionSelection,
)
from icefloe.transactions.external_manifests import (
    build_region,
    changed_between,
    complete_log,
    link_manifests,
    write_log,
)
from icefloe.transactions.session import SessionState
from icefloe.zarr_store import IcechunkStore
from tests.support.built_elsewhere import build_elsewhere, link, log_writer, virtual_table
from tests.support.sides import Ours, furnish

WIDE = 8192


def rows(*numbers: int, wide: int = WIDE) -> Coordinates:
    columns = np.arange(wide, dtype=np.uint32)
    first = np.repeat(np.array(numbers, np.uint32), wide)
    return np.stack([first, np.tile(columns, len(numbers))], axis=1)


def line(*numbers: int) -> Coordinates:
    return np.array(numbers, np.uint32).reshape(-1, 1)


@pytest.fixture
def ours() -> Ours:
    """An array of five full rows, of which four fill a manifest."""
    side = Ours()
    session = side.begin()
    side.group(session, "/")
    side.array(session, "/big", 20, WIDE)
    side.array(session, "/other", 4)
    put(session, "/big", virtual_table(rows(0, 1, 2, 3, 4)))
    side.commit(session)
    return side


def put(session: SessionState, path: str, table: ChunkTable) -> None:
    chunks.put_refs(session, nodes.require_array(session, path), table)


def mark_at(session: SessionState, *index: int, path: str = "/big") -> int | None:
    ref = run_blocking(chunks.find_ref(session, nodes.require_array(session, path), index))
    if ref is None:
        return None
    assert isinstance(ref, VirtualChunk)
    return ref.offset


def boxes(session: SessionState, path: str = "/big") -> list[Any]:
    return [ref.extents for ref in session.tree.manifests(nodes.require_array(session, path))]


# -- in the session --------------------------------------------------------------------------


def test_linked_chunks_are_read_before_they_are_committed(ours: Ours) -> None:
    session = ours.begin()
    assert mark_at(session, 7, 3) is None
    link(session, "/big", virtual_table(rows(7), mark=7))
    assert mark_at(session, 7, 3) == 7
    assert mark_at(session, 0, 3) == 0
    assert not session.changes.is_empty()
    ours.commit(session)
    assert mark_at(ours.at(ours.tip()), 7, 3) == 7


def test_nothing_of_linked_manifests_is_loaded_to_commit_them(ours: Ours) -> None:
    session = ours.begin()
    coordinates = rows(*range(8, 20))
    link(session, "/big", virtual_table(coordinates, mark=1))
    linked = session.changes.links[nodes.require_array(session, "/big").id]
    assert len(linked.parts) == 3
    ours.commit(session, log_writer=log_writer(session, "/big", coordinates))
    assert all(ours.context.assets.held_manifest(part.manifest.id) is None for part in linked.parts)
    check_repository_blocking(ours.context.backend)


def test_chunks_written_after_linking_are_newer(ours: Ours) -> None:
    session = ours.begin()
    link(session, "/big", virtual_table(rows(7, 8), mark=1))
    put(session, "/big", virtual_table(rows(8), mark=2))
    ours.erase(session, "/big", 7, 0)
    assert [mark_at(session, *at) for at in [(7, 0), (7, 1), (8, 0)]] == [None, 1, 2]
    ours.commit(session)
    after = ours.at(ours.tip())
    assert [mark_at(after, *at) for at in [(7, 0), (7, 1), (8, 0)]] == [None, 1, 2]
    check_repository_blocking(ours.context.backend)


def test_an_array_can_be_linked_to_twice(ours: Ours) -> None:
    session = ours.begin()
    link(session, "/big", virtual_table(rows(5), mark=1))
    link(session, "/big", virtual_table(rows(6, 5), mark=2))
    linked = session.changes.links[nodes.require_array(session, "/big").id]
    assert len(linked.parts) == 1
    assert len(linked.replaced) == 1
    assert [mark_at(session, row, 0) for row in range(8)] == [0, 0, 0, 0, 0, 2, 2, None]
    ours.commit(session)
    assert boxes(ours.at(ours.tip())) == [((0, 4), (0, WIDE)), ((4, 7), (0, WIDE))]
    check_repository_blocking(ours.context.backend)


def test_an_array_made_in_the_session(ours: Ours) -> None:
    session = ours.begin()
    ours.array(session, "/new", 3, WIDE)
    link(session, "/new", virtual_table(rows(0, 1, 2), mark=3))
    ours.commit(session)
    after = ours.at(ours.tip())
    assert mark_at(after, 2, 9, path="/new") == 3
    check_repository_blocking(ours.context.backend)


def test_an_array_that_is_deleted_or_shrunk_after_linking(ours: Ours) -> None:
    session = ours.begin()
    link(session, "/big", virtual_table(rows(7, 8), mark=1))
    ours.array(session, "/big", 8, WIDE)
    ours.commit(session)
    assert mark_at(ours.at(ours.tip()), 7, 0) == 1
    check_repository_blocking(ours.context.backend)
    session = ours.begin()
    link(session, "/big", virtual_table(rows(6), mark=1))
    ours.delete(session, "/big")
    ours.commit(session)
    assert "/big" not in ours.tree()
    check_repository_blocking(ours.context.backend)


def test_all_references_of_a_region_may_go(ours: Ours) -> None:
    session = ours.begin()
    link(session, "/big", ChunkTable.empty(2), rows(4))
    ours.commit(session)
    assert boxes(ours.at(ours.tip())) == [((0, 4), (0, WIDE))]
    check_repository_blocking(ours.context.backend)


def test_a_scalar() -> None:
    ours = Ours()
    session = ours.begin()
    ours.array(session, "/s")
    link(session, "/s", virtual_table(np.empty((1, 0), np.uint32), mark=1))
    ours.commit(session)
    session = ours.begin()
    link(session, "/s", virtual_table(np.empty((1, 0), np.uint32), mark=2))
    ours.commit(session)
    assert mark_at(ours.at(ours.tip()), path="/s") == 2
    check_repository_blocking(ours.context.backend)


def test_status_counts_what_it_cannot_list(ours: Ours) -> None:
    session = ours.begin()
    link(session, "/big", virtual_table(rows(7), mark=1), rows(4))
    put(session, "/big", virtual_table(rows(8)[:2], mark=1))
    found = ours.status(session)
    assert found.linked_chunks == {"/big": 2 * WIDE}
    assert found.updated_chunks == {"/big": [[8, 0], [8, 1]]}
    assert str(found).splitlines()[-2:] == ["Chunks in linked manifests:", f"    /big: {2 * WIDE}"]
    before, after = ours.tip(), ours.commit(session)
    diff = ours.diff(before, after)
    assert diff.linked_chunks == {}
    assert len(diff.chunk_coordinates["/big"]) == 2 * WIDE + 2


def test_linked_chunks_are_listed(ours: Ours) -> None:
    session = ours.begin()
    link(session, "/other", virtual_table(line(1, 3), mark=1))
    store = IcechunkStore(session)
    assert list(iterate_blocking(store.list_prefix("other"))) == [
        "other/zarr.json",
        "other/c/1",
        "other/c/3",
    ]
    assert set(iterate_blocking(store.list_dir("other"))) == {"zarr.json", "c"}


def test_links_travel_with_the_session(ours: Ours) -> None:
    session = ours.begin()
    link(session, "/big", virtual_table(rows(7), mark=1))
    copy = pickle.loads(pickle.dumps(session.changes))
    assert copy.links == session.changes.links
    assert session.changes.copy().links == session.changes.links
    session.discard_changes()
    assert session.changes.is_empty()
    assert mark_at(session, 7, 0) is None


# -- endings ---------------------------------------------------------------------------------


def test_amend_and_flush(ours: Ours) -> None:
    session = ours.begin()
    put(session, "/big", virtual_table(rows(10)[:3], mark=1))
    before = ours.tip()
    ours.commit(session)
    session = ours.begin()
    link(session, "/big", virtual_table(rows(12), mark=2))
    amended = run_blocking(commit.amend(session, "amended"))
    found = ours.diff(before, amended).chunk_coordinates["/big"]
    assert found.tolist() == [*rows(10)[:3].tolist(), *rows(12).tolist()]
    session = ours.begin()
    coordinates = rows(13)
    link(session, "/big", virtual_table(coordinates, mark=3))
    writer = log_writer(session, "/big", coordinates)
    flushed = run_blocking(commit.flush(session, "flushed", log_writer=writer))
    assert mark_at(ours.at(flushed), 13, 0) == 3
    assert mark_at(ours.at(ours.tip()), 13, 0) is None
    check_repository_blocking(ours.context.backend)


def test_forks_begin_with_what_was_linked(ours: Ours) -> None:
    session = ours.begin()
    link(session, "/big", virtual_table(rows(7), mark=1))
    fork = ours.fork(session)
    assert mark_at(fork, 7, 0) == 1
    put(fork, "/big", virtual_table(rows(7)[:1], mark=2))
    ours.merge(session, fork)
    ours.commit(session)
    after = ours.at(ours.tip())
    assert [mark_at(after, 7, 0), mark_at(after, 7, 1)] == [2, 1]


def test_forks_cannot_bring_manifests(ours: Ours) -> None:
    session = ours.begin()
    fork = ours.fork(session)
    link(fork, "/big", virtual_table(rows(7), mark=1))
    with pytest.raises(SessionStateError, match="link them to the session that commits"):
        ours.merge(session, fork)


def test_a_fork_deletes_an_array_only_with_the_manifests_that_it_knows(ours: Ours) -> None:
    session = ours.begin()
    fork = ours.fork(session)
    link(session, "/big", virtual_table(rows(7), mark=1))
    ours.delete(fork, "/big")
    with pytest.raises(SessionStateError, match="one side deleted"):
        ours.merge(session, fork)
    later = ours.fork(session)
    ours.delete(later, "/big")
    ours.merge(session, later)
    ours.commit(session)
    assert "/big" not in ours.tree()


def test_a_log_writer_that_writes_nothing_is_noticed(ours: Ours) -> None:
    session = ours.begin()
    link(session, "/big", virtual_table(rows(7), mark=1))

    async def forget(own: TransactionLog) -> None:
        assert own.updated_chunks == {}

    tip = ours.tip()
    with pytest.raises(SessionStateError, match="did not write the transaction log") as refused:
        ours.commit(session, log_writer=forget)
    assert refused.value.kind == ErrorKind.COMMIT_NOT_ALLOWED
    assert ours.tip() == tip
    ours.commit(session)
    check_repository_blocking(ours.context.backend)


def test_ordinary_commits_may_have_their_log_written_elsewhere(ours: Ours) -> None:
    session = ours.begin()
    put(session, "/big", virtual_table(rows(7)[:2], mark=1))
    before = ours.tip()

    async def write(own: TransactionLog) -> None:
        await write_log(ours.context.assets, own, [])

    after = ours.commit(session, log_writer=write)
    assert ours.diff(before, after).updated_chunks == {"/big": [[7, 0], [7, 1]]}


# -- other arrays in the same manifest -------------------------------------------------------


@pytest.mark.parametrize("limited", [False, True])
def test_an_array_leaves_a_manifest_that_it_shared(limited: bool) -> None:
    ours = Ours()
    sets = [ManifestSet("few", max_manifest_size=100, cardinality=None)]
    if limited:
        sets = [
            ManifestSet("few", max_manifest_size=100, cardinality=1, overflow_to="rest"),
            ManifestSet("rest", arrays_per_manifest=1, cardinality=None),
        ]
    config = RepositoryConfig(chunk_manifests=ChunkManifestsConfig(sets, [ManifestRule("few")]))
    ours.context = run_blocking(lifecycle.reopen(ours.context, config))
    session = ours.begin()
    for name in "abc":
        ours.array(session, f"/{name}", 4)
        put(session, f"/{name}", virtual_table(line(0, 1), mark=1))
    ours.commit(session)
    shared = {ref.id for name in "abc" for ref in manifests(ours.at(ours.tip()), f"/{name}")}
    assert len(shared) == 1
    session = ours.begin()
    link(session, "/b", virtual_table(line(1, 2), mark=2))
    linked = [ref.id for ref in manifests(session, "/b")]
    ours.commit(session)
    check_repository_blocking(ours.context.backend)
    after = ours.at(ours.tip())
    assert shared.isdisjoint(ref.id for name in "abc" for ref in manifests(after, f"/{name}"))
    assert [ref.id for ref in manifests(after, "/b")] == linked, "as it was built"
    assert [mark_at(after, at, path="/b") for at in range(4)] == [1, 2, 2, None]
    assert [mark_at(after, at, path="/a") for at in range(4)] == [1, 1, None, None]
    session = ours.begin()
    put(session, "/a", virtual_table(line(3), mark=3))
    link(session, "/b", virtual_table(line(3), mark=3))
    linked = [ref.id for ref in manifests(session, "/b")]
    ours.commit(session)
    check_repository_blocking(ours.context.backend)
    after = ours.at(ours.tip())
    assert [ref.id for ref in manifests(after, "/b")] == linked
    assert [mark_at(after, 3, path=f"/{name}") for name in "abc"] == [3, 3, None]


def test_an_array_is_linked_to_beside_a_manifest_that_it_shares() -> None:
    """Somebody changes another array in that one, so that it has to be written again."""
    ours = Ours()
    sets = [ManifestSet("few", max_manifest_size=100, cardinality=None)]
    config = RepositoryConfig(chunk_manifests=ChunkManifestsConfig(sets, [ManifestRule("few")]))
    ours.context = run_blocking(lifecycle.reopen(ours.context, config))
    session = ours.begin()
    for name in "ab":
        ours.array(session, f"/{name}", 9)
        put(session, f"/{name}", virtual_table(line(0, 1), mark=1))
    ours.commit(session)
    session = ours.begin()
    made = build_region(
        ours.context.assets,
        nodes.require_array(session, "/b").id,
        virtual_table(line(7), mark=2),
        layout=HalvingLayout((0,)),
        grid=(9,),
    )
    link_manifests(session, "/b", [run_blocking(made)])
    put(session, "/a", virtual_table(line(1), mark=3))
    ours.commit(session)
    check_repository_blocking(ours.context.backend)
    after = ours.at(ours.tip())
    assert [mark_at(after, at, path="/b") for at in (0, 1, 7)] == [1, 1, 2]
    assert [mark_at(after, at, path="/a") for at in (0, 1)] == [1, 3]


def manifests(session: SessionState, path: str) -> Sequence[Any]:
    return session.tree.manifests(nodes.require_array(session, path))


# -- commits of others -----------------------------------------------------------------------


def test_unrelated_commits_are_rebased_over(ours: Ours) -> None:
    """Other arrays, and other manifests of the same array."""
    session = ours.begin()
    coordinates = rows(12, 13)
    link(session, "/big", virtual_table(coordinates, mark=1))
    for path, table in [
        ("/other", virtual_table(line(2), mark=5)),
        ("/big", virtual_table(rows(1)[:7], mark=5)),
    ]:
        theirs = ours.begin()
        put(theirs, path, table)
        ours.commit(theirs)
    seen = []
    write = log_writer(session, "/big", coordinates)

    async def noted(own: TransactionLog) -> None:
        seen.append(own.id)
        await write(own)

    with pytest.raises(ConflictError):
        ours.commit(session, log_writer=noted)
    before = ours.tip()
    after = ours.commit(session, solver=ConflictDetector(), log_writer=noted)
    assert len(set(seen)) == len(seen) == 3
    assert seen[-1] == after
    assert np.array_equal(ours.diff(before, after).chunk_coordinates["/big"], coordinates)
    found = ours.at(after)
    assert [mark_at(found, *at) for at in [(1, 0), (1, 9), (12, 0), (4, 0)]] == [5, 0, 1, 0]
    check_repository_blocking(ours.context.backend)


ALWAYS = [
    ConflictDetector(),
    BasicConflictSolver(),
    BasicConflictSolver(on_chunk_conflict=VersionSelection.UseTheirs),
]


def rebase_fails(ours: Ours, session: SessionState) -> list[Conflict]:
    """Try it with every solver; the session stays as it is."""
    found = []
    for solver in ALWAYS:
        with pytest.raises(RebaseFailedError) as failed:
            ours.rebase(session, solver)
        found.append(list(failed.value.conflicts))
    assert found[0] == found[1] == found[2]
    assert session.changes.links
    return found[0]


def test_a_change_within_a_linked_box_is_a_conflict(ours: Ours) -> None:
    session = ours.begin()
    link(session, "/big", virtual_table(rows(12, 14), mark=1))
    theirs = ours.begin()
    put(theirs, "/big", virtual_table(rows(13)[:2], mark=5))
    ours.commit(theirs)
    [conflict] = rebase_fails(ours, session)
    chunks_met = [[13, 0], [13, 1]]
    expected = Conflict(ConflictType.ChunkDoubleUpdate, "/big", chunks_met, is_linked=True)
    assert conflict == expected
    assert conflict != Conflict(ConflictType.ChunkDoubleUpdate, "/big", chunks_met)
    assert "build these again" in str(conflict)
    assert "is_linked=True" in repr(conflict)


def test_a_change_of_what_a_region_was_built_over_is_a_conflict(ours: Ours) -> None:
    """Also if it is outside of the box of the new manifest: the two would overlap."""
    session = ours.begin()
    link(session, "/big", virtual_table(rows(5), mark=1))
    theirs = ours.begin()
    put(theirs, "/big", virtual_table(rows(6)[:2], mark=5))
    ours.commit(theirs)
    [conflict] = rebase_fails(ours, session)
    assert conflict == Conflict(ConflictType.ChunksUpdatedInUpdatedArray, "/big", is_linked=True)


def test_a_change_of_a_manifest_that_a_region_did_away_with_is_a_conflict(ours: Ours) -> None:
    session = ours.begin()
    link(session, "/big", ChunkTable.empty(2), rows(4))
    theirs = ours.begin()
    put(theirs, "/big", virtual_table(rows(6)[:2], mark=5))
    ours.commit(theirs)
    [conflict] = rebase_fails(ours, session)
    assert conflict == Conflict(ConflictType.ChunksUpdatedInUpdatedArray, "/big", is_linked=True)


def test_manifests_of_others_between_ours_are_a_conflict(ours: Ours) -> None:
    """No chunk is within the box of another, but the manifests are."""
    session = ours.begin()
    node = nodes.require_array(session, "/big")
    table = virtual_table(rows(10)[:1], mark=1)
    made = build_region(
        ours.context.assets, node.id, table, layout=HalvingLayout((0, 1)), grid=(20, WIDE)
    )
    link_manifests(session, "/big", [run_blocking(made)])
    theirs = ours.begin()
    put(theirs, "/big", virtual_table(np.array([[9, 0], [11, 0]], np.uint32), mark=5))
    ours.commit(theirs)
    [conflict] = rebase_fails(ours, session)
    assert conflict == Conflict(ConflictType.ChunksUpdatedInUpdatedArray, "/big", is_linked=True)


@pytest.mark.parametrize("what", ["delete", "update", "resize"])
def test_a_changed_array_is_a_conflict(ours: Ours, what: str) -> None:
    session = ours.begin()
    link(session, "/big", virtual_table(rows(12), mark=1))
    theirs = ours.begin()
    if what == "delete":
        ours.delete(theirs, "/big")
    else:
        ours.array(theirs, "/big", 20 if what == "update" else 40, WIDE, mark=9)
    ours.commit(theirs)
    kind = "ChunksUpdatedInDeletedArray" if what == "delete" else "ChunksUpdatedInUpdatedArray"
    assert [one.conflict_type.name for one in rebase_fails(ours, session)] == [kind]


def test_a_new_array_where_others_made_one(ours: Ours) -> None:
    session = ours.begin()
    ours.array(session, "/new", 3, WIDE)
    link(session, "/new", virtual_table(rows(0), mark=1))
    theirs = ours.begin()
    ours.array(theirs, "/new", 3, WIDE)
    ours.commit(theirs)
    kinds = [one.conflict_type for one in rebase_fails(ours, session)]
    assert kinds == [ConflictType.NewNodeConflictsWithExistingNode]


def test_metadata_of_others_is_no_conflict_elsewhere() -> None:
    ours = furnish(Ours())
    session = ours.begin()
    link(session, "/a", virtual_table(line(1, 2), mark=1))
    theirs = ours.begin()
    ours.group(theirs, "/g", mark=3)
    ours.array(theirs, "/g/x", 9)
    ours.delete(theirs, "/h")
    ours.commit(theirs)
    ours.commit(session, solver=ConflictDetector())
    check_repository_blocking(ours.context.backend)
    assert mark_at(ours.at(ours.tip()), 2, path="/a") == 1


# -- what is refused -------------------------------------------------------------------------


def test_manifests_of_another_version_are_refused(ours: Ours) -> None:
    session = ours.begin()
    regions = build_elsewhere(session, "/big", virtual_table(rows(5), mark=1))
    theirs = ours.begin()
    put(theirs, "/big", virtual_table(rows(4), mark=5))
    ours.commit(theirs)
    later = ours.begin()
    with pytest.raises(SessionStateError, match="plan and build them again"):
        link_manifests(later, "/big", regions)
    assert later.changes.is_empty()
    link_manifests(session, "/big", regions)
    with pytest.raises(SessionStateError, match="plan and build them again"):
        link_manifests(session, "/big", regions)


def test_two_regions_cannot_be_built_over_one_manifest(ours: Ours) -> None:
    session = ours.begin()
    one = manifests(session, "/big")[-1].id
    regions = [LinkedRegion((), (one,)), LinkedRegion((), (one,))]
    with pytest.raises(SessionStateError, match="a manifest that two regions share"):
        link_manifests(session, "/big", regions)


def test_overlapping_manifests_are_refused(ours: Ours) -> None:
    session = ours.begin()
    [region] = build_elsewhere(session, "/big", virtual_table(rows(5), mark=1))
    with pytest.raises(InvalidInputError, match="both cover chunks"):
        link_manifests(session, "/big", [LinkedRegion(region.parts)])
    assert session.changes.is_empty()


@pytest.mark.parametrize(
    "box",
    [((18, 21), (0, 1)), ((3, 3), (0, 1)), ((-1, 3), (0, 1)), ((0, 1),), ()],
    ids=["beyond", "empty", "negative", "too few dimensions", "everything"],
)
def test_boxes_must_be_within_the_grid(ours: Ours, box: Any) -> None:
    session = ours.begin()
    part = LinkedPart(NewManifest(ManifestId.random(), 10, 1), box)
    with pytest.raises(InvalidInputError, match="not within the grid") as refused:
        link_manifests(session, "/big", [LinkedRegion((part,))])
    assert refused.value.kind == ErrorKind.INVALID_CHUNK_INDEX


def test_linking_comes_before_other_changes(ours: Ours) -> None:
    session = ours.begin()
    put(session, "/big", virtual_table(rows(17)[:1], mark=1))
    regions = build_elsewhere(session, "/big", virtual_table(rows(5), mark=1))
    with pytest.raises(SessionStateError, match="link manifests first") as refused:
        link_manifests(session, "/big", regions)
    assert refused.value.kind == ErrorKind.UNCOMMITTED_CHANGES


def test_only_writable_sessions_link(ours: Ours) -> None:
    with pytest.raises(icefloe.IcechunkError, match="read-only"):
        link_manifests(ours.at(ours.tip()), "/big", [])
    with pytest.raises(icefloe.IcechunkError, match="only arrays have chunks"):
        link_manifests(ours.begin(), "/", [])
    session = ours.begin()
    link_manifests(session, "/big", [])
    assert session.changes.is_empty()


def test_builders_check_references(ours: Ours) -> None:
    node, layout = NodeId.random(), HalvingLayout((0,))
    table = virtual_table(line(3, 4))
    empty = replace(table, lengths=np.array([1, 0], np.uint64))
    for grid, given, message in [
        ((4,), table, "outside of the grid"),
        ((4, 4), table, "outside of the grid"),
        ((5,), empty, r"chunk \(4,\) has no bytes"),
    ]:
        with pytest.raises(InvalidInputError, match=message):
            run_blocking(build_region(ours.context.assets, node, given, layout=layout, grid=grid))


def test_builders_say_what_they_are_about_to_write(ours: Ours) -> None:
    told: list[ManifestId] = []

    async def note(ids: Sequence[ManifestId]) -> None:
        for one in ids:
            with pytest.raises(icefloe.IcechunkError):
                await ours.context.assets.load_manifest(one)
        told.extend(ids)

    build = build_region(
        ours.context.assets,
        NodeId.random(),
        virtual_table(line(*range(9))),
        layout=HalvingLayout((0,), 4),
        grid=(9,),
        before_writing=note,
    )
    region = run_blocking(build)
    assert [part.manifest.id for part in region.parts] == told
    assert [part.box for part in region.parts] == [((0, 4),), ((4, 8),), ((8, 9),)]
    assert region.num_changed == 9
    sizes = [part.manifest.size_bytes for part in region.parts]
    for one, size in zip(told, sizes, strict=True):
        assert run_blocking(ours.context.assets.load_manifest(one, size)).id == one


# -- the log ---------------------------------------------------------------------------------


def test_a_completed_log_is_the_log_of_an_ordinary_commit(ours: Ours) -> None:
    session = ours.begin()
    coordinates = rows(3, 7, 8)
    put(session, "/big", virtual_table(coordinates))
    ours.write(session, "/other", 1)
    whole = session.changes.to_log(ours.tip())
    big = nodes.require_array(session, "/big").id
    own = replace(
        whole, updated_chunks={**whole.updated_chunks, big: whole.updated_chunks[big][:100]}
    )
    pieces = [(big, coordinates[at::5]) for at in range(5)]
    for spec_version in (1, 2):
        assert complete_log(own, pieces, spec_version=spec_version) == complete_log(
            whole, [], spec_version=spec_version
        )


def test_changes_between_two_states_are_found_row_by_row() -> None:
    kept: dict[tuple[int, ...], Any] = {
        (0,): InlineChunk(b"a"),
        (1,): NativeChunk(ChunkId(bytes(12)), 0, 9),
        (2,): VirtualChunk("s3://b/x", 0, 9),
        (3,): VirtualChunk("s3://b/x", 0, 9, "etag"),
        (4,): VirtualChunk("s3://b/x", 0, 9, None, 77),
    }
    other = {
        (0,): InlineChunk(b"b"),
        (1,): NativeChunk(ChunkId(b"another id.."), 0, 9),
        (2,): VirtualChunk("s3://b/y", 0, 9),
        (3,): VirtualChunk("s3://b/x", 0, 9, "other"),
        (4,): VirtualChunk("s3://b/x", 0, 9, None, 78),
        (5,): VirtualChunk("s3://b/x", 0, 9),
    }
    for index, ref in other.items():
        after = {**kept, index: ref}
        found = changed_between([ChunkTable.from_refs(kept, 1)], [ChunkTable.from_refs(after, 1)])
        assert found.tolist() == [list(index)]
        back = changed_between([ChunkTable.from_refs(after, 1)], [ChunkTable.from_refs(kept, 1)])
        assert back.tolist() == [list(index)]
    moved = {**kept, (2,): VirtualChunk("s3://b/x", 0, 9, "etag")}
    kinds = {**kept, (2,): InlineChunk(b"s3://b/x9")}
    for after in (moved, kinds):
        found = changed_between([ChunkTable.from_refs(kept, 1)], [ChunkTable.from_refs(after, 1)])
        assert found.tolist() == [[2]]
    assert changed_between([ChunkTable.from_refs(kept, 1)], []).ravel().tolist() == [0, 1, 2, 3, 4]
    assert changed_between([], [ChunkTable.from_refs(kept, 1)]).ravel().tolist() == [0, 1, 2, 3, 4]


# -- memory ----------------------------------------------------------------------------------


def traced_commit(count: int, *, elsewhere: bool) -> int:
    """Link this many rows of references; give the most memory that linking and committing took."""
    ours = Ours()
    session = ours.begin()
    ours.array(session, "/big", count, WIDE)
    ours.commit(session)
    session = ours.begin()
    regions = build_elsewhere(session, "/big", virtual_table(rows(*range(count)), mark=1))
    peaks = []

    async def write(own: TransactionLog) -> None:
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()  # this is the memory of somebody else
        node = nodes.require_array(session, "/big").id
        pieces = ((node, rows(number)) for number in range(count))
        await write_log(ours.context.assets, own, pieces)
        tracemalloc.start()

    tracemalloc.start()
    try:
        link_manifests(session, "/big", regions)
        ours.commit(session, log_writer=write if elsewhere else None)
        return max([*peaks, tracemalloc.get_traced_memory()[1]])
    finally:
        tracemalloc.stop()


def least_traced_commit(count: int, *, elsewhere: bool) -> int:
    """Commit three times: threads that other tests left behind allocate memory, too."""
    return min(traced_commit(count, elsewhere=elsewhere) for _ in range(3))


@pytest.mark.slow
def test_memory_does_not_grow_with_references() -> None:
    small, large = (least_traced_commit(count, elsewhere=True) for count in (8, 160))
    assert large < small + 100_000, "40 manifests with 1.3 million references"


@pytest.mark.slow
def test_a_log_written_here_takes_a_part_at_a_time() -> None:
    small, large = (least_traced_commit(count, elsewhere=False) for count in (40, 160))
    assert large - small < 120 * WIDE, "a byte for each of the coordinates more, which have eight"


def test_decoded_log_of_many(ours: Ours) -> None:
    """What is kept compressed comes back exactly."""
    node = NodeId.random()
    pieces = ((node, rows(number)) for number in reversed(range(20)))
    log = decode_transaction_log(complete_log(TransactionLog(ours.tip()), pieces))
    assert np.array_equal(log.updated_chunks[node], rows(*range(20)))
