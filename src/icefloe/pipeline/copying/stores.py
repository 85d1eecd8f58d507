"""The two Zarr stores between which a task copies values.

Both can be used from threads that block, which Zarr does one object at a time: so what a task holds
is known beforehand.
"""

from collections.abc import AsyncIterator, Iterable
from typing import Any, Protocol, override

from zarr.abc.store import (
    ByteRequest,
    OffsetByteRequest,
    RangeByteRequest,
    Store,
    SuffixByteRequest,
)
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype

from icefloe.effects import run_blocking
from icefloe.errors import ErrorKind, ObjectNotFoundError, ReadOnlyError
from icefloe.storage import Backend
from icefloe.storage.port import Buffer as StoredBytes
from icefloe.storage.port import ByteRange


class _PlainStore(Store):
    """What the two have in common: values by key, nothing to list."""

    @property
    @override
    def supports_writes(self) -> bool:
        """Return whether values can be set."""
        return not self.read_only

    @property
    @override
    def supports_deletes(self) -> bool:
        """Return whether values can be deleted."""
        return not self.read_only

    @property
    @override
    def supports_listing(self) -> bool:
        """Never: a copy knows its keys."""
        return False

    @override
    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = None  # type: ignore[assignment] # what it holds changes

    def get_sync(
        self,
        key: str,
        *,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        """Read as `get` does, on this thread."""
        return run_blocking(self.get(key, prototype or default_buffer_prototype(), byte_range))

    def set_sync(self, key: str, value: Buffer) -> None:
        """Write as `set` does, on this thread."""
        run_blocking(self.set(key, value))

    def delete_sync(self, key: str) -> None:
        """Delete as `delete` does, on this thread."""
        run_blocking(self.delete(key))

    @override
    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        """Read several values, one after the other."""
        return [await self.get(key, prototype, byte_range) for key, byte_range in key_ranges]

    @override
    async def exists(self, key: str) -> bool:
        """Return whether there is a value."""
        return await self.get(key, default_buffer_prototype()) is not None

    @override
    def list(self) -> AsyncIterator[str]:
        """Name nothing."""
        return _nothing()

    @override
    def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """Name nothing."""
        return _nothing()

    @override
    def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Name nothing."""
        return _nothing()


async def _nothing() -> AsyncIterator[str]:
    keys: tuple[str, ...] = ()
    for key in keys:
        yield key


class ReadingStore(_PlainStore):
    """A Zarr hierarchy that somebody else wrote, on any storage."""

    def __init__(self, backend: Backend, prefix: str) -> None:
        super().__init__(read_only=True)
        self._backend, self._prefix = backend, f"{prefix.strip('/')}/" if prefix.strip("/") else ""

    @override
    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Read a value, or a part of it."""
        try:
            data = await self._read(self._prefix + key, byte_range)
        except ObjectNotFoundError:
            return None
        return prototype.buffer.from_bytes(data)

    async def _read(self, key: str, byte_range: ByteRequest | None) -> StoredBytes:
        match byte_range:
            case None:
                return (await self._backend.get(key)).data
            case RangeByteRequest(start, end):
                window: ByteRange = (start, end)
            case OffsetByteRequest(offset):
                window = (offset, await self._size(key))
            case SuffixByteRequest(suffix):
                size = await self._size(key)
                window = (max(size - suffix, 0), size)
        return (await self._backend.get(key, window)).data

    async def _size(self, key: str) -> int:
        return (await self._backend.head(key)).info.size_bytes

    @override
    async def set(self, key: str, value: Buffer) -> None:
        """Refuse."""
        raise _read_only()

    @override
    async def delete(self, key: str) -> None:
        """Refuse."""
        raise _read_only()


def _read_only() -> ReadOnlyError:
    return ReadOnlyError("what is copied is only read", ErrorKind.READ_ONLY_STORE)


class Taking(Protocol):
    """Takes the encoded objects of an array."""

    async def take(self, cell: tuple[int, ...], data: Any, /) -> None:
        """Store one, whose place in the grid is given."""
        ...


class CapturingStore(_PlainStore):
    """One array, whose encoded objects go where `taker` puts them.

    There is nothing to be read but the metadata: regions are made of whole objects. What Zarr
    deletes holds nothing but the fill value, and was never there.
    """

    def __init__(self, document: bytes) -> None:
        super().__init__(read_only=False)
        self._document = document
        self.taker: Taking | None = None

    @override
    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Read the metadata."""
        return prototype.buffer.from_bytes(self._document) if key == "zarr.json" else None

    @override
    async def set(self, key: str, value: Buffer) -> None:
        """Hand an object on."""
        assert self.taker is not None, "nobody takes what is written"
        cell = tuple(int(part) for part in key.split("/")[1:])
        await self.taker.take(cell, value.as_buffer_like())

    @override
    async def delete(self, key: str) -> None:
        """Leave out what holds nothing."""
