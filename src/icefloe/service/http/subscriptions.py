"""Routes about subscriptions: ask for a listing, approve or decline, end."""

import asyncio
import secrets as random
from typing import Annotated

from fastapi import APIRouter, Body, Depends, Query, Response
from sqlalchemy import Connection, or_

from icefloe.catalog.model import (
    Decision,
    JobKind,
    Listing,
    Repository,
    Subscription,
    SubscriptionKind,
)
from icefloe.catalog.wire import NewSubscription, Page, SubscriptionDecision
from icefloe.errors import ConflictError, ErrorKind, InvalidInputError, NotFoundError
from icefloe.records import replace
from icefloe.service.database import assets, rows, tables
from icefloe.service.domain.actions import Action
from icefloe.service.domain.filters import check_filter
from icefloe.service.following import load_follow
from icefloe.service.http.access import Permit, may
from icefloe.service.http.codec import Codec, answer
from icefloe.service.http.jobs import ACCEPTED, begin_job
from icefloe.service.http.pages import Cursor, Limit, page_of
from icefloe.service.http.problems import PROBLEMS
from icefloe.service.http.versions import IfMatch, etag, expected_version

router = APIRouter(tags=["subscriptions"], responses=PROBLEMS)
State = Annotated[Decision | None, Query(description="Only subscriptions in this state")]


