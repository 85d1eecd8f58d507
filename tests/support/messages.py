"""All texts of the package that people may read, and the options and arguments that exist."""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

import icefloe
import icefloe.xarray
from icefloe import pipeline
from icefloe.cli.main import LazyCommand, app
from icefloe.pipeline.running import jobs

PACKAGE = Path(icefloe.__file__).parent
ARGUMENT = re.compile(r"(?<![\w.-])([a-z_]{2,})=(?=[\w('\"{.\[])")
"""An argument of Python, with a value."""
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
VALUE = re.compile(r"--[a-z-]+ \S+")
COMMAND = re.compile(r"`icefloe ([a-z ]+[a-z])[^`]*`")
NAME = re.compile(r"\bicefloe((?:\.[A-Za-z_]\w*)+)\(")
"""A call of a public name."""


def arguments_of_jobs() -> set[str]:
    """Name all arguments and fields that a caller of jobs may give."""
    records = (pipeline.CombineOptions, pipeline.ParseOptions, pipeline.CopyIfNeeded)
    functions = (
        icefloe.ingest, icefloe.append, icefloe.rechunk, pipeline.CopyOptions.of, jobs.append,
        jobs.ingest, jobs.virtualize, pipeline.SourceAccess,
    )  # fmt: skip
    fields = {name for record in records for name in record.__struct_fields__}
    return fields | {name for made in functions for name in inspect.signature(made).parameters}


def all_arguments() -> set[str]:
    """Name all arguments of public functions, classes and methods."""
    todo: list[Any] = [
        getattr(module, name) for module in (icefloe, pipeline) for name in module.__all__
    ]
    todo += [icefloe.xarray.to_icechunk, icefloe.xarray.IcefloeBackend]
    names = arguments_of_jobs()
    for value in todo:
        members = vars(value).values() if inspect.isclass(value) else ()
        for called in (value, *members):
            function = getattr(called, "__func__", called)
            if callable(function):
                try:
                    names |= set(inspect.signature(function).parameters)
                except (TypeError, ValueError):
                    continue
    return names


def commands() -> dict[str, set[str]]:
    """Return the options of each command, by its name."""
    found: dict[str, set[str]] = {}
    todo = [("", typer.main.get_command(app))]
    while todo:
        name, command = todo.pop()
        whole = command.load() if isinstance(command, LazyCommand) else command
        found[name] = {option for param in whole.params for option in param.opts}
        todo += [(f"{name} {sub}".strip(), it) for sub, it in _below(command).items()]
    return found


def _below(command: Any) -> dict[str, Any]:
    """Return the commands of a group, or the forms of a command."""
    below: dict[str, Any] = getattr(command, "commands", None) or getattr(command, "forms", {})
    return below


def modules() -> dict[str, list[str]]:
    """Return the commands of each module of the command line."""
    found: dict[str, list[str]] = {}
    todo = [("", typer.main.get_command(app))]
    while todo:
        name, command = todo.pop()
        if isinstance(command, LazyCommand):
            found.setdefault(command.source.partition(":")[0], []).append(name)
        todo += [(f"{name} {sub}".strip(), it) for sub, it in _below(command).items()]
    return found


def messages(paths: list[Path]) -> Iterator[tuple[str, str]]:
    """Yield all texts of modules but docstrings, with the place where they are written."""
    for path in paths:
        tree = ast.parse(path.read_text())
        statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        inner = {
            id(part)
            for node in ast.walk(tree)
            if isinstance(node, ast.JoinedStr)
            for part in ast.walk(node)
            if part is not node
        }
        for node in ast.walk(tree):
            if id(node) in statements | inner:
                continue
            place = f"{path.relative_to(PACKAGE)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.JoinedStr):
                yield place, "".join(map(_shown, node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield place, node.value


def _shown(part: ast.expr) -> str:
    if isinstance(part, ast.Constant):
        return str(part.value)
    assert isinstance(part, ast.FormattedValue)
    return "'name'" if part.conversion == ord("r") else "name"
