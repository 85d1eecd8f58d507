"""Branches and tags of a repository."""

from icefloe.effects import blocking
from icefloe.errors import ErrorKind
from icefloe.repo.context import RepoContext
from icefloe.repo.history import parse_snapshot
from icefloe.repo.repo_changes import (
    CreateBranch,
    CreateTag,
    DeleteBranch,
    DeleteTag,
    ResetBranch,
)
from icefloe.values.checks import require_text


class RepositoryRefs:
    """The part of `Repository` that names versions."""

    _context: RepoContext

    async def create_branch_async(self, branch: str, snapshot_id: str) -> None:
        """Make a branch that begins at a snapshot.

        >>> import icefloe
        >>> repository = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> repository.create_branch("try-out", repository.lookup_branch("main"))
        >>> sorted(repository.list_branches())
        ['main', 'try-out']
        """
        change = CreateBranch(_checked_name(branch), parse_snapshot(snapshot_id))
        await self._context.ledger.update(change)

    create_branch = blocking(create_branch_async)

    async def list_branches_async(self) -> set[str]:
        """Name all branches."""
        return await self._context.ledger.branch_names()

    list_branches = blocking(list_branches_async)

    async def lookup_branch_async(self, branch: str) -> str:
        """Return the id of the newest snapshot of a branch."""
        return str(await self._context.ledger.branch_tip(_checked_name(branch)))

    lookup_branch = blocking(lookup_branch_async)

    async def reset_branch_async(
        self, branch: str, snapshot_id: str, *, from_snapshot_id: str | None = None
    ) -> None:
        """Let a branch end at another snapshot.

        With `from_snapshot_id`, only if it still ends there: else this is a `ConflictError`.
        """
        expected = None if from_snapshot_id is None else parse_snapshot(from_snapshot_id)
        target = parse_snapshot(snapshot_id)
        await self._context.ledger.update(ResetBranch(_checked_name(branch), target, expected))

    reset_branch = blocking(reset_branch_async)

    async def delete_branch_async(
        self, branch: str, *, from_snapshot_id: str | None = None
    ) -> None:
        """Delete a branch; its snapshots stay. `main` cannot be deleted.

        With `from_snapshot_id`, only if the branch still ends there: else this is
        a `ConflictError`.

        >>> import icefloe
        >>> repository = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> first = repository.lookup_branch("main")
        >>> repository.create_branch("try-out", first)
        >>> repository.delete_branch("try-out", from_snapshot_id=first)
        >>> repository.list_branches()
        {'main'}
        """
        expected = None if from_snapshot_id is None else parse_snapshot(from_snapshot_id)
        await self._context.ledger.update(DeleteBranch(_checked_name(branch), expected))

    delete_branch = blocking(delete_branch_async)

    async def create_tag_async(self, tag: str, snapshot_id: str) -> None:
        """Name a snapshot for good: a tag never moves.

        >>> import icefloe
        >>> repository = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> repository.create_tag("v1", repository.lookup_branch("main"))
        >>> repository.lookup_tag("v1") == repository.lookup_branch("main")
        True
        """
        change = CreateTag(_checked_name(tag), parse_snapshot(snapshot_id))
        await self._context.ledger.update(change)

    create_tag = blocking(create_tag_async)

    async def list_tags_async(self) -> set[str]:
        """Name all tags."""
        return await self._context.ledger.tag_names()

    list_tags = blocking(list_tags_async)

    async def lookup_tag_async(self, tag: str) -> str:
        """Return the id of the snapshot that a tag names."""
        return str(await self._context.ledger.tag_target(_checked_name(tag)))

    lookup_tag = blocking(lookup_tag_async)

    async def delete_tag_async(self, tag: str) -> None:
        """Take a tag away; its name cannot be used again."""
        await self._context.ledger.update(DeleteTag(_checked_name(tag)))

    delete_tag = blocking(delete_tag_async)


def _checked_name(name: object) -> str:
    return require_text(name, "the name of a branch or tag", ErrorKind.INVALID_REF_NAME)