@router.get("/orgs/{org}/subscriptions", response_model=Annotated[Page[Subscription], Codec()])
def list_subscriptions(
    permit: Annotated[Permit, Depends(may(Action.SEE_SUBSCRIPTIONS))],
    org: str,
    state: State = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """List the subscriptions of an organisation, and those of others to its listings."""
    table, database = tables.subscriptions, permit.service.database
    is_theirs = or_(table.c.subscriber == org, table.c.provider == org)
    return page_of(
        database, table, Subscription, is_theirs, state=state, limit=limit, cursor=cursor
    )


@router.post(
    "/orgs/{org}/subscriptions", response_model=Annotated[Subscription, Codec()], status_code=201
)
def subscribe(
    permit: Annotated[Permit, Depends(may(Action.CHANGE_SUBSCRIPTIONS))],
    org: str,
    new: Annotated[NewSubscription, Codec(), Body()],
) -> Response:
    """Subscribe to a listing, and accept its licence and terms.

    The subscription is granted at once, or when the provider approves.
    """
    with permit.service.database.writing() as connection:
        listing = _offered(connection, org, new)
        _check_kind(new, listing)
        _check_acceptance(new, listing)
        _check_first(connection, org, new)
        state = Decision.PENDING if listing.needs_approval else Decision.GRANTED
        subscription = Subscription(
            assets.new_id("subscription"),
            org,
            new.provider,
            new.listing,
            new.kind,
            state,
            new.repository,
            new.filter,
            terms="\n\n".join(filter(None, (listing.licence, listing.terms))),
            accepted_by=permit.person,
            created_at=permit.now,
        )
        if new.repository is not None and new.bucket is not None:
            permit.also(Action.CREATE_REPOSITORY)
            prefix = f"{new.repository}-{random.token_hex(4)}/"
            text = f"Follows {new.provider}/{new.listing}"
            repository = Repository(
                org, new.repository, new.bucket, prefix, text, created_by=permit.person
            )
            assets.create_repository(connection, repository, permit.now)
        rows.add(connection, tables.subscriptions, subscription)
        details = {"listing": f"{new.provider}/{new.listing}", "accepts": new.accepts_version}
        permit.record(connection, f"subscription {subscription.id}", {"state": state, **details})
    return answer(subscription, 201, etag(subscription.version))


@router.get(
    "/orgs/{org}/subscriptions/{subscription}",
    response_model=Annotated[Subscription, Codec()],
)
def show_subscription(
    permit: Annotated[Permit, Depends(may(Action.SEE_SUBSCRIPTIONS))], org: str, subscription: str
) -> Response:
    """Show a subscription of an organisation, or one to its listings."""
    with permit.service.database.reading() as connection:
        entry = require_subscription(connection, org, subscription)
    return answer(entry, headers=etag(entry.version))


@router.post(
    "/orgs/{org}/subscriptions/{subscription}/decision",
    response_model=Annotated[Subscription, Codec()],
)
def decide_subscription(
    permit: Annotated[Permit, Depends(may(Action.CHANGE_SUBSCRIPTIONS))],
    org: str,
    subscription: str,
    decision: Annotated[SubscriptionDecision, Codec(), Body()],
    if_match: IfMatch = None,
) -> Response:
    """Grant or decline a subscription to a listing of the organisation.

    A grant of one that lives already changes its end.
    """
    _require_zone(decision)
    with permit.service.database.writing() as connection:
        before = require_subscription(connection, org, subscription)
        if before.provider != org:
            problem = f"admins of {before.provider} decide about this subscription"
            raise InvalidInputError(problem, ErrorKind.INVALID_REQUEST)
        changed = replace(
            before,
            state=Decision.GRANTED if decision.grants else Decision.DECLINED,
            ends_at=decision.ends_at,
            answer=decision.answer,
        )
        changed = _change(connection, changed, if_match)
        details = {"state": changed.state, "ends_at": str(changed.ends_at or "")}
        permit.record(connection, f"subscription {subscription}", details)
    return answer(changed, headers=etag(changed.version))


@router.delete(
    "/orgs/{org}/subscriptions/{subscription}",
    response_model=Annotated[Subscription, Codec()],
)
def end_subscription(
    permit: Annotated[Permit, Depends(may(Action.CHANGE_SUBSCRIPTIONS))],
    org: str,
    subscription: str,
    if_match: IfMatch = None,
) -> Response:
    """End a subscription, as its subscriber or as its provider: no further credential is made."""
    with permit.service.database.writing() as connection:
        before = require_subscription(connection, org, subscription)
        changed = _change(connection, replace(before, state=Decision.ENDED), if_match)
        permit.record(connection, f"subscription {subscription}", {"state": changed.state})
    return answer(changed, headers=etag(changed.version))


@router.post("/orgs/{org}/subscriptions/{subscription}/update", **ACCEPTED)
async def update_subscription(
    permit: Annotated[Permit, Depends(may(Action.UPDATE_SUBSCRIPTION))],
    org: str,
    subscription: str,
) -> Response:
    """Bring the repository of a filtered subscription to the provider's newest version.

    The answer is a job to watch; its report is a `FollowAnswer`.
    """

    def check() -> None:
        with permit.service.database.reading() as connection:
            require_subscription(connection, org, subscription)
        load_follow(permit.service, subscription)

    await asyncio.to_thread(check)
    what = f"subscription {subscription}"
    return await begin_job(permit, JobKind.FOLLOW, subscription, what)


def require_subscription(connection: Connection, organisation: str, name: str) -> Subscription:
    """Return a subscription of an organisation, or one to its listings."""
    entry = rows.find(connection, tables.subscriptions, Subscription, id=name)
    if entry is None or organisation not in {entry.subscriber, entry.provider}:
        raise rows.not_found(tables.subscriptions, {"id": name})
    return entry


def _change(
    connection: Connection, subscription: Subscription, if_match: str | None
) -> Subscription:
    version = rows.change(
        connection, tables.subscriptions, subscription, if_version=expected_version(if_match)
    )
    return replace(subscription, version=version)


def _offered(connection: Connection, organisation: str, new: NewSubscription) -> Listing:
    key = {"organisation": new.provider, "name": new.listing}
    listing = rows.find(connection, tables.listings, Listing, **key)
    if listing is None or not {"*", organisation} & {*listing.offered_to}:
        problem = f"{new.provider} offers no such listing to {organisation}"
        raise NotFoundError(problem, ErrorKind.ENTRY_NOT_FOUND)
    if new.provider == organisation:
        problem = "members read the repositories of their own organisation without a subscription"
        raise InvalidInputError(problem, ErrorKind.INVALID_REQUEST)
    return listing


def _check_kind(new: NewSubscription, listing: Listing) -> None:
    """Raise an error for a subscription that says too much or too little for its kind."""
    problem = None
    if new.kind is SubscriptionKind.DIRECT:
        if listing.filter is not None:
            problem = "a part of a repository is offered: ask for a filtered subscription"
        elif new.repository or new.bucket or new.filter:
            problem = "a direct subscription reads the provider's repository: it needs no other"
    elif not (new.repository and new.bucket):
        problem = "a filtered subscription needs a repository to create, and a bucket for it"
    if problem is not None:
        raise InvalidInputError(problem, ErrorKind.INVALID_REQUEST)
    if new.filter is not None:
        check_filter(new.filter)


def _check_acceptance(new: NewSubscription, listing: Listing) -> None:
    if (listing.licence or listing.terms) and new.accepts_version != listing.version:
        problem = "read the licence and the terms of the listing, and accept them"
        advice = f"send accepts_version={listing.version}, which is the present version"
        raise InvalidInputError(f"{problem}: {advice}", ErrorKind.INVALID_REQUEST)


def _check_first(connection: Connection, organisation: str, new: NewSubscription) -> None:
    """Refuse a second direct subscription to a listing while the first one lives."""
    table = tables.subscriptions
    others = rows.find_all(
        connection,
        table,
        Subscription,
        table.c.subscriber == organisation,
        table.c.provider == new.provider,
        table.c.listing == new.listing,
        table.c.kind == SubscriptionKind.DIRECT,
        table.c.state.in_([Decision.PENDING, Decision.GRANTED]),
    )
    if others and new.kind is SubscriptionKind.DIRECT:
        problem = f"{organisation} has a subscription to {new.provider}/{new.listing} already"
        text = f"{problem}, {others[0].id}, which is {others[0].state}"
        raise ConflictError(message=text, kind=ErrorKind.ENTRY_IN_USE)


def _require_zone(decision: SubscriptionDecision) -> None:
    if decision.ends_at is not None and decision.ends_at.tzinfo is None:
        problem = "a moment needs a time zone, like 2026-01-01T00:00:00Z"
        raise InvalidInputError(problem, ErrorKind.INVALID_REQUEST)
