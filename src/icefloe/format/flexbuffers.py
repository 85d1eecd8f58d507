"""FlexBuffers: JSON-like values in bytes, the root at the end, children before their parents.

Written as the reference writes them: narrowest widths, lists of one kind of number as typed
vectors (two to four numbers without a length), keys shared and sorted.

Read as hostile input. A tree in which nothing but keys is shared has fewer values, and fewer
bytes of text, than its encoding has bytes; both are counted down, so a small buffer that refers
to its parts over and over cannot grow into a large value.
"""

import math
import struct
from collections.abc import Mapping
from typing import Final

from icefloe.errors import ErrorKind, FormatError, InvalidInputError
from icefloe.format.json_value import MAX_DEPTH, MAX_ENCODED_BYTES, MAX_VALUES, JsonValue
from icefloe.records import Record

NULL, INT, UINT, FLOAT, KEY, STRING = range(6)
INDIRECT_INT, INDIRECT_UINT, INDIRECT_FLOAT, MAP, VECTOR, VECTOR_INT = range(6, 12)
VECTOR_UINT, VECTOR_FLOAT, VECTOR_KEY, VECTOR_STRING = range(12, 16)
VECTOR_INT2, VECTOR_FLOAT4, BLOB, BOOL, VECTOR_BOOL = 16, 24, 25, 26, 36

_SIGNED: Final = {1: "b", 2: "h", 4: "i", 8: "q"}
_UNSIGNED: Final = {1: "B", 2: "H", 4: "I", 8: "Q"}
_FLOATING: Final = {4: "f", 8: "d"}
_CODES: Final = {INT: _SIGNED, UINT: _UNSIGNED, FLOAT: _FLOATING, BOOL: _UNSIGNED}
_INDIRECT: Final = {INDIRECT_INT: INT, INDIRECT_UINT: UINT, INDIRECT_FLOAT: FLOAT}
_ELEMENT: Final = {
    VECTOR_INT: INT,
    VECTOR_UINT: UINT,
    VECTOR_FLOAT: FLOAT,
    VECTOR_BOOL: BOOL,
    VECTOR_KEY: KEY,
    VECTOR_STRING: STRING,
}


def encode_flexbuffer(value: JsonValue) -> bytes:
    """Encode a value; maps keep the order of their entries in the buffer, their keys are sorted."""
    writer = _Writer()
    writer.finish(writer.element(value, MAX_DEPTH))
    if len(writer.buffer) > MAX_ENCODED_BYTES:
        raise InvalidInputError(
            f"the value takes {len(writer.buffer)} bytes, the most is {MAX_ENCODED_BYTES}",
            ErrorKind.LIMIT_EXCEEDED,
        )
    return bytes(writer.buffer)


def decode_flexbuffer(data: bytes | memoryview) -> JsonValue:
    """Decode a value; anything unsound in the bytes is a `FormatError`.

    Blobs become lists of integers, and numbers that JSON does not have become None.
    """
    if len(data) > MAX_ENCODED_BYTES:
        raise _unsound(f"{len(data)} bytes are more than the {MAX_ENCODED_BYTES} allowed", 0)
    return _Reader(bytes(data)).root()


class _Element(Record):
    """A value on its way into a vector: a number, or the address of what was written before."""

    kind: int
    number: int | float
    width: int
    """Bytes of the number, or of the elements found at the address."""
    is_inline: bool

    def packed(self, parent_width: int) -> int:
        width = parent_width if self.is_inline else self.width
        return self.kind << 2 | width.bit_length() - 1


