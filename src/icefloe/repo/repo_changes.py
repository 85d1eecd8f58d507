"""Changes of a repository, as values: `Ledger.update` makes them.

A change contains its rule for the repo object of spec 2, a pure function from one state to the
next. The ledger of spec 1 has its own rules. Feature flags can forbid operations. A copy of the
manifest sets is stored where other libraries do not touch it.
"""

import json
import warnings
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import ClassVar, Final, cast

from icefloe.config import ChunkManifestsConfig, FeatureFlag, RepositoryConfig
from icefloe.config.manifest_sets import KEY as CONFIG_KEY
from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    ErrorKind,
    FormatError,
    IcefloeError,
    InvalidInputError,
    ReadOnlyError,
    RefNotFoundError,
    RepositoryOfflineError,
    SessionStateError,
    SnapshotNotFoundError,
)
from icefloe.format.config_file import decode_config_flexbuffer, encode_config_flexbuffer
from icefloe.format.ids import SnapshotId
from icefloe.format.json_value import JsonValue
from icefloe.format.repo_info import MAIN_BRANCH, RepoInfo
from icefloe.format.snapshot_table import SnapshotEntry, SnapshotTable
from icefloe.format.update_table import Status, UpdateEntry, UpdateKind, UpdateTable
from icefloe.records import Record, replace
from icefloe.values.tree import Tree

MOVE_NODE: Final = "move_node"
CREATE_TAG: Final = "create_tag"
DELETE_TAG: Final = "delete_tag"

_IDS: Final = {MOVE_NODE: 3, CREATE_TAG: 4, DELETE_TAG: 5}  # 1 and 2 are reserved


def feature_flags(repo: RepoInfo) -> list[FeatureFlag]:
    """List all flags, as they are set in a repository."""
    settings = dict.fromkeys(repo.enabled_flags or (), True)
    settings |= dict.fromkeys(repo.disabled_flags or (), False)
    return [
        FeatureFlag(number, name, default_enabled=True, setting=settings.get(number))
        for name, number in _IDS.items()
    ]


def require_enabled(repo: RepoInfo, name: str) -> None:
    """Refuse what a flag of the repository forbids."""
    if _IDS[name] in (repo.disabled_flags or ()):
        raise SessionStateError(
            f"the feature flag {name!r} is disabled in this repository:"
            f" enable it with set_feature_flag({name!r}, True)",
            ErrorKind.FEATURE_FLAG_DISABLED,
            flag=name,
        )


def flag_id(name: str) -> int:
    """Find the number under which a flag is stored."""
    try:
        return _IDS[name]
    except KeyError:
        raise InvalidInputError(
            f"there is no feature flag {name!r}; there are {', '.join(_IDS)}",
            ErrorKind.INVALID_FEATURE_FLAG,
        ) from None


def with_flag(repo: RepoInfo, flag: int, setting: bool | None) -> RepoInfo:  # noqa: FBT001
    """Enter a setting; None takes it out again."""
    return replace(
        repo,
        enabled_flags=_listed(repo.enabled_flags, flag, is_in=setting is True),
        disabled_flags=_listed(repo.disabled_flags, flag, is_in=setting is False),
    )


def _listed(flags: tuple[int, ...] | None, flag: int, *, is_in: bool) -> tuple[int, ...] | None:
    if is_in:
        return tuple(sorted({*(flags or ()), flag}))
    return None if flags is None else tuple(listed for listed in flags if listed != flag)


KEY: Final = f"icefloe.{CONFIG_KEY}"


