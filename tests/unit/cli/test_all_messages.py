"""Every message names what exists: options of commands in the shell, arguments in Python."""

import inspect
from pathlib import Path

import pytest

import icefloe
from icefloe.cli.wording import in_shell_words
from tests.support.messages import (
    ARGUMENT,
    COMMAND,
    NAME,
    OPTION,
    PACKAGE,
    all_arguments,
    commands,
    messages,
    modules,
)

ELSEWHERE = ("cli", "pipeline", "service", "web", "testing")
REPRS = ("catalog/wire.py", "storage/latency.py", "storage/specs.py")
"""Their texts with arguments are what objects look like, not advice."""
LIBRARY = [
    path
    for path in sorted(PACKAGE.rglob("*.py"))
    if path.relative_to(PACKAGE).parts[0] not in ELSEWHERE
    and str(path.relative_to(PACKAGE)) not in REPRS
]
OF_LIBRARY = [
    pytest.param(text, id=place)
    for place, text in messages(LIBRARY)
    if " " in text
    and "<" not in text
    and (ARGUMENT.search(text) or NAME.search(text) or "--" in text)
]
OF_CLI = [
    pytest.param(path.stem, text, id=place)
    for path in sorted((PACKAGE / "cli").glob("*.py"))
    for place, text in messages([path])
    if " " in text and OPTION.search(text) and path.stem != "wording"
]
ARGUMENTS = all_arguments()
COMMANDS = commands()
MODULES = modules()
OF_OTHER_LIBRARIES = {"tzinfo", "zarr_format"}
"""Arguments of `datetime` and `zarr`, whose functions the messages name."""


def whole_name(command: str) -> str:
    """Return the command that a text begins with: `tag create v1` is `tag create`."""
    words = command.split()
    names = [" ".join(words[:length]) for length in range(len(words), 0, -1)]
    return next((name for name in names if name in COMMANDS), "")


def check_commands(text: str, known: set[str]) -> None:
    for line in COMMAND.finditer(text):
        name = whole_name(line[1])
        assert name, f"there is no command {line[1]!r}"
        assert set(OPTION.findall(line[0])) <= COMMANDS[name], line[0]
    rest = COMMAND.sub("", text)
    assert set(OPTION.findall(rest)) <= known, rest


@pytest.mark.parametrize("text", OF_LIBRARY)
def test_a_message_of_the_library(text: str) -> None:
    assert set(ARGUMENT.findall(text)) - OF_OTHER_LIBRARIES <= ARGUMENTS
    for path in NAME.findall(text):
        value: object = icefloe
        for name in path.strip(".").split("."):
            value = getattr(value, name)
        assert callable(value)
    anywhere = {option for options in COMMANDS.values() for option in options}
    check_commands(in_shell_words(text), anywhere)


@pytest.mark.parametrize(("module", "text"), OF_CLI)
def test_a_message_of_a_command(module: str, text: str) -> None:
    # `icefloe access` prints the options that other commands need.
    own = list(COMMANDS) if module == "dependencies" else MODULES.get(module) or list(COMMANDS)
    known = {option for name in own for option in COMMANDS[name]} | COMMANDS[""]
    check_commands(text, known)


def test_there_are_messages_to_look_at() -> None:
    assert len(OF_LIBRARY) > 40
    assert len(OF_CLI) > 15
    assert {"authorize_virtual_chunk_access", "rebase_with", "check_clean_root"} <= ARGUMENTS
    assert Path(inspect.getfile(icefloe)).parent == PACKAGE
