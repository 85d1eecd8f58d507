"""Pages about virtual chunk access policies: choose a prefix, try a policy, save it, undo it."""

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Request, Response

from icefloe.catalog.model import Bucket, Policy, PolicyScope
from icefloe.catalog.wire import (
    Page,
    PolicySettings,
    PolicyTrial,
    PolicyVersionAnswer,
    SimulationAnswer,
)
from icefloe.errors import IcefloeError
from icefloe.records import Record
from icefloe.service.domain.actions import Action
from icefloe.service.domain.locations import bucket_location, location_url
from icefloe.service.http import buckets, policies
from icefloe.service.http.access import Permit
from icefloe.service.http.problems import status_of
from icefloe.service.pages.admission import (
    MembersRoute,
    field_of,
    if_match,
    may_visit,
    moment_of,
    record_of,
    result_of,
    show,
    words_of,
)
from icefloe.service.pages.buckets import Look, check_prefix, is_prefix, look_into
from icefloe.service.pages.site import Visit, Visitor, redirect

router = APIRouter(route_class=MembersRoute)

_MOST_BUCKETS: Final = 1000
_MOST_VERSIONS: Final = 100
_FIELDS: Final = ("bucket", "prefix", "scope", "shared_with", "embargoed_until", "ends_at")
_ChangePolicies = Annotated[Permit, Depends(may_visit(Action.CHANGE_POLICIES))]


# Settings in forms


def fields_of(settings: PolicySettings | Policy) -> dict[str, str]:
    """Return the settings of a policy as the contents of fields."""
    return {
        "bucket": settings.bucket,
        "prefix": settings.prefix,
        "scope": settings.scope.value,
        "shared_with": " ".join(settings.shared_with),
        "embargoed_until": field_of(settings.embargoed_until),
        "ends_at": field_of(settings.ends_at),
    }


def settings_of(fields: Mapping[str, str]) -> PolicySettings:
    """Return the settings in a form, with the checks of the API."""
    prefix = fields.get("prefix", "")
    check_prefix(prefix)
    body = {
        "bucket": fields.get("bucket", ""),
        "prefix": prefix,
        "scope": fields.get("scope") or PolicyScope.ORGANISATION.value,
        "shared_with": words_of(fields.get("shared_with", "")),
        "embargoed_until": moment_of(fields.get("embargoed_until", ""), "Embargo"),
        "ends_at": moment_of(fields.get("ends_at", ""), "End"),
        "confirm_prefix": fields.get("confirm_prefix", "").strip() or None,
    }
    return record_of(PolicySettings, body)


# What a change would do


class _Preview(Record):
    """All that is known of a policy before it is saved."""

    bucket: Bucket
    url: str
    """The whole prefix."""
    impact: SimulationAnswer
    obstacle: str
    """Why it cannot be saved, if so."""


def _preview(permit: Permit, org: str, policy: str | None, settings: PolicySettings) -> _Preview:
    impact = policies.try_policy(permit, org, PolicyTrial(settings, policy))
    answer = buckets.show_bucket(permit.also(Action.SEE_BUCKETS), org, settings.bucket)
    bucket = result_of(answer, Bucket)
    obstacle = ""
    try:
        with permit.service.database.reading() as connection:
            trial = policies.policy_of(org, policy or "policy-new", settings)
            policies.check_proven(connection, trial)
    except IcefloeError as error:
        obstacle = str(error)
    url = location_url(bucket_location(bucket).below(settings.prefix))
    return _Preview(bucket, url, impact, obstacle)


# The editor


@router.get("/organisations/{org}/policies/new")
async def show_new(request: Request, visit: Visitor, permit: _ChangePolicies, org: str) -> Response:
    """Show the editor for a new policy, and what it would do once a bucket is chosen."""
    return await _editor(visit, permit, org, None, _chosen(request.query_params))


