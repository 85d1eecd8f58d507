"""Containers for files: the folders that a repository may refer to.

A container is a declaration: it lets nobody read anything, as each reader authorises prefixes.
"""

import os
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote, urlsplit

from icefloe.api.repository import Repository
from icefloe.config import VirtualChunkContainer
from icefloe.config.stores import (
    AnyObjectStoreConfig,
    gcs_store,
    http_store,
    local_filesystem_store,
    s3_store,
)
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.pipeline.files.sources import Pattern, as_url, folder_of, has_magic, root_of
from icefloe.virtual_chunks.locations import shown

_LABEL: Final = r"(?:[a-z]{1,5}[=_-]?)?"
"""A short word before a number, as in year=2024 or m01."""
_YEAR: Final = re.compile(_LABEL + r"(?:1[6-9]|20|21)\d\d(?:[-_.]?\d\d){0,3}", re.IGNORECASE)
_PART: Final = re.compile(_LABEL + r"\d{1,3}", re.IGNORECASE)
"""Of a date: a month, a day, an hour."""
_FEWEST_SEGMENTS: Final = 2
"""A folder of this machine that is chosen for others lies at least so deep."""


def container_prefixes(patterns: Iterable[Pattern]) -> list[str]:
    """Name the folders that sources lie in; of nested ones the outer.

    >>> container_prefixes(["s3://era5/2020/*.nc", "s3://era5/2020/12/last.nc"])
    ['s3://era5/2020/']
    """
    return _outer(folder_of(as_url(pattern)) for pattern in patterns)


def wide_prefixes(patterns: Iterable[Pattern]) -> list[str]:
    """Name folders for sources and for files that will follow: those above folders of dates.

    The next year is delivered beside the first one. But neither a whole bucket nor a whole disk
    is named for that, nor somebody's home.

    >>> wide_prefixes(["s3://climate/era5/2024/01/*.nc", "s3://climate/gpm/*/*.nc"])
    ['s3://climate/era5/', 's3://climate/gpm/']
    >>> wide_prefixes(["s3://era5/2024/*.nc"])
    ['s3://era5/2024/']
    """
    return _outer(_above_dates(folder_of(as_url(pattern))) for pattern in patterns)


def _outer(folders: Iterable[str]) -> list[str]:
    outer: list[str] = []
    for folder in sorted(set(folders)):
        if not (outer and folder.startswith(outer[-1])):
            outer.append(folder)
    return outer


def _above_dates(folder: str) -> str:
    """Return the folder above the folders of dates at the end of a path."""
    root = root_of(folder)
    segments = folder[len(root) :].rstrip("/").split("/")
    count = len(segments)
    while count and _PART.fullmatch(unquote(segments[count - 1])):
        count -= 1
    above = count
    while above and _YEAR.fullmatch(unquote(segments[above - 1])):
        above -= 1
    if above == count:  # numbers without a year may be anything
        return folder
    wider = root + "".join(f"{segment}/" for segment in segments[:above])
    return wider if is_modest(wider) else folder


def is_modest(prefix: str) -> bool:
    """Return whether a folder is small enough to be chosen in somebody's place.

    >>> is_modest("s3://era5/"), is_modest("s3://climate/era5/"), is_modest("file:///data/")
    (False, True, False)
    """
    if prefix == root_of(prefix):
        return False
    if not prefix.startswith("file:"):
        return True
    path = Path(unquote(urlsplit(prefix).path))
    shared = [Path.home(), Path(tempfile.gettempdir())]
    is_above = any(path == folder or path in folder.parents for folder in shared)
    return len(path.parts) > _FEWEST_SEGMENTS and not is_above


def as_prefix(folder: str | os.PathLike[str]) -> str:
    """Write a folder as the prefix of a container.

    >>> as_prefix("s3://climate/era5")
    's3://climate/era5/'
    """
    url = as_url(folder)
    if has_magic(url):
        raise InvalidInputError(
            f"a container is a folder, not a pattern: name the folder above the files of {url!r}",
            ErrorKind.INVALID_VIRTUAL_REF,
        )
    return url if url.endswith("/") else f"{url}/"


def container_at(prefix: str) -> VirtualChunkContainer:
    """Make a container for a folder, in the way that its URL says.

    >>> container_at("s3://era5/2020/").url_prefix
    's3://era5/2020/'
    """
    return VirtualChunkContainer(prefix, _store(prefix))


def add_containers(repository: Repository, folders: Iterable[str | os.PathLike[str]]) -> Repository:
    """Declare more folders whose files a repository may refer to; return the reopened repository.

    Folders are paths or URLs. A container that exists stays as it is.

    >>> import icefloe
    >>> repository = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> repository = add_containers(repository, ["s3://climate/era5/2025"])
    >>> "s3://climate/era5/2025/" in repository.config.virtual_chunk_containers
    True
    """
    config = repository.config
    containers = config.virtual_chunk_containers or {}
    for prefix in map(as_prefix, folders):
        if prefix not in containers:
            config.set_virtual_chunk_container(container_at(prefix))
    wider = repository.reopen(config)
    wider.save_config()
    return wider


def not_covered(location: str) -> str:
    """Describe that no container covers a file, and how to add one."""
    text = shown(location)
    try:
        [prefix] = wide_prefixes([quote(text, safe=_ASCII)])
    except InvalidInputError:  # no place that a container can be for
        return f"no virtual chunk container covers {text}, and none can: it is no URL of a file"
    return (
        f"no virtual chunk container covers {text}: add one with"
        f" icefloe.pipeline.add_containers(repository, [{prefix!r}])"
    )


_ASCII: Final = "".join(map(chr, range(33, 127))).translate(str.maketrans("", "", "*?[]{}"))
"""Letters that are no pattern."""


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
