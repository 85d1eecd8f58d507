"""A codec pipeline for Zarr that sees a whole selection at once.

Zarr asks a store for ten chunks at a time and hands each of them through its event loop. From a
store that is far away, most of the time is spent waiting. This pipeline gets all chunks of a read
or of a write. It finds their references first, joins those that lie side by side in an object,
keeps many requests under way, and decodes on threads, straight into the result.

    icefloe.use_selection_pipeline()

Chunks on this machine, shards, stores of others and codecs that need an event loop take the way of
Zarr's own `FusedCodecPipeline`. Two settings of Zarr limit the rest: see `MOST_REQUESTS` and
`MOST_BYTES`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from math import prod
from threading import Lock
from typing import Final, override

from zarr.abc.codec import GetResult
from zarr.abc.store import ByteGetter, ByteSetter
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import Buffer, NDBuffer
from zarr.core.chunk_utils import (
    ChunkTransform,
    decode_and_scatter_chunk,
    merge_and_encode_chunk,
)
from zarr.core.codec_pipeline import BatchedCodecPipeline, FusedCodecPipeline
from zarr.core.config import config
from zarr.core.indexing import SelectorTuple
from zarr.registry import register_pipeline
from zarr.storage import StorePath

from icefloe.effects import compute, map_concurrently
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.forks import renew_lock_in_children
from icefloe.format.chunk_table import ChunkRef
from icefloe.format.nodes import ArrayNode
from icefloe.records import Record
from icefloe.transactions.chunks import size_of
from icefloe.transactions.selections import find_refs, group_refs, read_group
from icefloe.transactions.session import SessionState
from icefloe.zarr_store.keys import ChunkKey, parse_key
from icefloe.zarr_store.store import far_session

type ReadItem = tuple[ByteGetter, ArraySpec, SelectorTuple, SelectorTuple, bool]
type WriteItem = tuple[ByteSetter, ArraySpec, SelectorTuple, SelectorTuple, bool]

MOST_REQUESTS: Final = "codec_pipeline.most_requests"
"""Zarr's setting for the number of requests under way; `ZARR_CODEC_PIPELINE__MOST_REQUESTS`."""
MOST_BYTES: Final = "codec_pipeline.most_bytes"
"""Zarr's setting for the bytes of chunks, stored and decoded, that wait in memory."""
_DEFAULT_REQUESTS: Final = 128
_DEFAULT_BYTES: Final = 256 << 20
_INLINE_BYTES: Final = 64 << 10
"""A smaller chunk is decoded sooner than a thread is woken up."""


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
        if session is None or transform is None or self.supports_partial_decode:
            return await super().read(batch, out, drop_axes)
        refs = await _find_refs(session, [item[0] for item in batch])
        reading = _Reading(session, transform, batch, refs, out, drop_axes)
        return await reading.run()

    @override
    async def write(
        self,
        batch_info: Iterable[WriteItem],
        value: NDBuffer,
        drop_axes: tuple[int, ...] = (),
    ) -> None:
        """Write a value to the chunks of a selection."""
        batch = list(batch_info)
        session, transform = _far_session(batch), self.sync_transform
        if session is None or transform is None or self.supports_partial_encode:
            await super().write(batch, value, drop_axes)
            return

        async def write_chunk(item: WriteItem) -> None:
            setter, spec, chunk_selection, out_selection, is_complete = item
            existing: Buffer | None = None
            if not is_complete:
                existing = await setter.get(prototype=spec.prototype)
            encoded = await _computed(
                _decoded_bytes(spec),
                partial(
                    merge_and_encode_chunk,
                    existing,
                    value,
                    chunk_spec=spec,
                    chunk_selection=chunk_selection,
                    out_selection=out_selection,
                    is_complete=is_complete,
                    drop_axes=drop_axes,
                    decode=transform.decode_chunk,
                    encode=transform.encode_chunk,
                ),
            )
            if encoded is None:
                await setter.delete()
            else:
                await setter.set(encoded)

        largest = max((2 * _decoded_bytes(item[1]) for item in batch), default=0)
        await map_concurrently(write_chunk, batch, limit=_limit(largest))


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


