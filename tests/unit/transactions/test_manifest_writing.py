"""Which manifests a commit writes, reads and leaves alone."""

from collections.abc import Callable

import numpy as np
import pytest

from icefloe.config import (
    ChunkManifestsConfig,
    ManifestConfig,
    ManifestRule,
    ManifestSet,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
    RepositoryConfig,
)
from icefloe.effects import run_blocking
from icefloe.errors import InvalidInputError
from icefloe.format.chunk_table import ChunkTable
from icefloe.format.columns import BytesColumn
from icefloe.format.ids import ManifestId, NodeId
from icefloe.format.nodes import ManifestRef
from icefloe.manifests.build import link_parts, make_part
from icefloe.repo import lifecycle
from icefloe.storage import RequestCounts
from icefloe.testing.invariants import check_repository
from icefloe.transactions import chunks, commit, nodes
from icefloe.transactions.conflicts import BasicConflictSolver
from icefloe.transactions.session import SessionState
from tests.support.sides import Ours

PART = 32_768


@pytest.fixture(params=[1, 2])
def ours(request: pytest.FixtureRequest) -> Ours:
    return Ours(request.param)


def configured(ours: Ours, config: RepositoryConfig) -> Ours:
    ours.context = run_blocking(lifecycle.reopen(ours.context, config))
    return ours


def refs_of(ours: Ours, path: str) -> tuple[ManifestRef, ...]:
    session = ours.at(ours.tip())
    return session.tree.manifests(nodes.require_array(session, path))


def manifest_of(ours: Ours, path: str) -> ManifestId:
    [ref] = refs_of(ours, path)
    return ref.id


def requests_during(ours: Ours, work: Callable[[], object]) -> RequestCounts:
    before = ours.storage.request_counts()
    work()
    return ours.storage.request_counts() - before


def fill(session: SessionState, path: str, first: int, last: int) -> None:
    """Set the references of a run of chunks of a one-dimensional array."""
    rows = np.arange(first, last, dtype=np.uint32)[:, None]
    lengths = np.full(len(rows), 1000, np.uint64)
    table = ChunkTable.virtual(
        rows,
        BytesColumn.from_strings(["s3://bucket/file"]),
        rows[:, 0].astype(np.uint64),
        lengths,
        targets=np.zeros(len(rows), np.uint32),
    )
    chunks.put_refs(session, nodes.require_array(session, path), table)


def create(ours: Ours, length: int, *, path: str = "/x", room: int | None = None) -> None:
    session = ours.begin()
    ours.array(session, path, room or length)
    fill(session, path, 0, length)
    ours.commit(session)


def check(ours: Ours) -> None:
    run_blocking(check_repository(ours.context.backend))


def small_arrays(ours: Ours, count: int) -> list[str]:
    session = ours.begin()
    paths = [f"/c{number:03}" for number in range(count)]
    for path in paths:
        ours.array(session, path, 2)
        ours.write(session, path, 0, value=path.encode())
    ours.commit(session)
    return paths


# -- splitting by default ------------------------------------------------------------------


def test_large_arrays_are_split_at_fixed_places(ours: Ours) -> None:
    create(ours, 3 * PART + 5)
    edges = [ref.extents for ref in refs_of(ours, "/x")]
    assert edges == [((n * PART, (n + 1) * PART),) for n in range(3)] + [
        ((3 * PART, 3 * PART + 5),)
    ]
    check(ours)


def test_an_append_rewrites_the_last_part_only(ours: Ours) -> None:
    create(ours, 3 * PART + 5, room=10 * PART)
    before = refs_of(ours, "/x")
    session = ours.begin()
    fill(session, "/x", 3 * PART + 5, 3 * PART + 1005)
    made = requests_during(ours, lambda: ours.commit(session))
    after = refs_of(ours, "/x")
    assert after[:3] == before[:3]
    assert after[3].extents == ((3 * PART, 3 * PART + 1005),)
    # A manifest, the snapshot, its log, and where the branch is: with a copy, in spec 2.
    assert made.put == {1: 4, 2: 4}[ours.context.spec_version]
    check(ours)


def test_an_append_behind_a_full_part_reads_nothing(ours: Ours) -> None:
    create(ours, 2 * PART, room=10 * PART)
    before = refs_of(ours, "/x")
    other = Ours.__new__(Ours)
    other.storage, other.context = ours.storage, run_blocking(lifecycle.reopen(ours.context))
    session = other.begin()
    fill(session, "/x", 2 * PART, 2 * PART + 10)
    made = requests_during(other, lambda: other.commit(session))
    assert refs_of(other, "/x")[:2] == before
    assert made.get <= 1, "no manifest: at most the place of the branch"


