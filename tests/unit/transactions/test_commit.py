"""What a commit leaves in memory: what comes next needs few requests, and no old files stay."""

import gc
import weakref
from collections.abc import Callable

import pytest

from icefloe.effects import run_blocking
from icefloe.format.ids import ManifestId
from icefloe.format.manifest import ManifestFile, WrittenManifest
from icefloe.transactions import commit
from icefloe.transactions.conflicts import BasicConflictSolver
from icefloe.transactions.session import SessionState
from tests.support.sides import Ours


@pytest.fixture(params=[1, 2])
def ours(request: pytest.FixtureRequest) -> Ours:
    ours = Ours(request.param)
    session = ours.begin()
    for path in ("/a", "/b"):
        ours.array(session, path, 200)  # large enough for a manifest of its own
        ours.write(session, path, 0)
    ours.commit(session)
    return ours


def manifests_of(session: SessionState) -> set[ManifestId]:
    return {ManifestId(bytes(row)) for row in session.snapshot.manifests.ids}


def held(ours: Ours, manifest: ManifestId) -> "weakref.ref[ManifestFile | WrittenManifest]":
    """Watch a manifest that is in memory: no request may be needed to get it."""
    before = ours.storage.request_counts()
    file = run_blocking(ours.context.assets.load_manifest(manifest))
    assert (ours.storage.request_counts() - before).get == 0
    return weakref.ref(file)


def gets_during(ours: Ours, work: Callable[[], object]) -> int:
    before = ours.storage.request_counts()
    work()
    return (ours.storage.request_counts() - before).get


def test_the_next_session_reads_from_memory(ours: Ours) -> None:
    session = ours.at(ours.tip())
    expected = {"/a": {(0,): b"x"}, "/b": {(0,): b"x"}}
    assert gets_during(ours, lambda: ours.tree(session)) == 0
    assert ours.tree(session) == expected


def test_the_next_commit_reads_only_where_the_branch_is(ours: Ours) -> None:
    session = ours.begin()
    ours.write(session, "/a", 1)
    gets = gets_during(ours, lambda: ours.commit(session))
    assert gets == {1: 1, 2: 0}[ours.context.spec_version]


def test_superseded_manifests_are_let_go(ours: Ours) -> None:
    session = ours.begin()
    before = manifests_of(session)
    watched = {manifest: held(ours, manifest) for manifest in before}
    ours.write(session, "/a", 1)
    ours.commit(session)
    gc.collect()
    after = manifests_of(session)
    assert len(before - after) == len(after - before) == 1
    for manifest, file in watched.items():
        assert (file() is None) == (manifest not in after)


def test_manifests_of_lost_attempts_are_let_go(ours: Ours) -> None:
    ahead, behind = ours.begin(), ours.begin()
    ours.write(behind, "/a", 1)
    ours.write(behind, "/b", 1)
    lost = run_blocking(commit.write_version(behind, "lost", {})).snapshot
    written = {ManifestId(bytes(row)) for row in lost.manifests.ids} - manifests_of(behind)
    watched = {manifest: held(ours, manifest) for manifest in written}
    ours.write(ahead, "/a", 2)
    ours.commit(ahead)
    ours.commit(behind, solver=BasicConflictSolver())
    gc.collect()
    after = manifests_of(behind)
    assert len(written & after) == 1, "the array that nobody else touched is not written again"
    for manifest, file in watched.items():
        assert (file() is None) == (manifest not in after)


def test_a_detached_snapshot_takes_nothing_from_the_branch(ours: Ours) -> None:
    session = ours.begin()
    before = manifests_of(session)
    ours.write(session, "/a", 1)
    run_blocking(commit.flush(session, "aside"))
    for manifest in before:
        held(ours, manifest)
