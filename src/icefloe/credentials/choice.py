"""Choosing one way to authenticate from the keyword arguments of a factory function."""

from collections.abc import Mapping

from icefloe.errors import ErrorKind, InvalidInputError


def choose(function: str, given: Mapping[str, Mapping[str, object]]) -> str | None:
    """Return the one way of `given` (way to its arguments) of which some argument is set.

    None when no argument at all is set. Arguments of two ways contradict each other.
    """
    set_arguments = {
        way: [name for name, value in arguments.items() if value is not None and value is not False]
        for way, arguments in given.items()
    }
    chosen = [way for way, names in set_arguments.items() if names]
    if len(chosen) > 1:
        clash = " and ".join(", ".join(set_arguments[way]) for way in chosen)
        raise invalid(function, f"{clash} contradict each other: give only one kind of credentials")
    return chosen[0] if chosen else None


def require(function: str, reason: str, **needed: object) -> None:
    """Refuse a half-given way."""
    missing = [name for name, value in needed.items() if value is None]
    if missing:
        raise invalid(function, f"{', '.join(missing)} must be given {reason}")


def invalid(function: str, problem: str) -> InvalidInputError:
    """Make the error for contradicting or missing arguments."""
    return InvalidInputError(f"{function}: {problem}", ErrorKind.INVALID_CREDENTIALS)