class _Openings:
    """Makes the pipeline the default while datasets are opened, by any number of threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        renew_lock_in_children(self)
        self._count = 0

    @contextmanager
    def run(self) -> Iterator[None]:
        # Users who chose a pipeline keep it.
        with self._lock:
            is_mine = self._count > 0 or config.get(_CHOICE) == _ZARRS_DEFAULT
            if is_mine:
                self._count += 1
                config.set({_CHOICE: _PATH})
        try:
            yield
        finally:
            if is_mine:
                with self._lock:
                    self._count -= 1
                    if self._count == 0 and config.get(_CHOICE) == _PATH:
                        config.set({_CHOICE: _ZARRS_DEFAULT})


with_selections: Final = _Openings().run
"""A context in which arrays are opened with the pipeline, unless the user chose another one."""


class _Reading(Record):
    """A read of many chunks; `batch` and `refs` have the same order."""

    session: SessionState
    transform: ChunkTransform
    batch: list[ReadItem]
    refs: Sequence[ChunkRef | None]
    out: NDBuffer
    drop_axes: tuple[int, ...]

    async def run(self) -> tuple[GetResult, ...]:
        results: list[GetResult] = [GetResult(status="missing")] * len(self.batch)
        for row, ref in enumerate(self.refs):
            if ref is None:
                results[row] = self._scatter(row, None)
        groups = group_refs(self.refs)

        async def read_rows(rows: tuple[int, ...]) -> None:
            refs = [ref for row in rows if (ref := self.refs[row]) is not None]
            stored = await read_group(self.session, refs)
            for row, data in zip(rows, stored, strict=True):
                buffer = self.batch[row][1].prototype.buffer.from_bytes(data)
                cost = _decoded_bytes(self.batch[row][1])
                results[row] = await _computed(cost, partial(self._scatter, row, buffer))

        largest = max((self._group_bytes(rows) for rows in groups), default=0)
        await map_concurrently(read_rows, groups, limit=_limit(largest))
        return tuple(results)

    def _group_bytes(self, rows: tuple[int, ...]) -> int:
        stored = sum(size_of(ref) for row in rows if (ref := self.refs[row]) is not None)
        return stored + _decoded_bytes(self.batch[rows[0]][1])

    def _scatter(self, row: int, data: Buffer | None) -> GetResult:
        _, spec, chunk_selection, out_selection, _ = self.batch[row]
        return decode_and_scatter_chunk(
            data,
            self.out,
            chunk_spec=spec,
            chunk_selection=chunk_selection,
            out_selection=out_selection,
            drop_axes=self.drop_axes,
            decode=self.transform.decode_chunk,
        )


def _far_session(batch: Sequence[ReadItem] | Sequence[WriteItem]) -> SessionState | None:
    """Return the session of all chunks, if they have one and are read over a network."""
    if not batch or not isinstance(first := batch[0][0], StorePath):
        return None
    store = first.store
    is_same = all(isinstance(item[0], StorePath) and item[0].store is store for item in batch)
    return far_session(store) if is_same else None


async def _find_refs(
    session: SessionState, getters: Sequence[ByteGetter]
) -> Sequence[ChunkRef | None]:
    """Find the references of chunks, which all belong to one array."""
    indices: list[tuple[int, ...]] = []
    path = None
    for getter in getters:
        key = parse_key(getter.path) if isinstance(getter, StorePath) else None
        if not isinstance(key, ChunkKey) or key.path != (path or key.path):
            raise InvalidInputError("a selection has chunks of one array only")
        path = key.path
        indices.append(key.coordinates)
    node = None if path is None else session.tree.find(path)
    if node is None:
        return [None] * len(indices)
    if not isinstance(node, ArrayNode):
        problem = f"{path} is a group, and only arrays have chunks"
        raise InvalidInputError(problem, ErrorKind.NOT_AN_ARRAY, path=path)
    return await find_refs(session, node, indices)


async def _computed[T](size_bytes: int, work: Callable[[], T]) -> T:
    """Decode or encode a chunk: small ones here, larger ones on a thread."""
    return work() if size_bytes <= _INLINE_BYTES else await compute(work)


def _decoded_bytes(spec: ArraySpec) -> int:
    # Values without a fixed size are pointers to begin with.
    return prod(spec.shape) * getattr(spec.dtype, "item_size", 8)


def _limit(largest_bytes: int) -> int:
    """Return how many chunks, the largest of which has this many bytes, may be under way."""
    requests = _setting(MOST_REQUESTS, _DEFAULT_REQUESTS)
    most_bytes = _setting(MOST_BYTES, _DEFAULT_BYTES)
    return max(1, min(requests, most_bytes // max(largest_bytes, 1)))


def _setting(name: str, default: int) -> int:
    value = config.get(name, default)
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = 0
    if number < 1:
        problem = f"zarr's setting {name} must be a positive number, not {value!r}"
        raise InvalidInputError(problem, ErrorKind.INVALID_CONFIG)
    return number
