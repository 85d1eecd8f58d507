"""How much the chunks of a repository take, each counted once, however many versions share it.

A chunk is a range of bytes: of a chunk object, of a foreign file, or within a manifest. Ranges
are told apart by numbers of 64 bits made from all that describes them.
"""

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import batched
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from icefloe.effects import map_concurrently, offload
from icefloe.engine.context import RepoContext
from icefloe.engine.dependencies.counts import PlaceIndex
from icefloe.engine.dependencies.summary import NO_CONTAINER, container_numbers
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
from icefloe.engine.virtual.grouping import absolute_all, canonical_all
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.chunk_table import ChunkKind, ChunkTable
from icefloe.format.columns import Bools, Ints
from icefloe.format.ids import ManifestId, NodeId
from icefloe.format.manifest import Manifest
from icefloe.format.snapshot import Snapshot
from icefloe.format.snapshot_table import SnapshotEntry

type UsageBy = Literal["snapshot", "array", "container"]

OWN_CHUNKS: Final = "(in the repository)"
"""The row of chunks that are not in any container."""

_LARGEST_CHUNK_BYTES: Final = 2**40
"""Chunks that claim to be larger count as this: no such chunk exists, and no sum overflows."""
_VIRTUAL_SALT: Final = np.uint64(0x5851F42D4C957F2D)


@dataclass(slots=True)
class Usage:
    """Bytes and numbers of chunks, by how they are kept."""

    native_bytes: int = 0
    virtual_bytes: int = 0
    inlined_bytes: int = 0
    native_chunks: int = 0
    virtual_chunks: int = 0
    inlined_chunks: int = 0

    def add(self, kind: ChunkKind, lengths: NDArray[np.uint64]) -> None:
        """Count some chunks."""
        total = int(np.minimum(lengths, _LARGEST_CHUNK_BYTES).sum(dtype=np.uint64))
        match kind:
            case ChunkKind.NATIVE:
                self.native_bytes += total
                self.native_chunks += len(lengths)
            case ChunkKind.VIRTUAL:
                self.virtual_bytes += total
                self.virtual_chunks += len(lengths)
            case ChunkKind.INLINE:
                self.inlined_bytes += total
                self.inlined_chunks += len(lengths)


@dataclass(slots=True)
class TotalUsage(Usage):
    """The same for a whole repository, with what packing did."""

    packed_objects: int = 0
    """Chunk objects that several chunks share."""
    packed_chunks: int = 0
    packed_bytes: int = 0


async def total_usage(context: RepoContext, limits: ReadLimits) -> TotalUsage:
    """Sum up the chunks of all versions that branches and tags lead to."""
    total = TotalUsage()
    objects, lengths = list[Keys](), list[NDArray[np.uint64]]()
    with KeySet(limits.key_bytes) as known:
        async for part in _parts(context, await _survey(context, limits), limits):
            for kind, ranges in part.ranges.items():
                new = ranges.new_to(known)
                total.add(kind, ranges.lengths[new])
                if kind is ChunkKind.NATIVE:
                    objects.append(ranges.objects[new])
                    lengths.append(ranges.lengths[new])
    _count_packed(total, objects, lengths)
    return total


def _count_packed(
    total: TotalUsage, objects: Sequence[Keys], lengths: Sequence[NDArray[np.uint64]]
) -> None:
    if not objects:
        return
    _, numbers, counts = np.unique(np.concatenate(objects), return_inverse=True, return_counts=True)
    is_packed = (counts > 1)[numbers]
    total.packed_objects = int((counts > 1).sum())
    total.packed_chunks = int(is_packed.sum())
    total.packed_bytes = int(np.concatenate(lengths)[is_packed].sum(dtype=np.uint64))


async def usage(context: RepoContext, by: UsageBy, limits: ReadLimits) -> dict[str, Usage]:
    """Sum up by version, by array, or by container.

    By version, each chunk counts for the first version that has it: what that version added. By
    array, chunks count once for each array; by container, once. Versions come oldest first,
    the others with most bytes first.
    """
    rows: dict[str, Usage] = {}
    with KeySet(limits.key_bytes) as known:
        match by:
            case "snapshot":
                await _by_snapshot(context, limits, known, rows)
                return rows
            case "array":
                await _by_array(context, limits, known, rows)
            case "container":
                await _by_container(context, limits, known, rows)
            case _:
                raise InvalidInputError(
                    f"by must be 'snapshot', 'array' or 'container', got {by!r}",
                    ErrorKind.INVALID_CONFIG,
                )
    return dict(sorted(rows.items(), key=lambda row: (-_bytes(row[1]), row[0])))


def _bytes(one: Usage) -> int:
    return one.native_bytes + one.virtual_bytes + one.inlined_bytes


async def _by_snapshot(
    context: RepoContext, limits: ReadLimits, known: KeySet, rows: dict[str, Usage]
) -> None:
    survey = await _survey(context, limits)
    rows |= {version: Usage() for version in survey.versions}
    async for part in _parts(context, survey, limits):
        for kind, ranges in part.ranges.items():
            rows[part.version].add(kind, ranges.lengths[ranges.new_to(known)])


