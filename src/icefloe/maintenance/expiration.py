"""Expiration: remove old versions from the history. Their files stay until they are collected."""

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Final

import numpy as np

from icefloe.effects import map_concurrently
from icefloe.errors import (
    ConflictError,
    ErrorKind,
    FormatError,
    InternalError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    PreconditionFailedError,
    RefNotFoundError,
    RepositoryMigratedError,
    SnapshotNotFoundError,
)
from icefloe.format.columns import Bools, Bytes
from icefloe.format.envelope import FileType, object_attributes
from icefloe.format.ids import SnapshotId, id_rows, ids_of_rows, texts_of_rows
from icefloe.format.layout import snapshot_key
from icefloe.format.repo_info import MAIN_BRANCH, RepoInfo
from icefloe.format.snapshot import decode_snapshot, with_parent
from icefloe.format.snapshot_table import NO_PARENT, Shortened, SnapshotEntry, SnapshotTable
from icefloe.format.update_table import UpdateKind
from icefloe.maintenance.clocks import compare_clocks
from icefloe.maintenance.sweeping import PREFIXES, Kind
from icefloe.records import Record, field, replace
from icefloe.repo import repo_changes
from icefloe.repo.conditional_put import put_settled
from icefloe.repo.context import RepoContext
from icefloe.repo.migration_state import require_seen, require_unmigrated
from icefloe.repo.repo_changes import (
    Change,
    Changed,
    DeleteBranch,
    DeleteTag,
    no_branch,
    no_tag,
)


def without(table: SnapshotTable, is_kept: Bools, *, to_root: bool) -> SnapshotTable:
    """Keep some snapshots; what follows one that goes gets an older parent.

    With `to_root` that is the first snapshot of its history, otherwise the nearest that is kept.
    All ancestors in between are listed as pruned, so that their logs are not lost to those who
    compare versions.
    """
    if is_kept.all():
        return table
    parents = table.parents.tolist()
    # The row of no parent is -1, the last one: nothing goes where there is no parent.
    follows = np.append(~is_kept, False)[table.parents] & is_kept
    shortened = {
        row: _shortened(table, parents, is_kept, row, to_root=to_root)
        for row in np.flatnonzero(follows).tolist()
    }
    return table.kept(is_kept, shortened)


def _shortened(
    table: SnapshotTable, parents: list[int], is_kept: Bools, row: int, *, to_root: bool
) -> Shortened:
    skipped: list[int] = []
    ancestor = parents[row]
    while parents[ancestor] != NO_PARENT and (to_root or not is_kept[ancestor]):
        skipped.append(ancestor)
        ancestor = parents[ancestor]
    if len(table.pruned_ids) == 0:
        return Shortened(ancestor, table.ids[skipped[::-1]])
    pieces: list[Bytes] = [np.empty((0, SnapshotId.WIDTH), np.uint8)]
    for row_skipped in reversed(skipped):
        pieces += [_pruned(table, row_skipped), table.ids[row_skipped : row_skipped + 1]]
    return Shortened(ancestor, np.concatenate([*pieces, _pruned(table, row)]))


def _pruned(table: SnapshotTable, row: int) -> Bytes:
    return table.pruned_ids[table.pruned_splits[row] : table.pruned_splits[row + 1]]


type Refs = Mapping[str, SnapshotId]
type _IsOld = Callable[[SnapshotId], bool]

_SPEC_1: Final = 1
_MOST_ATTEMPTS: Final = 20
_RESOLUTION: Final = timedelta(seconds=2)
"""Clocks that differ by less agree: versions are dated by their writers, not by the storage."""


class ExpirationRules(Record):
    """Which versions may go."""

    older_than: int
    """Microseconds since 1970: only what was written before may go."""
    delete_branches: bool = False
    """Whether branches whose newest version is that old go too; `main` never does."""
    delete_tags: bool = False
    protected_branches: frozenset[str] = frozenset()
    """These keep all of their history, and so what else is in it."""
    protected_tags: frozenset[str] = frozenset()