@router.post("/organisations/{org}/policies/new")
async def create_policy(visit: Visitor, permit: _ChangePolicies, org: str) -> Response:
    """Save a new policy."""

    def create() -> Policy:
        settings = settings_of(visit.fields)
        return result_of(policies.create_policy(permit, org, settings), Policy)

    try:
        policy = await asyncio.to_thread(create)
    except IcefloeError as error:
        return await _editor(visit, permit, org, None, _sent(visit), error)
    return redirect(f"/organisations/{org}/policies/{policy.id}")


@router.get("/organisations/{org}/policies/{policy}/edit")
async def show_editor(
    request: Request, visit: Visitor, permit: _ChangePolicies, org: str, policy: str
) -> Response:
    """Show the editor of a policy, and what the change would do."""
    query = request.query_params
    return await _editor(visit, permit, org, policy, _chosen(query), version=query.get("version"))


@router.post("/organisations/{org}/policies/{policy}/edit")
async def change_policy(visit: Visitor, permit: _ChangePolicies, org: str, policy: str) -> Response:
    """Save a changed policy."""

    def change() -> None:
        settings = settings_of(visit.fields)
        policies.change_policy(permit, org, policy, settings, if_match(visit.fields))

    try:
        await asyncio.to_thread(change)
    except IcefloeError as error:
        version = visit.fields.get("version")
        return await _editor(visit, permit, org, policy, _sent(visit), error, version)
    return redirect(f"/organisations/{org}/policies/{policy}")


def _chosen(fields: Mapping[str, str]) -> dict[str, str]:
    """Return the fields of the editor; a folder that was chosen is the new prefix."""
    chosen = {name: fields[name] for name in _FIELDS if name in fields}
    return chosen | {"prefix": fields["folder"]} if "folder" in fields else chosen


def _sent(visit: Visit) -> dict[str, str]:
    """Return the fields of a policy that was sent; empty ones are not in a form."""
    return {name: visit.fields.get(name, "") for name in _FIELDS}


async def _editor(
    visit: Visit,
    permit: Permit,
    org: str,
    policy: str | None,
    fields: dict[str, str],
    error: IcefloeError | None = None,
    version: str | None = None,
) -> Response:
    """Show the editor with the fields of a draft, and what the draft would do.

    A draft keeps the version that it was made from, so that a conflict stays one.
    """
    present = None
    if policy is not None:
        answer = await asyncio.to_thread(
            policies.show_policy, permit.also(Action.SEE_POLICIES), org, policy
        )
        present = result_of(answer, Policy)
    draft = fields_of(present or PolicySettings("")) | fields
    preview, look, look_problem = None, None, ""
    if draft["bucket"]:
        try:
            settings = settings_of(draft)
            preview = await asyncio.to_thread(_preview, permit, org, policy, settings)
        except IcefloeError as fault:
            error = error or fault
    if preview is not None:
        try:
            look = await look_into(permit, org, draft["bucket"], draft["prefix"])
        except IcefloeError as fault:
            look_problem = str(fault)
    answer = await asyncio.to_thread(
        buckets.list_buckets, permit.also(Action.SEE_BUCKETS), org, limit=_MOST_BUCKETS
    )
    return show(
        visit,
        "policy_editor.html",
        status_of(error) if error else 200,
        org=org,
        policy=present,
        version=version or (str(present.version) if present else ""),
        draft=draft,
        names=_FIELDS,
        scopes=tuple(PolicyScope),
        buckets=result_of(answer, Page[Bucket]).items,
        preview=preview,
        folders=_folders(preview.bucket, look) if preview and look else [],
        above=_above(draft["prefix"]),
        look=look,
        look_problem=look_problem,
        problem=str(error) if error else "",
    )


def _folders(bucket: Bucket, look: Look) -> list[tuple[str, bool]]:
    """Return the folders below the prefix of a bucket, and whether they can be chosen."""
    names = [folder.removeprefix(bucket.prefix) for folder in look.level.folders]
    return [(name, is_prefix(name)) for name in names]


def _above(prefix: str) -> str | None:
    """Return the prefix that contains a prefix; None for the outermost one.

    >>> _above("era5/daily/"), _above("era5/"), _above("")
    ('era5/', '', None)
    """
    parts = prefix.split("/")[:-2]
    return "".join(f"{part}/" for part in parts) if prefix else None


