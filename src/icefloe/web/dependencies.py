"""The containers of virtual chunks, and the options with which a reader authorises them."""

import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

import numpy as np

from icefloe.config import ObjectStoreConfig, VirtualChunkContainer
from icefloe.errors import ErrorKind, IcefloeError, InvalidInputError
from icefloe.maintenance.dependencies.access import (
    AccessReport,
    ContainerAccess,
    access_rows,
    is_open,
)
from icefloe.printable import printable
from icefloe.records import Record
from icefloe.repo.context import RepoContext
from icefloe.values.urls import parse_prefix
from icefloe.virtual_chunks.access import anonymous_doubt, credentials_doubt, is_anonymous
from icefloe.virtual_chunks.grouping import by_bucket, canonical
from icefloe.virtual_chunks.locations import DEFAULT_CONTAINERS
from icefloe.web.sources import SourceFiles, moment_of
from icefloe.web.texts import shown_text
from icefloe.web.versions import Version

MOST_OUTSIDE: Final = 100
"""How many buckets that no container covers a page shows."""
SCHEMES: Final = frozenset(
    {"file", "http", "https", "s3", "tigris", "gs", "gcs", "az", "azure", "abfs"}
)
"""The schemes of URLs that `--authorize` takes."""
_WITHOUT_KEYS: Final = frozenset({"file", "http", "https"})
"""Those for which nothing secret is ever sent."""


class Dependency(Record):
    """A container, or a bucket that no container covers, and what of a version lies there."""

    access: ContainerAccess
    files: int
    search: str
    """What finds its files in the list of all."""
    newest: datetime | None
    """The newest recorded modification of a file."""
    on_change: str | None
    """What readers do about changed files; None without a container."""
    commands: tuple[str, ...]
    """Each of them shows the repository with this place authorised; none if it is, or cannot be."""


class SharedBy(Record):
    """Something by which the owner of data shares it with the reader of a page."""

    name: str
    readers: str
    """Who may read by it."""
    until: datetime | None
    address: str = ""
    """The page about it, if the reader may see one."""


class Shared(Record):
    """Who shares a container with the reader, where pages are a part of a service."""

    owner: str
    by: tuple[SharedBy, ...]


class OwnerShare(Record):
    """The data of a version that one owner shares with the reader."""

    owner: str
    by: tuple[SharedBy, ...]
    containers: int
    files: int
    chunks: int
    size_bytes: int
    newest: datetime | None


class Dependencies(Record):
    """All places of virtual chunks of a version, those with most bytes first."""

    rows: tuple[Dependency, ...]
    left_out: int
    """How many buckets without a container are not shown."""
    report: AccessReport


def read_dependencies(version: Version, files: SourceFiles, url: str) -> Dependencies:
    """Sum up files by container; `url` is how the reader opens the repository."""
    context = version.state.context
    containers = context.config.virtual_chunk_containers
    buckets, bucket_of = by_bucket(files.names.take(np.flatnonzero(files.containers < 0)))
    places = files.containers.copy()
    places[files.containers < 0] = len(containers) + bucket_of
    count = len(containers) + len(buckets)
    chunks, size_bytes, newest = (np.zeros(count, np.int64) for _ in range(3))
    np.add.at(chunks, places, files.chunks)
    np.add.at(size_bytes, places, files.size_bytes)
    np.maximum.at(newest, places, files.newest)
    file_counts = np.bincount(places, minlength=count)
    counts = list(zip(chunks.tolist(), size_bytes.tolist(), strict=True))
    outside = dict(zip(buckets.to_strings(), counts[len(containers) :], strict=True))
    rows = access_rows(context, counts[: len(containers)], outside)
    dependencies = [
        Dependency(
            row,
            int(file_counts[number]),
            _search(row.url_prefix),
            moment_of(int(newest[number])),
            containers[number].on_change if number < len(containers) else None,
            _commands(context, row, _container(containers, number, row), url),
        )
        for number, row in enumerate(rows)
    ]
    declared, others = dependencies[: len(containers)], dependencies[len(containers) :]
    others.sort(key=_by_size)
    shown = sorted([*declared, *others[:MOST_OUTSIDE]], key=_by_size)
    report = AccessReport(
        str(version.state.snapshot_id),
        tuple(dependency.access for dependency in shown),
        tuple(context.virtual.resolver.disputed),
    )
    return Dependencies(tuple(shown), max(0, len(others) - MOST_OUTSIDE), report)


def by_owner(
    dependencies: Dependencies, shared: Mapping[str, Shared]
) -> tuple[list[OwnerShare], list[Dependency]]:
    """Sum up places by the owners who share them, and return the places that nobody shares."""
    owned: dict[str, list[Dependency]] = {}
    unshared = []
    for row in dependencies.rows:
        if (share := shared.get(row.access.url_prefix)) is None:
            unshared.append(row)
        else:
            owned.setdefault(share.owner, []).append(row)
    owners = [
        OwnerShare(
            owner,
            tuple(dict.fromkeys(by for row in rows for by in shared[row.access.url_prefix].by)),
            len(rows),
            sum(row.files for row in rows),
            sum(row.access.references for row in rows),
            sum(row.access.size_bytes for row in rows),
            max((row.newest for row in rows if row.newest), default=None),
        )
        for owner, rows in owned.items()
    ]
    return owners, unshared


def _by_size(dependency: Dependency) -> tuple[int, str]:
    return -dependency.access.size_bytes, dependency.access.url_prefix


