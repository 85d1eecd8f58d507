"""A repository copied elsewhere, as a repository or as plain Zarr."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from icefloe.effects import blocking
from icefloe.errors import InvalidInputError
from icefloe.format.ids import SnapshotId
from icefloe.repo import history
from icefloe.repo.context import RepoContext
from icefloe.storage import Storage
from icefloe.transactions.session import SessionMode, open_session
from icefloe.values.model import Progress
from icefloe.values.times import to_microseconds

if TYPE_CHECKING:
    from icefloe.maintenance.clone.run import CloneReport
    from icefloe.zarr_store.exporting import ExportReport


class RepositoryCopies:
    """The part of `Repository` that copies it elsewhere."""

    _context: RepoContext

    async def clone_to_async(
        self,
        target: Storage,
        branch: str | None = None,
        *,
        tag: str | None = None,
        snapshot_id: str | None = None,
        as_of: datetime | None = None,
        update: bool = False,
        deep: bool = False,
        on_progress: Progress | None = None,
    ) -> CloneReport:
        """Copy the repository to another storage: all of its history, or one version.

        The place must be empty. Only what versions need is copied; others may go on committing
        meanwhile, and what they add is not part of the clone. Chunks that lie in other files
        stay there. The last thing that is written is what makes the place a repository: if the
        work is interrupted before, there is none, and the same call finishes it, without
        copying existing objects again. Afterwards all sizes are compared, with `deep` all bytes.

        With a branch, tag or snapshot the clone has that version alone, as if all before it had
        expired; it is what `main` leads to, and the branch or tag. `update` brings an earlier
        clone of everything up to date, if nobody wrote to it.

        >>> import icefloe
        >>> repository = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> _ = repository.writable_session("main").commit("a version", allow_empty=True)
        >>> elsewhere = icefloe.in_memory_storage()
        >>> repository.clone_to(elsewhere).versions
        2
        >>> clone = icefloe.Repository.open(elsewhere)
        >>> [version.message for version in clone.ancestry(branch="main")]
        ['a version', 'Repository initialized']
        """
        from icefloe.maintenance.clone.run import CloneRules, CloneVersion, clone

        self._require_elsewhere(target)
        version = None
        if any(choice is not None for choice in (branch, tag, snapshot_id, as_of)):
            snapshot = await self._snapshot(branch, tag, snapshot_id, as_of)
            version = CloneVersion(snapshot, branch, tag)
        rules = CloneRules(version, update=update, deep=deep)
        return await clone(self._context, target, rules, on_progress)

    clone_to = blocking(clone_to_async)

    async def export_to_zarr_async(
        self,
        target: Storage,
        branch: str | None = None,
        *,
        tag: str | None = None,
        snapshot_id: str | None = None,
        as_of: datetime | None = None,
        group: str = "/",
        consolidated: bool = False,
        deep: bool = False,
        on_progress: Progress | None = None,
    ) -> ExportReport:
        """Write one version as plain Zarr (format 3), which every Zarr library reads.

        The place must be empty. Chunks are copied byte for byte, also those that lie in other
        files, if their containers were authorised. The document of the root comes last:
        if the work is interrupted before, nothing can be opened, and the same call finishes
        it. `consolidated` repeats all documents in that of the root, which saves readers over a
        network many requests. `deep` reads all chunks once more and compares them.

        >>> import icefloe, tempfile, zarr
        >>> repository = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> with repository.transaction("main", message="first data") as store:
        ...     array = zarr.create_array(store, name="t2m", shape=3, dtype="i4", fill_value=0)
        ...     array[:] = [7, 8, 9]
        >>> folder = tempfile.mkdtemp()
        >>> repository.export_to_zarr(icefloe.local_filesystem_storage(folder), "main").chunks
        1
        >>> zarr.open_array(f"{folder}/t2m", mode="r")[:].tolist()
        [7, 8, 9]
        """
        from icefloe.zarr_store.exporting import ExportRules, export

        self._require_elsewhere(target)
        snapshot = await self._snapshot(branch, tag, snapshot_id, as_of)
        session = await open_session(self._context, snapshot, SessionMode.readonly)
        rules = ExportRules(group, consolidated=consolidated, deep=deep)
        return await export(session, target, rules, on_progress)

    export_to_zarr = blocking(export_to_zarr_async)

    async def _snapshot(
        self,
        branch: str | None,
        tag: str | None,
        snapshot_id: str | None,
        as_of: datetime | None,
    ) -> SnapshotId:
        return await history.resolve(
            self._context,
            branch=branch,
            tag=tag,
            snapshot_id=snapshot_id,
            as_of=None if as_of is None else to_microseconds(as_of, "as_of"),
        )

    def _require_elsewhere(self, target: Storage) -> None:
        if target == self._context.storage:
            raise InvalidInputError("a repository cannot be copied onto itself: give another place")
