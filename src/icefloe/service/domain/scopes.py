"""The scopes of tokens: what a token may be used for, at most."""

from icefloe.catalog.model import TokenScope
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.service.domain.actions import BUNDLES, Action


def actions_in(scope: TokenScope) -> frozenset[Action]:
    """Return the actions of a scope; its bundles stand for many."""
    named = frozenset(Action(name) for name in scope.actions if name not in BUNDLES)
    return named.union(*(BUNDLES[name] for name in scope.actions if name in BUNDLES))


def scope_allows(
    scope: TokenScope | None, action: Action, organisation: str | None, repository: str | None
) -> bool:
    """Return whether a scope includes an action on an organisation, or on a repository of it."""
    if scope is None:
        return True
    if action not in actions_in(scope):
        return False
    if organisation is None:
        return True
    # What concerns a whole organisation is not within a single repository of it.
    return any(_covers(p, f"{organisation}/{repository or '*'}") for p in scope.repositories)


def is_within(scope: TokenScope, other: TokenScope) -> bool:
    """Return whether a scope includes nothing that another one does not include.

    >>> is_within(TokenScope(("read",), ("lab/sst",)), TokenScope(("write",), ("lab/*",)))
    True
    >>> is_within(TokenScope(("read",), ("*/*",)), TokenScope(("write",), ("lab/*",)))
    False
    """
    return actions_in(scope) <= actions_in(other) and all(
        any(_covers(wider, pattern) for wider in other.repositories)
        for pattern in scope.repositories
    )


def _covers(pattern: str, other: str) -> bool:
    organisation, _, name = pattern.partition("/")
    other_organisation, _, other_name = other.partition("/")
    return organisation in {"*", other_organisation} and name in {"*", other_name}


def check_scope(scope: TokenScope) -> None:
    """Raise `InvalidInputError` for a scope that names something unknown."""
    names = {*BUNDLES, *Action}
    for name in scope.actions:
        if name not in names:
            advice = f"use read, write, admin or an action like {Action.OPEN_REPOSITORY}"
            problem = f"there is no action {name!r}: {advice}"
            raise InvalidInputError(problem, ErrorKind.INVALID_REQUEST)
    for pattern in scope.repositories:
        organisation, slash, name = pattern.partition("/")
        if not (organisation and slash and name) or "/" in name or organisation == "*" != name:
            problem = f"{pattern!r} names no repositories: use org/name, org/* or */*"
            raise InvalidInputError(problem, ErrorKind.INVALID_REQUEST)