def _search(prefix: str) -> str:
    """Write a prefix as the names of files are written, which are decoded.

    >>> _search("s3://bucket/a%20b/")
    's3://bucket/a b/'
    """
    text = canonical(prefix)
    return f"{text}/" if prefix.endswith("/") and not text.endswith("/") else text


def _container(
    containers: Sequence[VirtualChunkContainer], number: int, row: ContainerAccess
) -> VirtualChunkContainer | None:
    return containers[number] if number < len(containers) else _default(row.url_prefix)


def _default(prefix: str) -> VirtualChunkContainer | None:
    """Return the container that stands in where none is declared."""
    try:
        scheme = parse_prefix(prefix).scheme
    except InvalidInputError:
        return None
    defaults = {parse_prefix(other.url_prefix).scheme: other for other in DEFAULT_CONTAINERS}
    return defaults.get(scheme)


def _commands(
    context: RepoContext, row: ContainerAccess, container: VirtualChunkContainer | None, url: str
) -> tuple[str, ...]:
    if row.is_authorized or container is None:
        return ()
    return commands(context, container, row.url_prefix, url)


def commands(
    context: RepoContext, container: VirtualChunkContainer, prefix: str, url: str
) -> tuple[str, ...]:
    """Return the commands that show a repository with a prefix of a container authorised."""
    view = f"icefloe view {shlex.quote(printable(url))}"
    return tuple(
        f"{view} --authorize{'-anonymous' if way.is_anonymous else ''} {shlex.quote(prefix)}"
        for way in _ways(context, container, prefix)
    )


class Way(Record):
    """A way to read virtual chunks below a prefix."""

    prefix: str
    is_anonymous: bool
    """Whether nothing secret is sent; otherwise the credentials of the environment are."""

    @property
    def is_open(self) -> bool:
        """Whether there are no credentials of this platform."""
        return parse_prefix(self.prefix).scheme in _WITHOUT_KEYS

    def code(self, module: str) -> str:
        """Return the credential as Python, with the names of a module: `icefloe` or `icechunk`.

        >>> Way("s3://archive/", is_anonymous=True).code("icefloe")
        'icefloe.s3_credentials(anonymous=True)'
        """
        way = "anonymous=True" if self.is_anonymous else "from_env=True"
        match parse_prefix(self.prefix).scheme:
            case "file":
                return f"{module}.credentials.LocalFileSystemAccess"
            case "http" | "https":
                return f"{module}.Credentials.HttpAccess()"
            case "gs" | "gcs":
                return f"{module}.gcs_credentials({way})"
            case "az" | "azure" | "abfs":
                return f"{module}.azure_credentials({way})"
            case _:
                return f"{module}.s3_credentials({way})"


def ways_in(version: Version) -> tuple[Way, ...]:
    """Return how all virtual chunks of a version are read, as far as that can do no harm.

    Prefixes that the reader authorised come first, then those of other declared containers.
    """
    context = version.state.context
    access = context.virtual.resolver.access
    ways = [
        Way(prefix, credential is not None and is_anonymous(credential))
        for prefix, credential in access.entries.items()
        if prefix in dict(access.prefixes) and printable(prefix) == prefix
    ]
    for container in context.config.virtual_chunk_containers:
        prefix = container.url_prefix
        if not access.prefixes_in(parse_prefix(prefix), container):
            ways += _ways(context, container, prefix)[:1]
    return tuple(ways)


def _ways(context: RepoContext, container: VirtualChunkContainer, prefix: str) -> list[Way]:
    """Return the ways to read a prefix of a container that a reader may take.

    Credentials of the environment are not offered where they would go to a server that only the
    repository names, and no request where even one without credentials would do harm.
    """
    scheme = parse_prefix(prefix).scheme
    store = container.store
    if scheme not in SCHEMES or printable(prefix) != prefix:
        return []
    if isinstance(store, ObjectStoreConfig.Azure) and not (store.opts or {}).get("account"):
        return []
    is_trusted = container in (*context.virtual.trusted, *DEFAULT_CONTAINERS)
    ways = []
    if not is_open(store) and (is_trusted or credentials_doubt(container) is None):
        ways.append(Way(prefix, is_anonymous=False))
    if scheme not in _WITHOUT_KEYS and (is_trusted or anonymous_doubt(container) is None):
        ways.append(Way(prefix, is_anonymous=True))
    return ways


def problem_text(version: Version, error: IcefloeError, url: str) -> str:
    """Return the message of an error; of a missing authorisation, with the option to use."""
    context = version.state.context
    options: tuple[str, ...] = ()
    prefix = str(error.context.get("url_prefix", ""))
    location = str(error.context.get("location", ""))
    if error.kind == ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER:
        for container in context.config.virtual_chunk_containers:
            allowed = context.virtual.resolver.access.prefixes_in(parse_prefix(prefix), container)
            if container.url_prefix == prefix and not allowed:
                options = commands(context, container, prefix, url)
    elif error.kind == ErrorKind.NO_CONTAINER_FOR_VIRTUAL_CHUNK and "://" in location:
        prefix = location[: location.rfind("/") + 1]
        default = _default(prefix)
        options = () if default is None else commands(context, default, prefix, url)
    if not options:
        return shown_text(error.message)
    return (
        f"Chunks of this array are in {prefix}, which you did not authorise. If you trust the"
        f" repository to read from there, view it with: {' or '.join(options)}"
    )
