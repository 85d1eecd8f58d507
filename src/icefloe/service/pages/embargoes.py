"""Pages of rolling embargoes: what is held back, for how long, and the releases."""

import asyncio
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Response

from icefloe.catalog.model import Bucket, Embargo, JobKind, Repository
from icefloe.catalog.wire import EmbargoSettings, Page
from icefloe.errors import IcefloeError
from icefloe.printable import printable
from icefloe.service.database import jobs, rows, tables
from icefloe.service.domain.actions import Action
from icefloe.service.domain.locations import bucket_location, location_url
from icefloe.service.http import buckets, embargoes, repositories
from icefloe.service.http.access import Permit
from icefloe.service.http.problems import status_of
from icefloe.service.pages.admission import (
    MembersRoute,
    if_match,
    may_visit,
    record_of,
    result_of,
    show,
)
from icefloe.service.pages.offers import lines_of
from icefloe.service.pages.site import Visit, Visitor, redirect

router = APIRouter(route_class=MembersRoute)
_PATH: Final = "/organisations/{org}/embargoes/{name}"
_MOST_RELEASES: Final = 20
_MOST_SUGGESTED: Final = 1000
_ChangePolicies = Annotated[Permit, Depends(may_visit(Action.CHANGE_POLICIES))]


@router.get(_PATH)
def show_embargo(
    visit: Visitor,
    permit: Annotated[Permit, Depends(may_visit(Action.SEE_POLICIES))],
    org: str,
    name: str,
) -> Response:
    """Show the rolling embargo of a repository and its releases."""
    return _page(visit, permit, org, name)


@router.post(_PATH)
def set_embargo(visit: Visitor, permit: _ChangePolicies, org: str, name: str) -> Response:
    """Set a rolling embargo, or change it. Public data stays public."""
    fields = visit.fields
    texts = ("bucket", "prefix", "dimension", "public_repository")
    body: dict[str, Any] = {text: fields[text].strip() for text in texts if text in fields}
    try:
        body |= {"days": _number(fields.get("days", "")), "nodes": lines_of(fields, "nodes")}
        settings = record_of(EmbargoSettings, body)
        embargoes.set_embargo(permit, org, name, settings, if_match(fields))
    except IcefloeError as error:
        return _page(visit, permit, org, name, error=error, typed=fields)
    return redirect(f"/organisations/{org}/embargoes/{name}")


@router.post(f"{_PATH}/release")
async def release_embargo(
    visit: Visitor,
    permit: Annotated[Permit, Depends(may_visit(Action.RELEASE_EMBARGO))],
    org: str,
    name: str,
) -> Response:
    """Begin to make public what is old enough now; the page shows how far it is."""
    try:
        await embargoes.release_embargo(permit, org, name)
    except IcefloeError as error:
        return await asyncio.to_thread(_page, visit, permit, org, name, error=error)
    return redirect(f"/organisations/{org}/embargoes/{name}#releases")


@router.post(f"{_PATH}/delete")
def delete_embargo(visit: Visitor, permit: _ChangePolicies, org: str, name: str) -> Response:
    """Release nothing any more. What is public stays so."""
    try:
        embargoes.delete_embargo(permit, org, name)
    except IcefloeError as error:
        return _page(visit, permit, org, name, error=error)
    return redirect(f"/organisations/{org}#repositories")


def _number(text: str) -> object:
    """Return the number in a field; the text itself, for the message, if it is none."""
    try:
        return float(text)
    except ValueError:
        return text


def _page(
    visit: Visit,
    permit: Permit,
    org: str,
    name: str,
    *,
    error: IcefloeError | None = None,
    typed: dict[str, str] | None = None,
) -> Response:
    may_change = permit.allows(Action.CHANGE_POLICIES)
    see = permit.also(Action.SEE_POLICIES)
    with see.service.database.reading() as connection:
        key = {"organisation": org, "name": name}
        entry = rows.require(connection, tables.repositories, Repository, **key)
        key = {"organisation": org, "repository": name}
        embargo = rows.find(connection, tables.embargoes, Embargo, **key)
        releases = jobs.newest(connection, org, JobKind.RELEASE, entry.full_name, _MOST_RELEASES)
    own = repositories.list_repositories(permit.also(Action.SEE_SELF), org, limit=_MOST_SUGGESTED)
    own_buckets = buckets.list_buckets(permit.also(Action.SEE_BUCKETS), org, limit=_MOST_SUGGESTED)
    places = {bucket.name: bucket for bucket in result_of(own_buckets, Page[Bucket]).items}
    public = places.get(embargo.bucket) if embargo else None
    return show(
        visit,
        "embargo.html",
        200 if error is None else status_of(error),
        org=org,
        repository=name,
        embargo=embargo,
        url=location_url(bucket_location(public).below(embargo.prefix))
        if embargo and public
        else "",
        fields=_fields_of(embargo) if typed is None else typed,
        releases=releases,
        is_running=not all(job.is_over for job in releases),
        buckets=list(places),
        repositories=[
            repository.name
            for repository in result_of(own, Page[Repository]).items
            if repository.name != name
        ],
        may_change=may_change,
        may_release=embargo is not None and permit.allows(Action.RELEASE_EMBARGO),
        problem="" if error is None else str(error),
    )


def _fields_of(embargo: Embargo | None) -> dict[str, str]:
    """Return the settings of an embargo as the fields of its form."""
    if embargo is None:
        return {"dimension": "time"}
    return {
        "days": f"{embargo.days:g}",
        "bucket": embargo.bucket,
        "prefix": embargo.prefix,
        "dimension": printable(embargo.dimension),
        "nodes": printable("\n".join(embargo.nodes), keep="\n"),
        "public_repository": embargo.public_repository or "",
    }
