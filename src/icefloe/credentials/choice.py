"""Choosing one way to authenticate from the keyword arguments of a factory function."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from icefloe.credentials.refresh import checked_call, pickle_function
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.records import Record
from icefloe.values.model import signature_of


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
        return signature_of(cls)


class CredentialFamily[C, R](Record):
    """The ways to authenticate with one platform, and which arguments choose each of them.

    `C` is any credential of the platform, `R` one that is renewed.
    """

    function: str
    """The function whose arguments choose; errors name it."""
    union: Any
    """Has the variants `FromEnv`, `Anonymous`, `Static` and `Refreshable`."""
    static: Callable[..., Any]
    """Makes what `Static` holds from the arguments that no other way has."""
    renewed: type
    """What functions that renew credentials return."""

    def choose(self, arguments: Mapping[str, Any]) -> C:
        """Make the variant that the arguments of `function`, by name, say."""
        ways: dict[str, dict[str, Any]] = {way: {} for way in ("static", *_WAYS.values())}
        for name, value in arguments.items():
            ways[_WAYS.get(name, "static")][name] = value
        credentials: C
        match _chosen(self.function, ways):
            case "static":
                credentials = self.union.Static(self.static(**ways["static"]))
            case "anonymous":
                credentials = self.union.Anonymous()
            case "refresh":
                get_credentials = arguments["get_credentials"]
                reason = "with scatter_initial_credentials"
                require(self.function, reason, get_credentials=get_credentials)
                scatters = arguments["scatter_initial_credentials"]
                credentials = cast("C", self.refreshable(get_credentials, scatters=scatters))
            case _:
                if arguments["from_env"] is False:
                    problem = "from_env=False leaves no credentials: give a key or anonymous=True"
                    raise _invalid(self.function, problem)
                credentials = self.union.FromEnv()
        return credentials

    def refreshable(self, get_credentials: Callable[[], object], *, scatters: bool) -> R:
        """Use the credentials that a function returns; with `scatters`, it is called once now."""
        pickled = pickle_function(get_credentials)
        first = checked_call(get_credentials, self.renewed) if scatters else None
        credentials: R = self.union.Refreshable(pickled, first)
        return credentials


_WAYS: Final = {
    "anonymous": "anonymous",
    "anon": "anonymous",
    "from_env": "from_env",
    "get_credentials": "refresh",
    "scatter_initial_credentials": "refresh",
}
"""The way that each argument belongs to, where it is not static credentials."""


def choose_one[C](
    function: str, kinds: Mapping[str, Callable[[str], C]], arguments: Mapping[str, Any]
) -> C:
    """Make a credential of the kind of the only argument that is set."""
    name = _chosen(function, {name: {name: arguments[name]} for name in kinds})
    if name is None:
        raise _invalid(function, f"one of {', '.join(kinds)} must be given")
    return kinds[name](arguments[name])


def require(function: str, reason: str, **needed: object) -> None:
    """Refuse a half-given way."""
    missing = [name for name, value in needed.items() if value is None]
    if missing:
        raise _invalid(function, f"{', '.join(missing)} must be given {reason}")


def _chosen(function: str, ways: Mapping[str, Mapping[str, object]]) -> str | None:
    """Return the only way of which some argument is set; None when no argument at all is set.

    Arguments of two ways contradict each other.
    """
    set_arguments = {
        way: [name for name, value in arguments.items() if value is not None and value is not False]
        for way, arguments in ways.items()
    }
    chosen = [way for way, names in set_arguments.items() if names]
    if len(chosen) > 1:
        clash = " and ".join(", ".join(set_arguments[way]) for way in chosen)
        problem = f"{clash} contradict each other: give only one kind of credentials"
        raise _invalid(function, problem)
    return chosen[0] if chosen else None


def _invalid(function: str, problem: str) -> InvalidInputError:
    return InvalidInputError(f"{function}: {problem}", ErrorKind.INVALID_CREDENTIALS)
