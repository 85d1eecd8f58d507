"""The log of operations, as users see it."""

# Aliases inside a class must be `TypeAlias`: a `type` statement makes no callable class.
# ruff: noqa: UP040

from typing import Self, TypeAlias

from icefloe.api.status import RepoStatus
from icefloe.config import SpecVersion
from icefloe.errors import ErrorKind, FormatError
from icefloe.format.update_table import UpdateEntry, UpdateKind
from icefloe.values import U16, Moment, Value, Variant, value_class, variant_of
from icefloe.values.times import to_datetime


class UpdateType(Variant):
    """An operation of the log: one of the variants below; use `isinstance` or `match`.

    >>> match UpdateType.TagCreated("v1"):
    ...     case UpdateType.TagCreated(name=name):
    ...         print("new tag", name)
    new tag v1
    """

    __slots__ = ()
    RepoInitialized: TypeAlias = "_RepoInitialized"
    RepoMigrated: TypeAlias = "_RepoMigrated"
    RepoStatusChanged: TypeAlias = "_RepoStatusChanged"
    ConfigChanged: TypeAlias = "_ConfigChanged"
    MetadataChanged: TypeAlias = "_MetadataChanged"
    FeatureFlagChanged: TypeAlias = "_FeatureFlagChanged"
    TagCreated: TypeAlias = "_TagCreated"
    TagDeleted: TypeAlias = "_TagDeleted"
    BranchCreated: TypeAlias = "_BranchCreated"
    BranchDeleted: TypeAlias = "_BranchDeleted"
    BranchReset: TypeAlias = "_BranchReset"
    NewCommit: TypeAlias = "_NewCommit"
    CommitAmended: TypeAlias = "_CommitAmended"
    NewDetachedSnapshot: TypeAlias = "_NewDetachedSnapshot"
    GCRan: TypeAlias = "_GCRan"
    ExpirationRan: TypeAlias = "_ExpirationRan"


@variant_of(UpdateType, "RepoInitialized")
class _RepoInitialized(UpdateType):
    """The repository was created."""


@variant_of(UpdateType, "RepoMigrated")
class _RepoMigrated(UpdateType):
    """The repository was rewritten in another version of the format."""

    from_version: SpecVersion
    to_version: SpecVersion


@variant_of(UpdateType, "RepoStatusChanged")
class _RepoStatusChanged(UpdateType):
    """The repository was opened or closed for writing."""

    status: RepoStatus


@variant_of(UpdateType, "ConfigChanged")
class _ConfigChanged(UpdateType):
    """A configuration was saved."""


@variant_of(UpdateType, "MetadataChanged")
class _MetadataChanged(UpdateType):
    """The metadata of the repository changed."""


@variant_of(UpdateType, "FeatureFlagChanged")
class _FeatureFlagChanged(UpdateType):
    """A part of the behaviour was switched; None returned it to its default."""

    id: U16
    new_value: bool | None


@variant_of(UpdateType, "TagCreated")
class _TagCreated(UpdateType):
    """A tag was created."""

    name: str


@variant_of(UpdateType, "TagDeleted")
class _TagDeleted(UpdateType):
    """A tag was deleted; it pointed at `previous_snap_id`."""

    name: str
    previous_snap_id: str


@variant_of(UpdateType, "BranchCreated")
class _BranchCreated(UpdateType):
    """A branch was created."""

    name: str


@variant_of(UpdateType, "BranchDeleted")
class _BranchDeleted(UpdateType):
    """A branch was deleted; it pointed at `previous_snap_id`."""

    name: str
    previous_snap_id: str


@variant_of(UpdateType, "BranchReset")
class _BranchReset(UpdateType):
    """A branch was made to point elsewhere than at `previous_snap_id`."""

    name: str
    previous_snap_id: str


@variant_of(UpdateType, "NewCommit")
class _NewCommit(UpdateType):
    """A commit moved a branch."""

    branch: str
    new_snap_id: str


@variant_of(UpdateType, "CommitAmended")
class _CommitAmended(UpdateType):
    """The newest commit of a branch was replaced by another."""

    branch: str
    previous_snap_id: str
    new_snap_id: str


@variant_of(UpdateType, "NewDetachedSnapshot")
class _NewDetachedSnapshot(UpdateType):
    """A snapshot was written that no branch points at."""

    new_snap_id: str


@variant_of(UpdateType, "GCRan")
class _GCRan(UpdateType):
    """Files that nothing refers to were deleted."""


@variant_of(UpdateType, "ExpirationRan")
class _ExpirationRan(UpdateType):
    """Old snapshots were dropped from the history."""


@value_class
class Update(Value):
    """One operation on a repository: what it did, and when.

    `backup_path` names the copy of the repository's record in which it was the newest one.

    >>> import icefloe
    >>> repository = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> [update.kind for update in repository.ops_log()]
    [icefloe.UpdateType.RepoInitialized()]
    """

    kind: UpdateType
    updated_at: Moment
    backup_path: str | None = None

    @classmethod
    def of(cls, entry: UpdateEntry) -> Self:
        """Show an entry of the log to users."""
        return cls(_kind_of(entry), to_datetime(entry.updated_at), entry.backup_path)


_BARE = {
    UpdateKind.REPO_INITIALIZED: _RepoInitialized,
    UpdateKind.CONFIG_CHANGED: _ConfigChanged,
    UpdateKind.METADATA_CHANGED: _MetadataChanged,
    UpdateKind.GC_RAN: _GCRan,
    UpdateKind.EXPIRATION_RAN: _ExpirationRan,
}
_NAMED = {UpdateKind.TAG_CREATED: _TagCreated, UpdateKind.BRANCH_CREATED: _BranchCreated}
_MOVED = {
    UpdateKind.TAG_DELETED: _TagDeleted,
    UpdateKind.BRANCH_DELETED: _BranchDeleted,
    UpdateKind.BRANCH_RESET: _BranchReset,
}


def _kind_of(entry: UpdateEntry) -> UpdateType:
    name, previous, new = str(entry.name), str(entry.previous), str(entry.new)
    first, second, third = entry.numbers
    match entry.kind:
        case UpdateKind.NEW_COMMIT:
            return _NewCommit(name, new)
        case UpdateKind.COMMIT_AMENDED:
            return _CommitAmended(name, previous, new)
        case UpdateKind.NEW_DETACHED_SNAPSHOT:
            return _NewDetachedSnapshot(new)
        case UpdateKind.FEATURE_FLAG_CHANGED:
            return _FeatureFlagChanged(first, bool(second) if third else None)
        case UpdateKind.REPO_MIGRATED:
            return _RepoMigrated(_version(first), _version(second))
        case UpdateKind.REPO_STATUS_CHANGED:
            assert entry.status is not None
            return _RepoStatusChanged(RepoStatus.of(entry.status))
        case bare if bare in _BARE:
            return _BARE[bare]()
        case named if named in _NAMED:
            return _NAMED[named](name)
        case moved:
            return _MOVED[moved](name, previous)


def _version(number: int) -> SpecVersion:
    try:
        return SpecVersion(number)
    except ValueError as error:
        raise FormatError(
            f"the log of operations speaks of spec version {number}: upgrade icefloe",
            ErrorKind.UNSUPPORTED_SPEC_VERSION,
        ) from error
