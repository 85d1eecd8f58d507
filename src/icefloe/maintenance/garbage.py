"""Garbage collection: delete files that no version needs and no running commit will need.

A file that a version needs must never be deleted. Therefore:

- Only files of the four kinds that have ids as names are considered, and of those only files
  written before a cut-off, by the clock of the storage. The files of a running session are younger
  than the cut-off, as long as the cut-off lies before the start of the longest session.
- A cut-off in the future counts as now, so that files written during the collection are young,
  however coarsely the storage measures time.
- Young files are needed, with everything they refer to: a young snapshot that is in no history, or
  a young manifest that is in no snapshot, belongs to a commit that is in progress.
- The history is read again before anything is deleted, and again before each portion. Files that
  the history has come to need in the meantime are kept.
- If a file that is needed cannot be read, nothing is deleted at all.

Versions that are reachable from no branch and no tag are removed from the repo object of spec 2 in
one update, before any of their files are deleted. That update is recorded in the log of operations,
so that sessions which began earlier check their objects before they commit.

Another collection, with a later cut-off, may delete files that this one is about to keep: then this
one starts again.

A full storage refuses the update of the repo object. Then files that no listed version refers to
are deleted first, and the collection starts again. Those are files that are not chunks, because a
session that misses one notices; only if there are none, some chunks are deleted.
"""

import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Final

import numpy as np

from icefloe.effects import map_concurrently
from icefloe.errors import (
    ErrorKind,
    FormatError,
    IcefloeError,
    NotFoundError,
    StorageError,
)
from icefloe.format.columns import Bools
from icefloe.format.ids import ManifestId, ObjectId, SnapshotId, id_rows, ids_of_rows, texts_of_rows
from icefloe.format.repo_info import RepoInfo
from icefloe.format.snapshot_table import NO_PARENT, SnapshotTable
from icefloe.format.update_table import UpdateKind
from icefloe.maintenance import expiration
from icefloe.maintenance.clocks import effective_cutoffs
from icefloe.maintenance.sweeping import (
    Collected,
    GCSummary,
    Kind,
    Listed,
    Objects,
    Sweeper,
    TooManyFailuresError,
    list_kind,
    list_whole_kind,
)
from icefloe.records import Record, field, replace
from icefloe.repo import repo_changes
from icefloe.repo.context import RepoContext
from icefloe.repo.migration_state import require_unmigrated
from icefloe.repo.repo_changes import Change, Changed
from icefloe.walk.history import (
    ManifestFact,
    ReadLimits,
    SnapshotFacts,
    read_snapshots,
    requests_at_once,
)
from icefloe.walk.reachability import Reachable, referenced_objects
from icefloe.walk.spill import keys_of_ids, keys_of_names

_log = logging.getLogger(__name__)

type _Phases = Mapping[Kind, AsyncIterator[Objects]]


class GarbageRules(Record):
    """The selection of files to delete, and the limits of the deletion."""

    cutoffs: Mapping[Kind, datetime | None]
    """Only objects written before are deleted; None keeps all of a kind."""
    dry_run: bool = False
    incremental: bool = False
    """Delete only the files of dropped versions, without listing manifests and chunks."""
    limits: ReadLimits = field(default_factory=ReadLimits)
    concurrent_deletes: int = 10
    consecutive_failures: int = 50
    """Stop after this many requests in a row that deleted nothing."""
    concurrent_listings: int = 3


_MOST_VANISHED: Final = 3
"""How often a run starts again because a file that it was reading vanished."""


async def collect(context: RepoContext, rules: GarbageRules) -> GCSummary:
    """Delete files that no version needs.

    Failures to read needed files are raised, before anything is deleted. Later failures are in
    the summary.
    """
    done = Collected()
    vanished = 0
    while True:
        try:
            with Reachable(context, rules.limits) as live:
                await _Collection(context, rules, live, done).run()
                return done.summary()
        except _RoomMadeError:
            _log.info("the storage was full and has room now: the collection starts again")
        except NotFoundError as missing:
            vanished += 1
            if rules.dry_run:
                done = Collected()
            if vanished < _MOST_VANISHED:
                _log.info("%s: is somebody else collecting garbage? Looking again", missing)
            elif done.total:
                done.report(f"the collection did not come to its end: {missing}")
                done.skipped = list(Kind)
                return done.summary()
            else:
                raise


