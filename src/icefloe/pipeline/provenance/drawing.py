"""Coverage as a picture: a bar of signs for terminals, SVG for everything else."""

import html
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

import numpy as np

from icefloe.pipeline.provenance.coverage import DatasetCoverage, FamilyCoverage, Presence, Span
from icefloe.printable import printable

SIGNS: Final[dict[Presence, str]] = {
    Presence.PRESENT: "█",
    Presence.LATE: "▓",
    Presence.PARTIAL: "▄",
    Presence.MISSING: "·",
}
_WORDS: Final[dict[Presence, str]] = {
    Presence.PRESENT: "present",
    Presence.LATE: "came late",
    Presence.PARTIAL: "in part",
    Presence.MISSING: "missing",
}
_USUAL_COLUMNS: Final = 72
_MOST_SPANS: Final = 10
"""So many missing spans are listed in words."""

_WIDTH, _MARGIN, _BAR_HEIGHT = 760, 14, 22
_LINE: Final = 20
_STYLE: Final = (
    "<style>.coverage text { fill: #24292f } .present { fill: #2f8f5b } .late { fill: #d9a514 }"
    " .partial { fill: #8fbf9f } .missing { fill: #d65f5f } .paper { fill: #fbfcfd }"
    " @media (prefers-color-scheme: dark) { .coverage text { fill: #e6edf3 }"
    " .present { fill: #3fb172 } .partial { fill: #2c6b48 } .paper { fill: #0d1117 } }</style>"
)


def cells(family: FamilyCoverage, columns: int) -> list[Presence]:
    """Return what to show in each column of equal width; missing steps are never hidden.

    >>> there, gap = Span(Presence.PRESENT, "0", "8", 9, 0), Span(Presence.MISSING, "9", "9", 1, 9)
    >>> [each.value for each in cells(FamilyCoverage(("t",), 9, (), (there, gap)), 4)]
    ['present', 'present', 'present', 'partial']
    """
    if not family.spans or columns < 1:
        return []
    ends = np.cumsum([float(span.steps) for span in family.spans])
    edges = np.linspace(0, ends[-1], columns + 1)
    firsts = np.minimum(np.searchsorted(ends, edges[:-1], "right"), len(ends) - 1)
    lasts = np.maximum(firsts, np.searchsorted(ends, edges[1:], "left"))
    lasts = np.minimum(lasts, len(ends) - 1)
    holds = {}
    for presence in Presence:
        is_such = [span.presence is presence for span in family.spans]
        counted = np.concatenate([[0], np.cumsum(is_such)])
        holds[presence] = counted[lasts + 1] > counted[firsts]
    return [
        _shown({presence for presence in Presence if holds[presence][column]})
        for column in range(columns)
    ]


def _shown(presences: set[Presence]) -> Presence:
    if presences == {Presence.MISSING}:
        return Presence.MISSING
    if Presence.MISSING in presences or Presence.PARTIAL in presences:
        return Presence.PARTIAL
    return Presence.LATE if Presence.LATE in presences else Presence.PRESENT


# -- text ------------------------------------------------------------------------------------


def coverage_text(coverage: DatasetCoverage, columns: int = _USUAL_COLUMNS) -> str:
    """Draw what a dataset holds, a bar for each family, and name what is missing."""
    lines = [_headline(coverage)]
    for family in coverage.families:
        lines += _family_lines(coverage, family, columns)
    shown = {cell for family in coverage.families for cell in cells(family, columns)}
    legend = [f"{sign} {_WORDS[presence]}" for presence, sign in SIGNS.items() if presence in shown]
    lines.append("  " + "  ".join(legend))
    return "\n".join(lines)


def _headline(coverage: DatasetCoverage) -> str:
    where = f"group {printable(coverage.group)}" if coverage.group else "root group"
    range_ = f": {coverage.first} … {coverage.last}" if coverage.length else ""
    return f"{where}, {coverage.length} steps along {printable(coverage.dimension)}{range_}"


