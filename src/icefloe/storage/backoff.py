"""How often to try, and how long to wait in between."""

import logging
import random
import time
from collections.abc import Awaitable, Callable

from icefloe import effects
from icefloe.config import EffectiveStorageSettings
from icefloe.errors import StorageError

_log = logging.getLogger(__name__)


class Attempts:
    """The attempts of one operation: call `pause` after each failure that may pass.

    Pauses grow exponentially and are drawn at random below that ("full jitter"), so that
    clients that failed together do not come back together.
    """

    def __init__(
        self,
        settings: EffectiveStorageSettings,
        on_retry: Callable[[], None] = lambda: None,
        *,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._retries = settings.retries
        self._left = settings.retries.max_tries - 1
        self._failures = 0
        self._on_retry = on_retry
        self._clock = clock
        self._draw = draw
        limit_ms = settings.timeouts.operation_timeout_ms
        self._deadline = None if limit_ms is None else clock() + limit_ms / 1000

    async def pause(self) -> bool:
        """Wait before the next attempt; False if there is none."""
        if self._left <= 0:
            return False
        retries = self._retries
        longest_ms = min(retries.max_backoff_ms, retries.initial_backoff_ms * 2**self._failures)
        seconds = self._draw(0, longest_ms / 1000)
        if self._deadline is not None and self._clock() + seconds >= self._deadline:
            return False
        self._left -= 1
        self._failures += 1
        self._on_retry()
        _log.info(
            "a request failed in passing: attempt %d of %d follows in %.2f s",
            self._failures + 1,
            retries.max_tries,
            seconds,
        )
        await effects.sleep(seconds)
        return True

    async def repeat[T](self, request: Callable[[], Awaitable[T]]) -> T:
        """Make a request, which may safely be made twice, until it works."""
        while True:
            try:
                return await request()
            except StorageError as error:
                if not error.retryable or not await self.pause():
                    raise