class _RoomMadeError(Exception):
    """Some files were deleted to make room for the update of the repo object."""


class DropVersions(Change):
    """Remove versions from the list, as part of a collection."""

    kept: Callable[[RepoInfo], SnapshotTable]

    def apply(self, repo: RepoInfo) -> Changed:
        """Return the state with the versions that are kept."""
        repo_changes.require_online(repo)
        return Changed(replace(repo, history=self.kept(repo)), UpdateKind.GC_RAN)


class _Collection:
    """One run."""

    def __init__(
        self, context: RepoContext, rules: GarbageRules, live: Reachable, done: Collected
    ) -> None:
        self._context = context
        self._rules = rules
        self._live = live
        self._cutoffs: Mapping[Kind, datetime | None] = {}
        self._done = done
        self._sweeper = Sweeper(
            context.backend,
            self._done,
            concurrency=requests_at_once(context, rules.concurrent_deletes),
            most_failures=rules.consecutive_failures,
        )
        self._old: frozenset[SnapshotId] = frozenset()
        """Versions whose files are older than the cut-off."""
        self._pruned: frozenset[SnapshotId] = frozenset()
        """Versions that have expired, but whose logs are needed."""
        self._listed_logs: frozenset[SnapshotId] = frozenset()
        """The same of versions that are to be dropped."""
        self._young_manifests: dict[ManifestId, ManifestFact] = {}
        """Manifests of versions that are not part of a history (yet)."""
        self._needs_chunks = False

    async def run(self) -> None:
        """Find the files that may be deleted, and delete them."""
        rules = self._rules
        self._cutoffs = await effective_cutoffs(
            self._context, rules.cutoffs, at_once=rules.incremental, dry_run=rules.dry_run
        )
        listed = await self._list_small()
        snapshots = listed[Kind.SNAPSHOTS]
        self._old = frozenset(map(SnapshotId.parse, snapshots.old.names))
        await self._look()
        await self._keep_young_snapshots(snapshots.young.names)
        if rules.incremental:
            phases = await self._leftovers(listed)
        else:
            phases = await self._unreferenced(listed)
        if not rules.dry_run:
            await self._drop_with_room(listed)
        await self._sweep(phases)

    # -- files that are needed -------------------------------------------------------------

    async def _list_small(self) -> dict[Kind, Listed]:
        """List the kinds with few objects; chunks are listed when all else is known."""
        kinds = [Kind.SNAPSHOTS, Kind.TRANSACTION_LOGS]
        if not self._rules.incremental:
            kinds.append(Kind.MANIFESTS)
        listed = await map_concurrently(
            lambda kind: list_whole_kind(self._context.backend, kind, self._cutoffs[kind]),
            kinds,
            limit=requests_at_once(self._context, self._rules.concurrent_listings),
        )
        return dict(zip(kinds, listed, strict=True))

    async def _look(self) -> None:
        """Read what the repository needs now and is not known yet."""
        if (repo := await self._context.ledger.repo()) is not None:
            left = self._left(repo)
            await self._live.add(ids_of_rows(SnapshotId, left.ids))
            self._pruned = frozenset(ids_of_rows(SnapshotId, left.pruned_ids))
        else:
            refs = await self._context.ledger.branches(), await self._context.ledger.tags()
            await require_unmigrated(self._context.backend)
            tips = [tip for names in refs for tip in names.values()]
            await self._live.add(tips, with_ancestors=True)
        if self._needs_chunks:
            await self._live.read_chunks()

    def _left(self, repo: RepoInfo) -> SnapshotTable:
        """Return the versions to keep: those reachable from refs, and those that are not old."""
        table = repo.snapshots
        old = id_rows(SnapshotId, sorted(self._old))
        is_kept: Bools = ~np.isin(table.ids.view("S12").ravel(), old.view("S12").ravel())
        parents, seen = table.parents.tolist(), set[int]()
        for tip in {*repo.branches.values(), *repo.tags.values()}:
            row = repo_changes.require_listed(repo, tip)
            while row != NO_PARENT and row not in seen:
                seen.add(row)
                row = parents[row]
        is_kept[list(seen)] = True
        is_kept |= table.parents == NO_PARENT
        return expiration.without(table, is_kept, to_root=False)

    async def _keep_young_snapshots(self, names: Iterable[str]) -> None:
        """Keep versions that are not part of a history (yet), with their ancestors.

        Those that are missing or damaged need nothing: nobody can read them.
        """
        todo = {SnapshotId.parse(name) for name in names} - self._live.snapshots
        while todo:
            parents: set[SnapshotId] = set()
            async for facts in self._unreachable_versions(todo, lambda *_: None):
                self._live.snapshots.add(facts.id)
                self._young_manifests |= {manifest.id: manifest for manifest in facts.manifests}
                if facts.parent is not None:
                    parents.add(facts.parent)
            todo = parents - self._live.snapshots

    def _unreachable_versions(
        self, ids: Iterable[SnapshotId], skip: Callable[[SnapshotId, IcefloeError], None]
    ) -> AsyncIterator[SnapshotFacts]:
        """Read versions that no ref leads to; `skip` gets those that cannot be read."""
        limits = self._rules.limits
        return read_snapshots(
            self._context, sorted(ids), SnapshotFacts.of, limits=limits, skip=skip
        )

    async def _keep_young_chunks(self, names: Iterable[str] = ()) -> None:
        """Keep the chunks of manifests that are in no history (yet).

        Their writer may not have finished, or another collection may delete them: those that
        are missing refer to nothing. If a history comes to need them, they are read again.
        """
        young = {
            manifest_id: ManifestFact(manifest_id) for manifest_id in map(ManifestId.parse, names)
        }
        young |= self._young_manifests
        unknown = sorted(young.keys() - self._live.manifests.keys())
        if unknown:
            facts = [young[manifest_id] for manifest_id in unknown]
            objects = await referenced_objects(self._context, facts, self._rules.limits)
            self._live.chunks.add(keys_of_ids(objects.ids))

    def _unneeded(self, kind: Kind, objects: Objects) -> Objects:
        """Choose the objects that are not needed, by all that is known now."""
        needed: Collection[ObjectId]
        match kind:
            case Kind.CHUNKS:
                return objects.chosen(~self._live.chunks.contains(keys_of_names(objects.names)[0]))
            case Kind.SNAPSHOTS:
                needed = self._live.snapshots
            case Kind.TRANSACTION_LOGS:
                needed = self._live.snapshots | self._pruned | self._listed_logs
            case Kind.MANIFESTS:
                needed = self._live.manifests.keys() | self._young_manifests.keys()
        names = frozenset(map(str, needed))
        return objects.named(lambda name: name not in names)

    # -- files that may be deleted ---------------------------------------------------------

    async def _unreferenced(self, listed: Mapping[Kind, Listed]) -> _Phases:
        """Offer all old files: those that are needed are left out right before the deletion."""
        self._needs_chunks = True
        await self._live.read_chunks()
        await self._keep_young_chunks(listed[Kind.MANIFESTS].young.names)
        phases = {kind: self._portions(listed[kind].old) for kind in listed}
        if self._cutoffs[Kind.CHUNKS] is not None:
            phases[Kind.CHUNKS] = self._unreferenced_chunks()
        return phases

    async def _unreferenced_chunks(self) -> AsyncIterator[Objects]:
        """Yield old chunks that no known version needs when they are listed."""
        waiting = Objects()
        async for listed in list_kind(
            self._context.backend,
            Kind.CHUNKS,
            self._cutoffs[Kind.CHUNKS],
            lambda chunks: ~self._live.chunks.contains(chunks),
        ):
            waiting += listed.old
            if len(waiting) >= self._sweeper.portion:
                yield waiting
                waiting = Objects()
        yield waiting

    async def _leftovers(self, listed: Mapping[Kind, Listed]) -> _Phases:
        """Offer the files of versions that are not needed.

        Their snapshots are deleted last: after an interruption, the next run starts from them
        again. All that they refer to was written before them, so it is old enough too.
        """
        dead = self._unneeded(Kind.SNAPSHOTS, listed[Kind.SNAPSHOTS].old)
        unreadable: set[str] = set()

        def skip(snapshot_id: SnapshotId, failure: IcefloeError) -> None:
            if isinstance(failure, FormatError):  # else another collection deleted it
                unreadable.add(str(snapshot_id))
                self._done.report(f"snapshots/{snapshot_id} cannot be read, so it stays: {failure}")

        kept = self._live.manifests.keys() | self._young_manifests.keys()
        manifests = {
            manifest.id: manifest
            async for facts in self._unreachable_versions(map(SnapshotId.parse, dead.names), skip)
            for manifest in facts.manifests
            if manifest.id not in kept
        }
        chunks = Objects()
        if manifests:
            self._needs_chunks = True
            await self._live.read_chunks()
            await self._keep_young_chunks()
            objects = await referenced_objects(
                self._context, manifests.values(), self._rules.limits
            )
            objects = objects.without(self._live.chunks)
            chunks = Objects(texts_of_rows(objects.ids), objects.sizes_bytes.tolist())
        dead = dead.named(lambda name: name not in unreadable)
        names = frozenset(dead.names)
        offered = {
            Kind.CHUNKS: chunks,
            Kind.MANIFESTS: Objects(
                [str(manifest) for manifest in manifests],
                [manifest.size_bytes for manifest in manifests.values()],
            ),
            Kind.TRANSACTION_LOGS: listed[Kind.TRANSACTION_LOGS].old.named(names.__contains__),
            Kind.SNAPSHOTS: dead,
        }
        return {
            kind: self._portions(objects)
            for kind, objects in offered.items()
            if self._cutoffs[kind] is not None
        }

    async def _portions(self, objects: Objects) -> AsyncIterator[Objects]:
        for portion in objects.batches(self._sweeper.portion):
            yield portion

    # -- deleting --------------------------------------------------------------------------

    async def _drop_with_room(self, listed: Mapping[Kind, Listed]) -> None:
        """Remove unreachable versions from the list, which spec 1 does not have.

        In a full storage, make room and raise `_RoomMadeError` instead.
        """
        if not self._context.ledger.lists_versions:
            return
        try:
            await self._context.ledger.update(DropVersions(self._left))
        except StorageError as full:
            if full.kind != ErrorKind.STORAGE_FULL:
                raise
            if self._rules.incremental:
                raise StorageError(
                    f"{full.message}. Run a collection that is not incremental: it can delete"
                    " files before it has to write any",
                    full.kind,
                    key=full.context.get("key"),
                ) from full
            before = self._done.total
            with suppress(TooManyFailuresError):
                await self._make_room(listed)
            if self._done.total == before:
                raise
            raise _RoomMadeError from full

    async def _make_room(self, objects_by_kind: Mapping[Kind, Listed]) -> None:
        """Delete some files that no listed version refers to.

        Versions that are to be dropped are still listed, so they keep their files, too.
        """
        if (repo := await self._context.ledger.repo()) is None:
            return  # spec 1 drops no versions, which needs no room
        table = repo.snapshots
        listed = ids_of_rows(SnapshotId, table.ids)
        await self._keep_young_snapshots(map(str, listed))
        self._live.snapshots.update(listed)  # those that cannot be read are listed, too
        self._listed_logs = frozenset(ids_of_rows(SnapshotId, table.pruned_ids))
        await self._keep_young_chunks(objects_by_kind[Kind.MANIFESTS].young.names)
        before = self._done.total
        for kind in (Kind.TRANSACTION_LOGS, Kind.SNAPSHOTS, Kind.MANIFESTS):
            async for objects in self._portions(objects_by_kind[kind].old):
                await self._delete(kind, objects)
        if self._cutoffs[Kind.CHUNKS] is None:
            return
        async for objects in self._unreferenced_chunks():
            if self._done.total > before:
                return
            await self._delete(Kind.CHUNKS, objects)

    async def _sweep(self, phases: _Phases) -> None:
        kinds = list(phases)
        for number, (kind, portions) in enumerate(phases.items()):
            try:
                async for objects in portions:
                    await self._delete(kind, objects)
            except NotFoundError:
                raise
            except (IcefloeError, TooManyFailuresError) as failure:
                self._done.report(f"{kind} were not all examined: {failure}")
                self._done.skipped += kinds[number:]
                return
            if self._rules.incremental and self._done.failed:
                # Without what comes after, the next run would not find what is left.
                self._done.skipped += kinds[number + 1 :]
                return

    async def _delete(self, kind: Kind, objects: Objects) -> None:
        """Delete those of some objects that are not needed even now; a dry run only counts."""
        if not len(objects):
            return
        if self._rules.dry_run:
            self._done.count(kind, self._unneeded(kind, objects))
            return
        await self._look()
        for portion in self._unneeded(kind, objects).batches(self._sweeper.portion):
            await self._sweeper.delete(kind, portion)
