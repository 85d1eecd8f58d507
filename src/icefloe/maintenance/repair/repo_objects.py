"""Restore the repo object of spec 2: from one of its backups, or from the snapshots alone.

Snapshots of spec 2 do not name their parents. But each has a log of what its commit changed: a
version is the child of another if the log explains all differences between them.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import batched
from typing import Final

from icefloe.effects import map_concurrently
from icefloe.errors import (
    ErrorKind,
    FormatError,
    InvalidInputError,
    NotFoundError,
    RepositoryNotFoundError,
    SnapshotNotFoundError,
)
from icefloe.format.config_file import decode_config_flexbuffer
from icefloe.format.envelope import FileType, object_attributes
from icefloe.format.ids import INITIAL_SNAPSHOT_ID, SnapshotId, ids_of_rows
from icefloe.format.layout import REPO_KEY, backup_key, snapshot_key, transaction_log_key
from icefloe.format.repo_info import (
    MAIN_BRANCH,
    SPEC_VERSION,
    RepoInfo,
    decode_repo_info,
    encode_repo_info,
)
from icefloe.format.snapshot import Snapshot, encode_snapshot
from icefloe.format.snapshot_table import SnapshotEntry, SnapshotTable
from icefloe.format.transaction_log import (
    TransactionLog,
    decode_transaction_log,
    encode_transaction_log,
)
from icefloe.format.update_table import UpdateKind
from icefloe.maintenance.repair.repair_log import RepairKind, Workshop
from icefloe.maintenance.verify.log_rules import NodeStates
from icefloe.records import Record, replace
from icefloe.repo import repo_changes
from icefloe.repo.lifecycle import initial_snapshot
from icefloe.repo.repo_changes import Change, Changed
from icefloe.repo.repo_ledger import RepoObjectLedger
from icefloe.reports import counted
from icefloe.storage import Version

_HELD: Final = 64
"""Versions whose nodes are kept in memory."""


class Lineage:
    """Finds parents."""

    def __init__(self, shop: Workshop) -> None:
        self._shop = shop
        self._states: OrderedDict[SnapshotId, NodeStates] = OrderedDict()

    async def parent_of(self, child: Snapshot, earlier: Iterable[SnapshotId]) -> SnapshotId | None:
        """Find the parent of a version among others, given newest first.

        The newest from which its log explains everything; else the newest where only manifests
        differ without a reason, as after they were rewritten. None if no other fits.
        """
        candidates = [*earlier]
        if child.parent_id is not None:
            return child.parent_id if child.parent_id in candidates else None
        log = await read_log(self._shop, child.id)
        if log is None:
            return None
        after = NodeStates(child)
        self._hold(child.id, after)
        best: tuple[int, SnapshotId] | None = None
        for candidate in candidates:
            before = await self._state(candidate)
            if before is None:
                continue
            unexplained = _unexplained(before, after, log)
            if unexplained == 0:
                return candidate
            if unexplained is not None and (best is None or unexplained < best[0]):
                best = (unexplained, candidate)
        return None if best is None else best[1]

    async def _state(self, snapshot_id: SnapshotId) -> NodeStates | None:
        if (state := self._states.get(snapshot_id)) is None:
            snapshot = await self._shop.snapshot(snapshot_id)
            if snapshot is None:
                return None
            state = NodeStates(snapshot)
        self._hold(snapshot_id, state)
        return state

    def _hold(self, snapshot: SnapshotId, state: NodeStates) -> None:
        self._states[snapshot] = state
        self._states.move_to_end(snapshot)
        while len(self._states) > _HELD:
            self._states.popitem(last=False)


async def read_log(shop: Workshop, snapshot: SnapshotId) -> TransactionLog | None:
    """Read the log of a commit if that is possible."""
    log = await shop.load(transaction_log_key(snapshot), decode_transaction_log)
    return log if log is not None and log.id == snapshot else None


def _unexplained(before: NodeStates, after: NodeStates, log: TransactionLog) -> int | None:
    """Count arrays whose manifests differ without a log entry; None: `before` is no parent."""
    new = _raw(log, "new_groups", "new_arrays")
    deleted = _raw(log, "deleted_groups", "deleted_arrays")
    updated = _raw(log, "updated_groups", "updated_arrays")
    old = before.rows.keys()
    if new & old or ((old | new) - deleted) != after.rows.keys():
        return None
    moved = {move.node.raw for move in log.moves}
    chunks = {node.raw for node in log.updated_chunks}
    unexplained = 0
    for raw in old & after.rows.keys():
        was, now = before.state(raw), after.state(raw)
        if was == now:
            continue
        if (was[0] != now[0] and raw not in moved) or (was[1] != now[1] and raw not in updated):
            return None
        unexplained += was[2] != now[2] and raw not in updated | chunks
    return unexplained


def _raw(log: TransactionLog, *names: str) -> set[bytes]:
    return {node.raw for name in names for node in log.nodes(name)}


RECOVERED: Final = "recovered-"
"""What the names of branches begin with that repair makes."""


def entry_of(snapshot: Snapshot, parent: SnapshotId | None) -> SnapshotEntry:
    """Return the entry of a snapshot as a repo object would list it."""
    return SnapshotEntry(
        snapshot.id, parent, snapshot.flushed_at, snapshot.message, snapshot.metadata
    )


# -- the first snapshot --------------------------------------------------------------------


async def restore_first_snapshot(shop: Workshop, flushed_at: int, spec_version: int) -> Snapshot:
    """Write the first snapshot of a repository again, with its log: both are empty."""
    snapshot = initial_snapshot(flushed_at, spec_version)
    await shop.rewrite(
        RepairKind.RESTORE_FIRST,
        "the first snapshot is lost: it is empty, and written again",
        snapshot_key(INITIAL_SNAPSHOT_ID),
        encode_snapshot(snapshot, level=shop.level),
        object_attributes(FileType.SNAPSHOT, spec_version),
    )
    return snapshot


async def restore_first_log(shop: Workshop) -> None:
    """Write the log of the first snapshot again."""
    await shop.rewrite(
        RepairKind.RESTORE_FIRST,
        "the log of the first snapshot is lost: it is empty, and written again",
        transaction_log_key(INITIAL_SNAPSHOT_ID),
        encode_transaction_log(TransactionLog(INITIAL_SNAPSHOT_ID), spec_version=SPEC_VERSION),
        object_attributes(FileType.TRANSACTION_LOG, SPEC_VERSION),
    )


# -- a repo object from snapshots ----------------------------------------------------------


async def rebuild_repo_object(shop: Workshop, problem: str, damaged: Version | None) -> None:
    """Make a repo object of all snapshots that can be read."""
    snapshots = await shop.snapshots(await shop.snapshot_ids())
    if not snapshots:
        raise RepositoryNotFoundError(
            f"{problem}, and there is neither a backup nor a snapshot that can be read: nothing"
            " tells what was in this repository"
        )
    if INITIAL_SNAPSHOT_ID not in snapshots:
        first = max(min(snapshot.flushed_at for snapshot in snapshots.values()) - 1, 0)
        snapshots[INITIAL_SNAPSHOT_ID] = await restore_first_snapshot(shop, first, SPEC_VERSION)
    entries = await _with_parents(shop, snapshots)
    branches = _branches(shop, entries)
    repo = replace(
        repo_changes.created(entries[INITIAL_SNAPSHOT_ID], shop.clock()),
        branches=branches,
        history=SnapshotTable.from_entries([*entries.values()]),
    )
    backup = await shop.replace(
        REPO_KEY,
        encode_repo_info(repo, level=shop.level),
        damaged,
        attributes=object_attributes(FileType.REPO_INFO, SPEC_VERSION),
    )
    message = (
        f"{problem}, and no backup can be read: it is made again of"
        f" {counted(len(entries), 'snapshot')}."
        f" {MAIN_BRANCH} ends at {branches[MAIN_BRANCH]}, the newest; other ends of histories are"
        f" branches {RECOVERED}…; tags, names of branches, configuration, metadata and log are lost"
    )
    versions = [*branches.values()]
    shop.done(RepairKind.REBUILD_REPO, message, [REPO_KEY], kept_aside=backup, versions=versions)


async def _with_parents(
    shop: Workshop, snapshots: Mapping[SnapshotId, Snapshot]
) -> dict[SnapshotId, SnapshotEntry]:
    first = snapshots[INITIAL_SNAPSHOT_ID]
    entries = {INITIAL_SNAPSHOT_ID: entry_of(first, None)}
    lineage = Lineage(shop)
    for snapshot in sorted(
        snapshots.values(), key=lambda snapshot: (snapshot.flushed_at, snapshot.id)
    ):
        if snapshot.id == INITIAL_SNAPSHOT_ID:
            continue
        if snapshot.flushed_at <= first.flushed_at:
            shop.note(f"the snapshot {snapshot.id} is older than the first one: it is left out")
            continue
        parent = await lineage.parent_of(snapshot, earlier_versions(entries, snapshot.flushed_at))
        if parent is None:
            parent = INITIAL_SNAPSHOT_ID
            shop.note(
                f"the parent of the snapshot {snapshot.id} is unknown: its history begins there"
            )
        entries[snapshot.id] = entry_of(snapshot, parent)
    return entries


def earlier_versions(entries: Mapping[SnapshotId, SnapshotEntry], moment: int) -> list[SnapshotId]:
    """List versions before a moment, newest first."""
    earlier = [(-entry.flushed_at, entry.id) for entry in entries.values()]
    return [version for negative_time, version in sorted(earlier) if -negative_time < moment]


def _branches(shop: Workshop, entries: Mapping[SnapshotId, SnapshotEntry]) -> dict[str, SnapshotId]:
    leaves = leaves_of({snapshot_id: entry.parent for snapshot_id, entry in entries.items()})
    newest = sorted(leaves, key=lambda snapshot_id: (-entries[snapshot_id].flushed_at, snapshot_id))
    named_branches = shop.rules.branches
    for name, tip in named_branches.items():
        if tip not in entries:
            raise SnapshotNotFoundError(
                f"there is no snapshot {tip} that can be read, for the branch {name!r}",
                snapshot=str(tip),
            )
    branches = {MAIN_BRANCH: newest[0], **named_branches}
    named = {*branches.values()}
    return branches | {f"{RECOVERED}{tip}": tip for tip in newest if tip not in named}


def leaves_of(parents: Mapping[SnapshotId, SnapshotId | None]) -> set[SnapshotId]:
    """Return the versions that none follows."""
    return parents.keys() - {parent for parent in parents.values() if parent is not None}


# -- versions that are not listed ----------------------------------------------------------


async def unlisted_versions(shop: Workshop, repo: RepoInfo) -> list[Snapshot]:
    """Find snapshots that can be read but are not listed, oldest first.

    Those that were taken out of the history on purpose, which leaves a trace, are not among them.
    """
    table = repo.snapshots
    listed = {*ids_of_rows(SnapshotId, table.ids), *ids_of_rows(SnapshotId, table.pruned_ids)}
    snapshots = await shop.snapshots(
        [snapshot_id for snapshot_id in await shop.snapshot_ids() if snapshot_id not in listed]
    )
    return sorted(snapshots.values(), key=lambda snapshot: (snapshot.flushed_at, snapshot.id))


async def recover_versions(shop: Workshop, ledger: RepoObjectLedger) -> None:
    """Create a branch for each line of versions that is stored but not listed."""
    repo = await ledger.repo()
    listed = {entry.id: entry for entry in repo.snapshots.entries(range(len(repo.snapshots)))}
    lineage = Lineage(shop)
    recovered: dict[SnapshotId, SnapshotEntry] = {}
    for snapshot in await unlisted_versions(shop, repo):
        earlier = earlier_versions(listed | recovered, snapshot.flushed_at)
        parent = await lineage.parent_of(snapshot, earlier)
        if parent is None:
            shop.note(
                f"the snapshot {snapshot.id} ({snapshot.message!r}) is not listed, and nothing"
                " tells what"
                " came before it: it is left as it is"
            )
            continue
        recovered[snapshot.id] = entry_of(snapshot, parent)
    for tip in sorted(leaves_of({snapshot: entry.parent for snapshot, entry in recovered.items()})):
        if tip in recovered:
            await _recover(shop, ledger, tip, recovered)


async def _recover(
    shop: Workshop,
    ledger: RepoObjectLedger,
    tip: SnapshotId,
    recovered: Mapping[SnapshotId, SnapshotEntry],
) -> None:
    name = f"{RECOVERED}{tip}"
    line: list[SnapshotEntry] = []
    snapshot_id: SnapshotId | None = tip
    while snapshot_id is not None and snapshot_id in recovered:
        line.append(recovered[snapshot_id])
        snapshot_id = recovered[snapshot_id].parent
    await ledger.update(ListVersions(name, tip, line[::-1]))
    message = (
        f"the snapshot {tip} ({recovered[tip].message!r}) exists, but is not listed: it is the"
        " branch"
        f" {name!r} now, on top of {snapshot_id}"
    )
    versions = [entry.id for entry in line]
    shop.done(RepairKind.RECOVER_VERSION, message, [REPO_KEY], versions=versions)


class ListVersions(Change):
    """List versions, oldest first, and make a branch that ends at the last one."""

    name: str
    tip: SnapshotId
    line: Sequence[SnapshotEntry]

    def apply(self, repo: RepoInfo) -> Changed:
        """Return the state with the versions and the branch."""
        repo_changes.require_online(repo)
        table = repo.snapshots
        for entry in self.line:
            if table.row_of(entry.id) is None:
                table = table.with_entry(entry)
        made = replace(repo, history=table, branches={**repo.branches, self.name: self.tip})
        return Changed(made, UpdateKind.BRANCH_CREATED, self.name)


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_AT_ONCE: Final = 16
"""Backups that are read and compared at a time: clocks of writers may put names out of order."""


class Backup(Record):
    """A backup that can be read."""

    name: str
    data: bytes
    repo: RepoInfo
    problem: str | None = None
    """Why it is not fit to be restored, if others are."""

    @property
    def time(self) -> int:
        """The time of its newest operation, in microseconds."""
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
    kept_copy = await shop.replace(REPO_KEY, chosen.data, damaged, attributes=attributes)
    newest = chosen.repo.updates.entry(0)
    message = (
        f"{problem}: the backup {chosen.name} takes its place, the state of"
        f" {_EPOCH + timedelta(microseconds=chosen.time):%Y-%m-%d %H:%M:%S} UTC, after"
        f" {newest.kind.name}; operations after that are lost from the log"
    )
    if chosen.problem is not None:
        message += f"; even there, {chosen.problem}"
    shop.done(RepairKind.RESTORE_REPO, message, [REPO_KEY], kept_aside=kept_copy)


async def _choose(shop: Workshop) -> Backup | None:
    """Find the newest backup that can be read and whose refs name versions that can be, too.

    If there is none such, the newest that can be read.
    """
    names = await shop.backups_of(REPO_KEY)
    if (named_backup := shop.rules.backup) is not None:
        if named_backup not in names:
            raise NotFoundError(f"there is no backup {named_backup!r} in overwritten/")
        chosen = await read_backup(shop, named_backup)
        if chosen is None:
            raise FormatError(f"the backup {named_backup!r} cannot be read: choose another")
        return chosen
    fallback: Backup | None = None
    whole: dict[SnapshotId, bool] = {}
    for some in batched(names, _AT_ONCE):
        read = await map_concurrently(lambda name: read_backup(shop, name), some, limit=_AT_ONCE)
        backups = sorted(
            (candidate for candidate in read if candidate is not None),
            key=lambda candidate: -candidate.time,
        )
        for backup in backups:
            problem = await _problem(shop, backup.repo, whole)
            if problem is None:
                return backup
            if fallback is None:
                fallback = Backup(backup.name, backup.data, backup.repo, problem)
    return fallback


async def read_backup(shop: Workshop, name: str) -> Backup | None:
    """Read a backup of the repo object if that is possible."""
    return await shop.load(
        backup_key(name), lambda data: Backup(name, bytes(data), decode_repo_info(data))
    )


async def _problem(shop: Workshop, repo: RepoInfo, whole: dict[SnapshotId, bool]) -> str | None:
    """Return why a state should not be restored, if so."""
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
    """Return whether a history ends in the first snapshot."""
    try:
        rows = repo.snapshots.ancestry(tip)
    except FormatError:
        return False
    return repo.snapshots.id(rows[-1]) == INITIAL_SNAPSHOT_ID
