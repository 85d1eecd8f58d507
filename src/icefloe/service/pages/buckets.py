"""Pages about buckets: settings and state, probes, suspension, registration, and who needs them."""

import asyncio
import re
from collections.abc import Mapping
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Response

from icefloe.catalog.model import PREFIX, Bucket, BucketState, Delegation, Platform, Policy
from icefloe.catalog.wire import (
    BucketCredential,
    BucketCredentialRequest,
    BucketSettings,
    NewBucket,
    OwnershipProof,
    Suspension,
)
from icefloe.errors import ErrorKind, IcefloeError, InvalidInputError
from icefloe.records import Record, asdict
from icefloe.service.buckets import NEEDED_SECRETS, PLATFORMS, last_checks
from icefloe.service.database import rows, tables
from icefloe.service.database.facts import load_world
from icefloe.service.domain.actions import Action
from icefloe.service.domain.locations import bucket_location, location_url
from icefloe.service.domain.needs import find_needs
from icefloe.service.http import buckets
from icefloe.service.http.access import Permit, actor_of
from icefloe.service.http.problems import status_of
from icefloe.service.pages.admission import (
    MembersRoute,
    if_match,
    may_visit,
    moment,
    record_of,
    result_of,
    show,
)
from icefloe.service.pages.site import Visit, Visitor, redirect
from icefloe.service.vending.objects import Contents, StoreClient

router = APIRouter(route_class=MembersRoute)

_MOST_FOLDERS: Final = 200
_MOST_SAMPLES: Final = 20
_MOST_POLICIES: Final = 200
_LONGEST_PREFIX: Final = 1024
_PREFIX: Final = re.compile(PREFIX)
_ChangeBuckets = Annotated[Permit, Depends(may_visit(Action.CHANGE_BUCKETS))]


# Registration

_TEXTS: Final[Mapping[Delegation, tuple[str, ...]]] = {
    Delegation.ROLE: ("region", "endpoint", "sts_endpoint", "role", "kms_key"),
    Delegation.STATIC: ("region", "endpoint"),
    Delegation.R2_TEMPORARY: ("account", "endpoint", "region"),
    Delegation.DOWNSCOPED_TOKEN: (),
    Delegation.SAS: ("account", "endpoint"),
    Delegation.ANONYMOUS: ("region", "endpoint", "account"),
}
"""The settings that are texts, beside those that all buckets have, by the way of delegation."""
_CHOICES: Final[Mapping[Delegation, tuple[str, ...]]] = {
    Delegation.ROLE: ("path_style", "allow_http"),
    Delegation.STATIC: ("path_style", "allow_http", "shares_static_keys"),
    Delegation.R2_TEMPORARY: (),
    Delegation.DOWNSCOPED_TOKEN: (),
    Delegation.SAS: ("hierarchical", "path_style", "allow_http"),
    Delegation.ANONYMOUS: ("path_style", "allow_http"),
}
"""The settings that are true or false."""
_COMMON: Final = ("platform", "bucket", "prefix")


@router.get("/organisations/{org}/new-bucket")
def show_registration(
    visit: Visitor, permit: _ChangeBuckets, org: str, delegation: str = "role"
) -> Response:
    """Show the form to register a bucket that is delegated in one of the ways."""
    return _form(visit, permit, org, record_of(Delegation, delegation))


@router.post("/organisations/{org}/new-bucket")
def register_bucket(visit: Visitor, permit: _ChangeBuckets, org: str) -> Response:
    """Register a bucket. Its secrets are stored, and never shown."""
    way, values, secrets = _typed(visit.fields)
    values["name"] = visit.fields.get("name", "").strip()
    try:
        new = record_of(NewBucket, {**values, "delegation": way, "secrets": secrets})
        buckets.register_bucket(permit, org, new)
    except IcefloeError as error:
        return _form(visit, permit, org, way, values=values, error=error)
    return redirect(f"/organisations/{org}/buckets/{new.name}")


@router.get("/organisations/{org}/buckets/{bucket}/edit")
def show_settings(
    visit: Visitor, permit: _ChangeBuckets, org: str, bucket: str, delegation: str | None = None
) -> Response:
    """Show the form to change a bucket, with its present settings and without its secrets."""
    present = _load(permit, org, bucket)
    way = present.delegation if delegation is None else record_of(Delegation, delegation)
    return _form(visit, permit, org, way, present=present, values=asdict(present))


@router.post("/organisations/{org}/buckets/{bucket}/edit")
def change_bucket(visit: Visitor, permit: _ChangeBuckets, org: str, bucket: str) -> Response:
    """Change the settings of a bucket, which is to be probed again then."""
    present = _load(permit, org, bucket)
    way, values, secrets = _typed(visit.fields)
    try:
        settings = record_of(BucketSettings, {**values, "delegation": way, "secrets": secrets})
        buckets.change_bucket(permit, org, bucket, settings, if_match(visit.fields))
    except IcefloeError as error:
        return _form(visit, permit, org, way, present=present, values=values, error=error)
    return redirect(f"/organisations/{org}/buckets/{bucket}")


