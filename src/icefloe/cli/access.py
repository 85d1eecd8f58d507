"""`icefloe access`: what it takes to read a repository's virtual chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from icefloe.cli.common import (
    AnonymousOption,
    JsonOption,
    RepositoryArgument,
    echo,
    progress_bar,
    show_json,
    show_table,
)

if TYPE_CHECKING:
    from icefloe.api.dependencies import AccessReport


def access(
    url: RepositoryArgument,
    *,
    branch: Annotated[
        str | None, typer.Option(help="Count the references of this branch. [default: main]")
    ] = None,
    tag: Annotated[str | None, typer.Option(help="… or of this tag.")] = None,
    snapshot: Annotated[str | None, typer.Option(help="… or of this snapshot.")] = None,
    as_json: JsonOption = False,
    anonymous: AnonymousOption = False,
) -> None:
    """Show what you need to read the virtual chunks of a repository, before you open it.

    Lists each container, what it needs and how many references use it. Contacts nothing but the
    repository itself.

    Example: icefloe access s3://bucket/repository --branch main
    """
    from icefloe.api.repository import Repository
    from icefloe.storage import storage_from_url

    repository = Repository.open(storage_from_url(url, anonymous=anonymous))
    with progress_bar("reading manifests") as on_progress:
        report = repository.describe_access(
            branch, tag=tag, snapshot_id=snapshot, on_progress=on_progress
        )
    if as_json:
        show_json(report.to_dict())
    else:
        _show(report)


def _show(report: AccessReport) -> None:
    from icefloe.api.dependencies import ACCESS_HEADINGS, access_rows

    if not report.containers:
        echo(repr(report))
        return
    show_table(ACCESS_HEADINGS, access_rows(report))
    for note in report.notes():
        echo(note)
    if report.how_to_open is not None:
        echo(f"to read everything:\n{report.how_to_open}")
