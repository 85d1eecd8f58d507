"""Names for annotations."""

from typing import Literal, TypeAlias

CommitMethod: TypeAlias = Literal["new_commit", "amend"]  # noqa: UP040 - compared at run time
"""Whether changes become a commit of their own, or part of the newest one."""

__all__ = ["CommitMethod"]
