"""`icefloe clone`: a repository copied to another place."""

from typing import Annotated

import typer

from icefloe.cli.common import (
    JsonOption,
    RepositoryArgument,
    interruptible,
    moment,
    present,
    progress_bar,
)


def clone(
    source: RepositoryArgument,
    destination: Annotated[
        str, typer.Argument(help="An empty place: a path, s3://, gs://, az://…")
    ],
    *,
    branch: Annotated[
        str | None, typer.Option(help="Only the newest version of this branch. [default: all]")
    ] = None,
    tag: Annotated[str | None, typer.Option(help="… or only this tag.")] = None,
    snapshot: Annotated[str | None, typer.Option(help="… or only this snapshot.")] = None,
    as_of: Annotated[
        str | None,
        typer.Option(
            help="With --branch: the version that was the newest then, such as 2026-01-31."
        ),
    ] = None,
    update: Annotated[
        bool, typer.Option("--update", help="Bring an earlier clone up to date.")
    ] = False,
    deep: Annotated[
        bool, typer.Option("--deep", help="Compare all objects byte by byte in the end.")
    ] = False,
    as_json: JsonOption = False,
    anonymous: Annotated[bool, typer.Option(help="Send no credentials to the source.")] = False,
) -> None:
    """Copy a repository, with all of its history or as one version.

    Others may go on committing to the source; what they add is not part of the clone. Can be
    interrupted: until all is there, the destination is no repository, and the same command, run
    again, copies the rest.

    Example: icefloe clone s3://bucket/repository /backup/repository --deep
    """
    from icefloe.api.repository import Repository
    from icefloe.storage import storage_from_url

    repository = Repository.open(storage_from_url(source, anonymous=anonymous))
    after = "the destination is no repository yet; the same command, run again, goes on"
    with progress_bar("copying") as on_progress, interruptible(after):
        report = repository.clone_to(
            storage_from_url(destination),
            branch,
            tag=tag,
            snapshot_id=snapshot,
            as_of=None if as_of is None else moment(as_of, option="--as-of"),
            update=update,
            deep=deep,
            on_progress=on_progress,
        )
    present(report, as_json=as_json)
