"""Statistics: the bytes of all chunks, each counted once, however many versions share it.

A chunk is a range of bytes: of a chunk object, of a foreign file, or within a manifest. Ranges are
distinguished by 64-bit numbers made from all that describes them. A version repeats nearly all
ranges of its parent; a repeated range is found by comparing columns and skipped early.
"""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, overload

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.chunk_table import ChunkKind, ChunkTable
from icefloe.format.columns import Bools, Bytes, BytesColumn, Ints
from icefloe.format.ids import ManifestId, NodeId
from icefloe.format.manifest import Manifest, ManifestFile
from icefloe.format.manifest_refs import NativeRanges
from icefloe.format.snapshot import Snapshot
from icefloe.maintenance.dependencies.summary import NO_CONTAINER, container_numbers
from icefloe.records import MutableRecord, Record, asdict, field, replace
from icefloe.repo.context import RepoContext
from icefloe.repo.history import history_lines, newest_first
from icefloe.reports import FactsReport, Report, shown_bytes
from icefloe.virtual_chunks.grouping import PlaceIndex, absolute_all, canonical_all
from icefloe.walk.history import (
    ManifestFact,
    ReadLimits,
    manifests_of,
    read_manifests,
    read_snapshots,
    tables_of,
)
from icefloe.walk.spill import Keys, KeySet, heads_of_ids, keys_of_ids, mixed

_VIRTUAL_SALT: Final = np.uint64(0x5851F42D4C957F2D)
_BLOCK_ROWS: Final = 1 << 14
"""Rows that are compared at once."""
_REMEMBERED_BYTES: Final = 64 * 2**20
_DECODED_BYTES: Final = 256 * 2**20
"""Of manifests that are decoded before their chunks are counted."""


class Ranges(Record, eq=False):
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
        """Return a number for what each is in."""
        if self.chunk_ids is not None:
            return keys_of_ids(self.chunk_ids)
        assert self.places is not None
        return self.places

    def keys(self, objects: Keys | None = None) -> Keys:
        """Make a number of all that describes each range."""
        inside = self.objects() if objects is None else objects
        return mixed(mixed(inside, self.offsets), self.lengths)

    def new_to(self, seen: KeySet, salt: np.uint64 | None = None) -> Ints:
        """List the rows, each range once, that are not known yet; now they are."""
        keys = self.keys() if salt is None else mixed(self.keys(), salt)
        return seen.add_new(keys)


class ArrayRanges(Record):
    """The ranges of one array in one manifest, but for some that came in an earlier part."""

    version: str
    """The first version that uses the manifest."""
    node: NodeId
    locations: BytesColumn
    ranges: Mapping[ChunkKind, Ranges]


# -- versions ------------------------------------------------------------------------------


class Survey(MutableRecord):
    """Objects that all versions use, with the first version that uses each of them."""

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
    survey = Survey()
    lines = await history_lines(context.ledger)
    versions = newest_first([entry for line in lines for entry in line])[::-1]
    ids = [entry.id for entry in versions]
    async for snapshot in read_snapshots(context, ids, lambda whole: whole, limits=limits):
        survey.note(snapshot)
    return survey


# -- manifests -----------------------------------------------------------------------------


type _Decoded = NativeRanges | ChunkTable


async def parts_of(
    context: RepoContext, survey: Survey, limits: ReadLimits
) -> AsyncIterator[ArrayRanges]:
    """Yield all ranges, in the order of versions; each manifest is read once."""
    places, recent = PlaceIndex(), _RecentRanges()
    fewer = replace(limits, decoded_bytes=min(limits.decoded_bytes, _DECODED_BYTES))
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        limits.report(done, len(survey.manifests))

    async for fact, arrays in read_manifests(
        context, survey.manifests, _decoded, limits=fewer, advance=advance
    ):
        version = survey.first_versions[fact.id]
        for node, decoded in arrays:
            if isinstance(decoded, NativeRanges):
                new = recent.without_known(node, decoded)
                ranges = {ChunkKind.NATIVE: Ranges(new.offsets, new.lengths, new.chunk_ids)}
                yield ArrayRanges(version, node, BytesColumn.empty(), ranges)
            else:
                ranges = _ranges_of(fact.id, node, decoded, places)
                yield ArrayRanges(version, node, decoded.locations, ranges)


