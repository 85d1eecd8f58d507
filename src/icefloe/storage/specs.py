"""The description of a storage as a value: enough to open it in any process.

These values compare and pickle by content (credentials travel with them: pickling a storage asks
for that) and print without secrets. For each platform there is a function that checks a description
and knows what is special about the platform; `Storage.new_s3` and so on have the same parameters.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast
from urllib.parse import SplitResult, urlsplit, urlunsplit

from icefloe.config import ChecksumAlgorithm, S3Options
from icefloe.config.stores import ENDPOINT_OPTIONS
from icefloe.errors import ErrorKind, InvalidInputError, StorageError
from icefloe.records import Record, field, replace
from icefloe.values.urls import has_user

if TYPE_CHECKING:
    from icefloe.credentials import AnyAzureCredential, AnyGcsCredential, AnyS3Credential

_HEADER_NAME: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_HEADER_VALUE: Final = r"[\t\x20-\x7e]*"
_CHECKSUMS: Final = frozenset({ChecksumAlgorithm.Sha256, ChecksumAlgorithm.Crc64Nvme})
_WEB_SCHEMES: Final = frozenset({"http", "https"})
_TIGRIS_URL: Final = "https://t3.storage.dev"
_HUGGING_FACE_URL: Final = "https://s3.hf.co"
_WAYS_IN: Final = {
    "FromEnv": "from the environment",
    "Anonymous": "none: unsigned requests",
    "Static": "given",
    "Refreshable": "from a function",
}


class Headers(Record):
    """Extra headers, by the kind of request they go with."""

    reads: Mapping[str, str] = field(default_factory=dict)
    writes: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        every: Mapping[str, str] | None,
        reads: Mapping[str, str] | None,
        writes: Mapping[str, str] | None,
    ) -> Headers:
        """Combine headers for all requests with those for one kind, which win."""
        shared = checked_headers(every)
        return cls(shared | checked_headers(reads), shared | checked_headers(writes))

    def __repr__(self) -> str:
        return f"Headers(reads={list(self.reads)}, writes={list(self.writes)})"


TUNING_OPTIONS: Final = frozenset(
    {
        "default_content_type",
        "http1_only",
        "http2_keep_alive_interval",
        "http2_keep_alive_timeout",
        "http2_keep_alive_while_idle",
        "http2_only",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
    }
)
"""Options of web clients that say how to fetch, not what."""


class _Shown(Record):
    """The printed description of a storage."""

    kind: ClassVar[str]
    function: ClassVar[str]
    """The function of `icefloe.storage` that makes such a storage."""
    required: ClassVar[Mapping[str, object]] = {}
    """Arguments that the function must have, with the values that stand for not set."""

    def arguments(self) -> dict[str, object]:
        """Return the arguments of the function that may be shown; None is what is not set."""
        return {}

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.arguments().items())
        return f"{type(self).__name__}({shown})"


class MemorySpec(_Shown):
    """The memory of this process."""

    kind = "in-memory"
    function = "in_memory_storage"


class LocalSpec(_Shown):
    """A directory."""

    kind = "local filesystem"
    function = "local_filesystem_storage"

    path: str
    durable: bool = False
    encodes_keys: bool = True
    """Whether unusual characters of keys are percent-encoded; of foreign files they are not."""
    confined_to: tuple[str, ...] | None = None
    """Absolute paths of the directories and files that may be read, and nothing be written; no
    symbolic link leads out of them. An empty tuple allows nothing; None is no confinement."""

    def arguments(self) -> dict[str, object]:
        """Return the arguments that may be shown."""
        return {"path": self.path, "durable": self.durable or None}

    @classmethod
    def of(cls, path: str | os.PathLike[str], *, durable: bool = False) -> LocalSpec:
        """Describe a directory.

        The path becomes absolute: the working directory may change, or differ in a worker.
        """
        text = os.fspath(path)
        if not text or "\0" in text:
            raise _unfit("the path of a storage may not be empty or hold a NUL")
        return cls(os.path.abspath(os.path.expanduser(text)), durable)  # noqa: PTH100, PTH111


class S3Spec(_Shown):
    """A bucket that speaks the protocol of S3."""

    kind = "S3"
    function = "s3_storage"
    required: ClassVar[Mapping[str, object]] = {"bucket": None, "prefix": None}

    bucket: str
    prefix: str
    options: S3Options
    credentials: AnyS3Credential
    headers: Headers = field(default_factory=Headers)
    can_write: bool = True
    encodes_keys: bool = False

    def arguments(self) -> dict[str, object]:
        """Return the arguments that may be shown."""
        options = {
            option.name: getattr(self.options, option.name) or None
            for option in fields(self.options)
            if option.name != "anonymous"
        }
        return {"bucket": self.bucket, "prefix": self.prefix or None, **options}

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
        """The address of requests, with the bucket in the host name or in the path."""
        url = self.options.endpoint_url
        if url is None or self.uses_path_style:
            return url
        parts = urlsplit(url)
        return urlunsplit(parts._replace(netloc=f"{self.bucket}.{parts.netloc}"))


class GcsSpec(_Shown):
    """A bucket of Google Cloud Storage."""

    kind = "GCS"
    function = "gcs_storage"
    required: ClassVar[Mapping[str, object]] = {"bucket": None, "prefix": None}

    bucket: str
    prefix: str
    credentials: AnyGcsCredential
    config: Mapping[str, str] = field(default_factory=dict)
    headers: Headers = field(default_factory=Headers)
    encodes_keys: bool = True

    def arguments(self) -> dict[str, object]:
        """Return the arguments that may be shown."""
        return {"bucket": self.bucket, "prefix": self.prefix or None}

    @property
    def place(self) -> str:
        """Name it in messages."""
        return f"gs://{self.bucket}/{self.prefix}"


class AzureSpec(_Shown):
    """A container of Azure Blob Storage."""

    kind = "Azure"
    function = "azure_storage"
    required: ClassVar[Mapping[str, object]] = {"account": None, "container": None, "prefix": ""}

    account: str
    container: str
    prefix: str
    credentials: AnyAzureCredential
    config: Mapping[str, str] = field(default_factory=dict)
    encodes_keys: bool = True

    def arguments(self) -> dict[str, object]:
        """Return the arguments that may be shown."""
        names = {"account": self.account, "container": self.container}
        return {**names, "prefix": self.prefix or None}

    @property
    def place(self) -> str:
        """Name it in messages."""
        return f"az://{self.account}/{self.container}/{self.prefix}"


class _WebSpec(_Shown):
    kind = "HTTP"
    function = "http_storage"

    url: str

    def arguments(self) -> dict[str, object]:
        """Return the arguments that may be shown."""
        return {"base_url": self.place}

    @property
    def place(self) -> str:
        """Name it in messages."""
        return without_secrets(self.url)


class HttpSpec(_WebSpec):
    """A directory on a web server, read-only."""

    config: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    encodes_keys: bool = True


class GuardedHttpSpec(_WebSpec):
    """A web server that somebody not trusted named, read-only.

    Other than with `HttpSpec`, no redirection leads to another host, and an address that is not
    public is refused, unless the reader allowed it.
    """

    private_hosts: frozenset[str] = frozenset()
    """Hosts whose addresses may be private; see `icefloe.storage.guarded_http`."""
    allow_private: bool = False
    """Whether the addresses of all hosts may be."""
    headers: Mapping[str, str] = field(default_factory=dict)
    connect_seconds: float | None = None
    """How long connecting may take at most, where settings allow longer."""
    whole_seconds: float | None = None
    """How long a request may take at most, where settings allow longer."""
    user_agent: str | None = None
    """What the client calls itself, instead of its name."""


class RedirectSpec(_WebSpec):
    """A web address that tells, by redirection, where the storage really is."""

    kind = "redirect"
    function = "redirect_storage"

    from_env: bool = False
    """Whether credentials of the environment may be sent to the place it names."""
    trusted_endpoints: tuple[str, ...] = ()
    """Addresses of servers, other than the platforms' own, that may get those credentials."""

    def arguments(self) -> dict[str, object]:
        """Return the arguments that may be shown."""
        return {
            "base_url": self.place,
            "from_env": self.from_env or None,
            "trusted_endpoints": list(self.trusted_endpoints) or None,
        }


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


