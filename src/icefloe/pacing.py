"""Blocking work on many threads: as many at a time as a storage bears, within limits.

A request that blocks a thread costs half of what one on an event loop costs, and its bytes are
decoded by the same thread. `Pace` learns how many threads are worth while: over a long distance
many, to a server nearby few. `MemoryBudget` limits the bytes that all of them hold.
"""

import math
import os
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from threading import Condition, Lock
from typing import Any, Final

from icefloe.effects import map_concurrently, may_spread, run_blocking, wait_for
from icefloe.forks import renew_lock_in_children

_FIRST_THREADS: Final = 64
_FIRST_AFAR: Final = 128
_FAR_SECONDS: Final = 0.01
"""A storage whose requests take longer is far away."""
_LEAST_THREADS: Final = 16
_LEAST_ROUND: Final = 16
_REQUEST_BYTES: Final = 64 << 10
"""A request counts as much as this many bytes: small ones are limited by their number."""
_BETTER: Final = 1.1
_COLLAPSED: Final = 0.25
"""Noise changes rates by less than this: the storage or the network is another one now."""
_FEW_ITEMS: Final = 32
"""Fewer items are all under way at once, with the threads that any work shares."""
_TURN_SECONDS: Final = 0.1
"""After this time a thread lets other reads go first."""


class Pace:
    """The number of threads that moves most bytes in a second.

    It doubles or halves the number, and measures each for a round: until as many requests have
    ended as there are threads. It does not try fewer than twice the requests that the distance
    alone keeps under way: the rate, by the time of the quickest request. A rate that collapses
    makes it forget what it measured.

    >>> pace = Pace()
    >>> pace.threads(most=128), pace.threads(most=7)
    (64, 7)
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = Lock()
        renew_lock_in_children(self)
        self._threads = _FIRST_THREADS
        self._rates: dict[int, float] = {}
        self._least_seconds = math.inf
        self._begin_round()

    def threads(self, most: int) -> int:
        """Return how many threads to use now, at most `most`."""
        return max(1, min(self._threads, most))

    def waited(self, seconds: float) -> None:
        """Note the time of a request that was made alone, before there is any work."""
        with self._lock:
            self._least_seconds = min(self._least_seconds, seconds)
            if not self._rates and self._ended == 0:
                is_far = self._least_seconds >= _FAR_SECONDS
                self._threads = _FIRST_AFAR if is_far else _FIRST_THREADS

    def finished(self, size_bytes: int, seconds: float, *, is_busy: bool, most: int) -> None:
        """Note a request that ended; `is_busy` while all threads have something to do.

        What moved no bytes over the network was no request.
        """
        if size_bytes == 0:
            return
        with self._lock:
            self._least_seconds = min(self._least_seconds, seconds)
            if not is_busy:
                self._begin_round()
                return
            self._ended += 1
            if self._ended <= self._threads:  # of the round before, and of new connections
                self._since = self._clock()
                return
            self._weight += size_bytes + _REQUEST_BYTES
            count = self._ended - self._threads
            if count >= max(self._threads, _LEAST_ROUND):
                passed = max(self._clock() - self._since, 1e-6)
                self._choose(self._weight / passed, count / passed, most)

    def _begin_round(self) -> None:
        self._ended = self._weight = 0
        self._since = self._clock()

    def _choose(self, rate: float, requests: float, most: int) -> None:
        """Choose a number, by the rates of bytes and of requests."""
        rates, threads = self._rates, self._threads
        known = rates.get(threads)
        if known is not None and rate < _COLLAPSED * known:
            rates.clear()
            self._least_seconds = math.inf
            known = None
        rates[threads] = rate if known is None else (rate + known) / 2
        best = max(rates, key=rates.__getitem__)
        chosen = best if rates[best] > _BETTER * rates[threads] else threads
        least = max(_LEAST_THREADS, min(2 * requests * self._least_seconds, chosen))
        for other in (2 * chosen, chosen // 2):
            if other not in rates and least <= other <= most:
                chosen = other
                break
        self._threads = chosen
        self._begin_round()


class MemoryBudget:
    """The bytes that threads hold at the same time.

    >>> budget = MemoryBudget()
    >>> with budget.holding(10, most=100):
    ...     budget.held_bytes
    10
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self.held_bytes = 0

    @contextmanager
    def holding(self, size_bytes: int, most: int) -> Iterator[None]:
        """Reserve some bytes as soon as there is room; more than `most` only when alone."""
        with self._changed:
            while self.held_bytes and self.held_bytes + size_bytes > most:
                self._changed.wait()
            self.held_bytes += size_bytes
        try:
            yield
        finally:
            with self._changed:
                self.held_bytes -= size_bytes
                self._changed.notify_all()


