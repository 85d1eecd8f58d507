"""Virtual chunk containers: the foreign objects that a repository may refer to."""

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Annotated, Any, Final, Literal, TypeAlias, cast

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.values import (
    U32,
    U64,
    LocalMoment,
    NamedNumber,
    Settings,
    TextMapping,
    Value,
    Variant,
    integer,
    settings_class,
    value_class,
    variant_of,
)
from icefloe.values.checks import check_for
from icefloe.values.urls import Prefix, has_user, parse_prefix, split_url, with_slash, without_user

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
@value_class
class InMemoryStore(ObjectStoreConfig):
    """Objects in the memory of one process."""


@variant_of(ObjectStoreConfig, "LocalFileSystem")
@value_class
class LocalFileSystemStore(ObjectStoreConfig):
    """Files below a directory."""

    path: str


@variant_of(ObjectStoreConfig, "S3Compatible")
@value_class
class S3CompatibleStore(ObjectStoreConfig):
    """A storage that speaks the protocol of S3."""

    options: S3Options


@variant_of(ObjectStoreConfig, "S3")
@value_class
class S3Store(ObjectStoreConfig):
    """Amazon S3."""

    options: S3Options


@variant_of(ObjectStoreConfig, "Gcs")
@value_class
class GcsStore(ObjectStoreConfig):
    """Google Cloud Storage, with client options by name."""

    opts: TextMapping | None = None


@variant_of(ObjectStoreConfig, "Azure")
@value_class
class AzureStore(ObjectStoreConfig):
    """Azure Blob Storage, with client options by name; `account` is one of them."""

    opts: TextMapping | None = None


@variant_of(ObjectStoreConfig, "Tigris")
@value_class
class TigrisStore(ObjectStoreConfig):
    """Tigris."""

    opts: S3Options


@variant_of(ObjectStoreConfig, "Http")
@value_class
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


_coordinate = integer(0, 2**32 - 1)


def _coordinates(value: object, name: str) -> list[int]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise InvalidInputError(
            f"{name} must be the coordinates of a chunk, such as [0, 3], "
            f"got {type(value).__name__}",
            ErrorKind.INVALID_CHUNK_INDEX,
        )
    return [_coordinate(element, name) for element in value]


@value_class
class VirtualChunkSpec(Value):
    """A chunk of an array that lies in a foreign object: where, and how to notice changes of it.

    `index` are the coordinates of the chunk. Reading fails when the object no longer has the
    etag, or was modified after the time that is given here; a time without a time zone, such as
    `datetime.now()`, is in local time.

    >>> VirtualChunkSpec([0, 3], "s3://bucket/era5.nc", offset=8192, length=4096).index
    [0, 3]
    """

    index: Annotated[list[int], _coordinates]
    location: str
    offset: U64
    length: U64
    etag_checksum: str | None = None
    last_updated_at_checksum: LocalMoment | None = None


type OnChange = Literal["strict", "warn", "off"]
"""What to do about an object that changed since chunks of it were recorded."""

POLICIES: Final[tuple[OnChange, ...]] = ("strict", "warn", "off")

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

_STORES_OF_BUCKETS: Final = (
    ObjectStoreConfig.S3,
    ObjectStoreConfig.S3Compatible,
    ObjectStoreConfig.Tigris,
    ObjectStoreConfig.Gcs,
    ObjectStoreConfig.Azure,
)
"""Which kinds of store may serve a scheme of one's own: those where the host is a bucket."""

_RESERVED: Final = frozenset({"vcc"})


def _store(value: Any, name: str) -> AnyObjectStoreConfig:
    return fit_store(cast("AnyObjectStoreConfig", _any_store(value, name)))


_any_store: Final = check_for(AnyObjectStoreConfig)


def _policy(value: Any, name: str) -> OnChange:
    for policy in POLICIES:
        if value == policy:
            return policy
    raise InvalidInputError(
        f"{name} must be one of {', '.join(map(repr, POLICIES))}, got {value!r}",
        ErrorKind.INVALID_CONFIG,
    )


@value_class
class VirtualChunkContainer(Value):
    """A url prefix below which virtual chunks may lie, and the store that serves it.

    A prefix is a scheme (`s3` or `s3://`: every bucket), a bucket (`s3://bucket`), a folder
    (`s3://bucket/2020/`), or an object (`s3://bucket/era5.nc`, and all that is below that). Of
    several that cover a location the longest counts. For stores with buckets the scheme may be
    one of your own: with `models://` the store decides where the buckets are. The prefix is
    checked when the container is set on a configuration, the store when the container is made:
    an endpoint without a scheme (`localhost:9000`) is completed, a user or a password in it is
    refused, and so is what is no address.

    `on_change` says what to do about an object that changed since chunks of it were recorded:
    fail (`"strict"`), say so once (`"warn"`), or read the present contents (`"off"`).

    >>> from icefloe.config import s3_store
    >>> VirtualChunkContainer("s3://bucket/", s3_store(region="eu-west-1")).on_change
    'strict'
    """

    url_prefix: str
    store: Annotated[AnyObjectStoreConfig, _store]
    name: str | None = None
    on_change: Annotated[OnChange, _policy] = field(default="strict", kw_only=True)


