"""`Storage`, which users hold: a description that opens itself when it is first needed.

It prints without secrets, and opens `obstore` clients for libraries that accept nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime
from functools import cache, partial
from inspect import signature
from typing import TYPE_CHECKING, Any, cast

from icefloe.config import (
    Attribution,
    EffectiveStorageSettings,
    StorageConcurrencySettings,
    StorageRetriesSettings,
    StorageSettings,
    effective_storage_settings,
)
from icefloe.effects import blocking
from icefloe.errors import ErrorKind, IcefloeError, InvalidInputError
from icefloe.printable import escaped_html
from icefloe.storage.local import LocalBackend
from icefloe.storage.locks import PATIENCE_SECONDS
from icefloe.storage.metering import Meter, MeteredBackend, RequestCounts
from icefloe.storage.port import Backend
from icefloe.storage.specs import (
    AzureSpec,
    GcsSpec,
    GuardedHttpSpec,
    HttpSpec,
    LocalSpec,
    MemorySpec,
    RedirectSpec,
    S3Spec,
    Spec,
    azure_spec,
    describe,
    gcs_spec,
    http_spec,
    hugging_face_spec,
    r2_spec,
    redirect_spec,
    s3_object_store_spec,
    s3_spec,
    source_code,
    tigris_spec,
)
from icefloe.storage.wrapper import ReadOnlyBackend
from icefloe.values import Value, value_class
from icefloe.version import user_agent

if TYPE_CHECKING:
    from icefloe.storage.memory import MemoryAddress, MemoryBackend
    from icefloe.storage.retrying import Attempts


def usual_settings(kind: type) -> StorageSettings:
    """Make the settings that suit a kind of storage, named by the class that describes it."""
    if issubclass(kind, MemorySpec):
        return StorageSettings(
            concurrency=StorageConcurrencySettings(5, 1),
            retries=StorageRetriesSettings(1, 0, 0),
        )
    if issubclass(kind, LocalSpec):
        return StorageSettings(
            concurrency=StorageConcurrencySettings(5, 4096),
            retries=StorageRetriesSettings(1, 0, 0),
            unsafe_use_conditional_update=False,
            unsafe_use_metadata=False,
        )
    return StorageSettings()


def _effective_settings(spec: Spec, settings: StorageSettings | None) -> EffectiveStorageSettings:
    kind: type = type(spec)
    if settings is None:
        return _usual_effective_settings(kind)
    return effective_storage_settings(usual_settings(kind), settings)


@cache
def _usual_effective_settings(kind: type) -> EffectiveStorageSettings:
    return effective_storage_settings(usual_settings(kind))


@value_class
class StorageObjectInfo(Value):
    """An object in a storage: key, size, and when it was written."""

    key: str
    size_bytes: int
    created_at: datetime


class _Opened:
    """The open clients of a storage in a process; a forked child starts again."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.meter = Meter()
        self.backends: dict[tuple[EffectiveStorageSettings, str], Backend] = {}
        self.usual: Backend | None = None
        """The one without special settings."""


def _made_by[**P](describe_storage: Callable[P, Spec]) -> staticmethod[P, Storage]:
    """Turn a function that describes storages into one that makes them, with its parameters."""

    def make(*args: P.args, **options: P.kwargs) -> Storage:
        return Storage(describe_storage(*args, **options))

    make.__doc__ = describe_storage.__doc__
    shown = signature(describe_storage).replace(return_annotation="Storage")
    make.__signature__ = shown  # type: ignore[attr-defined]
    return staticmethod(make)


