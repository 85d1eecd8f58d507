"""Maintenance of a repository: expiration, garbage, repair, manifests, dependencies."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal

from icefloe.effects import blocking
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.repo_info import MAIN_BRANCH
from icefloe.repo.context import RepoContext
from icefloe.repo.history import parse_snapshot, resolve
from icefloe.storage import Storage
from icefloe.values.model import Progress
from icefloe.values.times import to_microseconds

if TYPE_CHECKING:
    from icefloe.credentials.access import Authorisations
    from icefloe.maintenance.dependencies.access import AccessReport
    from icefloe.maintenance.dependencies.summary import By, VirtualDependencies
    from icefloe.maintenance.expiration import ExpirationPlan, ExpirationRules
    from icefloe.maintenance.layout.advice import ManifestAdvice
    from icefloe.maintenance.layout.rewriting import CommitMethod
    from icefloe.maintenance.layout.survey import ManifestContents
    from icefloe.maintenance.repair.repair_log import RepairReport
    from icefloe.maintenance.statistics import ChunkStorageStats, StorageUses, UsageBy
    from icefloe.maintenance.sweeping import GCSummary, Kind
    from icefloe.maintenance.verify.report import VerificationReport
    from icefloe.walk.history import ReadLimits

type KindOfFile = Literal["snapshots", "transaction_logs", "manifests", "chunks"]

_LISTINGS: Final = 3


class RepositoryMaintenance:
    """The part of `Repository` that keeps it healthy."""

    _context: RepoContext
    _default_metadata: dict[str, Any]

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

    async def plan_expiration_async(
        self,
        older_than: datetime,
        *,
        delete_expired_branches: bool = False,
        delete_expired_tags: bool = False,
        protected_branches: Collection[str] = (),
        protected_tags: Collection[str] = (),
    ) -> ExpirationPlan:
        """List the versions that `expire_snapshots` would remove, and the space that this frees.

        Changes nothing. Takes the same arguments.

        >>> import icefloe
        >>> from datetime import UTC, datetime
        >>> repository = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> for number in range(3):
        ...     _ = repository.writable_session("main").commit(f"no. {number}", allow_empty=True)
        >>> plan = repository.plan_expiration(datetime.now(UTC))
        >>> [version.message for version in plan.snapshots]
        ['no. 1', 'no. 0']
        """
        from icefloe.maintenance import expiration

        rules = _expiration_rules(
            older_than,
            delete_branches=delete_expired_branches,
            delete_tags=delete_expired_tags,
            protected_branches=protected_branches,
            protected_tags=protected_tags,
        )
        return await expiration.plan_expiration(self._context, rules)

    plan_expiration = blocking(plan_expiration_async)

    async def expire_snapshots_async(
        self,
        older_than: datetime,
        *,
        delete_expired_branches: bool = False,
        delete_expired_tags: bool = False,
        protected_branches: Collection[str] = (),
        protected_tags: Collection[str] = (),
    ) -> set[str]:
        """Remove versions from the history that were written before a time, and return their ids.

        The newest versions of branches and of tags stay however old they are, unless such
        branches or tags may be deleted, which `main` never is. Protected branches and tags keep
        all of their history. The files of what is gone stay until `garbage_collect`.

        >>> import icefloe
        >>> from datetime import UTC, datetime
        >>> repository = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> for number in range(3):
        ...     _ = repository.writable_session("main").commit(f"no. {number}", allow_empty=True)
        >>> len(repository.expire_snapshots(datetime.now(UTC)))
        2
        >>> [version.message for version in repository.ancestry(branch="main")]
        ['no. 2', 'Repository initialized']
        """
        from icefloe.maintenance import expiration

        rules = _expiration_rules(
            older_than,
            delete_branches=delete_expired_branches,
            delete_tags=delete_expired_tags,
            protected_branches=protected_branches,
            protected_tags=protected_tags,
        )
        return set((await expiration.expire(self._context, rules)).released_texts())

    expire_snapshots = blocking(expire_snapshots_async)

    async def garbage_collect_async(
        self,
        delete_object_older_than: datetime,
        *,
        dry_run: bool = False,
        max_snapshots_in_memory: int = 50,
        max_compressed_manifest_mem_bytes: int = 536870912,
        max_decoded_manifest_mem_bytes: int = 4294967296,
        max_concurrent_manifest_fetches: int = 500,
        max_concurrent_deletes: int = 10,
        max_consecutive_delete_failures: int = 50,
        max_concurrent_listings: int | None = None,
        cutoffs: Mapping[KindOfFile, datetime | None] | None = None,
        incremental: bool = False,
        on_progress: Progress | None = None,
    ) -> GCSummary:
        """Delete files that no version needs and that were written before a time.

        That time must be further back than the beginning of the longest session that is still
        to be committed: only their age distinguishes files of such sessions from garbage.

        `cutoffs` gives kinds of files times of their own; with None, none of a kind goes.
        `incremental` looks only for what versions that are gone leave behind, and so neither
        lists manifests nor chunks: quick and frequent, while a full run now and then also finds
        what was never committed. A `dry_run` only counts. `on_progress` receives how many manifests
        were read, and of how many.

        >>> import icefloe
        >>> from datetime import UTC, datetime, timedelta
        >>> repository = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> for number in range(3):
        ...     _ = repository.writable_session("main").commit(f"no. {number}", allow_empty=True)
        >>> _ = repository.expire_snapshots(datetime.now(UTC))
        >>> repository.garbage_collect(datetime.now(UTC), dry_run=True).snapshots_deleted
        2
        >>> repository.garbage_collect(datetime.now(UTC) - timedelta(days=7)).snapshots_deleted
        0
        """
        from icefloe.maintenance import garbage
        from icefloe.maintenance.garbage import GarbageRules

        rules = GarbageRules(
            _cutoffs(delete_object_older_than, cutoffs or {}),
            dry_run=dry_run,
            incremental=incremental,
            limits=read_limits(
                max_snapshots_in_memory,
                max_compressed_manifest_mem_bytes,
                max_decoded_manifest_mem_bytes,
                max_concurrent_manifest_fetches,
                on_progress,
            ),
            concurrent_deletes=at_least_one("max_concurrent_deletes", max_concurrent_deletes),
            consecutive_failures=max_consecutive_delete_failures,
            concurrent_listings=at_least_one(
                "max_concurrent_listings",
                _LISTINGS if max_concurrent_listings is None else max_concurrent_listings,
            ),
        )
        return await garbage.collect(self._context, rules)

    garbage_collect = blocking(garbage_collect_async)

    async def chunk_storage_stats_async(
        self,
        *,
        max_snapshots_in_memory: int = 50,
        max_compressed_manifest_mem_bytes: int = 536870912,
        max_decoded_manifest_mem_bytes: int = 4294967296,
        max_concurrent_manifest_fetches: int = 500,
        on_progress: Progress | None = None,
    ) -> ChunkStorageStats:
        """Sum up what chunks take, in all versions that branches and tags lead to.

        Each chunk counts once, however many versions share it. `on_progress` receives how many
        manifests were read, and of how many.

        >>> import icefloe, zarr
        >>> repository = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> for number in range(3):
        ...     with repository.transaction("main", message=f"no. {number}") as store:
        ...         array = zarr.create_array(
        ...             store, name=f"a{number}", shape=1000, dtype="u1", compressors=None
        ...         )
        ...         array[:] = 1
        >>> repository.chunk_storage_stats().native_bytes
        3000
        """
        from icefloe.maintenance import statistics

        limits = read_limits(
            max_snapshots_in_memory,
            max_compressed_manifest_mem_bytes,
            max_decoded_manifest_mem_bytes,
            max_concurrent_manifest_fetches,
            on_progress,
        )
        return await statistics.total_usage(self._context, limits)

    chunk_storage_stats = blocking(chunk_storage_stats_async)

    async def total_chunks_storage_async(
        self,
        *,
        max_snapshots_in_memory: int = 50,
        max_compressed_manifest_mem_bytes: int = 536870912,
        max_decoded_manifest_mem_bytes: int = 4294967296,
        max_concurrent_manifest_fetches: int = 500,
    ) -> int:
        """Return the native part of `chunk_storage_stats`, which is better: use that."""
        warnings.warn(
            "total_chunks_storage counts native chunks only: use"
            " chunk_storage_stats().native_bytes, which tells about the others too",
            DeprecationWarning,
            stacklevel=2,
        )
        stats = await self.chunk_storage_stats_async(
            max_snapshots_in_memory=max_snapshots_in_memory,
            max_compressed_manifest_mem_bytes=max_compressed_manifest_mem_bytes,
            max_decoded_manifest_mem_bytes=max_decoded_manifest_mem_bytes,
            max_concurrent_manifest_fetches=max_concurrent_manifest_fetches,
        )
        return stats.native_bytes

    total_chunks_storage = blocking(total_chunks_storage_async)

    async def storage_use_async(
        self, by: UsageBy = "snapshot", *, on_progress: Progress | None = None
    ) -> StorageUses:
        """Sum up what chunks take by version, by array or by container.

        By version, oldest first, a chunk counts for the first version that has it: so each row
        says what that version added, and the rows add up to `chunk_storage_stats`. By array and
        by container, the largest come first; an array is named by its newest path.

        >>> import icefloe, zarr
        >>> repository = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> with repository.transaction("main", message="data") as store:
        ...     array = zarr.create_array(
        ...         store, name="t2m", shape=1000, dtype="u1", compressors=None
        ...     )
        ...     array[:] = 1
        >>> repository.storage_use("array")
        array  native  virtual  inline  chunks
        /t2m   1000 B  0 B      0 B          1
        """
        from icefloe.maintenance import statistics
        from icefloe.walk.history import ReadLimits

        return await statistics.usage(self._context, by, ReadLimits(progress=on_progress))

    storage_use = blocking(storage_use_async)

    # -- verification and repair --------------------------------------------------------

    async def verify_async(
        self, *, deep: bool = False, on_progress: Progress | None = None
    ) -> VerificationReport:
        """Check that all versions are whole; nothing is changed.

        Every file that a version needs exists, has the right size, can be read, and fits to the
        others; chunk objects are compared with one listing. If the repository was opened with
        authorisations, foreign objects are looked at, too (one request for each), and compared
        with what was recorded of them. With `deep`, all chunk objects and all backups are read.

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

    # -- the layout of manifests ---------------------------------------------------------

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

    async def manifest_layout_async(
        self,
        branch: str | None = None,
        *,
        tag: str | None = None,
        snapshot_id: str | None = None,
    ) -> list[ManifestContents]:
        """List the manifests of a version with the arrays that have references in them.

        Without a version, that is the newest one of `main`.

        >>> import icefloe, zarr
        >>> repository = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> with repository.transaction("main", message="add") as store:
        ...     for name in ("lat", "lon"):
        ...         zarr.create_array(store, name=name, shape=3, chunks=1, dtype="i4")[:] = 7
        >>> [(file.num_chunk_refs, file.arrays) for file in repository.manifest_layout()]
        [(6, ('/lat', '/lon'))]
        """
        from icefloe.maintenance.layout.survey import manifest_layout

        if branch is tag is snapshot_id is None:
            branch = MAIN_BRANCH
        found = await resolve(self._context, branch=branch, tag=tag, snapshot_id=snapshot_id)
        return await manifest_layout(self._context, await self._context.assets.load_snapshot(found))

    manifest_layout = blocking(manifest_layout_async)


