"""Commands and code of the demonstration: each is printed before it runs."""

import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from icefloe.cli.main import app


@dataclass(frozen=True, slots=True)
class Shell:
    """Runs `icefloe` in this process, as a shell would, and shows what was typed."""

    console: Console

    def run(self, *arguments: object, code: int = 0) -> None:
        """Print a command, then run it; stop the demonstration unless it ends as expected."""
        words = [str(argument) for argument in arguments]
        line = Text(f"\n$ icefloe {shlex.join(words)}", style="bold cyan")
        self.console.print(line, soft_wrap=True)
        command = typer.main.get_command(app)
        outcome = command.main(words, prog_name="icefloe", standalone_mode=False)
        if (outcome or 0) != code:
            raise SystemExit(f"the command ended with {outcome}, not {code}")

    def evaluate(self, lines: str, names: dict[str, Any]) -> None:
        """Print lines of Python, then run them."""
        self.console.print()
        for line in lines.strip().splitlines():
            prompt = "... " if line.startswith(" ") else ">>> "
            self.console.print(Text(prompt + line, style="bold cyan"), soft_wrap=True)
        exec(lines, names)  # noqa: S102 - its purpose


def shown_path(path: Path) -> str:
    """Return a path as somebody in this folder would type it."""
    return os.path.relpath(path)
