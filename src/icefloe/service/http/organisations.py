"""Routes about organisations, their members and their service accounts."""

from typing import Annotated

from fastapi import APIRouter, Body, Depends, Response
from sqlalchemy import Connection

from icefloe.catalog.model import Member, Organisation, Person, PersonKind
from icefloe.catalog.wire import (
    CreatedInvitation,
    CreatedToken,
    MemberRole,
    NewMemberInvitation,
    NewOrganisation,
    NewServiceAccount,
    NewToken,
    OrganisationChange,
    Page,
)
from icefloe.errors import ErrorKind, InvalidInputError, NotFoundError
from icefloe.service.database import accounts, rows, tables
from icefloe.service.domain.actions import Action
from icefloe.service.http.access import Permit, may
from icefloe.service.http.codec import Codec, answer
from icefloe.service.http.pages import Cursor, Limit, page_of
from icefloe.service.http.people import make_invitation, make_token
from icefloe.service.http.problems import PROBLEMS
from icefloe.service.http.versions import ISSUED_UNTIL
from icefloe.service.login import Invitation

router = APIRouter(tags=["organisations"], responses=PROBLEMS)


@router.get("/orgs", response_model=Annotated[Page[Organisation], Codec()])
def list_organisations(
    permit: Annotated[Permit, Depends(may(Action.SEE_SELF))],
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """List the organisations that the caller is a member of."""
    table = tables.organisations
    return page_of(
        permit.service.database,
        table,
        Organisation,
        table.c.name.in_(permit.caller.roles),
        limit=limit,
        cursor=cursor,
    )


@router.post("/orgs", response_model=Annotated[Organisation, Codec()], status_code=201)
def create_organisation(
    permit: Annotated[Permit, Depends(may(Action.CREATE_ORGANISATION))],
    new: Annotated[NewOrganisation, Codec(), Body()],
) -> Response:
    """Create an organisation. The caller becomes its first admin."""
    organisation = Organisation(new.name, new.display_name, permit.now)
    with permit.service.database.writing() as connection:
        accounts.create_organisation(connection, organisation, permit.person, permit.now)
        permit.record(connection, f"organisation {new.name}")
    return answer(organisation, 201)


@router.get("/orgs/{org}", response_model=Annotated[Organisation, Codec()])
def show_organisation(
    permit: Annotated[Permit, Depends(may(Action.SEE_ORGANISATION))], org: str
) -> Response:
    """Show an organisation."""
    with permit.service.database.reading() as connection:
        return answer(rows.require(connection, tables.organisations, Organisation, name=org))


@router.patch("/orgs/{org}", response_model=Annotated[Organisation, Codec()])
def change_organisation(
    permit: Annotated[Permit, Depends(may(Action.CHANGE_ORGANISATION))],
    org: str,
    change: Annotated[OrganisationChange, Codec(), Body()],
) -> Response:
    """Change the name under which an organisation is shown."""
    table = tables.organisations
    with permit.service.database.writing() as connection:
        query = table.update().where(table.c.name == org)
        connection.execute(query.values(display_name=change.display_name))
        permit.record(connection, f"organisation {org}")
        return answer(rows.require(connection, table, Organisation, name=org))


@router.delete("/orgs/{org}", status_code=204)
def delete_organisation(
    permit: Annotated[Permit, Depends(may(Action.CHANGE_ORGANISATION))], org: str, confirm: str
) -> Response:
    """Delete an organisation and all that the service keeps of it; stored data stays.

    `confirm` is the name once more.
    """
    if confirm != org:
        problem = f"confirm the deletion with the name of the organisation, {org!r}"
        raise InvalidInputError(problem, ErrorKind.INVALID_REQUEST)
    with permit.service.database.writing() as connection:
        accounts.delete_organisation(connection, org, permit.now)
        permit.record(connection, f"organisation {org}")
    return Response(status_code=204)


# Members


@router.get("/orgs/{org}/members", response_model=Annotated[Page[Member], Codec()])
def list_members(
    permit: Annotated[Permit, Depends(may(Action.SEE_MEMBERS))],
    org: str,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """List the members of an organisation."""
    table = tables.members
    return page_of(
        permit.service.database,
        table,
        Member,
        table.c.organisation == org,
        limit=limit,
        cursor=cursor,
    )


@router.put("/orgs/{org}/members/{person}", response_model=Annotated[Member, Codec()])
def set_member(
    permit: Annotated[Permit, Depends(may(Action.CHANGE_MEMBERS))],
    org: str,
    person: str,
    role: Annotated[MemberRole, Codec(), Body()],
) -> Response:
    """Set the role of somebody in an organisation."""
    member = Member(org, person, role.role)
    with permit.service.database.writing() as connection:
        known_person = rows.require(connection, tables.people, Person, name=person)
        if known_person.organisation not in {None, org}:  # a service account of others
            raise rows.not_found(tables.people, {"name": person})
        accounts.set_member(connection, member)
        permit.record(connection, f"member {person}", {"role": role.role})
    return answer(member)


@router.delete("/orgs/{org}/members/{person}", status_code=204, responses=ISSUED_UNTIL)
def remove_member(
    permit: Annotated[Permit, Depends(may(Action.CHANGE_MEMBERS))], org: str, person: str
) -> Response:
    """Take somebody out of an organisation; no credential is made for them from now on."""
    end = str(permit.service.issued_until())
    with permit.service.database.writing() as connection:
        accounts.remove_member(connection, org, person)
        permit.record(connection, f"member {person}", {"removed": True, "issued_until": end})
    return Response(status_code=204, headers={"x-issued-until": end})


@router.post(
    "/orgs/{org}/invitations",
    response_model=Annotated[CreatedInvitation, Codec()],
    status_code=201,
)
def invite(
    permit: Annotated[Permit, Depends(may(Action.CHANGE_MEMBERS))],
    org: str,
    new: Annotated[NewMemberInvitation, Codec(), Body()],
) -> Response:
    """Invite somebody who has no account yet. The link is in this answer only."""
    return make_invitation(permit, Invitation(new.person, organisation=org, role=new.role))


# Service accounts


@router.get("/orgs/{org}/service-accounts", response_model=Annotated[Page[Person], Codec()])
def list_service_accounts(
    permit: Annotated[Permit, Depends(may(Action.SEE_MEMBERS))],
    org: str,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """List the service accounts of an organisation."""
    table = tables.people
    return page_of(
        permit.service.database,
        table,
        Person,
        table.c.organisation == org,
        table.c.disabled.is_(False),
        limit=limit,
        cursor=cursor,
    )


@router.post(
    "/orgs/{org}/service-accounts",
    response_model=Annotated[Person, Codec()],
    status_code=201,
)
def create_service_account(
    permit: Annotated[Permit, Depends(may(Action.CHANGE_MEMBERS))],
    org: str,
    new: Annotated[NewServiceAccount, Codec(), Body()],
) -> Response:
    """Create a service account: a person without a login, in whose name tokens act."""
    person = Person(new.name, PersonKind.SERVICE, new.display_name, organisation=org)
    with permit.service.database.writing() as connection:
        accounts.create_person(connection, person, permit.now)
        accounts.set_member(connection, Member(org, new.name, new.role))
        permit.record(connection, f"service account {new.name}", {"role": new.role})
    return answer(person, 201)


@router.delete("/orgs/{org}/service-accounts/{account}", status_code=204)
def disable_service_account(
    permit: Annotated[Permit, Depends(may(Action.CHANGE_MEMBERS))], org: str, account: str
) -> Response:
    """Disable a service account for good; all its tokens end at once."""
    with permit.service.database.writing() as connection:
        _require_account(connection, org, account)
        accounts.disable_person(connection, account, permit.now)
        permit.record(connection, f"service account {account}")
    return Response(status_code=204)


@router.post(
    "/orgs/{org}/service-accounts/{account}/tokens",
    response_model=Annotated[CreatedToken, Codec()],
    status_code=201,
)
def create_service_token(
    permit: Annotated[Permit, Depends(may(Action.CHANGE_MEMBERS))],
    org: str,
    account: str,
    new: Annotated[NewToken, Codec(), Body()],
) -> Response:
    """Create a token for a service account. Its secret is in this answer only."""
    token, secret = make_token(permit, account, new.name, new.scope, days=new.days)
    with permit.service.database.writing() as connection:
        _require_account(connection, org, account)
        accounts.create_token(connection, token, permit.service.digest(secret))
        permit.record(connection, f"token {token.id}", {"name": token.name, "for": account})
    return answer(CreatedToken(token.id, secret, token.expires_at), 201)


def _require_account(connection: Connection, org: str, account: str) -> None:
    """Raise `NotFoundError` unless an organisation has such a service account."""
    key = {"name": account, "organisation": org, "kind": PersonKind.SERVICE, "disabled": False}
    if rows.find(connection, tables.people, Person, **key) is None:
        raise NotFoundError(f"{org} has no service account {account}", ErrorKind.ENTRY_NOT_FOUND)
