"""The list of commands: complete, true, and quick to show."""

import inspect
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import icefloe
from icefloe.cli.main import LazyCommand, app

LISTED_MODULES = {"icefloe.cli", "icefloe.cli.main", "icefloe.cli.common"}
HEAVY = {"icefloe.api", "numpy", "obstore", "pyarrow", "pydantic", "pyspark", "xarray", "zarr"}


def commands() -> Iterator[tuple[str, LazyCommand]]:
    tree: list[tuple[str, Any]] = [("", typer.main.get_command(app))]
    while tree:
        name, command = tree.pop()
        if isinstance(command, LazyCommand):
            yield name, command
        else:
            tree += [
                (f"{name} {child}".strip(), below) for child, below in command.commands.items()
            ]


COMMANDS = dict(commands())


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_says_what_the_command_says(name: str) -> None:
    docstring = COMMANDS[name].load().help
    assert COMMANDS[name].help == inspect.cleandoc(docstring).partition("\n\n")[0]
    own_help = CliRunner().invoke(app, [*name.split(), "--help"])
    assert f"{name} [OPTIONS]" in own_help.stdout


def test_help_lists_all_commands() -> None:
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).stdout
    for name, command in COMMANDS.items():
        if " " not in name:
            assert f"{name} " in shown
            assert str(command.help) in shown


def modules_after(*arguments: str) -> set[str]:
    """Run a command in a fresh process, and return the modules that it imported."""
    code = (
        "import json, sys\n"
        "from icefloe.cli.main import app\n"
        f"app({list(arguments)!r}, standalone_mode=False)\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def of_commands(modules: set[str]) -> set[str]:
    return {name for name in modules if name.startswith("icefloe.cli")} - LISTED_MODULES


@pytest.mark.parametrize("arguments", [["--help"], ["manifests", "--help"], ["--version"]])
def test_help_imports_no_command(arguments: list[str]) -> None:
    modules = modules_after(*arguments)
    assert not of_commands(modules)
    assert not modules & HEAVY


def test_help_of_a_command_imports_only_its_options() -> None:
    modules = modules_after("stats", "--help")
    assert len(of_commands(modules)) == 1
    assert not modules & HEAVY


def test_a_command_imports_only_what_it_needs(tmp_path: Path) -> None:
    icefloe.Repository.create(icefloe.local_filesystem_storage(str(tmp_path)))
    modules = modules_after("stats", str(tmp_path))
    assert "icefloe.maintenance.statistics" in modules
    assert len(of_commands(modules)) == 1
    assert not {name for name in modules if name.startswith("icefloe.maintenance.verify")}
    assert not modules & {"obstore", "pyarrow", "pydantic", "pyspark", "rich.table", "xarray"}
