"""Routes about repositories: list, create, import, change, open."""

import secrets as random
from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Body, Depends, Query, Response
from sqlalchemy import ColumnElement, exists, func, null, or_

from icefloe.catalog.model import Decision, Repository, SubscriptionKind, TokenScope, Visibility
from icefloe.catalog.wire import (
    Access,
    CreatedToken,
    NewDelegation,
    NewRepository,
    OpenAnswer,
    OpenRequest,
    Page,
    RepositoryChange,
)
from icefloe.errors import AccessDeniedError, ErrorKind, IcefloeError, InvalidInputError
from icefloe.records import replace
from icefloe.service.database import accounts, assets, rows, tables
from icefloe.service.domain.actions import Action
from icefloe.service.http.access import Permit, actor_of, may, may_open
from icefloe.service.http.codec import Codec, answer
from icefloe.service.http.pages import Cursor, Limit, find_page
from icefloe.service.http.people import make_token
from icefloe.service.http.problems import PROBLEMS, REFUSED_OPENING
from icefloe.service.http.versions import IfMatch, etag, expected_version
from icefloe.service.opening import Opened, Opener

router = APIRouter(tags=["repositories"], responses=PROBLEMS)
Search = Annotated[
    str | None, Query(max_length=200, description="Words of the name or the description")
]