def _decoded(manifest: Manifest) -> list[tuple[NodeId, _Decoded]]:
    """Decode the ranges of a manifest, so that the rest of it can be freed."""
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
        node_and_first = node, ranges.first
        last = self._held.pop(node_and_first, None)
        self._held[node_and_first] = ranges
        self._size_bytes += ranges.nbytes
        if last is not None:
            self._size_bytes -= last.nbytes
        while self._size_bytes > _REMEMBERED_BYTES:
            self._size_bytes -= self._held.pop(next(iter(self._held))).nbytes
        return ranges if last is None else _changed(ranges, last)


def _changed(ranges: NativeRanges, last: NativeRanges) -> NativeRanges:
    """Keep rows that differ: in blocks, nearly all of which are the same in every row."""
    blocks = [slice(start, start + _BLOCK_ROWS) for start in range(0, len(ranges), _BLOCK_ROWS)]
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


def _ranges_of(
    manifest: ManifestId, node: NodeId, table: ChunkTable, places: PlaceIndex
) -> dict[ChunkKind, Ranges]:
    rows_by_kind = {kind: table.kinds == kind for kind in ChunkKind}
    return {
        kind: _ranges_of_kind(kind, manifest, node, table, rows, places)
        for kind, rows in rows_by_kind.items()
        if rows.any()
    }


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


type UsageBy = Literal["snapshot", "array", "container"]

OWN_CHUNKS: Final = "(in the repository)"
"""The row of chunks that are not in any container."""

_LARGEST_CHUNK_BYTES: Final = 2**40
"""Chunks that claim to be larger count as this: no such chunk exists, and no sum overflows."""
_KIND_NAMES: Final = {
    ChunkKind.NATIVE: "native",
    ChunkKind.VIRTUAL: "virtual",
    ChunkKind.INLINE: "inlined",
}
_MOST_WAITING: Final = 4_000_000
"""Native chunks that are brought together before they are counted."""


class _Usage:
    """Counts bytes and chunks by kind."""

    def __init__(self) -> None:
        self._bytes = dict.fromkeys(ChunkKind, 0)
        self._chunks = dict.fromkeys(ChunkKind, 0)

    def add(self, kind: ChunkKind, lengths: NDArray[np.uint64]) -> None:
        """Count some chunks."""
        self._bytes[kind] += int(np.minimum(lengths, _LARGEST_CHUNK_BYTES).sum(dtype=np.uint64))
        self._chunks[kind] += len(lengths)

    def fields(self) -> dict[str, int]:
        """Return the counts by the names that reports use."""
        sums = {f"{name}_bytes": self._bytes[kind] for kind, name in _KIND_NAMES.items()}
        return sums | {f"{name}_chunks": self._chunks[kind] for kind, name in _KIND_NAMES.items()}


class ChunkStorageStats(FactsReport, Record):
    """The size of a repository's chunks; a chunk that versions share counts once.

    Counts versions that branches and tags lead to.
    """

    native_bytes: int
    """In chunk objects of the repository."""
    virtual_bytes: int
    """In files of others."""
    inlined_bytes: int
    """Within manifests."""
    native_chunks: int = 0
    virtual_chunks: int = 0
    inlined_chunks: int = 0
    packed_objects: int = 0
    """Chunk objects that several chunks share; those chunks are among the native ones."""
    packed_chunks: int = 0
    packed_bytes: int = 0

    headings = ("kind", "bytes", "chunks")

    def non_virtual_bytes(self) -> int:
        """Return the bytes that the repository itself stores."""
        return self.native_bytes + self.inlined_bytes

    def total_bytes(self) -> int:
        """Return the sum of all kinds."""
        return self.non_virtual_bytes() + self.virtual_bytes

    def _rows(self) -> Iterator[list[object]]:
        yield ["native", shown_bytes(self.native_bytes), self.native_chunks]
        yield ["  packed", shown_bytes(self.packed_bytes), self.packed_chunks]
        yield ["inline", shown_bytes(self.inlined_bytes), self.inlined_chunks]
        yield ["virtual", shown_bytes(self.virtual_bytes), self.virtual_chunks]


