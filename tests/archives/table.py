"""Write the table of all cases into the documentation.

python -m tests.archives.table            # print it
python -m tests.archives.table --write    # write it into docs/explanation/archives.md
"""

import sys
from itertools import groupby
from pathlib import Path

from tests.archives.cases import Case, Refused
from tests.archives.matrix import CASES

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "archives.md"
BEGIN = "<!-- cases: python -m tests.archives.table --write -->\n"
END = "<!-- end of cases -->\n"
_READERS = {"Samples": "Files of packages"}


def table() -> str:
    """Return the tables of all families, as Markdown."""
    virtual = sum(case.virtual is None for case in CASES)
    native = sum(case.native is None for case in CASES)
    lines = [
        f"{len(CASES)} archives: {virtual} can be ingested by reference, {native} as a copy.",
        "",
    ]
    for family, cases in groupby(CASES, key=lambda case: case.family):
        lines += [f"### {_READERS.get(family, family)}", ""]
        lines += [
            "| archive | made with | by reference | as a copy | note |",
            "|---|---|---|---|---|",
        ]
        lines += [_row(case) for case in cases]
        lines.append("")
    return "\n".join(lines) + "\n"


def _row(case: Case) -> str:
    cells = [case.title, case.made_with, _word(case.virtual), _word(case.native), _note(case)]
    return f"| {' | '.join(cell.replace('|', '\\|') for cell in cells)} |"


def _word(refused: Refused | None) -> str:
    if refused is None:
        return "yes"
    return "no" if refused.remedy is None else f"with {refused.word}"


def _note(case: Case) -> str:
    words = [case.note]
    words += [
        refused.word
        for refused in (case.virtual, case.native)
        if refused is not None and refused.remedy is None
    ]
    return "; ".join(dict.fromkeys(word for word in words if word))


def page() -> str:
    """Return the page with the present table."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}{END}{after}"


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        PAGE.write_text(page())
    else:
        sys.stdout.write(table())
