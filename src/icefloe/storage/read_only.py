"""A backend that can only read by key, and listings of selected objects."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import NoReturn, Protocol, runtime_checkable

from icefloe.errors import ErrorKind, ReadOnlyError, StorageError
from icefloe.storage.port import (
    Backend,
    Buffer,
    ByteRange,
    DeleteReport,
    Fetched,
    ObjectInfo,
    ReadableBackend,
    Version,
)


class ReadOnlyBackend:
    """Hands reads on to what can do no more, and refuses the rest."""

    def __init__(self, inner: ReadableBackend, name: str) -> None:
        self._inner = inner
        self._place = name

    async def get(self, key: str, byte_range: ByteRange | None = None) -> Fetched:
        """Hand on."""
        return await self._inner.get(key, byte_range)

    async def get_ranges(self, key: str, byte_ranges: Sequence[ByteRange]) -> list[Buffer]:
        """Hand on."""
        return await self._inner.get_ranges(key, byte_ranges)

    async def head(self, key: str) -> Fetched:
        """Hand on."""
        return await self._inner.head(key)

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
        """Refuse."""
        self._refuse("write", key)

    async def list(self, prefix: str = "") -> AsyncIterator[list[ObjectInfo]]:
        """Refuse."""
        raise StorageError(
            f"cannot list {prefix!r}: {self._place} can only be read by key",
            ErrorKind.UNIMPLEMENTED,
        )
        yield []  # makes this a generator, as the port has it

    async def copy(
        self,
        source: str,
        target: str,
        *,
        if_version: Version | None = None,
    ) -> None:
        """Refuse."""
        self._refuse("copy", source)

    async def delete_many(self, keys: Sequence[str]) -> DeleteReport:
        """Refuse."""
        self._refuse("delete", ", ".join(keys[:3]))

    def _refuse(self, verb: str, key: str) -> NoReturn:
        raise ReadOnlyError(
            f"cannot {verb} {key!r}: {self._place} can only be read",
            ErrorKind.READ_ONLY_STORAGE,
            key=key,
        )


type Batch = list[ObjectInfo]
type Wanted = Callable[[Sequence[str]], Sequence[bool]]
"""Says of each key whether the object is of interest."""


@runtime_checkable
class SelectiveLister(Protocol):
    """A backend that can pass over objects by their keys alone."""

    def list_wanted(self, prefix: str, is_wanted: Wanted) -> AsyncIterator[Batch]:
        """Walk the objects whose key starts with `prefix` and that are wanted."""
        ...


async def list_wanted(backend: Backend, prefix: str, is_wanted: Wanted) -> AsyncIterator[Batch]:
    """Walk some of the objects whose key starts with `prefix`, in batches, as `list` does.

    Batches may be empty.
    """
    if isinstance(backend, SelectiveLister):
        async for batch in backend.list_wanted(prefix, is_wanted):
            yield batch
        return
    async for batch in backend.list(prefix):
        chosen = is_wanted([info.key for info in batch])
        yield [info for info, yes in zip(batch, chosen, strict=True) if yes]
