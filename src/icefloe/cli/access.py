"""`icefloe access`: what it takes to read a repository's virtual chunks."""

from typing import Annotated

import typer

from icefloe.cli.common import (
    AnonymousOption,
    JsonOption,
    RepositoryArgument,
    echo,
    present,
    progress_bar,
)


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
    present(report, as_json=as_json)
    if report.how_to_open is not None and not as_json:
        echo(f"to read everything:\n{report.how_to_open}")
