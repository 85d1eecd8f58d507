"""Repositories whose virtual chunks may lie in local directories."""

import json
from pathlib import Path
from typing import Any

import xarray

import icefloe
from icefloe.effects import run_blocking
from icefloe.format.chunk_table import NativeChunk
from icefloe.format.ids import ManifestId, NodeId, SnapshotId
from icefloe.walk.history import tables_of


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


def stored_contents(repository: icefloe.Repository) -> dict[str, tuple[Any, dict[Any, Any]]]:
    """Return metadata and references of all nodes at the tip of `main`, by path, without ids."""
    tip = repository.lookup_branch("main")
    assets = repository._context.assets
    nodes = run_blocking(assets.read_snapshot(SnapshotId.parse(tip))).nodes
    references: dict[NodeId, dict[Any, Any]] = {}
    for file in repository.list_manifest_files(tip):
        manifest = run_blocking(assets.read_manifest(ManifestId.parse(file.id)))
        for node_id, table in tables_of(manifest).items():
            found = references.setdefault(node_id, {})
            for row, cell in enumerate(table.coordinates.tolist()):
                one: Any = table.ref(row)
                is_native = isinstance(one, NativeChunk)
                found[tuple(cell)] = (one.offset, one.length) if is_native else one
    every = [nodes.node(row) for row in range(len(nodes.ids))]
    for node in every:
        if str(node.path).endswith("/ingested"):  # when, which is another time
            references.pop(node.id)
    return {
        str(node.path): (json.loads(bytes(node.user_data)), references.get(node.id, {}))
        for node in every
    }
