"""Pages of listings: what others offer, and the form to subscribe to it."""

from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Request, Response
from sqlalchemy import or_

from icefloe.catalog.model import Listing, Subscription, SubscriptionKind
from icefloe.catalog.wire import NewSubscription
from icefloe.errors import ErrorKind, IcefloeError, InvalidInputError
from icefloe.service.database import rows, tables
from icefloe.service.domain.actions import Action
from icefloe.service.domain.decide import Facts, Resource, decide
from icefloe.service.http.access import Permit, actor_of, admit, may
from icefloe.service.http.listings import Search, find_listings, require_listing
from icefloe.service.http.pages import Cursor
from icefloe.service.http.problems import status_of
from icefloe.service.http.subscriptions import subscribe
from icefloe.service.pages.site import PER_PAGE, Visit, Visitor, page, redirect

router = APIRouter()
_Member = Annotated[Permit, Depends(may(Action.SEE_SELF))]
_Guest = Annotated[Permit, Depends(may(Action.SEE_LISTING))]


@router.get("/listings")
def show_listings(
    permit: _Member, visit: Visitor, search: Search = None, cursor: Cursor = None
) -> Response:
    """Show what is offered to somebody, all or those with some words."""
    found = find_listings(permit, None, search, limit=PER_PAGE, cursor=cursor)
    is_first = cursor is None
    return page(visit, "listings.html", found=found, search=search or "", is_first=is_first)


@router.get("/listings/{org}/{listing}")
def show_listing(permit: _Guest, visit: Visitor, org: str, listing: str) -> Response:
    """Show a listing with its licence and its terms, and who may subscribe to it."""
    return _listing_page(visit, permit, org, listing)


@router.post("/listings/{org}/{listing}")
def send_subscription(request: Request, visit: Visitor, org: str, listing: str) -> Response:
    """Subscribe to a listing in the name of an organisation."""
    if visit.session is None:
        return redirect(f"/login?next=/listings/{org}/{listing}")
    caller = visit.session.caller
    seen = admit(request, caller, Action.SEE_LISTING, Resource(org), listing)
    organisation = visit.fields.get("organisation", "")
    try:
        new = _subscription_of(visit.fields, org, listing)
        permit = admit(request, caller, Action.CHANGE_SUBSCRIPTIONS, Resource(organisation))
        subscribe(permit, organisation, new)
    except IcefloeError as error:
        return _listing_page(visit, seen, org, listing, status_of(error), error.message)
    return redirect(f"/listings/{org}/{listing}")


def _listing_page(
    visit: Visit, permit: Permit, org: str, listing: str, status: int = 200, problem: str = ""
) -> Response:
    table, roles = tables.subscriptions, permit.caller.roles
    seen_by = [name for name in roles if _may(permit, Action.SEE_SUBSCRIPTIONS, name)]
    with permit.service.database.reading() as connection:
        offer = require_listing(connection, org, listing)
        subscriptions = rows.find_all(
            connection,
            table,
            Subscription,
            table.c.provider == org,
            table.c.listing == listing,
            or_(table.c.subscriber.in_(seen_by), table.c.provider.in_(seen_by)),
            limit=PER_PAGE,
        )
    return page(
        visit,
        "listing.html",
        status,
        offer=offer,
        subscriptions=subscriptions,
        subscribers=_subscribers(permit, offer),
        is_member=org in roles,
        problem=problem,
    )


def _subscribers(permit: Permit, listing: Listing) -> list[str]:
    """Return the organisations in whose name somebody may subscribe to a listing."""
    offered = listing.offered_to
    return [
        name
        for name in sorted(permit.caller.roles)
        if name != listing.organisation
        and ("*" in offered or name in offered)
        and _may(permit, Action.CHANGE_SUBSCRIPTIONS, name)
    ]


def _may(permit: Permit, action: Action, organisation: str) -> bool:
    """Return whether the caller may do an action in an organisation."""
    facts = Facts(permit.now, permit.caller.roles)
    return decide(actor_of(permit.caller), action, Resource(organisation), facts).allowed


def _subscription_of(fields: dict[str, str], provider: str, listing: str) -> NewSubscription:
    """Return the subscription that a form asks for; raise `InvalidInputError` for a wrong one."""
    version = fields.get("version", "")
    is_accepted = fields.get("accepts") == "yes" and version.isdecimal()
    is_filtered = "repository" in fields
    values = {
        "provider": provider,
        "listing": listing,
        "kind": SubscriptionKind.FILTERED if is_filtered else SubscriptionKind.DIRECT,
        "accepts_version": int(version) if is_accepted else None,
        "repository": fields.get("repository") or None,
        "bucket": fields.get("bucket") or None,
    }
    try:
        return msgspec.convert(values, NewSubscription)
    except msgspec.ValidationError as error:
        problem = f"the form was not understood: {error}"
        raise InvalidInputError(problem, ErrorKind.INVALID_REQUEST) from None
