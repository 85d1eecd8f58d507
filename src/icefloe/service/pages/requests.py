"""The page on which somebody who was refused asks for access."""

from collections.abc import Sequence

from fastapi import APIRouter, Depends, Response

from icefloe.catalog.wire import AuditEntry
from icefloe.errors import ErrorKind, NotFoundError
from icefloe.service.database import audit
from icefloe.service.database.facts import Entry, load_entry, load_offers
from icefloe.service.domain.actions import Action
from icefloe.service.domain.decide import Actor, Facts, Missing, Resource, decide
from icefloe.service.http.access import anybody
from icefloe.service.opening import Opener
from icefloe.service.pages.site import Visit, Visitor, page, quoted, redirect
from icefloe.service.requests import ask, missing_grants

router = APIRouter(dependencies=[Depends(anybody)])


@router.get("/requests/new")
def show_request_form(visit: Visitor, repository: str = "") -> Response:
    """Show what is missing to open a repository, and whom a request goes to."""
    if visit.session is None:
        return redirect(f"/login?next={quoted(f'/requests/new?repository={repository}')}")
    _, missing = _missing(visit, repository)
    return page(visit, "request.html", repository=repository, missing=missing, requests=())


@router.post("/requests/new")
def send_request(visit: Visitor) -> Response:
    """Ask the owners of what is missing."""
    if visit.session is None:
        return redirect("/login")
    name = visit.fields.get("repository", "")
    entry, missing = _missing(visit, name)
    person, now = visit.session.caller.person.name, visit.service.clock()
    message = visit.fields.get("message", "")[:2000]
    with visit.service.database.writing() as connection:
        requests = ask(connection, person, entry.repository, missing, message, now)
        entry_of_audit = AuditEntry(
            at=now,
            person=person,
            action=Action.ASK_FOR_ACCESS,
            resource=name,
            allowed=True,
            request_id=visit.request_id,
            organisation=entry.repository.organisation,
            details={"requests": [request.id for request in requests]},
        )
        audit.append(connection, visit.service.keys.audit, [entry_of_audit])
    return page(visit, "request.html", repository=name, missing=(), requests=requests)


def _missing(visit: Visit, name: str) -> tuple[Entry, Sequence[Missing]]:
    """Return what somebody may not read of a repository that they may see."""
    assert visit.session is not None
    caller, now = visit.session.caller, visit.service.clock()
    organisation, _, repository = name.partition("/")
    with visit.service.database.reading() as connection:
        entry = load_entry(connection, organisation, repository)
        offers = Facts(now, caller.roles)
        if entry is not None:
            offers = load_offers(connection, entry.repository, caller.roles, now)
    actor = Actor(caller.person.name, caller.person.kind, caller.person.operator)
    resource = Resource(organisation, repository)
    if entry is None or not decide(actor, Action.SEE_REPOSITORY, resource, offers).allowed:
        problem = f"there is no repository {name}, or you may not see it"
        raise NotFoundError(problem, ErrorKind.ENTRY_NOT_FOUND)
    return entry, missing_grants(Opener(visit.service).facts_of(entry, None, offers))
