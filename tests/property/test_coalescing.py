"""Whatever is read in whatever order: the right bytes, within bounds, ahead only if in order."""

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.effects import run_blocking
from icefloe.errors import ErrorKind, InvalidInputError, StorageError
from icefloe.storage import ByteRange, Fetched, ObjectInfo
from icefloe.virtual_chunks.readahead import (
    Coalescer,
    Limits,
    Progress,
    Request,
    merge_reads,
    read_ahead,
)

CONTENT = bytes(position * 7 % 251 for position in range(6000))
LIMITS = Limits(
    gap_bytes=8, mergeable_bytes=300, window_bytes=1000, held_bytes=2500, streams=3, objects=2
)
OBJECTS = ("a.nc", "b.nc", "c.nc")

ranges = st.tuples(st.integers(0, len(CONTENT)), st.integers(1, 400)).map(
    lambda drawn: (drawn[0], drawn[0] + drawn[1])
)


def answer(byte_range: ByteRange) -> Fetched:
    """Answer as a backend does."""
    start, stop = byte_range
    assert start < stop
    if stop > len(CONTENT):
        raise InvalidInputError("past the end", ErrorKind.INVALID_BYTE_RANGE)
    return Fetched(CONTENT[start:stop], ObjectInfo("key", len(CONTENT), datetime.now(UTC)))


@dataclass
class Server:
    """Answers requests when it is told to."""

    waiting: list[tuple[ByteRange, asyncio.Future[bool]]] = field(default_factory=list)
    asked: list[ByteRange] = field(default_factory=list)

    async def fetch(self, byte_range: ByteRange) -> Fetched:
        self.asked.append(byte_range)
        turn = asyncio.get_running_loop().create_future()
        self.waiting.append((byte_range, turn))
        if not await turn:
            raise StorageError("the network is down", retryable=True)
        return answer(byte_range)

    def serve(self, position: int, *, well: bool) -> None:
        waiting = [turn for _, turn in self.waiting if not turn.done()]
        if waiting:
            waiting[position % len(waiting)].set_result(well)


@dataclass(frozen=True)
class Read:
    source: str
    byte_range: ByteRange


@dataclass(frozen=True)
class Serve:
    position: int
    well: bool


@dataclass(frozen=True)
class Cancel:
    position: int


@dataclass(frozen=True)
class Wait:
    """Let the loop turn."""


steps = st.lists(
    st.one_of(
        st.builds(Read, st.sampled_from(OBJECTS), ranges),
        st.builds(
            Read,
            st.just("a.nc"),
            st.integers(0, 59).map(lambda row: (row * 100, (row + 1) * 100)),
        ),
        st.builds(Serve, st.integers(0, 9), st.sampled_from([True, True, True, False])),
        st.builds(Cancel, st.integers(0, 99)),
        st.just(Wait()),
    ),
    max_size=60,
)


@given(steps)
def test_tasks_in_any_interleaving_get_their_bytes(
    plan: list[Read | Serve | Cancel | Wait],
) -> None:
    asyncio.run(_play(plan))


async def _play(plan: list[Read | Serve | Cancel | Wait]) -> None:
    coalescer, server = Coalescer(LIMITS), Server()
    tasks: list[tuple[Read, asyncio.Task[Fetched]]] = []
    for step in plan:
        match step:
            case Read(source, byte_range):
                reading = coalescer.read(source, byte_range, server.fetch)
                tasks.append((step, asyncio.create_task(reading)))
            case Serve(position, well):
                server.serve(position, well=well)
            case Cancel(position) if tasks:
                tasks[position % len(tasks)][1].cancel()
            case _:
                await asyncio.sleep(0)
        assert coalescer.held_bytes <= LIMITS.held_bytes
    while not all(task.done() for _, task in tasks):
        server.serve(0, well=True)
        await asyncio.sleep(0)
    for read, task in tasks:
        if not task.cancelled():
            _check(read.byte_range, task)
    assert coalescer.held_bytes <= LIMITS.held_bytes


def _check(byte_range: ByteRange, task: asyncio.Task[Fetched]) -> None:
    """One outside of the object fails, one inside fails only if its own request did."""
    start, stop = byte_range
    error = task.exception()
    if error is None:
        assert bytes(task.result().data) == CONTENT[start:stop]
    elif stop <= len(CONTENT):
        assert isinstance(error, StorageError)
        assert error.retryable
    else:
        assert isinstance(error, InvalidInputError | StorageError)


