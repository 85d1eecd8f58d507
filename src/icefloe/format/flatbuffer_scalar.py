"""A checked reader of flatbuffers, one table at a time: for files with few, and for lookups.

It checks what the columnar reader (`icefloe.format.flatbuffer_reader`) checks: each position,
length and alignment before use, and a budget for what is read, because a small hostile buffer
can describe a huge structure.
"""

from collections.abc import Callable, Sequence
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

    def __init__(self, data: bytes) -> None:
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

    def table(self, at: int) -> "ScalarTable":
        """Return the table at a position."""
        self.charge(_TABLE_COST_BYTES)
        return ScalarTable(self, at)

    def child_at(self, field: int) -> "ScalarTable":
        """Follow an offset to a table."""
        return self.table(field + self.word(field))

    def fields(self, start: int, count: int) -> range:
        """List the fields of a vector of offsets, accounting for what they point at."""
        self.charge(count * (4 + ITEM_COST_BYTES + _TABLE_COST_BYTES))
        return range(start, start + 4 * count, 4)

    def word(self, at: int) -> int:
        """Read a number of four bytes."""
        if at & 3:
            refuse(_MISALIGNED)
        if not 0 <= at <= self.size - 4:
            refuse(_OUTSIDE)
        value: int = _U32(self.data, at)[0]
        return value

    def vector(self, field: int, item_bytes: int) -> tuple[int, int]:
        """Follow an offset to a vector: where its items start, and how many there are."""
        at = field + self.word(field)
        count = self.word(at)
        if at + 4 + count * item_bytes > self.size:
            refuse(_OUTSIDE)
        return at + 4, count

    def bytes_at(self, field: int) -> bytes:
        """Follow an offset to a string or a vector of bytes."""
        start, length = self.vector(field, 1)
        self.charge(length)
        return self.data[start : start + length]


class ScalarTable:
    """One table of a buffer."""

    __slots__ = ("_at", "_buffer", "_table_bytes", "_vtable", "_vtable_bytes")

    def __init__(self, buffer: ScalarBuffer, at: int) -> None:
        buffer.word(at)
        vtable = at - _I32(buffer.data, at)[0]
        if not 0 <= vtable <= buffer.size - 4:
            refuse(_OUTSIDE)
        if vtable & 1:
            refuse(_MISALIGNED)
        vtable_bytes, table_bytes = _VTABLE(buffer.data, vtable)
        if vtable + vtable_bytes > buffer.size or at + table_bytes > buffer.size:
            refuse(_OUTSIDE)
        if vtable_bytes < 4 or vtable_bytes & 1:
            refuse("a vtable has an impossible length")
        if table_bytes < 4:
            refuse("a table has an impossible length")
        self._buffer = buffer
        self._at = at
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
        at: int = self._at + offset
        if at & (alignment - 1):
            refuse(_MISALIGNED)
        return at

    def shape(self, fields: Sequence[tuple[int, int, int]]) -> tuple[int, int, list[int]]:
        """Return the shape that all tables with this vtable share.

        The position of the vtable, the size of a table, and how far into it are the fields
        (slot, size and alignment of each are given); 0 for one that is missing.
        """
        places = [self.field(*field) for field in fields]
        offsets = [0 if place is None else place - self._at for place in places]
        return self._vtable, self._table_bytes, offsets

    def number(self, slot: int, code: str, default: int = 0) -> int:
        """Read a number, of a type that the `struct` module names."""
        kind = _NUMBERS[code]
        at = self.field(slot, kind.size, kind.size)
        if at is None:
            return default
        value: int = kind.unpack_from(self._buffer.data, at)[0]
        return value

    def struct(self, slot: int, width: int) -> bytes:
        """Read a required struct of bytes, such as an id."""
        found = self.optional_struct(slot, width)
        return _missing() if found is None else found

    def optional_struct(self, slot: int, width: int) -> bytes | None:
        """Read a struct of bytes."""
        at = self.field(slot, width, 1)
        return None if at is None else self._buffer.data[at : at + width]

    def blob(self, slot: int) -> bytes:
        """Read a required string or vector of bytes."""
        found = self.optional_blob(slot)
        return _missing() if found is None else found

    def optional_blob(self, slot: int) -> bytes | None:
        """Read a string or a vector of bytes."""
        at = self.field(slot, 4, 4)
        return None if at is None else self._buffer.bytes_at(at)

    def text(self, slot: int) -> str:
        """Read a required string."""
        return as_text(self.blob(slot))

    def optional_text(self, slot: int) -> str | None:
        """Read a string."""
        found = self.optional_blob(slot)
        return None if found is None else as_text(found)

    def vector(self, slot: int, item_bytes: int) -> tuple[int, int]:
        """Find a required vector: where its items start, and how many there are."""
        at = self.field(slot, 4, 4)
        return _missing() if at is None else self._buffer.vector(at, item_bytes)

    def items(self, slot: int, item_bytes: int, alignment: int = 1) -> bytes | None:
        """Read the items of a vector, back to back."""
        at = self.field(slot, 4, 4)
        if at is None:
            return None
        start, count = self._buffer.vector(at, item_bytes)
        if count and start & (alignment - 1):
            refuse(_MISALIGNED)
        self._buffer.charge(count * (item_bytes + ITEM_COST_BYTES))
        return self._buffer.data[start : start + count * item_bytes]

    def child(self, slot: int) -> "ScalarTable":
        """Follow a required field that holds a table."""
        at = self.field(slot, 4, 4)
        if at is None:
            refuse("a required table is missing")
        return self._buffer.child_at(at)

    def children(self, slot: int) -> "list[ScalarTable]":
        """Follow a required vector of tables."""
        return _missing() if (found := self.optional_children(slot)) is None else found

    def optional_children(self, slot: int) -> "list[ScalarTable] | None":
        """Follow a vector of tables."""
        at = self.field(slot, 4, 4)
        if at is None:
            return None
        buffer = self._buffer
        fields = buffer.fields(*buffer.vector(at, 4))
        return [ScalarTable(buffer, each + buffer.word(each)) for each in fields]

    def find_child(
        self, slot: int, wanted: bytes, key_of: "Callable[[ScalarTable], bytes]"
    ) -> "ScalarTable | None":
        """Find the table with a key in a required vector that is sorted by it."""
        start, count = self.vector(slot, 4)

        def child(row: int) -> ScalarTable:
            return self._buffer.child_at(start + 4 * row)

        row = find_sorted(count, wanted, lambda row: key_of(child(row)))
        return None if row is None else child(row)

    def texts(self, slot: int) -> list[str]:
        """Read a required vector of strings."""
        fields = self._buffer.fields(*self.vector(slot, 4))
        return [as_text(self._buffer.bytes_at(each)) for each in fields]


def as_text(data: bytes) -> str:
    """Decode text."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise FormatError("text that is not UTF-8") from error


def _missing() -> NoReturn:
    refuse("a required field is missing")
