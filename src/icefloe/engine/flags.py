"""Feature flags: what a repository may forbid its users."""

from dataclasses import replace
from typing import Final

from icefloe.config import FeatureFlag
from icefloe.errors import ErrorKind, InvalidInputError, SessionStateError
from icefloe.format.repo_info import RepoInfo

MOVE_NODE: Final = "move_node"
CREATE_TAG: Final = "create_tag"
DELETE_TAG: Final = "delete_tag"

_IDS: Final = {MOVE_NODE: 3, CREATE_TAG: 4, DELETE_TAG: 5}  # 1 and 2 are reserved


def feature_flags(repo: RepoInfo) -> list[FeatureFlag]:
    """List all flags, as they are set in a repository."""
    settings = dict.fromkeys(repo.enabled_flags or (), True)
    settings |= dict.fromkeys(repo.disabled_flags or (), False)
    return [
        FeatureFlag(number, name, default_enabled=True, setting=settings.get(number))
        for name, number in _IDS.items()
    ]


def require_enabled(repo: RepoInfo, name: str) -> None:
    """Refuse what a flag of the repository forbids."""
    if _IDS[name] in (repo.disabled_flags or ()):
        raise SessionStateError(
            f"the feature flag {name!r} is disabled in this repository:"
            f" enable it with set_feature_flag({name!r}, True)",
            ErrorKind.FEATURE_FLAG_DISABLED,
            flag=name,
        )


def flag_id(name: str) -> int:
    """Find the number under which a flag is stored."""
    try:
        return _IDS[name]
    except KeyError:
        raise InvalidInputError(
            f"there is no feature flag {name!r}; there are {', '.join(_IDS)}",
            ErrorKind.INVALID_FEATURE_FLAG,
        ) from None


def with_flag(repo: RepoInfo, flag: int, setting: bool | None) -> RepoInfo:  # noqa: FBT001
    """Enter a setting; None takes it out again."""
    return replace(
        repo,
        enabled_flags=_listed(repo.enabled_flags, flag, is_in=setting is True),
        disabled_flags=_listed(repo.disabled_flags, flag, is_in=setting is False),
    )


def _listed(flags: tuple[int, ...] | None, flag: int, *, is_in: bool) -> tuple[int, ...] | None:
    if is_in:
        return tuple(sorted({*(flags or ()), flag}))
    return None if flags is None else tuple(each for each in flags if each != flag)
