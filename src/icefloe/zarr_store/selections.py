"""A codec pipeline for Zarr that sees a whole selection at once.

Zarr asks a store for ten chunks at a time and hands each of them through its event loop. From a
store that is far away, most of the time is spent waiting. This pipeline gets all chunks of a read
or of a write. It finds their references in columns, joins those that lie side by side in an
object, and keeps as many requests under way as the store bears, on threads that decode what they
read straight into the result.

    icefloe.use_selection_pipeline()

So it does with shards: all their indices at once, then the chunks that are selected. Chunks on
this machine are read with few threads. Writes to this machine, stores of others and codecs that
need an event loop take the way of Zarr's own `FusedCodecPipeline`. Two settings of Zarr limit the
rest: see `MOST_REQUESTS` and `MOST_BYTES`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Final, cast, override

import numpy as np
from zarr.abc.codec import GetResult
from zarr.abc.store import ByteGetter, ByteSetter, Store
from zarr.codecs import ShardingCodec
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import Buffer, NDBuffer
from zarr.core.chunk_utils import ChunkTransform, merge_and_encode_chunk
from zarr.core.codec_pipeline import BatchedCodecPipeline, FusedCodecPipeline
from zarr.core.config import config
from zarr.core.indexing import SelectorTuple
from zarr.registry import register_pipeline
from zarr.storage import StorePath

from icefloe.effects import run_blocking
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.chunk_table import Coordinates, InlineChunk
from icefloe.format.ids import NodeId
from icefloe.format.nodes import ArrayNode
from icefloe.pacing import begin_work, memory_budget, work_through
from icefloe.storage.port import Buffer as StoredBytes
from icefloe.transactions.chunks import read_ref
from icefloe.transactions.reading_ahead import (
    Promise,
    ReadAhead,
    Wanted,
    every_chunk,
    is_coordinate,
    is_small,
    read_ahead,
)
from icefloe.transactions.selections import (
    ChunkRequest,
    find_refs,
    part_of,
    plan_requests,
    read_request,
)
from icefloe.transactions.session import SessionState
from icefloe.zarr_store.decoding import ChunkDecoder
from icefloe.zarr_store.keys import ChunkKey, parse_key
from icefloe.zarr_store.nearby import SMALL_BYTES, ReadItem, decoded_bytes, find_array, read_nearby
from icefloe.zarr_store.openings import SettingWhileOpening
from icefloe.zarr_store.shards import NewShard, ShardedRead, far_runner, near_runner
from icefloe.zarr_store.store import IcechunkStore, blocking_view, far_session, near_session

type WriteItem = tuple[ByteSetter, ArraySpec, SelectorTuple, SelectorTuple, bool]

MOST_REQUESTS: Final = "codec_pipeline.most_requests"
"""Zarr's setting for the number of requests under way; `ZARR_CODEC_PIPELINE__MOST_REQUESTS`."""
MOST_BYTES: Final = "codec_pipeline.most_bytes"
"""Zarr's setting for the bytes of chunks, stored and decoded, that wait in memory."""
AHEAD_BYTES: Final = "codec_pipeline.ahead_bytes"
"""Zarr's setting for the bytes that are fetched before they are read; 0 turns that off."""
_DEFAULT_REQUESTS: Final = 128
_DEFAULT_BYTES: Final = 256 << 20
_DEFAULT_AHEAD: Final = 64 << 20
_MOST_ARRAYS: Final = 512
"""So many arrays of a group are looked at for coordinates, when it is opened."""
_SINCE: Final = b" since "
"""In the units of times."""
_TIME_DIMENSIONS: Final = 2
"""Times, and their bounds."""


