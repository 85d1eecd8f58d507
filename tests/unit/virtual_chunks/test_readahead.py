"""Reads that come together become one request, whoever they come from, and fail one by one."""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor

import pytest

from icefloe.effects import run_blocking
from icefloe.errors import (
    ErrorKind,
    IcefloeError,
    InvalidInputError,
    ObjectNotFoundError,
    StorageError,
)
from icefloe.storage import Backend, ByteRange, Fetched, Storage
from icefloe.testing.schedules import run_schedule
from icefloe.virtual_chunks.readahead import Coalescer, Limits

CONTENT = os.urandom(1 << 20)
KILO = 1 << 10
ROWS = [(at, at + 10 * KILO) for at in range(0, 1000 * KILO, 10 * KILO)]


class Source:
    """An object in a storage, whose requests are counted."""

    def __init__(self) -> None:
        self.storage = Storage.new_in_memory()
        self.backend: Backend = self.storage.open()
        run_blocking(self.backend.put("a.nc", CONTENT))
        self.asked: list[ByteRange] = []

    async def fetch(self, byte_range: ByteRange) -> Fetched:
        self.asked.append(byte_range)
        return await self.backend.get("a.nc", byte_range)


@pytest.fixture
def source() -> Source:
    return Source()


def check(reads: list[ByteRange], found: list[Fetched]) -> None:
    for (start, stop), each in zip(reads, found, strict=True):
        assert bytes(each.data) == CONTENT[start:stop]
        assert each.info.size_bytes == len(CONTENT)


def gather(coalescer: Coalescer, source: Source, reads: list[ByteRange]) -> list[Fetched]:
    async def main() -> list[Fetched]:
        return await asyncio.gather(*(coalescer.read("a", each, source.fetch) for each in reads))

    return asyncio.run(main())


def test_neighbours_share_a_request(source: Source) -> None:
    reads = [(100, 200), (0, 100), (200, 300)]
    check(reads, gather(Coalescer(), source, reads))
    assert source.asked == [(0, 300)]


def test_a_small_gap_is_read_over_and_a_large_one_is_not(source: Source) -> None:
    limits = Limits(gap_bytes=10)
    reads = [(0, 100), (110, 200), (211, 300)]
    check(reads, gather(Coalescer(limits), source, reads))
    assert sorted(source.asked) == [(0, 200), (211, 300)]


def test_long_reads_stay_alone(source: Source) -> None:
    limits = Limits(mergeable_bytes=1000)
    reads = [(0, 1000), (1000, 2001), (2001, 2100)]
    check(reads, gather(Coalescer(limits), source, reads))
    assert sorted(source.asked) == reads


def test_a_herd_that_wants_the_same_sends_one_request(source: Source) -> None:
    reads = [(5, 900_000)] * 64
    check(reads, gather(Coalescer(), source, reads))
    assert source.asked == [(5, 900_000)]


def test_one_who_comes_late_waits_for_the_request_on_its_way(source: Source) -> None:
    async def main() -> list[Fetched]:
        begun, go_on = asyncio.Event(), asyncio.Event()
        coalescer = Coalescer()

        async def slow(byte_range: ByteRange) -> Fetched:
            begun.set()
            await go_on.wait()
            return await source.fetch(byte_range)

        first = asyncio.create_task(coalescer.read("a", (0, 1000), slow))
        await begun.wait()
        second = asyncio.create_task(coalescer.read("a", (200, 300), source.fetch))
        await asyncio.sleep(0)
        go_on.set()
        return [await first, await second]

    check([(0, 1000), (200, 300)], asyncio.run(main()))
    assert source.asked == [(0, 1000)]


def test_a_cancelled_leader_leaves_its_followers_to_themselves(source: Source) -> None:
    async def main() -> list[Fetched]:
        begun = asyncio.Event()
        coalescer = Coalescer()

        async def never(byte_range: ByteRange) -> Fetched:
            begun.set()
            await asyncio.Event().wait()
            raise AssertionError(byte_range)

        leader = asyncio.create_task(coalescer.read("a", (0, 100), never))
        followers = [
            asyncio.create_task(coalescer.read("a", each, source.fetch))
            for each in [(100, 200), (200, 300)]
        ]
        await begun.wait()
        leader.cancel()
        found = await asyncio.gather(*followers)
        assert leader.cancelled()
        assert coalescer.held_bytes == 0
        return found

    check([(100, 200), (200, 300)], asyncio.run(main()))
    assert sorted(source.asked) == [(100, 200), (200, 300)]


def test_one_cancelled_before_it_could_lead_holds_up_nobody(source: Source) -> None:
    reads = [(0, 100), (500_000, 500_100), (500_100, 500_200)]

    async def main() -> list[Fetched]:
        coalescer = Coalescer()
        reading = (coalescer.read("a", each, source.fetch) for each in reads)
        first, leader, follower = (asyncio.create_task(each) for each in reading)
        await asyncio.sleep(0)  # now all three wait for others to join
        leader.cancel()
        return [await first, await follower]

    check([reads[0], reads[2]], asyncio.run(main()))
    assert sorted(source.asked) == [reads[0], reads[2]]


