"""One core, two drivers: the same coroutine blocks or awaits."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import cast

import pytest

from icefloe import effects
from icefloe.effects import (
    AsyncCloseableIterator,
    Gate,
    both,
    is_blocking,
    iterate_blocking,
    map_concurrently,
    offload,
    run_blocking,
    sleep,
)

type Driver = Callable[[Awaitable[list[int]]], list[int]]


def on_a_loop(work: Awaitable[list[int]]) -> list[int]:
    async def main() -> list[int]:
        return await work

    return asyncio.run(main())


DRIVERS = pytest.mark.parametrize("drive", [run_blocking, on_a_loop])


def test_the_mode_is_known_inside_and_restored_outside() -> None:
    async def ask() -> bool:
        return is_blocking()

    assert run_blocking(ask()) is True
    assert asyncio.run(ask()) is False
    assert not is_blocking()


def test_blocking_works_inside_a_running_loop() -> None:
    async def core() -> int:
        await sleep(0)
        return await offload(lambda: 7)

    async def user() -> int:
        return run_blocking(core())

    assert asyncio.run(user()) == 7


def test_suspending_while_blocking_is_a_bug_that_says_so() -> None:
    async def careless() -> None:
        await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="core code suspended"):
        run_blocking(careless())
    assert not is_blocking()


def test_offloading_leaves_the_loop_alone() -> None:
    async def thread() -> int:
        return await offload(threading.get_ident)

    assert run_blocking(thread()) == threading.get_ident()
    assert asyncio.run(thread()) != threading.get_ident()


@DRIVERS
@pytest.mark.parametrize("limit", [1, 3, 100])
def test_results_come_in_order_and_the_limit_holds(drive: Driver, limit: int) -> None:
    running, most, lock = 0, 0, threading.Lock()

    async def square(number: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        await sleep(0.001)
        with lock:
            running -= 1
        return number * number

    assert drive(map_concurrently(square, range(20), limit=limit)) == [n * n for n in range(20)]
    assert most <= limit


@DRIVERS
@pytest.mark.parametrize("numbers", [[], [3], [3, 4]])
def test_few_items_are_done_as_many_are(drive: Driver, numbers: list[int]) -> None:
    async def halve(number: int) -> int:
        await sleep(0)
        if number == 4:
            raise ValueError("four")
        return number // 2

    work = map_concurrently(halve, numbers, limit=2)
    if 4 in numbers:
        with pytest.raises(ValueError, match="four"):
            drive(work)
    else:
        assert drive(work) == [number // 2 for number in numbers]


@DRIVERS
def test_nested_fan_out_does_not_deadlock(drive: Driver) -> None:
    async def inner(number: int) -> int:
        return number

    async def outer(number: int) -> int:
        return sum(await map_concurrently(inner, range(number), limit=8))

    expected = [sum(range(n)) for n in range(100)]
    assert drive(map_concurrently(outer, range(100), limit=64)) == expected


@DRIVERS
def test_the_first_failure_is_raised_and_ends_the_work(drive: Driver) -> None:
    started: list[int] = []

    async def work(number: int) -> int:
        started.append(number)
        await sleep(0.001)
        if number == 3:
            raise ValueError("three")
        return number

    with pytest.raises(ValueError, match="three"):
        drive(map_concurrently(work, range(3000), limit=2))
    assert len(started) < 3000


@DRIVERS
@pytest.mark.parametrize("failing", ["", "first", "second"])
def test_two_pieces_of_work_are_under_way_at_once(drive: Driver, failing: str) -> None:
    begun = {"first": threading.Event(), "second": threading.Event()}

    async def work(name: str, other: str) -> str:
        begun[name].set()
        while not begun[other].is_set():
            await sleep(0.001)
        if name == failing:
            raise ValueError(name)
        return name

    async def pair() -> list[int]:
        found = await both(lambda: work("first", "second"), lambda: work("second", "first"))
        return [len(name) for name in found]

    if failing:
        with pytest.raises(ValueError, match=failing):
            drive(pair())
    else:
        assert drive(pair()) == [5, 6]


def test_where_nothing_may_be_done_at_once_two_pieces_follow_each_other() -> None:
    order: list[int] = []

    async def note(number: int) -> int:
        order.append(number)
        return number

    async def pair() -> tuple[int, int]:
        return await both(lambda: note(1), lambda: note(2))

    assert run_blocking(pair(), "worker") == (1, 2)
    assert order == [1, 2]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_a_pool_of_its_own() -> None:
    async def one(number: int) -> int:
        return number

    assert run_blocking(map_concurrently(one, range(4), limit=4)) == [0, 1, 2, 3]
    child = os.fork()
    if child == 0:
        is_fine = run_blocking(map_concurrently(one, range(4), limit=4)) == [0, 1, 2, 3]
        os._exit(0 if is_fine else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_finds_the_gate_empty() -> None:
    gate = Gate(1)
    read, write = os.pipe()

    def fork_inside() -> int:
        child = os.fork()
        if child == 0:
            os.write(write, gate.run(lambda: b"passed"))
            os._exit(0)
        return child

    child = gate.run(fork_inside)
    os.waitpid(child, 0)
    assert os.read(read, 6) == b"passed"
    os.close(read)
    os.close(write)


def test_work_that_fails_leaves_the_gate() -> None:
    gate = Gate(1)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            gate.run(lambda: 1 / 0)


def test_threads_of_the_pool_are_workers() -> None:
    async def mode(_: int) -> str:
        return effects._mode.get()

    assert set(run_blocking(map_concurrently(mode, range(4), limit=4))) == {"worker"}


async def counting(closed: list[bool], modes: list[bool]) -> AsyncIterator[int]:
    try:
        for number in range(3):
            await sleep(0)
            modes.append(is_blocking())
            yield number
    finally:
        await sleep(0)
        closed.append(is_blocking())


def test_generators_are_driven_without_a_loop() -> None:
    closed: list[bool] = []
    modes: list[bool] = []
    assert list(iterate_blocking(counting(closed, modes))) == [0, 1, 2]
    assert modes == [True, True, True]
    assert closed == [True]
    assert not is_blocking()


def test_stopping_early_closes_the_generator() -> None:
    closed: list[bool] = []
    items = iterate_blocking(counting(closed, []))
    assert next(items) == 0
    cast("Generator[int]", items).close()
    assert closed == [True]


def test_a_failure_in_a_generator_reaches_the_caller() -> None:
    async def failing() -> AsyncIterator[int]:
        yield 1
        raise OSError("disk")

    items = iterate_blocking(failing())
    assert next(items) == 1
    with pytest.raises(OSError, match="disk"):
        next(items)


def test_generators_are_driven_inside_a_running_loop() -> None:
    async def user() -> list[int]:
        return list(iterate_blocking(counting([], [])))

    assert asyncio.run(user()) == [0, 1, 2]


def test_one_iterator_serves_both_kinds_of_loops() -> None:
    closed: list[bool] = []
    assert list(AsyncCloseableIterator(counting(closed, []))) == [0, 1, 2]

    async def user() -> list[int]:
        items = AsyncCloseableIterator(counting(closed, []))
        taken = [await anext(items)]
        await items.aclose()
        return taken + [item async for item in items]

    assert asyncio.run(user()) == [0]
    assert closed == [True, False]
