"""Values that were made last, kept for those who ask next."""

from collections.abc import Callable, Hashable
from threading import Lock
from typing import Final


class Recent[K: Hashable, V]:
    """The values of the keys that were asked for last, up to a number of them.

    >>> recent = Recent[int, list[int]](1)
    >>> kept = recent.get(1, lambda: [1])
    >>> recent.get(1, list) is kept, recent.get(2, list), recent.get(1, list)
    (True, [], [])
    """

    def __init__(self, most: int) -> None:
        self._most: Final = most
        self._values: dict[K, V] = {}
        self._lock: Final = Lock()

    def get(self, key: K, make: Callable[[], V]) -> V:
        """Return the value of a key; `make` makes it unless it is kept."""
        with self._lock:
            if key in self._values:
                value = self._values[key] = self._values.pop(key)  # the last one to go
                return value
        value = make()  # others need not wait for it
        with self._lock:
            self._values[key] = value
            while len(self._values) > self._most:
                del self._values[next(iter(self._values))]
        return value
