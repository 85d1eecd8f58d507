"""A storage that waits before each request, to try code as if at a distance."""

from collections.abc import AsyncIterator
from typing import Any, Protocol

from icefloe import effects
from icefloe.config import Attribution, EffectiveStorageSettings, StorageSettings
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.storage.metering import RequestCounts
from icefloe.storage.port import Backend, ObjectInfo
from icefloe.storage.storage import Storage
from icefloe.storage.wrapper import PrecededBackend


class Delays(Protocol):
    """Durations of delays; read at each request, so they may be changed in between."""

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
