"""Clocks that are wrong: of a storage, of whoever opens a repository."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import icefloe
from icefloe.effects import run_blocking
from icefloe.records import replace
from icefloe.repo import lifecycle
from icefloe.repo.context import now_microseconds
from icefloe.storage import Storage
from icefloe.storage.port import Backend, ByteRange, Fetched, ObjectInfo
from icefloe.storage.wrapper import PrecededBackend
from icefloe.testing.schedules import WrappedStorage

HOUR = timedelta(hours=1)
FEW_MINUTES = timedelta(minutes=5)


class Shifted(PrecededBackend):
    """A storage whose clock is off, maybe rounded down to whole seconds."""

    def __init__(self, inner: Backend, off: timedelta, *, whole_seconds: bool = False) -> None:
        super().__init__(inner)
        self._off = off
        self._whole_seconds = whole_seconds
        self.writes: list[str] = []
        """Keys of all writes and deletions, in their order."""
        self.looks: list[str] = []
        """Keys and prefixes of all reads and listings, in their order."""

    async def _before(self, *keys: str, writes: bool) -> None:
        (self.writes if writes else self.looks).extend(keys)

    async def get(self, key: str, byte_range: ByteRange | None = None) -> Fetched:
        found = await super().get(key, byte_range)
        return Fetched(found.data, self._shifted(found.info), found.attributes)

    async def head(self, key: str) -> Fetched:
        found = await super().head(key)
        return Fetched(found.data, self._shifted(found.info), found.attributes)

    async def list(self, prefix: str = "") -> AsyncIterator[list[ObjectInfo]]:
        async for batch in super().list(prefix):
            yield [self._shifted(info) for info in batch]

    def _shifted(self, info: ObjectInfo) -> ObjectInfo:
        moment = info.last_modified + self._off
        return replace(info, last_modified=self._rounded(moment))

    def _rounded(self, moment: datetime) -> datetime:
        return moment.replace(microsecond=0) if self._whole_seconds else moment


def shifted(storage: Storage, off: timedelta, *, whole_seconds: bool = False) -> WrappedStorage:
    """Return the same storage, as it would be if its clock were off."""
    return WrappedStorage(
        storage, lambda backend: Shifted(backend, off, whole_seconds=whole_seconds)
    )


def backend_of(storage: WrappedStorage) -> Shifted:
    assert isinstance(storage.backend, Shifted)
    return storage.backend


def opened(storage: Storage, off: timedelta = timedelta(0)) -> icefloe.Repository:
    """Open a repository on a machine whose clock is off."""
    microseconds = off // timedelta(microseconds=1)
    context = run_blocking(
        lifecycle.open_(storage, clock=lambda: now_microseconds() + microseconds)
    )
    return icefloe.Repository(context)


def now(off: timedelta = timedelta(0)) -> datetime:
    return datetime.now(UTC) + off
