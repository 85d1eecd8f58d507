"""The objects of a session, looked for before a commit if garbage was collected meanwhile.

Until a session is committed, only their age tells its objects from garbage. A collection with a
cut-off that is too late, by mistake or by a wrong clock, deletes them. So if a collection ran since
the session began, the commit looks whether they are there, and is refused if not. In spec 2 the
log of operations tells of collections; in spec 1 nothing does, so sessions that lasted long enough
for a collection are checked. All other commits cost no request more.
"""

import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from itertools import batched
from typing import Final

import numpy as np

from icefloe.effects import map_concurrently
from icefloe.errors import ErrorKind, ObjectNotFoundError, SessionStateError
from icefloe.format.chunk_table import ChunkKind
from icefloe.format.columns import Bools, Bytes
from icefloe.format.ids import ChunkId, SnapshotId, texts_of_rows
from icefloe.format.layout import (
    CHUNKS_PREFIX,
    manifest_key,
    snapshot_key,
    transaction_log_key,
)
from icefloe.format.manifest import Manifest
from icefloe.format.nodes import ArrayNode
from icefloe.format.update_table import UpdateKind
from icefloe.manifests.build import NewManifest
from icefloe.records import replace
from icefloe.repo.context import RepoContext
from icefloe.repo.repo_changes import AddDetached, Amend, CollectionRanError, Commit
from icefloe.storage.capabilities import list_wanted
from icefloe.transactions.session import SessionState
from icefloe.walk.history import (
    ManifestFact,
    ReadLimits,
    portions,
    read_manifests,
    requests_at_once,
)
from icefloe.walk.spill import keys_of_ids, keys_of_names

_log = logging.getLogger(__name__)

LONG_SESSION: Final = 10 * 60 * 1_000_000
"""Microseconds; to look for objects takes a small part of the time in which they were written."""
_HEADS_PER_PAGE: Final = 50
"""A page of a listing is worth this many requests for single objects."""
_HEADS_AT_A_TIME: Final = 4096
_MOST_NAMED: Final = 10


async def publish(
    session: SessionState, change: Commit | Amend | AddDetached, manifests: Sequence[NewManifest]
) -> None:
    """Do the last step of a commit, once it is certain that no collection took its objects.

    `SessionStateError` of kind `objects-collected` if one did: then nothing is committed.
    `manifests` are those that were made for the version, or linked.
    """
    context, snapshot = session.context, change.new.id
    newest_update = session.known_update
    if context.spec_version == 1 and _is_long(session):
        await _require_objects(session, snapshot, manifests)
    while True:
        try:
            await context.ledger.update(replace(change, known_update=newest_update))
        except CollectionRanError as ran:
            if ran.is_certain or await _was_collected(context, newest_update):
                _log.info("garbage was collected since the session began: looking for its objects")
                await _require_objects(session, snapshot, manifests)
            newest_update = ran.newest_update
        else:
            return


async def _was_collected(context: RepoContext, known_update: int) -> bool:
    """Search the log of operations, as far back as an update; a log that ends before may hide it.

    That takes a request for each hundred operations.
    """
    async for entry in context.ledger.ops_log():
        if entry.updated_at <= known_update:
            return False
        if entry.kind is UpdateKind.GC_RAN:
            return True
    return True


def _is_long(session: SessionState) -> bool:
    """Return whether a session lasted long, or seems to have begun in the future."""
    return not 0 <= session.context.clock() - session.known_update < LONG_SESSION


async def _require_objects(
    session: SessionState, snapshot: SnapshotId, manifests: Sequence[NewManifest]
) -> None:
    context = session.context
    keys = [snapshot_key(snapshot), transaction_log_key(snapshot)]
    keys += [manifest_key(manifest.id) for manifest in manifests]
    _require_none("the commit", await _absent(context, keys))
    async for path, ids in _chunk_ids(session):
        _require_none(path, await _absent_chunks(context, ids))


def _require_none(owner: str, absent: Sequence[str]) -> None:
    if not absent:
        return
    named = ", ".join(absent[:_MOST_NAMED])
    more = f" and {len(absent) - _MOST_NAMED} more" if len(absent) > _MOST_NAMED else ""
    raise SessionStateError(
        f"garbage collection deleted objects of {owner} that this session wrote: {named}{more}."
        " Nothing was committed. Open a new session and write the data again; collect garbage"
        " with a time before the beginning of the longest session, and check the clocks of all"
        " machines",
        ErrorKind.OBJECTS_COLLECTED,
        keys=list(absent[:_MOST_NAMED]),
        num_missing=len(absent),
    )


