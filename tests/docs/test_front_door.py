"""What a newcomer looks for first exists, and agrees with the package."""

import runpy
import tomllib
from pathlib import Path

import icefloe

ROOT = Path(__file__).parents[2]
FIRST_LINES = 12


def project() -> dict[str, object]:
    metadata: dict[str, object] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return metadata


def test_the_version_is_known_without_installation() -> None:
    alone = runpy.run_path(str(ROOT / "src" / "icefloe" / "version.py"))
    assert alone["VERSION"] == icefloe.__version__
    assert "version" not in project()


def test_the_licence_is_the_declared_licence() -> None:
    licence = (ROOT / "LICENSE").read_text()
    assert project()["license"] == "Apache-2.0"
    assert "Apache License" in licence
    assert "Version 2.0" in licence


def test_the_changelog_names_the_next_release() -> None:
    assert "## [Unreleased]" in (ROOT / "CHANGELOG.md").read_text()


def test_the_readme_begins_with_the_purpose() -> None:
    beginning = "\n".join((ROOT / "README.md").read_text().splitlines()[:FIRST_LINES])
    for word in ("version control", "netCDF", "scientists", "icechunk", "pip install"):
        assert word in beginning


def test_contributors_find_every_folder_of_tests() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    folders = {path.parent.relative_to(ROOT / "tests").parts[0] for path in _test_files()}
    missing = {folder for folder in folders if f"`{folder}" not in page}
    assert missing == set()


def _test_files() -> list[Path]:
    return [path for path in (ROOT / "tests").rglob("test_*.py") if path.parent.name != "tests"]
