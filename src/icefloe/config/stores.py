"""Descriptions of object stores, as virtual chunk containers name them."""

# Aliases inside a class must be `TypeAlias`: a `type` statement makes no callable class.
# ruff: noqa: UP040

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from icefloe.config.urls import has_user, split_url, without_user
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.values import U32, NamedNumber, Settings, TextMapping, Variant, variant_of

_WEB: Final = frozenset({"http", "https"})
_BARE_HOST: Final = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?/?")
_LOOPBACK: Final = re.compile(r"localhost|127(\.[0-9]{1,3}){3}|\[::1\]", re.IGNORECASE)
ENDPOINT_OPTIONS: Final = frozenset(
    {
        "azure_endpoint",
        "azure_storage_endpoint",
        "base_url",
        "endpoint",
        "google_base_url",
    }
)
"""Options of clients by name that say where a storage is."""


class ChecksumAlgorithm(NamedNumber):
    """Checksum that S3 is asked to verify on upload."""

    Crc32 = 0
    Crc32c = 1
    Crc64Nvme = 2
    Sha1 = 3
    Sha256 = 4


@dataclass(slots=True)
class S3Options(Settings):
    """How to reach S3 or a storage that speaks its protocol.

    >>> S3Options(region="eu-west-1").force_path_style
    False
    """

    region: str | None = None
    endpoint_url: str | None = None
    allow_http: bool = False
    anonymous: bool = False
    force_path_style: bool = False
    network_stream_timeout_seconds: U32 | None = None
    requester_pays: bool = False
    checksum_algorithm: ChecksumAlgorithm | None = None


class ObjectStoreConfig(Variant):
    """Kind and options of an object store: one of the variants below."""

    __slots__ = ()
    InMemory: TypeAlias = "InMemoryStore"
    LocalFileSystem: TypeAlias = "LocalFileSystemStore"
    S3Compatible: TypeAlias = "S3CompatibleStore"
    S3: TypeAlias = "S3Store"
    Gcs: TypeAlias = "GcsStore"
    Azure: TypeAlias = "AzureStore"
    Tigris: TypeAlias = "TigrisStore"
    Http: TypeAlias = "HttpStore"


@variant_of(ObjectStoreConfig, "InMemory")
@dataclass(frozen=True, slots=True)
class InMemoryStore(ObjectStoreConfig):
    """Objects in the memory of one process."""


@variant_of(ObjectStoreConfig, "LocalFileSystem")
@dataclass(frozen=True, slots=True)
class LocalFileSystemStore(ObjectStoreConfig):
    """Files below a directory."""

    path: str


@variant_of(ObjectStoreConfig, "S3Compatible")
@dataclass(frozen=True, slots=True)
class S3CompatibleStore(ObjectStoreConfig):
    """A storage that speaks the protocol of S3."""

    options: S3Options


@variant_of(ObjectStoreConfig, "S3")
@dataclass(frozen=True, slots=True)
class S3Store(ObjectStoreConfig):
    """Amazon S3."""

    options: S3Options


@variant_of(ObjectStoreConfig, "Gcs")
@dataclass(frozen=True, slots=True)
class GcsStore(ObjectStoreConfig):
    """Google Cloud Storage, with client options by name."""

    opts: TextMapping | None = None


@variant_of(ObjectStoreConfig, "Azure")
@dataclass(frozen=True, slots=True)
class AzureStore(ObjectStoreConfig):
    """Azure Blob Storage, with client options by name; `account` is one of them."""

    opts: TextMapping | None = None


@variant_of(ObjectStoreConfig, "Tigris")
@dataclass(frozen=True, slots=True)
class TigrisStore(ObjectStoreConfig):
    """Tigris."""

    opts: S3Options


@variant_of(ObjectStoreConfig, "Http")
@dataclass(frozen=True, slots=True)
class HttpStore(ObjectStoreConfig):
    """An HTTP(S) server, with client options by name and headers to send."""

    opts: TextMapping | None = None
    headers: TextMapping | None = None


AnyObjectStoreConfig: TypeAlias = (
    ObjectStoreConfig.InMemory
    | ObjectStoreConfig.LocalFileSystem
    | ObjectStoreConfig.S3
    | ObjectStoreConfig.S3Compatible
    | ObjectStoreConfig.Gcs
    | ObjectStoreConfig.Azure
    | ObjectStoreConfig.Tigris
    | ObjectStoreConfig.Http
)


