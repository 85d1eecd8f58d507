"""Whether what is stored is whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from icefloe.effects import blocking
from icefloe.repo.context import RepoContext
from icefloe.repo.history import parse_snapshot
from icefloe.storage import Storage
from icefloe.values.model import Progress

if TYPE_CHECKING:
    from icefloe.credentials.access import Authorisations
    from icefloe.maintenance.repair.report import RepairReport
    from icefloe.maintenance.verify.report import VerificationReport


class RepositoryHealth:
    """The part of `Repository` that checks what is stored."""

    _context: RepoContext

    async def verify_async(
        self, *, deep: bool = False, on_progress: Progress | None = None
    ) -> VerificationReport:
        """Check that all versions are whole; nothing is changed.

        Every file that a version needs exists, has the right size, can be read, and fits to the
        others; chunk objects are compared with one listing. With `deep`, all chunk objects are
        read, too, and foreign objects are looked at (one request for each) and compared with
        what was recorded of them, as far as they were authorised; all backups are read.

        Others may go on writing. `on_progress` hears how much of how much is done.

        >>> import icefloe
        >>> repository = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> report = repository.verify()
        >>> str(report.verdict), report.damages
        ('healthy', ())
        """
        from icefloe.maintenance.verify.run import VerificationRules, verify_repository

        rules = VerificationRules(deep=deep)
        return await verify_repository(self._context, rules, progress=on_progress)

    verify = blocking(verify_async)

    @staticmethod
    async def verify_storage_async(
        storage: Storage,
        *,
        deep: bool = False,
        authorize_virtual_chunk_access: Authorisations | None = None,
        on_progress: Progress | None = None,
    ) -> VerificationReport:
        """Check a repository that may be too damaged to be opened; as `verify` otherwise.

        Raises `RepositoryNotFoundError` where nothing of a repository is.
        """
        from icefloe.credentials.access import checked_authorisations
        from icefloe.maintenance.verify.run import VerificationRules, verify_storage

        return await verify_storage(
            storage,
            VerificationRules(deep=deep),
            access=checked_authorisations(authorize_virtual_chunk_access),
            progress=on_progress,
        )

    verify_storage = staticmethod(blocking(verify_storage_async))

    @staticmethod
    async def repair_storage_async(
        storage: Storage,
        *,
        dry_run: bool = True,
        backup: str | None = None,
        branches: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
        recover_versions: bool = False,
        drop_lost_versions: bool = False,
        drop_lost_references: bool = False,
        drop_damaged_versions: bool = False,
        rebuild_logs: bool = False,
        deep: bool = False,
        authorize_virtual_chunk_access: Authorisations | None = None,
        on_progress: Progress | None = None,
    ) -> RepairReport:
        """Repair a repository, which may be too damaged to be opened; by default, only say how.

        Always: a repo object (or branches, tags and configuration of spec 1) that is missing or
        cannot be read is put back, from the newest backup (or another `backup`) or made again
        from the snapshots; `branches` and `tags` say what they are to name, where nothing else
        does. On request:

        - `recover_versions` gives branches to versions that are there but not listed.
        - `drop_lost_versions` takes versions out of the history whose snapshots are lost.
        - `drop_lost_references` commits to each branch a version without references to chunks
          and manifests that are lost; these chunks read as never written.
        - `drop_damaged_versions` takes other versions that lost data out of the history.
        - `rebuild_logs` writes logs again that are lost or untrue; of the log of operations it
          keeps what can be relied on.
        - `deep` also looks at the bytes of chunks, and at files of virtual chunks.

        Nothing is deleted; of what is replaced a copy is kept below `overwritten/`.

        >>> import icefloe
        >>> from icefloe.effects import run_blocking
        >>> storage = icefloe.in_memory_storage()
        >>> repository = icefloe.Repository.create(storage)
        >>> _ = repository.writable_session("main").commit("first", allow_empty=True)
        >>> _ = run_blocking(storage.open().put("repo", b"torn"))
        >>> report = icefloe.Repository.repair_storage(storage, dry_run=False)
        >>> [step.kind for step in report.steps], report.is_healthy
        (['restore-repo-object'], True)
        """
        from icefloe.credentials.access import checked_authorisations
        from icefloe.maintenance.repair.repair_log import RepairRules
        from icefloe.maintenance.repair.run import repair

        rules = RepairRules(
            backup,
            {name: parse_snapshot(snapshot) for name, snapshot in (branches or {}).items()},
            {name: parse_snapshot(snapshot) for name, snapshot in (tags or {}).items()},
            recover_versions,
            drop_lost_versions,
            drop_lost_references,
            drop_damaged_versions,
            rebuild_logs,
            deep,
        )
        return await repair(
            storage,
            rules,
            dry_run=dry_run,
            access=checked_authorisations(authorize_virtual_chunk_access),
            progress=on_progress,
        )

    repair_storage = staticmethod(blocking(repair_storage_async))
