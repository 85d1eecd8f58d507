"""Values that JSON can express: what users attach to commits and repositories as metadata."""

import math
from collections.abc import Mapping
from typing import Final

from icefloe.errors import ErrorKind, InvalidInputError, WrongTypeError

type JsonValue = bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"] | None

MAX_DEPTH: Final = 100
"""Lists and maps within each other; deeper values are neither written nor read."""

MAX_ENCODED_BYTES: Final = 16 * 2**20
"""The largest encoded value that is written or read."""

MAX_VALUES: Final = 1_000_000
"""The most numbers, texts, lists and maps in one value that is written or read."""

_SMALLEST_INT: Final = -(2**63)
_LARGEST_INT: Final = 2**64 - 1


def as_json_value(value: object, path: str = "metadata") -> JsonValue:
    """Check and copy a value, with tuples as lists and maps sorted by key.

    Refused, with the place in the value: integers beyond 64 bits, NaN and infinities (JSON has
    none, and storing null instead would be a wrong answer), bytes, keys that are not strings.
    """
    return _Copier().copy(value, path, MAX_DEPTH)


def as_metadata(mapping: object, path: str = "metadata") -> dict[str, JsonValue]:
    """Check and copy the metadata of a commit or of a repository.

    Raise `WrongTypeError` unless it is a mapping from strings to JSON values.

    >>> as_metadata({"author": "nightly job", "runs": (1, 2)})
    {'author': 'nightly job', 'runs': [1, 2]}
    """
    if not isinstance(mapping, Mapping):
        raise _wrong_type(path, f"a dict is needed, got {type(mapping).__name__}")
    return {
        _key(key, path): as_json_value(value, f"{path}[{key!r}]") for key, value in mapping.items()
    }


class _Copier:
    __slots__ = ("_values_left",)

    def __init__(self) -> None:
        self._values_left = MAX_VALUES

    def copy(self, value: object, path: str, depth_left: int) -> JsonValue:
        self._values_left -= 1
        if self._values_left < 0:
            raise InvalidInputError(
                f"{path}: there are more than {MAX_VALUES} values: store an array instead",
                ErrorKind.LIMIT_EXCEEDED,
            )
        match value:
            case None | bool():
                return value
            case int() | float():
                return _number(value, path)
            case str():
                return _text(value, path)
        if depth_left == 0:
            raise _invalid(path, f"lists and maps are nested deeper than {MAX_DEPTH} levels")
        match value:
            case list() | tuple():
                return [
                    self.copy(element, f"{path}[{position}]", depth_left - 1)
                    for position, element in enumerate(value)
                ]
            case Mapping():
                return {
                    key: self.copy(value[key], f"{path}[{key!r}]", depth_left - 1)
                    for key in sorted(_key(key, path) for key in value)
                }
        kind = type(value).__name__
        raise _wrong_type(
            path, f"{kind} is not a JSON value: use None, bool, int, float, str, list, dict"
        )


def _number(value: float, path: str) -> float:
    if isinstance(value, int):
        if not _SMALLEST_INT <= value <= _LARGEST_INT:
            raise _invalid(path, "an integer needs more than 64 bits: store it as text")
        return int(value)
    if not math.isfinite(value):
        raise _invalid(path, f"{value} is not a JSON number: store null or text")
    return float(value)


def _key(value: object, path: str) -> str:
    if not isinstance(value, str):
        raise _wrong_type(path, f"keys must be strings, got {type(value).__name__}")
    if "\0" in value:
        raise _invalid(path, "keys must not contain the character NUL")
    return _text(value, path)


def _text(value: str, path: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _invalid(path, "the text has a lone surrogate, which is not Unicode") from None
    return str(value)


def _invalid(path: str, problem: str) -> InvalidInputError:
    return InvalidInputError(f"{path}: {problem}", ErrorKind.BAD_METADATA)


def _wrong_type(path: str, problem: str) -> WrongTypeError:
    return WrongTypeError(f"{path}: {problem}", ErrorKind.BAD_METADATA)
