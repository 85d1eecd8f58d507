"""Those who work on a repository while garbage is collected, each a coroutine of its own.

An actor is started on a storage, with the prefixes of keys before which it pauses. What it made
or saw is checked when all have ended.
"""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import icefloe
from icefloe.effects import run_blocking
from icefloe.storage import Storage
from icefloe.testing.schedules import SteppingStorage
from tests.faults.pasts import versions
from tests.faults.sessions import BIG, put_chunk
from tests.property.reachable import PROTOTYPE

type Keys = tuple[str, ...]
type Actor = Callable[[Storage, Keys], Coroutine[Any, Any, Any]]


@dataclass(frozen=True)
class Made:
    """A version that somebody made, with the chunks that it must have."""

    snapshot: str
    chunks: Mapping[str, bytes]


# -- those who sweep -----------------------------------------------------------------------


def collecting(storage: Storage, keys: Keys) -> Coroutine[Any, Any, Any]:
    repo = icefloe.Repository.open(SteppingStorage(storage, keys))
    return repo.garbage_collect_async(datetime.now(UTC))


def collecting_incrementally(storage: Storage, keys: Keys) -> Coroutine[Any, Any, Any]:
    repo = icefloe.Repository.open(SteppingStorage(storage, keys))
    return repo.garbage_collect_async(datetime.now(UTC), incremental=True)


def expiring(storage: Storage, keys: Keys) -> Coroutine[Any, Any, Any]:
    repo = icefloe.Repository.open(SteppingStorage(storage, keys))
    return repo.expire_snapshots_async(datetime.now(UTC), delete_expired_branches=True)


SWEEPS: Final[frozenset[Actor]] = frozenset({collecting, collecting_incrementally, expiring})


# -- those who write -----------------------------------------------------------------------


def _chunk(value: int) -> bytes:
    return bytes([value]) * BIG


async def _writing(storage: Storage, keys: Keys, branch: str = "main") -> icefloe.Session:
    repo = await icefloe.Repository.open_async(SteppingStorage(storage, keys))
    return await repo.writable_session_async(branch)


async def committing(storage: Storage, keys: Keys) -> Made:
    session = await _writing(storage, keys)
    await put_chunk(session, 5, 77, BIG)
    made = await session.commit_async("meanwhile", rebase_with=icefloe.ConflictDetector())
    return Made(made, {"a/c/5": _chunk(77)})


def committing_what_was_written_before(storage: Storage, keys: Keys) -> Coroutine[Any, Any, Made]:
    """Commit a chunk that was an object before anybody took a step."""
    session = icefloe.Repository.open(SteppingStorage(storage, keys)).writable_session("main")
    run_blocking(put_chunk(session, 5, 77, BIG))

    async def commit() -> Made:
        made = await session.commit_async("meanwhile", rebase_with=icefloe.ConflictDetector())
        return Made(made, {"a/c/5": _chunk(77)})

    return commit()


async def committing_to_the_old_branch(storage: Storage, keys: Keys) -> Made:
    session = await _writing(storage, keys, "old")
    await put_chunk(session, 5, 77, BIG)
    return Made(await session.commit_async("meanwhile"), {"a/c/5": _chunk(77)})


async def forking(storage: Storage, keys: Keys) -> Made:
    """Write in two forks, one of which is forked again, and commit when they are back."""
    session = await _writing(storage, keys)
    left, right = await session.fork_async(), await session.fork_async()
    below = await right.fork_async()
    await put_chunk(left, 5, 61, BIG)
    await put_chunk(below, 6, 62, BIG)
    await right.merge_async(below)
    await put_chunk(right, 7, 63, BIG)
    await session.merge_async(left, right)
    made = await session.commit_async("forked", rebase_with=icefloe.ConflictDetector())
    return Made(made, {"a/c/5": _chunk(61), "a/c/6": _chunk(62), "a/c/7": _chunk(63)})


async def flushing(storage: Storage, keys: Keys) -> Made:
    """Make a version that no branch leads to."""
    session = await _writing(storage, keys)
    await put_chunk(session, 5, 71, BIG)
    return Made(await session.flush_async("on its own"), {"a/c/5": _chunk(71)})


async def flushing_and_tagging(storage: Storage, keys: Keys) -> Made:
    """Make a version that no branch leads to, and name it in a later step."""
    made = await flushing(storage, keys)
    repo = await icefloe.Repository.open_async(SteppingStorage(storage, keys))
    await repo.create_tag_async("named", made.snapshot)
    return made


async def amending(storage: Storage, keys: Keys) -> Made:
    session = await _writing(storage, keys)
    await put_chunk(session, 5, 72, BIG)
    return Made(await session.amend_async("amended"), {"a/c/5": _chunk(72)})


# -- those who move refs -------------------------------------------------------------------


def _doomed(storage: Storage) -> str:
    """Find a version that nothing leads to."""
    repo = icefloe.Repository.open(storage)
    every: set[str] = {one["id"] for one in repo.inspect_repo_info()["snapshots"]}
    return min(every - versions(storage).keys())


def rescuing(storage: Storage, keys: Keys) -> Coroutine[Any, Any, Made]:
    target = _doomed(storage)

    async def create_tag() -> Made:
        repo = await icefloe.Repository.open_async(SteppingStorage(storage, keys))
        await repo.create_tag_async("rescued", target)
        return Made(target, {})

    return create_tag()


def going_back(storage: Storage, keys: Keys) -> Coroutine[Any, Any, Made]:
    target = _doomed(storage)

    async def reset() -> Made:
        repo = await icefloe.Repository.open_async(SteppingStorage(storage, keys))
        await repo.reset_branch_async("old", target)
        return Made(target, {})

    return reset()


# -- those who read ------------------------------------------------------------------------


def reading(storage: Storage, keys: Keys) -> Coroutine[Any, Any, Made]:
    """Read the newest version and a tag, a chunk at a time, through one session each."""
    expected = versions(storage)

    async def read() -> Made:
        repo = await icefloe.Repository.open_async(SteppingStorage(storage, keys))
        main = await repo.readonly_session_async("main")
        for session in (main, await repo.readonly_session_async(tag="kept")):
            known = expected.get(session.snapshot_id, {})
            for key in [key async for key in session.store.list()]:
                buffer = await session.store.get(key, PROTOTYPE)
                assert buffer is not None, key
                assert known.get(key, buffer.to_bytes()) == buffer.to_bytes(), key
        return Made(main.snapshot_id, {})

    return read()
