"""Buckets: which settings the service accepts, their probes, and credentials for them."""

import asyncio
import logging
import random
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, and_, or_, select, update

from icefloe.catalog.model import BUCKET_NAME, Bucket, BucketState, Delegation, Platform
from icefloe.catalog.wire import Access, AuditEntry, ProbeCheck, ProbeReport
from icefloe.errors import ErrorKind, IcefloeError, InvalidInputError
from icefloe.records import asdict, replace
from icefloe.service.database import audit, rows, tables
from icefloe.service.domain.actions import Action
from icefloe.service.domain.locations import Location, store_name
from icefloe.service.opening import require_proven, store_answer
from icefloe.service.runtime import Service
from icefloe.service.settings import Settings
from icefloe.service.vending.broker import Minted
from icefloe.service.vending.grants import Grant, Secret
from icefloe.service.vending.probe import Prober

_log: Final = logging.getLogger(__name__)
_BUCKET: Final = re.compile(BUCKET_NAME)
_AMAZON_STS: Final = re.compile(r"sts(\.[a-z0-9-]+)?\.amazonaws\.com(\.cn)?")
_R2: Final = re.compile(r"([0-9a-f]{32})(\.[a-z0-9]+)?\.r2\.cloudflarestorage\.com")
_ROLE: Final = re.compile(r"arn:[A-Za-z0-9:/_+=,.@-]{10,500}")
_KMS_KEY: Final = re.compile(r"arn:[A-Za-z0-9:/_-]{10,500}")
_KEYS: Final = frozenset({"access_key_id", "secret_access_key"})
NEEDED_SECRETS: Final[Mapping[Delegation, tuple[frozenset[str], ...]]] = {
    Delegation.ROLE: (_KEYS,),
    Delegation.STATIC: (_KEYS,),
    Delegation.ANONYMOUS: (frozenset(),),
    Delegation.DOWNSCOPED_TOKEN: (frozenset({"client_email", "private_key"}),),
    Delegation.SAS: (
        frozenset({"tenant_id", "client_id", "client_secret"}),
        frozenset({"tenant_id", "client_id"}),
        frozenset({"account_key"}),
    ),
    Delegation.R2_TEMPORARY: (frozenset({"api_token", "parent_access_key_id"}),),
}
"""The secrets that the service needs, by the way of delegation; some ways have a choice."""
PLATFORMS: Final[Mapping[Delegation, frozenset[Platform]]] = {
    Delegation.ROLE: frozenset({Platform.S3}),
    Delegation.STATIC: frozenset({Platform.S3}),
    Delegation.R2_TEMPORARY: frozenset({Platform.S3}),
    Delegation.DOWNSCOPED_TOKEN: frozenset({Platform.GCS}),
    Delegation.SAS: frozenset({Platform.AZURE}),
    Delegation.ANONYMOUS: frozenset(Platform),
}
"""The platforms whose buckets can be delegated in a way."""
_ACCOUNTS: Final = {
    Delegation.SAS: re.compile(r"[a-z0-9]{3,24}"),
    Delegation.R2_TEMPORARY: re.compile(r"[0-9a-f]{32}"),
}
_PROBE_TURN: Final = timedelta(minutes=10)
"""How long one server has the turn to probe a bucket."""
_LONGEST_PAUSE_SECONDS: Final = 600.0
_LONGEST_DETAIL: Final = 2000
"""The most characters of an attempt's result that are stored."""


# Settings


def check_bucket(
    settings: Settings, bucket: Bucket, secrets: Mapping[str, str], *, may_keep: bool = False
) -> None:
    """Raise `InvalidInputError` for settings of a bucket that the service does not accept."""
    if not _BUCKET.fullmatch(bucket.bucket):
        raise _invalid(f"{bucket.bucket!r} is not a name of a bucket")
    way = bucket.delegation
    if bucket.platform not in PLATFORMS[way]:
        platform = bucket.platform.value
        raise _invalid(f"buckets of {platform} cannot be delegated by {way.value!r}")
    for name, endpoint in (
        ("endpoint", bucket.endpoint),
        ("sts_endpoint", bucket.sts_endpoint),
    ):
        if endpoint is not None:
            _check_endpoint(settings, bucket, name, endpoint)
    if secrets.keys() not in NEEDED_SECRETS[way] and not (may_keep and not secrets):
        choices = [", ".join(sorted(names)) or "none" for names in NEEDED_SECRETS[way]]
        raise _invalid(f"delegation by {way.value!r} needs the secrets: {', or '.join(choices)}")
    if bucket.kms_key is not None and not _KMS_KEY.fullmatch(bucket.kms_key):
        raise _invalid("kms_key is not the name of a key, like arn:aws:kms:eu-west-1:1:key/2")
    _check_way(bucket)


