"""Which snapshot somebody means, and what came before it."""

from collections.abc import AsyncIterator, Awaitable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from icefloe.effects import both
from icefloe.engine.context import RepoContext
from icefloe.errors import ErrorKind, IcefloeError, InvalidInputError, SnapshotNotFoundError
from icefloe.format.ids import SnapshotId
from icefloe.format.snapshot import Snapshot
from icefloe.format.snapshot_table import SnapshotEntry

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


async def resolve(
    context: RepoContext,
    *,
    branch: str | None = None,
    tag: str | None = None,
    snapshot_id: str | SnapshotId | None = None,
    as_of: int | None = None,
) -> SnapshotId:
    """Find the snapshot that a version names.

    Exactly one of branch, tag and snapshot; with a branch, `as_of` (microseconds since 1970,
    UTC) picks the last snapshot that was there at that time.
    """
    require_one_version(branch, tag, snapshot_id, as_of)
    if branch is not None and as_of is not None:
        return await _at_time(context, branch, as_of)
    if branch is not None:
        return await context.ledger.branch_tip(branch)
    if tag is not None:
        return await context.ledger.tag_target(tag)
    return (await context.ledger.entry(parse_snapshot(snapshot_id))).id


async def load_found(
    context: RepoContext, found: Awaitable[SnapshotId], branch: str | None = None
) -> Snapshot:
    """Load the snapshot that a lookup finds.

    Over a network, the one where `branch` ended when we looked last comes at the same time:
    branches seldom move between two looks.
    """
    assets = context.assets
    likely = None if branch is None or context.is_near else context.ledger.last_tip(branch)
    if likely is None or assets.has_snapshot(likely):
        return await assets.load_snapshot(await found)

    async def look() -> SnapshotId:
        return await found

    async def fetch() -> Snapshot | None:
        try:
            return await assets.load_snapshot(likely)
        except IcefloeError:  # whoever needs it will see
            return None

    snapshot, fetched = await both(look, fetch)
    if fetched is not None and fetched.id == snapshot:
        return fetched
    return await assets.load_snapshot(snapshot)


async def ancestry(
    context: RepoContext,
    *,
    branch: str | None = None,
    tag: str | None = None,
    snapshot_id: str | SnapshotId | None = None,
) -> AsyncIterator[Sequence[SnapshotEntry]]:
    """Walk from a version back to the first snapshot, in the portions that are read at once."""
    require_one_version(branch, tag, snapshot_id)
    start = None if snapshot_id is None else parse_snapshot(snapshot_id)
    async for page in context.ledger.ancestry_pages(start, branch=branch, tag=tag):
        yield page


def require_one_version(
    branch: str | None,
    tag: str | None,
    snapshot_id: str | SnapshotId | None,
    as_of: int | None = None,
) -> None:
    """Refuse arguments that do not name a version, or name several."""
    given = [each for each in (branch, tag, snapshot_id) if each is not None]
    if as_of is not None and (branch is None or len(given) > 1):
        raise InvalidInputError("as_of goes with a branch: give its name too, and nothing else")
    if len(given) != 1:
        raise InvalidInputError(
            "give exactly one of branch, tag and snapshot_id to say which version is meant"
        )


def parse_snapshot(given: str | SnapshotId | None) -> SnapshotId:
    """Read the id of a snapshot; one that is read already is fine too."""
    if isinstance(given, SnapshotId):
        return given
    try:
        return SnapshotId.parse(given or "")
    except InvalidInputError:
        raise InvalidInputError(
            f"{given!r} is not the id of a snapshot: those have 20 letters and digits",
            ErrorKind.INVALID_SNAPSHOT_ID,
        ) from None


async def _at_time(context: RepoContext, branch: str, time: int) -> SnapshotId:
    async for page in context.ledger.ancestry_pages(branch=branch):
        for entry in page:
            if entry.flushed_at <= time:
                return entry.id
    try:
        moment = str(_EPOCH + timedelta(microseconds=time))
    except OverflowError:  # a time of the year 1 in another time zone may be none in UTC
        moment = "the beginning of all dates"
    raise SnapshotNotFoundError(
        f"the branch {branch!r} has no snapshot as old as {moment}: its first one is younger",
        ErrorKind.NO_SNAPSHOT_AT_TIME,
        branch=branch,
    )
