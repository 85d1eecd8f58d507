"""Chunks that are fetched before they are read.

A loop over a dimension reads a box of chunks, then the box beside it, and waits for each of them.
So does a program that reads one small array of a group after the other. `ReadAhead` follows what a
session reads: once the direction is clear, it requests what comes next, twice as much each time,
and later reads find their chunks here. Steps that read the same chunk again fetch it once.

What is held belongs to a reference, not to a place in an array: a session that changes asks for
other references and never sees old bytes. All sessions of a process share one limit. Chunks that
nobody reads are dropped after a while, or when room is needed.
"""

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np

from icefloe.effects import map_concurrently, run_blocking, wait_for
from icefloe.errors import IcefloeError
from icefloe.forks import renew_lock_in_children
from icefloe.format.chunk_table import ChunkRef, Coordinates, InlineChunk
from icefloe.format.ids import ManifestId, NodeId
from icefloe.format.nodes import ArrayNode
from icefloe.records import MutableRecord, Record
from icefloe.storage.port import Buffer
from icefloe.transactions.selections import (
    ChunkRequest,
    FoundRefs,
    find_refs,
    manifests_of,
    part_of,
    plan_requests,
    read_request,
)
from icefloe.transactions.session import SessionState

_MOST_BOXES: Final = 32
"""So many boxes ahead of a loop, at most."""
_MOST_CHUNKS: Final = 1024
"""So many chunks are planned at a time."""
_HELD_SECONDS: Final = 15.0
"""For so long a chunk waits to be read: files of virtual chunks may change."""
_SWEEP_SECONDS: Final = 1.0
"""So often, at most, all chunks are looked at for those that waited too long."""
_MOST_THREADS: Final = 32
_MOST_ARRAYS: Final = 16
_MOST_MANIFESTS: Final = 16
_SMALL_MANIFESTS_BYTES: Final = 1 << 20
"""Manifests of a dataset that is opened are loaded early, as long as they have fewer bytes."""
_SMALL_ARRAY: Final = 16
"""Arrays with at most this number of chunks are read whole, one after the other."""


class Box(Record):
    """Chunks of an array: the first ones, and those after the last ones, by dimension."""

    first: tuple[int, ...]
    last: tuple[int, ...]

    @classmethod
    def around(cls, coordinates: Coordinates) -> "Box | None":
        """Return the box that chunks fill, if they fill one.

        >>> Box.around(np.array([[3, 0], [3, 1]], np.uint32))
        Box(first=(3, 0), last=(4, 2))
        >>> Box.around(np.array([[3, 0], [4, 1]], np.uint32))
        """
        if coordinates.size == 0:
            return None
        first, last = coordinates.min(axis=0), coordinates.max(axis=0) + 1
        if int((last - first).prod(dtype=np.int64)) != len(coordinates):
            return None
        return cls(tuple(first.tolist()), tuple(last.tolist()))

    def with_range(self, dimension: int, first: int, last: int) -> "Box":
        """Return the box with another range of one dimension."""
        firsts, lasts = list(self.first), list(self.last)
        firsts[dimension], lasts[dimension] = first, last
        return Box(tuple(firsts), tuple(lasts))

    def coordinates(self) -> Coordinates:
        """List the chunks.

        >>> Box((0, 4), (2, 5)).coordinates().tolist()
        [[0, 4], [1, 4]]
        """
        ranges = [
            np.arange(f, e, dtype=np.uint32) for f, e in zip(self.first, self.last, strict=True)
        ]
        return np.stack(np.meshgrid(*ranges, indexing="ij"), axis=-1).reshape(-1, len(ranges))


