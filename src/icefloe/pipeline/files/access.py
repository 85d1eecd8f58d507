"""Find the storage that serves the URL of a source, and open clients for parsers.

Users give storages by URL prefix. The mapping can be pickled and travels to other processes; each
process opens its clients there, once, when they are first needed.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.records import Record, replace
from icefloe.storage import Backend, Storage, storage_from_url
from icefloe.storage.specs import AzureSpec, GcsSpec, HttpSpec, LocalSpec, S3Spec
from icefloe.storage.storage import open_foreign_client

_PLAIN: Final = "/:@!$&'()*+,;=~-._"
"""Characters of keys that stand for themselves in a URL."""

_SEGMENTS_OF_ROOT: Final = {"az": 1, "azure": 1, "abfs": 1}
"""How many segments of the path belong to the root of a storage, besides the host."""


class Place(Record):
    """Where an object is: a storage, the URL of its root, the key below it."""

    storage: Storage
    root: str
    key: str

    @property
    def backend(self) -> Backend:
        """Return the backend."""
        return self.storage.open()

    def url_of(self, key: str) -> str:
        """Return the URL of another object of the same storage."""
        return self.root + quote(key, safe=_PLAIN)


@dataclass(frozen=True, slots=True)
class SourceAccess:
    """Storages by URL prefix; what none covers is reached as its URL says.

    A storage's root is the prefix: `{"s3://bucket/era5/": s3_storage(bucket="bucket",
    prefix="era5", ...)}`. The longest prefix wins. Without an entry, credentials come from the
    environment.

    >>> place = SourceAccess().place("file:///data/a%20b.nc")
    >>> place.key, place.url_of(place.key)
    ('data/a b.nc', 'file:///data/a%20b.nc')
    """

    storages: Mapping[str, Storage] = field(default_factory=dict)

    def __post_init__(self) -> None:
        slashed = {
            _slashed(prefix): _as_foreign(storage) for prefix, storage in self.storages.items()
        }
        object.__setattr__(self, "storages", slashed)

    def place(self, url: str) -> Place:
        """Find where a URL leads."""
        covering = [prefix for prefix in self.storages if url.startswith(prefix)]
        if covering:
            root = max(covering, key=len)
            return Place(self.storages[root], root, unquote(url[len(root) :]))
        root = root_of(url)
        return Place(_storage_at(root), root, unquote(url[len(root) :]).split("?")[0])


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
    """What parsers ask for the client that reads a URL; opened when first asked for."""

    def __init__(self, access: SourceAccess) -> None:
        self._access = access
        self._clients: dict[str, Any] = {}

    def resolve(self, url: str) -> tuple[Any, str]:
        """Return a client, and the path in it."""
        source_place = self._access.place(url)
        if source_place.root not in self._clients:
            self._clients[source_place.root] = open_foreign_client(source_place.storage)
        return self._clients[source_place.root], source_place.key

    def local_path(self, url: str) -> str | None:
        """Return the path of a local file."""
        source_place = self._access.place(url)
        spec = source_place.storage.spec
        return os.path.join(spec.path, source_place.key) if isinstance(spec, LocalSpec) else None  # noqa: PTH118


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
