"""Putting back the repo object of spec 2, from one of the backups that every change leaves.

The newest backup is the state before the last operation, so that one operation is lost, no data.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import batched
from typing import Final

from icefloe.effects import map_concurrently
from icefloe.engine.repair.rebuilding import rebuild_repo_object
from icefloe.engine.repair.values import RepairKind
from icefloe.engine.repair.workshop import Workshop
from icefloe.errors import ErrorKind, FormatError, InvalidInputError, NotFoundError
from icefloe.format.config_file import decode_config_flexbuffer
from icefloe.format.envelope import FileType, object_attributes
from icefloe.format.ids import INITIAL_SNAPSHOT_ID, SnapshotId
from icefloe.format.layout import REPO_KEY, backup_key
from icefloe.format.repo_info import SPEC_VERSION, RepoInfo, decode_repo_info
from icefloe.storage import Version

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_AT_ONCE: Final = 16
"""Backups that are read and compared; names tell their order but for the clocks of writers."""


@dataclass(frozen=True, slots=True)
class Backup:
    """A backup that can be read."""

    name: str
    data: bytes
    repo: RepoInfo
    problem: str | None = None
    """Why it is not fit to be restored, if others are."""

    @property
    def time(self) -> int:
        """When its newest operation was, in microseconds."""
        return int(self.repo.updates.updated_at[0])


async def restore_repo_object(shop: Workshop) -> None:
    """Put back the repo object if it is missing or cannot be read."""
    fetched = await shop.fetch(REPO_KEY)
    problem, damaged = f"{REPO_KEY} does not exist", None
    if fetched is not None:
        try:
            decode_repo_info(fetched.data)
        except (FormatError, InvalidInputError) as failure:
            if failure.kind == ErrorKind.UNSUPPORTED_SPEC_VERSION:
                raise  # not damaged, but newer than we are
            problem, damaged = (
                f"{REPO_KEY} cannot be read ({failure.message})",
                fetched.info.version,
            )
        else:
            return
    chosen = await _choose(shop)
    if chosen is None:
        await rebuild_repo_object(shop, problem, damaged)
    else:
        await _restore(shop, chosen, problem, damaged)


async def _restore(shop: Workshop, chosen: Backup, problem: str, damaged: Version | None) -> None:
    attributes = object_attributes(FileType.REPO_INFO, SPEC_VERSION)
    kept = await shop.replace(REPO_KEY, chosen.data, damaged, attributes=attributes)
    newest = chosen.repo.updates.entry(0)
    message = (
        f"{problem}: the backup {chosen.name} takes its place, the state of"
        f" {_EPOCH + timedelta(microseconds=chosen.time):%Y-%m-%d %H:%M:%S} UTC, after"
        f" {newest.kind.name}; operations after that are lost from the log"
    )
    if chosen.problem is not None:
        message += f"; even there, {chosen.problem}"
    shop.done(RepairKind.RESTORE_REPO, message, [REPO_KEY], kept_aside=kept)


async def _choose(shop: Workshop) -> Backup | None:
    """Find the newest backup that can be read and whose refs name versions that can be, too.

    If there is none such, the newest that can be read.
    """
    names = await shop.backups_of(REPO_KEY)
    if (wanted := shop.rules.backup) is not None:
        if wanted not in names:
            raise NotFoundError(f"there is no backup {wanted!r} in overwritten/")
        found = await read_backup(shop, wanted)
        if found is None:
            raise FormatError(f"the backup {wanted!r} cannot be read: choose another")
        return found
    fallback: Backup | None = None
    whole: dict[SnapshotId, bool] = {}
    for some in batched(names, _AT_ONCE):
        read = await map_concurrently(lambda name: read_backup(shop, name), some, limit=_AT_ONCE)
        backups = sorted((one for one in read if one is not None), key=lambda one: -one.time)
        for backup in backups:
            problem = await _problem(shop, backup.repo, whole)
            if problem is None:
                return backup
            if fallback is None:
                fallback = Backup(backup.name, backup.data, backup.repo, problem)
    return fallback


async def read_backup(shop: Workshop, name: str) -> Backup | None:
    """Read a backup of the repo object if that is possible."""
    fetched = await shop.fetch(backup_key(name))
    if fetched is None:
        return None
    try:
        return Backup(name, bytes(fetched.data), decode_repo_info(fetched.data))
    except (FormatError, InvalidInputError):
        return None


async def _problem(shop: Workshop, repo: RepoInfo, whole: dict[SnapshotId, bool]) -> str | None:
    """Say why a state should not be gone back to."""
    if repo.config is not None:
        try:
            decode_config_flexbuffer(repo.config)
        except FormatError:
            return "the configuration cannot be read"
    for name, tip in (*repo.branches.items(), *repo.tags.items()):
        if not has_whole_history(repo, tip):
            return f"the history of {name!r} is broken"
        if tip not in whole:
            whole[tip] = await shop.snapshot(tip) is not None
        if not whole[tip]:
            return f"{name!r} names the snapshot {tip}, which is lost"
    return None


def has_whole_history(repo: RepoInfo, tip: SnapshotId) -> bool:
    """Say whether a history ends in the first snapshot."""
    try:
        rows = repo.snapshots.ancestry(tip)
    except FormatError:
        return False
    return repo.snapshots.id(rows[-1]) == INITIAL_SNAPSHOT_ID
