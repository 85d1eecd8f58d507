"""Turns: writers of one object go one after the other, in the order in which they came.

A conditional write decides who wins, with or without a turn; but who reads, computes and writes
in turn has not computed in vain. Only some storages can make a queue; elsewhere a turn is had at
once, by everybody.
"""

from contextlib import AbstractAsyncContextManager, nullcontext
from contextvars import ContextVar
from types import TracebackType
from typing import Protocol, cast

from icefloe.storage.port import Backend


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
