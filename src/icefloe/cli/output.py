"""What commands have in common when they show results: progress, tables, JSON."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.highlighter import JSONHighlighter
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from icefloe.api.tables import table_text
from icefloe.printable import printable, printable_json


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int], None] | None]:
    """Show how much of how much is done, on standard error; nothing if that is no terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task(title, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print text of one or more lines; what a terminal would take for a command is written out."""
    typer.echo(printable(text, keep="\n"), err=err, nl=nl)


def show_json(value: Any) -> None:
    """Print JSON, in colours on a terminal."""
    text = printable_json(json.dumps(value, indent=2, ensure_ascii=False))
    if sys.stdout.isatty():
        Console().print(JSONHighlighter()(text), soft_wrap=True)
    else:
        typer.echo(text)


def show_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table: drawn on a terminal, plain columns that other programs can cut elsewhere."""
    if sys.stdout.isatty():
        Console().print(drawn_table(headings, rows))
    else:
        echo(table_text(headings, rows))


def drawn_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """Draw a table; what a repository says is never taken for markup."""
    body = [list(row) for row in rows]
    table = Table()
    for at, heading in enumerate(headings):
        is_number = bool(body) and all(isinstance(row[at], int) for row in body)
        table.add_column(
            Text(printable(heading)), justify="right" if is_number else "left", overflow="fold"
        )
    for row in body:
        table.add_row(*(Text(printable(str(cell))) for cell in row))
    return table
