"""`icefloe sources`: which files a version holds, in which state and at which place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from icefloe.cli.common import (
    AllRowsJsonOption,
    AnonymousOption,
    MaxRowsOption,
    RepositoryArgument,
    echo,
    show_json,
    show_table,
)

if TYPE_CHECKING:
    from icefloe.pipeline.coverage import HeldFile

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
    group: Annotated[
        str | None, typer.Option(help='Only this group; "" is the root. [default: all datasets]')
    ] = None,
    branch: Annotated[str | None, typer.Option(help="Look at this branch. [default: main]")] = None,
    tag: Annotated[str | None, typer.Option(help="… or at this tag.")] = None,
    snapshot: Annotated[str | None, typer.Option(help="… or at this snapshot.")] = None,
    max_rows: MaxRowsOption = 100,
    as_json: AllRowsJsonOption = False,
    anonymous: AnonymousOption = False,
) -> None:
    """List the files that a version holds, in the order of their places.

    Example: icefloe sources ./cube --like '*_2024*.nc'
    """
    from icefloe.api.repository import Repository
    from icefloe.pipeline.coverage import read_sources
    from icefloe.storage import storage_from_url

    repository = Repository.open(storage_from_url(url, anonymous=anonymous))
    is_default = (branch, tag, snapshot) == (None, None, None)
    session = repository.readonly_session(
        "main" if is_default else branch, tag=tag, snapshot_id=snapshot
    )
    files = read_sources(session, group, like=like)
    if as_json:
        show_json([file.to_dict() for file in files])
        return
    show_table(_HEADINGS, [_row(file) for file in files[:max_rows]])
    hidden = f" ({len(files) - max_rows} not shown)" if len(files) > max_rows else ""
    echo(f"{len(files)} files{hidden}")


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
