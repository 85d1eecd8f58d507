"""Threads that work for others, and wait for more work when they have done some.

To start a thread of `threading` is to wait until it runs. Where a hundred start, and go to work at
once, that takes longer than the requests that they send. These are started without waiting.
"""

import _thread
import atexit
import os
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

type Work = Callable[[], object]
"""What a thread does; it must not raise."""


class Threads:
    """A limited number of threads, which start when there is work for them.

    The end of the program waits for work that is under way, and drops what nobody has begun.

    >>> done = threading.Event()
    >>> Threads(2, "example").submit(done.set)
    >>> done.wait(60)
    True
    """

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._reset()
        atexit.register(self._close)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        """Forget all work and all threads, which stay behind in the parent of a forked child."""
        self._waiting = SimpleQueue[Work | None]()
        self._idle = threading.Semaphore(0)
        self._changed = threading.Condition()
        self._count = 0

    def submit(self, work: Work) -> None:
        """Have something done soon."""
        self._waiting.put(work)
        if self._idle.acquire(blocking=False):
            return
        with self._changed:
            if self._count >= self._most:
                return
            self._count += 1
        try:
            _thread.start_new_thread(self._run, ())
        except RuntimeError:  # the system allows no more
            with self._changed:
                self._count -= 1
                if self._count == 0:
                    raise

    def _run(self) -> None:
        threading.current_thread().name = self._name
        try:
            while (work := self._next()) is not None:
                work()
                del work  # while this thread waits, it keeps nothing
        finally:
            with self._changed:
                self._count -= 1
                self._changed.notify_all()

    def _next(self) -> Work | None:
        try:
            return self._waiting.get_nowait()
        except Empty:
            self._idle.release()
            return self._waiting.get()

    def _close(self) -> None:
        """End all threads: one that is cut off in compiled code could hold up the program."""
        while not self._waiting.empty():
            self._waiting.get_nowait()
        with self._changed:
            self._most = 0
            for _ in range(self._count):
                self._waiting.put(None)
            self._changed.wait_for(lambda: self._count == 0)