def source_code(spec: Spec) -> str:
    """Write the call that makes such a storage; given credentials and headers are left out.

    >>> source_code(LocalSpec("/data/repo"))
    "icefloe.storage.local_filesystem_storage(path='/data/repo')"
    """
    encodes_s3_keys = isinstance(spec, S3Spec) and spec.encodes_keys
    function = "s3_object_store_storage" if encodes_s3_keys else spec.function
    arguments = {name: value for name, value in spec.arguments().items() if value is not None}
    shown = {**spec.required, **arguments}
    if _way_in(spec) == "Anonymous":
        shown["anonymous"] = True
    text = ", ".join(f"{name}={argument!r}" for name, argument in shown.items())
    return f"icefloe.storage.{function}({text})"


def describe(spec: Spec) -> dict[str, str]:
    """Describe a storage, line by line.

    >>> describe(LocalSpec("/data/repo"))
    {'type': 'local filesystem', 'path': '/data/repo'}
    """
    lines = {"type": spec.kind}
    for name, value in spec.arguments().items():
        if value is not None:
            lines[name] = getattr(value, "name", None) or str(value)
    if (way_in := _way_in(spec)) is not None:
        lines["credentials"] = _WAYS_IN[way_in]
    if isinstance(spec, S3Spec) and not spec.can_write:
        lines["access"] = "read-only"
    return lines


