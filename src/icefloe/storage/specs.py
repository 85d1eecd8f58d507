"""The description of a storage as a value: enough to open it in any process.

These values compare and pickle by content (credentials travel with them: pickling a storage asks
for that) and print without secrets. Functions for the platforms that speak the protocol of S3
know what is special about each of them.
"""

import ipaddress
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, cast
from urllib.parse import SplitResult, urlsplit, urlunsplit

from icefloe.config import ChecksumAlgorithm, S3Options
from icefloe.config.containers import ENDPOINT_OPTIONS
from icefloe.credentials import (
    AnyAzureCredential,
    AnyGcsCredential,
    AnyS3Credential,
    AzureCredentials,
    GcsCredentials,
    S3Credentials,
)
from icefloe.errors import ErrorKind, InvalidInputError, StorageError
from icefloe.values.urls import has_user

_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE: Final = re.compile(r"[\t\x20-\x7e]*")
_CHECKSUMS: Final = frozenset({ChecksumAlgorithm.Sha256, ChecksumAlgorithm.Crc64Nvme})
_WEB_SCHEMES: Final = frozenset({"http", "https"})


@dataclass(frozen=True, slots=True)
class Headers:
    """Extra headers, by the kind of request they go with."""

    reads: Mapping[str, str] = field(default_factory=dict, repr=False)
    writes: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls,
        every: Mapping[str, str] | None,
        reads: Mapping[str, str] | None,
        writes: Mapping[str, str] | None,
    ) -> "Headers":
        """Combine headers for all requests with those for one kind, which win."""
        shared = checked_headers(every)
        return cls(shared | checked_headers(reads), shared | checked_headers(writes))


@dataclass(frozen=True, slots=True)
class MemorySpec:
    """The memory of this process."""


@dataclass(frozen=True, slots=True)
class LocalSpec:
    """A directory."""

    path: str
    durable: bool = False
    encodes_keys: bool = True
    """Whether unusual characters of keys are percent-encoded; of foreign files they are not."""
    confined_to: tuple[str, ...] | None = None
    """Absolute paths of the directories and files that may be read, and nothing be written; no
    symbolic link leads out of them. An empty tuple allows nothing; None is no confinement."""

    @classmethod
    def of(cls, path: str | os.PathLike[str], *, durable: bool) -> "LocalSpec":
        """Fix the path now: the working directory may change, or differ in a worker."""
        text = os.fspath(path)
        if not text or "\0" in text:
            raise _unfit("the path of a storage may not be empty or hold a NUL")
        return cls(os.path.abspath(os.path.expanduser(text)), durable)  # noqa: PTH100, PTH111


@dataclass(frozen=True, slots=True)
class S3Spec:
    """A bucket that speaks the protocol of S3."""

    bucket: str
    prefix: str
    options: S3Options
    credentials: AnyS3Credential
    headers: Headers = field(default_factory=Headers)
    can_write: bool = True
    encodes_keys: bool = False

    @property
    def place(self) -> str:
        """Name it in messages."""
        return f"s3://{self.bucket}/{self.prefix}"

    @property
    def uses_path_style(self) -> bool:
        """Return whether the bucket goes into the path of a URL, not into its host name.

        Besides where it is asked for: where a host name could not hold it.
        """
        if self.options.force_path_style or "." in self.bucket:
            return True
        if self.options.endpoint_url is None:
            return False
        host = urlsplit(self.options.endpoint_url).hostname or ""
        return host == "localhost" or _is_address(host)

    @property
    def endpoint(self) -> str | None:
        """Where requests go, with the bucket in the host name unless it goes in the path."""
        url = self.options.endpoint_url
        if url is None or self.uses_path_style:
            return url
        parts = urlsplit(url)
        return urlunsplit(parts._replace(netloc=f"{self.bucket}.{parts.netloc}"))


@dataclass(frozen=True, slots=True)
class GcsSpec:
    """A bucket of Google Cloud Storage."""

    bucket: str
    prefix: str
    credentials: AnyGcsCredential
    config: Mapping[str, str] = field(default_factory=dict, repr=False)
    headers: Headers = field(default_factory=Headers)
    encodes_keys: bool = True

    @property
    def place(self) -> str:
        """Name it in messages."""
        return f"gs://{self.bucket}/{self.prefix}"


