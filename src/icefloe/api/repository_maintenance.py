"""Keeping a repository healthy: old versions go, and with them the files that nothing needs."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal

from icefloe.effects import blocking
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.repo.context import RepoContext
from icefloe.values.model import Progress
from icefloe.values.times import to_microseconds

if TYPE_CHECKING:
    from icefloe.maintenance.expiration import ExpirationRules
    from icefloe.maintenance.reclaiming import ExpirationPlan
    from icefloe.maintenance.statistics import ChunkStorageStats, StorageUses, UsageBy
    from icefloe.maintenance.sweeping import GCSummary, Kind
    from icefloe.walk.reachability import ReadLimits

type KindOfFile = Literal["snapshots", "transaction_logs", "manifests", "chunks"]

_LISTINGS: Final = 3


class RepositoryMaintenance:
    """The part of `Repository` that gets rid of things."""

    _context: RepoContext

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
        from icefloe.maintenance import reclaiming

        rules = _expiration_rules(
            older_than,
            delete_branches=delete_expired_branches,
            delete_tags=delete_expired_tags,
            protected_branches=protected_branches,
            protected_tags=protected_tags,
        )
        return await reclaiming.plan_expiration(self._context, rules)

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
        """Let versions that were written before a time leave the history; give their ids.

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
        from icefloe.walk.reachability import ReadLimits

        return await statistics.usage(self._context, by, ReadLimits(progress=on_progress))

    storage_use = blocking(storage_use_async)


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
    from icefloe.walk.reachability import ReadLimits

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
