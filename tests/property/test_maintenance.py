"""After any history, expiration and collection keep what they must, and nothing else."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import icefloe
from icefloe.effects import run_blocking
from icefloe.format.ids import INITIAL_SNAPSHOT_ID, texts_of_rows
from icefloe.walk.spill import KeySet, keys_of_ids, keys_of_names
from tests.faults.sessions import BIG, GROUP, array_document, put
from tests.property.reachable import listing, needed_by_refs, old_garbage, read, stored
from tests.support.checking import check_repository_blocking

CHUNKS = 6
PACKING = icefloe.PackingOptions(max_chunk_bytes=1000, pack_bytes=2500)

arrays = st.sampled_from("ab")
numbers = st.integers(0, CHUNKS - 1)
choices = st.integers(0, 50)
operations = st.one_of(
    st.tuples(st.just("write"), arrays, numbers, st.integers(1, 255), st.sampled_from([1, BIG])),
    st.tuples(st.just("erase"), arrays, numbers),
    st.tuples(st.just("link"), arrays, numbers),
    st.tuples(st.just("commit")),
    st.tuples(st.just("commit")),
    st.tuples(st.just("flush")),
    st.tuples(st.just("amend")),
    st.tuples(st.just("fork")),
    st.tuples(st.just("abandon")),
    st.tuples(st.just("branch"), choices),
    st.tuples(st.just("switch"), choices),
    st.tuples(st.just("unbranch"), choices),
    st.tuples(st.just("reset"), choices),
    st.tuples(st.just("tag"), choices),
    st.tuples(st.just("untag"), choices),
)


@dataclass
class Random:
    """A repository in memory to which random things are done."""

    spec: int
    packs: bool
    branches: list[str] = field(default_factory=lambda: ["main"])
    branch_name: str = "main"
    count: int = 0

    def __post_init__(self) -> None:
        self.storage = icefloe.in_memory_storage()
        self.repo = icefloe.Repository.create(self.storage, spec_version=self.spec)
        self.begin()
        run_blocking(put(self.session, "zarr.json", GROUP))
        for name in "ab":
            run_blocking(put(self.session, f"{name}/zarr.json", array_document(CHUNKS)))
        self.commit()

    def begin(self) -> None:
        packing = PACKING if self.packs else False
        self.session = self.repo.writable_session(self.branch_name, packing=packing)

    def do(self, operation: tuple[Any, ...]) -> None:
        name, *arguments = operation
        method: Callable[..., None] = getattr(self, name)
        method(*arguments)

    def write(self, array: str, number: int, value: int, size: int) -> None:
        run_blocking(put(self.session, f"{array}/c/{number}", bytes([value]) * size))

    def erase(self, array: str, number: int) -> None:
        self.session.store.delete_sync(f"{array}/c/{number}")

    def link(self, array: str, number: int) -> None:
        self.session.store.set_virtual_ref(
            f"{array}/c/{number}", "s3://b/x", offset=number, length=9, validate_container=False
        )

    def commit(self) -> None:
        self.session.commit("a commit", allow_empty=True)
        self.begin()

    def flush(self) -> None:
        self.session.flush("on its own")
        self.begin()

    def amend(self) -> None:
        if self.spec > 1:
            self.session.amend("amended", allow_empty=True)
            self.begin()

    def fork(self) -> None:
        self.commit()
        fork = self.session.fork()
        run_blocking(put(fork, "a/c/0", b"f" * BIG))
        self.session.merge(fork)

    def abandon(self) -> None:
        self.begin()

    def versions(self) -> list[str]:
        refs = [{"branch": name} for name in sorted(self.repo.list_branches())]
        refs += [{"tag": name} for name in sorted(self.repo.list_tags())]
        found = {one.id: None for ref in refs for one in self.repo.ancestry(**ref)}
        return [one for one in found if one != str(INITIAL_SNAPSHOT_ID)]

    def _version(self, choice: int) -> str:
        versions = self.versions()
        return versions[choice % len(versions)]

    def _name(self, kind: str) -> str:
        self.count += 1
        return f"{kind}{self.count}"

    def branch(self, choice: int) -> None:
        name = self._name("branch")
        self.repo.create_branch(name, self._version(choice))
        self.branches.append(name)

    def switch(self, choice: int) -> None:
        self.branch_name = self.branches[choice % len(self.branches)]
        self.begin()

    def unbranch(self, choice: int) -> None:
        names = [name for name in self.branches if name not in ("main", self.branch_name)]
        if names:
            name = names[choice % len(names)]
            self.repo.delete_branch(name)
            self.branches.remove(name)

    def reset(self, choice: int) -> None:
        self.repo.reset_branch(self.branch_name, self._version(choice))
        self.begin()

    def tag(self, choice: int) -> None:
        self.repo.create_tag(self._name("tag"), self._version(choice))

    def untag(self, choice: int) -> None:
        names = sorted(self.repo.list_tags())
        if names:
            self.repo.delete_tag(names[choice % len(names)])

    def contents(self) -> dict[str, dict[str, bytes | str]]:
        """Read every version that refs lead to."""
        repo = icefloe.Repository.open(self.storage)
        return {one: read(repo, one) for one in self.versions()}

    def cutoff(self, share: float) -> datetime:
        """Choose the time of some object, or one after all."""
        times = sorted(info.last_modified for info in listing(self.storage.open()).values())
        return [*times, datetime.now(UTC)][round(share * len(times))]


histories = st.lists(operations, min_size=5, max_size=40)
shares = st.floats(0, 1)


@pytest.mark.parametrize("spec", [1, 2])
@settings(max_examples=30)
@given(
    steps=histories,
    more=histories,
    packs=st.booleans(),
    expires=shares,
    collects=shares,
    deletes=st.booleans(),
    incremental=st.booleans(),
)
def test_what_stays_and_what_goes(
    spec: int,
    steps: list[tuple[Any, ...]],
    more: list[tuple[Any, ...]],
    packs: bool,
    expires: float,
    collects: float,
    deletes: bool,
    incremental: bool,
) -> None:
    history = Random(spec, packs)
    for step in steps:
        history.do(step)
    backend = history.storage.open()
    before = history.contents()
    moment = history.cutoff(expires)
    plan = history.repo.plan_expiration(
        moment, delete_expired_branches=deletes, delete_expired_tags=deletes
    )
    released = history.repo.expire_snapshots(
        moment, delete_expired_branches=deletes, delete_expired_tags=deletes
    )
    history.branches = sorted(history.repo.list_branches())
    assert plan.snapshot_ids == released
    kept = history.contents()
    assert {one: before[one] for one in kept} == kept
    check_repository_blocking(backend)

    history.branch_name = "main"
    history.begin()
    for step in more:
        history.do(step)
    kept = history.contents()
    needed = needed_by_refs(stored(backend))
    cutoff = history.cutoff(collects)
    infos = listing(backend)
    planned = history.repo.garbage_collect(cutoff, dry_run=True, incremental=incremental)
    assert listing(backend) == infos
    done = history.repo.garbage_collect(cutoff, incremental=incremental)
    assert done == planned
    assert done.is_complete
    gone = infos.keys() - listing(backend).keys()
    assert sum(infos[key].size_bytes for key in gone) == done.bytes_deleted or packs
    assert all(infos[key].last_modified < cutoff for key in gone)
    assert not gone & needed
    assert history.contents() == kept
    check_repository_blocking(backend)

    history.repo.garbage_collect(cutoff)
    assert old_garbage(backend, cutoff) == set()
    assert history.contents() == kept
    check_repository_blocking(backend)

    moment = datetime.now(UTC)
    history.repo.garbage_collect(moment)
    left = {key for key in listing(backend) if key.startswith(("snap", "trans", "man", "chunks"))}
    assert left <= needed_by_refs(stored(backend)) | needed
    assert history.contents() == kept


@given(
    rows=st.lists(st.binary(min_size=12, max_size=12), max_size=50),
    others=st.lists(st.binary(min_size=12, max_size=12), max_size=20),
    most=st.integers(0, 2000),
)
def test_a_set_of_ids_knows_what_it_holds(
    rows: list[bytes], others: list[bytes], most: int
) -> None:
    def matrix(ids: list[bytes]) -> np.ndarray[Any, Any]:
        return np.frombuffer(b"".join(ids), np.uint8).reshape(-1, 12)

    with KeySet(max_bytes=most) as known:
        for row in rows:
            known.add(keys_of_ids(matrix([row])))
        asked = [*rows, *others]
        keys, is_id = keys_of_names(texts_of_rows(matrix(asked)))
        assert is_id.all()
        assert keys.tolist() == keys_of_ids(matrix(asked)).tolist()
        assert known.contains(keys).tolist() == [one in set(rows) for one in asked]
