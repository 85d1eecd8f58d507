"""The immutable files of a repository as values: loaded through caches, saved once.

The caches are bounded in bytes. Files never change, so nothing in a cache can be stale.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from datetime import timedelta
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from icefloe.config import EffectiveConfig
from icefloe.effects import Gate, SingleFlight, offload
from icefloe.errors import (
    ErrorKind,
    FormatError,
    InvalidInputError,
    ObjectNotFoundError,
    SnapshotNotFoundError,
    StorageError,
)
from icefloe.forks import renew_lock_in_children
from icefloe.format.chunk_table import ChunkTable
from icefloe.format.columns import memory_of_columns
from icefloe.format.envelope import (
    BULK_LEVEL,
    DEFAULT_LEVEL,
    FileType,
    object_attributes,
)
from icefloe.format.ids import (
    INITIAL_SNAPSHOT_ID,
    ChunkId,
    ManifestId,
    NodeId,
    ObjectId,
    SnapshotId,
)
from icefloe.format.layout import chunk_key, manifest_key, snapshot_key, transaction_log_key
from icefloe.format.locations import LocationCompression
from icefloe.format.log_chunks import CoordinateRuns
from icefloe.format.manifest import Manifest, ManifestFile, WrittenManifest, encode_manifest
from icefloe.format.nodes import NodeTable
from icefloe.format.snapshot import (
    ManifestFiles,
    Snapshot,
    decode_snapshot,
    encode_snapshot,
    open_snapshot,
)
from icefloe.pacing import Pace
from icefloe.records import Record
from icefloe.storage import Backend, Buffer
from icefloe.storage.capabilities import sign_reads

if TYPE_CHECKING:
    from icefloe.format.transaction_log import TransactionLog
    from icefloe.storage.disk_cache import PlaceCache


class ByteCache[K: Hashable, V]:
    """Values by key; those used least recently go first. Safe to use from many threads.

    >>> cache = ByteCache[str, str](10)
    >>> cache.put("a", "kept", 6)
    >>> cache.put("b", "pushes the other out", 6)
    >>> cache.get("a"), cache.size_bytes
    (None, 6)
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._size_bytes = 0
        self._values: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._lock = Lock()
        renew_lock_in_children(self)

    @property
    def size_bytes(self) -> int:
        """Return the sum of the sizes of all values held."""
        return self._size_bytes

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: K) -> V | None:
        """Look a value up, which makes it the most recently used."""
        with self._lock:
            if (value := self._values.get(key)) is None:
                return None
            self._values.move_to_end(key)
            return value[0]

    def put(self, key: K, value: V, size_bytes: int) -> None:
        """Keep a value, unless it alone is larger than the cache."""
        with self._lock:
            if (before := self._values.pop(key, None)) is not None:
                self._size_bytes -= before[1]
            if size_bytes > self._max_bytes:
                return
            self._values[key] = (value, size_bytes)
            self._size_bytes += size_bytes
            while self._size_bytes > self._max_bytes:
                _, (_, freed) = self._values.popitem(last=False)
                self._size_bytes -= freed

    def discard(self, key: K) -> None:
        """Forget a value, if it is there."""
        with self._lock:
            if (value := self._values.pop(key, None)) is not None:
                self._size_bytes -= value[1]


SNAPSHOT_NODE_BYTES: Final = 512
"""What `caching.num_snapshot_nodes` counts: the room given to each node."""
CHUNK_REF_BYTES: Final = 32
"""What `caching.num_chunk_refs` counts: the room given to each chunk reference."""
CHANGE_BYTES: Final = 32
"""What `caching.num_transaction_changes` counts: the room given to each change in a log."""

_OFFLOAD_BYTES: Final = 32 * 1024
"""Smaller files decode faster than a thread can be woken for them."""
_KEPT_BYTES: Final = 1024 * 1024
"""Manifests that take this much memory, or more, are not kept when they are written."""
_FIXED_BYTES: Final = 1024
_MOVE_BYTES: Final = 256


class EncodedManifest(Record, eq=False):
    """A manifest as it is, or is about to be, stored."""

    id: ManifestId
    arrays: Mapping[NodeId, ChunkTable]
    data: bytes