# -- what a session refers to ----------------------------------------------------------------


async def _chunk_ids(session: SessionState) -> AsyncIterator[tuple[str, Bytes]]:
    """Walk the chunk objects of a session, with the path of an array, in bounded portions."""
    changed = {node.id: node for node in session.changes.nodes.values()}
    for node_id in [*session.changes.arrays]:
        settled = session.changes.settled(node_id)
        node = changed.get(node_id) or session.base.by_id(node_id)
        if settled is None or not isinstance(node, ArrayNode):
            continue
        grid = np.array([(0, count) for count in node.array.num_chunks], np.uint32).reshape(-1, 2)
        table = settled.table.within(grid)
        yield node.path, table.chunk_ids[table.targets[table.kinds == ChunkKind.NATIVE]]
    for node_id, linked in [*session.changes.links.items()]:
        node = changed.get(node_id) or session.base.by_id(node_id)
        path = str(node_id) if node is None else node.path
        facts = [
            ManifestFact(manifest.id, manifest.size_bytes, manifest.num_chunk_refs)
            for manifest in (part.manifest for part in linked.parts)
        ]
        async for ids in _linked_ids(session.context, facts):
            yield path, ids


async def _linked_ids(context: RepoContext, facts: Iterable[ManifestFact]) -> AsyncIterator[Bytes]:
    """Read manifests that were built elsewhere, for the chunk objects that they refer to."""
    limits = ReadLimits(manifests=context.config.max_concurrent_requests)
    for some in portions(facts, limits):
        ids = [np.empty((0, ChunkId.WIDTH), np.uint8)]
        async for _, rows in read_manifests(context, some, _chunk_ids_of, limits=limits):
            ids.append(rows)
        yield np.concatenate(ids)


def _chunk_ids_of(manifest: Manifest) -> Bytes:
    return manifest.chunk_ids()


# -- what the storage has --------------------------------------------------------------------


async def _absent_chunks(context: RepoContext, rows: Bytes) -> list[str]:
    """Return the keys of chunk objects that are not stored.

    A listing finds many of them in one request, as long as it is worth its requests; what it did
    not show is asked for one by one.
    """
    ids = np.unique(rows.view(f"S{ChunkId.WIDTH}").ravel()).view(np.uint8)
    ids = ids.reshape(-1, ChunkId.WIDTH)
    unseen = await _unlisted(context, ids, len(ids) // _HEADS_PER_PAGE)
    absent: list[str] = []
    for some in batched(np.flatnonzero(unseen).tolist(), _HEADS_AT_A_TIME):
        keys = [CHUNKS_PREFIX + name for name in texts_of_rows(ids[list(some)])]
        absent += await _absent(context, keys)
    return absent


async def _unlisted(context: RepoContext, ids: Bytes, most_pages: int) -> Bools:
    """Mark the chunk objects that some pages of a listing do not show."""
    unseen = np.ones(len(ids), np.bool_)
    if most_pages == 0:
        return unseen
    numbers = keys_of_ids(ids)
    order = np.argsort(numbers)
    ranked = numbers[order]
    pages = 0

    def note(keys: Sequence[str]) -> list[bool]:
        nonlocal pages
        pages += 1
        listed, is_id = keys_of_names([key[len(CHUNKS_PREFIX) :] for key in keys])
        places = np.minimum(np.searchsorted(ranked, listed), len(ranked) - 1)
        unseen[order[places[is_id & (ranked[places] == listed)]]] = False
        return [False] * len(keys)  # the keys are all that matters

    async for _ in list_wanted(context.backend, CHUNKS_PREFIX, note):
        if pages >= most_pages or not unseen.any():
            break
    return unseen


async def _absent(context: RepoContext, keys: Sequence[str]) -> list[str]:
    async def is_absent(key: str) -> bool:
        try:
            await context.backend.head(key)
        except ObjectNotFoundError:
            return True
        return False

    limit = requests_at_once(context, context.config.max_concurrent_requests)
    answers = await map_concurrently(is_absent, keys, limit=limit)
    return [key for key, is_gone in zip(keys, answers, strict=True) if is_gone]