def fit_store(store: AnyObjectStoreConfig) -> AnyObjectStoreConfig:
    """Complete what a user says about a store, or refuse it; nothing is left for the first read.

    An endpoint without a scheme is completed: `localhost:9000` is not encrypted, other hosts are
    unless `allow_http` is set. A region of Google Cloud Storage is left out: buckets there are
    found by their name, in every region. A user or a password in an address is refused.
    """
    match store:
        case ObjectStoreConfig.S3(options) | ObjectStoreConfig.S3Compatible(options):
            fit = _fit_options(options)
        case ObjectStoreConfig.Tigris(options):
            fit = _fit_options(options)
        case ObjectStoreConfig.Gcs(opts):
            kept = {name: value for name, value in (opts or {}).items() if name != "region"}
            _check_addresses(kept)
            return store if kept == (opts or {}) else ObjectStoreConfig.Gcs(kept)
        case ObjectStoreConfig.Azure(opts):
            _check_addresses(opts or {})
            return store
        case _:
            return store
    return store if fit is options else type(store)(fit)


def _fit_options(options: S3Options) -> S3Options:
    endpoint = options.endpoint_url
    if endpoint is None:
        return options
    _check_address("endpoint_url", endpoint)
    if "://" in endpoint:
        if (parts := split_url(endpoint)) is None or not parts.host or parts.scheme not in _WEB:
            raise _unfit(f"endpoint_url {without_user(endpoint)!r} is not a web address")
        return options
    if not (bare := _BARE_HOST.fullmatch(endpoint)):
        raise _unfit(f"endpoint_url {without_user(endpoint)!r} is not a web address")
    is_loopback = _LOOPBACK.fullmatch(bare[1]) is not None
    is_open = options.allow_http or is_loopback
    values = {name: getattr(options, name) for name in options.__dataclass_fields__}
    values |= {"endpoint_url": f"{'http' if is_open else 'https'}://{endpoint}"}
    return S3Options(**values | {"allow_http": is_open})


def _check_addresses(opts: Mapping[str, str]) -> None:
    for name in opts.keys() & ENDPOINT_OPTIONS:
        _check_address(name, opts[name])


def _check_address(name: str, address: str) -> None:
    if has_user(address):
        raise InvalidInputError(
            f"{name} must not hold a user or a password: they would be stored in the repository"
            " and be shown to its readers. Leave them out; whoever reads gives credentials on"
            " opening, with authorize_virtual_chunk_access=icefloe.containers_credentials(...)",
            ErrorKind.INVALID_CONFIG,
        )


def _unfit(problem: str) -> InvalidInputError:
    return InvalidInputError(
        f"{problem}: write it like https://minio.example:9000, or like localhost:9000",
        ErrorKind.INVALID_CONFIG,
    )


def local_filesystem_store(path: str) -> ObjectStoreConfig.LocalFileSystem:
    """Describe local files as a source of virtual chunks."""
    return ObjectStoreConfig.LocalFileSystem(path)


def s3_store(
    region: str | None = None,
    endpoint_url: str | None = None,
    allow_http: bool = False,  # noqa: FBT001, FBT002 - the drop-in signature
    anonymous: bool = False,  # noqa: FBT001, FBT002
    s3_compatible: bool = False,  # noqa: FBT001, FBT002
    force_path_style: bool = False,  # noqa: FBT001, FBT002
    network_stream_timeout_seconds: int = 60,
    requester_pays: bool = False,  # noqa: FBT001, FBT002
    checksum_algorithm: ChecksumAlgorithm | None = None,
) -> ObjectStoreConfig.S3Compatible | ObjectStoreConfig.S3:
    """Describe S3, or with `s3_compatible` something like it, as a source of virtual chunks.

    >>> s3_store(region="eu-west-1").options.region
    'eu-west-1'
    """
    options = S3Options(
        region=region,
        endpoint_url=endpoint_url,
        allow_http=allow_http,
        anonymous=anonymous,
        force_path_style=force_path_style,
        network_stream_timeout_seconds=network_stream_timeout_seconds,
        requester_pays=requester_pays,
        checksum_algorithm=checksum_algorithm,
    )
    return (
        ObjectStoreConfig.S3Compatible(options) if s3_compatible else ObjectStoreConfig.S3(options)
    )


def gcs_store(opts: dict[str, str] | None = None) -> ObjectStoreConfig.Gcs:
    """Describe Google Cloud Storage as a source of virtual chunks; it needs no region."""
    return ObjectStoreConfig.Gcs(opts)


def azure_store(*, account: str, config: dict[str, str] | None = None) -> ObjectStoreConfig.Azure:
    """Describe Azure Blob Storage as a source of virtual chunks."""
    options: Mapping[str, str] = config or {}
    if options.get("account", account) != account:
        raise InvalidInputError(
            "azure_store: account and the entry 'account' of config contradict each other",
            ErrorKind.INVALID_CONFIG,
        )
    return ObjectStoreConfig.Azure({**options, "account": account})


def http_store(
    opts: dict[str, str] | None = None, headers: dict[str, str] | None = None
) -> ObjectStoreConfig.Http:
    """Describe an HTTP(S) server as a source of virtual chunks."""
    return ObjectStoreConfig.Http(opts, headers)
