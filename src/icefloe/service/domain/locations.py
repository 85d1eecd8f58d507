r"""Locations of containers and buckets: parsed into plain pieces, compared piece by piece.

A container comes out of a repository's configuration, which any writer of the repository can
edit. Its prefix is screened before anything else happens: text that has more than one possible
reading is refused, never repaired. Text that passes consists of a scheme, a bucket and segments
of a few ASCII characters, so two prefixes are equal exactly if their pieces are.

>>> screen(DeclaredContainer("s3://data/era5/", "s3://data/era5/"))
Location(platform=<Platform.S3: 's3'>, store='amazonaws.com', bucket='data', segments=('era5',))
>>> screen(DeclaredContainer("s3://data/%2e%2e/", "s3://data/%2e%2e/"))
Refusal(reason=<Reason.INVALID: 'invalid'>, detail="the prefix contains the character '%'")
"""

import re
from collections.abc import Iterable
from enum import StrEnum
from functools import lru_cache
from typing import Final

from icefloe.catalog.model import BUCKET_NAME, Bucket, DeclaredContainer, Platform
from icefloe.records import Record

_SCHEMES: Final = {
    "s3": Platform.S3,
    "gs": Platform.GCS,
    "gcs": Platform.GCS,
    "az": Platform.AZURE,
    "azure": Platform.AZURE,
    "abfs": Platform.AZURE,
}
_FORBIDDEN_SCHEMES: Final = frozenset({"file", "memory", "http", "https", "vcc"})
_PREFIX_CHARACTERS: Final = re.compile(r"[A-Za-z0-9._=,:@+~/-]*")
_SEGMENT: Final = re.compile(r"[A-Za-z0-9._=,:@+~-]{1,255}")
_BUCKET: Final = re.compile(BUCKET_NAME)
_AMAZON: Final = re.compile(r"s3([.-][a-z0-9-]+)*\.amazonaws\.com(\.cn)?")
_ENDPOINT: Final = re.compile(r"(https?)://([A-Za-z0-9.-]+|\[[0-9a-fA-F:.]+\])(:[0-9]{1,5})?/?")
_AZURE_ACCOUNT: Final = re.compile(r"[a-z0-9]{3,24}")
_WELL_KNOWN: Final = {
    Platform.S3: "amazonaws.com",
    Platform.GCS: "storage.googleapis.com",
    Platform.AZURE: "blob.core.windows.net",
}
_CONTAINER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
RESERVED_NAMES: Final = "icefloe-"
"""Names of containers that begin with this are bound by the service, never by a repository."""


class Reason(StrEnum):
    """Why a container of a repository cannot be read."""

    NO_POLICY = "no_policy"
    WRONG_SCOPE = "wrong_scope"
    BUCKET_UNKNOWN = "bucket_unknown"
    BUCKET_UNPROVEN = "bucket_unproven"
    NOT_SCOPED = "not_scoped"
    """Credentials of the bucket reach more than what may be read."""
    EMBARGOED = "embargoed"
    FORBIDDEN_SCHEME = "forbidden_scheme"
    INVALID = "invalid"


class Location(Record):
    """A prefix of an object store in plain pieces."""

    platform: Platform
    store: str
    """The host of the endpoint, with the port if it has any; one name for all of AWS."""
    bucket: str
    segments: tuple[str, ...] = ()

    @property
    def is_well_known(self) -> bool:
        """Return whether it is on the platform's own endpoint."""
        well_known = _WELL_KNOWN[self.platform]
        if self.platform is not Platform.AZURE:
            return self.store == well_known  # others may have names below these
        account, _, domain = self.store.partition(".")
        return domain == well_known and _AZURE_ACCOUNT.fullmatch(account) is not None

    @property
    def prefix(self) -> str:
        """The segments as a prefix of keys."""
        return "".join(f"{segment}/" for segment in self.segments)

    def covers(self, other: "Location") -> bool:
        """Return whether everything below another location is below this one."""
        return (
            self.platform == other.platform
            and self.store == other.store
            and self.bucket == other.bucket
            and other.segments[: len(self.segments)] == self.segments
        )

    def below(self, prefix: str) -> "Location":
        """Return the location of a prefix below this one."""
        segments = self.segments + segments_of(prefix)
        return Location(self.platform, self.store, self.bucket, segments)


class Refusal(Record):
    """Why a container is refused before any policy is looked at."""

    reason: Reason
    detail: str


