"""The page with somebody's own tokens."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Response

from icefloe.catalog.model import Token
from icefloe.catalog.wire import CreatedToken, NewToken, Page
from icefloe.errors import ErrorKind, IcefloeError, InvalidInputError
from icefloe.service.domain.actions import BUNDLES, Action
from icefloe.service.http import people
from icefloe.service.http.access import Permit
from icefloe.service.http.problems import status_of
from icefloe.service.pages.admission import (
    MembersRoute,
    may_visit,
    record_of,
    result_of,
    show,
    words_of,
)
from icefloe.service.pages.site import Visit, Visitor, redirect

router = APIRouter(route_class=MembersRoute)


@router.get("/tokens")
def list_tokens(
    visit: Visitor,
    permit: Annotated[Permit, Depends(may_visit(Action.SEE_SELF))],
    cursor: str | None = None,
) -> Response:
    """Show one's tokens, and a form for a new one."""
    return _page(visit, permit, cursor=cursor)


@router.post("/tokens")
def create_token(
    visit: Visitor, permit: Annotated[Permit, Depends(may_visit(Action.CHANGE_SELF))]
) -> Response:
    """Create a token, and show its secret once."""
    try:
        new = record_of(NewToken, token_fields(visit.fields))
        created = result_of(people.create_token(permit, new), CreatedToken)
    except IcefloeError as error:
        return _page(visit, permit, status_of(error), problem=str(error))
    return _page(visit, permit, secret=created.secret)


@router.post("/tokens/{token}/revoke")
def revoke_token(
    visit: Visitor, permit: Annotated[Permit, Depends(may_visit(Action.CHANGE_SELF))], token: str
) -> Response:
    """End a token at once."""
    try:
        people.revoke_token(permit, token)
    except IcefloeError as error:
        return _page(visit, permit, status_of(error), problem=str(error))
    return redirect("/tokens")


def _page(
    visit: Visit,
    permit: Permit,
    status: int = 200,
    *,
    cursor: str | None = None,
    problem: str = "",
    secret: str = "",
) -> Response:
    answer = people.list_tokens(permit.also(Action.SEE_SELF), cursor=cursor)
    return show(
        visit,
        "tokens.html",
        status,
        tokens=result_of(answer, Page[Token]),
        bundles=tuple(BUNDLES),
        now=permit.now,
        problem=problem,
        secret=secret,
    )


def token_fields(fields: Mapping[str, str]) -> dict[str, Any]:
    """Return the body of a request for a token, of the fields of a form."""
    days = fields.get("days", "")
    if not days.isdecimal():
        raise InvalidInputError("write the days as a number", ErrorKind.INVALID_REQUEST)
    scope = {name: words_of(fields.get(name, "")) for name in ("actions", "repositories")}
    if not all(scope.values()):
        problem = "a token needs actions and repositories, like read and */*"
        raise InvalidInputError(problem, ErrorKind.INVALID_REQUEST)
    return {"name": fields.get("name", "").strip(), "scope": scope, "days": int(days[:9])}
