"""Small repositories in memory, and what is in them, for tests of whole sessions."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from zarr.core.buffer import default_buffer_prototype

import icefloe
from icefloe.effects import run_blocking
from icefloe.storage import Storage

CHUNKS: Final = 8
BIG: Final = 600
"""More bytes than are kept inline."""

_PROTOTYPE: Final = default_buffer_prototype()


def array_document(chunks: int = CHUNKS) -> bytes:
    grid = {"name": "regular", "configuration": {"chunk_shape": [1]}}
    keys = {"name": "default", "configuration": {"separator": "/"}}
    return json.dumps(
        {
            "zarr_format": 3,
            "node_type": "array",
            "shape": [chunks],
            "data_type": "uint8",
            "chunk_grid": grid,
            "chunk_key_encoding": keys,
            "fill_value": 0,
            "codecs": [{"name": "bytes"}],
            "attributes": {},
        }
    ).encode()


GROUP: Final = b'{"zarr_format":3,"node_type":"group","attributes":{}}'


async def put(session: icefloe.Session, key: str, data: bytes) -> None:
    await session.store.set(key, _PROTOTYPE.buffer.from_bytes(data))


async def put_chunk(session: icefloe.Session, number: int, value: int, size: int = 1) -> None:
    await put(session, f"a/c/{number}", bytes([value]) * size)


def prepared(spec_version: int) -> Storage:
    """Make a repository with an array of two chunks, one inline and one an object."""
    storage = icefloe.in_memory_storage()
    repo = icefloe.Repository.create(storage, spec_version=spec_version)

    async def fill() -> None:
        session = await repo.writable_session_async("main")
        await put(session, "zarr.json", GROUP)
        await put(session, "a/zarr.json", array_document())
        await put_chunk(session, 0, 1)
        await put_chunk(session, 1, 2, BIG)
        await session.commit_async("filled")

    run_blocking(fill())
    return storage


@dataclass(frozen=True)
class Seen:
    """What a fresh look at a repository shows."""

    messages: tuple[str, ...]
    """Of the history of main, newest first."""
    files: dict[str, bytes]
    tags: frozenset[str] = frozenset()
    branches: frozenset[str] = frozenset()
    detached: int = 0
    """Snapshots that no branch reaches."""


async def _files(session: icefloe.Session) -> dict[str, bytes]:
    found = {}
    async for key in session.store.list():
        buffer = await session.store.get(key, _PROTOTYPE)
        assert buffer is not None
        found[key] = buffer.to_bytes()
    return found


def seen_in(storage: Storage) -> Seen:
    repo = icefloe.Repository.open(storage)
    history = list(repo.ancestry(branch="main"))
    detached = 0
    if repo.spec_version > 1:
        detached = len(repo.inspect_repo_info()["snapshots"]) - len(history)
    return Seen(
        tuple(one.message for one in history),
        run_blocking(_files(repo.readonly_session("main"))),
        frozenset(repo.list_tags()),
        frozenset(repo.list_branches()),
        detached,
    )


type Work = Callable[[icefloe.Repository], Awaitable[Any]]