class Storage:
    """A place where a repository lives.

    Make one with `local_filesystem_storage`, `s3_storage` and so on. Making it sends no
    request; clients are opened at the first use, once per process, also after a fork. Equal
    descriptions are equal storages. Storages can be pickled, with their credentials; a storage in
    memory can be unpickled only in its own process, while it is in use there.

    >>> storage = Storage.new_in_memory()
    >>> storage.list_objects()
    []
    """

    def __init__(self, spec: Spec, memory: MemoryBackend | None = None) -> None:
        self._spec = spec
        self._memory = memory
        if memory is None and isinstance(spec, MemorySpec):
            from icefloe.storage.memory import MemoryBackend

            self._memory = MemoryBackend()
        self._opened = _Opened()

    new_in_memory = _made_by(MemorySpec)
    """Make an empty storage in the memory of this process."""
    new_local_filesystem = _made_by(LocalSpec.of)
    """Use a local directory; `durable` makes every write survive a loss of power."""
    new_s3 = _made_by(s3_spec)
    """Use a bucket of S3, or of a storage that speaks its protocol."""
    new_s3_object_store = _made_by(s3_object_store_spec)
    """Use a bucket of S3 in which unusual characters of keys are percent-encoded."""
    new_tigris = _made_by(tigris_spec)
    """Use a bucket of Tigris."""
    new_r2 = _made_by(r2_spec)
    """Use a bucket of Cloudflare R2."""
    new_hf = _made_by(hugging_face_spec)
    """Use a bucket at Hugging Face."""
    new_gcs = _made_by(gcs_spec)
    """Use a bucket of Google Cloud Storage."""
    new_azure_blob = _made_by(azure_spec)
    """Use a container of Azure Blob Storage."""
    new_http = _made_by(http_spec)
    """Use a directory on a web server, read-only."""
    new_redirect = _made_by(redirect_spec)
    """Use the storage that a web address redirects to; see `redirect_storage`."""

    @property
    def spec(self) -> Spec:
        """The description of this storage."""
        return self._spec

    def default_settings(self) -> StorageSettings:
        """Return the settings that suit this kind of storage; unset ones have common defaults.

        On the local file system the switches for conditional updates and metadata are off, as
        other programs must find them in the configuration of a repository; our own updates are
        conditional there nevertheless.
        """
        return usual_settings(type(self._spec))

    def open(
        self,
        settings: StorageSettings | EffectiveStorageSettings | None = None,
        attribution: Attribution | None = None,
    ) -> Backend:
        """Return the backend: requests are counted and, over networks, retried.

        Settings go on top of those that suit the storage, unless they are complete already.
        `attribution` tells the operator of the storage who is asking. Called again with equal
        arguments it gives the same object.
        """
        opened = self._in_this_process()
        is_usual = settings is None and attribution is None
        if is_usual and opened.usual is not None:
            return opened.usual
        effective = settings
        if not isinstance(effective, EffectiveStorageSettings):
            effective = _effective_settings(self._spec, effective)
        agent = user_agent() if attribution is None else attribution.label(user_agent())
        if (backend := opened.backends.get((effective, agent))) is None:
            # Two threads may both open; one of them is kept.
            backend = opened.backends.setdefault(
                (effective, agent), self._open(self._spec, effective, agent, opened.meter)
            )
        if is_usual:
            opened.usual = backend
        return backend

    def request_counts(self) -> RequestCounts:
        """Count the requests that this process sent through this object.

        >>> storage = Storage.new_in_memory()
        >>> before = storage.request_counts()
        >>> storage.list_objects()
        []
        >>> (storage.request_counts() - before).list
        1
        """
        return self._in_this_process().meter.snapshot()

    def reset_request_counts(self) -> RequestCounts:
        """Begin to count again; give the count so far."""
        return self._in_this_process().meter.reset()

    async def list_objects_async(
        self, settings: StorageSettings | None = None, prefix: str | None = None
    ) -> list[tuple[str, int]]:
        """List all objects, or those in the directory `prefix`: key (below it) and size."""
        infos = await self.list_objects_metadata_async(settings, prefix)
        return [(info.key, info.size_bytes) for info in infos]

    list_objects = blocking(list_objects_async)

    async def list_objects_metadata_async(
        self, settings: StorageSettings | None = None, prefix: str | None = None
    ) -> list[StorageObjectInfo]:
        """List as `list_objects` does, with the time of each object."""
        folder = f"{prefix.strip('/')}/" if prefix and prefix.strip("/") else ""
        return [
            StorageObjectInfo(info.key.removeprefix(folder), info.size_bytes, info.last_modified)
            async for batch in self.open(settings).list(folder)
            for info in batch
        ]

    list_objects_metadata = blocking(list_objects_metadata_async)

    def _open(
        self, spec: Spec, settings: EffectiveStorageSettings, agent: str, meter: Meter
    ) -> Backend:
        match spec:
            case MemorySpec():
                return MeteredBackend(cast("Backend", self._memory), meter)
            case LocalSpec(path, durable, encodes_keys, None):
                limit_ms = settings.timeouts.operation_timeout_ms
                local = LocalBackend(
                    path,
                    durable=durable,
                    encodes_keys=encodes_keys,
                    patience_seconds=PATIENCE_SECONDS if limit_ms is None else limit_ms / 1000,
                )
                return MeteredBackend(local, meter)
            case LocalSpec(path, _, encodes_keys, places):
                from icefloe.storage.sandbox import Confinement

                confinement = Confinement(places or ())
                local = LocalBackend(path, encodes_keys=encodes_keys, confinement=confinement)
                return MeteredBackend(ReadOnlyBackend(local, path), meter)
            case RedirectSpec():
                from icefloe.storage.redirect import RedirectBackend, resolve
                from icefloe.storage.retrying import Attempts

                def find() -> Backend:
                    return self._open(resolve(spec, agent), settings, agent, meter)

                def attempts() -> Attempts:
                    return Attempts(settings, lambda: meter.add("retries"))

                return RedirectBackend(find, attempts)
            case GuardedHttpSpec():
                from icefloe.storage.guarded_http import GuardedHttpReader
                from icefloe.storage.retrying import RetryingBackend

                web = ReadOnlyBackend(GuardedHttpReader(spec, settings, agent), spec.place)
                return RetryingBackend(MeteredBackend(web, meter), settings, meter)
            case _:
                from icefloe.storage.clients import open_clients
                from icefloe.storage.object_store import ObjectStoreBackend
                from icefloe.storage.retrying import RetryingBackend

                clients = partial(open_clients, spec, settings, agent)
                backend = ObjectStoreBackend(clients, settings)
                return RetryingBackend(MeteredBackend(backend, meter), settings, meter)

    def _in_this_process(self) -> _Opened:
        if self._opened.process != os.getpid():
            self._opened = _Opened()
        return self._opened

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Storage) or type(self) is not type(other):
            return NotImplemented
        return self._memory is other._memory and self._spec == other._spec

    def __hash__(self) -> int:
        return hash((type(self), repr(self._spec), id(self._memory)))

    def __reduce__(self) -> tuple[Any, ...]:
        if self._memory is not None:
            return (_in_memory, (self._memory.address(),))
        return (type(self), (self._spec,))

    def __repr__(self) -> str:
        return source_code(self._spec)

    def __str__(self) -> str:
        lines = (f"{name}: {text}" for name, text in describe(self._spec).items())
        return "\n".join(["<icefloe.Storage>", *lines])

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<div><b>{escaped_html(name)}:</b> {escaped_html(text)}</div>"
            for name, text in describe(self._spec).items()
        )
        return f'<div class="icefloe-value"><div>icefloe.Storage</div>{rows}</div>'


