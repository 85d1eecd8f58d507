"""Messages about files name options that exist: in Python's words, and in those of the shell."""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

import icefloe
from icefloe import pipeline
from icefloe.cli.main import LazyCommand, app
from icefloe.cli.wording import in_shell_words
from icefloe.pipeline.running import jobs

FOLDER = Path(pipeline.__file__).parent
ARGUMENT = re.compile(r"(?<![\w.-])([a-z_]{2,})=(?=[\w('\"{.])")
"""An argument of Python, with a value."""
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
VALUE = re.compile(r"--[a-z-]+ \S+")
COMMAND = re.compile(r"`icefloe ([a-z ]+[a-z])")


def arguments() -> set[str]:
    """Name all arguments and fields that a caller of jobs may give."""
    records = (pipeline.CombineOptions, pipeline.ParseOptions)
    functions = (
        icefloe.ingest, icefloe.append, icefloe.rechunk, pipeline.CopyOptions.of, jobs.append,
        jobs.ingest, jobs.virtualize, pipeline.SourceAccess,
    )  # fmt: skip
    fields = {name for record in records for name in record.__struct_fields__}
    return fields | {name for made in functions for name in inspect.signature(made).parameters}


def commands() -> dict[str, set[str]]:
    """Return the options of each command, by its name."""
    found: dict[str, set[str]] = {}
    todo = [("", typer.main.get_command(app))]
    while todo:
        name, command = todo.pop()
        whole = command.load() if isinstance(command, LazyCommand) else command
        found[name] = {option for param in whole.params for option in param.opts}
        below = getattr(command, "commands", {})
        todo += [(f"{name} {sub}".strip(), below[sub]) for sub in below]
    return found


def messages() -> Iterator[tuple[str, str]]:
    """Yield all texts of the pipeline but docstrings, with the place where they are written."""
    for path in sorted(set(FOLDER.rglob("*.py")) - {FOLDER / "coverage.py"}):  # SVG
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
            if isinstance(node, ast.JoinedStr):
                yield f"{path.name}:{node.lineno}", "".join(map(shown, node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield f"{path.name}:{node.lineno}", node.value


def shown(part: ast.expr) -> str:
    if isinstance(part, ast.Constant):
        return str(part.value)
    assert isinstance(part, ast.FormattedValue)
    return "'name'" if part.conversion == ord("r") else "name"


ALL = [(place, text) for place, text in messages() if " " in text]
ADVICE = [
    pytest.param(text, id=place) for place, text in ALL if ARGUMENT.search(text) or "--" in text
]


ARGUMENTS = arguments()
COMMANDS = commands()


def test_there_are_messages_with_advice() -> None:
    assert len(ALL) > 300
    assert len(ADVICE) > 10


@pytest.mark.parametrize("text", ADVICE)
def test_a_message_names_arguments_and_options_that_exist(text: str) -> None:
    assert set(ARGUMENT.findall(text)) <= ARGUMENTS
    in_shell = in_shell_words(text)
    assert not ARGUMENT.findall(VALUE.sub("", in_shell)), in_shell
    of_other_command = COMMAND.findall(in_shell)
    for command in of_other_command:
        assert any(command.startswith(name) for name in COMMANDS if name), in_shell
    here = ["ingest virtual", "ingest native", "append"]
    known = {
        option for name in COMMANDS if of_other_command or name in here for option in COMMANDS[name]
    }
    assert set(OPTION.findall(in_shell)) <= known, in_shell
