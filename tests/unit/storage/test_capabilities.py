"""Turns of writers: in order, nested, after a death, beside somebody who does not move."""

import asyncio
import multiprocessing
import os
import signal
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

import icefloe
from icefloe.effects import run_blocking
from icefloe.storage import Storage
from icefloe.storage.capabilities import has_queue, turn
from icefloe.storage.local import LocalBackend
from tests.conformance.waiting import wait_for
from tests.faults.sessions import GROUP, put

pytestmark = pytest.mark.slow

SPAWN = multiprocessing.get_context("spawn")
WRITERS = 6


@pytest.fixture
def root(tmp_path: Path) -> str:
    run_blocking(LocalBackend(str(tmp_path)).put("repo", b"1"))
    return str(tmp_path)


def test_first_come_first_served(root: str) -> None:
    assert has_queue(LocalBackend(root))
    order: list[int] = []

    async def write(number: int) -> None:
        async with turn(LocalBackend(root), "repo"):
            order.append(number)

    async def scenario() -> None:
        async with turn(LocalBackend(root), "repo"):
            writers = []
            for number in range(WRITERS):
                writers.append(asyncio.create_task(write(number)))
                await asyncio.sleep(0)  # it draws its ticket, and begins to wait
            order.append(-1)
        await asyncio.gather(*writers)

    asyncio.run(scenario())
    assert order == [-1, *range(WRITERS)]


def test_who_has_a_turn_has_it_again_at_once(root: str) -> None:
    backend = LocalBackend(root)

    async def nested() -> str:
        async with turn(backend, "repo"), turn(backend, "repo"):
            return "done"

    assert run_blocking(nested()) == "done"
    assert asyncio.run(nested()) == "done"


def test_turns_at_different_directories_do_not_wait_for_each_other(root: str) -> None:
    backend = LocalBackend(root)
    run_blocking(backend.put("folder/repo", b"1"))

    async def both() -> str:
        async with turn(backend, "repo"), turn(LocalBackend(root), "folder/repo"):
            return "done"

    assert run_blocking(both()) == "done"


def test_storages_without_a_queue_let_everybody_go() -> None:
    backend = Storage.new_in_memory().open()

    async def both() -> str:
        async with turn(backend, "repo"), turn(Storage.new_in_memory().open(), "repo"):
            return "done"

    assert not has_queue(backend)
    assert run_blocking(both()) == "done"


def have_turn_and_tell(root: str, begun: Event) -> None:
    async def wait() -> None:
        async with turn(LocalBackend(root), "repo"):
            begun.set()
            signal.pause()

    run_blocking(wait())


@pytest.mark.parametrize("fate", [signal.SIGKILL, signal.SIGSTOP])
def test_a_holder_that_died_or_stopped_holds_up_nobody(tmp_path: Path, fate: int) -> None:
    repo = icefloe.Repository.create(icefloe.local_filesystem_storage(str(tmp_path)))
    begun = SPAWN.Event()
    holder = SPAWN.Process(target=have_turn_and_tell, args=(str(tmp_path), begun), daemon=True)
    holder.start()
    wait_for(begun, holder)
    assert holder.pid is not None
    os.kill(holder.pid, fate)
    try:
        for name in ("first", "second"):
            session = repo.writable_session("main")
            run_blocking(put(session, f"{name}/zarr.json", GROUP))
            session.commit(name)
    finally:
        holder.kill()
        holder.join()
    assert [one.message for one in repo.ancestry(branch="main")][:2] == ["second", "first"]


@pytest.mark.parametrize("spec_version", [1, 2])
def test_many_tasks_of_one_loop_commit_at_once(tmp_path: Path, spec_version: int) -> None:
    """More than there are threads: whoever waits for a turn must not keep one."""
    storage = icefloe.local_filesystem_storage(str(tmp_path))
    icefloe.Repository.create(storage, spec_version=spec_version)
    tasks = 40

    async def write(number: int) -> None:
        repo = await icefloe.Repository.open_async(storage)
        session = await repo.writable_session_async("main")
        await put(session, f"g{number}/zarr.json", GROUP)
        await session.commit_async(f"{number}", rebase_with=icefloe.ConflictDetector())

    async def scenario() -> set[str]:
        await asyncio.gather(*(write(number) for number in range(tasks)))
        repo = await icefloe.Repository.open_async(storage)
        return {one.message async for one in repo.async_ancestry(branch="main")}

    assert {str(number) for number in range(tasks)} <= asyncio.run(scenario())
