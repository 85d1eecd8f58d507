"""The one place that knows whether we block or await.

The core is written once, as `async def`, and suspends only in the leaves found
here and in the storage adapters. Run by an event loop, a leaf awaits. Run by
`run_blocking`, every leaf does its work on the calling thread and returns
without suspending, so a single `send` drives the whole coroutine to its end:
no loop, no helper thread, and it works inside a running loop too.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import cache
from typing import Any, Literal, cast

type Mode = Literal["async", "blocking", "worker"]
"""`worker` is blocking inside a pool thread, where nested fan-out must stay inline."""

_mode: ContextVar[Mode] = ContextVar("icefloe_mode", default="async")

_POOL_THREADS = 32  # plenty for requests that wait on a network; decoding is limited by its callers


def is_blocking() -> bool:
    """Tell a leaf whether to call the blocking form of its I/O."""
    return _mode.get() != "async"


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


async def sleep(seconds: float) -> None:
    """Wait, in whichever way the caller runs."""
    if is_blocking():
        time.sleep(seconds)  # noqa: ASYNC251 - nobody else runs on this thread
    else:
        await asyncio.sleep(seconds)


async def offload[T](work: Callable[[], T]) -> T:
    """Keep heavy computation off an event loop; inline when blocking."""
    if is_blocking():
        return work()
    return await asyncio.to_thread(work)


async def map_concurrently[A, T](
    function: Callable[[A], Awaitable[T]], items: Iterable[A], *, limit: int
) -> list[T]:
    """Apply a core function to all items, at most `limit` at a time, results in order.

    The first failure is raised once the calls already under way have ended.
    """
    todo = list(items)
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
    gate = asyncio.Semaphore(limit)

    async def one(item: A) -> T:
        async with gate:
            return await function(item)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(item)) for item in todo]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


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


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_POOL_THREADS, thread_name_prefix="icefloe")


if hasattr(os, "register_at_fork"):
    # Threads do not survive a fork: the child starts a pool of its own when it needs one.
    os.register_at_fork(after_in_child=_pool.cache_clear)
