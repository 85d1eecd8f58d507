"""Backends that run something before every request, for instance a delay."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol

from icefloe import effects
from icefloe.config import Attribution, EffectiveStorageSettings, StorageSettings
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.storage.metering import RequestCounts
from icefloe.storage.port import (
    Backend,
    Buffer,
    ByteRange,
    DeleteReport,
    Fetched,
    ObjectInfo,
    Version,
)
from icefloe.storage.storage import Storage


class PrecededBackend(ABC):
    """A backend around a backend; subclasses say what to await before each request."""

    def __init__(self, inner: Backend) -> None:
        self._inner = inner

    @abstractmethod
    async def _before(self, *keys: str, writes: bool) -> None:
        """Do what has to precede a request for some keys; for a listing, its prefix."""

    async def get(self, key: str, byte_range: ByteRange | None = None) -> Fetched:
        """Read an object, or one range of it."""
        await self._before(key, writes=False)
        return await self._inner.get(key, byte_range)

    async def get_ranges(self, key: str, byte_ranges: Sequence[ByteRange]) -> list[Buffer]:
        """Read several ranges of one object."""
        await self._before(key, writes=False)
        return await self._inner.get_ranges(key, byte_ranges)

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
        """Write an object whole."""
        await self._before(key, writes=True)
        return await self._inner.put(
            key,
            data,
            if_absent=if_absent,
            if_version=if_version,
            attributes=attributes,
            content_type=content_type,
        )

    async def list(self, prefix: str = "") -> AsyncIterator[list[ObjectInfo]]:
        """Walk objects in batches; what precedes it happens once."""
        await self._before(prefix, writes=False)
        async for batch in self._inner.list(prefix):
            yield batch

    async def head(self, key: str) -> Fetched:
        """Look at an object without its bytes."""
        await self._before(key, writes=False)
        return await self._inner.head(key)

    async def copy(self, source: str, target: str, *, if_version: Version | None = None) -> None:
        """Copy within the storage."""
        await self._before(source, writes=True)
        await self._inner.copy(source, target, if_version=if_version)

    async def delete_many(self, keys: Sequence[str]) -> DeleteReport:
        """Delete objects in batches."""
        await self._before(*keys, writes=True)
        return await self._inner.delete_many(keys)


class Delays(Protocol):
    """How long to wait; read at each request, so they may be changed in between."""

    read_latency_ms: int
    write_latency_ms: int


class LatencyBackend(PrecededBackend):
    """Waits before each request to another backend; a listing waits once per batch."""

    def __init__(self, inner: Backend, delays: Delays) -> None:
        super().__init__(inner)
        self._delays = delays

    async def list(self, prefix: str = "") -> AsyncIterator[list[ObjectInfo]]:
        """Wait before each batch."""
        async for batch in super().list(prefix):
            yield batch
            await self._before(prefix, writes=False)

    async def _before(self, *_: str, writes: bool) -> None:
        delays = self._delays
        latency_ms = delays.write_latency_ms if writes else delays.read_latency_ms
        if latency_ms:
            await effects.sleep(latency_ms / 1000)


class LatencyStorage(Storage):
    """A storage that waits before each request, to try code as if at a distance.

    >>> slow = LatencyStorage(Storage.new_in_memory(), read_latency_ms=1)
    >>> slow.list_objects()
    []
    """

    def __init__(
        self, inner: Storage, *, write_latency_ms: int = 0, read_latency_ms: int = 0
    ) -> None:
        for latency in (write_latency_ms, read_latency_ms):
            if latency < 0:
                raise InvalidInputError("a latency cannot be negative", ErrorKind.STORAGE_CONFIG)
        super().__init__(inner.spec)
        self._inner = inner
        self.write_latency_ms = write_latency_ms
        self.read_latency_ms = read_latency_ms

    def open(
        self,
        settings: StorageSettings | EffectiveStorageSettings | None = None,
        attribution: Attribution | None = None,
    ) -> Backend:
        """Open the inner storage, with the delays."""
        return LatencyBackend(self._inner.open(settings, attribution), self)

    def request_counts(self) -> RequestCounts:
        """Count the requests of the inner storage."""
        return self._inner.request_counts()

    def reset_request_counts(self) -> RequestCounts:
        """Begin to count again."""
        return self._inner.reset_request_counts()

    def __reduce__(self) -> tuple[Any, ...]:
        return (_slowed, (self._inner, self.write_latency_ms, self.read_latency_ms))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LatencyStorage):
            return NotImplemented
        mine = (self._inner, self.write_latency_ms, self.read_latency_ms)
        return mine == (other._inner, other.write_latency_ms, other.read_latency_ms)

    def __hash__(self) -> int:
        return hash((LatencyStorage, self._inner))

    def __repr__(self) -> str:
        return (
            f"icefloe.testing.LatencyStorage({self._inner!r},"
            f" write_latency_ms={self.write_latency_ms}, read_latency_ms={self.read_latency_ms})"
        )


def _slowed(inner: Storage, write_latency_ms: int, read_latency_ms: int) -> LatencyStorage:
    return LatencyStorage(inner, write_latency_ms=write_latency_ms, read_latency_ms=read_latency_ms)
