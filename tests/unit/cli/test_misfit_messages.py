"""Messages about files name options that exist: in Python's words, and in those of the shell."""

import re

import pytest

from icefloe.cli.wording import in_shell_words
from tests.support.messages import (
    ARGUMENT,
    COMMAND,
    OPTION,
    PACKAGE,
    VALUE,
    arguments_of_jobs,
    commands,
    messages,
)

FOLDER = PACKAGE / "pipeline"
PATHS = sorted(set(FOLDER.rglob("*.py")) - {FOLDER / "coverage.py"})  # SVG

ALL = [(place, text) for place, text in messages(PATHS) if " " in text]
ADVICE = [
    pytest.param(text, id=place) for place, text in ALL if ARGUMENT.search(text) or "--" in text
]


LINE = re.compile(r"xr\.open_dataset\(.*\)")
"""A line of Python to copy, which is the same in the shell."""
ARGUMENTS = arguments_of_jobs()
COMMANDS = commands()


def test_there_are_messages_with_advice() -> None:
    assert len(ALL) > 300
    assert len(ADVICE) > 10


@pytest.mark.parametrize("text", ADVICE)
def test_a_message_names_arguments_and_options_that_exist(text: str) -> None:
    assert set(ARGUMENT.findall(LINE.sub("", text))) <= ARGUMENTS
    in_shell = LINE.sub("", in_shell_words(text))
    assert not ARGUMENT.findall(VALUE.sub("", in_shell)), in_shell
    of_other_command = COMMAND.findall(in_shell)
    for command in of_other_command:
        assert any(command.startswith(name) for name in COMMANDS if name), in_shell
    here = ["ingest", "ingest virtual", "ingest native", "append"]
    known = {
        option for name in COMMANDS if of_other_command or name in here for option in COMMANDS[name]
    }
    assert set(OPTION.findall(in_shell)) <= known, in_shell