@router.post("/organisations/{org}/buckets/{bucket}/forget")
def forget_bucket(visit: Visitor, permit: _ChangeBuckets, org: str, bucket: str) -> Response:
    """Forget a bucket whose name was typed again. Stored data stays."""
    try:
        if visit.fields.get("confirm_name") != bucket:
            problem = f"type the name {bucket} to forget the bucket"
            raise InvalidInputError(problem, ErrorKind.INVALID_REQUEST)
        buckets.delete_bucket(permit, org, bucket)
    except IcefloeError as error:
        present = _load(permit, org, bucket)
        values, way = asdict(present), present.delegation
        return _form(visit, permit, org, way, present=present, values=values, error=error)
    return redirect(f"/organisations/{org}#buckets")


def _load(permit: Permit, org: str, bucket: str) -> Bucket:
    answer = buckets.show_bucket(permit.also(Action.SEE_BUCKETS), org, bucket)
    return result_of(answer, Bucket)


def _typed(fields: Mapping[str, str]) -> tuple[Delegation, dict[str, Any], dict[str, str]]:
    """Return what was typed into the form of a bucket: way, settings, and secrets."""
    way = record_of(Delegation, fields.get("delegation", ""))
    names = (*_COMMON, *_TEXTS[way])
    texts = {name: fields[name].strip() for name in names if name in fields}
    choices = {name: name in fields for name in _CHOICES[way]}
    secrets = {
        name: fields[name].replace("\r\n", "\n") for name in _secret_names(way) if fields.get(name)
    }
    return way, {**texts, **choices}, secrets


def _secret_names(way: Delegation) -> list[str]:
    return sorted(frozenset().union(*NEEDED_SECRETS[way]))


def _form(
    visit: Visit,
    permit: Permit,
    org: str,
    way: Delegation,
    *,
    present: Bucket | None = None,
    values: Mapping[str, object] | None = None,
    error: IcefloeError | None = None,
) -> Response:
    """Show the form of a bucket: of the present one to change, or of a new one."""
    return show(
        visit,
        "bucket_form.html",
        200 if error is None else status_of(error),
        org=org,
        present=present,
        way=way,
        ways=tuple(Delegation),
        platforms=[platform for platform in Platform if platform in PLATFORMS[way]],
        texts=_TEXTS[way],
        choices=_CHOICES[way],
        secrets=_secret_names(way),
        has_alternatives=len(NEEDED_SECRETS[way]) > 1,
        keeps_secrets=present is not None and present.delegation is way,
        external_id=permit.service.external_id(org),
        values={name: value for name, value in (values or {}).items() if value is not None},
        problem="" if error is None else str(error),
    )


# A bucket


@router.get("/organisations/{org}/buckets/{bucket}")
def show_bucket(
    visit: Visitor,
    permit: Annotated[Permit, Depends(may_visit(Action.SEE_BUCKETS))],
    org: str,
    bucket: str,
) -> Response:
    """Show a bucket with its state and the policies on it, without its secrets."""
    return _page(visit, permit, org, bucket)


@router.post("/organisations/{org}/buckets/{bucket}/probe")
async def probe_bucket(visit: Visitor, permit: _ChangeBuckets, org: str, bucket: str) -> Response:
    """Probe a bucket; its page shows each attempt."""
    try:
        await buckets.probe(permit, org, bucket)
    except IcefloeError as error:
        return await asyncio.to_thread(_refused, visit, permit, org, bucket, error)
    return redirect(f"/organisations/{org}/buckets/{bucket}#probe")


@router.post("/organisations/{org}/buckets/{bucket}/suspend")
def suspend_bucket(visit: Visitor, permit: _ChangeBuckets, org: str, bucket: str) -> Response:
    """Cut a bucket off, and show until when credentials for it live."""
    try:
        suspension = result_of(buckets.suspend_bucket(permit, org, bucket), Suspension)
    except IcefloeError as error:
        return _refused(visit, permit, org, bucket, error)
    until = moment(suspension.issued_until)
    notice = f"No credential is made for this bucket now. Those that exist end by {until}."
    return _page(visit, permit, org, bucket, notice=notice)


@router.post("/organisations/{org}/buckets/{bucket}/resume")
def resume_bucket(visit: Visitor, permit: _ChangeBuckets, org: str, bucket: str) -> Response:
    """End the suspension of a bucket."""
    try:
        buckets.resume_bucket(permit, org, bucket)
    except IcefloeError as error:
        return _refused(visit, permit, org, bucket, error)
    notice = "The bucket is not suspended any more. Probe it, so that credentials are made again."
    return _page(visit, permit, org, bucket, notice=notice)


