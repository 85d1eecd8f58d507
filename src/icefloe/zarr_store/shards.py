"""Read the shards of a selection as one plan.

Zarr reads one shard after the other: its index, then the inner chunks that are selected, on one
thread and through an array of their own. Here the references of all shards are found in columns,
and all indices are requested at once. Then all inner chunks that are selected are read like chunks:
those side by side in an object share a request, and threads decode them straight into the result.
A small shard that is selected whole is one request.

A session remembers the indices that it read, so that the next selection needs no request for them.
Inner chunks that are shards themselves are read whole.
"""

import json
from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence
from math import prod
from threading import Lock
from typing import Any, Final, override

import numpy as np
from numpy.typing import NDArray
from zarr.abc.codec import GetResult
from zarr.abc.store import ByteRequest
from zarr.codecs import ShardingCodec
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import Buffer, BufferPrototype, NDBuffer
from zarr.core.buffer.cpu import Buffer as MemoryBuffer
from zarr.core.chunk_grids import ChunkGrid
from zarr.core.chunk_utils import ChunkTransform, scatter_chunk
from zarr.core.indexing import SelectorTuple, get_indexer
from zarr.storage import StorePath

from icefloe.effects import map_concurrently, run_blocking
from icefloe.errors import FormatError
from icefloe.format.chunk_table import ChunkRef, Coordinates, InlineChunk, NativeChunk
from icefloe.format.columns import Ints
from icefloe.format.nodes import ArrayNode
from icefloe.pacing import memory_budget, work_through
from icefloe.records import MutableRecord, Record
from icefloe.storage.port import Buffer as StoredBytes
from icefloe.transactions.chunks import find_ref, read_ref, size_of
from icefloe.transactions.selections import find_refs, window_of
from icefloe.transactions.session import SessionState
from icefloe.virtual_chunks.readahead import Limits, merge_reads
from icefloe.zarr_store.decoding import ChunkDecoder
from icefloe.zarr_store.nearby import FEW_CHUNKS, SMALL_BYTES, ReadItem, find_array

type Runner = Callable[[Callable[[Any], int], Sequence[Any], list[int]], Awaitable[None]]
"""Calls a function for all items; the numbers are the bytes that each of them takes."""
type Index = NDArray[np.uint64]
"""Offset and length of each inner chunk, in the order of their coordinates."""
type Part = tuple[SelectorTuple, SelectorTuple]
"""What is selected of an inner chunk, and its place among the values of the shard."""

_MISSING: Final = np.uint64(2**64 - 1)
_GAP_BYTES: Final = 64 << 10
"""So many bytes cost no more than another request."""
_MOST_WINDOW: Final = 8 << 20
_LEAST_WINDOW: Final = 512 << 10
_SHARES: Final = 16
"""Into so many requests the bytes of a selection are divided, at least, if they are many."""
_MOST_PARTS: Final = 1 << 16
"""So many inner chunks are planned at a time; a plan takes half a kilobyte for each."""
_MOST_PROJECTIONS: Final = 64


class _Layout(Record, eq=False):
    """How the shards of one shape are divided."""

    chunk_spec: ArraySpec
    counts: tuple[int, ...]
    transform: ChunkTransform
    index_bytes: int
    temporary_bytes: int
    """What an inner chunk takes while it is decoded, beside its stored bytes."""


class _Projection(Record, eq=False):
    """The inner chunks that a selection of a shard meets."""

    parts: Sequence[Part]
    rows: Ints
    """Their rows in the index."""
    shape: tuple[int, ...]
    """Of the values that are selected, as their places count them."""
    whole_shape: tuple[int, ...]
    """The same as the selection has it."""


class _Shard(MutableRecord, eq=False):
    """A shard of the selection."""

    place: int
    ref: ChunkRef
    layout: _Layout
    projection: _Projection
    is_whole: bool
    """Whether all of it is one request, or none."""
    left: int
    """How many inner chunks are not in the result yet."""
    index: Index | None = None
    ranges: list[tuple[int, int, int]] | None = None
    """Number of the part, first byte, and the one after the last."""
    decoder: ChunkDecoder | None = None
    values: NDBuffer | None = None
    """The selected values, if they have to be complete to find their way into the result."""


class _Request(Record, eq=False):
    """A range of an object, with the inner chunks that lie in it."""

    ref: ChunkRef
    chunks: list[tuple[_Shard, int, int, int]]
    """Shard, number of the part, and where it lies in the range."""


