"""`icefloe access` and `icefloe dependencies`: the foreign objects that a repository needs."""

from shlex import quote
from typing import Annotated, Literal

import typer

from icefloe.cli.common import (
    AllRowsJsonOption,
    AnonymousOption,
    AsOfOption,
    JsonOption,
    LookAtBranchOption,
    LookAtSnapshotOption,
    LookAtTagOption,
    MaxRowsOption,
    RepositoryArgument,
    echo,
    open_repository,
    present,
    progress_bar,
    show_json,
    show_table,
)
from icefloe.cli.versions import version_options


def access(
    url: RepositoryArgument,
    *,
    branch: Annotated[
        str | None, typer.Option(help="Count the references of this branch. [default: main]")
    ] = None,
    tag: LookAtTagOption = None,
    snapshot: LookAtSnapshotOption = None,
    as_of: AsOfOption = None,
    as_json: JsonOption = False,
    anonymous: AnonymousOption = False,
) -> None:
    """Show what you need to read the virtual chunks of a repository, before you open it.

    Lists each container, what it needs and how many references use it. Contacts nothing but the
    repository itself.

    Example: icefloe access s3://bucket/repository --branch main
    """
    repository = open_repository(url, anonymous=anonymous)
    version = version_options(repository, branch, tag, snapshot, as_of, default=None)
    with progress_bar("reading manifests") as on_progress:
        report = repository.describe_access(**version, on_progress=on_progress)
    present(report, as_json=as_json)
    if report.how_to_open is not None and not as_json:
        prefixes = [
            container.url_prefix
            for container in report.containers
            if container.is_used and container.needs is not None
        ]
        options = " ".join(f"--authorize {quote(prefix)}" for prefix in prefixes)
        echo(f"to read everything with a command:\n{options}")
        echo(f"to read everything in Python:\n{report.how_to_open}")


def dependencies(
    url: RepositoryArgument,
    *,
    by: Annotated[
        Literal["container", "bucket", "prefix", "file", "array"],
        typer.Option(help="The unit of a row."),
    ] = "container",
    prefix: Annotated[str | None, typer.Option(help="Only locations at or below this URL.")] = None,
    glob: Annotated[
        str | None, typer.Option(help="Only locations like this: * within a segment, ** across.")
    ] = None,
    depth: Annotated[
        int,
        typer.Option(
            help="With --by prefix: the number of folders that a row's prefix has.", min=0
        ),
    ] = 1,
    branch: LookAtBranchOption = None,
    tag: LookAtTagOption = None,
    snapshot: LookAtSnapshotOption = None,
    as_of: AsOfOption = None,
    all_versions: Annotated[
        bool,
        typer.Option(
            "--all-versions",
            help="Include all earlier versions; without a version, those of every branch and tag.",
        ),
    ] = False,
    max_rows: MaxRowsOption = 100,
    as_json: AllRowsJsonOption = False,
    anonymous: AnonymousOption = False,
) -> None:
    """Show the external objects that a repository needs: chunks, bytes, arrays and versions.

    Chunks, bytes and arrays are those of the newest version that needs a place.

    Who needs this file?
    icefloe dependencies ./repo --by array --all-versions --prefix s3://bucket/file.nc
    """
    repository = open_repository(url, anonymous=anonymous)
    version = version_options(repository, branch, tag, snapshot, as_of, default=None)
    with progress_bar("reading manifests") as on_progress:
        report = repository.virtual_dependencies(
            by,
            prefix=prefix,
            glob=glob,
            **version,
            all_versions=all_versions,
            depth=depth,
            on_progress=on_progress,
        )
    if as_json:
        show_json(report.to_dict())
    else:
        show_table(report.headings, report.rows(max_rows))
        echo(report.total(max_rows))
