"""Object stores that hold virtual chunks: which kinds there are, and how each is reached."""

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Final, TypeAlias

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.values import (
    U32,
    NamedNumber,
    Settings,
    TextMapping,
    Variant,
    settings_class,
    unchecked,
    variant_of,
)
from icefloe.values.stored import TreeReader
from icefloe.values.tree import Stored, StoredForm, Tree
from icefloe.values.urls import has_user, split_url, without_user

# Aliases inside a class must be `TypeAlias`: a `type` statement makes no callable class.
# ruff: noqa: UP040

_WEB: Final = frozenset({"http", "https"})
_BARE_HOST: Final = r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?/?"
_LOOPBACK: Final = r"(?i)localhost|127(\.[0-9]{1,3}){3}|\[::1\]"
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


@settings_class
class S3Options(Settings):
    """Connection options of S3 and of storages with its protocol.

    >>> S3Options(region="eu-west-1").force_path_style
    False
    """

    region: str | None = None
    endpoint_url: str | None = None
    allow_http: bool = field(default=False, metadata={"stored": Stored(after="anonymous")})
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
class InMemoryStore(ObjectStoreConfig):
    """Objects in the memory of one process."""


@variant_of(ObjectStoreConfig, "LocalFileSystem")
class LocalFileSystemStore(ObjectStoreConfig):
    """Files below a directory."""

    path: str


@variant_of(ObjectStoreConfig, "S3Compatible")
class S3CompatibleStore(ObjectStoreConfig):
    """A storage that speaks the protocol of S3."""

    options: S3Options


@variant_of(ObjectStoreConfig, "S3")
class S3Store(ObjectStoreConfig):
    """Amazon S3."""

    options: S3Options


_OPTIONS: Final = StoredForm(
    lambda store: dict(store.opts or {}),
    lambda reader, kind, tree, path: kind(reader.text_map(tree, path)),
)


@variant_of(ObjectStoreConfig, "Gcs")
class GcsStore(ObjectStoreConfig):
    """Google Cloud Storage, with client options by name."""

    stored_form = _OPTIONS
    opts: TextMapping | None = None


@variant_of(ObjectStoreConfig, "Azure")
class AzureStore(ObjectStoreConfig):
    """Azure Blob Storage, with client options by name; `account` is one of them."""

    stored_form = _OPTIONS
    opts: TextMapping | None = None


@variant_of(ObjectStoreConfig, "Tigris")
class TigrisStore(ObjectStoreConfig):
    """Tigris."""

    opts: S3Options


def _http_tree(store: "HttpStore") -> Tree:
    if "headers" in (store.opts or {}):
        raise InvalidInputError(
            "an HTTP store cannot have an option named 'headers': use its headers",
            ErrorKind.INVALID_CONFIG,
        )
    headers: dict[str, Tree] = {"headers": dict(store.headers)} if store.headers else {}
    return {**(store.opts or {}), **headers}


def _read_http(reader: TreeReader, kind: type["HttpStore"], tree: Tree, path: str) -> "HttpStore":
    options = dict(reader.entries(tree, path))
    headers = options.pop("headers", None)
    return kind(
        reader.text_map(options, path),
        None if headers is None else reader.text_map(headers, f"{path}.headers"),
    )


@variant_of(ObjectStoreConfig, "Http")
class HttpStore(ObjectStoreConfig):
    """An HTTP(S) server, with client options by name and headers to send."""

    stored_form = StoredForm(_http_tree, _read_http)
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
        case (
            ObjectStoreConfig.S3(options)
            | ObjectStoreConfig.S3Compatible(options)
            | ObjectStoreConfig.Tigris(options)
        ):
            fit = _fit_options(options)
        case ObjectStoreConfig.Gcs(opts):
            kept_options = {name: value for name, value in (opts or {}).items() if name != "region"}
            _check_addresses(kept_options)
            return store if kept_options == (opts or {}) else ObjectStoreConfig.Gcs(kept_options)
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
    if not (bare := re.fullmatch(_BARE_HOST, endpoint)):
        raise _unfit(f"endpoint_url {without_user(endpoint)!r} is not a web address")
    is_loopback = re.fullmatch(_LOOPBACK, bare[1]) is not None
    is_open = options.allow_http or is_loopback
    url = f"{'http' if is_open else 'https'}://{endpoint}"
    return unchecked(S3Options, vars(options) | {"endpoint_url": url, "allow_http": is_open})


def _check_addresses(opts: Mapping[str, str]) -> None:
    for name in opts.keys() & ENDPOINT_OPTIONS:
        _check_address(name, opts[name])


def _check_address(name: str, address: str) -> None:
    if has_user(address):
        raise InvalidInputError(
            f"{name} must not hold a user or a password: they would be stored in the repository"
            " and be shown to its readers. Leave them out; each reader passes credentials on"
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


STORES_OF_SCHEME: Final[dict[str, tuple[type[ObjectStoreConfig], ...]]] = {
    "s3": (ObjectStoreConfig.S3, ObjectStoreConfig.S3Compatible, ObjectStoreConfig.Tigris),
    "gs": (ObjectStoreConfig.Gcs,),
    "gcs": (ObjectStoreConfig.Gcs,),
    "az": (ObjectStoreConfig.Azure,),
    "azure": (ObjectStoreConfig.Azure,),
    "abfs": (ObjectStoreConfig.Azure,),
    "tigris": (ObjectStoreConfig.Tigris,),
    "http": (ObjectStoreConfig.Http,),
    "https": (ObjectStoreConfig.Http,),
    "file": (ObjectStoreConfig.LocalFileSystem,),
}
"""Which kinds of store serve the urls of a scheme."""

STORES_OF_BUCKETS: Final = (
    ObjectStoreConfig.S3,
    ObjectStoreConfig.S3Compatible,
    ObjectStoreConfig.Tigris,
    ObjectStoreConfig.Gcs,
    ObjectStoreConfig.Azure,
)
"""Which kinds of store may serve a scheme of one's own: those where the host is a bucket."""
