"""Pages of repositories: all that somebody may see, and each of them with its data."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response

from icefloe.catalog.model import Decision
from icefloe.catalog.transport import REASONS
from icefloe.errors import AccessDeniedError
from icefloe.service.domain.actions import Action
from icefloe.service.domain.decide import Missing
from icefloe.service.domain.sharing import shares_of
from icefloe.service.http.access import Permit, may, may_open
from icefloe.service.http.opened import opened_of, shared_of
from icefloe.service.http.pages import Cursor
from icefloe.service.http.repositories import Search, find_repositories
from icefloe.service.http.requests import find_own_requests
from icefloe.service.opening import prefix_of
from icefloe.service.pages.site import PER_PAGE, Visitor, page, redirect, visit_of
from icefloe.web.site import is_document

router = APIRouter()
_Member = Annotated[Permit, Depends(may(Action.SEE_SELF))]
_Reader = Annotated[Permit, Depends(may_open)]


@router.get("/")
@router.get("/repositories")
def show_repositories(
    permit: _Member, visit: Visitor, org: str = "", search: Search = None, cursor: Cursor = None
) -> Response:
    """Show the repositories that somebody may read, all or those with some words."""
    found = find_repositories(permit, org or None, search, limit=PER_PAGE, cursor=cursor)
    return page(
        visit,
        "repositories.html",
        found=found,
        org=org,
        search=search or "",
        is_first=cursor is None,
        roles=permit.caller.roles,
    )


@router.get("/repos/{org}/{name}")
def show_root(permit: _Reader, org: str, name: str) -> Response:
    """Send a browser to the root of a repository."""
    del permit
    return redirect(f"/repos/{org}/{name}/")


@router.get("/repos/{org}/{name}/{rest:path}")
async def show_repository(
    request: Request, permit: _Reader, org: str, name: str, rest: str
) -> Response:
    """Show a page of a repository, or what is missing to open it."""
    del org, name, rest
    try:
        return await opened_of(request).show_page(request, permit)
    except AccessDeniedError as error:
        is_for_program = "authorization" in request.headers or not is_document(request)
        if not error.missing or is_for_program:
            raise
        return await permit.service.database.run(_refusal_page, request, permit, error)


def _refusal_page(request: Request, permit: Permit, error: AccessDeniedError) -> Response:
    """Show what is missing, why, who can grant it, and whether somebody has asked already."""
    name = permit.resource_name
    waiting = find_own_requests(permit, Decision.PENDING, name, limit=PER_PAGE).items
    asked = {request.container: request for request in waiting}
    missing: list[dict[str, Any]] = [
        {
            "container": grant.container,
            "reason": REASONS.get(grant.reason, grant.reason),
            "who": grant.who,
            "what_to_do": grant.what_to_do,
            "can_be_asked": grant.owner is not None,
            "request": asked.get(grant.container),
        }
        for grant in error.missing
    ]
    can_ask = any(grant["can_be_asked"] and grant["request"] is None for grant in missing)
    shares = shares_of(permit.remembered) if permit.remembered else []
    return page(
        visit_of(request, {}),
        "refused.html",
        403,
        missing=missing,
        shared=[
            (prefix_of(share[0]), shared_of(share[1]))
            for share in shares
            if not isinstance(share, Missing)
        ],
        repository=name,
        can_ask=can_ask,
    )
