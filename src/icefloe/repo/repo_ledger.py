"""The ledger of spec 2: one object, `repo`, replaced as a whole by compare-and-swap.

The log of operations continues in the backups of the object.
"""

import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import override

from icefloe import effects
from icefloe.config import EffectiveConfig, FeatureFlag, RepositoryConfig
from icefloe.errors import (
    ConflictError,
    ErrorKind,
    FormatError,
    IcefloeError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    PreconditionFailedError,
    StorageError,
)
from icefloe.format.envelope import FileType, object_attributes
from icefloe.format.ids import SnapshotId
from icefloe.format.json_value import JsonValue
from icefloe.format.layout import REPO_KEY, backup_key, backup_name
from icefloe.format.repo_info import (
    SPEC_VERSION,
    RepoInfo,
    decode_repo_info,
    encode_repo_info,
    open_repo_info,
)
from icefloe.format.snapshot_table import SnapshotEntry
from icefloe.format.update_table import Status, UpdateEntry
from icefloe.records import Record, replace
from icefloe.repo import repo_changes
from icefloe.repo.ledger import (
    BACKUP_IDS,
    Ledger,
    Pace,
    Rivals,
    author_of,
    is_contested,
    put_settled,
    writers_before,
)
from icefloe.repo.repo_changes import (
    Change,
    Commit,
    SetConfig,
    feature_flags,
    require_enabled,
    shown_metadata,
    stored_config,
)
from icefloe.storage import Backend, Version
from icefloe.storage.capabilities import has_queue, turn


async def pages(backend: Backend, repo: RepoInfo) -> AsyncIterator[list[UpdateEntry]]:
    """Yield the log, newest first, one list for each copy of the repo object.

    A copy that is missing ends the log: somebody cleaned up. What was newest in a copy gets
    the name of that copy, as it has in later states of the repository.
    """
    entries = repo.updates.entries()
    seen: set[str] = set()
    while True:
        yield entries
        name = repo.repo_before_updates
        if name is None:
            return
        if name in seen:
            raise FormatError(f"the log of operations runs in a circle through {name!r}")
        seen.add(name)
        try:
            copy = await backend.get(backup_key(name))
        except ObjectNotFoundError:
            return
        repo = decode_repo_info(copy.data)
        first, *others = repo.updates.entries()
        entries = [replace(first, backup_path=first.backup_path or name), *others]


_log = logging.getLogger(__name__)

_IMMEDIATE_RETRIES = 5
_NOTICEABLE_LAG = 1_000_000
"""Microseconds: clocks of different machines always differ a little."""
_MOST_DOUBLINGS = 2


class StoredRepo(Record):
    """A state of the repo object, and what the storage calls it."""

    info: RepoInfo
    version: Version


async def load_repo(backend: Backend, remembered: StoredRepo | None = None) -> StoredRepo:
    """Read the repo object; what is known already is not decoded again."""
    fetched = await backend.get(REPO_KEY)
    version = fetched.info.version
    if remembered is not None and version == remembered.version != Version():
        return remembered
    return StoredRepo(await effects.offload(lambda: open_repo_info(fetched.data)), version)


async def create_repo(backend: Backend, info: RepoInfo, *, level: int) -> StoredRepo:
    """Write the repo object of a new repository; there must be none yet."""
    return await replace_repo(backend, info, None, level=level)


async def replace_repo(
    backend: Backend, info: RepoInfo, expected: Version | None, *, level: int
) -> StoredRepo:
    """Write the repo object in the place of a state of it, without a copy of that state."""
    data = encode_repo_info(info, level=level)
    attributes = object_attributes(FileType.REPO_INFO, SPEC_VERSION)
    version = await put_settled(backend, REPO_KEY, data, replacing=expected, attributes=attributes)
    return StoredRepo(info, version)