def test_what_grows_beyond_a_part_is_split_where_it_would_have_been(ours: Ours) -> None:
    create(ours, PART, room=4 * PART)
    [whole] = refs_of(ours, "/x")
    session = ours.begin()
    fill(session, "/x", PART, PART + 1)
    ours.commit(session)
    first, second = refs_of(ours, "/x")
    assert first == whole
    assert second.extents == ((PART, PART + 1),)


def test_sparse_arrays_are_not_split(ours: Ours) -> None:
    session = ours.begin()
    ours.array(session, "/x", 10**9)
    for index in (0, 10**6, 10**9 - 1):
        ours.write(session, "/x", index)
    ours.commit(session)
    assert [ref.extents for ref in refs_of(ours, "/x")] == [((0, 10**9),)]


def test_a_smaller_grid_cuts_parts_off(ours: Ours) -> None:
    create(ours, 3 * PART)
    before = refs_of(ours, "/x")
    session = ours.begin()
    ours.array(session, "/x", PART + 7)
    ours.commit(session)
    first, second = refs_of(ours, "/x")
    assert first == before[0]
    assert second.extents == ((PART, PART + 7),)
    check(ours)


def test_parts_that_became_small_are_put_together_when_touched(ours: Ours) -> None:
    create(ours, 2 * PART)
    session = ours.begin()
    node = nodes.require_array(session, "/x")
    gone = np.arange(100, 2 * PART - 100, dtype=np.uint32)[:, None]
    chunks.delete_chunks(session, node, gone)
    ours.commit(session)
    assert [ref.extents for ref in refs_of(ours, "/x")] == [((0, 2 * PART),)]
    check(ours)


def splitting(size: int) -> RepositoryConfig:
    rules = {ManifestSplitCondition.AnyArray(): {ManifestSplitDimCondition.Any(): size}}
    return RepositoryConfig(
        manifest=ManifestConfig(splitting=ManifestSplittingConfig.from_dict(rules))
    )


RULES_FOR_NOTHING = RepositoryConfig(
    manifest=ManifestConfig(splitting=ManifestSplittingConfig([])),
)


@pytest.mark.parametrize(("size", "parts"), [(2**32 - 1, 1), (50_000, 2), (10_000, 7)])
def test_what_is_configured_wins(ours: Ours, size: int, parts: int) -> None:
    create(configured(ours, splitting(size)), 2 * PART)
    assert len(refs_of(ours, "/x")) == parts


def test_rules_for_other_arrays_leave_the_default(ours: Ours) -> None:
    rules = {ManifestSplitCondition.path_matches("^/y$"): {ManifestSplitDimCondition.Any(): 10}}
    splitting = ManifestConfig(splitting=ManifestSplittingConfig.from_dict(rules))
    create(configured(ours, RepositoryConfig(manifest=splitting)), 2 * PART)
    assert len(refs_of(ours, "/x")) == 2


def test_manifests_cut_by_another_rule_stay_until_they_are_touched(ours: Ours) -> None:
    create(configured(ours, splitting(50_000)), 150_000, room=200_000)
    before = refs_of(ours, "/x")
    configured(ours, RULES_FOR_NOTHING)
    session = ours.begin()
    fill(session, "/x", 150_000, 150_010)
    ours.commit(session)
    after = refs_of(ours, "/x")
    assert after[:3] == before
    assert after[3].extents == ((150_000, 150_010),)
    check(ours)


# -- arrays that share a manifest ----------------------------------------------------------


def test_small_arrays_of_one_commit_share_a_manifest(ours: Ours) -> None:
    paths = small_arrays(ours, 40)
    assert len({manifest_of(ours, path) for path in paths}) == 1
    check(ours)


def test_a_commit_that_touches_one_of_many_writes_one_manifest(ours: Ours) -> None:
    paths = small_arrays(ours, 300)
    before = {path: manifest_of(ours, path) for path in paths}
    assert len(set(before.values())) == 6, "two references each, a hundred in a manifest"
    session = ours.begin()
    ours.write(session, "/c123", 1, value=b"new")
    made = requests_during(ours, lambda: ours.commit(session))
    assert made.put == 4
    after = {path: manifest_of(ours, path) for path in paths}
    moved = {path for path in paths if before[path] != after[path]}
    assert moved == {path for path in paths if before[path] == before["/c123"]}
    assert len({after[path] for path in moved}) == 1
    tree = ours.tree()
    assert tree["/c123"] == {(0,): b"/c123", (1,): b"new"}
    assert all(tree[path] == {(0,): path.encode()} for path in paths if path != "/c123")
    check(ours)


def test_metadata_alone_write_no_manifest(ours: Ours) -> None:
    paths = small_arrays(ours, 3)
    before = manifest_of(ours, "/c000")
    session = ours.begin()
    ours.array(session, "/c001", 50, mark=7)
    ours.commit(session)
    assert {manifest_of(ours, path) for path in paths} == {before}
    check(ours)


