"""The options of a repair, the context that its steps share, and the report of what they did."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from icefloe.effects import map_concurrently
from icefloe.errors import FormatError, InvalidInputError, ObjectNotFoundError
from icefloe.format.ids import ObjectId, SnapshotId
from icefloe.format.layout import (
    BACKUPS_PREFIX,
    backup_key,
    backup_name,
    snapshot_key,
)
from icefloe.format.snapshot import Snapshot, decode_snapshot
from icefloe.maintenance.verify.report import AffectedArray, VerificationReport, shown_region
from icefloe.records import MutableRecord, Record, field
from icefloe.repo.ledger import put_settled
from icefloe.reports import JsonReady, Report, plain
from icefloe.storage import Backend, Buffer, Fetched, Version
from icefloe.walk.history import list_snapshots

_SHOWN_ROWS: Final = 50


class RepairStep(JsonReady, Record):
    """One thing that repair did, or would do."""

    kind: str
    message: str
    """What is done, and what is lost by it."""
    keys: tuple[str, ...]
    """The objects that are written."""
    kept_aside: str | None
    """Where the damaged object is kept; None if it was missing, or a commit is added."""
    arrays: tuple[AffectedArray, ...]
    """Chunks that read as never written afterwards."""
    versions: tuple[str, ...]
    """Versions that are made, recovered or dropped."""

    def rows(self) -> Iterator[list[object]]:
        """Write it for people, a row for each array."""
        key = self.keys[0] if self.keys else ""
        for part in self.arrays or (AffectedArray("", (), ()),):
            yield [self.kind, part.path, shown_region(part.region), key, self.kept_aside or ""]


class RepairReport(Report, Record):
    """The damage before the repair, the repair's steps, and the remaining damage; print it.

    In a dry run everything happened in memory: `after` is what would be.
    """

    is_dry_run: bool
    before: VerificationReport
    """What was found at first."""
    steps: tuple[RepairStep, ...]
    after: VerificationReport
    """What is left: it cannot be repaired, or was not asked for."""
    open_questions: tuple[str, ...] = ()
    """What could not be decided, and what to do about it."""

    headings = ("step", "array", "chunks", "object", "kept aside as")
    shown_rows = _SHOWN_ROWS

    @property
    def is_healthy(self) -> bool:
        """Whether nothing is wrong after the repair."""
        return self.after.is_healthy

    def to_dict(self) -> dict[str, Any]:
        """Return everything as a dictionary, ready for JSON."""
        return {
            "dry_run": self.is_dry_run,
            "before": self.before.to_dict(),
            "steps": plain(self.steps),
            "open_questions": list(self.open_questions),
            "after": self.after.to_dict(),
        }

    def _rows(self) -> Iterator[list[object]]:
        for step in self.steps:
            yield from step.rows()

    def _notes(self) -> Iterator[str]:
        will = "would be done" if self.is_dry_run else "done"
        for step in self.steps[:_SHOWN_ROWS]:
            yield f"{will}: {step.message}"
        for question in self.open_questions[:_SHOWN_ROWS]:
            yield f"open: {question}"
        for damage in self.after.damages[:_SHOWN_ROWS]:
            yield f"left: {damage.message}"
            yield f"  to do: {damage.remedy}"
        yield f"before: {self.before.summary()}"
        yield f"after: {self.after.summary()}"
        if self.is_dry_run and self.steps:
            yield "nothing was changed: this was a dry run"


class RepairKind(StrEnum):
    """The kind of a repair step."""

    RESTORE_REPO = "restore-repo-object"
    """A backup of the repo object takes its place again."""
    REBUILD_REPO = "rebuild-repo-object"
    """There is no backup: branches and history are made from the snapshots."""
    RESTORE_REF = "restore-ref"
    RESTORE_CONFIG = "restore-configuration"
    RESTORE_FIRST = "restore-first-snapshot"
    """The first snapshot of every repository is empty, and its log too."""
    RECOVER_VERSION = "recover-version"
    """A version that the repository does not list gets a branch."""
    MEND_HISTORY = "mend-history"
    DROP_VERSIONS = "drop-versions"
    DROP_REFERENCES = "drop-references"
    REBUILD_LOG = "rebuild-log"


class RepairRules(Record):
    """The repairs that are allowed beyond restoring a readable repository."""

    backup: str | None = None
    """The name of the backup to restore the repo object from, rather than the one we choose."""
    branches: Mapping[str, SnapshotId] = field(default_factory=dict)
    """Where branches end that have to be made again."""
    tags: Mapping[str, SnapshotId] = field(default_factory=dict)
    recover_versions: bool = False
    """Give branches to versions that are there but not listed."""
    drop_lost_versions: bool = False
    """Take versions out of the history whose snapshots are lost."""
    drop_lost_references: bool = False
    """Commit to each branch a version without references to lost data."""
    drop_damaged_versions: bool = False
    """Take versions out of the history of which data is lost, but for those that refs name."""
    rebuild_logs: bool = False
    """Write logs of commits again, from what the versions hold."""
    deep: bool = False
    """Also count chunks as lost that cannot be read to their end, and foreign files."""


_log = logging.getLogger(__name__)
_AT_ONCE: Final = 32
_DAMAGED: Final = "damaged."
"""Prefix of the names of objects that are kept aside: none is mistaken for a backup."""


class Workshop(MutableRecord):
    """One repair under way."""

    backend: Backend
    rules: RepairRules
    clock: Callable[[], int]
    level: int
    """How much to compress files."""
    steps: list[RepairStep] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def done(
        self,
        kind: RepairKind,
        message: str,
        keys: Sequence[str] = (),
        *,
        kept_aside: str | None = None,
        arrays: Sequence[AffectedArray] = (),
        versions: Sequence[SnapshotId] = (),
    ) -> None:
        """Take down a step."""
        self.steps.append(
            RepairStep(
                kind=str(kind),
                message=message,
                keys=tuple(keys),
                kept_aside=kept_aside,
                arrays=tuple(arrays),
                versions=tuple(map(str, versions)),
            )
        )
        _log.info("repair: %s", message)

    def note(self, text: str) -> None:
        """Take down what could not be decided."""
        if text not in self.notes:
            self.notes.append(text)

    async def fetch(self, key: str) -> Fetched | None:
        """Read an object; None if there is none."""
        try:
            return await self.backend.get(key)
        except ObjectNotFoundError:
            return None

    async def load[T](self, key: str, decode: Callable[[Buffer], T]) -> T | None:
        """Read and decode an object; return None if it is missing or damaged."""
        fetched = await self.fetch(key)
        try:
            return None if fetched is None else decode(fetched.data)
        except (FormatError, InvalidInputError):
            return None

    async def rewrite(
        self,
        kind: RepairKind,
        message: str,
        key: str,
        data: bytes,
        attributes: dict[str, str],
        *,
        versions: Sequence[SnapshotId] = (),
    ) -> None:
        """Put an object in the place of the one that is stored now, if any, as one step."""
        present = await self.fetch(key)
        version = None if present is None else present.info.version
        backup = await self.replace(key, data, version, attributes=attributes)
        self.done(kind, message, [key], kept_aside=backup, versions=versions)

    async def replace(
        self,
        key: str,
        data: bytes,
        damaged: Version | None,
        *,
        content_type: str | None = None,
        attributes: dict[str, str] | None = None,
    ) -> str | None:
        """Put an object in the place of a damaged one, of which a copy is kept; say where.

        None stands for an object that is missing. If somebody else puts it back meanwhile, that
        is a `PreconditionFailedError`.
        """
        backup: str | None = None
        if damaged is not None:
            name = backup_name(key.replace("/", "."), self.clock() // 1000, ObjectId.random())
            backup = backup_key(_DAMAGED + name)
            await self.backend.copy(key, backup, if_version=damaged)
        await put_settled(
            self.backend,
            key,
            data,
            replacing=damaged,
            content_type=content_type,
            attributes=attributes,
        )
        return backup

    async def names(self, prefix: str) -> list[str]:
        """List the names below a prefix, in order."""
        listed = [
            info.key[len(prefix) :] async for batch in self.backend.list(prefix) for info in batch
        ]
        return sorted(listed)

    async def backups_of(self, source: str) -> list[str]:
        """List the names of backups of an object, newest first by their names."""
        return [name for name in await self.names(BACKUPS_PREFIX) if name.startswith(f"{source}.")]

    async def snapshot_ids(self) -> list[SnapshotId]:
        """List all snapshots that are stored."""
        return sorted(await list_snapshots(self.backend))

    async def snapshots(self, ids: Sequence[SnapshotId]) -> dict[SnapshotId, Snapshot]:
        """Read those of some snapshots that can be read."""
        loaded = await map_concurrently(self.snapshot, ids, limit=_AT_ONCE)
        return {
            snapshot_id: snapshot
            for snapshot_id, snapshot in zip(ids, loaded, strict=True)
            if snapshot is not None
        }

    async def snapshot(self, snapshot_id: SnapshotId) -> Snapshot | None:
        """Read a snapshot if that is possible."""
        snapshot = await self.load(snapshot_key(snapshot_id), decode_snapshot)
        return snapshot if snapshot is not None and snapshot.id == snapshot_id else None
