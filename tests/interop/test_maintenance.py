"""Expiration and garbage collection do to a repository what the reference does to a copy of it."""

import asyncio
import datetime as dt
import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import icechunk as ic
import pytest
import zarr
from zarr.core.buffer import default_buffer_prototype

import icefloe
from icefloe.format.ids import INITIAL_SNAPSHOT_ID
from icefloe.format.repo_info import decode_repo_info
from icefloe.format.update_table import UpdateKind
from tests.support.checking import check_repository_blocking

pytestmark = pytest.mark.interop

SPECS = pytest.mark.parametrize("spec", [1, 2])
SEEDS = pytest.mark.parametrize("seed", range(10))
TOMORROW: Final = dt.timedelta(days=1)
PREFIXES: Final = ("snapshots", "transactions", "manifests", "chunks")
CHUNK: Final = 200  # numbers of four bytes: more than is kept inline


@dataclass
class Random:
    """A repository to which the reference does random things."""

    path: Path
    spec: int
    dice: random.Random
    branches: list[str] = field(default_factory=lambda: ["main"])
    tags: int = 0

    def __post_init__(self) -> None:
        storage = ic.local_filesystem_storage(str(self.path))
        self.repo = ic.Repository.create(storage, spec_version=self.spec)
        session = self.repo.writable_session("main")
        for name in ("a", "b"):
            zarr.create_array(
                session.store, name=name, shape=8 * CHUNK, chunks=CHUNK, dtype="i4", fill_value=0,
                compressors=None,
            )  # fmt: skip
        session.commit("arrays")

    def snapshots(self) -> list[str]:
        found = {one.id: None for name in self.branches for one in self.repo.ancestry(branch=name)}
        return [one for one in found if one != str(INITIAL_SNAPSHOT_ID)]

    def _edit(self, session: ic.Session) -> None:
        for _ in range(self.dice.randint(1, 3)):
            array: Any = zarr.open_array(session.store, path=self.dice.choice("ab"))
            at = self.dice.randrange(8)
            if self.dice.random() < 0.2:
                asyncio.run(session.store.delete(f"{array.path}/c/{at}"))
            else:
                array[at * CHUNK : (at + 1) * CHUNK] = self.dice.randrange(1, 1000)

    def commit(self) -> None:
        session = self.repo.writable_session(self.dice.choice(self.branches))
        self._edit(session)
        session.commit("commit", allow_empty=True)

    def amend(self) -> None:
        session = self.repo.writable_session(self.dice.choice(self.branches))
        self._edit(session)
        if self.spec > 1:
            session.amend("amended", allow_empty=True)

    def flush(self) -> None:
        session = self.repo.writable_session(self.dice.choice(self.branches))
        self._edit(session)
        session.flush("on its own")

    def abandon(self) -> None:
        self._edit(self.repo.writable_session("main"))

    def branch(self) -> None:
        name = f"branch{len(self.branches)}-{self.dice.randrange(10**9)}"
        self.repo.create_branch(name, self.dice.choice(self.snapshots()))
        self.branches.append(name)

    def unbranch(self) -> None:
        if len(self.branches) > 1:
            name = self.dice.choice(self.branches[1:])
            self.repo.delete_branch(name)
            self.branches.remove(name)

    def reset(self) -> None:
        self.repo.reset_branch(self.dice.choice(self.branches), self.dice.choice(self.snapshots()))

    def tag(self) -> None:
        self.repo.create_tag(f"tag{self.tags}", self.dice.choice(self.snapshots()))
        self.tags += 1

    def untag(self) -> None:
        names = sorted(self.repo.list_tags())
        if names:
            self.repo.delete_tag(self.dice.choice(names))

    def do(self, steps: int) -> None:
        others = [self.amend, self.flush, self.abandon, self.branch, self.unbranch, self.reset,
                  self.tag, self.untag]  # fmt: skip
        for _ in range(steps):
            self.dice.choice([*others, *[self.commit] * len(others)])()


def made(path: Path, spec: int, seed: int) -> Random:
    done = Random(path, spec, random.Random(seed))
    done.do(25)
    return done