class Expiration(Record, eq=False):
    """What goes."""

    released_ids: Bytes
    """Versions that nothing leads to afterwards, an id in each row."""
    branches: Refs
    """Branches that are deleted, with where they end."""
    tags: Refs
    parents: Mapping[SnapshotId, SnapshotId] = field(default_factory=dict)
    """In spec 1, versions that stay and get another parent."""

    @property
    def released(self) -> frozenset[SnapshotId]:
        """Versions that nothing leads to afterwards."""
        return frozenset(ids_of_rows(SnapshotId, self.released_ids))

    def released_texts(self) -> list[str]:
        """Write out the same."""
        return texts_of_rows(self.released_ids)


# -- planning ------------------------------------------------------------------------------


def plan_in_repo(repo: RepoInfo, rules: ExpirationRules) -> tuple[Expiration, RepoInfo]:
    """Plan for a repository of spec 2; also give the state after it."""
    _require_refs(rules, repo.branches, repo.tags)
    table = repo.snapshots
    is_candidate = (table.flushed_at < max(rules.older_than, 0)) & (table.parents != NO_PARENT)
    for tip in _protected_tips(rules, repo.branches, repo.tags):
        is_candidate[table.ancestry(tip)] = False

    def is_old(tip: SnapshotId) -> bool:
        return bool(is_candidate[repo_changes.require_listed(repo, tip)])

    branches, tags = _expired_refs(rules, repo.branches, repo.tags, is_old)
    left = replace(
        repo,
        branches=_left(repo.branches, branches),
        tags=_left(repo.tags, tags),
        deleted_tags=tuple(sorted({*repo.deleted_tags, *tags}, key=str.encode)),
    )
    is_kept: Bools = ~is_candidate
    for tip in (*left.branches.values(), *left.tags.values()):
        is_kept[repo_changes.require_listed(repo, tip)] = True
    remaining = without(table, is_kept, to_root=True)
    return Expiration(table.ids[~is_kept], branches, tags), replace(left, history=remaining)


def plan_among(
    entries: Mapping[SnapshotId, SnapshotEntry],
    branches: Refs,
    tags: Refs,
    rules: ExpirationRules,
) -> Expiration:
    """Plan for a repository of spec 1, from all versions that are reachable from refs.

    Of each branch and tag that stays, the oldest version that is young enough becomes the first
    one after the initial snapshot; if none is, the newest does.
    """
    _require_refs(rules, branches, tags)

    def line(tip: SnapshotId) -> list[SnapshotEntry]:
        line_of_entries, entry = list[SnapshotEntry](), entries[tip]
        while True:
            line_of_entries.append(entry)
            if entry.parent is None:
                return line_of_entries
            entry = entries[entry.parent]

    protected = {entry.id for tip in _protected_tips(rules, branches, tags) for entry in line(tip)}

    def is_old(tip: SnapshotId) -> bool:
        entry = entries[tip]
        is_candidate = entry.parent is not None and tip not in protected
        return is_candidate and entry.flushed_at < rules.older_than

    gone_branches, gone_tags = _expired_refs(rules, branches, tags, is_old)
    tips = {*_left(branches, gone_branches).values(), *_left(tags, gone_tags).values()}
    parents: dict[SnapshotId, SnapshotId] = {}
    for tip in tips:
        *later, root = line(tip)
        young = [entry for entry in later if entry.flushed_at >= rules.older_than]
        for first in (young or later[:1])[-1:]:
            if first.parent != root.id and first.id not in protected:
                parents[first.id] = root.id
    remaining = _followed(
        tips, {**{snapshot_id: entry.parent for snapshot_id, entry in entries.items()}, **parents}
    )
    released = id_rows(SnapshotId, sorted(entries.keys() - remaining))
    return Expiration(released, gone_branches, gone_tags, parents)


def _followed(
    tips: Iterable[SnapshotId], parents: Mapping[SnapshotId, SnapshotId | None]
) -> set[SnapshotId]:
    seen: set[SnapshotId] = set()
    for tip in tips:
        snapshot_id: SnapshotId | None = tip
        while snapshot_id is not None and snapshot_id not in seen:
            seen.add(snapshot_id)
            snapshot_id = parents[snapshot_id]
    return seen


def _require_refs(rules: ExpirationRules, branches: Refs, tags: Refs) -> None:
    """Refuse to go on when something that is to be protected is not there: a typing error."""
    for name in sorted(rules.protected_branches - branches.keys()):
        raise no_branch(name)
    for name in sorted(rules.protected_tags - tags.keys()):
        raise no_tag(name)


