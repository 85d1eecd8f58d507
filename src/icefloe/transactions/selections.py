"""Many chunks of an array at once: find their references in columns, and read them with few
requests.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from icefloe.effects import map_concurrently
from icefloe.format.chunk_table import (
    ChunkKind,
    ChunkRef,
    ChunkTable,
    Coordinates,
    InlineChunk,
    NativeChunk,
    VirtualChunk,
    are_among,
)
from icefloe.format.columns import Ints
from icefloe.format.ids import ChunkId, ManifestId
from icefloe.format.nodes import ArrayNode
from icefloe.manifests.lookup import ArrayLookup
from icefloe.records import Record
from icefloe.storage.port import Buffer, ByteRange
from icefloe.transactions.chunks import find_ref, read_ref, size_of
from icefloe.transactions.session import SessionState
from icefloe.virtual_chunks.readahead import Limits, merge_reads

_IN_PACK: Final = Limits(gap_bytes=64 << 10, window_bytes=8 << 20)
"""Which chunks of a pack share a request: those between them were written in the same session."""
_IN_FILE: Final = Limits(gap_bytes=16 << 10, window_bytes=8 << 20)
"""Which virtual chunks share one: not those of another variable, which lie further apart."""
_FEW_CHUNKS: Final = 8
"""So many chunks of an array with changes are looked up one by one: to sort them takes longer."""


class FoundRefs(Record, eq=False):
    """References of a table: row `rows[i]` belongs to the chunk `places[i]` of a selection."""

    table: ChunkTable
    rows: Ints
    places: Ints


class ChunkRequest(Record):
    """A range of an object, or bytes of a manifest, with the chunks that lie in it."""

    ref: ChunkRef
    """The whole range, as if it were one chunk."""
    places: Sequence[int]
    """Which chunks of the selection."""
    parts: Sequence[ByteRange]
    """Where each of them lies in the range."""

    @property
    def size_bytes(self) -> int:
        """The number of bytes of the range."""
        return size_of(self.ref)


async def find_refs(
    session: SessionState, node: ArrayNode, coordinates: Coordinates
) -> list[FoundRefs]:
    """Find the references of many chunks; their manifests are loaded at once.

    A chunk of the selection that is in no table was never written.
    """
    counts = np.array(node.array.num_chunks, np.int64)
    if coordinates.shape[1] != len(counts):
        return []
    places = np.flatnonzero((coordinates < counts).all(axis=1))
    if session.changes.arrays and session.changes.arrays.get(node.id) is not None:
        if len(places) <= _FEW_CHUNKS:
            return await _find_each(session, node, coordinates, places)
        changed, places = _changed(session, node, coordinates, places)
        return [*changed, *await _committed(session, node, coordinates, places)]
    return await _committed(session, node, coordinates, places)


async def _find_each(
    session: SessionState, node: ArrayNode, coordinates: Coordinates, places: Ints
) -> list[FoundRefs]:
    indices = list(map(tuple, coordinates[places].tolist()))
    refs = {index: await find_ref(session, node, index) for index in indices}
    known = {index: ref for index, ref in refs.items() if ref is not None}
    table = ChunkTable.from_refs(known, coordinates.shape[1])
    return _found(table, table.rows_of(coordinates[places]), places)


def _changed(
    session: SessionState, node: ArrayNode, coordinates: Coordinates, places: Ints
) -> tuple[list[FoundRefs], Ints]:
    """Find chunks that the session changed, and return the places of all others."""
    settled = session.changes.settled(node.id)
    if settled is None:
        return [], places
    rows = settled.table.rows_of(coordinates[places])
    found = _found(settled.table, rows, places)
    is_left = (rows < 0) & ~are_among(coordinates[places], settled.deleted)
    return found, places[is_left]


async def _committed(
    session: SessionState, node: ArrayNode, coordinates: Coordinates, places: Ints
) -> list[FoundRefs]:
    lookup, assets = session.lookup(node), session.context.assets
    by_manifest = _by_manifest(lookup, coordinates, places)

    async def select(manifest: ManifestId) -> list[FoundRefs]:
        file = assets.held_manifest(manifest)
        if file is None:
            file = await assets.load_manifest(manifest, lookup.size_of(manifest))
        within = np.array(by_manifest[manifest], np.int64)
        table, rows = file.select(node.id, coordinates[within])
        return _found(table, rows, within)

    limit = session.context.config.max_concurrent_requests
    tables = await map_concurrently(select, by_manifest, limit=limit)
    return [found for part in tables for found in part]


def _by_manifest(
    lookup: ArrayLookup, coordinates: Coordinates, places: Ints
) -> dict[ManifestId, list[int]]:
    """Sort the chunks of a selection by the manifests of their references."""
    by_manifest = dict[ManifestId, list[int]]()
    if len(lookup.manifests) > 0:
        indices = map(tuple, coordinates[places].tolist())
        for place, index in zip(places.tolist(), indices, strict=True):
            if (manifest := lookup.find(index)) is not None:
                by_manifest.setdefault(manifest, []).append(place)
    return by_manifest


def manifests_of(
    session: SessionState, node: ArrayNode, coordinates: Coordinates
) -> dict[ManifestId, int]:
    """Return the manifests that have the references of some chunks, with their sizes in bytes."""
    lookup = session.lookup(node)
    found = _by_manifest(lookup, coordinates, np.arange(len(coordinates)))
    return {manifest: lookup.size_of(manifest) for manifest in found}


def _found(table: ChunkTable, rows: Ints, places: Ints) -> list[FoundRefs]:
    is_found = rows >= 0
    if not is_found.any():
        return []
    return [FoundRefs(table, rows[is_found], places[is_found])]


def plan_requests(refs: FoundRefs, *, joins: bool = True) -> Iterator[ChunkRequest]:
    """Find the requests that read all chunks; those near each other in an object share one.

    >>> import numpy as np
    >>> pack = np.zeros((1, 12), np.uint8)
    >>> table = ChunkTable.native(
    ...     coordinates=np.array([[0], [1]], np.uint32),
    ...     chunk_ids=pack,
    ...     offsets=np.array([90, 80], np.uint64),
    ...     lengths=np.array([10, 10], np.uint64),
    ...     targets=np.array([0, 0], np.uint32),
    ... )
    >>> [request] = plan_requests(FoundRefs(table, np.array([0, 1]), np.array([5, 7])))
    >>> request.ref.offset, request.ref.length, request.places, request.parts
    (80, 20, [7, 5], [(0, 10), (10, 20)])
    """
    table = refs.table
    offsets, lengths = table.offsets[refs.rows].tolist(), table.lengths[refs.rows].tolist()
    rows, places = refs.rows.tolist(), refs.places.tolist()
    objects = _objects(refs).tolist() if joins else range(len(rows))
    members = dict[int, list[int]]()
    for number, target in enumerate(objects):
        members.setdefault(target, []).append(number)
    for numbers in members.values():
        ref = table.ref(rows[numbers[0]])
        if len(numbers) == 1:
            yield ChunkRequest(ref, [places[numbers[0]]], [(0, size_of(ref))])
            continue
        limits = _IN_FILE if isinstance(ref, VirtualChunk) else _IN_PACK
        ranges = [(offsets[number], offsets[number] + lengths[number]) for number in numbers]
        for merged in merge_reads(ranges, limits):
            start, stop = merged.start, merged.stop
            yield ChunkRequest(
                window_of(ref, start, stop - start),
                [places[numbers[row]] for row in merged.rows],
                [(ranges[row][0] - start, ranges[row][1] - start) for row in merged.rows],
            )


def part_of(request: ChunkRequest, number: int) -> ChunkRef:
    """Return the reference of one chunk of a request."""
    if len(request.parts) == 1:
        return request.ref
    start, stop = request.parts[number]
    assert not isinstance(request.ref, InlineChunk)
    return window_of(request.ref, request.ref.offset + start, stop - start)


def _objects(refs: FoundRefs) -> Ints:
    """Number the objects of references: chunks of one object, in one state, share a number."""
    table, rows = refs.table, refs.rows
    kinds, targets = table.kinds[rows], table.targets[rows].astype(np.int64)
    numbers = np.arange(len(rows)) + len(table.locations)  # inline chunks are all by themselves
    is_native = kinds == ChunkKind.NATIVE
    if is_native.any():
        ids = np.ascontiguousarray(table.chunk_ids[targets[is_native]])
        _, own = np.unique(ids.view(f"S{ChunkId.WIDTH}").ravel(), return_inverse=True)
        numbers[is_native] = own + len(table.locations) + len(rows)
    is_virtual = kinds == ChunkKind.VIRTUAL
    if is_virtual.any():
        states = np.zeros((len(rows), 3), np.int64)
        states[:, 0] = targets
        if table.etag_rows is not None:
            states[:, 1] = table.etag_rows[rows]
        if table.last_modified is not None:
            states[:, 2] = table.last_modified[rows]
        _, own = np.unique(states[is_virtual], axis=0, return_inverse=True)
        numbers[is_virtual] = -1 - own.ravel()
    return numbers


def window_of(ref: ChunkRef, offset: int, length: int) -> ChunkRef:
    """Return a reference to other bytes of the same object."""
    match ref:
        case NativeChunk():
            return NativeChunk(ref.id, offset, length)
        case VirtualChunk():
            return VirtualChunk(ref.location, offset, length, ref.etag, ref.last_modified)
        case _:
            raise AssertionError("bytes of a manifest have no range")


async def read_request(session: SessionState, request: ChunkRequest) -> list[Buffer]:
    """Read the chunks of a request."""
    data = await read_ref(session, request.ref)
    if len(request.parts) == 1:
        return [data]
    view = memoryview(data)
    return [view[start:stop] for start, stop in request.parts]
