"""Every Python snippet of the documentation runs."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# What is generated in `api` repeats docstrings, whose examples run elsewhere.
WRITTEN = [page for page in sorted((ROOT / "docs").rglob("*.md")) if "api" not in page.parts]
PAGES = [ROOT / "README.md", *WRITTEN]
SNIPPET = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def snippets(page: Path) -> Iterator[str]:
    """Give each snippet as many empty lines as make its tracebacks point into the page."""
    text = page.read_text()
    for found in SNIPPET.finditer(text):
        yield "\n" * text.count("\n", 0, found.start(1)) + found.group(1)


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if any(snippets(page))],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_snippets_run_in_order(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "snippet"}
    for snippet in snippets(page):
        exec(compile(snippet, str(page), "exec"), names)


def test_the_readme_shows_code() -> None:
    assert list(snippets(ROOT / "README.md"))
