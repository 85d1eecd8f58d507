"""Repositories with a past: versions to expire, and garbage of every kind."""

from functools import cache

import icefloe
from icefloe.effects import run_blocking
from icefloe.storage import Storage
from tests.faults.sessions import BIG, prepared, put_chunk
from tests.property.reachable import read, stored


def copied(storage: Storage) -> Storage:
    """Make a storage with the same objects."""
    other = icefloe.in_memory_storage()
    for key, data in stored(storage.open()).items():
        run_blocking(other.open().put(key, data))
    return other


def with_a_past(spec: int) -> Storage:
    """Make a repository with versions to expire, and with garbage of every kind."""
    return copied(_with_a_past(spec))


@cache
def _with_a_past(spec: int) -> Storage:
    storage = prepared(spec)
    repo = icefloe.Repository.open(storage)

    def commit(branch: str, number: int, value: int) -> str:
        session = repo.writable_session(branch)
        run_blocking(put_chunk(session, number, value, BIG))
        return session.commit(f"{branch} {value}")

    first = commit("main", 1, 10)
    repo.create_tag("kept", first)
    repo.create_branch("old", commit("main", 1, 11))
    repo.create_branch("gone", first)
    commit("gone", 2, 12)
    repo.delete_branch("gone")
    session = repo.writable_session("main")
    run_blocking(put_chunk(session, 3, 13, BIG))
    session.flush("on its own")
    run_blocking(put_chunk(repo.writable_session("main"), 4, 14, BIG))  # never committed
    commit("main", 1, 15)
    return storage


def versions(storage: Storage) -> dict[str, dict[str, bytes | str]]:
    repo = icefloe.Repository.open(storage)
    refs = [{"branch": name} for name in repo.list_branches()]
    refs += [{"tag": name} for name in repo.list_tags()]
    ids = {one.id for ref in refs for one in repo.ancestry(**ref)}
    return {one: read(repo, one) for one in ids}
