"""What one caller owes to others arrives with those who may wait for it, and with nobody else."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from icefloe.effects import Landing, company, let_others_join, run_blocking, stepped_context


def test_threads_wait_for_what_a_thread_owes() -> None:
    async def make() -> Landing[int]:
        return Landing[int]()

    landing = run_blocking(make())
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(lambda: run_blocking(landing.wait())) for _ in range(2)]
        landing.land(7)
        assert [each.result() for each in waiting] == [7, 7]


def test_a_task_that_gives_up_leaves_the_others_waiting() -> None:
    async def main() -> int:
        landing = Landing[int]()
        hasty, patient = (asyncio.create_task(landing.wait()) for _ in range(2))
        await asyncio.sleep(0)
        hasty.cancel()
        await asyncio.sleep(0)
        landing.land(7)
        return await patient

    assert asyncio.run(main()) == 7


def test_only_the_first_result_counts() -> None:
    async def main() -> int:
        landing = Landing[int]()
        landing.land(1)
        landing.land(2)
        return await landing.wait()

    assert run_blocking(main()) == asyncio.run(main()) == 1


def test_company_is_threads_or_one_loop_or_nobody() -> None:
    async def mine() -> object:
        return company()

    async def twice() -> tuple[object, object, object]:
        return company(), await asyncio.create_task(mine()), run_blocking(mine())

    first, second, inline = asyncio.run(twice())
    assert first == second
    assert first != inline
    assert inline == run_blocking(mine())
    assert asyncio.run(mine()) != first
    context = stepped_context()
    assert context.run(company) != context.run(company)


def test_those_about_to_run_do_so_before_one_who_lets_them_join() -> None:
    order = []

    async def first() -> None:
        order.append("first")
        await let_others_join()
        order.append("first again")

    async def second() -> None:
        order.append("second")

    async def main() -> None:
        await asyncio.gather(first(), second())

    asyncio.run(main())
    assert order == ["first", "second", "first again"]
    run_blocking(first())  # nobody can join, and nothing is waited for
