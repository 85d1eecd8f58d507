"""The ledger: where branches and tags point, the history and the settings, in either spec version.

Writers of one repository take turns. Where a storage has a queue (`icefloe.storage.capabilities`),
the queue decides. Elsewhere the log of operations decides: every writer names the backups of the
repo object in a series of ids of its own, so the log shows who wrote when. The last writer waits
for those before it; a writer that is not in the log goes at once. `put_settled` writes a small file
under a condition, whatever becomes of the answers.
"""

import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

from icefloe.config import FeatureFlag, RepositoryConfig
from icefloe.errors import (
    ObjectNotFoundError,
    OutcomeUnknownError,
    PreconditionFailedError,
    StorageError,
)
from icefloe.format.ids import SeriesOfIds, SnapshotId
from icefloe.format.json_value import JsonValue
from icefloe.format.repo_info import RepoInfo
from icefloe.format.snapshot_table import SnapshotEntry
from icefloe.format.update_table import Status, UpdateEntry, UpdateTable
from icefloe.records import MutableRecord, field
from icefloe.repo.repo_changes import Change
from icefloe.storage import Backend, Version
from icefloe.storage.keys import same_state

_ENTRIES: Final = 32
_ACTIVE_MICROSECONDS: Final = 5_000_000
"""Who did nothing for longer is not waited for."""
_MOST_BEFORE: Final = 8
_SLOWNESS: Final = 4
"""A writer that is missing for this many rounds of the others is not waited for either."""
_SERIES_TEXT: Final = 12
"""Characters of an id that are the same in a whole series."""
_SMOOTHING: Final = 0.3
_LONG_SECONDS: Final = 0.5
_CALM_COMMITS: Final = 3
"""Commits without rivals after which no rivals are expected."""

BACKUP_IDS: Final = SeriesOfIds()
"""Names the copies of repo objects that this process makes."""


class Pace(MutableRecord):
    """The duration of an operation that several writers perform in turn."""

    seconds: float = 0.02

    def note(self, seconds: float) -> None:
        """Take one more duration into account."""
        self.seconds += _SMOOTHING * (seconds - self.seconds)

    def pause_for(self, writers: int) -> float:
        """Choose how many seconds to wait for this many other writers."""
        return writers * self.seconds * random.uniform(0.5, 1.0)  # noqa: S311 - jitter


class Rivals(MutableRecord):
    """The knowledge about others who commit to the repository at the same time."""

    pace: Pace = field(default_factory=Pace)
    """Of a commit that is rebased, from reading the present state to the last write."""
    _commits_alone: int = _CALM_COMMITS

    @property
    def are_expected(self) -> bool:
        """Whether they got ahead of us during one of our last commits.

        A single commit without rivals proves little: they may all be busy with rebasing.
        """
        return self._commits_alone < _CALM_COMMITS

    def note_race(self, *, was_lost: bool) -> None:
        """Record whether rivals changed the branch during a commit of ours."""
        self._commits_alone = 0 if was_lost else self._commits_alone + 1

    @property
    def can_wait_for_us(self) -> bool:
        """Whether a whole commit is short enough to make others wait for it."""
        return self.pace.seconds < _LONG_SECONDS


def author_of(backup_name: str) -> str:
    """Return who made a backup of the repo object, by the name of the backup.

    >>> author_of("repo.30708914770077.0123456789ABCDEFGHJK")
    '0123456789AB'
    """
    return backup_name.rpartition(".")[2][:_SERIES_TEXT]


def writers_before(updates: UpdateTable, own: str, now: int) -> int:
    """Count the writers whose last change is older than our last one, but not old.

    The author of an entry is the author of the backup that the entry before it names.
    """
    depths: dict[str, int] = {}
    for row in range(1, min(len(updates), _ENTRIES)):
        if now - int(updates.updated_at[row - 1]) > _ACTIVE_MICROSECONDS:
            break
        depths.setdefault(author_of(updates.backup_paths[row].decode()), row - 1)
    if own not in depths:
        return 0
    places = list(enumerate(depths.items()))
    older = places[list(depths).index(own) + 1 :]
    active = [rank for rank, (_, depth) in older if depth <= _SLOWNESS * (rank + 1)]
    return min(len(active), _MOST_BEFORE)


def is_contested(updates: UpdateTable, branch: str, own: str | None, now: int) -> bool:
    """Return whether others changed a branch lately."""
    for row in range(1, min(len(updates), _ENTRIES)):
        if now - int(updates.updated_at[row - 1]) > _ACTIVE_MICROSECONDS:
            break
        author = author_of(updates.backup_paths[row].decode())
        if author != own and updates.names[row - 1].decode() == branch:
            return True
    return False


MOST_WRITES: Final = 5
"""How often to write when no answer comes; the storage has tried again by itself each time."""


