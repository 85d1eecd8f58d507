"""`icefloe clone` and `icefloe export`: a repository copied, a version as plain Zarr."""

from typing import Annotated

import typer

from icefloe.cli.common import (
    AnonymousOption,
    AsOfOption,
    AuthorizeAnonymousOption,
    AuthorizeOption,
    DestinationArgument,
    JsonOption,
    LookAtSnapshotOption,
    LookAtTagOption,
    RepositoryArgument,
    authorised,
    interruptible,
    open_repository,
    optional_moment,
    present,
    progress_bar,
    storage_of_destination,
)
from icefloe.cli.versions import MAIN, require_one_version, version_options


def clone(
    source: RepositoryArgument,
    destination: DestinationArgument,
    *,
    branch: Annotated[
        str | None, typer.Option(help="Only the newest version of this branch. [default: all]")
    ] = None,
    tag: LookAtTagOption = None,
    snapshot: LookAtSnapshotOption = None,
    as_of: AsOfOption = None,
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
    repository = open_repository(source, anonymous=anonymous)
    require_one_version(branch, tag, snapshot, as_of)
    default = None if as_of is None else MAIN
    version = version_options(repository, branch, tag, snapshot, default=default)
    after = "the destination is no repository yet; the same command, run again, goes on"
    with progress_bar("copying") as on_progress, interruptible(after):
        report = repository.clone_to(
            storage_of_destination(destination),
            **version,
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
    tag: LookAtTagOption = None,
    snapshot: LookAtSnapshotOption = None,
    as_of: AsOfOption = None,
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
    access = authorised(authorize or (), authorize_anonymous or ())
    repository = open_repository(url, anonymous=anonymous, authorisations=access)
    version = version_options(repository, branch, tag, snapshot, as_of)
    after = "the destination cannot be opened yet; the same command, run again, goes on"
    with progress_bar("copying") as on_progress, interruptible(after):
        report = repository.export_to_zarr(
            storage_of_destination(destination),
            **version,
            group=group,
            consolidated=consolidated,
            deep=deep,
            on_progress=on_progress,
        )
    present(report, as_json=as_json)