class _Writer:
    __slots__ = ("_keys", "buffer")

    def __init__(self) -> None:
        self.buffer = bytearray()
        self._keys: dict[str, _Element] = {}

    def element(self, value: JsonValue, depth_left: int) -> _Element:
        """Write what does not fit into the parent, and return what goes there."""
        match value:
            case None:
                return _Element(NULL, 0, 1, is_inline=True)
            case bool():
                return _Element(BOOL, int(value), 1, is_inline=True)
            case int():
                return _number(value)
            case float():
                return _Element(FLOAT, value, 4 if _fits_single(value) else 8, is_inline=True)
            case str():
                return self._text(value)
        if depth_left == 0:
            raise InvalidInputError(
                f"lists and maps are nested deeper than {MAX_DEPTH} levels", ErrorKind.BAD_METADATA
            )
        if isinstance(value, Mapping):
            return self._map(value, depth_left - 1)
        return self._vector([self.element(inner, depth_left - 1) for inner in value])

    def finish(self, root: _Element) -> None:
        _, width = self._store([], [root])
        self.buffer += bytes((root.packed(width), width))

    def _text(self, text: str) -> _Element:
        raw = text.encode()
        length = _number(len(raw))
        self._align(length.width)
        self._put(length, length.width)
        address = len(self.buffer)
        self.buffer += raw + b"\0"
        return _Element(STRING, address, length.width, is_inline=False)

    def _key(self, key: str) -> _Element:
        if key not in self._keys:
            self._keys[key] = _Element(KEY, len(self.buffer), 1, is_inline=False)
            self.buffer += key.encode() + b"\0"
        return self._keys[key]

    def _vector(self, elements: list[_Element]) -> _Element:
        kinds = {child.kind for child in elements}
        kind = kinds.pop() if len(kinds) == 1 else NULL
        if kind in {INT, UINT, FLOAT} and 2 <= len(elements) <= 4:
            address, width = self._store([], elements)
            fixed = VECTOR_INT2 + 3 * (len(elements) - 2) + (kind - INT)
            return _Element(fixed, address, width, is_inline=False)
        length = [_number(len(elements))]
        if kind in {INT, UINT, FLOAT, BOOL}:
            typed = VECTOR_BOOL if kind == BOOL else VECTOR_INT + (kind - INT)
            address, width = self._store(length, elements)
            return _Element(typed, address, width, is_inline=False)
        address, width = self._store(length, elements)
        self.buffer += bytes(child.packed(width) for child in elements)
        return _Element(VECTOR, address, width, is_inline=False)

    def _map(self, value: Mapping[str, JsonValue], depth_left: int) -> _Element:
        entries = []
        for key, child in value.items():
            key_element = self._key(key)
            entries.append((key.encode(), key_element, self.element(child, depth_left)))
        entries.sort(key=lambda entry: entry[0])
        length = _number(len(entries))
        keys, keys_width = self._store([length], [key for _, key, _ in entries])
        prefix = [
            _Element(VECTOR_KEY, keys, keys_width, is_inline=False),
            _number(keys_width),
            length,
        ]
        elements = [element for _, _, element in entries]
        address, width = self._store(prefix, elements)
        self.buffer += bytes(child.packed(width) for child in elements)
        return _Element(MAP, address, width, is_inline=False)

    def _store(self, prefix: list[_Element], elements: list[_Element]) -> tuple[int, int]:
        """Write elements of one width; return where those after the prefix begin, and the width."""
        width = 1
        for position, child in enumerate([*prefix, *elements]):
            width = max(width, self._width_at(child, position))
        self._align(width)
        for child in prefix:
            self._put(child, width)
        address = len(self.buffer)
        for child in elements:
            self._put(child, width)
        return address, width

    def _width_at(self, element: _Element, position: int) -> int:
        """Find the narrowest width in which an element can stand at a position of a vector."""
        if element.is_inline:
            return element.width
        for width in (1, 2, 4):
            start = len(self.buffer) + -len(self.buffer) % width
            if start + position * width - element.number < 1 << 8 * width:
                return width
        return 8

    def _align(self, width: int) -> None:
        self.buffer += bytes(-len(self.buffer) % width)

    def _put(self, element: _Element, width: int) -> None:
        if not element.is_inline:
            offset = len(self.buffer) - int(element.number)
            self.buffer += offset.to_bytes(width, "little")
        elif element.kind == FLOAT:
            self.buffer += struct.pack("<" + _FLOATING[width], element.number)
        else:
            self.buffer += int(element.number).to_bytes(width, "little", signed=element.kind == INT)


def _number(number: int) -> _Element:
    """Choose the narrowest integer: unsigned unless negative."""
    for width in (1, 2, 4, 8):
        if number < 0:
            if number >= -(1 << 8 * width - 1):
                return _Element(INT, number, width, is_inline=True)
        elif number < 1 << 8 * width:
            return _Element(UINT, number, width, is_inline=True)
    raise InvalidInputError("an integer needs more than 64 bits", ErrorKind.BAD_METADATA)


def _fits_single(number: float) -> bool:
    try:
        (single,) = struct.unpack("<f", struct.pack("<f", number))
    except OverflowError:
        return False
    return bool(single == number)


