"""Counts of what a storage was asked and how many bytes moved.

Each attempt counts, so a request that was tried three times counts three times. A read that
`obstore` or we split into concurrent parts is one request here.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, fields
from threading import Lock
from typing import cast

from icefloe.errors import PreconditionFailedError
from icefloe.forks import renew_lock_in_children
from icefloe.storage.port import (
    Backend,
    Buffer,
    ByteRange,
    DeleteReport,
    Fetched,
    ObjectInfo,
    Version,
)
from icefloe.storage.read_only import Batch, Wanted, list_wanted
from icefloe.storage.turns import Queueing, has_queue


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """What happened so far; subtract an earlier count to see what happened since.

    >>> RequestCounts(get=3, bytes_in=10) - RequestCounts(get=1)
    RequestCounts(get=2, get_ranges=0, put=0, list=0, head=0, copy=0, delete=0, bytes_in=10, \
bytes_out=0, retries=0, conflicts=0)
    """

    get: int = 0
    get_ranges: int = 0
    put: int = 0
    list: int = 0
    head: int = 0
    copy: int = 0
    delete: int = 0
    """Batches, not objects."""
    bytes_in: int = 0
    bytes_out: int = 0
    retries: int = 0
    """Attempts after the first."""
    conflicts: int = 0
    """Conditional writes that were refused."""

    @property
    def requests(self) -> int:
        """All requests together."""
        reads = self.get + self.get_ranges + self.list + self.head
        return reads + self.put + self.copy + self.delete

    def __sub__(self, earlier: "RequestCounts") -> "RequestCounts":
        return RequestCounts(
            **{
                counter.name: getattr(self, counter.name) - getattr(earlier, counter.name)
                for counter in _ALL
            }
        )


_ALL = fields(RequestCounts)


class Meter:
    """A running count, exact under threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        renew_lock_in_children(self)
        self._counts = {counter.name: 0 for counter in _ALL}

    def add(self, name: str, bytes_in: int = 0, bytes_out: int = 0) -> None:
        """Count one event of a kind and the bytes it moved."""
        with self._lock:
            self._counts[name] += 1
            self._counts["bytes_in"] += bytes_in
            self._counts["bytes_out"] += bytes_out

    def snapshot(self) -> RequestCounts:
        """Read the count."""
        with self._lock:
            return RequestCounts(**self._counts)

    def reset(self) -> RequestCounts:
        """Read the count and begin again at zero."""
        with self._lock:
            counts = RequestCounts(**self._counts)
            self._counts = {counter.name: 0 for counter in _ALL}
            return counts


class MeteredBackend:
    """Counts what goes to another backend."""

    def __init__(self, inner: Backend, meter: Meter) -> None:
        self._inner = inner
        self._meter = meter
        self.has_queue = has_queue(inner)

    async def get(self, key: str, byte_range: ByteRange | None = None) -> Fetched:
        """Count a read, also one that fails."""
        size = 0
        try:
            fetched = await self._inner.get(key, byte_range)
            size = len(fetched.data)
            return fetched
        finally:
            self._meter.add("get", bytes_in=size)

    async def get_ranges(self, key: str, byte_ranges: Sequence[ByteRange]) -> list[Buffer]:
        """Count a read of several ranges."""
        size = 0
        try:
            ranges = await self._inner.get_ranges(key, byte_ranges)
            size = sum(map(len, ranges))
            return ranges
        finally:
            self._meter.add("get_ranges", bytes_in=size)

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
        """Count a write; the bytes count even if the answer was lost."""
        self._meter.add("put", bytes_out=memoryview(data).nbytes)
        try:
            return await self._inner.put(
                key,
                data,
                if_absent=if_absent,
                if_version=if_version,
                attributes=attributes,
                content_type=content_type,
            )
        except PreconditionFailedError:
            self._meter.add("conflicts")
            raise

    async def list(self, prefix: str = "") -> AsyncIterator[list[ObjectInfo]]:
        """Count one request per batch, and one for an empty answer."""
        is_empty = True
        async for batch in self._inner.list(prefix):
            is_empty = False
            self._meter.add("list")
            yield batch
        if is_empty:
            self._meter.add("list")

    async def list_wanted(self, prefix: str, is_wanted: Wanted) -> AsyncIterator[Batch]:
        """Count one request per batch, and one for an empty answer."""
        is_empty = True
        async for batch in list_wanted(self._inner, prefix, is_wanted):
            is_empty = False
            self._meter.add("list")
            yield batch
        if is_empty:
            self._meter.add("list")

    async def head(self, key: str) -> Fetched:
        """Count a look."""
        self._meter.add("head")
        return await self._inner.head(key)

    async def copy(self, source: str, target: str, *, if_version: Version | None = None) -> None:
        """Count a copy."""
        self._meter.add("copy")
        await self._inner.copy(source, target, if_version=if_version)

    async def delete_many(self, keys: Sequence[str]) -> DeleteReport:
        """Count a batch."""
        self._meter.add("delete")
        return await self._inner.delete_many(keys)

    def turn(self, key: str) -> AbstractAsyncContextManager[None]:
        """Wait for a turn; that is no request."""
        return cast("Queueing", self._inner).turn(key)