@router.get("/repos", response_model=Annotated[Page[Repository], Codec()])
def list_repositories(
    permit: Annotated[Permit, Depends(may(Action.SEE_SELF))],
    org: str | None = None,
    search: Search = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """List the repositories that the caller may read: by role, visibility or subscription."""
    return answer(find_repositories(permit, org, search, limit=limit, cursor=cursor))


def find_repositories(
    permit: Permit,
    org: str | None = None,
    search: str | None = None,
    *,
    limit: int,
    cursor: str | None,
) -> Page[Repository]:
    """Return a page of the repositories that the caller may read."""
    table = tables.repositories
    conditions = [
        or_(
            table.c.organisation.in_(permit.caller.roles),
            table.c.visibility == Visibility.EVERYONE,
            _is_subscribed(permit),
        )
    ]
    if org is not None:
        conditions.append(table.c.organisation == org)
    for word in (search or "").split():
        texts = (table.c.organisation, table.c.name, table.c.description)
        conditions.append(
            or_(*(func.lower(text).contains(word.lower(), autoescape=True) for text in texts))
        )
    database = permit.service.database
    return find_page(database, table, Repository, *conditions, limit=limit, cursor=cursor)


@router.post("/orgs/{org}/repos", response_model=Annotated[Repository, Codec()], status_code=201)
def register_repository(
    permit: Annotated[Permit, Depends(may(Action.CREATE_REPOSITORY))],
    org: str,
    new: Annotated[NewRepository, Codec(), Body()],
) -> Response:
    """Register a repository: a new one in a place of its own, or one that exists already."""
    if new.imports or new.prefix is not None:
        # What is in the place already becomes readable by members.
        permit.also(Action.IMPORT_REPOSITORY)
    if new.visibility is Visibility.EVERYONE:
        permit.also(Action.PUBLISH_REPOSITORY)
    if new.imports and new.prefix is None:
        raise InvalidInputError("an import needs the prefix", ErrorKind.INVALID_REQUEST)
    prefix = new.prefix
    if prefix is None:
        prefix = f"{new.name}-{random.token_hex(4)}/"
    repository = Repository(
        org,
        new.name,
        new.bucket,
        prefix,
        new.description,
        new.visibility,
        created_at=permit.now,
        created_by=permit.person,
    )
    with permit.service.database.writing() as connection:
        assets.create_repository(connection, repository, permit.now)
        permit.record(connection, repository.full_name, {"prefix": prefix})
    return answer(repository, 201, etag(repository.version))


@router.get("/repos/{org}/{name}", response_model=Annotated[Repository, Codec()])
def show_repository(
    permit: Annotated[Permit, Depends(may(Action.SEE_REPOSITORY))], org: str, name: str
) -> Response:
    """Show a repository."""
    entry = _entry(permit, org, name)
    return answer(entry, headers=etag(entry.version))


@router.patch("/repos/{org}/{name}", response_model=Annotated[Repository, Codec()])
def change_repository(
    permit: Annotated[Permit, Depends(may(Action.CHANGE_REPOSITORY))],
    org: str,
    name: str,
    change: Annotated[RepositoryChange, Codec(), Body()],
    if_match: IfMatch = None,
) -> Response:
    """Change the description, the visibility or the status of a repository."""
    if change.visibility is not None or change.status is not None:
        permit.also(Action.PUBLISH_REPOSITORY)
    repository = _entry(permit, org, name)
    changes = {
        field: value
        for field in change.__struct_fields__
        if (value := getattr(change, field)) is not None
    }
    changed = replace(repository, **changes)
    with permit.service.database.writing() as connection:
        version = rows.change(
            connection, tables.repositories, changed, if_version=expected_version(if_match)
        )
        permit.record(connection, repository.full_name, {k: str(v) for k, v in changes.items()})
    return answer(replace(changed, version=version), headers=etag(version))


@router.delete("/repos/{org}/{name}", status_code=204)
def delete_repository(
    permit: Annotated[Permit, Depends(may(Action.DELETE_REPOSITORY))], org: str, name: str
) -> Response:
    """Forget a repository. Its data stays in the bucket."""
    with permit.service.database.writing() as connection:
        rows.remove(connection, tables.repositories, organisation=org, name=name)
        permit.record(connection, f"{org}/{name}")
    return Response(status_code=204)


@router.post(
    "/repos/{org}/{name}/open",
    response_model=Annotated[OpenAnswer, Codec()],
    responses=REFUSED_OPENING,
)
@router.post(
    "/repos/{org}/{name}/credentials",
    response_model=Annotated[OpenAnswer, Codec()],
    responses=REFUSED_OPENING,
)
async def open_repository(
    permit: Annotated[Permit, Depends(may_open)],
    org: str,
    name: str,
    request: Annotated[OpenRequest | None, Codec(), Body()] = None,
) -> Response:
    """Return all that is needed to open a repository, or an error that names what is missing.

    `credentials` renews the credentials of an open repository, with every check made again.
    """
    del org, name
    return answer((await open_with_audit(permit, request or OpenRequest())).answer)


@router.post(
    "/repos/{org}/{name}/tokens",
    response_model=Annotated[CreatedToken, Codec()],
    status_code=201,
)
def delegate(
    permit: Annotated[Permit, Depends(may(Action.OPEN_REPOSITORY))],
    org: str,
    name: str,
    new: Annotated[NewDelegation, Codec(), Body()],
) -> Response:
    """Create a token for a job: it opens this repository, for hours, and does nothing else."""
    actions = [Action.SEE_SELF, Action.SEE_REPOSITORY, Action.OPEN_REPOSITORY]
    if new.access is Access.WRITE:
        actions.append(Action.WRITE_REPOSITORY)
    scope = TokenScope(tuple(actions), (f"{org}/{name}",))
    days = new.hours / 24
    own = permit.caller.token
    if own is not None and own.expires_at is not None:
        days = min(days, (own.expires_at - permit.now) / timedelta(days=1))
    token, secret = make_token(permit, permit.person, new.name, scope, days=days)
    with permit.service.database.writing() as connection:
        accounts.create_token(connection, token, permit.service.digest(secret))
        permit.record(connection, f"{org}/{name}", {"token": token.id, "access": new.access.value})
    return answer(CreatedToken(token.id, secret, token.expires_at), 201)


async def open_with_audit(permit: Permit, request: OpenRequest) -> Opened:
    """Open a repository, and write to the audit how that went."""
    access = request.access
    entry = permit.entry
    assert entry is not None
    what = entry.repository.full_name
    opener = Opener(permit.service)
    try:
        opened = await opener.open(
            actor_of(permit.caller),
            permit.caller,
            entry,
            access,
            permit.facts,
            permit.remembered,
            request.refused,
            permit.opening if access is Access.READ else None,
        )
    except AccessDeniedError as error:
        missing = [{"container": m.container, "reason": m.reason} for m in error.missing]
        refused = replace(permit, verdict=replace(permit.verdict, allowed=False))
        details = {"access": access.value, "missing": missing, "withheld": opener.withheld()}
        await refused.record_later(what, details)
        raise
    except IcefloeError as error:
        details = {"access": access.value, "failed": error.kind, "withheld": opener.withheld()}
        await permit.record_later(what, details)
        raise
    await permit.record_later(what, opened.details)
    return opened


def _is_subscribed(permit: Permit) -> ColumnElement[bool]:
    """Return the condition that an organisation of the caller subscribes to a repository."""
    repository, listing = tables.repositories.c, tables.listings.c
    subscription = tables.subscriptions.c
    return exists().where(
        listing.organisation == repository.organisation,
        listing.repository == repository.name,
        listing.filter.is_(null()),
        subscription.provider == listing.organisation,
        subscription.listing == listing.name,
        subscription.subscriber.in_(permit.caller.roles),
        subscription.kind == SubscriptionKind.DIRECT,
        subscription.state == Decision.GRANTED,
        or_(subscription.ends_at.is_(None), subscription.ends_at > permit.now),
    )


def _entry(permit: Permit, organisation: str, name: str) -> Repository:
    if permit.entry is None:
        raise rows.not_found(tables.repositories, {"organisation": organisation, "name": name})
    return permit.entry.repository
