"""The ledger of spec 1: a small file for each branch and tag, and one for the configuration.

A file of a ref holds the id of a snapshot; parents are in the snapshots.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, Never, override

from icefloe.assets import Assets
from icefloe.config import EffectiveConfig, FeatureFlag, RepositoryConfig
from icefloe.effects import map_concurrently, sleep
from icefloe.errors import (
    ConflictError,
    ErrorKind,
    FormatError,
    InvalidInputError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    PreconditionFailedError,
    RefNotFoundError,
    RepositoryMigratedError,
    SnapshotNotFoundError,
    StorageError,
)
from icefloe.format.config_file import decode_config_yaml, encode_config_yaml
from icefloe.format.ids import ObjectId, SnapshotId
from icefloe.format.json_value import JsonValue
from icefloe.format.layout import (
    CONFIG_KEY,
    REFS_PREFIX,
    backup_key,
    backup_name,
    branch_key,
    tag_key,
    tag_tombstone_key,
)
from icefloe.format.repo_info import MAIN_BRANCH, RepoInfo
from icefloe.format.snapshot_table import SnapshotEntry
from icefloe.format.update_table import Status, UpdateEntry
from icefloe.repo.ledger import MOST_WRITES, Ledger, Rivals, put_settled
from icefloe.repo.migration_state import require_seen, require_unmigrated
from icefloe.repo.repo_changes import (
    AddDetached,
    Change,
    Commit,
    CreateBranch,
    CreateTag,
    DeleteBranch,
    DeleteTag,
    ResetBranch,
    SetConfig,
    branch_gone,
    config_changed,
    no_branch,
    no_tag,
    require_expected,
    stored_config,
    tag_exists,
)
from icefloe.storage import Backend, Version
from icefloe.storage.capabilities import has_queue, turn

_JSON: Final = "application/json"
_REF_FILE: Final = "/ref.json"
_TOMBSTONE: Final = "/ref.json.deleted"
_BRANCH: Final = f"{REFS_PREFIX}branch."
_TAG: Final = f"{REFS_PREFIX}tag."


async def read_ref(backend: Backend, key: str) -> tuple[SnapshotId, Version]:
    """Read the file of a branch or tag: where it points, and which state of it that was."""
    stored = await backend.get(key)
    return parse_ref(key, bytes(stored.data)), stored.info.version


def parse_ref(key: str, data: bytes) -> SnapshotId:
    """Return the snapshot id in the file of a branch or tag."""
    try:
        return SnapshotId.parse(json.loads(data)["snapshot"])
    except (ValueError, KeyError, TypeError, AttributeError):
        raise FormatError(
            f"{key!r} is damaged: it should hold the id of a snapshot as JSON", key=key
        ) from None


async def create_ref(backend: Backend, key: str, snapshot: SnapshotId) -> None:
    """Write the file of a new branch or tag; there must be none yet."""
    await put_settled(backend, key, ref_bytes(snapshot), replacing=None, content_type=_JSON)


async def bury_ref(backend: Backend, key: str) -> None:
    """Write the file that says that a tag was deleted; there must be none yet."""
    await put_settled(backend, key, b"", replacing=None)


async def move_ref(backend: Backend, key: str, version: Version, snapshot: SnapshotId) -> None:
    """Replace the state of a file that is known, once: a lost answer is `OutcomeUnknownError`."""
    await backend.put(key, ref_bytes(snapshot), if_version=version, content_type=_JSON)


async def list_refs(backend: Backend) -> tuple[set[str], set[str]]:
    """List the names of branches, and of tags without those that were deleted."""
    keys = [info.key async for batch in backend.list(REFS_PREFIX) for info in batch]
    tags = _names(keys, _TAG, _REF_FILE) - _names(keys, _TAG, _TOMBSTONE)
    return _names(keys, _BRANCH, _REF_FILE), tags


def checked_name(name: str) -> str:
    """Refuse a name that has no place among the files."""
    if "/" in name:
        raise InvalidInputError(
            f"the name {name!r} has a slash, which branches and tags of spec 1 cannot have:"
            " choose another name",
            ErrorKind.INVALID_REF_NAME,
        )
    return name


def _names(keys: list[str], start: str, end: str) -> set[str]:
    return {
        key[len(start) : -len(end)] for key in keys if key.startswith(start) and key.endswith(end)
    }


def ref_bytes(snapshot: SnapshotId) -> bytes:
    """Write the contents of the file of a branch or tag."""
    return b'{"snapshot":"%s"}' % str(snapshot).encode()


_YAML: Final = "application/yaml"


async def load_config_file(
    backend: Backend,
) -> tuple[RepositoryConfig | None, Version | None]:
    """Read config.yaml, and which state of it that was; None and None if there is no such file."""
    try:
        stored = await backend.get(CONFIG_KEY)
    except ObjectNotFoundError:
        return None, None
    return decode_config_yaml(bytes(stored.data)), stored.info.version


async def create_config_file(backend: Backend, config: RepositoryConfig) -> Version:
    """Write the config.yaml of a new repository; there must be none yet."""
    try:
        return await _put(backend, config, None)
    except PreconditionFailedError:
        raise ConflictError(
            message=f"there is a {CONFIG_KEY} already, without a repository: remove it first",
            kind=ErrorKind.CONFIG_UPDATED,
        ) from None


async def replace_config_file(
    backend: Backend, config: RepositoryConfig, version: Version | None, clock: Callable[[], int]
) -> Version:
    """Replace the state of config.yaml that is known, keeping a copy of it."""
    try:
        if version is not None:
            name = backup_name(CONFIG_KEY, clock() // 1000, ObjectId.random())
            await backend.copy(CONFIG_KEY, backup_key(name), if_version=version)
        return await _put(backend, config, version)
    except (PreconditionFailedError, ObjectNotFoundError):
        raise config_changed() from None


async def _put(backend: Backend, config: RepositoryConfig, version: Version | None) -> Version:
    data = encode_config_yaml(config)
    return await put_settled(backend, CONFIG_KEY, data, replacing=version, content_type=_YAML)


class RefFilesLedger(Ledger):
    """Branches, tags and history of a repository of spec 1."""

    lists_versions = False

    def __init__(
        self,
        backend: Backend,
        config: EffectiveConfig,
        assets: Assets,
        clock: Callable[[], int],
        config_version: Version | None = None,
    ) -> None:
        self._backend = backend
        self._assets = assets
        self._clock = clock
        self._concurrency = config.max_concurrent_requests
        self.config_version = config_version
        self.rivals = Rivals()

    @asynccontextmanager
    async def turn(self, branch: str) -> AsyncIterator[None]:
        """Wait in the queue of the branch, if the storage has queues, or else a moment."""
        if not has_queue(self._backend):
            await sleep(self.rivals.pace.pause_for(1))
        async with turn(self._backend, branch_key(checked_name(branch))):
            yield

    # -- branches and tags -----------------------------------------------------------------

    async def repo(self) -> None:
        """Return None: there is no repo object."""

    @override
    async def branch_names(self) -> set[str]:
        return (await self._names())[0]

    @override
    async def tag_names(self) -> set[str]:
        return (await self._names())[1]

    @override
    async def branches(self) -> dict[str, SnapshotId]:
        return await self._targets(sorted(await self.branch_names()), self.branch_tip)

    @override
    async def tags(self) -> dict[str, SnapshotId]:
        return await self._targets(sorted(await self.tag_names()), self._tag_file)

    @override
    async def branch_tip(self, name: str) -> SnapshotId:
        return (await self._branch(name))[0]

    def last_tip(self, name: str) -> SnapshotId | None:
        """Return None: the contents of ref files are not remembered."""
        return None

    def newest_update(self) -> int:
        """Return the time now: there is no log of updates."""
        return self._clock()

    async def writable_tip(self, name: str, *, flag: str | None = None) -> SnapshotId:
        """Return the tip of a branch; spec 1 has no status and no flags to check."""
        if flag is not None:
            _unsupported(f"the feature {flag!r}")
        return await self.branch_tip(name)

    @override
    async def tag_target(self, name: str) -> SnapshotId:
        try:
            await self._backend.head(tag_tombstone_key(checked_name(name)))
        except ObjectNotFoundError:
            return await self._tag_file(name)
        raise no_tag(name)

    # -- snapshots -------------------------------------------------------------------------

    @override
    async def entry(self, snapshot: SnapshotId) -> SnapshotEntry:
        stored = await self._assets.load_snapshot(snapshot)
        return SnapshotEntry(
            stored.id, stored.parent_id, stored.flushed_at, stored.message, stored.metadata
        )

    async def ancestry_pages(
        self,
        snapshot: SnapshotId | None = None,
        *,
        branch: str | None = None,
        tag: str | None = None,
    ) -> AsyncIterator[Sequence[SnapshotEntry]]:
        """Walk as `ancestry` does, reading one snapshot after the other."""
        if branch is not None:
            snapshot = await self.branch_tip(branch)
        elif tag is not None:
            snapshot = await self.tag_target(tag)
        start, seen = snapshot, set[SnapshotId]()
        while snapshot is not None:
            if snapshot in seen:
                raise FormatError(f"the history of {start} runs in a circle at {snapshot}")
            seen.add(snapshot)
            entry = await self.entry(snapshot)
            yield [entry]
            snapshot = entry.parent

    # -- settings --------------------------------------------------------------------------

    @override
    async def load_config(self) -> RepositoryConfig | None:
        config, version = await load_config_file(self._backend)
        if version is None:
            await require_unmigrated(self._backend)
        return config

    async def metadata(self) -> dict[str, JsonValue]:
        """Refuse: not in spec 1."""
        _unsupported("metadata of the repository")

    async def status(self) -> Status:
        """Refuse: not in spec 1."""
        _unsupported("a status of the repository")

    async def flags(self) -> list[FeatureFlag]:
        """Refuse: not in spec 1."""
        _unsupported("feature flags")

    async def ops_log(self) -> AsyncIterator[UpdateEntry]:
        """Refuse: not in spec 1."""
        _unsupported("a log of operations")
        yield  # makes this a generator, as the others are

    # -- changing --------------------------------------------------------------------------

    async def update(self, change: Change) -> None:
        """Make a change of branches, tags or configuration; refuse what is not in spec 1."""
        match change:
            case Commit():
                await self._commit(change)
            case AddDetached():  # a snapshot is known by its file; in spec 2 it would not be
                await require_unmigrated(self._backend)
            case CreateBranch():
                await self._create_branch(change.name, change.snapshot)
            case ResetBranch():
                await self._reset_branch(change.name, change.snapshot, change.expected)
            case DeleteBranch():
                await self._delete_branch(change.name, change.expected)
            case CreateTag():
                await self._create_tag(change.name, change.snapshot)
            case DeleteTag():
                await self._delete_tag(change.name)
            case SetConfig():
                await self._save_config(change.config)
            case _:
                _unsupported(change.feature)

    async def _commit(self, change: Commit) -> None:
        branch, base, new = change.branch, change.base, change.new.id

        async def has_landed(now: SnapshotId) -> bool:
            return await self._is_between(new, now, base)

        async with self._noticing(
            f"the commit {new}", lambda repo: repo.snapshots.row_of(new) is not None
        ):
            try:
                tip: SnapshotId | None
                tip, version = await self._branch(branch)
                if tip == base:
                    tip = await self._move(branch, base, version, new, has_landed)
            except RefNotFoundError:
                raise branch_gone(branch) from None
            if tip is not None:
                raise ConflictError(str(base), str(tip), branch=branch)

    async def _create_branch(self, name: str, snapshot: SnapshotId) -> None:
        key = branch_key(checked_name(name))
        await self._assets.load_snapshot(snapshot)

        async with self._noticing(
            f"the branch {name!r}", lambda repo: repo.branches.get(name) == snapshot
        ):
            try:
                await create_ref(self._backend, key, snapshot)
            except PreconditionFailedError:
                tip = await self.branch_tip(name)
                raise ConflictError(
                    None,
                    str(tip),
                    f"the branch {name!r} exists already, at {tip}:"
                    " choose another name, or move it with reset_branch",
                    ErrorKind.BRANCH_UPDATE_CONFLICT,
                    branch=name,
                ) from None

    async def _reset_branch(
        self, name: str, snapshot: SnapshotId, expected: SnapshotId | None
    ) -> None:
        async def has_landed(now: SnapshotId) -> bool:
            return now == snapshot

        async with self._noticing(
            f"the new end of the branch {name!r}", lambda repo: repo.branches.get(name) == snapshot
        ):
            tip, version = await self._branch(name)
            await self._assets.load_snapshot(snapshot)
            require_expected(name, tip, expected)
            elsewhere = await self._move(name, tip, version, snapshot, has_landed)
            if elsewhere is not None:
                require_expected(name, elsewhere, tip)

    async def _delete_branch(self, name: str, expected: SnapshotId | None) -> None:
        async with self._noticing(
            f"the deletion of the branch {name!r}", lambda repo: name not in repo.branches
        ):
            require_expected(name, await self.branch_tip(name), expected)
            key = branch_key(name)
            report = await self._backend.delete_many([key])
            if key in report.failures:
                raise StorageError(
                    f"the branch {name!r} could not be deleted: {report.failures[key]}",
                    retryable=key in report.retryable,
                    key=key,
                )

    async def _create_tag(self, name: str, snapshot: SnapshotId) -> None:
        key = tag_key(checked_name(name))
        await self._assets.load_snapshot(snapshot)

        async with self._noticing(
            f"the tag {name!r}", lambda repo: repo.tags.get(name) == snapshot
        ):
            try:
                await create_ref(self._backend, key, snapshot)
            except PreconditionFailedError:
                raise tag_exists(name) from None

    async def _delete_tag(self, name: str) -> None:
        async with self._noticing(
            f"the deletion of the tag {name!r}", lambda repo: name in repo.deleted_tags
        ):
            await self.tag_target(name)
            try:
                await bury_ref(self._backend, tag_tombstone_key(name))
            except PreconditionFailedError:
                raise no_tag(name) from None

    async def _save_config(self, config: RepositoryConfig) -> None:
        async with self._noticing("the configuration", lambda repo: stored_config(repo) == config):
            self.config_version = await replace_config_file(
                self._backend, config, self.config_version, self._clock
            )

    # -- files -----------------------------------------------------------------------------

    @asynccontextmanager
    async def _noticing(
        self, what: str, is_part: Callable[[RepoInfo], bool]
    ) -> AsyncIterator[None]:
        """Surround a change: it is refused, or called into question, after a migration."""
        await require_unmigrated(self._backend)
        yield
        await require_seen(self._backend, what, is_part)

    async def _names(self) -> tuple[set[str], set[str]]:
        branches, tags = await list_refs(self._backend)
        if MAIN_BRANCH not in branches:
            await require_unmigrated(self._backend)
        return branches, tags

    async def _targets(
        self, names: list[str], read: Callable[[str], Awaitable[SnapshotId]]
    ) -> dict[str, SnapshotId]:
        async def target(name: str) -> SnapshotId | None:
            try:
                return await read(name)
            except RefNotFoundError:
                return None  # deleted since it was listed

        targets = await map_concurrently(target, names, limit=self._concurrency)
        return {
            name: snapshot
            for name, snapshot in zip(names, targets, strict=True)
            if snapshot is not None
        }

    async def _branch(self, name: str) -> tuple[SnapshotId, Version]:
        try:
            return await read_ref(self._backend, branch_key(checked_name(name)))
        except ObjectNotFoundError:
            await require_unmigrated(self._backend)
            raise no_branch(name) from None

    async def _tag_file(self, name: str) -> SnapshotId:
        try:
            return (await read_ref(self._backend, tag_key(checked_name(name))))[0]
        except ObjectNotFoundError:
            await require_unmigrated(self._backend)
            raise no_tag(name) from None

    async def _move(
        self,
        branch: str,
        start: SnapshotId,
        version: Version,
        target: SnapshotId,
        has_landed: Callable[[SnapshotId], Awaitable[bool]],
    ) -> SnapshotId | None:
        """Move a branch from a snapshot to another; if it is elsewhere by now, return where.

        Lost answers are settled by reading back, as in `put_settled`; `has_landed` tells by the
        present tip whether our move was made, perhaps with others on top.
        """
        unknown: OutcomeUnknownError | None = None
        for _ in range(MOST_WRITES):
            try:
                await move_ref(self._backend, branch_key(branch), version, target)
            except PreconditionFailedError as refused:
                failure: StorageError = refused
            except OutcomeUnknownError as error:
                failure = unknown = error
            else:
                return None
            present = await self._end_after(branch, unknown, has_landed)
            if present is None:
                return None
            tip, version = present
            if tip != start:
                return tip
        raise unknown or failure

    async def _end_after(
        self,
        branch: str,
        unknown: OutcomeUnknownError | None,
        has_landed: Callable[[SnapshotId], Awaitable[bool]],
    ) -> tuple[SnapshotId, Version] | None:
        """Read where a branch ends after a move of it failed; None if it was made after all.

        `unknown` is the failure of a move that may have been made.
        """
        try:
            tip, version = await self._branch(branch)
            if unknown is not None and await has_landed(tip):
                return None
        except RepositoryMigratedError:
            if unknown is None:
                raise
            return None  # the repo object will tell whether it was made
        except (StorageError, FormatError, SnapshotNotFoundError) as unreadable:
            if unknown is None:
                raise
            raise unknown from unreadable
        return tip, version

    async def _is_between(self, snapshot: SnapshotId, tip: SnapshotId, base: SnapshotId) -> bool:
        """Look for a snapshot in the history of another one, as far back as to `base`."""
        async for entry in self.ancestry(tip):
            if entry.id == snapshot:
                return True
            if entry.id == base:
                return False
        return False


def _unsupported(what: str) -> Never:
    raise FormatError(
        f"this repository is of spec version 1, which does not have {what}:"
        " migrate it to spec version 2",
        ErrorKind.UNSUPPORTED_SPEC_VERSION,
    )
