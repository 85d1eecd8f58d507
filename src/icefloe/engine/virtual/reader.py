"""Virtual chunks: ranges of foreign objects, read through containers that the reader authorised.

Nothing is authorised tacitly: a container that is not listed in what the repository was opened
with is never read. How locations are compared is in `virtual_urls`, to whom credentials may be
sent in `virtual_stores`.
"""

import os
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import numpy as np

from icefloe.config import Attribution, StorageSettings, VirtualChunkContainer
from icefloe.credentials import AnyCredential
from icefloe.engine.virtual.stores import grants, how_to_authorise, open_store
from icefloe.engine.virtual.urls import (
    RELATIVE_SCHEME,
    Location,
    invalid,
    key_fault,
    parse_location,
    segment_fault,
    shown,
)
from icefloe.errors import ErrorKind, InvalidInputError, ObjectNotFoundError, StorageError
from icefloe.format.arrow import pc
from icefloe.format.arrow_kernels import mask_of
from icefloe.format.chunk_table import VirtualChunk
from icefloe.format.columns import Bools, BytesColumn
from icefloe.storage import Backend, Buffer, Fetched, ObjectInfo

_REMEMBERED_PLACES: Final = 4096
_LARGEST_OFFSET: Final = 2**63 - 1
_PLAIN: Final = r"^[a-z0-9]+://[A-Za-z0-9._-]+(/[A-Za-z0-9_=,:@+-][A-Za-z0-9._=,:@+-]*)+$"
_PLAIN_FILE: Final = r"^file://(/[A-Za-z0-9_=,:@+-][A-Za-z0-9._=,:@+-]*)+$"
"""Locations that are stored as they are written, decode to themselves and have a good key."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the bytes of a location are: a key in the storage of a container."""

    container: VirtualChunkContainer
    key: str
    location: Location


