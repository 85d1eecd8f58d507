"""Who points where: branches, tags, history and settings, in either version of the format.

Spec 2 keeps all of it in one object, `icefloe.engine.repo_object`; spec 1 in small files, one
for each branch and tag, `icefloe.engine.ref_ledger`, with fewer features: those that it lacks
raise `FormatError` of kind `unsupported-spec-version`.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from icefloe.config import FeatureFlag, RepositoryConfig
from icefloe.engine.rivals import Rivals
from icefloe.format.ids import SnapshotId
from icefloe.format.json_value import JsonValue
from icefloe.format.snapshot_table import SnapshotEntry
from icefloe.format.update_table import Status, UpdateEntry

type Metadata = dict[str, JsonValue]


class Ledger(Protocol):
    """The changing part of a repository.

    Reads show what is stored at that moment. Changes are atomic against all other writers; when
    one returns, it is stored. A change that lost a race over something unrelated is made again
    by itself.
    """

    spec_version: int
    rivals: Rivals

    def turn(self, branch: str) -> AbstractAsyncContextManager[None]:
        """Let those commit first who should, and as far as the storage can, nobody else after.

        Only fairness hangs on it: without a turn, every change is as safe.
        """
        ...

    async def branches(self) -> dict[str, SnapshotId]:
        """List branches and where they end."""
        ...

    async def tags(self) -> dict[str, SnapshotId]:
        """List tags and what they name, without those that were deleted."""
        ...

    async def branch_names(self) -> set[str]:
        """List branches; cheaper than `branches` in spec 1."""
        ...

    async def tag_names(self) -> set[str]:
        """List tags; cheaper than `tags` in spec 1."""
        ...

    async def branch_tip(self, name: str) -> SnapshotId:
        """Say where a branch ends, or raise `RefNotFoundError`."""
        ...

    def last_tip(self, name: str) -> SnapshotId | None:
        """Say where a branch ended when the storage was last asked, as far as that is known."""
        ...

    def newest_update(self) -> int:
        """Return the time of the newest update that is known without a request, in microseconds.

        That is 0 if none is known. In spec 1, which has no log of updates, it is the time now.
        """
        ...

    async def writable_tip(self, name: str, *, flag: str | None = None) -> SnapshotId:
        """Say where a branch ends that is to be written to, and whether that is allowed.

        As `check_writable`, `require_flag` and `branch_tip`, in one look.
        """
        ...

    async def tag_target(self, name: str) -> SnapshotId:
        """Say what a tag names, or raise `RefNotFoundError`."""
        ...

    async def create_branch(self, name: str, snapshot: SnapshotId) -> None:
        """Make a branch that ends at a snapshot."""
        ...

    async def delete_branch(self, name: str, *, expected: SnapshotId | None = None) -> None:
        """Delete a branch, but not `main`; with `expected`, `ConflictError` unless it ends there.

        In spec 1, a commit that lands between the look at the branch and its deletion is lost
        with the branch: storages do not delete on a condition.
        """
        ...

    async def reset_branch(
        self, name: str, snapshot: SnapshotId, *, expected: SnapshotId | None = None
    ) -> None:
        """Let a branch end elsewhere; with `expected`, `ConflictError` unless it ends there."""
        ...

    async def create_tag(self, name: str, snapshot: SnapshotId) -> None:
        """Name a snapshot for good."""
        ...

    async def delete_tag(self, name: str) -> None:
        """Take a tag away; its name cannot be used again."""
        ...

    async def entry(self, snapshot: SnapshotId) -> SnapshotEntry:
        """Look up one snapshot, or raise `SnapshotNotFoundError`."""
        ...

    def ancestry(self, snapshot: SnapshotId) -> AsyncIterator[SnapshotEntry]:
        """Walk from a snapshot back to the first one."""
        ...

    def ancestry_pages(
        self,
        snapshot: SnapshotId | None = None,
        *,
        branch: str | None = None,
        tag: str | None = None,
    ) -> AsyncIterator[Sequence[SnapshotEntry]]:
        """Walk as `ancestry` does, in the portions in which the history is read.

        Starts from one of a snapshot, a branch and a tag, as they are in the same look.
        """
        ...

    async def commit(
        self,
        branch: str,
        base: SnapshotId,
        new: SnapshotEntry,
        *,
        known_update: int | None = None,
    ) -> None:
        """Move a branch from `base` to a snapshot whose parent is `base`.

        `ConflictError` of kind `commit-conflict`, with both parents, if it does not end there
        any more; `RefNotFoundError` of kind `branch-not-found` if it is gone. In spec 2,
        `CollectionRanError` if garbage was collected after the update at `known_update`.
        """
        ...

    async def amend(
        self,
        branch: str,
        replaced: SnapshotId,
        new: SnapshotEntry,
        *,
        known_update: int | None = None,
        move_other_branches: bool = False,
    ) -> None:
        """Put a snapshot in the place of the tip of a branch, or of all that end there (spec 2).

        Otherwise as `commit`.
        """
        ...

    async def add_detached(self, new: SnapshotEntry, *, known_update: int | None = None) -> None:
        """Make a snapshot known that no branch leads to, else as `commit`."""
        ...

    async def check_writable(self) -> None:
        """Raise `ReadOnlyError` of kind `read-only-repository` if it takes no changes now."""
        ...

    async def metadata(self) -> Metadata:
        """Give the metadata of the repository (spec 2)."""
        ...

    async def set_metadata(self, metadata: Mapping[str, JsonValue]) -> None:
        """Replace the metadata of the repository (spec 2)."""
        ...

    async def update_metadata(self, metadata: Mapping[str, JsonValue]) -> Metadata:
        """Replace some entries of the metadata, and give all of it (spec 2)."""
        ...

    async def status(self) -> Status:
        """Say whether the repository takes changes (spec 2)."""
        ...

    async def set_status(self, status: Status) -> None:
        """Let the repository take changes, or not (spec 2)."""
        ...

    async def flags(self) -> list[FeatureFlag]:
        """List all feature flags (spec 2)."""
        ...

    async def set_flag(self, name: str, setting: bool | None) -> None:  # noqa: FBT001
        """Enable or disable a feature; None leaves it to its default (spec 2)."""
        ...

    async def require_flag(self, name: str) -> None:
        """Raise `SessionStateError` if a feature is disabled (spec 2)."""
        ...

    def ops_log(self) -> AsyncIterator[UpdateEntry]:
        """Walk through all operations, newest first (spec 2)."""
        ...

    async def load_config(self) -> RepositoryConfig | None:
        """Give the stored configuration, if there is one."""
        ...

    async def save_config(self, config: RepositoryConfig) -> None:
        """Store a configuration."""
        ...