def shown_metadata(metadata: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return the metadata of a repository as users set it, without the copy."""
    return {name: value for name, value in metadata.items() if name != KEY}


def replaced_metadata(
    before: Mapping[str, JsonValue], metadata: Mapping[str, JsonValue]
) -> dict[str, JsonValue]:
    """Replace what users set, and keep the copy."""
    return {**shown_metadata(metadata), **({KEY: before[KEY]} if KEY in before else {})}


def metadata_with_copy(
    metadata: Mapping[str, JsonValue], stored: bytes | None, config: RepositoryConfig
) -> dict[str, JsonValue]:
    """Return the metadata that goes with a configuration which replaces the stored one.

    The copy of sets that somebody else dropped stays; of sets that are taken out on purpose it
    goes with them.
    """
    if config.chunk_manifests is not None:
        copy = cast("JsonValue", config.chunk_manifests.to_tree())
        return {**shown_metadata(metadata), KEY: copy}
    had_sets = stored is not None and decode_config_flexbuffer(stored).chunk_manifests is not None
    return shown_metadata(metadata) if had_sets else dict(metadata)


def warn_of_dropped_sets(repo: RepoInfo, config: RepositoryConfig) -> None:
    """Warn if the manifest sets of a repository were dropped, and `config` has none instead."""
    if KEY not in repo.metadata or config.chunk_manifests is not None:
        return
    try:
        copy = ChunkManifestsConfig.from_tree(cast("Tree", repo.metadata[KEY]))
    except InvalidInputError:
        return
    text = json.dumps(copy.to_tree())  # which escapes what a terminal could take for a command
    warnings.warn(
        "another library saved the configuration of this repository and dropped its manifest sets"
        f" ({CONFIG_KEY}): new manifests are laid out by the default rules. To restore them, open"
        " the repository with config=icefloe.RepositoryConfig(chunk_manifests="
        f"icefloe.ChunkManifestsConfig.from_yaml({text!r})) and call save_config()",
        stacklevel=2,
    )


ONLINE: Final = 0
READ_ONLY: Final = 1
OFFLINE: Final = 2
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Changed(Record):
    """The state after an operation, and what the log is to say about it."""

    repo: RepoInfo
    kind: UpdateKind
    name: str | None = None
    previous: SnapshotId | None = None
    new: SnapshotId | None = None
    numbers: tuple[int, int, int] = (0, 0, 0)
    status: Status | None = None


class Change(Record):
    """An operation that is still to be made in a repository."""

    feature: ClassVar[str] = "a list of versions"
    """What spec 1 lacks, if its ledger has no rule for the operation."""

    def apply(self, repo: RepoInfo) -> Changed:
        """Return the state after the operation, or raise if this state does not allow it.

        A lost race repeats the operation, so this may run several times, on different states.
        """
        raise NotImplementedError


class CollectionRanError(IcefloeError):
    """Garbage was, or may have been, collected after an update: older objects may be gone."""

    default_kind = ErrorKind.OBJECTS_COLLECTED

    def __init__(self, newest_update: int, *, is_certain: bool) -> None:
        super().__init__("garbage was collected since the session began")
        self.newest_update = newest_update
        """The time of the newest entry of the log."""
        self.is_certain = is_certain
        """Whether the log says so; otherwise the part of it in the repo object is too short."""


# -- the log -------------------------------------------------------------------------------


def created(initial: SnapshotEntry, now: int, config: RepositoryConfig | None = None) -> RepoInfo:
    """Return the first state of a repository."""
    return RepoInfo(
        {MAIN_BRANCH: initial.id},
        SnapshotTable.from_entries([initial]),
        UpdateTable.from_entries([UpdateEntry(UpdateKind.REPO_INITIALIZED, now)]),
        status=Status(ONLINE, now),
        metadata={} if config is None else metadata_with_copy({}, None, config),
        config=None if config is None else encode_config_flexbuffer(config),
    )


def apply_and_log(
    change: Change, repo: RepoInfo, *, now: int, backup_name: str, cap: int
) -> RepoInfo:
    """Apply a change to a state, and enter the operation in the log.

    The time of the entry is later than that of all others, whatever the clocks say.
    """
    done = change.apply(repo)
    entry = UpdateEntry(
        done.kind,
        max(now, int(repo.updates.updated_at[0]) + 1),
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
    if repo.status.availability != ONLINE:
        raise _closed(repo.status)


def require_readable(repo: RepoInfo) -> None:
    """Refuse to read a repository that was taken offline."""
    if repo.status.availability == OFFLINE:
        raise _closed(repo.status)


def _closed(status: Status) -> ReadOnlyError:
    since = _EPOCH + timedelta(microseconds=status.set_at)
    reason = "no reason was given" if status.reason is None else status.reason
    is_offline = status.availability == OFFLINE
    what = "offline" if is_offline else "read-only"
    return (RepositoryOfflineError if is_offline else ReadOnlyError)(
        f"the repository is {what} since {since:%Y-%m-%d %H:%M:%S} UTC: {reason};"
        " set_status brings it back online",
        ErrorKind.READ_ONLY_REPOSITORY,
        reason=status.reason,
    )


# -- snapshots -----------------------------------------------------------------------------


class Commit(Change):
    """Add a snapshot on top of `base`, and move the branch there from `base`.

    `ConflictError` of kind `commit-conflict`, with both parents, if the branch does not end there
    any more; `RefNotFoundError` of kind `branch-not-found` if it is gone. In spec 2,
    `CollectionRanError` if garbage was collected after the update at `known_update`.
    """

    branch: str
    base: SnapshotId
    new: SnapshotEntry
    known_update: int | None = None

    def apply(self, repo: RepoInfo) -> Changed:
        """Return the state with the snapshot at the tip of the branch."""
        require_online(repo)
        _require_tip(repo, self.branch, self.base)
        _require_uncollected(repo, self.known_update)
        added = _with_snapshot(repo, replace(self.new, parent=self.base))
        moved = replace(added, branches={**repo.branches, self.branch: self.new.id})
        return Changed(moved, UpdateKind.NEW_COMMIT, self.branch, new=self.new.id)


class Amend(Change):
    """Put a snapshot in the place of the tip of a branch, which stays listed (spec 2).

    With `move_other_branches`, all branches that end at the replaced snapshot follow. Tags and
    children of that snapshot never do. Otherwise as `Commit`.
    """

    feature = "amended commits"
    branch: str
    replaced: SnapshotId
    new: SnapshotEntry
    known_update: int | None = None
    move_other_branches: bool = False

    def apply(self, repo: RepoInfo) -> Changed:
        """Return the state with the snapshot in the place of the tip."""
        require_online(repo)
        _require_tip(repo, self.branch, self.replaced)
        _require_uncollected(repo, self.known_update)
        old = snapshot_entry(repo, self.replaced)
        if old.parent is None:
            raise SessionStateError(
                "the initial commit cannot be amended: commit on top of it",
                ErrorKind.NO_AMEND_FOR_INITIAL_COMMIT,
            )
        entry = replace(self.new, parent=old.parent, pruned_ancestors=old.pruned_ancestors)
        branches = {
            name: entry.id
            if name == self.branch or (self.move_other_branches and tip == self.replaced)
            else tip
            for name, tip in repo.branches.items()
        }
        moved = replace(_with_snapshot(repo, entry), branches=branches)
        return Changed(moved, UpdateKind.COMMIT_AMENDED, self.branch, self.replaced, entry.id)


class AddDetached(Change):
    """List a snapshot that no branch leads to; otherwise as `Commit`."""

    new: SnapshotEntry
    known_update: int | None = None

    def apply(self, repo: RepoInfo) -> Changed:
        """Return the state with the snapshot in the list."""
        require_online(repo)
        _require_uncollected(repo, self.known_update)
        added = _with_snapshot(repo, self.new)
        return Changed(added, UpdateKind.NEW_DETACHED_SNAPSHOT, new=self.new.id)


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


def _require_uncollected(repo: RepoInfo, known_update: int | None) -> None:
    """Raise `CollectionRanError` if garbage was collected, or may have been, after an update.

    Times of entries always increase, so they tell their order whatever the clocks say.
    """
    updates = repo.updates
    newest = int(updates.updated_at[0])
    if known_update is None or newest <= known_update:
        return
    is_later = updates.updated_at > known_update
    is_cut = bool(is_later.all()) and repo.repo_before_updates is not None
    has_run = bool((updates.kinds[is_later] == UpdateKind.GC_RAN).any())
    if is_cut or has_run:
        raise CollectionRanError(newest, is_certain=has_run)


# -- branches and tags ---------------------------------------------------------------------


class CreateBranch(Change):
    """Make a branch that ends at a snapshot."""

    name: str
    snapshot: SnapshotId

    def apply(self, repo: RepoInfo) -> Changed:
        """Return the state with the branch."""
        require_online(repo)
        require_listed(repo, self.snapshot)
        if self.name in repo.branches:
            raise AlreadyExistsError(
                f"the branch {self.name!r} exists already, at {repo.branches[self.name]}:"
                " choose another name, or move it with reset_branch",
                ErrorKind.BRANCH_ALREADY_EXISTS,
                branch=self.name,
            )
        changed = replace(repo, branches={**repo.branches, self.name: self.snapshot})
        return Changed(changed, UpdateKind.BRANCH_CREATED, self.name)


class DeleteBranch(Change):
    """Delete a branch, but not `main`; its snapshots stay until they are collected.

    With `expected`, `ConflictError` unless the branch ends there. In spec 1, a commit that lands
    between the look at the branch and its deletion is lost with the branch: storages do not delete
    on a condition.
    """

    name: str
    expected: SnapshotId | None = None

    def __post_init__(self) -> None:
        if self.name == MAIN_BRANCH:
            raise SessionStateError(
                "the branch 'main' cannot be deleted",
                ErrorKind.CANNOT_DELETE_MAIN,
                branch=self.name,
            )

    def apply(self, repo: RepoInfo) -> Changed:
        """Return the state without the branch."""
        require_online(repo)
        tip = branch_tip(repo, self.name)
        require_expected(self.name, tip, self.expected)
        branches = {name: end for name, end in repo.branches.items() if name != self.name}
        return Changed(replace(repo, branches=branches), UpdateKind.BRANCH_DELETED, self.name, tip)


class ResetBranch(Change):
    """Move a branch to another snapshot.

    With `expected`, `ConflictError` unless the branch ends there before.
    """

    name: str
    snapshot: SnapshotId
    expected: SnapshotId | None = None

    def apply(self, repo: RepoInfo) -> Changed:
        """Return the state with the other tip."""
        require_online(repo)
        tip = branch_tip(repo, self.name)
        require_listed(repo, self.snapshot)
        require_expected(self.name, tip, self.expected)
        moved = replace(repo, branches={**repo.branches, self.name: self.snapshot})
        return Changed(moved, UpdateKind.BRANCH_RESET, self.name, tip)


class CreateTag(Change):
    """Name a snapshot for good."""

    name: str
    snapshot: SnapshotId

    def apply(self, repo: RepoInfo) -> Changed:
        """Return the state with the tag."""
        require_online(repo)
        require_enabled(repo, CREATE_TAG)
        require_listed(repo, self.snapshot)
        if self.name in repo.tags:
            raise tag_exists(self.name)
        if self.name in repo.deleted_tags:
            raise AlreadyExistsError(
                f"the tag {self.name!r} was deleted, and names of tags are never used again:"
                " choose another name",
                ErrorKind.TAG_PREVIOUSLY_DELETED,
                tag=self.name,
            )
        changed = replace(repo, tags={**repo.tags, self.name: self.snapshot})
        return Changed(changed, UpdateKind.TAG_CREATED, self.name)


class DeleteTag(Change):
    """Delete a tag; its name cannot be used again."""

    name: str

    def apply(self, repo: RepoInfo) -> Changed:
        """Return the state without the tag."""
        require_online(repo)
        require_enabled(repo, DELETE_TAG)
        target = tag_target(repo, self.name)
        deleted = tuple(sorted({*repo.deleted_tags, self.name}, key=str.encode))
        tags = {name: snapshot for name, snapshot in repo.tags.items() if name != self.name}
        left = replace(repo, tags=tags, deleted_tags=deleted)
        return Changed(left, UpdateKind.TAG_DELETED, self.name, target)


def branch_tip(repo: RepoInfo, name: str) -> SnapshotId:
    """Return the snapshot at the tip of a branch."""
    if (tip := repo.branches.get(name)) is None:
        raise no_branch(name)
    return tip


def tag_target(repo: RepoInfo, name: str) -> SnapshotId:
    """Return the snapshot of a tag."""
    if (target := repo.tags.get(name)) is None:
        raise no_tag(name)
    return target


def no_branch(name: str) -> RefNotFoundError:
    """Describe a branch that is not there."""
    return RefNotFoundError(f"there is no branch {name!r} in this repository", branch=name)


def no_tag(name: str) -> RefNotFoundError:
    """Describe a tag that is not there."""
    return RefNotFoundError(f"there is no tag {name!r} in this repository", tag=name)


def branch_gone(name: str) -> RefNotFoundError:
    """Describe a branch that was there when a session began."""
    return RefNotFoundError(
        f"the branch {name!r} does not exist (any more)", ErrorKind.BRANCH_NOT_FOUND, branch=name
    )


def tag_exists(name: str) -> AlreadyExistsError:
    """Describe a tag that is in the way."""
    return AlreadyExistsError(
        f"the tag {name!r} exists already, and tags are never moved: choose another name",
        ErrorKind.TAG_ALREADY_EXISTS,
        tag=name,
    )


def require_expected(branch: str, tip: SnapshotId, expected: SnapshotId | None) -> None:
    """Refuse to move a branch that somebody else has moved."""
    if expected is not None and tip != expected:
        raise ConflictError(
            str(expected), str(tip), kind=ErrorKind.BRANCH_UPDATE_CONFLICT, branch=branch
        )


# -- settings ------------------------------------------------------------------------------


class SetMetadata(Change):
    """Replace the metadata of the repository (spec 2)."""

    feature = "metadata of the repository"
    metadata: Mapping[str, JsonValue]

    def apply(self, repo: RepoInfo) -> Changed:
        """Return the state with the metadata."""
        require_online(repo)
        metadata = replaced_metadata(repo.metadata, self.metadata)
        return Changed(replace(repo, metadata=metadata), UpdateKind.METADATA_CHANGED)


class UpdateMetadata(SetMetadata):
    """Replace some entries of the metadata of the repository (spec 2)."""

    def apply(self, repo: RepoInfo) -> Changed:
        """Return the state with the entries."""
        return SetMetadata({**repo.metadata, **self.metadata}).apply(repo)


class SetConfig(Change):
    """Store a configuration, unless somebody changed the stored one since ours was read.

    The ledger knows which one was read: in spec 2 it enters that state in `known`.
    """

    config: RepositoryConfig
    known: RepoInfo | None = None

    def apply(self, repo: RepoInfo) -> Changed:
        """Return the state with the configuration."""
        if (
            self.known is not None
            and self.known.config != repo.config
            and stored_config(self.known) != stored_config(repo)  # not only written otherwise
        ):
            raise config_changed()
        require_online(repo)
        metadata = metadata_with_copy(repo.metadata, repo.config, self.config)
        encoded = encode_config_flexbuffer(self.config)
        return Changed(replace(repo, config=encoded, metadata=metadata), UpdateKind.CONFIG_CHANGED)


def stored_config(repo: RepoInfo) -> RepositoryConfig | None:
    """Decode the configuration that a repository stores, if it stores any."""
    return None if repo.config is None else decode_config_flexbuffer(repo.config)


def config_changed() -> ConflictError:
    """Describe a configuration that somebody else replaced."""
    return ConflictError(
        message="somebody changed the stored configuration since this repository was"
        " opened: open it again and repeat the change",
        kind=ErrorKind.CONFIG_UPDATED,
    )


class SetFlag(Change):
    """Enable or disable a feature; None leaves it to its default (spec 2)."""

    feature = "feature flags"
    name: str
    setting: bool | None

    def apply(self, repo: RepoInfo) -> Changed:
        """Return the state with the setting of the flag."""
        flag = flag_id(self.name)
        require_online(repo)
        numbers = (flag, int(self.setting is True), int(self.setting is not None))
        changed = with_flag(repo, flag, self.setting)
        return Changed(changed, UpdateKind.FEATURE_FLAG_CHANGED, numbers=numbers)


class SetStatus(Change):
    """Set whether the repository accepts changes; possible in every state (spec 2)."""

    feature = "a status of the repository"
    status: Status

    def apply(self, repo: RepoInfo) -> Changed:
        """Return the state with the status."""
        changed = replace(repo, status=self.status)
        return Changed(changed, UpdateKind.REPO_STATUS_CHANGED, status=self.status)


class CloseIfNew(SetStatus):
    """Set the status of a repository to which nobody has committed anything (spec 2)."""

    def apply(self, repo: RepoInfo) -> Changed:
        """Return the state with the status; raise `ConflictError` if there is a commit or a ref."""
        if len(repo.snapshots) > 1 or repo.tags or repo.branches.keys() != {MAIN_BRANCH}:
            raise ConflictError(message="somebody has committed to the repository")
        return super().apply(repo)
