"""Create repositories, open them, and open them again with other settings.

A marker in a storage records an unfinished clone, so that it is continued and never mixed up.
"""

import json
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

from icefloe.assets import Assets
from icefloe.config import (
    Attribution,
    EffectiveConfig,
    RepositoryConfig,
    SpecVersion,
    StorageSettings,
    VirtualChunkContainer,
)
from icefloe.errors import (
    ConflictError,
    ErrorKind,
    InvalidInputError,
    ObjectNotFoundError,
    PreconditionFailedError,
    RepositoryNotFoundError,
    StorageError,
)
from icefloe.format.ids import INITIAL_SNAPSHOT_ID
from icefloe.format.layout import REPO_KEY, branch_key
from icefloe.format.metadata import Metadata
from icefloe.format.repo_info import MAIN_BRANCH
from icefloe.format.snapshot import Snapshot
from icefloe.format.snapshot_table import SnapshotEntry
from icefloe.records import Record
from icefloe.repo.context import (
    Access,
    Clock,
    RepoContext,
    SettledConfig,
    now_microseconds,
    settled,
    settled_over,
)
from icefloe.repo.migration_state import is_unfinished
from icefloe.repo.repo_changes import SetConfig, created, stored_config, warn_of_dropped_sets
from icefloe.repo.repo_ledger import StoredRepo, create_repo, load_repo
from icefloe.storage import Backend, Storage, Version
from icefloe.storage.specs import AzureSpec, GcsSpec, S3Spec

_JSON: Final = "application/json"
CLONE_MARKER: Final = "clone-in-progress.json"
EXPORT_MARKER: Final = "export-in-progress.json"


class Marker(Record):
    """A mark on a storage that is being filled; deleted at the end."""

    key: str
    what: dict[str, Any]

    async def claim(self, target: Backend) -> bool:
        """Take an empty place, or one that the same work was begun in; say which: True for empty.

        Any other place is refused.
        """
        if (marker := await self._find(target)) is not None:
            if marker != self.what:
                raise InvalidInputError(
                    f"something else was begun in this place, and not finished: {_shown(marker)};"
                    " finish that, or empty the place first",
                    ErrorKind.PARENT_DIRECTORY_NOT_CLEAN,
                )
            return False
        async for batch in target.list():
            if batch:
                raise InvalidInputError(
                    f"the place is not empty, there is {batch[0].key!r}: choose another one",
                    ErrorKind.PARENT_DIRECTORY_NOT_CLEAN,
                    key=batch[0].key,
                )
        try:
            data = json.dumps(self.what).encode()
            await target.put(self.key, data, if_absent=True, content_type=_JSON)
        except PreconditionFailedError:
            return await self.claim(target)  # somebody else is beginning just now
        return True

    async def remove(self, target: Backend) -> None:
        """Remove the marker: the work is done."""
        report = await target.delete_many([self.key])
        if report.failures:
            raise StorageError(
                f"all is done, but {self.key!r} could not be deleted"
                f" ({report.failures[self.key]}): run it again, or delete that object",
                retryable=bool(report.retryable),
                key=self.key,
            )

    async def _find(self, target: Backend) -> dict[str, Any] | None:
        try:
            data = (await target.get(self.key)).data
        except ObjectNotFoundError:
            return None
        try:
            marker = json.loads(bytes(data))
        except ValueError:
            marker = None
        return marker if isinstance(marker, dict) else {"of": "something that cannot be read"}


def _shown(what: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in what.items() if value is not None)


async def has_unfinished_clone(backend: Backend) -> bool:
    """Return whether a clone was begun in a place and not finished."""
    try:
        await backend.head(CLONE_MARKER)
    except StorageError:
        return False
    return True


_INITIAL_MESSAGE: Final = "Repository initialized"
_INITIAL_METADATA: Final[Metadata] = {"__icechunk": {"is_root": True}}


class _Found(Record):
    """The parts of a repository that a storage contains."""

    repo: StoredRepo | None
    """The repo object; None in spec 1."""
    config_file: RepositoryConfig | None = None
    """The content of config.yaml in spec 1; None if there is no such file."""
    config_version: Version | None = None
    """The state of that file."""

    @property
    def spec_version(self) -> SpecVersion:
        return SpecVersion.v1 if self.repo is None else SpecVersion.v2

    @property
    def config(self) -> RepositoryConfig | None:
        """The stored configuration, if there is any."""
        return self.config_file if self.repo is None else stored_config(self.repo.info)

    def settled(self, storage: Storage, user_config: RepositoryConfig | None) -> SettledConfig:
        """Work out what applies, with what the opener gave on top."""
        if self.repo is not None:
            return settled_over(storage, self.repo.info.config, user_config)
        return settled(storage, self.config_file, user_config)


# -- creating ------------------------------------------------------------------------------


