"""Results that people read: as text for terminals, as HTML for notebooks, as JSON for programs."""

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice, zip_longest
from typing import Any, ClassVar, Final, Protocol

from icefloe.printable import escaped_html, printable
from icefloe.records import MutableRecord, Record, asdict, field_names

_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?", re.IGNORECASE)
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")

_STYLE: Final = """<style>
.icefloe-object { line-height: 1.5; }
.icefloe-object > strong { border-bottom: 1px solid #8884; }
.icefloe-object th { text-align: left; font-weight: normal; opacity: 0.7; padding-right: 1em; }
.icefloe-object td { text-align: left; }
.icefloe-object pre { margin: 0; }
.icefloe-object summary { cursor: pointer; }
</style>
"""


def shown_bytes(count: int) -> str:
    """Write a number of bytes for people.

    >>> shown_bytes(999), shown_bytes(5 * 1024**3 // 2)
    ('999 B', '2.5 GiB')
    """
    size, unit = float(count), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{count} B" if unit == 0 else f"{size:.1f} {_UNITS[unit]}"


def parse_bytes(text: str) -> int:
    """Read a number of bytes, perhaps with a unit; raise `ValueError` for anything else.

    >>> parse_bytes("256M"), parse_bytes("1.5 GB"), parse_bytes("512")
    (268435456, 1610612736, 512)
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not like 256M or 2G")
    return int(float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " "))


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Write a number of things.

    >>> counted(1, "file"), counted(3000, "file"), counted(2, "entry", "entries")
    ('1 file', '3000 files', '2 entries')
    """
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


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
    head = "".join(f"<th>{escaped_html(printable(heading))}</th>" for heading in headings)
    body = "".join(
        "<tr>" + "".join(f"<td>{escaped_html(printable(str(cell)))}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def object_text(title: str, facts: Mapping[str, object]) -> str:
    """Write what is worth knowing about an object, a line for each fact."""
    return "\n".join([f"<icefloe.{title}>", *(f"{name}: {fact}" for name, fact in _shown(facts))])


def object_html(
    title: str,
    facts: Mapping[str, object],
    *,
    drawing: Sequence[str] = (),
    heading: str = "",
    tables: Mapping[str, tuple[Sequence[str], Sequence[Sequence[object]]]] | None = None,
) -> str:
    """Write the same for a notebook, with tables and a drawing to unfold.

    A table is its headings and its rows, by the text above it. The colours are those of the
    notebook, light or dark.
    """
    rows = "".join(
        f"<tr><th>{escaped_html(name)}</th><td>{escaped_html(fact)}</td></tr>"
        for name, fact in _shown(facts)
    )
    below = "".join(
        _unfolded(text, table_html(*table)) for text, table in (tables or {}).items() if table[1]
    )
    if drawing:
        text = escaped_html("\n".join(map(printable, drawing)))
        below += _unfolded(heading, f"<pre>{text}</pre>")
    return (
        f'{_STYLE}<div class="icefloe-object"><strong>icefloe.{escaped_html(title)}</strong>'
        f"<table>{rows}</table>{below}</div>"
    )


def _unfolded(heading: str, content: str) -> str:
    return f"<details open><summary>{escaped_html(heading)}</summary>{content}</details>"


def _shown(facts: Mapping[str, object]) -> list[tuple[str, str]]:
    return [(name, printable(str(fact), keep="\n")) for name, fact in facts.items()]


class TextPrinter(Protocol):
    """The printer that IPython gives to values, for their text."""

    def text(self, text: str) -> None:
        """Write a text."""


class JsonReady:
    """Base of records that can be written as JSON."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Return everything as a dictionary, ready for JSON."""
        return {name: plain(getattr(self, name)) for name in field_names(self)}

    def to_json(self) -> str:
        """Return everything as JSON, for programs."""
        import json

        return json.dumps(self.to_dict())


def plain(value: Any) -> Any:
    """Return a value with lists and dictionaries in place of tuples and records."""
    match value:
        case JsonReady():
            return value.to_dict()
        case Record() | MutableRecord():
            return {name: plain(getattr(value, name)) for name in field_names(value)}
        case list() | tuple():
            return [*map(plain, value)]
        case Mapping():
            return {key: plain(content) for key, content in value.items()}
    return value


class Report(JsonReady):
    """Base of results: a table of rows under `headings`, then notes in sentences."""

    __slots__ = ()
    shown_rows: ClassVar[int | None] = None
    """How many rows are shown if nobody asks for more; None: all."""
    has_empty_table: ClassVar[bool] = False
    """Whether the headings are shown even if there are no rows."""

    @property
    def headings(self) -> Sequence[str]:
        """The headings of the columns of `rows`."""
        return ()

    def rows(self, most: int | None = None) -> list[list[object]]:
        """Return the first rows of the table, for people, under `headings`."""
        limit = self.shown_rows if most is None else min(most, sys.maxsize)
        return [*map(list, islice(self._rows(), limit))]

    def _rows(self) -> Iterable[Iterable[object]]:
        return ()

    def notes(self) -> list[str]:
        """Describe in sentences what the table does not show."""
        return [*map(printable, self._notes())]

    def _notes(self) -> Iterable[str]:
        return ()

    def __repr__(self) -> str:
        rows = self.rows()
        table = [table_text(self.headings, rows)] if rows or self.has_empty_table else []
        return "\n".join([*table, *self.notes()])

    def _repr_html_(self) -> str:
        rows = self.rows()
        table = table_html(self.headings, rows) if rows or self.has_empty_table else ""
        return table + "".join(f"<p>{escaped_html(note)}</p>" for note in self.notes())


class FactsReport(Report):
    """Base of results that show themselves as a list of facts, a line for each."""

    __slots__ = ()

    @property
    def _title(self) -> str:
        return type(self).__name__

    def _facts(self) -> Mapping[str, object]:
        return asdict(self)

    def __repr__(self) -> str:
        return object_text(self._title, self._facts())

    def _repr_html_(self) -> str:
        return object_html(self._title, self._facts())
