"""The chunk objects that versions need, from the references of their manifests."""

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from icefloe.format.chunk_table import ChunkKind, ChunkTable
from icefloe.format.columns import Bools, Bytes
from icefloe.format.ids import ChunkId, ManifestId, SnapshotId
from icefloe.format.manifest import Manifest
from icefloe.records import Record
from icefloe.repo.context import RepoContext
from icefloe.storage import Backend, ObjectInfo
from icefloe.storage.capabilities import list_wanted
from icefloe.walk.history import (
    ManifestFact,
    ReadLimits,
    SnapshotFacts,
    read_manifests,
    read_snapshots,
    tables_of,
)
from icefloe.walk.spill import Keys, KeySet, Values, keys_of_ids, keys_of_names

BEYOND_EVERY_END: Final = np.uint64(2**64 - 1)


class Reachable:
    """Collects the files that versions need; reads each snapshot and manifest once."""

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

    async def add(self, snapshots: Iterable[SnapshotId], *, with_ancestors: bool = False) -> None:
        """Note versions and their manifests.

        `with_ancestors` follows the parents that snapshots name, which only those of spec 1 do.
        """
        missing = set(snapshots) - self.snapshots
        while missing:
            parents: set[SnapshotId] = set()
            async for facts in read_snapshots(
                self._context, sorted(missing), SnapshotFacts.of, limits=self.limits
            ):
                self.snapshots.add(facts.id)
                for manifest in facts.manifests:
                    if manifest.id not in self.manifests:
                        self.manifests[manifest.id] = manifest
                        self._unread.append(manifest)
                if with_ancestors and facts.parent is not None:
                    parents.add(facts.parent)
            missing = parents - self.snapshots

    async def read_chunks(self) -> None:
        """Read the manifests noted since the last time, for the chunks that they refer to."""

        def advance(count: int) -> None:
            self._read += count
            self.limits.report(self._read, len(self.manifests))

        async for _, keys in read_manifests(
            self._context,
            self._unread,
            lambda manifest: keys_of_ids(manifest.chunk_ids()),
            limits=self.limits,
            advance=advance,
        ):
            self.chunks.add(keys)
        # Only now: after a failure, all of them are still to be read.
        self._unread = []


class ReferencedObjects(Record):
    """Chunk objects, each once, in the order of their ids."""

    ids: Bytes
    """An id in each row."""
    sizes_bytes: NDArray[np.uint64]
    """How far into each object references reach."""

    @classmethod
    def united(cls, ids: Sequence[Bytes], ends: Sequence[NDArray[np.uint64]]) -> Self:
        """Join references, given the ids of their objects and the ends of their byte ranges."""
        rows = np.concatenate([np.empty((0, ChunkId.WIDTH), np.uint8), *ids])
        names, numbers = np.unique(rows.view(f"S{ChunkId.WIDTH}").ravel(), return_inverse=True)
        sizes = np.zeros(len(names), np.uint64)
        np.maximum.at(sizes, numbers, np.concatenate([sizes[:0], *ends]))
        return cls(names.view(np.uint8).reshape(-1, ChunkId.WIDTH), sizes)

    def __len__(self) -> int:
        return len(self.sizes_bytes)

    def without(self, chunks: KeySet) -> Self:
        """Leave out the objects whose numbers are in a set."""
        is_left: Bools = ~chunks.contains(keys_of_ids(self.ids))
        return type(self)(self.ids[is_left], self.sizes_bytes[is_left])


async def referenced_objects(
    context: RepoContext, facts: Iterable[ManifestFact], limits: ReadLimits
) -> ReferencedObjects:
    """List the chunk objects that manifests refer to; missing and damaged ones refer to none."""
    ids, ends = list[Bytes](), list[NDArray[np.uint64]]()
    async for _, objects in read_manifests(
        context, facts, _objects_of, limits=limits, skips_damaged=True
    ):
        ids.append(objects.ids)
        ends.append(objects.sizes_bytes)
    return ReferencedObjects.united(ids, ends)


def _objects_of(manifest: Manifest) -> ReferencedObjects:
    ids, ends = list[Bytes](), list[NDArray[np.uint64]]()
    for table in tables_of(manifest).values():
        native = table.kinds == ChunkKind.NATIVE
        ids.append(table.chunk_ids[table.targets[native]])
        ends.append(table.offsets[native] + table.lengths[native])
    return ReferencedObjects.united(ids, ends)


def ends_of(table: ChunkTable) -> Values:
    """Return the end of each reference in its object; a sum that overflows is beyond every end."""
    ends = table.offsets + table.lengths
    overflows = ends < table.lengths
    return np.where(overflows, BEYOND_EVERY_END, ends) if overflows.any() else ends


def native_needs(table: ChunkTable) -> tuple[Keys, Values]:
    """Return the keys of the chunk objects of an array, and how far into them it reaches."""
    native = table.kinds == ChunkKind.NATIVE
    if not native.any():
        return np.empty(0, np.uint64), np.empty(0, np.uint64)
    keys, ends, targets = keys_of_ids(table.chunk_ids), ends_of(table), table.targets
    if native.all():
        return keys[targets], ends
    return keys[targets[native]], ends[native]


async def list_objects(
    backend: Backend, prefix: str, chooses: Callable[[Keys], Bools] | None = None
) -> AsyncIterator[list[ObjectInfo]]:
    """List objects that have ids as names, or those chosen by the numbers of their ids.

    Batches may be empty.
    """

    def is_wanted(keys: Sequence[str]) -> list[bool]:
        numbers, is_id = keys_of_names([key[len(prefix) :] for key in keys])
        chosen: list[bool] = (is_id if chooses is None else is_id & chooses(numbers)).tolist()
        return chosen

    async for batch in list_wanted(backend, prefix, is_wanted):
        yield batch
