"""How a process that opened a repository in spec 1 notices its migration to spec 2.

The first write of a migration creates the repo object, with the state of the files of spec 1
shortly before, and marks the repository read-only: the files of spec 1 are the truth until the
second write completes the migration.
"""

from collections.abc import Callable
from typing import Final

from icefloe.errors import (
    FormatError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    RepositoryMigratedError,
    StorageError,
)
from icefloe.format.layout import REPO_KEY
from icefloe.format.repo_info import RepoInfo
from icefloe.format.update_table import Status, UpdateKind
from icefloe.records import replace
from icefloe.repo.repo_changes import READ_ONLY
from icefloe.repo.repo_ledger import load_repo
from icefloe.storage import Backend

UNFINISHED: Final = (
    "the migration to spec version 2 is under way, or was interrupted: `icefloe migrate` finishes"
    " it"
)
"""Why a repository is read-only between the two writes, as everybody sees it."""


def unfinished(repo: RepoInfo, now: int) -> RepoInfo:
    """Return the state that the first write of a migration stores."""
    return replace(repo, status=Status(READ_ONLY, now, UNFINISHED))


def is_unfinished(repo: RepoInfo) -> bool:
    """Return whether the second write of the migration is still to come."""
    return (
        repo.status.availability == READ_ONLY
        and repo.status.reason == UNFINISHED
        and repo.updates.entry(0).kind is UpdateKind.REPO_MIGRATED
    )


async def require_unmigrated(backend: Backend) -> None:
    """Raise `RepositoryMigratedError` if there is a repo object; costs one HEAD request."""
    if not await _has_repo_object(backend):
        return
    try:
        is_under_way = is_unfinished((await load_repo(backend)).info)
    except (StorageError, FormatError):
        is_under_way = False
    if is_under_way:
        raise RepositoryMigratedError(
            "this repository is being migrated to spec version 2: nothing was changed; open it"
            " again when the migration is complete. If it was interrupted, `icefloe migrate`"
            " finishes it"
        )
    raise RepositoryMigratedError(
        "this repository was migrated to spec version 2 since it was opened: nothing was changed;"
        " open it again, and repeat the operation"
    )


async def require_seen(backend: Backend, what: str, is_part: Callable[[RepoInfo], bool]) -> None:
    """Make sure that a change of a file of spec 1 is not lost; call it after the change.

    Without a repo object the change came before every migration. If there is one, `is_part` tells
    whether the migrated repository has the change. `OutcomeUnknownError` if it has not, as the
    migration may still be looking, or if nobody answers. Costs one HEAD request.
    """
    try:
        if not await _has_repo_object(backend):
            return
        repo = (await load_repo(backend)).info
    except (StorageError, FormatError) as failure:
        raise OutcomeUnknownError(
            f"{what} was written, but the storage does not tell whether the repository was migrated"
            " to spec version 2 before: open the repository again, and look whether it is there"
        ) from failure
    if not is_part(repo):
        raise OutcomeUnknownError(
            f"the repository was migrated to spec version 2 while {what} was written: open it"
            " again, look whether it is there, and repeat the operation if it is not"
        )


async def _has_repo_object(backend: Backend) -> bool:
    try:
        await backend.head(REPO_KEY)
    except ObjectNotFoundError:
        return False
    return True
