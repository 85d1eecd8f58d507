"""MessagePack, as far as JSON values need it; the reader trusts nothing it reads.

The library's reader makes room for as many elements as a header promises, once per level of
nesting; this one never holds more than it has read.
"""

import math
import struct
from typing import Final

import msgpack

from icefloe.errors import ErrorKind, FormatError, InvalidInputError
from icefloe.format.json_value import MAX_DEPTH, MAX_ENCODED_BYTES, MAX_VALUES, JsonValue

_NUMBERS: Final = {
    0xCA: ">f",
    0xCB: ">d",
    0xCC: ">B",
    0xCD: ">H",
    0xCE: ">I",
    0xCF: ">Q",
    0xD0: ">b",
    0xD1: ">h",
    0xD2: ">i",
    0xD3: ">q",
}
_TEXT_LENGTHS: Final = {0xD9: ">B", 0xDA: ">H", 0xDB: ">I"}
_NESTED_LENGTHS: Final = {0xDC: ">H", 0xDD: ">I", 0xDE: ">H", 0xDF: ">I"}
"""Of long lists (the first two) and maps; short ones have their length in the head."""
_CONSTANTS: Final = {0xC0: None, 0xC2: False, 0xC3: True}


def encode_messagepack(value: JsonValue) -> bytes:
    """Encode a value: integers in their smallest form, floats in 64 bits."""
    data: bytes = msgpack.packb(value, use_bin_type=True)
    if len(data) > MAX_ENCODED_BYTES:
        raise InvalidInputError(
            f"the value takes {len(data)} bytes, the most is {MAX_ENCODED_BYTES}",
            ErrorKind.LIMIT_EXCEEDED,
        )
    return data


def decode_messagepack(data: bytes | memoryview) -> JsonValue:
    """Decode one value; anything unsound in the bytes, or after it, is a `FormatError`."""
    if len(data) > MAX_ENCODED_BYTES:
        raise _unsound(f"{len(data)} bytes are more than the {MAX_ENCODED_BYTES} allowed", 0)
    reader = _Reader(bytes(data))
    value = reader.value(MAX_DEPTH)
    if reader.position != len(data):
        raise _unsound("bytes are left over", reader.position)
    return value


class _Reader:
    __slots__ = ("_data", "_values_left", "position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._values_left = MAX_VALUES
        self.position = 0

    def value(self, depth_left: int) -> JsonValue:
        self._values_left -= 1
        if self._values_left < 0:
            raise _unsound(f"it holds more than {MAX_VALUES} values", self.position)
        head = self._take(1)[0]
        if 0x80 <= head <= 0x9F or head in _NESTED_LENGTHS:
            if depth_left == 0:
                raise _unsound(f"values are nested deeper than {MAX_DEPTH} levels", self.position)
            return self._nested(head, depth_left - 1)
        return self._scalar(head)

    def _scalar(self, head: int) -> JsonValue:
        if head <= 0x7F:
            return head
        if head >= 0xE0:
            return head - 0x100
        if head in _CONSTANTS:
            return _CONSTANTS[head]
        if head in _NUMBERS:
            return _json_number(self._number(_NUMBERS[head]))
        if 0xA0 <= head <= 0xBF:
            return self._text(head & 0x1F)
        if head in _TEXT_LENGTHS:
            return self._text(self._length(_TEXT_LENGTHS[head]))
        raise _unsound(f"0x{head:02x} does not start a JSON value", self.position - 1)

    def _nested(self, head: int, depth_left: int) -> JsonValue:
        form = _NESTED_LENGTHS.get(head)
        count = head & 0xF if form is None else self._length(form)
        is_map = head <= 0x8F or head >= 0xDE
        return self._map(count, depth_left) if is_map else self._list(count, depth_left)

    def _list(self, count: int, depth_left: int) -> JsonValue:
        return [self.value(depth_left) for _ in range(count)]

    def _map(self, count: int, depth_left: int) -> JsonValue:
        result: dict[str, JsonValue] = {}
        for _ in range(count):
            start = self.position
            key = self._scalar(self._take(1)[0])
            if not isinstance(key, str):
                raise _unsound("a key is not text", start)
            result[key] = self.value(depth_left)
        return result

    def _text(self, size: int) -> str:
        start = self.position
        try:
            return self._take(size).decode()
        except UnicodeDecodeError:
            raise _unsound("a text is not UTF-8", start) from None

    def _length(self, form: str) -> int:
        return int(self._number(form))

    def _number(self, form: str) -> int | float:
        number: int | float = struct.unpack(form, self._take(struct.calcsize(form)))[0]
        return number

    def _take(self, size: int) -> bytes:
        start = self.position
        if size > len(self._data) - start:
            raise _unsound("a value reaches beyond the end", start)
        self.position = start + size
        return self._data[start : self.position]


def _json_number(number: float) -> float | None:
    """Pass what JSON has; NaN and the infinities become None."""
    return number if math.isfinite(number) else None


def _unsound(problem: str, position: int) -> FormatError:
    return FormatError(
        f"damaged MessagePack value: {problem} (at byte {position})", ErrorKind.DESERIALIZATION
    )
