"""`icefloe clone` and `icefloe export`: a repository copied, a version as plain Zarr."""

from typing import Annotated

import typer

from icefloe.cli.common import (
    AnonymousOption,
    AuthorizeAnonymousOption,
    AuthorizeOption,
    DestinationArgument,
    JsonOption,
    RepositoryArgument,
    authorised,
    interruptible,
    open_repository,
    optional_moment,
    present,
    progress_bar,
)


def clone(
    source: RepositoryArgument,
    destination: DestinationArgument,
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
    from icefloe.storage import storage_from_url

    repository = open_repository(source, anonymous=anonymous)
    after = "the destination is no repository yet; the same command, run again, goes on"
    with progress_bar("copying") as on_progress, interruptible(after):
        report = repository.clone_to(
            storage_from_url(destination),
            branch,
            tag=tag,
            snapshot_id=snapshot,
            as_of=optional_moment(as_of, "--as-of"),
            update=update,
            deep=deep,
            on_progress=on_progress,
        )
    present(report, as_json=as_json)


def export(
    url: RepositoryArgument,
    destination: DestinationArgument,
    *,
    branch: Annotated[
        str | None, typer.Option(help="The newest version of this branch. [default: main]")
    ] = None,
    tag: Annotated[str | None, typer.Option(help="… or this tag.")] = None,
    snapshot: Annotated[str | None, typer.Option(help="… or this snapshot.")] = None,
    as_of: Annotated[
        str | None, typer.Option(help="The version that was the newest then, such as 2026-01-31.")
    ] = None,
    group: Annotated[str, typer.Option(help="Only this group, which becomes the root.")] = "/",
    consolidated: Annotated[
        bool,
        typer.Option("--consolidated", help="Consolidate the metadata of all nodes in the root."),
    ] = False,
    deep: Annotated[
        bool, typer.Option("--deep", help="Read all chunks again and compare them.")
    ] = False,
    authorize: AuthorizeOption = None,
    authorize_anonymous: AuthorizeAnonymousOption = None,
    as_json: JsonOption = False,
    anonymous: AnonymousOption = False,
) -> None:
    """Write one version as plain Zarr (format 3): chunks byte for byte, also virtual ones.

    Can be interrupted: until all is there, the destination cannot be opened, and the same
    command, run again, copies the rest.

    Example: icefloe export s3://bucket/repository ./t2m.zarr --tag v1 --group era5
    """
    from icefloe.storage import storage_from_url

    if branch is tag is snapshot is None:
        branch = "main"
    access = authorised(authorize or (), authorize_anonymous or ())
    repository = open_repository(url, anonymous=anonymous, authorisations=access)
    after = "the destination cannot be opened yet; the same command, run again, goes on"
    with progress_bar("copying") as on_progress, interruptible(after):
        report = repository.export_to_zarr(
            storage_from_url(destination),
            branch,
            tag=tag,
            snapshot_id=snapshot,
            as_of=optional_moment(as_of, "--as-of"),
            group=group,
            consolidated=consolidated,
            deep=deep,
            on_progress=on_progress,
        )
    present(report, as_json=as_json)
