"""`icefloe member`: people in organisations, and service accounts."""

from typing import Annotated

import typer

from icefloe.cli.common import JsonOption
from icefloe.cli.entries import (
    OrganisationArgument,
    ServiceOption,
    client_of,
    done,
    show_entries,
    show_entry,
)

PersonArgument = Annotated[str, typer.Argument(help="The name of the person.")]
AccountArgument = Annotated[str, typer.Argument(help="The name of the service account.")]
RoleOption = Annotated[str, typer.Option(help="reader, writer or admin.")]


def list_(
    organisation: OrganisationArgument,
    *,
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the members of an organisation, and their roles.

    Example: icefloe member list ocean-lab
    """
    members = client_of(service).list_members(organisation)
    show_entries(members, "person", "role", as_json=as_json)


def set_(
    organisation: OrganisationArgument,
    person: PersonArgument,
    *,
    role: RoleOption,
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add somebody to an organisation, or change the role of a member.

    Example: icefloe member set ocean-lab ada --role writer
    """
    show_entry(client_of(service).set_member(organisation, person, role=role), as_json=as_json)


def invite(
    organisation: Annotated[
        str | None, typer.Argument(help="The organisation; none to invite to the service alone.")
    ] = None,
    *,
    person: Annotated[
        str | None, typer.Option(help="The name of the account. [default: they choose]")
    ] = None,
    role: RoleOption = "reader",
    operator: Annotated[
        bool, typer.Option("--operator", help="Without an organisation: they run the service, too.")
    ] = False,
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Invite somebody who has no account yet, and print a link that works once.

    Admins invite to their organisation, operators to the service.

    Example: icefloe member invite ocean-lab --role writer
    """
    if organisation is not None and operator:
        raise typer.BadParameter("operators have no organisation", param_hint="--operator")
    client = client_of(service)
    if organisation is None:
        created = client.invite_person(person=person, operator=operator)
    else:
        created = client.invite_member(organisation, role=role, person=person)
    note = "send the link to the person now: nobody can show it again"
    show_entry(created, note, as_json=as_json)


def remove(
    organisation: OrganisationArgument,
    person: PersonArgument,
    *,
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take somebody out of an organisation; no credential is made for them from now on.

    Example: icefloe member remove ocean-lab ada
    """
    client_of(service).remove_member(organisation, person)
    done(f"{person} is no member of {organisation} any more", as_json=as_json)


def accounts(
    organisation: OrganisationArgument,
    *,
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the service accounts of an organisation.

    Example: icefloe member accounts ocean-lab
    """
    listed = client_of(service).list_service_accounts(organisation)
    show_entries(listed, "name", "display_name", as_json=as_json)


def create_account(
    organisation: OrganisationArgument,
    name: AccountArgument,
    *,
    role: RoleOption,
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a service account: a member without a login, in whose name tokens act.

    Example: icefloe member create-account ocean-lab nightly-ingest --role writer
    """
    created = client_of(service).create_service_account(organisation, name, role=role)
    show_entry(created, as_json=as_json)


def disable_account(
    organisation: OrganisationArgument,
    name: AccountArgument,
    *,
    service: ServiceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Disable a service account for good; all its tokens end at once.

    Example: icefloe member disable-account ocean-lab nightly-ingest
    """
    client_of(service).disable_service_account(organisation, name)
    done(f"{name} was disabled", as_json=as_json)