def test_reads_in_order_are_read_ahead_and_what_was_read_is_let_go(source: Source) -> None:
    coalescer = Coalescer()
    for read in ROWS:
        found = run_blocking(coalescer.read("a", read, source.fetch))
        check([read], [found])
    assert len(source.asked) == 7  # 1 + 2 + 4 + 8 + 16 + 32 + 37 rows
    assert source.asked[-1][1] == len(CONTENT)
    assert [stop for _, stop in source.asked[:-1]] == [start for start, _ in source.asked[1:]]
    rest = (ROWS[-1][1], len(CONTENT))
    check([rest], [run_blocking(coalescer.read("a", rest, source.fetch))])
    assert len(source.asked) == 7
    assert coalescer.held_bytes == 0


def test_two_places_of_one_object_are_both_read_ahead(source: Source) -> None:
    coalescer = Coalescer()
    for one, other in zip(ROWS[:50], ROWS[50:], strict=True):
        for read in (one, other):
            check([read], [run_blocking(coalescer.read("a", read, source.fetch))])
    assert len(source.asked) == 12


def test_who_waits_for_what_is_read_ahead_has_it_read(source: Source) -> None:
    async def main() -> list[Fetched]:
        coalescer = Coalescer()
        found = []
        for first in range(0, len(ROWS), 10):
            reading = (coalescer.read("a", row, source.fetch) for row in ROWS[first : first + 10])
            found += await asyncio.gather(*reading)
        rest = (ROWS[-1][1], len(CONTENT))
        await coalescer.read("a", rest, source.fetch)
        assert coalescer.held_bytes == 0
        return found

    check(ROWS, asyncio.run(main()))
    assert len(source.asked) == 4  # 10 + 20 + 40 + 30 rows


def test_a_late_reader_of_what_is_on_its_way_counts(source: Source) -> None:
    async def main() -> None:
        coalescer, begun, go_on = Coalescer(), asyncio.Event(), asyncio.Event()

        async def slow(byte_range: ByteRange) -> Fetched:
            begun.set()
            await go_on.wait()
            return await source.fetch(byte_range)

        await coalescer.read("a", ROWS[0], source.fetch)
        leader = asyncio.create_task(coalescer.read("a", ROWS[1], slow))
        await begun.wait()
        late = asyncio.create_task(coalescer.read("a", ROWS[2], source.fetch))
        await asyncio.sleep(0)
        go_on.set()
        check(ROWS[1:3], [await leader, await late])
        assert coalescer.held_bytes == 0

    asyncio.run(main())
    assert source.asked == [ROWS[0], (ROWS[1][0], ROWS[2][1])]


def test_gaps_between_chunks_do_not_use_up_the_room(source: Source) -> None:
    limits = Limits(held_bytes=100 * KILO, window_bytes=25 * KILO)
    coalescer = Coalescer(limits)
    reads = [(at, at + 900) for at in range(0, 1000 * KILO, 1000)]
    for read in reads:
        check([read], [run_blocking(coalescer.read("a", read, source.fetch))])
        assert coalescer.held_bytes <= limits.held_bytes
    assert len(source.asked) <= 1000 * KILO // (24 * KILO) + 8


def test_what_was_read_ahead_is_kept_for_a_while_only(source: Source) -> None:
    now = 0.0
    coalescer = Coalescer(Limits(held_seconds=30), clock=lambda: now)
    for read in ROWS[:2]:
        run_blocking(coalescer.read("a", read, source.fetch))
    assert coalescer.held_bytes == 2 * 10 * KILO
    now = 31.0
    check([ROWS[2]], [run_blocking(coalescer.read("a", ROWS[2], source.fetch))])
    assert source.asked[2] == ROWS[2]
    assert coalescer.held_bytes == 0


def test_many_streams_share_the_room(source: Source) -> None:
    limits = Limits(held_bytes=200 * KILO, window_bytes=100 * KILO)
    coalescer = Coalescer(limits)
    for row in ROWS[:60]:
        for name in range(10):
            found = run_blocking(coalescer.read(name, row, source.fetch))
            check([row], [found])
            assert coalescer.held_bytes <= limits.held_bytes
    fetched = sum(stop - start for start, stop in source.asked)
    assert fetched <= 1.2 * 10 * 60 * 10 * KILO
    assert len(source.asked) < 10 * 60


def test_an_error_of_the_object_is_everybodys(source: Source) -> None:
    async def missing(byte_range: ByteRange) -> Fetched:
        source.asked.append(byte_range)
        return await source.backend.get("b.nc", byte_range)

    async def main() -> list[object]:
        coalescer = Coalescer()
        reading = (coalescer.read("b", each, missing) for each in ROWS[:10])
        return await asyncio.gather(*reading, return_exceptions=True)

    assert all(isinstance(each, ObjectNotFoundError) for each in asyncio.run(main()))
    assert len(source.asked) == 1


