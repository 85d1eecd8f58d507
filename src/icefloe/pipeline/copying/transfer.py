"""The work of a Spark task on regions: read values of the source, write objects of the repository.

Objects are named, and their names noted, before the first of them is written. What a task that
failed left behind can be found that way, and removed. The two Zarr stores between which a task
copies can be used from threads that block, which Zarr does one object at a time: so the memory of
a task is known beforehand.
"""

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, Protocol, override

import numpy as np
import zarr
from zarr.abc.store import (
    ByteRequest,
    OffsetByteRequest,
    RangeByteRequest,
    Store,
    SuffixByteRequest,
)
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype

from icefloe.effects import SingleFlight, run_blocking
from icefloe.errors import ErrorKind, ObjectNotFoundError, ReadOnlyError
from icefloe.format.columns import BytesColumn
from icefloe.format.ids import ChunkId
from icefloe.format.layout import chunk_key
from icefloe.pacing import MemoryBudget
from icefloe.pipeline.copying.layouts import Regions
from icefloe.pipeline.files.references import References
from icefloe.pipeline.writing.building import CellBox, Notes
from icefloe.records import Record
from icefloe.repo.context import RepoContext
from icefloe.storage import Backend
from icefloe.storage.port import Buffer as StoredBytes
from icefloe.storage.port import ByteRange
from icefloe.transactions.packing import ChunkPacker, PackingOptions
from icefloe.zarr_store.selections import MOST_BYTES, MOST_REQUESTS, use_selection_pipeline


