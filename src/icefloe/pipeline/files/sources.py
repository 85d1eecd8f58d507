"""Sources: the storages that serve them, the files that patterns name, containers for them.

Users give storages by URL prefix. The mapping can be pickled and travels to other processes; each
process opens its clients there, once, when they are first needed.
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from os import PathLike
from typing import Any, Final, Protocol, cast
from urllib.parse import quote, unquote, urlsplit

from icefloe.effects import Mode, iterate_blocking, run_blocking
from icefloe.errors import ErrorKind, InvalidInputError, NotFoundError, SourceError
from icefloe.format.arrow import pa
from icefloe.pipeline.files.facts import SourceState
from icefloe.records import Record, replace
from icefloe.storage import Backend, Buffer, ByteRange, Storage, storage_from_url
from icefloe.storage.specs import AzureSpec, GcsSpec, HttpSpec, LocalSpec, S3Spec
from icefloe.storage.storage import open_foreign_client

_PLAIN: Final = "/:@!$&'()*+,;=~-._"
"""Characters of keys that stand for themselves in a URL."""

_SEGMENTS_OF_ROOT: Final = {"az": 1, "azure": 1, "abfs": 1}
"""How many segments of the path belong to the root of a storage, besides the host."""


class SourceObject(Record):
    """An object that somebody else wrote: a storage, the URL of its root, the key below it."""

    storage: Storage
    root: str
    key: str

    @property
    def backend(self) -> Backend:
        """Return the backend."""
        return self.storage.open()

    @property
    def local_path(self) -> str | None:
        """Return the path of a file on this machine; None for others."""
        spec = self.storage.spec
        return os.path.join(spec.path, self.key) if isinstance(spec, LocalSpec) else None  # noqa: PTH118

    def url_of(self, key: str) -> str:
        """Return the URL of another object of the same storage."""
        return self.root + quote(key, safe=_PLAIN)

    def read(self, ranges: Sequence[ByteRange], mode: Mode = "blocking") -> list[Buffer]:
        """Read ranges of bytes; in the mode `worker`, this thread waits for no other one."""
        return run_blocking(self.backend.get_ranges(self.key, ranges), mode) if ranges else []

    def size(self) -> int:
        """Return the number of bytes."""
        return run_blocking(self.backend.head(self.key)).info.size_bytes


@dataclass(frozen=True, slots=True)
class SourceAccess:
    """Storages by URL prefix; what none covers is reached as its URL says.

    A storage's root is the prefix: `{"s3://bucket/era5/": s3_storage(bucket="bucket",
    prefix="era5", ...)}`. The longest prefix wins. Without an entry, credentials come from the
    environment.

    >>> source = SourceAccess().place("file:///data/a%20b.nc")
    >>> source.key, source.url_of(source.key)
    ('data/a b.nc', 'file:///data/a%20b.nc')
    """

    storages: Mapping[str, Storage] = field(default_factory=dict)

    def __post_init__(self) -> None:
        slashed = {
            _slashed(prefix): _as_foreign(storage) for prefix, storage in self.storages.items()
        }
        object.__setattr__(self, "storages", slashed)

    def place(self, url: str) -> SourceObject:
        """Find the object that a URL names."""
        covering = [prefix for prefix in self.storages if url.startswith(prefix)]
        if covering:
            root = max(covering, key=len)
            return SourceObject(self.storages[root], root, unquote(url[len(root) :]))
        root = root_of(url)
        return SourceObject(_storage_at(root), root, unquote(url[len(root) :]).split("?")[0])


def as_url(path_or_url: str | os.PathLike[str]) -> str:
    """Write a path as a URL; leave URLs as they are.

    >>> as_url("/data/march 2020.nc")
    'file:///data/march%202020.nc'
    """
    text = os.fspath(path_or_url)
    if "://" in text:
        return text
    path = os.path.abspath(os.path.expanduser(text))  # noqa: PTH100, PTH111
    folder = "/" if text.endswith("/") else ""  # which `abspath` drops
    return "file://" + quote(path + folder, safe=_PLAIN + "*?[]{}")


def root_of(url: str) -> str:
    """Return the part of a URL that names a storage: scheme and bucket, ending in a slash.

    >>> root_of("s3://bucket/a/b.nc"), root_of("file:///data/x.nc")
    ('s3://bucket/', 'file:///')
    """
    parts = urlsplit(url)
    if not parts.scheme or (not parts.netloc and parts.scheme != "file"):
        raise InvalidInputError(
            f"{url!r} is not the URL of a file: write it like s3://bucket/path or file:///path",
            ErrorKind.CANNOT_PARSE_URL,
        )
    segments = _SEGMENTS_OF_ROOT.get(parts.scheme, 0)
    path = parts.path.lstrip("/").split("/")[:segments]
    return "/".join([f"{parts.scheme}://{parts.netloc}", *path, ""])


_default_storages: Final[dict[tuple[int, str], Storage]] = {}


def _storage_at(root: str) -> Storage:
    """Return one storage for each root and process, so that its connections are used again."""
    key = (os.getpid(), root)
    if key not in _default_storages:
        if root == "file:///":
            storage = Storage(LocalSpec("/", encodes_keys=False))
        else:
            storage = _as_foreign(storage_from_url(root))
        _default_storages[key] = storage
    return _default_storages[key]


def _as_foreign(storage: Storage) -> Storage:
    """Take the keys of files that others wrote as they are."""
    spec: Any = storage.spec
    match spec:
        case LocalSpec() | S3Spec() | GcsSpec() | AzureSpec() | HttpSpec() if spec.encodes_keys:
            return Storage(replace(spec, encodes_keys=False))
        case _:
            return storage


def _slashed(prefix: str) -> str:
    return prefix if prefix.endswith("/") else f"{prefix}/"


class Registry:
    """The clients by URL for parsers; a client opens on first use."""

    def __init__(self, access: SourceAccess) -> None:
        self._access = access
        self._clients: dict[str, Any] = {}

    def resolve(self, url: str) -> tuple[Any, str]:
        """Return a client, and the path in it."""
        source = self._access.place(url)
        if source.root not in self._clients:
            self._clients[source.root] = open_foreign_client(source.storage)
        return self._clients[source.root], source.key

    def local_path(self, url: str) -> str | None:
        """Return the path of a local file."""
        return self._access.place(url).local_path


_registries: Final[dict[tuple[int, int], tuple[SourceAccess, Registry]]] = {}
_MOST_REGISTRIES: Final = 8


def registry_for(access: SourceAccess) -> Registry:
    """Return one registry for each process and way of access; forked children make their own."""
    key = (os.getpid(), id(access))
    if key not in _registries:
        while len(_registries) >= _MOST_REGISTRIES:
            del _registries[next(iter(_registries))]
        _registries[key] = (access, Registry(access))  # kept, so that the id stays its own
    return _registries[key][1]


class WatchedReader:
    """A file-like object that remembers why a read failed."""

    def __init__(self, reader: Any, failures: list[Exception]) -> None:
        self._reader = reader
        self._failures = failures

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._reader, name)
        if not callable(attribute):
            return attribute

        def watched(*arguments: Any, **named: Any) -> Any:
            try:
                return attribute(*arguments, **named)
            except Exception as error:
                self._failures.append(error)
                raise

        return watched


type Pattern = str | PathLike[str]


def truncated(url: str, end: int, size: int) -> SourceError:
    """Return the error for a file that ends before data that it claims to have."""
    return SourceError(
        f"{url} is truncated: it has {size} bytes, and should have at least {end}."
        " Fetch it again from where it comes from",
        ErrorKind.SOURCE_TRUNCATED,
        url=url,
    )


class TableSource(Protocol):
    """A table of another library, such as one of Spark."""

    def toArrow(self) -> "pa.Table":  # noqa: N802 - the name that Spark gave it
        """Return its rows."""
        ...


type Sources = "Pattern | Iterable[Pattern | SourceState] | pa.Table | TableSource"
"""Globs, URLs, files that were listed, or a table (of Arrow or Spark) with the column `url`."""

_MAGIC: Final = re.compile(r"[*?\[{]")
_DIRECTORY: Final = re.compile(r"\.(zarr|parq|parquet)/?$", re.IGNORECASE)
"""The end of a pattern of datasets that are folders."""
_GLOB_TOKEN: Final = re.compile(r"\*\*/?|\[.[^\]]*\]|.", re.DOTALL)
"""Any number of folders, a set of letters, or one letter."""


def list_sources(
    patterns: Pattern | Iterable[Pattern | SourceState], access: SourceAccess | None = None
) -> list[SourceState]:
    """List the files that patterns name, sorted by URL within each pattern, and no URL twice.

    A pattern is a path or URL. With `*`, `?`, `[...]`, `{a,b}` or `**` (any number of
    directories) it is matched against the storage's listing; ending in `/` it stands for all
    files below. Names that end in `.zarr`, `.parq` or `.parquet` are those of folders, each of
    which is one dataset. Anything else is taken as a file's own name, without a request. A pattern
    that matches nothing is an error, since the job would silently do less than was asked for. A
    file that was listed before stands for itself.

    >>> list_sources("s3://bucket/a.nc")
    [SourceState(url='s3://bucket/a.nc', size=None, etag=None, modified=None)]
    """
    pattern_list = [patterns] if isinstance(patterns, (str, PathLike)) else patterns
    reached = access or SourceAccess()
    return _distinct(state for pattern in pattern_list for state in _matches(pattern, reached))


def sources_from_table(table: "pa.Table") -> list[SourceState]:
    """Take sources from a table, in its order: the column `url`, and the state as far as known.

    Of a state these are the columns `size` (bytes), `etag` and `modified` (a timestamp).
    """
    if "url" not in table.column_names:
        raise InvalidInputError(
            f"a table of sources needs the column url, and this one has {table.column_names}",
            ErrorKind.BAD_METADATA,
        )

    def column(name: str, kind: "pa.DataType") -> list[Any]:
        if name not in table.column_names:
            return [None] * table.num_rows
        return cast("list[Any]", table.column(name).cast(kind).to_pylist())

    urls, etags = column("url", pa.string()), column("etag", pa.string())
    moments = column("modified", pa.timestamp("us", tz="UTC"))
    modified = [None if moment is None else microseconds(moment) for moment in moments]
    if None in urls:
        raise InvalidInputError("a source has no URL", ErrorKind.CANNOT_PARSE_URL)
    return _distinct(
        map(SourceState, map(as_url, urls), column("size", pa.int64()), etags, modified)
    )


def list_states(sources: "Sources", access: SourceAccess) -> list[SourceState]:
    """List all files, each once, with what is known of their state."""
    table: Any = sources.toArrow() if hasattr(sources, "toArrow") else sources
    if isinstance(table, pa.Table):
        return sources_from_table(table)
    return list_sources(table, access)


def _distinct(states: Iterable[SourceState]) -> list[SourceState]:
    by_url: dict[str, SourceState] = {}
    for state in states:
        by_url.setdefault(state.url, state)
    return list(by_url.values())


def _matches(pattern: Pattern | SourceState, access: SourceAccess) -> list[SourceState]:
    if isinstance(pattern, SourceState):
        return [pattern]
    url = as_url(pattern)
    is_directory = _DIRECTORY.search(url) is not None
    if is_directory:
        url = url.rstrip("/")
    if not _MAGIC.search(url) and not url.endswith("/"):
        return [SourceState(url)]
    folder = access.place(_fixed_part(url))
    glob = None if url.endswith("/") else compile_glob(unquote(url[len(folder.root) :]))
    if glob is not None and is_directory:
        matches = _matching_folders(folder, glob)
    else:
        matches = _matching_files(folder, glob)
    if not matches:
        raise NotFoundError(
            f"no file matches {url!r}: is the path right, and may it be listed?",
            ErrorKind.OBJECT_NOT_FOUND,
            pattern=url,
        )
    return sorted(matches, key=lambda state: state.url)


def _matching_folders(folder: SourceObject, glob: re.Pattern[str]) -> list[SourceState]:
    """Find datasets that are folders of objects, such as hierarchies of Zarr."""
    below = re.compile(f"({glob.pattern})/.+", re.DOTALL)
    keys = {
        match[1]
        for batch in iterate_blocking(folder.backend.list(folder.key))
        for info in batch
        if (match := below.fullmatch(info.key)) is not None
    }
    return [SourceState(folder.url_of(key)) for key in keys]


def _matching_files(folder: SourceObject, glob: re.Pattern[str] | None) -> list[SourceState]:
    return [
        SourceState(
            folder.url_of(info.key),
            info.size_bytes,
            info.version.etag,
            microseconds(info.last_modified),
        )
        for batch in iterate_blocking(folder.backend.list(folder.key))
        for info in batch
        if glob is None or glob.fullmatch(info.key)
    ]


def folder_of(url: str) -> str:
    """Return the folder that all files lie in which a pattern can name.

    >>> folder_of("s3://era5/2020/*/t2m.nc")
    's3://era5/2020/'
    """
    fixed = _fixed_part(url)
    return fixed if fixed.endswith("/") else fixed[: fixed.rindex("/") + 1]


def has_magic(url: str) -> bool:
    """Return whether a path or URL is a pattern."""
    return _MAGIC.search(url) is not None


def _fixed_part(url: str) -> str:
    """Return the part before the first special character, up to a slash."""
    match = _MAGIC.search(url)
    return url if match is None else url[: url.rindex("/", 0, match.start()) + 1]


def compile_glob(pattern: str) -> re.Pattern[str]:
    """Make a regular expression of a glob over whole keys.

    >>> compile_glob("a/**/t_{min,max}_*.nc").fullmatch("a/2020/01/t_min_1.nc") is not None
    True
    >>> compile_glob("a/*.nc").fullmatch("a/b/c.nc") is None
    True
    """
    parts: list[str] = []
    depth = 0
    for token in _GLOB_TOKEN.finditer(pattern):
        match token.group():
            case "**/":
                part = "(?:.*/)?"
            case "**":
                part = ".*"
            case "*":
                part = "[^/]*"
            case "?":
                part = "[^/]"
            case "{" if "}" in pattern[token.end() :]:
                depth, part = depth + 1, "(?:"
            case "}" if depth:
                depth, part = depth - 1, ")"
            case "," if depth:
                part = "|"
            case letters if len(letters) > 2:
                inside = letters[1:-1].replace("\\", r"\\").replace("[", r"\[")
                part = f"[^{inside[1:]}]" if inside[0] in "!^" else f"[{inside}]"
            case letter:
                part = re.escape(letter)
        parts.append(part)
    return re.compile("".join(parts), re.DOTALL)


def microseconds(moment: datetime) -> int:
    """Count microseconds since 1970."""
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return since // timedelta(microseconds=1)


async def look_at(url: str, access: SourceAccess) -> SourceState:
    """Return the state of a file now."""
    source = access.place(url)
    info = (await source.backend.head(source.key)).info
    return SourceState(url, info.size_bytes, info.version.etag, microseconds(info.last_modified))
