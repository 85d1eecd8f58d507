"""Before which moment objects may go: never one in the future, by any clock."""

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
"""How far the times of files may lag behind the clock."""


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
    if not isinstance(context.storage.spec, LocalSpec):
        return _now(context)
    if last > _now(context) - _FILE_TICK:
        await sleep(_FILE_TICK.total_seconds())
    return _now(context) - _FILE_TICK


def _now(context: RepoContext) -> datetime:
    return _EPOCH + timedelta(microseconds=context.clock())
