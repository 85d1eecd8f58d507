"""The history as a drawing: text for terminals, SVG for notebooks."""

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from icefloe.printable import printable
from icefloe.repo.history import CommitGraph, GraphRow, Lane
from icefloe.values.times import to_datetime

_SHORT_ID: Final = 8
_LONGEST_MESSAGE: Final = 100
_RESET, _BOLD, _DIM, _TAG = "\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[33m"
_TERMINAL_COLOURS: Final = tuple(f"\x1b[38;5;{code}m" for code in (39, 208, 71, 170, 214, 44, 167))
_SVG_COLOURS: Final = ("#1f83c6", "#e07b1a", "#3f9b45", "#a55cc5", "#c9a000", "#169fa6", "#cc4b4b")
_SVG_TEXT, _SVG_PAPER = "#24292f", "#fbfcfd"

_ROW_HEIGHT, _LANE_WIDTH, _MARGIN, _RADIUS = 26, 18, 16, 5
_LETTER_WIDTH: Final = 7.3
_MOST_SVG_ROWS: Final = 500
"""A drawing of more commits than these helps nobody; it says how many it leaves out."""


@dataclass(frozen=True, slots=True, repr=False)
class AncestryGraph:
    """The commits of a repository and how they follow each other.

    Print it to see it as text, with colours unless `plain`; a notebook shows it as a drawing.

    >>> import icefloe
    >>> repository = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> print(repository.ancestry_graph(plain=True))
    ● 1CECHNKR ... (main) Repository initialized
    """

    graph: CommitGraph
    plain: bool = False

    def __str__(self) -> str:
        return "\n".join(_text_lines(self.graph, is_plain=self.plain))

    def __repr__(self) -> str:
        return str(self)

    def to_svg(self) -> str:
        """Return the drawing as an SVG document, to be saved or shown elsewhere."""
        return "\n".join(_svg_lines(self.graph))

    def _repr_svg_(self) -> str:
        return self.to_svg()


def _width(lanes: Sequence[Lane]) -> int:
    return max((lane.column for lane in lanes), default=0) + 1


def _headline(message: str) -> str:
    """Return the first line of a message, safe to print: it is not known who wrote it."""
    line = printable(message.strip().partition("\n")[0])
    return line if len(line) <= _LONGEST_MESSAGE else line[: _LONGEST_MESSAGE - 1] + "…"


def _minute(row: GraphRow) -> str:
    return to_datetime(row.entry.flushed_at).strftime("%Y-%m-%d %H:%M")


# -- text ----------------------------------------------------------------------------------


def _text_lines(graph: CommitGraph, *, is_plain: bool) -> Iterator[str]:
    width = _width(graph.lanes)
    for number, row in enumerate(graph.rows):
        cells = _cells(graph.lanes, number, row.column, width)
        if is_plain:
            drawing = "".join(mark for mark, _ in cells)
            refs = ", ".join(
                [*map(printable, row.branches), *(f"tag: {printable(t)}" for t in row.tags)]
            )
            label = f"({refs}) " if refs else ""
            identity = str(row.entry.id)[:_SHORT_ID]
        else:
            drawing = "".join(_coloured(mark, column) for mark, column in cells)
            refs = ", ".join(
                [
                    *(f"{_BOLD}{_coloured(printable(name), row.column)}" for name in row.branches),
                    *(f"{_BOLD}{_TAG}tag: {printable(name)}{_RESET}" for name in row.tags),
                ]
            )
            label = f"({refs}) " if refs else ""
            identity = f"{_DIM}{str(row.entry.id)[:_SHORT_ID]}{_RESET}"
        yield f"{drawing} {identity} {_minute(row)} {label}{_headline(row.entry.message)}".rstrip()


def _coloured(text: str, column: int) -> str:
    if not text.strip():
        return text
    return f"{_TERMINAL_COLOURS[column % len(_TERMINAL_COLOURS)]}{text}{_RESET}"


def _cells(
    lanes: Sequence[Lane], number: int, lane_column: int, width: int
) -> list[tuple[str, int]]:
    """Draw one row: marks, each with the column whose colour it has."""
    passing = {lane.column for lane in lanes if lane.first_row <= number < lane.last_row}
    joining = {lane.column for lane in lanes if lane.joins is not None and lane.last_row == number}
    last = max(joining, default=lane_column)
    cells: list[tuple[str, int]] = []
    for column in range(width):
        is_crossed = lane_column < column < last
        if column == lane_column:
            mark = "●"
        elif column in joining:
            mark = "╯" if column == last else "┴"
        elif column in passing:
            mark = "┼" if is_crossed else "│"
        else:
            mark = "─" if is_crossed else " "
        cells.append((mark, column))
        if column < width - 1:
            cells.append(("─" if lane_column <= column < last else " ", last))
    return cells


