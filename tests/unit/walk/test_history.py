"""The walk over history: versions, manifests and references, in order and in bounded portions."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

import icefloe
from icefloe.effects import run_blocking
from icefloe.errors import IcefloeError, ObjectNotFoundError, SnapshotNotFoundError
from icefloe.format.ids import ManifestId, SnapshotId
from icefloe.format.layout import manifest_key, snapshot_key
from icefloe.format.manifest import Manifest
from icefloe.repo.context import RepoContext
from icefloe.repo.lifecycle import open_
from icefloe.walk.history import (
    ManifestFact,
    ReadLimits,
    SnapshotFacts,
    oldest_ancestors,
    portions,
    read_ancestry,
    read_manifests,
    read_snapshots,
)
from icefloe.walk.reachability import Reachable
from tests.faults.sessions import BIG, prepared, put_chunk

VERSIONS = [SnapshotId(bytes([number] * 12)) for number in range(6)]
FACTS = st.builds(
    ManifestFact,
    st.binary(min_size=12, max_size=12).map(ManifestId),
    st.integers(0, 50),
    st.integers(0, 5),
)


def with_versions(spec: int) -> tuple[RepoContext, list[SnapshotId]]:
    """Make a repository with several versions, each with another manifest, newest first."""
    storage = prepared(spec)
    repo = icefloe.Repository.open(storage)
    for row in range(3):
        session = repo.writable_session("main")
        run_blocking(put_chunk(session, row, 3, BIG))
        session.commit(f"row {row}")
    ids = [SnapshotId.parse(version.id) for version in repo.ancestry(branch="main")]
    return run_blocking(open_(storage)), ids


async def facts_of(context: RepoContext, ids: list[SnapshotId]) -> list[SnapshotFacts]:
    limits = ReadLimits(snapshots=2)
    return [facts async for facts in read_snapshots(context, ids, SnapshotFacts.of, limits=limits)]


def naive_end(
    version: SnapshotId, parents: Mapping[SnapshotId, SnapshotId | None]
) -> SnapshotId | None:
    for _ in range(len(parents) + 1):
        parent = parents.get(version)
        if parent is None:
            return version
        version = parent
    return None


@given(
    st.dictionaries(
        st.sampled_from(VERSIONS[:5]), st.none() | st.sampled_from(VERSIONS), max_size=5
    )
)
def test_histories_end_where_a_naive_walk_ends(
    parents: dict[SnapshotId, SnapshotId | None],
) -> None:
    expected = {version: naive_end(version, parents) for version in parents}
    assert oldest_ancestors(parents) == expected


@given(st.lists(FACTS, max_size=30))
def test_portions_are_whole_and_bounded(facts: list[ManifestFact]) -> None:
    limits = ReadLimits(manifests=4, compressed_bytes=60, decoded_bytes=6 * 128)
    cut = list(portions(facts, limits))
    assert [fact for some in cut for fact in some] == facts
    for some in cut:
        assert len(some) <= 4
        is_alone = len(some) == 1
        assert is_alone or sum(fact.size_bytes for fact in some) <= 60
        assert is_alone or sum(fact.num_chunk_refs for fact in some) <= 6


@pytest.mark.parametrize("spec", [1, 2])
def test_snapshots_come_in_the_order_of_their_ids(spec: int) -> None:
    context, ids = with_versions(spec)
    facts = run_blocking(facts_of(context, ids))
    assert [fact.id for fact in facts] == ids


def test_missing_snapshots_are_errors_unless_they_are_skipped() -> None:
    context, ids = with_versions(2)
    run_blocking(context.backend.delete_many([snapshot_key(ids[1])]))
    with pytest.raises(SnapshotNotFoundError):
        run_blocking(facts_of(context, ids))
    skipped: dict[SnapshotId, IcefloeError] = {}

    async def read() -> list[SnapshotId]:
        return [
            version
            async for version in read_snapshots(
                context, ids, lambda snapshot: snapshot.id, skip=skipped.__setitem__
            )
        ]

    assert run_blocking(read()) == [ids[0], *ids[2:]]
    assert [*skipped] == [ids[1]]
    assert isinstance(skipped[ids[1]], SnapshotNotFoundError)


def test_versions_of_spec_1_are_found_from_their_children() -> None:
    context, ids = with_versions(1)
    entries = run_blocking(read_ancestry(context, ids[:1], at_once=4))
    assert entries.keys() == {*ids}
    assert [entries[version].parent for version in ids] == [*ids[1:], None]
    with Reachable(context) as live:
        run_blocking(live.add(ids[:1], with_ancestors=True))
        assert live.snapshots == {*ids}


def test_manifests_are_read_once_and_damaged_ones_are_left_out_where_that_is_safe() -> None:
    context, ids = with_versions(2)
    manifests = {
        fact.id: fact for facts in run_blocking(facts_of(context, ids)) for fact in facts.manifests
    }
    assert len(manifests) > 2
    counts: list[int] = []

    async def read(*, skips_damaged: bool) -> list[ManifestId]:
        def take(manifest: Manifest) -> ManifestId:
            return manifest.id

        return [
            manifest_id
            async for _, manifest_id in read_manifests(
                context,
                manifests.values(),
                take,
                limits=ReadLimits(manifests=2),
                advance=counts.append,
                skips_damaged=skips_damaged,
            )
        ]

    assert run_blocking(read(skips_damaged=False)) == [*manifests]
    assert sum(counts) == len(manifests)
    assert max(counts) == 2
    lost = min(manifests)
    run_blocking(context.backend.delete_many([manifest_key(lost)]))
    with pytest.raises(ObjectNotFoundError):
        run_blocking(read(skips_damaged=False))
    left = run_blocking(read(skips_damaged=True))
    assert left == [manifest for manifest in manifests if manifest != lost]
