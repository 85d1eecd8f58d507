"""The one place that knows whether we block or await.

The core is written once, as `async def`, and suspends only in the leaves found
here and in the storage adapters. Run by an event loop, a leaf awaits. Run by
`run_blocking`, every leaf does its work on the calling thread and returns
without suspending, so a single `send` drives the whole coroutine to its end:
no loop, no helper thread, and it works inside a running loop too.
"""

import asyncio
import os
import threading
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
)
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import Context, ContextVar, copy_context
from functools import cache, wraps
from types import coroutine
from typing import Any, Final, Literal, cast

from icefloe.forks import renew_lock_in_children

type Mode = Literal["async", "blocking", "worker", "stepped"]
"""`worker` is blocking inside a pool thread, where nested fan-out must stay inline; `stepped`
is blocking too, but for `pause` and `sleep`, where other tasks may run."""

_mode: ContextVar[Mode] = ContextVar("icefloe_mode", default="async")

_POOL_THREADS = 32  # plenty for requests that wait on a network; decoding is limited by its callers


def is_blocking() -> bool:
    """Return whether a leaf must call the blocking form of its I/O."""
    return _mode.get() != "async"


def may_spread() -> bool:
    """Return whether work may be spread over threads: not within a pool, and not step by step."""
    return _mode.get() in ("async", "blocking")


def run_blocking[T](work: Coroutine[Any, Any, T], mode: Mode = "blocking") -> T:
    """Run a core coroutine to its end on this thread."""
    token = _mode.set(mode)
    try:
        work.send(None)
    except StopIteration as done:
        return cast("T", done.value)
    finally:
        _mode.reset(token)
        work.close()
    raise RuntimeError("core code suspended while blocking: use icefloe.effects, not asyncio")


