"""Garbage collection: files that no version needs, and that nobody is about to need, go.

What must never happen is that something goes which a version needs. So:

- Only files of the four kinds that have ids as names are ever looked at, and only those go that
  were written before a cut-off, by the clock of the storage. A writer has files that
  are younger, as long as the cut-off is further back than the longest session.
- A cut-off in the future counts as now: what is written while the collection runs is young,
  however coarsely the storage tells time.
- What is young is needed, and with it all that it refers to: a snapshot that is not (yet) part
  of a history, or a manifest that is in no snapshot yet, belongs to a commit that is under way.
- The history is read again before anything is deleted, and again before each portion: what it
  has come to need in the meantime is kept.
- If anything that is needed cannot be read, nothing is deleted at all.

Versions that no branch and no tag leads to leave the repo object of spec 2 in one update, before
any of their files go. The log of operations then tells of the collection, so that sessions which
began earlier look for their objects before they commit.

Another collection may run at the same time, with a later cut-off, and delete what this one was
about to keep: then this one begins again with what is left.

A storage without room refuses that update. Then files go that no listed version refers to, and
the collection begins again: files that are no chunks first, because no session misses them without
noticing; if there are none, some chunks.
"""

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
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
    SnapshotNotFoundError,
    StorageError,
)
from icefloe.format.columns import Bools
from icefloe.format.ids import ManifestId, SnapshotId, id_rows, ids_of_rows, texts_of_rows
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
    together,
)
from icefloe.records import Record, field, replace
from icefloe.repo import repo_changes
from icefloe.repo.context import RepoContext
from icefloe.repo.migration_state import require_unmigrated
from icefloe.repo.repo_changes import Change, Changed
from icefloe.walk.reachability import (
    ManifestFact,
    Reachable,
    ReadLimits,
    SnapshotFacts,
    chunk_objects,
    read_fact,
    requests_at_once,
)
from icefloe.walk.spill import Keys, keys_of_ids, keys_of_names

_log = logging.getLogger(__name__)

type _Phases = Mapping[Kind, AsyncIterator[Objects]]


class GarbageRules(Record):
    """What may go, and how."""

    cutoffs: Mapping[Kind, datetime | None]
    """Only objects written before go; None keeps all of a kind."""
    dry_run: bool = False
    incremental: bool = False
    """Look only for what dropped versions leave behind, without listing manifests and chunks."""
    limits: ReadLimits = field(default_factory=ReadLimits)
    concurrent_deletes: int = 10
    consecutive_failures: int = 50
    """Give up after this many requests in a row that deleted nothing."""
    concurrent_listings: int = 3


_MOST_VANISHED: Final = 3
"""How often a run begins again because something vanished that it was reading."""


