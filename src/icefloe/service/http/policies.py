"""Routes about virtual chunk access policies: set, simulate, undo."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Body, Depends, Response
from sqlalchemy import Connection, select

from icefloe.catalog.model import Bucket, BucketState, Delegation, Policy, PolicyScope
from icefloe.catalog.wire import (
    Page,
    PolicySettings,
    PolicyTrial,
    PolicyVersionAnswer,
    SimulationAnswer,
)
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.records import replace
from icefloe.service.database import assets, rows, tables
from icefloe.service.database.facts import load_world
from icefloe.service.domain.actions import Action
from icefloe.service.domain.decide import is_whole
from icefloe.service.domain.locations import bucket_location, location_url
from icefloe.service.domain.simulate import Observer, PolicyChange, simulate, told
from icefloe.service.http.access import Permit, actor_of, may
from icefloe.service.http.codec import Codec, answer
from icefloe.service.http.pages import Cursor, Limit, page_of
from icefloe.service.http.problems import PROBLEMS
from icefloe.service.http.versions import ISSUED_UNTIL, IfMatch, etag, expected_version

router = APIRouter(tags=["policies"], responses=PROBLEMS)


@router.get("/orgs/{org}/policies", response_model=Annotated[Page[Policy], Codec()])
def list_policies(
    permit: Annotated[Permit, Depends(may(Action.SEE_POLICIES))],
    org: str,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """List the policies on the buckets of an organisation."""
    table = tables.policies
    return page_of(
        permit.service.database,
        table,
        Policy,
        table.c.organisation == org,
        limit=limit,
        cursor=cursor,
    )


@router.post("/orgs/{org}/policies", response_model=Annotated[Policy, Codec()], status_code=201)
def create_policy(
    permit: Annotated[Permit, Depends(may(Action.CHANGE_POLICIES))],
    org: str,
    settings: Annotated[PolicySettings, Codec(), Body()],
) -> Response:
    """Allow virtual chunks below a prefix to be read, by the organisation or by anyone."""
    with permit.service.database.writing() as connection:
        policy = policy_of(org, assets.new_id("policy"), settings)
        check_policy(connection, policy, settings)
        policy = assets.create_policy(connection, policy, permit.person, permit.now)
        permit.record(connection, f"policy {policy.id}", shown_policy(policy))
    return answer(policy, 201, etag(policy.version))


@router.get("/orgs/{org}/policies/{policy}", response_model=Annotated[Policy, Codec()])
def show_policy(
    permit: Annotated[Permit, Depends(may(Action.SEE_POLICIES))], org: str, policy: str
) -> Response:
    """Show a policy."""
    with permit.service.database.reading() as connection:
        stored = _require(connection, org, policy)
    return answer(stored, headers=etag(stored.version))


@router.put("/orgs/{org}/policies/{policy}", response_model=Annotated[Policy, Codec()])
def change_policy(
    permit: Annotated[Permit, Depends(may(Action.CHANGE_POLICIES))],
    org: str,
    policy: str,
    settings: Annotated[PolicySettings, Codec(), Body()],
    if_match: IfMatch = None,
) -> Response:
    """Replace a policy."""
    with permit.service.database.writing() as connection:
        before = _require(connection, org, policy)
        changed = replace(
            policy_of(org, policy, settings),
            created_by=before.created_by,
            created_at=before.created_at,
        )
        check_policy(connection, changed, settings)
        changed = assets.change_policy(
            connection, changed, permit.person, permit.now, if_version=expected_version(if_match)
        )
        permit.record(connection, f"policy {policy}", shown_policy(changed))
    return answer(changed, headers=etag(changed.version))


@router.delete("/orgs/{org}/policies/{policy}", status_code=204, responses=ISSUED_UNTIL)
def delete_policy(
    permit: Annotated[Permit, Depends(may(Action.CHANGE_POLICIES))],
    org: str,
    policy: str,
    if_match: IfMatch = None,
) -> Response:
    """Delete a policy: no credential is made by it from now on."""
    end = str(permit.service.issued_until())
    with permit.service.database.writing() as connection:
        stored = _require(connection, org, policy)
        rows.require_version(connection, tables.policies, stored, expected_version(if_match))
        assets.delete_policy(connection, stored, permit.person, permit.now)
        permit.record(connection, f"policy {policy}", {"deleted": True, "issued_until": end})
    return Response(status_code=204, headers={"x-issued-until": end})


@router.get(
    "/orgs/{org}/policies/{policy}/history",
    response_model=Annotated[Page[PolicyVersionAnswer], Codec()],
)
def show_history(
    permit: Annotated[Permit, Depends(may(Action.SEE_POLICIES))], org: str, policy: str
) -> Response:
    """List the versions of a policy, oldest first; also of one that was deleted."""
    with permit.service.database.reading() as connection:
        versions = _history(connection, org, policy)
    answers = tuple(
        PolicyVersionAnswer(v.id, v.policy, v.changed_by, v.changed_at) for v in versions
    )
    return answer(Page(answers))


@router.post("/orgs/{org}/policies/{policy}/undo", response_model=Annotated[Policy, Codec()])
def undo(
    permit: Annotated[Permit, Depends(may(Action.CHANGE_POLICIES))],
    org: str,
    policy: str,
    if_match: IfMatch = None,
) -> Response:
    """Put a policy back to the version before the last one; a deleted one comes back."""
    with permit.service.database.writing() as connection:
        former = former_version(_history(connection, org, policy))
        check_proven(connection, former)
        if rows.find(connection, tables.policies, Policy, id=policy) is None:
            restored = assets.create_policy(connection, former, permit.person, permit.now)
        else:
            restored = assets.change_policy(
                connection,
                former,
                permit.person,
                permit.now,
                if_version=expected_version(if_match),
            )
        permit.record(connection, f"policy {policy}", shown_policy(restored) | {"undone": True})
    return answer(restored, headers=etag(restored.version))


@router.post("/orgs/{org}/policy-simulations", response_model=Annotated[SimulationAnswer, Codec()])
def simulate_policy(
    permit: Annotated[Permit, Depends(may(Action.CHANGE_POLICIES))],
    org: str,
    trial: Annotated[PolicyTrial, Codec(), Body()],
) -> Response:
    """Return who would gain and lose access by a change of a policy; nothing is changed.

    People and repositories of other organisations are counted, unless the admin knows them.
    """
    return answer(try_policy(permit, org, trial))


def try_policy(permit: Permit, org: str, trial: PolicyTrial) -> SimulationAnswer:
    """Return what the caller may learn of what a change of a policy would do."""
    with permit.service.database.reading() as connection:
        if trial.settings is None:
            change = PolicyChange(_require(connection, org, trial.id or ""), deleted=True)
        else:
            identifier = _require(connection, org, trial.id).id if trial.id else "policy-new"
            policy = policy_of(org, identifier, trial.settings)
            key = {"organisation": org, "name": policy.bucket}
            rows.require(connection, tables.buckets, Bucket, **key)
            change = PolicyChange(policy)
        return try_change(permit, connection, org, change)


def try_change(
    permit: Permit, connection: Connection, org: str, change: PolicyChange
) -> SimulationAnswer:
    """Return what the caller may learn of what a change of a policy of an organisation would do."""
    allows_anonymous = permit.service.settings.allows_anonymous
    world = load_world(connection, permit.now, allows_anonymous=allows_anonymous)
    table = tables.access_requests
    asked = select(table.c.person, table.c.repository).where(table.c.organisation == org)
    observer = Observer(
        actor_of(permit.caller),
        org,
        frozenset((person, repository) for person, repository in connection.execute(asked)),
        frozenset(s.subscriber for s in world.subscriptions if s.provider == org),
    )
    return told(simulate(world, change), world, observer)


def policy_of(organisation: str, identifier: str, settings: PolicySettings) -> Policy:
    """Return the policy that settings describe."""
    for moment in (settings.embargoed_until, settings.ends_at):
        if moment is not None and moment.tzinfo is None:
            problem = "a moment needs a time zone, like 2026-01-01T00:00:00Z"
            raise InvalidInputError(problem, ErrorKind.INVALID_REQUEST)
    return Policy(
        identifier,
        organisation,
        settings.bucket,
        settings.prefix,
        settings.scope,
        settings.embargoed_until,
        settings.ends_at,
        settings.shared_with,
    )


def check_policy(connection: Connection, policy: Policy, settings: PolicySettings) -> None:
    """Raise an error for a policy that shares more than its author may have meant."""
    bucket = check_proven(connection, policy)
    if policy.scope is not PolicyScope.ANYONE:
        return
    location = bucket_location(bucket).below(policy.prefix)
    whole = location_url(location)
    if settings.confirm_prefix != whole:
        problem = f"this lets everybody on this service read all objects below {whole}"
        advice = "type this prefix again as confirm_prefix"
        raise InvalidInputError(f"{problem}: {advice}", ErrorKind.INVALID_REQUEST)


def check_proven(connection: Connection, policy: Policy) -> Bucket:
    """Return the bucket of a policy; refuse to share one that is not proven with others."""
    key = {"organisation": policy.organisation, "name": policy.bucket}
    bucket = rows.require(connection, tables.buckets, Bucket, **key)
    is_for_others = policy.scope is PolicyScope.ANYONE or policy.shared_with
    if is_for_others and bucket.state is not BucketState.PROVEN:
        problem = f"the bucket {bucket.name} is {bucket.state} ({bucket.state_reason})"
        advice = "probe it before you share it with others"
        raise InvalidInputError(f"{problem}: {advice}", ErrorKind.INVALID_REQUEST)
    is_whole_container = bucket.delegation is Delegation.SAS and is_whole(bucket, policy.prefix)
    if is_for_others and not (bucket.is_scoped or is_whole_container):
        problem = f"credentials of the bucket {bucket.name} cannot be cut to a folder"
        advice = "use a hierarchical namespace or a role, or share the whole container"
        raise InvalidInputError(f"{problem}: {advice}", ErrorKind.INVALID_REQUEST)
    return bucket


def former_version(versions: Sequence[PolicyVersionAnswer | assets.PolicyVersion]) -> Policy:
    """Return the policy before its last change; raise `InvalidInputError` if it did not exist."""
    former = versions[-2].policy if len(versions) > 1 else None
    if former is None:
        problem = f"there is no version of {versions[-1].id} to go back to: delete it instead"
        raise InvalidInputError(problem, ErrorKind.INVALID_REQUEST)
    return former


def _history(connection: Connection, organisation: str, policy: str) -> list[assets.PolicyVersion]:
    table = tables.policy_history
    conditions = (table.c.organisation == organisation, table.c.id == policy)
    versions = assets.policy_history(connection, *conditions)
    if not versions:
        raise rows.not_found(tables.policies, {"id": policy})
    return versions


def _require(connection: Connection, organisation: str, identifier: str) -> Policy:
    return rows.require(
        connection, tables.policies, Policy, id=identifier, organisation=organisation
    )


def shown_policy(policy: Policy) -> dict[str, object]:
    """Return what the audit keeps of a policy."""
    return {
        "bucket": policy.bucket,
        "prefix": policy.prefix,
        "scope": policy.scope,
        "shared_with": policy.shared_with,
        "version": policy.version,
    }
