"""Resolve locations of virtual chunks: which container each is in, and whether it may be read."""

from collections.abc import Iterable, Mapping

import numpy as np

from icefloe.config import VirtualChunkContainer
from icefloe.credentials import AnyCredential
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.columns import Bools, BytesColumn, Ints
from icefloe.records import Record
from icefloe.values.urls import Prefix, parse_prefix
from icefloe.virtual_chunks.access import Access, Grant, credential_for, unauthorised
from icefloe.virtual_chunks.locations import (
    DEFAULT_CONTAINERS,
    Location,
    PrefixTable,
    default_containers,
    invalid,
    is_plain,
    key_fault,
    parse_location,
    segment_fault,
    shown,
)

_DEFAULTS = PrefixTable(
    (parse_prefix(default_container.url_prefix), default_container)
    for default_container in DEFAULT_CONTAINERS
)


class ResolvedLocation(Record):
    """The resolved position of a location, and the grant that allows reading it."""

    container: VirtualChunkContainer
    key: str
    """The name of the object within its bucket, web server or file system."""
    location: Location
    """Absolute, also where the chunk is recorded below the name of a container."""
    bucket: str
    """The bucket, or the host and port of a web server; empty for files."""
    grant: Grant | None
    """None if the reader did not authorise it."""


class LocationResolver:
    """The containers that a repository declares, and what of them the reader authorised.

    Args:
        containers: what the effective configuration holds.
        access: url prefix (a last slash may be missing) to credential, as given at open.
        disputed: prefixes about which the stored configuration contradicts itself.
    """

    def __init__(
        self,
        containers: Iterable[VirtualChunkContainer] = (),
        access: Mapping[str, AnyCredential | None] | None = None,
        *,
        disputed: Iterable[str] = (),
    ) -> None:
        self.containers = tuple(containers)
        self.access = Access(access or {})
        self.disputed = tuple(disputed)
        self._declared = [
            (parse_prefix(container.url_prefix), container) for container in self.containers
        ]
        self._table = PrefixTable(self._declared)
        self._recordable = PrefixTable(
            (parse_prefix(default_container.url_prefix), default_container)
            for default_container in default_containers(self.containers)
        )
        self._disputes = PrefixTable((parse_prefix(prefix), prefix) for prefix in self.disputed)
        self._named = {
            container.name: container for container in self.containers if container.name is not None
        }
        self.access.check(self._declared)

    @property
    def authorised_prefixes(self) -> frozenset[str]:
        """The url prefixes of containers that may be read, or of the parts that may."""
        return frozenset(
            text
            for prefix, container in self._declared
            for text in self.access.prefixes_in(prefix, container)
        )

    # -- finding ---------------------------------------------------------------------------

    def locate(self, text: str, *, for_recording: bool = False) -> ResolvedLocation:
        """Find the container of a location (longest prefix first) and the key in its storage.

        What is recorded below the name of a container is in that one. Containers that nobody
        declared are for places that the reader authorised, and for recording.
        """
        location_given = parse_location(text)
        location, named = (
            (location_given, None)
            if not location_given.is_relative
            else self._below_name(location_given)
        )
        decoded = location.decoded
        container = named or self._container_of(decoded, for_recording=for_recording)
        if container is None:
            raise _no_container(text)
        key = "/".join(decoded.segments)
        grant = self.access.grant_for(decoded, container)
        return ResolvedLocation(container, key, location, decoded.host or "", grant)

    def absolute(self, text: str) -> str:
        """Return a location with the name of a container replaced by where that is."""
        location = parse_location(text)
        return str(self._below_name(location)[0] if location.is_relative else location)

    def _container_of(self, prefix: Prefix, *, for_recording: bool) -> VirtualChunkContainer | None:
        """Find the container of a place; those that nobody declared come last."""
        declared = self._table.longest(prefix)
        dispute = self._disputes.longest(prefix)
        if dispute and (declared is None or dispute[0].depth >= declared[0].depth):
            raise _disputed(dispute[1])
        if declared is not None:
            return declared[1]
        if for_recording and (default := self._recordable.longest(prefix)) is not None:
            return default[1]
        default = _DEFAULTS.longest(prefix)
        return None if default is None or not self.access.covers(prefix) else default[1]

    def _below_name(self, location: Location) -> tuple[Location, VirtualChunkContainer]:
        container = self._named.get(location.host)
        if container is None:
            raise _no_container(str(location))
        prefix = parse_prefix(container.url_prefix)
        if prefix.is_folder and not location.path:
            raise _no_container(str(location))
        below = parse_location(_joined(container.url_prefix, location.path) + location.tail)
        if not prefix.covers(below.decoded):
            raise _no_container(str(below))
        return below, container

    def require_grant(self, resolved: ResolvedLocation) -> Grant:
        """Return the entry that authorises a place, or tell the reader which one to write."""
        if resolved.grant is None:
            raise unauthorised(resolved.container, shown(str(resolved.location)))
        return resolved.grant

    def require_key(self, resolved: ResolvedLocation) -> None:
        """Refuse a place whose key could be understood in more than one way."""
        if (fault := segment_fault(resolved.key)) is not None:
            raise invalid(str(resolved.location), fault)

    # -- recording -------------------------------------------------------------------------

    def recorded(
        self, locations: BytesColumn, *, validate: bool
    ) -> tuple[BytesColumn, Bools | None]:
        """Return locations in the form in which they are stored, and which no container covers.

        The latter only if asked. The whole column is looked at in one step; only unusual rows
        are taken apart.
        """
        plain = is_plain(locations)
        stored = _normalised(locations, np.flatnonzero(~plain))
        return stored, self._uncovered(stored, plain) if validate else None

    def recorded_one(self, text: str, *, validate: bool) -> str:
        """Return one location as it is stored; with `validate`, refuse it if nothing covers it."""
        stored = normalise(text)
        if validate:
            self._require_key(stored, self.locate(stored, for_recording=True))
        return stored

    def _uncovered(self, locations: BytesColumn, plain: Bools) -> Bools:
        covered = self._table.covered(locations)
        if not covered[plain].all():
            covered |= self._covered_by_default(locations)
        if len(self._disputes):
            plain = plain & ~self._disputes.covered(locations)
        for row in np.flatnonzero(~plain).tolist():
            covered[row] = self._is_covered(text_of(locations[row]))
        return ~covered

    def _covered_by_default(self, locations: BytesColumn) -> Bools:
        usable = [
            (prefix, text) for text, prefix in self.access.prefixes if _DEFAULTS.longest(prefix)
        ]
        return PrefixTable(usable).covered(locations) | self._recordable.covered(locations)

    def _is_covered(self, text: str) -> bool:
        try:
            resolved = self.locate(text, for_recording=True)
        except InvalidInputError as error:
            if error.kind == ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK:
                return False
            raise
        self._require_key(text, resolved)
        return True

    def _require_key(self, text: str, resolved: ResolvedLocation) -> None:
        """Refuse a location whose key the storage of its container could not address."""
        if (fault := key_fault(resolved.location.scheme, resolved.key)) is not None:
            raise invalid(text, fault)


