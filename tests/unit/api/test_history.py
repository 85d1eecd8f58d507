"""A long history as users walk through it: nothing is converted before it is asked for."""

import asyncio
import copy
import pickle
from dataclasses import FrozenInstanceError, asdict
from itertools import islice, pairwise

import pytest

from icefloe import InvalidInputError, Repository, SnapshotInfo, in_memory_storage

COMMITS = 30


@pytest.fixture(scope="module", params=[1, 2], ids=["spec 1", "spec 2"])
def repository(request: pytest.FixtureRequest) -> Repository:
    repository = Repository.create(in_memory_storage(), spec_version=request.param)
    for number in range(COMMITS):
        metadata = {"number": number, "words": ["a", "b"]} if number % 2 else None
        session = repository.writable_session("main")
        session.commit(f"commit {number}", metadata=metadata, allow_empty=True)
    return repository


def history_of(repository: Repository) -> list[SnapshotInfo]:
    return list(repository.ancestry(branch="main"))


def test_each_entry_is_what_a_lookup_finds(repository: Repository) -> None:
    history = history_of(repository)
    assert len(history) == COMMITS + 1
    assert history == [repository.lookup_snapshot(each.id) for each in history]
    for version, parent in pairwise(history):
        assert version.parent_id == parent.id
        assert version.written_at > parent.written_at
    assert history[-1].parent_id is None
    assert history[0].message == f"commit {COMMITS - 1}"
    assert history[0].metadata == {"number": COMMITS - 1, "words": ["a", "b"]}
    assert history[1].metadata == {}


def test_all_ways_to_look_at_an_entry_agree(repository: Repository) -> None:
    """Each first look at the fields of a fresh entry fills in what it needs."""
    known = repository.lookup_snapshot(repository.lookup_branch("main"))
    assert repr(history_of(repository)[0]) == repr(known)
    assert str(history_of(repository)[0]) == str(known)
    assert asdict(history_of(repository)[0]) == asdict(known)
    assert copy.copy(history_of(repository)[0]) == known
    assert copy.deepcopy(history_of(repository)[0]) == known
    entry = history_of(repository)[0]
    entry.metadata["own"] = 1
    assert entry.metadata["own"] == 1, "decoded once, and the user's own"
    assert "own" not in history_of(repository)[0].metadata


def test_metadata_belongs_to_one_entry_alone(repository: Repository) -> None:
    history = history_of(repository)
    bare = [version for version in history if not version.metadata]
    assert [version.message for version in bare] == [
        f"commit {number}" for number in range(COMMITS - 2, -1, -2)
    ]
    bare[0].metadata["own"] = 1
    assert bare[0].metadata == {"own": 1}
    assert [version.metadata for version in bare[1:]] == [{}] * (len(bare) - 1)


def test_entries_travel_alone(repository: Repository) -> None:
    entry = history_of(repository)[0]
    pickled = pickle.dumps(entry)
    assert pickle.loads(pickled) == entry
    assert b"commit 0" not in pickled


def test_entries_are_frozen_and_have_no_other_attributes(repository: Repository) -> None:
    entry = history_of(repository)[0]
    with pytest.raises(FrozenInstanceError):
        entry.message = "other"  # type: ignore[misc]
    with pytest.raises(AttributeError, match="'SnapshotInfo' object has no attribute 'massage'"):
        _ = entry.massage  # type: ignore[attr-defined]


def test_stopping_early(repository: Repository) -> None:
    walk = repository.ancestry(branch="main")
    assert [each.message for each in islice(walk, 2)] == ["commit 29", "commit 28"]
    assert next(walk).message == "commit 27"


def test_awaited_and_blocking_walks_agree(repository: Repository) -> None:
    async def walk() -> list[SnapshotInfo]:
        return [each async for each in repository.async_ancestry(branch="main")]

    assert asyncio.run(walk()) == history_of(repository)


def test_snapshots_are_found_by_the_beginnings_of_their_ids(repository: Repository) -> None:
    for version in history_of(repository):
        for length in (6, 8, 20):
            beginning = version.id[:length]
            fitting = [each for each in history_of(repository) if each.id.startswith(beginning)]
            fitting.sort(key=lambda each: each.id)
            assert repository.find_snapshots(beginning) == fitting
            assert repository.find_snapshots(beginning.lower()) == fitting
    assert repository.find_snapshots("ZZZZZZZZ") == []


@pytest.mark.parametrize("prefix", ["", "1CE", "1CEC!", "1CECHNKREP0F1RSTCMT00", "\udc80bcd"])
def test_what_no_id_begins_with_is_refused(repository: Repository, prefix: str) -> None:
    with pytest.raises(InvalidInputError, match="4 to 20 letters"):
        repository.find_snapshots(prefix)


def test_versions_of_all_branches_and_tags(repository: Repository) -> None:
    first, *_, last = history_of(repository)[::-1]
    for name in ("b", "a"):
        repository.create_branch(name, first.id)
        repository.create_tag(f"tag-{name}", first.id)
    assert list(repository.branch_versions().items()) == [
        ("a", first),
        ("b", first),
        ("main", last),
    ]
    assert list(repository.tag_versions().items()) == [("tag-a", first), ("tag-b", first)]
    assert asyncio.run(repository.tag_versions_async()) == repository.tag_versions()
    for name in ("b", "a"):
        repository.delete_branch(name)
        repository.delete_tag(f"tag-{name}")
    assert repository.branch_versions() == {"main": last}
    assert repository.tag_versions() == {}


@pytest.mark.parametrize("most", [1, 7, COMMITS, COMMITS + 1, COMMITS + 2])
def test_a_graph_of_the_newest_versions(repository: Repository, most: int) -> None:
    whole = repository.ancestry_graph(plain=True)
    for part in (
        repository.ancestry_graph(plain=True, most=most),
        repository.ancestry_graph(branch="main", plain=True, most=most),
    ):
        assert str(part).splitlines() == str(whole).splitlines()[:most]
        assert part.graph.is_complete == (most > COMMITS)
    assert whole.graph.is_complete
