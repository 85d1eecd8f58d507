"""URLs of foreign objects: taken apart, decoded and compared piece by piece, never as text.

A prefix of URLs is a scheme, perhaps a host or bucket, perhaps segments of a path. Whatever is
written percent-encoded is compared in its decoded form, and a decoded slash separates segments
like any other, so that there is one way to read a URL. Hosts are plain ASCII: what only looks
like a known host is none.
"""

import re
from functools import lru_cache
from typing import Final
from urllib.parse import quote, unquote

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.records import Record

_SCHEME: Final = r"[A-Za-z][A-Za-z0-9+.-]*"
_URL: Final = rf"(?s)({_SCHEME}):(//([^/?#]*))?([^?#]*)([?#].*)?"
_CONTROL: Final = r"[\x00-\x1f\x7f\ud800-\udfff]"
_BUCKET: Final = r"[A-Za-z0-9._-]+"
_WEB_HOST: Final = r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?"
_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}
_DOT: Final = r"(?i)\.|%2e"
_KEPT_IN_PATHS: Final = "/%!$&'()*+,;=:@[]\\^|~"

ALIASES: Final[dict[str, tuple[str, ...]]] = {
    "gs": ("gs", "gcs"),
    "az": ("az", "azure", "abfs"),
}
"""Schemes that mean the same, by the one that stands for all of them."""

_FAMILY: Final = {alias: first for first, aliases in ALIASES.items() for alias in aliases}


class UrlParts(Record):
    """A URL taken apart, the scheme in lower case, nothing else changed."""

    scheme: str
    host: str | None
    """None where there is no `//`."""
    path: str
    tail: str
    """Query and fragment."""


class Prefix(Record):
    """The beginning of URLs, in decoded pieces."""

    scheme: str
    host: str | None = None
    """None stands for any host or bucket."""
    segments: tuple[str, ...] = ()
    is_folder: bool = True
    """Whether only what is below it is meant, not an object of this very name."""

    @property
    def pieces(self) -> tuple[str, str | None, tuple[str, ...]]:
        """The compared parts of a URL; schemes with the same meaning count as equal."""
        return family_of(self.scheme), self.host, self.segments

    @property
    def depth(self) -> int:
        """The number of pieces after the scheme: of two prefixes the deeper one is longer."""
        return 0 if self.host is None else 1 + len(self.segments)

    def covers(self, other: "Prefix") -> bool:
        """Return whether everything below another prefix is below this one, too."""
        if family_of(self.scheme) != family_of(other.scheme):
            return False
        if self.host is None:
            return True
        return self.host == other.host and other.segments[: len(self.segments)] == self.segments

    def is_same(self, other: "Prefix") -> bool:
        """Return whether both are written for the same place, by the same scheme."""
        return (self.scheme, self.pieces) == (other.scheme, other.pieces)


def split_url(text: str) -> UrlParts | None:
    """Take a URL apart; None if it is none, or holds control characters.

    >>> split_url("S3://bucket/a%20b?x")
    UrlParts(scheme='s3', host='bucket', path='/a%20b', tail='?x')
    """
    match = re.fullmatch(_URL, text)
    if match is None or re.search(_CONTROL, text):
        return None
    scheme, authority, host, path, tail = match.groups()
    return UrlParts(scheme.lower(), host if authority else None, path, tail or "")


@lru_cache(maxsize=1024)
def parse_prefix(text: str) -> Prefix:
    """Read the prefix of URLs that a container or a reader names.

    A scheme alone, with or without `://`, means every bucket or host.

    >>> parse_prefix("s3") == parse_prefix("s3://")
    True
    >>> parse_prefix("s3://bucket/2020/era5.nc")
    Prefix(scheme='s3', host='bucket', segments=('2020', 'era5.nc'), is_folder=False)
    """
    if re.fullmatch(_SCHEME, text):
        text = f"{text}://"
    parts = split_url(text)
    if parts is None or parts.host is None:
        raise _unfit("is not a url, nor a scheme such as s3")
    if parts.tail:
        raise _unfit("must have no query and no fragment")
    if parts.scheme == "file":
        if not parts.host + parts.path:
            raise _unfit("must name a directory, such as file:///data/")
        return _below("file", parts.host.removeprefix("localhost"), resolved(parts.path))
    if not parts.host and not parts.path:
        return Prefix(parts.scheme)
    if not parts.host:
        raise _unfit("must name a bucket or host")
    if (fault := host_fault(parts.scheme, parts.host)) is not None:
        raise _unfit(f"cannot be used: {fault}")
    return _below(parts.scheme, compared_host(parts.scheme, parts.host), parts.path)


