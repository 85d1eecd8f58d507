"""Routes about access requests: ask after a refusal, see, grant, decline, withdraw."""

from typing import Annotated

from fastapi import APIRouter, Body, Depends, Query, Response
from sqlalchemy import Connection, select

from icefloe.catalog.model import AccessRequest, Decision
from icefloe.catalog.wire import (
    NewAccessRequest,
    Page,
    RequestDecision,
    RequestProposal,
)
from icefloe.errors import ConflictError, ErrorKind, InvalidInputError
from icefloe.records import replace
from icefloe.service.database import assets, rows, tables
from icefloe.service.database.facts import Entry
from icefloe.service.domain.actions import Action
from icefloe.service.domain.decide import Missing, decide
from icefloe.service.domain.simulate import PolicyChange
from icefloe.service.http.access import Permit, actor_of, may, refusal_of
from icefloe.service.http.codec import Codec, answer
from icefloe.service.http.pages import Cursor, Limit, find_page, page_of
from icefloe.service.http.policies import check_policy, policy_of, shown_policy, try_change
from icefloe.service.http.problems import PROBLEMS
from icefloe.service.opening import Opener
from icefloe.service.requests import Case, ask, missing_grants

router = APIRouter(tags=["requests"], responses=PROBLEMS)
State = Annotated[Decision | None, Query(description="Only requests in this state")]


@router.post(
    "/repos/{org}/{name}/requests",
    response_model=Annotated[Page[AccessRequest], Codec()],
    status_code=201,
)
def ask_for_access(
    permit: Annotated[Permit, Depends(may(Action.ASK_FOR_ACCESS))],
    org: str,
    name: str,
    new: Annotated[NewAccessRequest, Codec(), Body()],
) -> Response:
    """Ask for what was missing when the repository was last opened.

    The owner of each missing container gets a request. Asking again changes nothing.
    """
    del org, name
    return answer(Page(tuple(ask_owners(permit, new))), 201)


def ask_owners(permit: Permit, new: NewAccessRequest) -> list[AccessRequest]:
    """Add a request for each container that is missing, or for the one that is asked for."""
    entry, missing = missing_of(permit, new.container)
    with permit.service.database.writing() as connection:
        repository = entry.repository
        requests = ask(connection, permit.person, repository, missing, new.message, permit.now)
        details = {"requests": [request.id for request in requests]}
        permit.record(connection, repository.full_name, details)
    return requests


def missing_of(permit: Permit, container: str | None = None) -> tuple[Entry, list[Missing]]:
    """Return a repository, and what the caller may not read of it; it must be one that they see."""
    entry = permit.entry
    if entry is None:
        raise refusal_of(replace(permit, verdict=replace(permit.verdict, visible=False)))
    facts = Opener(permit.service).facts_of(entry, None, permit.facts)
    seen = decide(actor_of(permit.caller), Action.SEE_REPOSITORY, permit.resource, facts)
    if not seen.allowed:
        raise refusal_of(replace(permit, verdict=replace(seen, visible=False)))
    return entry, missing_grants(facts, container)


