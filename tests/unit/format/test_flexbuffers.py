"""FlexBuffers: the bytes of the reference, and bytes that nobody should have written."""

import struct
from collections.abc import Callable

import pytest
from flatbuffers import flexbuffers as library

from icefloe.errors import ErrorKind, FormatError, InvalidInputError
from icefloe.format.flexbuffers import decode_flexbuffer, encode_flexbuffer
from icefloe.format.json_value import MAX_DEPTH, JsonValue

KNOWN: list[tuple[JsonValue, str]] = [
    (True, "01 68 01"),
    (3, "03 08 01"),
    (-5, "fb 04 01"),
    (1.5, "00 00 c0 3f 0e 04"),
    (0.1, "9a 99 99 99 99 99 b9 3f 0f 08"),
    (None, "00 00 01"),
    (2**64 - 1, "ff ff ff ff ff ff ff ff 0b 08"),
    (-(2**63), "00 00 00 00 00 00 00 80 07 08"),
    ("golden", "06 67 6f 6c 64 65 6e 00 07 14 01"),
    ("", "00 00 01 14 01"),
    ([1, 2, 3], "01 02 03 03 50 01"),
    ([1, 2, 3, 4, 5], "05 01 02 03 04 05 05 30 01"),
    ([300, 1], "2c 01 01 00 04 45 01"),
    ([-1, -2], "ff fe 02 40 01"),
    ([1, -1], "02 01 ff 08 04 04 28 01"),
    ([0.5], "01 00 00 00 00 00 00 3f 04 36 01"),
    ([1, 2.0], "02 00 00 00 01 00 00 00 00 00 00 40 0a 0e 0a 2a 01"),
    ([True, False, True], "03 01 00 01 03 90 01"),
    ([None, None], "02 00 00 00 00 04 28 01"),
    (["a", "b"], "01 61 00 01 62 00 02 06 04 14 14 04 28 01"),
    ([[1, 2], [3, 4]], "01 02 03 04 02 05 04 44 44 04 28 01"),
    ([], "00 00 28 01"),
    ({}, "00 00 01 00 00 24 01"),
    ([[], {}], "00 00 00 01 00 02 05 02 28 24 04 28 01"),
    ({"is_root": True}, "69 73 5f 72 6f 6f 74 00 01 09 01 01 01 01 68 02 24 01"),
    ({"a": 2, "b": 1}, "61 00 62 00 02 05 04 02 01 02 02 01 08 08 04 24 01"),
]


@pytest.mark.parametrize(("value", "encoded"), KNOWN, ids=lambda case: str(case)[:20])
def test_known_bytes(value: JsonValue, encoded: str) -> None:
    assert encode_flexbuffer(value).hex(" ") == encoded
    assert decode_flexbuffer(bytes.fromhex(encoded)) == value


def test_keys_are_stored_once() -> None:
    value: JsonValue = [{"shared": number} for number in range(50)]
    data = encode_flexbuffer(value)
    assert data.count(b"shared\0") == 1
    assert decode_flexbuffer(data) == value


@pytest.mark.parametrize("size", [255, 256, 65_535, 65_536, 70_000])
def test_widths_grow_with_offsets(size: int) -> None:
    value: JsonValue = {"far": ["x" * size, 1], "near": 2}
    assert decode_flexbuffer(encode_flexbuffer(value)) == value


def build(add: Callable[[library.Builder], None]) -> bytes:
    builder = library.Builder()
    add(builder)
    return bytes(builder.Finish())


@pytest.mark.parametrize(
    ("add", "expected"),
    [
        (lambda b: b.IndirectInt(-70_000), -70_000),
        (lambda b: b.IndirectUInt(2**40), 2**40),
        (lambda b: b.IndirectFloat(0.1), 0.1),
        (lambda b: b.Key("name"), "name"),
        (lambda b: b.Blob(b"\x00\xff"), [0, 255]),
        (lambda b: b.TypedVectorFromElements([-1, 2, -300]), [-1, 2, -300]),
        (lambda b: b.TypedVectorFromElements([0.5, 0.1]), [0.5, 0.1]),
        (lambda b: b.TypedVectorFromElements([True, False]), [True, False]),
        (lambda b: b.FixedTypedVectorFromElements([1, 2]), [1, 2]),
        (lambda b: b.FixedTypedVectorFromElements([0.5, 0.25, 0.1]), [0.5, 0.25, 0.1]),
        (lambda b: b.FixedTypedVectorFromElements([-1, -2, -3, -4]), [-1, -2, -3, -4]),
        (lambda b: b.Float(1.5, 8), 1.5),
        (lambda b: b.Int(7, 8), 7),
    ],
)
def test_kinds_that_we_do_not_write(
    add: Callable[[library.Builder], None], expected: JsonValue
) -> None:
    assert decode_flexbuffer(build(add)) == expected


