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
    NewBucket,
    OwnershipProof,
    ProbeReport,
    Suspension,
)
from icefloe.errors import ErrorKind, IcefloeError, InvalidInputError
from icefloe.records import Record
from icefloe.service.buckets import NEEDED_SECRETS, PLATFORMS
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
_COMMON: Final = ("name", "bucket", "prefix")


@router.get("/organisations/{org}/new-bucket")
def show_registration(
    visit: Visitor, permit: _ChangeBuckets, org: str, delegation: str = "role"
) -> Response:
    """Show the form to register a bucket that is delegated in one of the ways."""
    way = record_of(Delegation, delegation)
    return _registration(visit, permit, org, way)


@router.post("/organisations/{org}/new-bucket")
def register_bucket(visit: Visitor, permit: _ChangeBuckets, org: str) -> Response:
    """Register a bucket. Its secrets are stored, and never shown."""
    fields = visit.fields
    way = record_of(Delegation, fields.get("delegation", ""))
    texts = {name: fields[name].strip() for name in (*_COMMON, *_TEXTS[way]) if name in fields}
    choices = {name: name in fields for name in _CHOICES[way]}
    names = frozenset().union(*NEEDED_SECRETS[way])
    secrets = {name: fields[name].replace("\r\n", "\n") for name in names if fields.get(name)}
    platform = {"platform": fields.get("platform", ""), "delegation": way.value}
    try:
        new = record_of(NewBucket, {**texts, **choices, **platform, "secrets": secrets})
        buckets.register_bucket(permit, org, new)
    except IcefloeError as error:
        typed = {**texts, **choices}
        return _registration(visit, permit, org, way, status_of(error), str(error), typed)
    return redirect(f"/organisations/{org}/buckets/{new.name}")


def _registration(
    visit: Visit,
    permit: Permit,
    org: str,
    way: Delegation,
    status: int = 200,
    problem: str = "",
    values: Mapping[str, object] | None = None,
) -> Response:
    return show(
        visit,
        "new_bucket.html",
        status,
        org=org,
        way=way,
        ways=tuple(Delegation),
        platforms=[platform for platform in Platform if platform in PLATFORMS[way]],
        texts=_TEXTS[way],
        choices=_CHOICES[way],
        secrets=sorted(frozenset().union(*NEEDED_SECRETS[way])),
        has_alternatives=len(NEEDED_SECRETS[way]) > 1,
        external_id=permit.service.external_id(org),
        values=values or {},
        problem=problem,
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
    """Probe a bucket, and show each attempt."""
    try:
        report = result_of(await buckets.probe(permit, org, bucket), ProbeReport)
    except IcefloeError as error:
        return await asyncio.to_thread(_refused, visit, permit, org, bucket, error)
    return await asyncio.to_thread(_page, visit, permit, org, bucket, report=report)


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
    report: ProbeReport | None = None,
) -> Response:
    answer = buckets.show_bucket(permit.also(Action.SEE_BUCKETS), org, bucket)
    found = result_of(answer, Bucket)
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
    return show(
        visit,
        "bucket.html",
        status,
        org=org,
        bucket=found,
        url=location_url(bucket_location(found)),
        settings=[(name, getattr(found, name)) for name in _SETTINGS],
        is_suspended=found.state is BucketState.SUSPENDED,
        is_public=found.delegation is Delegation.ANONYMOUS,
        policies=own,
        may_change=may_change,
        may_share=permit.allows(Action.CHANGE_POLICIES),
        proof=proof,
        report=report,
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
    answer = buckets.show_bucket(permit.also(Action.SEE_BUCKETS), org, bucket)
    found = result_of(answer, Bucket)
    values: dict[str, Any] = {"org": org, "bucket": found, "prefix": prefix, "needs": None}
    try:
        check_prefix(prefix)
    except InvalidInputError as error:
        return show(visit, "needs.html", 422, problem=str(error), url="", **values)
    with permit.service.database.reading() as connection:
        allows_anonymous = permit.service.settings.allows_anonymous
        world = load_world(connection, permit.now, allows_anonymous=allows_anonymous)
    needs = find_needs(world, actor_of(permit.caller), permit.caller.roles, found, prefix)
    url = location_url(bucket_location(found).below(prefix))
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
    wanted = BucketCredentialRequest(prefix=prefix)
    answer = await buckets.make_credential(permit.also(Action.USE_BUCKET), org, bucket, wanted)
    made = result_of(answer, BucketCredential)
    reader = StoreClient(permit.service.client, made.store, made.credential)
    level, sample = await asyncio.gather(
        reader.list_some(made.store.prefix, most=_MOST_FOLDERS, has_folders=True),
        reader.list_some(made.store.prefix, most=_MOST_SAMPLES, has_folders=False),
    )
    return Look(level, sample)
