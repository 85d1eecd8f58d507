"""What all steps of a repair share: the objects, the rules, and the account of what was done."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from icefloe.effects import map_concurrently
from icefloe.engine.repair.values import Repair, RepairKind, RepairRules
from icefloe.engine.settling import put_settled
from icefloe.engine.verification.damage import Affected
from icefloe.errors import FormatError, InvalidInputError, ObjectNotFoundError
from icefloe.format.ids import ObjectId, SnapshotId
from icefloe.format.layout import (
    BACKUPS_PREFIX,
    SNAPSHOTS_PREFIX,
    backup_key,
    backup_name,
    snapshot_key,
)
from icefloe.format.snapshot import Snapshot, decode_snapshot
from icefloe.storage import Backend, Fetched, Version

_log = logging.getLogger(__name__)
_AT_ONCE: Final = 32
_DAMAGED: Final = "damaged."
"""What the names of objects begin with that are kept aside, so that none is taken for a backup."""


@dataclass(slots=True)
class Workshop:
    """One repair under way."""

    backend: Backend
    rules: RepairRules
    clock: Callable[[], int]
    level: int
    """How much to compress files."""
    repairs: list[Repair] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def done(
        self,
        kind: RepairKind,
        message: str,
        keys: Sequence[str] = (),
        *,
        kept_aside: str | None = None,
        affected: Sequence[Affected] = (),
        versions: Sequence[SnapshotId] = (),
    ) -> None:
        """Take down a step."""
        self.repairs.append(
            Repair(kind, message, tuple(keys), kept_aside, tuple(affected), tuple(versions))
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
        kept: str | None = None
        if damaged is not None:
            name = backup_name(key.replace("/", "."), self.clock() // 1000, ObjectId.random())
            kept = backup_key(_DAMAGED + name)
            await self.backend.copy(key, kept, if_version=damaged)
        await put_settled(
            self.backend,
            key,
            data,
            replacing=damaged,
            content_type=content_type,
            attributes=attributes,
        )
        return kept

    async def names(self, prefix: str) -> list[str]:
        """List the names below a prefix, in order."""
        found = [
            info.key[len(prefix) :] async for batch in self.backend.list(prefix) for info in batch
        ]
        return sorted(found)

    async def backups_of(self, source: str) -> list[str]:
        """List the names of backups of an object, the newest first as far as names tell."""
        return [one for one in await self.names(BACKUPS_PREFIX) if one.startswith(f"{source}.")]

    async def snapshot_ids(self) -> list[SnapshotId]:
        """List all snapshots that are there."""
        found = []
        for name in await self.names(SNAPSHOTS_PREFIX):
            try:
                found.append(SnapshotId.parse(name))
            except InvalidInputError:
                continue  # not one of ours
        return found

    async def snapshots(self, ids: Sequence[SnapshotId]) -> dict[SnapshotId, Snapshot]:
        """Read those of some snapshots that can be read."""
        found = await map_concurrently(self.snapshot, ids, limit=_AT_ONCE)
        return {one: each for one, each in zip(ids, found, strict=True) if each is not None}

    async def snapshot(self, wanted: SnapshotId) -> Snapshot | None:
        """Read a snapshot if that is possible."""
        fetched = await self.fetch(snapshot_key(wanted))
        if fetched is None:
            return None
        try:
            snapshot = decode_snapshot(fetched.data)
        except (FormatError, InvalidInputError):
            return None
        return snapshot if snapshot.id == wanted else None
