"""Verify a whole repository: versions, manifests, logs, chunk objects and foreign objects.

The repository need not be openable.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from hashlib import blake2b
from itertools import batched
from typing import Any, Final

import numpy as np

from icefloe.effects import map_concurrently
from icefloe.errors import FormatError, IcefloeError
from icefloe.format.chunk_table import ChunkKind, ChunkTable
from icefloe.format.ids import (
    INITIAL_SNAPSHOT_ID,
    ChunkId,
    ManifestId,
    NodeId,
    SnapshotId,
    raw_rows,
)
from icefloe.format.layout import CHUNKS_PREFIX, chunk_key, snapshot_key, transaction_log_key
from icefloe.format.nodes import ManifestRef
from icefloe.format.snapshot import Snapshot
from icefloe.format.transaction_log import TransactionLog
from icefloe.maintenance.verify.files import CheckedFiles
from icefloe.maintenance.verify.findings import (
    MOST_KEYS,
    DamageKind,
    Findings,
    KnownUse,
    KnownUses,
    Site,
    boxes_of,
)
from icefloe.maintenance.verify.log_rules import MOST_REFS, CommitStep, LogRules
from icefloe.maintenance.verify.manifest_rules import ManifestRules
from icefloe.maintenance.verify.objects import (
    ChunkObjects,
    Fault,
    Faults,
    VirtualFault,
    VirtualObjects,
    VirtualReport,
    lost_virtual_rows,
    objects_of,
)
from icefloe.maintenance.verify.report import Damage, VerificationReport
from icefloe.maintenance.verify.version_rules import (
    NodeRules,
    check_entry,
    check_initial,
    check_manifest_list,
    check_times,
)
from icefloe.maintenance.verify.versions import (
    BackupRules,
    ListedVersions,
    list_versions,
    read_versions,
)
from icefloe.records import MutableRecord, Record, field, replace
from icefloe.repo.context import Access, RepoContext
from icefloe.repo.lifecycle import open_
from icefloe.storage import Backend, Storage
from icefloe.values.model import Progress
from icefloe.virtual_chunks.reader import VirtualReader
from icefloe.walk.history import StepCounter
from icefloe.walk.links import ManifestUse, UseKey, uses_of
from icefloe.walk.spill import MAX_BYTES

_VERSIONS_AT_ONCE: Final = 32
_MANIFESTS_AT_ONCE: Final = 64
_CONCURRENCY: Final = 64
_CHUNK_FAULTS: Final = {
    Fault.MISSING: DamageKind.NO_CHUNK,
    Fault.SHORT: DamageKind.SHORT_CHUNK,
    Fault.UNREADABLE: DamageKind.BAD_CHUNK,
}


class VerificationRules(Record):
    """The thoroughness of a verification."""

    deep: bool = False
    """Also read all chunk objects, look at all foreign objects, and read all backups."""
    backups: BackupRules = field(default_factory=BackupRules)
    concurrency: int = _CONCURRENCY
    max_key_bytes: int = MAX_BYTES
    max_compared_refs: int = MOST_REFS
    """References of neighbouring versions that are compared at a time."""


type FilesOf = Callable[[Backend, Findings], CheckedFiles]


async def verify(
    backend: Backend,
    rules: VerificationRules | None = None,
    *,
    virtual: VirtualReader | None = None,
    progress: Progress | None = None,
    files_of: FilesOf = CheckedFiles,
) -> VerificationReport:
    """Check all stored files of a repository; nothing is changed.

    `virtual` reads what the caller authorised: foreign objects are looked at if it may read any
    of them, and with the deep rules anyway. `files_of` may give another way to read files,
    for callers who check the same files repeatedly.
    """
    rules = rules or VerificationRules()
    if rules.deep:
        rules = replace(rules, backups=replace(rules.backups, most=None))
    findings = Findings()
    files = files_of(backend, findings)
    with ChunkObjects(backend, max_bytes=rules.max_key_bytes) as chunks:
        is_looked_at = rules.deep or (virtual is not None and virtual.is_authorised)
        objects = VirtualObjects(virtual) if is_looked_at else None
        run = _Run(files, rules, chunks, objects, progress)
        return await run.verify()


class _Loaded(MutableRecord):
    """A version and the logs of how it came about."""

    snapshot: Snapshot | None
    logs: list[TransactionLog]
    has_all_logs: bool


class _Run:
    def __init__(
        self,
        files: CheckedFiles,
        rules: VerificationRules,
        chunks: ChunkObjects,
        virtual: VirtualObjects | None,
        progress: Progress | None,
    ) -> None:
        self._files = files
        self._findings = files.findings
        self._rules = rules
        self._chunks = chunks
        self._virtual = virtual
        self._steps = StepCounter(progress)
        self._nodes = NodeRules(self._findings)
        self._manifests = ManifestRules(files, chunks, virtual)
        self._logs = LogRules(self._findings, self._table, most_refs=rules.max_compared_refs)
        self._uses: set[UseKey] = set()

    async def verify(self) -> VerificationReport:
        versions = await read_versions(self._files, self._rules.backups)
        order = versions.order()
        self._steps.expect(len(order))
        for some in batched(order, _VERSIONS_AT_ONCE):
            await self._check_versions(some, versions)
        virtual = await self._check_objects()
        damages = await self._put_together(versions, order)
        return VerificationReport(
            is_deep=self._rules.deep,
            checked={
                "snapshots": len(order),
                "manifests": len(self._manifests),
                "references": self._manifests.references,
                "chunk_objects": self._chunks.objects,
                "virtual_objects": virtual,
            },
            damages=tuple(damages),
            damages_left_out=self._findings.left_out,
            unchecked=self._findings.unchecked_keys,
            unchecked_objects=self._findings.unchecked_objects,
        )

    # -- versions --------------------------------------------------------------------------

    async def _check_versions(self, some: Sequence[SnapshotId], versions: ListedVersions) -> None:
        loaded = await map_concurrently(
            lambda version: self._load(version, versions), some, limit=self._rules.concurrency
        )
        await self._read_manifests(
            [version.snapshot for version in loaded if version.snapshot is not None]
        )
        for snapshot_id, version in zip(some, loaded, strict=True):
            if version.snapshot is not None:
                await self._check_version(snapshot_id, version, version.snapshot, versions)
            self._steps.advance()

    async def _load(self, snapshot_id: SnapshotId, versions: ListedVersions) -> _Loaded:
        snapshot = await self._files.snapshot(snapshot_id, "a history")
        log_ids = [*versions.pruned_ancestors(snapshot_id), snapshot_id]
        if (
            snapshot is not None
            and snapshot.spec_version == 1
            and (
                snapshot_id == INITIAL_SNAPSHOT_ID
                and not await self._files.exists(transaction_log_key(snapshot_id))
            )
        ):
            log_ids = []  # spec 1 writes none for the first version
        logs = [await self._files.log(log_id, snapshot_id) for log_id in log_ids]
        present = [log for log in logs if log is not None]
        return _Loaded(snapshot, present, len(present) == len(log_ids))

    async def _read_manifests(self, snapshots: Iterable[Snapshot]) -> None:
        """Read the manifests that these versions are the first to use, and check how they do."""
        new: dict[UseKey, str] = {}
        for snapshot in snapshots:
            for key, row in uses_of(snapshot):
                if key not in self._uses and key not in new:
                    new[key] = snapshot.nodes.paths[row].decode()
        uses = {ManifestUse.of(key): path for key, path in new.items()}
        unread = list(self._manifests.unread(uses).items())
        self._steps.expect(len(unread))
        for some in batched(unread, _MANIFESTS_AT_ONCE):
            await self._manifests.read(some)
            self._steps.advance(len(some))
        for use, path in uses.items():
            self._manifests.check_use(use, path)
        self._uses |= new.keys()

    async def _check_version(
        self, snapshot_id: SnapshotId, loaded: _Loaded, snapshot: Snapshot, versions: ListedVersions
    ) -> None:
        self._nodes.check(snapshot)
        check_manifest_list(self._findings, snapshot)
        self._manifests.check_list(snapshot)
        try:
            entry = versions.entry(snapshot_id)
        except FormatError as failure:
            message = f"what the repo object says of {snapshot_id} cannot be read: {failure}"
            self._findings.report(
                DamageKind.BAD_ENTRY, message, snapshot_key(snapshot_id), versions=[snapshot_id]
            )
        else:
            if entry is not None:
                check_entry(self._findings, snapshot, entry)
        parent_id = versions.parents[snapshot_id]
        if parent_id is None:
            check_initial(self._findings, snapshot)
            parent: Snapshot | None = snapshot if snapshot_id == INITIAL_SNAPSHOT_ID else None
        else:
            parent = await self._files.snapshot(parent_id, f"its child {snapshot_id}")
            if parent is not None:
                check_times(self._findings, snapshot, parent)
        if parent is not None and loaded.has_all_logs and loaded.logs:
            # Expiration in spec 1 puts the initial snapshot as parent and leaves no other trace.
            is_whole = not (snapshot.spec_version == 1 and parent_id == INITIAL_SNAPSHOT_ID)
            step = CommitStep(snapshot, parent, loaded.logs, is_whole)
            await self._logs.check(step, self._manifests.references_of)

    async def _table(self, ref: ManifestRef, node: NodeId) -> ChunkTable | None:
        manifest = await self._files.manifest(ref.id)
        return None if manifest is None else self._manifests.table(manifest[0], ref.id, node)

    # -- objects that manifests lead to ----------------------------------------------------

    async def _check_objects(self) -> int:
        """Check chunk objects and foreign objects; give how many of the latter there are."""
        if len(self._manifests) == 0:
            return 0
        faults = Faults()
        try:
            faults = await self._chunks.compare()
            if self._rules.deep:
                faults, unread = await self._chunks.read_all(
                    faults, concurrency=self._rules.concurrency
                )
                for key in unread:
                    self._findings.unchecked(key, "the storage did not give its bytes")
        except IcefloeError as failure:
            self._findings.unchecked(CHUNKS_PREFIX, failure.message)
        virtual = VirtualReport()
        if self._virtual is not None:
            virtual = await self._virtual.look(concurrency=self._rules.concurrency)
            for address, reason in virtual.unchecked.items():
                self._findings.unchecked(address, reason)
        if len(faults) or virtual.faults:
            await self._tell_lost(faults, virtual)
        return virtual.objects

    async def _tell_lost(self, faults: Faults, virtual: VirtualReport) -> None:
        """Read all manifests once more, to find which chunks of which arrays are lost."""
        async for manifest, node, table in self._tables():
            for fault, rows in faults.lost_rows(table):
                self._report_chunks(fault, manifest, node, table.take(rows), faults)
            for virtual_fault, location, rows in lost_virtual_rows(virtual.faults, table):
                region = boxes_of(table.coordinates[rows])
                self._report_virtual(virtual_fault, location, Site(manifest, node, region=region))

    async def _tables(self) -> AsyncIterator[tuple[ManifestId, NodeId, ChunkTable]]:
        parts = self._manifests.parts
        self._steps.expect(len(parts))
        for manifest_id, nodes in parts.items():
            if (manifest := await self._files.manifest(manifest_id)) is not None:
                for node in nodes:
                    table = self._manifests.table(manifest[0], manifest_id, node)
                    if table is not None:
                        yield manifest_id, node, table
            self._steps.advance()

    def _report_chunks(
        self, fault: Fault, manifest: ManifestId, node: NodeId, lost: ChunkTable, faults: Faults
    ) -> None:
        assert (lost.kinds == ChunkKind.NATIVE).all()
        ids = objects_of(lost)
        keys = [chunk_key(ChunkId(raw)) for raw in raw_rows(ids[:MOST_KEYS])]
        match fault:
            case Fault.MISSING:
                message = f"{keys[0]} does not exist, but an array needs it"
            case Fault.SHORT:
                size, end = faults.first_size(lost)
                message = f"an array needs {end} bytes of {keys[0]}, which has {size}"
            case Fault.UNREADABLE:
                message = f"{keys[0]} cannot be read to its end, but an array needs it"
        if len(ids) > 1:
            message += f" ({len(ids)} such objects)"
        self._findings.report(
            _CHUNK_FAULTS[fault],
            message,
            keys,
            objects=len(ids),
            sites=[Site(manifest, node, region=boxes_of(lost.coordinates))],
            # The same chunks are lost in all versions whose manifests have them.
            identity=f"{node} {_hash_of(ids, lost.coordinates)}",
        )

    def _report_virtual(self, fault: VirtualFault, location: bytes, site: Site) -> None:
        self._findings.report(fault.kind, fault.message, location.decode(), sites=[site])

    # -- the report ------------------------------------------------------------------------

    async def _put_together(
        self, versions: ListedVersions, order: Sequence[SnapshotId]
    ) -> list[Damage]:
        if len(self._findings) == 0:
            return []
        uses = await self._known_uses(order, self._findings.manifests)
        alive = await self._alive(versions)
        ranks = {snapshot_id: -position for position, snapshot_id in enumerate(order)}
        return self._findings.damages(uses, lambda snapshot_id: ranks.get(snapshot_id, 1), alive)

    async def _known_uses(
        self, order: Sequence[SnapshotId], manifests: set[ManifestId]
    ) -> KnownUses:
        """Find out which versions use some manifests, and how: newest first."""
        paths: dict[ManifestUse, str] = {}
        users: dict[ManifestUse, list[SnapshotId]] = {}
        if not manifests:
            return {}
        raw = {version_id.raw for version_id in manifests}
        for some in batched(reversed(order), _VERSIONS_AT_ONCE):
            snapshots = await map_concurrently(
                lambda version_id: self._files.snapshot(version_id, "a history"),
                some,
                limit=self._rules.concurrency,
            )
            for snapshot_id, snapshot in zip(some, snapshots, strict=True):
                if snapshot is None:
                    continue
                for key, row in uses_of(snapshot):
                    if key[0] in raw:
                        use = ManifestUse.of(key)
                        paths.setdefault(use, snapshot.nodes.paths[row].decode())
                        users.setdefault(use, []).append(snapshot_id)
        known_uses: dict[ManifestId, dict[ManifestUse, KnownUse]] = {}
        for use, ids in users.items():
            known_uses.setdefault(use.manifest, {})[use] = KnownUse(paths[use], tuple(ids))
        return known_uses

    async def _alive(self, versions: ListedVersions) -> set[SnapshotId] | None:
        """List the versions there are by now; None if that cannot be said."""
        if not versions.parents and not versions.lost:
            return None
        try:
            now = await list_versions(CheckedFiles(self._files.backend, Findings()))
        except IcefloeError:
            return None
        return now or None


def _hash_of(*columns: "np.ndarray[tuple[int, ...], np.dtype[Any]]") -> str:
    """Return a hash that identifies columns."""
    whole = blake2b(digest_size=16)
    for column in columns:
        whole.update(b"%d:" % len(column))
        whole.update(np.ascontiguousarray(column).tobytes())
    return whole.hexdigest()


async def verify_storage(
    storage: Storage,
    rules: VerificationRules,
    *,
    access: Access | None = None,
    progress: Progress | None = None,
) -> VerificationReport:
    """Verify the repository in a storage, even if it cannot be opened."""
    try:
        context: RepoContext | None = await open_(storage, access=access)
    except IcefloeError:
        context = None  # what stands in the way is found again, and reported
    if context is not None:
        return await verify_repository(context, rules, progress=progress)
    return await verify(storage.open(), rules, progress=progress)


async def verify_repository(
    context: RepoContext, rules: VerificationRules, *, progress: Progress | None = None
) -> VerificationReport:
    """Verify an open repository."""
    return await verify(context.backend, rules, virtual=context.virtual, progress=progress)
