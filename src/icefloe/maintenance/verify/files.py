"""Read the files of a repository, and record those that are missing or damaged."""

from collections.abc import Callable, Sequence
from typing import Final

from icefloe.assets import ByteCache
from icefloe.effects import offload
from icefloe.errors import (
    FormatError,
    IcefloeError,
    InvalidInputError,
    ObjectNotFoundError,
    StorageError,
)
from icefloe.format.ids import ManifestId, ObjectId, SnapshotId
from icefloe.format.layout import manifest_key, snapshot_key, transaction_log_key
from icefloe.format.manifest import ManifestFile
from icefloe.format.snapshot import Snapshot, decode_snapshot
from icefloe.format.transaction_log import TransactionLog, decode_transaction_log
from icefloe.maintenance.verify.findings import DamageKind, Findings, Site
from icefloe.storage import Backend, Buffer

_OFFLOAD_BYTES: Final = 32 * 1024
SNAPSHOT_CACHE_BYTES: Final = 64 * 2**20
MANIFEST_CACHE_BYTES: Final = 256 * 2**20
_EXPANSION: Final = 8
"""What a snapshot takes when decoded, in the sizes of its file."""

type Decoder[T] = Callable[[Buffer], T]


class CheckedFiles:
    """The files of a repository; each problem with one is a finding, and gives None."""

    def __init__(
        self,
        backend: Backend,
        findings: Findings,
        *,
        snapshot_bytes: int = SNAPSHOT_CACHE_BYTES,
        manifest_bytes: int = MANIFEST_CACHE_BYTES,
    ) -> None:
        self.backend = backend
        self.findings = findings
        self._snapshots = ByteCache[SnapshotId, Snapshot](snapshot_bytes)
        self._manifests = ByteCache[ManifestId, ManifestFile](manifest_bytes)
        self._sizes: dict[ManifestId, int] = {}

    async def decode[T](self, key: str, data: Buffer, decoder: Decoder[T]) -> T:
        """Decode the bytes of a file."""
        if len(data) < _OFFLOAD_BYTES:
            return decoder(data)
        return await offload(lambda: decoder(data))

    async def load[T](
        self,
        key: str,
        decoder: Decoder[T],
        needed_by: str,
        *,
        missing: DamageKind,
        damaged: DamageKind,
        versions: Sequence[SnapshotId] = (),
        sites: Sequence[Site] = (),
    ) -> tuple[T, int] | None:
        """Read and decode a file that must exist and be valid; return also its size."""
        try:
            data = (await self.backend.get(key)).data
        except ObjectNotFoundError:
            kind, message = missing, f"{key} does not exist, but {needed_by} needs it"
        except IcefloeError as failure:
            self.findings.unchecked(key, failure.message)
            return None
        else:
            try:
                return await self.decode(key, data, decoder), len(data)
            except (FormatError, InvalidInputError) as failure:
                kind, message = damaged, f"{key} cannot be read: {failure}"
        self.findings.report(kind, message, key, versions=versions, sites=sites, identity=key)
        return None

    async def snapshot(self, snapshot_id: SnapshotId, needed_by: str) -> Snapshot | None:
        """Read a snapshot and check that it has the id of its name."""
        if (cached := self._snapshots.get(snapshot_id)) is not None:
            return cached
        key = snapshot_key(snapshot_id)
        loaded = await self.load(
            key,
            decode_snapshot,
            needed_by,
            missing=DamageKind.NO_SNAPSHOT,
            damaged=DamageKind.BAD_SNAPSHOT,
            versions=[snapshot_id],
        )
        if loaded is None:
            return None
        snapshot, size_bytes = loaded
        self._check_id(
            key, snapshot.id, snapshot_id, DamageKind.BAD_SNAPSHOT, versions=[snapshot_id]
        )
        self._snapshots.put(snapshot_id, snapshot, size_bytes * _EXPANSION)
        return snapshot

    async def log(self, log_id: SnapshotId, of: SnapshotId) -> TransactionLog | None:
        """Read a transaction log that the history of a snapshot needs."""
        key = transaction_log_key(log_id)
        loaded = await self.load(
            key,
            decode_transaction_log,
            f"snapshot {of}",
            missing=DamageKind.NO_LOG,
            damaged=DamageKind.BAD_LOG,
            versions=[of],
        )
        if loaded is None:
            return None
        self._check_id(key, loaded[0].id, log_id, DamageKind.BAD_LOG, versions=[of])
        return loaded[0]

    async def manifest(self, manifest_id: ManifestId) -> tuple[ManifestFile, int] | None:
        """Read a manifest; give also the size of its file."""
        if (cached := self._manifests.get(manifest_id)) is not None:
            return cached, self._sizes[manifest_id]
        key = manifest_key(manifest_id)
        sites = [Site(manifest_id)]
        loaded = await self.load(
            key,
            ManifestFile,
            "an array",
            missing=DamageKind.NO_MANIFEST,
            damaged=DamageKind.BAD_MANIFEST,
            sites=sites,
        )
        if loaded is None:
            return None
        manifest, size_bytes = loaded
        self._check_id(key, manifest.id, manifest_id, DamageKind.BAD_MANIFEST, sites=sites)
        self._sizes[manifest_id] = size_bytes
        self._manifests.put(manifest_id, manifest, manifest.size_bytes)
        return manifest, size_bytes

    async def exists(self, key: str) -> bool | None:
        """Return whether there is an object; None if that could not be found out."""
        try:
            await self.backend.head(key)
        except ObjectNotFoundError:
            return False
        except StorageError as failure:
            self.findings.unchecked(key, failure.message)
            return None
        return True

    def _check_id(
        self,
        key: str,
        actual: ObjectId,
        expected: ObjectId,
        kind: DamageKind,
        *,
        versions: Sequence[SnapshotId] = (),
        sites: Sequence[Site] = (),
    ) -> None:
        message = f"{key} holds the id {actual} instead of its own"
        holds = actual == expected
        self.findings.require(holds, kind, message, key, versions=versions, sites=sites)
