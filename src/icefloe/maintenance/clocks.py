"""The clock of a storage, compared with the clock of this machine, and the cut-offs that follow.

Maintenance decides by times: users give times of the clock of their machine, objects have times of
the clock of the storage. A machine whose clock is ahead would mistake new objects for old ones. So
a probe is written, dated by the storage, and deleted again. A cut-off never lies in the future, by
either clock.
"""

import logging
import secrets
import sys
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from icefloe.effects import sleep
from icefloe.errors import ErrorKind, StorageError
from icefloe.maintenance.sweeping import PREFIXES, Kind
from icefloe.records import Record
from icefloe.repo.context import RepoContext
from icefloe.storage import Backend
from icefloe.storage.specs import LocalSpec

_log = logging.getLogger(__name__)

PROBE_PREFIX: Final = "icefloe-clock-"
"""How the keys of probes begin; they are in the root, so no directory has to be made."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NOTICEABLE: Final = timedelta(seconds=2)
"""Smaller differences are not worth a warning."""
_MOST_PROBES: Final = 3
_WHOLE_SECOND: Final = timedelta(seconds=1)


class Comparison(Record):
    """The clock of the storage as seen from this machine."""

    storage_time: datetime
    """No object that is written from now on has an earlier time, but for the resolution."""
    lag: timedelta = timedelta(0)
    """How far the clock of the storage may lag behind ours; 0 if they agree or it is ahead."""

    def shifted(self, moment: datetime) -> datetime:
        """Return a moment of our clock by the clock of the storage, never a later one."""
        return moment - self.lag


def own_time(context: RepoContext) -> datetime:
    """Return the time of this machine's clock."""
    return _EPOCH + timedelta(microseconds=context.clock())


async def compare_clocks(
    context: RepoContext,
    *,
    resolution: timedelta = timedelta(0),
    prefixes: Iterable[str] = (),
    must_vanish: bool = False,
) -> Comparison:
    """Write a probe and compare its time with our clock; 3 requests, rarely 9.

    Differences up to `resolution`, or up to a second if the storage tells whole seconds, do not
    count. If the storage is full, the newest object below `prefixes` stands for the probe: the
    storage's clock has reached its time at least. With `must_vanish`, a probe that cannot be
    deleted is an error.
    """
    for _ in range(_MOST_PROBES):
        before = own_time(context)
        probed = await _probe(context.backend, must_vanish=must_vanish)
        after = own_time(context)
        told = probed or min(await _newest(context.backend, prefixes), after)
        if probed is not None and probed.microsecond == 0:
            resolution = max(resolution, _WHOLE_SECOND)
        lag = after - told if before - told > resolution else timedelta(0)
        if probed is None or not timedelta(0) < lag < _NOTICEABLE:
            break  # a small difference may be a tick that came late, on a busy machine
    if lag > _NOTICEABLE:
        _log.warning(
            "the clock of this machine is ahead of the storage's by %.0f s: all times are taken"
            " to be earlier by that; set the clock",
            lag.total_seconds(),
        )
    elif told - after > _NOTICEABLE:
        _log.warning(
            "the clock of this machine is behind the storage's by %.0f s: objects that were"
            " written in that time are taken to be new; set the clock",
            (told - after).total_seconds(),
        )
    return Comparison(told, lag)


async def _probe(backend: Backend, *, must_vanish: bool) -> datetime | None:
    """Return the time that the storage gives to a new object; None if it has no room for one."""
    key = f"{PROBE_PREFIX}{secrets.token_hex(8)}"
    try:
        await backend.put(key, b"")
    except StorageError as error:
        if error.kind != ErrorKind.STORAGE_FULL:
            raise
        _log.warning("the storage is full: its clock is judged by the newest object")
        return None
    try:
        return (await backend.head(key)).info.last_modified
    finally:
        report = await backend.delete_many([key])
        for reason in report.failures.values():
            if must_vanish:
                raise StorageError(f"{key!r} could not be deleted: {reason}", key=key)
            _log.warning("the probe %r could not be deleted: %s", key, reason)


async def _newest(backend: Backend, prefixes: Iterable[str]) -> datetime:
    newest = _EPOCH
    for prefix in prefixes:
        async for batch in backend.list(prefix):
            newest = max([newest, *(info.last_modified for info in batch)])
    return newest


type Cutoffs = Mapping[Kind, datetime | None]
"""Only objects written before are deleted; None keeps all of a kind."""

_FILE_TICK: Final = timedelta(milliseconds=10)
"""How far the times of files lag behind the clock, where the system does not report it."""
_MOST_TICKS: Final = 10
"""We wait for this many."""
_CLOCK_OF_FILES: Final = 5
"""Linux calls it `CLOCK_REALTIME_COARSE`."""


async def effective_cutoffs(
    context: RepoContext, cutoffs: Cutoffs, *, at_once: bool, dry_run: bool = False
) -> Cutoffs:
    """Return the cut-offs that count, by the clock of the storage.

    What is written from now on is younger than all of them. If the clock of this machine is ahead
    of the storage's, they are earlier by the difference; a dry run writes no probe to find out.
    With `at_once` the earliest one counts for all kinds: then the time of a snapshot stands for
    all that it refers to.
    """
    by_kind = {kind: cutoffs.get(kind) for kind in Kind}
    moments = [cutoff for cutoff in by_kind.values() if cutoff is not None]
    latest, resolution = await _beginning(context, max(moments, default=_EPOCH))
    lag = timedelta(0)
    if moments and not dry_run:
        clocks = await compare_clocks(
            context, resolution=resolution, prefixes=PREFIXES.values(), must_vanish=True
        )
        lag = clocks.lag
        # Where clocks agree, our own tells the time of files more exactly.
        if lag or not resolution:
            latest = min(latest, clocks.storage_time - resolution)
    if at_once:
        latest = min([latest, *(cutoff - lag for cutoff in moments)])
    return {
        kind: None if cutoff is None else min(cutoff - lag, latest)
        for kind, cutoff in by_kind.items()
    }


async def _beginning(context: RepoContext, last: datetime) -> tuple[datetime, timedelta]:
    """Return a moment that no object written from now on seems to be older than.

    A file gets the time of the last tick of a slow clock, so that moment is a tick ago. Where it
    matters, we wait for a tick: then it is still no earlier than the call. Also return how far
    times of objects may lag behind.
    """
    called = own_time(context)
    if not isinstance(context.storage.spec, LocalSpec):
        return called, timedelta(0)
    lag = _lag_of_files()
    moment = called - lag
    if last > moment:
        for _ in range(_MOST_TICKS):
            await sleep(_FILE_TICK.total_seconds())
            lag = _lag_of_files()
            moment = own_time(context) - lag
            if moment >= called:
                break
    return moment, lag


def _lag_of_files() -> timedelta:
    """Return how far the times of files lag behind; on a busy machine, ticks come late."""
    if sys.platform != "linux":
        return _FILE_TICK
    lag_ns = time.time_ns() - time.clock_gettime_ns(_CLOCK_OF_FILES)
    return max(_FILE_TICK, timedelta(microseconds=-(-lag_ns // 1000)))
