"""Parts of a file that are read when somebody asks for them."""

from collections.abc import Callable


class Deferred[T]:
    """Something that is read when it is first asked for, and then kept.

    >>> Deferred(lambda: 6 * 7)()
    42
    """

    __slots__ = ("_found", "_read")

    def __init__(self, read: Callable[[], T]) -> None:
        self._read: Callable[[], T] | None = read

    def __call__(self) -> T:
        """Give it; two threads may both read, and find the same."""
        read = self._read
        if read is not None:
            self._found = read()
            self._read = None
        return self._found
