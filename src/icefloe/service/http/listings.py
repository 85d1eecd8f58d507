"""Routes about listings: what organisations offer to others."""

from typing import Annotated

from fastapi import APIRouter, Body, Depends, Query, Response
from sqlalchemy import Connection, Text, cast, func, or_

from icefloe.catalog.model import Bucket, Delegation, Listing, Repository
from icefloe.catalog.wire import ListingSettings, NewListing, Page
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.records import replace
from icefloe.service.database import rows, tables
from icefloe.service.domain.actions import Action
from icefloe.service.domain.filters import check_filter
from icefloe.service.http.access import Permit, may
from icefloe.service.http.codec import Codec, answer
from icefloe.service.http.pages import Cursor, Limit, find_page
from icefloe.service.http.problems import PROBLEMS
from icefloe.service.http.versions import IfMatch, etag, expected_version

router = APIRouter(tags=["listings"], responses=PROBLEMS)
Search = Annotated[str | None, Query(max_length=200, description="Words of the title or the name")]


@router.get("/listings", response_model=Annotated[Page[Listing], Codec()])
def list_listings(
    permit: Annotated[Permit, Depends(may(Action.SEE_SELF))],
    org: str | None = None,
    search: Search = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """List what is offered to the caller, and what the caller's organisations offer."""
    return answer(find_listings(permit, org, search, limit=limit, cursor=cursor))


def find_listings(
    permit: Permit,
    org: str | None = None,
    search: str | None = None,
    *,
    limit: int,
    cursor: str | None,
) -> Page[Listing]:
    """Return a page of the listings that the caller may see."""
    table = tables.listings
    roles = permit.caller.roles
    # Names of organisations have no quotes, so a name in quotes is a whole entry of the list.
    offered = cast(table.c.offered_to, Text)
    is_offered = [offered.contains(f'"{name}"', autoescape=True) for name in ("*", *roles)]
    conditions = [or_(table.c.organisation.in_(roles), *is_offered)]
    if org is not None:
        conditions.append(table.c.organisation == org)
    for word in (search or "").split():
        texts = (table.c.name, table.c.title, table.c.licence, table.c.organisation)
        conditions.append(
            or_(*(func.lower(text).contains(word.lower(), autoescape=True) for text in texts))
        )
    database = permit.service.database
    return find_page(database, table, Listing, *conditions, limit=limit, cursor=cursor)


@router.post("/orgs/{org}/listings", response_model=Annotated[Listing, Codec()], status_code=201)
def create_listing(
    permit: Annotated[Permit, Depends(may(Action.CHANGE_LISTINGS))],
    org: str,
    new: Annotated[NewListing, Codec(), Body()],
) -> Response:
    """Offer a repository, or a part of it, to other organisations."""
    listing = _listing_of(org, new.name, new)
    with permit.service.database.writing() as connection:
        _check(connection, listing)
        rows.add(connection, tables.listings, listing)
        permit.record(connection, f"listing {new.name}", _shown(listing))
    return answer(listing, 201, etag(listing.version))


@router.get("/listings/{org}/{listing}", response_model=Annotated[Listing, Codec()])
def show_listing(
    permit: Annotated[Permit, Depends(may(Action.SEE_LISTING))], org: str, listing: str
) -> Response:
    """Show a listing with its licence and its terms."""
    with permit.service.database.reading() as connection:
        offer = require_listing(connection, org, listing)
    return answer(offer, headers=etag(offer.version))


@router.put("/listings/{org}/{listing}", response_model=Annotated[Listing, Codec()])
def change_listing(
    permit: Annotated[Permit, Depends(may(Action.CHANGE_LISTINGS))],
    org: str,
    listing: str,
    settings: Annotated[ListingSettings, Codec(), Body()],
    if_match: IfMatch = None,
) -> Response:
    """Replace a listing. Subscriptions stay; what they read follows the new settings."""
    changed = _listing_of(org, listing, settings)
    with permit.service.database.writing() as connection:
        _check(connection, changed)
        before = require_listing(connection, org, listing)
        if before.repository != changed.repository:
            problem = "subscribers have agreed to another repository: create a listing for this one"
            raise InvalidInputError(problem, ErrorKind.INVALID_REQUEST)
        version = rows.change(
            connection, tables.listings, changed, if_version=expected_version(if_match)
        )
        changed = replace(changed, version=version)
        permit.record(connection, f"listing {listing}", _shown(changed))
    return answer(changed, headers=etag(version))


@router.delete("/listings/{org}/{listing}", status_code=204)
def delete_listing(
    permit: Annotated[Permit, Depends(may(Action.CHANGE_LISTINGS))], org: str, listing: str
) -> Response:
    """Delete a listing with all subscriptions to it."""
    with permit.service.database.writing() as connection:
        rows.remove(connection, tables.listings, organisation=org, name=listing)
        permit.record(connection, f"listing {listing}", {"deleted": True})
    return Response(status_code=204)


def _listing_of(organisation: str, name: str, settings: ListingSettings) -> Listing:
    if settings.filter is not None:
        check_filter(settings.filter)
    return Listing(
        organisation,
        name,
        settings.repository,
        settings.title,
        settings.licence,
        settings.terms,
        settings.offered_to,
        settings.needs_approval,
        settings.virtual_chunks,
        settings.filter,
    )


def _check(connection: Connection, listing: Listing) -> None:
    """Raise an error for a listing of something that cannot be shared."""
    organisation = listing.organisation
    key = {"organisation": organisation, "name": listing.repository}
    repository = rows.require(connection, tables.repositories, Repository, **key)
    for name in (repository.bucket, *(shared.bucket for shared in listing.virtual_chunks)):
        key = {"organisation": organisation, "name": name}
        bucket = rows.require(connection, tables.buckets, Bucket, **key)
        if bucket.delegation is Delegation.STATIC:
            problem = f"the bucket {name} has static keys, which are for members only"
            raise InvalidInputError(f"{problem}: use a role", ErrorKind.INVALID_REQUEST)


def require_listing(connection: Connection, organisation: str, name: str) -> Listing:
    """Return a listing; raise `NotFoundError` if there is none."""
    key = {"organisation": organisation, "name": name}
    return rows.require(connection, tables.listings, Listing, **key)


def _shown(listing: Listing) -> dict[str, object]:
    return {
        "repository": listing.repository,
        "offered_to": listing.offered_to,
        "needs_approval": listing.needs_approval,
        "version": listing.version,
    }
