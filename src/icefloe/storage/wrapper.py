"""The base of backends around a backend: one method, `around`, sees every request.

Metering, retries, redirections, refusals and, in tests, faults are wrappers. Each overrides
`around`, and beside it only the verbs that it treats in a special way.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Coroutine, Sequence
from datetime import timedelta
from typing import Any, Final, Literal, Unpack, cast

from icefloe.errors import ErrorKind, ReadOnlyError, StorageError
from icefloe.storage.capabilities import sign_reads
from icefloe.storage.port import (
    Backend,
    Buffer,
    ByteRange,
    DeleteReport,
    Fetched,
    ObjectInfo,
    PutOptions,
    ReadableBackend,
    Version,
)

type Verb = Literal["get", "get_ranges", "head", "put", "copy", "delete_many"]
type Request[T] = Coroutine[Any, Any, T]

READS: Final[frozenset[Verb]] = frozenset({"get", "get_ranges", "head"})


class BackendWrapper:
    """Sends all requests on to another backend.

    The verbs themselves are no coroutines: a wrapper adds one coroutine to a request, that of its
    `around`.
    """

    def __init__(self, inner: Backend) -> None:
        self.inner = inner

    def around(self, verb: Verb, *arguments: Any, **options: Any) -> Request[Any]:
        """Send a request on; subclasses do something before, after or instead.

        `arguments` and `options` are those of the verb. The first argument is a key (the source of
        a copy), or the keys of a deletion. Listings do not come here: override `list`.
        """
        request: Request[Any] = getattr(self.inner, verb)(*arguments, **options)
        return request

    def get(self, key: str, byte_range: ByteRange | None = None) -> Request[Fetched]:
        """Read an object, or one range of it."""
        return self.around("get", key, byte_range)

    def get_ranges(self, key: str, byte_ranges: Sequence[ByteRange]) -> Request[list[Buffer]]:
        """Read several ranges of one object."""
        return self.around("get_ranges", key, byte_ranges)

    def head(self, key: str) -> Request[Fetched]:
        """Look at an object without its bytes."""
        return self.around("head", key)

    def put(self, key: str, data: Buffer, **options: Unpack[PutOptions]) -> Request[Version]:
        """Write an object whole."""
        return self.around("put", key, data, **options)

    def copy(self, source: str, target: str, *, if_version: Version | None = None) -> Request[None]:
        """Copy within the storage."""
        return self.around("copy", source, target, if_version=if_version)

    def delete_many(self, keys: Sequence[str]) -> Request[DeleteReport]:
        """Delete objects in batches."""
        return self.around("delete_many", keys)

    def list(self, prefix: str = "") -> AsyncIterator[list[ObjectInfo]]:
        """Walk objects in batches."""
        return self.inner.list(prefix)

    async def sign_reads(self, keys: Sequence[str], lifetime: timedelta) -> Sequence[str] | None:
        """Return signed addresses of objects of the other backend; that is no request."""
        return await sign_reads(self.inner, keys, lifetime)


class PrecededBackend(BackendWrapper, ABC):
    """Awaits something before each request, for instance a delay."""

    @abstractmethod
    async def _before(self, *keys: str, writes: bool) -> None:
        """Do what has to precede a request for some keys; for a listing, its prefix."""

    async def around(self, verb: Verb, *arguments: Any, **options: Any) -> Any:
        """Send a request on after `_before`."""
        keys = arguments[0] if verb == "delete_many" else arguments[:1]
        await self._before(*keys, writes=verb not in READS)
        return await getattr(self.inner, verb)(*arguments, **options)

    async def list(self, prefix: str = "") -> AsyncIterator[list[ObjectInfo]]:
        """Walk objects in batches; what precedes it happens once."""
        await self._before(prefix, writes=False)
        async for batch in self.inner.list(prefix):
            yield batch


class ReadOnlyBackend(BackendWrapper):
    """Sends reads by key on to a backend that can do no more, and refuses the rest."""

    def __init__(self, inner: ReadableBackend, root: str) -> None:
        super().__init__(cast("Backend", inner))
        self._root = root

    def around(self, verb: Verb, *arguments: Any, **options: Any) -> Request[Any]:
        """Send a read on; raise `ReadOnlyError` for all else."""
        if verb in READS:
            return super().around(verb, *arguments, **options)
        key = ", ".join(arguments[0][:3]) if verb == "delete_many" else arguments[0]
        raise ReadOnlyError(
            f"cannot {_WORDS[verb]} {key!r}: {self._root} can only be read",
            ErrorKind.READ_ONLY_STORAGE,
            key=key,
        )

    async def list(self, prefix: str = "") -> AsyncIterator[list[ObjectInfo]]:
        """Raise `StorageError`."""
        raise StorageError(
            f"cannot list {prefix!r}: {self._root} can only be read by key",
            ErrorKind.UNIMPLEMENTED,
        )
        yield []  # makes this a generator, as the port has it


_WORDS: Final = {"put": "write", "copy": "copy", "delete_many": "delete"}
