"""`icefloe export`: a version as plain Zarr."""

from typing import Annotated

import typer

from icefloe.cli.common import (
    AnonymousOption,
    AuthorizeAnonymousOption,
    AuthorizeOption,
    JsonOption,
    RepositoryArgument,
    authorised,
    interruptible,
    moment,
    present,
    progress_bar,
)


def export(
    url: RepositoryArgument,
    destination: Annotated[
        str, typer.Argument(help="An empty place: a path, s3://, gs://, az://…")
    ],
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
        bool, typer.Option("--consolidated", help="Repeat all metadata in that of the root.")
    ] = False,
    deep: Annotated[
        bool, typer.Option("--deep", help="Read all chunks once more, and compare them.")
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
    from icefloe.api.repository import Repository
    from icefloe.storage import storage_from_url

    if branch is tag is snapshot is None:
        branch = "main"
    repository = Repository.open(
        storage_from_url(url, anonymous=anonymous),
        authorize_virtual_chunk_access=authorised(authorize or (), authorize_anonymous or ()),
    )
    after = "the destination cannot be opened yet; the same command, run again, goes on"
    with progress_bar("copying") as on_progress, interruptible(after):
        report = repository.export_to_zarr(
            storage_from_url(destination),
            branch,
            tag=tag,
            snapshot_id=snapshot,
            as_of=None if as_of is None else moment(as_of, option="--as-of"),
            group=group,
            consolidated=consolidated,
            deep=deep,
            on_progress=on_progress,
        )
    present(report, as_json=as_json)
