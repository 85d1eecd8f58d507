"""Files that are to be copied are first virtualised, in a repository that lives as long as the job.

It lies in the storage of the target, where neither readers nor garbage collection look. It refers
to the files wherever they are, in the way that the job reaches them: no containers are needed, and
no version of the target ever refers to them.
"""

from typing import Any, Final, override

import numpy as np

from icefloe.api.repository import Repository
from icefloe.api.session import Session
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.chunk_table import VirtualChunk
from icefloe.format.columns import Bools, BytesColumn
from icefloe.pipeline.files.access import Place, SourceAccess
from icefloe.records import replace
from icefloe.storage import Buffer, ObjectInfo, Storage
from icefloe.storage.specs import AzureSpec, GcsSpec, LocalSpec, S3Spec
from icefloe.virtual_chunks.clients import Client
from icefloe.virtual_chunks.reader import VirtualReader

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
        return self.normalise_all(locations), refused

    @override
    async def read(self, chunk: VirtualChunk, start: int, stop: int) -> Buffer:
        """Read a part of a chunk."""
        source_place = self.sources.place(chunk.location)
        return await self._fetching.read(
            chunk,
            (start, stop),
            client=self._client_of(source_place),
            key=source_place.key,
            on_change="strict",
        )

    @override
    async def look(self, location: str) -> ObjectInfo:
        """Look at a file without reading it."""
        source_place = self.sources.place(location)
        return (await self._client_of(source_place).backend.head(source_place.key)).info

    def _client_of(self, source_place: Place) -> Client:
        return self._fetching.clients.get(source_place.root, lambda: source_place.storage)


def _restored(access: SourceAccess, is_near: bool) -> SourceReader:  # noqa: FBT001 - for pickle
    return SourceReader(access, is_near=is_near)
