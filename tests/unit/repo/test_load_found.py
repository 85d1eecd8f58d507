"""The snapshot of a session comes from afar while the branch is still being looked up."""

import asyncio
from collections.abc import Callable, Coroutine
from threading import Event
from typing import Any

import pytest

from icefloe.assets import Assets
from icefloe.effects import run_blocking, sleep
from icefloe.errors import RefNotFoundError
from icefloe.format.ids import SnapshotId
from icefloe.format.layout import snapshot_key
from icefloe.format.snapshot import Snapshot
from icefloe.records import replace
from icefloe.repo import history, lifecycle
from icefloe.repo.context import RepoContext
from icefloe.storage import Backend, s3_storage
from icefloe.storage.port import ByteRange, Fetched
from tests.support.sides import Ours

type Driver = Callable[[Coroutine[Any, Any, Snapshot]], Snapshot]

DRIVERS = pytest.mark.parametrize("drive", [run_blocking, asyncio.run])


class TellingBackend:
    """Tells when a snapshot was fetched."""

    def __init__(self, inner: Backend) -> None:
        self.fetched, self.snapshots = Event(), list[str]()
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def get(self, key: str, byte_range: ByteRange | None = None) -> Fetched:
        found = await self._inner.get(key, byte_range)
        if key.startswith("snapshots/"):
            self.snapshots.append(key)
            self.fetched.set()
        return found


@pytest.fixture
def ours() -> Ours:
    ours = Ours()
    commit(ours)
    return ours


def commit(ours: Ours) -> SnapshotId:
    session = ours.begin()
    ours.group(session, f"/{ours.tip()}")
    return ours.commit(session)


def opened(ours: Ours, *, is_far: bool = True) -> tuple[RepoContext, TellingBackend]:
    context = run_blocking(lifecycle.open_(ours.storage))
    backend: Any = TellingBackend(context.backend)
    context = replace(context, assets=Assets(backend, context.config, context.spec_version))
    if is_far:
        far = s3_storage(bucket="far-away", prefix="repo", region="us-east-1")
        context = replace(context, storage=far)
    return context, backend


@DRIVERS
def test_both_requests_are_under_way_at_once(ours: Ours, drive: Driver) -> None:
    context, backend = opened(ours)
    tip = ours.tip()

    async def found() -> SnapshotId:
        for _ in range(10_000):
            if backend.fetched.is_set():
                return tip
            await sleep(0.001)
        raise AssertionError("the snapshot was not fetched meanwhile")

    assert drive(history.load_found(context, found(), "main")).id == tip
    assert backend.snapshots == [snapshot_key(tip)]


@DRIVERS
@pytest.mark.parametrize("is_far", [True, False])
def test_a_branch_that_has_moved_is_followed(ours: Ours, drive: Driver, is_far: bool) -> None:
    before = ours.tip()
    context, backend = opened(ours, is_far=is_far)
    after = commit(ours)
    found = context.ledger.branch_tip("main")
    assert drive(history.load_found(context, found, "main")).id == after
    assert backend.snapshots == [snapshot_key(one) for one in [before] * is_far + [after]]


@DRIVERS
def test_what_is_in_memory_is_not_fetched(ours: Ours, drive: Driver) -> None:
    context, backend = opened(ours)
    before = ours.tip()
    run_blocking(context.assets.load_snapshot(before))
    for _ in range(2):
        found = context.ledger.branch_tip("main")
        assert drive(history.load_found(context, found, "main")).id == before
    assert backend.snapshots == [snapshot_key(before)]


@DRIVERS
def test_what_is_gone_is_missed_by_nobody(ours: Ours, drive: Driver) -> None:
    before = ours.tip()
    context, backend = opened(ours)
    after = commit(ours)
    run_blocking(ours.context.backend.delete_many([snapshot_key(before)]))
    found = context.ledger.branch_tip("main")
    assert drive(history.load_found(context, found, "main")).id == after
    assert backend.snapshots == [snapshot_key(after)]


@DRIVERS
def test_a_lookup_that_fails_says_so(ours: Ours, drive: Driver) -> None:
    context, _ = opened(ours)
    with pytest.raises(RefNotFoundError):
        drive(history.load_found(context, context.ledger.branch_tip("other"), "main"))
