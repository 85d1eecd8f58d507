"""Something that happens before every request to a backend."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence

from icefloe.storage.port import (
    Backend,
    Buffer,
    ByteRange,
    DeleteReport,
    Fetched,
    ObjectInfo,
    Version,
)


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
