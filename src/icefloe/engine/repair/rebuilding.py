"""Making a repo object from nothing but the snapshots; bringing back versions it does not list."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from icefloe.engine import repo_changes
from icefloe.engine.lifecycle import initial_snapshot
from icefloe.engine.repair.lineage import Lineage
from icefloe.engine.repair.values import RepairKind
from icefloe.engine.repair.workshop import Workshop
from icefloe.engine.repo_changes import Change, Changed
from icefloe.engine.repo_object import RepoObjectLedger
from icefloe.errors import RepositoryNotFoundError, SnapshotNotFoundError
from icefloe.format.envelope import FileType, object_attributes
from icefloe.format.ids import INITIAL_SNAPSHOT_ID, SnapshotId, ids_of_rows
from icefloe.format.layout import REPO_KEY, snapshot_key, transaction_log_key
from icefloe.format.repo_info import MAIN_BRANCH, SPEC_VERSION, RepoInfo, encode_repo_info
from icefloe.format.snapshot import Snapshot, encode_snapshot
from icefloe.format.snapshot_table import SnapshotEntry, SnapshotTable
from icefloe.format.transaction_log import TransactionLog, encode_transaction_log
from icefloe.format.update_table import UpdateKind
from icefloe.storage import Version

RECOVERED: Final = "recovered-"
"""What the names of branches begin with that repair makes."""


def entry_of(snapshot: Snapshot, parent: SnapshotId | None) -> SnapshotEntry:
    """Say of a snapshot what a repo object would."""
    return SnapshotEntry(
        snapshot.id, parent, snapshot.flushed_at, snapshot.message, snapshot.metadata
    )


# -- the first snapshot --------------------------------------------------------------------


async def restore_first_snapshot(shop: Workshop, flushed_at: int, spec_version: int) -> Snapshot:
    """Write the first snapshot of a repository anew, with its log: both are empty."""
    snapshot = initial_snapshot(flushed_at, spec_version)
    key = snapshot_key(INITIAL_SNAPSHOT_ID)
    present = await shop.fetch(key)
    kept = await shop.replace(
        key,
        encode_snapshot(snapshot, level=shop.level),
        None if present is None else present.info.version,
        attributes=object_attributes(FileType.SNAPSHOT, spec_version),
    )
    message = "the first snapshot is lost: it is empty, and written anew"
    shop.done(RepairKind.RESTORE_FIRST, message, [key], kept_aside=kept)
    return snapshot


async def restore_first_log(shop: Workshop) -> None:
    """Write the log of the first snapshot anew."""
    key = transaction_log_key(INITIAL_SNAPSHOT_ID)
    present = await shop.fetch(key)
    kept = await shop.replace(
        key,
        encode_transaction_log(TransactionLog(INITIAL_SNAPSHOT_ID), spec_version=SPEC_VERSION),
        None if present is None else present.info.version,
        attributes=object_attributes(FileType.TRANSACTION_LOG, SPEC_VERSION),
    )
    message = "the log of the first snapshot is lost: it is empty, and written anew"
    shop.done(RepairKind.RESTORE_FIRST, message, [key], kept_aside=kept)


# -- a repo object from snapshots ----------------------------------------------------------


async def rebuild_repo_object(shop: Workshop, problem: str, damaged: Version | None) -> None:
    """Make a repo object of all snapshots that can be read."""
    found = await shop.snapshots(await shop.snapshot_ids())
    if not found:
        raise RepositoryNotFoundError(
            f"{problem}, and there is neither a backup nor a snapshot that can be read: nothing"
            " tells what was in this repository"
        )
    if INITIAL_SNAPSHOT_ID not in found:
        first = max(min(one.flushed_at for one in found.values()) - 1, 0)
        found[INITIAL_SNAPSHOT_ID] = await restore_first_snapshot(shop, first, SPEC_VERSION)
    entries = await _with_parents(shop, found)
    branches = _branches(shop, entries)
    repo = replace(
        repo_changes.created(entries[INITIAL_SNAPSHOT_ID], shop.clock()),
        branches=branches,
        history=SnapshotTable.from_entries([*entries.values()]),
    )
    kept = await shop.replace(
        REPO_KEY,
        encode_repo_info(repo, level=shop.level),
        damaged,
        attributes=object_attributes(FileType.REPO_INFO, SPEC_VERSION),
    )
    message = (
        f"{problem}, and no backup can be read: it is made anew of {len(entries)} snapshots."
        f" {MAIN_BRANCH} ends at {branches[MAIN_BRANCH]}, the newest; other ends of histories are"
        f" branches {RECOVERED}…; tags, names of branches, configuration, metadata and log are lost"
    )
    versions = [*branches.values()]
    shop.done(RepairKind.REBUILD_REPO, message, [REPO_KEY], kept_aside=kept, versions=versions)


async def _with_parents(
    shop: Workshop, found: Mapping[SnapshotId, Snapshot]
) -> dict[SnapshotId, SnapshotEntry]:
    first = found[INITIAL_SNAPSHOT_ID]
    entries = {INITIAL_SNAPSHOT_ID: entry_of(first, None)}
    lineage = Lineage(shop)
    for one in sorted(found.values(), key=lambda one: (one.flushed_at, one.id)):
        if one.id == INITIAL_SNAPSHOT_ID:
            continue
        if one.flushed_at <= first.flushed_at:
            shop.note(f"the snapshot {one.id} is older than the first one: it is left out")
            continue
        parent = await lineage.parent_of(one, _earlier(entries, one.flushed_at))
        if parent is None:
            parent = INITIAL_SNAPSHOT_ID
            shop.note(
                f"nothing tells what came before the snapshot {one.id}: its history begins there"
            )
        entries[one.id] = entry_of(one, parent)
    return entries


def _earlier(entries: Mapping[SnapshotId, SnapshotEntry], moment: int) -> list[SnapshotId]:
    """List versions before a moment, newest first."""
    found = [entry for entry in entries.values() if entry.flushed_at < moment]
    return [one.id for one in sorted(found, key=lambda one: (-one.flushed_at, one.id))]


def _branches(shop: Workshop, entries: Mapping[SnapshotId, SnapshotEntry]) -> dict[str, SnapshotId]:
    leaves = leaves_of({one: entry.parent for one, entry in entries.items()})
    newest = sorted(leaves, key=lambda one: (-entries[one].flushed_at, one))
    wanted = shop.rules.branches
    for name, tip in wanted.items():
        if tip not in entries:
            raise SnapshotNotFoundError(
                f"there is no snapshot {tip} that can be read, for the branch {name!r}",
                snapshot=str(tip),
            )
    branches = {MAIN_BRANCH: newest[0], **wanted}
    named = {*branches.values()}
    return branches | {f"{RECOVERED}{tip}": tip for tip in newest if tip not in named}


def leaves_of(parents: Mapping[SnapshotId, SnapshotId | None]) -> set[SnapshotId]:
    """Give the versions that none follows."""
    return parents.keys() - {parent for parent in parents.values() if parent is not None}


# -- versions that are not listed ----------------------------------------------------------


async def unlisted_versions(shop: Workshop, repo: RepoInfo) -> list[Snapshot]:
    """Find snapshots that can be read but are not listed, oldest first.

    Those that were taken out of the history on purpose, which leaves a trace, are not among them.
    """
    table = repo.snapshots
    listed = {*ids_of_rows(SnapshotId, table.ids), *ids_of_rows(SnapshotId, table.pruned_ids)}
    found = await shop.snapshots([one for one in await shop.snapshot_ids() if one not in listed])
    return sorted(found.values(), key=lambda one: (one.flushed_at, one.id))


async def recover_versions(shop: Workshop, ledger: RepoObjectLedger) -> None:
    """Give a branch to each line of versions that is there but not listed."""
    repo = await ledger.repo()
    listed = {entry.id: entry for entry in repo.snapshots.entries(range(len(repo.snapshots)))}
    lineage = Lineage(shop)
    found: dict[SnapshotId, SnapshotEntry] = {}
    for one in await unlisted_versions(shop, repo):
        earlier = _earlier(listed | found, one.flushed_at)
        parent = await lineage.parent_of(one, earlier)
        if parent is None:
            shop.note(
                f"the snapshot {one.id} ({one.message!r}) is not listed, and nothing tells what"
                " came before it: it is left as it is"
            )
            continue
        found[one.id] = entry_of(one, parent)
    for tip in sorted(leaves_of({one: entry.parent for one, entry in found.items()})):
        if tip in found:
            await _recover(shop, ledger, tip, found)


async def _recover(
    shop: Workshop,
    ledger: RepoObjectLedger,
    tip: SnapshotId,
    found: Mapping[SnapshotId, SnapshotEntry],
) -> None:
    name = f"{RECOVERED}{tip}"
    line: list[SnapshotEntry] = []
    at: SnapshotId | None = tip
    while at is not None and at in found:
        line.append(found[at])
        at = found[at].parent
    await ledger.update(_listing(name, tip, line[::-1]))
    message = (
        f"the snapshot {tip} ({found[tip].message!r}) is there, but not listed: it is the branch"
        f" {name!r} now, on top of {at}"
    )
    versions = [entry.id for entry in line]
    shop.done(RepairKind.RECOVER_VERSION, message, [REPO_KEY], versions=versions)


def _listing(name: str, tip: SnapshotId, line: Sequence[SnapshotEntry]) -> Change:
    def change(repo: RepoInfo) -> Changed:
        repo_changes.require_online(repo)
        table = repo.snapshots
        for entry in line:
            if table.row_of(entry.id) is None:
                table = table.with_entry(entry)
        made = replace(repo, history=table, branches={**repo.branches, name: tip})
        return Changed(made, UpdateKind.BRANCH_CREATED, name)

    return change