def test_a_read_past_the_end_fails_alone(source: Source) -> None:
    reads = [(len(CONTENT) - 100, len(CONTENT)), (len(CONTENT), len(CONTENT) + 1)]

    async def main() -> list[Fetched | BaseException]:
        coalescer = Coalescer()
        reading = (coalescer.read("a", each, source.fetch) for each in reads)
        return await asyncio.gather(*reading, return_exceptions=True)

    good, bad = asyncio.run(main())
    assert isinstance(good, Fetched)
    check(reads[:1], [good])
    assert isinstance(bad, InvalidInputError)
    assert bad.kind == ErrorKind.INVALID_BYTE_RANGE
    assert source.asked[0] == (reads[0][0], reads[1][1])


def test_an_object_that_shrank_is_read_as_far_as_it_goes(source: Source) -> None:
    coalescer = Coalescer()
    run_blocking(coalescer.read("a", ROWS[0], source.fetch))
    short = CONTENT[: ROWS[1][1]]
    run_blocking(source.backend.put("a.nc", short))
    found = run_blocking(coalescer.read("a", ROWS[1], source.fetch))
    assert bytes(found.data) == short[ROWS[1][0] :]
    assert found.info.size_bytes == len(short)
    assert source.asked[1][1] > len(short)  # it was read ahead, in vain
    with pytest.raises(IcefloeError):
        run_blocking(coalescer.read("a", ROWS[2], source.fetch))
    assert coalescer.held_bytes == 0


def test_a_network_that_bears_only_small_requests_is_not_asked_for_more(source: Source) -> None:
    most = 45 * KILO

    async def narrow(byte_range: ByteRange) -> Fetched:
        if byte_range[1] - byte_range[0] > most:
            source.asked.append(byte_range)
            raise StorageError("it took too long", retryable=True)
        return await source.fetch(byte_range)

    coalescer = Coalescer()
    for row in ROWS:
        check([row], [run_blocking(coalescer.read("a", row, narrow))])
    failed = [each for each in source.asked if each[1] - each[0] > most]
    assert len(failed) == 1
    assert len(source.asked) < len(ROWS) // 3


def test_threads_share_requests_and_what_is_held(source: Source) -> None:
    coalescer = Coalescer()

    def read(row: ByteRange) -> Fetched:
        return run_blocking(coalescer.read("a", row, source.fetch))

    with ThreadPoolExecutor(16) as pool:
        check(ROWS, list(pool.map(read, ROWS)))
    assert len(source.asked) < len(ROWS)


def test_a_thread_waits_for_the_request_of_another(source: Source) -> None:
    coalescer, begun, go_on = Coalescer(), threading.Event(), threading.Event()

    async def slow(byte_range: ByteRange) -> Fetched:
        begun.set()
        go_on.wait()
        return await source.fetch(byte_range)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(lambda: run_blocking(coalescer.read("a", (0, 1000), slow)))
        begun.wait()
        second = pool.submit(lambda: run_blocking(coalescer.read("a", (200, 300), source.fetch)))
        go_on.set()
        check([(0, 1000), (200, 300)], [first.result(), second.result()])
    # The second may also have come when the first was done: then it asked for itself.
    assert source.asked in ([(0, 1000)], [(0, 1000), (200, 300)])


def test_threads_and_tasks_never_wait_for_each_other(source: Source) -> None:
    async def main() -> list[Fetched]:
        coalescer, begun = Coalescer(), asyncio.Event()

        async def never(byte_range: ByteRange) -> Fetched:
            begun.set()
            await asyncio.Event().wait()
            raise AssertionError(byte_range)

        task = asyncio.create_task(coalescer.read("a", (0, 1000), never))
        await begun.wait()
        inline = run_blocking(coalescer.read("a", (0, 1000), source.fetch))
        task.cancel()
        return [inline]

    check([(0, 1000)], asyncio.run(main()))


def test_threads_and_tasks_together_get_their_bytes(source: Source) -> None:
    coalescer = Coalescer(Limits(held_bytes=100 * KILO, window_bytes=50 * KILO))

    def in_thread(rows: list[ByteRange]) -> None:
        for row in rows:
            check([row], [run_blocking(coalescer.read("a", row, source.fetch))])

    def in_loop(rows: list[ByteRange]) -> None:
        check(rows, gather(coalescer, source, rows))

    jobs: list[tuple[Callable[[list[ByteRange]], None], list[ByteRange]]] = [
        (in_thread, ROWS),
        (in_loop, ROWS[::-1]),
        (in_thread, ROWS[::2]),
        (in_loop, ROWS[:50]),
    ]
    with ThreadPoolExecutor(len(jobs)) as pool:
        for done in [pool.submit(work, rows) for work, rows in jobs]:
            done.result()
    assert coalescer.held_bytes <= 100 * KILO


def test_readers_driven_step_by_step_get_their_bytes(source: Source) -> None:
    coalescer = Coalescer()

    def reading(row: ByteRange) -> Coroutine[object, object, Fetched]:
        return coalescer.read("a", row, source.fetch)

    run = run_schedule([reading(row) for row in ROWS[:4]], [3, 2, 1, 0])
    check(ROWS[:4], [outcome.result for outcome in run.outcomes])
