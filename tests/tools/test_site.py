"""The site builds without warnings, and is complete and self-contained."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tools import site
from tools.reference import FOR_USERS, SUBJECTS

LOADED = re.compile(r"<(?:script|img|link|iframe)\b[^>]*(?:src|href)=\"?((?:https?:)?//[^\" >]+)")
IMPORTED = re.compile(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//[^\"')]+")


def navigation(entries: list[Any]) -> list[str]:
    pages = []
    for entry in entries:
        [value] = entry.values()
        pages += [value] if isinstance(value, str) else navigation(value)
    return pages


def in_navigation() -> list[str]:
    return navigation(tomllib.loads(site.CONFIG.read_text())["project"]["nav"])


def test_every_page_is_in_the_navigation_once() -> None:
    written = [str(path.relative_to(site.DOCS)) for path in site.DOCS.rglob("*.md")]
    project = [f"project/{name.lower()}.md" for name in site.PROJECT_PAGES]
    generated = [*SUBJECTS, *FOR_USERS, "index", "modules/index"]
    api = [f"reference/api/{name}.md" for name in generated if name != "more"]
    assert sorted(in_navigation()) == sorted([*written, *project, *api])


@pytest.mark.slow
def test_the_site_builds_without_warnings_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    target = tmp_path / "site"
    assert site.build(tmp_path / "source", target) == 0
    for name in in_navigation():
        assert (target / _built(name)).exists(), name
    for page in target.rglob("*.html"):
        assert LOADED.findall(page.read_text()) == [], page
    for style in target.rglob("*.css"):
        assert IMPORTED.findall(style.read_text()) == [], style
    assert (target / "search.json").exists()


def _built(page: str) -> str:
    folder = page.removesuffix(".md").removesuffix("index").rstrip("/")
    return f"{folder}/index.html" if folder else "index.html"


@pytest.mark.slow
def test_a_broken_link_fails_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = tmp_path / "source"
    monkeypatch.setattr(site, "write_reference", _broken)
    assert site.build(stage, tmp_path / "site") != 0
    assert not (tmp_path / "site").exists()


def _broken(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "index.md").write_text("# Broken\n\n[nowhere](missing.md)\n")


def test_pages_are_copied_with_links_that_lead_on(tmp_path: Path) -> None:
    site.copy_pages(tmp_path)
    page = (tmp_path / "docs" / "project" / "contributing.md").read_text()
    assert "](../explanation/architecture.md)" in page
    assert "](docs/" not in page
    assert (tmp_path / "zensical.toml").exists()