@router.get("/me/requests", response_model=Annotated[Page[AccessRequest], Codec()])
def list_own_requests(
    permit: Annotated[Permit, Depends(may(Action.SEE_SELF))],
    state: State = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """List what the caller has asked for, with the answers."""
    return answer(find_own_requests(permit, state, limit=limit, cursor=cursor))


def find_own_requests(
    permit: Permit,
    state: Decision | None = None,
    repository: str | None = None,
    *,
    limit: int,
    cursor: str | None = None,
) -> Page[AccessRequest]:
    """Return a page of what the caller has asked for, of one repository or of all."""
    table = tables.access_requests
    conditions = [table.c.person == permit.person]
    if repository is not None:
        conditions.append(table.c.repository == repository)
    return find_page(
        permit.service.database,
        table,
        AccessRequest,
        *conditions,
        state=state,
        limit=limit,
        cursor=cursor,
    )


@router.delete("/me/requests/{request}", response_model=Annotated[AccessRequest, Codec()])
def withdraw_request(
    permit: Annotated[Permit, Depends(may(Action.ASK_FOR_ACCESS))], request: str
) -> Response:
    """Withdraw a request that waits for an answer."""
    with permit.service.database.writing() as connection:
        waiting = _require_pending(connection, request, person=permit.person)
        ended = _decided(connection, replace(waiting, state=Decision.ENDED))
        permit.record(connection, f"request {request}", {"state": ended.state})
    return answer(ended)


@router.get("/orgs/{org}/requests", response_model=Annotated[Page[AccessRequest], Codec()])
def list_requests(
    permit: Annotated[Permit, Depends(may(Action.SEE_REQUESTS))],
    org: str,
    state: State = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """List the requests that admins of the organisation decide about."""
    is_theirs = tables.access_requests.c.organisation == org
    return page_of(
        permit.service.database,
        tables.access_requests,
        AccessRequest,
        is_theirs,
        state=state,
        limit=limit,
        cursor=cursor,
    )


@router.get("/orgs/{org}/requests/{request}", response_model=Annotated[RequestProposal, Codec()])
def show_request(
    permit: Annotated[Permit, Depends(may(Action.SEE_REQUESTS))], org: str, request: str
) -> Response:
    """Show a request, the policy or the subscription that is missing, and who would gain by it."""
    with permit.service.database.reading() as connection:
        key = {"id": request, "organisation": org}
        asked = rows.require(connection, tables.access_requests, AccessRequest, **key)
        if asked.state is not Decision.PENDING:
            return answer(RequestProposal(asked))
        case = _case(permit, connection, asked)
        if (obstacle := case.obstacle()) is not None:
            return answer(RequestProposal(asked, obstacle=obstacle))
        if (subscription := case.subscription()) is not None:
            return answer(RequestProposal(asked, subscription=subscription))
        settings = case.policy()
        assert settings is not None
        change = PolicyChange(policy_of(org, "policy-new", settings))
        simulation = try_change(permit, connection, org, change)
        return answer(RequestProposal(asked, settings, simulation=simulation))


@router.post(
    "/orgs/{org}/requests/{request}/decision",
    response_model=Annotated[AccessRequest, Codec()],
)
def decide_request(
    permit: Annotated[Permit, Depends(may(Action.DECIDE_REQUESTS))],
    org: str,
    request: str,
    decision: Annotated[RequestDecision, Codec(), Body()],
) -> Response:
    """Grant a request by the policy that was shown, or a changed one; or decline it."""
    with permit.service.database.writing() as connection:
        asked = _require_pending(connection, request, organisation=org)
        if decision.grants:
            granted_by = _grant(permit, connection, _case(permit, connection, asked), decision)
            state = Decision.GRANTED
        else:
            granted_by, state = None, Decision.DECLINED
        decided = _decided(
            connection,
            replace(
                asked,
                state=state,
                answer=decision.answer,
                decided_by=permit.person,
                granted_by=granted_by,
            ),
        )
        details = {"state": state, "by": granted_by, "asked_by": asked.person}
        permit.record(connection, f"request {request}", details)
    return answer(decided)


def _grant(permit: Permit, connection: Connection, case: Case, decision: RequestDecision) -> str:
    """Make what is missing, and return its id."""
    if (obstacle := case.obstacle()) is not None:
        raise InvalidInputError(obstacle, ErrorKind.INVALID_REQUEST)
    subscription = case.subscription()
    if subscription is not None:
        permit.also(Action.CHANGE_SUBSCRIPTIONS)
        revived = replace(subscription, state=Decision.GRANTED, ends_at=decision.ends_at)
        rows.change(connection, tables.subscriptions, revived)
        case.require_granted()
        return subscription.id
    permit.also(Action.CHANGE_POLICIES)
    if decision.policy is None:
        problem = "send the policy of the proposal back, perhaps changed"
        raise InvalidInputError(problem, ErrorKind.INVALID_REQUEST)
    policy = policy_of(case.request.organisation, assets.new_id("policy"), decision.policy)
    check_policy(connection, policy, decision.policy)
    policy = assets.create_policy(connection, policy, permit.person, permit.now)
    case.require_granted()
    permit.record(connection, f"policy {policy.id}", shown_policy(policy))
    return policy.id


def _case(permit: Permit, connection: Connection, request: AccessRequest) -> Case:
    allows_anonymous = permit.service.settings.allows_anonymous
    return Case(connection, request, permit.now, allows_anonymous=allows_anonymous)


def _require_pending(connection: Connection, request: str, **key: str) -> AccessRequest:
    table = tables.access_requests
    connection.execute(select(table.c.id).where(table.c.id == request).with_for_update())
    asked = rows.require(connection, table, AccessRequest, id=request, **key)
    if asked.state is not Decision.PENDING:
        by = f" by {asked.decided_by}" if asked.decided_by else ""
        problem = f"the request is {asked.state} already{by}"
        raise ConflictError(message=problem, kind=ErrorKind.ENTRY_CHANGED)
    return asked


def _decided(connection: Connection, request: AccessRequest) -> AccessRequest:
    table = tables.access_requests
    query = table.update().where(table.c.id == request.id)
    connection.execute(query.values(rows.row_of(request, table)))
    return request