def blocking[**P, T](function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Return the blocking twin of an async function: same parameters, same documentation.

    >>> class Counter:
    ...     async def count_async(self, step: int = 1) -> int:
    ...         return 40 + step
    ...     count = blocking(count_async)
    >>> Counter().count(step=2)
    42
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return run_blocking(function(*args, **kwargs))

    call.__name__ = function.__name__.removesuffix("_async")
    call.__qualname__ = function.__qualname__.removesuffix("_async")
    return call


def awaitable[**P, T](function: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Return the async twin of a function that never waits: same parameters, same documentation.

    >>> class Counter:
    ...     def count(self, step: int = 1) -> int:
    ...         return 40 + step
    ...     count_async = awaitable(count)
    >>> run_blocking(Counter().count_async(step=2))
    42
    """

    @wraps(function)
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return function(*args, **kwargs)

    call.__name__ = f"{function.__name__}_async"
    call.__qualname__ = f"{function.__qualname__}_async"
    return call


def stepped_context() -> Context:
    """Make a context for a driver that runs several coroutines of the core step by step."""
    context = copy_context()
    context.run(_mode.set, "stepped")
    return context


@coroutine
def pause() -> Generator[None]:
    """Hand control to a driver that runs coroutines step by step; without such a driver, do
    nothing.
    """
    if _mode.get() == "stepped":
        yield


_NO_MORE: Final = object()


def iterate_blocking[T](source: AsyncIterator[T]) -> Iterator[T]:
    """Iterate over what a core generator yields, on this thread; stopping early closes it.

    >>> async def squares():
    ...     for number in range(3):
    ...         yield number**2
    >>> list(iterate_blocking(squares()))
    [0, 1, 4]
    """

    async def following() -> T | object:
        return await anext(source, _NO_MORE)

    try:
        while (item := run_blocking(following())) is not _NO_MORE:
            yield cast("T", item)
    finally:
        run_blocking(_close(source))


async def _close(source: AsyncIterator[Any]) -> None:
    aclose = getattr(source, "aclose", None)
    if aclose is not None:
        await aclose()


class AsyncCloseableIterator[T]:
    """The iterator of a core generator, for `async for` and for a plain `for` alike."""

    __slots__ = ("_blocking", "_source")

    def __init__(self, source: AsyncIterator[T]) -> None:
        self._source = source
        self._blocking: Iterator[T] | None = None

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        if self._blocking is None:
            self._blocking = iterate_blocking(self._source)
        return next(self._blocking)

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        return await anext(self._source)

    async def aclose(self) -> None:
        """Stop early."""
        await _close(self._source)


async def sleep(seconds: float) -> None:
    """Wait, in whichever way the caller runs."""
    match _mode.get():
        case "async":
            await asyncio.sleep(seconds)
        case "stepped":
            await pause()
        case _:
            time.sleep(seconds)  # noqa: ASYNC251 - nobody else runs on this thread


async def offload[T](work: Callable[[], T]) -> T:
    """Keep heavy computation off an event loop; inline when blocking."""
    if is_blocking():
        return work()
    return await asyncio.to_thread(work)


async def offload_waiting[T](work: Callable[[], T]) -> T:
    """Keep work that waits for a network off an event loop; inline when blocking.

    It takes place on threads of our own, more of them than there are for computation.
    """
    if is_blocking():
        return work()
    return await asyncio.get_running_loop().run_in_executor(_pool(), work)


async def wait_for[T](result: Future[T]) -> T:
    """Wait for the result of work on threads, in whichever way the caller runs."""
    if is_blocking():
        return result.result()
    return await asyncio.wrap_future(result)


class Gate:
    """A limit on the number of threads that compute at the same time.

    The work is done on a thread of its own choosing (give `run` to `offload`, say); nobody holds
    a place in here while awaiting, and so nobody can be waited for in vain.

    >>> Gate(2).run(lambda: "done")
    'done'
    """

    def __init__(self, limit: int) -> None:
        self._limit = max(limit, 1)
        self._places = threading.Semaphore(self._limit)
        self._process = os.getpid()

    def run[T](self, work: Callable[[], T]) -> T:
        """Do the work as soon as there is a place."""
        if self._process != os.getpid():  # a fork copies the places taken, not who took them
            self._places, self._process = threading.Semaphore(self._limit), os.getpid()
        with self._places:
            return work()


async def map_concurrently[A, T](
    function: Callable[[A], Awaitable[T]], items: Iterable[A], *, limit: int
) -> list[T]:
    """Apply a core function to all items, at most `limit` at a time, results in order.

    The first failure is raised once the calls already under way have ended.
    """
    todo = list(items)
    if len(todo) == 1:  # nothing runs beside it
        return [await function(todo[0])]
    match _mode.get():
        case "async":
            return await _map_on_loop(function, todo, limit)
        case "blocking" if len(todo) > 1 and limit > 1:
            return _map_in_threads(function, todo, limit)
        case _:
            return [await function(item) for item in todo]


async def _map_on_loop[A, T](
    function: Callable[[A], Awaitable[T]], todo: list[A], limit: int
) -> list[T]:
    positions = iter(range(len(todo)))
    results: dict[int, T] = {}

    async def runner() -> None:
        for position in positions:
            results[position] = await function(todo[position])

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(max(limit, 1), len(todo))):  # few tasks, also for many items
                group.create_task(runner())
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [results[position] for position in range(len(todo))]


def _map_in_threads[A, T](
    function: Callable[[A], Awaitable[T]], todo: list[A], limit: int
) -> list[T]:
    async def one(item: A) -> T:
        return await function(item)

    positions = iter(range(len(todo)))  # shared: `next` on it is atomic
    results: dict[int, T] = {}
    failures: list[BaseException] = []

    def runner() -> None:
        for position in positions:
            if failures:
                return
            try:
                results[position] = run_blocking(one(todo[position]), "worker")
            except BaseException as failure:  # noqa: BLE001 - handed to the caller below
                failures.append(failure)

    runners = [_pool().submit(runner) for _ in range(min(limit, len(todo), _POOL_THREADS))]
    for future in runners:
        future.result()
    if failures:
        raise failures[0]
    return [results[position] for position in range(len(todo))]


async def both[A, B](
    first: Callable[[], Awaitable[A]], second: Callable[[], Awaitable[B]]
) -> tuple[A, B]:
    """Do two pieces of core work at the same time; failures are those of `map_concurrently`."""
    pieces: list[Callable[[], Awaitable[object]]] = [first, second]
    former, other = await map_concurrently(lambda piece: piece(), pieces, limit=2)
    return cast("A", former), cast("B", other)


type Company = tuple[int, object]
"""Those who may wait for each other: all threads of a process that block, or one loop's tasks."""


def company() -> Company:
    """Return the callers that may share work; a caller that is driven step by step is alone."""
    match _mode.get():
        case "async":
            others: object = asyncio.get_running_loop()
        case "stepped":
            others = object()  # all the others run on this thread too
        case _:
            others = None
    return (os.getpid(), others)  # a fork copies what is under way, not who is at it


async def let_others_join() -> None:
    """Run the tasks that are ready before this task continues; do nothing in blocking mode."""
    if not is_blocking():
        await asyncio.sleep(0)


class Landing[T]:
    """A result that one caller owes to others of its company.

    It must `land` in any case, or they wait for ever.
    """

    __slots__ = ("_future",)

    def __init__(self) -> None:
        self._future: Future[T] | asyncio.Future[T] = (
            Future[T]() if is_blocking() else asyncio.get_running_loop().create_future()
        )

    def land(self, result: T) -> None:
        """Hand over the result."""
        if not self._future.done():
            self._future.set_result(result)

    async def wait(self) -> T:
        """Wait for the result."""
        future = self._future
        if isinstance(future, Future):
            if is_blocking():
                return future.result()
            future = asyncio.wrap_future(future)
        return await asyncio.shield(future)  # one that gives up must not stop the others


class SingleFlight[K, T]:
    """Shares a piece of work between callers that request it at the same time.

    Threads that block wait for each other, and so do the tasks of one event loop. Tasks wait for
    threads as well, but threads never for tasks, whose loop they could be holding up. Work that
    fails or is cancelled is not shared: those who waited for it go on to do it themselves.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        renew_lock_in_children(self)
        self._flights: dict[tuple[Company, K], Landing[_Landed[T]]] = {}

    async def run(self, key: K, work: Callable[[], Awaitable[T]]) -> T:
        """Do the work, or wait for the result of the caller that does it already."""
        flight_key = (company(), key)
        of_threads = flight_key if is_blocking() else ((os.getpid(), None), key)
        while True:
            with self._lock:
                flight = self._flights.get(flight_key) or self._flights.get(of_threads)
                if flight is None:
                    mine = self._flights[flight_key] = Landing()
            if flight is None:
                return await self._fly(flight_key, mine, work)
            landed = await flight.wait()
            if landed is not None:
                return landed[0]

    def is_under_way(self, key: K) -> bool:
        """Return whether anybody is at it, whom the caller could wait for or not."""
        with self._lock:
            return any(other == key for _, other in self._flights)

    async def _fly(
        self,
        flight: tuple[Company, K],
        mine: "Landing[_Landed[T]]",
        work: Callable[[], Awaitable[T]],
    ) -> T:
        landed: _Landed[T] = None
        try:
            landed = (await work(),)
            return landed[0]
        finally:
            with self._lock:
                del self._flights[flight]
            mine.land(landed)


type _Landed[T] = tuple[T] | None
"""The result of shared work; None when there is none to share."""


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_POOL_THREADS, thread_name_prefix="icefloe")


if hasattr(os, "register_at_fork"):
    # Threads do not survive a fork: the child starts pools of its own when it needs them.
    os.register_at_fork(after_in_child=_pool.cache_clear)
