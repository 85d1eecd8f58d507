"""Pages of access requests: ask after a refusal, see the answers, withdraw."""

from fastapi import APIRouter, Depends, Request, Response

from icefloe.catalog.wire import NewAccessRequest
from icefloe.service.domain.actions import Action
from icefloe.service.domain.decide import Resource
from icefloe.service.http.access import Permit, admit, anybody
from icefloe.service.http.pages import Cursor
from icefloe.service.http.requests import (
    ask_owners,
    find_own_requests,
    missing_of,
    withdraw_request,
)
from icefloe.service.login import Session
from icefloe.service.pages.site import PER_PAGE, Visitor, page, quoted, redirect

router = APIRouter(dependencies=[Depends(anybody)])


@router.get("/requests")
def show_requests(request: Request, visit: Visitor, cursor: Cursor = None) -> Response:
    """Show what somebody has asked for, with the answers."""
    if visit.session is None:
        return redirect("/login?next=/requests")
    permit = _permit(request, visit.session)
    found = find_own_requests(permit, limit=PER_PAGE, cursor=cursor)
    return page(visit, "requests.html", found=found, is_first=cursor is None)


@router.get("/requests/new")
def show_request_form(request: Request, visit: Visitor, repository: str = "") -> Response:
    """Show what is missing to open a repository, and whom a request goes to."""
    if visit.session is None:
        return redirect(f"/login?next={quoted(f'/requests/new?repository={repository}')}")
    _, missing = missing_of(_permit(request, visit.session, repository))
    return page(visit, "request.html", repository=repository, missing=missing, requests=())


@router.post("/requests/new")
def send_request(request: Request, visit: Visitor) -> Response:
    """Ask the owners of what is missing."""
    if visit.session is None:
        return redirect("/login")
    name, message = visit.fields.get("repository", ""), visit.fields.get("message", "")[:2000]
    requests = ask_owners(_permit(request, visit.session, name), NewAccessRequest(message=message))
    return page(visit, "request.html", repository=name, missing=(), requests=requests)


@router.post("/requests/{number}/withdraw")
def withdraw(request: Request, visit: Visitor, number: str) -> Response:
    """Withdraw a request that waits for an answer."""
    if visit.session is None:
        return redirect("/login?next=/requests")
    withdraw_request(_permit(request, visit.session), number)
    return redirect("/requests")


def _permit(request: Request, session: Session, repository: str = "") -> Permit:
    """Return the permit to ask for access, to one repository or in general."""
    organisation, slash, name = repository.partition("/")
    resource = Resource(organisation, name) if slash else Resource()
    return admit(request, session.caller, Action.ASK_FOR_ACCESS, resource)
