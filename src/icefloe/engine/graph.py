"""The history of several branches and tags together, laid out in lanes.

A lane is the line of commits of one tip, down to where it meets a line drawn before. Lanes get
columns so that no two share one at the same height, and each joins another to its left.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from icefloe.engine.ledger import Ledger
from icefloe.format.ids import SnapshotId
from icefloe.format.repo_info import MAIN_BRANCH
from icefloe.format.snapshot_table import SnapshotEntry


@dataclass(frozen=True, slots=True)
class GraphRow:
    """One commit, in its place."""

    entry: SnapshotEntry
    column: int
    branches: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Lane:
    """A line of commits: in which column, from which row to which.

    `joins` is the column of the row where it ends, if that row is of another lane.
    """

    column: int
    first_row: int
    last_row: int
    joins: int | None = None


@dataclass(frozen=True, slots=True)
class CommitGraph:
    """Commits newest first, and the lines between them."""

    rows: tuple[GraphRow, ...]
    lanes: tuple[Lane, ...]


async def commit_graph(ledger: Ledger, start: SnapshotId | None = None) -> CommitGraph:
    """Lay out the history of one snapshot, or of every branch and tag."""
    branches, tags = await ledger.branches(), await ledger.tags()
    tips = [start] if start is not None else _tips(branches, tags)
    return lay_out(await _lines(ledger, tips), branches, tags)


async def history_lines(
    ledger: Ledger, start: SnapshotId | None = None
) -> list[list[SnapshotEntry]]:
    """List all versions of one snapshot's history, or of every branch and tag, each once.

    A line begins at a tip, newest first, and ends where it meets a line before it.
    """
    if start is not None:
        return await _lines(ledger, [start])
    return await _lines(ledger, _tips(await ledger.branches(), await ledger.tags()))


async def _lines(ledger: Ledger, tips: Iterable[SnapshotId]) -> list[list[SnapshotEntry]]:
    lines: list[list[SnapshotEntry]] = []
    known: set[SnapshotId] = set()
    for tip in tips:
        if tip in known:
            continue
        line: list[SnapshotEntry] = []
        async for entry in ledger.ancestry(tip):
            if entry.id in known:
                break
            known.add(entry.id)
            line.append(entry)
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
    """Give each line a column, and each commit a row; lines come in the order of their right."""
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