def _expiration_rules(
    older_than: datetime,
    *,
    delete_branches: bool,
    delete_tags: bool,
    protected_branches: Collection[str],
    protected_tags: Collection[str],
) -> ExpirationRules:
    from icefloe.maintenance.expiration import ExpirationRules

    return ExpirationRules(
        to_microseconds(older_than, "older_than"),
        delete_branches,
        delete_tags,
        _names(protected_branches, "protected_branches"),
        _names(protected_tags, "protected_tags"),
    )


def _names(names: Collection[str], parameter: str) -> frozenset[str]:
    if isinstance(names, str):
        raise InvalidInputError(
            f"{parameter} is a list of names: write [{names!r}]", ErrorKind.INVALID_CONFIG
        )
    return frozenset(names)


def _cutoffs(
    usual: datetime, by_kind: Mapping[KindOfFile, datetime | None]
) -> dict[Kind, datetime | None]:
    from icefloe.maintenance.sweeping import Kind

    unknown = sorted(set(map(str, by_kind)) - {str(kind) for kind in Kind})
    if unknown:
        kinds = ", ".join(map(repr, map(str, Kind)))
        raise InvalidInputError(
            f"cutoffs has {unknown[0]!r}, which is none of {kinds}", ErrorKind.INVALID_CONFIG
        )
    own = {Kind(name): moment for name, moment in by_kind.items()}
    cutoffs = {kind: own.get(kind, usual) for kind in Kind}
    for moment in cutoffs.values():
        if moment is not None:
            to_microseconds(moment, "delete_object_older_than")  # refuses one without a zone
    return cutoffs


def read_limits(
    snapshots: int,
    compressed_bytes: int,
    decoded_bytes: int,
    fetches: int,
    progress: Progress | None,
) -> ReadLimits:
    """Check how much to hold at once."""
    from icefloe.walk.history import ReadLimits

    return ReadLimits(
        at_least_one("max_snapshots_in_memory", snapshots),
        at_least_one("max_concurrent_manifest_fetches", fetches),
        at_least_one("max_compressed_manifest_mem_bytes", compressed_bytes),
        at_least_one("max_decoded_manifest_mem_bytes", decoded_bytes),
        progress=progress,
    )


def at_least_one(name: str, number: int) -> int:
    """Refuse a limit with which nothing could be done."""
    if number < 1:
        raise InvalidInputError(
            f"{name} must be at least 1, got {number}", ErrorKind.INVALID_CONFIG
        )
    return number
