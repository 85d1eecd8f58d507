"""Locations of virtual chunks: how they are written, stored and compared. Pure.

A location is a URL. What it names is its path, percent-decoded, without query and fragment.
Containers are matched against the decoded form as well, cut at the same place, so no way of
writing a location can lead out of the container it matches.
"""

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote

from icefloe.errors import ErrorKind, InvalidInputError

RELATIVE_SCHEME: Final = "vcc"
"""`vcc://name/path` lies below the container of that name, wherever that is."""

_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(//([^/?#]*))?([^?#]*)([?#].*)?", re.DOTALL)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_DOT: Final = re.compile(r"\.|%2e", re.IGNORECASE)
_KEPT_IN_PATHS: Final = "/%!$&'()*+,;=:@[]\\^|~"
_KEYS_OF_ANY_SHAPE: Final = frozenset({"s3"})
"""Schemes whose keys may be recorded with empty, `.` and `..` segments."""


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
    def decoded(self) -> str:
        """The form in which locations and prefixes are compared."""
        try:
            return f"{self.scheme}://{unquote(f'{self.host}{self.path}', errors='strict')}"
        except UnicodeDecodeError:
            raise invalid(str(self), "its percent-encoded bytes are not UTF-8") from None

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
    found = _URL.fullmatch(text)
    if found is None or _CONTROL.search(text):
        raise invalid(text, "it is not a URL: write it like s3://bucket/key or file:///path")
    scheme, authority, host, path, tail = found.groups(default="")
    scheme = scheme.lower()
    if scheme == "file":
        if host not in {"", "localhost"}:
            raise invalid(text, "a file URL has no host: write file:///path")
        return Location(scheme, "", _resolved(path), tail)
    if not authority or not host:
        raise invalid(text, "it names no bucket or host")
    return Location(scheme, host, path, tail)


def key_fault(scheme: str, key: str) -> str | None:
    """Say why a key cannot be recorded, if so; `scheme` is that of its location."""
    return None if scheme in _KEYS_OF_ANY_SHAPE else segment_fault(key)


def segment_fault(key: str) -> str | None:
    """Say why a key cannot be read, if so.

    >>> segment_fault("a//b")
    'it has an empty segment'
    """
    segments = key.split("/")
    if not all(segments):
        return "it has an empty segment"
    if "." in segments or ".." in segments:
        return "it has a segment '.' or '..'"
    return None


def shown(location: str) -> str:
    """Give a location for messages: without user, query and fragment, which may be secret."""
    bare = re.split(r"[?#]", location, maxsplit=1)[0]
    return re.sub(r"(://)[^/@]*@", r"\1", bare)


def invalid(location: str, reason: str) -> InvalidInputError:
    """Describe a location that cannot be used."""
    text = f"the location of a virtual chunk {shown(location)!r} cannot be used: {reason}"
    return InvalidInputError(text, ErrorKind.INVALID_VIRTUAL_REF, location=shown(location))


def _resolved(path: str) -> str:
    """Resolve `.` and `..`, also where percent-encoded, and encode what URLs cannot hold."""
    segments: list[str] = []
    parts = path.removeprefix("/").split("/")
    for position, part in enumerate(parts):
        plain = _DOT.sub(".", part)
        is_last = position == len(parts) - 1
        if plain == "..":
            del segments[-1:]
        if plain not in {".", ".."}:
            segments.append(part)
        elif is_last:
            segments.append("")
    return quote("/" + "/".join(segments), safe=_KEPT_IN_PATHS)
