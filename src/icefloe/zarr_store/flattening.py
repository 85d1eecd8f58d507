"""Iterators over batches that hand out one item at a time."""

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Self

from icefloe.effects import AsyncCloseableIterator


class FlattenedIterator[T](AsyncCloseableIterator[T]):
    """What batches hold, for `async for` and for `for`; most items cost no suspension.

    >>> async def batches():
    ...     yield [1, 2]
    ...     yield [3]
    >>> list(FlattenedIterator(batches()))
    [1, 2, 3]
    """

    __slots__ = ("_batch", "_batches")

    def __init__(self, batches: AsyncIterator[Iterable[T]]) -> None:
        self._batches = AsyncCloseableIterator(batches)
        self._batch: Iterator[T] = iter(())

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        while True:
            for item in self._batch:
                return item
            self._batch = iter(next(self._batches))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        while True:
            for item in self._batch:
                return item
            self._batch = iter(await anext(self._batches))

    async def aclose(self) -> None:
        """Stop early."""
        self._batch = iter(())
        await self._batches.aclose()
