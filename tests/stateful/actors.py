"""Those who work on a repository: Icefloe, and the reference, through the same calls."""

import json
from pathlib import Path
from typing import Any

from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

from tests.stateful.model import Coords, Seen

INLINE_BYTES = 8
"""Longer chunks get objects of their own."""

_PROTOTYPE = default_buffer_prototype()


class Actor:
    """An implementation with the drop-in API, and the repository that it has open."""

    def __init__(self, name: str, module: Any, path: Path) -> None:
        self.name = name
        self.module = module
        self.path = path
        self.repo: Any = None

    def __repr__(self) -> str:
        return self.name

    @property
    def has_extras(self) -> bool:
        """Whether the implementation takes arguments that the reference does not have."""
        return bool(self.module.__name__ == "icefloe")

    def create(self, spec: int, updates_per_file: int) -> None:
        config = self.module.RepositoryConfig(
            inline_chunk_threshold_bytes=INLINE_BYTES,
            num_updates_per_repo_info_file=updates_per_file,
        )
        self.repo = self.module.Repository.create(self.storage(), config=config, spec_version=spec)

    def open(self) -> None:
        self.repo = self.module.Repository.open(self.storage())

    def storage(self) -> Any:
        return self.module.local_filesystem_storage(str(self.path))

    def error(self, name: str) -> type[Exception]:
        found: type[Exception] = getattr(self.module, name)
        return found


def put(session: Any, key: str, data: bytes) -> None:
    sync(session.store.set(key, _PROTOTYPE.buffer.from_bytes(data)))


def delete(session: Any, key: str) -> None:
    sync(session.store.delete(key))


def delete_dir(session: Any, prefix: str) -> None:
    sync(session.store.delete_dir(prefix))


def key_of(path: str, *rest: str) -> str:
    return "/".join([*path.split("/")[1:], *rest]).lstrip("/")


def chunk_key(path: str, coords: Coords) -> str:
    return key_of(path, "c", *map(str, coords))


async def _read_everything(store: Any) -> dict[str, bytes]:
    keys = [key async for key in store.list()]
    found = {}
    for key in keys:
        buffer = await store.get(key, _PROTOTYPE)
        assert buffer is not None, f"{key} is listed but not found"
        found[key] = buffer.to_bytes()
    return found


def seen_by(session: Any) -> Seen:
    """Read all metadata and chunks through the store."""
    seen: Seen = {}
    files = sync(_read_everything(session.store))
    for key, data in files.items():
        if key == "zarr.json" or key.endswith("/zarr.json"):
            path = f"/{key.removesuffix('zarr.json').rstrip('/')}"
            document = json.loads(data)
            if document["node_type"] == "array":
                document.setdefault("storage_transformers", [])
            seen[path] = (document, {})
    for key, data in files.items():
        path, marker, coords = f"/{key}".rpartition("/c/")
        if marker:
            seen[path][1][tuple(int(at) for at in coords.split("/"))] = data
    return seen


def told_by(diff: Any) -> dict[str, Any]:
    """Give a diff as plain data."""
    sets = (
        "new_groups",
        "new_arrays",
        "deleted_groups",
        "deleted_arrays",
        "updated_groups",
        "updated_arrays",
    )
    told: dict[str, Any] = {name: set(getattr(diff, name)) for name in sets}
    chunks = diff.updated_chunks.items()
    told["updated_chunks"] = {path: sorted(map(list, coords)) for path, coords in chunks if coords}
    told["moved_nodes"] = sorted((one, other) for one, other in diff.moved_nodes)
    return told