async def _by_array(
    context: RepoContext, limits: ReadLimits, known: KeySet, rows: dict[str, Usage]
) -> None:
    survey = await _survey(context, limits)
    of_nodes: dict[NodeId, Usage] = {}
    async for part in _parts(context, survey, limits):
        salt = np.uint64(int.from_bytes(part.node.raw))
        for kind, ranges in part.ranges.items():
            new = ranges.new_to(known, salt)
            of_nodes.setdefault(part.node, Usage()).add(kind, ranges.lengths[new])
    for node, counted in of_nodes.items():
        path = survey.paths.get(node, f"(deleted) {node}")
        # A path may have had several arrays, one after the other.
        rows[path if path not in rows else f"{path} ({node})"] = counted


async def _by_container(
    context: RepoContext, limits: ReadLimits, known: KeySet, rows: dict[str, Usage]
) -> None:
    containers = context.config.virtual_chunk_containers
    names = [*(each.url_prefix for each in containers), NO_CONTAINER]
    async for part in _parts(context, await _survey(context, limits), limits):
        for kind, ranges in part.ranges.items():
            new = ranges.new_to(known)
            if kind is not ChunkKind.VIRTUAL:
                rows.setdefault(OWN_CHUNKS, Usage()).add(kind, ranges.lengths[new])
                continue
            recorded = part.table.locations
            canonical = canonical_all(absolute_all(recorded, context.virtual.absolute))
            places = container_numbers(containers, recorded, canonical)[ranges.targets[new]]
            for place in np.unique(places).tolist():
                found = rows.setdefault(names[place], Usage())
                found.add(kind, ranges.lengths[new][places == place])


# -- reading -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Ranges:
    """The chunks of one kind in one part of a manifest."""

    keys: Keys
    lengths: NDArray[np.uint64]
    targets: NDArray[np.uint32]
    objects: Keys
    """For native chunks, a number for the object that each is in."""

    def new_to(self, known: KeySet, salt: np.uint64 | None = None) -> Ints:
        """List the rows, each range once, that are not known yet; now they are."""
        keys = self.keys if salt is None else mixed(self.keys, salt)
        return known.add_new(keys)


@dataclass(frozen=True, slots=True)
class _Part:
    """The references of one array in one manifest."""

    version: str
    """The first version that uses the manifest."""
    node: NodeId
    table: ChunkTable
    ranges: Mapping[ChunkKind, _Ranges]


@dataclass(slots=True)
class _Survey:
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


async def _survey(context: RepoContext, limits: ReadLimits) -> _Survey:
    """Read all versions that branches and tags lead to."""
    found = _Survey()
    versions = _oldest_first(await history_lines(context.ledger))
    for some in batched((entry.id for entry in versions), limits.snapshots):
        limit = requests_at_once(context, context.config.max_concurrent_requests)
        for snapshot in await map_concurrently(context.assets.read_snapshot, some, limit=limit):
            found.note(snapshot)
    return found


async def _parts(context: RepoContext, survey: _Survey, limits: ReadLimits) -> AsyncIterator[_Part]:
    """Walk all references, in the order of versions; each manifest is read once."""
    places = PlaceIndex()

    async def read(fact: ManifestFact) -> Manifest:
        return await context.assets.read_manifest(fact.id, fact.size_bytes)

    for some in portions(survey.manifests, limits):
        limit = requests_at_once(context, limits.manifests)
        for manifest in await map_concurrently(read, some, limit=limit):
            tables = await offload(partial(tables_of, manifest))
            for node, table in tables.items():
                ranges = _ranges_of(manifest.id, node, table, places)
                yield _Part(survey.first_versions[manifest.id], node, table, ranges)


def _oldest_first(lines: Iterable[Sequence[SnapshotEntry]]) -> list[SnapshotEntry]:
    return newest_first([entry for line in lines for entry in line])[::-1]


def _ranges_of(
    manifest: ManifestId, node: NodeId, table: ChunkTable, places: PlaceIndex
) -> dict[ChunkKind, _Ranges]:
    found = dict(_kinds(table))
    return {
        kind: _Ranges(keys, table.lengths[rows], table.targets[rows], objects)
        for kind, rows in found.items()
        for keys, objects in [_keys_of(kind, manifest, node, table, rows, places)]
    }


def _kinds(table: ChunkTable) -> Iterator[tuple[ChunkKind, Bools]]:
    for kind in ChunkKind:
        rows = table.kinds == kind
        if rows.any():
            yield kind, rows


def _keys_of(
    kind: ChunkKind,
    manifest: ManifestId,
    node: NodeId,
    table: ChunkTable,
    rows: Bools,
    places: PlaceIndex,
) -> tuple[Keys, Keys]:
    """Make a number of what describes each range, and of the object that it is in."""
    targets = table.targets[rows]
    match kind:
        case ChunkKind.NATIVE:
            objects = keys_of_ids(table.chunk_ids)[targets]
        case ChunkKind.VIRTUAL:
            objects = mixed(places.numbers(table.locations).astype(np.uint64), _VIRTUAL_SALT)[
                targets
            ]
        case ChunkKind.INLINE:
            # Bytes within a manifest are nowhere else.
            row = np.flatnonzero(rows).astype(np.uint64)
            own = keys_of_ids(np.frombuffer(manifest.raw, np.uint8).reshape(1, -1))
            return mixed(mixed(row, own[0]), np.uint64(int.from_bytes(node.raw))), row
    return mixed(mixed(objects, table.offsets[rows]), table.lengths[rows]), objects