class SelectionPipeline(FusedCodecPipeline):
    """Reads and writes all chunks of a selection as one plan.

    >>> import icefloe, zarr
    >>> repository = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> store = repository.writable_session("main").store
    >>> with icefloe.use_selection_pipeline():
    ...     array = zarr.create_array(store, name="a", shape=4, chunks=2, dtype="i4")
    ...     array[:] = [1, 2, 3, 4]
    ...     array[1:3].tolist()
    [2, 3]
    """

    @override
    async def read(
        self,
        batch_info: Iterable[ReadItem],
        out: NDBuffer,
        drop_axes: tuple[int, ...] = (),
    ) -> tuple[GetResult, ...]:
        """Read the chunks of a selection into the result."""
        batch = list(batch_info)
        session, transform = _far_session(batch), self.sync_transform
        if session is None or transform is None or not self._knows_parts:
            return await super().read(batch, out, drop_axes)
        return await self._read_far(session, transform, batch, out, drop_axes)

    @override
    def read_sync(
        self,
        batch_info: Iterable[ReadItem],
        out: NDBuffer,
        drop_axes: tuple[int, ...] = (),
        max_workers: int = 1,
    ) -> tuple[GetResult, ...]:
        """Read the chunks of a selection, on the threads of a caller that may block."""
        batch = list(batch_info)
        session, transform = _session_of(batch, near_session), self.sync_transform
        if session is None or transform is None or not self._knows_parts:
            return super().read_sync(batch, out, drop_axes, max_workers)
        if not session.context.is_near:  # it packs: it writes to memory, and reads from afar
            return run_blocking(self._read_far(session, transform, batch, out, drop_axes))
        path, coordinates = _chunks_of([item[0] for item in batch])
        if (codec := self._sharding) is not None:
            reading = ShardedRead(session, codec, batch, out, drop_axes, most_bytes=_most_bytes())
            return run_blocking(reading.run(path, coordinates, near_runner(max_workers)))
        decoder = ChunkDecoder(transform, out, drop_axes)
        return run_blocking(
            read_nearby(session, path, coordinates, batch, decoder, workers=max_workers)
        )

    async def _read_far(
        self,
        session: SessionState,
        transform: ChunkTransform,
        batch: list[ReadItem],
        out: NDBuffer,
        drop_axes: tuple[int, ...],
    ) -> tuple[GetResult, ...]:
        if (codec := self._sharding) is None:
            return await _Reading(session, transform, batch, out, drop_axes).run()
        most, most_bytes = _setting(MOST_REQUESTS, _DEFAULT_REQUESTS), _most_bytes()
        runner = far_runner(session, most_requests=most, most_bytes=most_bytes)
        reading = ShardedRead(session, codec, batch, out, drop_axes, most_bytes=most_bytes)
        return await reading.run(*_chunks_of([item[0] for item in batch]), runner)

    @override
    async def write(
        self,
        batch_info: Iterable[WriteItem],
        value: NDBuffer,
        drop_axes: tuple[int, ...] = (),
    ) -> None:
        """Write a value to the chunks of a selection."""
        batch = list(batch_info)
        session, transform = _writing_session(batch), self.sync_transform
        if session is None or transform is None:
            await super().write(batch, value, drop_axes)
            return
        if self.supports_partial_encode:
            codec = self._sharding
            if codec is None:
                await super().write(batch, value, drop_axes)
                return
            await self._write_shards(session, codec, batch, value)
            return
        store = _store_of(batch)
        budget, most_bytes = memory_budget(), _setting(MOST_BYTES, _DEFAULT_BYTES)

        def write_chunk(item: WriteItem) -> int:
            setter, spec, chunk_selection, out_selection, is_complete = item
            assert isinstance(setter, StorePath)
            size_bytes = decoded_bytes(spec)
            with budget.holding(2 * size_bytes, most_bytes):
                existing: Buffer | None = None
                if not is_complete:
                    existing = store.get_sync(setter.path, prototype=spec.prototype)
                encoded = merge_and_encode_chunk(
                    existing,
                    value,
                    chunk_spec=spec,
                    chunk_selection=chunk_selection,
                    out_selection=out_selection,
                    is_complete=is_complete,
                    drop_axes=drop_axes,
                    decode=transform.decode_chunk,
                    encode=transform.encode_chunk,
                )
                if encoded is None:
                    store.delete_sync(setter.path)
                else:
                    store.set_sync(setter.path, encoded)
            return size_bytes

        most = _setting(MOST_REQUESTS, _DEFAULT_REQUESTS)
        pace = session.context.assets.writing_pace
        at_once = most_bytes // max(2 * decoded_bytes(batch[0][1]), 1)
        await work_through(write_chunk, batch, pace=pace, most=most, at_once=at_once)

    @property
    def _knows_parts(self) -> bool:
        """Whether no codec of others decodes parts of chunks."""
        return not self.supports_partial_decode or self._sharding is not None

    @property
    def _sharding(self) -> ShardingCodec | None:
        """The codec of shards, if it is Zarr's own: others may store anything."""
        codec = self.array_bytes_codec
        is_plain = type(codec) is ShardingCodec and self.supports_partial_decode
        return cast("ShardingCodec", codec) if is_plain else None

    async def _write_shards(
        self, session: SessionState, codec: ShardingCodec, batch: list[WriteItem], value: NDBuffer
    ) -> None:
        """Write shards at the same time; those that are replaced whole are not read before."""
        store = blocking_view(_store_of(batch))
        budget, most_bytes = memory_budget(), _most_bytes()
        is_scalar = value.shape == ()

        def write_shard(item: WriteItem) -> int:
            setter, spec, chunk_selection, out_selection, is_complete = item
            assert isinstance(setter, StorePath)
            size_bytes = decoded_bytes(spec)
            # Encoded inner chunks, and the shard that they make; before these the old shard.
            with budget.holding((2 if is_complete else 3) * size_bytes, most_bytes):
                values = value if is_scalar else value[out_selection]
                kind = NewShard if is_complete else StorePath
                path = kind(store, setter.path)
                codec._encode_partial_sync(path, values, chunk_selection, spec)  # noqa: SLF001
            return size_bytes

        most = _setting(MOST_REQUESTS, _DEFAULT_REQUESTS)
        at_once = most_bytes // max(3 * decoded_bytes(batch[0][1]), 1)
        pace = session.context.assets.writing_pace
        await work_through(write_shard, batch, pace=pace, most=most, at_once=at_once)