async def create(
    storage: Storage,
    config: RepositoryConfig | None = None,
    *,
    spec_version: int = SpecVersion.v2,
    access: Access | None = None,
    check_clean_root: bool = True,
    attribution: Attribution | None = None,
    clock: Clock = now_microseconds,
) -> RepoContext:
    """Create a repository where there is none yet, and open it.

    A configuration that says anything is stored with it. Until its last write succeeds there is
    no repository, only files that nothing refers to.
    """
    from icefloe.format.transaction_log import TransactionLog

    _require_storage(storage)
    version = _supported(spec_version)
    settings = settled(storage, config)
    effective = settings.effective
    backend = storage.open(effective.storage, attribution)
    _require_own_place(storage)
    await (_require_clean(backend) if check_clean_root else _require_none(backend))
    assets = Assets(backend, effective, version)
    stored = None if config is None or config == RepositoryConfig() else settings.user
    snapshot = initial_snapshot(clock(), version)
    await assets.save_snapshot(snapshot)
    if version == SpecVersion.v1:
        created = await _create_v1(backend, stored)
    else:
        await assets.save_transaction_log(TransactionLog(INITIAL_SNAPSHOT_ID))
        created = await _create_v2(backend, effective, snapshot, stored, clock)
    return _context(storage, created, config, access, attribution, clock)


def initial_snapshot(flushed_at: int, spec_version: int) -> Snapshot:
    """Make the first snapshot of a repository, which is the same everywhere but for its time."""
    return Snapshot(
        INITIAL_SNAPSHOT_ID,
        flushed_at,
        _INITIAL_MESSAGE,
        metadata=_INITIAL_METADATA,
        spec_version=spec_version,
    )


async def _create_v1(backend: Backend, config: RepositoryConfig | None) -> _Found:
    from icefloe.repo.ref_ledger import create_config_file, create_ref

    version = None
    if config is not None:
        version = await create_config_file(backend, config)
    try:
        await create_ref(backend, branch_key(MAIN_BRANCH), INITIAL_SNAPSHOT_ID)
    except PreconditionFailedError:
        raise _exists(ErrorKind.BRANCH_UPDATE_CONFLICT) from None
    return _Found(None, config, version)


async def _create_v2(
    backend: Backend,
    effective: EffectiveConfig,
    snapshot: Snapshot,
    config: RepositoryConfig | None,
    clock: Clock,
) -> _Found:
    entry = SnapshotEntry(
        snapshot.id, None, snapshot.flushed_at, snapshot.message, snapshot.metadata
    )
    info = created(entry, max(clock(), snapshot.flushed_at), config)
    try:
        return _Found(await create_repo(backend, info, level=effective.compression.level))
    except PreconditionFailedError:
        raise _exists(ErrorKind.REPO_INFO_UPDATED) from None


def _supported(spec_version: int) -> SpecVersion:
    try:
        return SpecVersion(spec_version)
    except ValueError:
        versions = ", ".join(str(int(version)) for version in SpecVersion)
        raise InvalidInputError(
            f"there is no spec version {spec_version}; there are {versions}",
            ErrorKind.UNSUPPORTED_SPEC_VERSION,
        ) from None


def _require_storage(value: object) -> None:
    """Refuse a path or URL in the place of a storage, which a newcomer may try."""
    if not isinstance(value, Storage):
        raise TypeError(
            f"a repository lives in a Storage, not in a {type(value).__name__}: make one, for "
            "instance with icefloe.local_filesystem_storage(path) or icefloe.storage_from_url(url)"
        )


def _require_own_place(storage: Storage) -> None:
    """Refuse to spread a repository over a whole bucket."""
    match storage.spec:
        case S3Spec(prefix="") | GcsSpec(prefix="") | AzureSpec(prefix=""):
            raise InvalidInputError(
                f"a repository needs a place of its own in {storage.spec.place}: give a prefix",
                ErrorKind.EMPTY_PREFIX_CREATION,
            )


async def _require_clean(backend: Backend) -> None:
    async for batch in backend.list():
        if batch:
            raise InvalidInputError(
                f"a repository can only be created where there is nothing else, but there is"
                f" {batch[0].key!r}: open the existing repository, choose another prefix, or pass"
                " check_clean_root=False",
                ErrorKind.PARENT_DIRECTORY_NOT_CLEAN,
                key=batch[0].key,
            )


async def _require_none(backend: Backend) -> None:
    """Look before writing: the first snapshot of every repository has the same name."""
    match await _spec_version(backend):
        case SpecVersion.v1:
            raise _exists(ErrorKind.BRANCH_UPDATE_CONFLICT)
        case SpecVersion.v2:
            raise _exists(ErrorKind.REPO_INFO_UPDATED)


def _exists(kind: ErrorKind) -> ConflictError:
    return ConflictError(message="there is a repository already: open it", kind=kind)


# -- opening -------------------------------------------------------------------------------


