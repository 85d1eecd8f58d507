"""Correct a repo object of spec 2: history, refs, configuration, log of operations.

What is known to be wrong is folded into the present state of the repo object, in one update; the
state before is kept as a backup, as with every operation.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from icefloe.errors import FormatError, InvalidInputError
from icefloe.format.config_file import decode_config_flexbuffer
from icefloe.format.ids import INITIAL_SNAPSHOT_ID, SnapshotId
from icefloe.format.layout import REPO_KEY, TRANSACTIONS_PREFIX
from icefloe.format.repo_info import MAIN_BRANCH, RepoInfo
from icefloe.format.snapshot import Snapshot
from icefloe.format.snapshot_table import SnapshotEntry, SnapshotTable
from icefloe.format.update_table import UpdateEntry, UpdateKind, UpdateTable
from icefloe.maintenance import expiration
from icefloe.maintenance.repair.repair_log import RepairKind, Workshop
from icefloe.maintenance.repair.repo_objects import (
    Lineage,
    earlier_versions,
    has_whole_history,
    read_backup,
    restore_first_log,
    restore_first_snapshot,
)
from icefloe.maintenance.verify.findings import DamageKind, Harm
from icefloe.maintenance.verify.report import Damage
from icefloe.records import MutableRecord, field, replace
from icefloe.repo import repo_changes
from icefloe.repo.repo_changes import Change, Changed
from icefloe.repo.repo_ledger import RepoObjectLedger
from icefloe.reports import counted
from icefloe.walk.history import oldest_ancestors

_K = DamageKind
LOST: Final = frozenset({_K.NO_SNAPSHOT, _K.BAD_SNAPSHOT})
_BROKEN_LOG: Final = frozenset({_K.BAD_OPERATIONS, _K.NO_BACKUP, _K.BAD_BACKUP})
_MOST_BACKUPS: Final = 64
"""How many backups to search for the parent of a version."""


class Mending(MutableRecord):
    """The corrections to make."""

    truths: Mapping[SnapshotId, Snapshot] = field(default_factory=dict)
    """Snapshots of which the repo object says something else than their files."""
    parents: Mapping[SnapshotId, SnapshotId] = field(default_factory=dict)
    """Other parents, where histories are broken."""
    lost_logs: frozenset[SnapshotId] = frozenset()
    """Pruned ancestors whose logs are lost."""
    config: bytes | None = None
    replaces_config: bool = False
    updates: tuple[UpdateEntry, ...] | None = None
    """The part of the log of operations that can be relied on."""

    def __bool__(self) -> bool:
        return bool(
            self.truths
            or self.parents
            or self.lost_logs
            or self.replaces_config
            or self.updates is not None
        )


async def mend(shop: Workshop, ledger: RepoObjectLedger, damages: Iterable[Damage]) -> None:
    """Put right what the repo object says."""
    all_damages = [*damages]
    repo = await ledger.repo()
    mending = await _mending(shop, repo, all_damages)
    if not mending:
        return
    await ledger.update(Mend(mending))
    kind = RepairKind.RESTORE_CONFIG if mending.replaces_config else RepairKind.MEND_HISTORY
    shop.done(kind, "; ".join(_told(mending)), [REPO_KEY], versions=[*mending.parents])


class Mend(Change):
    """Put right what the repo object says."""

    mending: Mending

    def apply(self, repo: RepoInfo) -> Changed:
        """Return the state that is right."""
        repo_changes.require_online(repo)
        is_config = self.mending.replaces_config
        kind = UpdateKind.CONFIG_CHANGED if is_config else UpdateKind.EXPIRATION_RAN
        return Changed(_mended(repo, self.mending), kind)


def _told(mending: Mending) -> Iterable[str]:
    if mending.replaces_config:
        source = "the defaults" if mending.config is None else "the one of a backup"
        yield f"the configuration cannot be read: {source} takes its place"
    for snapshot_id in mending.truths:
        yield f"what the repo object says of {snapshot_id} is taken from its file"
    for snapshot_id, parent in mending.parents.items():
        yield f"the history of {snapshot_id} goes on with {parent}"
    if mending.lost_logs:
        yield f"{len(mending.lost_logs)} logs of expired versions are lost, and forgotten"
    if mending.updates is not None:
        yield (
            f"the log of operations is cut after the {len(mending.updates)} newest, which can be"
            " relied on"
        )


async def _mending(shop: Workshop, repo: RepoInfo, damages: list[Damage]) -> Mending:
    wrong = versions_with(damages, frozenset({_K.BAD_ENTRY}))
    mending = Mending(truths=await shop.snapshots(sorted(wrong)))
    if any(damage.kind == _K.BAD_CONFIG for damage in damages):
        mending.replaces_config = True
        mending.config = await _older_config(shop)
    if any(damage.kind == _K.BAD_HISTORY for damage in damages):
        mending.parents = await _parents(shop, repo)
    if shop.rules.rebuild_logs:
        mending.lost_logs = _lost_logs(repo, damages)
        if any(damage.kind in _BROKEN_LOG for damage in damages):
            mending.updates = await _sound_updates(shop, repo)
    return mending


def _mended(repo: RepoInfo, mending: Mending) -> RepoInfo:
    if mending.truths or mending.parents or mending.lost_logs:
        table = repo.snapshots
        entries = [_entry(entry, mending) for entry in table.entries(range(len(table)))]
        repo = replace(repo, history=SnapshotTable.from_entries(entries))
    if mending.replaces_config:
        repo = replace(repo, config=mending.config)
    if mending.updates is not None:
        count = len(mending.updates)
        # Only the newest has changed since: what is older than what was looked at is cut.
        newest = int(repo.updates.updated_at[0])
        if newest == mending.updates[0].updated_at:
            updates = UpdateTable.from_entries(mending.updates)
        else:
            updates = repo.updates.newest(count)
        repo = replace(repo, log=updates, repo_before_updates=None)
    return repo


def _entry(entry: SnapshotEntry, mending: Mending) -> SnapshotEntry:
    if (true := mending.truths.get(entry.id)) is not None:
        entry = replace(
            entry, flushed_at=true.flushed_at, message=true.message, metadata=true.metadata
        )
    if (parent := mending.parents.get(entry.id)) is not None:
        entry = replace(entry, parent=parent)
    if not mending.lost_logs.isdisjoint(entry.pruned_ancestors):
        left = tuple(
            pruned_ancestor
            for pruned_ancestor in entry.pruned_ancestors
            if pruned_ancestor not in mending.lost_logs
        )
        entry = replace(entry, pruned_ancestors=left)
    return entry


# -- finding out what is right -------------------------------------------------------------


async def _older_config(shop: Workshop) -> bytes | None:
    for name in (await shop.backups_of(REPO_KEY))[:_MOST_BACKUPS]:
        backup = await read_backup(shop, name)
        if backup is None or backup.repo.config is None:
            continue
        try:
            decode_config_flexbuffer(backup.repo.config)
        except (FormatError, InvalidInputError):
            continue
        return backup.repo.config
    return None


async def _parents(shop: Workshop, repo: RepoInfo) -> dict[SnapshotId, SnapshotId]:
    """Find the parents of versions whose histories do not end in the first one."""
    table = repo.snapshots
    entries = {entry.id: entry for entry in table.entries(range(len(table)))}
    parents = {snapshot_id: entry.parent for snapshot_id, entry in entries.items()}
    changed = await _parents_in_backups(shop, parents)
    parents |= changed
    lineage = Lineage(shop)
    for snapshot_id in sorted(
        _endless(parents), key=lambda snapshot_id: entries[snapshot_id].flushed_at
    ):
        if snapshot_id not in _endless(parents):
            continue  # put right with the one before it
        snapshot = await shop.snapshot(snapshot_id)
        parent = None
        if snapshot is not None:
            earlier = earlier_versions(entries, entries[snapshot_id].flushed_at)
            parent = await lineage.parent_of(snapshot, earlier)
        parents[snapshot_id] = changed[snapshot_id] = parent or INITIAL_SNAPSHOT_ID
    return changed


async def _parents_in_backups(
    shop: Workshop, parents: Mapping[SnapshotId, SnapshotId | None]
) -> dict[SnapshotId, SnapshotId]:
    """Find parents in earlier states of the repository, where their histories were whole."""
    changed: dict[SnapshotId, SnapshotId] = {}
    for name in (await shop.backups_of(REPO_KEY))[:_MOST_BACKUPS]:
        broken = _endless({**parents, **changed})
        if not broken:
            break
        if (backup := await read_backup(shop, name)) is None:
            continue
        older = backup.repo
        for snapshot_id in broken:
            row = older.snapshots.row_of(snapshot_id)
            if row is None or not has_whole_history(older, snapshot_id):
                continue
            parent = older.snapshots.entry(row).parent
            if parent is not None and parent in parents:
                changed[snapshot_id] = parent
    return changed


def _endless(parents: Mapping[SnapshotId, SnapshotId | None]) -> list[SnapshotId]:
    """List the versions whose histories do not end in the first one."""
    ends = oldest_ancestors(parents)
    return [version for version, end in ends.items() if end != INITIAL_SNAPSHOT_ID]


def _lost_logs(repo: RepoInfo, damages: Iterable[Damage]) -> frozenset[SnapshotId]:
    """List pruned ancestors whose logs are missing or damaged."""
    keys = {
        key for damage in damages if damage.kind in (_K.NO_LOG, _K.BAD_LOG) for key in damage.keys
    }
    table = repo.snapshots
    pruned = {
        pruned_ancestor
        for row in np.flatnonzero(np.diff(table.pruned_splits)).tolist()
        for pruned_ancestor in table.pruned_ancestors(row)
    }
    return frozenset(
        snapshot_id for snapshot_id in pruned if f"{TRANSACTIONS_PREFIX}{snapshot_id}" in keys
    )


async def _sound_updates(shop: Workshop, repo: RepoInfo) -> tuple[UpdateEntry, ...]:
    """Return the newest operations, as far as the log is in order and backed."""
    newest, *older = repo.updates.entries()
    sound = [replace(newest, backup_path=None)]
    for entry in older:
        if entry.backup_path is None or entry.updated_at >= sound[-1].updated_at:
            break
        backup = await read_backup(shop, entry.backup_path)
        if backup is None:
            break
        first = backup.repo.updates.entry(0)
        if replace(first, backup_path=entry.backup_path) != entry:
            break
        sound.append(entry)
    return tuple(sound)


# -- versions that are lost ----------------------------------------------------------------


async def restore_first(
    shop: Workshop, repo: RepoInfo | None, spec_version: int, damages: Iterable[Damage]
) -> bool:
    """Write the first snapshot and its log again if they are lost; say whether any was."""
    all_damages = [*damages]
    # Asked for itself: a history that breaks off before it does not lead there.
    is_lost = await shop.snapshot(INITIAL_SNAPSHOT_ID) is None
    if is_lost and repo is not None:
        row = repo.snapshots.row_of(INITIAL_SNAPSHOT_ID)
        if row is not None:
            moment = int(repo.snapshots.flushed_at[row])
            await restore_first_snapshot(shop, moment, spec_version)
    elif is_lost:
        snapshots = await shop.snapshots(await shop.snapshot_ids())
        first = min((snapshot.flushed_at for snapshot in snapshots.values()), default=shop.clock())
        await restore_first_snapshot(shop, max(first - 1, 0), spec_version)
    has_no_log = any(
        damage.kind in (_K.NO_LOG, _K.BAD_LOG)
        and f"{TRANSACTIONS_PREFIX}{INITIAL_SNAPSHOT_ID}" in damage.keys
        for damage in all_damages
    )
    if has_no_log and spec_version > 1:
        await restore_first_log(shop)
    return is_lost or has_no_log


async def drop_versions(
    shop: Workshop, ledger: RepoObjectLedger, lost: frozenset[SnapshotId], why: str
) -> None:
    """Remove versions from the history; move their refs to the nearest whole ancestor."""
    lost -= {INITIAL_SNAPSHOT_ID}
    listed = (await ledger.repo()).snapshots
    gone = sorted(snapshot_id for snapshot_id in lost if listed.row_of(snapshot_id) is not None)
    if not gone:
        return
    change = DropLost(lost)
    await ledger.update(change)
    message = "; ".join(
        [
            f"{counted(len(gone), 'version leaves', 'versions leave')} the history: {why}",
            *change.told,
        ]
    )
    shop.done(RepairKind.DROP_VERSIONS, message, [REPO_KEY], versions=gone)


class DropLost(Change):
    """Remove versions from the list; `told` describes the moved refs of the last attempt."""

    lost: frozenset[SnapshotId]
    told: list[str] = field(default_factory=list)

    def apply(self, repo: RepoInfo) -> Changed:
        """Return the state without the versions."""
        repo_changes.require_online(repo)
        after, self.told[:] = without_versions(repo, self.lost)
        return Changed(after, UpdateKind.EXPIRATION_RAN)


def without_versions(repo: RepoInfo, lost: frozenset[SnapshotId]) -> tuple[RepoInfo, list[str]]:
    """Return the state without some versions, and say what that means for branches and tags."""
    table = repo.snapshots
    entries = {entry.id: entry for entry in table.entries(range(len(table)))}
    told: list[str] = []
    branches = dict(repo.branches)
    for name, tip in repo.branches.items():
        snapshot_id = tip
        while snapshot_id in lost and (parent := entries[snapshot_id].parent) is not None:
            snapshot_id = parent
        if snapshot_id == tip:
            continue
        if snapshot_id == INITIAL_SNAPSHOT_ID and name != MAIN_BRANCH:
            del branches[name]
            told.append(f"the branch {name!r} is gone, as nothing of it is left")
        else:
            branches[name] = snapshot_id
            told.append(f"the branch {name!r} goes back from {tip} to {snapshot_id}")
    tags = {name: tip for name, tip in repo.tags.items() if tip not in lost}
    told += [
        f"the tag {name!r} is gone, with {repo.tags[name]}" for name in repo.tags.keys() - tags
    ]
    is_kept = np.array([table.id(row) not in lost for row in range(len(table))], np.bool_)
    remaining = expiration.without(table, is_kept, to_root=False)
    return replace(repo, branches=branches, tags=tags, history=remaining), told


def versions_with(damages: Iterable[Damage], kinds: frozenset[DamageKind]) -> frozenset[SnapshotId]:
    """Unite the versions of damages of some kinds."""
    return _versions(damage for damage in damages if damage.kind in kinds)


def damaged_versions(damages: Iterable[Damage]) -> frozenset[SnapshotId]:
    """List the versions of which data is lost."""
    return _versions(damage for damage in damages if damage.harms == Harm.DATA)


def _versions(damages: Iterable[Damage]) -> frozenset[SnapshotId]:
    return frozenset(SnapshotId.parse(text) for damage in damages for text in damage.versions)
