"""Parts of a file that are read when somebody asks for them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from icefloe.errors import FormatError
from icefloe.format.flatbuffer_scalar import ScalarBuffer

_FEW_LOOKUPS: Final = 8
"""A reader that looks up more entries of a list than this will ask for all of them."""


class Deferred[T]:
    """Something that is read when it is first asked for, and then kept.

    >>> Deferred(lambda: 6 * 7)()
    42
    """

    __slots__ = ("_found", "_read")

    def __init__(self, read: Callable[[], T]) -> None:
        self._read: Callable[[], T] | None = read

    def __call__(self) -> T:
        """Return the value; two threads may both read it, with the same result."""
        read = self._read
        if read is not None:
            self._found = read()
            self._read = None
        return self._found


class StoredList[T](ABC):
    """A list in a file, of which single entries are read until somebody asks for many.

    From those who ask for one, a list that is out of order, which nobody writes, may hide it.
    """

    __slots__ = ("_data", "_key", "_lookups", "_slot", "_table")

    def __init__(self, data: bytes, slot: int, key: str) -> None:
        """Take the contents of the file `key`, in whose root a slot holds the list."""
        self._data, self._slot, self._key = data, slot, key
        self._table: T | None = None
        self._lookups = 0

    def table(self) -> T:
        """Return all entries in columns."""
        if self._table is None:
            with self._reading() as buffer:
                self._table = self._read(buffer)
        return self._table

    @abstractmethod
    def _read(self, buffer: ScalarBuffer) -> T:
        """Read all entries."""

    def _is_asked_often(self) -> bool:
        """Count a lookup, and say whether it is better made in the table."""
        self._lookups += 1
        return self._table is not None or self._lookups > _FEW_LOOKUPS

    @contextmanager
    def _reading(self) -> Iterator[ScalarBuffer]:
        """Read the contents; errors from reading name the file."""
        try:
            yield ScalarBuffer(self._data)
        except FormatError as damaged:
            damaged.add_note(f"key: {self._key}")
            raise
