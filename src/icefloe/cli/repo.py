"""`icefloe repo`: repositories of a service."""

from typing import Annotated

import typer

from icefloe.cli.common import JsonOption, require_consent
from icefloe.cli.entries import (
    ServiceOption,
    YesOption,
    client_of,
    done,
    show_entries,
    show_entry,
)

NameArgument = Annotated[str, typer.Argument(help="The repository, as org/name.")]
BucketOption = Annotated[str, typer.Option(help="The bucket, by its name in the organisation.")]
DescriptionOption = Annotated[str, typer.Option(help="What it is for.")]
VisibilityOption = Annotated[
    str, typer.Option(help="organisation, or everyone for all who are logged in.")
]


def list_(
    organisation: Annotated[
        str | None, typer.Argument(help="Only those of this organisation.")
    ] = None,
    *,
    search: Annotated[
        str | None, typer.Option(help="Words of the name or the description.")
    ] = None,
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the repositories that you may read.

    Example: icefloe repo list ocean-lab --search 'sea surface'
    """
    repositories = client_of(service).list_repos(organisation, search=search)
    columns = ("full_name", "description", "visibility", "status")
    show_entries(repositories, *columns, as_json=as_json)


def show(name: NameArgument, *, service: ServiceOption = None, as_json: JsonOption = False) -> None:
    """Show what the service knows of a repository.

    Example: icefloe repo show ocean-lab/sst
    """
    show_entry(client_of(service).show_repo(name), as_json=as_json)


def create(
    name: NameArgument,
    *,
    bucket: BucketOption,
    description: DescriptionOption = "",
    visibility: VisibilityOption = "organisation",
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a repository in a bucket of its organisation.

    Example: icefloe repo create ocean-lab/sst --bucket archive
    """
    client = client_of(service)
    client.create_repo(name, bucket=bucket, description=description, visibility=visibility)
    show_entry(client.show_repo(name), as_json=as_json)


def import_(
    name: NameArgument,
    *,
    bucket: BucketOption,
    prefix: Annotated[str, typer.Option(help="Where it is, below the prefix of the bucket.")],
    description: DescriptionOption = "",
    visibility: VisibilityOption = "organisation",
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Register a repository that exists in a bucket already.

    Example: icefloe repo import ocean-lab/sst --bucket archive --prefix cubes/sst
    """
    imported = client_of(service).import_repo(
        name, bucket=bucket, prefix=prefix, description=description, visibility=visibility
    )
    show_entry(imported, as_json=as_json)


def change(
    name: NameArgument,
    *,
    description: Annotated[str | None, typer.Option(help="What it is for.")] = None,
    visibility: Annotated[str | None, typer.Option(help="organisation or everyone.")] = None,
    status: Annotated[str | None, typer.Option(help="active, or archived: read-only.")] = None,
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change the description, the visibility or the status of a repository.

    Example: icefloe repo change ocean-lab/sst --visibility everyone
    """
    changed = client_of(service).change_repo(
        name, description=description, visibility=visibility, status=status
    )
    show_entry(changed, as_json=as_json)


def delete(
    name: NameArgument,
    *,
    yes: YesOption = False,
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove a repository from the service; its data stays in the bucket.

    Example: icefloe repo delete ocean-lab/sst
    """
    require_consent(f"forget {name}? Its data stays in the bucket.", is_given=yes)
    client_of(service).delete_repo(name)
    done(f"{name} was forgotten", as_json=as_json)
