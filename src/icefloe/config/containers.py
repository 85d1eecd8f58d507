"""Virtual chunk containers: which foreign objects a repository may refer to."""

from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from icefloe.config.stores import AnyObjectStoreConfig, ObjectStoreConfig
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.values import Value

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


@dataclass(frozen=True, slots=True)
class VirtualChunkContainer(Value):
    """A url prefix below which virtual chunks may lie, and the store that serves it.

    The prefix is checked when the container is set on a configuration.
    """

    url_prefix: str
    store: AnyObjectStoreConfig
    name: str | None = None


def check_container(container: VirtualChunkContainer) -> None:
    """Refuse a container that no location could match, or whose store cannot serve it."""
    prefix = container.url_prefix
    if not prefix.endswith("/"):
        raise _invalid(container, "must end in '/'")
    try:
        url = urlsplit(prefix)
    except ValueError as reason:
        raise _invalid(container, f"is not a url ({reason})") from None
    kinds = STORES_OF_SCHEME.get(url.scheme)
    if kinds is None:
        known = ", ".join(STORES_OF_SCHEME)
        raise _invalid(container, f"must start with one of the schemes {known}")
    if not isinstance(container.store, kinds):
        wanted = " or ".join(kind.__qualname__ for kind in kinds)
        given = type(container.store).__qualname__
        raise _invalid(container, f"needs a store of kind {wanted}, got {given}")
    if url.scheme == "file":
        if not (url.netloc + url.path).strip("/"):
            raise _invalid(container, "must name a directory")
    elif not url.netloc:
        raise _invalid(container, "must name a bucket or host")
    if container.name is not None and (not container.name or "/" in container.name):
        raise InvalidInputError(
            f"the name of the virtual chunk container {prefix!r} must not be empty "
            f"nor contain '/', got {container.name!r}",
            ErrorKind.INVALID_CONFIG,
        )


def _invalid(container: VirtualChunkContainer, problem: str) -> InvalidInputError:
    return InvalidInputError(
        f"the url_prefix of a virtual chunk container {problem}: {container.url_prefix!r}",
        ErrorKind.INVALID_CONFIG,
    )


def added(
    containers: dict[str, VirtualChunkContainer], container: VirtualChunkContainer
) -> dict[str, VirtualChunkContainer]:
    """Add a container; one with the same prefix or the same name makes way."""
    check_container(container)
    kept = {
        prefix: other
        for prefix, other in containers.items()
        if container.name is None or other.name != container.name
    }
    return {**kept, container.url_prefix: container}
