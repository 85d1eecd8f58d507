"""Nothing that is written while garbage is collected seems old, however coarse the clocks are."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import icefloe
from icefloe.effects import run_blocking
from icefloe.maintenance import clocks
from icefloe.maintenance.clocks import effective_cutoffs
from icefloe.maintenance.sweeping import Kind
from icefloe.storage.port import ObjectInfo
from icefloe.storage.wrapper import BackendWrapper
from icefloe.testing.schedules import WrappedStorage
from tests.faults.sessions import BIG, GROUP, prepared, put, put_chunk

TOMORROW = timedelta(days=1)


class WholeSeconds(BackendWrapper):
    """A storage that tells times in whole seconds, rounded down, all in the same one."""

    moment = datetime(2024, 5, 1, 12, 0, 0, tzinfo=UTC)

    async def list(self, prefix: str = "") -> AsyncIterator[list[ObjectInfo]]:
        async for batch in super().list(prefix):
            yield [
                ObjectInfo(info.key, info.size_bytes, self.moment, info.version) for info in batch
            ]


@pytest.mark.parametrize(
    ("cutoff", "deleted"),
    [(timedelta(milliseconds=900), 0), (timedelta(seconds=1), 1), (timedelta(0), 0)],
)
def test_a_time_in_whole_seconds_may_be_a_second_later(cutoff: timedelta, deleted: int) -> None:
    storage = WrappedStorage(prepared(2), WholeSeconds)
    repo = icefloe.Repository.open(storage)
    run_blocking(put_chunk(repo.writable_session("main"), 3, 4, BIG))
    done = repo.garbage_collect(WholeSeconds.moment + cutoff)
    assert done.chunks_deleted == deleted


def test_files_get_the_time_of_a_slow_clock(tmp_path: Path) -> None:
    """What is written once a collection has begun is younger than its cut-offs, each time."""
    storage = icefloe.local_filesystem_storage(str(tmp_path))
    repo = icefloe.Repository.create(storage)
    wanted = dict.fromkeys(Kind, datetime.now(UTC) + TOMORROW)
    for number in range(50):
        found = run_blocking(effective_cutoffs(repo._context, wanted, at_once=False))
        path = tmp_path / str(number)
        path.write_bytes(b"")
        written = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        assert all(one is not None and written >= one for one in found.values())


def test_a_clock_that_lags_far_behind_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lag = timedelta(milliseconds=30)
    monkeypatch.setattr(clocks, "_lag_of_files", lambda: lag)
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(str(tmp_path)))
    called = datetime.now(UTC)
    wanted = dict.fromkeys(Kind, called + TOMORROW)
    found = run_blocking(effective_cutoffs(repo._context, wanted, at_once=False))
    latest = datetime.now(UTC) - lag
    assert all(one is not None and called <= one <= latest for one in found.values())


def test_what_was_written_before_the_call_goes(tmp_path: Path) -> None:
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(str(tmp_path)))
    for _ in range(10):
        session = repo.writable_session("main")
        run_blocking(put(session, "zarr.json", GROUP))
        session.flush("on its own")
        assert repo.garbage_collect(datetime.now(UTC) + TOMORROW).snapshots_deleted == 1


def test_a_time_long_ago_stays_what_it_is(tmp_path: Path) -> None:
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(str(tmp_path)))
    past = datetime.now(UTC) - TOMORROW
    wanted = {Kind.CHUNKS: past, Kind.MANIFESTS: past - TOMORROW, Kind.SNAPSHOTS: None}
    found = run_blocking(effective_cutoffs(repo._context, wanted, at_once=False))
    assert found == {**wanted, Kind.TRANSACTION_LOGS: None}
    at_once = run_blocking(effective_cutoffs(repo._context, wanted, at_once=True))
    assert at_once[Kind.CHUNKS] == at_once[Kind.MANIFESTS] == past - TOMORROW
    assert at_once[Kind.SNAPSHOTS] is None