def _in_memory(address: MemoryAddress) -> Storage:
    """Find a pickled storage in the memory of this process."""
    from icefloe.storage.memory import memory_at

    return Storage(MemorySpec(), memory_at(address))


def open_foreign_client(storage: Storage) -> Any:
    """Return the `obstore` client of a storage, made again; it sends no request yet."""
    from obstore.store import LocalStore

    from icefloe.storage.clients import open_clients

    match storage.spec:
        case LocalSpec(path=path):
            return LocalStore(path)
        case S3Spec() | GcsSpec() | AzureSpec() | HttpSpec() as spec:
            settings = effective_storage_settings(storage.default_settings(), None)
            return open_clients(spec, settings, user_agent()).reader
        case other:
            raise InvalidInputError(
                f"files in {type(other).__name__.removesuffix('Spec').lower()} storages cannot be"
                " parsed: use a directory, an object store or a web server",
                ErrorKind.STORAGE_CONFIG,
            )


def as_storage_error(error: BaseException, url: str) -> IcefloeError | None:
    """Return our error for an exception of such a client, or None for any other exception."""
    from icefloe.storage.obstore_errors import FOREIGN_ERRORS, translate

    is_foreign = type(error).__module__.startswith("obstore")
    if isinstance(error, FileNotFoundError) or (is_foreign and isinstance(error, FOREIGN_ERRORS)):
        return translate(error, "read", url)
    return None
