"""Walk over the history of a repository: its versions, their manifests, the references in those.

All code that reads many versions or manifests reads them here, in portions, with several requests
at once. Memory stays bounded, however long the history is: a `take` function extracts the data that
the caller needs from each file, and the file itself is dropped.
"""

import os
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from itertools import batched
from typing import Final

from icefloe.effects import map_concurrently, offload
from icefloe.errors import (
    FormatError,
    IcefloeError,
    InvalidInputError,
    ObjectNotFoundError,
    SnapshotNotFoundError,
)
from icefloe.format.chunk_table import ChunkTable
from icefloe.format.ids import ManifestId, NodeId, SnapshotId, raw_rows
from icefloe.format.layout import SNAPSHOTS_PREFIX, snapshot_key
from icefloe.format.manifest import Manifest, WrittenManifest
from icefloe.format.snapshot import Snapshot, decode_snapshot_entry
from icefloe.format.snapshot_table import SnapshotEntry
from icefloe.records import Record
from icefloe.repo.context import RepoContext
from icefloe.storage import Backend, ObjectInfo
from icefloe.values.model import Progress
from icefloe.walk.spill import MAX_BYTES

_REFERENCE_BYTES: Final = 128
"""Memory for one decoded reference, with all that is derived from it."""
_MANY_REFS: Final = 20_000
"""Smaller local manifests are decoded faster by one thread than by several."""


class ReadLimits(Record):
    """Limits on concurrent reads, and the receiver of progress."""

    snapshots: int = 50
    manifests: int = 500
    """How many to fetch at the same time."""
    compressed_bytes: int = 512 * 2**20
    """Of manifests, as they are stored."""
    decoded_bytes: int = 4 * 2**30
    key_bytes: int = MAX_BYTES
    """Of chunk ids in memory; more of them are written to temporary files."""
    progress: Progress | None = None

    def report(self, done: int, total: int) -> None:
        """Report how many manifests were read."""
        if self.progress is not None:
            self.progress(done, total)