register_pipeline(SelectionPipeline)
_PATH: Final = f"{SelectionPipeline.__module__}.{SelectionPipeline.__qualname__}"
_CHOICE: Final = "codec_pipeline.path"
_ZARRS_DEFAULT: Final = f"{BatchedCodecPipeline.__module__}.{BatchedCodecPipeline.__qualname__}"


def use_selection_pipeline() -> AbstractContextManager[object]:
    """Make Zarr read and write whole selections at once, in arrays that are opened from now on.

    The setting lasts until another one is made, or until the end of a `with` statement. It matters
    for repositories that are far away: others, and stores of other libraries, work as before.

    >>> import icefloe, zarr
    >>> with icefloe.use_selection_pipeline():
    ...     array = zarr.zeros(4, chunks=2)
    >>> array[:].tolist()
    [0.0, 0.0, 0.0, 0.0]
    """
    context: AbstractContextManager[object] = config.set({_CHOICE: _PATH})
    return context


with_selections: Final = SettingWhileOpening(_CHOICE, _PATH, _ZARRS_DEFAULT).run
"""A context in which arrays are opened with the pipeline, unless the user chose another one."""


class _Reading:
    """A read of many chunks of one array."""

    def __init__(
        self,
        session: SessionState,
        transform: ChunkTransform,
        batch: list[ReadItem],
        out: NDBuffer,
        drop_axes: tuple[int, ...],
    ) -> None:
        self._session, self._batch = session, batch
        self._decoder = ChunkDecoder(transform, out, drop_axes)
        self._results: list[GetResult | None] = [None] * len(batch)
        self._most_bytes = _setting(MOST_BYTES, _DEFAULT_BYTES)
        self._budget = memory_budget()
        self._temporary: dict[int, int] = {}
        """By identity of specs, as most chunks of a read share one."""

    async def run(self) -> tuple[GetResult, ...]:
        session = self._session
        path, coordinates = _chunks_of([item[0] for item in self._batch])
        node = find_array(session, path)
        if node is not None:
            await self._read_all(node, coordinates)
        return tuple(
            self._decoder.fill(item[1], item[3]) if result is None else result
            for item, result in zip(self._batch, self._results, strict=True)
        )

    async def _read_all(self, node: ArrayNode, coordinates: Coordinates) -> None:
        session = self._session
        most = _setting(MOST_REQUESTS, _DEFAULT_REQUESTS)
        ahead_bytes = _setting(AHEAD_BYTES, _DEFAULT_AHEAD, least=0)
        ahead = read_ahead(session) if ahead_bytes else None
        wanted = [] if ahead is None else ahead.follow(session, node, coordinates)
        refs = await find_refs(session, node, coordinates)
        work: list[Promise | ChunkRequest] = []
        if ahead is not None:
            await ahead.planned()
            promises, refs = ahead.claim(node.id, refs)
            work += promises
        # A pack that is still in memory has no ranges.
        for found in refs:
            work += plan_requests(found, joins=session.packer is None)
        if self._is_at_hand(work):
            for item in work:
                self._decode_at_once(item)
            work = []
        keeping = ahead if ahead is not None and ahead.keeps(node.id) else None

        def read(item: Promise | ChunkRequest) -> int:
            if isinstance(item, Promise):
                return self._take(item)
            return self._read(item, keeping, node.id, ahead_bytes)

        pace = session.context.assets.reading_pace
        reading = begin_work(read, work, pace=pace, most=most, at_once=self._at_once(work))
        try:
            if ahead is not None:
                await ahead.request(session, wanted, ahead_bytes)
        finally:
            await reading.wait()

    def _is_at_hand(self, work: Sequence[Promise | ChunkRequest]) -> bool:
        """Return whether all chunks are here, and so small that a thread would be no help."""
        values_bytes = len(work) * decoded_bytes(self._batch[0][1])
        if values_bytes > SMALL_BYTES or sum(item.size_bytes for item in work) > SMALL_BYTES:
            return False
        return all(
            item.is_kept if isinstance(item, Promise) else isinstance(item.ref, InlineChunk)
            for item in work
        )

    def _decode_at_once(self, item: Promise | ChunkRequest) -> None:
        if isinstance(item, Promise):
            data = item.wait()
            assert data is not None
            self._decode(item.place, data)
        else:
            assert isinstance(item.ref, InlineChunk)
            self._decode(item.places[0], item.ref.data)

    def _at_once(self, work: Sequence[Promise | ChunkRequest]) -> int:
        """Return how many chunks the memory has room for, by the mean of all."""
        if not work:
            return 1
        mean = sum(item.size_bytes for item in work) // len(work)
        return self._most_bytes // max(mean + self._temporary_bytes(0), 1)

    def _temporary_bytes(self, batch_row: int) -> int:
        """Return how many bytes a chunk takes while it is decoded."""
        spec = self._batch[batch_row][1]
        known = self._temporary.get(id(spec))
        if known is None:
            known = self._decoder.temporary_bytes(spec, decoded_bytes(spec))
            self._temporary[id(spec)] = known
        return known

    def _take(self, promise: Promise) -> int:
        """Decode a chunk that was requested before."""
        with self._budget.holding(self._temporary_bytes(promise.place), self._most_bytes):
            data = promise.wait()
            if data is None:
                data = run_blocking(read_ref(self._session, promise.ref))
            self._decode(promise.place, data)
        return 0  # others wait for the network

    def _read(
        self, request: ChunkRequest, keeping: ReadAhead | None, node: NodeId, most_kept: int
    ) -> int:
        size_bytes = request.size_bytes
        temporary = self._temporary_bytes(request.places[0])
        with self._budget.holding(size_bytes + temporary, self._most_bytes):
            stored = run_blocking(read_request(self._session, request))
            for number, (place, data) in enumerate(zip(request.places, stored, strict=True)):
                self._decode(place, data)
                if keeping is not None:
                    keeping.keep(node, part_of(request, number), data, most_kept)
        return 0 if isinstance(request.ref, InlineChunk) else size_bytes

    def _decode(self, row: int, data: StoredBytes) -> None:
        _, spec, chunk_selection, out_selection, _ = self._batch[row]
        self._results[row] = self._decoder.decode(data, spec, chunk_selection, out_selection)


