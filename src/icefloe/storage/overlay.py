"""A storage as it would be: what is written stays in memory, above what is really there."""

from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any, Unpack

from icefloe.config import Attribution, EffectiveStorageSettings, StorageSettings
from icefloe.errors import ObjectNotFoundError, PreconditionFailedError
from icefloe.storage.keys import check_expected_version, check_key, same_state
from icefloe.storage.memory import MemoryBackend
from icefloe.storage.port import (
    Backend,
    Buffer,
    DeleteReport,
    ObjectInfo,
    PutOptions,
    Version,
)
from icefloe.storage.storage import Storage
from icefloe.storage.wrapper import BackendWrapper, Request, Verb


class OverlayBackend(BackendWrapper):
    """Reads from another backend and never writes to it, so that callers can try things out."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        # No version of an object here may equal one of the object below.
        self._written = MemoryBackend("overlay ")
        self._deleted: set[str] = set()

    def around(self, verb: Verb, *arguments: Any, **options: Any) -> Request[Any]:
        """Read what was written here, else the object below."""
        key = arguments[0]
        if key in self._deleted:
            raise ObjectNotFoundError(f"no object {key!r}", key=key)
        backend = self._written if key in self._written else self.inner
        request: Request[Any] = getattr(backend, verb)(*arguments, **options)
        return request

    async def put(self, key: str, data: Buffer, **options: Unpack[PutOptions]) -> Version:
        """Keep the bytes in memory, under the same conditions as elsewhere."""
        check_key(key)
        expected = options.pop("if_version", None)
        must_be_absent = options.pop("if_absent", False)
        if expected is not None:
            check_expected_version(expected, if_absent=must_be_absent)
        if must_be_absent or expected is not None:
            await self._require(key, expected)
        version = await self._written.put(key, data, **options)
        self._deleted.discard(key)
        return version

    async def copy(self, source: str, target: str, *, if_version: Version | None = None) -> None:
        """Keep a copy in memory."""
        stored = await self.get(source)
        if if_version is not None and not same_state(stored.info.version, if_version):
            raise _changed(source)
        await self.put(target, stored.data, attributes=stored.attributes)

    async def sign_reads(self, keys: Sequence[str], lifetime: timedelta) -> Sequence[str] | None:
        """Return None: an address would lead to the object below, not to what was written here."""
        del keys, lifetime
        return None

    async def delete_many(self, keys: Sequence[str]) -> DeleteReport:
        """Hide objects."""
        await self._written.delete_many(keys)
        self._deleted.update(keys)
        return DeleteReport(len(set(keys)))

    async def list(self, prefix: str = "") -> AsyncIterator[list[ObjectInfo]]:
        """Walk the objects below and those written here."""
        async for batch in self.inner.list(prefix):
            yield [
                info
                for info in batch
                if info.key not in self._written and info.key not in self._deleted
            ]
        async for batch in self._written.list(prefix):
            yield batch

    async def _require(self, key: str, expected: Version | None) -> None:
        try:
            version: Version | None = (await self.head(key)).info.version
        except ObjectNotFoundError:
            version = None
        if expected is None and version is not None:
            raise PreconditionFailedError(f"{key!r} already exists", key=key)
        if expected is not None and (version is None or not same_state(version, expected)):
            raise _changed(key)


def _changed(key: str) -> PreconditionFailedError:
    return PreconditionFailedError(f"{key!r} is no longer in the expected state", key=key)


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