async def open_(
    storage: Storage,
    config: RepositoryConfig | None = None,
    *,
    access: Access | None = None,
    attribution: Attribution | None = None,
    clock: Clock = now_microseconds,
    trusted: Iterable[VirtualChunkContainer] | None = None,
    known: StoredRepo | None = None,
) -> RepoContext:
    """Open a repository with its stored configuration, and the given one on top.

    This takes one request in spec 2. `trusted` are the containers of virtual chunks that the
    caller vouches for, whatever else is in `config`; if not given, all of those in it. `known` is
    the present state of the repo object, for a caller that knows it: then no request is sent.
    """
    if known is not None:
        found = _Found(known)
    else:
        found = await _find(storage, None if config is None else config.storage, attribution)
    return _context(storage, found, config, access, attribution, clock, trusted)


async def open_or_create(
    storage: Storage,
    config: RepositoryConfig | None = None,
    *,
    spec_version: int = SpecVersion.v2,
    access: Access | None = None,
    check_clean_root: bool = True,
    attribution: Attribution | None = None,
    clock: Clock = now_microseconds,
) -> RepoContext:
    """Open a repository, or create it if there is none; `spec_version` is for that case."""

    async def opened() -> RepoContext:
        return await open_(storage, config, access=access, attribution=attribution, clock=clock)

    try:
        return await opened()
    except RepositoryNotFoundError:
        pass
    try:
        return await create(
            storage,
            config,
            spec_version=spec_version,
            access=access,
            check_clean_root=check_clean_root,
            attribution=attribution,
            clock=clock,
        )
    except (ConflictError, InvalidInputError) as obstacle:
        # Perhaps somebody else is creating it at the same time.
        try:
            return await opened()
        except RepositoryNotFoundError:
            raise obstacle from None


async def reopen(
    context: RepoContext,
    config: RepositoryConfig | None = None,
    *,
    access: Access | None = None,
) -> RepoContext:
    """Open a repository once more, with other settings on top of those it has."""
    user_config = context.user_config if config is None else context.user_config.merge(config)
    added = (config.virtual_chunk_containers or {}) if config is not None else {}
    return await open_(
        context.storage,
        user_config,
        access=context.access if access is None else access,
        attribution=context.attribution,
        clock=context.clock,
        # What `given` has from the repository is not the caller's word.
        trusted=[*context.virtual.trusted, *added.values()],
    )


async def exists(storage: Storage, settings: StorageSettings | None = None) -> bool:
    """Return whether there is a repository."""
    return await fetch_spec_version(storage, settings) is not None


async def fetch_spec_version(
    storage: Storage, settings: StorageSettings | None = None
) -> SpecVersion | None:
    """Return the spec version of a repository, or None if there is no repository."""
    _require_storage(storage)
    return await _spec_version(storage.open(settings))


async def fetch_config(storage: Storage) -> RepositoryConfig | None:
    """Return the stored configuration of a repository, if it has any."""
    return (await _find(storage)).config


async def save_config(context: RepoContext) -> None:
    """Store the configuration that a repository was opened with."""
    await context.ledger.update(SetConfig(context.user_config))


async def _spec_version(backend: Backend) -> SpecVersion | None:
    for key, version in ((REPO_KEY, SpecVersion.v2), (branch_key(MAIN_BRANCH), SpecVersion.v1)):
        try:
            await backend.head(key)
        except ObjectNotFoundError:
            continue
        return version
    return None


async def _find(
    storage: Storage,
    settings: StorageSettings | None = None,
    attribution: Attribution | None = None,
) -> _Found:
    _require_storage(storage)
    backend = storage.open(settings, attribution)
    try:
        repo = await load_repo(backend)
    except ObjectNotFoundError:
        return await _find_v1(storage, backend)
    if is_unfinished(repo.info):
        return await _find_v1(storage, backend)  # what was committed last is in its files only
    return _Found(repo)


async def _find_v1(storage: Storage, backend: Backend) -> _Found:
    from icefloe.repo.ref_ledger import load_config_file

    try:
        await backend.head(branch_key(MAIN_BRANCH))
    except ObjectNotFoundError:
        with suppress(ObjectNotFoundError):
            return _Found(await load_repo(backend))  # somebody migrated it since we looked
        if await has_unfinished_clone(backend):
            raise RepositoryNotFoundError(
                f"in {storage!r} there is a clone that is not finished: clone once more to the"
                " same place, which copies what is missing"
            ) from None
        raise RepositoryNotFoundError(
            f"there is no repository in {storage!r}: create it first, or check the place"
        ) from None
    config, version = await load_config_file(backend)
    return _Found(None, config, version)


def _context(
    storage: Storage,
    repository: _Found,
    user_config: RepositoryConfig | None,
    access: Access | None,
    attribution: Attribution | None,
    clock: Clock,
    trusted: Iterable[VirtualChunkContainer] | None = None,
) -> RepoContext:
    if trusted is None:
        own = None if user_config is None else user_config.virtual_chunk_containers
        trusted = (own or {}).values()
    settings = repository.settled(storage, user_config)
    if repository.repo is not None:
        warn_of_dropped_sets(repository.repo.info, settings.user)
    return RepoContext.of(
        storage,
        settings,
        spec_version=repository.spec_version,
        access=access or {},
        trusted=trusted,
        attribution=attribution,
        clock=clock,
        repo=repository.repo,
        config_version=repository.config_version,
    )
