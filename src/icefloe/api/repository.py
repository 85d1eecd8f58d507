"""Repositories: where users begin."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Self

from icefloe.api.repository_copies import RepositoryCopies
from icefloe.api.repository_history import RepositoryHistory
from icefloe.api.repository_maintenance import RepositoryMaintenance
from icefloe.api.repository_settings import RepositorySettings
from icefloe.api.session import Session, tree_lines
from icefloe.config import Attribution, RepositoryConfig, SpecVersion, StorageSettings
from icefloe.effects import blocking, run_blocking
from icefloe.errors import IcefloeError
from icefloe.repo import history, lifecycle
from icefloe.repo.context import RepoContext
from icefloe.repo.repo_changes import MOVE_NODE
from icefloe.reports import counted, object_html, object_text
from icefloe.storage import Storage
from icefloe.transactions.session import SessionMode, SessionState, begin_session
from icefloe.values.times import to_microseconds

if TYPE_CHECKING:
    from icefloe.credentials import AnyCredential
    from icefloe.credentials.access import Authorisations
    from icefloe.repo.snapshot_info import SnapshotInfo
    from icefloe.transactions.conflicts import ConflictSolver
    from icefloe.transactions.packing import PackingOptions
    from icefloe.zarr_store import IcechunkStore


_MAIN: Final = "main"
_MOST_REFS: Final = 20
_SHORT_ID: Final = 8
_REFS_HEADINGS: Final = ("name", "version", "written", "message")


def _version_row(version: SnapshotInfo) -> list[str]:
    message = version.message.strip().partition("\n")[0]
    return [version.id[:_SHORT_ID], f"{version.written_at:%Y-%m-%d %H:%M}", message]


def _ref_rows(versions: Mapping[str, SnapshotInfo]) -> list[list[str]]:
    """Return the rows of branches or tags, by their names."""
    rows = [[name, *_version_row(versions[name])] for name in sorted(versions)[:_MOST_REFS]]
    more = len(versions) - _MOST_REFS
    return [*rows, [f"… and {more} more", "", "", ""]] if more > 0 else rows


def _drawn_tree(repository: Repository, snapshot_id: str) -> list[str]:
    return list(tree_lines(repository.readonly_session(snapshot_id=snapshot_id)))


class Repository(RepositorySettings, RepositoryHistory, RepositoryMaintenance, RepositoryCopies):
    """Versioned groups and arrays in one storage, shared by all who open it.

    Make one with `create`, `open` or `open_or_create`. Data is read and written in sessions;
    everything else here names, lists, compares and describes versions. Each method has a twin
    with the ending `_async`, to be awaited. Repositories can be pickled.

    >>> import icefloe, zarr
    >>> repository = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> with repository.transaction("main", message="first data") as store:
    ...     array = zarr.create_array(store, name="t2m", shape=3, dtype="i4", fill_value=0)
    ...     array[:] = [7, 8, 9]
    >>> session = repository.readonly_session("main")
    >>> zarr.open_array(session.store, path="t2m", mode="r")[:].tolist()
    [7, 8, 9]
    """

    def __init__(self, repository: RepoContext) -> None:
        self._context = repository
        self._default_metadata: dict[str, Any] = {}

    def __repr__(self) -> str:
        facts = {"spec_version": int(self.spec_version), "storage": repr(self.storage)}
        return object_text("Repository", facts)

    def _repr_html_(self) -> str:
        facts: dict[str, object] = {
            "spec version": int(self.spec_version),
            "storage": repr(self.storage),
        }
        try:
            branches, tags = self.branch_versions(), self.tag_versions()
            newest = branches.get(_MAIN)
            drawing = [] if newest is None else _drawn_tree(self, newest.id)
        except IcefloeError as error:  # a drawing must not be what fails
            return object_html("Repository", facts | {"branches": f"not known: {error}"})
        if newest is not None:
            facts["last commit"] = "  ".join(_version_row(newest))
        tables = {
            counted(len(names), noun, plural): (_REFS_HEADINGS, _ref_rows(names))
            for names, noun, plural in ((branches, "branch", "branches"), (tags, "tag", "tags"))
        }
        heading = f"Groups and arrays of {_MAIN}"
        return object_html("Repository", facts, drawing=drawing, heading=heading, tables=tables)

    def __eq__(self, value: object) -> bool:
        return isinstance(value, Repository) and self._context is value._context

    def __hash__(self) -> int:
        return hash(id(self._context))

    def __getstate__(self) -> object:
        return {"context": self._context, "default_metadata": self._default_metadata}

    def __setstate__(self, state: Any) -> None:
        self._context = state["context"]
        self._default_metadata = state["default_metadata"]

    # -- creating and opening --------------------------------------------------------------

    @classmethod
    def create(
        cls,
        storage: Storage,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Authorisations | None = None,
        spec_version: SpecVersion | int | None = None,
        check_clean_root: bool = True,  # noqa: FBT001, FBT002 - the drop-in signature
        attribution: Attribution | None = None,
    ) -> Self:
        """Create a repository with the branch `main` and one empty version.

        The place must be empty, unless `check_clean_root` is off. A configuration that is given
        is stored too.
        """
        return run_blocking(
            cls.create_async(
                storage,
                config,
                authorize_virtual_chunk_access,
                spec_version,
                check_clean_root,
                attribution,
            )
        )

    @classmethod
    async def create_async(
        cls,
        storage: Storage,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Authorisations | None = None,
        spec_version: SpecVersion | int | None = None,
        check_clean_root: bool = True,  # noqa: FBT001, FBT002 - the drop-in signature
        attribution: Attribution | None = None,
    ) -> Self:
        return cls(
            await lifecycle.create(
                storage,
                config,
                spec_version=_or_current(spec_version),
                access=_access(authorize_virtual_chunk_access),
                check_clean_root=check_clean_root,
                attribution=attribution,
            )
        )

    @classmethod
    def open(
        cls,
        storage: Storage,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Authorisations | None = None,
        attribution: Attribution | None = None,
    ) -> Self:
        """Open a repository; where `config` says something, it counts before what is stored.

        Virtual chunks are only read from containers whose url prefixes are keys of
        `authorize_virtual_chunk_access`.
        """
        return run_blocking(
            cls.open_async(storage, config, authorize_virtual_chunk_access, attribution)
        )

    @classmethod
    async def open_async(
        cls,
        storage: Storage,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Authorisations | None = None,
        attribution: Attribution | None = None,
    ) -> Self:
        return cls(
            await lifecycle.open_(
                storage,
                config,
                access=_access(authorize_virtual_chunk_access),
                attribution=attribution,
            )
        )

    @classmethod
    def open_or_create(
        cls,
        storage: Storage,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Authorisations | None = None,
        create_version: SpecVersion | int | None = None,
        check_clean_root: bool = True,  # noqa: FBT001, FBT002 - the drop-in signature
        attribution: Attribution | None = None,
    ) -> Self:
        """Open a repository, or create it where there is none.

        `create_version` and `check_clean_root` only mean something in the second case.
        """
        return run_blocking(
            cls.open_or_create_async(
                storage,
                config,
                authorize_virtual_chunk_access,
                create_version,
                check_clean_root,
                attribution,
            )
        )

    @classmethod
    async def open_or_create_async(
        cls,
        storage: Storage,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Authorisations | None = None,
        create_version: SpecVersion | int | None = None,
        check_clean_root: bool = True,  # noqa: FBT001, FBT002 - the drop-in signature
        attribution: Attribution | None = None,
    ) -> Self:
        return cls(
            await lifecycle.open_or_create(
                storage,
                config,
                spec_version=_or_current(create_version),
                access=_access(authorize_virtual_chunk_access),
                check_clean_root=check_clean_root,
                attribution=attribution,
            )
        )

    async def reopen_async(
        self,
        config: RepositoryConfig | None = None,
        authorize_virtual_chunk_access: Authorisations | None = None,
    ) -> Self:
        """Return another object for the same repository, with other settings where given."""
        other = type(self)(
            await lifecycle.reopen(
                self._context, config, access=_access(authorize_virtual_chunk_access)
            )
        )
        other.set_default_commit_metadata(self._default_metadata)
        return other

    reopen = blocking(reopen_async)

    @staticmethod
    async def exists_async(
        storage: Storage, storage_settings: StorageSettings | None = None
    ) -> bool:
        """Return whether there is a repository in a storage."""
        return await lifecycle.exists(storage, storage_settings)

    exists = staticmethod(blocking(exists_async))

    @staticmethod
    async def fetch_spec_version_async(
        storage: Storage, storage_settings: StorageSettings | None = None
    ) -> SpecVersion | None:
        """Return the spec version of a repository, or None if there is no repository."""
        return await lifecycle.fetch_spec_version(storage, storage_settings)

    fetch_spec_version = staticmethod(blocking(fetch_spec_version_async))

    @staticmethod
    async def fetch_config_async(storage: Storage) -> RepositoryConfig | None:
        """Return the stored configuration of a repository; None if none was ever stored."""
        return await lifecycle.fetch_config(storage)

    fetch_config = staticmethod(blocking(fetch_config_async))

    # -- sessions --------------------------------------------------------------------------

    async def readonly_session_async(
        self,
        branch: str | None = None,
        *,
        tag: str | None = None,
        snapshot_id: str | None = None,
        as_of: datetime | None = None,
    ) -> Session:
        """Open a version for reading: the newest of a branch, a tag, or a snapshot.

        With a branch, `as_of` picks the version that was the newest at that time.
        """
        resolved = history.resolve(
            self._context,
            branch=branch,
            tag=tag,
            snapshot_id=snapshot_id,
            as_of=None if as_of is None else to_microseconds(as_of, "as_of"),
        )
        at_tip = branch if as_of is None else None
        base = await history.load_found(self._context, resolved, at_tip)
        return Session(begin_session(self._context, base, SessionMode.readonly))

    readonly_session = blocking(readonly_session_async)

    async def writable_session_async(
        self, branch: str, *, packing: PackingOptions | bool = False
    ) -> Session:
        """Open the newest version of a branch for writing.

        With `packing`, small chunks share chunk objects, which makes writing many of them much
        cheaper; `PackingOptions` choose the sizes.
        """
        from icefloe.transactions.packing import PackingOptions

        tip = self._context.ledger.writable_tip(branch)
        return self._session(
            begin_session(
                self._context,
                await history.load_found(self._context, tip, branch),
                SessionMode.writable,
                branch=branch,
                packing=PackingOptions() if packing is True else packing or None,
            )
        )

    writable_session = blocking(writable_session_async)

    async def rearrange_session_async(self, branch: str) -> Session:
        """Open the newest version of a branch for moving groups and arrays, and nothing else."""
        self._context.require_spec(2, "moving nodes")
        tip = self._context.ledger.writable_tip(branch, flag=MOVE_NODE)
        base = await history.load_found(self._context, tip, branch)
        return self._session(
            begin_session(self._context, base, SessionMode.rearrange, branch=branch)
        )

    rearrange_session = blocking(rearrange_session_async)

    def _session(self, session: SessionState) -> Session:
        return Session(session, default_metadata=self._default_metadata)

    @contextmanager
    def transaction(
        self,
        branch: str,
        *,
        message: str,
        metadata: dict[str, Any] | None = None,
        rebase_with: ConflictSolver | None = None,
        rebase_tries: int = 1000,
        packing: PackingOptions | bool = False,
    ) -> Iterator[IcechunkStore]:
        """Open a store to write to; commit when the block ends, unless it raises.

        >>> import icefloe, zarr
        >>> repository = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> with repository.transaction("main", message="add a group") as store:
        ...     _ = zarr.create_group(store)
        >>> next(repository.ancestry(branch="main")).message
        'add a group'
        """
        session = self.writable_session(branch, packing=packing)
        yield session.store
        session.commit(message, metadata, rebase_with=rebase_with, rebase_tries=rebase_tries)

    @asynccontextmanager
    async def transaction_async(
        self,
        branch: str,
        *,
        message: str,
        metadata: dict[str, Any] | None = None,
        rebase_with: ConflictSolver | None = None,
        rebase_tries: int = 1000,
        packing: PackingOptions | bool = False,
    ) -> AsyncIterator[IcechunkStore]:
        session = await self.writable_session_async(branch, packing=packing)
        yield session.store
        await session.commit_async(
            message, metadata, rebase_with=rebase_with, rebase_tries=rebase_tries
        )


def _or_current(spec_version: SpecVersion | int | None) -> int:
    return SpecVersion.current() if spec_version is None else spec_version


def _access(authorisations: Authorisations | None) -> Mapping[str, AnyCredential | None] | None:
    if authorisations is None:
        return None
    from icefloe.credentials.access import checked_authorisations

    return checked_authorisations(authorisations)
