"""What a repository needs, found the plain way: an oracle for tests of maintenance."""

from collections.abc import Iterable
from datetime import datetime

from zarr.core.buffer import default_buffer_prototype

import icefloe
from icefloe.effects import run_blocking
from icefloe.format.chunk_table import ChunkKind
from icefloe.format.ids import ChunkId, ManifestId, SnapshotId, ids_of_rows
from icefloe.format.layout import (
    chunk_key,
    manifest_key,
    snapshot_key,
    tag_tombstone_key,
    transaction_log_key,
)
from icefloe.format.manifest import ManifestFile
from icefloe.format.repo_info import decode_repo_info
from icefloe.format.snapshot import decode_snapshot
from icefloe.storage import Backend, ObjectInfo
from icefloe.testing.stored_files import read_all

PROTOTYPE = default_buffer_prototype()
COLLECTED = ("snapshots/", "transactions/", "manifests/", "chunks/")


def read(repo: icefloe.Repository, snapshot: str) -> dict[str, bytes | str]:
    """Read everything in a version but what lies elsewhere."""
    session = repo.readonly_session(snapshot_id=snapshot)

    async def every() -> dict[str, bytes | str]:
        found: dict[str, bytes | str] = {}
        async for key in session.store.list():
            if "/c/" in key:
                path, _, index = key.partition("/c/")
                if session.chunk_type(f"/{path}", [int(index)]).name == "virtual":
                    found[key] = "virtual"
                    continue
            buffer = await session.store.get(key, PROTOTYPE)
            assert buffer is not None
            found[key] = buffer.to_bytes()
        return found

    return run_blocking(every())


def listing(backend: Backend) -> dict[str, ObjectInfo]:
    async def every() -> list[ObjectInfo]:
        return [info async for batch in backend.list() for info in batch]

    return {info.key: info for info in run_blocking(every())}


def needed_by_refs(contents: dict[str, bytes]) -> set[str]:
    """Follow all branches and tags to the keys of everything that they lead to."""
    todo = list(_tips(contents))
    parents = _parents(contents)
    seen: set[SnapshotId] = set()
    needed: set[str] = set()
    while todo:
        at = todo.pop()
        if at in seen:
            continue
        seen.add(at)
        snapshot = decode_snapshot(contents[snapshot_key(at)])
        parent = parents[at] if parents is not None else snapshot.parent_id
        todo += [] if parent is None else [parent]
        needed |= {snapshot_key(at), transaction_log_key(at)}
        needed |= needed_by_snapshot(contents, at)
    return needed | {log for at in seen for log in _logs_of_pruned(contents, at)}


def _logs_of_pruned(contents: dict[str, bytes], snapshot: SnapshotId) -> set[str]:
    """Give the logs that expiration left to a snapshot, if it is still listed."""
    if "repo" not in contents:
        return set()
    table = decode_repo_info(contents["repo"]).snapshots
    row = table.row_of(snapshot)
    pruned = () if row is None else table.entry(row).pruned_ancestors
    return {transaction_log_key(one) for one in pruned}


def needed_by_snapshot(contents: dict[str, bytes], snapshot: SnapshotId) -> set[str]:
    decoded = decode_snapshot(contents[snapshot_key(snapshot)])
    needed: set[str] = set()
    for manifest in ids_of_rows(ManifestId, decoded.manifests.ids):
        needed.add(manifest_key(manifest))
        needed |= needed_by_manifest(contents[manifest_key(manifest)])
    return needed


def needed_by_manifest(data: bytes) -> set[str]:
    found: set[str] = set()
    for table in ManifestFile(data).tables().values():
        rows = table.targets[table.kinds == ChunkKind.NATIVE]
        found |= {chunk_key(one) for one in ids_of_rows(ChunkId, table.chunk_ids[rows])}
    return found


def stored(backend: Backend) -> dict[str, bytes]:
    return run_blocking(read_all(backend))


def old_garbage(backend: Backend, cutoff: datetime) -> set[str]:
    """List what was written before a time and nothing needs, not even what is younger."""
    contents, infos = stored(backend), listing(backend)
    needed = needed_by_refs(contents)
    young = {key for key, info in infos.items() if info.last_modified >= cutoff}
    for key in young:
        prefix, _, name = key.partition("/")
        if prefix == "snapshots":
            needed |= _with_ancestors(contents, SnapshotId.parse(name))
        elif prefix == "manifests":
            needed |= needed_by_manifest(contents[key])
    old = {key for key in infos if key.startswith(COLLECTED)} - young
    return old - needed


def _with_ancestors(contents: dict[str, bytes], snapshot: SnapshotId) -> set[str]:
    needed: set[str] = set()
    at: SnapshotId | None = snapshot
    while at is not None and snapshot_key(at) in contents:
        needed |= {snapshot_key(at), transaction_log_key(at), *needed_by_snapshot(contents, at)}
        needed |= _logs_of_pruned(contents, at)
        at = decode_snapshot(contents[snapshot_key(at)]).parent_id
    return needed


def _parents(contents: dict[str, bytes]) -> dict[SnapshotId, SnapshotId | None] | None:
    if "repo" not in contents:
        return None
    table = decode_repo_info(contents["repo"]).snapshots
    entries = [table.entry(row) for row in range(len(table))]
    return {entry.id: entry.parent for entry in entries}


def _tips(contents: dict[str, bytes]) -> Iterable[SnapshotId]:
    if "repo" in contents:
        repo = decode_repo_info(contents["repo"])
        yield from (*repo.branches.values(), *repo.tags.values())
        return
    for key, data in contents.items():
        if key.startswith("refs/") and key.endswith("/ref.json"):
            name = key.removeprefix("refs/").removesuffix("/ref.json")
            kind, _, ref = name.partition(".")
            if kind == "branch" or tag_tombstone_key(ref) not in contents:
                yield SnapshotId.parse(data.decode().split('"')[3])