def _way_in(spec: Spec) -> str | None:
    match spec:
        case S3Spec() | GcsSpec() | AzureSpec():
            return type(spec.credentials).__name__
        case _:
            return None


def s3_spec(
    config: S3Options,
    bucket: str,
    prefix: str | None,
    credentials: AnyS3Credential | None = None,
    legacy_rooted_keys: bool | None = None,  # noqa: FBT001 - the drop-in signature
    *,
    read_headers: Mapping[str, str] | None = None,
    write_headers: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> S3Spec:
    """Describe a bucket of S3, or of a storage that speaks its protocol."""
    from icefloe.credentials import S3Credentials

    trimmed = check_prefix(prefix)
    _check_bucket(bucket)
    if legacy_rooted_keys:
        if trimmed:
            raise StorageError("legacy_rooted_keys is only valid with an empty prefix")
        raise _unfit(
            "keys that begin with a slash (legacy_rooted_keys=True) cannot be reached: copy the"
            " objects to a prefix first"
        )
    if config.checksum_algorithm not in {None, *_CHECKSUMS}:
        names = " and ".join(sorted(checksum.name for checksum in _CHECKSUMS))
        raise _unfit(f"of the checksum algorithms only {names} can be sent; choose one or none")
    check_web_url(config.endpoint_url, allow_http=config.allow_http)
    anonymous = S3Credentials.Anonymous() if config.anonymous else None
    return S3Spec(
        bucket,
        trimmed,
        copy_of(config),
        credentials or anonymous or S3Credentials.FromEnv(),
        Headers.of(headers, read_headers, write_headers),
    )


def s3_object_store_spec(
    config: S3Options,
    bucket: str,
    prefix: str | None,
    credentials: AnyS3Credential | None = None,
    *,
    read_headers: Mapping[str, str] | None = None,
    write_headers: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> S3Spec:
    """Describe a bucket of S3 in which unusual characters of keys are percent-encoded."""
    sent = Headers.of(headers, read_headers, write_headers)
    spec = s3_spec(config, bucket, prefix, credentials)
    return replace(spec, headers=sent, encodes_keys=True)


def tigris_spec(
    config: S3Options,
    bucket: str,
    prefix: str | None,
    use_weak_consistency: bool,  # noqa: FBT001 - the drop-in signature
    credentials: AnyS3Credential | None = None,
    legacy_rooted_keys: bool | None = None,  # noqa: FBT001
    *,
    read_headers: Mapping[str, str] | None = None,
    write_headers: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> S3Spec:
    """Describe a bucket of Tigris.

    Its replicas may lag behind; all requests of one region see the same. So either the region
    is known and every request is bound to it, or the storage is read-only.
    """
    sent = Headers.of(headers, read_headers, write_headers)
    if not use_weak_consistency:
        if config.region is None:
            raise StorageError(
                "Tigris is consistent only within one region: give the region of the bucket, or"
                " read only, with use_weak_consistency=True"
            )
        bound = {"X-Tigris-Regions": config.region, "X-Tigris-Consistent": "true"}
        sent = Headers(
            {**bound, "Cache-Control": "no-cache", **sent.reads}, {**bound, **sent.writes}
        )
    chosen = copy_of(config, endpoint_url=config.endpoint_url or _TIGRIS_URL)
    spec = s3_spec(chosen, bucket, prefix, credentials, legacy_rooted_keys)
    return replace(spec, headers=sent, can_write=not use_weak_consistency)


def r2_spec(
    config: S3Options,
    bucket: str | None = None,
    prefix: str | None = None,
    account_id: str | None = None,
    credentials: AnyS3Credential | None = None,
    legacy_rooted_keys: bool | None = None,  # noqa: FBT001 - the drop-in signature
    *,
    read_headers: Mapping[str, str] | None = None,
    write_headers: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> S3Spec:
    """Describe a bucket of Cloudflare R2; without a bucket the prefix begins with it."""
    sent = Headers.of(headers, read_headers, write_headers)
    if bucket is None:
        if not prefix:
            raise StorageError("give a bucket or a prefix", ErrorKind.STORAGE_CONFIG)
        bucket, _, prefix = prefix.strip("/").partition("/")
    if config.endpoint_url is None and account_id is None:
        raise StorageError("give an endpoint_url or an account_id", ErrorKind.STORAGE_CONFIG)
    chosen = copy_of(
        config,
        endpoint_url=config.endpoint_url or f"https://{account_id}.r2.cloudflarestorage.com",
        region=config.region or "auto",
        force_path_style=True,
    )
    return replace(s3_spec(chosen, bucket, prefix, credentials, legacy_rooted_keys), headers=sent)


def hugging_face_spec(
    config: S3Options,
    bucket: str,
    prefix: str | None,
    namespace: str,
    credentials: AnyS3Credential | None = None,
    legacy_rooted_keys: bool | None = None,  # noqa: FBT001 - the drop-in signature
    *,
    read_headers: Mapping[str, str] | None = None,
    write_headers: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> S3Spec:
    """Describe a bucket of a namespace at Hugging Face."""
    sent = Headers.of(headers, read_headers, write_headers)
    chosen = copy_of(
        config,
        endpoint_url=f"{config.endpoint_url or _HUGGING_FACE_URL}/{namespace}",
        region=config.region or "us-east-1",
        force_path_style=True,
    )
    return replace(s3_spec(chosen, bucket, prefix, credentials, legacy_rooted_keys), headers=sent)


def gcs_spec(
    bucket: str,
    prefix: str | None,
    credentials: AnyGcsCredential | None = None,
    *,
    config: Mapping[str, str] | None = None,
    read_headers: Mapping[str, str] | None = None,
    write_headers: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> GcsSpec:
    """Describe a bucket of Google Cloud Storage."""
    from icefloe.credentials import GcsCredentials

    sent = Headers.of(headers, read_headers, write_headers)
    _check_bucket(bucket)
    chosen = credentials or GcsCredentials.FromEnv()
    return GcsSpec(bucket, check_prefix(prefix), chosen, _checked_options(config), sent)


def azure_spec(
    account: str,
    container: str,
    prefix: str | None,
    credentials: AnyAzureCredential | None = None,
    *,
    config: Mapping[str, str] | None = None,
) -> AzureSpec:
    """Describe a container of Azure Blob Storage."""
    from icefloe.credentials import AzureCredentials

    if not account:
        raise _unfit("the account of an Azure storage may not be empty")
    _check_bucket(container)
    chosen = credentials or AzureCredentials.FromEnv()
    return AzureSpec(account, container, check_prefix(prefix), chosen, _checked_options(config))


def http_spec(
    base_url: str,
    config: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> HttpSpec:
    """Describe a directory on a web server, which can only be read."""
    check_web_url(base_url, allow_http=True)
    return HttpSpec(base_url.rstrip("/"), checked_texts(config), checked_headers(headers))


def redirect_spec(
    base_url: str, *, from_env: bool = False, trusted_endpoints: Sequence[str] = ()
) -> RedirectSpec:
    """Describe the storage that a web address redirects to; see `redirect_storage`."""
    check_web_url(base_url, allow_http=True)
    return RedirectSpec(base_url, from_env, tuple(trusted_endpoints))


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


def copy_of(options: S3Options, **changes: Any) -> S3Options:
    """Copy options, which callers may go on changing; `changes` replace some."""
    values = {option.name: getattr(options, option.name) for option in fields(options)}
    return S3Options(**values | changes)


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
        if not re.fullmatch(_HEADER_NAME, name):
            raise _unfit(f"{name!r} cannot be the name of an HTTP header")
        if not re.fullmatch(_HEADER_VALUE, value):
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