async def put_settled(
    backend: Backend,
    key: str,
    data: bytes,
    *,
    replacing: Version | None,
    content_type: str | None = None,
    attributes: Mapping[str, str] | None = None,
) -> Version:
    """Put a file in the place of a state of it; None: where there is none yet.

    If the answer is lost, the file is read back: if these bytes are there, they were written; if
    nothing has changed, they are written again. Something else, whether it came before or after
    ours, is a `PreconditionFailedError`. `OutcomeUnknownError` means that reading failed too.
    """
    for _ in range(MOST_WRITES):
        try:
            return await backend.put(
                key,
                data,
                if_absent=replacing is None,
                if_version=replacing,
                content_type=content_type,
                attributes=attributes,
            )
        except OutcomeUnknownError as error:
            unknown = error
        try:
            stored = await backend.get(key)
        except ObjectNotFoundError as gone:
            if replacing is None:
                continue
            raise PreconditionFailedError(
                f"{key!r} was deleted by somebody else", key=key
            ) from gone
        except StorageError as failure:
            raise unknown from failure
        if bytes(stored.data) == data:
            return stored.info.version
        if replacing is None or not same_state(stored.info.version, replacing):
            raise PreconditionFailedError(f"{key!r} was written by somebody else", key=key)
    raise unknown


class Ledger(Protocol):
    """The changing part of a repository: `RepoObjectLedger` in spec 2, `RefFilesLedger` in spec 1.

    Reads show what is stored at that moment.
    """

    lists_versions: bool
    """Whether there is a list of all versions, in the repo object of spec 2."""
    config_version: Version | None
    """The state of config.yaml that our configuration was made from (spec 1)."""
    rivals: Rivals

    async def update(self, change: Change) -> RepoInfo | None:
        """Make a change, and return the repo object after it; None in spec 1, which has none.

        Changes are atomic against all other writers; when this returns, the change is stored. A
        change that lost a race over something unrelated is made again.
        """
        ...

    def turn(self, branch: str) -> AbstractAsyncContextManager[None]:
        """Wait for writers whose turn comes first, and ask later writers to wait.

        Only fairness hangs on it: without a turn, every change is as safe.
        """
        ...

    async def repo(self) -> RepoInfo | None:
        """Return the repo object; None in spec 1, which has none."""
        ...

    async def branches(self) -> dict[str, SnapshotId]:
        """List branches and where they end."""
        ...

    async def tags(self) -> dict[str, SnapshotId]:
        """List tags and what they name, without those that were deleted."""
        ...

    async def branch_names(self) -> set[str]:
        """List branches; cheaper than `branches` in spec 1."""
        return set(await self.branches())

    async def tag_names(self) -> set[str]:
        """List tags; cheaper than `tags` in spec 1."""
        return set(await self.tags())

    async def branch_tip(self, name: str) -> SnapshotId:
        """Return the snapshot at the tip of a branch, or raise `RefNotFoundError`."""
        ...

    def last_tip(self, name: str) -> SnapshotId | None:
        """Return the tip of a branch as last read from the storage, if it is known."""
        ...

    def newest_update(self) -> int:
        """Return the time of the newest update that is known without a request, in microseconds.

        That is 0 if none is known. In spec 1, which has no log of updates, it is the time now.
        """
        ...

    async def writable_tip(self, name: str, *, flag: str | None = None) -> SnapshotId:
        """Return the tip of a branch to write to, or raise if writing is not allowed.

        `ReadOnlyError` of kind `read-only-repository` if the repository takes no changes now,
        `SessionStateError` if the feature of `flag` is disabled.
        """
        ...

    async def tag_target(self, name: str) -> SnapshotId:
        """Return the snapshot of a tag, or raise `RefNotFoundError`."""
        ...

    async def entry(self, snapshot: SnapshotId) -> SnapshotEntry:
        """Look up one snapshot, or raise `SnapshotNotFoundError`."""
        ...

    async def ancestry(self, snapshot: SnapshotId) -> AsyncIterator[SnapshotEntry]:
        """Walk from a snapshot back to the first one."""
        async for page in self.ancestry_pages(snapshot):
            for entry in page:
                yield entry

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

    async def metadata(self) -> dict[str, JsonValue]:
        """Return the metadata of the repository (spec 2)."""
        ...

    async def status(self) -> Status:
        """Return whether the repository takes changes (spec 2)."""
        ...

    async def flags(self) -> list[FeatureFlag]:
        """List all feature flags (spec 2)."""
        ...

    def ops_log(self) -> AsyncIterator[UpdateEntry]:
        """Walk through all operations, newest first (spec 2)."""
        ...

    async def load_config(self) -> RepositoryConfig | None:
        """Return the stored configuration, if there is one."""
        ...
