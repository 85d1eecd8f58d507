"""The reference, driven by the same words as our engine in `tests.support.sides`."""

import asyncio
from collections.abc import Iterable
from typing import Any

import icechunk as ic
from zarr.core.buffer import Buffer, default_buffer_prototype

from tests.support.sides import Tree, array_json, group_json


def _key(path: str, name: str) -> str:
    return f"{path.strip('/')}/{name}".lstrip("/")


class Reference:
    """The reference implementation."""

    def __init__(self, spec_version: int = 2, repo: ic.Repository | None = None) -> None:
        self.repo = repo or ic.Repository.create(ic.in_memory_storage(), spec_version=spec_version)

    def tip(self, branch: str = "main") -> str:
        return self.repo.lookup_branch(branch)

    def begin(self, branch: str = "main") -> ic.Session:
        return self.repo.writable_session(branch)

    def begin_moving(self, branch: str = "main") -> ic.Session:
        return self.repo.rearrange_session(branch)

    def at(self, snapshot: str) -> ic.Session:
        return self.repo.readonly_session(snapshot_id=snapshot)

    def _set(self, session: ic.Session, key: str, data: bytes) -> None:
        asyncio.run(session.store.set(key, _buffer(data)))

    def group(self, session: ic.Session, path: str, mark: int = 0) -> None:
        self._set(session, _key(path, "zarr.json"), group_json(mark))

    def array(self, session: ic.Session, path: str, *shape: int, mark: int = 0) -> None:
        self._set(session, _key(path, "zarr.json"), array_json(shape, mark))

    def write(self, session: ic.Session, path: str, *index: int, value: bytes = b"x") -> None:
        self._set(session, _chunk_key(path, index), value)

    def erase(self, session: ic.Session, path: str, *index: int) -> None:
        asyncio.run(session.store.delete(_chunk_key(path, index)))

    def delete(self, session: ic.Session, path: str) -> None:
        asyncio.run(session.store.delete_dir(path.strip("/")))

    def move(self, session: ic.Session, source: str, target: str) -> None:
        session.move(source, target)

    def shift(self, session: ic.Session, path: str, *offset: int) -> None:
        session.shift_array(path, list(offset))

    def reindex(self, session: ic.Session, path: str, forward: Any, backward: Any = None) -> None:
        session.reindex_array(path, forward, backward)

    def commit(self, session: ic.Session, **options: Any) -> str:
        return session.commit("a commit", **options)

    def rebase(self, session: ic.Session, solver: ic.ConflictSolver) -> None:
        session.rebase(solver)

    def fork(self, session: ic.Session) -> ic.ForkSession:
        return session.fork()

    def merge(self, session: ic.Session, *others: ic.ForkSession) -> None:
        session.merge(*others)

    def status(self, session: ic.Session) -> ic.Diff:
        return session.status()

    def diff(self, before: str, after: str) -> ic.Diff:
        return self.repo.diff(from_snapshot_id=before, to_snapshot_id=after)

    def tree(self, session: ic.Session | None = None) -> Tree:
        store = (session or self.at(self.tip())).store

        async def read() -> dict[str, bytes]:
            found = {}
            async for key in store.list():
                value = await store.get(key, default_buffer_prototype())
                found[key] = b"" if value is None else value.to_bytes()
            return found

        return _tree_of(asyncio.run(read()))


def _buffer(data: bytes) -> Buffer:
    return default_buffer_prototype().buffer.from_bytes(data)


def _chunk_key(path: str, index: Iterable[int]) -> str:
    return "/".join([path.strip("/"), "c", *map(str, index)])


def _tree_of(files: dict[str, bytes]) -> Tree:
    tree: Tree = {}
    for key, data in files.items():
        if key.endswith("zarr.json"):
            path = "/" + key.removesuffix("zarr.json").strip("/")
            tree[path] = {} if b'"array"' in data else None
    for key, data in files.items():
        if not key.endswith("zarr.json"):
            path, _, index = key.rpartition("/c/")
            chunks = tree["/" + path]
            assert chunks is not None
            chunks[tuple(map(int, index.split("/")))] = data
    return tree