class _Opened:
    """The storages that one process has open; a forked child starts anew."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.lock = threading.Lock()
        self.backends: dict[str, Backend] = {}


class VirtualReader:
    """Reads virtual chunks, and says which locations it could not read.

    Args:
        containers: what the effective configuration holds.
        access: url prefix (a last slash may be missing) to credential, as given at open.
        trusted: containers that the caller gave, rather than the repository.
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
        settings: StorageSettings | None = None,
        attribution: Attribution | None = None,
    ) -> None:
        matched = ((parse_location(each.url_prefix).decoded, each) for each in containers)
        self._containers = sorted(matched, key=lambda pair: (-len(pair[0]), pair[0]))
        self._access = dict(access or {})
        self._trusted = tuple(trusted)
        self._settings = settings
        self._attribution = attribution
        self._grants = grants((each for _, each in self._containers), self._access)
        self._named = {each.name: each for _, each in self._containers if each.name is not None}
        self._places: dict[str, Place] = {}
        self._opened = _Opened()

    def __reduce__(self) -> tuple[object, ...]:
        containers = [each for _, each in self._containers]
        settings = (self._settings, self._attribution)
        return (_restored, (containers, self._access, self._trusted, *settings))

    @property
    def authorised_prefixes(self) -> frozenset[str]:
        """The url prefixes of containers that may be read."""
        return frozenset(self._grants)

    @property
    def trusted(self) -> tuple[VirtualChunkContainer, ...]:
        """The containers that the caller vouched for."""
        return self._trusted

    # -- recording locations ---------------------------------------------------------------

    def normalise(self, location: str) -> str:
        """Give a location in the form in which it is stored; malformed ones are refused."""
        return str(parse_location(location))

    def normalise_all(self, locations: BytesColumn) -> BytesColumn:
        """Give locations in the form in which they are stored.

        The whole column is looked at in one step; only unusual rows are taken apart.
        """
        unusual = np.flatnonzero(~_is_plain(locations))
        if len(unusual) == 0:
            return locations
        rows = locations.to_list()
        for row in unusual.tolist():
            rows[row] = self.normalise(_text(rows[row])).encode()
        return BytesColumn.from_list(rows)

    def check_locations(self, locations: BytesColumn | list[str]) -> Bools:
        """Tell for each location whether no container covers it.

        Malformed locations, and keys that the storage of their container could not address,
        are `InvalidInputError`. Repeated locations are looked at once.
        """
        if not isinstance(locations, BytesColumn):
            locations = BytesColumn.from_strings(locations)
        distinct, numbers = locations.distinct()
        plain = _is_plain(distinct)
        rows = distinct.to_arrow()
        covered = np.zeros(len(distinct), np.bool_)
        for prefix, _ in self._containers:
            covered |= mask_of(pc.starts_with(rows, prefix.encode()))
        for row in np.flatnonzero(~plain).tolist():
            covered[row] = self._is_covered(_text(distinct[row]))
        return ~covered[numbers]

    def _is_covered(self, text: str) -> bool:
        try:
            place = self.locate(text)
        except InvalidInputError as error:
            if error.kind == ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK:
                return False
            raise
        if (fault := key_fault(place.location.scheme, place.key)) is not None:
            raise invalid(text, fault)
        return True

    # -- finding ---------------------------------------------------------------------------

    def locate(self, text: str) -> Place:
        """Find the container of a location (longest prefix first) and the key in its storage."""
        given = parse_location(text)
        location = self._absolute(given)
        decoded = location.decoded
        for prefix, container in self._containers:
            if decoded.startswith(prefix):
                base = parse_location(container.url_prefix)
                root = f"{base.scheme}://{base.host}/"
                return Place(container, decoded.removeprefix(_decoded_root(root)), location)
        raise _no_container(text)

    def absolute(self, text: str) -> str:
        """Give a location with the name of a container replaced by where that is."""
        return str(self._absolute(parse_location(text)))

    def _absolute(self, location: Location) -> Location:
        if not location.is_relative:
            return location
        container = self._named.get(location.host)
        if container is None or not location.path.startswith("/"):
            raise _no_container(str(location))
        below = parse_location(container.url_prefix + location.path[1:] + location.tail)
        if not below.decoded.startswith(parse_location(container.url_prefix).decoded):
            raise _no_container(str(below))
        return below

    # -- reading ---------------------------------------------------------------------------

    async def read(self, chunk: VirtualChunk, start: int, stop: int) -> Buffer:
        """Read bytes `start` to `stop` of a chunk, from the state of the object recorded for it."""
        place = self._place(chunk.location)
        backend = self._backend(place.container, chunk.location)
        first, last = chunk.offset + start, chunk.offset + stop
        if start == stop:
            return b""
        if last > _LARGEST_OFFSET:
            raise _too_short(chunk, last)
        try:
            fetched = await backend.get(place.key, (first, last))
        except ObjectNotFoundError:
            raise StorageError(
                f"the object {shown(chunk.location)!r} that holds a virtual chunk does not exist:"
                " it was moved or deleted since the chunk was recorded",
                ErrorKind.VIRTUAL_CHUNK_FETCH,
                location=shown(chunk.location),
            ) from None
        except InvalidInputError as error:
            if error.kind != ErrorKind.INVALID_BYTE_RANGE:
                raise
            raise _too_short(chunk, last) from None
        except StorageError as error:
            raise StorageError(
                f"cannot fetch a virtual chunk from {shown(chunk.location)!r}: {error.message}",
                ErrorKind.VIRTUAL_CHUNK_FETCH,
                retryable=error.retryable,
                location=shown(chunk.location),
            ) from error
        _check_unchanged(chunk, place, fetched)
        return fetched.data

    def _place(self, text: str) -> Place:
        """Remember what `locate` found: chunks of one file are read one after the other."""
        place = self._places.get(text)
        if place is None:
            place = self.locate(text)
            if (fault := segment_fault(place.key)) is not None:
                raise invalid(text, fault)
            if len(self._places) >= _REMEMBERED_PLACES:
                self._places.clear()
            self._places[text] = place
        return place

    def _backend(self, container: VirtualChunkContainer, location: str) -> Backend:
        """Open the storage of a container, once, after checking that it is authorised."""
        opened = self._opened
        if opened.process != os.getpid():
            opened = self._opened = _Opened()
        prefix = container.url_prefix
        if (backend := opened.backends.get(prefix)) is not None:
            return backend
        if (credential := self._grants.get(prefix)) is None:
            raise InvalidInputError(
                f"the virtual chunk at {shown(location)!r} is in the container {prefix!r}, which"
                " you did not authorise. If you trust the repository to read from there, open it"
                f" with {how_to_authorise(container)}",
                ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER,
                url_prefix=prefix,
            )
        with opened.lock:
            if (backend := opened.backends.get(prefix)) is None:
                storage = open_store(container, credential, trusted=self._trusted)
                backend = opened.backends[prefix] = storage.open(self._settings, self._attribution)
        return backend