def test_what_is_deleted_leaves_the_manifest(ours: Ours) -> None:
    small_arrays(ours, 3)
    before = manifest_of(ours, "/c000")
    session = ours.begin()
    gone = nodes.require_array(session, "/c001").id
    ours.delete(session, "/c001")
    ours.commit(session)
    after = manifest_of(ours, "/c000")
    assert after == manifest_of(ours, "/c002") != before
    assert len(run_blocking(ours.context.assets.load_manifest(after)).table(gone)) == 0
    assert ours.tree() == {"/c000": {(0,): b"/c000"}, "/c002": {(0,): b"/c002"}}
    check(ours)


def test_deleting_all_writes_no_manifest(ours: Ours) -> None:
    paths = small_arrays(ours, 3)
    session = ours.begin()
    for path in paths:
        ours.delete(session, path)
    ours.commit(session)
    assert len(ours.at(ours.tip()).snapshot.manifests) == 0
    check(ours)


def test_what_is_deleted_and_made_again_begins_anew(ours: Ours) -> None:
    small_arrays(ours, 3)
    session = ours.begin()
    ours.delete(session, "/c001")
    ours.array(session, "/c001", 3)
    ours.write(session, "/c001", 2, value=b"again")
    ours.commit(session)
    assert ours.tree() == {
        "/c000": {(0,): b"/c000"},
        "/c001": {(2,): b"again"},
        "/c002": {(0,): b"/c002"},
    }
    check(ours)


def test_what_loses_all_its_chunks_leaves_the_manifest(ours: Ours) -> None:
    small_arrays(ours, 2)
    session = ours.begin()
    ours.erase(session, "/c000", 0)
    ours.commit(session)
    assert refs_of(ours, "/c000") == ()
    assert ours.tree() == {"/c000": {}, "/c001": {(0,): b"/c001"}}
    check(ours)


def test_what_grows_out_of_a_manifest_gets_its_own(ours: Ours) -> None:
    small_arrays(ours, 3)
    session = ours.begin()
    ours.array(session, "/c001", 2 * PART)
    fill(session, "/c001", 0, 2 * PART)
    ours.commit(session)
    assert len(refs_of(ours, "/c001")) == 2
    assert manifest_of(ours, "/c000") == manifest_of(ours, "/c002")
    assert manifest_of(ours, "/c000") not in {ref.id for ref in refs_of(ours, "/c001")}
    check(ours)


def test_moved_arrays_keep_their_manifest() -> None:
    ours = Ours()
    session = ours.begin()
    ours.group(session, "/")
    ours.group(session, "/g")
    ours.commit(session)
    small_arrays(ours, 3)
    before = manifest_of(ours, "/c000")
    moving = ours.begin_moving()
    ours.move(moving, "/c001", "/g/moved")
    ours.commit(moving)
    assert manifest_of(ours, "/g/moved") == before
    session = ours.begin()
    ours.write(session, "/c000", 1, value=b"after")
    ours.commit(session)
    assert manifest_of(ours, "/g/moved") == manifest_of(ours, "/c000") != before
    assert ours.tree()["/g/moved"] == {(0,): b"/c001"}
    check(ours)


def test_a_scalar_shares_a_manifest(ours: Ours) -> None:
    session = ours.begin()
    ours.array(session, "/scalar")
    ours.write(session, "/scalar", value=b"one")
    ours.array(session, "/x", 2)
    ours.write(session, "/x", 1)
    ours.commit(session)
    assert manifest_of(ours, "/scalar") == manifest_of(ours, "/x")
    session = ours.begin()
    ours.write(session, "/scalar", value=b"two")
    ours.commit(session)
    assert ours.tree() == {"/scalar": {(): b"two"}, "/x": {(1,): b"x"}}
    check(ours)


# -- sets as configured --------------------------------------------------------------------


def one_manifest_for_all(limit: int) -> RepositoryConfig:
    return RepositoryConfig(
        chunk_manifests=ChunkManifestsConfig(
            [
                ManifestSet("small", max_manifest_size=limit, cardinality=1),
                ManifestSet("default", arrays_per_manifest=1),
            ],
            [ManifestRule("small", path="/c.*")],
        )
    )


def test_later_arrays_join_the_only_manifest_of_a_set(ours: Ours) -> None:
    configured(ours, one_manifest_for_all(5))
    small_arrays(ours, 2)
    for path in ("/c100", "/c101"):
        session = ours.begin()
        ours.array(session, path, 1)
        ours.write(session, path, 0, value=path.encode())
        ours.commit(session)
        check(ours)
    shared = manifest_of(ours, "/c000")
    assert manifest_of(ours, "/c001") == manifest_of(ours, "/c100") == shared
    assert manifest_of(ours, "/c101") != shared, "there is no room for it"
    assert ours.tree()["/c001"] == {(0,): b"/c001"}