class ShardedRead:
    """A read of shards of one array."""

    def __init__(
        self,
        session: SessionState,
        codec: ShardingCodec,
        batch: Sequence[ReadItem],
        out: NDBuffer,
        drop_axes: tuple[int, ...],
        *,
        most_bytes: int,
    ) -> None:
        self._session, self._codec, self._batch = session, codec, batch
        self._out, self._drop_axes = out, drop_axes
        self._most_bytes, self._budget = most_bytes, memory_budget()
        self._lock = Lock()
        self._layouts: dict[tuple[int, ...], _Layout] = {}
        self._projections: dict[Hashable, _Projection] = {}
        codecs = [codec.to_dict() for codec in codec.index_codecs]
        self._index_key = json.dumps([codec.index_location, codecs], default=str)
        self._path = ""

    async def run(
        self, path: str, coordinates: Coordinates, runner: Runner
    ) -> tuple[GetResult, ...]:
        """Read the shards at some coordinates into the result; raise for a group."""
        self._path = path
        node = find_array(self._session, path)
        results = [_MISSING_SHARD] * len(self._batch)
        if node is not None:
            refs = await _find(self._session, node, coordinates)
            for place in refs:
                results[place] = _PRESENT
            todo = iter(sorted(refs.items()))
            while shards := self._plan(todo):
                await self._read(shards, runner)
        for result, (_, spec, _, out_selection, _) in zip(results, self._batch, strict=True):
            if result is _MISSING_SHARD:
                self._scatter(None, spec, out_selection)
        return tuple(results)

    def _plan(self, todo: Iterator[tuple[int, ChunkRef]]) -> list[_Shard]:
        """Take the next shards: few enough to keep all their inner chunks in memory."""
        shards, count = list[_Shard](), 0
        for place, ref in todo:
            shard = self._shard(place, ref)
            if shard.left:
                shards.append(shard)
            count += shard.left
            if count >= _MOST_PARTS:
                break
        return shards

    def _shard(self, place: int, ref: ChunkRef) -> _Shard:
        _, spec, selection, _, _ = self._batch[place]
        layout, projection = self._layout(spec), self._projection(spec, selection)
        index = self._session.shard_indices.get(self._key(ref, layout))
        data_bytes = max(size_of(ref) - layout.index_bytes, 0)
        spare_bytes = data_bytes * (1 - len(projection.parts) / prod(layout.counts))
        is_cheap = data_bytes <= _MOST_WINDOW and spare_bytes <= _GAP_BYTES
        is_whole = isinstance(ref, InlineChunk) or (index is None and is_cheap)
        return _Shard(place, ref, layout, projection, is_whole, len(projection.parts), index)

    def _layout(self, spec: ArraySpec) -> _Layout:
        layout = self._layouts.get(spec.shape)
        if layout is None:
            codec = self._codec
            chunk_spec, counts = codec._get_chunk_spec(spec), codec._get_chunks_per_shard(spec)  # noqa: SLF001
            transform = codec._get_inner_chunk_transform(spec)  # noqa: SLF001
            decoded = prod(chunk_spec.shape) * int(getattr(chunk_spec.dtype, "item_size", 8))
            decoder = ChunkDecoder(transform, self._out, ())
            temporary = decoder.temporary_bytes(chunk_spec, decoded)
            index_bytes = codec._shard_index_size(counts)  # noqa: SLF001
            layout = _Layout(chunk_spec, counts, transform, index_bytes, temporary)
            self._layouts[spec.shape] = layout
        return layout

    def _projection(self, spec: ArraySpec, selection: SelectorTuple) -> _Projection:
        """Find the inner chunks of a selection, once for all shards that have the same one."""
        key: Hashable = (spec.shape, selection)
        try:
            known = self._projections.get(key)
        except TypeError:  # arrays of numbers
            return self._project(spec, selection)
        if known is None:
            if len(self._projections) == _MOST_PROJECTIONS:
                self._projections.clear()
            known = self._projections[key] = self._project(spec, selection)
        return known

    def _project(self, spec: ArraySpec, selection: SelectorTuple) -> _Projection:
        grid = ChunkGrid.from_sizes(spec.shape, self._codec.chunk_shape)
        indexer = get_indexer(selection, shape=spec.shape, chunk_grid=grid)
        inner = list(indexer)
        counts = self._layout(spec).counts
        coordinates = np.array([chunk[0] for chunk in inner], np.int64)
        rows = np.zeros(len(inner), np.int64)
        for column, count in enumerate(counts):
            rows = rows * count + coordinates.reshape(len(inner), len(counts))[:, column]
        parts = [(chunk[1], chunk[2]) for chunk in inner]
        shape = tuple(indexer.shape)
        return _Projection(parts, rows, shape, tuple(getattr(indexer, "sel_shape", shape)))

    async def _read(self, shards: list[_Shard], runner: Runner) -> None:
        unknown = [shard for shard in shards if shard.index is None]
        sizes = [
            size_of(shard.ref) if shard.is_whole else shard.layout.index_bytes for shard in unknown
        ]
        await runner(self._begin, unknown, sizes)
        for shard in shards:
            if shard.index is not None:
                self._locate(shard, shard.index)
        requests = self._requests(shards)
        temporary = shards[0].layout.temporary_bytes
        await runner(self._fetch, requests, [size_of(item.ref) + temporary for item in requests])

    def _begin(self, shard: _Shard) -> int:
        """Read the index of a shard, or all of it."""
        ref, layout = shard.ref, shard.layout
        size, index_bytes = size_of(ref), layout.index_bytes
        is_first = self._codec.index_location == "start"
        window = slice(0, index_bytes) if is_first else slice(max(size - index_bytes, 0), size)
        held = size + layout.temporary_bytes if shard.is_whole else 2 * index_bytes
        with self._budget.holding(held, self._most_bytes):
            read = read_ref(self._session, ref, None if shard.is_whole else window)
            data = memoryview(run_blocking(read, "worker"))
            index = self._decoded(shard, data[window] if shard.is_whole else data)
            self._locate(shard, index)
            if shard.is_whole:
                ranges, shard.ranges = shard.ranges or [], None
                for number, start, stop in ranges:
                    self._decode(shard, number, data[start:stop])
                self._finish(shard, len(ranges))
        return len(data)

    def _decoded(self, shard: _Shard, data: StoredBytes) -> Index:
        counts = shard.layout.counts
        stored = self._codec._decode_shard_index_sync(MemoryBuffer.from_bytes(data), counts)  # noqa: SLF001
        # A copy: what was read may be the whole shard.
        index = np.array(stored.offsets_and_lengths, np.uint64, order="C").reshape(-1, 2)
        if _is_fixed(shard.ref):
            key = self._key(shard.ref, shard.layout)
            self._session.shard_indices.put(key, index, index.nbytes)
        return index

    def _key(self, ref: ChunkRef, layout: _Layout) -> Hashable:
        return (ref, layout.counts, self._index_key) if _is_fixed(ref) else None

    def _locate(self, shard: _Shard, index: Index) -> None:
        """Find the bytes of the inner chunks, and fill the places of those that are missing."""
        entries = index[shard.projection.rows]
        offsets, lengths = entries[:, 0], entries[:, 1]
        is_missing = (offsets == _MISSING) & (lengths == _MISSING)
        size = np.uint64(size_of(shard.ref))
        is_wrong = (lengths > size - np.minimum(offsets, size)) | (offsets > size)
        if (is_wrong & ~is_missing).any():
            problem = (
                f"the index of a shard of {self._path} names bytes beyond the {size} of the shard"
            )
            raise FormatError(problem, path=self._path)
        numbers = np.flatnonzero(~is_missing)
        starts = offsets[numbers].astype(np.int64)
        stops = starts + lengths[numbers].astype(np.int64)
        shard.index = None  # it may be large
        shard.ranges = list(zip(numbers.tolist(), starts.tolist(), stops.tolist(), strict=True))
        missing = np.flatnonzero(is_missing).tolist()
        if missing:
            decoder, spec = self._decoder(shard), shard.layout.chunk_spec
            for number in missing:
                decoder.fill(spec, shard.projection.parts[number][1])
            self._finish(shard, len(missing))

    def _requests(self, shards: Sequence[_Shard]) -> list[_Request]:
        """Find the requests that read all inner chunks; those near each other share one."""
        members = dict[Hashable, tuple[ChunkRef, list[tuple[int, int]], list[tuple[_Shard, int]]]]()
        requests, total = list[_Request](), 0
        for shard in shards:
            ref = shard.ref
            for number, start, stop in shard.ranges or ():
                if start == stop:  # for the codecs to judge
                    requests.append(_Request(InlineChunk(b""), [(shard, number, 0, 0)]))
                    continue
                assert not isinstance(ref, InlineChunk)
                _, ranges, owners = members.setdefault(_object_of(ref), (ref, [], []))
                ranges.append((ref.offset + start, ref.offset + stop))
                owners.append((shard, number))
                total += stop - start
        window_bytes = min(max(total // _SHARES, _LEAST_WINDOW), _MOST_WINDOW)
        limits = Limits(gap_bytes=_GAP_BYTES, window_bytes=window_bytes)
        for ref, ranges, owners in members.values():
            for merged in merge_reads(ranges, limits):
                first = merged.start
                chunks = [
                    (*owners[row], ranges[row][0] - first, ranges[row][1] - first)
                    for row in merged.rows
                ]
                requests.append(_Request(window_of(ref, first, merged.stop - first), chunks))
        return requests

    def _fetch(self, request: _Request) -> int:
        """Read a range, and decode what lies in it."""
        temporary = request.chunks[0][0].layout.temporary_bytes
        size = size_of(request.ref)
        with self._budget.holding(size + temporary, self._most_bytes):
            data = memoryview(run_blocking(read_ref(self._session, request.ref), "worker"))
            for shard, number, start, stop in request.chunks:
                self._decode(shard, number, data[start:stop])
                self._finish(shard, 1)
        return size

    def _decode(self, shard: _Shard, number: int, data: StoredBytes) -> None:
        decoder = shard.decoder or self._decoder(shard)
        chunk_selection, out_selection = shard.projection.parts[number]
        decoder.decode(data, shard.layout.chunk_spec, chunk_selection, out_selection)

    def _decoder(self, shard: _Shard) -> ChunkDecoder:
        """Return what decodes into the result, or into an array of the values of a shard."""
        with self._lock:
            if shard.decoder is None:
                target = self._target(shard)
                if target is None:
                    _, spec, _, _, _ = self._batch[shard.place]
                    target = shard.values = spec.prototype.nd_buffer.empty(
                        shape=shard.projection.shape,
                        dtype=spec.dtype.to_native_dtype(),
                        order=spec.order,
                    )
                shard.decoder = ChunkDecoder(shard.layout.transform, target, ())
            return shard.decoder

    def _target(self, shard: _Shard) -> NDBuffer | None:
        """Return the part of the result that a shard fills, if its values lie there in order."""
        _, spec, _, selection, _ = self._batch[shard.place]
        slices = selection if isinstance(selection, tuple) else (selection,)
        array = self._out.as_ndarray_like()
        if not isinstance(array, np.ndarray) or not all(isinstance(s, slice) for s in slices):
            return None
        values, shape = array[(*slices, ...)], shard.projection.shape
        if values.size != prod(shape):
            return None
        shaped = values.reshape(shape)
        if not np.may_share_memory(shaped, values):
            return None
        return spec.prototype.nd_buffer.from_ndarray_like(shaped)

    def _finish(self, shard: _Shard, count: int) -> None:
        """Note that inner chunks are decoded; the last ones complete the shard."""
        with self._lock:
            shard.left -= count
            values = shard.values if shard.left == 0 else None
        if values is not None:
            _, spec, _, out_selection, _ = self._batch[shard.place]
            self._scatter(values.reshape(shard.projection.whole_shape), spec, out_selection)
            shard.values = shard.decoder = None

    def _scatter(
        self, values: NDBuffer | None, spec: ArraySpec, out_selection: SelectorTuple
    ) -> None:
        scatter_chunk(
            values,
            self._out,
            chunk_spec=spec,
            out_selection=out_selection,
            drop_axes=self._drop_axes,
        )


_PRESENT: Final = GetResult(status="present")
_MISSING_SHARD: Final = GetResult(status="missing")


class NewShard(StorePath):
    """The key of a shard that is replaced whole: what was there before does not matter.

    Zarr takes a shard for incomplete where it goes beyond the end of the array.
    """

    @override
    def get_sync(
        self, *, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Return that there is nothing."""
        return None


def far_runner(session: SessionState, *, most_requests: int, most_bytes: int) -> Runner:
    """Return what runs requests over a network: as many at a time as the storage bears."""
    pace = session.context.assets.reading_pace

    async def run(function: Callable[[Any], int], items: Sequence[Any], sizes: list[int]) -> None:
        mean_bytes = max(sum(sizes) // max(len(sizes), 1), 1)
        at_once = most_bytes // mean_bytes
        await work_through(function, items, pace=pace, most=most_requests, at_once=at_once)

    return run


def near_runner(workers: int) -> Runner:
    """Return what runs requests to this machine: small ones on the thread of the caller."""

    async def run(function: Callable[[Any], int], items: Sequence[Any], sizes: list[int]) -> None:
        async def call(item: Any) -> None:
            function(item)

        is_small = all(size <= SMALL_BYTES for size in sizes)
        await map_concurrently(call, items, limit=1 if is_small else workers)

    return run


async def _find(
    session: SessionState, node: ArrayNode, coordinates: Coordinates
) -> dict[int, ChunkRef]:
    """Find the references of shards by their places in the selection."""
    if len(coordinates) <= FEW_CHUNKS and session.context.is_near:
        indices = enumerate(map(tuple, coordinates.tolist()))
        refs = {place: await find_ref(session, node, index) for place, index in indices}
        return {place: ref for place, ref in refs.items() if ref is not None}
    return {
        place: found.table.ref(row)
        for found in await find_refs(session, node, coordinates)
        for row, place in zip(found.rows.tolist(), found.places.tolist(), strict=True)
    }


def _is_fixed(ref: ChunkRef) -> bool:
    """Return whether a reference stands for the same bytes at all times, which take a request."""
    if isinstance(ref, InlineChunk):
        return False
    return isinstance(ref, NativeChunk) or bool(ref.etag or ref.last_modified)


def _object_of(ref: ChunkRef) -> Hashable:
    match ref:
        case NativeChunk():
            return ref.id
        case InlineChunk():
            return id(ref)
        case _:
            return (ref.location, ref.etag, ref.last_modified)