class Course:
    """The reads of one array, one after the other: says where the next ones will be.

    >>> course = Course()
    >>> for row in range(4):
    ...     print(course.follow(Box((row,), (row + 1,)), counts=(100,)))
    []
    [Box(first=(2,), last=(4,))]
    [Box(first=(4,), last=(7,))]
    [Box(first=(7,), last=(12,))]
    """

    def __init__(self) -> None:
        self.is_repeated = False
        """Whether a read met chunks of the read before it."""
        self._box: Box | None = None
        self._step: tuple[int, int] | None = None
        self._width = 0
        self._front = 0

    def follow(self, box: Box | None, counts: Sequence[int]) -> list[Box]:
        """Note a read, and return the boxes that are worth requesting now."""
        before, self._box = self._box, box
        if box is None or before is None:
            self._step = None
            return []
        if box == before:
            self.is_repeated = True
            return []
        step = _step(before, box)
        if step is None:
            self._step, self.is_repeated = None, False
            return []
        dimension, shift = step
        extent = box.last[dimension] - box.first[dimension]
        if abs(shift) < extent:
            self.is_repeated = True
        is_same = self._step is not None and (
            self._step == step if abs(shift) > extent else self._step[0] == dimension
        )
        if is_same and self._step is not None and (self._step[1] > 0) == (shift > 0):
            self._width = min(max(2 * self._width, 2), _MOST_BOXES)
        else:
            # Steps over chunks are believed when they come twice.
            self._width = 2 if abs(shift) <= extent else 0
            self._front = box.last[dimension] if shift > 0 else box.first[dimension]
        self._step = step
        if self._width == 0:
            return []
        if abs(shift) > extent:
            return self._strides(box, dimension, shift, counts)
        return self._stretch(box, dimension, shift, extent, counts)

    def _stretch(
        self, box: Box, dimension: int, shift: int, extent: int, counts: Sequence[int]
    ) -> list[Box]:
        """Return the chunks that lie beside a box, in the direction of the reads."""
        length = self._width * extent
        if shift > 0:
            first = max(self._front, box.last[dimension])
            last = min(box.last[dimension] + length, counts[dimension])
            is_far = first - box.last[dimension] > length // 2
        else:
            last = min(self._front, box.first[dimension])
            first = max(box.first[dimension] - length, 0)
            is_far = box.first[dimension] - last > length // 2
        if first >= last or is_far:
            return []
        self._front = last if shift > 0 else first
        return [box.with_range(dimension, first, last)]

    def _strides(self, box: Box, dimension: int, shift: int, counts: Sequence[int]) -> list[Box]:
        """Return boxes at equal distances."""
        boxes = list[Box]()
        first, last = box.first[dimension], box.last[dimension]
        for number in range(1, self._width + 1):
            start, stop = first + number * shift, last + number * shift
            is_new = start > self._front if shift > 0 else start < self._front
            if start < 0 or stop > counts[dimension]:
                break
            if is_new:
                boxes.append(box.with_range(dimension, start, stop))
                self._front = start
        return boxes


def _step(before: Box, box: Box) -> tuple[int, int] | None:
    """Return the dimension along which a box lies further, and how much."""
    moved = [
        dimension
        for dimension in range(len(box.first))
        if (before.first[dimension], before.last[dimension])
        != (box.first[dimension], box.last[dimension])
    ]
    if len(moved) != 1:
        return None
    [dimension] = moved
    starts = box.first[dimension] - before.first[dimension]
    stops = box.last[dimension] - before.last[dimension]
    if starts * stops < 0:
        return None
    # Windows of equal lengths meet one chunk more here than there.
    return dimension, starts if abs(starts) > abs(stops) else stops


type Wanted = tuple[ArrayNode, Coordinates]
"""Chunks of an array that will be read."""


class _Siblings(MutableRecord):
    """Small arrays of a group that are read whole, one after the other."""

    last: str = ""
    front: str = ""
    """The last array that was requested."""
    again: str = ""
    """Reads before this array need nothing more."""
    width: int = 0


class _Held(MutableRecord):
    fetched: "Future[list[Buffer]]"
    part: int
    size_bytes: int
    since: float
    was_read: bool = False


class _Holding:
    """The chunks of arrays that one session holds, with a running total of their bytes."""

    def __init__(self) -> None:
        self._chunks: dict[NodeId, dict[ChunkRef, _Held]] = {}
        self.size_bytes = 0

    def of(self, node: NodeId) -> Mapping[ChunkRef, _Held]:
        """Return the chunks of an array."""
        return self._chunks.get(node) or {}

    def all(self) -> list[tuple[NodeId, ChunkRef, _Held]]:
        """List all chunks."""
        return [(node, *item) for node, chunks in self._chunks.items() for item in chunks.items()]

    def put(self, node: NodeId, ref: ChunkRef, chunk: _Held) -> None:
        """Add a chunk, in place of the same chunk from before."""
        self.drop(node, ref)
        self._chunks.setdefault(node, {})[ref] = chunk
        self.size_bytes += chunk.size_bytes

    def drop(self, node: NodeId, ref: ChunkRef) -> None:
        """Remove a chunk, if it is held."""
        chunks = self._chunks.get(node)
        held = None if chunks is None else chunks.pop(ref, None)
        if held is not None:
            self.size_bytes -= held.size_bytes
        if not chunks:
            self._chunks.pop(node, None)


