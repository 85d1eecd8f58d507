"""Locations of virtual chunks: how they are written, stored and compared. Pure.

A location is a URL. What it names is its path, percent-decoded, without query and fragment.
Containers and what a reader authorised are compared with the decoded form, cut at the same
slashes, so no way of writing a location can lead out of the place that it matches.
"""

import re
from dataclasses import dataclass
from typing import Final
from unicodedata import normalize
from urllib.parse import unquote

from icefloe.config.urls import (
    Prefix,
    compared_host,
    decoded_segments,
    host_fault,
    resolved,
    split_url,
    without_user,
)
from icefloe.errors import ErrorKind, InvalidInputError

RELATIVE_SCHEME: Final = "vcc"
"""`vcc://name/path` lies below the container of that name, wherever that is."""

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_STEP: Final = re.compile(r"(?:^|[/\\])\.\.?(?=$|[/\\;])")
_KEYS_OF_ANY_SHAPE: Final = frozenset({"s3"})
"""Schemes whose keys may be recorded with empty, `.` and `..` segments."""
_MOST_ENCODINGS: Final = 8


@dataclass(frozen=True, slots=True)
class Location:
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
        """Tell whether it is below a container named by name."""
        return self.scheme == RELATIVE_SCHEME


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
    """Say why a key cannot be recorded, if so; `scheme` is that of its location."""
    return None if scheme in _KEYS_OF_ANY_SHAPE else segment_fault(key)


def segment_fault(key: str) -> str | None:
    r"""Say why a key cannot be read, if so.

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
    """Give a location for messages: without user, query and fragment, which may be secret."""
    return without_user(location)


def invalid(location: str, reason: str) -> InvalidInputError:
    """Describe a location that cannot be used."""
    text = f"the location of a virtual chunk {shown(location)!r} cannot be used: {reason}"
    return InvalidInputError(text, ErrorKind.INVALID_VIRTUAL_REF, location=shown(location))
