"""Read virtual chunks: ranges of foreign objects, from locations that the reader authorised.

Absurd offsets and lengths cost no memory: a storage reports the length of an object before its
bytes are read, and a range outside of it is refused.
"""

import logging
import os
import re
import threading
import warnings
from collections.abc import Hashable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from icefloe.config import Attribution, StorageSettings, VirtualChunkContainer
from icefloe.config.containers import OnChange
from icefloe.credentials import AnyCredential
from icefloe.errors import (
    ErrorKind,
    IcefloeError,
    InvalidInputError,
    ObjectNotFoundError,
    StorageError,
)
from icefloe.forks import renew_lock_in_children
from icefloe.format.chunk_table import VirtualChunk
from icefloe.format.columns import Bools, BytesColumn
from icefloe.records import Record
from icefloe.storage import Buffer, ByteRange, Fetched, ObjectInfo, Storage
from icefloe.storage.capabilities import sign_reads
from icefloe.virtual_chunks.access import Grant
from icefloe.virtual_chunks.locations import shown
from icefloe.virtual_chunks.readahead import Coalescer
from icefloe.virtual_chunks.resolve import LocationResolver, ResolvedLocation

if TYPE_CHECKING:
    from icefloe.virtual_chunks.clients import Client

_log: Final = logging.getLogger(__name__)
_REMEMBERED_OBJECTS: Final = 4096
_ETAG_OF_HTTP: Final = re.compile(r"[!#-~]+")
_ETAG_OF_FILE: Final = re.compile(r"([0-9a-f]+)-([0-9a-f]+)-([0-9a-f]+)")


class Change(Record):
    """The difference between an object and its recorded state."""

    what: str
    recorded: str
    found: str

    def describe(self, location: str) -> str:
        """Describe it for people."""
        return (
            f"the object {shown(location)!r} changed since a virtual chunk of it was recorded"
            f" (the checksum of the object owning it has changed): {self.what} recorded"
            f" {self.recorded}, found {self.found}"
        )


def find_change(chunk: VirtualChunk, info: ObjectInfo) -> Change | None:
    """Compare the state of an object with what was recorded: its etag, or that it is not newer.

    Times are compared in whole seconds, which is what was recorded. An object whose storage tells
    neither counts as changed: nobody can say that it is the recorded one.
    """
    if chunk.etag is not None and not _has_etag(info, chunk.etag):
        return Change("etag", chunk.etag, info.version.etag or "none")
    if chunk.last_modified is not None:
        modified = info.last_modified
        if not info.is_time_known or int(modified.timestamp()) > chunk.last_modified:
            recorded = datetime.fromtimestamp(chunk.last_modified, UTC).isoformat()
            present = modified.isoformat() if info.is_time_known else "none"
            return Change("last modification", recorded, present)
    return None


def is_watched(chunk: VirtualChunk, policy: OnChange) -> bool:
    """Return whether it matters in which state the object of a chunk is."""
    return policy != "off" and not (chunk.etag is None and chunk.last_modified is None)


class SignedChunk(Record):
    """A signed address of the object of a virtual chunk."""

    url: str
    """A secret: with it, anybody can read the object until the address expires."""
    conditions: Mapping[str, str]
    """Headers with which the server refuses an object that changed since it was recorded."""

    def __repr__(self) -> str:
        return f"SignedChunk(url=..., conditions={self.conditions})"


def read_conditions(chunk: VirtualChunk, policy: OnChange) -> dict[str, str] | None:
    """Return headers of HTTP for the state that was recorded; None if no header can express it.

    Only a strict container asks for them: others accept objects that changed.

    >>> read_conditions(VirtualChunk("s3://bucket/a.nc", 0, 8, etag="1f"), "strict")
    {'If-Match': '"1f"'}
    >>> read_conditions(VirtualChunk("s3://bucket/a.nc", 0, 8, last_modified=0), "strict")
    {'If-Unmodified-Since': 'Thu, 01 Jan 1970 00:00:00 GMT'}
    """
    if policy != "strict" or not is_watched(chunk, policy):
        return {}
    if chunk.etag is not None:
        etag = chunk.etag.strip('"')
        return {"If-Match": f'"{etag}"'} if _ETAG_OF_HTTP.fullmatch(etag) else None
    from email.utils import formatdate

    return {"If-Unmodified-Since": formatdate(chunk.last_modified, usegmt=True)}


