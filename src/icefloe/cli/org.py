"""`icefloe org`: organisations of a repository service."""

from typing import Annotated

import typer

from icefloe.cli.common import JsonOption, require_consent
from icefloe.cli.entries import (
    OrganisationArgument,
    ServiceOption,
    YesOption,
    client_of,
    done,
    show_entries,
    show_entry,
)

DisplayOption = Annotated[str, typer.Option("--display-name", help="The name for people.")]


def list_(*, service: ServiceOption = None, as_json: JsonOption = False) -> None:
    """List your organisations.

    Example: icefloe org list
    """
    organisations = client_of(service).list_orgs()
    show_entries(organisations, "name", "display_name", "created_at", as_json=as_json)


def show(
    organisation: OrganisationArgument,
    *,
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show an organisation.

    Example: icefloe org show ocean-lab
    """
    show_entry(client_of(service).show_org(organisation), as_json=as_json)


def create(
    organisation: OrganisationArgument,
    *,
    display_name: DisplayOption = "",
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create an organisation, with you as its first admin.

    Example: icefloe org create ocean-lab --display-name 'Ocean Lab'
    """
    created = client_of(service).create_org(organisation, display_name=display_name)
    show_entry(created, as_json=as_json)


def rename(
    organisation: OrganisationArgument,
    display_name: Annotated[str, typer.Argument(help="The new name for people.")],
    *,
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change the name under which an organisation is shown.

    Example: icefloe org rename ocean-lab 'The Ocean Lab'
    """
    changed = client_of(service).change_org(organisation, display_name=display_name)
    show_entry(changed, as_json=as_json)


def delete(
    organisation: OrganisationArgument,
    *,
    yes: YesOption = False,
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete an organisation and all that the service keeps of it; stored data stays.

    Example: icefloe org delete ocean-lab
    """
    require_consent(f"delete {organisation} with its members and policies?", is_given=yes)
    client_of(service).delete_org(organisation, confirm=organisation)
    done(f"{organisation} was deleted", as_json=as_json)