async def work_through[A](
    function: Callable[[A], int],
    items: Sequence[A],
    *,
    pace: Pace,
    most: int,
    at_once: int | None = None,
) -> None:
    """Call a blocking function for all items, on threads; it returns how many bytes it moved over
    the network.

    The threads of all callers with the same `most` are at most this many, those of this caller at
    most `at_once`: threads that wait for memory in turn would all keep some. The first failure is
    raised once the calls under way have ended.
    """
    await begin_work(function, items, pace=pace, most=most, at_once=at_once).wait()


async def map_at_pace[A, T](
    function: Callable[[A], Coroutine[Any, Any, T]],
    items: Sequence[A],
    *,
    pace: Pace,
    most: int,
    size_of: Callable[[A], int],
    at_once: int | None = None,
) -> list[T]:
    """Apply a core function to all items, as many at a time as a storage bears, results in order.

    `size_of` returns how many bytes an item moves over the network. As `work_through`, but for
    callers that are themselves on a thread of a pool: there, one item follows on the other.
    """
    if len(items) < _FEW_ITEMS or not may_spread():
        return await map_concurrently(function, items, limit=min(most, at_once or most))
    results = dict[int, T]()

    def call(number: int) -> int:
        results[number] = run_blocking(function(items[number]), "worker")
        return size_of(items[number])

    await work_through(call, range(len(items)), pace=pace, most=most, at_once=at_once)
    return [results[number] for number in range(len(items))]


def begin_work[A](
    function: Callable[[A], int],
    items: Sequence[A],
    *,
    pace: Pace,
    most: int,
    at_once: int | None = None,
) -> "Work[A]":
    """Begin what `work_through` does; the caller waits for it, whatever happens meanwhile."""
    work = Work(function, items, pace, most, most if at_once is None else max(1, at_once))
    work.start()
    return work


class Work[A]:
    """The threads that work through a list."""

    def __init__(
        self,
        function: Callable[[A], int],
        items: Sequence[A],
        pace: Pace,
        most: int,
        at_once: int,
    ) -> None:
        self._function, self._items = function, items
        self._pace, self._most, self._at_once = pace, most, at_once
        self._lock = Lock()
        self._next = self._threads = 0
        self._failure: BaseException | None = None
        self._is_stopped = False
        self.done = Future[None]()
        self.done.set_running_or_notify_cancel()  # from now on it cannot be cancelled

    def start(self) -> None:
        """Start as many threads as the pace allows and the items need."""
        with self._lock:
            wanted = min(self._limit(), len(self._items) - self._next)
            added = max(0, wanted - self._threads)
            self._threads += added
        for _ in range(added):
            _pool(self._most).submit(self._work)

    def _limit(self) -> int:
        return min(self._pace.threads(self._most), self._at_once)

    async def wait(self) -> None:
        """Wait until all is done, and raise the first failure."""
        if not self._items:
            return
        try:
            await wait_for(self.done)
        finally:
            self._is_stopped = True

    def _work(self) -> None:
        until = time.monotonic() + _TURN_SECONDS
        while (item := self._take()) is not None:
            size_bytes, since = 0, time.monotonic()
            try:
                size_bytes = self._function(item[0])
            except BaseException as failure:  # noqa: BLE001 - handed to the caller
                self._failure = self._failure or failure
            is_busy = self._next < len(self._items)
            # Where memory limits the threads, rates say nothing about the storage.
            is_free = self._at_once >= self._pace.threads(self._most)
            seconds = time.monotonic() - since
            self._pace.finished(size_bytes, seconds, is_busy=is_busy and is_free, most=self._most)
            if is_busy and self._threads < self._limit():
                self.start()
            if is_busy and time.monotonic() > until:
                _pool(self._most).submit(self._work)
                return

    def _take(self) -> tuple[A] | None:
        """Take the next item; without one, or with too many threads, this thread ends."""
        with self._lock:
            is_over = self._is_stopped or self._failure is not None
            is_over = is_over or self._next >= len(self._items)
            if not is_over and self._threads <= self._limit():
                self._next += 1
                return (self._items[self._next - 1],)
            self._threads -= 1
            if self._threads > 0 or not is_over:
                return None
        if self._failure is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(self._failure)
        return None


@cache
def memory_budget() -> MemoryBudget:
    """Return the budget of this process."""
    return MemoryBudget()


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="icefloe-reading")


if hasattr(os, "register_at_fork"):
    # Threads do not survive a fork, nor does what they held.
    os.register_at_fork(after_in_child=memory_budget.cache_clear)
    os.register_at_fork(after_in_child=_pool.cache_clear)