def segments_of(prefix: str) -> tuple[str, ...]:
    """Return the segments of a checked prefix, which is empty or ends with a slash."""
    return tuple(prefix.split("/")[:-1])


def bucket_location(bucket: Bucket) -> Location:
    """Return where a registered bucket is, with its prefix."""
    store = store_name(bucket.platform, bucket.endpoint, bucket.account)
    return Location(bucket.platform, store or "", bucket.bucket, segments_of(bucket.prefix))


def location_url(location: Location) -> str:
    """Return the prefix of a location as a URL."""
    scheme = {Platform.S3: "s3", Platform.GCS: "gs", Platform.AZURE: "az"}[location.platform]
    return f"{scheme}://{location.bucket}/{location.prefix}"


def store_name(platform: Platform, endpoint: str | None, account: str | None) -> str | None:
    """Return the name of a store: the host of its endpoint; None if the endpoint is no address."""
    domain = _WELL_KNOWN[platform]
    if endpoint is None:
        if platform is not Platform.AZURE:
            return domain
        return f"{account}.{domain}" if _AZURE_ACCOUNT.fullmatch(account or "") else None
    match = _ENDPOINT.fullmatch(endpoint)
    if match is None:
        return None
    scheme, host, port = match[1], match[2].lower().rstrip("."), match[3] or ""
    if _AMAZON.fullmatch(host):
        return domain
    is_usual_port = (scheme, port) in {("http", ":80"), ("https", ":443")}
    return host + ("" if is_usual_port else port)


def screen_all(containers: Iterable[DeclaredContainer]) -> list[Location | Refusal]:
    """Screen the containers of a repository; names that occur twice are refused, too."""
    containers = list(containers)
    names = [container.name for container in containers if container.name]
    twice = {name for name in names if names.count(name) > 1}
    return [
        Refusal(Reason.INVALID, f"two containers have the name {container.name!r}")
        if container.name in twice
        else screen(container)
        for container in containers
    ]


@lru_cache(maxsize=4096)
def screen(container: DeclaredContainer) -> Location | Refusal:
    """Return where a container is, or why it is refused."""
    text = container.url_prefix
    if container.listed_as != text:
        detail = f"the configuration lists it under {container.listed_as!r}"
        return Refusal(Reason.INVALID, f"{detail}, which is not its own prefix")
    if (fault := _name_fault(container.name)) is not None:
        return Refusal(Reason.INVALID, fault)
    scheme, separator, rest = text.partition("://")
    if scheme in _FORBIDDEN_SCHEMES or container.platform in _FORBIDDEN_SCHEMES:
        kind = scheme if scheme in _FORBIDDEN_SCHEMES else container.platform
        return Refusal(Reason.FORBIDDEN_SCHEME, f"a service opens no containers of kind {kind!r}")
    platform = _SCHEMES.get(scheme)
    if not separator or platform is None:
        return Refusal(Reason.INVALID, "the prefix does not begin with s3://, gs:// or az://")
    if platform != container.platform:
        return Refusal(Reason.INVALID, f"its store is of another kind: {container.platform!r}")
    bucket, slash, path = rest.partition("/")
    if (fault := _path_fault(bucket, slash, path)) is not None:
        return Refusal(Reason.INVALID, fault)
    store = store_name(platform, container.endpoint, container.account)
    if store is None:
        return Refusal(Reason.INVALID, "its endpoint or its account is not a plain address")
    return Location(platform, store, bucket, segments_of(path))


def _name_fault(name: str | None) -> str | None:
    if name is None:
        return None
    if name.startswith(RESERVED_NAMES):
        return f"names that begin with {RESERVED_NAMES!r} are reserved for the service"
    return None if _CONTAINER_NAME.fullmatch(name) else f"{name!r} is not a name of a container"


def _path_fault(bucket: str, slash: str, path: str) -> str | None:
    """Return why a bucket and a path are not in plain pieces, if so."""
    if rest := _PREFIX_CHARACTERS.sub("", bucket + path, count=1):
        return f"the prefix contains the character {rest[0]!r}"
    if not bucket:
        return "the prefix names no bucket"
    if not _BUCKET.fullmatch(bucket):
        return f"{bucket!r} is not a name of a bucket"
    if not slash or (path and not path.endswith("/")):
        return "the prefix does not end with a slash"
    for segment in segments_of(path):
        if segment in {".", ".."} or not _SEGMENT.fullmatch(segment):
            return f"the prefix contains the segment {segment!r}"
    return None
