"""Locations of virtual chunks: how they are written, stored, compared and matched. Pure.

A location is a URL. It names its path, percent-decoded, without query and fragment. Containers and
authorised prefixes are compared with the decoded form, cut at the same slashes, so no spelling of a
location can lead out of the prefix that it matches. The longest matching prefix counts.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final
from unicodedata import normalize
from urllib.parse import unquote

import numpy as np

from icefloe.config import ObjectStoreConfig, S3Options, VirtualChunkContainer
from icefloe.config.containers import moved_container
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.arrow import pc
from icefloe.format.columns import Bools, BytesColumn, mask_of
from icefloe.records import Record
from icefloe.values.urls import (
    ALIASES,
    Prefix,
    compared_host,
    decoded_segments,
    family_of,
    host_fault,
    parse_prefix,
    resolved,
    split_url,
    without_user,
)

RELATIVE_SCHEME: Final = "vcc"
"""`vcc://name/path` lies below the container of that name, wherever that is."""

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_STEP: Final = re.compile(r"(?:^|[/\\])\.\.?(?=$|[/\\;])")
_KEYS_OF_ANY_SHAPE: Final = frozenset({"s3"})
"""Schemes whose keys may be recorded with empty, `.` and `..` segments."""
_MOST_ENCODINGS: Final = 8


class Location(Record):
    """A URL taken apart, in the form in which it is stored."""

    scheme: str
    host: str
    path: str
    """Still percent-encoded."""
    tail: str = ""
    """Query and fragment, which name nothing."""

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host}{self.path}{self.tail}"

    @property
    def decoded(self) -> Prefix:
        """The form in which locations and prefixes are compared: as the narrowest prefix."""
        try:
            segments = decoded_segments(self.path)
        except UnicodeDecodeError:
            raise invalid(str(self), "its percent-encoded bytes are not UTF-8") from None
        host = compared_host(self.scheme, self.host)
        return Prefix(self.scheme, host, segments, is_folder=False)

    @property
    def is_relative(self) -> bool:
        """Return whether it is below a container named by name."""
        return self.scheme == RELATIVE_SCHEME


@lru_cache(maxsize=64)  # one that is recorded is parsed again as it is stored
def parse_location(text: str) -> Location:
    """Take a location apart, bringing it into its stored form.

    Of local files the path is resolved; of all others only the scheme is changed.

    >>> str(parse_location("FILE:///data/./2020/../a b.nc"))
    'file:///data/a%20b.nc'
    >>> str(parse_location("S3://bucket/a/../b.nc"))
    's3://bucket/a/../b.nc'
    """
    parts = split_url(text)
    if parts is None:
        raise invalid(text, "it is not a URL: write it like s3://bucket/key or file:///path")
    scheme, host = parts.scheme, parts.host
    if scheme == "file":
        if host not in {None, "", "localhost"}:
            raise invalid(text, "a file URL has no host: write file:///path")
        return Location(scheme, "", resolved(parts.path), parts.tail)
    if not host:
        raise invalid(text, "it names no bucket or host")
    if scheme != RELATIVE_SCHEME and (fault := host_fault(scheme, host)) is not None:
        raise invalid(text, fault)
    return Location(scheme, host, parts.path, parts.tail)


def key_fault(scheme: str, key: str) -> str | None:
    """Return why a key cannot be recorded, if so; `scheme` is that of its location."""
    return None if scheme in _KEYS_OF_ANY_SHAPE else segment_fault(key)


def segment_fault(key: str) -> str | None:
    r"""Return why a key cannot be read, if so.

    Steps upwards are refused however often they are encoded, also between backslashes, in
    letters that only look like dots, or with a parameter: a server may decode once more than we
    do, know other slashes, or simplify letters.

    >>> segment_fault("a//b")
    'it has an empty segment'
    >>> segment_fault("a/%2e%2e/b"), segment_fault("a\\..\\b")
    ("it has a segment '.' or '..'", "it has a segment '.' or '..'")
    """
    if not all(key.split("/")):
        return "it has an empty segment"
    for _ in range(_MOST_ENCODINGS):
        if _CONTROL.search(key):
            return "it has a control character"
        if _STEP.search(key if key.isascii() else normalize("NFKC", key)):
            return "it has a segment '.' or '..'"
        if (decoded := unquote(key)) == key:
            return None
        key = decoded
    return "it is percent-encoded too many times"


def shown(location: str) -> str:
    """Return a location for messages: without user, query and fragment, which may be secret."""
    return without_user(location)


def invalid(location: str, reason: str) -> InvalidInputError:
    """Describe a location that cannot be used."""
    text = f"the location of a virtual chunk {shown(location)!r} cannot be used: {reason}"
    return InvalidInputError(text, ErrorKind.INVALID_VIRTUAL_REF, location=shown(location))


_LETTER: Final = r"[A-Za-z0-9_=,:@+!$&'()*;~-]"
_SEGMENT: Final = rf"{_LETTER}({_LETTER}|\.)*"
_PLAIN: Final = rf"^[a-z0-9]+://[a-z0-9._-]+(/{_SEGMENT})+$"
_PLAIN_FILE: Final = rf"^file://(/{_SEGMENT})+$"
"""Locations that are stored as they are written, decode to themselves and have a good key."""

DEFAULT_CONTAINERS: Final = tuple(
    VirtualChunkContainer(f"{scheme}://", store)
    for scheme, store in (
        ("s3", ObjectStoreConfig.S3(S3Options())),
        ("gs", ObjectStoreConfig.Gcs()),
        ("az", ObjectStoreConfig.Azure()),
        ("tigris", ObjectStoreConfig.Tigris(S3Options())),
        ("http", ObjectStoreConfig.Http()),
        ("https", ObjectStoreConfig.Http()),
    )
)
"""Where virtual chunks may be recorded without an entry in the configuration.