def _protected_tips(rules: ExpirationRules, branches: Refs, tags: Refs) -> list[SnapshotId]:
    return [
        *(branches[name] for name in sorted(rules.protected_branches)),
        *(tags[name] for name in sorted(rules.protected_tags)),
    ]


def _expired_refs(
    rules: ExpirationRules, branches: Refs, tags: Refs, is_old: _IsOld
) -> tuple[dict[str, SnapshotId], dict[str, SnapshotId]]:
    spared = {MAIN_BRANCH, *rules.protected_branches}
    return (
        {
            name: tip
            for name, tip in branches.items()
            if rules.delete_branches and name not in spared and is_old(tip)
        },
        {
            name: tip
            for name, tip in tags.items()
            if rules.delete_tags and name not in rules.protected_tags and is_old(tip)
        },
    )


def _left(refs: Refs, gone: Refs) -> dict[str, SnapshotId]:
    return {name: tip for name, tip in refs.items() if name not in gone}


# -- acting --------------------------------------------------------------------------------


async def expire(context: RepoContext, rules: ExpirationRules) -> Expiration:
    """Remove old versions, even while others change the repository.

    If the clock of this machine is ahead of the storage's, `older_than` is earlier by that.
    """
    clocks = await compare_clocks(
        context, resolution=_RESOLUTION, prefixes=[PREFIXES[Kind.SNAPSHOTS]]
    )
    lag = clocks.lag // timedelta(microseconds=1)
    rules = replace(rules, older_than=rules.older_than - lag)
    if not context.ledger.lists_versions:
        return await _expire_in_files(context, rules)
    change = Expire(rules)
    await context.ledger.update(change)
    return change.done[-1]


class Expire(Change):
    """Take old versions out of the list; `done` gets what the last attempt did."""

    rules: ExpirationRules
    done: list[Expiration] = field(default_factory=list)

    def apply(self, repo: RepoInfo) -> Changed:
        """Return the state without the old versions."""
        repo_changes.require_online(repo)
        planned, after = plan_in_repo(repo, self.rules)
        self.done[:] = [planned]
        return Changed(after, UpdateKind.EXPIRATION_RAN)


class FileHistory(Record):
    """All versions of a repository of spec 1 that branches and tags lead to, as stored now."""

    branches: Refs
    tags: Refs
    entries: Mapping[SnapshotId, SnapshotEntry]


async def read_history(context: RepoContext) -> FileHistory:
    """Read refs of spec 1 and every version that they lead to."""
    branches, tags = await context.ledger.branches(), await context.ledger.tags()
    entries: dict[SnapshotId, SnapshotEntry] = {}

    async def entry(snapshot_id: SnapshotId) -> SnapshotEntry:
        snapshot = await context.assets.read_snapshot(snapshot_id)
        return SnapshotEntry(
            snapshot.id,
            snapshot.parent_id,
            snapshot.flushed_at,
            snapshot.message,
            snapshot.metadata,
        )

    todo = {*branches.values(), *tags.values()}
    while todo:
        limit = context.config.max_concurrent_requests
        read_entries = await map_concurrently(entry, sorted(todo), limit=limit)
        entries |= {entry_read.id: entry_read for entry_read in read_entries}
        parents = {
            entry_read.parent for entry_read in read_entries if entry_read.parent is not None
        }
        todo = {parent for parent in parents if parent not in entries}
    history = FileHistory(branches, tags, entries)
    _require_roots(history)
    return history


def _require_roots(history: FileHistory) -> None:
    """Refuse histories that run in circles: a walk along them would not end."""
    ended: set[SnapshotId] = set()
    for tip in history.entries:
        walked: set[SnapshotId] = set()
        snapshot_id: SnapshotId | None = tip
        while snapshot_id is not None and snapshot_id not in ended:
            if snapshot_id in walked:
                raise FormatError(f"the history of {tip} runs in a circle at {snapshot_id}")
            walked.add(snapshot_id)
            snapshot_id = history.entries[snapshot_id].parent
        ended |= walked


