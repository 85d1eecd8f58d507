"""The layout of the manifests of a repository."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icefloe.effects import blocking
from icefloe.repo.context import RepoContext
from icefloe.values.model import Progress

if TYPE_CHECKING:
    from icefloe.maintenance.layout.advice import ManifestAdvice
    from icefloe.maintenance.layout.rewriting import CommitMethod
    from icefloe.maintenance.layout.survey import ManifestContents


class RepositoryManifests:
    """The part of `Repository` that is about where references are kept."""

    _context: RepoContext
    _default_metadata: dict[str, Any]

    async def rewrite_manifests_async(
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
        from icefloe.maintenance.layout import rewriting

        new = await rewriting.rewrite_manifests(
            self._context,
            message,
            branch=branch,
            metadata={**self._default_metadata, **(metadata or {})},
            commit_method=commit_method,
            on_progress=on_progress,
        )
        return str(new)

    rewrite_manifests = blocking(rewrite_manifests_async)

    async def suggest_manifests_async(self, branch: str = "main") -> ManifestAdvice:
        """Propose a configuration of manifests, from the arrays of a branch and how they grew.

        Nothing is changed. The advice says what reading, appending and committing cost now, and
        would cost with the proposal.

        >>> import icefloe, zarr
        >>> repository = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> with repository.transaction("main", message="add") as store:
        ...     zarr.create_array(store, name="a", shape=3, chunks=1, dtype="i4")[:] = 7
        >>> repository.suggest_manifests().changes_config
        False
        """
        from icefloe.maintenance.layout.advice import advise, growths
        from icefloe.maintenance.layout.survey import survey

        context = self._context
        tip = await context.ledger.branch_tip(branch)
        arrays = await survey(context, await context.assets.load_snapshot(tip))
        return advise(arrays, await growths(context, tip), context.config)

    suggest_manifests = blocking(suggest_manifests_async)

    async def manifest_layout_async(self, branch: str = "main") -> list[ManifestContents]:
        """List the manifests of a branch with the arrays that have references in them.

        >>> import icefloe, zarr
        >>> repository = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> with repository.transaction("main", message="add") as store:
        ...     for name in ("lat", "lon"):
        ...         zarr.create_array(store, name=name, shape=3, chunks=1, dtype="i4")[:] = 7
        >>> [(file.num_chunk_refs, file.arrays) for file in repository.manifest_layout()]
        [(6, ('/lat', '/lon'))]
        """
        from icefloe.maintenance.layout.survey import manifest_layout

        tip = await self._context.ledger.branch_tip(branch)
        return await manifest_layout(self._context, await self._context.assets.load_snapshot(tip))

    manifest_layout = blocking(manifest_layout_async)
