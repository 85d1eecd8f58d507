"""Expiration: remove old versions from the history. Their files stay until they are collected.

The plan of an expiration includes how much garbage collection could delete afterwards.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

import numpy as np

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
from icefloe.format.ids import ManifestId, SnapshotId, id_rows, ids_of_rows, texts_of_rows
from icefloe.format.layout import snapshot_key
from icefloe.format.repo_info import MAIN_BRANCH, RepoInfo
from icefloe.format.snapshot import decode_snapshot, with_parent
from icefloe.format.snapshot_table import NO_PARENT, Shortened, SnapshotEntry, SnapshotTable
from icefloe.format.update_table import UpdateKind
from icefloe.maintenance.clocks import compare_clocks
from icefloe.maintenance.sweeping import PREFIXES, Kind, list_whole_kind
from icefloe.printable import printable
from icefloe.records import Record, field, replace
from icefloe.repo import repo_changes
from icefloe.repo.context import RepoContext
from icefloe.repo.history import newest_first
from icefloe.repo.ledger import put_settled
from icefloe.repo.migration_state import require_seen, require_unmigrated
from icefloe.repo.repo_changes import (
    Change,
    Changed,
    DeleteBranch,
    DeleteTag,
    no_branch,
    no_tag,
)
from icefloe.repo.snapshot_info import SnapshotInfo
from icefloe.reports import FactsReport, object_html, shown_bytes
from icefloe.walk.history import (
    ManifestFact,
    ReadLimits,
    SnapshotFacts,
    oldest_ancestors,
    read_ancestry,
    read_snapshots,
)
from icefloe.walk.reachability import Reachable, referenced_objects


def without(table: SnapshotTable, is_kept: Bools, *, to_root: bool) -> SnapshotTable:
    """Keep some snapshots; a child of a removed snapshot gets an older parent.

    With `to_root` that is the first snapshot of its history, otherwise the nearest that is kept.
    All ancestors in between are listed as pruned: comparisons of versions need their logs.
    """
    if is_kept.all():
        return table
    parents = table.parents.tolist()
    # The row of no parent is -1, the last one: a snapshot without parent is never removed.
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
    """The selection of versions to expire."""

    older_than: int
    """Microseconds since 1970: only versions written before expire."""
    delete_branches: bool = False
    """Whether to delete branches whose newest version is that old, except `main`."""
    delete_tags: bool = False
    protected_branches: frozenset[str] = frozenset()
    """These keep all of their history."""
    protected_tags: frozenset[str] = frozenset()


class Expiration(Record, eq=False):
    """The versions, branches and tags that are removed."""

    released_ids: Bytes
    """Versions that nothing leads to afterwards, an id in each row."""
    branches: Refs
    """Deleted branches, with the snapshots they ended at."""
    tags: Refs
    parents: Mapping[SnapshotId, SnapshotId] = field(default_factory=dict)
    """In spec 1, versions that stay and get another parent."""

    @property
    def released(self) -> frozenset[SnapshotId]:
        """Versions that nothing leads to afterwards."""
        return frozenset(ids_of_rows(SnapshotId, self.released_ids))

    def released_texts(self) -> list[str]:
        """Return the texts of their ids."""
        return texts_of_rows(self.released_ids)


# -- planning ------------------------------------------------------------------------------


def plan_in_repo(repo: RepoInfo, rules: ExpirationRules) -> tuple[Expiration, RepoInfo]:
    """Plan for a repository of spec 2; also return its state afterwards."""
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
    """Raise if a protected branch or tag does not exist: it is misspelt."""
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

    If this machine's clock is ahead of the storage's, `older_than` moves back by the difference.
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
    """Remove old versions from the list; `done` has the result of the last attempt."""

    rules: ExpirationRules
    done: list[Expiration] = field(default_factory=list)

    def apply(self, repo: RepoInfo) -> Changed:
        """Return the state without the old versions."""
        repo_changes.require_online(repo)
        planned, after = plan_in_repo(repo, self.rules)
        self.done[:] = [planned]
        return Changed(after, UpdateKind.EXPIRATION_RAN)


class FileHistory(Record):
    """All versions of a repository of spec 1 that its branches and tags lead to."""

    branches: Refs
    tags: Refs
    entries: Mapping[SnapshotId, SnapshotEntry]


async def read_history(context: RepoContext) -> FileHistory:
    """Read refs of spec 1 and every version that they lead to."""
    branches, tags = await context.ledger.branches(), await context.ledger.tags()
    tips = {*branches.values(), *tags.values()}
    at_once = context.config.max_concurrent_requests
    entries = await read_ancestry(context, tips, at_once=at_once)
    ends = oldest_ancestors({version: entry.parent for version, entry in entries.items()})
    for version, end in ends.items():
        if end is None:
            raise FormatError(f"the history of {version} runs in a circle")
    return FileHistory(branches, tags, entries)


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
        """Remove old versions; return None if somebody else changed the repository meanwhile."""
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
    """Return a test whether a migrated repository has the new parents of snapshots."""

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


# -- looking ahead -------------------------------------------------------------------------


class ExpirationPlan(FactsReport, Record):
    """The effects that `expire_snapshots` would have; see `Repository.plan_expiration`."""

    snapshots: tuple[SnapshotInfo, ...]
    """The versions that you would lose, newest first."""
    branches: Mapping[str, str]
    """Branches that would be deleted, with the snapshots they end at."""
    tags: Mapping[str, str]
    kept: int
    """How many versions would stay."""
    reclaimable_bytes: int
    """How much garbage collection could then delete, by the references of the versions."""
    reclaimable_objects: Mapping[str, int]
    """The same in numbers of objects, by kind."""

    headings = ("version", "written", "message")

    @property
    def snapshot_ids(self) -> set[str]:
        """The ids of the versions that you would lose."""
        return {snapshot.id for snapshot in self.snapshots}

    def to_dict(self) -> dict[str, Any]:
        """Return everything as a dictionary, ready for JSON."""
        snapshots = [
            {
                "id": snapshot.id,
                "written_at": snapshot.written_at.isoformat(),
                "message": snapshot.message,
            }
            for snapshot in self.snapshots
        ]
        return {**super().to_dict(), "snapshots": snapshots}

    def _rows(self) -> Iterator[list[object]]:
        for snapshot in self.snapshots:
            yield [snapshot.id, f"{snapshot.written_at:%Y-%m-%d %H:%M}", snapshot.message]

    def _notes(self) -> Iterator[str]:
        for name, fact in self._facts().items():
            yield f"{name}: {fact}"

    def _facts(self) -> dict[str, object]:
        objects = ", ".join(f"{count} {kind}" for kind, count in self.reclaimable_objects.items())
        return {
            "versions to lose": len(self.snapshots),
            "versions kept": self.kept,
            "branches to delete": ", ".join(map(printable, self.branches)) or "none",
            "tags to delete": ", ".join(map(printable, self.tags)) or "none",
            "could be reclaimed": f"{shown_bytes(self.reclaimable_bytes)} ({objects})",
        }

    def _lines(self) -> list[str]:
        return [printable("  ".join(map(str, row))) for row in self._rows()]

    def __repr__(self) -> str:
        return "\n".join([super().__repr__(), *self._lines()])

    def _repr_html_(self) -> str:
        return object_html(
            self._title, self._facts(), drawing=self._lines(), heading="Versions to lose"
        )


async def plan_expiration(
    context: RepoContext, rules: ExpirationRules, limits: ReadLimits | None = None
) -> ExpirationPlan:
    """Return what an expiration would do now; nothing is changed."""
    if (repo := await context.ledger.repo()) is not None:
        planned, after = plan_in_repo(repo, rules)
        rows = [repo_changes.require_listed(repo, version) for version in planned.released]
        entries = {entry.id: entry for entry in repo.snapshots.entries(rows)}
        remaining = frozenset(ids_of_rows(SnapshotId, after.snapshots.ids))
        logs = remaining.union(ids_of_rows(SnapshotId, after.snapshots.pruned_ids))
    else:
        history = await read_history(context)
        planned = plan_among(history.entries, history.branches, history.tags, rules)
        entries = {version: history.entries[version] for version in planned.released}
        logs = remaining = frozenset(history.entries) - planned.released
    objects, size_bytes = await _reclaimable(
        context, planned.released, remaining, logs, limits or ReadLimits()
    )
    return ExpirationPlan(
        snapshots=tuple(map(SnapshotInfo.of, newest_first(list(entries.values())))),
        branches={name: str(tip) for name, tip in sorted(planned.branches.items())},
        tags={name: str(tip) for name, tip in sorted(planned.tags.items())},
        kept=len(remaining),
        reclaimable_bytes=size_bytes,
        reclaimable_objects={str(kind): count for kind, count in objects.items()},
    )


async def _reclaimable(
    context: RepoContext,
    released: frozenset[SnapshotId],
    remaining: frozenset[SnapshotId],
    logs: frozenset[SnapshotId],
    limits: ReadLimits,
) -> tuple[dict[Kind, int], int]:
    """Count the objects that only released versions need, by kind, and their bytes."""
    if not released:
        return dict.fromkeys(Kind, 0), 0
    with Reachable(context, limits) as live:
        await live.add(remaining)
        manifests: dict[ManifestId, ManifestFact] = {}
        async for facts in read_snapshots(
            context, sorted(released), SnapshotFacts.of, limits=limits
        ):
            manifests |= {
                fact.id: fact for fact in facts.manifests if fact.id not in live.manifests
            }
        await live.read_chunks()
        chunks = (await referenced_objects(context, manifests.values(), limits)).without(
            live.chunks
        )
    sizes = {
        Kind.SNAPSHOTS: await _sizes(context, Kind.SNAPSHOTS, released),
        Kind.TRANSACTION_LOGS: await _sizes(context, Kind.TRANSACTION_LOGS, released - logs),
        Kind.MANIFESTS: [fact.size_bytes for fact in manifests.values()],
        Kind.CHUNKS: chunks.sizes_bytes.tolist(),
    }
    return {kind: len(some) for kind, some in sizes.items()}, sum(map(sum, sizes.values()))


async def _sizes(
    context: RepoContext, kind: Kind, snapshots: frozenset[SnapshotId]
) -> Sequence[int]:
    names = frozenset(map(str, snapshots))
    stored = (await list_whole_kind(context.backend, kind, None)).young
    return stored.named(names.__contains__).sizes