def opened(path: Path) -> icefloe.Repository:
    return icefloe.Repository.open(icefloe.local_filesystem_storage(str(path)))


def reference_at(path: Path) -> ic.Repository:
    return ic.Repository.open(ic.local_filesystem_storage(str(path)))


def files(path: Path) -> set[str]:
    return {
        str(one.relative_to(path))
        for prefix in PREFIXES
        for one in (path / prefix).glob("*")
        if "#" not in one.name
    }


def state(path: Path) -> dict[str, Any]:
    """Describe what a repository leads to, in the order of its histories."""
    repo = opened(path)
    found: dict[str, Any] = {
        "branches": {
            name: [one.id for one in repo.ancestry(branch=name)] for name in repo.list_branches()
        },
        "tags": {name: [one.id for one in repo.ancestry(tag=name)] for name in repo.list_tags()},
    }
    if repo.spec_version > 1:
        info = decode_repo_info((path / "repo").read_bytes())
        found["entries"] = [info.snapshots.entry(row) for row in range(len(info.snapshots))]
        found["deleted"] = info.deleted_tags
        found["operation"] = info.updates.entry(0).kind
    return found


def contents(path: Path) -> dict[str, bytes]:
    """Read everything that can be read in every version that refs lead to."""
    repo = opened(path)
    found: dict[str, bytes] = {}
    ids = {one.id for name in repo.list_branches() for one in repo.ancestry(branch=name)}
    ids |= {one.id for name in repo.list_tags() for one in repo.ancestry(tag=name)}
    for one in sorted(ids):
        store = repo.readonly_session(snapshot_id=one).store

        async def read(store: Any = store) -> dict[str, bytes]:
            keys = [key async for key in store.list()]
            return {
                key: (await store.get(key, default_buffer_prototype())).to_bytes() for key in keys
            }

        found |= {f"{one}/{key}": data for key, data in asyncio.run(read()).items()}
    return found


def some_cutoff(dice: random.Random, path: Path) -> dt.datetime:
    """Choose the very moment of some version, or one after all of them."""
    times = sorted(one.written_at for one in opened(path).ancestry(branch="main"))
    return dice.choice([*times, times[-1] + TOMORROW])


@SPECS
@SEEDS
@pytest.mark.parametrize("deleting", [(False, False), (True, True), (True, False), (False, True)])
def test_expiration(tmp_path: Path, spec: int, seed: int, deleting: tuple[bool, bool]) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    made(theirs, spec, seed)
    shutil.copytree(theirs, ours)
    cutoff = some_cutoff(random.Random(seed + sum(deleting)), theirs)
    options: dict[str, Any] = dict(
        zip(("delete_expired_branches", "delete_expired_tags"), deleting, strict=True)
    )
    before = set(contents(ours))
    plan = opened(ours).plan_expiration(cutoff, **options)
    released = opened(ours).expire_snapshots(cutoff, **options)
    expected = reference_at(theirs).expire_snapshots(cutoff, **options)
    assert state(ours) == state(theirs)
    assert plan.snapshot_ids == released
    check_repository_blocking(icefloe.local_filesystem_storage(str(ours)).open())
    left = {key.split("/")[0] for key in contents(ours)}
    if spec == 1:
        # The reference also names versions that other refs still lead to.
        assert released == expected - left
        assert {key.split("/")[0] for key in before} - left == released
    else:
        assert released == expected
        assert state(ours)["operation"] is UpdateKind.EXPIRATION_RAN
    assert opened(ours).expire_snapshots(cutoff, **options) == set()
    assert state(ours) == state(theirs)


@SPECS
@SEEDS
@pytest.mark.parametrize("expires", [False, True])
def test_garbage_collection_of_everything(
    tmp_path: Path, spec: int, seed: int, expires: bool
) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    made(theirs, spec, seed)
    if expires:
        cutoff = some_cutoff(random.Random(seed), theirs)
        reference_at(theirs).expire_snapshots(cutoff, delete_expired_tags=seed % 2 == 0)
    shutil.copytree(theirs, ours)
    before = contents(ours)
    moment = dt.datetime.now(dt.UTC) + TOMORROW
    expected = reference_at(theirs).garbage_collect(moment)
    planned = opened(ours).garbage_collect(moment, dry_run=True)
    done = opened(ours).garbage_collect(moment)
    for name in ("bytes", "chunks", "manifests", "snapshots", "transaction_logs"):
        attribute = f"{name}_deleted"
        assert getattr(done, attribute) == getattr(expected, attribute), attribute
    assert done == planned
    assert done.is_complete
    assert files(ours) == files(theirs)
    assert state(ours) == state(theirs)
    assert contents(ours) == before
    check_repository_blocking(icefloe.local_filesystem_storage(str(ours)).open())
    assert opened(ours).garbage_collect(moment).snapshots_deleted == 0