@given(st.lists(ranges, min_size=1, max_size=12))
def test_a_bad_neighbour_breaks_nobody(reads: list[ByteRange]) -> None:
    async def fetch(byte_range: ByteRange) -> Fetched:
        return answer(byte_range)

    async def main() -> list[Fetched | BaseException]:
        coalescer = Coalescer(LIMITS)
        reading = (coalescer.read("a.nc", each, fetch) for each in reads)
        return await asyncio.gather(*reading, return_exceptions=True)

    for (start, stop), found in zip(reads, asyncio.run(main()), strict=True):
        if stop <= len(CONTENT):
            assert isinstance(found, Fetched)
            assert bytes(found.data) == CONTENT[start:stop]
        else:
            assert isinstance(found, InvalidInputError)


def _read_one_by_one(reads: list[ByteRange], coalescer: Coalescer | None = None) -> list[ByteRange]:
    """Read as one thread does; give what was asked of the server."""
    coalescer = coalescer or Coalescer(LIMITS)
    asked: list[ByteRange] = []

    async def fetch(byte_range: ByteRange) -> Fetched:
        asked.append(byte_range)
        return answer(byte_range)

    for start, stop in reads:
        found = run_blocking(coalescer.read("a.nc", (start, stop), fetch))
        assert bytes(found.data) == CONTENT[start:stop]
        assert coalescer.held_bytes <= LIMITS.held_bytes
    return asked


@given(st.lists(ranges.filter(lambda each: each[1] <= len(CONTENT)), max_size=30))
def test_one_thread_gets_its_bytes_in_any_order(reads: list[ByteRange]) -> None:
    _read_one_by_one(reads)


@given(st.permutations(range(50)), st.integers(1, 100))
def test_reads_with_space_between_them_are_never_read_ahead(order: list[int], length: int) -> None:
    step = length + LIMITS.gap_bytes + 1
    reads = [(row * step, row * step + length) for row in order]
    assert _read_one_by_one(reads) == reads


def test_reading_backwards_is_never_read_ahead() -> None:
    reads = [(row * 100, (row + 1) * 100) for row in reversed(range(50))]
    assert _read_one_by_one(reads) == reads


@given(st.integers(1, LIMITS.mergeable_bytes))
def test_reading_in_order_asks_for_every_byte_once_and_seldom(length: int) -> None:
    reads = [(at, at + length) for at in range(0, len(CONTENT) - length, length)]
    coalescer = Coalescer(LIMITS)
    asked = _read_one_by_one(reads, coalescer)
    assert [start for start, _ in asked[1:]] == [stop for _, stop in asked[:-1]]
    while_growing = (LIMITS.window_bytes // length).bit_length() + 1
    full = LIMITS.held_bytes // 4 - length  # a window, at least
    assert len(asked) <= while_growing + 1 + len(CONTENT) // max(full, length)


@given(st.lists(ranges, min_size=1, max_size=20))
def test_merged_requests_serve_each_read_once(reads: list[ByteRange]) -> None:
    requests = merge_reads(reads, LIMITS)
    assert sorted(row for each in requests for row in each.rows) == list(range(len(reads)))
    for request in requests:
        served = [reads[row] for row in request.rows]
        assert request.start == min(start for start, _ in served)
        assert request.end == request.stop == max(stop for _, stop in served)
        assert all(request.covers(each) for each in served)
        longest = max(stop - start for start, stop in served)
        assert request.size_bytes <= max(LIMITS.window_bytes, longest)


streams = st.lists(ranges, max_size=3).map(tuple)


@given(streams, st.none() | st.integers(0, 7000), ranges, st.integers(0, 2000))
def test_reading_ahead_stays_within_its_bounds(
    before: tuple[ByteRange, ...], size: int | None, read: ByteRange, most_bytes: int
) -> None:
    start, stop = read
    asked = Request(start, stop, stop, (0,), stop - start)
    request, after = read_ahead(Progress(before, size), asked, LIMITS, most_bytes)
    assert (request.start, request.stop) == read
    assert request.end >= stop
    if request.ahead_bytes:
        assert size is not None
        assert request.end <= size
        assert request.size_bytes <= most_bytes
        assert any(first <= start <= last + LIMITS.gap_bytes < stop + 8 for first, last in before)
    assert len(after.streams) <= LIMITS.streams


@pytest.mark.parametrize("ahead", [0, 50])
def test_a_failed_request_is_not_read_on_from(ahead: int) -> None:
    failed = Request(100, 200, 200 + ahead, (0,), 100)
    progress = Progress((failed.window, (500, 600)), 6000).failed(failed)
    assert progress.streams == ((500, 600),)
    assert progress.most_bytes == (75 if ahead else None)