async def collect(context: RepoContext, rules: GarbageRules) -> GCSummary:
    """Delete what no version needs.

    Failures to read what is needed are raised, before anything is deleted. Failures later on
    are in what is given back.
    """
    done = Collected()
    vanished = 0
    while True:
        try:
            with Reachable(context, rules.limits) as live:
                await _Collection(context, rules, live, done).run()
                return done.summary()
        except _RoomMadeError:
            _log.info("the storage was full and has room now: the collection begins again")
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
    """Take versions out of the list, as part of a collection."""

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
        """Versions whose files are old enough to go."""
        self._pruned: frozenset[SnapshotId] = frozenset()
        """Versions that are gone, but whose logs are needed."""
        self._listed_logs: frozenset[SnapshotId] = frozenset()
        """The same of versions that are to be dropped."""
        self._young_manifests: dict[ManifestId, ManifestFact] = {}
        """Manifests of versions that are not part of a history (yet)."""
        self._needs_chunks = False

    async def run(self) -> None:
        """Find what may go, and let it go."""
        rules = self._rules
        self._cutoffs = await effective_cutoffs(
            self._context,
            rules.cutoffs,
            at_once=rules.incremental,
            dry_run=rules.dry_run,
        )
        listed = await self._list_small()
        snapshots = listed[Kind.SNAPSHOTS]
        self._old = frozenset(map(SnapshotId.parse, snapshots.old.names))
        await self._look()
        await self._keep_young_snapshots(snapshots.young.names)
        if self._rules.incremental:
            phases = await self._leftovers(listed)
        else:
            phases = await self._unreferenced(listed)
        if not self._rules.dry_run:
            await self._drop_with_room(listed)
        await self._sweep(phases)

    # -- what is needed --------------------------------------------------------------------

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
        """Read what the repository needs now, as far as it is not known."""
        if (repo := await self._context.ledger.repo()) is not None:
            left = self._left(repo)
            await self._live.add(ids_of_rows(SnapshotId, left.ids))
            self._pruned = frozenset(ids_of_rows(SnapshotId, left.pruned_ids))
        else:
            refs = await self._context.ledger.branches(), await self._context.ledger.tags()
            await require_unmigrated(self._context.backend)
            await self._live.add_with_ancestors(tip for ref in refs for tip in ref.values())
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
        """Keep versions that are not part of a history (yet), with what came before them."""
        todo = {SnapshotId.parse(name) for name in names} - self._live.snapshots
        while todo:
            read_facts_ = await self._facts(sorted(todo))
            for facts in read_facts_:
                self._live.snapshots.add(facts.id)
                self._young_manifests |= {manifest.id: manifest for manifest in facts.manifests}
            todo = {
                fact.parent for fact in read_facts_ if fact.parent is not None
            } - self._live.snapshots

    async def _keep_young_chunks(self, names: Iterable[str] = ()) -> None:
        """Keep the chunks of manifests that are in no history (yet); they stay themselves.

        Their writer may not be done, or another collection may delete them: those that
        are missing refer to nothing. If a history comes to need them, they are read again.
        """
        young = {
            manifest_id: ManifestFact(manifest_id, 0, 0)
            for manifest_id in map(ManifestId.parse, names)
        }
        young |= self._young_manifests
        unknown = sorted(young.keys() - self._live.manifests.keys())
        facts = [young[manifest_id] for manifest_id in unknown]
        objects = await chunk_objects(self._context, facts, self._rules.limits)
        self._live.chunks.add(keys_of_ids(objects.ids))

    async def _facts(
        self, snapshots: Sequence[SnapshotId], unreadable: set[SnapshotId] | None = None
    ) -> list[SnapshotFacts]:
        """Read versions that nothing leads to, where they can be read."""

        async def read(snapshot_id: SnapshotId) -> SnapshotFacts | None:
            try:
                return await read_fact(self._context, snapshot_id)
            except SnapshotNotFoundError:
                return None  # somebody else was collecting
            except FormatError as damaged:
                if unreadable is None:
                    return None  # nobody can tell what it refers to, and nobody can use it
                unreadable.add(snapshot_id)
                self._done.report(f"snapshots/{snapshot_id} cannot be read, so it stays: {damaged}")
                return None

        limit = requests_at_once(self._context, self._context.config.max_concurrent_requests)
        facts_read = await map_concurrently(read, snapshots, limit=limit)
        return [facts for facts in facts_read if facts is not None]

    def _is_needed(self, kind: Kind, names: Sequence[str]) -> Bools:
        match kind:
            case Kind.CHUNKS:
                return self._live.chunks.contains(keys_of_names(names)[0])
            case Kind.SNAPSHOTS:
                needed = set(map(str, self._live.snapshots))
            case Kind.TRANSACTION_LOGS:
                logs = self._live.snapshots | self._pruned | self._listed_logs
                needed = set(map(str, logs))
            case Kind.MANIFESTS:
                needed = set(map(str, self._live.manifests.keys() | self._young_manifests.keys()))
        return np.array([name in needed for name in names], np.bool_)

    # -- what may go -----------------------------------------------------------------------

    async def _unreferenced(self, listed: Mapping[Kind, Listed]) -> _Phases:
        """Offer all that is there: what is needed is taken out when it is about to go."""
        self._needs_chunks = True
        await self._live.read_chunks()
        await self._keep_young_chunks(listed[Kind.MANIFESTS].young.names)
        phases = {kind: _portions(listed[kind].old, self._sweeper.portion) for kind in listed}
        if self._cutoffs[Kind.CHUNKS] is not None:
            phases[Kind.CHUNKS] = self._unreferenced_chunks()
        return phases

    async def _unreferenced_chunks(self) -> AsyncIterator[Objects]:
        """Walk chunks that are not needed, as far as is known now; only those are looked at."""

        def is_unneeded(chunks: Keys) -> Bools:
            return ~self._live.chunks.contains(chunks)

        waiting = Objects()
        cutoff = self._cutoffs[Kind.CHUNKS]
        backend = self._context.backend
        async for listed in list_kind(backend, Kind.CHUNKS, cutoff, is_unneeded):
            waiting = together([waiting, listed.old])
            if len(waiting) >= self._sweeper.portion:
                yield waiting
                waiting = Objects()
        yield waiting

    async def _leftovers(self, listed: Mapping[Kind, Listed]) -> _Phases:
        """Offer what versions that are gone refer to.

        Their snapshots go last: if this is interrupted, the next run begins from them again.
        What they refer to was written before them, so it is old enough too.
        """
        every = listed[Kind.SNAPSHOTS].old
        dead = every.chosen(~self._is_needed(Kind.SNAPSHOTS, every.names))
        unreadable: set[SnapshotId] = set()
        facts = await self._facts([SnapshotId.parse(name) for name in dead.names], unreadable)
        manifests = {
            manifest.id: manifest
            for fact in facts
            for manifest in fact.manifests
            if manifest.id not in self._live.manifests and manifest.id not in self._young_manifests
        }
        chunks = Objects()
        if manifests:
            self._needs_chunks = True
            await self._live.read_chunks()
            await self._keep_young_chunks()
            objects = await chunk_objects(self._context, manifests.values(), self._rules.limits)
            objects = objects.take(~self._live.chunks.contains(keys_of_ids(objects.ids)))
            chunks = Objects(texts_of_rows(objects.ids), objects.sizes_bytes.tolist())
        kept_names = {str(snapshot_id) for snapshot_id in unreadable}
        gone = dead.chosen(np.array([name not in kept_names for name in dead.names], np.bool_))
        logs = listed[Kind.TRANSACTION_LOGS].old
        names = set(gone.names)
        offered = {
            Kind.CHUNKS: chunks,
            Kind.MANIFESTS: Objects(
                [str(manifest) for manifest in manifests],
                [manifest.size_bytes for manifest in manifests.values()],
            ),
            Kind.TRANSACTION_LOGS: logs.chosen(
                np.array([name in names for name in logs.names], np.bool_)
            ),
            Kind.SNAPSHOTS: gone,
        }
        return {
            kind: _portions(objects, self._sweeper.portion)
            for kind, objects in offered.items()
            if self._cutoffs[kind] is not None
        }

    # -- letting it go ---------------------------------------------------------------------

    async def _drop(self) -> None:
        """Take versions that nothing leads to out of the list, which spec 1 does not have."""
        if self._context.ledger.lists_versions:
            await self._context.ledger.update(DropVersions(self._left))

    async def _drop_with_room(self, listed: Mapping[Kind, Listed]) -> None:
        """Drop versions; in a full storage make room and raise `_RoomMadeError` instead."""
        try:
            await self._drop()
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
            # With too many failures there is no use in going on.
            with suppress(TooManyFailuresError):
                await self._make_room(listed)
            if self._done.total == before:
                raise
            raise _RoomMadeError from full

    async def _make_room(self, objects_by_kind: Mapping[Kind, Listed]) -> None:
        """Delete some files that no listed version refers to.

        Versions that are to be dropped are listed still, so they keep their files, too.
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
            async for objects in _portions(objects_by_kind[kind].old, self._sweeper.portion):
                await self._let_go(kind, objects)
        if self._cutoffs[Kind.CHUNKS] is None:
            return
        async for objects in self._unreferenced_chunks():
            if self._done.total > before:
                return
            await self._let_go(Kind.CHUNKS, objects)

    async def _sweep(self, phases: _Phases) -> None:
        kinds = list(phases)
        for number, (kind, portions) in enumerate(phases.items()):
            try:
                async for objects in portions:
                    await self._let_go(kind, objects)
            except NotFoundError:
                raise
            except (IcefloeError, TooManyFailuresError) as failure:
                self._done.report(f"{kind} were not gone through to the end: {failure}")
                self._done.skipped += kinds[number:]
                return
            if self._rules.incremental and self._done.failed:
                # Without what comes after, the next run would not find what is left.
                self._done.skipped += kinds[number + 1 :]
                return

    async def _let_go(self, kind: Kind, objects: Objects) -> None:
        if not len(objects):
            return
        if not self._rules.dry_run:
            await self._look()
        objects = objects.chosen(~self._is_needed(kind, objects.names))
        if self._rules.dry_run:
            self._done.count(kind, objects)
        else:
            for portion in objects.batches(self._sweeper.portion):
                await self._sweeper.delete(kind, portion)


async def _portions(objects: Objects, size: int) -> AsyncIterator[Objects]:
    for batch in objects.batches(size):
        yield batch
