"""Virtual chunk containers: the foreign objects that a repository may refer to."""

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from typing import Annotated, Any, Final, Literal, cast

from icefloe.config.stores import (
    STORES_OF_BUCKETS,
    STORES_OF_SCHEME,
    AnyObjectStoreConfig,
    ObjectStoreConfig,
    fit_store,
)
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.values import U64, LocalMoment, Value, integer, one_of, unchecked, value_class
from icefloe.values.checks import check_for
from icefloe.values.stored import TreeReader, plain
from icefloe.values.tree import Stored, Tree
from icefloe.values.urls import Prefix, parse_prefix, with_slash, without_user

_log: Final = logging.getLogger(__name__)

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

_RESERVED: Final = frozenset({"vcc"})


def _store(value: Any, name: str) -> AnyObjectStoreConfig:
    return fit_store(cast("AnyObjectStoreConfig", _any_store(value, name)))


_any_store: Final = check_for(AnyObjectStoreConfig)


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

    url_prefix: str = field(metadata={"stored": Stored(after="name")})
    store: Annotated[AnyObjectStoreConfig, _store] = field(
        metadata={"stored": Stored(after="url_prefix")}
    )
    name: str | None = None
    on_change: Annotated[OnChange, one_of(*POLICIES)] = field(
        default="strict", kw_only=True, metadata={"stored": Stored(only_ours=True)}
    )


def stored_container(
    url_prefix: str, store: AnyObjectStoreConfig, name: str | None, on_change: OnChange
) -> VirtualChunkContainer:
    """Make a container as a repository describes it, whatever its store says.

    It must be possible to open a repository whose writer did not know the rules; a store that
    breaks them is refused when something is to be read from it.
    """
    contents = {"url_prefix": url_prefix, "store": store, "name": name, "on_change": on_change}
    return unchecked(VirtualChunkContainer, contents)


def moved_container(container: VirtualChunkContainer, url_prefix: str) -> VirtualChunkContainer:
    """Copy a container with another prefix, without checking its store again."""
    return unchecked(VirtualChunkContainer, vars(container) | {"url_prefix": url_prefix})


def check_container(container: VirtualChunkContainer) -> Prefix:
    """Refuse a container that no location could match, or whose store cannot serve it."""
    try:
        prefix = parse_prefix(container.url_prefix)
    except InvalidInputError as reason:
        raise _invalid(container, reason.message) from None
    if prefix.scheme in _RESERVED:
        raise _invalid(container, f"must not have the scheme {prefix.scheme}, which is for names")
    kinds = STORES_OF_SCHEME.get(prefix.scheme, STORES_OF_BUCKETS)
    if not isinstance(container.store, kinds):
        expected = " or ".join(kind.__qualname__ for kind in kinds)
        actual = type(container.store).__qualname__
        if kinds is STORES_OF_BUCKETS:
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


def read_containers(
    reader: TreeReader, _: object, tree: Tree, path: str
) -> dict[str, VirtualChunkContainer]:
    """Read stored containers; those that break the rules are left out with a warning."""
    containers: dict[str, VirtualChunkContainer] = {}
    for key, subtree in reader.entries(tree, path).items():
        container = _read_container(reader, key, subtree, f"{path}.{key}")
        if _contradicts(key, container.url_prefix):
            _log.warning(
                "ignored a virtual chunk container of the repository: it is listed under %r, but"
                " its url_prefix is %r",
                without_user(key),
                without_user(container.url_prefix),
            )
            continue
        try:
            containers = added(containers, container)
        except InvalidInputError as reason:
            _log.warning("ignored a virtual chunk container of the repository: %s", reason)
    return containers


def _read_container(reader: TreeReader, key: str, tree: Tree, path: str) -> VirtualChunkContainer:
    entries = reader.entries(tree, path)
    name, policy = entries.get("name"), plain(entries.get("on_change"))
    return stored_container(
        # The key may be an old name, so the prefix inside counts.
        reader.text(entries.get("url_prefix", key), f"{path}.url_prefix"),
        reader.variant(ObjectStoreConfig, entries.get("store"), f"{path}.store"),
        None if name is None else reader.text(name, f"{path}.name"),
        policy if policy in POLICIES else "strict",
    )


def _contradicts(key: str, prefix: str) -> bool:
    """Return whether a container is listed under another url prefix than its own.

    A key that is no url may be an old name.
    """
    if "://" not in key or key == prefix:
        return False
    try:
        return not parse_prefix(key).is_same(parse_prefix(prefix))
    except InvalidInputError:
        return True


def disputed_prefixes(reader: TreeReader, tree: Tree) -> Iterator[str]:
    """List both prefixes of each container that is listed under another one than its own."""
    for key, subtree in reader.entries(tree, "virtual_chunk_containers").items():
        prefix = reader.text(reader.entries(subtree, key).get("url_prefix", key), key)
        if _contradicts(key, prefix):
            for text in (key, prefix):
                with suppress(InvalidInputError):
                    parse_prefix(text)
                    yield text