async def total_usage(context: RepoContext, limits: ReadLimits) -> ChunkStorageStats:
    """Sum up the chunks of all versions that branches and tags lead to."""
    total = _Usage()
    with KeySet(limits.key_bytes) as seen:
        native = _NativeTally(total, seen)
        async for part in parts_of(context, await survey_of(context, limits), limits):
            for kind, ranges in part.ranges.items():
                if kind is ChunkKind.NATIVE:
                    native.add(ranges)
                else:
                    total.add(kind, ranges.lengths[ranges.new_to(seen)])
        packed = native.finish()
    return ChunkStorageStats(**total.fields(), **packed)


class _NativeTally:
    """Counts native chunks, very many at a time."""

    def __init__(self, total: _Usage, seen: KeySet) -> None:
        self._total = total
        self._known = seen
        self._waiting: list[Ranges] = []
        self._count = 0
        self._objects: list[Keys] = []
        self._lengths: list[NDArray[np.uint64]] = []
        """Of ranges that were counted, each once."""

    def add(self, ranges: Ranges) -> None:
        """Count some, some of which may have been counted before."""
        self._waiting.append(ranges)
        self._count += len(ranges)
        if self._count > _MOST_WAITING:
            self._count_waiting()

    def finish(self) -> dict[str, int]:
        """Count the chunks that wait; return the counts of objects that several chunks share."""
        if not self._waiting:
            return {}
        if not self._objects and _have_own_objects(self._waiting):
            for ranges in self._waiting:
                self._total.add(ChunkKind.NATIVE, ranges.lengths)
            return {}
        self._count_waiting()
        objects = np.concatenate(self._objects)
        _, numbers, counts = np.unique(objects, return_inverse=True, return_counts=True)
        is_packed = (counts > 1)[numbers]
        lengths = np.concatenate(self._lengths)[is_packed]
        return {
            "packed_objects": int((counts > 1).sum()),
            "packed_chunks": int(is_packed.sum()),
            "packed_bytes": int(lengths.sum(dtype=np.uint64)),
        }

    def _count_waiting(self) -> None:
        for ranges in self._waiting:
            objects = ranges.objects()
            new = self._known.add_new(ranges.keys(objects))
            self._total.add(ChunkKind.NATIVE, ranges.lengths[new])
            self._objects.append(objects[new])
            self._lengths.append(ranges.lengths[new])
        self._waiting, self._count = [], 0


def _have_own_objects(parts: Sequence[Ranges]) -> bool:
    """Return whether each range is in another object, so that none is repeated or packed.

    The beginnings of ids tell: there are hardly ever two alike, and if so we only look closer.
    """
    ids = [part.chunk_ids for part in parts if part.chunk_ids is not None]
    heads = np.concatenate([heads_of_ids(id_rows) for id_rows in ids])
    heads.sort()
    return not (heads[1:] == heads[:-1]).any()


class StorageUse(Record):
    """The size of the chunks of a version, array or container."""

    place: str
    """The id of a version, the path of an array, or the prefix of a container."""
    native_bytes: int
    virtual_bytes: int
    inlined_bytes: int
    native_chunks: int
    virtual_chunks: int
    inlined_chunks: int

    @property
    def total_bytes(self) -> int:
        """The sum of all kinds."""
        return self.native_bytes + self.virtual_bytes + self.inlined_bytes


