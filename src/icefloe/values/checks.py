"""Checks of what users give, taken from the annotations of the fields."""

import operator
import types
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Union, cast, get_args, get_origin

from icefloe.errors import ErrorKind, InvalidInputError, WrongTypeError

type Check = Callable[[Any, str], Any]
"""Takes what was given and the name of its place; returns what to keep, or raises."""


def integer(low: int, high: int) -> Check:
    """Make a check for integers within bounds."""

    def check(value: Any, name: str) -> int:
        expected = f"an integer from {low} to {high}"
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise _wrong_type(name, expected, type(value).__name__)
        number = operator.index(value)
        if not low <= number <= high:
            raise _unfit(name, expected, str(number))
        return number

    return check


def moment(value: Any, name: str) -> datetime:
    """Check a time: it must know its time zone."""
    if not isinstance(value, datetime):
        raise _wrong_type(name, "a datetime", type(value).__name__)
    if value.tzinfo is None:
        raise _wrong_type(name, "a datetime with a time zone (tzinfo=UTC)", "one without")
    return value


def local_moment(value: Any, name: str) -> datetime:
    """Check a time; one without a time zone is in local time, and is kept in UTC."""
    if not isinstance(value, datetime):
        raise _unfit(name, "a datetime", type(value).__name__)
    if value.tzinfo is not None:
        return value
    try:
        return value.astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        raise _unfit(name, "a datetime of this age", value.isoformat()) from None


def one_of(*choices: str) -> Check:
    """Make a check for one of a few words."""
    expected = "one of " + ", ".join(map(repr, choices))

    def check(value: Any, name: str) -> str:
        if not isinstance(value, str):
            raise _wrong_type(name, expected, type(value).__name__)
        if value not in choices:
            raise _unfit(name, expected, repr(value))
        return value

    return check


def list_of(kind: type) -> Check:
    """Make a check for a list of values of a class; the list is kept as a tuple."""

    def check(value: Any, name: str) -> tuple[Any, ...]:
        if (
            isinstance(value, str)
            or not isinstance(value, Sequence)
            or not all(isinstance(element, kind) for element in value)
        ):
            raise InvalidInputError(
                f"{name} must be a list of {kind.__name__}", ErrorKind.INVALID_CONFIG
            )
        return tuple(value)

    return check


def text_mapping(mapping: Any, path: str) -> dict[str, str] | None:
    """Check a mapping of strings to strings, and copy it; an empty one is as good as none."""
    if not isinstance(mapping, Mapping):
        raise _wrong_type(path, "a mapping of strings", type(mapping).__name__)
    for name, value in mapping.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise _wrong_type(path, "a mapping of strings to strings", f"the entry {name!r}")
    return dict(mapping) or None


U8 = Annotated[int, integer(0, 2**8 - 1)]
U16 = Annotated[int, integer(0, 2**16 - 1)]
U32 = Annotated[int, integer(0, 2**32 - 1)]
U64 = Annotated[int, integer(0, 2**64 - 1)]
NonZeroU16 = Annotated[int, integer(1, 2**16 - 1)]
NonZeroU64 = Annotated[int, integer(1, 2**64 - 1)]
Moment = Annotated[datetime, moment]
LocalMoment = Annotated[datetime, local_moment]
TextMapping = Annotated[Mapping[str, str], text_mapping]


def require_text(value: object, name: str, kind: ErrorKind) -> str:
    """Return a text that a caller passed; raise `WrongTypeError` for anything else."""
    if not isinstance(value, str):
        raise WrongTypeError(f"{name} must be a str, got {type(value).__name__}", kind)
    return value


def _unfit(name: str, expected: str, value: str) -> InvalidInputError:
    return InvalidInputError(f"{name} must be {expected}, got {value}", ErrorKind.INVALID_CONFIG)


def _wrong_type(name: str, expected: str, value: str) -> WrongTypeError:
    return WrongTypeError(f"{name} must be {expected}, got {value}", ErrorKind.INVALID_CONFIG)


def check_for(hint: Any) -> Check:
    """Turn an annotation into a check: `Annotated[..., check]`, a class, or a union of such."""
    if get_origin(hint) is Annotated:
        return cast("Check", hint.__metadata__[0])
    if get_origin(hint) in {Union, types.UnionType}:
        return _check_for_union(get_args(hint))
    if isinstance(hint, type):
        return _instance_of(hint)
    raise TypeError(f"no check for the annotation {hint}")


def _check_for_union(options: tuple[Any, ...]) -> Check:
    present = [option for option in options if option is not types.NoneType]
    is_optional = len(present) < len(options)
    check = check_for(present[0]) if len(present) == 1 else _instance_of(*present)

    def check_union(value: Any, name: str) -> Any:
        return None if value is None and is_optional else check(value, name)

    return check_union


def _instance_of(*kinds: type) -> Check:
    names = " or ".join(kind.__qualname__ for kind in kinds)

    def check(value: Any, name: str) -> Any:
        if not isinstance(value, kinds):
            # The type only: what was given by mistake may be a secret.
            kind = type(value).__name__
            is_namesake = any(kind == each.__name__ for each in kinds)
            raise _wrong_type(
                name,
                f"a value of type {names}",
                f"the {kind} of another library" if is_namesake else kind,
            )
        return value

    return check
