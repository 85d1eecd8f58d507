"""Before which moment objects may go: never one in the future, by any clock."""

import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from icefloe.effects import sleep
from icefloe.engine.context import RepoContext
from icefloe.engine.maintenance.sweeping import Kind
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


async def effective_cutoffs(context: RepoContext, wanted: Cutoffs, *, at_once: bool) -> Cutoffs:
    """Give the cut-offs that count: what is written from now on is younger than all of them.

    With `at_once` the earliest one counts for all kinds: then the time of a snapshot stands for
    all that it refers to.
    """
    given = {kind: wanted.get(kind) for kind in Kind}
    known = [one for one in given.values() if one is not None]
    latest = await _beginning(context, max(known, default=_EPOCH))
    if at_once:
        latest = min([latest, *known])
    return {kind: None if one is None else min(one, latest) for kind, one in given.items()}


async def _beginning(context: RepoContext, last: datetime) -> datetime:
    """Give a moment that no object written from now on seems to be older than.

    A file gets the time of the last tick of a slow clock, so that moment is a tick ago. Where it
    matters, we wait for a tick: then it is still no earlier than the call.
    """
    called = _now(context)
    if not isinstance(context.storage.spec, LocalSpec):
        return called
    moment = called - _lag_of_files()
    if last > moment:
        for _ in range(_MOST_TICKS):
            await sleep(_FILE_TICK.total_seconds())
            moment = _now(context) - _lag_of_files()
            if moment >= called:
                break
    return moment


def _lag_of_files() -> timedelta:
    """Tell how far the times of files lag behind; on a busy machine ticks come late."""
    if sys.platform != "linux":
        return _FILE_TICK
    lag_ns = time.time_ns() - time.clock_gettime_ns(_CLOCK_OF_FILES)
    return max(_FILE_TICK, timedelta(microseconds=-(-lag_ns // 1000)))


def _now(context: RepoContext) -> datetime:
    return _EPOCH + timedelta(microseconds=context.clock())
