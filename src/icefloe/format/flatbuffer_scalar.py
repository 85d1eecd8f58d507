"""A checked reader of flatbuffers, one table at a time: for files with few, and for lookups.

`StoredList` and `Deferred` are parts of a file that are read when somebody asks for them.

It checks what the columnar reader (`icefloe.format.flatbuffer_reader`) checks: each position,
length and alignment before use, and a budget for what is read, because a small hostile buffer
can describe a huge structure.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from struct import Struct
from typing import Final, NoReturn

from icefloe.errors import FormatError
from icefloe.format.columns import find_sorted
from icefloe.format.flatbuffer_reader import (
    BUDGET_FACTOR,
    FREE_BUDGET_BYTES,
    ITEM_COST_BYTES,
    MIN_BUFFER_BYTES,
    refuse,
)

FEW_TABLES: Final = 32
"""Lists of up to this many tables are written and read one by one, longer ones in columns.

One by one, a short list takes a fifth of the time; decision 003 has the measurements.
"""

_U32: Final = Struct("<I").unpack_from
_I32: Final = Struct("<i").unpack_from
_VTABLE: Final = Struct("<HH").unpack_from
_U16: Final = Struct("<H").unpack_from
_NUMBERS: Final = {code: Struct(f"<{code}") for code in "BHIiQ"}

_TABLE_COST_BYTES: Final = 256
"""What an object for a table or string takes, and those that are made from it."""

_OUTSIDE: Final = "an offset points outside of the buffer"
_MISALIGNED: Final = "an offset is not aligned to what it points at"


class ScalarBuffer:
    """The bytes of one flatbuffer."""

    __slots__ = ("_budget", "data", "size")

    def __init__(self, data: bytes | memoryview) -> None:
        self.data = data
        self.size = len(data)
        if self.size < MIN_BUFFER_BYTES:
            refuse(f"a buffer of {self.size} bytes is too short to hold a table")
        self.renew_budget()

    def renew_budget(self) -> None:
        """Begin a new reading of the buffer, which may take as much as any other."""
        self._budget = BUDGET_FACTOR * self.size + FREE_BUDGET_BYTES

    def charge(self, size_bytes: int) -> None:
        """Account for something about to be read."""
        self._budget -= size_bytes
        if self._budget < 0:
            refuse("the structure refers to itself so often that it would not fit in memory")

    def root(self) -> "ScalarTable":
        """Return the root table."""
        return self.table(_U32(self.data, 0)[0])

    def table(self, position: int) -> "ScalarTable":
        """Return the table at a position."""
        self.charge(_TABLE_COST_BYTES)
        return ScalarTable(self, position)

    def child_at(self, field: int) -> "ScalarTable":
        """Follow an offset to a table."""
        return self.table(field + self.word(field))

    def fields(self, start: int, count: int) -> range:
        """List the fields of a vector of offsets, accounting for what they point at."""
        self.charge(count * (4 + ITEM_COST_BYTES + _TABLE_COST_BYTES))
        return range(start, start + 4 * count, 4)

    def word(self, position: int) -> int:
        """Read a number of four bytes."""
        if position & 3:
            refuse(_MISALIGNED)
        if not 0 <= position <= self.size - 4:
            refuse(_OUTSIDE)
        value: int = _U32(self.data, position)[0]
        return value

    def vector(self, field: int, item_bytes: int) -> tuple[int, int]:
        """Follow an offset to a vector: where its items start, and how many there are."""
        position = field + self.word(field)
        count = self.word(position)
        if position + 4 + count * item_bytes > self.size:
            refuse(_OUTSIDE)
        return position + 4, count

    def bytes_at(self, field: int) -> bytes:
        """Follow an offset to a string or a vector of bytes."""
        start, length = self.vector(field, 1)
        self.charge(length)
        return bytes(self.data[start : start + length])


class ScalarTable:
    """One table of a buffer."""

    __slots__ = ("_at", "_buffer", "_table_bytes", "_vtable", "_vtable_bytes")

    def __init__(self, buffer: ScalarBuffer, position: int) -> None:
        buffer.word(position)
        vtable = position - _I32(buffer.data, position)[0]
        if not 0 <= vtable <= buffer.size - 4:
            refuse(_OUTSIDE)
        if vtable & 1:
            refuse(_MISALIGNED)
        vtable_bytes, table_bytes = _VTABLE(buffer.data, vtable)
        if vtable + vtable_bytes > buffer.size or position + table_bytes > buffer.size:
            refuse(_OUTSIDE)
        if vtable_bytes < 4 or vtable_bytes & 1:
            refuse("a vtable has an impossible length")
        if table_bytes < 4:
            refuse("a table has an impossible length")
        self._buffer = buffer
        self._at = position
        self._vtable, self._vtable_bytes, self._table_bytes = vtable, vtable_bytes, table_bytes

    def field(self, slot: int, size_bytes: int, alignment: int) -> int | None:
        """Locate a field; `None` if the table lacks it."""
        entry = 4 + 2 * slot
        if entry + 2 > self._vtable_bytes:
            return None
        offset = _U16(self._buffer.data, self._vtable + entry)[0]
        if offset == 0:
            return None
        if offset + size_bytes > self._table_bytes:
            refuse("a field lies outside of its table")
        position: int = self._at + offset
        if position & (alignment - 1):
            refuse(_MISALIGNED)
        return position

    def shape(self, fields: Sequence[tuple[int, int, int]]) -> tuple[int, int, list[int]]:
        """Return the shape that all tables with this vtable share.

        The position of the vtable, the size of a table, and how far into it are the fields
        (slot, size and alignment of each are given); 0 for one that is missing.
        """
        places = [self.field(*field) for field in fields]
        offsets = [0 if position is None else position - self._at for position in places]
        return self._vtable, self._table_bytes, offsets

    def number(self, slot: int, code: str, default: int = 0) -> int:
        """Read a number, of a type that the `struct` module names."""
        kind = _NUMBERS[code]
        position = self.field(slot, kind.size, kind.size)
        if position is None:
            return default
        value: int = kind.unpack_from(self._buffer.data, position)[0]
        return value

    def struct(self, slot: int, width: int) -> bytes:
        """Read a required struct of bytes, such as an id."""
        value = self.optional_struct(slot, width)
        return _missing() if value is None else value

    def optional_struct(self, slot: int, width: int) -> bytes | None:
        """Read a struct of bytes."""
        position = self.field(slot, width, 1)
        return None if position is None else bytes(self._buffer.data[position : position + width])

    def blob(self, slot: int) -> bytes:
        """Read a required string or vector of bytes."""
        value = self.optional_blob(slot)
        return _missing() if value is None else value

    def optional_blob(self, slot: int) -> bytes | None:
        """Read a string or a vector of bytes."""
        position = self.field(slot, 4, 4)
        return None if position is None else self._buffer.bytes_at(position)

    def text(self, slot: int) -> str:
        """Read a required string."""
        return as_text(self.blob(slot))

    def optional_text(self, slot: int) -> str | None:
        """Read a string."""
        value = self.optional_blob(slot)
        return None if value is None else as_text(value)

    def vector(self, slot: int, item_bytes: int) -> tuple[int, int]:
        """Find a required vector: where its items start, and how many there are."""
        position = self.field(slot, 4, 4)
        return _missing() if position is None else self._buffer.vector(position, item_bytes)

    def items(self, slot: int, item_bytes: int, alignment: int = 1) -> bytes | None:
        """Read the items of a vector, back to back."""
        position = self.field(slot, 4, 4)
        if position is None:
            return None
        start, count = self._buffer.vector(position, item_bytes)
        if count and start & (alignment - 1):
            refuse(_MISALIGNED)
        self._buffer.charge(count * (item_bytes + ITEM_COST_BYTES))
        return bytes(self._buffer.data[start : start + count * item_bytes])

    def child(self, slot: int) -> "ScalarTable":
        """Follow a required field that holds a table."""
        position = self.field(slot, 4, 4)
        if position is None:
            refuse("a required table is missing")
        return self._buffer.child_at(position)

    def children(self, slot: int) -> "list[ScalarTable]":
        """Follow a required vector of tables."""
        return _missing() if (tables := self.optional_children(slot)) is None else tables

    def optional_children(self, slot: int) -> "list[ScalarTable] | None":
        """Follow a vector of tables."""
        position = self.field(slot, 4, 4)
        if position is None:
            return None
        buffer = self._buffer
        fields = buffer.fields(*buffer.vector(position, 4))
        return [ScalarTable(buffer, field + buffer.word(field)) for field in fields]

    def find_child(
        self, slot: int, key: bytes, key_of: "Callable[[ScalarTable], bytes]"
    ) -> "ScalarTable | None":
        """Find the table with a key in a required vector that is sorted by it."""
        start, count = self.vector(slot, 4)

        def child(row: int) -> ScalarTable:
            return self._buffer.child_at(start + 4 * row)

        row = find_sorted(count, key, lambda row: key_of(child(row)))
        return None if row is None else child(row)

    def texts(self, slot: int) -> list[str]:
        """Read a required vector of strings."""
        fields = self._buffer.fields(*self.vector(slot, 4))
        return [as_text(self._buffer.bytes_at(field)) for field in fields]


def as_text(data: bytes) -> str:
    """Decode text."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise FormatError("text that is not UTF-8") from error


def _missing() -> NoReturn:
    refuse("a required field is missing")


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

    def __init__(self, data: bytes | memoryview, slot: int, key: str) -> None:
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
