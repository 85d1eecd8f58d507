"""Counts of what a storage was asked and how many bytes moved.

Each attempt counts, so a request that was tried three times counts three times. A read that
`obstore` or we split into concurrent parts is one request here.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from threading import Lock
from typing import Any, Unpack, cast

from icefloe.errors import PreconditionFailedError
from icefloe.forks import renew_lock_in_children
from icefloe.records import Record
from icefloe.storage.capabilities import Batch, Queueing, Wanted, has_queue, list_wanted
from icefloe.storage.port import Backend, Buffer, PutOptions, Version
from icefloe.storage.wrapper import BackendWrapper, Verb


class RequestCounts(Record):
    """Counts of requests; subtract an earlier count to get the requests since then.

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
            **{name: getattr(self, name) - getattr(earlier, name) for name in _COUNTERS}
        )


_COUNTERS = RequestCounts.__struct_fields__


class Meter:
    """A running count, exact under threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        renew_lock_in_children(self)
        self._counts = dict.fromkeys(_COUNTERS, 0)

    def add(self, name: str, bytes_in: int = 0, bytes_out: int = 0) -> None:
        """Count one event of a kind and the bytes it moved."""
        with self._lock:
            self._counts[name] += 1
            if bytes_in:
                self._counts["bytes_in"] += bytes_in
            if bytes_out:
                self._counts["bytes_out"] += bytes_out

    def snapshot(self) -> RequestCounts:
        """Read the count."""
        with self._lock:
            return RequestCounts(**self._counts)

    def reset(self) -> RequestCounts:
        """Read the count and begin again at zero."""
        with self._lock:
            counts = RequestCounts(**self._counts)
            self._counts = dict.fromkeys(_COUNTERS, 0)
            return counts


class MeteredBackend(BackendWrapper):
    """Counts the requests to another backend, also those that fail."""

    def __init__(self, inner: Backend, meter: Meter) -> None:
        super().__init__(inner)
        self._meter = meter
        self.has_queue = has_queue(inner)

    async def around(self, verb: Verb, *arguments: Any, **options: Any) -> Any:
        """Count a request and the bytes that it read."""
        bytes_in = 0
        try:
            answer = await getattr(self.inner, verb)(*arguments, **options)
            if verb == "get":
                bytes_in = len(answer.data)
            elif verb == "get_ranges":
                bytes_in = sum(map(len, answer))
            return answer
        finally:
            self._meter.add("delete" if verb == "delete_many" else verb, bytes_in)

    async def put(self, key: str, data: Buffer, **options: Unpack[PutOptions]) -> Version:
        """Count a write; the bytes count even if the answer was lost."""
        self._meter.add("put", bytes_out=memoryview(data).nbytes)
        try:
            return await self.inner.put(key, data, **options)
        except PreconditionFailedError:
            self._meter.add("conflicts")
            raise

    def list(self, prefix: str = "") -> AsyncIterator[Batch]:
        """Count one request per batch, and one for an empty answer."""
        return self._count_batches(self.inner.list(prefix))

    def list_wanted(self, prefix: str, is_wanted: Wanted) -> AsyncIterator[Batch]:
        """Count as `list` does."""
        return self._count_batches(list_wanted(self.inner, prefix, is_wanted))

    async def _count_batches(self, batches: AsyncIterator[Batch]) -> AsyncIterator[Batch]:
        is_empty = True
        async for batch in batches:
            is_empty = False
            self._meter.add("list")
            yield batch
        if is_empty:
            self._meter.add("list")

    def turn(self, key: str) -> AbstractAsyncContextManager[None]:
        """Wait for a turn; that is no request."""
        return cast("Queueing", self.inner).turn(key)
