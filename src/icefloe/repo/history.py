"""Resolve a version, list its ancestors, and lay out the history of many refs in lanes.

A lane is the line of commits of one tip, down to a line that was laid out before. Lanes get
columns so that no two share a column at the same height, and each joins another to its left.
"""

import heapq
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from icefloe.effects import both, map_concurrently
from icefloe.errors import ErrorKind, IcefloeError, InvalidInputError, SnapshotNotFoundError
from icefloe.format.ids import IdPrefix, SnapshotId
from icefloe.format.repo_info import MAIN_BRANCH
from icefloe.format.snapshot import Snapshot
from icefloe.format.snapshot_table import SnapshotEntry
from icefloe.records import Record
from icefloe.repo.context import RepoContext
from icefloe.repo.ledger import Ledger
from icefloe.repo.repo_changes import require_readable, snapshot_entry


class GraphRow(Record):
    """One commit, in its place."""

    entry: SnapshotEntry
    column: int
    branches: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()


class Lane(Record):
    """A line of commits: in which column, from which row to which.

    `joins` is the column of the row where it ends, if that row is of another lane.
    """

    column: int
    first_row: int
    last_row: int
    joins: int | None = None


class CommitGraph(Record):
    """Commits newest first, and the lines between them."""

    rows: tuple[GraphRow, ...]
    lanes: tuple[Lane, ...]
    is_complete: bool = True
    """Whether no older commits were left out."""

    def newest(self, most: int) -> "CommitGraph":
        """Return the graph of the newest commits; lines to older ones go on downwards."""
        if len(self.rows) <= most:
            return self
        lanes = tuple(lane for lane in self.lanes if lane.first_row < most)
        return CommitGraph(self.rows[:most], lanes, is_complete=False)


async def commit_graph(
    ledger: Ledger,
    start: SnapshotId | None = None,
    most: int | None = None,
    *,
    most_in_line: int | None = None,
) -> CommitGraph:
    """Lay out the history of one snapshot, or of every branch and tag.

    With `most`, only the newest commits; of one snapshot's history no more is read, either. With
    `most_in_line`, lines with more commits end after this many.
    """
    branches, tags = await ledger.branches(), await ledger.tags()
    if start is None:
        lines = await _lines(ledger, _tips(branches, tags), most_in_line)
    else:
        # One more than is shown tells whether there are more.
        lines = await _lines(ledger, [start], most_in_line if most is None else most + 1)
    graph = lay_out(lines, branches, tags)
    return graph if most is None else graph.newest(most)


async def history_lines(
    ledger: Ledger, start: SnapshotId | None = None
) -> list[list[SnapshotEntry]]:
    """List all versions of one snapshot's history, or of every branch and tag, each once.

    A line begins at a tip, newest first, and ends where it meets a line before it.
    """
    if start is not None:
        return await _lines(ledger, [start])
    return await _lines(ledger, _tips(await ledger.branches(), await ledger.tags()))


async def _lines(
    ledger: Ledger, tips: Iterable[SnapshotId], most: int | None = None
) -> list[list[SnapshotEntry]]:
    lines: list[list[SnapshotEntry]] = []
    seen: set[SnapshotId] = set()
    for tip in tips:
        if tip in seen:
            continue
        line: list[SnapshotEntry] = []
        async for entry in ledger.ancestry(tip):
            if entry.id in seen:
                break
            seen.add(entry.id)
            line.append(entry)
            if len(line) == most:
                break
        lines.append(line)
    return lines


def _tips(branches: Mapping[str, SnapshotId], tags: Mapping[str, SnapshotId]) -> list[SnapshotId]:
    """Order what to follow: `main` stays leftmost, tags only add what no branch reaches."""
    names = sorted(branches, key=lambda name: (name != MAIN_BRANCH, name))
    return [branches[name] for name in names] + [tags[name] for name in sorted(tags)]


def lay_out(
    lines: Sequence[Sequence[SnapshotEntry]],
    branches: Mapping[str, SnapshotId],
    tags: Mapping[str, SnapshotId],
) -> CommitGraph:
    """Return each line a column, and each commit a row; lines come in the order of their right."""
    ordered = newest_first([entry for line in lines for entry in line])
    row_of = {entry.id: row for row, entry in enumerate(ordered)}
    lanes: list[Lane] = []
    column_of: dict[SnapshotId, int] = {}
    for line in lines:
        parent = line[-1].parent
        end = None if parent is None else row_of.get(parent)
        joins = column_of[parent] if parent is not None and end is not None else None
        first, last = row_of[line[0].id], row_of[line[-1].id] if end is None else end
        column = _free_column(lanes, first, last, 0 if joins is None else joins + 1)
        lanes.append(Lane(column, first, last, joins))
        column_of |= {entry.id: column for entry in line}
    branch_names, tag_names = _names(branches), _names(tags)
    rows = tuple(
        GraphRow(
            entry,
            column_of[entry.id],
            branch_names.get(entry.id, ()),
            tag_names.get(entry.id, ()),
        )
        for entry in ordered
    )
    return CommitGraph(rows, tuple(lanes))


