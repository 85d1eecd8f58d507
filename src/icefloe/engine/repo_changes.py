"""What each operation changes in the repo object of spec 2: pure functions, one per operation.

A function takes the present state and gives the next one, without the entry in the log; it
raises if the operation is not possible in that state. `with_update` adds the entry. So an
operation can be folded into whatever state turns out to be the present one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

from icefloe.config import RepositoryConfig
from icefloe.engine.flags import CREATE_TAG, DELETE_TAG, flag_id, require_enabled, with_flag
from icefloe.engine.kept_sets import metadata_with_copy, replaced_metadata
from icefloe.engine.ref_rules import (
    branch_gone,
    no_branch,
    no_tag,
    require_deletable,
    require_expected,
    tag_exists,
)
from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    ErrorKind,
    FormatError,
    ReadOnlyError,
    SessionStateError,
    SnapshotNotFoundError,
)
from icefloe.format.config_file import encode_config_flexbuffer
from icefloe.format.ids import SnapshotId
from icefloe.format.json_value import JsonValue
from icefloe.format.repo_info import MAIN_BRANCH, RepoInfo
from icefloe.format.snapshot_table import SnapshotEntry, SnapshotTable
from icefloe.format.update_table import Status, UpdateEntry, UpdateKind, UpdateTable

ONLINE: Final = 0
READ_ONLY: Final = 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Changed:
    """The state after an operation, and what the log is to say about it."""

    repo: RepoInfo
    kind: UpdateKind
    name: str | None = None
    previous: SnapshotId | None = None
    new: SnapshotId | None = None
    numbers: tuple[int, int, int] = (0, 0, 0)
    status: Status | None = None


type Change = Callable[[RepoInfo], Changed]
"""An operation that is still to be folded into a state."""


# -- the log -------------------------------------------------------------------------------


def created(initial: SnapshotEntry, now: int, config: RepositoryConfig | None = None) -> RepoInfo:
    """Give the first state of a repository."""
    return RepoInfo(
        {MAIN_BRANCH: initial.id},
        SnapshotTable.from_entries([initial]),
        UpdateTable.from_entries([UpdateEntry(UpdateKind.REPO_INITIALIZED, now)]),
        status=Status(ONLINE, now),
        metadata={} if config is None else metadata_with_copy({}, None, config),
        config=None if config is None else encode_config_flexbuffer(config),
    )


def next_moment(repo: RepoInfo, now: int) -> int:
    """Give the time of the next entry: later than all others, whatever the clocks say."""
    return max(now, int(repo.updates.updated_at[0]) + 1)


def apply(change: Change, repo: RepoInfo, *, now: int, backup_name: str, cap: int) -> RepoInfo:
    """Fold an operation into a state, and enter it in the log."""
    done = change(repo)
    entry = UpdateEntry(
        done.kind,
        next_moment(repo, now),
        name=done.name,
        previous=done.previous,
        new=done.new,
        numbers=done.numbers,
        status=done.status,
    )
    return with_update(done.repo, entry, backup_name=backup_name, cap=cap)


def with_update(repo: RepoInfo, entry: UpdateEntry, *, backup_name: str, cap: int) -> RepoInfo:
    """Enter an operation in the log.

    `backup_name` names the copy of the state before, in which the entry that was newest is the
    newest. Beyond `cap` entries the log goes on in such a copy: it is cut at an entry whose
    copy is known, which those made by a migration are not.
    """
    updates = repo.updates.with_newest(entry, backup_name)
    for row in range(max(cap, 1), len(updates)):
        if copy := updates.backup_paths[row]:
            return replace(repo, log=updates.newest(row), repo_before_updates=copy.decode())
    return replace(repo, log=updates)


def require_online(repo: RepoInfo) -> None:
    """Refuse to change a repository that is not to be changed."""
    status = repo.status
    if status.availability == ONLINE:
        return
    since = _EPOCH + timedelta(microseconds=status.set_at)
    reason = "no reason was given" if status.reason is None else status.reason
    raise ReadOnlyError(
        f"the repository is read-only since {since:%Y-%m-%d %H:%M:%S} UTC: {reason};"
        " set_status brings it back online",
        ErrorKind.READ_ONLY_REPOSITORY,
        reason=status.reason,
    )


# -- snapshots -----------------------------------------------------------------------------


def commit(branch: str, base: SnapshotId, new: SnapshotEntry) -> Change:
    """Add a snapshot on top of `base`, and move the branch there from `base`."""

    def change(repo: RepoInfo) -> Changed:
        require_online(repo)
        _require_tip(repo, branch, base)
        added = _with_snapshot(repo, replace(new, parent=base))
        moved = replace(added, branches={**repo.branches, branch: new.id})
        return Changed(moved, UpdateKind.NEW_COMMIT, branch, new=new.id)

    return change


def amend(branch: str, replaced: SnapshotId, new: SnapshotEntry) -> Change:
    """Put a snapshot in the place of the tip of a branch, which stays listed."""

    def change(repo: RepoInfo) -> Changed:
        require_online(repo)
        _require_tip(repo, branch, replaced)
        old = snapshot_entry(repo, replaced)
        if old.parent is None:
            raise SessionStateError(
                "the initial commit cannot be amended: commit on top of it",
                ErrorKind.NO_AMEND_FOR_INITIAL_COMMIT,
            )
        entry = replace(new, parent=old.parent, pruned_ancestors=old.pruned_ancestors)
        moved = replace(_with_snapshot(repo, entry), branches={**repo.branches, branch: new.id})
        return Changed(moved, UpdateKind.COMMIT_AMENDED, branch, replaced, new.id)

    return change


def add_detached(new: SnapshotEntry) -> Change:
    """List a snapshot that no branch leads to."""

    def change(repo: RepoInfo) -> Changed:
        require_online(repo)
        return Changed(_with_snapshot(repo, new), UpdateKind.NEW_DETACHED_SNAPSHOT, new=new.id)

    return change


def snapshot_entry(repo: RepoInfo, snapshot: SnapshotId) -> SnapshotEntry:
    """Look up what the repository says about a snapshot."""
    return repo.snapshots.entry(require_listed(repo, snapshot))


def require_listed(repo: RepoInfo, snapshot: SnapshotId) -> int:
    """Find the row of a snapshot."""
    row = repo.snapshots.row_of(snapshot)
    if row is None:
        raise SnapshotNotFoundError(
            f"there is no snapshot {snapshot} in this repository", snapshot=str(snapshot)
        )
    return row


def _with_snapshot(repo: RepoInfo, entry: SnapshotEntry) -> RepoInfo:
    if entry.parent is not None:
        before = int(repo.snapshots.flushed_at[require_listed(repo, entry.parent)])
        if entry.flushed_at <= before:
            raise FormatError(
                f"the snapshot {entry.id} claims to be as old as its parent, or older:"
                f" {entry.flushed_at} and {before} microseconds",
                ErrorKind.SNAPSHOT_TIMESTAMP,
            )
    return replace(repo, history=repo.snapshots.with_entry(entry))


def _require_tip(repo: RepoInfo, branch: str, expected: SnapshotId) -> None:
    if (tip := repo.branches.get(branch)) is None:
        raise branch_gone(branch)
    if tip != expected:
        raise ConflictError(str(expected), str(tip), branch=branch)


# -- branches and tags ---------------------------------------------------------------------


def create_branch(name: str, snapshot: SnapshotId) -> Change:
    """Make a branch that ends at a snapshot."""

    def change(repo: RepoInfo) -> Changed:
        require_online(repo)
        require_listed(repo, snapshot)
        if name in repo.branches:
            raise AlreadyExistsError(
                f"the branch {name!r} exists already, at {repo.branches[name]}:"
                " choose another name, or move it with reset_branch",
                ErrorKind.BRANCH_ALREADY_EXISTS,
                branch=name,
            )
        made = replace(repo, branches={**repo.branches, name: snapshot})
        return Changed(made, UpdateKind.BRANCH_CREATED, name)

    return change


def delete_branch(name: str) -> Change:
    """Take a branch away; its snapshots stay until they are collected."""
    require_deletable(name)

    def change(repo: RepoInfo) -> Changed:
        require_online(repo)
        tip = branch_tip(repo, name)
        branches = {each: at for each, at in repo.branches.items() if each != name}
        return Changed(replace(repo, branches=branches), UpdateKind.BRANCH_DELETED, name, tip)

    return change


def reset_branch(name: str, snapshot: SnapshotId, expected: SnapshotId | None = None) -> Change:
    """Let a branch end at another snapshot; with `expected`, only if it ends there now."""

    def change(repo: RepoInfo) -> Changed:
        require_online(repo)
        tip = branch_tip(repo, name)
        require_listed(repo, snapshot)
        require_expected(name, tip, expected)
        moved = replace(repo, branches={**repo.branches, name: snapshot})
        return Changed(moved, UpdateKind.BRANCH_RESET, name, tip)

    return change


def create_tag(name: str, snapshot: SnapshotId) -> Change:
    """Name a snapshot for good."""

    def change(repo: RepoInfo) -> Changed:
        require_online(repo)
        require_enabled(repo, CREATE_TAG)
        require_listed(repo, snapshot)
        if name in repo.tags:
            raise tag_exists(name)
        if name in repo.deleted_tags:
            raise AlreadyExistsError(
                f"the tag {name!r} was deleted, and names of tags are never used again:"
                " choose another name",
                ErrorKind.TAG_PREVIOUSLY_DELETED,
                tag=name,
            )
        made = replace(repo, tags={**repo.tags, name: snapshot})
        return Changed(made, UpdateKind.TAG_CREATED, name)

    return change


def delete_tag(name: str) -> Change:
    """Take a tag away; its name is not used again."""

    def change(repo: RepoInfo) -> Changed:
        require_online(repo)
        require_enabled(repo, DELETE_TAG)
        target = tag_target(repo, name)
        deleted = tuple(sorted({*repo.deleted_tags, name}, key=str.encode))
        tags = {each: at for each, at in repo.tags.items() if each != name}
        left = replace(repo, tags=tags, deleted_tags=deleted)
        return Changed(left, UpdateKind.TAG_DELETED, name, target)

    return change


def branch_tip(repo: RepoInfo, name: str) -> SnapshotId:
    """Say where a branch ends."""
    if (tip := repo.branches.get(name)) is None:
        raise no_branch(name)
    return tip


def tag_target(repo: RepoInfo, name: str) -> SnapshotId:
    """Say what a tag names."""
    if (target := repo.tags.get(name)) is None:
        raise no_tag(name)
    return target


# -- settings ------------------------------------------------------------------------------


def set_metadata(metadata: Mapping[str, JsonValue]) -> Change:
    """Replace the metadata of the repository."""
    return partial(
        _settings,
        UpdateKind.METADATA_CHANGED,
        lambda repo: {"metadata": replaced_metadata(repo.metadata, metadata)},
    )


def update_metadata(metadata: Mapping[str, JsonValue]) -> Change:
    """Replace some entries of the metadata of the repository."""
    return partial(
        _settings,
        UpdateKind.METADATA_CHANGED,
        lambda repo: {"metadata": replaced_metadata(repo.metadata, {**repo.metadata, **metadata})},
    )


def set_config(
    config: RepositoryConfig, *, unless: Callable[[RepoInfo], bool] = lambda _: False
) -> Change:
    """Store a configuration, unless the state says that somebody else did."""
    encoded = encode_config_flexbuffer(config)

    def change(repo: RepoInfo) -> Changed:
        if unless(repo):
            raise ConflictError(
                message="somebody changed the stored configuration since this repository was"
                " opened: open it again and repeat the change",
                kind=ErrorKind.CONFIG_UPDATED,
            )
        metadata = metadata_with_copy(repo.metadata, repo.config, config)
        values: dict[str, object] = {"config": encoded, "metadata": metadata}
        return _settings(UpdateKind.CONFIG_CHANGED, lambda _: values, repo)

    return change


def _settings(
    kind: UpdateKind, values: Callable[[RepoInfo], dict[str, object]], repo: RepoInfo
) -> Changed:
    require_online(repo)
    return Changed(replace(repo, **values(repo)), kind)  # type: ignore[arg-type]


def set_flag(name: str, setting: bool | None) -> Change:  # noqa: FBT001
    """Enable or disable a feature; None leaves it to its default."""
    flag = flag_id(name)

    def change(repo: RepoInfo) -> Changed:
        require_online(repo)
        numbers = (flag, int(setting is True), int(setting is not None))
        made = with_flag(repo, flag, setting)
        return Changed(made, UpdateKind.FEATURE_FLAG_CHANGED, numbers=numbers)

    return change


def set_status(status: Status) -> Change:
    """Say whether the repository takes changes; possible in every state."""

    def change(repo: RepoInfo) -> Changed:
        return Changed(replace(repo, status=status), UpdateKind.REPO_STATUS_CHANGED, status=status)

    return change
