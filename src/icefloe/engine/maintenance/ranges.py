"""Where the bytes of all chunks of all versions are: what statistics count.

A chunk is a range of bytes: of a chunk object, of a foreign file, or within a manifest. Ranges
are told apart by numbers of 64 bits made from all that describes them.

A version repeats nearly all ranges of the one before it. What is repeated in the same place is
found by comparing columns, and passed over before anything is made of it.
"""

import os
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import batched
from typing import Final

import numpy as np
from numpy.typing import NDArray

from icefloe.effects import map_concurrently, offload
from icefloe.engine.context import RepoContext
from icefloe.engine.dependencies.counts import PlaceIndex
from icefloe.engine.graph import history_lines, newest_first
from icefloe.engine.maintenance.key_set import Keys, KeySet, keys_of_ids, mixed
from icefloe.engine.maintenance.reachability import (
    ManifestFact,
    ReadLimits,
    manifests_of,
    portions,
    requests_at_once,
    tables_of,
)
from icefloe.format.chunk_table import ChunkKind, ChunkTable
from icefloe.format.columns import Bools, Bytes, BytesColumn, Ints
from icefloe.format.ids import ManifestId, NodeId
from icefloe.format.manifest import Manifest, ManifestFile
from icefloe.format.native_ranges import NativeRanges
from icefloe.format.snapshot import Snapshot
from icefloe.format.snapshot_table import SnapshotEntry

_VIRTUAL_SALT: Final = np.uint64(0x5851F42D4C957F2D)
_BLOCK_ROWS: Final = 1 << 14
"""Rows that are compared at once."""
_REMEMBERED_BYTES: Final = 64 * 2**20
_DECODED_BYTES: Final = 256 * 2**20
"""Of manifests that are decoded before what is in them is counted."""


@dataclass(frozen=True, slots=True, eq=False)
class Ranges:
    """Chunks of one kind."""

    offsets: NDArray[np.uint64]
    lengths: NDArray[np.uint64]
    chunk_ids: Bytes | None = None
    """For native chunks, the object that each is in."""
    places: Keys | None = None
    """For others, a number for the foreign file that each is in, or for the chunk itself."""
    targets: NDArray[np.uint32] | None = None
    """For virtual chunks, the row of the location of each."""

    def __len__(self) -> int:
        return len(self.lengths)

    def objects(self) -> Keys:
        """Give a number for what each is in."""
        if self.chunk_ids is not None:
            return keys_of_ids(self.chunk_ids)
        assert self.places is not None
        return self.places

    def keys(self, objects: Keys | None = None) -> Keys:
        """Make a number of all that describes each range."""
        inside = self.objects() if objects is None else objects
        return mixed(mixed(inside, self.offsets), self.lengths)

    def new_to(self, known: KeySet, salt: np.uint64 | None = None) -> Ints:
        """List the rows, each range once, that are not known yet; now they are."""
        keys = self.keys() if salt is None else mixed(self.keys(), salt)
        return known.add_new(keys)


@dataclass(frozen=True, slots=True)
class Part:
    """The ranges of one array in one manifest, but for some that came in an earlier part."""

    version: str
    """The first version that uses the manifest."""
    node: NodeId
    locations: BytesColumn
    ranges: Mapping[ChunkKind, Ranges]


# -- versions ------------------------------------------------------------------------------


@dataclass(slots=True)
class Survey:
    """What all versions use, and since which of them."""

    versions: list[str] = field(default_factory=list)
    """Oldest first."""
    first_versions: dict[ManifestId, str] = field(default_factory=dict)
    manifests: list[ManifestFact] = field(default_factory=list)
    paths: dict[NodeId, str] = field(default_factory=dict)
    """Where each array was in the newest version that has it."""

    def note(self, snapshot: Snapshot) -> None:
        """Take a version in."""
        version, nodes = str(snapshot.id), snapshot.nodes
        self.versions.append(version)
        for row in np.flatnonzero(nodes.is_array).tolist():
            self.paths[NodeId(nodes.ids[row].tobytes())] = nodes.paths[row].decode()
        for fact in manifests_of(snapshot):
            if self.first_versions.setdefault(fact.id, version) == version:
                self.manifests.append(fact)


async def survey_of(context: RepoContext, limits: ReadLimits) -> Survey:
    """Read all versions that branches and tags lead to."""
    found = Survey()
    versions = _oldest_first(await history_lines(context.ledger))
    for some in batched((entry.id for entry in versions), limits.snapshots):
        limit = requests_at_once(context, context.config.max_concurrent_requests)
        for snapshot in await map_concurrently(context.assets.read_snapshot, some, limit=limit):
            found.note(snapshot)
    return found


def _oldest_first(lines: Iterable[Sequence[SnapshotEntry]]) -> list[SnapshotEntry]:
    return newest_first([entry for line in lines for entry in line])[::-1]


# -- manifests -----------------------------------------------------------------------------


type _Decoded = NativeRanges | ChunkTable


