"""Virtual chunk containers for places that sources lie in."""

from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from icefloe.config import VirtualChunkContainer
from icefloe.config.containers import (
    AnyObjectStoreConfig,
    gcs_store,
    http_store,
    local_filesystem_store,
    s3_store,
)
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.pipeline.files.access import as_url
from icefloe.pipeline.files.sources import Pattern, folder_of


def container_prefixes(patterns: Iterable[Pattern]) -> list[str]:
    """Name the folders that sources lie in; of nested ones the outer.

    >>> container_prefixes(["s3://era5/2020/*.nc", "s3://era5/2020/12/last.nc"])
    ['s3://era5/2020/']
    """
    folders = sorted({folder_of(as_url(pattern)) for pattern in patterns})
    outer: list[str] = []
    for folder in folders:
        if not (outer and folder.startswith(outer[-1])):
            outer.append(folder)
    return outer


def container_at(prefix: str) -> VirtualChunkContainer:
    """Make a container for a folder, in the way that its URL says."""
    return VirtualChunkContainer(prefix, _store(prefix))


def _store(prefix: str) -> AnyObjectStoreConfig:
    parts = urlsplit(prefix)
    match parts.scheme:
        case "file":
            return local_filesystem_store(str(Path(unquote(parts.path))))
        case "s3":
            return s3_store()
        case "gs" | "gcs":
            return gcs_store()
        case "http" | "https":
            return http_store()
        case scheme:
            raise InvalidInputError(
                f"a container for {scheme}:// needs more than a URL: add it to the repository's"
                " configuration in Python, with set_virtual_chunk_container",
                ErrorKind.CANNOT_PARSE_URL,
            )