def _restored(
    containers: list[VirtualChunkContainer],
    access: dict[str, AnyCredential | None],
    trusted: tuple[VirtualChunkContainer, ...],
    settings: StorageSettings | None,
    attribution: Attribution | None,
) -> VirtualReader:
    return VirtualReader(
        containers, access, trusted=trusted, settings=settings, attribution=attribution
    )


def _decoded_root(root: str) -> str:
    return parse_location(root).decoded


def _is_plain(locations: BytesColumn) -> Bools:
    text = locations.to_arrow()
    plain = mask_of(pc.match_substring_regex(text, _PLAIN))
    relative = mask_of(pc.starts_with(text, f"{RELATIVE_SCHEME}://".encode()))
    files = mask_of(pc.match_substring_regex(text, _PLAIN_FILE))
    of_host = mask_of(pc.starts_with(text, b"file:"))
    return (plain & ~relative & ~of_host) | files


def _text(row: bytes) -> str:
    try:
        return row.decode()
    except UnicodeDecodeError:
        raise invalid(row.decode(errors="replace"), "it is not UTF-8") from None


def _check_unchanged(chunk: VirtualChunk, place: Place, fetched: Fetched) -> None:
    """Compare the object with what was recorded: its etag, or that it is not newer.

    Times are compared in whole seconds, which is what was recorded.
    """
    info = fetched.info
    if chunk.etag is not None and not _has_etag(info, chunk.etag, place.location.scheme):
        raise _modified(chunk, "etag", chunk.etag, info.version.etag or "none")
    if chunk.last_modified is not None:
        found = info.last_modified
        if int(found.timestamp()) > chunk.last_modified:
            recorded = datetime.fromtimestamp(chunk.last_modified, UTC).isoformat()
            raise _modified(chunk, "last modification", recorded, found.isoformat())


def _has_etag(info: ObjectInfo, recorded: str, scheme: str) -> bool:
    found = info.version.etag
    if found is None:
        return False
    if scheme == "file" and recorded == _etag_in_microseconds(found):
        return True
    return found.strip('"') == recorded.strip('"')


def _etag_in_microseconds(etag: str) -> str:
    """Write the etag of a file as other programs do: ours counts nanoseconds.

    >>> _etag_in_microseconds("1f-3e8-a")
    '1f-1-a'
    """
    inode, moment, size = etag.split("-")
    return f"{inode}-{int(moment, 16) // 1000:x}-{size}"


def _modified(chunk: VirtualChunk, what: str, recorded: str, found: str) -> StorageError:
    return StorageError(
        f"the object {shown(chunk.location)!r} changed since a virtual chunk of it was recorded"
        f" (the checksum of the object owning it has changed): {what} recorded {recorded}, found"
        f" {found}. Record its chunks again",
        ErrorKind.VIRTUAL_CHUNK_MODIFIED,
        location=shown(chunk.location),
        recorded=recorded,
        found=found,
    )


def _too_short(chunk: VirtualChunk, last: int) -> StorageError:
    return StorageError(
        f"the object {shown(chunk.location)!r} is too short for a virtual chunk of it: {last}"
        " bytes were expected",
        ErrorKind.INVALID_OBJECT_SIZE,
        location=shown(chunk.location),
    )


def _no_container(location: str) -> InvalidInputError:
    text = shown(location)
    folder = text[: text.rfind("/") + 1]
    return InvalidInputError(
        f"no virtual chunk container covers {text!r}: add one to the configuration, with"
        f" config.set_virtual_chunk_container(VirtualChunkContainer({folder!r}, ...))",
        ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK,
        location=text,
    )