class StorageUses(Report, Sequence[StorageUse]):
    """Sizes of chunks, a row for each version, array or container."""

    has_empty_table = True

    def __init__(self, by: UsageBy, uses: Sequence[StorageUse]) -> None:
        self.by = by
        self._uses = uses

    @overload
    def __getitem__(self, row: int) -> StorageUse: ...
    @overload
    def __getitem__(self, row: slice) -> Sequence[StorageUse]: ...
    def __getitem__(self, row: int | slice) -> StorageUse | Sequence[StorageUse]:
        return self._uses[row]

    def __len__(self) -> int:
        return len(self._uses)

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return the rows as dictionaries, ready for JSON."""
        return [asdict(row) for row in self]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as a dictionary, ready for JSON."""
        return {"by": self.by, "rows": self.to_dicts()}

    @property
    def headings(self) -> tuple[str, ...]:
        """The headings of the table."""
        return (self.by, "native", "virtual", "inline", "chunks")

    def _rows(self) -> Iterator[list[object]]:
        for row in self:
            yield [
                row.place,
                shown_bytes(row.native_bytes),
                shown_bytes(row.virtual_bytes),
                shown_bytes(row.inlined_bytes),
                row.native_chunks + row.virtual_chunks + row.inlined_chunks,
            ]


async def usage(context: RepoContext, by: UsageBy, limits: ReadLimits) -> StorageUses:
    """Sum up by version, by array, or by container.

    By version, each chunk counts for the first version that has it: what that version added. By
    array, chunks count once for each array; by container, once. Versions come oldest first,
    the others with most bytes first.
    """
    rows: dict[str, _Usage] = {}
    with KeySet(limits.key_bytes) as seen:
        match by:
            case "snapshot":
                await _by_snapshot(context, limits, seen, rows)
            case "array":
                await _by_array(context, limits, seen, rows)
            case "container":
                await _by_container(context, limits, seen, rows)
            case _:
                raise InvalidInputError(
                    f"by must be 'snapshot', 'array' or 'container', got {by!r}",
                    ErrorKind.INVALID_CONFIG,
                )
    uses = [StorageUse(place, **counted.fields()) for place, counted in rows.items()]
    if by != "snapshot":
        uses.sort(key=lambda use: (-use.total_bytes, use.place))
    return StorageUses(by, uses)


async def _by_snapshot(
    context: RepoContext, limits: ReadLimits, seen: KeySet, rows: dict[str, _Usage]
) -> None:
    survey = await survey_of(context, limits)
    rows |= {version: _Usage() for version in survey.versions}
    async for part in parts_of(context, survey, limits):
        for kind, ranges in part.ranges.items():
            rows[part.version].add(kind, ranges.lengths[ranges.new_to(seen)])


async def _by_array(
    context: RepoContext, limits: ReadLimits, seen: KeySet, rows: dict[str, _Usage]
) -> None:
    survey = await survey_of(context, limits)
    of_nodes: dict[NodeId, _Usage] = {}
    async for part in parts_of(context, survey, limits):
        salt = np.uint64(int.from_bytes(part.node.raw))
        for kind, ranges in part.ranges.items():
            new = ranges.new_to(seen, salt)
            of_nodes.setdefault(part.node, _Usage()).add(kind, ranges.lengths[new])
    for node, counted in of_nodes.items():
        path = survey.paths.get(node, f"(deleted) {node}")
        # A path may have had several arrays, one after the other.
        rows[path if path not in rows else f"{path} ({node})"] = counted


async def _by_container(
    context: RepoContext, limits: ReadLimits, seen: KeySet, rows: dict[str, _Usage]
) -> None:
    containers = context.config.virtual_chunk_containers
    names = [*(container.url_prefix for container in containers), NO_CONTAINER]
    async for part in parts_of(context, await survey_of(context, limits), limits):
        for kind, ranges in part.ranges.items():
            new = ranges.new_to(seen)
            if kind is not ChunkKind.VIRTUAL:
                rows.setdefault(OWN_CHUNKS, _Usage()).add(kind, ranges.lengths[new])
                continue
            recorded = part.locations
            canonical = canonical_all(absolute_all(recorded, context.virtual.resolver.absolute))
            assert ranges.targets is not None
            numbers = container_numbers(containers, recorded, canonical)
            places = numbers[ranges.targets[new]]
            for number in np.unique(places).tolist():
                row = rows.setdefault(names[number], _Usage())
                row.add(kind, ranges.lengths[new][places == number])
