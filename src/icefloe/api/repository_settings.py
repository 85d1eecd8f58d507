"""Settings of a repository: configuration, metadata, status and feature flags."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icefloe.config import Attribution, FeatureFlag, RepositoryConfig, SpecVersion
from icefloe.effects import blocking
from icefloe.format.json_value import as_metadata
from icefloe.repo.context import RepoContext
from icefloe.repo.repo_changes import (
    SetConfig,
    SetFlag,
    SetMetadata,
    SetStatus,
    UpdateMetadata,
    shown_metadata,
)
from icefloe.storage import Storage

if TYPE_CHECKING:
    from icefloe.api.status import RepoStatus


class RepositorySettings:
    """The part of `Repository` that is about the repository as a whole."""

    _context: RepoContext
    _default_metadata: dict[str, Any]

    @property
    def storage(self) -> Storage:
        """The storage of the repository."""
        return self._context.storage

    @property
    def config(self) -> RepositoryConfig:
        """A copy of the configuration: what is stored, with what was given on opening on top."""
        return self._context.user_config.merge(RepositoryConfig())

    @property
    def spec_version(self) -> SpecVersion:
        """The version of the format that the repository is stored in."""
        return SpecVersion(self._context.spec_version)

    @property
    def attribution(self) -> Attribution:
        """The labels that requests of this object carry."""
        return self._context.attribution or Attribution()

    @property
    def authorized_virtual_container_prefixes(self) -> set[str]:
        """The url prefixes from which virtual chunks may be read."""
        return set(self._context.virtual.resolver.authorised_prefixes)

    async def save_config_async(self) -> None:
        """Store the configuration of this object, for everybody who opens the repository."""
        await self._context.ledger.update(SetConfig(self._context.user_config))

    save_config = blocking(save_config_async)

    # -- metadata --------------------------------------------------------------------------

    def set_default_commit_metadata(self, metadata: dict[str, Any]) -> None:
        """Choose metadata for every commit of sessions that this object opens from now on.

        >>> import icefloe
        >>> repository = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> repository.set_default_commit_metadata({"author": "nightly job"})
        >>> new = repository.writable_session("main").commit("empty", allow_empty=True)
        >>> repository.lookup_snapshot(new).metadata
        {'author': 'nightly job'}
        """
        self._default_metadata = dict[str, Any](as_metadata(metadata))

    def default_commit_metadata(self) -> dict[str, Any]:
        """Return the metadata that is added to every commit."""
        return dict(self._default_metadata)

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata of the whole repository, as stored at this moment."""
        return self.get_metadata()

    async def get_metadata_async(self) -> dict[str, Any]:
        """Return the metadata of the whole repository."""
        return dict(await self._context.ledger.metadata())

    get_metadata = blocking(get_metadata_async)

    async def set_metadata_async(self, metadata: dict[str, Any]) -> None:
        """Replace the metadata of the whole repository."""
        await self._context.ledger.update(SetMetadata(as_metadata(metadata)))

    set_metadata = blocking(set_metadata_async)

    async def update_metadata_async(self, metadata: dict[str, Any]) -> dict[str, Any]:
        """Replace some entries of the metadata of the repository, and give all of it."""
        repo = await self._context.ledger.update(UpdateMetadata(as_metadata(metadata)))
        return {} if repo is None else dict[str, Any](shown_metadata(repo.metadata))

    update_metadata = blocking(update_metadata_async)

    # -- status ----------------------------------------------------------------------------

    @property
    def status(self) -> RepoStatus:
        """Whether the repository takes changes at this moment."""
        return self.get_status()

    async def get_status_async(self) -> RepoStatus:
        """Return whether the repository takes changes."""
        from icefloe.api.status import RepoStatus

        return RepoStatus.of(await self._context.ledger.status())

    get_status = blocking(get_status_async)

    async def set_status_async(self, status: RepoStatus) -> None:
        """Close the repository to changes by anybody, or open it again.

        >>> import icefloe
        >>> from icefloe import RepoAvailability, RepoStatus
        >>> repository = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> repository.set_status(RepoStatus(RepoAvailability.read_only))
        >>> repository.writable_session("main")
        Traceback (most recent call last):
            ...
        icefloe.errors.ReadOnlyError: ...
        """
        await self._context.ledger.update(SetStatus(status.stored()))

    set_status = blocking(set_status_async)

    # -- feature flags ---------------------------------------------------------------------

    async def feature_flags_async(self) -> list[FeatureFlag]:
        """List what a repository can forbid, and whether this one does."""
        return await self._context.ledger.flags()

    feature_flags = blocking(feature_flags_async)

    async def enabled_feature_flags_async(self) -> list[FeatureFlag]:
        """List what the repository allows."""
        return [flag for flag in await self._context.ledger.flags() if flag.enabled]

    enabled_feature_flags = blocking(enabled_feature_flags_async)

    async def disabled_feature_flags_async(self) -> list[FeatureFlag]:
        """List what the repository forbids."""
        return [flag for flag in await self._context.ledger.flags() if not flag.enabled]

    disabled_feature_flags = blocking(disabled_feature_flags_async)

    async def set_feature_flag_async(
        self,
        name: str,
        setting: bool | None,  # noqa: FBT001 - the drop-in signature
    ) -> None:
        """Allow or forbid something to everybody; None returns to the default."""
        await self._context.ledger.update(SetFlag(name, setting))

    set_feature_flag = blocking(set_feature_flag_async)
