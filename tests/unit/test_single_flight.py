"""Those who want the same thing at the same time share the work, but never a failure."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event

from icefloe.effects import SingleFlight, run_blocking


def test_tasks_share_one_result() -> None:
    calls = []

    async def main() -> list[object]:
        flights, gate = SingleFlight[str, object](), asyncio.Event()

        async def work() -> object:
            calls.append(1)
            await gate.wait()
            return object()

        tasks = [asyncio.create_task(flights.run("a", work)) for _ in range(5)]
        await asyncio.sleep(0)
        gate.set()
        return await asyncio.gather(*tasks)

    results = asyncio.run(main())
    assert len(calls) == 1
    assert len(set(results)) == 1


def test_different_keys_do_not_wait_for_each_other() -> None:
    async def main() -> str:
        flights, gate = SingleFlight[str, str](), asyncio.Event()

        async def waiting() -> str:
            await gate.wait()
            return "slow"

        async def quick() -> str:
            gate.set()
            return "quick"

        slow = asyncio.create_task(flights.run("a", waiting))
        await asyncio.sleep(0)
        return await flights.run("b", quick) + await slow

    assert asyncio.run(main()) == "quickslow"


def test_threads_share_one_result() -> None:
    flights, begun, go_on, calls = SingleFlight[str, int](), Event(), Event(), []

    async def work() -> int:
        calls.append(1)
        begun.set()
        go_on.wait()
        return 7

    def ask() -> int:
        return run_blocking(flights.run("a", work))

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(ask)
        begun.wait()
        second = pool.submit(ask)
        go_on.set()
        assert (first.result(), second.result()) == (7, 7)
    # The second may come when the first is done already: then it does the work again.
    assert len(calls) in (1, 2)


def test_a_failure_is_not_shared() -> None:
    async def main() -> list[object]:
        flights, gate, calls = SingleFlight[str, int](), asyncio.Event(), []

        async def work() -> int:
            calls.append(1)
            await gate.wait()
            if len(calls) == 1:
                raise OSError("the first one fails")
            return len(calls)

        tasks = [asyncio.create_task(flights.run("a", work)) for _ in range(3)]
        await asyncio.sleep(0)
        gate.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    first, *others = asyncio.run(main())
    assert isinstance(first, OSError)
    assert set(others) <= {2, 3}


def test_cancelling_one_does_not_disturb_the_others() -> None:
    async def main() -> list[object]:
        flights, gate = SingleFlight[str, int](), asyncio.Event()

        async def work() -> int:
            await gate.wait()
            return 7

        tasks = [asyncio.create_task(flights.run("a", work)) for _ in range(4)]
        await asyncio.sleep(0)
        tasks[0].cancel()  # the one that does the work
        tasks[2].cancel()  # one that waits for it
        await asyncio.sleep(0)
        gate.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    results = asyncio.run(main())
    assert [type(each) for each in results] == [
        asyncio.CancelledError,
        int,
        asyncio.CancelledError,
        int,
    ]


def test_blocking_callers_do_not_wait_for_a_loop() -> None:
    """They could hold up the very loop that they wait for."""
    flights = SingleFlight[str, str]()

    async def main() -> str:
        gate = asyncio.Event()

        async def on_loop() -> str:
            await gate.wait()
            return "loop"

        async def blocking() -> str:
            return "blocking"

        waiting = asyncio.create_task(flights.run("a", on_loop))
        await asyncio.sleep(0)
        found = run_blocking(flights.run("a", blocking))
        gate.set()
        return found + await waiting

    assert asyncio.run(main()) == "blockingloop"


def test_nothing_is_left_behind() -> None:
    rounds = 50
    flights, barrier = SingleFlight[int, int](), Barrier(4)

    async def work() -> int:
        return 1

    def ask() -> int:
        barrier.wait()
        return sum(run_blocking(flights.run(number, work)) for number in range(rounds))

    with ThreadPoolExecutor(4) as pool:
        results = [pool.submit(ask) for _ in range(4)]
        assert [each.result() for each in results] == [rounds] * 4
    assert not flights._flights


def test_tasks_wait_for_threads_but_threads_not_for_tasks() -> None:
    flights, begun, go_on, calls = SingleFlight[str, str](), Event(), Event(), []

    async def of_thread() -> str:
        calls.append("thread")
        begun.set()
        go_on.wait()
        return "from the thread"

    async def of_task() -> str:
        calls.append("task")
        return "from the task"

    async def main() -> str:
        waiting = asyncio.create_task(flights.run("a", of_task))
        await asyncio.sleep(0)
        assert not waiting.done()
        go_on.set()
        return await waiting

    with ThreadPoolExecutor(1) as pool:
        thread = pool.submit(lambda: run_blocking(flights.run("a", of_thread)))
        begun.wait()
        assert flights.is_under_way("a")
        assert asyncio.run(main()) == thread.result() == "from the thread"
    assert calls == ["thread"]
    assert not flights.is_under_way("a")


def test_a_thread_does_not_wait_for_the_task_of_its_own_loop() -> None:
    flights, calls = SingleFlight[str, str](), []

    async def main() -> str:
        gate = asyncio.Event()

        async def of_task() -> str:
            await gate.wait()
            return "from the task"

        async def of_thread() -> str:
            calls.append(1)
            return "from the thread"

        waiting = asyncio.create_task(flights.run("a", of_task))
        await asyncio.sleep(0)
        assert run_blocking(flights.run("a", of_thread)) == "from the thread"
        gate.set()
        return await waiting

    assert asyncio.run(main()) == "from the task"
    assert calls == [1]
