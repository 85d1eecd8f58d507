"""Routes about the audit."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response
from sqlalchemy import func

from icefloe.catalog.wire import AuditEntry, AuditHead, Page
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.records import Record
from icefloe.service.database import audit
from icefloe.service.database.tables import audit as table
from icefloe.service.domain.actions import Action
from icefloe.service.http.access import Permit, may
from icefloe.service.http.codec import Codec, answer
from icefloe.service.http.pages import Limit
from icefloe.service.http.problems import PROBLEMS

router = APIRouter(tags=["audit"], responses=PROBLEMS)

Name = Annotated[str | None, Query(max_length=100, description="Only entries with this name")]
Words = Annotated[str | None, Query(max_length=200, description="A part of the resource's name")]
Before = Annotated[int | None, Query(ge=1, description="Only entries with a lower number")]


@router.get("/orgs/{org}/audit", response_model=Annotated[Page[AuditEntry], Codec()])
def read_organisation(
    permit: Annotated[Permit, Depends(may(Action.SEE_AUDIT))],
    org: str,
    *,
    limit: Limit = 100,
    before: Before = None,
    person: Name = None,
    action: Name = None,
    resource: Words = None,
    allowed: bool | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> Response:
    """List what was done in an organisation, the newest first."""
    search = AuditSearch(person, action, resource, allowed, since, until)
    return answer(Page(tuple(find_entries(permit, org, search, before=before, limit=limit))))


class AuditSearch(Record):
    """The entries that somebody looks for; None for all of a kind."""

    person: str | None = None
    action: str | None = None
    resource: str | None = None
    """A part of the name of what was changed or asked for."""
    allowed: bool | None = None
    since: datetime | None = None
    until: datetime | None = None
    """The first moment that is not looked for."""


def find_entries(
    permit: Permit, org: str, search: AuditSearch, *, before: int | None, limit: int
) -> list[AuditEntry]:
    """Return entries of an organisation, the newest first; `before` the number of an entry."""
    conditions: list[Any] = [table.c.organisation == org]
    for column, value in (
        (table.c.person, search.person),
        (table.c.action, search.action),
        (table.c.allowed, search.allowed),
    ):
        if value is not None:
            conditions.append(column == value)
    if search.resource is not None:
        conditions.append(
            func.lower(table.c.resource).contains(search.resource.lower(), autoescape=True)
        )
    for moment in (search.since, search.until):
        if moment is not None and moment.tzinfo is None:
            problem = "a moment needs a time zone, like 2026-01-01T00:00:00Z"
            raise InvalidInputError(problem, ErrorKind.INVALID_REQUEST)
    if search.since is not None:
        conditions.append(table.c.at >= search.since)
    if search.until is not None:
        conditions.append(table.c.at < search.until)
    with permit.service.database.reading() as connection:
        return audit.read(connection, *conditions, before=before, limit=limit)


@router.get("/audit", response_model=Annotated[Page[AuditEntry], Codec()])
def read_all(
    permit: Annotated[Permit, Depends(may(Action.RUN_SERVICE))],
    limit: Limit = 100,
    before: Before = None,
) -> Response:
    """List what was done on the whole service, the newest first."""
    with permit.service.database.reading() as connection:
        return answer(Page(tuple(audit.read(connection, before=before, limit=limit))))


@router.get("/audit/verify", response_model=Annotated[AuditHead, Codec()])
def verify(permit: Annotated[Permit, Depends(may(Action.RUN_SERVICE))]) -> Response:
    """Check the whole audit for changes, and return its last entry."""
    with permit.service.database.reading() as connection:
        return answer(audit.verify(connection, permit.service.keys.audit))
