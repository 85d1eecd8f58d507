"""Trying again what failed in passing, as far as that is safe.

This layer owns all retries; the client library below is configured to make none. Reads, listings,
copies, deletions and plain writes can be repeated as they are: their effect is the same when
applied twice (keys of plain writes are random or hold the same bytes each time). Conditional
writes cannot, and go through `icefloe.storage.readback`.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from operator import le

from icefloe.config import EffectiveStorageSettings
from icefloe.errors import StorageError
from icefloe.storage.backoff import Attempts
from icefloe.storage.metering import Meter
from icefloe.storage.port import (
    Backend,
    Buffer,
    ByteRange,
    DeleteReport,
    Fetched,
    ObjectInfo,
    Version,
)
from icefloe.storage.readback import (
    WRITE_ID,
    ConditionalWrite,
    new_write_id,
    put_conditionally,
)


class RetryingBackend:
    """Repeats failed requests to another backend, and settles conditional writes."""

    def __init__(self, inner: Backend, settings: EffectiveStorageSettings, meter: Meter) -> None:
        self._inner = inner
        self._settings = settings
        self._meter = meter

    async def get(self, key: str, byte_range: ByteRange | None = None) -> Fetched:
        """Read until it works."""
        return await self._repeat(lambda: self._inner.get(key, byte_range))

    async def get_ranges(self, key: str, byte_ranges: Sequence[ByteRange]) -> list[Buffer]:
        """Read until it works."""
        return await self._repeat(lambda: self._inner.get_ranges(key, byte_ranges))

    async def put(
        self,
        key: str,
        data: Buffer,
        *,
        if_absent: bool = False,
        if_version: Version | None = None,
        attributes: Mapping[str, str] | None = None,
        content_type: str | None = None,
    ) -> Version:
        """Write until it works, or until a condition is known to have failed."""
        if not if_absent and if_version is None:
            return await self._repeat(
                lambda: self._inner.put(key, data, attributes=attributes, content_type=content_type)
            )
        if if_absent and if_version is not None:
            # Both conditions: let the backend say what is wrong with that.
            return await self._inner.put(key, data, if_absent=True, if_version=if_version)
        own_attributes = attributes or {}
        write_id = own_attributes.get(WRITE_ID) or new_write_id()
        write = ConditionalWrite(key, data, if_version, own_attributes, content_type, write_id)
        return await put_conditionally(self._inner, write, self._attempts())

    async def list(self, prefix: str = "") -> AsyncIterator[list[ObjectInfo]]:
        """List; a listing that breaks off begins again and passes over what was given.

        That needs keys in order, as the large object stores give them; in any other order only
        a listing that has not given anything yet can begin again.
        """
        attempts = self._attempts()
        last, is_ordered = "", True
        while True:
            previous = ""
            try:
                async for batch in self._inner.list(prefix):
                    keys = [previous, *(info.key for info in batch)]
                    is_ordered = is_ordered and all(map(le, keys, keys[1:]))
                    previous = keys[-1]
                    fresh = [info for info in batch if info.key > last] if last else batch
                    if fresh:
                        yield fresh
                        last = fresh[-1].key
            except StorageError as error:
                may_resume = error.retryable and (is_ordered or not last)
                if not may_resume or not await attempts.pause():
                    raise
            else:
                return

    async def head(self, key: str) -> Fetched:
        """Look until it works."""
        return await self._repeat(lambda: self._inner.head(key))

    async def copy(self, source: str, target: str, *, if_version: Version | None = None) -> None:
        """Copy until it works."""
        await self._repeat(lambda: self._inner.copy(source, target, if_version=if_version))

    async def delete_many(self, keys: Sequence[str]) -> DeleteReport:
        """Delete, trying again those that may yet go."""
        attempts = self._attempts()
        report = await attempts.repeat(lambda: self._inner.delete_many(keys))
        deleted, failures, pending = report.deleted, dict(report.failures), report.retryable
        while pending and await attempts.pause():
            again = await self._inner.delete_many(sorted(pending))
            deleted += again.deleted
            failures = {key: why for key, why in failures.items() if key not in pending}
            failures |= again.failures
            pending = again.retryable
        return DeleteReport(deleted, failures, pending, report.absent)

    def _attempts(self) -> Attempts:
        return Attempts(self._settings, lambda: self._meter.add("retries"))

    async def _repeat[T](self, request: Callable[[], Awaitable[T]]) -> T:
        try:
            return await request()
        except StorageError as error:
            # Attempts are only set up when they are needed: this is the path of every read.
            if not error.retryable:
                raise
            attempts = self._attempts()
            if not await attempts.pause():
                raise
        return await attempts.repeat(request)
