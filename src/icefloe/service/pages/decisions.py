"""Pages on which admins answer access requests."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Response

from icefloe.catalog.model import AccessRequest, Bucket, Decision, PolicyScope
from icefloe.catalog.transport import REASONS
from icefloe.catalog.wire import Page, PolicySettings, RequestDecision, RequestProposal
from icefloe.errors import IcefloeError
from icefloe.service.domain.actions import Action
from icefloe.service.domain.locations import bucket_location, location_url
from icefloe.service.http import buckets, requests
from icefloe.service.http.access import Permit
from icefloe.service.http.problems import status_of
from icefloe.service.pages.admission import (
    MembersRoute,
    may_visit,
    moment_of,
    record_of,
    result_of,
    show,
)
from icefloe.service.pages.policies import fields_of, settings_of
from icefloe.service.pages.site import Visit, Visitor, redirect

router = APIRouter(route_class=MembersRoute)


@router.get("/organisations/{org}/requests")
def list_requests(
    visit: Visitor,
    permit: Annotated[Permit, Depends(may_visit(Action.SEE_REQUESTS))],
    org: str,
    state: str = Decision.PENDING.value,
    cursor: str | None = None,
) -> Response:
    """Show the requests that admins of an organisation decide about, by state."""
    chosen = record_of(Decision, state)
    answer = requests.list_requests(permit, org, chosen, cursor=cursor)
    return show(
        visit,
        "requests_to_answer.html",
        org=org,
        requests=result_of(answer, Page[AccessRequest]),
        state=chosen,
        states=tuple(Decision),
    )


@router.get("/organisations/{org}/requests/{request}")
def show_request(
    visit: Visitor,
    permit: Annotated[Permit, Depends(may_visit(Action.SEE_REQUESTS))],
    org: str,
    request: str,
) -> Response:
    """Show a request, what a grant would make, and who would gain access by it."""
    return _page(visit, permit, org, request)


@router.post("/organisations/{org}/requests/{request}")
def decide_request(
    visit: Visitor,
    permit: Annotated[Permit, Depends(may_visit(Action.DECIDE_REQUESTS))],
    org: str,
    request: str,
) -> Response:
    """Grant or decline a request."""
    try:
        decision = record_of(RequestDecision, _decision(visit.fields))
        requests.decide_request(permit, org, request, decision)
    except IcefloeError as error:
        return _page(visit, permit, org, request, error)
    return redirect(f"/organisations/{org}/requests/{request}")


def _decision(fields: Mapping[str, str]) -> dict[str, Any]:
    grants = fields.get("decision") == "grant"
    has_policy = grants and "bucket" in fields
    return {
        "grants": grants,
        "policy": settings_of(fields) if has_policy else None,
        "ends_at": None if has_policy else moment_of(fields.get("ends_at", ""), "End"),
        "answer": fields.get("answer", ""),
    }


def _page(
    visit: Visit, permit: Permit, org: str, request: str, error: IcefloeError | None = None
) -> Response:
    answer = requests.show_request(permit.also(Action.SEE_REQUESTS), org, request)
    proposal = result_of(answer, RequestProposal)
    policy = proposal.policy
    return show(
        visit,
        "decision.html",
        status_of(error) if error else 200,
        org=org,
        proposal=proposal,
        asked=proposal.request,
        reasons=REASONS,
        fields=fields_of(policy) if policy else {},
        scopes=tuple(PolicyScope),
        impact=proposal.simulation,
        url=_whole_prefix(permit, org, policy) if policy else "",
        problem=str(error) if error else "",
    )


def _whole_prefix(permit: Permit, org: str, policy: PolicySettings) -> str:
    answer = buckets.show_bucket(permit.also(Action.SEE_BUCKETS), org, policy.bucket)
    bucket = result_of(answer, Bucket)
    return location_url(bucket_location(bucket).below(policy.prefix))