class Assets:
    """Loads and saves the files of one repository.

    What the caches may hold is set in numbers of things (`caching.num_chunk_refs` and so on);
    each is given a nominal number of bytes, and files are counted by the bytes they take.
    """

    def __init__(
        self,
        backend: Backend,
        config: EffectiveConfig,
        spec_version: int,
        kept: PlaceCache | None = None,
    ) -> None:
        self._backend = backend
        self._kept = kept
        self._spec_version = spec_version
        self._level = config.compression.level
        # The default level stands for what suits each kind of file best.
        self._bulk_level = BULK_LEVEL if self._level == DEFAULT_LEVEL else self._level
        self._locations = _location_compression(config) if spec_version > 1 else None
        caching = config.caching
        self._snapshots = ByteCache[SnapshotId, Snapshot](
            caching.num_snapshot_nodes * SNAPSHOT_NODE_BYTES
        )
        self._manifests = ByteCache[ManifestId, Manifest](caching.num_chunk_refs * CHUNK_REF_BYTES)
        self._logs: ByteCache[SnapshotId, TransactionLog] = ByteCache(
            caching.num_transaction_changes * CHANGE_BYTES
        )
        self._chunks = ByteCache[tuple[ChunkId, int, int], Buffer](caching.num_bytes_chunks)
        self._keeps_chunks = caching.num_bytes_chunks > 0
        self._loading = SingleFlight[ObjectId, Any]()
        self._decoders = Gate(config.max_concurrent_decodes)
        self.reading_pace, self.writing_pace = Pace(), Pace()
        """How many requests for chunks at a time the storage bears."""

    async def load_snapshot(self, snapshot_id: SnapshotId) -> Snapshot:
        """Load a snapshot, whichever spec version it was written for."""
        if (cached := self._snapshots.get(snapshot_id)) is not None:
            return cached

        async def load() -> Snapshot:
            try:
                snapshot = await self._load(
                    snapshot_key(snapshot_id),
                    open_snapshot,
                    # Expiration replaces snapshots of spec 1, and the first snapshot of all
                    # repositories has the same name.
                    is_immutable=self._spec_version > 1 and snapshot_id != INITIAL_SNAPSHOT_ID,
                )
            except ObjectNotFoundError as missing:
                raise _no_snapshot(snapshot_id) from missing
            _check_id(snapshot_key(snapshot_id), snapshot_id, snapshot.id)
            self._snapshots.put(snapshot_id, snapshot, _snapshot_bytes(snapshot))
            return snapshot

        snapshot: Snapshot = await self._loading.run(snapshot_id, load)
        return snapshot

    def has_snapshot(self, snapshot_id: SnapshotId) -> bool:
        """Return whether a snapshot is in memory."""
        return self._snapshots.get(snapshot_id) is not None

    async def read_snapshot(self, snapshot_id: SnapshotId) -> Snapshot:
        """Read a snapshot as it is stored now, beside the cache: for those who read very many.

        Expiration gives snapshots of spec 1 other parents, which a cache may not know.
        """
        key = snapshot_key(snapshot_id)
        try:
            snapshot = await self._load(key, decode_snapshot, is_immutable=False)
        except ObjectNotFoundError as missing:
            raise _no_snapshot(snapshot_id) from missing
        _check_id(key, snapshot_id, snapshot.id)
        return snapshot

    def forget_snapshots(self, ids: Iterable[SnapshotId]) -> None:
        """Read these again when they are asked for."""
        for snapshot_id in ids:
            self._snapshots.discard(snapshot_id)

    async def save_snapshot(self, snapshot: Snapshot) -> None:
        """Write a snapshot."""
        data = await offload(lambda: encode_snapshot(snapshot, level=self._level))
        await self._save(snapshot_key(snapshot.id), data, FileType.SNAPSHOT)
        self._snapshots.put(snapshot.id, snapshot, _snapshot_bytes(snapshot))

    def held_manifest(self, manifest_id: ManifestId) -> Manifest | None:
        """Return a manifest that is in memory, without any waiting."""
        return self._manifests.get(manifest_id)

    def is_loading_manifest(self, manifest_id: ManifestId) -> bool:
        """Return whether somebody is loading a manifest right now."""
        return self._loading.is_under_way(manifest_id)

    async def load_manifest(self, manifest_id: ManifestId, size_bytes: int = 0) -> Manifest:
        """Load a manifest; readers who ask at the same time share one request and decoding.

        `size_bytes` is the size that the snapshot says: a shorter file is refused as damaged.
        """
        if (cached := self._manifests.get(manifest_id)) is not None:
            return cached

        async def load() -> Manifest:
            key = manifest_key(manifest_id)
            manifest = await self._load(key, ManifestFile, size_bytes)
            _check_id(key, manifest_id, manifest.id)
            self._manifests.put(manifest_id, manifest, _FIXED_BYTES + manifest.memory_bytes)
            return manifest

        manifest: Manifest = await self._loading.run(manifest_id, load)
        return manifest

    async def read_manifest(self, manifest_id: ManifestId, size_bytes: int = 0) -> Manifest:
        """Read a manifest without keeping it: for those who read very many."""
        if (cached := self._manifests.get(manifest_id)) is not None:
            return cached
        key = manifest_key(manifest_id)
        manifest = await self._load(key, ManifestFile, size_bytes)
        _check_id(key, manifest_id, manifest.id)
        return manifest

    async def encode_manifest(self, arrays: Mapping[NodeId, ChunkTable]) -> EncodedManifest:
        """Make a new manifest of the references of some arrays, without writing it yet."""
        manifest_id = ManifestId.random()
        data = await offload(
            lambda: encode_manifest(
                manifest_id,
                arrays,
                spec_version=self._spec_version,
                level=self._bulk_level,
                location_compression=self._locations,
            )
        )
        return EncodedManifest(manifest_id, arrays, data)

    async def save_manifest(self, manifest: EncodedManifest) -> None:
        """Write a manifest; doing so again changes nothing.

        A small one is kept in the cache, as the next commit or reader will ask for it.
        """
        await self._save(manifest_key(manifest.id), manifest.data, FileType.MANIFEST)
        written = WrittenManifest(manifest.id, manifest.arrays)
        if (size_bytes := written.memory_bytes) < _KEPT_BYTES:
            self._manifests.put(manifest.id, written, _FIXED_BYTES + size_bytes)

    def forget_manifests(self, ids: Iterable[ManifestId]) -> None:
        """Make room: these were superseded by our own commit."""
        for manifest_id in ids:
            self._manifests.discard(manifest_id)

    async def load_transaction_log(self, snapshot_id: SnapshotId) -> TransactionLog:
        """Load what the commit that made a snapshot changed."""
        from icefloe.format.transaction_log import decode_transaction_log

        if (cached := self._logs.get(snapshot_id)) is not None:
            return cached
        key = transaction_log_key(snapshot_id)
        log = await self._load(key, decode_transaction_log)
        _check_id(key, snapshot_id, log.id)
        self._logs.put(snapshot_id, log, _log_bytes(log))
        return log

    async def save_transaction_log(
        self, log: TransactionLog, runs: Mapping[NodeId, CoordinateRuns] | None = None
    ) -> None:
        """Write the log of a commit; `runs` are chunks that are not kept in memory after."""
        from icefloe.format.transaction_log import encode_transaction_log

        data = await offload(
            lambda: encode_transaction_log(
                log, spec_version=self._spec_version, level=self._bulk_level, runs=runs
            )
        )
        await self._save(transaction_log_key(log.id), data, FileType.TRANSACTION_LOG)
        if not runs:
            self._logs.put(log.id, log, _log_bytes(log))

    async def read_chunk(self, chunk_id: ChunkId, offset: int, length: int) -> Buffer:
        """Read exactly this many bytes of a chunk object."""
        if self._keeps_chunks:
            byte_range = (chunk_id, offset, length)
            if (cached := self._chunks.get(byte_range)) is not None:
                return cached
        key, stored_range = chunk_key(chunk_id), (offset, offset + length)
        kept = None if self._kept is None else await self._kept.find(key, stored_range)
        if kept is not None:
            return kept
        try:
            # Not `get`: the state of an object that never changes is not worth asking for.
            [data] = await self._backend.get_ranges(key, (stored_range,))
        except InvalidInputError as past_end:
            raise _too_short(key, offset, length) from past_end
        if len(data) != length:
            raise _too_short(key, offset, length)
        if self._kept is not None:
            await self._kept.keep(key, data, stored_range)
        if self._keeps_chunks:
            self._chunks.put(byte_range, data, len(data))
        return data

    async def sign_chunks(
        self, chunk_ids: Sequence[ChunkId], lifetime: timedelta
    ) -> Sequence[str] | None:
        """Return signed addresses of chunk objects; None if the storage has none."""
        return await sign_reads(self._backend, [chunk_key(id_) for id_ in chunk_ids], lifetime)

    async def save_chunk(self, chunk_id: ChunkId, data: Buffer) -> None:
        """Write a chunk object; chunks are stored as they are, without any header."""
        await self._backend.put(chunk_key(chunk_id), data)

    async def _load[T](
        self,
        key: str,
        decode: Callable[[Buffer], T],
        expected_bytes: int = 0,
        *,
        is_immutable: bool = True,
    ) -> T:
        disk = self._kept if is_immutable else None
        kept = None if disk is None else await disk.find(key)
        data = await self._fetch(key) if kept is None else kept
        if len(data) < expected_bytes:
            raise StorageError(
                f"{key!r} has {len(data)} bytes where {expected_bytes} were written:"
                " the object is damaged",
                ErrorKind.INVALID_OBJECT_SIZE,
                key=key,
            )
        try:
            if len(data) < _OFFLOAD_BYTES:
                decoded = decode(data)
            else:
                decoded = await offload(lambda: self._decoders.run(lambda: decode(data)))
        except FormatError as damaged:
            damaged.add_note(f"key: {key}")
            raise
        if disk is not None and kept is None:
            await disk.keep(key, data)
        return decoded

    async def _fetch(self, key: str) -> Buffer:
        since = time.monotonic()
        fetched = await self._backend.get(key)
        self.reading_pace.waited(time.monotonic() - since)
        return fetched.data

    async def _save(self, key: str, data: bytes, file_type: FileType) -> None:
        await self._backend.put(
            key, data, attributes=object_attributes(file_type, self._spec_version)
        )


