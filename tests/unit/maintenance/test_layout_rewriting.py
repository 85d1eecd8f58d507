"""Rewriting manifests as one commit: what it writes, when it refuses, and who comes between."""

from collections.abc import Callable

import numpy as np
import pytest
import zarr

import icefloe
from icefloe.config import (
    ChunkManifestsConfig,
    ManifestConfig,
    ManifestSet,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    ManifestSplittingConfig,
    RepositoryConfig,
)
from icefloe.effects import run_blocking
from icefloe.errors import (
    ConflictError,
    ErrorKind,
    FormatError,
    InvalidInputError,
    ReadOnlyError,
    RefNotFoundError,
    SessionStateError,
)
from icefloe.format.ids import SnapshotId
from icefloe.format.nodes import ArrayNode, ManifestRef, NodeTable
from icefloe.format.snapshot_table import SnapshotEntry
from icefloe.format.transaction_log import TransactionLog
from icefloe.maintenance.layout.rewriting import rewrite_manifests
from icefloe.maintenance.layout.survey import survey
from icefloe.manifests.partition import Box
from icefloe.records import replace
from icefloe.repo import lifecycle
from icefloe.repo.context import RepoContext
from icefloe.repo.repo_changes import Commit
from icefloe.storage import Storage
from tests.support.checking import check_repository_blocking

THREES = RepositoryConfig(
    manifest=ManifestConfig(
        splitting=ManifestSplittingConfig.from_dict(
            {ManifestSplitCondition.AnyArray(): {ManifestSplitDimCondition.Any(): 3}}
        )
    )
)


ONE_EACH = RepositoryConfig(
    chunk_manifests=ChunkManifestsConfig([ManifestSet("default", arrays_per_manifest=1)])
)


def filled(spec_version: int = 2, config: RepositoryConfig | None = None) -> Storage:
    storage = icefloe.in_memory_storage()
    repo = icefloe.Repository.create(storage, config, spec_version=spec_version)
    with repo.transaction("main", message="fill") as store:
        root = zarr.group(store)
        root.create_array("a", shape=(9,), chunks=(1,), dtype="i4")[:] = np.arange(1, 10)
        root.create_array("b", shape=(2, 2), chunks=(1, 1), dtype="i4")[:] = 5
        root.create_array("empty", shape=(4,), chunks=(1,), dtype="i4")
    return storage


def split(storage: Storage) -> icefloe.Repository:
    return icefloe.Repository.open(storage, THREES)


def contents(repo: icefloe.Repository) -> dict[str, list[object]]:
    root = zarr.open_group(repo.readonly_session("main").store, mode="r")
    return {name: np.asarray(array[...]).tolist() for name, array in root.arrays()}


@pytest.mark.parametrize("spec", [1, 2])
def test_a_commit_that_changes_nothing_but_manifests(spec: int) -> None:
    storage = filled(spec)
    repo = split(storage)
    before = contents(repo)
    repo.set_default_commit_metadata({"who": "me"})
    parent = repo.lookup_branch("main")
    new = repo.rewrite_manifests("in threes", branch="main", metadata={"why": 1})
    assert repo.lookup_branch("main") == new
    version = repo.lookup_snapshot(new)
    assert (version.parent_id, version.message) == (parent, "in threes")
    rules = {"split_sizes": [["any_array", [{"condition": "Any", "num_chunks": 3}]]]}
    notes = {"splitting_config": rules}
    assert version.metadata == {"who": "me", "why": 1, "__icechunk": notes}
    assert [one.num_chunk_refs for one in repo.manifest_layout()].count(3) == 3
    assert contents(icefloe.Repository.open(storage)) == before
    changes = repo.diff(from_snapshot_id=parent, to_snapshot_id=new)
    assert changes.is_empty()
    check_repository_blocking(storage.open())


def test_notes_of_the_caller_are_kept() -> None:
    repo = split(filled())
    new = repo.rewrite_manifests("x", branch="main", metadata={"__icechunk": {"more": 2}})
    notes = repo.lookup_snapshot(new).metadata["__icechunk"]
    assert notes.keys() == {"more", "splitting_config"}


