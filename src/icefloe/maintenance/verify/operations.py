"""The log of operations of spec 2, and the backups of the repo object in which it goes on."""

from collections.abc import Sequence
from itertools import islice, pairwise
from typing import Final

from icefloe.effects import map_concurrently
from icefloe.format.layout import BACKUPS_PREFIX, REPO_KEY, backup_key
from icefloe.format.repo_info import RepoInfo, decode_repo_info
from icefloe.format.update_table import UpdateEntry, UpdateKind
from icefloe.maintenance.verify.files import CheckedFiles
from icefloe.maintenance.verify.findings import DamageKind
from icefloe.records import Record, replace

_AT_ONCE: Final = 16


class BackupRules(Record):
    """How far to look into the past of the repo object."""

    most: int | None = 16
    """How many backups to read, newest first; None: all. The others must only be there.

    Each holds the whole history of its time, so that reading all is work for a deep look.
    """
    follows_log: bool = True


async def check_operations(files: CheckedFiles, repo: RepoInfo, rules: BackupRules) -> None:
    """Check the log in the repo object, and that it goes on in the backups."""
    prefix = len(BACKUPS_PREFIX)
    present = {
        info.key[prefix:] async for batch in files.backend.list(BACKUPS_PREFIX) for info in batch
    }
    reader = _Backups(files, present, rules.most)
    newest = repo.updates.entry(0)
    files.findings.require(
        _led_to(newest, repo),
        DamageKind.BAD_OPERATIONS,
        f"the newest operation in {REPO_KEY} is {newest.kind.name}, but the repository is not as"
        " that operation leaves it",
        REPO_KEY,
    )
    name: str = REPO_KEY
    visited: set[str] = set()
    state: RepoInfo | None = repo
    newer: UpdateEntry | None = None
    while state is not None:
        entries = state.updates.entries()
        await _check_entries(files, entries, name, reader)
        if newer is not None:
            files.findings.require(
                newer.updated_at > entries[0].updated_at,
                DamageKind.BAD_OPERATIONS,
                f"{name} is not older than what it backs",
                backup_key(name),
            )
        newer, before = entries[-1], state.repo_before_updates
        if before is None:
            return
        if before in visited:
            message = f"the log of operations comes back to {before}"
            files.findings.report(DamageKind.BAD_OPERATIONS, message, backup_key(before))
            return
        name = before
        visited.add(name)
        state = await reader.read(name)


def _led_to(newest: UpdateEntry, repo: RepoInfo) -> bool:
    """Return whether a repository is as its newest operation leaves it."""
    name = newest.name or ""
    match newest.kind:
        case UpdateKind.TAG_CREATED:
            return name in repo.tags
        case UpdateKind.TAG_DELETED:
            return name in repo.deleted_tags
        case UpdateKind.BRANCH_CREATED | UpdateKind.BRANCH_RESET:
            return name in repo.branches
        case UpdateKind.BRANCH_DELETED:
            return name not in repo.branches
        case UpdateKind.NEW_COMMIT | UpdateKind.COMMIT_AMENDED:
            return repo.branches.get(name) == newest.new
        case UpdateKind.NEW_DETACHED_SNAPSHOT:
            return newest.new is not None and repo.snapshots.row_of(newest.new) is not None
    return True


class _Backups:
    """Reads backups, as many as are wanted."""

    def __init__(self, files: CheckedFiles, present: set[str], most: int | None) -> None:
        self._files = files
        self._present = present
        self._left = most

    async def read(self, name: str) -> RepoInfo | None:
        """Read a backup that the log goes on in."""
        loaded = await self._files.load(
            backup_key(name),
            decode_repo_info,
            "the log of operations",
            missing=DamageKind.NO_BACKUP,
            damaged=DamageKind.BAD_BACKUP,
        )
        return None if loaded is None else loaded[0]

    async def first_entries(self, names: Sequence[str]) -> dict[str, UpdateEntry]:
        """Return the newest entries of backups, up to a limit; check that others exist."""
        backup_names = list(names if self._left is None else islice(names, self._left))
        if self._left is not None:
            self._left -= len(backup_names)
        for name in names[len(backup_names) :]:
            key = backup_key(name)
            self._files.findings.require(
                name in self._present,
                DamageKind.NO_BACKUP,
                f"{key} does not exist, but the log of operations needs it",
                key,
            )

        async def first(name: str) -> UpdateEntry | None:
            repo = await self.read(name)
            return None if repo is None else repo.updates.entry(0)

        entries = await map_concurrently(first, backup_names, limit=_AT_ONCE)
        return {
            name: entry
            for name, entry in zip(backup_names, entries, strict=True)
            if entry is not None
        }


async def _check_entries(
    files: CheckedFiles, entries: Sequence[UpdateEntry], name: str, backups: _Backups
) -> None:
    def require(holds: object, message: str) -> None:
        key = REPO_KEY if name == REPO_KEY else backup_key(name)
        files.findings.require(holds, DamageKind.BAD_OPERATIONS, message, key)

    newest, *older = entries
    require(newest.backup_path is None, f"the newest operation in {name} has a backup already")
    times = [entry.updated_at for entry in entries]
    require(
        all(newer > older for newer, older in pairwise(times)),
        f"the operations in {name} are not newest first, each at a time of its own",
    )
    migrated_at = max(
        (entry.updated_at for entry in entries if entry.kind is UpdateKind.REPO_MIGRATED), default=0
    )
    for entry in older:
        require(
            entry.backup_path is not None or entry.updated_at < migrated_at,
            f"the operation {entry.kind.name} in {name} at {entry.updated_at} has no backup",
        )
    with_backup = {entry.backup_path: entry for entry in older if entry.backup_path is not None}
    firsts = await backups.first_entries(list(with_backup))
    for path, entry in with_backup.items():
        first = firsts.get(path)
        require(
            first is None or replace(first, backup_path=path) == entry,
            f"{path} is not the backup of {entry.kind.name} at {entry.updated_at}",
        )
