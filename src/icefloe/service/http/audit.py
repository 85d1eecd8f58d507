"""Routes about the audit."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response

from icefloe.catalog.wire import AuditEntry, AuditHead, Page
from icefloe.service.database import audit
from icefloe.service.database.tables import audit as table
from icefloe.service.domain.actions import Action
from icefloe.service.http.access import Permit, may
from icefloe.service.http.codec import Codec, answer
from icefloe.service.http.pages import Limit
from icefloe.service.http.problems import PROBLEMS

router = APIRouter(tags=["audit"], responses=PROBLEMS)

Before = Annotated[int | None, Query(ge=1, description="Only entries with a lower number")]


@router.get("/orgs/{org}/audit", response_model=Annotated[Page[AuditEntry], Codec()])
def read_organisation(
    permit: Annotated[Permit, Depends(may(Action.SEE_AUDIT))],
    org: str,
    limit: Limit = 100,
    before: Before = None,
) -> Response:
    """List what was done in an organisation, the newest first."""
    with permit.service.database.reading() as connection:
        condition = table.c.organisation == org
        entries = audit.read(connection, condition, before=before, limit=limit)
    return answer(Page(tuple(entries)))


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