def _location_compression(config: EffectiveConfig) -> LocationCompression | None:
    """Return how to compress single locations, if the configuration asks for it.

    The default settings stand for what suits best: each distinct location once and plain, which
    makes files half as big in a fraction of the time.
    """
    options = config.manifest.virtual_chunk_location_compression
    asked = LocationCompression(
        options.min_num_chunks,
        options.dictionary_max_training_samples,
        options.dictionary_max_size_bytes,
        options.compression_level,
    )
    return None if asked == LocationCompression() else asked


def _no_snapshot(snapshot_id: SnapshotId) -> SnapshotNotFoundError:
    return SnapshotNotFoundError(
        f"there is no snapshot {snapshot_id} in this repository", snapshot=str(snapshot_id)
    )


def _check_id(key: str, expected: ObjectId, actual: ObjectId) -> None:
    if actual != expected:
        raise FormatError(f"{key!r} holds the file of {actual}: it was put in the wrong place")


def _too_short(key: str, offset: int, length: int) -> StorageError:
    return StorageError(
        f"{key!r} ends before byte {offset + length}, where a chunk of {length} bytes should end:"
        " the object is damaged",
        ErrorKind.INVALID_OBJECT_SIZE,
        key=key,
    )


def _snapshot_bytes(snapshot: Snapshot) -> int:
    nodes, files = snapshot.contents, snapshot.files
    size = memory_of_columns(nodes) if isinstance(nodes, NodeTable) else nodes.memory_bytes
    # Those that are still in the file are counted with its nodes.
    listed = memory_of_columns(files) if isinstance(files, ManifestFiles) else 0
    return size + listed + _FIXED_BYTES


def _log_bytes(log: TransactionLog) -> int:
    chunks = sum(coordinates.nbytes for coordinates in log.updated_chunks.values())
    return memory_of_columns(log) + chunks + _FIXED_BYTES + _MOVE_BYTES * len(log.moves)
