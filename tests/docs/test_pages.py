"""The documentation is complete, connected and short where it promises to be."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
WRITTEN = [page for page in sorted(DOCS.rglob("*.md")) if "api" not in page.parts]
PAGES = [*sorted(ROOT.glob("*.md")), *WRITTEN]
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
GENERATED = DOCS / "reference" / "api"  # made on demand


def requirement_names(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=!~;\[ ]", requirement)[0].lower() for requirement in requirements}


def declared_dependencies() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    tables = [
        project["build-system"]["requires"],
        project["project"]["dependencies"],
        *project["project"]["optional-dependencies"].values(),
        *project["dependency-groups"].values(),
    ]
    return {name for table in tables for name in requirement_names(table)} - {"icefloe"}


def test_each_dependency_is_justified_in_one_line() -> None:
    page = (DOCS / "decisions" / "dependencies.md").read_text()
    justified = re.findall(r"^- `([a-z0-9-]+)`: \S.+$", page, re.MULTILINE)
    assert sorted(justified) == sorted(declared_dependencies())


def test_the_readme_fits_on_a_screen() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 60
    assert max(map(len, lines)) <= 120


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = [link for link in LINK.findall(page.read_text()) if "://" not in link]
    missing = [
        target
        for target in targets
        if not (page.parent / target).exists()
        and GENERATED not in (page.parent / target).resolve().parents
    ]
    assert missing == []


def test_every_page_is_reachable_from_the_readme() -> None:
    seen: set[Path] = set()
    queue = [ROOT / "README.md"]
    while queue:
        page = queue.pop().resolve()
        if page in seen or page.suffix != ".md" or not page.exists():
            continue
        seen.add(page)
        queue += [page.parent / link for link in LINK.findall(page.read_text())]
    assert set(PAGES) - seen == set()


@pytest.mark.parametrize(
    "record",
    sorted((DOCS / "decisions").glob("[0-9]*.md")),
    ids=lambda record: record.stem,
)
def test_a_decision_record_fits_on_a_page(record: Path) -> None:
    text = record.read_text()
    assert len(text.splitlines()) <= 60
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert headings == ["Context", "Choice", "Consequences"]
