"""Every Python snippet of the documentation runs, and prints what its page shows."""

import ast
from pathlib import Path

import pytest

from tools.snippets import Snippet, differences, is_shown, main, snippets

ROOT = Path(__file__).parents[2]
PAGES = [
    page
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if any(snippets(page.read_text()))
]
PAGE = """\
```python
print("seven", id(object()))
```

```output
{output}
```

<!-- test
assert 1 + 1 == 2
-->
"""


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_snippets_print_what_the_page_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    different = differences(page)
    assert different == [], "\n".join(map(str, different))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_readers_see_output_instead_of_assertions(page: Path) -> None:
    visible = [snippet for snippet in snippets(page.read_text()) if not snippet.is_hidden]
    assert [snippet.code for snippet in visible if asserts(snippet)] == []


def asserts(snippet: Snippet) -> bool:
    tree = ast.parse(snippet.code)
    return "AssertionError" in snippet.code or any(
        isinstance(node, ast.Assert) for node in ast.walk(tree)
    )


def test_the_readme_shows_code() -> None:
    assert ROOT / "README.md" in PAGES


def test_wrong_output_is_found_and_can_be_written(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.format(output="eight ..."))
    [difference] = differences(page)
    assert difference.printed.startswith("seven ")
    assert "eight ..." in str(difference)
    assert main([str(page)]) == 1
    assert main(["--write", str(page)]) == 0
    assert "eight" not in page.read_text()
    page.write_text(PAGE.format(output="seven ..."))
    assert differences(page) == []


def test_output_that_a_page_does_not_show_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nprint(7)\n```\n")
    assert main(["--write", str(page)]) == 0
    assert page.read_text() == "```python\nprint(7)\n```\n\n```output\n7\n```\n"
    assert not is_shown("7\n", None)


def test_a_failing_check_fails_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- test\nassert 1 == 2\n-->\n")
    with pytest.raises(AssertionError):
        differences(page)
