"""The number of threads that suits a storage, and limits on what they hold."""

import threading
import time
from collections.abc import Callable

import pytest

from icefloe.effects import run_blocking
from icefloe.pacing import MemoryBudget, Pace, map_at_pace, work_through


def settle(
    pace: Pace,
    rate_of: Callable[[int], float],
    most: int,
    clock: list[float],
    *,
    seconds: float = 0.001,
) -> int:
    """Let requests end at a rate that depends on the threads, and return the number at the end.

    `seconds` is the time of a request that meets no other.
    """
    for _ in range(20_000):
        clock[0] += 1 / rate_of(pace.threads(most))
        pace.finished(100_000, seconds, is_busy=True, most=most)
    return pace.threads(most)


@pytest.mark.parametrize("most", [1, 3, 16, 100, 128])
@pytest.mark.parametrize("rate", [lambda threads: 50.0 * threads, lambda threads: 3e3 / threads])
def test_a_pace_is_never_above_the_limit_nor_below_one(
    most: int, rate: Callable[[int], float]
) -> None:
    clock = [0.0]
    pace = Pace(lambda: clock[0])
    for _ in range(5_000):
        assert 1 <= pace.threads(most) <= most
        clock[0] += 1 / rate(pace.threads(most))
        pace.finished(100_000, 0.02, is_busy=True, most=most)


def test_a_pace_measures_again_when_the_rate_collapses() -> None:
    """A pace that learned few threads from a server nearby uses many when it is far away."""
    clock = [0.0]
    pace = Pace(lambda: clock[0])
    assert settle(pace, lambda threads: 100_000 / threads, 128, clock) == 16
    assert settle(pace, lambda threads: 10.0 * threads, 128, clock, seconds=0.1) == 128


@pytest.mark.parametrize(
    ("seconds", "rates", "fewest"),
    [
        (0.02, {16: 700.0, 32: 1_100.0, 64: 1_250.0, 128: 1_100.0}, 64),
        (0.001, {16: 5_000.0, 32: 4_000.0, 64: 3_000.0, 128: 2_000.0}, 16),
    ],
)
def test_threads_that_wait_for_a_distance_are_not_given_up(
    seconds: float, rates: dict[int, float], fewest: int
) -> None:
    """Where many threads keep a processor busy, few would wait for the distance."""
    clock, tried = [0.0], set[int]()
    pace = Pace(lambda: clock[0])

    def rate(threads: int) -> float:
        tried.add(threads)
        return rates[threads]

    settle(pace, rate, 128, clock, seconds=seconds)
    assert min(tried) == fewest


def test_what_needed_no_request_teaches_nothing() -> None:
    clock = [0.0]
    pace = Pace(lambda: clock[0])
    for _ in range(1_000):
        clock[0] += 1
        pace.finished(0, 0.0, is_busy=True, most=128)
    assert settle(pace, lambda threads: min(threads / 0.02, 1_250), 128, clock, seconds=0.02) >= 64


def test_a_distance_that_is_known_before_calls_for_more_threads() -> None:
    pace = Pace(lambda: 0.0)
    pace.waited(0.05)
    assert pace.threads(128) == 128
    pace.waited(0.02)
    assert (pace.threads(128), pace.threads(7)) == (128, 7)
    pace.waited(0.002)
    assert pace.threads(128) == Pace().threads(128) < 128


def test_what_was_measured_counts_more_than_a_single_request() -> None:
    clock = [0.0]
    pace = Pace(lambda: clock[0])
    chosen = settle(pace, lambda threads: 100_000 / threads, 128, clock)
    pace.waited(0.05)
    assert pace.threads(128) == chosen == 16


def test_reads_that_do_not_fill_the_threads_teach_nothing() -> None:
    clock = [0.0]
    pace = Pace(lambda: clock[0])
    for _ in range(1_000):
        clock[0] += 1
        pace.finished(1, 0.02, is_busy=False, most=128)
    assert pace.threads(128) == Pace().threads(128)


def test_a_budget_holds_one_that_is_too_large_alone() -> None:
    budget = MemoryBudget()
    held = list[int]()
    lock = threading.Lock()

    def hold(size_bytes: int) -> int:
        with budget.holding(size_bytes, most=10):
            with lock:
                held.append(budget.held_bytes)
            return size_bytes

    run_blocking(work_through(hold, [4, 50, 4, 4, 50, 1] * 20, pace=Pace(), most=8))
    assert len(held) == 120
    assert all(size <= 10 or size == 50 for size in held)
    assert budget.held_bytes == 0


def test_the_first_failure_ends_the_work() -> None:
    done = list[int]()

    def work(number: int) -> int:
        if number == 5:
            raise KeyError(number)
        done.append(number)
        return 0

    with pytest.raises(KeyError):
        run_blocking(work_through(work, range(10_000), pace=Pace(), most=1))
    assert done == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("count", [0, 1, 40, 100])
def test_results_at_a_pace_come_in_the_order_of_the_items(count: int) -> None:
    async def square(number: int) -> int:
        return number**2

    work = map_at_pace(square, range(count), pace=Pace(), most=128, size_of=lambda _: 1)
    assert run_blocking(work) == [number**2 for number in range(count)]


def test_more_requests_are_under_way_than_a_pool_of_the_core_has_threads() -> None:
    together = threading.Barrier(60)

    async def meet(number: int) -> int:
        together.wait(60)
        return number

    work = map_at_pace(meet, range(60), pace=Pace(), most=128, size_of=lambda _: 1)
    assert run_blocking(work) == list(range(60))


def test_memory_limits_how_many_are_under_way() -> None:
    under_way, most_under_way, lock = [0], [0], threading.Lock()

    async def count(_: int) -> None:
        with lock:
            under_way[0] += 1
            most_under_way[0] = max(most_under_way[0], under_way[0])
        time.sleep(0.001)  # noqa: ASYNC251 - on a thread of its own
        with lock:
            under_way[0] -= 1

    work = map_at_pace(count, range(50), pace=Pace(), most=128, size_of=lambda _: 1, at_once=3)
    run_blocking(work)
    assert most_under_way[0] <= 3


def test_work_on_a_thread_of_a_pool_starts_no_further_threads() -> None:
    async def thread(_: int) -> int:
        return threading.get_ident()

    work = map_at_pace(thread, range(50), pace=Pace(), most=128, size_of=lambda _: 1)
    assert set(run_blocking(work, "worker")) == {threading.get_ident()}