def normalise(location: str) -> str:
    """Return a location in the form in which it is stored; malformed ones are refused."""
    return str(parse_location(location))


def normalise_all(locations: BytesColumn) -> BytesColumn:
    """Return locations in the form in which they are stored."""
    return _normalised(locations, np.flatnonzero(~is_plain(locations)))


def _normalised(locations: BytesColumn, unusual: Ints) -> BytesColumn:
    if len(unusual) == 0:
        return locations
    rows = locations.to_list()
    for row in unusual.tolist():
        rows[row] = normalise(text_of(rows[row])).encode()
    return BytesColumn.from_list(rows)


def text_of(row: bytes) -> str:
    """Decode a location."""
    try:
        return row.decode()
    except UnicodeDecodeError:
        raise invalid(row.decode(errors="replace"), "it is not UTF-8") from None


def _joined(prefix: str, path: str) -> str:
    """Write the path of a location behind the prefix of its container.

    >>> _joined("s3", "/bucket/a.nc"), _joined("s3://bucket/a.nc", "")
    ('s3://bucket/a.nc', 's3://bucket/a.nc')
    """
    if not path:
        return prefix
    start = prefix if "://" in prefix else f"{prefix}://"
    return start.removesuffix("/") + path if not start.endswith("://") else start + path[1:]


def _no_container(location: str) -> InvalidInputError:
    text = shown(location)
    folder = text[: text.rfind("/") + 1]
    default = _default_for(location)
    authorise = (
        f". If you only read: authorise it, with authorize_virtual_chunk_access="
        f"icefloe.containers_credentials({{{folder!r}: {credential_for(default)}}})"
        if default is not None
        else ""
    )
    return InvalidInputError(
        f"no virtual chunk container covers {text!r}: add one to the configuration, with"
        f" config.set_virtual_chunk_container(VirtualChunkContainer({folder!r}, ...)){authorise}",
        ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK,
        location=text,
    )


def _default_for(location: str) -> VirtualChunkContainer | None:
    try:
        default = _DEFAULTS.longest(parse_location(location).decoded)
    except InvalidInputError:
        return None
    return None if default is None else default[1]


def _disputed(prefix: str) -> InvalidInputError:
    return InvalidInputError(
        "the configuration stored in the repository contradicts itself: a virtual chunk container"
        f" is listed under one url prefix and has another inside, and {prefix!r} is one of them."
        " Set the container again, with config.set_virtual_chunk_container(...), and save that"
        " with Repository.save_config()",
        ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK,
        url_prefix=prefix,
    )
