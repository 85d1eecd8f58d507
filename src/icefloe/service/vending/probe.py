"""The probe of a bucket: do credentials allow what they say, and nothing else?

The service writes canaries, asks for a credential for one folder of them, and tries everything
that the credential must not allow. Only a bucket that refuses all of it is proven. A store that
ignores session policies, for example, is caught here, before anybody else gets credentials.

Writing the canaries also proves that the bucket is the organisation's own: its owner trusts the
service with the id of this very organisation. A public bucket takes no canaries. There the owner
puts an object with a text that only this organisation knows.

A credential that cannot be cut to a folder is not tried outside of its folder. The report says so.
"""

import asyncio
import secrets as random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2 as httpx

from icefloe.catalog.model import Bucket, BucketState, Delegation
from icefloe.catalog.wire import Access, CredentialAnswer, ProbeCheck, ProbeReport, StoreAnswer
from icefloe.errors import IcefloeError
from icefloe.service.vending.grants import SHORTEST_SECONDS, Grant, Secret, Vendor
from icefloe.service.vending.objects import StoreClient, is_success

FOLDER: Final = ".icefloe-probe"
CHALLENGE: Final = ".icefloe-challenge"
"""The object below a bucket's prefix with which the owner of a public bucket proves it."""
_REFUSED: Final = frozenset({401, 403})
_ABSENT: Final = frozenset({404, 409})
"""What a store answers about a private object to somebody without any credential."""
_LONGEST_CHALLENGE: Final = 1000
_NOT_SCOPED: Final = {
    Delegation.SAS: "credentials are for the whole container, not for a folder",
    Delegation.STATIC: "the keys themselves are handed out: they have no scope and no end",
}


class Prober:
    """Probes the buckets of one way of delegation."""

    def __init__(
        self,
        vendor: Vendor,
        client: httpx.AsyncClient,
        store_of: Callable[[Bucket, str], StoreAnswer],
    ) -> None:
        self._vendor: Final = vendor
        self._client: Final = client
        self._store_of: Final = store_of

    async def probe(
        self, bucket: Bucket, secret: Secret, external_id: str, challenge: str
    ) -> ProbeReport:
        """Try what credentials for a bucket allow."""
        if bucket.delegation is Delegation.ANONYMOUS:
            return await self._probe_public(bucket, challenge)
        root = f"{bucket.prefix}{FOLDER}/{random.token_hex(8)}/"
        inside, outside = f"{root}inside/", f"{root}outside/"

        async def credential(prefix: str, access: Access) -> CredentialAnswer:
            grant = Grant(bucket, (prefix,), "icefloe-probe", access, seconds=SHORTEST_SECONDS)
            return await self._vendor.vend(grant, secret, external_id)

        try:
            writer = self._open(bucket, await credential(root, Access.WRITE))
            canaries = [f"{inside}canary", f"{outside}canary"]
            statuses = await asyncio.gather(*(writer.put(key, b"canary") for key in canaries))
        except IcefloeError as error:
            return _failed([ProbeCheck("write", passed=False, detail=str(error))])
        if not all(is_success(status) for status in statuses):
            detail = f"the service cannot write below {root}: status {max(statuses)}"
            return _failed([ProbeCheck("write", passed=False, detail=detail)])
        checks: list[ProbeCheck] = []
        try:
            vended, narrow = await asyncio.gather(
                credential(inside, Access.READ), credential(inside, Access.WRITE)
            )
            attempts = [
                *_attempts_of_reader(self._open(bucket, vended), bucket, root, inside, outside),
                self._try_anonymous(bucket, f"{inside}canary"),
            ]
            if bucket.delegation is Delegation.ROLE:
                attempts.append(self._try_delegation(bucket, inside, vended, external_id))
                attempts.append(self._try_external_id(bucket, inside, secret))
            checks += await asyncio.gather(*attempts)
            checks += await _try_writer(self._open(bucket, narrow), bucket, inside, outside)
        except IcefloeError as error:
            checks.append(ProbeCheck("vend", passed=False, detail=str(error)))
        finally:
            names = ("canary", "written", "parts", "copy")
            keys = [f"{folder}{name}" for folder in (inside, outside) for name in names]
            await asyncio.gather(*(writer.delete(key) for key in keys), return_exceptions=True)
        if any(not check.passed for check in checks):
            return _failed(checks)
        reason = f"{len(checks)} checks passed"
        if not bucket.is_scoped:
            reason = f"{reason}, but {_NOT_SCOPED[bucket.delegation]}"
        return ProbeReport(BucketState.PROVEN, reason, tuple(checks))

    def _open(self, bucket: Bucket, credential: CredentialAnswer) -> StoreClient:
        return StoreClient(self._client, self._store_of(bucket, bucket.prefix), credential)

    async def _probe_public(self, bucket: Bucket, challenge: str) -> ProbeReport:
        """Read the challenge of a bucket that everybody may read."""
        reader = self._open(bucket, CredentialAnswer("anonymous"))
        where = f"{bucket.prefix}{CHALLENGE}"
        try:
            answer = await reader.read(CHALLENGE, most_bytes=_LONGEST_CHALLENGE)
        except IcefloeError as error:
            advice = f"write the challenge of this bucket to {where}"
            return _failed([ProbeCheck("challenge", passed=False, detail=f"{error}: {advice}")])
        if (answer.data or b"").strip() != challenge.encode():
            detail = f"{where} contains another text than the challenge of this bucket"
            return _failed([ProbeCheck("challenge", passed=False, detail=detail)])
        check = await _refused("write", reader.put(f"{bucket.prefix}{FOLDER}/public", b"x"))
        if not check.passed:
            return _failed([check])
        checks = (ProbeCheck("challenge", passed=True), check)
        return ProbeReport(BucketState.PROVEN, "the challenge is in place", checks)

    async def _try_delegation(
        self, bucket: Bucket, inside: str, vended: CredentialAnswer, external_id: str
    ) -> ProbeCheck:
        """Try to get a new credential with a vended one."""
        grant = Grant(bucket, (inside,), "icefloe-probe", Access.WRITE, seconds=SHORTEST_SECONDS)
        try:
            await self._vendor.vend(grant, Secret(dict(vended.values)), external_id)
        except IcefloeError:
            return ProbeCheck("delegate further", passed=True)
        return ProbeCheck("delegate further", passed=False, detail="was allowed")

    async def _try_external_id(self, bucket: Bucket, inside: str, secret: Secret) -> ProbeCheck:
        """Try to assume the role in the name of another organisation."""
        name = "assume the role for another organisation"
        grant = Grant(bucket, (inside,), "icefloe-probe", seconds=SHORTEST_SECONDS)
        try:
            await self._vendor.vend(grant, secret, random.token_hex(16))
        except IcefloeError:
            return ProbeCheck(name, passed=True)
        # Stores of one owner often know no external ids; Amazon's STS does.
        host = urlsplit(bucket.sts_endpoint or "https://sts.amazonaws.com").hostname or ""
        detail = "was allowed: the trust policy of the role does not demand the external id"
        return ProbeCheck(name, passed=not host.endswith("amazonaws.com"), detail=detail)

    async def _try_anonymous(self, bucket: Bucket, key: str) -> ProbeCheck:
        """Try to read without any credential: a public bucket needs no service."""
        reader = self._open(bucket, CredentialAnswer("anonymous"))
        return await _refused("read without a credential", reader.get(key), also=_ABSENT)


