"""Versions as people write them in a shell: branches, tags, ids, the beginnings of ids, moments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, TypedDict

import typer

from icefloe.cli.common import moment, optional_moment
from icefloe.errors import ErrorKind, InvalidInputError, RefNotFoundError, SnapshotNotFoundError
from icefloe.records import Record

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from icefloe.api.repository import Repository
    from icefloe.repo.snapshot_info import SnapshotInfo

MAIN: Final = "main"
SHORT_ID: Final = 8
"""The number of characters of an id that tables print."""

_MOST_CANDIDATES: Final = 10
_MOST_NAMES: Final = 20

VERSION_HELP: Final = (
    "A branch, a tag, a snapshot id or its first characters, a moment of main such as 2026-01-31 or"
    " 30d, or BRANCH@MOMENT."
)
VersionArgument = Annotated[str, typer.Argument(help=VERSION_HELP)]
OptionalVersionArgument = Annotated[
    str | None, typer.Argument(help=f"{VERSION_HELP} [default: main]")
]


class ChosenVersion(Record):
    """The version that somebody chose."""

    kind: str
    """`branch`, `tag`, `snapshot` or `moment`."""
    name: str
    """The name as it was written."""
    snapshot_id: str


def short_id(snapshot_id: str) -> str:
    """Return the first characters of an id, as tables print them."""
    return snapshot_id[:SHORT_ID]


def choose_version(
    repository: Repository, text: str | None = None, as_of: str | None = None
) -> ChosenVersion:
    """Find the version that a text names; without a text, the branch main.

    Raise `InvalidInputError` of the kind `ambiguous-version` if it may mean several versions.
    """
    name = MAIN if text is None else text
    branches, tags = repository.list_branches(), repository.list_tags()
    then = optional_moment(as_of, "--as-of")
    if then is not None:
        if name not in branches:
            raise _unfit(
                f"--as-of goes with a branch, and {name!r} is none: {_listed(branches, 'branches')}"
            )
        return ChosenVersion("moment", f"{name}@{as_of}", _at(repository, name, then))
    if name in branches:
        chosen = ChosenVersion("branch", name, repository.lookup_branch(name))
        if name in tags and (tagged := repository.lookup_tag(name)) != chosen.snapshot_id:
            candidates = [
                f"the branch, at {chosen.snapshot_id}",
                f"the tag, at {tagged}",
            ]
            raise ambiguous(name, candidates, "give the id of the snapshot")
        return chosen
    if name in tags:
        return ChosenVersion("tag", name, repository.lookup_tag(name))
    branch, at, when = name.rpartition("@")
    if at and branch in branches:
        return ChosenVersion("moment", name, _at(repository, branch, moment(when, option="@")))
    return _by_id_or_moment(repository, name)


class VersionOptions(TypedDict):
    """The arguments of Python functions that say which version is meant."""

    branch: str | None
    tag: str | None
    snapshot_id: str | None


def version_options(
    repository: Repository,
    branch: str | None = None,
    tag: str | None = None,
    snapshot: str | None = None,
    as_of: str | None = None,
    *,
    default: str | None = MAIN,
    dashes: str = "--",
) -> VersionOptions:
    """Read the options --branch, --tag, --snapshot and --as-of.

    `default` is the branch that counts if none of them is given; `dashes` is what the names of the
    options begin with.
    """
    require_one_version(branch, tag, snapshot, as_of, dashes=dashes)
    if snapshot is not None:
        return {
            "branch": None,
            "tag": None,
            "snapshot_id": find_snapshot(repository, snapshot).id,
        }
    then = optional_moment(as_of, f"{dashes}as-of")
    if then is not None:
        found = _at(repository, branch or default or MAIN, then)
        return {"branch": None, "tag": None, "snapshot_id": found}
    if tag is None and branch is None:
        branch = default
    return {"branch": branch, "tag": tag, "snapshot_id": None}


def require_one_version(
    branch: str | None,
    tag: str | None,
    snapshot: str | None,
    as_of: str | None = None,
    *,
    dashes: str = "--",
) -> None:
    """Refuse options that name several versions."""
    given = {"branch": branch, "tag": tag, "snapshot": snapshot}
    options = [f"{dashes}{name}" for name, value in given.items() if value is not None]
    if len(options) > 1:
        raise _unfit(f"{' and '.join(options)} exclude each other: give one of them")
    if as_of is not None and options not in ([], [f"{dashes}branch"]):
        raise _unfit(f"{dashes}as-of goes with {dashes}branch, not with {options[0]}")


def find_snapshot(repository: Repository, text: str) -> SnapshotInfo:
    """Find the snapshot whose id is, or begins with, a text."""
    from icefloe.format.ids import SHOWN_LENGTH

    if len(text) == SHOWN_LENGTH:
        return repository.lookup_snapshot(text)
    found = repository.find_snapshots(text)
    if not found:
        raise SnapshotNotFoundError(
            f"no snapshot has an id that begins with {text!r}: `icefloe log --all` lists them"
        )
    if len(found) > 1:
        raise ambiguous(text, _described(found), "give more characters")
    return found[0]


def _by_id_or_moment(repository: Repository, text: str) -> ChosenVersion:
    found = _found(repository, text)
    then = _read_moment(text)
    candidates = _described(found)
    if len(found) + (then is not None) > 1:
        if then is not None:
            candidates.append(f"the moment {then.isoformat()}: write main@{text}")
        raise ambiguous(text, candidates, "give more characters")
    if found:
        return ChosenVersion("snapshot", text, found[0].id)
    if then is not None:
        return ChosenVersion("moment", text, _at(repository, MAIN, then))
    names = _listed(repository.list_branches(), "branches")
    raise RefNotFoundError(
        f"there is no branch, tag or snapshot {text!r}, and it is no moment such as 2026-01-31 or"
        f" 30d: {names}; `icefloe log --all` lists all versions"
    )


def _found(repository: Repository, text: str) -> list[SnapshotInfo]:
    """List the snapshots whose ids begin with a text, if it can be the beginning of one."""
    try:
        return repository.find_snapshots(text)
    except InvalidInputError:
        return []


def _read_moment(text: str) -> datetime | None:
    try:
        return moment(text)
    except typer.BadParameter:
        return None


def _at(repository: Repository, branch: str, then: datetime) -> str:
    return repository.readonly_session(branch, as_of=then).snapshot_id


def _described(versions: Sequence[SnapshotInfo]) -> list[str]:
    return [
        f"{version.id}  {version.written_at:%Y-%m-%d %H:%M}  {version.message.partition('\n')[0]}"
        for version in versions
    ]


def ambiguous(text: str, candidates: Sequence[str], advice: str) -> InvalidInputError:
    """Make the error for a text that may mean several versions; it lists them."""
    shown = [f"  {candidate}" for candidate in candidates[:_MOST_CANDIDATES]]
    if len(candidates) > len(shown):
        shown.append(f"  … and {len(candidates) - len(shown)} more")
    return InvalidInputError(
        "\n".join([f"{text!r} may mean several versions: {advice}", *shown]),
        ErrorKind.AMBIGUOUS_VERSION,
    )


def _unfit(problem: str) -> InvalidInputError:
    return InvalidInputError(problem, ErrorKind.INVALID_REQUEST)


def _listed(names: set[str], kind: str) -> str:
    shown = ", ".join(sorted(names)[:_MOST_NAMES])
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"there are the {kind} {shown}{more}"