@dataclass(frozen=True, slots=True)
class AzureSpec:
    """A container of Azure Blob Storage."""

    account: str
    container: str
    prefix: str
    credentials: AnyAzureCredential
    config: Mapping[str, str] = field(default_factory=dict, repr=False)
    encodes_keys: bool = True

    @property
    def place(self) -> str:
        """Name it in messages."""
        return f"az://{self.account}/{self.container}/{self.prefix}"


@dataclass(frozen=True, slots=True)
class HttpSpec:
    """A directory on a web server, read-only."""

    url: str = field(repr=False)
    config: Mapping[str, str] = field(default_factory=dict, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    encodes_keys: bool = True

    @property
    def place(self) -> str:
        """Name it in messages."""
        return without_secrets(self.url)


@dataclass(frozen=True, slots=True)
class GuardedHttpSpec:
    """A web server that somebody not trusted named, read-only.

    Other than with `HttpSpec`, no redirection leads to another host, and an address that is not
    public is refused, unless the reader allowed it.
    """

    url: str = field(repr=False)
    private_hosts: frozenset[str] = frozenset()
    """Hosts whose addresses may be private; see `icefloe.storage.guarded_http`."""
    allow_private: bool = False
    """Whether the addresses of all hosts may be."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    connect_seconds: float | None = None
    """How long connecting may take at most, where settings allow longer."""
    whole_seconds: float | None = None
    """How long a request may take at most, where settings allow longer."""
    user_agent: str | None = None
    """What the client calls itself, instead of its name."""

    @property
    def place(self) -> str:
        """Name it in messages."""
        return without_secrets(self.url)


@dataclass(frozen=True, slots=True)
class RedirectSpec:
    """A web address that tells, by redirection, where the storage really is."""

    url: str = field(repr=False)
    from_env: bool = False
    """Whether credentials of the environment may be sent to the place it names."""
    trusted_endpoints: tuple[str, ...] = ()
    """Addresses of servers, other than the platforms' own, that may get those credentials."""

    @property
    def place(self) -> str:
        """Name it in messages."""
        return without_secrets(self.url)


type Spec = (
    MemorySpec
    | LocalSpec
    | S3Spec
    | GcsSpec
    | AzureSpec
    | HttpSpec
    | GuardedHttpSpec
    | RedirectSpec
)


def s3_spec(
    options: S3Options,
    bucket: str,
    prefix: str | None,
    credentials: AnyS3Credential | None,
    *,
    headers: Headers | None = None,
    legacy_rooted_keys: bool | None = None,
    can_write: bool = True,
    encodes_keys: bool = False,
) -> S3Spec:
    """Check a description of a bucket of S3 or the like."""
    trimmed = check_prefix(prefix)
    _check_bucket(bucket)
    if legacy_rooted_keys:
        if trimmed:
            raise StorageError("legacy_rooted_keys is only valid with an empty prefix")
        raise _unfit(
            "keys that begin with a slash (legacy_rooted_keys=True) cannot be reached: copy the"
            " objects to a prefix first"
        )
    if options.checksum_algorithm not in {None, *_CHECKSUMS}:
        names = " and ".join(sorted(checksum.name for checksum in _CHECKSUMS))
        raise _unfit(f"of the checksum algorithms only {names} can be sent; choose one or none")
    check_web_url(options.endpoint_url, allow_http=options.allow_http)
    anonymous = S3Credentials.Anonymous() if options.anonymous else None
    return S3Spec(
        bucket,
        trimmed,
        copy_of(options),
        credentials or anonymous or S3Credentials.FromEnv(),
        headers or Headers(),
        can_write,
        encodes_keys,
    )


def gcs_spec(
    bucket: str,
    prefix: str | None,
    credentials: AnyGcsCredential | None,
    config: Mapping[str, str] | None,
    headers: Headers | None = None,
) -> GcsSpec:
    """Check a description of a bucket of Google Cloud Storage."""
    _check_bucket(bucket)
    return GcsSpec(
        bucket,
        check_prefix(prefix),
        credentials or GcsCredentials.FromEnv(),
        _checked_options(config),
        headers or Headers(),
    )


def azure_spec(
    account: str,
    container: str,
    prefix: str | None,
    credentials: AnyAzureCredential | None,
    config: Mapping[str, str] | None,
) -> AzureSpec:
    """Check a description of a container of Azure Blob Storage."""
    if not account:
        raise _unfit("the account of an Azure storage may not be empty")
    _check_bucket(container)
    return AzureSpec(
        account,
        container,
        check_prefix(prefix),
        credentials or AzureCredentials.FromEnv(),
        _checked_options(config),
    )


def http_spec(
    url: str, config: Mapping[str, str] | None, headers: Mapping[str, str] | None
) -> HttpSpec:
    """Check a description of a directory on a web server."""
    check_web_url(url, allow_http=True)
    return HttpSpec(url.rstrip("/"), checked_texts(config), checked_headers(headers))


def redirect_spec(
    url: str, *, from_env: bool, trusted_endpoints: Sequence[str] = ()
) -> RedirectSpec:
    """Check an address that redirects to a storage."""
    check_web_url(url, allow_http=True)
    return RedirectSpec(url, from_env, tuple(trusted_endpoints))


def check_prefix(prefix: str | None) -> str:
    """Trim the prefix of a storage, and refuse what no key can begin with."""
    trimmed = (prefix or "").rstrip("/")
    if trimmed and not all(part not in {"", ".", ".."} for part in trimmed.split("/")):
        raise _unfit(
            f"the prefix {prefix!r} begins with a slash or has an empty, `.` or `..` segment:"
            " write it like `path/to/repository`"
        )
    return trimmed


def check_web_url(url: str | None, *, allow_http: bool) -> None:
    """Refuse addresses that are not of the web, or not encrypted where they should be."""
    if url is None:
        return
    parts = _split_url(url)
    if "@" in parts.netloc or has_user(url):
        raise _unfit(
            f"the address of {parts.netloc.rpartition('@')[2] or 'a server'!r} is written with a"
            " user or a password, which have no place there: leave them out, and pass"
            " credentials, or for web servers headers={'Authorization': ...}"
        )
    if parts.scheme not in _WEB_SCHEMES or not parts.hostname:
        raise StorageError(
            f"{without_secrets(url)!r} is not a web address: write it like https://host/path",
            ErrorKind.CANNOT_PARSE_URL,
        )
    if parts.scheme == "http" and not allow_http:
        raise _unfit(
            f"{without_secrets(url)!r} is not encrypted: use https, or say allow_http=True"
        )


def without_secrets(url: str) -> str:
    """Leave out what may be secret in a URL: user, password, query and fragment."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "(malformed)"
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=host, query="", fragment=""))


def copy_of(options: S3Options) -> S3Options:
    """Copy options, which callers may go on changing."""
    return S3Options(**{name: getattr(options, name) for name in options.__dataclass_fields__})


def _split_url(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises for ports out of range
    except ValueError:  # whose text may repeat a password
        raise StorageError(
            "a URL is malformed: write it like https://host/path", ErrorKind.CANNOT_PARSE_URL
        ) from None
    return parts


def _check_bucket(bucket: str) -> None:
    if not bucket or "/" in bucket:
        raise _unfit(f"{bucket!r} cannot be the name of a bucket or container")


def checked_headers(mapping: Mapping[str, str] | None) -> dict[str, str]:
    """Copy headers, and refuse what HTTP could not carry."""
    headers = checked_texts(mapping)
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            raise _unfit(f"{name!r} cannot be the name of an HTTP header")
        if not _HEADER_VALUE.fullmatch(value):
            raise _unfit(f"the value of the HTTP header {name!r} holds characters it cannot hold")
    return headers


def checked_texts(texts: Mapping[str, str] | None) -> dict[str, str]:
    """Copy names and values, and refuse what is no text; values may be secret."""
    pairs = cast("Mapping[object, object]", texts or {})
    for name, value in pairs.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise _unfit(f"options and headers are texts; {name!r} is a {type(value).__name__}")
    return {str(name): str(value) for name, value in pairs.items()}


def _checked_options(mapping: Mapping[str, str] | None) -> dict[str, str]:
    """Copy the options of a client, and refuse addresses with a user or a password."""
    options = checked_texts(mapping)
    for name in options.keys() & ENDPOINT_OPTIONS:
        if has_user(options[name]):
            raise _unfit(
                f"the option {name} must not hold a user or a password: leave them out, and pass"
                " credentials"
            )
    return options


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _unfit(message: str) -> InvalidInputError:
    return InvalidInputError(message, ErrorKind.STORAGE_CONFIG)


_TIGRIS_URL = "https://t3.storage.dev"
_HUGGING_FACE_URL = "https://s3.hf.co"


def tigris_spec(
    options: S3Options,
    bucket: str,
    prefix: str | None,
    credentials: AnyS3Credential | None,
    *,
    use_weak_consistency: bool,
    headers: Headers | None = None,
    legacy_rooted_keys: bool | None = None,
) -> S3Spec:
    """Describe a bucket of Tigris.

    Its replicas may lag behind; all requests of one region see the same. So either the region
    is known and every request is bound to it, or the storage is read-only.
    """
    chosen = copy_of(options)
    chosen.endpoint_url = chosen.endpoint_url or _TIGRIS_URL
    own_headers = headers or Headers()
    if not use_weak_consistency:
        if chosen.region is None:
            raise StorageError(
                "Tigris is consistent only within one region: give the region of the bucket, or"
                " read only, with use_weak_consistency=True"
            )
        bound = {"X-Tigris-Regions": chosen.region, "X-Tigris-Consistent": "true"}
        own_headers = Headers(
            {**bound, "Cache-Control": "no-cache", **own_headers.reads},
            {**bound, **own_headers.writes},
        )
    return s3_spec(
        chosen,
        bucket,
        prefix,
        credentials,
        headers=own_headers,
        legacy_rooted_keys=legacy_rooted_keys,
        can_write=not use_weak_consistency,
    )


def r2_spec(
    options: S3Options,
    bucket: str | None,
    prefix: str | None,
    account_id: str | None,
    credentials: AnyS3Credential | None,
    *,
    headers: Headers | None = None,
    legacy_rooted_keys: bool | None = None,
) -> S3Spec:
    """Describe a bucket of Cloudflare R2; without a bucket the prefix begins with it."""
    if bucket is None:
        if not prefix:
            raise StorageError("give a bucket or a prefix", ErrorKind.STORAGE_CONFIG)
        bucket, _, prefix = prefix.strip("/").partition("/")
    chosen = copy_of(options)
    if chosen.endpoint_url is None:
        if account_id is None:
            raise StorageError("give an endpoint_url or an account_id", ErrorKind.STORAGE_CONFIG)
        chosen.endpoint_url = f"https://{account_id}.r2.cloudflarestorage.com"
    chosen.region = chosen.region or "auto"
    chosen.force_path_style = True
    return s3_spec(
        chosen,
        bucket,
        prefix,
        credentials,
        headers=headers,
        legacy_rooted_keys=legacy_rooted_keys,
    )


def hugging_face_spec(
    options: S3Options,
    bucket: str,
    prefix: str | None,
    namespace: str,
    credentials: AnyS3Credential | None,
    *,
    headers: Headers | None = None,
    legacy_rooted_keys: bool | None = None,
) -> S3Spec:
    """Describe a bucket of a namespace at Hugging Face."""
    chosen = copy_of(options)
    chosen.endpoint_url = f"{chosen.endpoint_url or _HUGGING_FACE_URL}/{namespace}"
    chosen.region = chosen.region or "us-east-1"
    chosen.force_path_style = True
    return s3_spec(
        chosen,
        bucket,
        prefix,
        credentials,
        headers=headers,
        legacy_rooted_keys=legacy_rooted_keys,
    )
