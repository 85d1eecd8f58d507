"""Choosing one way to authenticate from the keyword arguments of a factory function."""

import inspect
from collections.abc import Mapping
from typing import Any

from icefloe.errors import ErrorKind, InvalidInputError


class CredentialChoice(type):
    """The class of a union of credentials: a call of the union makes one of its variants."""

    def __call__(cls, *args: Any, **options: Any) -> Any:
        """Make a variant."""
        if "choose_variant" in cls.__dict__ and not args:
            return cls.__dict__["choose_variant"](**options)
        return super().__call__(*args, **options)

    @property
    def __signature__(cls) -> inspect.Signature:
        """The parameters of a variant, which the call above would hide."""
        made_by = cls.__dict__.get("choose_variant")
        if made_by is not None:
            return inspect.signature(made_by)
        of_method = inspect.signature(type.__getattribute__(cls, "__init__"))
        return of_method.replace(parameters=list(of_method.parameters.values())[1:])


def choose(function: str, choices: Mapping[str, Mapping[str, object]]) -> str | None:
    """Return the one way of `given` (way to its arguments) of which some argument is set.

    None when no argument at all is set. Arguments of two ways contradict each other.
    """
    set_arguments = {
        way: [name for name, value in arguments.items() if value is not None and value is not False]
        for way, arguments in choices.items()
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
