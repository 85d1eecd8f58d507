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
from operator import itemgetter
from threading import Lock
from typing import Any, Final, override

import numpy as np
from numpy.typing import NDArray
from zarr.abc.codec import Codec, GetResult
from zarr.abc.store import ByteRequest
from zarr.codecs import ShardingCodec
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import Buffer, BufferPrototype, NDBuffer
from zarr.core.buffer.cpu import Buffer as MemoryBuffer
from zarr.core.chunk_grids import ChunkGrid
from zarr.core.chunk_utils import scatter_chunk
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
from icefloe.zarr_store.decoding import ChunkDecoder
from icefloe.zarr_store.nearby import (
    FEW_CHUNKS,
    SMALL_BYTES,
    ReadItem,
    decoded_bytes,
    find_array,
)

type Runner = Callable[[Callable[[Any], int], Sequence[Any], list[int]], Awaitable[None]]
"""Calls a function for all items; the numbers are the bytes that each of them takes."""
type Index = NDArray[np.uint64]
"""Offset and length of each inner chunk, in the order of their coordinates."""
type Part = tuple[SelectorTuple, SelectorTuple]
"""What is selected of an inner chunk, and its place among the values of the shard."""

_MISSING: Final = np.uint64(2**64 - 1)
_GAP_BYTES: Final = 64 << 10
"""Up to this number, bytes that nobody selected cost less than another request."""
_LEAST_WHOLE: Final = 2 << 20
"""Shards up to this size are read in the time of another round of requests."""
_MOST_WINDOW: Final = 8 << 20
_LEAST_WINDOW: Final = 512 << 10
_SHARES: Final = 16
"""The requests into which a large selection is divided, at least."""
_MOST_PARTS: Final = 1 << 16
"""Inner chunks that are planned at a time: each takes half a kilobyte."""
_MOST_PROJECTIONS: Final = 64


class _Layout(Record, eq=False):
    """How the shards of one shape are divided."""

    chunk_spec: ArraySpec
    grid: ChunkGrid
    counts: tuple[int, ...]
    decoder: ChunkDecoder
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

    batch_row: int
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
    """Decodes into the result, or into `values`."""
    values: NDBuffer | None = None
    """All selected values, where those of inner chunks cannot go into the result by themselves."""


type _Chunk = tuple[int, int, _Shard, int]
"""An inner chunk: where it lies in the object, its shard, and the number of the part."""


