"""Limits on how often somebody may ask: a bucket of tokens for each person or address.

The buckets are in the memory of this process. With several worker processes, each of them has
buckets of its own, so the limits of the whole service are higher by the number of workers.
"""

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from icefloe.errors import ErrorKind, ServiceError

_MOST_BUCKETS: Final = 50_000


class Limits:
    """Buckets that fill up slowly: one for each kind of request and each person or address.

    >>> limits = Limits(lambda: 0.0)
    >>> limits.take("login", "ada", per_minute=1)
    >>> limits.take("login", "ada", per_minute=1)
    Traceback (most recent call last):
    icefloe.errors.ServiceError: too many requests of this kind: try again in 60 seconds
    kind: too-many-requests
    retry_after: 60
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock: Final = clock
        self._lock: Final = threading.Lock()
        self._buckets: Final = OrderedDict[tuple[str, str], tuple[float, float]]()
        """How many tokens a bucket contained, and when."""

    def take(self, what: str, person: str, *, per_minute: int) -> None:
        """Take a token out of a bucket; raise `ServiceError` if it is empty."""
        now = self._clock()
        with self._lock:
            tokens, then = self._buckets.get((what, person), (float(per_minute), now))
            tokens = min(per_minute, tokens + max(0.0, now - then) * per_minute / 60)
            is_allowed = tokens >= 1
            self._buckets[what, person] = (tokens - is_allowed, now)
            self._buckets.move_to_end((what, person))
            if len(self._buckets) > _MOST_BUCKETS:
                self._buckets.popitem(last=False)
        if not is_allowed:
            seconds = math.ceil((1 - tokens) * 60 / per_minute)
            problem = f"too many requests of this kind: try again in {seconds} seconds"
            raise ServiceError(
                problem, ErrorKind.TOO_MANY_REQUESTS, retryable=True, retry_after=seconds
            )
