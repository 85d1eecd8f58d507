"""Reading the bytes of virtual chunks, once it is settled from where.

Absurd offsets and lengths cost no memory: a storage says how long an object is before its
bytes are read, and what does not lie within it is refused there.
"""

from collections.abc import Hashable
from typing import Final

from icefloe.config import Attribution, StorageSettings
from icefloe.config.containers import OnChange
from icefloe.engine.virtual.checksums import ChangeWatch, is_watched
from icefloe.engine.virtual.clients import Client, Clients
from icefloe.engine.virtual.coalescing import Coalescer
from icefloe.engine.virtual.urls import shown
from icefloe.errors import (
    ErrorKind,
    IcefloeError,
    InvalidInputError,
    ObjectNotFoundError,
    StorageError,
)
from icefloe.format.chunk_table import VirtualChunk
from icefloe.storage import Buffer, ByteRange, Fetched, ObjectInfo

_LARGEST_OFFSET: Final = 2**63 - 1
_REMEMBERED_OBJECTS: Final = 4096
_SMALL_BYTES: Final = 1 << 20
"""A longer request waits for bytes so long that a step more makes no difference."""


class Fetching:
    """What one process needs for reading; a forked child must have its own."""

    def __init__(
        self, settings: StorageSettings | None = None, attribution: Attribution | None = None
    ) -> None:
        self._coalescer = Coalescer()
        self._watch = ChangeWatch()
        self._seen: dict[tuple[Hashable, str], ObjectInfo] = {}
        self.clients = Clients(settings, attribution)

    @property
    def held_bytes(self) -> int:
        """How much was read ahead and is kept."""
        return self._coalescer.held_bytes

    async def read(
        self,
        chunk: VirtualChunk,
        part: ByteRange,
        *,
        client: Client,
        key: str,
        on_change: OnChange,
    ) -> Buffer:
        """Read a part of a chunk, from the state of the object recorded for it."""
        start, stop = part
        if start >= stop:
            return b""
        first, last = chunk.offset + start, chunk.offset + stop
        if last > _LARGEST_OFFSET:
            raise _too_short(chunk, last)
        try:
            fetched = await self._fetch(
                client, key, (first, last), with_state=is_watched(chunk, on_change)
            )
        except IcefloeError as error:
            failure = _explained(chunk, last, error)
            if failure is error:
                raise
            raise failure from (error if isinstance(error, StorageError) else None)
        self._watch.check(chunk, fetched.info, on_change)
        return fetched.data

    async def _fetch(
        self, client: Client, key: str, byte_range: ByteRange, *, with_state: bool
    ) -> Fetched:
        if client.is_near:
            return await client.backend.get(key, byte_range)

        async def fetch(window: ByteRange) -> Fetched:
            if with_state:
                return await client.backend.get(key, window)
            return await self._fetch_without_state(client, key, window)

        return await self._coalescer.read((client.key, key, with_state), byte_range, fetch)

    async def _fetch_without_state(self, client: Client, key: str, window: ByteRange) -> Fetched:
        """Fetch bytes of an object whose state nobody compares with anything.

        Storages hand over the state in a step of its own, so the first answer has to do. What
        does not lie within the object as it was then is left to the storage to judge.
        """
        source = (client.key, key)
        seen = self._seen.get(source)
        first, last = window
        if seen is not None and last <= seen.size_bytes and last - first <= _SMALL_BYTES:
            [data] = await client.backend.get_ranges(key, (window,))
            return Fetched(data, seen)
        fetched = await client.backend.get(key, window)
        if len(self._seen) >= _REMEMBERED_OBJECTS:
            self._seen.clear()
        self._seen[source] = fetched.info
        return fetched


def _explained(chunk: VirtualChunk, last: int, error: IcefloeError) -> IcefloeError:
    """Say what a failure of the storage means for a chunk."""
    place = shown(chunk.location)
    if isinstance(error, ObjectNotFoundError):
        return StorageError(
            f"the object {place!r} that holds a virtual chunk does not exist: it was moved or"
            " deleted since the chunk was recorded",
            ErrorKind.VIRTUAL_CHUNK_FETCH,
            location=place,
        )
    if isinstance(error, StorageError):
        return StorageError(
            f"cannot fetch a virtual chunk from {place!r}: {error.message}",
            ErrorKind.VIRTUAL_CHUNK_FETCH,
            retryable=error.retryable,
            location=place,
        )
    if isinstance(error, InvalidInputError) and error.kind == ErrorKind.INVALID_BYTE_RANGE:
        return _too_short(chunk, last)
    return error


def _too_short(chunk: VirtualChunk, last: int) -> StorageError:
    return StorageError(
        f"the object {shown(chunk.location)!r} is too short for a virtual chunk of it: {last}"
        " bytes were expected",
        ErrorKind.INVALID_OBJECT_SIZE,
        location=shown(chunk.location),
    )