class _Request(Record, eq=False):
    """A range of an object, with the inner chunks that lie in it."""

    ref: ChunkRef
    start: int
    chunks: list[_Chunk]


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
        self._index_key = (codec.index_location, _identity(codec.index_codecs))
        self._path, self._most_whole = "", _LEAST_WHOLE

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
            total = sum(map(size_of, refs.values()))
            self._most_whole = min(max(total // _SHARES, _LEAST_WHOLE), _MOST_WINDOW)
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

    def _shard(self, batch_row: int, ref: ChunkRef) -> _Shard:
        _, spec, selection, _, _ = self._batch[batch_row]
        layout = self._layout(spec)
        projection = self._projection(layout, spec.shape, selection)
        index = self._session.shard_indices.get(self._key(ref, layout))
        data_bytes = max(size_of(ref) - layout.index_bytes, 0)
        spare_bytes = data_bytes * (1 - len(projection.parts) / prod(layout.counts))
        is_cheap = data_bytes <= self._most_whole and spare_bytes <= _GAP_BYTES
        is_whole = isinstance(ref, InlineChunk) or (index is None and is_cheap)
        target = self._target(batch_row, projection.shape)
        decoder = None if target is None else layout.decoder.into(target)
        left = len(projection.parts)
        return _Shard(batch_row, ref, layout, projection, is_whole, left, index, decoder=decoder)

    def _layout(self, spec: ArraySpec) -> _Layout:
        layout = self._layouts.get(spec.shape)
        if layout is None:
            codec = self._codec
            chunk_spec, counts = codec._get_chunk_spec(spec), codec._get_chunks_per_shard(spec)  # noqa: SLF001
            transform = codec._get_inner_chunk_transform(spec)  # noqa: SLF001
            decoder = ChunkDecoder(transform, self._out, ())
            temporary = decoder.temporary_bytes(chunk_spec, decoded_bytes(chunk_spec))
            grid = ChunkGrid.from_sizes(spec.shape, codec.chunk_shape)
            index_bytes = codec._shard_index_size(counts)  # noqa: SLF001
            layout = _Layout(chunk_spec, grid, counts, decoder, index_bytes, temporary)
            self._layouts[spec.shape] = layout
        return layout

    def _projection(
        self, layout: _Layout, shape: tuple[int, ...], selection: SelectorTuple
    ) -> _Projection:
        """Find the inner chunks of a selection, once for all shards that have the same one."""
        key: Hashable = (shape, selection)
        try:
            known = self._projections.get(key)
        except TypeError:  # arrays of numbers
            return _project(layout, shape, selection)
        if known is None:
            if len(self._projections) == _MOST_PROJECTIONS:
                self._projections.clear()
            known = self._projections[key] = _project(layout, shape, selection)
        return known

    async def _read(self, shards: list[_Shard], runner: Runner) -> None:
        unknown = [shard for shard in shards if shard.index is None]
        await runner(self._begin, unknown, [self._begin_bytes(shard) for shard in unknown])
        for shard in shards:
            if shard.index is not None:
                self._locate(shard, shard.index)
        requests = self._requests(shards)
        sizes = [
            self._fetch_bytes(request) + self._values_bytes(request.chunks[0][2])
            for request in requests
        ]
        await runner(self._fetch, requests, sizes)

    def _begin_bytes(self, shard: _Shard) -> int:
        if not shard.is_whole:
            return 2 * shard.layout.index_bytes
        return size_of(shard.ref) + shard.layout.temporary_bytes + self._values_bytes(shard)

    def _fetch_bytes(self, request: _Request) -> int:
        return size_of(request.ref) + request.chunks[0][2].layout.temporary_bytes

    def _values_bytes(self, shard: _Shard) -> int:
        """Return what the values of a shard take that do not go into the result at once."""
        if shard.decoder is not None:
            return 0
        return prod(shard.projection.shape) * self._out.dtype.itemsize

    def _begin(self, shard: _Shard) -> int:
        """Read the index of a shard, or all of it."""
        ref, layout = shard.ref, shard.layout
        size, index_bytes = size_of(ref), layout.index_bytes
        is_first = self._codec.index_location == "start"
        window = slice(0, index_bytes) if is_first else slice(max(size - index_bytes, 0), size)
        with self._budget.holding(self._begin_bytes(shard), self._most_bytes):
            read = read_ref(self._session, ref, None if shard.is_whole else window)
            data = memoryview(run_blocking(read, "worker"))
            index = self._decoded(shard, data[window] if shard.is_whole else data)
            self._locate(shard, index)
            if shard.is_whole:
                ranges, shard.ranges = shard.ranges or [], None
                for number, start, stop in ranges:
                    self._decode(shard, number, data[start:stop])
        return 0 if isinstance(ref, InlineChunk) else len(data)

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
        located = zip(
            numbers.tolist(), offsets[numbers].tolist(), lengths[numbers].tolist(), strict=True
        )
        shard.index = None  # it may be large
        shard.ranges = [(number, start, start + length) for number, start, length in located]
        missing = np.flatnonzero(is_missing).tolist()
        if missing:
            decoder, spec = shard.decoder or self._decoder(shard), shard.layout.chunk_spec
            for number in missing:
                decoder.fill(spec, shard.projection.parts[number][1])
            if shard.values is not None:
                self._finish(shard, len(missing))

    def _requests(self, shards: Sequence[_Shard]) -> list[_Request]:
        """Find the requests that read all inner chunks; those near each other share one."""
        members = dict[Hashable, tuple[ChunkRef, list[_Chunk]]]()
        requests, total = list[_Request](), 0
        for shard in shards:
            if not shard.ranges:
                continue
            assert not isinstance(shard.ref, InlineChunk)
            _, chunks = members.setdefault(_object_of(shard.ref), (shard.ref, []))
            offset = shard.ref.offset
            for number, start, stop in shard.ranges:
                if start < stop:
                    chunks.append((offset + start, offset + stop, shard, number))
                    total += stop - start
                else:  # for the codecs to judge
                    requests.append(_Request(InlineChunk(b""), 0, [(0, 0, shard, number)]))
        window_bytes = min(max(total // _SHARES, _LEAST_WINDOW), _MOST_WINDOW)
        for ref, chunks in members.values():
            for start, stop, joined in _join(chunks, window_bytes):
                requests.append(_Request(window_of(ref, start, stop - start), start, joined))
        return requests

    def _fetch(self, request: _Request) -> int:
        """Read a range, and decode what lies in it."""
        with self._budget.holding(self._fetch_bytes(request), self._most_bytes):
            data = memoryview(run_blocking(read_ref(self._session, request.ref), "worker"))
            for start, stop, shard, number in request.chunks:
                self._decode(shard, number, data[start - request.start : stop - request.start])
        return len(data)

    def _decode(self, shard: _Shard, number: int, data: StoredBytes) -> None:
        decoder = shard.decoder or self._decoder(shard)
        chunk_selection, out_selection = shard.projection.parts[number]
        decoder.decode(data, shard.layout.chunk_spec, chunk_selection, out_selection)
        if shard.values is not None:
            self._finish(shard, 1)

    def _decoder(self, shard: _Shard) -> ChunkDecoder:
        """Return what decodes into an array of the values of a shard."""
        with self._lock:
            if shard.decoder is None:
                _, spec, _, _, _ = self._batch[shard.batch_row]
                shard.values = spec.prototype.nd_buffer.empty(
                    shape=shard.projection.shape,
                    dtype=spec.dtype.to_native_dtype(),
                    order=spec.order,
                )
                shard.decoder = shard.layout.decoder.into(shard.values)
            return shard.decoder

    def _target(self, batch_row: int, shape: tuple[int, ...]) -> NDBuffer | None:
        """Return the part of the result that a shard fills, if its values lie there in order."""
        _, spec, _, selection, _ = self._batch[batch_row]
        slices = selection if isinstance(selection, tuple) else (selection,)
        array = self._out.as_ndarray_like()
        if not isinstance(array, np.ndarray) or not all(isinstance(s, slice) for s in slices):
            return None
        values = array[(*slices, ...)]
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
            _, spec, _, out_selection, _ = self._batch[shard.batch_row]
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


def _project(layout: _Layout, shape: tuple[int, ...], selection: SelectorTuple) -> _Projection:
    indexer = get_indexer(selection, shape=shape, chunk_grid=layout.grid)
    chunks = list(indexer)
    coordinates = np.array([chunk[0] for chunk in chunks], np.int64)
    rows = np.zeros(len(chunks), np.int64)
    for column, count in enumerate(layout.counts):
        rows = rows * count + coordinates[:, column]
    parts = [(chunk[1], chunk[2]) for chunk in chunks]
    values_shape = tuple(indexer.shape)
    whole_shape = tuple(getattr(indexer, "sel_shape", values_shape))
    return _Projection(parts, rows, values_shape, whole_shape)


def _join(chunks: list[_Chunk], window_bytes: int) -> Iterator[tuple[int, int, list[_Chunk]]]:
    """Find ranges of an object, none much longer than the window or a chunk; see `merge_reads`."""
    chunks.sort(key=itemgetter(0))
    joined = list[_Chunk]()
    first = last = 0
    for chunk in chunks:
        start, stop = chunk[0], chunk[1]
        is_near = start <= last + _GAP_BYTES and stop - first <= window_bytes
        if joined and not is_near and stop > last:
            yield first, last, joined
            joined = []
        if not joined:
            first, last = start, stop
        joined.append(chunk)
        last = max(last, stop)
    if joined:
        yield first, last, joined


def _is_fixed(ref: ChunkRef) -> bool:
    """Return whether a reference stands for the same bytes at all times, which take a request."""
    if isinstance(ref, InlineChunk):
        return False
    return isinstance(ref, NativeChunk) or bool(ref.etag or ref.last_modified)


def _identity(codecs: tuple[Codec, ...]) -> Hashable:
    try:
        hash(codecs)
    except TypeError:  # some have a dict of their settings
        return json.dumps([codec.to_dict() for codec in codecs], default=str)
    return codecs


def _object_of(ref: ChunkRef) -> Hashable:
    match ref:
        case NativeChunk():
            return ref.id
        case InlineChunk():
            return id(ref)
        case _:
            return (ref.location, ref.etag, ref.last_modified)
