"""All files of a repository, read once and decoded when asked for, for `testing.invariants`."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import cast

from icefloe.errors import FormatError, InvalidInputError
from icefloe.format.ids import ManifestId, ObjectId, SnapshotId
from icefloe.format.layout import manifest_key, snapshot_key, transaction_log_key
from icefloe.format.manifest import ManifestFile
from icefloe.format.snapshot import Snapshot, decode_snapshot
from icefloe.format.transaction_log import TransactionLog, decode_transaction_log
from icefloe.storage.port import Backend


async def read_all(backend: Backend) -> dict[str, bytes]:
    """Read every object of a storage."""
    infos = [info async for batch in backend.list() for info in batch]
    return {info.key: bytes((await backend.get(info.key)).data) for info in infos}


def digest(data: bytes) -> bytes:
    """Tell contents apart without keeping them."""
    return hashlib.blake2b(data, digest_size=16).digest()


@dataclass(slots=True)
class DecodedFiles:
    """Files decoded before: they never change, so neither does what they say."""

    by_content: dict[tuple[str, bytes], object] = field(default_factory=dict)


class StoredFiles:
    """The contents of a repository, and everything found to be wrong with them so far."""

    def __init__(self, contents: Mapping[str, bytes], decoded: DecodedFiles | None = None) -> None:
        self.contents = contents
        self._decoded = (decoded or DecodedFiles()).by_content
        self._problems: dict[str, None] = {}

    @property
    def problems(self) -> list[str]:
        """All violations, in the order in which they were found, each once."""
        return list(self._problems)

    def report(self, problem: str) -> None:
        """Note a violation."""
        self._problems[problem] = None

    def require(self, holds: object, problem: str) -> None:
        """Note a violation unless a condition holds."""
        if not holds:
            self.report(problem)

    def size_of(self, key: str) -> int | None:
        """Give the size of a file, if it exists."""
        data = self.contents.get(key)
        return None if data is None else len(data)

    def decode[T](self, key: str, needed_by: str, decoder: Callable[[bytes], T]) -> T | None:
        """Decode a file that must exist and be valid."""
        data = self.contents.get(key)
        if data is None:
            self.report(f"{key} does not exist, but {needed_by} needs it")
            return None
        place = (key, digest(data))
        if place not in self._decoded:
            try:
                self._decoded[place] = decoder(data)
            except (FormatError, InvalidInputError) as failure:
                self.report(f"{key} cannot be read: {failure}")
                return None
        return cast("T", self._decoded[place])

    def snapshot(self, wanted: SnapshotId, needed_by: str) -> Snapshot | None:
        """Load a snapshot and see that it is the one its name says."""
        key = snapshot_key(wanted)
        snapshot = self.decode(key, needed_by, decode_snapshot)
        if snapshot is not None:
            self._check_id(key, snapshot.id, wanted)
        return snapshot

    def manifest(self, wanted: ManifestId, needed_by: str) -> ManifestFile | None:
        """Load a manifest and see that it is the one its name says."""
        key = manifest_key(wanted)
        manifest = self.decode(key, needed_by, ManifestFile)
        if manifest is not None:
            self._check_id(key, manifest.id, wanted)
        return manifest

    def log(self, wanted: SnapshotId, needed_by: str) -> TransactionLog | None:
        """Load a transaction log and see that it is the one its name says."""
        key = transaction_log_key(wanted)
        log = self.decode(key, needed_by, decode_transaction_log)
        if log is not None:
            self._check_id(key, log.id, wanted)
        return log

    def _check_id(self, key: str, found: ObjectId, wanted: ObjectId) -> None:
        self.require(found == wanted, f"{key} holds the id {found} instead of its own")
