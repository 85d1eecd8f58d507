"""Authentication and authorisation, before a route does anything.

Every route declares its action by `Depends(may(Action.X))`. Refusals are written to the audit.
"""

import hmac
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from fastapi import Request
from sqlalchemy import Connection

from icefloe.catalog.model import Listing, Repository
from icefloe.catalog.wire import AuditEntry
from icefloe.errors import AccessDeniedError, ErrorKind, NotFoundError, NotLoggedInError
from icefloe.records import Record, replace
from icefloe.service import login
from icefloe.service.database import audit, rows, tables
from icefloe.service.database.accounts import Caller
from icefloe.service.database.assets import last_containers
from icefloe.service.database.facts import Entry, load_entry, load_facts, load_offers
from icefloe.service.domain.actions import Action
from icefloe.service.domain.decide import Actor, Facts, Resource, Verdict, decide
from icefloe.service.runtime import Service

_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


def service_of(request: Request) -> Service:
    """Return the service that a request was sent to."""
    service: Service = request.app.state.service
    return service


def address_of(request: Request) -> str:
    """Return the address that a request came from."""
    return request.client.host if request.client else "unknown"


def cookie_name(service: Service) -> str:
    """Return the name of the session's cookie; browsers let no other host set one with https."""
    return "__Host-icefloe" if service.settings.is_https else "icefloe"


def anybody() -> None:
    """Admit every caller: a route that depends on this needs no login."""


def _stranger(service: Service, request: Request) -> NotLoggedInError:
    """Return the error for a request of nobody known; raise `ServiceError` after many of them."""
    # Guesses of tokens come from an address.
    limit = service.settings.limits.refusals
    service.limits.take("refusal", address_of(request), per_minute=limit)
    problem = "send a token that is still valid, like `Authorization: Bearer icefloe_...`"
    return NotLoggedInError(problem)


def _count(service: Service, request: Request, caller: Caller) -> None:
    """Raise `ServiceError` if a caller sends too many requests."""
    limit = service.settings.limits.requests
    service.limits.take("request", caller.person.name, per_minute=limit)
    request.state.person = caller.person.name


def find_caller(service: Service, connection: Connection, request: Request) -> Caller | None:
    """Return who sent a request, by a token or by the cookie of a session; None if unknown."""
    header = request.headers.get("authorization")
    if header is not None:
        scheme, _, token = header.partition(" ")
        is_token = scheme.lower() == "bearer"
        return service.find_caller(connection, token.strip()) if is_token else None
    secret = request.cookies.get(cookie_name(service))
    session = login.find_session(service, connection, secret) if secret else None
    if session is None:
        return None
    if request.method not in _SAFE_METHODS:
        # A cookie is sent along with requests of other sites, too; this header is not.
        csrf_token_sent = request.headers.get("x-csrf-token", "")
        if not hmac.compare_digest(
            csrf_token_sent.encode(), login.csrf_token(service, session.secret).encode()
        ):
            raise AccessDeniedError("a request with a cookie needs the header X-CSRF-Token")
    return session.caller