async def _expire_in_files(context: RepoContext, rules: ExpirationRules) -> Expiration:
    expiring = _ExpiringInFiles(context, rules)
    try:
        for _ in range(_MOST_ATTEMPTS):
            if (done := await expiring.attempt()) is not None:
                return done
    except RepositoryMigratedError as migrated:
        if expiring.is_begun:
            raise _half_expired() from migrated
        raise
    raise ConflictError(
        message=f"others changed the repository during each of {_MOST_ATTEMPTS} attempts to let"
        " old versions expire: try again later",
        kind=ErrorKind.UPDATE_ATTEMPTS_EXHAUSTED,
    )


class _ExpiringInFiles:
    """An expiration in spec 1, which may take several attempts."""

    def __init__(self, context: RepoContext, rules: ExpirationRules) -> None:
        self._context = context
        self._rules = rules
        self._released: set[SnapshotId] = set()
        self._branches: dict[str, SnapshotId] = {}
        self._tags: dict[str, SnapshotId] = {}
        self.is_begun = False
        """Whether anything may have been changed."""

    async def attempt(self) -> Expiration | None:
        """Let old versions go; None if somebody else changed the repository meanwhile."""
        context = self._context
        history = await read_history(context)
        planned = plan_among(history.entries, history.branches, history.tags, self._rules)
        self._released = (self._released - history.entries.keys()) | planned.released
        await require_unmigrated(context.backend)
        self.is_begun = True
        try:
            for snapshot, parent in sorted(planned.parents.items()):
                await _move_below(context, history.entries[snapshot], parent)
            for name, tip in sorted(planned.branches.items()):
                await _delete_branch(context, name, tip)
                self._branches[name] = tip
            for name, tip in sorted(planned.tags.items()):
                await context.ledger.update(DeleteTag(name))
                self._tags[name] = tip
        except (PreconditionFailedError, RefNotFoundError):
            return None
        if planned.parents:
            await require_seen(context.backend, "the expiration", _has_parents(planned.parents))
        released = id_rows(SnapshotId, sorted(self._released))
        return Expiration(released, self._branches, self._tags, planned.parents)


def _half_expired() -> OutcomeUnknownError:
    return OutcomeUnknownError(
        "the repository was migrated to spec version 2 during the expiration: some of the old"
        " versions may still be there; open it again, and let them expire again"
    )


def _has_parents(
    parents: Mapping[SnapshotId, SnapshotId],
) -> Callable[[RepoInfo], bool]:
    """Make a test whether a migrated repository has the new parents of snapshots."""

    def is_part(repo: RepoInfo) -> bool:
        table = repo.snapshots
        rows = {snapshot: table.row_of(snapshot) for snapshot in parents}
        return all(
            row is None or table.entry(row).parent == parents[snapshot]
            for snapshot, row in rows.items()
        )

    return is_part


async def _move_below(context: RepoContext, entry: SnapshotEntry, parent: SnapshotId) -> None:
    """Write a snapshot again with another parent, if it still has the one that is known."""
    key = snapshot_key(entry.id)
    try:
        stored = await context.backend.get(key)
    except ObjectNotFoundError as missing:
        raise SnapshotNotFoundError(
            f"the snapshot {entry.id} is gone: is somebody else collecting garbage?",
            snapshot=str(entry.id),
        ) from missing
    snapshot = decode_snapshot(stored.data)
    if snapshot.parent_id == parent:
        return
    if snapshot.id != entry.id or snapshot.parent_id != entry.parent:
        raise PreconditionFailedError(f"{key!r} was changed by somebody else", key=key)
    data = with_parent(stored.data, parent, level=context.config.compression.level)
    if decode_snapshot(data).parent_id != parent:
        raise InternalError(f"the snapshot {entry.id} did not take another parent")
    await put_settled(
        context.backend,
        key,
        data,
        replacing=stored.info.version,
        attributes=object_attributes(FileType.SNAPSHOT, _SPEC_1),
    )
    context.assets.forget_snapshots([entry.id])


async def _delete_branch(context: RepoContext, name: str, tip: SnapshotId) -> None:
    """Delete a branch that is still where it was: one that moved on is not old any more."""
    if await context.ledger.branch_tip(name) != tip:
        raise PreconditionFailedError(f"the branch {name!r} has moved", branch=name)
    await context.ledger.update(DeleteBranch(name))
