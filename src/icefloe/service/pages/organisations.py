"""Pages about organisations: their members, service accounts, and all that they have or share."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Request, Response

from icefloe.catalog.model import (
    Bucket,
    Embargo,
    Listing,
    Member,
    Organisation,
    Person,
    Policy,
    Repository,
    Role,
    Subscription,
)
from icefloe.catalog.wire import (
    CreatedInvitation,
    CreatedToken,
    MemberRole,
    NewMemberInvitation,
    NewOrganisation,
    NewServiceAccount,
    NewToken,
    Page,
    SubscriptionDecision,
)
from icefloe.errors import IcefloeError
from icefloe.service.database import assets, rows, tables
from icefloe.service.domain.actions import Action
from icefloe.service.http import (
    buckets,
    listings,
    organisations,
    policies,
    repositories,
    subscriptions,
)
from icefloe.service.http.access import Permit
from icefloe.service.http.problems import status_of
from icefloe.service.pages.admission import (
    MembersRoute,
    if_match,
    may_visit,
    moment,
    moment_of,
    record_of,
    result_of,
    show,
)
from icefloe.service.pages.site import Visit, Visitor, redirect
from icefloe.service.pages.tokens import token_fields

router = APIRouter(route_class=MembersRoute)

_MOST_DELETED: Final = 20
_FORMS: Final = {
    "members": Action.CHANGE_MEMBERS,
    "buckets": Action.CHANGE_BUCKETS,
    "policies": Action.CHANGE_POLICIES,
    "listings": Action.CHANGE_LISTINGS,
    "subscriptions": Action.CHANGE_SUBSCRIPTIONS,
    "requests": Action.SEE_REQUESTS,
    "audit": Action.SEE_AUDIT,
}
"""The actions of the forms and links on the page of an organisation."""


# Organisations


@router.get("/organisations")
def list_own(
    visit: Visitor,
    permit: Annotated[Permit, Depends(may_visit(Action.SEE_SELF))],
    cursor: str | None = None,
) -> Response:
    """Show the organisations that somebody is a member of."""
    return _list_page(visit, permit, cursor)


@router.post("/organisations")
def create_organisation(
    visit: Visitor, permit: Annotated[Permit, Depends(may_visit(Action.CREATE_ORGANISATION))]
) -> Response:
    """Create an organisation."""
    fields = _some(visit.fields, "name", "display_name")
    try:
        new = record_of(NewOrganisation, fields)
        organisations.create_organisation(permit, new)
    except IcefloeError as error:
        return _list_page(visit, permit, None, status_of(error), problem=str(error))
    return redirect(f"/organisations/{new.name}")


def _list_page(
    visit: Visit, permit: Permit, cursor: str | None, status: int = 200, problem: str = ""
) -> Response:
    answer = organisations.list_organisations(permit.also(Action.SEE_SELF), cursor=cursor)
    return show(
        visit,
        "organisations.html",
        status,
        organisations=result_of(answer, Page[Organisation]),
        roles=permit.caller.roles,
        may_create=permit.allows(Action.CREATE_ORGANISATION),
        problem=problem,
    )


@router.get("/organisations/{org}")
def show_organisation(
    request: Request,
    visit: Visitor,
    permit: Annotated[Permit, Depends(may_visit(Action.SEE_ORGANISATION))],
    org: str,
) -> Response:
    """Show an organisation and all that members may know of it."""
    return _page(visit, permit, org, cursors=request.query_params)


def _page(
    visit: Visit,
    permit: Permit,
    org: str,
    status: int = 200,
    *,
    cursors: Mapping[str, str] | None = None,
    **values: Any,
) -> Response:
    """Show an organisation; `cursors` are those of the lists on the page, by name."""
    after = cursors or {}
    see_members = permit.also(Action.SEE_MEMBERS)
    members = organisations.list_members(see_members, org, cursor=after.get("members"))
    accounts = organisations.list_service_accounts(
        see_members, org, cursor=after.get("service-accounts")
    )
    own_repositories = repositories.list_repositories(
        permit.also(Action.SEE_SELF), org, cursor=after.get("repositories")
    )
    own_buckets = buckets.list_buckets(
        permit.also(Action.SEE_BUCKETS), org, cursor=after.get("buckets")
    )
    own_policies = policies.list_policies(
        permit.also(Action.SEE_POLICIES), org, cursor=after.get("policies")
    )
    own_listings = listings.list_listings(
        permit.also(Action.SEE_SELF), org, cursor=after.get("listings")
    )
    all_subscriptions = subscriptions.list_subscriptions(
        permit.also(Action.SEE_SUBSCRIPTIONS), org, cursor=after.get("subscriptions")
    )
    answer = organisations.show_organisation(permit.also(Action.SEE_ORGANISATION), org)
    with permit.service.database.reading() as connection:
        deleted = assets.deleted_policies(connection, org, limit=_MOST_DELETED)
        theirs = tables.embargoes.c.organisation == org
        embargoes = rows.find_all(connection, tables.embargoes, Embargo, theirs)
    notes = {"problem": "", "notice": "", "secret": "", "link": ""}
    return show(
        visit,
        "organisation.html",
        status,
        organisation=result_of(answer, Organisation),
        members=result_of(members, Page[Member]),
        accounts=result_of(accounts, Page[Person]),
        repositories=result_of(own_repositories, Page[Repository]),
        buckets=result_of(own_buckets, Page[Bucket]),
        policies=result_of(own_policies, Page[Policy]),
        deleted_policies=deleted,
        embargoes={embargo.repository: embargo for embargo in embargoes},
        listings=result_of(own_listings, Page[Listing]),
        subscriptions=result_of(all_subscriptions, Page[Subscription]),
        roles=tuple(Role),
        may={name: permit.allows(action) for name, action in _FORMS.items()},
        **(notes | values),
    )


def _refused(visit: Visit, permit: Permit, org: str, error: IcefloeError) -> Response:
    return _page(visit, permit, org, status_of(error), problem=str(error))


def _some(fields: Mapping[str, str], *names: str) -> dict[str, str]:
    """Return the fields with these names that are not empty."""
    return {name: fields[name].strip() for name in names if fields.get(name, "").strip()}


# Members

_ChangeMembers = Annotated[Permit, Depends(may_visit(Action.CHANGE_MEMBERS))]


@router.post("/organisations/{org}/members")
def set_member(visit: Visitor, permit: _ChangeMembers, org: str) -> Response:
    """Add somebody who has an account, or change a role."""
    try:
        role = record_of(MemberRole, _some(visit.fields, "role"))
        organisations.set_member(permit, org, visit.fields.get("person", "").strip(), role)
    except IcefloeError as error:
        return _refused(visit, permit, org, error)
    return redirect(f"/organisations/{org}")


@router.post("/organisations/{org}/members/{person}/remove")
def remove_member(visit: Visitor, permit: _ChangeMembers, org: str, person: str) -> Response:
    """Take somebody out of an organisation, and show until when their credentials live."""
    try:
        answer = organisations.remove_member(permit, org, person)
    except IcefloeError as error:
        return _refused(visit, permit, org, error)
    if person == permit.person:
        return redirect("/organisations")
    until = answer.headers["x-issued-until"]
    notice = f"{person} is no member any more. Credentials that exist end by {until}."
    return _page(visit, permit, org, notice=notice)


@router.post("/organisations/{org}/invitations")
def invite(visit: Visitor, permit: _ChangeMembers, org: str) -> Response:
    """Invite somebody without an account, and show the link once."""
    try:
        new = record_of(NewMemberInvitation, _some(visit.fields, "person", "role"))
        created = result_of(organisations.invite(permit, org, new), CreatedInvitation)
    except IcefloeError as error:
        return _refused(visit, permit, org, error)
    return _page(visit, permit, org, link=created.link)


# Service accounts


@router.post("/organisations/{org}/service-accounts")
def create_account(visit: Visitor, permit: _ChangeMembers, org: str) -> Response:
    """Create a service account."""
    try:
        fields = _some(visit.fields, "name", "role", "display_name")
        organisations.create_service_account(permit, org, record_of(NewServiceAccount, fields))
    except IcefloeError as error:
        return _refused(visit, permit, org, error)
    return redirect(f"/organisations/{org}#service-accounts")


@router.post("/organisations/{org}/service-accounts/{account}/tokens")
def create_account_token(
    visit: Visitor, permit: _ChangeMembers, org: str, account: str
) -> Response:
    """Create a token of a service account, and show its secret once."""
    try:
        new = record_of(NewToken, token_fields(visit.fields))
        answer = organisations.create_service_token(permit, org, account, new)
    except IcefloeError as error:
        return _refused(visit, permit, org, error)
    return _page(visit, permit, org, secret=result_of(answer, CreatedToken).secret)


@router.post("/organisations/{org}/service-accounts/{account}/disable")
def disable_account(visit: Visitor, permit: _ChangeMembers, org: str, account: str) -> Response:
    """Disable a service account."""
    try:
        organisations.disable_service_account(permit, org, account)
    except IcefloeError as error:
        return _refused(visit, permit, org, error)
    return _page(visit, permit, org, notice=f"{account} is disabled, and all its tokens ended.")


# Listings and subscriptions

_ChangeListings = Annotated[Permit, Depends(may_visit(Action.CHANGE_LISTINGS))]


@router.post("/organisations/{org}/listings/{listing}/delete")
def delete_listing(visit: Visitor, permit: _ChangeListings, org: str, listing: str) -> Response:
    """Delete a listing with all subscriptions to it."""
    try:
        listings.delete_listing(permit, org, listing)
    except IcefloeError as error:
        return _refused(visit, permit, org, error)
    until = moment(permit.service.issued_until())
    notice = f"{listing} and its subscriptions are deleted. Credentials that exist end by {until}."
    return _page(visit, permit, org, notice=notice)


@router.post("/organisations/{org}/subscriptions/{subscription}")
def change_subscription(
    visit: Visitor,
    permit: Annotated[Permit, Depends(may_visit(Action.CHANGE_SUBSCRIPTIONS))],
    org: str,
    subscription: str,
) -> Response:
    """Grant, decline or end a subscription."""
    fields, version = visit.fields, if_match(visit.fields)
    try:
        if fields.get("decision") == "end":
            subscriptions.end_subscription(permit, org, subscription, version)
        else:
            body = {
                "grants": fields.get("decision") == "grant",
                "ends_at": moment_of(fields.get("ends_at", ""), "End"),
                "answer": fields.get("answer", ""),
            }
            decision = record_of(SubscriptionDecision, body)
            subscriptions.decide_subscription(permit, org, subscription, decision, version)
    except IcefloeError as error:
        return _refused(visit, permit, org, error)
    return redirect(f"/organisations/{org}#subscriptions")