def test_sets_are_noted_too() -> None:
    repo = icefloe.Repository.open(filled(), ONE_EACH)
    new = repo.rewrite_manifests("one each", branch="main")
    notes = repo.lookup_snapshot(new).metadata["__icechunk"]
    assert notes["chunk_manifests"]["sets"] == [{"default": {"arrays-per-manifest": 1}}]
    assert sorted(one.arrays for one in repo.manifest_layout()) == [("/a",), ("/b",)]


def test_with_nothing_configured_nothing_is_noted() -> None:
    repo = icefloe.Repository.open(filled())
    new = repo.rewrite_manifests("as by default", branch="main")
    assert repo.lookup_snapshot(new).metadata == {}


def test_amending_takes_the_place_of_the_newest_commit() -> None:
    storage = filled()
    repo = split(storage)
    before = repo.lookup_branch("main")
    new = repo.rewrite_manifests("fill, in threes", branch="main", commit_method="amend")
    assert [one.message for one in repo.ancestry(branch="main")] == [
        "fill, in threes",
        "Repository initialized",
    ]
    changes = repo.diff(from_snapshot_id=repo.lookup_snapshot(new).parent_id, to_branch="main")
    assert changes.new_arrays == {"/a", "/b", "/empty"}
    [latest, *_] = repo.ops_log()
    assert isinstance(latest.kind, icefloe.UpdateType.CommitAmended)
    assert latest.kind.previous_snap_id == before
    check_repository_blocking(storage.open())


def test_refusals() -> None:
    with pytest.raises(RefNotFoundError):
        split(filled()).rewrite_manifests("x", branch="nowhere")
    with pytest.raises(FormatError) as old:
        split(filled(1)).rewrite_manifests("x", branch="main", commit_method="amend")
    assert old.value.kind == ErrorKind.UNSUPPORTED_SPEC_VERSION
    with pytest.raises(InvalidInputError, match="new_commit, amend"):
        split(filled()).rewrite_manifests("x", branch="main", commit_method="squash")  # type: ignore[arg-type]
    empty = icefloe.Repository.create(icefloe.in_memory_storage())
    with pytest.raises(SessionStateError) as first:
        empty.rewrite_manifests("x", branch="main", commit_method="amend")
    assert first.value.kind == ErrorKind.NO_AMEND_FOR_INITIAL_COMMIT
    frozen = split(filled())
    frozen.set_status(icefloe.RepoStatus(icefloe.RepoAvailability.read_only))
    with pytest.raises(ReadOnlyError):
        frozen.rewrite_manifests("x", branch="main")


def test_an_empty_repository_gets_a_commit() -> None:
    repo = icefloe.Repository.create(icefloe.in_memory_storage())
    repo.rewrite_manifests("nothing", branch="main")
    assert next(repo.ancestry(branch="main")).message == "nothing"


# -- others come between -------------------------------------------------------------------


def once(work: Callable[[], object]) -> Callable[[int, int], None]:
    """Do some work in the middle of a rewrite, the first time that it tells of progress."""
    todo = [work]

    def on_progress(_: int, __: int) -> None:
        if todo:
            todo.pop()()

    return on_progress


def change_b(storage: Storage) -> None:
    with icefloe.Repository.open(storage).transaction("main", message="between") as store:
        array = zarr.open_array(store, path="b")
        array[0, 0] = 77


@pytest.mark.parametrize("spec", [1, 2])
def test_a_commit_in_between_is_kept_and_laid_out_too(spec: int) -> None:
    storage = filled(spec)
    repo = split(storage)
    repo.rewrite_manifests("in threes", branch="main", on_progress=once(lambda: change_b(storage)))
    messages = [one.message for one in repo.ancestry(branch="main")]
    assert messages[:3] == ["in threes", "between", "fill"]
    assert contents(repo)["b"] == [[77, 5], [5, 5]]
    assert contents(repo)["a"] == list(range(1, 10))
    assert [one.num_chunk_refs for one in repo.manifest_layout()].count(3) == 3
    check_repository_blocking(storage.open())


