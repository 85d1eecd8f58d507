"""Virtual chunk containers: which foreign objects a repository may refer to."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, cast

from icefloe.config.stores import AnyObjectStoreConfig, ObjectStoreConfig, fit_store
from icefloe.config.urls import Prefix, parse_prefix, with_slash, without_user
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.values import Value
from icefloe.values.checks import check_for

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


def _store(given: Any, place: str) -> AnyObjectStoreConfig:
    return fit_store(cast("AnyObjectStoreConfig", _any_store(given, place)))


_any_store: Final = check_for(AnyObjectStoreConfig)


def _policy(given: Any, place: str) -> OnChange:
    for policy in POLICIES:
        if given == policy:
            return policy
    raise InvalidInputError(
        f"{place} must be one of {', '.join(map(repr, POLICIES))}, got {given!r}",
        ErrorKind.INVALID_CONFIG,
    )


@dataclass(frozen=True, slots=True)
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
    fail (`"strict"`), say so once (`"warn"`), or read what is there now (`"off"`).

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
        wanted = " or ".join(kind.__qualname__ for kind in kinds)
        given = type(container.store).__qualname__
        if kinds is _STORES_OF_BUCKETS:
            known = ", ".join(STORES_OF_SCHEME)
            wanted = f"must start with one of the schemes {known}, or have a store of kind {wanted}"
            raise _invalid(container, f"{wanted}, got {given}")
        raise _invalid(container, f"needs a store of kind {wanted}, got {given}")
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
    same = (each for key, each in containers.items() if parse_prefix(key).is_same(prefix))
    return next(same, None)
