"""The versions of a repository: their branches and tags, how they differ, what their files hold."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

from icefloe.effects import AsyncCloseableIterator, blocking, iterate_blocking
from icefloe.errors import ErrorKind
from icefloe.format import DEFAULT_MAX_ROWS
from icefloe.format.ids import ManifestId
from icefloe.repo import history
from icefloe.repo.context import RepoContext
from icefloe.repo.history import commit_graph, parse_snapshot, require_one_version
from icefloe.repo.repo_changes import (
    CreateBranch,
    CreateTag,
    DeleteBranch,
    DeleteTag,
    ResetBranch,
)
from icefloe.values.checks import require_text

if TYPE_CHECKING:
    from icefloe.api.graph import AncestryGraph
    from icefloe.api.updates import Update
    from icefloe.repo.snapshot_info import ManifestFileInfo, SnapshotInfo
    from icefloe.transactions.diffs import Diff


def _begun[T](items: Iterator[T]) -> Iterator[T]:
    """Take the first step at once, so that what is wrong shows where it was asked for."""
    for first in items:
        return chain([first], items)
    return items


class RepositoryHistory:
    """The part of `Repository` that names versions and looks at them."""

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

    async def branch_versions_async(self) -> dict[str, SnapshotInfo]:
        """Return the newest version of each branch, by the names of the branches.

        >>> import icefloe
        >>> repository = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> repository.branch_versions()["main"].message
        'Repository initialized'
        """
        return await self._versions("branches")

    branch_versions = blocking(branch_versions_async)

    async def tag_versions_async(self) -> dict[str, SnapshotInfo]:
        """Return the version that each tag names, by the names of the tags."""
        return await self._versions("tags")

    tag_versions = blocking(tag_versions_async)

    async def _versions(self, refs: Literal["branches", "tags"]) -> dict[str, SnapshotInfo]:
        from icefloe.repo.snapshot_info import SnapshotInfo

        entries = await history.named_versions(self._context, refs)
        return {name: SnapshotInfo.of(entry) for name, entry in entries.items()}

    async def reset_branch_async(
        self, branch: str, snapshot_id: str, *, from_snapshot_id: str | None = None
    ) -> None:
        """Move a branch to another snapshot.

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

    def ancestry(
        self,
        *,
        branch: str | None = None,
        tag: str | None = None,
        snapshot_id: str | None = None,
    ) -> Iterator[SnapshotInfo]:
        """Walk from a version back to the first one.

        >>> import icefloe
        >>> repository = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> _ = repository.writable_session("main").commit("second", allow_empty=True)
        >>> [version.message for version in repository.ancestry(branch="main")]
        ['second', 'Repository initialized']
        """
        require_one_version(branch, tag, snapshot_id)
        pages = iterate_blocking(self._ancestry_pages(branch, tag, snapshot_id))
        return _begun(chain.from_iterable(pages))

    def async_ancestry(
        self,
        *,
        branch: str | None = None,
        tag: str | None = None,
        snapshot_id: str | None = None,
    ) -> AsyncCloseableIterator[SnapshotInfo]:
        """Walk from a version back to the first one, with `async for`."""
        require_one_version(branch, tag, snapshot_id)
        return AsyncCloseableIterator(self._ancestry(branch, tag, snapshot_id))

    async def _ancestry(
        self, branch: str | None, tag: str | None, snapshot_id: str | None
    ) -> AsyncIterator[SnapshotInfo]:
        async for page in self._ancestry_pages(branch, tag, snapshot_id):
            for version in page:
                yield version

    async def _ancestry_pages(
        self, branch: str | None, tag: str | None, snapshot_id: str | None
    ) -> AsyncIterator[Iterator[SnapshotInfo]]:
        from icefloe.repo.snapshot_info import SnapshotInfo

        pages = history.ancestry(self._context, branch=branch, tag=tag, snapshot_id=snapshot_id)
        async for page in pages:
            yield SnapshotInfo.of_page(page)

    async def ancestry_graph_async(
        self,
        *,
        branch: str | None = None,
        tag: str | None = None,
        snapshot_id: str | None = None,
        plain: bool = False,
        most: int | None = None,
    ) -> AncestryGraph:
        """Draw the history of a version, or of all branches and tags.

        Print the result to see it as text, with colours unless `plain`. With `most`, only the
        newest versions are drawn.
        """
        from icefloe.api.graph import AncestryGraph

        start = None
        if (branch, tag, snapshot_id) != (None, None, None):
            start = await history.resolve(
                self._context, branch=branch, tag=tag, snapshot_id=snapshot_id
            )
        return AncestryGraph(await commit_graph(self._context.ledger, start, most), plain)

    ancestry_graph = blocking(ancestry_graph_async)

    def ops_log(self) -> Iterator[Update]:
        """Walk through everything that was done to the repository, newest first."""
        return _begun(iterate_blocking(self._ops_log()))

    def ops_log_async(self) -> AsyncCloseableIterator[Update]:
        return AsyncCloseableIterator(self._ops_log())

    async def _ops_log(self) -> AsyncIterator[Update]:
        from icefloe.api.updates import Update

        async for entry in self._context.ledger.ops_log():
            yield Update.of(entry)

    async def lookup_snapshot_async(self, snapshot_id: str) -> SnapshotInfo:
        """Return the time, message and metadata of a snapshot."""
        from icefloe.repo.snapshot_info import SnapshotInfo

        return SnapshotInfo.of(await self._context.ledger.entry(parse_snapshot(snapshot_id)))

    lookup_snapshot = blocking(lookup_snapshot_async)

    async def find_snapshots_async(self, prefix: str) -> list[SnapshotInfo]:
        """List the snapshots whose ids begin with some characters, at least 4.

        >>> import icefloe
        >>> repository = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> [version.id for version in repository.find_snapshots("1cec")]
        ['1CECHNKREP0F1RSTCMT0']
        """
        from icefloe.repo.snapshot_info import SnapshotInfo

        return [
            SnapshotInfo.of(entry) for entry in await history.find_snapshots(self._context, prefix)
        ]

    find_snapshots = blocking(find_snapshots_async)

    async def list_manifest_files_async(self, snapshot_id: str) -> list[ManifestFileInfo]:
        """List the manifests that a snapshot uses."""
        from icefloe.repo import inspection
        from icefloe.repo.snapshot_info import ManifestFileInfo

        files = await inspection.manifest_files(self._context, parse_snapshot(snapshot_id))
        return [
            ManifestFileInfo(str(manifest_id), size, count) for manifest_id, size, count in files
        ]

    list_manifest_files = blocking(list_manifest_files_async)

    async def diff_async(
        self,
        *,
        from_branch: str | None = None,
        from_tag: str | None = None,
        from_snapshot_id: str | None = None,
        to_branch: str | None = None,
        to_tag: str | None = None,
        to_snapshot_id: str | None = None,
    ) -> Diff:
        """Return what changed from a version to one of its descendants."""
        from icefloe.transactions import diffs

        older = await history.resolve(
            self._context, branch=from_branch, tag=from_tag, snapshot_id=from_snapshot_id
        )
        newer = await history.resolve(
            self._context, branch=to_branch, tag=to_tag, snapshot_id=to_snapshot_id
        )
        return await diffs.diff(self._context, older, newer)

    diff = blocking(diff_async)

    # -- files -----------------------------------------------------------------------------

    async def inspect_snapshot_async(
        self, snapshot_id: str, *, max_rows: int = DEFAULT_MAX_ROWS
    ) -> dict[str, Any]:
        """Describe a snapshot file in plain dictionaries, at most `max_rows` of each list."""
        from icefloe.repo import inspection

        snapshot = parse_snapshot(snapshot_id)
        return await inspection.describe_snapshot(self._context, snapshot, max_rows)

    inspect_snapshot = blocking(inspect_snapshot_async)

    async def inspect_repo_info_async(self, *, max_rows: int = DEFAULT_MAX_ROWS) -> dict[str, Any]:
        """Describe the object that holds branches, tags, history and settings."""
        from icefloe.repo import inspection

        return await inspection.describe_repo_info(self._context, max_rows)

    inspect_repo_info = blocking(inspect_repo_info_async)

    async def inspect_manifest_async(
        self, manifest_id: str, *, max_rows: int = DEFAULT_MAX_ROWS
    ) -> dict[str, Any]:
        """Describe a manifest: which arrays and chunks it locates."""
        from icefloe.repo import inspection

        manifest = ManifestId.parse(manifest_id)
        return await inspection.describe_manifest(self._context, manifest, max_rows)

    inspect_manifest = blocking(inspect_manifest_async)

    async def inspect_transaction_log_async(
        self, snapshot_id: str, *, max_rows: int = DEFAULT_MAX_ROWS
    ) -> dict[str, Any]:
        """Describe the log of the commit that made a snapshot."""
        from icefloe.repo import inspection

        snapshot = parse_snapshot(snapshot_id)
        return await inspection.describe_transaction_log(self._context, snapshot, max_rows)

    inspect_transaction_log = blocking(inspect_transaction_log_async)


def _checked_name(name: object) -> str:
    return require_text(name, "the name of a branch or tag", ErrorKind.INVALID_REF_NAME)
