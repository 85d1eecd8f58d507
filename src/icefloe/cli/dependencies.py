"""`icefloe dependencies`: which foreign objects a repository needs."""

from enum import StrEnum
from typing import Annotated

import typer

from icefloe.cli.common import (
    AllRowsJsonOption,
    AnonymousOption,
    MaxRowsOption,
    RepositoryArgument,
    echo,
    progress_bar,
    show_json,
    show_table,
)


class Grouping(StrEnum):
    """What a row stands for."""

    container = "container"
    bucket = "bucket"
    prefix = "prefix"
    file = "file"
    array = "array"


def dependencies(
    url: RepositoryArgument,
    *,
    by: Annotated[Grouping, typer.Option(help="What to sum up by.")] = Grouping.container,
    prefix: Annotated[
        str | None, typer.Option(help="Only this place and what is below it.")
    ] = None,
    glob: Annotated[
        str | None, typer.Option(help="Only locations like this: * within a segment, ** across.")
    ] = None,
    depth: Annotated[
        int, typer.Option(help="With --by prefix: how many folders to tell apart.", min=0)
    ] = 1,
    branch: Annotated[str | None, typer.Option(help="Look at this branch. [default: main]")] = None,
    tag: Annotated[str | None, typer.Option(help="… or at this tag.")] = None,
    snapshot: Annotated[str | None, typer.Option(help="… or at this snapshot.")] = None,
    all_versions: Annotated[
        bool,
        typer.Option(
            "--all-versions",
            help="Look at all versions before it too; if none is named, of every branch and tag.",
        ),
    ] = False,
    max_rows: MaxRowsOption = 100,
    as_json: AllRowsJsonOption = False,
    anonymous: AnonymousOption = False,
) -> None:
    """Show the foreign objects that a repository needs: chunks, bytes, arrays and versions.

    Chunks, bytes and arrays are those of the newest version that needs a place.

    Who needs this file?
    icefloe dependencies ./repo --by array --all-versions --prefix s3://bucket/file.nc
    """
    from icefloe.api.repository import Repository
    from icefloe.storage import storage_from_url

    repository = Repository.open(storage_from_url(url, anonymous=anonymous))
    with progress_bar("reading manifests") as on_progress:
        report = repository.virtual_dependencies(
            by.value,
            prefix=prefix,
            glob=glob,
            branch=branch,
            tag=tag,
            snapshot_id=snapshot,
            all_versions=all_versions,
            depth=depth,
            on_progress=on_progress,
        )
    if as_json:
        show_json(report.to_dict())
    else:
        show_table(report.headings, report.rows(max_rows))
        echo(report.total(max_rows))