def test_what_did_not_change_in_between_is_not_made_twice() -> None:
    storage = filled(config=ONE_EACH)
    repo = split(storage)
    before = {key for key, _ in storage.list_objects() if key.startswith("manifests/")}
    repo.rewrite_manifests("in threes", branch="main", on_progress=once(lambda: change_b(storage)))
    made = {key for key, _ in storage.list_objects() if key.startswith("manifests/")} - before
    assert len(made) == 3 + 1, "three of /a; /b by the other commit, which is right already"


def test_to_amend_is_refused_if_somebody_commits_in_between() -> None:
    storage = filled()
    repo = split(storage)
    with pytest.raises(ConflictError):
        repo.rewrite_manifests(
            "in threes",
            branch="main",
            commit_method="amend",
            on_progress=once(lambda: change_b(storage)),
        )
    assert next(repo.ancestry(branch="main")).message == "between"
    check_repository_blocking(storage.open())


def test_a_session_that_began_before_is_rebased_over_it() -> None:
    storage = filled()
    session = icefloe.Repository.open(storage).writable_session("main")
    array = zarr.open_array(session.store, path="a")
    array[8] = 88
    split(storage).rewrite_manifests("in threes", branch="main")
    session.commit("after", rebase_with=icefloe.ConflictDetector())
    assert contents(split(storage))["a"] == [1, 2, 3, 4, 5, 6, 7, 8, 88]
    check_repository_blocking(storage.open())


# -- links that others left behind ---------------------------------------------------------


async def leave_loose_links(context: RepoContext) -> None:
    """Commit arrays whose links say less, or more, than what the manifests hold."""
    tip = await context.assets.load_snapshot(await context.ledger.branch_tip("main"))
    found = {node.path: node for node in map(tip.nodes.node, range(len(tip.nodes)))}
    a, b, empty = (found[path] for path in ("/a", "/b", "/empty"))
    assert isinstance(a, ArrayNode)
    assert isinstance(b, ArrayNode)
    assert isinstance(empty, ArrayNode)
    [of_a], [of_b] = a.array.manifests, b.array.manifests
    changed = [
        replace(a, array=replace(a.array, shape=(5,), num_chunks=(5,))),
        replace(b, array=replace(b.array, manifests=(ManifestRef(of_b.id, ()),))),
        replace(empty, array=replace(empty.array, manifests=(of_a,))),
    ]
    nodes = tip.nodes.overlay(NodeTable.from_nodes(changed))
    new = replace(tip, id=SnapshotId.random(), flushed_at=tip.flushed_at + 1, contents=nodes)
    await context.assets.save_snapshot(new)
    await context.assets.save_transaction_log(TransactionLog(new.id))
    entry = SnapshotEntry(new.id, tip.id, new.flushed_at, new.message, new.metadata)
    await context.ledger.update(Commit("main", tip.id, entry))


def test_loose_links_are_made_exact() -> None:
    context = run_blocking(lifecycle.open_(filled(config=ONE_EACH)))
    run_blocking(leave_loose_links(context))

    async def rewritten() -> dict[str, list[tuple[Box, int]]]:
        new = await rewrite_manifests(context, "exact", branch="main")
        snapshot = await context.assets.load_snapshot(new)
        rows = np.flatnonzero(snapshot.nodes.is_array).tolist()
        arrays = [snapshot.nodes.array(row) for row in rows]
        assert all(ref.extents for node in arrays for ref in node.array.manifests)
        pieces = await survey(context, snapshot)
        assert all(piece.is_alone for array in pieces for piece in array.pieces)
        return {
            array.node.path: [(piece.ref.extents, piece.num_refs) for piece in array.pieces]
            for array in pieces
        }

    assert run_blocking(rewritten()) == {"/a": [(((0, 5),), 5)], "/b": [(((0, 2), (0, 2)), 4)]}
