"""Repositories whose virtual chunks may lie in local directories."""

from pathlib import Path
from typing import Any

import xarray

import icefloe


def repository_for(*folders: Path, storage: icefloe.Storage | None = None) -> icefloe.Repository:
    config = icefloe.RepositoryConfig.default()
    access: dict[str, Any] = {}
    for folder in folders:
        prefix = f"{folder.as_uri()}/"
        store = icefloe.local_filesystem_store(str(folder))
        config.set_virtual_chunk_container(icefloe.VirtualChunkContainer(prefix, store))
        access[prefix] = icefloe.credentials.LocalFileSystemAccess
    return icefloe.Repository.create(
        storage or icefloe.in_memory_storage(),
        config,
        authorize_virtual_chunk_access=icefloe.containers_credentials(access),
    )


def opened(session: icefloe.Session, group: str | None = None, **options: Any) -> xarray.Dataset:
    given = {"consolidated": False, "chunks": None, **options}
    dataset: xarray.Dataset = xarray.open_zarr(session.store, group=group, **given)
    return dataset