class Promise:
    """A chunk that was requested before it was read."""

    __slots__ = ("_held", "place", "ref")

    def __init__(self, held_chunk: _Held, ref: ChunkRef, number: int) -> None:
        self._held, self.ref, self.place = held_chunk, ref, number

    @property
    def size_bytes(self) -> int:
        """The number of bytes of the chunk."""
        return self._held.size_bytes

    @property
    def is_kept(self) -> bool:
        """Whether the bytes have arrived."""
        fetched = self._held.fetched
        return fetched.done() and not fetched.cancelled() and fetched.exception() is None

    def wait(self) -> Buffer | None:
        """Return the bytes; None if the request failed, or did not begin until now."""
        fetched = self._held.fetched
        if fetched.cancel():
            return None
        try:
            return fetched.result()[self._held.part]
        except (IcefloeError, OSError, CancelledError):
            return None  # the reader asks again, and learns what is wrong


class ReadAhead:
    """The chunks that one session has requested before it reads them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        renew_lock_in_children(self)
        self._held = _Holding()
        self._swept = -math.inf
        self._courses: dict[NodeId, Course] = {}
        self._siblings: dict[str, _Siblings] = {}
        self._planned: Future[None] | None = None

    @property
    def held_bytes(self) -> int:
        """The number of bytes that were requested or arrived, and are not read yet."""
        return self._held.size_bytes

    def claim(self, node: NodeId, refs: list[FoundRefs]) -> tuple[list[Promise], list[FoundRefs]]:
        """Take the chunks that were requested, and return the references of all others."""
        if not self._held.size_bytes:
            return [], refs
        with self._lock:
            if self._clock() - self._swept > _SWEEP_SECONDS:
                self._expire()
            chunks = self._held.of(node)
            if not chunks:
                return [], refs
            promises, left = list[Promise](), list[FoundRefs]()
            oldest = self._clock() - _HELD_SECONDS
            for part in refs:
                taken = _promises(chunks, part, oldest)
                promises += taken
                is_left = ~np.isin(part.places, [promise.place for promise in taken])
                if is_left.any():
                    left.append(FoundRefs(part.table, part.rows[is_left], part.places[is_left]))
            self._forget(node, {promise.ref for promise in promises})
            return promises, left

    def _forget(self, node: NodeId, claimed: set[ChunkRef]) -> None:
        """Drop the chunks that are read now, unless a loop reads them again, and those before."""
        is_repeated = self.keeps(node)
        for ref, held in list(self._held.of(node).items()):
            if ref in claimed and is_repeated:
                held.was_read = True
            elif ref in claimed or held.was_read:
                self._held.drop(node, ref)

    def keeps(self, node: NodeId) -> bool:
        """Return whether the next step of a loop will read the same chunks again."""
        course = self._courses.get(node)
        return course is not None and course.is_repeated

    def keep(self, node: NodeId, ref: ChunkRef, data: Buffer, most_bytes: int) -> None:
        """Keep a chunk that the next step will read again."""
        if isinstance(ref, InlineChunk) or len(data) > most_bytes // 4:
            return
        fetched = Future[list[Buffer]]()
        fetched.set_result([data])
        with self._lock:
            if _ahead_bytes() + len(data) <= most_bytes:
                held = _Held(fetched, 0, len(data), self._clock(), was_read=True)
                self._held.put(node, ref, held)

    def follow(
        self, session: SessionState, node: ArrayNode, coordinates: Coordinates
    ) -> list[Wanted]:
        """Note a read, and return what will be read next, if that is clear."""
        counts = node.array.num_chunks
        with self._lock:
            course = self._courses.get(node.id)
            if course is None:
                course = self._courses[node.id] = Course()
            boxes = course.follow(Box.around(coordinates), counts)
            is_whole = len(coordinates) == int(np.prod(counts, dtype=np.int64))
        if boxes:
            chunks = np.concatenate([box.coordinates() for box in boxes])
            return [(node, chunks[:_MOST_CHUNKS])]
        if is_whole and len(coordinates) <= _SMALL_ARRAY and not is_coordinate(node):
            siblings = self._next_siblings(session, node)
            return [(sibling, every_chunk(sibling)) for sibling in siblings]
        return []

    def _next_siblings(self, session: SessionState, node: ArrayNode) -> list[ArrayNode]:
        """Return the small arrays of a group that follow on one that is read, in their order."""
        parent = node.path.rpartition("/")[0]
        with self._lock:
            course = self._siblings.setdefault(parent, _Siblings())
            before, course.last = course.last, node.path
            if not before or node.path <= before:
                course.width, course.front, course.again = 0, "", ""
                return []
            if node.path < course.again:
                return []
            course.width = min(max(2 * course.width, 2), _MOST_ARRAYS)
            after = max(course.front, node.path)
        following = list[ArrayNode]()
        for path in session.tree.paths_below(parent or "/"):
            if path <= after or "/" in path[len(parent) + 1 :]:
                continue
            sibling = session.tree.find(path)
            if isinstance(sibling, ArrayNode) and is_small(sibling) and not is_coordinate(sibling):
                following.append(sibling)
                if len(following) == course.width:
                    break
        if following:
            course.front, course.again = following[-1].path, following[len(following) // 2].path
        return following

    async def request(
        self, session: SessionState, chunks: Sequence[Wanted], most_bytes: int
    ) -> None:
        """Request chunks of arrays in the background, as far as there is room for them.

        The manifests of all arrays are loaded at the same time.
        """
        if not chunks:
            return
        manifests = dict[ManifestId, int]()
        for node, coordinates in chunks:
            manifests |= manifests_of(session, node, coordinates)
        await _load(session, manifests)
        for node, coordinates in chunks:
            for found in await find_refs(session, node, coordinates):
                for request in plan_requests(found, joins=session.packer is None):
                    if not isinstance(request.ref, InlineChunk) and not self._begin(
                        session, node.id, request, most_bytes
                    ):
                        return

    def request_soon(
        self,
        session: SessionState,
        chunks: Sequence[Wanted],
        most_bytes: int,
        arrays: Sequence[ArrayNode] = (),
    ) -> None:
        """Do what `request` does on a thread: the caller does not wait for manifests.

        Then load the manifests of further arrays, as long as they are few and small.
        """
        planned = self._planned = Future[None]()

        def plan() -> None:
            # Who needs these asks again, and learns what is wrong.
            try:
                with suppress(IcefloeError, OSError):
                    run_blocking(self.request(session, chunks, most_bytes))
            finally:
                planned.set_result(None)
            with suppress(IcefloeError, OSError):
                run_blocking(_load(session, _small_manifests(session, arrays)))

        threading.Thread(target=plan, name="icefloe-ahead").start()

    async def planned(self) -> None:
        """Wait until all that was asked for with `request_soon` is requested."""
        if self._planned is not None and not self._planned.done():
            await wait_for(self._planned)

    def _begin(
        self, session: SessionState, node: NodeId, request: ChunkRequest, most_bytes: int
    ) -> bool:
        with self._lock:
            chunks = self._held.of(node)
            refs = [part_of(request, number) for number in range(len(request.parts))]
            if all(ref in chunks for ref in refs):
                return True
            if _ahead_bytes() + request.size_bytes > most_bytes:
                self._expire()
                if _ahead_bytes() + request.size_bytes > most_bytes:
                    return False
            fetched, now = Future[list[Buffer]](), self._clock()
            for number, ref in enumerate(refs):
                first, last = request.parts[number]
                self._held.put(node, ref, _Held(fetched, number, last - first, now))

        def fetch() -> None:
            if not fetched.set_running_or_notify_cancel():
                return
            try:
                fetched.set_result(run_blocking(read_request(session, request), "worker"))
            except BaseException as failure:  # noqa: BLE001 - handed to who waits
                fetched.set_exception(failure)

        _fetchers.add(fetch, fetched)
        return True

    def _expire(self) -> None:
        self._swept = self._clock()
        for node, ref, held in self._held.all():
            if held.since < self._swept - _HELD_SECONDS:
                held.fetched.cancel()
                self._held.drop(node, ref)


async def _load(session: SessionState, manifests: Mapping[ManifestId, int]) -> None:
    """Load manifests of some sizes at the same time; they stay in the cache."""
    assets = session.context.assets

    async def load(manifest: tuple[ManifestId, int]) -> None:
        await assets.load_manifest(*manifest)

    missing = [item for item in manifests.items() if assets.held_manifest(item[0]) is None]
    limit = session.context.config.max_concurrent_requests
    await map_concurrently(load, missing, limit=limit)


def _small_manifests(session: SessionState, arrays: Sequence[ArrayNode]) -> dict[ManifestId, int]:
    """Return the manifests of arrays, without those of arrays that have many or large ones."""
    small, room = dict[ManifestId, int](), _SMALL_MANIFESTS_BYTES
    for node in arrays:
        sizes = {
            manifest: size_bytes
            for manifest, size_bytes in session.lookup(node).sizes()
            if manifest not in small
        }
        if len(small) + len(sizes) <= _MOST_MANIFESTS and sum(sizes.values()) <= room:
            small |= sizes
            room -= sum(sizes.values())
    return small


def _promises(chunks: Mapping[ChunkRef, _Held], refs: FoundRefs, oldest: float) -> list[Promise]:
    """Return those of some references that were requested, and not too long ago."""
    promises = list[Promise]()
    for row, place in zip(refs.rows.tolist(), refs.places.tolist(), strict=True):
        ref = refs.table.ref(row)
        if (held := chunks.get(ref)) is not None and held.since >= oldest:
            promises.append(Promise(held, ref, place))
    return promises


def is_coordinate(node: ArrayNode) -> bool:
    """Return whether an array has the values along a dimension of its own name."""
    return node.array.dimension_names == (node.path.rpartition("/")[2],)


def is_small(node: ArrayNode) -> bool:
    """Return whether an array has few chunks."""
    return 0 < int(np.prod(node.array.num_chunks, dtype=np.int64)) <= _SMALL_ARRAY


def every_chunk(node: ArrayNode) -> Coordinates:
    """List all chunks of the grid of an array."""
    counts = node.array.num_chunks
    if not counts:
        return np.zeros((1, 0), np.uint32)
    return Box((0,) * len(counts), tuple(counts)).coordinates()


class _Fetchers:
    """Threads that fetch; they hold up the end of a program no longer than their requests."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all work, and who was at it."""
        self._lock = threading.Lock()
        self._waiting = deque[tuple[Callable[[], None], Future[list[Buffer]]]]()
        self._threads = 0

    def add(self, work: Callable[[], None], result: "Future[list[Buffer]]") -> None:
        """Have something done soon."""
        with self._lock:
            self._waiting.append((work, result))
            if self._threads >= _MOST_THREADS:
                return
            self._threads += 1
        threading.Thread(target=self._run, name="icefloe-ahead").start()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not threading.main_thread().is_alive():  # the program ends
                    for _, result in self._waiting:
                        result.cancel()
                    self._waiting.clear()
                if not self._waiting:
                    self._threads -= 1
                    return
                work, _ = self._waiting.popleft()
            work()


_fetchers: Final = _Fetchers()


class _Sessions:
    """The sessions of this process that read ahead."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all of them: what was on its way to a parent never arrives in its child."""
        self._lock = threading.Lock()
        self._of: WeakKeyDictionary[SessionState, ReadAhead] = WeakKeyDictionary()

    def of(self, session: SessionState) -> ReadAhead:
        """Return what a session has requested."""
        with self._lock:
            ahead = self._of.get(session)
            if ahead is None:
                ahead = self._of[session] = ReadAhead()
            return ahead

    def all(self) -> Iterable[ReadAhead]:
        """Return those of all sessions."""
        with self._lock:
            return list(self._of.values())


_sessions: Final = _Sessions()


def read_ahead(session: SessionState) -> ReadAhead:
    """Return what a session has requested before it reads it."""
    return _sessions.of(session)


def _ahead_bytes() -> int:
    return sum(ahead.held_bytes for ahead in _sessions.all())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_fetchers.reset)
    os.register_at_fork(after_in_child=_sessions.reset)
