"""Routes about buckets: register, change, probe, suspend, delete, and credentials for them."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Body, Depends, Response
from sqlalchemy import Connection

from icefloe.catalog.model import Bucket, BucketState
from icefloe.catalog.wire import (
    Access,
    BucketCredential,
    BucketCredentialRequest,
    BucketSettings,
    NewBucket,
    OwnershipProof,
    Page,
    ProbeReport,
    Suspension,
)
from icefloe.errors import AccessDeniedError
from icefloe.records import replace
from icefloe.service.buckets import (
    bucket_credential,
    check_bucket,
    probe_bucket,
    resume,
    suspend,
)
from icefloe.service.database import rows, tables
from icefloe.service.database.vault import delete_secret
from icefloe.service.domain.actions import Action
from icefloe.service.http.access import Permit, may
from icefloe.service.http.codec import Codec, answer
from icefloe.service.http.pages import Cursor, Limit, page_of
from icefloe.service.http.problems import PROBLEMS
from icefloe.service.http.versions import IfMatch, etag, expected_version
from icefloe.service.opening import store_answer
from icefloe.service.runtime import secret_name
from icefloe.service.vending.probe import CHALLENGE

router = APIRouter(tags=["buckets"], responses=PROBLEMS)


@router.get("/orgs/{org}/buckets", response_model=Annotated[Page[Bucket], Codec()])
def list_buckets(
    permit: Annotated[Permit, Depends(may(Action.SEE_BUCKETS))],
    org: str,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """List the buckets of an organisation."""
    table = tables.buckets
    return page_of(
        permit.service.database,
        table,
        Bucket,
        table.c.organisation == org,
        limit=limit,
        cursor=cursor,
    )


@router.post("/orgs/{org}/buckets", response_model=Annotated[Bucket, Codec()], status_code=201)
def register_bucket(
    permit: Annotated[Permit, Depends(may(Action.CHANGE_BUCKETS))],
    org: str,
    new: Annotated[NewBucket, Codec(), Body()],
) -> Response:
    """Register a bucket. It is unproven until it is probed."""
    bucket = _bucket_of(org, new.name, new)
    check_bucket(permit.service.settings, bucket, new.secrets)
    with permit.service.database.writing() as connection:
        rows.add(connection, tables.buckets, bucket)
        permit.service.put_bucket_secret(connection, bucket, new.secrets)
        permit.record(connection, f"bucket {new.name}")
    return answer(bucket, 201, etag(bucket.version))


@router.get("/orgs/{org}/buckets/{bucket}", response_model=Annotated[Bucket, Codec()])
def show_bucket(
    permit: Annotated[Permit, Depends(may(Action.SEE_BUCKETS))], org: str, bucket: str
) -> Response:
    """Show a bucket, without its secrets."""
    with permit.service.database.reading() as connection:
        registered = _require(connection, org, bucket)
    return answer(registered, headers=etag(registered.version))


@router.put("/orgs/{org}/buckets/{bucket}", response_model=Annotated[Bucket, Codec()])
def change_bucket(
    permit: Annotated[Permit, Depends(may(Action.CHANGE_BUCKETS))],
    org: str,
    bucket: str,
    settings: Annotated[BucketSettings, Codec(), Body()],
    if_match: IfMatch = None,
) -> Response:
    """Change the settings of a bucket. It is unproven until it is probed again."""
    changed = _bucket_of(org, bucket, settings)
    with permit.service.database.writing() as connection:
        before = _require(connection, org, bucket)
        if before.state is BucketState.SUSPENDED:
            changed = replace(changed, state=before.state, state_reason=before.state_reason)
        has_secrets = before.delegation is changed.delegation
        check_bucket(permit.service.settings, changed, settings.secrets, may_keep=has_secrets)
        version = rows.change(
            connection, tables.buckets, changed, if_version=expected_version(if_match)
        )
        if settings.secrets:
            permit.service.put_bucket_secret(connection, changed, settings.secrets)
        permit.record(connection, f"bucket {bucket}", {"version": version})
    return answer(replace(changed, version=version), headers=etag(version))


@router.delete("/orgs/{org}/buckets/{bucket}", status_code=204)
def delete_bucket(
    permit: Annotated[Permit, Depends(may(Action.CHANGE_BUCKETS))], org: str, bucket: str
) -> Response:
    """Forget a bucket that no repository is in. Its policies end; stored data stays."""
    with permit.service.database.writing() as connection:
        rows.remove(connection, tables.buckets, organisation=org, name=bucket)
        delete_secret(connection, secret_name(org, bucket))
        permit.record(connection, f"bucket {bucket}")
    return Response(status_code=204)


@router.post("/orgs/{org}/buckets/{bucket}/probe", response_model=Annotated[ProbeReport, Codec()])
async def probe(
    permit: Annotated[Permit, Depends(may(Action.CHANGE_BUCKETS))], org: str, bucket: str
) -> Response:
    """Try whether credentials for a bucket allow what they say, and nothing else."""
    report = await probe_bucket(permit.service, org, bucket)
    await permit.record_later(f"bucket {bucket}", {"state": report.state})
    return answer(report)


@router.get(
    "/orgs/{org}/buckets/{bucket}/ownership",
    response_model=Annotated[OwnershipProof, Codec()],
)
def show_ownership(
    permit: Annotated[Permit, Depends(may(Action.CHANGE_BUCKETS))], org: str, bucket: str
) -> Response:
    """Show what proves that a bucket is the organisation's own: for a role, and for public data."""
    with permit.service.database.reading() as connection:
        registered = _require(connection, org, bucket)
    service = permit.service
    return answer(
        OwnershipProof(
            service.external_id(org),
            f"{registered.prefix}{CHALLENGE}",
            service.challenge(registered),
        )
    )


