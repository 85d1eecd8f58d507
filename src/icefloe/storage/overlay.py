"""A storage as it would be: what is written stays in memory, above what is really there."""

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import count

from icefloe.config import Attribution, EffectiveStorageSettings, StorageSettings
from icefloe.errors import ObjectNotFoundError, PreconditionFailedError
from icefloe.storage.keys import check_conditions, check_key, check_range, same_state
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


class OverlayBackend:
    """Reads from another backend, and never writes to it: for those who want to try things out."""

    def __init__(self, inner: Backend) -> None:
        self._inner = inner
        self._written: dict[str, Fetched] = {}
        self._deleted: set[str] = set()
        self._states = count(1)

    @property
    def written(self) -> dict[str, int]:
        """The keys of what was written, with sizes in bytes."""
        return {key: stored.info.size_bytes for key, stored in self._written.items()}

    async def get(self, key: str, byte_range: ByteRange | None = None) -> Fetched:
        """Read what was written here, else the object below."""
        if (own := self._own(key)) is None:
            return await self._inner.get(key, byte_range)
        if byte_range is None:
            return own
        return Fetched(_slice(key, own.data, byte_range), own.info, own.attributes)

    async def get_ranges(self, key: str, byte_ranges: Sequence[ByteRange]) -> list[Buffer]:
        """Read several ranges of one object."""
        if (own := self._own(key)) is None:
            return await self._inner.get_ranges(key, byte_ranges)
        return [_slice(key, own.data, byte_range) for byte_range in byte_ranges]

    async def head(self, key: str) -> Fetched:
        """Look at an object without its bytes."""
        if (own := self._own(key)) is None:
            return await self._inner.head(key)
        return Fetched(b"", own.info, own.attributes)

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
        """Keep the bytes in memory, under the same conditions as elsewhere."""
        check_key(key)
        check_conditions(if_absent=if_absent, if_version=if_version)
        if if_absent or if_version is not None:
            await self._require(key, None if if_absent else if_version)
        return self._keep(key, bytes(data), attributes or {})

    async def list(self, prefix: str = "") -> AsyncIterator[list[ObjectInfo]]:
        """Walk the objects below and those written here."""
        async for batch in self._inner.list(prefix):
            yield [
                info
                for info in batch
                if info.key not in self._written and info.key not in self._deleted
            ]
        own = [stored.info for key, stored in self._written.items() if key.startswith(prefix)]
        if own:
            yield own

    async def copy(self, source: str, target: str, *, if_version: Version | None = None) -> None:
        """Keep a copy in memory."""
        check_key(target)
        stored = await self.get(source)
        if if_version is not None and not same_state(stored.info.version, if_version):
            raise _changed(source)
        self._keep(target, bytes(stored.data), stored.attributes)

    async def delete_many(self, keys: Sequence[str]) -> DeleteReport:
        """Hide objects."""
        for key in keys:
            check_key(key)
        for key in keys:
            self._written.pop(key, None)
            self._deleted.add(key)
        return DeleteReport(len(set(keys)))

    def _own(self, key: str) -> Fetched | None:
        if key in self._deleted:
            raise ObjectNotFoundError(f"no object {key!r}", key=key)
        return self._written.get(key)

    async def _require(self, key: str, expected: Version | None) -> None:
        try:
            version: Version | None = (await self.head(key)).info.version
        except ObjectNotFoundError:
            version = None
        if expected is None and version is not None:
            raise PreconditionFailedError(f"{key!r} already exists", key=key)
        if expected is not None and (version is None or not same_state(version, expected)):
            raise _changed(key)

    def _keep(self, key: str, data: bytes, attributes: Mapping[str, str]) -> Version:
        version = Version(etag=f"overlay {next(self._states)}")
        info = ObjectInfo(key, len(data), datetime.now(UTC), version)
        self._written[key] = Fetched(data, info, dict(attributes))
        self._deleted.discard(key)
        return version


class OverlayStorage(Storage):
    """A storage that reads from another one and keeps to itself what is written.

    >>> real = Storage.new_in_memory()
    >>> from icefloe.effects import run_blocking
    >>> tried = OverlayStorage(real)
    >>> _ = run_blocking(tried.open().put("key", b"bytes"))
    >>> tried.list_objects(), real.list_objects()
    ([('key', 5)], [])
    """

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner.spec)
        self._inner = inner
        self._overlay: OverlayBackend | None = None

    def open(
        self,
        settings: StorageSettings | EffectiveStorageSettings | None = None,
        attribution: Attribution | None = None,
    ) -> Backend:
        """Return the one backend that knows what was written; the first settings count."""
        if self._overlay is None:
            self._overlay = OverlayBackend(self._inner.open(settings, attribution))
        return self._overlay


def _slice(key: str, data: Buffer, byte_range: ByteRange) -> memoryview:
    check_range(key, byte_range, len(data))
    return memoryview(data)[byte_range[0] : byte_range[1]]


def _changed(key: str) -> PreconditionFailedError:
    return PreconditionFailedError(f"{key!r} is no longer in the expected state", key=key)