class RepoObjectLedger(Ledger):
    """Branches, tags, history and settings of a repository of spec 2."""

    lists_versions = True
    config_version: Version | None = None

    def __init__(
        self,
        backend: Backend,
        config: EffectiveConfig,
        clock: Callable[[], int],
        known: StoredRepo | None = None,
        *,
        always_conditional: bool = False,
    ) -> None:
        self._backend = backend
        self._retries = config.repo_update_retries
        self._cap = config.num_updates_per_repo_info_file
        self._level = config.compression.level
        self._clock = clock
        self._known = known
        self._read = None if known is None else known.info
        # Without conditions a write would undo what others did since we looked.
        self._may_trust_memory = always_conditional or config.storage.unsafe_use_conditional_update
        self.rivals = Rivals()
        self._own: str | None = None
        self._is_raced = False
        self._pace = Pace()

    @asynccontextmanager
    async def turn(self, branch: str) -> AsyncIterator[None]:
        """Wait in the queue of the repository, or else until those are done who should be first."""
        if not has_queue(self._backend):
            await self._let_others_go_first()
        async with turn(self._backend, REPO_KEY):
            yield

    async def _let_others_go_first(self) -> None:
        """Wait for the writers whose last change is older than ours, within limits."""
        before = looks = self._writers_before()
        while before > 0 and looks >= 0:
            await effects.sleep(self.rivals.pace.pause_for(before))
            await self._load()
            before, looks = self._writers_before(), looks - 1

    def _is_contested(self, branch: str) -> bool:
        if self._known is None:
            return False
        return is_contested(self._known.info.updates, branch, self._own, self._clock())

    def _writers_before(self) -> int:
        if self._known is None or self._own is None:
            return 0
        return writers_before(self._known.info.updates, self._own, self._clock())

    # -- reading ---------------------------------------------------------------------------

    @property
    def known(self) -> StoredRepo | None:
        """The state of the repo object that was last read or written; None if there is none."""
        return self._known

    @override
    async def repo(self) -> RepoInfo:
        return (await self._load()).info

    async def _readable(self) -> RepoInfo:
        """Read the present state for somebody who wants to read versions."""
        repo = await self.repo()
        repo_changes.require_readable(repo)
        return repo

    @override
    async def branches(self) -> dict[str, SnapshotId]:
        return dict((await self._readable()).branches)

    @override
    async def tags(self) -> dict[str, SnapshotId]:
        return dict((await self._readable()).tags)

    @override
    async def branch_tip(self, name: str) -> SnapshotId:
        return repo_changes.branch_tip(await self._readable(), name)

    @override
    def last_tip(self, name: str) -> SnapshotId | None:
        return None if self._known is None else self._known.info.branches.get(name)

    @override
    def newest_update(self) -> int:
        return 0 if self._known is None else int(self._known.info.updates.updated_at[0])

    @override
    async def writable_tip(self, name: str, *, flag: str | None = None) -> SnapshotId:
        repo = await self.repo()
        if flag is not None:
            require_enabled(repo, flag)
        repo_changes.require_online(repo)
        return repo_changes.branch_tip(repo, name)

    @override
    async def tag_target(self, name: str) -> SnapshotId:
        return repo_changes.tag_target(await self._readable(), name)

    @override
    async def entry(self, snapshot: SnapshotId) -> SnapshotEntry:
        return repo_changes.snapshot_entry(await self._readable(), snapshot)

    async def ancestry_pages(
        self,
        snapshot: SnapshotId | None = None,
        *,
        branch: str | None = None,
        tag: str | None = None,
    ) -> AsyncIterator[Sequence[SnapshotEntry]]:
        """Yield the whole history of a snapshot, branch or tag at once."""
        repo = await self._readable()
        if branch is not None:
            snapshot = repo_changes.branch_tip(repo, branch)
        elif tag is not None:
            snapshot = repo_changes.tag_target(repo, tag)
        assert snapshot is not None
        repo_changes.require_listed(repo, snapshot)
        yield repo.snapshots.page(repo.snapshots.ancestry(snapshot))

    @override
    async def metadata(self) -> dict[str, JsonValue]:
        return shown_metadata((await self.repo()).metadata)

    @override
    async def status(self) -> Status:
        return (await self.repo()).status

    @override
    async def flags(self) -> list[FeatureFlag]:
        return feature_flags(await self.repo())

    @override
    async def ops_log(self) -> AsyncIterator[UpdateEntry]:
        async for page in pages(self._backend, await self.repo()):
            for entry in page:
                yield entry

    async def load_config(self) -> RepositoryConfig | None:
        """Return the stored configuration, if there is one."""
        return stored_config(await self.repo())

    # -- changing --------------------------------------------------------------------------

    async def update(self, change: Change) -> RepoInfo:
        """Make one change, even while others make some; return the state after it.

        Who often commits to a branch lets others go first who change the repository as well.
        """
        match change:
            case Commit() if self._is_raced and not has_queue(self._backend):
                # On a branch that others move too, waiting would only make sure that we lose.
                if not self._is_contested(change.branch):
                    await effects.sleep(self._pace.pause_for(self._writers_before()))
            case SetConfig():
                change = replace(change, known=self._read)
        async with turn(self._backend, REPO_KEY):
            updated = await self._update(change)
        if isinstance(change, SetConfig):
            self._read = updated
        return updated

    async def _update(self, change: Change) -> RepoInfo:
        # While others change the repository, what we remember is no longer true.
        stored = self._known if self._may_trust_memory and not self._is_raced else None
        is_fresh = False
        unsettled: list[_Unsettled] = []
        has_warned = False
        for failures in range(max(self._retries.max_tries, 1)):
            begun = time.monotonic()
            if stored is None:
                remembered = self._known
                stored, is_fresh = await self._load_after(unsettled), True
                self._is_raced = remembered is not None and stored is not remembered
                if await self._has_landed(stored, unsettled):
                    return stored.info
            name = backup_name(REPO_KEY, self._clock() // 1000, BACKUP_IDS.next())
            now = self._clock()
            has_warned = has_warned or warn_of_lag(now, int(stored.info.updates.updated_at[0]))
            try:
                new = repo_changes.apply_and_log(
                    change, stored.info, now=now, backup_name=name, cap=self._cap
                )
            except IcefloeError:
                if is_fresh:
                    raise
                stored = None
                continue
            try:
                written = await self._replace(stored, new, name)
            except PreconditionFailedError:
                pass
            except OutcomeUnknownError as unknown:
                unsettled.append(_Unsettled(name, int(stored.info.updates.updated_at[0]), unknown))
            else:
                self._pace.note(time.monotonic() - begun)
                return written
            stored = None
            self._is_raced = True
            _log.debug("somebody else changed the repository: trying again (%d)", failures + 1)
            await self._pause(failures)
        raise unsettled[-1].error if unsettled else self._exhausted()

    async def _replace(self, stored: StoredRepo, new: RepoInfo, name: str) -> RepoInfo:
        """Keep a copy of a state under a name, and put another in its place."""
        data = await effects.offload(lambda: encode_repo_info(new, level=self._level))
        await self._backend.copy(REPO_KEY, backup_key(name), if_version=stored.version)
        version = await self._backend.put(
            REPO_KEY,
            data,
            if_version=stored.version,
            attributes=object_attributes(FileType.REPO_INFO, SPEC_VERSION),
        )
        self._known = StoredRepo(new, version)
        self._own = author_of(name)
        return new

    async def _load(self) -> StoredRepo:
        stored = await load_repo(self._backend, self._known)
        self._known = stored
        return stored

    async def _load_after(self, unsettled: "list[_Unsettled]") -> StoredRepo:
        try:
            return await self._load()
        except StorageError as failure:
            if unsettled:
                raise unsettled[-1].error from failure
            raise

    async def _has_landed(self, now: StoredRepo, unsettled: "list[_Unsettled]") -> bool:
        """Look for one of our writes in the log: at most one of them can be there."""
        if not unsettled:
            return False
        names = {write.backup_name for write in unsettled}
        since = min(write.since for write in unsettled)
        async for page in pages(self._backend, now.info):
            if any(entry.backup_path in names for entry in page):
                return True
            if page[-1].updated_at < since:
                break
        return False

    async def _pause(self, failures: int) -> None:
        """Wait a moment, once trying again at once did not help.

        The pauses hardly grow: a writer that has lost often should not try ever more seldom.
        """
        doublings = min(failures - _IMMEDIATE_RETRIES, _MOST_DOUBLINGS)
        if doublings >= 0:
            longest_ms = min(
                self._retries.max_backoff_ms, self._retries.initial_backoff_ms * 2**doublings
            )
            await effects.sleep(random.uniform(0, longest_ms / 1000))  # noqa: S311 - jitter

    def _exhausted(self) -> ConflictError:
        return ConflictError(
            message=f"others changed the repository during each of {self._retries.max_tries}"
            " attempts to: try again later, or raise repo_update_retries in the configuration",
            kind=ErrorKind.UPDATE_ATTEMPTS_EXHAUSTED,
        )


class _Unsettled(Record):
    """A write that may have landed."""

    backup_name: str
    since: int
    """The log names the copy at an entry of this time."""
    error: OutcomeUnknownError


def warn_of_lag(now: int, before: int) -> bool:
    """Log a warning if the clock is behind something that happened already; tell whether it was.

    Both times are in microseconds. What happens next is dated right after it, so that the order of
    times stays the order of events.
    """
    lag = before - now
    if lag < _NOTICEABLE_LAG:
        return False
    _log.warning(
        "the clock of this machine is %.1f s behind the newest change of the repository, or the"
        " clock of the machine that made that change was ahead: the next change is dated right"
        " after it;"
        " set the clocks",
        lag / 1_000_000,
    )
    return True