def _check_way(bucket: Bucket) -> None:
    """Check what one way of delegation needs, apart from secrets."""
    way = bucket.delegation
    account = _ACCOUNTS.get(way)
    if account is not None and not account.fullmatch(bucket.account or ""):
        raise _invalid(f"delegation by {way.value!r} needs the account")
    if way is Delegation.ROLE and not _ROLE.fullmatch(bucket.role or ""):
        raise _invalid("delegation by 'role' needs the role to assume, like arn:aws:iam::1:role/x")
    if way is Delegation.R2_TEMPORARY and bucket.endpoint is None:
        example = f"https://{bucket.account}.r2.cloudflarestorage.com"
        raise _invalid(f"a bucket of R2 needs its endpoint, like {example}")
    if way is Delegation.STATIC and not bucket.shares_static_keys:
        problem = "static keys are handed to every member who opens a repository in the bucket"
        raise _invalid(f"{problem}: say so with shares_static_keys, or use a role")


def _check_endpoint(settings: Settings, bucket: Bucket, name: str, endpoint: str) -> None:
    """Accept an endpoint of the operator's list, or one of the platform itself by https."""
    store = store_name(bucket.platform, endpoint, bucket.account)
    if store is None:
        raise _invalid(f"{name} {endpoint!r} is no plain address like https://minio.example:9000")
    if endpoint.rstrip("/") in {allowed.rstrip("/") for allowed in settings.allowed_endpoints}:
        return
    is_known = Location(bucket.platform, store, bucket.bucket).is_well_known
    is_sts = name == "sts_endpoint" and _AMAZON_STS.fullmatch(store) is not None
    r2 = _R2.fullmatch(store) if bucket.delegation is Delegation.R2_TEMPORARY else None
    is_r2 = name == "endpoint" and r2 is not None and r2[1] == bucket.account
    if endpoint.startswith("https://") and (is_known or is_sts or is_r2):
        return
    problem = f"{name} {endpoint!r} is not among the endpoints that this service may talk to"
    raise _invalid(f"{problem}: its operators can add it to allowed_endpoints")


def _invalid(problem: str) -> InvalidInputError:
    return InvalidInputError(problem, ErrorKind.INVALID_REQUEST)


# Credentials


async def bucket_credential(
    service: Service, bucket: Bucket, person: str, prefix: str, access: Access
) -> Minted:
    """Return a credential for a part of a bucket, for uses beside repositories."""
    require_proven(bucket)
    seconds = 60 * service.settings.credential_minutes
    grant = Grant(bucket, (bucket.prefix + prefix,), person, access, seconds=seconds)
    return await service.credential(grant, person)


def suspend(connection: Connection, bucket: Bucket, person: str) -> Bucket:
    """Stop making credentials for a bucket, from this transaction on."""
    reason = f"suspended by {person}"
    return _set_state(connection, bucket, BucketState.SUSPENDED, reason)


def resume(connection: Connection, bucket: Bucket) -> Bucket:
    """End a suspension. The bucket is to be probed before credentials are made again."""
    if bucket.state is not BucketState.SUSPENDED:
        raise _invalid(f"the bucket {bucket.name} is not suspended")
    reason = "no probe has run since it was suspended"
    return _set_state(connection, bucket, BucketState.UNPROVEN, reason)


def _set_state(connection: Connection, bucket: Bucket, state: BucketState, reason: str) -> Bucket:
    changed = replace(bucket, state=state, state_reason=reason)
    return replace(changed, version=rows.change(connection, tables.buckets, changed))


# Probes