They declare places and authorise nothing: reading takes the word of the reader. They are not
stored, come after all that is configured, and do not include local files.
"""


def default_containers(
    declared: Iterable[VirtualChunkContainer],
) -> tuple[VirtualChunkContainer, ...]:
    """List the default containers of the platforms for which a repository declares none.

    A container for a bucket says where the chunks on that platform are, and wants to hear of
    those that are elsewhere.
    """
    platforms = set(map(_platform, declared))
    return tuple(
        container for container in DEFAULT_CONTAINERS if _platform(container) not in platforms
    )


def _platform(container: VirtualChunkContainer) -> str:
    """Name the platform of a container by a scheme; encrypted or not, the web is one."""
    family = family_of(parse_prefix(container.url_prefix).scheme)
    return "https" if family == "http" else family


def with_defaults(
    declared: Mapping[str, VirtualChunkContainer],
) -> dict[str, VirtualChunkContainer]:
    """Add the default containers, under each scheme that means the same: others compare texts."""
    shown = dict(declared)
    for container in default_containers(declared.values()):
        scheme = parse_prefix(container.url_prefix).scheme
        for alias in ALIASES.get(scheme, (scheme,)):
            shown[f"{alias}://"] = moved_container(container, f"{alias}://")
    return shown


class PrefixTable[T]:
    """Values by prefix, found by what lies below the prefix."""

    def __init__(self, entries: Iterable[tuple[Prefix, T]] = ()) -> None:
        self._entries = list(entries)
        self._deepest = max((len(prefix.segments) for prefix, _ in self._entries), default=0)
        self._by_pieces: dict[object, list[tuple[Prefix, T]]] = {}
        for prefix, value in self._entries:
            self._by_pieces.setdefault(prefix.pieces, []).append((prefix, value))

    def __len__(self) -> int:
        return len(self._entries)

    def longest(self, prefix: Prefix) -> tuple[Prefix, T] | None:
        """Find the longest prefix that covers a place, and its value.

        A place that is an object is not covered by a folder of the same name.
        """
        family = family_of(prefix.scheme)
        most = min(len(prefix.segments), self._deepest)
        for count in range(most, -1, -1):
            fitting = self._by_pieces.get((family, prefix.host, prefix.segments[:count]), ())
            is_itself = count == len(prefix.segments) and not prefix.is_folder
            if nearest := _nearest(fitting, prefix.scheme, only_objects=is_itself and count > 0):
                return nearest
        return _nearest(self._by_pieces.get((family, None, ()), ()), prefix.scheme)

    def covered(self, plain: BytesColumn) -> Bools:
        """Return for each plain location (see `is_plain`) whether a prefix covers it."""
        rows = plain.to_arrow()
        covered = np.zeros(len(plain), np.bool_)
        for prefix, _ in self._entries:
            for text in _texts(prefix):
                covered |= mask_of(pc.starts_with(rows, text.encode()))
                if not prefix.is_folder:
                    itself = BytesColumn.from_strings([text.removesuffix("/")]).to_arrow()[0]
                    covered |= mask_of(pc.equal(rows, itself))
        return covered


def _nearest[T](
    fitting: Iterable[tuple[Prefix, T]], scheme: str, *, only_objects: bool = False
) -> tuple[Prefix, T] | None:
    usable = [entry for entry in fitting if not (only_objects and entry[0].is_folder)]
    return min(usable, key=lambda entry: entry[0].scheme != scheme, default=None)


def _texts(prefix: Prefix) -> Iterable[str]:
    """Write out what plain locations below a prefix begin with."""
    below = "" if prefix.host is None else "/".join((prefix.host, *prefix.segments, ""))
    family = family_of(prefix.scheme)
    return (f"{scheme}://{below}" for scheme in ALIASES.get(family, (family,)))


def is_plain(locations: BytesColumn) -> Bools:
    """Return for each location whether its text can be compared as it is."""
    text = locations.to_arrow()
    plain = mask_of(pc.match_substring_regex(text, _PLAIN))
    relative = mask_of(pc.starts_with(text, f"{RELATIVE_SCHEME}://".encode()))
    files = mask_of(pc.match_substring_regex(text, _PLAIN_FILE))
    of_host = mask_of(pc.starts_with(text, b"file:"))
    return (plain & ~relative & ~of_host) | files
