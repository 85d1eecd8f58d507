"""Buckets: which settings the service accepts, their secrets, and their probes."""

import asyncio
import re
from collections.abc import Mapping
from typing import Final

from sqlalchemy import update

from icefloe.catalog.model import BUCKET_NAME, Bucket, Delegation, Platform
from icefloe.catalog.wire import ProbeReport
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.service.database import rows, tables
from icefloe.service.domain.locations import Location, store_name
from icefloe.service.opening import store_answer
from icefloe.service.runtime import Service
from icefloe.service.settings import Settings
from icefloe.service.vending.grants import Secret
from icefloe.service.vending.probe import Prober

_BUCKET: Final = re.compile(BUCKET_NAME)
_AMAZON_STS: Final = re.compile(r"sts(\.[a-z0-9-]+)?\.amazonaws\.com(\.cn)?")
_ROLE: Final = re.compile(r"arn:[A-Za-z0-9:/_+=,.@-]{10,500}")
_NEEDED_SECRETS: Final[Mapping[Delegation, frozenset[str]]] = {
    Delegation.ROLE: frozenset({"access_key_id", "secret_access_key"}),
    Delegation.STATIC: frozenset({"access_key_id", "secret_access_key"}),
    Delegation.ANONYMOUS: frozenset(),
}
"""The secrets that the service needs, by the way of delegation."""
_PLATFORMS: Final[Mapping[Delegation, frozenset[Platform]]] = {
    Delegation.ROLE: frozenset({Platform.S3}),
    Delegation.STATIC: frozenset({Platform.S3}),
    Delegation.ANONYMOUS: frozenset(Platform),
}


def check_bucket(
    settings: Settings, bucket: Bucket, secrets: Mapping[str, str], *, may_keep: bool = False
) -> None:
    """Raise `InvalidInputError` for settings of a bucket that the service does not accept."""
    if not _BUCKET.fullmatch(bucket.bucket):
        raise _invalid(f"{bucket.bucket!r} is not a name of a bucket")
    if bucket.platform not in _PLATFORMS.get(bucket.delegation, ()):
        platform, way = bucket.platform.value, bucket.delegation.value
        raise _invalid(f"buckets of {platform} cannot be delegated by {way!r}")
    for name, endpoint in (
        ("endpoint", bucket.endpoint),
        ("sts_endpoint", bucket.sts_endpoint),
    ):
        if endpoint is not None:
            _check_endpoint(settings, bucket, name, endpoint)
    needed = _NEEDED_SECRETS[bucket.delegation]
    if secrets.keys() != needed and not (may_keep and not secrets):
        wanted = ", ".join(sorted(needed)) or "none"
        raise _invalid(f"delegation by {bucket.delegation.value!r} needs the secrets: {wanted}")
    if bucket.delegation is Delegation.ROLE and not _ROLE.fullmatch(bucket.role or ""):
        raise _invalid("delegation by 'role' needs the role to assume, like arn:aws:iam::1:role/x")
    if bucket.delegation is Delegation.STATIC and not bucket.shares_static_keys:
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
    if endpoint.startswith("https://") and (is_known or is_sts):
        return
    problem = f"{name} {endpoint!r} is not among the endpoints that this service may talk to"
    raise _invalid(f"{problem}: its operators can add it to allowed_endpoints")


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
            table.c.organisation == organisation,
            table.c.name == name,
            table.c.version == bucket.version,  # of changed settings nothing was tried
        )
        values = {"state": report.state, "state_reason": report.reason[:2000]}
        with service.database.writing() as connection:
            connection.execute(query.values(values | {"probed_at": service.clock()}))

    bucket, secret = await asyncio.to_thread(load)
    prober = Prober(service.vendors[bucket.delegation], store_answer)
    report = await prober.probe(bucket, secret, service.external_id(organisation))
    await asyncio.to_thread(remember, bucket, report)
    return report


def _invalid(problem: str) -> InvalidInputError:
    return InvalidInputError(problem, ErrorKind.INVALID_REQUEST)
