"""Metadata values: what may be stored, and how each spec version stores it."""

from datetime import UTC, datetime
from typing import Any

import pytest

from icefloe.config import SpecVersion
from icefloe.errors import ErrorKind, FormatError, InvalidInputError
from icefloe.format.json_value import (
    MAX_DEPTH,
    MAX_ENCODED_BYTES,
    MAX_VALUES,
    JsonValue,
    as_json_value,
)
from icefloe.format.metadata import decode_messagepack, decode_metadata_value, encode_metadata_value

KNOWN: list[tuple[JsonValue, str]] = [
    (True, "c3"),
    (3, "03"),
    (-5, "fb"),
    (1.5, "cb 3f f8 00 00 00 00 00 00"),
    (None, "c0"),
    ("golden", "a6 67 6f 6c 64 65 6e"),
    ([1, 2, 3], "93 01 02 03"),
    (["a", "b"], "92 a1 61 a1 62"),
    ([], "90"),
    ({}, "80"),
    ({"is_root": True}, "81 a7 69 73 5f 72 6f 6f 74 c3"),
    (2**64 - 1, "cf ff ff ff ff ff ff ff ff"),
    (-(2**63), "d3 80 00 00 00 00 00 00 00"),
]


@pytest.mark.parametrize(("value", "encoded"), KNOWN, ids=lambda case: str(case)[:20])
def test_known_messagepack(value: JsonValue, encoded: str) -> None:
    assert encode_metadata_value(value, 1).hex(" ") == encoded
    assert decode_metadata_value(bytes.fromhex(encoded), SpecVersion.v1) == value


@pytest.mark.parametrize("spec_version", [1, 2])
def test_round_trip_of_everything(spec_version: int) -> None:
    value: JsonValue = {
        "deep": [{"a": [None, True, -1, 2**63, 0.1, "é☃"]}, {}],
        "long": ["x" * 300, list(range(70_000)), {str(n): n for n in range(20)}],
        "text": "y" * 70_000,
    }
    data = encode_metadata_value(value, spec_version)
    assert decode_metadata_value(data, spec_version) == value
    assert decode_metadata_value(memoryview(data), spec_version) == value


def test_single_floats_and_long_forms_are_read() -> None:
    assert decode_messagepack(bytes.fromhex("ca 3f c0 00 00")) == 1.5
    assert decode_messagepack(bytes.fromhex("dd 00 00 00 01 d9 01 61")) == ["a"]
    assert decode_messagepack(bytes.fromhex("df 00 00 00 01 a1 61 d1 ff fe")) == {"a": -2}
    assert decode_messagepack(bytes.fromhex("cb 7f f8 00 00 00 00 00 00")) is None


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ("", "beyond the end"),
        ("c1", "0xc1 does not start"),
        ("c4 01 61", "0xc4 does not start"),
        ("d4 01 61", "0xd4 does not start"),
        ("a5 61", "beyond the end"),
        ("a1 ff", "not UTF-8"),
        ("81 01 02", "a key is not text"),
        ("81 90 02", "0x90 does not start"),
        ("dd ff ff ff ff", "beyond the end"),
        ("df ff ff ff ff", "beyond the end"),
        ("01 02", "left over"),
        ("91" * 200 + "c0", "nested deeper"),
    ],
)
def test_unsound_messagepack_is_refused(data: str, problem: str) -> None:
    with pytest.raises(FormatError, match=problem) as caught:
        decode_metadata_value(bytes.fromhex(data), 1)
    assert caught.value.kind == ErrorKind.DESERIALIZATION


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"a": [2**64]}, r"metadata\['a'\]\[0\]: an integer needs more than 64 bits"),
        (-(2**63) - 1, "more than 64 bits"),
        (float("nan"), "nan is not a JSON number"),
        ([float("inf")], r"metadata\[0\]: inf is not"),
        ("\ud800", "lone surrogate"),
        ({"\ud800": 1}, "lone surrogate"),
        ({"a\0b": 1}, "must not contain the character NUL"),
        ({1: 2}, "keys must be strings, got int"),
        (b"bytes", "bytes is not a JSON value"),
        ({"at": datetime(2030, 1, 1, tzinfo=UTC)}, r"metadata\['at'\]: datetime is not"),
        ({1, 2}, "set is not a JSON value"),
        (nested(MAX_DEPTH + 1), f"deeper than {MAX_DEPTH}"),
    ],
)
@pytest.mark.parametrize("spec_version", [1, 2])
def test_values_that_json_cannot_express(value: object, problem: str, spec_version: int) -> None:
    with pytest.raises(InvalidInputError, match=problem) as caught:
        encode_metadata_value(value, spec_version)
    assert caught.value.kind == ErrorKind.BAD_METADATA


def test_a_value_that_holds_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(InvalidInputError, match="nested deeper"):
        encode_metadata_value(value, 2)


def test_tuples_become_lists_and_maps_are_sorted() -> None:
    value = as_json_value({"b": (1, 2), "a": {"d": 1, "c": 2}})
    assert value == {"a": {"c": 2, "d": 1}, "b": [1, 2]}
    assert isinstance(value, dict)
    assert list(value) == ["a", "b"]


def test_unknown_spec_versions_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="spec version 3"):
        encode_metadata_value(1, 3)
    with pytest.raises(FormatError, match="spec version 3") as caught:
        decode_metadata_value(b"\x01", 3)
    assert caught.value.kind == ErrorKind.UNSUPPORTED_SPEC_VERSION


@pytest.mark.parametrize("spec_version", [1, 2])
def test_sizes_are_bounded(spec_version: int) -> None:
    with pytest.raises(InvalidInputError, match="the most is") as caught:
        encode_metadata_value("x" * MAX_ENCODED_BYTES, spec_version)
    assert caught.value.kind == ErrorKind.LIMIT_EXCEEDED
    with pytest.raises(FormatError, match="more than the"):
        decode_metadata_value(bytes(MAX_ENCODED_BYTES + 1), spec_version)


@pytest.mark.slow
@pytest.mark.parametrize("spec_version", [1, 2])
def test_counts_are_bounded(spec_version: int) -> None:
    with pytest.raises(InvalidInputError, match="store an array instead") as caught:
        encode_metadata_value([0] * MAX_VALUES, spec_version)
    assert caught.value.kind == ErrorKind.LIMIT_EXCEEDED
    most = [0] * (MAX_VALUES - 1)
    data = encode_metadata_value(most, spec_version)
    assert decode_metadata_value(data, spec_version) == most


def test_promised_counts_are_bounded() -> None:
    with pytest.raises(FormatError, match="more than 1000000 values"):
        decode_messagepack(b"\xdd\x00\x20\x00\x00" + bytes(2**21))