# A policy with its history


class _Record(Record):
    """A policy with its history, also of one that was deleted."""

    id: str
    policy: Policy | None
    versions: tuple[PolicyVersionAnswer, ...]

    @property
    def version(self) -> int | str:
        """The version that a change is about; empty for a policy that was deleted."""
        return self.policy.version if self.policy else ""


def _load(permit: Permit, org: str, policy: str) -> _Record:
    answer = policies.show_history(permit.also(Action.SEE_POLICIES), org, policy)
    versions = result_of(answer, Page[PolicyVersionAnswer]).items
    return _Record(policy, versions[-1].policy, versions)


@router.get("/organisations/{org}/policies/{policy}")
def show_policy(
    visit: Visitor,
    permit: Annotated[Permit, Depends(may_visit(Action.SEE_POLICIES))],
    org: str,
    policy: str,
) -> Response:
    """Show a policy with its history."""
    return _page(visit, permit, org, policy)


def _page(visit: Visit, permit: Permit, org: str, policy: str, notice: str = "") -> Response:
    record = _load(permit, org, policy)
    newest = list(reversed(record.versions))
    return show(
        visit,
        "policy.html",
        org=org,
        record=record,
        versions=newest[:_MOST_VERSIONS],
        hidden=max(0, len(newest) - _MOST_VERSIONS),
        may_change=permit.allows(Action.CHANGE_POLICIES),
        can_undo=len(newest) > 1 and newest[1].policy is not None,
        notice=notice,
    )


@router.get("/organisations/{org}/policies/{policy}/delete")
def ask_deletion(visit: Visitor, permit: _ChangePolicies, org: str, policy: str) -> Response:
    """Show what the deletion of a policy would do."""
    return _step(visit, permit, org, policy, "delete")


@router.post("/organisations/{org}/policies/{policy}/delete")
def delete_policy(visit: Visitor, permit: _ChangePolicies, org: str, policy: str) -> Response:
    """Delete a policy, and show until when credentials live."""
    try:
        answer = policies.delete_policy(permit, org, policy, if_match(visit.fields))
    except IcefloeError as error:
        return _step(visit, permit, org, policy, "delete", error)
    until = answer.headers["x-issued-until"]
    notice = f"The policy is deleted. Credentials that exist end by {until}."
    return _page(visit, permit, org, policy, notice)


@router.get("/organisations/{org}/policies/{policy}/undo")
def ask_undo(visit: Visitor, permit: _ChangePolicies, org: str, policy: str) -> Response:
    """Show what it would do to put a policy back to the version before."""
    return _step(visit, permit, org, policy, "undo")


@router.post("/organisations/{org}/policies/{policy}/undo")
def undo_policy(visit: Visitor, permit: _ChangePolicies, org: str, policy: str) -> Response:
    """Put a policy back to the version before."""
    try:
        policies.undo(permit, org, policy, if_match(visit.fields))
    except IcefloeError as error:
        return _step(visit, permit, org, policy, "undo", error)
    return redirect(f"/organisations/{org}/policies/{policy}")


def _step(
    visit: Visit,
    permit: Permit,
    org: str,
    policy: str,
    step: str,
    error: IcefloeError | None = None,
) -> Response:
    """Show what the deletion of a policy, or the undoing of its last change, would do."""
    record = _load(permit, org, policy)
    values: dict[str, Any] = {"former": None, "impact": None}
    try:
        if step == "undo":
            values["former"] = policies.former_version(record.versions)
            settings = settings_of(fields_of(values["former"]))
            trial = PolicyTrial(settings, policy if record.policy else None)
        else:
            trial = PolicyTrial(None, policy)
        values["impact"] = policies.try_policy(permit, org, trial)
    except IcefloeError as fault:
        error = error or fault
    return show(
        visit,
        "policy_step.html",
        status_of(error) if error else 200,
        org=org,
        record=record,
        step=step,
        version=visit.fields.get("version") or record.version,
        problem=str(error) if error else "",
        **values,
    )
