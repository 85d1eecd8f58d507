"""The list of commands: complete, true, and quick to show."""

import inspect
import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import icefloe
from icefloe.cli.common import is_quiet, progress_bar
from icefloe.cli.main import COMMANDS as ALL_COMMANDS
from icefloe.cli.main import PANELS, LazyCommand, app

LISTED_MODULES = {f"icefloe.cli{name}" for name in ("", ".main", ".common", ".option_sets")}
OF_ALL_COMMANDS = {"icefloe.cli.wording"}
HEAVY = {"icefloe.api", "numpy", "obstore", "pyarrow", "pydantic", "pyspark", "xarray", "zarr"}


def commands() -> Iterator[tuple[str, LazyCommand]]:
    tree: list[tuple[str, Any]] = [("", typer.main.get_command(app))]
    while tree:
        name, command = tree.pop()
        if isinstance(command, LazyCommand):
            yield name, command
        below = command.forms if isinstance(command, LazyCommand) else command.commands
        tree += [(f"{name} {child}".strip(), it) for child, it in below.items()]


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


def shown_help(*arguments: str) -> str:
    """Return the help of a command as one line, without the boxes around it."""
    result = CliRunner().invoke(app, [*arguments], env={"COLUMNS": "400", "TERM": "dumb"})
    assert result.exit_code == 0, result.output
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", result.stdout).split())


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_every_word_that_was_written(name: str) -> None:
    command = COMMANDS[name]
    module, _, function = command.source.partition(":")
    documented = inspect.getdoc(getattr(import_module(f"icefloe.cli.{module}"), function))
    assert documented is not None
    shown = shown_help(*name.split(), "-h")
    for paragraph in documented.split("\n\n"):
        assert " ".join(paragraph.split()) in shown
    for param in command.load().params:
        written = getattr(param, "help", None) or ""
        assert " ".join(written.replace("\\[", "[").split()) in shown
        assert "\\[" not in shown
        assert written, f"{param.name} has no help"


def test_defaults_in_brackets_are_shown() -> None:
    assert "Read this branch. [default: main]" in shown_help("coverage", "--help")
    assert "org/name, org/* or */*. Can be repeated. [default: */*]" in shown_help(
        "token", "create", "--help"
    )
    assert "with * ? [..] {a,b} and ** as in a shell." in shown_help("append", "--help")


def test_commands_are_grouped_by_purpose() -> None:
    names = [name for panel in PANELS.values() for name in panel]
    assert sorted(names) == sorted(str(command.name) for command in ALL_COMMANDS)
    shown = shown_help("--help")
    places = [shown.index(f" {panel} ") for panel in PANELS]
    assert places == sorted(places)
    config = shown_help("config", "-h")
    assert config.index("Settings of a repository show") < config.index("Names on this machine add")


def test_the_help_of_a_command_lists_its_forms_behind_its_options() -> None:
    shown = shown_help("ingest", "--help")
    places = [
        shown.index(text)
        for text in (
            *(" Arguments ", "* --repo", "How files fit together", "--concat <", "--fill-missing"),
            *("What is taken of files", "--drop", "How values are copied", "--most-copied"),
            *("Options of all commands", "One form only", "virtual Combine", "native Copy"),
        )
    ]
    assert places == sorted(places)
    for form in ("virtual", "native"):
        assert f"icefloe ingest {form} [OPTIONS]" in shown_help("ingest", form, "--help")
    assert CliRunner().invoke(app, ["ingest"]).output.count("Usage: icefloe ingest [OPTIONS]") == 1


def test_an_error_is_one_line_where_no_terminal_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = tmp_path / ("long" * 30)
    message, kind = CliRunner().invoke(app, ["log", str(missing)]).stderr.splitlines()
    assert message.startswith("error (repository-not-found): there is no repository in")
    assert (str(missing) in message, kind) == (True, "  kind: repository-not-found")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    assert len(CliRunner().invoke(app, ["log", str(missing)]).stderr.splitlines()) > 2


@pytest.mark.parametrize(
    "name",
    [
        *("create", "log", "show", "diff", "tree", "status", "config show", "config set"),
        *(f"branch {action}" for action in ("list", "create", "delete", "reset")),
        *(f"tag {action}" for action in ("list", "create", "delete")),
        *(f"container {action}" for action in ("list", "add", "remove")),
        *("ingest", "ingest virtual", "ingest native", "append", "rechunk", "plan", "coverage"),
        "sources",
    ],
)
def test_commands_of_versions_and_archives_print_json(name: str) -> None:
    assert "--json" in {option for param in COMMANDS[name].load().params for option in param.opts}


def test_moments_are_taken_wherever_a_version_is_read() -> None:
    options = {
        name: {option for param in command.load().params for option in param.opts}
        for name, command in COMMANDS.items()
    }
    by_options = {name for name, known in options.items() if "--snapshot" in known}
    assert len(by_options) > 5
    assert [name for name in sorted(by_options) if "--as-of" not in options[name]] == []
    for name in ("log", "show", "tree", "branch create", "branch reset", "tag create"):
        assert "--as-of" in options[name]
    assert "--from-as-of" in options["rechunk"]


def test_h_is_help_everywhere() -> None:
    groups = {name.rpartition(" ")[0] for name in COMMANDS}
    for name in groups:
        assert shown_help(*name.split(), "-h") == shown_help(*name.split(), "--help")


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "icefloe", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"icefloe {icefloe.__version__}\n"


@pytest.mark.parametrize("is_before", [True, False])
@pytest.mark.parametrize(
    ("options", "level"),
    [
        (["-v"], logging.INFO),
        (["-vv"], logging.DEBUG),
        (["--log-level", "warn"], logging.WARNING),
        (["-v", "--log-level", "error"], logging.ERROR),
        (["-q"], logging.CRITICAL + 1),
        ([], logging.NOTSET),
    ],
)
def test_the_log_is_chosen_before_or_behind_the_command(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_before: bool,
    options: list[str],
    level: int,
) -> None:
    seen = []

    def look(url: str) -> bool:
        seen.append((logging.getLogger("icefloe").level, is_quiet.get()))
        return False

    monkeypatch.setattr("icefloe.cli.settings.is_of_service", look)
    command = ["create", str(tmp_path / "repo")]
    arguments = [*options, *command] if is_before else [*command, *options]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert seen == [(level, options == ["-q"])]
    assert logging.getLogger("icefloe").level == logging.NOTSET
    assert not is_quiet.get()


def test_an_unknown_level_is_refused(tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["log", str(tmp_path), "--log-level", "loud"]).exit_code == 2


def test_quiet_shows_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress_bar("working") as shown:
        assert shown is not None
    token = is_quiet.set(True)
    with progress_bar("working") as shown:
        assert shown is None
    is_quiet.reset(token)


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
    assert len(of_commands(modules) - OF_ALL_COMMANDS) == 1
    assert not {name for name in modules if name.startswith("icefloe.maintenance.verify")}
    assert not modules & {"obstore", "pyarrow", "pydantic", "pyspark", "rich.table", "xarray"}
