"""Iterators over batches that hand out one item at a time."""

from collections.abc import AsyncIterator, Iterable, Iterator

from icefloe.effects import AsyncCloseableIterator


class FlattenedIterator[T](AsyncCloseableIterator[T]):
    """What batches hold, for `async for` and for `for`; most items cost no suspension.

    Loops walk over generators, which take a fraction of the time that a method needs for each
    item. Whoever stops goes on with the next item: batches belong to the iterator, not to a loop.

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

    def __iter__(self) -> Iterator[T]:
        yield from self._batch
        for batch in self._batches:
            self._batch = iter(batch)
            yield from self._batch

    def __next__(self) -> T:
        while True:
            for item in self._batch:
                return item
            self._batch = iter(next(self._batches))

    async def __aiter__(self) -> AsyncIterator[T]:
        for item in self._batch:
            yield item
        async for batch in self._batches:
            self._batch = iter(batch)
            for item in self._batch:
                yield item

    async def __anext__(self) -> T:
        while True:
            for item in self._batch:
                return item
            self._batch = iter(await anext(self._batches))

    async def aclose(self) -> None:
        """Stop early."""
        self._batch = iter(())
        await self._batches.aclose()
