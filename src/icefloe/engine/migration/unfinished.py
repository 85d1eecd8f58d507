"""The state of the repo object between the two writes of a migration.

The first write of a migration creates the repo object, so that programs that opened the
repository in spec 1 notice. It says what the files of spec 1 said shortly before, and that the
repository is read-only: the files of spec 1 are the truth until the second write.
"""

from dataclasses import replace
from typing import Final

from icefloe.engine.repo_changes import READ_ONLY
from icefloe.format.repo_info import RepoInfo
from icefloe.format.update_table import Status, UpdateKind

UNFINISHED: Final = (
    "the migration to spec version 2 is under way, or was interrupted: `icefloe migrate` finishes"
    " it"
)
"""Why a repository is read-only between the two writes, as everybody sees it."""


def unfinished(repo: RepoInfo, now: int) -> RepoInfo:
    """Return the state that the first write of a migration stores."""
    return replace(repo, status=Status(READ_ONLY, now, UNFINISHED))


def is_unfinished(repo: RepoInfo) -> bool:
    """Tell whether the second write of the migration is still to come."""
    return (
        repo.status.availability == READ_ONLY
        and repo.status.reason == UNFINISHED
        and repo.updates.entry(0).kind is UpdateKind.REPO_MIGRATED
    )
