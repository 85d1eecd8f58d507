"""What versions need: their manifests, and every chunk object that those refer to."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from icefloe.effects import map_concurrently, offload
from icefloe.errors import FormatError, ObjectNotFoundError
from icefloe.format.chunk_table import ChunkKind, ChunkTable
from icefloe.format.columns import Bools, Bytes
from icefloe.format.ids import ChunkId, ManifestId, NodeId, SnapshotId, raw_rows
from icefloe.format.manifest import Manifest, WrittenManifest
from icefloe.format.snapshot import Snapshot
from icefloe.records import Record
from icefloe.repo.context import RepoContext
from icefloe.values.model import Progress
from icefloe.walk.spill import MAX_KEY_BYTES, Keys, KeySet, keys_of_ids

_REFERENCE_BYTES: Final = 128
"""What a reference takes in a manifest that is decompressed, with what is read from it."""


class ReadLimits(Record):
    """How much to hold at once, and whom to tell how far it is."""

    snapshots: int = 50
    manifests: int = 500
    """How many to fetch at the same time."""
    compressed_bytes: int = 512 * 2**20
    """Of manifests, as they are stored."""
    decoded_bytes: int = 4 * 2**30
    key_bytes: int = MAX_KEY_BYTES
    """Of chunk ids; more of them go to temporary files."""
    progress: Progress | None = None

    def tell(self, done: int, total: int) -> None:
        """Report how many manifests were read."""
        if self.progress is not None:
            self.progress(done, total)


class ManifestFact(Record):
    """A manifest that a snapshot names."""

    id: ManifestId
    size_bytes: int
    num_chunk_refs: int


class SnapshotFacts(Record):
    """What matters of a snapshot here."""

    id: SnapshotId
    parent: SnapshotId | None
    manifests: tuple[ManifestFact, ...]


class Reachable:
    """Collects what versions need; each snapshot and manifest is read once."""

    def __init__(self, context: RepoContext, limits: ReadLimits | None = None) -> None:
        self.limits = limits or ReadLimits()
        self.snapshots: set[SnapshotId] = set()
        self.manifests: dict[ManifestId, ManifestFact] = {}
        self.chunks = KeySet(self.limits.key_bytes)
        self._context = context
        self._unread: list[ManifestFact] = []
        self._read = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.chunks.close()

    async def add(self, snapshots: Iterable[SnapshotId]) -> None:
        """Note the manifests of versions."""
        missing = sorted(set(snapshots) - self.snapshots)
        for first in range(0, len(missing), self.limits.snapshots):
            some = missing[first : first + self.limits.snapshots]
            self.note(await read_facts(self._context, some))

    async def add_with_ancestors(self, tips: Iterable[SnapshotId]) -> None:
        """Note the manifests of versions and of all before them, by the parents in their files.

        Those are in spec 1 only.
        """
        missing = set(tips) - self.snapshots
        while missing:
            following: set[SnapshotId] = set()
            ordered = sorted(missing)
            for first in range(0, len(ordered), self.limits.snapshots):
                some = ordered[first : first + self.limits.snapshots]
                facts_of_snapshots = await read_facts(self._context, some)
                self.note(facts_of_snapshots)
                following |= {
                    facts.parent for facts in facts_of_snapshots if facts.parent is not None
                }
            missing = following - self.snapshots

    def note(self, snapshots: Iterable[SnapshotFacts]) -> None:
        """Note versions that were read already."""
        for facts in snapshots:
            self.snapshots.add(facts.id)
            self.add_manifests(facts.manifests)

    def add_manifests(self, facts: Iterable[ManifestFact]) -> None:
        """Note manifests."""
        for fact in facts:
            if fact.id not in self.manifests:
                self.manifests[fact.id] = fact
                self._unread.append(fact)

    async def read_chunks(self) -> None:
        """Read the manifests noted since the last time, for the chunks that they refer to."""

        async def read(fact: ManifestFact) -> Keys:
            manifest = await self._context.assets.read_manifest(fact.id, fact.size_bytes)
            return await offload(lambda: keys_of_ids(manifest.chunk_ids()))

        for some in portions(list(self._unread), self.limits):
            limit = requests_at_once(self._context, self.limits.manifests)
            for keys in await map_concurrently(read, some, limit=limit):
                self.chunks.add(keys)
            # Only now: what could not be read is still to be read.
            self._unread = self._unread[len(some) :]
            self._read += len(some)
            self.limits.tell(self._read, len(self.manifests))


def requests_at_once(context: RepoContext, limit: int) -> int:
    """Return how many requests to send at once: within one machine, threads only add work."""
    return 1 if context.is_near else limit


async def read_facts(context: RepoContext, ids: Sequence[SnapshotId]) -> list[SnapshotFacts]:
    """Read snapshots as they are stored now, all at the same time."""
    limit = requests_at_once(context, context.config.max_concurrent_requests)
    return await map_concurrently(lambda snapshot: read_fact(context, snapshot), ids, limit=limit)


async def read_fact(context: RepoContext, snapshot_id: SnapshotId) -> SnapshotFacts:
    """Read a snapshot as it is stored now."""
    snapshot = await context.assets.read_snapshot(snapshot_id)
    return SnapshotFacts(snapshot.id, snapshot.parent_id, tuple(manifests_of(snapshot)))


def manifests_of(snapshot: Snapshot) -> Iterator[ManifestFact]:
    """List the manifests of a snapshot, also any that arrays use and its list lacks."""
    files = snapshot.manifests
    listed = raw_rows(files.ids)
    sizes, counts = files.sizes_bytes.tolist(), files.num_chunk_refs.tolist()
    for raw, size, count in zip(listed, sizes, counts, strict=True):
        yield ManifestFact(ManifestId(raw), size, count)
    for raw in {*raw_rows(snapshot.nodes.manifest_ids)} - {*listed}:
        yield ManifestFact(ManifestId(raw), 0, 0)


def portions(facts: Iterable[ManifestFact], limits: ReadLimits) -> Iterator[list[ManifestFact]]:
    """Cut a list of manifests into portions that fit into memory."""
    some: list[ManifestFact] = []
    compressed = decoded = 0
    for fact in facts:
        compressed += fact.size_bytes
        decoded += fact.num_chunk_refs * _REFERENCE_BYTES
        is_full = (
            len(some) >= limits.manifests
            or compressed > limits.compressed_bytes
            or decoded > limits.decoded_bytes
        )
        if some and is_full:
            yield some
            some = []
            compressed, decoded = fact.size_bytes, fact.num_chunk_refs * _REFERENCE_BYTES
        some.append(fact)
    if some:
        yield some


class ChunkObjects(Record):
    """Chunk objects, each once, in the order of their ids."""

    ids: Bytes
    """An id in each row."""
    sizes_bytes: NDArray[np.uint64]
    """How far into each object references reach."""

    @classmethod
    def united(cls, ids: Sequence[Bytes], ends: Sequence[NDArray[np.uint64]]) -> Self:
        """Bring together what references tell: the id of an object, and how far they reach."""
        rows = np.concatenate([np.empty((0, ChunkId.WIDTH), np.uint8), *ids])
        names, numbers = np.unique(rows.view(f"S{ChunkId.WIDTH}").ravel(), return_inverse=True)
        sizes = np.zeros(len(names), np.uint64)
        np.maximum.at(sizes, numbers, np.concatenate([sizes[:0], *ends]))
        return cls(names.view(np.uint8).reshape(-1, ChunkId.WIDTH), sizes)

    def __len__(self) -> int:
        return len(self.sizes_bytes)

    def take(self, rows: Bools) -> Self:
        """Pick some."""
        return type(self)(self.ids[rows], self.sizes_bytes[rows])


async def chunk_objects(
    context: RepoContext, facts: Iterable[ManifestFact], limits: ReadLimits
) -> ChunkObjects:
    """List the chunk objects that manifests refer to which no version needs.

    Those that are missing or damaged refer to nothing that anybody could use.
    """
    ids, ends = list[Bytes](), list[NDArray[np.uint64]]()

    async def read(fact: ManifestFact) -> ChunkObjects:
        try:
            manifest = await context.assets.read_manifest(fact.id)
            return await offload(lambda: _objects_of(manifest))
        except (ObjectNotFoundError, FormatError):
            return ChunkObjects.united([], [])

    for some in portions(facts, limits):
        limit = requests_at_once(context, limits.manifests)
        for keys in await map_concurrently(read, some, limit=limit):
            ids.append(keys.ids)
            ends.append(keys.sizes_bytes)
    return ChunkObjects.united(ids, ends)


def _objects_of(manifest: Manifest) -> ChunkObjects:
    ids, ends = list[Bytes](), list[NDArray[np.uint64]]()
    for table in tables_of(manifest).values():
        native = table.kinds == ChunkKind.NATIVE
        ids.append(table.chunk_ids[table.targets[native]])
        ends.append(table.offsets[native] + table.lengths[native])
    return ChunkObjects.united(ids, ends)


def tables_of(manifest: Manifest) -> Mapping[NodeId, ChunkTable]:
    """Decode all references of a manifest."""
    return manifest.tables if isinstance(manifest, WrittenManifest) else manifest.tables()