class ChangeWatch:
    """Acts on changed objects, as the container of each demands."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        renew_lock_in_children(self)
        self._warned: set[str] = set()

    def check(self, chunk: VirtualChunk, info: ObjectInfo, policy: OnChange) -> None:
        """Raise `StorageError`, warn once per object, or do nothing."""
        if not is_watched(chunk, policy):
            return
        change = find_change(chunk, info)
        if change is None:
            return
        text = change.describe(chunk.location)
        if policy == "strict":
            raise StorageError(
                f"{text}. Record its chunks again; or, if the change does no harm, set"
                " on_change='warn' on its container",
                ErrorKind.VIRTUAL_CHUNK_MODIFIED,
                location=shown(chunk.location),
                recorded=change.recorded,
                found=change.found,
            )
        if self._is_first(chunk.location):
            _log.warning("%s", text)
            warnings.warn(text, stacklevel=2)

    def _is_first(self, location: str) -> bool:
        with self._lock:
            if location in self._warned:
                return False
            if len(self._warned) >= _REMEMBERED_OBJECTS:
                self._warned.clear()
            self._warned.add(location)
            return True


def _has_etag(info: ObjectInfo, recorded: str) -> bool:
    etag = info.version.etag
    if etag is None:
        return False
    return recorded.strip('"') in {etag.strip('"'), _in_microseconds(etag)}


def _in_microseconds(etag: str) -> str | None:
    """Write the etag of a local file as other programs do: ours counts nanoseconds.

    >>> _in_microseconds("1f-3e8-a")
    '1f-1-a'
    """
    if (parts := _ETAG_OF_FILE.fullmatch(etag)) is None:
        return None
    inode, moment, size = parts.groups()
    return f"{inode}-{int(moment, 16) // 1000:x}-{size}"


_LARGEST_OFFSET: Final = 2**63 - 1
_SMALL_BYTES: Final = 1 << 20
"""A longer request waits for bytes so long that a step more makes no difference."""


class Fetching:
    """The clients and buffers of a process; a forked child needs its own."""

    def __init__(
        self, settings: StorageSettings | None = None, attribution: Attribution | None = None
    ) -> None:
        # Only here: those who read no virtual chunk need no clients.
        from icefloe.virtual_chunks.clients import Clients

        self._coalescer = Coalescer()
        self._watch = ChangeWatch()
        self._seen: dict[tuple[Hashable, str], ObjectInfo] = {}
        self.clients = Clients(settings, attribution)

    @property
    def held_bytes(self) -> int:
        """The number of bytes that were read ahead and are buffered."""
        return self._coalescer.held_bytes

    async def read(
        self,
        chunk: VirtualChunk,
        part: ByteRange,
        *,
        client: "Client",
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
        # Without a recorded state, nobody knows whether kept bytes are those of the object.
        with_state = is_watched(chunk, on_change)
        kept = client.kept if with_state else None
        state = f"{chunk.etag} {chunk.last_modified}"
        if kept is not None:
            found = await kept.find(key, (first, last), state)
            if found is not None:
                return found
        try:
            fetched = await self._fetch(client, key, (first, last), with_state=with_state)
        except IcefloeError as error:
            failure = _explained(chunk, last, error)
            if failure is error:
                raise
            raise failure from (error if isinstance(error, StorageError) else None)
        self._watch.check(chunk, fetched.info, on_change)
        if kept is not None and find_change(chunk, fetched.info) is None:
            await kept.keep(key, fetched.data, (first, last), state)
        return fetched.data

    async def _fetch(
        self, client: "Client", key: str, byte_range: ByteRange, *, with_state: bool
    ) -> Fetched:
        if client.is_near:
            return await client.backend.get(key, byte_range)

        async def fetch(window: ByteRange) -> Fetched:
            if with_state:
                return await client.backend.get(key, window)
            return await self._fetch_without_state(client, key, window)

        return await self._coalescer.read((client.key, key, with_state), byte_range, fetch)

    async def _fetch_without_state(self, client: "Client", key: str, window: ByteRange) -> Fetched:
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
    """Return what a failure of the storage means for a chunk."""
    location = shown(chunk.location)
    if isinstance(error, ObjectNotFoundError):
        return StorageError(
            f"the object {location!r} that holds a virtual chunk does not exist: it was moved or"
            " deleted since the chunk was recorded",
            ErrorKind.VIRTUAL_CHUNK_FETCH,
            location=location,
        )
    if isinstance(error, StorageError):
        return StorageError(
            f"cannot fetch a virtual chunk from {location!r}: {error.message}",
            ErrorKind.VIRTUAL_CHUNK_FETCH,
            retryable=error.retryable,
            location=location,
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


_REMEMBERED_LOCATIONS: Final = 4096


class VirtualReader:
    """Reads virtual chunks, and says which locations it could not read.

    Args:
        containers: what the effective configuration holds.
        access: url prefix (a last slash may be missing) to credential, as given at open.
        trusted: containers that the caller gave, rather than the repository.
        disputed: prefixes about which the stored configuration contradicts itself.
        home_region: region of Amazon S3 that is taken where a container names none.
        settings: how the storages of containers are used.
        attribution: who is asking, for the operators of those storages.

    Pickles with its credentials; storages are opened at the first read, once per process.
    """

    def __init__(
        self,
        containers: Iterable[VirtualChunkContainer] = (),
        access: Mapping[str, AnyCredential | None] | None = None,
        *,
        trusted: Iterable[VirtualChunkContainer] = (),
        disputed: Iterable[str] = (),
        home_region: str | None = None,
        settings: StorageSettings | None = None,
        attribution: Attribution | None = None,
    ) -> None:
        self.resolver = LocationResolver(containers, access, disputed=disputed)
        self._trusted = tuple(trusted)
        self._home_region = home_region
        self._settings = settings
        self._attribution = attribution
        self._resolved: dict[str, ResolvedLocation] = {}
        self._recorded: dict[tuple[str, bool], str] = {}
        self._in_process: dict[int, Fetching] = {}

    def __reduce__(self) -> tuple[object, ...]:
        settings = {
            "trusted": self._trusted,
            "disputed": self.resolver.disputed,
            "home_region": self._home_region,
            "settings": self._settings,
            "attribution": self._attribution,
        }
        return (_restored, (self.resolver.containers, self.resolver.access.entries, settings))

    @property
    def is_near(self) -> bool:
        """Whether all that may be read is on this machine, so that reads wait for no network."""
        return all(prefix.scheme == "file" for _, prefix in self.resolver.access.prefixes)

    @property
    def is_authorised(self) -> bool:
        """Whether anything may be read."""
        return bool(self.resolver.access.prefixes)

    @property
    def clients_opened(self) -> int:
        """The number of storages that this process has opened."""
        return self._fetching.clients.opened

    @property
    def held_bytes(self) -> int:
        """The number of bytes that were read ahead and are buffered."""
        return self._fetching.held_bytes

    @property
    def trusted(self) -> tuple[VirtualChunkContainer, ...]:
        """The containers that the caller vouched for."""
        return self._trusted

    def recorded(
        self, locations: BytesColumn, *, validate: bool
    ) -> tuple[BytesColumn, Bools | None]:
        """Return locations as they are stored and, if asked, which no container covers."""
        return self.resolver.recorded(locations, validate=validate)

    def recorded_one(self, text: str, *, validate: bool) -> str:
        """Return one location as it is stored; with `validate`, refuse it if nothing covers it."""
        stored = self._recorded.get((text, validate))
        if stored is None:
            stored = self.resolver.recorded_one(text, validate=validate)
            if len(self._recorded) >= _REMEMBERED_LOCATIONS:
                self._recorded.clear()
            self._recorded[text, validate] = stored
        return stored

    async def read(self, chunk: VirtualChunk, start: int, stop: int) -> Buffer:
        """Read bytes `start` to `stop` of a chunk, from the state of the object recorded for it."""
        resolved = self._resolve(chunk.location)
        return await self._fetching.read(
            chunk,
            (start, stop),
            client=self._client(resolved),
            key=resolved.key,
            on_change=resolved.container.on_change,
        )

    async def sign_reads(
        self, chunks: Sequence[VirtualChunk], lifetime: timedelta
    ) -> list[SignedChunk | None]:
        """Return a signed address for each chunk, of places that the reader authorised.

        None for a chunk whose storage has no signed addresses.
        """
        signed: list[SignedChunk | None] = [None] * len(chunks)
        rows_of: dict[Hashable, list[tuple[int, str, dict[str, str]]]] = {}
        clients: dict[Hashable, Client] = {}
        for row, chunk in enumerate(chunks):
            resolved = self._resolve(chunk.location)
            client = self._client(resolved)
            conditions = read_conditions(chunk, resolved.container.on_change)
            if conditions is not None:
                clients[client.key] = client
                rows_of.setdefault(client.key, []).append((row, resolved.key, conditions))
        for key, rows in rows_of.items():
            names = [name for _, name, _ in rows]
            urls = await sign_reads(clients[key].backend, names, lifetime)
            for (row, _, conditions), url in zip(rows, urls or (), strict=urls is not None):
                signed[row] = SignedChunk(url, conditions)
        return signed

    async def look(self, location: str) -> ObjectInfo:
        """Look at the object of a location without reading it, if it is authorised."""
        resolved = self._resolve(location)
        return (await self._client(resolved).backend.head(resolved.key)).info

    @property
    def _fetching(self) -> Fetching:
        """The clients of this process; a forked child does not use those of its parent."""
        process = os.getpid()
        if (fetching := self._in_process.get(process)) is None:
            new = Fetching(self._settings, self._attribution)
            fetching = self._in_process.setdefault(process, new)  # the same for all threads
        return fetching

    def _resolve(self, text: str) -> ResolvedLocation:
        """Remember what `locate` found: chunks of one file are read one after the other."""
        resolved = self._resolved.get(text)
        if resolved is None:
            resolved = self.resolver.locate(text)
            self.resolver.require_key(resolved)
            if len(self._resolved) >= _REMEMBERED_LOCATIONS:
                self._resolved.clear()
            self._resolved[text] = resolved
        return resolved

    def _client(self, resolved: ResolvedLocation) -> "Client":
        """Open the storage of a location, once, after checking that it is authorised."""
        grant = self.resolver.require_grant(resolved)
        scheme, container = resolved.location.scheme, resolved.container.url_prefix
        return self._fetching.clients.get(
            (container, grant.prefix, scheme, resolved.bucket),
            lambda: self.storage_of(resolved, grant),
        )

    def storage_of(self, resolved: ResolvedLocation, grant: Grant) -> Storage:
        """Describe the storage of an authorised location; no request is sent."""
        from icefloe.virtual_chunks.clients import open_store

        return open_store(
            resolved,
            grant,
            trusted=self._trusted,
            home_region=self._home_region,
            prefixes=[prefix for _, prefix in self.resolver.access.prefixes],
        )


def _restored(
    containers: tuple[VirtualChunkContainer, ...],
    access: dict[str, AnyCredential | None],
    settings: dict[str, Any],
) -> VirtualReader:
    return VirtualReader(containers, access, **settings)
