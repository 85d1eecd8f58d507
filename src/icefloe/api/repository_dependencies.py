"""The external files that a repository depends on, and who may read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from icefloe.effects import blocking
from icefloe.repo.context import RepoContext
from icefloe.values.model import Progress

if TYPE_CHECKING:
    from icefloe.maintenance.dependencies.access import AccessReport
    from icefloe.maintenance.dependencies.summary import By, VirtualDependencies


class RepositoryDependencies:
    """The part of `Repository` that looks at virtual chunks as a whole."""

    _context: RepoContext

    async def describe_access_async(
        self,
        branch: str | None = None,
        *,
        tag: str | None = None,
        snapshot_id: str | None = None,
        on_progress: Progress | None = None,
    ) -> AccessReport:
        """Describe what reading the virtual chunks of a version takes; the default is `main`.

        Lists each container, what it needs, how many references use it, and whether it was
        authorised. Nothing outside of the repository is contacted. `on_progress` hears how much
        of how much is done.

        >>> import icefloe
        >>> repository = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> repository.describe_access()
        no virtual chunks, and no containers for any: nothing to authorise
        """
        from icefloe.maintenance.dependencies.access import describe_access
        from icefloe.maintenance.dependencies.summary import VersionQuery

        versions = VersionQuery(branch, tag, snapshot_id)
        return await describe_access(self._context, versions, on_progress)

    describe_access = blocking(describe_access_async)

    async def virtual_dependencies_async(
        self,
        by: By = "container",
        *,
        prefix: str | None = None,
        glob: str | None = None,
        branch: str | None = None,
        tag: str | None = None,
        snapshot_id: str | None = None,
        all_versions: bool = False,
        depth: int = 1,
        on_progress: Progress | None = None,
    ) -> VirtualDependencies:
        """Sum up which foreign objects a repository needs: chunks, bytes, arrays and versions.

        Grouped `by` container, bucket, prefix (`depth` folders below the bucket), file, or array
        of the repository. `prefix` (a place and all below it, compared by whole segments) and
        `glob` (`*` within a segment, `**` across) choose locations.

        Looks at the newest version of `main`, or the one named; with `all_versions` at all that
        came before it too, and if none is named at every branch and tag. Manifests that versions
        share are read once.

        >>> import icefloe
        >>> repository = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> len(repository.virtual_dependencies("file", all_versions=True))
        0
        """
        from icefloe.maintenance.dependencies.summary import VersionQuery, dependencies
        from icefloe.virtual_chunks.grouping import LocationQuery

        return await dependencies(
            self._context,
            by,
            versions=VersionQuery(branch, tag, snapshot_id, all_versions),
            query=LocationQuery(prefix, glob),
            depth=depth,
            progress=on_progress,
        )

    virtual_dependencies = blocking(virtual_dependencies_async)
