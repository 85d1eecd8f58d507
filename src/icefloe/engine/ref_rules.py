"""What branches and tags do not allow, in either version of the format."""

from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    ErrorKind,
    RefNotFoundError,
    SessionStateError,
)
from icefloe.format.ids import SnapshotId
from icefloe.format.repo_info import MAIN_BRANCH


def no_branch(name: str) -> RefNotFoundError:
    """Describe a branch that is not there."""
    return RefNotFoundError(f"there is no branch {name!r} in this repository", branch=name)


def no_tag(name: str) -> RefNotFoundError:
    """Describe a tag that is not there."""
    return RefNotFoundError(f"there is no tag {name!r} in this repository", tag=name)


def branch_gone(name: str) -> RefNotFoundError:
    """Describe a branch that was there when a session began."""
    return RefNotFoundError(
        f"the branch {name!r} does not exist (any more)", ErrorKind.BRANCH_NOT_FOUND, branch=name
    )


def tag_exists(name: str) -> AlreadyExistsError:
    """Describe a tag that is in the way."""
    return AlreadyExistsError(
        f"the tag {name!r} exists already, and tags are never moved: choose another name",
        ErrorKind.TAG_ALREADY_EXISTS,
        tag=name,
    )


def require_deletable(branch: str) -> None:
    """Refuse to delete the branch that every repository has."""
    if branch == MAIN_BRANCH:
        raise SessionStateError(
            "the branch 'main' cannot be deleted", ErrorKind.CANNOT_DELETE_MAIN, branch=branch
        )


def require_expected(branch: str, tip: SnapshotId, expected: SnapshotId | None) -> None:
    """Refuse to move a branch that somebody else has moved."""
    if expected is not None and tip != expected:
        raise ConflictError(
            str(expected), str(tip), kind=ErrorKind.BRANCH_UPDATE_CONFLICT, branch=branch
        )
