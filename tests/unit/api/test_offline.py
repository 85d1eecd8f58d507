"""A repository that was taken offline: what it refuses, and what whoever looks after it can do."""

import asyncio
import pickle
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import zarr

import icefloe
from icefloe import (
    ReadOnlyError,
    RepoAvailability,
    Repository,
    RepositoryOfflineError,
    RepoStatus,
)

ONLINE: Final = RepoStatus(RepoAvailability.online)
OFFLINE: Final = RepoStatus(RepoAvailability.offline, limited_availability_reason="moving house")
FUTURE: Final = datetime(2100, 1, 1, tzinfo=UTC)


class House:
    """A repository with two versions that was taken offline, by another object."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.repository = Repository.create(self.storage())
        self.first = self.repository.lookup_branch("main")
        with self.repository.transaction("main", message="fill") as store:
            zarr.create_array(store, name="a", shape=4, chunks=2, dtype="i4")[...] = 7
        self.tip = self.repository.lookup_branch("main")
        self.repository.create_tag("v1", self.tip)
        self.reading = self.repository.readonly_session("main")
        self.writing = self.repository.writable_session("main")
        zarr.create_group(self.writing.store, path="g")
        Repository.open(self.storage()).set_status(OFFLINE)

    def storage(self) -> icefloe.Storage:
        return icefloe.local_filesystem_storage(str(self.folder / "repo"))


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


@pytest.fixture(params=["opened before", "opened after"])
def repository(house: House, request: pytest.FixtureRequest) -> Repository:
    is_old = request.param == "opened before"
    return house.repository if is_old else Repository.open(house.storage())


type Call = Callable[[Repository, House], Any]

READS: Final[dict[str, Call]] = {
    "session of a branch": lambda repository, _: repository.readonly_session("main"),
    "session of a tag": lambda repository, _: repository.readonly_session(tag="v1"),
    "session of a snapshot": lambda repository, house: repository.readonly_session(
        snapshot_id=house.tip
    ),
    "session of a time": lambda repository, _: repository.readonly_session("main", as_of=FUTURE),
    "ancestry": lambda repository, _: list(repository.ancestry(branch="main")),
    "graph": lambda repository, _: repository.ancestry_graph(),
    "diff": lambda repository, house: repository.diff(
        from_snapshot_id=house.first, to_snapshot_id=house.tip
    ),
    "branches": lambda repository, _: repository.list_branches(),
    "tags": lambda repository, _: repository.list_tags(),
    "branch": lambda repository, _: repository.lookup_branch("main"),
    "tag": lambda repository, _: repository.lookup_tag("v1"),
    "snapshot": lambda repository, house: repository.lookup_snapshot(house.tip),
    "snapshot by the beginning of its id": lambda repository, house: repository.find_snapshots(
        house.tip[:8]
    ),
    "versions of branches": lambda repository, _: repository.branch_versions(),
    "versions of tags": lambda repository, _: repository.tag_versions(),
    "export": lambda repository, house: repository.export_to_zarr(
        icefloe.local_filesystem_storage(str(house.folder / "export")), branch="main"
    ),
}
WRITES: Final[dict[str, Call]] = {
    "session": lambda repository, _: repository.writable_session("main"),
    "commit": lambda _, house: house.writing.commit("too late"),
    "rebase": lambda _, house: house.writing.rebase(icefloe.ConflictDetector()),
    "branch": lambda repository, house: repository.create_branch("b", house.tip),
    "collection": lambda repository, _: repository.garbage_collect(FUTURE),
    "expiration": lambda repository, _: repository.expire_snapshots(FUTURE),
}
CARE: Final[dict[str, Call]] = {
    "status": lambda repository, _: repository.status,
    "settings": lambda repository, _: (repository.config, repository.feature_flags()),
    "metadata": lambda repository, _: repository.metadata,
    "operations": lambda repository, _: list(repository.ops_log()),
    "verification": lambda repository, _: repository.verify(),
    "verification of the storage": lambda _, house: Repository.verify_storage(house.storage()),
    "repair": lambda _, house: Repository.repair_storage(house.storage()),
    "inspection": lambda repository, house: (
        repository.inspect_repo_info(),
        repository.inspect_snapshot(house.tip),
    ),
    "clone": lambda repository, house: repository.clone_to(
        icefloe.local_filesystem_storage(str(house.folder / "clone"))
    ),
    "plan of a collection": lambda repository, _: repository.garbage_collect(FUTURE, dry_run=True),
    "drawing": lambda repository, _: repository._repr_html_(),
}


@pytest.mark.parametrize("call", [*READS.values(), *WRITES.values()], ids=[*READS, *WRITES.keys()])
def test_nobody_gets_a_version(repository: Repository, house: House, call: Call) -> None:
    with pytest.raises(RepositoryOfflineError, match=r"offline since .*moving house") as caught:
        call(repository, house)
    assert caught.value.kind == "read-only-repository"
    assert isinstance(caught.value, ReadOnlyError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize("call", CARE.values(), ids=CARE)
def test_whoever_looks_after_it_can_go_on(repository: Repository, house: House, call: Call) -> None:
    call(repository, house)
    assert repository.status.availability is RepoAvailability.offline


def test_it_comes_back(repository: Repository, house: House) -> None:
    repository.set_status(ONLINE)
    assert repository.lookup_branch("main") == house.tip
    assert house.writing.commit("still possible") == repository.lookup_branch("main")


def test_sessions_that_are_open_go_on_reading(house: House) -> None:
    for session in (house.reading, pickle.loads(pickle.dumps(house.reading))):
        array = zarr.open_array(session.store, path="a", mode="r")
        assert np.asarray(array[...]).tolist() == [7] * 4


def test_the_async_calls_are_refused_too(house: House) -> None:
    async def user() -> None:
        repository = await Repository.open_async(house.storage())
        for call in (
            repository.readonly_session_async("main"),
            repository.list_branches_async(),
            repository.lookup_snapshot_async(house.tip),
        ):
            with pytest.raises(RepositoryOfflineError):
                await call
        with pytest.raises(RepositoryOfflineError):
            _ = [one async for one in repository.async_ancestry(branch="main")]

    asyncio.run(user())


def test_a_read_only_repository_is_read(house: House) -> None:
    status = RepoStatus(RepoAvailability.read_only, limited_availability_reason="moving house")
    house.repository.set_status(status)
    assert house.repository.lookup_tag("v1") == house.tip
    with pytest.raises(ReadOnlyError, match=r"read-only since .*moving house") as caught:
        house.repository.writable_session("main")
    assert not isinstance(caught.value, RepositoryOfflineError)