async def parts_of(context: RepoContext, survey: Survey, limits: ReadLimits) -> AsyncIterator[Part]:
    """Walk all ranges, in the order of versions; each manifest is read once."""
    places, recent = PlaceIndex(), _RecentRanges()

    async def read(fact: ManifestFact) -> tuple[ManifestId, list[tuple[NodeId, _Decoded]]]:
        manifest = await context.assets.read_manifest(fact.id, fact.size_bytes)
        return fact.id, await offload(partial(_decoded, manifest))

    fewer = replace(limits, decoded_bytes=min(limits.decoded_bytes, _DECODED_BYTES))
    done = 0
    for some in portions(survey.manifests, fewer):
        limit = _readers(context, some, limits)
        for manifest, arrays in await map_concurrently(read, some, limit=limit):
            version = survey.first_versions[manifest]
            for node, decoded in arrays:
                if isinstance(decoded, NativeRanges):
                    ranges = {ChunkKind.NATIVE: _native(recent.without_known(node, decoded))}
                    yield Part(version, node, BytesColumn.empty(), ranges)
                else:
                    ranges = _ranges_of(manifest, node, decoded, places)
                    yield Part(version, node, decoded.locations, ranges)
        done += len(some)
        limits.tell(done, len(survey.manifests))


_MANY_REFS: Final = 100_000
"""A smaller manifest is decoded in so many short steps that threads wait for each other."""


def _readers(context: RepoContext, facts: Sequence[ManifestFact], limits: ReadLimits) -> int:
    """Say how many manifests to read at once: those nearby only keep a processor busy."""
    if not context.is_near:
        return limits.manifests
    is_worth_it = max(fact.num_chunk_refs for fact in facts) >= _MANY_REFS
    return os.cpu_count() or 1 if is_worth_it else 1


def _decoded(manifest: Manifest) -> list[tuple[NodeId, _Decoded]]:
    """Decode what is needed of a manifest, so that the rest of it can go."""
    if not isinstance(manifest, ManifestFile):
        return list(tables_of(manifest).items())
    return [(node, manifest.native_ranges(node) or manifest.table(node)) for node in manifest.nodes]


class _RecentRanges:
    """The native chunks of arrays as they came last, to compare the next ones with."""

    def __init__(self) -> None:
        self._held: dict[tuple[NodeId, tuple[int, ...]], NativeRanges] = {}
        self._size_bytes = 0

    def without_known(self, node: NodeId, ranges: NativeRanges) -> NativeRanges:
        """Leave out rows that are the same as last time; remember all of them."""
        place = node, ranges.first
        last = self._held.pop(place, None)
        self._held[place] = ranges
        self._size_bytes += ranges.nbytes
        if last is not None:
            self._size_bytes -= last.nbytes
        while self._size_bytes > _REMEMBERED_BYTES:
            self._size_bytes -= self._held.pop(next(iter(self._held))).nbytes
        return ranges if last is None else _changed(ranges, last)


def _changed(ranges: NativeRanges, last: NativeRanges) -> NativeRanges:
    """Keep rows that differ: in blocks, nearly all of which are the same in every row."""
    blocks = [slice(at, at + _BLOCK_ROWS) for at in range(0, len(ranges), _BLOCK_ROWS)]
    changed = [
        part for block in blocks for part in _changed_parts(ranges.take(block), last.take(block))
    ]
    is_all = sum(map(len, changed)) == len(ranges)
    return ranges if is_all else NativeRanges.joined(ranges.first, changed)


def _changed_parts(block: NativeRanges, last: NativeRanges) -> Iterator[NativeRanges]:
    shared = min(len(block), len(last))
    now, before = block.take(slice(shared)), last.take(slice(shared))
    if not now.equals(before):
        yield now.take(np.flatnonzero(now.differs(before)))
    if shared < len(block):
        yield block.take(slice(shared, None))


def _native(ranges: NativeRanges) -> Ranges:
    return Ranges(ranges.offsets, ranges.lengths, ranges.chunk_ids)


def _ranges_of(
    manifest: ManifestId, node: NodeId, table: ChunkTable, places: PlaceIndex
) -> dict[ChunkKind, Ranges]:
    return {
        kind: _ranges_of_kind(kind, manifest, node, table, rows, places)
        for kind, rows in _kinds(table)
    }


def _kinds(table: ChunkTable) -> Iterator[tuple[ChunkKind, Bools]]:
    for kind in ChunkKind:
        rows = table.kinds == kind
        if rows.any():
            yield kind, rows


def _ranges_of_kind(
    kind: ChunkKind,
    manifest: ManifestId,
    node: NodeId,
    table: ChunkTable,
    rows: Bools,
    places: PlaceIndex,
) -> Ranges:
    targets, offsets, lengths = table.targets[rows], table.offsets[rows], table.lengths[rows]
    match kind:
        case ChunkKind.NATIVE:
            return Ranges(offsets, lengths, table.chunk_ids[targets])
        case ChunkKind.VIRTUAL:
            numbers = places.numbers(table.locations).astype(np.uint64)
            inside = mixed(numbers, _VIRTUAL_SALT)[targets]
        case ChunkKind.INLINE:
            # Bytes within a manifest are nowhere else.
            row = np.flatnonzero(rows).astype(np.uint64)
            own = keys_of_ids(np.frombuffer(manifest.raw, np.uint8).reshape(1, -1))
            inside = mixed(mixed(row, own[0]), np.uint64(int.from_bytes(node.raw)))
    return Ranges(offsets, lengths, places=inside, targets=targets)
