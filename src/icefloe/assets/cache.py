"""What was read lately, kept in memory up to a number of bytes."""

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock

from icefloe.forks import renew_lock_in_children


class ByteCache[K: Hashable, V]:
    """Values by key; those used least recently go first. Safe to use from many threads.

    >>> cache = ByteCache[str, str](10)
    >>> cache.put("a", "kept", 6)
    >>> cache.put("b", "pushes the other out", 6)
    >>> cache.get("a"), cache.size_bytes
    (None, 6)
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._size_bytes = 0
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._lock = Lock()
        renew_lock_in_children(self)

    @property
    def size_bytes(self) -> int:
        """Give the sum of the sizes of all values held."""
        return self._size_bytes

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: K) -> V | None:
        """Look a value up, which makes it the most recently used."""
        with self._lock:
            if (held := self._values.get(key)) is None:
                return None
            self._values.move_to_end(key)
            return held[0]

    def put(self, key: K, value: V, size_bytes: int) -> None:
        """Keep a value, unless it alone is larger than the cache."""
        with self._lock:
            self._drop(key)
            if size_bytes > self._max_bytes:
                return
            self._values[key] = (value, size_bytes)
            self._size_bytes += size_bytes
            while self._size_bytes > self._max_bytes:
                _, (_, freed) = self._values.popitem(last=False)
                self._size_bytes -= freed

    def discard(self, key: K) -> None:
        """Forget a value, if it is there."""
        with self._lock:
            self._drop(key)

    def _drop(self, key: K) -> None:
        if (held := self._values.pop(key, None)) is not None:
            self._size_bytes -= held[1]
