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


def as_json_value(given: object, place: str = "metadata") -> JsonValue:
    """Check and copy a value, with tuples as lists and maps sorted by key.

    Refused, with the place in the value: integers beyond 64 bits, NaN and infinities (JSON has
    none, and storing null instead would be a wrong answer), bytes, keys that are not strings.
    """
    return _Copier().copy(given, place, MAX_DEPTH)


def as_metadata(given: object, place: str = "metadata") -> dict[str, JsonValue]:
    """Check and copy the metadata of a commit or of a repository.

    Raise `WrongTypeError` unless it is a mapping from strings to JSON values.

    >>> as_metadata({"author": "nightly job", "runs": (1, 2)})
    {'author': 'nightly job', 'runs': [1, 2]}
    """
    if not isinstance(given, Mapping):
        raise _wrong_type(place, f"a dict is needed, got {type(given).__name__}")
    return {
        _key(key, place): as_json_value(value, f"{place}[{key!r}]") for key, value in given.items()
    }


class _Copier:
    __slots__ = ("_values_left",)

    def __init__(self) -> None:
        self._values_left = MAX_VALUES

    def copy(self, given: object, place: str, depth_left: int) -> JsonValue:
        self._values_left -= 1
        if self._values_left < 0:
            raise InvalidInputError(
                f"{place}: there are more than {MAX_VALUES} values: store an array instead",
                ErrorKind.LIMIT_EXCEEDED,
            )
        match given:
            case None | bool():
                return given
            case int() | float():
                return _number(given, place)
            case str():
                return _text(given, place)
        if depth_left == 0:
            raise _invalid(place, f"lists and maps are nested deeper than {MAX_DEPTH} levels")
        match given:
            case list() | tuple():
                return [
                    self.copy(each, f"{place}[{position}]", depth_left - 1)
                    for position, each in enumerate(given)
                ]
            case Mapping():
                return {
                    key: self.copy(given[key], f"{place}[{key!r}]", depth_left - 1)
                    for key in sorted(_key(key, place) for key in given)
                }
        kind = type(given).__name__
        raise _wrong_type(
            place, f"{kind} is not a JSON value: use None, bool, int, float, str, list, dict"
        )


def _number(given: float, place: str) -> float:
    if isinstance(given, int):
        if not _SMALLEST_INT <= given <= _LARGEST_INT:
            raise _invalid(place, "an integer needs more than 64 bits: store it as text")
        return int(given)
    if not math.isfinite(given):
        raise _invalid(place, f"{given} is not a JSON number: store null or text")
    return float(given)


def _key(given: object, place: str) -> str:
    if not isinstance(given, str):
        raise _wrong_type(place, f"keys must be strings, got {type(given).__name__}")
    if "\0" in given:
        raise _invalid(place, "keys must not contain the character NUL")
    return _text(given, place)


def _text(given: str, place: str) -> str:
    try:
        given.encode()
    except UnicodeEncodeError:
        raise _invalid(place, "the text has a lone surrogate, which is not Unicode") from None
    return str(given)


def _invalid(place: str, problem: str) -> InvalidInputError:
    return InvalidInputError(f"{place}: {problem}", ErrorKind.BAD_METADATA)


def _wrong_type(place: str, problem: str) -> WrongTypeError:
    return WrongTypeError(f"{place}: {problem}", ErrorKind.BAD_METADATA)