# -- SVG -----------------------------------------------------------------------------------


def _svg_lines(graph: CommitGraph) -> Iterator[str]:
    rows = graph.rows[:_MOST_SVG_ROWS]
    left_out = len(graph.rows) - len(rows)
    lanes = [lane for lane in graph.lanes if lane.first_row < len(rows)]
    text_x = _MARGIN + _width(lanes) * _LANE_WIDTH
    longest = max((len(_label_text(row)) for row in rows), default=0)
    width = text_x + int(longest * _LETTER_WIDTH) + _MARGIN
    height = 2 * _MARGIN + max(len(rows) - 1 + (left_out > 0), 0) * _ROW_HEIGHT
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" aria-label="commit graph" '
        'font-family="monospace" font-size="12">'
    )
    # Notebooks show it as an image, which knows nothing of their colours: bring a background.
    yield f'<rect width="{width}" height="{height}" rx="6" fill="{_SVG_PAPER}"/>'
    yield from (_svg_lane(lane, len(rows)) for lane in lanes)
    for number, row in enumerate(rows):
        yield from _svg_row(row, number, text_x)
    if left_out:
        y = _y(len(rows)) + 4
        yield f'<text x="{text_x}" y="{y}" fill="{_SVG_TEXT}">… {left_out} older commits</text>'
    yield "</svg>"


def _svg_lane(lane: Lane, shown: int) -> str:
    """Draw a line down to where it ends, bending into the lane that it joins."""
    x, last = _x(lane.column), min(lane.last_row, shown)
    start = f"M{x} {_y(lane.first_row)}"
    if lane.joins is None or lane.last_row >= shown:
        path = f"{start} V{_y(last)}"
    else:
        bend = _y(last) - _ROW_HEIGHT
        end = f"{_x(lane.joins)} {_y(last)}"
        path = f"{start} V{bend} C{x} {_y(last)} {x} {_y(last)} {end}"
    return f'<path d="{path}" fill="none" stroke="{_svg_colour(lane.column)}" stroke-width="2"/>'


def _svg_row(row: GraphRow, number: int, text_x: int) -> Iterator[str]:
    colour = _svg_colour(row.column)
    full = f"{row.entry.id}\n{to_datetime(row.entry.flushed_at).isoformat()}\n{row.entry.message}"
    yield "<g>"
    yield f"<title>{_svg_text(printable(full, keep='\n'))}</title>"
    yield f'<circle cx="{_x(row.column)}" cy="{_y(number)}" r="{_RADIUS}" fill="{colour}"/>'
    parts = [
        f'<tspan fill-opacity="0.6">{str(row.entry.id)[:_SHORT_ID]} {_minute(row)}</tspan>',
        *(
            f'<tspan font-weight="bold" fill="{colour}">{_svg_text(printable(name))}</tspan>'
            for name in row.branches
        ),
        *(
            f'<tspan font-weight="bold" fill="#b58900">◆{_svg_text(printable(name))}</tspan>'
            for name in row.tags
        ),
        f"<tspan>{_svg_text(_headline(row.entry.message))}</tspan>",
    ]
    yield f'<text x="{text_x}" y="{_y(number) + 4}" fill="{_SVG_TEXT}">{" ".join(parts)}</text>'
    yield "</g>"


def _label_text(row: GraphRow) -> str:
    names = " ".join([*map(printable, row.branches), *(f"◆{printable(t)}" for t in row.tags)])
    return f"{'-' * _SHORT_ID} {_minute(row)} {names} {_headline(row.entry.message)}"


def _svg_text(text: str) -> str:
    """Escape text, without the control characters that XML does not allow."""
    return html.escape("".join(c if c == "\n" or c.isprintable() else "�" for c in text))


def _svg_colour(column: int) -> str:
    return _SVG_COLOURS[column % len(_SVG_COLOURS)]


def _x(column: int) -> int:
    return _MARGIN + column * _LANE_WIDTH


def _y(number: int) -> int:
    return _MARGIN + number * _ROW_HEIGHT
