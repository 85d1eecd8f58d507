"""The linter of plain English finds seeded problems, and the project is clean."""

from pathlib import Path

import pytest

from tools import plain_english


@pytest.mark.parametrize(
    "line",
    [
        "for whoever reads it",
        "what is there is kept",
        "readers need leave to read it",
        "there are so many of them",
        "many files, some of which; and others",
        "it is dropped without a word",
        "the caller is told",
        "written anew",
    ],
)
def test_an_odd_phrase_is_found_in_sources_and_pages(line: str) -> None:
    text = f"fine\n{line}\n"
    assert [number for number, _ in plain_english.odd_phrases(text)] == [2]
    assert [number for number, _ in plain_english.odd_page(text)] == [2]


@pytest.mark.parametrize(
    "line",
    [
        "it happens by itself",
        "as far as we know",
        "nobody was told",
        "what is lost",
        "files are gone",
    ],
)
def test_pages_are_held_to_more(line: str) -> None:
    assert [number for number, _ in plain_english.odd_page(f"{line}\n")] == [1]


def test_code_and_output_of_pages_do_not_count() -> None:
    assert list(plain_english.odd_page("```output\nthe object is gone\n```\n")) == []


def test_docstrings_and_parameters_are_checked() -> None:
    code = 'def tip(one: str) -> str:\n    """Give the tip."""\n'
    problems = [problem for _, problem in plain_english.odd_code(code)]
    assert problems == [
        "docstring of tip begins with 'Give'",
        "parameter 'one' of tip has no noun",
    ]


def test_the_exit_code_counts_problems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text("# Page\n\nFor whoever reads it.\n")
    monkeypatch.setattr(plain_english, "ROOT", tmp_path)
    monkeypatch.setattr(plain_english, "PAGES", ("docs",))
    assert plain_english.main() == 1
    assert capsys.readouterr().out == "docs/page.md:3: odd phrase 'whoever'\n"


def test_the_project_is_clean() -> None:
    assert list(plain_english.problems()) == []
