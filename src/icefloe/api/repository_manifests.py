"""The layout of the manifests of a repository."""

from typing import Any

from icefloe.effects import run_blocking
from icefloe.engine import rewriting
from icefloe.engine.context import RepoContext
from icefloe.engine.relayout import Progress
from icefloe.engine.rewriting import CommitMethod


class RepositoryManifests:
    """The part of `Repository` that is about where references are kept."""

    _context: RepoContext
    _default_metadata: dict[str, Any]

    def rewrite_manifests(
        self,
        message: str,
        *,
        branch: str,
        metadata: dict[str, Any] | None = None,
        commit_method: CommitMethod = "new_commit",
        on_progress: Progress | None = None,
    ) -> str:
        """Lay out all manifests of a branch as the configuration says, and give the new version.

        The data stays the same, and manifests that are right already are kept. It is one commit,
        or with `commit_method="amend"` takes the place of the newest one (spec 2). A new commit
        is made on top of what others commit meanwhile; to amend is refused then. `on_progress`
        hears how many references of how many are done.

        >>> import icefloe, zarr
        >>> repository = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> for name in ("lat", "lon"):
        ...     with repository.transaction("main", message=f"add {name}") as store:
        ...         zarr.create_array(store, name=name, shape=3, dtype="i4")[:] = 7
        >>> [len(repository.list_manifest_files(version.id))
        ...  for version in repository.ancestry(branch="main")]
        [2, 1, 0]
        >>> new = repository.rewrite_manifests("small arrays share one", branch="main")
        >>> len(repository.list_manifest_files(new))
        1
        """
        return run_blocking(
            self.rewrite_manifests_async(
                message,
                branch=branch,
                metadata=metadata,
                commit_method=commit_method,
                on_progress=on_progress,
            )
        )

    async def rewrite_manifests_async(
        self,
        message: str,
        *,
        branch: str,
        metadata: dict[str, Any] | None = None,
        commit_method: CommitMethod = "new_commit",
        on_progress: Progress | None = None,
    ) -> str:
        new = await rewriting.rewrite_manifests(
            self._context,
            message,
            branch=branch,
            metadata={**self._default_metadata, **(metadata or {})},
            commit_method=commit_method,
            on_progress=on_progress,
        )
        return str(new)
