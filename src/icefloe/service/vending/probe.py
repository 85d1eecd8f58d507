"""The probe of a bucket: do credentials allow what they say, and nothing else?

The service writes canaries, asks for a credential for one folder of them, and tries everything
that the credential must not allow. Only a bucket that refuses all of it is proven. A store that
ignores session policies, for example, is caught here, before anybody else gets credentials.

Writing the canaries also proves that the bucket is the organisation's own: its owner trusts the
service with the id of this very organisation.
"""

import secrets as random
from collections.abc import Awaitable, Callable
from typing import Final

from icefloe.catalog.model import Bucket, BucketState, Delegation
from icefloe.catalog.stores import storage_of
from icefloe.catalog.wire import (
    Access,
    CredentialAnswer,
    ProbeCheck,
    ProbeReport,
    StoreAnswer,
)
from icefloe.config import StorageRetriesSettings, StorageSettings
from icefloe.errors import IcefloeError, ObjectNotFoundError, StorageError
from icefloe.service.vending.grants import Grant, Secret, Vendor
from icefloe.storage.port import Backend

FOLDER: Final = ".icefloe-probe"
_PART_BYTES: Final = 5 << 20
_MULTIPART: Final = bytes(_PART_BYTES + 1)
_PROBE_SECONDS: Final = 900