@router.post("/orgs/{org}/buckets/{bucket}/suspend", response_model=Annotated[Suspension, Codec()])
def suspend_bucket(
    permit: Annotated[Permit, Depends(may(Action.CHANGE_BUCKETS))], org: str, bucket: str
) -> Response:
    """Cut a bucket off: no further credential is made for it, by nobody and for nobody."""
    end = permit.service.issued_until()
    with permit.service.database.writing() as connection:
        suspended = suspend(connection, _require(connection, org, bucket), permit.person)
        permit.record(connection, f"bucket {bucket}", {"suspended": True, "issued_until": str(end)})
    return answer(Suspension(suspended, end), headers=etag(suspended.version))


@router.post("/orgs/{org}/buckets/{bucket}/resume", response_model=Annotated[Bucket, Codec()])
def resume_bucket(
    permit: Annotated[Permit, Depends(may(Action.CHANGE_BUCKETS))], org: str, bucket: str
) -> Response:
    """End the suspension of a bucket. It is unproven until it is probed."""
    with permit.service.database.writing() as connection:
        resumed = resume(connection, _require(connection, org, bucket))
        permit.record(connection, f"bucket {bucket}", {"suspended": False})
    return answer(resumed, headers=etag(resumed.version))


@router.post(
    "/orgs/{org}/buckets/{bucket}/credentials",
    response_model=Annotated[BucketCredential, Codec()],
)
async def make_credential(
    permit: Annotated[Permit, Depends(may(Action.USE_BUCKET))],
    org: str,
    bucket: str,
    request: Annotated[BucketCredentialRequest | None, Codec(), Body()] = None,
) -> Response:
    """Make a credential for a bucket or a folder of it, to list its objects for example.

    Writers may read. To write outside of repositories takes an admin.
    """
    choice = request or BucketCredentialRequest()
    if choice.access is Access.WRITE:
        permit.also(Action.CHANGE_BUCKETS)

    def load() -> Bucket:
        with permit.service.database.reading() as connection:
            return _require(connection, org, bucket)

    registered = await asyncio.to_thread(load)
    details = {"access": choice.access.value, "prefix": choice.prefix}
    what = f"bucket {bucket}"
    try:
        minted = await bucket_credential(
            permit.service, registered, permit.person, choice.prefix, choice.access
        )
    except AccessDeniedError:
        refused = replace(permit, verdict=replace(permit.verdict, allowed=False))
        await refused.record_later(what, details)
        raise
    credential = minted.credential
    until = str(credential.expires_at) if credential.expires_at else None
    await permit.record_later(what, details | {"until": until, "new": minted.is_new})
    store = store_answer(registered, registered.prefix + choice.prefix)
    return answer(BucketCredential(store, credential, registered.is_scoped))


def _bucket_of(organisation: str, name: str, settings: BucketSettings) -> Bucket:
    fields = {field: getattr(settings, field) for field in BucketSettings.__struct_fields__}
    del fields["secrets"]
    return Bucket(organisation, name, **fields)


def _require(connection: Connection, organisation: str, name: str) -> Bucket:
    return rows.require(connection, tables.buckets, Bucket, organisation=organisation, name=name)
