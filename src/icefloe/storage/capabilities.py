"""Optional abilities of backends, and the fallback for backends without them.

*Turns*: writers of one object go one after the other, in the order in which they came. A
conditional write decides who wins, with or without a turn; but a writer that reads, computes and
writes in turn has not computed in vain. Without a queue every writer has its turn at once.

*Selective listings*: a backend passes over objects by their keys alone, and does not look at them.

*Signed addresses*: a backend writes addresses from which anybody can read an object for some
minutes. The signature is that of the credentials of the reader, so that an address opens nothing
that its maker could not read.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from contextvars import ContextVar
from datetime import timedelta
from types import TracebackType
from typing import Final, Protocol, cast, runtime_checkable

from icefloe.errors import InvalidInputError
from icefloe.storage.port import Backend, ObjectInfo, ReadableBackend

type Batch = list[ObjectInfo]
type Wanted = Callable[[Sequence[str]], Sequence[bool]]
"""Says of each key whether the object is of interest."""


class Queueing(Protocol):
    """A backend whose writers can wait for each other."""

    has_queue: bool
    """Whether they really do."""

    def turn(self, key: str) -> AbstractAsyncContextManager[None]:
        """Wait for all who came before; those who come later wait until the block ends."""
        ...


_in_turn: ContextVar[frozenset[tuple[int, str]]] = ContextVar(
    "icefloe_in_turn", default=frozenset()
)


def has_queue(backend: Backend) -> bool:
    """Return whether writers of this backend wait for each other."""
    return getattr(backend, "has_queue", False)  # most backends know no queues


def turn(backend: Backend, key: str) -> AbstractAsyncContextManager[None]:
    """Have a turn at an object; within a turn at it, another is had at once."""
    this = (id(backend), key)
    if not has_queue(backend) or this in _in_turn.get():
        return nullcontext()
    return _Turn(cast("Queueing", backend).turn(key), this)


class _Turn:
    __slots__ = ("_inner", "_this", "_token")

    def __init__(self, inner: AbstractAsyncContextManager[None], this: tuple[int, str]) -> None:
        self._inner, self._this = inner, this

    async def __aenter__(self) -> None:
        await self._inner.__aenter__()
        self._token = _in_turn.set(_in_turn.get() | {self._this})

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _in_turn.reset(self._token)
        await self._inner.__aexit__(kind, error, trace)


@runtime_checkable
class SelectiveLister(Protocol):
    """A backend that can pass over objects by their keys alone."""

    def list_wanted(self, prefix: str, is_wanted: Wanted) -> AsyncIterator[Batch]:
        """Walk the objects whose key starts with `prefix` and that are wanted."""
        ...


async def list_wanted(backend: Backend, prefix: str, is_wanted: Wanted) -> AsyncIterator[Batch]:
    """Walk some of the objects whose key starts with `prefix`, in batches, as `list` does.

    Batches may be empty.
    """
    if isinstance(backend, SelectiveLister):
        async for batch in backend.list_wanted(prefix, is_wanted):
            yield batch
        return
    async for batch in backend.list(prefix):
        chosen = is_wanted([info.key for info in batch])
        yield [info for info, yes in zip(batch, chosen, strict=True) if yes]


LONGEST_SIGNATURE: Final = timedelta(minutes=5)
"""The longest time for which a signed address can be used."""


@runtime_checkable
class Signer(Protocol):
    """A backend that may be able to write signed addresses."""

    async def sign_reads(self, keys: Sequence[str], lifetime: timedelta) -> Sequence[str] | None:
        """Return an address for each object; None if the storage has no signed addresses."""
        ...


async def sign_reads(
    backend: ReadableBackend, keys: Sequence[str], lifetime: timedelta
) -> Sequence[str] | None:
    """Return addresses from which objects can be read (with GET only) during the lifetime.

    None if the storage has no such addresses, or is read without credentials. No request is sent,
    and nobody looks whether the objects exist.
    """
    if not timedelta(0) < lifetime <= LONGEST_SIGNATURE:
        longest = int(LONGEST_SIGNATURE.total_seconds())
        raise InvalidInputError(f"a signed address is valid for 1 to {longest} seconds")
    if not isinstance(backend, Signer):
        return None
    return await backend.sign_reads(keys, lifetime)
