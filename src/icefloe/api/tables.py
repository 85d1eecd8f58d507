"""Tables of results: as text for terminals, as HTML for notebooks."""

import html
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Final

from icefloe.printable import printable

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def shown_bytes(count: int) -> str:
    """Write a number of bytes for people.

    >>> shown_bytes(999), shown_bytes(5 * 1024**3 // 2)
    ('999 B', '2.5 GiB')
    """
    size, unit = float(count), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{count} B" if unit == 0 else f"{size:.1f} {_UNITS[unit]}"


def table_text(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Align columns; numbers at their right.

    >>> print(table_text(["place", "chunks"], [["s3://a", 7], ["s3://bucket", 12]]))
    place        chunks
    s3://a            7
    s3://bucket      12
    """
    body = [list(row) for row in rows]
    lines = [[*map(printable, headings)], *([printable(str(cell)) for cell in row] for row in body)]
    widths = [max(map(len, column)) for column in zip_longest(*lines, fillvalue="")]
    is_number = [
        bool(body) and all(isinstance(row[number], int) for row in body)
        for number in range(len(headings))
    ]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, is_number, strict=True)
        ).rstrip()
        for line in lines
    )


def table_html(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Write the same for a notebook."""
    head = "".join(f"<th>{html.escape(printable(heading))}</th>" for heading in headings)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(printable(str(cell)))}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