class StepCounter:
    """Counts the steps that are expected and done, and reports both."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._done = self._total = 0

    def expect(self, steps: int) -> None:
        """Report that there are more steps to do."""
        self._total += steps
        self.advance(0)

    def advance(self, steps: int = 1) -> None:
        """Report that steps are done."""
        self._done += steps
        if self._progress is not None:
            self._progress(self._done, self._total)


class ManifestFact(Record):
    """A manifest, as a snapshot lists it."""

    id: ManifestId
    size_bytes: int = 0
    num_chunk_refs: int = 0


class SnapshotFacts(Record):
    """The parent and the manifests of a snapshot."""

    id: SnapshotId
    parent: SnapshotId | None
    manifests: tuple[ManifestFact, ...]

    @classmethod
    def of(cls, snapshot: Snapshot) -> "SnapshotFacts":
        """Extract the facts."""
        return cls(snapshot.id, snapshot.parent_id, tuple(manifests_of(snapshot)))


def requests_at_once(context: RepoContext, limit: int) -> int:
    """Return how many requests to send at once: within one machine, threads only add work."""
    return 1 if context.is_near else limit


# -- versions ------------------------------------------------------------------------------


async def read_snapshots[T](
    context: RepoContext,
    ids: Iterable[SnapshotId],
    take: Callable[[Snapshot], T],
    *,
    limits: ReadLimits | None = None,
    skip: Callable[[SnapshotId, IcefloeError], None] | None = None,
    uses_cache: bool = False,
) -> AsyncIterator[T]:
    """Read snapshots as they are stored now, in this order, and yield what `take` returns.

    A missing or damaged snapshot is an error, unless there is `skip`: then it is reported there.
    With `uses_cache`, the parents of snapshots of spec 1 may be out of date.
    """
    load = context.assets.load_snapshot if uses_cache else context.assets.read_snapshot

    async def read(snapshot_id: SnapshotId) -> T | None:
        try:
            return take(await load(snapshot_id))
        except (SnapshotNotFoundError, FormatError) as failure:
            if skip is None:
                raise
            skip(snapshot_id, failure)
            return None

    limit = requests_at_once(context, context.config.max_concurrent_requests)
    for some in batched(ids, (limits or ReadLimits()).snapshots):
        for result in await map_concurrently(read, some, limit=limit):
            if result is not None:
                yield result


def oldest_ancestors(
    parents: Mapping[SnapshotId, SnapshotId | None],
) -> dict[SnapshotId, SnapshotId | None]:
    """Map each version to the last one that its parents lead to; None if they form a circle.

    The last one is a version without a parent, or a parent that is not in the mapping.
    """
    ends: dict[SnapshotId, SnapshotId | None] = {}
    for tip in parents:
        path: dict[SnapshotId, None] = {}
        last, following = tip, parents[tip]
        while last not in ends and following is not None and last not in path:
            path[last] = None
            last, following = following, parents.get(following)
        end = ends.get(last, None if last in path else last)
        ends |= dict.fromkeys(path, end)
        if last in parents:
            ends.setdefault(last, end)
    return ends


def manifests_of(snapshot: Snapshot) -> Iterator[ManifestFact]:
    """List the manifests of a snapshot, also any that arrays use and its list lacks."""
    files = snapshot.manifests
    listed = raw_rows(files.ids)
    sizes, counts = files.sizes_bytes.tolist(), files.num_chunk_refs.tolist()
    for raw, size, count in zip(listed, sizes, counts, strict=True):
        yield ManifestFact(ManifestId(raw), size, count)
    for raw in {*raw_rows(snapshot.nodes.manifest_ids)} - {*listed}:
        yield ManifestFact(ManifestId(raw))


# -- versions of spec 1, which name their parents ------------------------------------------


async def list_snapshots(backend: Backend) -> dict[SnapshotId, ObjectInfo]:
    """List the files of all snapshots with their states: expiration in spec 1 rewrites some."""
    snapshots: dict[SnapshotId, ObjectInfo] = {}
    async for batch in backend.list(SNAPSHOTS_PREFIX):
        for info in batch:
            try:
                snapshots[SnapshotId.parse(info.key[len(SNAPSHOTS_PREFIX) :])] = info
            except InvalidInputError:
                continue  # not a snapshot
    return snapshots


async def read_ancestry(
    context: RepoContext,
    tips: Iterable[SnapshotId],
    *,
    at_once: int,
    listed: Collection[SnapshotId] | None = None,
    known_entries: Mapping[SnapshotId, SnapshotEntry] | None = None,
    progress: Progress | None = None,
) -> dict[SnapshotId, SnapshotEntry]:
    """Read some versions of spec 1 and all their ancestors, as they are stored now.

    Each version names its parent, so they can only be followed one by one. Over a network that
    would take long: there, all that are listed are read at the same time first, unless most of
    them are known.
    """
    entries: dict[SnapshotId, SnapshotEntry] = {}
    read = dict(known_entries or {})
    if known_entries is None and not context.is_near:
        if listed is None:
            listed = await list_snapshots(context.backend)
        read = await _read_listed(context.backend, listed, at_once, progress)
    todo = set(tips)
    while todo:
        unread = sorted(todo - read.keys())
        for entry in await map_concurrently(
            partial(_read_entry, context.backend), unread, limit=at_once
        ):
            read[entry.id] = entry
        entries |= {snapshot_id: read[snapshot_id] for snapshot_id in todo}
        if progress is not None:
            progress(len(entries), max(len(entries) + 1, len(read)))
        parents = {entries[snapshot_id].parent for snapshot_id in todo}
        todo = {parent for parent in parents if parent is not None} - entries.keys()
    if progress is not None:
        progress(len(entries), len(entries))
    return entries


async def _read_entry(backend: Backend, snapshot_id: SnapshotId) -> SnapshotEntry:
    key = snapshot_key(snapshot_id)
    try:
        entry = decode_snapshot_entry((await backend.get(key)).data)
    except ObjectNotFoundError as missing:
        raise SnapshotNotFoundError(
            f"the snapshot {snapshot_id} does not exist, but the history needs it:"
            " `icefloe verify` tells what is lost",
            snapshot=str(snapshot_id),
        ) from missing
    except FormatError as damaged:
        damaged.add_note(f"key: {key}")
        raise
    if entry.id != snapshot_id:
        raise FormatError(f"{key!r} holds the snapshot {entry.id}", key=key)
    return entry


async def _read_listed(
    backend: Backend, ids: Collection[SnapshotId], at_once: int, progress: Progress | None
) -> dict[SnapshotId, SnapshotEntry]:
    """Read all snapshots that are stored; those that cannot be read may not be needed."""

    async def read(snapshot_id: SnapshotId) -> SnapshotEntry | None:
        try:
            return await _read_entry(backend, snapshot_id)
        except IcefloeError:
            return None

    entries: dict[SnapshotId, SnapshotEntry] = {}
    for some in batched(sorted(ids), at_once * 8):
        read_entries = await map_concurrently(read, some, limit=at_once)
        entries |= {entry.id: entry for entry in read_entries if entry is not None}
        if progress is not None:
            progress(len(entries), len(ids))
    return entries


# -- manifests and references --------------------------------------------------------------


async def read_manifests[T](
    context: RepoContext,
    facts: Iterable[ManifestFact],
    take: Callable[[Manifest], T],
    *,
    limits: ReadLimits,
    advance: Callable[[int], None] | None = None,
    skips_damaged: bool = False,
    uses_cache: bool = False,
) -> AsyncIterator[tuple[ManifestFact, T]]:
    """Read manifests in this order, and yield each with what `take` returns.

    `advance` gets the number of manifests of each portion that was read. With `skips_damaged`,
    manifests that are missing or damaged are left out, and the sizes in `facts` are not checked.
    With `uses_cache`, manifests are kept in memory for the next reader.
    """
    load = context.assets.load_manifest if uses_cache else context.assets.read_manifest

    async def read(fact: ManifestFact) -> tuple[ManifestFact, T] | None:
        size_bytes = 0 if skips_damaged else fact.size_bytes
        try:
            manifest = await load(fact.id, size_bytes)
            return fact, await offload(partial(take, manifest))
        except (ObjectNotFoundError, FormatError):
            if skips_damaged:
                return None
            raise

    for some in portions(facts, limits):
        limit = limits.manifests
        if context.is_near:
            # Local manifests only keep processors busy.
            is_large = any(fact.num_chunk_refs >= _MANY_REFS for fact in some)
            limit = (os.cpu_count() or 1) if is_large else 1
        for result in await map_concurrently(read, some, limit=limit):
            if result is not None:
                yield result
        if advance is not None:
            advance(len(some))


def portions(facts: Iterable[ManifestFact], limits: ReadLimits) -> Iterator[list[ManifestFact]]:
    """Cut a list of manifests into portions that fit into memory."""
    some: list[ManifestFact] = []
    compressed = decoded = 0
    for fact in facts:
        compressed += fact.size_bytes
        decoded += fact.num_chunk_refs * _REFERENCE_BYTES
        is_full = (
            len(some) >= limits.manifests
            or compressed > limits.compressed_bytes
            or decoded > limits.decoded_bytes
        )
        if some and is_full:
            yield some
            some = []
            compressed, decoded = fact.size_bytes, fact.num_chunk_refs * _REFERENCE_BYTES
        some.append(fact)
    if some:
        yield some


def tables_of(manifest: Manifest) -> Mapping[NodeId, ChunkTable]:
    """Decode all references of a manifest."""
    return manifest.tables if isinstance(manifest, WrittenManifest) else manifest.tables()
