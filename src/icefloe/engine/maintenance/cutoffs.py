"""Before which moment objects may go: never one in the future, by any clock."""

import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from icefloe.effects import sleep
from icefloe.engine.context import RepoContext
from icefloe.engine.maintenance.clocks import compare_clocks, own_time
from icefloe.engine.maintenance.sweeping import PREFIXES, Kind
from icefloe.storage.specs import LocalSpec

type Cutoffs = Mapping[Kind, datetime | None]
"""Only objects written before go; None keeps all of a kind."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FILE_TICK: Final = timedelta(milliseconds=10)
"""How far the times of files lag behind the clock where no system tells how far."""
_MOST_TICKS: Final = 10
"""For so many we wait."""
_CLOCK_OF_FILES: Final = 5
"""Linux calls it `CLOCK_REALTIME_COARSE`."""


async def effective_cutoffs(
    context: RepoContext, wanted: Cutoffs, *, at_once: bool, dry_run: bool = False
) -> Cutoffs:
    """Return the cut-offs that count, by the clock of the storage.

    What is written from now on is younger than all of them. If the clock of this machine is ahead
    of the storage's, they are earlier by the difference; a dry run writes no probe to find out.
    With `at_once` the earliest one counts for all kinds: then the time of a snapshot stands for
    all that it refers to.
    """
    given = {kind: wanted.get(kind) for kind in Kind}
    known = [one for one in given.values() if one is not None]
    latest, resolution = await _beginning(context, max(known, default=_EPOCH))
    lag = timedelta(0)
    if known and not dry_run:
        clocks = await compare_clocks(
            context, resolution=resolution, prefixes=PREFIXES.values(), must_vanish=True
        )
        lag = clocks.lag
        # Where clocks agree, our own tells the time of files more exactly.
        if lag or not resolution:
            latest = min(latest, clocks.storage_time - resolution)
    if at_once:
        latest = min([latest, *(one - lag for one in known)])
    return {kind: None if one is None else min(one - lag, latest) for kind, one in given.items()}


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
    """Tell how far the times of files lag behind; on a busy machine ticks come late."""
    if sys.platform != "linux":
        return _FILE_TICK
    lag_ns = time.time_ns() - time.clock_gettime_ns(_CLOCK_OF_FILES)
    return max(_FILE_TICK, timedelta(microseconds=-(-lag_ns // 1000)))
