"""Work that goes on beside everything else: nobody has to wait for it, and it may be dropped.

One thread does it, step by step, and ends when nothing is left. It holds up neither the end of
the program nor a fork for longer than the step that it is at: a fork in the midst of one would
copy locks that nobody is left to release. The child of a fork starts with nothing to do.
"""

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, Final

from icefloe.effects import run_blocking

type Step = Callable[[], Coroutine[Any, Any, object]]
"""Begins a piece of core work, a request for instance."""

_MOST_WAITING: Final = 16
_LONGEST_STEP_SECONDS: Final = 5.0
"""For so long a fork waits for a step."""

_log = logging.getLogger(__name__)


class BackgroundWork:
    """Some steps, one after the other; the first that fails is the last.

    >>> async def step():
    ...     print("done")
    >>> BackgroundWork.start([step]).wait()
    done
    True
    """

    def __init__(self, steps: Iterable[Step]) -> None:
        self._steps: Iterator[Step] = iter(steps)
        self._end = threading.Event()
        self._process = os.getpid()

    @classmethod
    def start(cls, steps: Iterable[Step]) -> "BackgroundWork":
        """Have the steps done soon; `steps` may be a generator, which runs there as well.

        If very much is waiting already, what has waited longest is dropped.
        """
        work = cls(steps)
        _worker.add(work)
        return work

    @property
    def is_over(self) -> bool:
        """Whether nothing more will be done, for whatever reason."""
        return self._end.is_set() or self._process != os.getpid()

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Wait until it is over; say whether it is."""
        if self._process == os.getpid():
            self._end.wait(timeout_seconds)
        return self.is_over

    def stop(self) -> None:
        """Do no further step."""
        self._end.set()

    def do_step(self) -> bool:
        """Do one step; say whether there may be another."""
        try:
            step = next(self._steps, None)
            if step is None:
                self.stop()
            else:
                run_blocking(step(), "worker")
        except Exception as failure:  # noqa: BLE001 - nobody depends on this work
            _log.debug("work in the background failed: %s", failure)
            self.stop()
        return not self._end.is_set()


class _Worker:
    """Does all work in the background, on one thread while there is any."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all work, and who was at it."""
        self._lock = threading.Lock()
        self._waiting = deque[BackgroundWork]()
        self._thread: threading.Thread | None = None
        self._step = threading.Lock()
        self._is_paused = False

    def add(self, work: BackgroundWork) -> None:
        """Put work behind what is waiting."""
        with self._lock:
            self._waiting.append(work)
            if len(self._waiting) > _MOST_WAITING:
                self._waiting.popleft().stop()
            if self._thread is None:
                # Not a daemon: those are cut off wherever they are, which compiled code that
                # holds locks does not survive.
                self._thread = threading.Thread(target=self._run, name="icefloe-background")
                self._thread.start()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                work = self._waiting.popleft()
            while not work.is_over:
                if not threading.main_thread().is_alive():  # the program ends
                    work.stop()
                    break
                with self._step:
                    work.do_step()

    def pause(self) -> None:
        """Finish the present step, and start no other step."""
        self._is_paused = self._step.acquire(timeout=_LONGEST_STEP_SECONDS)

    def resume(self) -> None:
        """Go on."""
        if self._is_paused:
            self._is_paused = False
            self._step.release()


_worker: Final = _Worker()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_worker.pause, after_in_parent=_worker.resume, after_in_child=_worker.reset
    )