def _names(refs: Mapping[str, SnapshotId]) -> dict[SnapshotId, tuple[str, ...]]:
    names: dict[SnapshotId, tuple[str, ...]] = {}
    for name in sorted(refs):
        names[refs[name]] = (*names.get(refs[name], ()), name)
    return names


def newest_first(entries: list[SnapshotEntry]) -> list[SnapshotEntry]:
    """Order by time, but never a parent before its child, whatever the clocks said."""
    by_id = {entry.id: entry for entry in entries}
    waiting = dict.fromkeys(by_id, 0)
    for entry in entries:
        if entry.parent in waiting:
            waiting[entry.parent] += 1
    ready = [(-entry.flushed_at, entry.id) for entry in entries if waiting[entry.id] == 0]
    heapq.heapify(ready)
    ordered: list[SnapshotEntry] = []
    while ready:
        entry = by_id[heapq.heappop(ready)[1]]
        ordered.append(entry)
        if (parent := entry.parent) is not None and parent in waiting:
            waiting[parent] -= 1
            if waiting[parent] == 0:
                heapq.heappush(ready, (-by_id[parent].flushed_at, parent))
    return ordered


def _free_column(lanes: list[Lane], first: int, last: int, leftmost: int) -> int:
    taken = {lane.column for lane in lanes if lane.first_row <= last and first <= lane.last_row}
    column = leftmost
    while column in taken:
        column += 1
    return column


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
    context: RepoContext, snapshot_id: Awaitable[SnapshotId], branch: str | None = None
) -> Snapshot:
    """Load the snapshot that a lookup finds.

    Over a network, the one where `branch` ended when we looked last comes at the same time:
    branches seldom move between two looks.
    """
    assets = context.assets
    likely = None if branch is None or context.is_near else context.ledger.last_tip(branch)
    if likely is None or assets.has_snapshot(likely):
        return await assets.load_snapshot(await snapshot_id)

    async def look() -> SnapshotId:
        return await snapshot_id

    async def fetch() -> Snapshot | None:
        try:
            return await assets.load_snapshot(likely)
        except IcefloeError:  # the caller that needs it gets the error
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
    names = [name for name in (branch, tag, snapshot_id) if name is not None]
    if as_of is not None and (branch is None or len(names) > 1):
        raise InvalidInputError("as_of goes with a branch: give its name too, and nothing else")
    if len(names) != 1:
        raise InvalidInputError(
            "give exactly one of branch, tag and snapshot_id to say which version is meant"
        )


async def named_versions(
    context: RepoContext, refs: Literal["branches", "tags"]
) -> dict[str, SnapshotEntry]:
    """Look up the versions of all branches or of all tags; in spec 2 with a single look."""
    ledger = context.ledger
    repo = await ledger.repo()
    if repo is not None:
        require_readable(repo)
        named = repo.branches if refs == "branches" else repo.tags
        return {name: snapshot_entry(repo, named[name]) for name in sorted(named)}
    named = await (ledger.branches() if refs == "branches" else ledger.tags())
    limit = context.config.max_concurrent_requests
    entries = await map_concurrently(ledger.entry, [*named.values()], limit=limit)
    return dict(sorted(zip(named, entries, strict=True)))


LEAST_PREFIX: Final = 4
"""The number of characters that tell snapshots apart, at the least."""


async def find_snapshots(context: RepoContext, prefix: str) -> list[SnapshotEntry]:
    """List the snapshots whose ids begin with some characters, in the order of their ids.

    Spec 2 lists all snapshots in one object; in spec 1 those of branches and tags are known.
    """
    pattern = IdPrefix.parse(prefix)
    if len(prefix) < LEAST_PREFIX or pattern is None:
        raise InvalidInputError(
            f"{prefix!r} is not the beginning of the id of a snapshot: give {LEAST_PREFIX} to 20"
            " letters and digits",
            ErrorKind.INVALID_SNAPSHOT_ID,
        )
    repo = await context.ledger.repo()
    if repo is None:
        lines = await history_lines(context.ledger)
        entries = [entry for line in lines for entry in line if pattern.fits(entry.id)]
        return sorted(entries, key=lambda entry: entry.id)
    require_readable(repo)
    return [snapshot_entry(repo, snapshot) for snapshot in pattern.rows(repo.snapshots.ids)]


def parse_snapshot(text: str | SnapshotId | None) -> SnapshotId:
    """Read the id of a snapshot; one that is read already is fine too."""
    if isinstance(text, SnapshotId):
        return text
    try:
        return SnapshotId.parse(text or "")
    except InvalidInputError:
        raise InvalidInputError(
            f"{text!r} is not the id of a snapshot: those have 20 letters and digits",
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