@contextmanager
def requesting_coordinates(
    store: IcechunkStore, group: str, *, is_deep: bool = False
) -> Iterator[None]:
    """Request the coordinates that xarray reads when it opens a group, all at the same time.

    Meanwhile xarray looks at the variables. These are the small arrays along their own dimension,
    and times, from which it learns how to decode them. The manifests of the other arrays follow, so
    that the first read need not wait for them. With `is_deep`, those of the groups below, too.
    """
    session = far_session(store)
    most_bytes = _setting(AHEAD_BYTES, _DEFAULT_AHEAD, least=0)
    if session is None or not most_bytes or config.get(_CHOICE) != _PATH:
        yield
        return
    path = f"/{group.strip('/')}"
    prefix = path if path.endswith("/") else f"{path}/"
    wanted, others = list[Wanted](), list[ArrayNode]()
    for below in session.tree.paths_below(path):
        if not is_deep and "/" in below[len(prefix) :]:
            continue
        node = session.tree.find(below)
        if not isinstance(node, ArrayNode):
            continue
        if _is_read_on_opening(node):
            wanted.append((node, every_chunk(node)))
        else:
            others.append(node)
        if len(wanted) + len(others) == _MOST_ARRAYS:
            break
    ahead = read_ahead(session)
    manifest = session.context.user_config.manifest
    if manifest is not None and manifest.preload is not None:
        others = []  # the user says which manifests are loaded before they are needed
    if wanted or others:
        ahead.request_soon(session, wanted, most_bytes, others)
    try:
        yield
    finally:
        run_blocking(ahead.planned())


