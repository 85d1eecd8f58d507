"""`icefloe coverage` and `icefloe sources`: what datasets hold, lack, and got late."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from icefloe.cli.common import (
    AllRowsJsonOption,
    AnonymousOption,
    AsOfOption,
    LookAtBranchOption,
    LookAtSnapshotOption,
    LookAtTagOption,
    MaxRowsOption,
    RepositoryArgument,
    echo,
    open_repository,
    show_json,
    show_table,
)
from icefloe.cli.versions import version_options
from icefloe.reports import counted

if TYPE_CHECKING:
    from rich.text import Text

    from icefloe.pipeline.coverage import DatasetCoverage, HeldFile


_COLOURS: Final = {
    "present": "green",
    "late": "yellow",
    "partial": "cyan",
    "missing": "bold red",
}
_INDENT: Final = 4
_MOST_COLUMNS: Final = 120

_GroupOption = Annotated[
    str | None, typer.Option(help='Only this group; "" is the root. [default: all datasets]')
]
PlotOption = Annotated[
    Path | None, typer.Option("--plot", help="Also draw it into this file, as SVG.")
]


def coverage(
    url: RepositoryArgument,
    *,
    group: _GroupOption = None,
    branch: LookAtBranchOption = None,
    tag: LookAtTagOption = None,
    snapshot: LookAtSnapshotOption = None,
    as_of: AsOfOption = None,
    plot: PlotOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with all spans.")] = False,
    anonymous: AnonymousOption = False,
) -> None:
    """Show which steps of datasets are present, missing or late.

    What is present, what is missing, and what came in a later commit than something behind it.
    All of it is known from the record that `icefloe ingest` and `icefloe append` keep: no file
    of the archive is opened, and Spark is not needed.

    Example: icefloe coverage ./cube --plot coverage.svg
    """
    from icefloe.pipeline.coverage import read_coverage

    checked_plot(plot)
    repository = open_repository(url, anonymous=anonymous)
    version = version_options(repository, branch, tag, snapshot, as_of)
    session = repository.readonly_session(**version)
    datasets = read_coverage(session, group)
    if as_json:
        show_json([dataset.to_dict() for dataset in datasets])
    else:
        show_coverage(datasets)
    write_plot(plot, datasets)


def show_coverage(datasets: Sequence[DatasetCoverage]) -> None:
    """Print what datasets hold, in colours on a terminal."""
    from rich.console import Console
    from rich.text import Text

    from icefloe.pipeline.coverage import coverage_text

    if not sys.stdout.isatty():
        echo("\n\n".join(coverage_text(dataset) for dataset in datasets))
        return
    console = Console(highlight=False)
    columns = min(console.width - _INDENT, _MOST_COLUMNS)
    console.print(
        Text("\n\n").join(_coloured(coverage_text(dataset, columns)) for dataset in datasets),
        soft_wrap=True,
    )


def _coloured(text: str) -> Text:
    from rich.text import Text

    from icefloe.pipeline.coverage import SIGNS

    drawn = Text(text)
    for presence, sign in SIGNS.items():
        drawn.highlight_regex(f"{sign}+", _COLOURS[presence])
    return drawn


def checked_plot(plot: Path | None) -> None:
    """Refuse a name under which nobody would expect SVG, before any work is done."""
    if plot is not None and plot.suffix.lower() != ".svg":
        raise typer.BadParameter(
            f"{plot} would be SVG: give it a name that ends in .svg", param_hint="--plot"
        )


def write_plot(plot: Path | None, datasets: Sequence[DatasetCoverage]) -> None:
    """Write the drawing, if one is wanted, and say where."""
    from icefloe.pipeline.coverage import coverage_svg

    if plot is not None:
        plot.write_text(coverage_svg(datasets), encoding="utf-8")
        echo(f"drawn in {plot}", err=True)


_HEADINGS = ("file", "from", "to", "steps", "size", "modified", "ingested", "note")


def sources(
    url: RepositoryArgument,
    *,
    like: Annotated[
        str | None,
        typer.Option(
            help="Only files like this: * within a segment, ** across; without a slash, names."
        ),
    ] = None,
    group: _GroupOption = None,
    branch: LookAtBranchOption = None,
    tag: LookAtTagOption = None,
    snapshot: LookAtSnapshotOption = None,
    as_of: AsOfOption = None,
    max_rows: MaxRowsOption = 100,
    as_json: AllRowsJsonOption = False,
    anonymous: AnonymousOption = False,
) -> None:
    """List the files of a version, in the order of their positions.

    Example: icefloe sources ./cube --like '*_2024*.nc'
    """
    from icefloe.pipeline.coverage import read_sources

    repository = open_repository(url, anonymous=anonymous)
    version = version_options(repository, branch, tag, snapshot, as_of)
    session = repository.readonly_session(**version)
    files = read_sources(session, group, like=like)
    if as_json:
        show_json([file.to_dict() for file in files])
        return
    show_table(_HEADINGS, [_row(file) for file in files[:max_rows]])
    hidden = f" ({len(files) - max_rows} not shown)" if len(files) > max_rows else ""
    echo(f"{counted(len(files), 'file')}{hidden}")


def _row(file: HeldFile) -> tuple[object, ...]:
    from icefloe.reports import shown_bytes

    minute = "%Y-%m-%d %H:%M"
    return (
        file.url,
        file.first,
        file.last,
        file.length,
        "" if file.size is None else shown_bytes(file.size),
        "" if file.modified is None else file.modified.strftime(minute),
        "" if file.ingested is None else file.ingested.strftime(minute),
        "came late" if file.is_late else "",
    )