class Permit(Record):
    """A request that is allowed: who does what to what."""

    service: Service
    caller: Caller
    action: Action
    resource: Resource
    verdict: Verdict
    now: datetime
    request_id: str
    facts: Facts
    """What the decision depended on."""
    entry: Entry | None = None
    """The repository that the path names."""
    remembered: Facts | None = None
    """For an open: the facts together with the containers that the repository last had."""
    opening: Verdict | None = None
    """For an open: what these facts mean for somebody who wants to read."""

    @property
    def person(self) -> str:
        """The name of the caller."""
        return self.caller.person.name

    @property
    def resource_name(self) -> str:
        """The organisation, or the repository with its organisation, as the audit names it."""
        return "/".join(filter(None, (self.resource.organisation, self.resource.repository)))

    def allows(self, action: Action) -> bool:
        """Return whether the caller may do another action, too, which needs no facts."""
        return self._decide_about(action).allowed

    def also(self, action: Action) -> "Permit":
        """Return the permit for another action, which needs no facts; raise an error without."""
        verdict = self._decide_about(action)
        if not verdict.allowed:
            raise AccessDeniedError("; ".join(verdict.reasons))
        return replace(self, action=action, verdict=verdict)

    def _decide_about(self, action: Action) -> Verdict:
        allows = self.facts.allows_organisations
        facts = Facts(self.now, self.caller.roles, allows_organisations=allows)
        return decide(actor_of(self.caller), action, Resource(self.resource.organisation), facts)

    def record(
        self, connection: Connection, what: str, details: Mapping[str, Any] | None = None
    ) -> None:
        """Write an allowed action to the audit, in the transaction that does it."""
        entry = self.audit_entry(what, details)
        audit.append(connection, self.service.keys.audit, [entry])

    async def record_later(self, what: str, details: Mapping[str, Any] | None = None) -> None:
        """Write an action that changed nothing here to the audit, and wait until it is there."""
        entry = self.audit_entry(what, details)
        await self.service.journal.write(entry, self.caller.token)

    def audit_entry(self, what: str, details: Mapping[str, Any] | None = None) -> AuditEntry:
        """Return what the audit is to keep of this request."""
        return AuditEntry(
            at=self.now,
            person=self.person,
            action=self.action,
            resource=what,
            allowed=self.verdict.allowed,
            request_id=self.request_id,
            organisation=self.resource.organisation,
            details={"reasons": self.verdict.reasons, **(details or {})},
        )


def actor_of(caller: Caller) -> Actor:
    """Return a caller as decisions see them."""
    scope = None if caller.token is None else caller.token.scope
    return Actor(caller.person.name, caller.person.kind, caller.person.operator, scope)


class _Known(Record):
    """All that the database knows about a request, and what that means for an open."""

    caller: Caller
    facts: Facts
    entry: Entry | None = None
    remembered: Facts | None = None
    verdict: Verdict | None = None
    opening: Verdict | None = None


def may(action: Action) -> Callable[..., Permit]:
    """Return a dependency that lets a request pass if its caller may do an action.

    The path of the route names the organisation as `org`, the repository as `name` and a listing
    as `listing`.
    """

    def permit(request: Request) -> Permit:
        service, path = service_of(request), request.path_params
        resource = Resource(path.get("org"), path.get("name") if _is_repository(request) else None)
        with service.database.reading() as connection:
            caller = find_caller(service, connection, request)
            if caller is None:
                raise _stranger(service, request)
            _count(service, request, caller)
            loaded = _load(service, connection, caller, resource, path.get("listing"))
        service.note_use(caller)
        return _admitted(_decide(service, request, action, resource, loaded))

    permit.action = action  # type: ignore[attr-defined]
    return permit


def admit(
    request: Request,
    caller: Caller,
    action: Action,
    resource: Resource,
    listing: str | None = None,
) -> Permit:
    """Return the permit of a caller whom a form of ours has identified already.

    Raise the error of a refusal, which is also written to the audit.
    """
    service = service_of(request)
    _count(service, request, caller)
    with service.database.reading() as connection:
        loaded = _load(service, connection, caller, resource, listing)
    return _admitted(_decide(service, request, action, resource, loaded))


def _admitted(permit: Permit) -> Permit:
    """Return a permit; write a refusal to the audit, and raise its error."""
    if permit.verdict.allowed:
        return permit
    with permit.service.database.writing() as connection:
        permit.record(connection, permit.resource_name)
    raise refusal_of(permit)


