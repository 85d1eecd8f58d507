"""Turns: writers of one object go one after the other, in the order in which they came.

A conditional write decides who wins, with or without a turn; but who reads, computes and writes
in turn has not computed in vain. Only some storages can make a queue; elsewhere a turn is had at
once, by everybody.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar
from typing import Protocol, runtime_checkable

from icefloe.storage.port import Backend


@runtime_checkable
class Queueing(Protocol):
    """A backend whose writers can wait for each other."""

    @property
    def has_queue(self) -> bool:
        """Whether they really do."""
        ...

    def turn(self, key: str) -> AbstractAsyncContextManager[None]:
        """Wait for all who came before; those who come later wait until the block ends."""
        ...


_in_turn: ContextVar[frozenset[tuple[int, str]]] = ContextVar(
    "icefloe_in_turn", default=frozenset()
)


def has_queue(backend: Backend) -> bool:
    """Tell whether writers of this backend wait for each other."""
    return isinstance(backend, Queueing) and backend.has_queue


@asynccontextmanager
async def turn(backend: Backend, key: str) -> AsyncIterator[None]:
    """Have a turn at an object; within a turn at it, another is had at once."""
    held = _in_turn.get()
    this = (id(backend), key)
    if not isinstance(backend, Queueing) or this in held:
        yield
        return
    async with backend.turn(key):
        token = _in_turn.set(held | {this})
        try:
            yield
        finally:
            _in_turn.reset(token)
