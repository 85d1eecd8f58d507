"""Work that requests share if they ask for the very same thing at the same time."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Final

_PATIENCE: Final = 0.05
"""For how many seconds a round waits for the one before it."""


class Rounds:
    """Does work in rounds: one for all who ask before it begins.

    Who asks while a round is under way waits for the next one. So an answer is never older than
    its question, and a right that was taken away before the question is not in the answer.
    """

    def __init__(self) -> None:
        self._next: Final[dict[Hashable, asyncio.Task[Any]]] = {}
        self._running: Final[dict[Hashable, asyncio.Task[Any]]] = {}

    async def ask[T](self, key: Hashable, work: Callable[[], Awaitable[T]]) -> T:
        """Return the result of work that begins after this call, or raise its error.

        Work with an equal key must be the same for all who ask for it.
        """
        task = self._next.get(key)
        if task is None:
            task = asyncio.create_task(self._run(key, work))
            task.add_done_callback(_retrieve)
            self._next[key] = task
        # Who gives up waiting must not take the result from the others.
        result: T = await asyncio.shield(task)
        return result

    async def _run[T](self, key: Hashable, work: Callable[[], Awaitable[T]]) -> T:
        if (before := self._running.get(key)) is not None:
            await asyncio.wait([before], timeout=_PATIENCE)
        task = self._running[key] = self._next.pop(key)
        try:
            return await work()
        finally:
            if self._running.get(key) is task:
                del self._running[key]


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Look at the error of a task, so that nothing is logged if all gave up waiting for it."""
    if not task.cancelled():
        task.exception()