_SETTINGS: Final = (
    "platform",
    "bucket",
    "prefix",
    "region",
    "endpoint",
    "sts_endpoint",
    "path_style",
    "allow_http",
    "kms_key",
    "account",
    "hierarchical",
    "role",
    "delegation",
    "shares_static_keys",
)


def _page(
    visit: Visit,
    permit: Permit,
    org: str,
    bucket: str,
    status: int = 200,
    *,
    problem: str = "",
    notice: str = "",
) -> Response:
    registered = _load(permit, org, bucket)
    may_change = permit.allows(Action.CHANGE_BUCKETS)
    proof = None
    if may_change:
        shown_proof = buckets.show_ownership(permit.also(Action.CHANGE_BUCKETS), org, bucket)
        proof = result_of(shown_proof, OwnershipProof)
    permit.also(Action.SEE_POLICIES)
    with permit.service.database.reading() as connection:
        table = tables.policies
        on_it = (table.c.organisation == org, table.c.bucket == bucket)
        own = rows.find_all(connection, table, Policy, *on_it, limit=_MOST_POLICIES)
        checks = last_checks(connection, registered)
    return show(
        visit,
        "bucket.html",
        status,
        org=org,
        bucket=registered,
        url=location_url(bucket_location(registered)),
        settings=[(name, getattr(registered, name)) for name in _SETTINGS],
        is_suspended=registered.state is BucketState.SUSPENDED,
        is_public=registered.delegation is Delegation.ANONYMOUS,
        policies=own,
        may_change=may_change,
        may_share=permit.allows(Action.CHANGE_POLICIES),
        proof=proof,
        checks=checks,
        failures=sum(not check.passed for check in checks),
        problem=problem,
        notice=notice,
    )


def _refused(visit: Visit, permit: Permit, org: str, bucket: str, error: IcefloeError) -> Response:
    return _page(visit, permit, org, bucket, status_of(error), problem=str(error))


# Who needs it?


@router.get("/organisations/{org}/buckets/{bucket}/needs")
def show_needs(
    visit: Visitor,
    permit: Annotated[Permit, Depends(may_visit(Action.CHANGE_POLICIES))],
    org: str,
    bucket: str,
    prefix: str = "",
) -> Response:
    """Show the repositories that refer to data below a prefix of a bucket."""
    registered = _load(permit, org, bucket)
    values: dict[str, Any] = {"org": org, "bucket": registered, "prefix": prefix, "needs": None}
    try:
        check_prefix(prefix)
    except InvalidInputError as error:
        return show(visit, "needs.html", 422, problem=str(error), url="", **values)
    with permit.service.database.reading() as connection:
        allows_anonymous = permit.service.settings.allows_anonymous
        world = load_world(connection, permit.now, allows_anonymous=allows_anonymous)
    needs = find_needs(world, actor_of(permit.caller), permit.caller.roles, registered, prefix)
    url = location_url(bucket_location(registered).below(prefix))
    return show(visit, "needs.html", problem="", url=url, **(values | {"needs": needs}))


# Prefixes and their contents


def is_prefix(text: str) -> bool:
    """Return whether a text can be a prefix below that of a bucket.

    >>> is_prefix("era5/daily/"), is_prefix("era5"), is_prefix("../")
    (True, False, False)
    """
    return len(text) <= _LONGEST_PREFIX and _PREFIX.fullmatch(text) is not None


def check_prefix(text: str) -> None:
    """Raise `InvalidInputError` for a text that cannot be a prefix."""
    if not is_prefix(text):
        problem = "a prefix consists of folders, each with a slash at its end, like era5/daily/"
        letters = "they have letters, digits and . _ = , : @ + ~ -"
        raise InvalidInputError(f"{problem}; {letters}", ErrorKind.INVALID_REQUEST)


class Look(Record):
    """The first objects below a prefix of a bucket, and its folders."""

    level: Contents
    """Folders and objects in the prefix itself."""
    sample: Contents
    """Objects at any depth below it."""


async def look_into(permit: Permit, org: str, bucket: str, prefix: str) -> Look:
    """List some objects below a prefix, with a credential that the service makes for that.

    Raise an error if the person may not have such a credential, or if the store refuses.
    """
    choice = BucketCredentialRequest(prefix=prefix)
    answer = await buckets.make_credential(permit.also(Action.USE_BUCKET), org, bucket, choice)
    granted = result_of(answer, BucketCredential)
    reader = StoreClient(permit.service.client, granted.store, granted.credential)
    level, sample = await asyncio.gather(
        reader.list_some(granted.store.prefix, most=_MOST_FOLDERS, has_folders=True),
        reader.list_some(granted.store.prefix, most=_MOST_SAMPLES, has_folders=False),
    )
    return Look(level, sample)