def _is_read_on_opening(node: ArrayNode) -> bool:
    if not is_small(node):
        return False
    is_time = _SINCE in node.user_data and len(node.array.num_chunks) <= _TIME_DIMENSIONS
    return is_time or is_coordinate(node)


def _far_session(batch: Sequence[ReadItem] | Sequence[WriteItem]) -> SessionState | None:
    """Return the session of all chunks, if they have one and are read over a network."""
    return _session_of(batch, far_session)


def _writing_session(batch: Sequence[WriteItem]) -> SessionState | None:
    """Return the session of chunks that are written over a network, or read there before."""
    session = _far_session(batch)
    if session is not None or all(is_complete for *_, is_complete in batch):
        return session
    session = _session_of(batch, near_session)
    return None if session is None or session.context.is_near else session


def _session_of(
    batch: Sequence[ReadItem] | Sequence[WriteItem], choose: Callable[[Store], SessionState | None]
) -> SessionState | None:
    if not batch or not isinstance(first := batch[0][0], StorePath):
        return None
    store = first.store
    is_same = all(isinstance(item[0], StorePath) and item[0].store is store for item in batch)
    return choose(store) if is_same else None


def _chunks_of(getters: Sequence[ByteGetter]) -> tuple[str, Coordinates]:
    """Return the path of an array and the coordinates of its chunks, by their keys."""
    keys = [getter.path for getter in getters if isinstance(getter, StorePath)]
    first = parse_key(keys[0])
    assert isinstance(first, ChunkKey)
    dimensions = len(first.coordinates)
    prefix = keys[0][: len(keys[0]) - len("/".join(map(str, first.coordinates)))]
    numbers = "/".join(key[len(prefix) :] for key in keys).split("/") if dimensions else []
    is_alike = all(key.startswith(prefix) for key in keys)
    if not is_alike or len(numbers) != dimensions * len(keys):
        raise InvalidInputError("a selection has chunks of one array only")
    coordinates = np.array(numbers, np.str_).astype(np.uint32)
    return first.path, coordinates.reshape(len(keys), dimensions)


def _store_of(batch: Sequence[ReadItem] | Sequence[WriteItem]) -> IcechunkStore:
    first = batch[0][0]
    assert isinstance(first, StorePath)
    return cast("IcechunkStore", first.store)


def _most_bytes() -> int:
    return _setting(MOST_BYTES, _DEFAULT_BYTES)


def _setting(name: str, default: int, *, least: int = 1) -> int:
    value = config.get(name, default)
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = -1
    if number < least:
        kind = "a positive number" if least else "a number, 0 or more"
        problem = f"zarr's setting {name} must be {kind}, not {value!r}"
        raise InvalidInputError(problem, ErrorKind.INVALID_CONFIG)
    return number