@SPECS
@SEEDS
def test_garbage_collection_of_what_is_old(tmp_path: Path, spec: int, seed: int) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    history = made(theirs, spec, seed)
    cutoff = dt.datetime.now(dt.UTC)
    history.do(15)
    shutil.copytree(theirs, ours)
    before = contents(ours)
    reference_at(theirs).garbage_collect(cutoff)
    opened(ours).garbage_collect(cutoff)
    assert state(ours) == state(theirs)
    assert contents(ours) == before
    # We also keep what young versions refer to that are in no history.
    assert files(ours) >= files(theirs)
    opened(ours).garbage_collect(dt.datetime.now(dt.UTC))
    reference_at(theirs).garbage_collect(dt.datetime.now(dt.UTC))
    assert files(ours) == files(theirs)
    check_repository_blocking(icefloe.local_filesystem_storage(str(ours)).open())


@SPECS
@SEEDS
def test_the_reference_reads_what_is_left(tmp_path: Path, spec: int, seed: int) -> None:
    path = tmp_path / "repo"
    made(path, spec, seed)
    opened(path).expire_snapshots(some_cutoff(random.Random(seed), path))
    opened(path).garbage_collect(dt.datetime.now(dt.UTC), incremental=seed % 2 == 0)
    repo = reference_at(path)
    assert {name: repo.lookup_branch(name) for name in repo.list_branches()} == {
        name: ids[0] for name, ids in state(path)["branches"].items()
    }
    for name in repo.list_branches():
        for version in repo.ancestry(branch=name):
            if version.id != str(INITIAL_SNAPSHOT_ID):
                assert arrays(repo, version.id) == arrays(opened(path), version.id)
    session = repo.writable_session("main")
    array: Any = zarr.open_array(session.store, path="a")
    array[:] = 7
    session.commit("goes on")


def arrays(repo: Any, snapshot: str) -> dict[str, list[int]]:
    store = repo.readonly_session(snapshot_id=snapshot).store
    opened_arrays: dict[str, Any] = {
        name: zarr.open_array(store, path=name, mode="r") for name in "ab"
    }
    return {name: array[:].tolist() for name, array in opened_arrays.items()}


@SPECS
@SEEDS
def test_statistics(tmp_path: Path, spec: int, seed: int) -> None:
    path = tmp_path / "repo"
    history = made(path, spec, seed)
    config = ic.RepositoryConfig.default()
    config.set_virtual_chunk_container(
        ic.VirtualChunkContainer("s3://b/", ic.s3_store(region="us-east-1"))
    )
    repo = ic.Repository.open(ic.local_filesystem_storage(str(path)), config=config)
    session = repo.writable_session("main")
    for number in range(4):
        place: dict[str, Any] = {
            "offset": history.dice.randrange(3),
            "length": history.dice.randrange(1, 4),
        }
        session.store.set_virtual_ref(f"a/c/{number}", "s3://b/x", **place)
    session.commit("virtual")
    session = repo.writable_session("main")
    small: Any = zarr.create_array(session.store, name="small", shape=5, chunks=1, dtype="i4")
    small[:] = 1
    session.commit("inline")
    theirs = reference_at(path).chunk_storage_stats()
    ours = opened(path).chunk_storage_stats()
    for name in ("native_bytes", "virtual_bytes", "inlined_bytes"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert ours.total_bytes() == theirs.total_bytes()
    assert ours.non_virtual_bytes() == theirs.non_virtual_bytes()
    assert sum(row.total_bytes for row in opened(path).storage_use()) == ours.total_bytes()
