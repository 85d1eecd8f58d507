"""Requests that ask the same at the same time share work, which begins after they asked."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from icefloe.errors import StorageError
from icefloe.service.rounds import Rounds


class Work:
    """Work that ends when the test lets it, and returns the number of its round."""

    def __init__(self) -> None:
        self.begun = 0
        self.gates: list[asyncio.Event] = []

    async def __call__(self) -> int:
        self.begun += 1
        number, gate = self.begun, asyncio.Event()
        self.gates.append(gate)
        await gate.wait()
        return number


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - the condition has no event
        await asyncio.sleep(0)


def run(test: Callable[[Rounds, Work], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(60):
            await test(Rounds(), Work())

    asyncio.run(main())


def test_who_asks_before_a_round_begins_shares_it() -> None:
    async def test(rounds: Rounds, work: Work) -> None:
        asking = [asyncio.create_task(rounds.ask("key", work)) for _ in range(5)]
        await until(lambda: work.begun == 1)
        work.gates[0].set()
        assert await asyncio.gather(*asking) == [1] * 5
        assert work.begun == 1

    run(test)


def test_who_asks_during_a_round_gets_the_next_one() -> None:
    async def test(rounds: Rounds, work: Work) -> None:
        first = asyncio.create_task(rounds.ask("key", work))
        await until(lambda: work.begun == 1)
        later = [asyncio.create_task(rounds.ask("key", work)) for _ in range(5)]
        await asyncio.sleep(0)
        work.gates[0].set()
        assert await first == 1
        await until(lambda: work.begun == 2)
        last = asyncio.create_task(rounds.ask("key", work))
        await asyncio.sleep(0)
        work.gates[1].set()
        assert await asyncio.gather(*later) == [2] * 5
        await until(lambda: work.begun == 3)
        work.gates[2].set()
        assert await last == 3

    run(test)


def test_a_round_that_takes_long_holds_up_nobody_for_good() -> None:
    async def test(rounds: Rounds, work: Work) -> None:
        first = asyncio.create_task(rounds.ask("key", work))
        await until(lambda: work.begun == 1)
        second = asyncio.create_task(rounds.ask("key", work))
        await until(lambda: work.begun == 2)  # although the first has not ended
        work.gates[1].set()
        assert await second == 2
        third = asyncio.create_task(rounds.ask("key", work))
        await until(lambda: work.begun == 3)
        for gate in work.gates:
            gate.set()
        assert [await first, await third] == [1, 3]

    run(test)


def test_other_questions_have_rounds_of_their_own() -> None:
    async def test(rounds: Rounds, work: Work) -> None:
        asking = [asyncio.create_task(rounds.ask(key, work)) for key in ("one", "two")]
        await until(lambda: work.begun == 2)
        for gate in work.gates:
            gate.set()
        assert await asyncio.gather(*asking) == [1, 2]

    run(test)


def test_who_gives_up_takes_nothing_from_the_others() -> None:
    async def test(rounds: Rounds, work: Work) -> None:
        impatient, patient = (asyncio.create_task(rounds.ask("key", work)) for _ in range(2))
        await until(lambda: work.begun == 1)
        impatient.cancel()
        with pytest.raises(asyncio.CancelledError):
            await impatient
        work.gates[0].set()
        assert await patient == 1

    run(test)


def test_an_error_is_that_of_its_round_only() -> None:
    async def test(rounds: Rounds, work: Work) -> None:
        async def fail() -> int:
            raise StorageError("the store is away")

        results = await asyncio.gather(
            *(rounds.ask("key", fail) for _ in range(2)), return_exceptions=True
        )
        assert [type(result) for result in results] == [StorageError] * 2
        again = asyncio.create_task(rounds.ask("key", work))
        await until(lambda: work.begun == 1)
        work.gates[0].set()
        assert await again == 1

    run(test)
