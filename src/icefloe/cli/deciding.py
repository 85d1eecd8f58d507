"""What commands that change things have in common: they ask first, and can be interrupted."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import typer

from icefloe.cli.output import echo
from icefloe.printable import printable

INTERRUPTED: Final = 130
"""What the shell sees after a key press, as with other commands."""
DECLINED: Final = 1


def require_consent(question: str, *, given: bool) -> None:
    """Ask, unless the answer was given with the command; leave if it is not yes."""
    if given:
        return
    try:
        agrees = typer.confirm(printable(question, keep="\n"), err=True)
    except typer.Abort:  # nobody is there to answer
        echo("", err=True)
        agrees = False
    if not agrees:
        echo("nothing was changed; --yes goes on without asking", err=True)
        raise typer.Exit(DECLINED)


@contextmanager
def interruptible(after: str) -> Iterator[None]:
    """Tell a key press as such, and what it left behind."""
    try:
        yield
    except KeyboardInterrupt:
        echo(f"interrupted: {after}", err=True)
        raise typer.Exit(INTERRUPTED) from None
