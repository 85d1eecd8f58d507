"""The ledger of spec 1: a small file for each branch and tag, parents in the snapshots."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Final, Never

from icefloe.assets.files import Assets
from icefloe.config import EffectiveConfig, FeatureFlag, RepositoryConfig
from icefloe.effects import map_concurrently
from icefloe.engine.repo_changes import (
    no_branch,
    no_tag,
    require_deletable,
    require_expected,
    tag_exists,
)
from icefloe.errors import (
    ConflictError,
    ErrorKind,
    FormatError,
    InvalidInputError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    PreconditionFailedError,
    RefNotFoundError,
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
from icefloe.format.snapshot import Snapshot
from icefloe.format.snapshot_table import SnapshotEntry
from icefloe.format.update_table import Status, UpdateEntry
from icefloe.storage import Backend, Version

SPEC_VERSION: Final = 1

_JSON: Final = "application/json"
_YAML: Final = "application/yaml"
_REF_FILE: Final = "/ref.json"
_TOMBSTONE: Final = "/ref.json.deleted"
_BRANCH: Final = f"{REFS_PREFIX}branch."
_TAG: Final = f"{REFS_PREFIX}tag."


class RefFilesLedger:
    """Branches, tags and history of a repository of spec 1."""

    spec_version = SPEC_VERSION

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
        """The state of config.yaml that our configuration was made from; None for no file."""

    # -- branches and tags -----------------------------------------------------------------

    async def branch_names(self) -> set[str]:
        """List branches."""
        return {
            key[len(_BRANCH) : -len(_REF_FILE)]
            for key in await self._keys(_BRANCH)
            if key.endswith(_REF_FILE)
        }

    async def tag_names(self) -> set[str]:
        """List tags, without those that were deleted."""
        keys = await self._keys(_TAG)
        deleted = {key[len(_TAG) : -len(_TOMBSTONE)] for key in keys if key.endswith(_TOMBSTONE)}
        return {
            key[len(_TAG) : -len(_REF_FILE)] for key in keys if key.endswith(_REF_FILE)
        } - deleted

    async def branches(self) -> dict[str, SnapshotId]:
        """List branches and where they end."""
        return await self._targets(sorted(await self.branch_names()), self.branch_tip)

    async def tags(self) -> dict[str, SnapshotId]:
        """List tags and what they name."""
        return await self._targets(sorted(await self.tag_names()), self._tag_file)

    async def branch_tip(self, name: str) -> SnapshotId:
        """Say where a branch ends."""
        return (await self._branch(name))[0]

    async def writable_tip(self, name: str, *, flag: str | None = None) -> SnapshotId:
        """Say where a branch ends; spec 1 has no status and no flags to ask for."""
        if flag is not None:
            await self.require_flag(flag)
        return await self.branch_tip(name)

    async def tag_target(self, name: str) -> SnapshotId:
        """Say what a tag names."""
        try:
            await self._backend.head(tag_tombstone_key(_checked(name)))
        except ObjectNotFoundError:
            return await self._tag_file(name)
        raise no_tag(name)

    async def create_branch(self, name: str, snapshot: SnapshotId) -> None:
        """Make a branch that ends at a snapshot."""
        key = branch_key(_checked(name))
        await self._assets.load_snapshot(snapshot)
        try:
            await self._create(key, snapshot)
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

    async def delete_branch(self, name: str) -> None:
        """Take a branch away."""
        require_deletable(name)
        await self.branch_tip(name)
        key = branch_key(name)
        report = await self._backend.delete_many([key])
        if key in report.failures:
            raise StorageError(
                f"the branch {name!r} could not be deleted: {report.failures[key]}",
                retryable=key in report.retryable,
                key=key,
            )

    async def reset_branch(
        self, name: str, snapshot: SnapshotId, *, expected: SnapshotId | None = None
    ) -> None:
        """Let a branch end elsewhere."""
        tip, version = await self._branch(name)
        await self._assets.load_snapshot(snapshot)
        require_expected(name, tip, expected)
        try:
            await self._move(name, version, snapshot)
        except PreconditionFailedError:
            require_expected(name, await self.branch_tip(name), tip)
            raise
        except OutcomeUnknownError as unknown:
            if await self._find(branch_key(name), unknown) != snapshot:
                raise

    async def create_tag(self, name: str, snapshot: SnapshotId) -> None:
        """Name a snapshot for good."""
        key = tag_key(_checked(name))
        await self._assets.load_snapshot(snapshot)
        try:
            await self._create(key, snapshot)
        except PreconditionFailedError:
            raise tag_exists(name) from None

    async def delete_tag(self, name: str) -> None:
        """Take a tag away."""
        await self.tag_target(name)
        key = tag_tombstone_key(name)
        try:
            await self._backend.put(key, b"", if_absent=True)
        except PreconditionFailedError:
            raise no_tag(name) from None
        except OutcomeUnknownError as unknown:
            await self._require_present(key, unknown)

    # -- snapshots -------------------------------------------------------------------------

    async def entry(self, snapshot: SnapshotId) -> SnapshotEntry:
        """Look up one snapshot."""
        return _entry_of(await self._assets.load_snapshot(snapshot))

    async def ancestry(self, snapshot: SnapshotId) -> AsyncIterator[SnapshotEntry]:
        """Walk from a snapshot back to the first one, reading one after the other."""
        next_one: SnapshotId | None = snapshot
        seen: set[SnapshotId] = set()
        while next_one is not None:
            if next_one in seen:
                raise FormatError(f"the history of {snapshot} runs in a circle at {next_one}")
            seen.add(next_one)
            entry = await self.entry(next_one)
            yield entry
            next_one = entry.parent

    async def ancestry_pages(
        self,
        snapshot: SnapshotId | None = None,
        *,
        branch: str | None = None,
        tag: str | None = None,
    ) -> AsyncIterator[list[SnapshotEntry]]:
        """Walk as `ancestry` does, from a snapshot, branch or tag."""
        if branch is not None:
            snapshot = await self.branch_tip(branch)
        elif tag is not None:
            snapshot = await self.tag_target(tag)
        assert snapshot is not None
        async for entry in self.ancestry(snapshot):
            yield [entry]

    async def commit(self, branch: str, base: SnapshotId, new: SnapshotEntry) -> None:
        """Move a branch from `base` to a snapshot on top of it."""
        try:
            tip, version = await self._branch(branch)
            if tip == base:
                await self._move(branch, version, new.id)
                return
        except RefNotFoundError:
            raise RefNotFoundError(
                f"the branch {branch!r} does not exist (any more)",
                ErrorKind.BRANCH_NOT_FOUND,
                branch=branch,
            ) from None
        except PreconditionFailedError:
            tip = await self.branch_tip(branch)
        except OutcomeUnknownError as unknown:
            if await self._has_commit(branch, new.id, unknown):
                return
            raise
        raise ConflictError(str(base), str(tip), branch=branch)

    async def amend(self, branch: str, replaced: SnapshotId, new: SnapshotEntry) -> None:
        """Refuse: snapshots of spec 1 hold their parents, so none can take another's place."""
        _unsupported("amended commits")

    async def add_detached(self, new: SnapshotEntry) -> None:
        """Do nothing: a snapshot is known by its file."""

    async def check_writable(self) -> None:
        """Do nothing: spec 1 has no status."""

    # -- settings --------------------------------------------------------------------------

    async def load_config(self) -> RepositoryConfig | None:
        """Give the stored configuration, if there is one."""
        return (await load_config_file(self._backend))[0]

    async def save_config(self, config: RepositoryConfig) -> None:
        """Store a configuration, unless somebody changed it since ours was read."""
        version = self.config_version
        data = encode_config_yaml(config)
        try:
            if version is not None:
                name = backup_name(CONFIG_KEY, self._clock() // 1000, ObjectId.random())
                await self._backend.copy(CONFIG_KEY, backup_key(name), if_version=version)
            self.config_version = await self._backend.put(
                CONFIG_KEY,
                data,
                if_absent=version is None,
                if_version=version,
                content_type=_YAML,
            )
        except (PreconditionFailedError, ObjectNotFoundError):
            raise ConflictError(
                message="somebody changed the stored configuration since this repository was"
                " opened: open it again and repeat the change",
                kind=ErrorKind.CONFIG_UPDATED,
            ) from None
        except OutcomeUnknownError:
            found = await self._backend.get(CONFIG_KEY)
            if bytes(found.data) != data:
                raise
            self.config_version = found.info.version

    async def metadata(self) -> dict[str, JsonValue]:
        """Refuse: not in spec 1."""
        _unsupported("metadata of the repository")

    async def set_metadata(self, metadata: Mapping[str, JsonValue]) -> None:
        """Refuse: not in spec 1."""
        _unsupported("metadata of the repository")

    async def update_metadata(self, metadata: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
        """Refuse: not in spec 1."""
        _unsupported("metadata of the repository")

    async def status(self) -> Status:
        """Refuse: not in spec 1."""
        _unsupported("a status of the repository")

    async def set_status(self, status: Status) -> None:
        """Refuse: not in spec 1."""
        _unsupported("a status of the repository")

    async def flags(self) -> list[FeatureFlag]:
        """Refuse: not in spec 1."""
        _unsupported("feature flags")

    async def set_flag(self, name: str, setting: bool | None) -> None:  # noqa: FBT001
        """Refuse: not in spec 1."""
        _unsupported("feature flags")

    async def require_flag(self, name: str) -> None:
        """Refuse: what flags are for is not in spec 1 either."""
        _unsupported(f"the feature {name!r}")

    async def ops_log(self) -> AsyncIterator[UpdateEntry]:
        """Refuse: not in spec 1."""
        _unsupported("a log of operations")
        yield  # makes this a generator, as the others are

    # -- files -----------------------------------------------------------------------------

    async def _keys(self, prefix: str) -> list[str]:
        return [
            info.key
            async for batch in self._backend.list(REFS_PREFIX)
            for info in batch
            if info.key.startswith(prefix)
        ]

    async def _targets(
        self, names: list[str], read: Callable[[str], Awaitable[SnapshotId]]
    ) -> dict[str, SnapshotId]:
        async def target(name: str) -> SnapshotId | None:
            try:
                return await read(name)
            except RefNotFoundError:
                return None  # deleted since it was listed

        found = await map_concurrently(target, names, limit=self._concurrency)
        return {name: at for name, at in zip(names, found, strict=True) if at is not None}

    async def _branch(self, name: str) -> tuple[SnapshotId, Version]:
        try:
            return await read_ref(self._backend, branch_key(_checked(name)))
        except ObjectNotFoundError:
            raise no_branch(name) from None

    async def _tag_file(self, name: str) -> SnapshotId:
        try:
            return (await read_ref(self._backend, tag_key(_checked(name))))[0]
        except ObjectNotFoundError:
            raise no_tag(name) from None

    async def _create(self, key: str, snapshot: SnapshotId) -> None:
        try:
            await create_ref(self._backend, key, snapshot)
        except OutcomeUnknownError as unknown:
            if await self._find(key, unknown) != snapshot:
                raise

    async def _move(self, branch: str, version: Version, snapshot: SnapshotId) -> None:
        await self._backend.put(
            branch_key(branch), _ref_bytes(snapshot), if_version=version, content_type=_JSON
        )

    async def _has_commit(
        self, branch: str, snapshot: SnapshotId, unknown: OutcomeUnknownError
    ) -> bool:
        """Look for a new snapshot in the history of a branch: others may have gone on from it."""
        tip = await self._find(branch_key(branch), unknown)
        async for entry in self.ancestry(tip):
            if entry.id == snapshot:
                return True
        return False

    async def _find(self, key: str, unknown: OutcomeUnknownError) -> SnapshotId:
        try:
            return (await read_ref(self._backend, key))[0]
        except StorageError as failure:
            raise unknown from failure

    async def _require_present(self, key: str, unknown: OutcomeUnknownError) -> None:
        try:
            await self._backend.head(key)
        except StorageError as failure:
            raise unknown from failure


async def create_ref(backend: Backend, key: str, snapshot: SnapshotId) -> None:
    """Write the file of a new branch or tag; there must be none yet."""
    await backend.put(key, _ref_bytes(snapshot), if_absent=True, content_type=_JSON)


async def load_config_file(
    backend: Backend,
) -> tuple[RepositoryConfig | None, Version | None]:
    """Read config.yaml, and which state of it that was."""
    try:
        found = await backend.get(CONFIG_KEY)
    except ObjectNotFoundError:
        return None, None
    return decode_config_yaml(bytes(found.data)), found.info.version


async def create_config_file(backend: Backend, config: RepositoryConfig) -> Version:
    """Write the config.yaml of a new repository; there must be none yet."""
    try:
        return await backend.put(
            CONFIG_KEY, encode_config_yaml(config), if_absent=True, content_type=_YAML
        )
    except PreconditionFailedError:
        raise ConflictError(
            message=f"there is a {CONFIG_KEY} already, without a repository: remove it first",
            kind=ErrorKind.CONFIG_UPDATED,
        ) from None


async def read_ref(backend: Backend, key: str) -> tuple[SnapshotId, Version]:
    """Read the file of a branch or tag: where it points, and which state of it that was."""
    found = await backend.get(key)
    try:
        target = SnapshotId.parse(json.loads(bytes(found.data))["snapshot"])
    except (ValueError, KeyError, TypeError, AttributeError):
        raise FormatError(
            f"{key!r} is damaged: it should hold the id of a snapshot as JSON", key=key
        ) from None
    return target, found.info.version


def _ref_bytes(snapshot: SnapshotId) -> bytes:
    return b'{"snapshot":"%s"}' % str(snapshot).encode()


def _checked(name: str) -> str:
    if "/" in name:
        raise InvalidInputError(
            f"the name {name!r} has a slash, which branches and tags of spec 1 cannot have:"
            " choose another name",
            ErrorKind.INVALID_REF_NAME,
        )
    return name


def _entry_of(snapshot: Snapshot) -> SnapshotEntry:
    return SnapshotEntry(
        snapshot.id, snapshot.parent_id, snapshot.flushed_at, snapshot.message, snapshot.metadata
    )


def _unsupported(what: str) -> Never:
    raise FormatError(
        f"this repository is of spec version 1, which does not have {what}:"
        " migrate it to spec version 2",
        ErrorKind.UNSUPPORTED_SPEC_VERSION,
    )