class _PlainStore(Store):
    """The common base of both stores: values by key, no listing."""

    @property
    @override
    def supports_writes(self) -> bool:
        """Return whether values can be set."""
        return not self.read_only

    @property
    @override
    def supports_deletes(self) -> bool:
        """Return whether values can be deleted."""
        return not self.read_only

    @property
    @override
    def supports_listing(self) -> bool:
        """Never: a copy knows its keys."""
        return False

    @override
    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = None  # type: ignore[assignment] # what it holds changes

    def get_sync(
        self,
        key: str,
        *,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        """Read as `get` does, on this thread."""
        return run_blocking(self.get(key, prototype or default_buffer_prototype(), byte_range))

    def set_sync(self, key: str, value: Buffer) -> None:
        """Write as `set` does, on this thread."""
        run_blocking(self.set(key, value))

    def delete_sync(self, key: str) -> None:
        """Delete as `delete` does, on this thread."""
        run_blocking(self.delete(key))

    @override
    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        """Read several values, one after the other."""
        return [await self.get(key, prototype, byte_range) for key, byte_range in key_ranges]

    @override
    async def exists(self, key: str) -> bool:
        """Return whether there is a value."""
        return await self.get(key, default_buffer_prototype()) is not None

    @override
    def list(self) -> AsyncIterator[str]:
        """Name nothing."""
        return _nothing()

    @override
    def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """Name nothing."""
        return _nothing()

    @override
    def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Name nothing."""
        return _nothing()


async def _nothing() -> AsyncIterator[str]:
    keys: tuple[str, ...] = ()
    for key in keys:
        yield key


class ReadingStore(_PlainStore):
    """A Zarr hierarchy that somebody else wrote, on any storage."""

    def __init__(self, backend: Backend, prefix: str) -> None:
        super().__init__(read_only=True)
        self._backend, self._prefix = backend, f"{prefix.strip('/')}/" if prefix.strip("/") else ""

    @override
    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Read a value, or a part of it."""
        try:
            data = await self._read(self._prefix + key, byte_range)
        except ObjectNotFoundError:
            return None
        return prototype.buffer.from_bytes(data)

    async def _read(self, key: str, byte_range: ByteRequest | None) -> StoredBytes:
        match byte_range:
            case None:
                return (await self._backend.get(key)).data
            case RangeByteRequest(start, end):
                window: ByteRange = (start, end)
            case OffsetByteRequest(offset):
                window = (offset, await self._size(key))
            case SuffixByteRequest(suffix):
                size = await self._size(key)
                window = (max(size - suffix, 0), size)
        return (await self._backend.get(key, window)).data

    async def _size(self, key: str) -> int:
        return (await self._backend.head(key)).info.size_bytes

    @override
    async def set(self, key: str, value: Buffer) -> None:
        """Refuse."""
        raise _read_only()

    @override
    async def delete(self, key: str) -> None:
        """Refuse."""
        raise _read_only()


def _read_only() -> ReadOnlyError:
    return ReadOnlyError("what is copied is only read", ErrorKind.READ_ONLY_STORE)


class Taking(Protocol):
    """Takes the encoded objects of an array."""

    async def take(self, cell: tuple[int, ...], data: Any, /) -> None:
        """Store one, whose place in the grid is given."""
        ...


class CapturingStore(_PlainStore):
    """One array, whose encoded objects go where a taker puts them.

    There is nothing to be read but the metadata: regions are made of whole objects. What Zarr
    deletes holds nothing but the fill value, and was never there.
    """

    def __init__(self, document: bytes, taker: Taking) -> None:
        super().__init__(read_only=False)
        self._document, self._taker = document, taker

    @override
    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Read the metadata."""
        return prototype.buffer.from_bytes(self._document) if key == "zarr.json" else None

    @override
    async def set(self, key: str, value: Buffer) -> None:
        """Hand an object on."""
        cell = tuple(int(part) for part in key.split("/")[1:])
        await self._taker.take(cell, value.as_buffer_like())

    @override
    async def delete(self, key: str) -> None:
        """Leave out what holds nothing."""


_OBJECTS_PER_NOTE: Final = 512
_BATCHES_AT_ONCE: Final = 16
"""Where requests wait for a network, at most this many batches of regions are copied together."""

type NewNote = Callable[[], str]
"""Gives the key of a new note."""


class ArrayCopy(Record):
    """An array to copy, as workers know it."""

    source: str
    """Path below the group that is copied."""
    document: bytes
    """The `zarr.json` of the copy."""
    dimensions: int


class CopyPlan(Record):
    """The parameters of all workers: plain values without secrets."""

    arrays: tuple[ArrayCopy, ...]
    regions: Regions
    packing: PackingOptions | None = None
    memory_bytes: int = 0
    """For a task: regions that wait for a network are copied together as far as they fit."""
    over_others: bool = False
    """Whether objects may exist in the place of those that are copied: the copies replace them."""


class Copied(Record, eq=False):
    """The result of copying some regions of an array."""

    array: int
    references: References
    """Of the objects that were written; their locations are the ids of chunk objects."""
    notes: tuple[str, ...]
    """Keys of the notes that name them."""
    boxes: tuple[CellBox, ...] = ()
    """Of the objects that were copied, also of those that hold nothing."""


@contextmanager
def copying(in_flight: int, in_flight_bytes: int) -> Iterator[None]:
    """Have Zarr work in the way that plans count on; arrays must be opened within.

    Of repositories far away, the pipeline reads whole selections; elsewhere it takes one object
    after the other from storage to values, or back. Both keep as many under way as told.
    """
    with (
        use_selection_pipeline(),
        zarr.config.set(
            {
                "codec_pipeline.max_workers": in_flight,
                MOST_REQUESTS: in_flight,
                MOST_BYTES: max(in_flight_bytes, 1),
                "async.concurrency": in_flight,
                "array.write_empty_chunks": False,
            }
        ),
    ):
        yield


def copy_regions(
    plan: CopyPlan,
    numbers: Iterable[int],
    open_source: "Callable[[str], zarr.Array[Any]]",
    context: RepoContext,
    new_note: NewNote,
) -> Iterator[Copied]:
    """Copy regions; gives references once all that they name is stored."""
    copier = _Copier(plan, open_source, context, new_note)
    for in_flight, batches in groupby(_batches(plan, numbers), key=lambda batch: batch.in_flight):
        plans = [regions for regions in plan.regions.plans if regions.in_flight == in_flight]
        with copying(in_flight, max(regions.in_flight_bytes for regions in plans)):
            if in_flight == 1:
                yield from map(copier.copy, batches)
                continue
            # All of them share the objects in flight.
            with ThreadPoolExecutor(_BATCHES_AT_ONCE) as pool:
                try:
                    yield from pool.map(copier.copy, batches)
                finally:
                    pool.shutdown(cancel_futures=True)


class _Batch(Record):
    """Regions of a slab whose objects go into one note."""

    slab: int
    regions: tuple[int, ...]
    in_flight: int


class _Copier:
    """Copies batches, from threads, within the memory of a task."""

    def __init__(
        self,
        plan: CopyPlan,
        open_source: "Callable[[str], zarr.Array[Any]]",
        context: RepoContext,
        new_note: NewNote,
    ) -> None:
        self._plan, self._open_source = plan, open_source
        self._context, self._new_note = context, new_note
        self._budget = MemoryBudget()

    def copy(self, batch: _Batch) -> Copied:
        """Copy the regions of a batch, one after the other."""
        plan = self._plan
        regions = plan.regions.plans[batch.slab]
        number = plan.regions.slabs[batch.slab].array
        array = plan.arrays[number]
        with self._budget.holding(regions.memory_bytes, plan.memory_bytes):
            source = self._open_source(array.source)
            taker = ObjectWriter(self._context, self._new_note, plan.packing)
            taker.reserve(sum(map(regions.objects, batch.regions)))
            target = zarr.open_array(CapturingStore(array.document, taker), mode="r+")
            for region in batch.regions:
                box = regions.box(region)
                target[box] = source[box]
            run_blocking(taker.finish())
        boxes = tuple(map(regions.cells, batch.regions)) if plan.over_others else ()
        return Copied(number, taker.references(array.dimensions), tuple(taker.notes), boxes)


def _batches(plan: CopyPlan, numbers: Iterable[int]) -> Iterator[_Batch]:
    slabs_and_regions = map(plan.regions.find, numbers)
    for slab, members in groupby(slabs_and_regions, key=itemgetter(0)):
        regions = plan.regions.plans[slab]
        for some in _of_one_note([region for _, region in members], regions.objects):
            yield _Batch(slab, tuple(some), regions.in_flight)


def _of_one_note(regions: Sequence[int], objects: Callable[[int], int]) -> Iterator[list[int]]:
    """Put regions together whose objects go into one note."""
    batch: list[int] = []
    total = 0
    for region in regions:
        more = objects(region)
        if batch and total + more > _OBJECTS_PER_NOTE:
            yield batch
            batch, total = [], 0
        batch.append(region)
        total += more
    if batch:
        yield batch


class ObjectWriter:
    """Stores encoded objects: small ones in manifests, others by themselves or in packs."""

    def __init__(
        self, context: RepoContext, new_note: NewNote, packing: PackingOptions | None
    ) -> None:
        self._context, self._new_note = context, new_note
        self._packer = None if packing is None else ChunkPacker(self, packing)
        self._ids: deque[ChunkId] = deque()
        self._noting: SingleFlight[str, None] = SingleFlight()
        self._is_noted = False
        self._rows: list[tuple[tuple[int, ...], ChunkId, int, int]] = []
        self._inlined: list[tuple[tuple[int, ...], bytes]] = []
        self.notes: list[str] = []
        """Keys of the notes that were written."""

    def reserve(self, objects: int) -> None:
        """Name objects in advance; these go into one note, when the first of them is written."""
        self._ids.extend(ChunkId.random() for _ in range(objects))

    async def take(self, cell: tuple[int, ...], data: StoredBytes) -> None:
        """Store one object, from any thread."""
        size = len(data)
        if size <= self._context.config.inline_chunk_threshold_bytes:
            self._inlined.append((cell, bytes(data)))
        elif self._packer is not None and self._packer.accepts(size):
            ref = await self._packer.add(data)
            self._rows.append((cell, ref.id, ref.offset, size))
        else:
            if not self._is_noted:
                await self._noting.run("ids", self._note_ids)
            chosen = self._ids.popleft()
            await self._context.assets.save_chunk(chosen, data)
            self._rows.append((cell, chosen, 0, size))

    async def save_chunk(self, chunk_id: ChunkId, data: StoredBytes) -> None:
        """Store a pack; each has a note of its own."""
        await self._note([chunk_id])
        await self._context.assets.save_chunk(chunk_id, data)

    async def finish(self) -> None:
        """Store what is still in memory."""
        if self._packer is not None:
            await self._packer.flush()

    def references(self, dimensions: int) -> References:
        """Return the stored references as columns."""
        numbers: dict[ChunkId, int] = {}
        targets = [numbers.setdefault(row[1], len(numbers)) for row in self._rows]
        inlined = sorted(self._inlined)
        return References(
            _grid([row[0] for row in self._rows], dimensions),
            np.array([row[2] for row in self._rows], np.uint64),
            np.array([row[3] for row in self._rows], np.uint64),
            tuple(map(str, numbers)),
            np.array(targets, np.uint32),
            _grid([cell for cell, _ in inlined], dimensions),
            BytesColumn.from_list([data for _, data in inlined]),
        )

    async def _note_ids(self) -> None:
        if not self._is_noted:
            await self._note(list(self._ids))
            self._is_noted = True

    async def _note(self, ids: Sequence[ChunkId]) -> None:
        key = self._new_note()
        await Notes(self._context.backend, key).add([chunk_key(chunk_id) for chunk_id in ids])
        self.notes.append(key)


def _grid(cells: Sequence[tuple[int, ...]], dimensions: int) -> "np.ndarray[Any, Any]":
    return np.array(cells, np.int64).reshape(len(cells), dimensions)
