"""A report declares headings, rows and notes; text, HTML and JSON follow from them."""

import json
from collections.abc import Iterator, Mapping

import pytest

from icefloe.cli.common import present
from icefloe.records import Record
from icefloe.reports import FactsReport, JsonReady, Report


class Part(JsonReady, Record):
    path: str
    region: tuple[tuple[int, int], ...]

    def to_dict(self) -> dict[str, object]:
        return {**super().to_dict(), "dimensions": len(self.region)}


class Findings(Report, Record):
    parts: tuple[Part, ...] = ()
    counts: Mapping[str, int] = {}

    headings = ("array", "chunks")
    shown_rows = 2

    def _rows(self) -> Iterator[list[object]]:
        for part in self.parts:
            yield [part.path, len(part.region)]

    def _notes(self) -> Iterator[str]:
        yield f"{len(self.parts)} parts of <all>\n\x1b[31m"


class Table(Findings):
    has_empty_table = True


class Facts(FactsReport, Record):
    chunks: int
    names: list[str]


PARTS = tuple(Part(f"/a{number}", ((0, 3), (5, 6))) for number in range(3))
NOTE = "3 parts of <all>\\n\\x1b[31m"


def test_text_is_the_table_and_the_notes_without_commands_to_terminals() -> None:
    assert repr(Findings(PARTS)) == f"array  chunks\n/a0         2\n/a1         2\n{NOTE}"
    assert repr(Findings()) == NOTE.replace("3", "0", 1)
    assert repr(Table()).startswith("array  chunks\n0 parts")


def test_html_is_escaped() -> None:
    html = Findings(PARTS)._repr_html_()
    assert html.startswith("<table><thead><tr><th>array</th><th>chunks</th></tr></thead>")
    assert html.endswith("<p>3 parts of &lt;all&gt;\\n\\x1b[31m</p>")
    assert "<table>" not in Findings()._repr_html_()
    assert "<table>" in Table()._repr_html_()


def test_rows_are_as_many_as_asked_for() -> None:
    report = Findings(PARTS)
    assert [len(report.rows(most)) for most in (None, 0, 1, 9)] == [2, 0, 1, 3]


def test_a_dictionary_has_plain_values_only() -> None:
    part = {"path": "/a0", "region": [[0, 3], [5, 6]], "dimensions": 2}
    report = Findings(PARTS[:1], {"chunks": 2})
    assert report.to_dict() == {"parts": [part], "counts": {"chunks": 2}}
    assert json.loads(report.to_json()) == report.to_dict()


def test_facts_are_shown_a_line_for_each() -> None:
    report = Facts(7, ["\x1b"])
    assert repr(report) == "<icefloe.Facts>\nchunks: 7\nnames: ['\\x1b']"
    assert "<strong>icefloe.Facts</strong>" in report._repr_html_()
    assert (report.rows(), report.notes()) == ([], [])


def test_a_command_prints_a_report_as_text_or_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    present(Findings(PARTS), as_json=False, max_rows=1)
    assert capsys.readouterr().out == f"array  chunks\n/a0         2\n{NOTE}\n"
    present(Findings(PARTS), as_json=False, max_rows=0)
    assert capsys.readouterr().out == f"{NOTE}\n"
    present(Findings(PARTS), as_json=True)
    assert json.loads(capsys.readouterr().out) == Findings(PARTS).to_dict()
