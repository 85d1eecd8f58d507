"""The pinned requirement files are complete, agree with each other and name no place."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "requirements").glob("*.txt"))
APART = "former-reference"
"""A group whose pins are installed in a folder of their own."""
PIN = re.compile(
    r"^([a-z0-9-]+)==(\S+)(?: ; [^\\\n]+)? \\\n((?:    --hash=\S+(?: \\)?\n)+)", re.MULTILINE
)


def pins(file: Path) -> dict[str, str]:
    return {name: version for name, version, _ in PIN.findall(file.read_text())}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_file_holds_pins_with_hashes_and_nothing_else(file: Path) -> None:
    assert PIN.sub("", file.read_text()) == ""
    assert pins(file)


@pytest.mark.parametrize("name", ["all", "runtime"])
def test_what_users_install_is_what_is_tested(name: str) -> None:
    tested = pins(ROOT / "requirements" / "dev.txt")
    assert pins(ROOT / "requirements" / f"{name}.txt").items() <= tested.items()


def test_the_pins_satisfy_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    declared = [
        Requirement(line)
        for table in (
            project["project"]["dependencies"],
            *project["project"]["optional-dependencies"].values(),
            *(group for name, group in project["dependency-groups"].items() if name != APART),
        )
        for line in table
    ]
    apart = ROOT / "requirements" / "icechunk-1.txt"
    pinned = {
        name: version for file in FILES if file != apart for name, version in pins(file).items()
    }
    outdated = [
        str(requirement)
        for requirement in declared
        if requirement.name != "icefloe"
        and not requirement.specifier.contains(pinned.get(requirement.name, "0.dev0"))
    ]
    assert outdated == [], "run `make lock`"
    lines = [f"{name}=={version}" for name, version in pins(apart).items()]
    assert lines == project["dependency-groups"][APART], "run `make lock`"