def _below(scheme: str, host: str, path: str) -> Prefix:
    try:
        segments = decoded_segments(path)
    except UnicodeDecodeError:
        raise _unfit("is not UTF-8 when percent-decoded") from None
    is_folder = not segments or not segments[-1]
    return Prefix(scheme, host, segments[:-1] if segments and is_folder else segments, is_folder)


def with_slash(text: str) -> str:
    """Write a prefix that names a whole bucket or host with a slash at its end.

    That means the same, and is how other programs want it. A path is left as it is: without a
    slash at its end it may also be the name of an object.

    >>> with_slash("s3://bucket"), with_slash("s3://"), with_slash("s3://bucket/a.nc")
    ('s3://bucket/', 's3://', 's3://bucket/a.nc')
    """
    parts = split_url(text)
    is_bare_host = parts is not None and bool(parts.host) and not parts.path and not parts.tail
    return f"{text}/" if is_bare_host else text


def without_user(text: str) -> str:
    """Leave out of a URL what may be secret: user, password, query and fragment.

    >>> without_user("https://me:word@host/a?key=x")
    'https://host/a'
    """
    bare = re.split(r"[?#]", text, maxsplit=1)[0]
    return re.sub(r"(://)[^/]*@", r"\1", bare)


def has_user(text: str) -> bool:
    """Return whether a URL, perhaps without its scheme, holds a user or a password.

    >>> has_user("https://me:word@host/a"), has_user("me:word@host"), has_user("https://host/a@b")
    (True, True, False)
    """
    return "@" in re.split(r"[/?#]", text.partition("://")[2] or text, maxsplit=1)[0]


def family_of(scheme: str) -> str:
    """Return the scheme that stands for all that mean the same.

    >>> family_of("gcs"), family_of("abfs"), family_of("s3")
    ('gs', 'az', 's3')
    """
    return _FAMILY.get(scheme, scheme)


def host_fault(scheme: str, host: str) -> str | None:
    """Return why a host or bucket cannot be used, if so.

    >>> host_fault("https", "user@example.org")
    'credentials have no place in a URL'
    """
    if "@" in host:
        return "credentials have no place in a URL"
    if scheme in _DEFAULT_PORTS:
        if not re.fullmatch(_WEB_HOST, host):
            return "its host may only be of ASCII letters, digits, '.', '-' and '_', with a port"
    elif not re.fullmatch(_BUCKET, host):
        return "its bucket may only be of ASCII letters, digits, '.', '-' and '_'"
    return None


def compared_host(scheme: str, host: str) -> str:
    """Return a host as it is compared: web hosts in lower case, without their usual port.

    >>> compared_host("https", "Example.org:443"), compared_host("s3", "Bucket")
    ('example.org', 'Bucket')
    """
    port = _DEFAULT_PORTS.get(scheme)
    return host if port is None else host.lower().removesuffix(port)


def decoded_segments(path: str) -> tuple[str, ...]:
    """Decode a path and cut it at its slashes; the one at the beginning cuts nothing.

    >>> decoded_segments("/a%20b/..%2Fc")
    ('a b', '..', 'c')
    """
    decoded = unquote(path, errors="strict").removeprefix("/")
    return tuple(decoded.split("/")) if decoded else ()


def resolved(path: str) -> str:
    """Resolve `.` and `..`, also where percent-encoded, and encode what URLs cannot hold."""
    segments: list[str] = []
    parts = path.removeprefix("/").split("/")
    for position, part in enumerate(parts):
        plain = re.sub(_DOT, ".", part)
        is_last = position == len(parts) - 1
        if plain == "..":
            del segments[-1:]
        if plain not in {".", ".."}:
            segments.append(part)
        elif is_last:
            segments.append("")
    return quote("/" + "/".join(segments), safe=_KEPT_IN_PATHS)


def _unfit(problem: str) -> InvalidInputError:
    return InvalidInputError(problem, ErrorKind.INVALID_CONFIG)
