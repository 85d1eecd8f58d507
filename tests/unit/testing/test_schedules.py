"""The driver plays schedules exactly, and finds the races that a bad protocol has."""

import asyncio
import math
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from icefloe import effects
from icefloe.effects import run_blocking
from icefloe.errors import PreconditionFailedError
from icefloe.storage.memory import MemoryBackend
from icefloe.storage.port import Backend
from icefloe.storage.storage import Storage
from icefloe.testing.faulty import Crash, FaultyBackend, SimulatedCrash
from icefloe.testing.schedules import (
    Schedule,
    ScheduleRun,
    SteppingBackend,
    SteppingStorage,
    WrappedStorage,
    all_schedules,
    run_schedule,
)
from icefloe.testing.storage_suite import StorageConformance


class TestWithoutDriver(StorageConformance):
    """Outside of a driver the pauses do nothing."""

    @pytest.fixture
    def backend(self) -> Backend:
        return SteppingBackend(MemoryBackend())


async def add_carelessly(backend: Backend) -> None:
    value = int(bytes((await backend.get("counter")).data))
    await backend.put("counter", str(value + 1).encode())


async def add_safely(backend: Backend) -> None:
    while True:
        found = await backend.get("counter")
        value = int(bytes(found.data)) + 1
        try:
            await backend.put("counter", str(value).encode(), if_version=found.info.version)
        except PreconditionFailedError:
            await effects.sleep(1000)
        else:
            return


def race(add: Any, count: int, schedule: Schedule) -> tuple[ScheduleRun, int]:
    inner = MemoryBackend()
    run_blocking(inner.put("counter", b"0"))
    stepping = SteppingBackend(inner)
    run = run_schedule([add(stepping) for _ in range(count)], schedule)
    return run, int(bytes(run_blocking(inner.get("counter")).data))


def results(add: Any, count: int) -> list[int]:
    found = []

    def play(schedule: Schedule) -> ScheduleRun:
        run, value = race(add, count, schedule)
        found.append(value)
        return run

    for run in all_schedules(play):
        assert all(outcome.succeeded for outcome in run.outcomes)
    return found


def test_every_interleaving_is_played_once() -> None:
    values = results(add_carelessly, 2)
    assert len(values) == math.comb(6, 3)  # two requests and an end, for each of two
    assert set(values) == {1, 2}


@pytest.mark.slow
def test_a_safe_protocol_survives_every_interleaving() -> None:
    assert set(results(add_safely, 2)) == {2}
    assert set(results(add_safely, 3)) == {3}


def test_the_same_schedule_gives_the_same_run() -> None:
    schedule = (1, 0, 0, 1)
    assert race(add_carelessly, 2, schedule) == race(add_carelessly, 2, schedule)


def test_too_many_schedules_are_an_error() -> None:
    def play(schedule: Schedule) -> ScheduleRun:
        return race(add_carelessly, 3, schedule)[0]

    with pytest.raises(RuntimeError, match="more than 10 schedules"):
        list(all_schedules(play, limit=10))


def test_a_crash_leaves_the_steps_before_it() -> None:
    backend = MemoryBackend()

    async def write() -> None:
        stepping = SteppingBackend(backend)
        for number in range(3):
            await stepping.put(str(number), b"")

    run = run_schedule([write()], crashes={0: 2})
    assert run.outcomes[0].crashed
    assert [key for key in ("0", "1", "2") if key in backend._objects] == ["0"]


def test_errors_are_outcomes() -> None:
    async def fail() -> None:
        raise ValueError("no")

    async def work() -> int:
        return 1

    run = run_schedule([fail(), work()], (1, 0))
    assert isinstance(run.outcomes[0].error, ValueError)
    assert run.outcomes[1].result == 1


def test_only_chosen_keys_are_turns() -> None:
    async def write(backend: Backend) -> None:
        await backend.put("chunks/1", b"")
        await backend.put("repo", b"")

    run = run_schedule([write(SteppingBackend(MemoryBackend(), ("repo",)))])
    assert run.outcomes[0].steps == 1


def test_effects_work_step_by_step() -> None:
    """Fan-out happens in line, and one who sleeps lets others go on."""
    order = list[str]()

    async def note(name: str) -> str:
        await effects.sleep(1000)
        order.append(name)
        return name

    async def work(names: Sequence[str]) -> list[str]:
        flights = effects.SingleFlight[str, str]()
        assert await flights.run("x", lambda: note(names[0])) == names[0]
        assert await effects.offload(lambda: 1) == 1
        return await effects.map_concurrently(note, names, limit=4)

    actors: list[Coroutine[Any, Any, list[str]]] = [work("ab"), work("cd")]
    run = run_schedule(actors, (0, 1) * 5)
    assert [outcome.result for outcome in run.outcomes] == [["a", "b"], ["c", "d"]]
    assert order == ["a", "c", "a", "c", "b", "d"]


def test_wrapped_storage_shares_its_objects() -> None:
    inner = Storage.new_in_memory()
    storage = WrappedStorage(inner, lambda backend: FaultyBackend(backend, Crash(1, "before")))
    run_blocking(storage.open().put("a", b""))
    assert inner.list_objects() == [("a", 0)]
    with pytest.raises(SimulatedCrash):
        run_blocking(storage.open().put("b", b""))
    assert isinstance(SteppingStorage(inner).open(), SteppingBackend)


def test_pauses_do_not_disturb_event_loops() -> None:
    async def work() -> str:
        await effects.pause()
        return "done"

    assert asyncio.run(work()) == "done"
    assert run_blocking(work()) == "done"
