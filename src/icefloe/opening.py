"""Versions of repositories, opened by URL, with Zarr or as a store for others."""

import os
from collections.abc import Generator, Mapping
from datetime import datetime
from typing import Any, cast, override

import zarr

from icefloe.api.repository import Repository
from icefloe.api.session import Session
from icefloe.catalog.handles import is_service_url
from icefloe.config import RepositoryConfig
from icefloe.effects import run_blocking
from icefloe.errors import ErrorKind, InvalidInputError, NotFoundError
from icefloe.storage import Storage, storage_from_url
from icefloe.virtual_chunks.consent import Authorize, authorised_by
from icefloe.zarr_store import IcechunkStore
from icefloe.zarr_store.openings import with_rectilinear
from icefloe.zarr_store.selections import with_selections

type Source = str | os.PathLike[str] | Storage | Repository | Session | IcechunkStore
"""What a version can be opened from."""


class SelectionGroup(zarr.Group):
    """A Zarr group whose arrays read all chunks of a selection at once; see `icefloe.open`."""

    @override
    def __getitem__(self, path: str) -> "zarr.Array[Any] | zarr.Group":
        """Return the array or group at a path below this group."""
        return _with_selections(super().__getitem__(path))

    @override
    def get_group(self, path: str) -> zarr.Group:
        """Return the group at a path below this group."""
        return _with_selections(super().get_group(path))

    @override
    def groups(self) -> Generator[tuple[str, zarr.Group], None, None]:
        """Yield the groups in this group, with their names."""
        for name, group in super().groups():
            yield name, _with_selections(group)

    @override
    def members(self, *args: Any, **kwargs: Any) -> Any:
        """Return the arrays and groups below this group, with their paths."""
        found = super().members(*args, **kwargs)
        return tuple((path, _with_selections(node)) for path, node in found)

    @override
    def _sync(self, coroutine: Any) -> Any:
        with with_selections(), with_rectilinear():  # arrays keep the pipeline they are opened with
            return super()._sync(coroutine)


def _with_selections[Node](node: Node) -> Node:
    if not isinstance(node, zarr.Group):
        return node
    return cast("Node", SelectionGroup(node._async_group))  # noqa: SLF001


def open(  # noqa: A001 - users write `icefloe.open`, as they write `zarr.open`
    source: Source,
    path: str = "",
    *,
    branch: str | None = None,
    tag: str | None = None,
    snapshot_id: str | None = None,
    as_of: datetime | None = None,
    config: RepositoryConfig | None = None,
    authorize: Authorize | None = None,
) -> Any:
    """Open a version of a repository with Zarr, to read it.

    Arrays read all chunks of a selection at once: see `use_selection_pipeline`. To write, use a
    session: `repository.writable_session("main")`.

    Args:
        source: a URL or path of a repository (see `storage_from_url`), a URL of a repository
            service like `icefloe://host/org/name`, a `Storage`, a `Repository`, or a `Session` or
            its store, which are of one version already.
        path: the array or group to open; the root if not given.
        branch: the branch whose tip is opened, `main` if no version is named.
        tag: the tag that names the version.
        snapshot_id: the id of the version.
        as_of: a moment: the version that the branch had then.
        config: settings for this process.
        authorize: the places from which virtual chunks may be read: url prefixes, read with the
            credentials of the environment; a dict from url prefixes to credentials; or `True` for
            a repository of one's own on this machine whose containers are all folders of it.

    Returns:
        A `zarr.Array` or a `zarr.Group`.

    >>> import numpy as np, icefloe, zarr
    >>> repository = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> with repository.transaction("main", message="a number for each day") as store:
    ...     _ = zarr.create_array(store, name="daily/count", data=np.arange(4))
    >>> root = icefloe.open(repository)
    >>> root["daily/count"][1:3].tolist()
    [1, 2]
    >>> icefloe.open(repository, "daily/count").shape
    (4,)
    """
    store = ChosenVersion(branch, tag, snapshot_id, as_of).store(source, config, authorize or None)
    try:
        with with_selections(), with_rectilinear():
            node = zarr.open(store, path=path.strip("/"), mode="r")
    except (FileNotFoundError, KeyError) as error:
        raise NotFoundError(
            f"there is no array or group at {path!r}: icefloe.open(...).tree() shows all paths",
            ErrorKind.NODE_NOT_FOUND,
            path=path,
        ) from error
    return _with_selections(node)


class ChosenVersion:
    """The version of a repository to open; the tip of `main` by default."""

    def __init__(
        self, branch: str | None, tag: str | None, snapshot_id: str | None, as_of: datetime | None
    ) -> None:
        chosen = {"branch": branch, "tag": tag, "snapshot_id": snapshot_id, "as_of": as_of}
        self._chosen: dict[str, Any] = {
            name: value for name, value in chosen.items() if value is not None
        }

    def store(
        self,
        source: Source,
        config: RepositoryConfig | None,
        access: Authorize | None,
    ) -> IcechunkStore:
        """Find the store of this version in a source."""
        if isinstance(source, Session | IcechunkStore):
            if self._chosen or config is not None or access is not None:
                raise InvalidInputError(
                    "a session is of one version, with one configuration, already: to choose"
                    " others, open the dataset from the repository or its URL",
                    ErrorKind.NOT_ALLOWED,
                )
            return source if isinstance(source, IcechunkStore) else source.store
        repository = _repository(source, config, access)
        chosen = self._chosen
        if not chosen.keys() & {"branch", "tag", "snapshot_id"}:
            chosen = {"branch": "main", **chosen}
        return repository.readonly_session(**chosen).store


def _repository(
    source: str | os.PathLike[str] | Storage | Repository,
    config: RepositoryConfig | None,
    access: Authorize | None,
) -> Repository:
    if is_service_url(source):
        return _of_service(cast("str", source), config, access)
    if isinstance(source, Repository):
        repository = source if config is None else source.reopen(config)
    else:
        storage = source if isinstance(source, Storage) else storage_from_url(os.fspath(source))
        if access is None or isinstance(access, Mapping):
            return Repository.open(storage, config, access)
        repository = Repository.open(storage, config)
    if access is None:
        return repository
    containers = (repository.config.virtual_chunk_containers or {}).values()
    allowed = authorised_by(access, repository.storage, containers)
    return repository.reopen(config, allowed)


def _of_service(url: str, config: RepositoryConfig | None, access: Authorize | None) -> Repository:
    if access is not None:
        raise InvalidInputError(
            "the service decides what may be read: leave out authorize and"
            " authorize_virtual_chunk_access",
            ErrorKind.NOT_ALLOWED,
        )
    from icefloe.catalog.client import locate

    repository = run_blocking(locate(url).repository())
    return repository if config is None else repository.reopen(config)