def _attempts_of_reader(
    reader: StoreClient, bucket: Bucket, root: str, inside: str, outside: str
) -> list[Coroutine[Any, Any, ProbeCheck]]:
    """Return attempts with a credential that reads one folder: what it may, and what it must not.

    Nothing that a static key may do can be refused.
    """
    may = [
        _allowed("read inside", reader.get(f"{inside}canary")),
        _allowed("list inside", reader.list(inside)),
    ]
    if bucket.delegation is Delegation.STATIC:
        return may
    must_not = [
        _refused("write inside", reader.put(f"{inside}written", b"x")),
        _refused("write outside", reader.put(f"{outside}written", b"x")),
        _refused("write in parts", reader.put_in_parts(f"{inside}parts", b"x")),
        _refused("overwrite", reader.put(f"{inside}canary", b"x")),
        _refused("delete", reader.delete(f"{inside}canary")),
        _refused("copy", reader.copy(f"{inside}canary", f"{inside}copy")),
    ]
    if bucket.is_scoped:
        sibling = f"{inside.rstrip('/')}-evil/canary"
        must_not += [
            _refused("read outside", reader.get(f"{outside}canary")),
            # The answer that an object is absent takes the right to look for it.
            _refused("read a sibling folder", reader.get(sibling)),
            _refused("list outside", reader.list(outside)),
            _refused("list above", reader.list(root)),
            _refused("list everything", reader.list("")),
        ]
    return may + must_not


async def _try_writer(
    writer: StoreClient, bucket: Bucket, inside: str, outside: str
) -> list[ProbeCheck]:
    """Try what a credential that writes one folder may do, and what it must not."""
    checks = [
        await _allowed("writer: write inside", writer.put(f"{inside}written", b"x")),
        await _allowed("writer: write in parts", writer.put_in_parts(f"{inside}parts", b"x")),
        await _allowed("writer: delete inside", writer.delete(f"{inside}written")),
    ]
    if bucket.is_scoped:
        checks += await asyncio.gather(
            _refused("writer: read outside", writer.get(f"{outside}canary")),
            _refused("writer: write outside", writer.put(f"{outside}canary", b"x")),
            _refused("writer: delete outside", writer.delete(f"{outside}canary")),
        )
    return checks


def _failed(checks: list[ProbeCheck]) -> ProbeReport:
    reason = "; ".join(f"{check.name}: {check.detail}" for check in checks if not check.passed)
    return ProbeReport(BucketState.REFUSED, reason, tuple(checks))


async def _allowed(name: str, attempt: Awaitable[int]) -> ProbeCheck:
    try:
        status = await attempt
    except IcefloeError as error:
        return ProbeCheck(name, passed=False, detail=f"failed: {error}")
    return ProbeCheck(name, passed=is_success(status), detail=f"status {status}")


async def _refused(
    name: str, attempt: Awaitable[int], *, also: frozenset[int] = frozenset()
) -> ProbeCheck:
    try:
        status = await attempt
    except IcefloeError as error:
        return ProbeCheck(name, passed=False, detail=f"is not clear: {error}")
    if status in _REFUSED | also:
        return ProbeCheck(name, passed=True)
    what = "was allowed" if is_success(status) else f"is not clear: status {status}"
    return ProbeCheck(name, passed=False, detail=what)