class Prober:
    """Probes the buckets of one way of delegation."""

    def __init__(self, vendor: Vendor, store_of: Callable[[Bucket, str], StoreAnswer]) -> None:
        self._vendor: Final = vendor
        self._store_of: Final = store_of

    async def probe(self, bucket: Bucket, secret: Secret, external_id: str) -> ProbeReport:
        """Try what credentials for a bucket allow."""
        root = f"{bucket.prefix}{FOLDER}/{random.token_hex(8)}/"
        inside, outside = f"{root}inside/", f"{root}outside/"

        async def credential(prefix: str, access: Access) -> CredentialAnswer:
            grant = Grant(bucket, prefix, "icefloe-probe", access, seconds=_PROBE_SECONDS)
            return await self._vendor.vend(grant, secret, external_id)

        checks: list[ProbeCheck] = []
        try:
            writer = self._open(bucket, await credential(root, Access.WRITE))
            await writer.put(f"{inside}canary", b"inside")
            await writer.put(f"{inside}large", _MULTIPART)
            await writer.put(f"{outside}canary", b"outside")
        except IcefloeError as error:
            detail = f"the service cannot write below {root}: {error}"
            return ProbeReport(BucketState.REFUSED, detail, (ProbeCheck("write", passed=False),))
        try:
            vended = await credential(inside, Access.READ)
            reader = self._open(bucket, vended)
            checks += await self._try_reader(reader, root, inside, outside)
            narrow_writer = self._open(bucket, await credential(inside, Access.WRITE))
            checks += await self._try_writer(narrow_writer, inside, outside)
            checks.append(await self._try_delegation(bucket, inside, vended, external_id))
            checks.append(await self._try_anonymous(bucket, f"{inside}canary"))
        except IcefloeError as error:
            checks.append(ProbeCheck("vend", passed=False, detail=str(error)))
        finally:
            keys = [f"{inside}canary", f"{inside}large", f"{outside}canary", f"{inside}written"]
            await writer.delete_many(keys)
        failed = [check for check in checks if not check.passed]
        if failed:
            reason = "; ".join(f"{check.name}: {check.detail}" for check in failed)
            return ProbeReport(BucketState.REFUSED, reason, tuple(checks))
        return ProbeReport(BucketState.PROVEN, f"{len(checks)} checks passed", tuple(checks))

    def _open(self, bucket: Bucket, credential: CredentialAnswer) -> Backend:
        settings = StorageSettings(
            minimum_size_for_multipart_upload=_PART_BYTES,
            retries=StorageRetriesSettings(max_tries=1),
        )
        return storage_of(self._store_of(bucket, ""), credential).open(settings)

    async def _try_reader(
        self, reader: Backend, root: str, inside: str, outside: str
    ) -> list[ProbeCheck]:
        """Try what a credential that reads one folder may do, and what it must not."""
        sibling = f"{inside.rstrip('/')}-evil/canary"
        return [
            await _allowed("read inside", reader.get(f"{inside}canary")),
            await _allowed("read a large object inside", reader.get(f"{inside}large", (0, 8))),
            await _allowed("list inside", _list(reader, inside)),
            await _refused("read outside", reader.get(f"{outside}canary")),
            await _refused("read a sibling folder", reader.get(sibling), absent_is_fine=False),
            await _refused("list outside", _list(reader, outside)),
            await _refused("list above", _list(reader, root)),
            await _refused("list everything", _list(reader, "")),
            await _refused("write inside", reader.put(f"{inside}written", b"x")),
            await _refused("write outside", reader.put(f"{outside}written", b"x")),
            await _refused("write in parts", reader.put(f"{inside}written", _MULTIPART)),
            await _refused("overwrite", reader.put(f"{inside}canary", b"x")),
            await _refused("delete", _delete(reader, f"{inside}canary")),
            await _refused("copy", reader.copy(f"{inside}canary", f"{inside}copy")),
        ]

    async def _try_writer(self, writer: Backend, inside: str, outside: str) -> list[ProbeCheck]:
        """Try what a credential that writes one folder may do, and what it must not."""
        return [
            await _allowed("writer: write inside", writer.put(f"{inside}written", b"x")),
            await _allowed("writer: write in parts", writer.put(f"{inside}written", _MULTIPART)),
            await _allowed("writer: delete inside", _delete(writer, f"{inside}written")),
            await _refused("writer: read outside", writer.get(f"{outside}canary")),
            await _refused("writer: write outside", writer.put(f"{outside}canary", b"x")),
            await _refused("writer: delete outside", _delete(writer, f"{outside}canary")),
        ]

    async def _try_delegation(
        self, bucket: Bucket, inside: str, vended: CredentialAnswer, external_id: str
    ) -> ProbeCheck:
        """Try to get a new credential with a vended one."""
        name = "delegate further"
        if vended.kind != "s3":
            return ProbeCheck(name, passed=True, detail="not possible with this kind of credential")
        grant = Grant(bucket, inside, "icefloe-probe", Access.WRITE, seconds=_PROBE_SECONDS)
        again = self._vendor.vend(grant, Secret(dict(vended.values)), external_id)
        return await _refused(name, again)

    async def _try_anonymous(self, bucket: Bucket, key: str) -> ProbeCheck:
        """Try to read without any credential: a public bucket needs no service."""
        if bucket.delegation is Delegation.ANONYMOUS:
            return ProbeCheck("read without a credential", passed=True)
        reader = self._open(bucket, CredentialAnswer("anonymous"))
        return await _refused("read without a credential", reader.get(key))


async def _allowed(name: str, attempt: Awaitable[object]) -> ProbeCheck:
    try:
        await attempt
    except IcefloeError as error:
        return ProbeCheck(name, passed=False, detail=f"was refused: {error}")
    return ProbeCheck(name, passed=True)


async def _refused(
    name: str, attempt: Awaitable[object], *, absent_is_fine: bool = True
) -> ProbeCheck:
    try:
        await attempt
    except ObjectNotFoundError:
        # Who may look for an object learns that it is absent: that is a right already.
        return ProbeCheck(name, passed=absent_is_fine, detail="was told that the object is absent")
    except StorageError as error:
        if error.retryable:
            return ProbeCheck(name, passed=False, detail=f"is not clear: {error}")
        return ProbeCheck(name, passed=True)
    return ProbeCheck(name, passed=False, detail="was allowed")


async def _list(backend: Backend, prefix: str) -> None:
    async for _ in backend.list(prefix):
        return


async def _delete(backend: Backend, key: str) -> None:
    report = await backend.delete_many([key])
    if report.failures:
        raise StorageError(f"the deletion failed: {report.failures[key]}")