def stored_container(
    url_prefix: str, store: AnyObjectStoreConfig, name: str | None, on_change: OnChange
) -> VirtualChunkContainer:
    """Make a container as a repository describes it, whatever its store says.

    It must be possible to open a repository whose writer did not know the rules; a store that
    breaks them is refused when something is to be read from it.
    """
    container = object.__new__(VirtualChunkContainer)
    values = {"url_prefix": url_prefix, "store": store, "name": name, "on_change": on_change}
    for field_name, value in values.items():
        object.__setattr__(container, field_name, value)
    return container


def moved_container(container: VirtualChunkContainer, url_prefix: str) -> VirtualChunkContainer:
    """Copy a container with another prefix, without checking its store again."""
    return stored_container(url_prefix, container.store, container.name, container.on_change)


def check_container(container: VirtualChunkContainer) -> Prefix:
    """Refuse a container that no location could match, or whose store cannot serve it."""
    try:
        prefix = parse_prefix(container.url_prefix)
    except InvalidInputError as reason:
        raise _invalid(container, reason.message) from None
    if prefix.scheme in _RESERVED:
        raise _invalid(container, f"must not have the scheme {prefix.scheme}, which is for names")
    kinds = STORES_OF_SCHEME.get(prefix.scheme, _STORES_OF_BUCKETS)
    if not isinstance(container.store, kinds):
        expected = " or ".join(kind.__qualname__ for kind in kinds)
        actual = type(container.store).__qualname__
        if kinds is _STORES_OF_BUCKETS:
            schemes = ", ".join(STORES_OF_SCHEME)
            expected = (
                f"must start with one of the schemes {schemes}, or have a store of kind {expected}"
            )
            raise _invalid(container, f"{expected}, got {actual}")
        raise _invalid(container, f"needs a store of kind {expected}, got {actual}")
    if prefix == Prefix("file", ""):
        raise _invalid(container, "must name a directory")
    if container.name is not None and (not container.name or "/" in container.name):
        raise InvalidInputError(
            f"the name of the virtual chunk container {container.url_prefix!r} must not be empty "
            f"nor contain '/', got {container.name!r}",
            ErrorKind.INVALID_CONFIG,
        )
    return prefix


def _invalid(container: VirtualChunkContainer, problem: str) -> InvalidInputError:
    shown = without_user(container.url_prefix)
    return InvalidInputError(
        f"the url_prefix of a virtual chunk container {problem}: {shown!r}",
        ErrorKind.INVALID_CONFIG,
    )


def added(
    containers: dict[str, VirtualChunkContainer], container: VirtualChunkContainer
) -> dict[str, VirtualChunkContainer]:
    """Add a container; one with the same prefix, or with a warning the same name, makes way.

    Prefixes are the same if they mean the same, however they are written.
    """
    prefix = check_container(container)
    container = moved_container(container, with_slash(container.url_prefix))
    _warn_of_namesakes(containers, container, prefix)
    kept = {
        text: other
        for text, other in containers.items()
        if text == container.url_prefix
        or not (
            (container.name is not None and other.name == container.name)
            or parse_prefix(text).is_same(prefix)
        )
    }
    return {**kept, container.url_prefix: container}


def _warn_of_namesakes(
    containers: Mapping[str, VirtualChunkContainer],
    container: VirtualChunkContainer,
    prefix: Prefix,
) -> None:
    if container.name is None:
        return
    for text, other in containers.items():
        if other.name == container.name and not parse_prefix(text).is_same(prefix):
            warnings.warn(
                f"two virtual chunk containers have the name {container.name!r}: the one for"
                f" {without_user(text)!r} makes way for the one for"
                f" {without_user(container.url_prefix)!r}. Give each a name of its own",
                stacklevel=4,
            )


def found(
    containers: Mapping[str, VirtualChunkContainer], text: str
) -> VirtualChunkContainer | None:
    """Find a container by its url prefix, however that is written."""
    if text in containers:
        return containers[text]
    try:
        prefix = parse_prefix(text)
    except InvalidInputError:
        return None
    same = (container for key, container in containers.items() if parse_prefix(key).is_same(prefix))
    return next(same, None)