def test_vectors_of_keys() -> None:
    # "a\0" "b\0", length 2, offsets 3 and 2 back, root: vector of keys (14)
    assert decode_flexbuffer(bytes.fromhex("61 00 62 00 02 05 04 02 38 01")) == ["a", "b"]


def test_vectors_of_text() -> None:
    # lengths before the texts; root: deprecated vector of strings (15)
    assert decode_flexbuffer(bytes.fromhex("01 61 00 01 62 00 02 06 04 02 3c 01")) == ["a", "b"]


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_json_does_not_have(number: float) -> None:
    assert decode_flexbuffer(struct.pack("<d", number) + bytes((3 << 2 | 3, 8))) is None


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "at least three"),
        (b"\x01\x68", "at least three"),
        (b"\x01\x68\x03", "width of the root"),
        (b"\x01\x68\x08", "width of the root"),
        (b"\x05\x14\x01", "before the buffer"),
        (b"\x00\x14\x01", "beyond the buffer"),
        (b"\xff\x61\x01\x14\x01", "texts overlap"),
        (b"\x01\xff\x01\x14\x01", "not UTF-8"),
        (b"\xff\xff\x02\x10\x01", "a key does not end"),
        (b"\xff\x00\x28\x01", "beyond the buffer"),
        (b"\xff\x00\x90\x01", "more values than"),
        (b"\x00\x00\x22\x01", "beyond the buffer"),
        (b"\x00\x0c\x01", "float cannot be 1 bytes"),
        (b"\x00\x6c\x01", "27 is not a type"),
        (b"\x00\xfc\x01", "63 is not a type"),
        (b"\x00\x00\x24\x01", "beyond the buffer"),
        (bytes.fromhex("61 00 01 03 01 03 01 01 08 02 24 01"), "width of the keys"),
        (bytes.fromhex("61 00 02 03 01 01 01 01 08 02 24 01"), "as many keys"),
    ],
)
def test_unsound_bytes_are_refused(data: bytes, problem: str) -> None:
    with pytest.raises(FormatError, match="damaged FlexBuffers") as caught:
        decode_flexbuffer(data)
    assert caught.value.kind == ErrorKind.DESERIALIZATION
    assert problem in str(caught.value)


def test_a_vector_that_holds_itself_is_refused() -> None:
    # length 1, one element that points at the vector itself
    with pytest.raises(FormatError, match="more values than"):
        decode_flexbuffer(b"\x01\x00\x28\x02\x28\x01")


def test_shared_subtrees_do_not_explode() -> None:
    """Thirty levels, each twice the one below: 90 bytes that stand for a billion values."""
    data = bytearray(b"\x00")
    below = len(data)
    for _ in range(30):
        data += b"\x02"
        start = len(data)
        data += bytes((start - below, start + 1 - below, 0x28, 0x28))
        below = start
    data += bytes((len(data) - below, 0x28, 1))
    assert len(data) < 200
    with pytest.raises(FormatError, match="more values than"):
        decode_flexbuffer(bytes(data))


def test_overlapping_texts_do_not_explode() -> None:
    """Every byte is also the length of a text that starts after it."""
    body = b"\x7f" * 2000
    count = 200
    offsets = b"".join(
        struct.pack("<H", len(body) + 2 + 2 * index - (index + 1)) for index in range(count)
    )
    data = body + struct.pack("<H", count) + offsets + b"\x14" * count
    data += struct.pack("<H", 3 * count) + bytes((0x29, 2))
    with pytest.raises(FormatError, match="texts overlap"):
        decode_flexbuffer(data)


def nested(levels: int) -> JsonValue:
    value: JsonValue = []
    for _ in range(levels - 1):
        value = [value]
    return value


def test_depth_is_bounded_both_ways() -> None:
    deepest = nested(MAX_DEPTH)
    assert decode_flexbuffer(encode_flexbuffer(deepest)) == deepest
    with pytest.raises(InvalidInputError, match="nested deeper"):
        encode_flexbuffer(nested(MAX_DEPTH + 1))
    with pytest.raises(FormatError, match="nested deeper"):
        decode_flexbuffer(library.Dumps(nested(MAX_DEPTH + 1)))


def test_large_integers_are_refused() -> None:
    for number in (2**64, -(2**63) - 1):
        with pytest.raises(InvalidInputError, match="64 bits"):
            encode_flexbuffer(number)
