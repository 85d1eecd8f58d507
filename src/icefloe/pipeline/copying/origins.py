"""Sources of copies: a version of a repository, any Zarr hierarchy, or files.

All of them travel to workers, and open their clients there. References to files are kept in a
staging repository that lives as long as the job. It lies in the storage of the target, where
neither readers nor garbage collection look. It refers to the files in the way that the job reaches
them: no containers are needed, and no version of the target ever refers to them. `joined` makes a
dataset of it.
"""

from os import PathLike
from pathlib import Path
from typing import Any, Final, Protocol, override
from urllib.parse import unquote, urlsplit

import numpy as np
import zarr
from zarr.abc.store import Store
from zarr.storage import ObjectStore

from icefloe.api.repository import Repository
from icefloe.api.session import Session, state_of
from icefloe.errors import ErrorKind, InvalidInputError, NotFoundError
from icefloe.format.chunk_table import VirtualChunk
from icefloe.format.columns import Bools, BytesColumn
from icefloe.format.paths import joined_path
from icefloe.pipeline.copying.transfer import ReadingStore
from icefloe.pipeline.files.sources import Pattern, SourceAccess, SourceObject, as_url
from icefloe.records import Record, replace
from icefloe.storage import Buffer, ObjectInfo, Storage, storage_from_url
from icefloe.storage.specs import AzureSpec, GcsSpec, LocalSpec, MemorySpec, S3Spec
from icefloe.storage.storage import open_foreign_client
from icefloe.virtual_chunks.clients import Client
from icefloe.virtual_chunks.reader import VirtualReader
from icefloe.virtual_chunks.resolve import normalise_all
from icefloe.zarr_store import IcechunkStore
from icefloe.zarr_store.openings import with_rectilinear


class Needs(Record):
    """The memory that reading an array takes, besides that of its values."""

    value_bytes: int = 0
    """For each value of a region, where what is read is not yet what is copied."""
    object_bytes: int = 0
    """Of the largest chunk, where not all are of one size."""


class CopySource(Protocol):
    """A group whose arrays can be read, on the driver and on workers."""

    @property
    def identity(self) -> str:
        """Return what identifies the source and, if known, its state."""
        ...

    @property
    def is_near(self) -> bool:
        """Whether reads wait for no network."""
        ...

    @property
    def holds_records(self) -> bool:
        """Whether there may be records of sources in it, which are not copied."""
        ...

    def group(self) -> zarr.Group:
        """Open it for looking around."""
        ...

    def array(self, path: str) -> Any:
        """Open an array for reading boxes of it, from threads that block."""
        ...

    def needs(self, path: str) -> Needs:
        """Return what reading an array takes besides its values."""
        ...


class RepositorySource(Record):
    """A group of a version of a repository, with native or virtual chunks."""

    session: Session
    path: str = ""
    name: str = ""
    """By which it is known, if not by its version."""

    def __post_init__(self) -> None:
        if not self.session.read_only:
            raise InvalidInputError(
                "a version is copied, not what is being written: commit first, then give"
                " repo.readonly_session(...)",
                ErrorKind.UNCOMMITTED_CHANGES,
            )

    @property
    def identity(self) -> str:
        """Name the version."""
        return f"{self.name or self.session.snapshot_id}/{self.path}"

    @property
    def is_near(self) -> bool:
        """Whether the repository, and the files that it refers to, are on this machine."""
        context = state_of(self.session).context
        return context.is_near and context.reads_nearby

    @property
    def holds_records(self) -> bool:
        """Whether it is the root, below which records are."""
        return not self.path

    def group(self) -> zarr.Group:
        """Open it for looking around."""
        return _opened(self.session.store, self.path, f"the group {self.path!r} of the repository")

    def array(self, path: str) -> "zarr.Array[Any]":
        """Open an array for reading, from threads that block."""
        store: IcechunkStore = self.session.store
        with with_rectilinear():
            return zarr.open_array(store, path=joined_path(self.path, path), mode="r")

    def needs(self, _path: str) -> Needs:
        """Nothing."""
        return Needs()


class ZarrSource(Record):
    """A group of a Zarr hierarchy, of format 2 or 3, on any storage."""

    url: str
    access: SourceAccess
    path: str = ""

    @property
    def identity(self) -> str:
        """Name where it is; there is no telling whether it changed."""
        return f"{self.url}/{self.path}"

    @property
    def is_near(self) -> bool:
        """Whether it is on this machine."""
        return isinstance(self.access.place(self.url).storage.spec, LocalSpec | MemorySpec)

    @property
    def holds_records(self) -> bool:
        """Never."""
        return False

    def group(self) -> zarr.Group:
        """Open it for looking around."""
        source = self.access.place(self.url)
        spec = source.storage.spec
        if isinstance(spec, LocalSpec) and Path(spec.path, source.key).is_file():
            raise _no_group(self.url)  # below a file nobody may look for others
        client = ObjectStore(open_foreign_client(source.storage), read_only=True)
        return _opened(client, joined_path(source.key, self.path), self.url)

    def array(self, path: str) -> "zarr.Array[Any]":
        """Open an array for reading, from threads that block."""
        source = self.access.place(self.url)
        store = ReadingStore(source.backend, source.key)
        with with_rectilinear():
            return zarr.open_array(store, path=joined_path(self.path, path), mode="r")

    def needs(self, _path: str) -> Needs:
        """Nothing."""
        return Needs()


type Copyable = Session | Repository | Pattern
"""A version of a repository, a repository (the tip of `main`), or the path or URL of either one of
these or a Zarr hierarchy."""


