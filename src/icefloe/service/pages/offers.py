"""Pages on which admins offer repositories, or parts of them, to other organisations."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Response

from icefloe.catalog.model import Bucket, Listing, Repository
from icefloe.catalog.parts import range_texts, read_filter, read_shared_prefix
from icefloe.catalog.wire import ListingSettings, NewListing, Page
from icefloe.errors import IcefloeError
from icefloe.printable import printable
from icefloe.service.domain.actions import Action
from icefloe.service.http import buckets, listings, repositories
from icefloe.service.http.access import Permit
from icefloe.service.http.problems import status_of
from icefloe.service.pages.admission import (
    MembersRoute,
    if_match,
    may_visit,
    record_of,
    result_of,
    show,
    words_of,
)
from icefloe.service.pages.site import Visit, Visitor, redirect

router = APIRouter(route_class=MembersRoute)
_ChangeListings = Annotated[Permit, Depends(may_visit(Action.CHANGE_LISTINGS))]
_MOST_SUGGESTED: Final = 1000
_EMPTY: Final[Mapping[str, str]] = {"needs_approval": "yes"}


@router.get("/organisations/{org}/listings/new")
def show_new_listing(visit: Visitor, permit: _ChangeListings, org: str) -> Response:
    """Show the form of a new listing."""
    return _form(visit, permit, org, None, _EMPTY)


@router.post("/organisations/{org}/listings/new")
def create_listing(visit: Visitor, permit: _ChangeListings, org: str) -> Response:
    """Offer a repository, or a part of it, to other organisations."""
    fields = visit.fields
    try:
        body = _settings_of(fields) | {"name": fields.get("name", "").strip()}
        listings.create_listing(permit, org, record_of(NewListing, body))
    except IcefloeError as error:
        return _form(visit, permit, org, None, fields, error)
    return redirect(f"/organisations/{org}#listings")


@router.get("/organisations/{org}/listings/{listing}/edit")
def show_listing_settings(
    visit: Visitor, permit: _ChangeListings, org: str, listing: str
) -> Response:
    """Show the form to change a listing."""
    present = _load(permit, org, listing)
    return _form(visit, permit, org, present, _fields_of(present))


@router.post("/organisations/{org}/listings/{listing}/edit")
def change_listing(visit: Visitor, permit: _ChangeListings, org: str, listing: str) -> Response:
    """Replace a listing. Subscriptions stay; what they read follows the new settings."""
    present, fields = _load(permit, org, listing), visit.fields
    try:
        body = _settings_of(fields) | {"repository": present.repository}
        settings = record_of(ListingSettings, body)
        change = permit.also(Action.CHANGE_LISTINGS)
        listings.change_listing(change, org, listing, settings, if_match(fields))
    except IcefloeError as error:
        return _form(visit, permit, org, present, fields, error)
    return redirect(f"/organisations/{org}#listings")


def _load(permit: Permit, org: str, name: str) -> Listing:
    return result_of(listings.show_listing(permit.also(Action.SEE_LISTING), org, name), Listing)


def _settings_of(fields: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings that were typed into the form of a listing."""
    texts = ("repository", "title", "licence", "terms")
    return {
        **{name: fields[name].strip().replace("\r\n", "\n") for name in texts if name in fields},
        "offered_to": words_of(fields.get("offered_to", "")),
        "needs_approval": "needs_approval" in fields,
        "virtual_chunks": tuple(map(read_shared_prefix, words_of(fields.get("shared", "")))),
        "filter": read_filter(lines_of(fields, "nodes"), lines_of(fields, "ranges")),
    }


def _fields_of(listing: Listing) -> dict[str, str]:
    """Return the settings of a listing as the fields of its form."""
    part = listing.filter
    fields = {
        "repository": listing.repository,
        "title": listing.title,
        "licence": listing.licence,
        "terms": listing.terms,
        "offered_to": " ".join(listing.offered_to),
        "needs_approval": "yes" if listing.needs_approval else "",
        "shared": " ".join(f"{shared.bucket}/{shared.prefix}" for shared in listing.virtual_chunks),
        "nodes": "\n".join(part.nodes) if part else "",
        "ranges": "\n".join(range_texts(part)) if part else "",
    }
    return {name: printable(text, keep="\n") for name, text in fields.items()}


def lines_of(fields: Mapping[str, str], name: str) -> list[str]:
    """Return the lines of a field that are not empty."""
    return [line.strip() for line in fields.get(name, "").splitlines() if line.strip()]


def _form(
    visit: Visit,
    permit: Permit,
    org: str,
    listing: Listing | None,
    fields: Mapping[str, str],
    error: IcefloeError | None = None,
) -> Response:
    """Show the form of a listing: of the present one to change, or of a new one."""
    own = repositories.list_repositories(permit.also(Action.SEE_SELF), org, limit=_MOST_SUGGESTED)
    own_buckets = buckets.list_buckets(permit.also(Action.SEE_BUCKETS), org, limit=_MOST_SUGGESTED)
    return show(
        visit,
        "listing_form.html",
        200 if error is None else status_of(error),
        org=org,
        listing=listing,
        fields=fields,
        repositories=result_of(own, Page[Repository]).items,
        buckets=result_of(own_buckets, Page[Bucket]).items,
        problem="" if error is None else str(error),
    )
