"""Routes about people: who am I, my tokens, and invitations to the service."""

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Body, Depends, Response

from icefloe.catalog.model import Token, TokenScope
from icefloe.catalog.tokens import new_token, token_id
from icefloe.catalog.wire import (
    CreatedInvitation,
    CreatedToken,
    Me,
    NewInvitation,
    NewToken,
    Page,
)
from icefloe.errors import AccessDeniedError, ErrorKind, NotFoundError
from icefloe.service.database import accounts, rows, tables
from icefloe.service.domain.actions import Action
from icefloe.service.domain.scopes import check_scope, is_within
from icefloe.service.http.access import Permit, may
from icefloe.service.http.codec import Codec, answer
from icefloe.service.http.pages import Cursor, Limit, page_of
from icefloe.service.http.problems import PROBLEMS
from icefloe.service.login import LINK_LIFETIME, Invitation, create_link

router = APIRouter(tags=["people"], responses=PROBLEMS)


@router.get("/me", response_model=Annotated[Me, Codec()])
def who_am_i(permit: Annotated[Permit, Depends(may(Action.SEE_SELF))]) -> Response:
    """Return who the service takes the caller for."""
    person, token = permit.caller.person, permit.caller.token
    roles = permit.caller.roles
    me = Me(person.name, person.display_name, person.operator, roles, token.id if token else None)
    return answer(me)


@router.get("/me/tokens", response_model=Annotated[Page[Token], Codec()])
def list_tokens(
    permit: Annotated[Permit, Depends(may(Action.SEE_SELF))],
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """List one's tokens."""
    table = tables.tokens
    return page_of(
        permit.service.database,
        table,
        Token,
        table.c.person == permit.person,
        limit=limit,
        cursor=cursor,
    )


@router.post("/me/tokens", response_model=Annotated[CreatedToken, Codec()], status_code=201)
def create_token(
    permit: Annotated[Permit, Depends(may(Action.CHANGE_SELF))],
    new: Annotated[NewToken, Codec(), Body()],
) -> Response:
    """Create a token. Its secret is in this answer only."""
    token, secret = make_token(permit, permit.person, new.name, new.scope, days=new.days)
    with permit.service.database.writing() as connection:
        accounts.create_token(connection, token, permit.service.digest(secret))
        permit.record(connection, f"token {token.id}", {"name": token.name})
    return answer(CreatedToken(token.id, secret, token.expires_at), 201)


@router.delete("/me/tokens/{token}", status_code=204)
def revoke_token(
    permit: Annotated[Permit, Depends(may(Action.CHANGE_SELF))], token: str
) -> Response:
    """End a token at once."""
    with permit.service.database.writing() as connection:
        stored = rows.find(connection, tables.tokens, Token, id=token, person=permit.person)
        if stored is None:
            raise NotFoundError(f"you have no token {token}", ErrorKind.ENTRY_NOT_FOUND)
        accounts.revoke_token(connection, token, permit.now)
        permit.record(connection, f"token {token}")
    return Response(status_code=204)


@router.delete("/me/token", status_code=204)
def give_up_token(permit: Annotated[Permit, Depends(may(Action.SEE_SELF))]) -> Response:
    """End the token that this request is made with, whatever its scope is."""
    own = permit.caller.token
    if own is not None:
        with permit.service.database.writing() as connection:
            accounts.revoke_token(connection, own.id, permit.now)
            permit.record(connection, f"token {own.id}", {"given up": True})
    return Response(status_code=204)


@router.post("/invitations", response_model=Annotated[CreatedInvitation, Codec()], status_code=201)
def invite(
    permit: Annotated[Permit, Depends(may(Action.RUN_SERVICE))],
    new: Annotated[NewInvitation, Codec(), Body()],
) -> Response:
    """Invite somebody to the service. The link is in this answer only."""
    return make_invitation(permit, Invitation(new.person, new.operator))


def make_invitation(permit: Permit, invitation: Invitation) -> Response:
    """Return the answer with the link of an invitation."""
    with permit.service.database.writing() as connection:
        if invitation.person is not None:
            rows.require_absent(connection, tables.people, name=invitation.person)
        link = create_link(permit.service, connection, invitation, permit.now)
        details = {"role": invitation.role, "operator": invitation.operator}
        permit.record(connection, f"invitation {invitation.person or ''}".strip(), details)
    return answer(CreatedInvitation(link, permit.now + LINK_LIFETIME), 201)


def make_token(
    permit: Permit, person: str, name: str, scope: TokenScope, *, days: float
) -> tuple[Token, str]:
    """Return a new token for somebody, and its secret.

    A token with less rights than its person cannot make one with more, nor one that lives longer.
    """
    check_scope(scope)
    secret, now = new_token(), permit.now
    expires_at = now + timedelta(days=days)
    token = Token(token_id(secret), name, person, scope, now, expires_at)
    own = permit.caller.token
    if own is not None and own.scope != TokenScope():
        outlives = own.expires_at and token.expires_at and token.expires_at > own.expires_at
        if outlives or not is_within(scope, own.scope):
            problem = "a token with a scope makes no token that can do more, or lives longer"
            raise AccessDeniedError(problem)
    return token, secret