async def may_open(request: Request) -> Permit:
    """Return the permit of a request to open a repository; refuse who may not do it.

    All that the database knows about it is read at one moment, and decided about. Requests that
    ask the same at the same time, with the same token, share that. Each of them is counted and
    audited.
    """
    service, path = service_of(request), request.path_params
    resource = Resource(path["org"], path["name"])
    # All of a request that the authentication looks at.
    headers = tuple(map(request.headers.get, ("authorization", "cookie", "x-csrf-token")))
    loaded = await service.rounds.ask(
        ("open", headers, resource),
        lambda: service.database.run(_load_for_open, service, request, resource),
    )
    if loaded is None:
        raise _stranger(service, request)
    _count(service, request, loaded.caller)
    permit = _decide(service, request, Action.OPEN_REPOSITORY, resource, loaded)
    if permit.verdict.allowed:
        return permit
    await permit.record_later(permit.resource_name)
    raise refusal_of(permit)


may_open.action = Action.OPEN_REPOSITORY  # type: ignore[attr-defined]


def _decide(
    service: Service, request: Request, action: Action, resource: Resource, loaded: _Known
) -> Permit:
    verdict = loaded.verdict or decide(actor_of(loaded.caller), action, resource, loaded.facts)
    return Permit(
        service,
        loaded.caller,
        action,
        resource,
        verdict,
        loaded.facts.now,
        request.state.request_id,
        loaded.facts,
        loaded.entry,
        loaded.remembered,
        loaded.opening,
    )


def _is_repository(request: Request) -> bool:
    return "/repos/" in request.scope["route"].path


def _load(
    service: Service,
    connection: Connection,
    caller: Caller,
    resource: Resource,
    listing: str | None = None,
) -> _Known:
    now, settings = service.clock(), service.settings
    facts = Facts(now, caller.roles, allows_organisations=settings.allows_organisations)
    if listing is not None:
        key = {"organisation": resource.organisation, "name": listing}
        offer = rows.find(connection, tables.listings, Listing, **key)
        return _Known(caller, replace(facts, listings=() if offer is None else (offer,)))
    if resource.organisation is None or resource.repository is None:
        return _Known(caller, facts)
    entry = load_entry(connection, resource.organisation, resource.repository)
    # Of a repository that does not exist, the same questions are asked: their number must not
    # tell whether there is one.
    repository = (
        entry.repository
        if entry
        else Repository(resource.organisation, resource.repository, "", "")
    )
    # Containers are looked at when the repository is opened, with its configuration at hand.
    offers = load_offers(connection, repository, caller.roles, now)
    return _Known(caller, offers, entry) if entry else _Known(caller, facts)


def _load_for_open(service: Service, request: Request, resource: Resource) -> _Known | None:
    """Return all that opening a repository depends on; None for a caller whom nobody knows."""
    with service.database.reading() as connection:
        caller = find_caller(service, connection, request)
        if caller is None:
            return None
        loaded, actor = _load(service, connection, caller, resource), actor_of(caller)
        verdict = decide(actor, Action.OPEN_REPOSITORY, resource, loaded.facts)
        loaded = replace(loaded, verdict=verdict)
        # For who may not open it, a repository takes as long as one that does not exist.
        if loaded.entry is not None and verdict.allowed:
            containers = last_containers(connection, loaded.entry.repository)
            remembered = load_facts(
                connection,
                loaded.entry,
                containers,
                loaded.facts,
                allows_anonymous=service.settings.allows_anonymous,
            )
            opening = decide(actor, Action.OPEN_REPOSITORY, resource, remembered)
            return replace(loaded, remembered=remembered, opening=opening)
        return loaded


def refusal_of(permit: Permit) -> Exception:
    """Return the error for a request that is not allowed.

    What the caller may not know of looks as if it did not exist.
    """
    if not permit.verdict.visible:
        if permit.action is Action.SEE_LISTING:
            problem = f"{permit.resource.organisation} offers no such listing to you"
            return NotFoundError(problem, ErrorKind.ENTRY_NOT_FOUND)
        noun = "repository" if permit.resource.repository else "organisation"
        problem = f"there is no {noun} {permit.resource_name}, or you may not see it"
        return NotFoundError(problem, ErrorKind.ENTRY_NOT_FOUND)
    return AccessDeniedError("; ".join(permit.verdict.reasons))
