"""Changes of the repo object of spec 2: pure functions, one per operation.

Feature flags can forbid operations. A copy of the manifest sets is stored where other libraries
do not touch it.
"""

import json
import warnings
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, cast

from icefloe.config import ChunkManifestsConfig, FeatureFlag, RepositoryConfig
from icefloe.config.manifests import KEY as CONFIG_KEY
from icefloe.errors import (
    AlreadyExistsError,
    ConflictError,
    ErrorKind,
    FormatError,
    IcefloeError,
    InvalidInputError,
    ReadOnlyError,
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
from icefloe.repo.ledger import (
    branch_gone,
    no_branch,
    no_tag,
    require_deletable,
    require_expected,
    tag_exists,
)
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


type Change = Callable[[RepoInfo], Changed]
"""An operation that is still to be folded into a state."""


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


def next_moment(repo: RepoInfo, now: int) -> int:
    """Return the time of the next entry: later than all others, whatever the clocks say."""
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


def commit(
    branch: str, base: SnapshotId, new: SnapshotEntry, known_update: int | None = None
) -> Change:
    """Add a snapshot on top of `base`, and move the branch there from `base`."""

    def change(repo: RepoInfo) -> Changed:
        require_online(repo)
        _require_tip(repo, branch, base)
        _require_uncollected(repo, known_update)
        added = _with_snapshot(repo, replace(new, parent=base))
        moved = replace(added, branches={**repo.branches, branch: new.id})
        return Changed(moved, UpdateKind.NEW_COMMIT, branch, new=new.id)

    return change


def amend(
    branch: str,
    replaced: SnapshotId,
    new: SnapshotEntry,
    known_update: int | None = None,
    *,
    move_other_branches: bool = False,
) -> Change:
    """Put a snapshot in the place of the tip of a branch, which stays listed.

    With `move_other_branches`, all branches that end at the replaced snapshot follow. Tags and
    children of that snapshot never do.
    """

    def change(repo: RepoInfo) -> Changed:
        require_online(repo)
        _require_tip(repo, branch, replaced)
        _require_uncollected(repo, known_update)
        old = snapshot_entry(repo, replaced)
        if old.parent is None:
            raise SessionStateError(
                "the initial commit cannot be amended: commit on top of it",
                ErrorKind.NO_AMEND_FOR_INITIAL_COMMIT,
            )
        entry = replace(new, parent=old.parent, pruned_ancestors=old.pruned_ancestors)
        branches = {
            name: new.id if name == branch or (move_other_branches and tip == replaced) else tip
            for name, tip in repo.branches.items()
        }
        moved = replace(_with_snapshot(repo, entry), branches=branches)
        return Changed(moved, UpdateKind.COMMIT_AMENDED, branch, replaced, new.id)

    return change


def add_detached(new: SnapshotEntry, known_update: int | None = None) -> Change:
    """List a snapshot that no branch leads to."""

    def change(repo: RepoInfo) -> Changed:
        require_online(repo)
        _require_uncollected(repo, known_update)
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


def delete_branch(name: str, expected: SnapshotId | None = None) -> Change:
    """Delete a branch; its snapshots stay until they are collected.

    With `expected`, only if the branch ends there now.
    """
    require_deletable(name)

    def change(repo: RepoInfo) -> Changed:
        require_online(repo)
        tip = branch_tip(repo, name)
        require_expected(name, tip, expected)
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
    """Return the snapshot at the tip of a branch."""
    if (tip := repo.branches.get(name)) is None:
        raise no_branch(name)
    return tip


def tag_target(repo: RepoInfo, name: str) -> SnapshotId:
    """Return the snapshot of a tag."""
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
    return Changed(replace(repo, **values(repo)), kind)


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
    """Return whether the repository takes changes; possible in every state."""

    def change(repo: RepoInfo) -> Changed:
        return Changed(replace(repo, status=status), UpdateKind.REPO_STATUS_CHANGED, status=status)

    return change
