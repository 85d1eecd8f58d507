"""The commits of a repository as rows of a table, with the lines between them."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from icefloe.effects import run_blocking
from icefloe.records import Record
from icefloe.repo.history import CommitGraph, GraphRow, Lane, commit_graph
from icefloe.values.times import to_datetime
from icefloe.web.versions import Version

COMMITS_PER_PAGE: Final = 50
ROW_HEIGHT: Final = 36
_LANE_WIDTH: Final = 16
_MOST_LANES: Final = 24
"""More lines beside each other are drawn as one."""
_MOST_REQUESTS: Final = 200
_COLOURS: Final = 6
_LONGEST_HEADLINE: Final = 200
_AUTHOR_KEYS: Final = ("author", "author_name", "committer", "user")


class Line(Record):
    """A line of a row: the path of SVG, and the number of its colour."""

    path: str
    colour: int


class CommitRow(Record):
    """A commit in the table of the history."""

    id: str
    written_at: datetime
    headline: str
    branches: tuple[str, ...]
    tags: tuple[str, ...]
    parent_id: str | None
    x: int
    """Where the dot of the commit is, from the left."""
    colour: int
    lines: tuple[Line, ...]


class HistoryPage(Record):
    """Some commits, newest first."""

    rows: tuple[CommitRow, ...]
    number: int
    pages: int
    total: int
    width: int
    """The width of the drawing."""
    is_cut: bool
    """Whether there are older commits that no page shows."""


def history_page(graph: CommitGraph, number: int) -> HistoryPage:
    """Return a page of a history; pages are counted from 1."""
    total = len(graph.rows)
    pages = max(1, -(-total // COMMITS_PER_PAGE))
    number = min(max(1, number), pages)
    first = (number - 1) * COMMITS_PER_PAGE
    chosen = graph.rows[first : first + COMMITS_PER_PAGE]
    last = first + len(chosen)
    lanes = [lane for lane in graph.lanes if lane.first_row < last and first <= lane.last_row]
    rows = tuple(
        _row(row, first + number_on_page, lanes) for number_on_page, row in enumerate(chosen)
    )
    columns = min(max((lane.column for lane in lanes), default=0) + 1, _MOST_LANES)
    ids = {row.entry.id for row in graph.rows}
    parents = {row.entry.parent for row in graph.rows} - {None}
    return HistoryPage(rows, number, pages, total, columns * _LANE_WIDTH, not parents <= ids)


def read_graph(version: Version, *, is_only: bool) -> CommitGraph:
    """Read the commits of all branches and tags, or those that lead to a version.

    In spec 1 each commit takes a request, so that only the newest commits of a line are read.
    """
    context = version.state.context
    start = version.state.snapshot_id if is_only else None
    most = _MOST_REQUESTS if context.spec_version == 1 else None
    return run_blocking(commit_graph(context.ledger, start, most_in_line=most))


def _row(row: GraphRow, number: int, lanes: Sequence[Lane]) -> CommitRow:
    entry = row.entry
    return CommitRow(
        str(entry.id),
        to_datetime(entry.flushed_at),
        headline(entry.message),
        row.branches,
        row.tags,
        None if entry.parent is None else str(entry.parent),
        _x(row.column),
        row.column % _COLOURS,
        tuple(
            Line(_path(lane, number), lane.column % _COLOURS)
            for lane in lanes
            if lane.first_row <= number <= lane.last_row and lane.first_row < lane.last_row
        ),
    )


def _path(lane: Lane, number: int) -> str:
    """Draw the part of a line that is in a row.

    >>> _path(Lane(0, 0, 5), 0), _path(Lane(1, 0, 5, 0), 5)
    ('M8 18V36', 'M24 0C24 18 24 18 8 18')
    """
    x, middle = _x(lane.column), ROW_HEIGHT // 2
    top = middle if number == lane.first_row else 0
    if number < lane.last_row:
        return f"M{x} {top}V{ROW_HEIGHT}"
    if lane.joins is None:
        return f"M{x} {top}V{middle}"
    return f"M{x} {top}C{x} {middle} {x} {middle} {_x(lane.joins)} {middle}"


def _x(column: int) -> int:
    return min(column, _MOST_LANES - 1) * _LANE_WIDTH + _LANE_WIDTH // 2


def headline(message: str) -> str:
    """Return the first line of a message, cut to a length that a table can show.

    >>> headline("Fill gaps\\n\\nof 2024")
    'Fill gaps'
    """
    line = message.strip().partition("\n")[0]
    return line if len(line) <= _LONGEST_HEADLINE else f"{line[:_LONGEST_HEADLINE]}…"


def title_and_text(message: str) -> tuple[str, str]:
    """Return the first line of a message, and what the title does not tell.

    >>> title_and_text("Fill gaps\\n\\nof 2024")
    ('Fill gaps', 'of 2024')
    """
    title, whole = headline(message), message.strip()
    rest = whole.removeprefix(title).strip()
    return title, whole if title not in whole else rest


def author_of(metadata: Mapping[str, Any]) -> str | None:
    """Return who made a commit, if its metadata says so.

    >>> author_of({"author": "Ada", "run": 7}), author_of({"author": 7})
    ('Ada', None)
    """
    names = (metadata.get(key) for key in _AUTHOR_KEYS)
    return next((name for name in names if isinstance(name, str) and name), None)