class _Reader:
    __slots__ = ("_bytes_left", "_data", "_texts", "_values_left")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._values_left = min(len(data), MAX_VALUES)
        self._bytes_left = len(data)
        self._texts: dict[tuple[int, int], str] = {}

    def root(self) -> JsonValue:
        if len(self._data) < 3:
            raise _unsound("a buffer has at least three bytes", 0)
        packed, width = self._data[-2:]
        if width not in _UNSIGNED or len(self._data) < 2 + width:
            raise _unsound("the width of the root is wrong", len(self._data) - 1)
        return self._value(len(self._data) - 2 - width, width, packed, MAX_DEPTH)

    def _value(self, position: int, width: int, packed: int, depth_left: int) -> JsonValue:
        """Read the value at a position of a vector whose elements are `width` bytes wide."""
        self._spend_values(1, position)
        kind, child_width = packed >> 2, 1 << (packed & 3)
        if kind == NULL:
            return None
        if kind in _CODES:
            return self._numbers(position, 1, width, kind)[0]
        address = self._follow(position, width)
        if kind in _INDIRECT:
            return self._numbers(address, 1, child_width, _INDIRECT[kind])[0]
        if kind == KEY:
            return self._key(address)
        if kind == STRING:
            return self._text(address, child_width)
        if depth_left == 0:
            raise _unsound(f"values are nested deeper than {MAX_DEPTH} levels", position)
        return self._nested(kind, address, child_width, depth_left - 1)

    def _nested(self, kind: int, address: int, width: int, depth_left: int) -> JsonValue:
        if VECTOR_INT2 <= kind <= VECTOR_FLOAT4:
            size, number_kind = divmod(kind - VECTOR_INT2, 3)
            return self._spent_numbers(address, size + 2, width, number_kind + INT)
        if kind not in _ELEMENT and kind not in {MAP, VECTOR, BLOB}:
            raise _unsound(f"{kind} is not a type", address)
        count = self._unsigned(address - width, width)
        if kind == BLOB:
            return self._spent_numbers(address, count, 1, UINT)
        element = _ELEMENT.get(kind)
        if element is not None and element in _CODES:
            return self._spent_numbers(address, count, width, element)
        if element is not None:
            packed = bytes([element << 2]) * self._sound_count(address, count, width)
        else:
            packed = self._slice(address + count * width, count)
        values = [
            self._value(address + width * index, width, packed[index], depth_left)
            for index in range(count)
        ]
        return (
            dict(zip(self._keys(address, width, count), values, strict=True))
            if kind == MAP
            else values
        )

    def _keys(self, address: int, width: int, count: int) -> list[str]:
        """Read the keys of a map, which stand in a vector that the words before it describe."""
        keys = self._follow(address - 3 * width, width)
        keys_width = self._unsigned(address - 2 * width, width)
        if keys_width not in _UNSIGNED:
            raise _unsound("the width of the keys is wrong", address)
        if self._unsigned(keys - keys_width, keys_width) != count:
            raise _unsound("a map has not as many keys as values", address)
        return [
            self._key(self._follow(keys + keys_width * index, keys_width)) for index in range(count)
        ]

    def _spent_numbers(self, address: int, count: int, width: int, kind: int) -> list[JsonValue]:
        self._spend_values(count, address)
        return self._numbers(address, count, width, kind)

    def _numbers(self, address: int, count: int, width: int, kind: int) -> list[JsonValue]:
        code = _CODES[kind].get(width)
        if code is None:
            raise _unsound(f"a float cannot be {width} bytes wide", address)
        numbers = struct.unpack(f"<{count}{code}", self._slice(address, count * width))
        if kind == BOOL:
            return [bool(number) for number in numbers]
        if kind == FLOAT:
            return [number if math.isfinite(number) else None for number in numbers]
        return [*numbers]

    def _text(self, address: int, width: int) -> str:
        text = self._texts.get((address, width))
        if text is None:
            length = self._unsigned(address - width, width)
            self._spend_bytes(length, address)
            text = self._texts[address, width] = _utf8(self._slice(address, length), address)
        return text

    def _key(self, address: int) -> str:
        text = self._texts.get((address, 0))
        if text is None:
            end = self._data.find(b"\0", address, address + self._bytes_left + 1)
            if end < 0:
                raise _unsound("a key does not end", address)
            self._spend_bytes(end - address, address)
            text = self._texts[address, 0] = _utf8(self._data[address:end], address)
        return text

    def _follow(self, position: int, width: int) -> int:
        """Resolve an offset, which counts backwards from where it stands."""
        address = position - self._unsigned(position, width)
        if address < 0:
            raise _unsound("an offset points before the buffer", position)
        return address

    def _unsigned(self, position: int, width: int) -> int:
        return int.from_bytes(self._slice(position, width), "little")

    def _sound_count(self, address: int, count: int, width: int) -> int:
        """Check that this many elements can stand at an address, before anything is allocated."""
        if count * width > len(self._data) - address:
            raise _unsound("a vector reaches beyond the buffer", address)
        return count

    def _slice(self, start: int, size: int) -> bytes:
        if start < 0 or size > len(self._data) - start:
            raise _unsound("a value reaches beyond the buffer", start)
        return self._data[start : start + size]

    def _spend_values(self, count: int, position: int) -> None:
        self._values_left -= count
        if self._values_left < 0:
            raise _unsound("it holds more values than it has bytes, or than are allowed", position)

    def _spend_bytes(self, count: int, position: int) -> None:
        self._bytes_left -= count
        if self._bytes_left < 0:
            raise _unsound("texts overlap each other", position)


def _utf8(raw: bytes, address: int) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise _unsound("a text is not UTF-8", address) from None


def _unsound(problem: str, position: int) -> FormatError:
    return FormatError(
        f"damaged FlexBuffers value: {problem} (at byte {position})", ErrorKind.DESERIALIZATION
    )