def _family_lines(coverage: DatasetCoverage, family: FamilyCoverage, columns: int) -> Iterator[str]:
    yield f"  {_family_name(family)}: {_counts(family)}"
    yield "  " + "".join(SIGNS[cell] for cell in cells(family, columns))
    missing = family.of(Presence.MISSING)
    for span in missing[:_MOST_SPANS]:
        yield f"  missing: {_span_text(coverage, span)}"
    if len(missing) > _MOST_SPANS:
        yield f"  … and {len(missing) - _MOST_SPANS} more spans are missing"


def _family_name(family: FamilyCoverage, most: int = 4) -> str:
    names = [printable(name) for name in family.variables]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more or "no variables"


def _counts(family: FamilyCoverage) -> str:
    there = family.all_steps - family.steps(Presence.MISSING)
    parts = [f"{there} of {family.all_steps} steps", f"{family.files} files"]
    if partial := family.steps(Presence.PARTIAL):
        parts.append(f"{partial} steps in part")
    if family.late_files:
        parts.append(f"{len(family.late_files)} came late")
    return ", ".join(parts)


def _span_text(coverage: DatasetCoverage, span: Span) -> str:
    name = printable(coverage.dimension)
    if span.steps == 1:
        return f"{name} {span.first}"
    about = "about " if span.start is None else ""
    return f"{name} {span.first} … {span.last} ({about}{span.steps} steps)"


# -- SVG -------------------------------------------------------------------------------------


def coverage_svg(datasets: Sequence[DatasetCoverage]) -> str:
    """Draw what datasets hold as an SVG document."""
    parts: list[str] = []
    y = _MARGIN
    for coverage in datasets:
        y += _LINE
        parts.append(_svg_text(_MARGIN, y, _headline(coverage), weight="bold"))
        for family in coverage.families:
            y += _LINE + 2
            parts.append(_svg_text(_MARGIN, y, f"{_family_name(family)}: {_counts(family)}"))
            y += 8
            parts += _svg_bar(coverage, family, y)
            y += _BAR_HEIGHT + _LINE - 4
            parts.append(_svg_text(_MARGIN, y, coverage.first))
            parts.append(_svg_text(_WIDTH - _MARGIN, y, coverage.last, anchor="end"))
        y += _LINE // 2
    parts += _svg_legend(y + _LINE)
    height = y + 2 * _LINE
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="coverage" width="{_WIDTH}"'
            f' height="{height}" viewBox="0 0 {_WIDTH} {height}" role="img"'
            ' aria-label="coverage" font-family="sans-serif" font-size="13">',
            _STYLE,
            f'<rect width="{_WIDTH}" height="{height}" rx="6" class="paper"/>',
            *parts,
            "</svg>",
        ]
    )


def _svg_bar(coverage: DatasetCoverage, family: FamilyCoverage, y: int) -> Iterator[str]:
    """Draw one row, a pixel for each column, so that its size does not grow with the dataset."""
    x = _MARGIN
    for presence, run in groupby(cells(family, _WIDTH - 2 * _MARGIN)):
        width = len(list(run))
        yield (
            f'<rect x="{x}" y="{y}" width="{width}" height="{_BAR_HEIGHT}"'
            f' class="{presence.value}"><title>{_WORDS[presence]}</title></rect>'
        )
        x += width
    missing = family.of(Presence.MISSING)
    if missing:
        told = "\n".join(_span_text(coverage, span) for span in missing[:_MOST_SPANS])
        yield f"<desc>missing: {html.escape(told)}</desc>"


def _svg_legend(y: int) -> Iterator[str]:
    x = _MARGIN
    for presence, word in _WORDS.items():
        yield f'<rect x="{x}" y="{y - 11}" width="12" height="12" class="{presence.value}"/>'
        yield _svg_text(x + 18, y, word)
        x += 34 + 8 * len(word)


def _svg_text(x: int, y: int, text: str, *, anchor: str = "start", weight: str = "normal") -> str:
    return (
        f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-weight="{weight}">'
        f"{html.escape(text)}</text>"
    )