def test_sets_and_splitting_compose(ours: Ours) -> None:
    configured(ours, one_manifest_for_all(10**6))
    small_arrays(ours, 2)
    create(ours, 2 * PART, path="/c100")
    assert len(refs_of(ours, "/c100")) == 2
    assert manifest_of(ours, "/c000") == manifest_of(ours, "/c001")
    check(ours)


# -- commits that are tried again ----------------------------------------------------------


def test_a_retry_uses_the_manifests_of_the_first_attempt(ours: Ours) -> None:
    small_arrays(ours, 3)
    create(ours, 2 * PART, room=4 * PART)
    create(ours, 500, path="/other")
    ahead, behind = ours.begin(), ours.begin()
    ours.write(behind, "/c001", 1)
    fill(behind, "/x", 2 * PART, 2 * PART + 5000)
    lost = run_blocking(commit.write_version(behind, "lost", {})).snapshot
    ours.write(ahead, "/other", 3)
    ours.commit(ahead)
    ours.commit(behind, solver=BasicConflictSolver())
    after = {ref.id for path in ("/x", "/c001") for ref in refs_of(ours, path)}
    assert after <= {ManifestId(bytes(row)) for row in lost.manifests.ids}
    check(ours)


def test_a_retry_keeps_what_others_did_to_its_neighbours(ours: Ours) -> None:
    small_arrays(ours, 3)
    ahead, behind = ours.begin(), ours.begin()
    ours.write(behind, "/c001", 1, value=b"behind")
    run_blocking(commit.write_version(behind, "lost", {}))
    ours.write(ahead, "/c002", 1, value=b"ahead")
    ours.commit(ahead)
    ours.commit(behind, solver=BasicConflictSolver())
    assert ours.tree() == {
        "/c000": {(0,): b"/c000"},
        "/c001": {(0,): b"/c001", (1,): b"behind"},
        "/c002": {(0,): b"/c002", (1,): b"ahead"},
    }
    check(ours)


def test_forks_come_back_to_shared_manifests(ours: Ours) -> None:
    small_arrays(ours, 3)
    session = ours.begin()
    ours.write(session, "/c000", 1, value=b"before")
    fork = ours.fork(session)
    ours.write(fork, "/c001", 1, value=b"fork")
    ours.merge(session, fork)
    ours.commit(session)
    assert ours.tree()["/c000"] == {(0,): b"/c000", (1,): b"before"}
    assert ours.tree()["/c001"] == {(0,): b"/c001", (1,): b"fork"}
    check(ours)


def test_amending_and_flushing_keep_shared_manifests_whole() -> None:
    ours = Ours()
    small_arrays(ours, 3)
    session = ours.begin()
    ours.write(session, "/c000", 1, value=b"amended")
    run_blocking(commit.amend(session, "amended"))
    session = ours.begin()
    ours.write(session, "/c001", 1, value=b"aside")
    aside = run_blocking(commit.flush(session, "aside"))
    assert ours.tree()["/c001"] == {(0,): b"/c001"}
    assert ours.tree(ours.at(aside))["/c001"] == {(0,): b"/c001", (1,): b"aside"}
    assert ours.tree(ours.at(aside))["/c000"] == {(0,): b"/c000", (1,): b"amended"}
    check(ours)


# -- parts made elsewhere ------------------------------------------------------------------


def test_parts_are_made_from_columns_and_linked() -> None:
    ours, node = Ours(), NodeId.random()
    rows = np.arange(3, 9, dtype=np.uint32)[:, None]
    ids = np.frombuffer(bytes(12 * 6), np.uint8).reshape(6, 12)
    table = ChunkTable.native(rows, ids, np.full(6, 5, np.uint64))
    part = run_blocking(make_part(ours.context.assets, {node: table}))
    assert part.held_back is None
    assert part.refs[node] == ManifestRef(part.manifest.id, ((3, 9),))
    stored = run_blocking(ours.context.assets.load_manifest(part.manifest.id))
    assert stored.table(node) == table
    assert part.manifest.num_chunk_refs == 6
    before = ManifestRef(ManifestId.random(), ((9, 12),))
    assert link_parts([before], [part.refs[node]]) == (part.refs[node], before)


def test_parts_that_overlap_are_refused() -> None:
    one, other = (ManifestRef(ManifestId.random(), ((0, 9), (0, end))) for end in (4, 2))
    with pytest.raises(InvalidInputError, match="both cover chunks"):
        link_parts([one], [other])
    scalar = ManifestRef(ManifestId.random(), ())
    with pytest.raises(InvalidInputError, match="without extents"):
        link_parts([scalar], [scalar])
    assert link_parts([], [scalar]) == (scalar,)