async def probe_bucket(service: Service, organisation: str, name: str) -> ProbeReport:
    """Probe a bucket, and remember what was found."""

    def load() -> tuple[Bucket, Secret]:
        with service.database.reading() as connection:
            key = {"organisation": organisation, "name": name}
            bucket = rows.require(connection, tables.buckets, Bucket, **key)
        return bucket, service.bucket_secret(bucket)

    def remember(bucket: Bucket, report: ProbeReport) -> None:
        table = tables.buckets
        query = update(table).where(
            *_is_bucket(bucket),
            # Of changed settings nothing was tried, and only admins end a suspension.
            table.c.version == bucket.version,
            table.c.state != BucketState.SUSPENDED,
        )
        values = {
            "state": report.state,
            "state_reason": report.reason[:_LONGEST_DETAIL],
            "probed_at": service.clock(),
            "probe_checks": [_stored_check(check) for check in report.checks],
        }
        with service.database.writing() as connection:
            connection.execute(query.values(values))

    bucket, secret = await asyncio.to_thread(load)
    if bucket.state is BucketState.SUSPENDED:
        raise _invalid(f"the bucket {name} is suspended: resume it before a probe")
    prober = Prober(service.vendors[bucket.delegation], service.client, store_answer)
    external_id, challenge = service.external_id(organisation), service.challenge(bucket)
    report = await prober.probe(bucket, secret, external_id, challenge)
    await asyncio.to_thread(remember, bucket, report)
    return report


def _stored_check(check: ProbeCheck) -> dict[str, Any]:
    return asdict(replace(check, detail=check.detail[:_LONGEST_DETAIL]))


def last_checks(connection: Connection, bucket: Bucket) -> tuple[ProbeCheck, ...]:
    """Return the attempts of the last probe of a bucket; none if its settings changed after it."""
    if bucket.probed_at is None:
        return ()
    query = select(tables.buckets.c.probe_checks).where(*_is_bucket(bucket))
    stored = connection.execute(query).scalar_one_or_none()
    return msgspec.convert(stored or [], tuple[ProbeCheck, ...])


def _is_bucket(bucket: Bucket) -> tuple[Any, Any]:
    table = tables.buckets
    return table.c.organisation == bucket.organisation, table.c.name == bucket.name


def take_due_bucket(service: Service) -> Bucket | None:
    """Take the turn to probe a bucket whose last probe is too long ago; None if there is none.

    Of several servers, one gets the turn, for some minutes. Buckets that no admin has probed yet
    wait for their admins.
    """
    now, table = service.clock(), tables.buckets
    oldest = now - timedelta(hours=service.settings.probe_hours)
    is_due = and_(
        table.c.probed_at < oldest,
        table.c.state != BucketState.SUSPENDED,
        or_(table.c.probing_until.is_(None), table.c.probing_until < now),
    )
    with service.database.reading() as connection:
        query = select(table).where(is_due).order_by(table.c.probed_at).limit(1)
        row = connection.execute(query).first()
    if row is None:
        return None
    bucket = rows.record_of(Bucket, row)
    with service.database.writing() as connection:
        query_turn = update(table).where(*_is_bucket(bucket), is_due)
        taken = connection.execute(query_turn.values(probing_until=now + _PROBE_TURN)).rowcount
    return bucket if taken else None


async def probe_due_buckets(service: Service) -> int:
    """Probe the buckets whose last probe is too long ago; return their number."""
    number = 0
    while (bucket := await asyncio.to_thread(take_due_bucket, service)) is not None:
        try:
            report = await probe_bucket(service, bucket.organisation, bucket.name)
            details: dict[str, Any] = {"state": report.state, "before": bucket.state}
        except IcefloeError as error:
            details = {"failed": error.kind}
            _log.warning("the probe of %s failed", bucket.name, exc_info=error)
        await asyncio.to_thread(_record_probe, service, bucket, details)
        number += 1
    return number


def _record_probe(service: Service, bucket: Bucket, details: Mapping[str, Any]) -> None:
    entry = AuditEntry(
        at=service.clock(),
        person="icefloe",
        action=Action.CHANGE_BUCKETS,
        resource=f"bucket {bucket.name}",
        allowed=True,
        request_id="probe",
        organisation=bucket.organisation,
        details=details,
    )
    with service.database.writing() as connection:
        audit.append(connection, service.keys.audit, [entry])


async def probe_on_schedule(service: Service) -> None:
    """Probe due buckets now and then, until cancelled."""
    while True:
        # Servers that started together do not ask together.
        await asyncio.sleep(_LONGEST_PAUSE_SECONDS * random.uniform(0.5, 1.0))  # noqa: S311
        try:
            await probe_due_buckets(service)
        except IcefloeError as error:
            _log.warning("the scheduled probes failed", exc_info=error)