def source_of(source: Copyable, path: str, access: SourceAccess) -> CopySource:
    """Find out what is to be copied."""
    path = path.strip("/")
    match source:
        case Session():
            return RepositorySource(source, path)
        case Repository():
            return RepositorySource(source.readonly_session("main"), path)
        case _:
            url = as_url(source).rstrip("/")
            if (repository := _repository_at(url, access)) is not None:
                return RepositorySource(repository.readonly_session("main"), path)
            return ZarrSource(url, access, path)


def source_alone(sources: object, access: SourceAccess) -> CopySource:
    """Take sources that are not joined: there can be only one."""
    source_list: Any = [sources] if isinstance(sources, (str, PathLike)) else sources
    if not isinstance(source_list, list | tuple) or len(source_list) != 1:
        raise InvalidInputError(
            "several files need options: along which dimensions are they joined?",
            ErrorKind.BAD_METADATA,
        )
    source = source_of(source_list[0], "", access)
    try:
        source.group()
    except NotFoundError as error:
        raise InvalidInputError(
            f"{source_list[0]} is neither a Zarr hierarchy nor a repository: for files, pass"
            " options"
            " with the dimensions along which they are joined",
            ErrorKind.BAD_METADATA,
        ) from error
    return source


def _repository_at(url: str, access: SourceAccess) -> Repository | None:
    covered = any(f"{url}/".startswith(prefix) for prefix in access.storages)
    if covered or urlsplit(url).scheme in {"http", "https"}:
        return None
    local = urlsplit(url)
    storage = storage_from_url(unquote(local.path) if local.scheme == "file" else url)
    return Repository.open(storage) if Repository.exists(storage) else None


def _opened(store: Store, path: str, name: str) -> zarr.Group:
    try:
        node = zarr.open(store, path=path, mode="r")
    except FileNotFoundError:
        raise _no_group(name) from None
    if isinstance(node, zarr.Group):
        return node
    raise InvalidInputError(
        f"{name} is an array: give the group that it is in", ErrorKind.NOT_A_GROUP
    )


def _no_group(name: str) -> NotFoundError:
    return NotFoundError(
        f"there is no Zarr group at {name}: is the path right?", ErrorKind.NODE_NOT_FOUND
    )


STAGING_PREFIX: Final = "icefloe/staging/"


def staging_key(job: str) -> str:
    """Name the folder in which the repository of a job is."""
    return f"{STAGING_PREFIX}{job}/"


def staging_repository(target: Storage, job: str, access: SourceAccess) -> Repository:
    """Make a repository, below that of a target, that may refer to all files of a job."""
    created = Repository.create(_storage_below(target, staging_key(job)))
    context = created._context  # noqa: SLF001 - the same package
    return Repository(replace(context, virtual_reader=SourceReader(access)))


def staged(repository: Repository, *, is_near: bool) -> Session:
    """Return the virtualised dataset; `is_near` is whether all files are on this machine."""
    context = repository._context  # noqa: SLF001 - the same package
    assert isinstance(context.virtual, SourceReader)
    reader = SourceReader(context.virtual.sources, is_near=is_near)
    return Repository(replace(context, virtual_reader=reader)).readonly_session("main")


def _storage_below(storage: Storage, prefix: str) -> Storage:
    spec: Any = storage.spec
    folder = prefix.rstrip("/")
    match spec:
        case LocalSpec(path=path):
            return Storage(replace(spec, path=f"{path.rstrip('/')}/{folder}"))
        case S3Spec(prefix=own) | GcsSpec(prefix=own) | AzureSpec(prefix=own):
            return Storage(replace(spec, prefix=f"{own.rstrip('/')}/{folder}".lstrip("/")))
        case _:
            raise InvalidInputError(
                "files can be copied into repositories in a directory or an object store only",
                ErrorKind.STORAGE_CONFIG,
            )


class SourceReader(VirtualReader):
    """Reads virtual chunks from the sources of a job, in the state in which they were parsed."""

    def __init__(self, access: SourceAccess, *, is_near: bool = False) -> None:
        super().__init__()
        self.sources: Final = access
        self._is_near = is_near

    def __reduce__(self) -> tuple[object, ...]:
        return (_restored, (self.sources, self._is_near))

    @property
    @override
    def is_near(self) -> bool:
        """Whether all files are on this machine."""
        return self._is_near

    @override
    def recorded(
        self, locations: BytesColumn, *, validate: bool
    ) -> tuple[BytesColumn, Bools | None]:
        """Return locations as they are stored; all are covered."""
        refused = np.zeros(len(locations), np.bool_) if validate else None
        return normalise_all(locations), refused

    @override
    async def read(self, chunk: VirtualChunk, start: int, stop: int) -> Buffer:
        """Read a part of a chunk."""
        source = self.sources.place(chunk.location)
        return await self._fetching.read(
            chunk,
            (start, stop),
            client=self._client_of(source),
            key=source.key,
            on_change="strict",
        )

    @override
    async def look(self, location: str) -> ObjectInfo:
        """Look at a file without reading it."""
        source = self.sources.place(location)
        return (await self._client_of(source).backend.head(source.key)).info

    def _client_of(self, source: SourceObject) -> Client:
        return self._fetching.clients.get(source.root, lambda: source.storage)


def _restored(access: SourceAccess, is_near: bool) -> SourceReader:  # noqa: FBT001 - for pickle
    return SourceReader(access, is_near=is_near)
