"""Everything that the reference can tell about a repository, as plain data to compare."""

import asyncio
import datetime as dt
from types import GetSetDescriptorType
from typing import Any, Final

import icechunk as ic
import numpy as np
import zarr
from zarr.core.buffer import default_buffer_prototype

type Plain = Any
"""Dicts, lists and scalars, as JSON has them."""

_READ_AT_MOST: Final = 200
"""Of an array with more chunks than this, only this many are read one by one."""
_LIST_AT_MOST: Final = 1000
"""The reference takes its time to list keys: versions with more chunks are spared."""


def observe(repo: ic.Repository) -> dict[str, Plain]:
    """Describe a repository, except for who wrote its files and how large those are."""
    snapshots = listed_snapshots(repo)
    seen = {
        "spec": int(repo.spec_version),
        "config": _config(repo),
        "branches": {name: repo.lookup_branch(name) for name in sorted(repo.list_branches())},
        "tags": {name: repo.lookup_tag(name) for name in sorted(repo.list_tags())},
        "ancestry": {tip: _ancestry(repo, tip) for tip in snapshots},
        "snapshots": {one: _about(repo.inspect_snapshot(one)) for one in snapshots},
        "contents": {one: contents(repo.readonly_session(snapshot_id=one)) for one in snapshots},
        "diffs": {one: _diff(repo, one) for one in snapshots},
        "logs": {one: _log(repo, one) for one in snapshots},
        "manifests": {one: _manifest(repo, one) for one in listed_manifests(repo)},
        "native bytes": repo.chunk_storage_stats().native_bytes,
        "virtual bytes": repo.chunk_storage_stats().virtual_bytes,
        "inlined bytes": repo.chunk_storage_stats().inlined_bytes,
    }
    if repo.spec_version > 1:
        status = repo.get_status()
        seen |= {
            "info": _about(repo.inspect_repo_info()),
            "log of operations": operations(repo),
            "metadata": repo.get_metadata(),
            "flags": {f.name: (f.id, f.setting, f.enabled) for f in repo.feature_flags()},
            "status": (
                str(status.availability),
                status.set_at,
                status.limited_availability_reason,
            ),
        }
    return seen


def listed_snapshots(repo: ic.Repository) -> list[str]:
    """Name the snapshots that can be reached."""
    if repo.spec_version > 1:
        return sorted(one["id"] for one in repo.inspect_repo_info()["snapshots"])
    tips = {repo.lookup_branch(name) for name in repo.list_branches()}
    tips |= {repo.lookup_tag(name) for name in repo.list_tags()}
    return sorted({one.id for tip in tips for one in repo.ancestry(snapshot_id=tip)})


def listed_manifests(repo: ic.Repository) -> list[str]:
    """Name the manifests of those snapshots."""
    snapshots = listed_snapshots(repo)
    return sorted({file.id for one in snapshots for file in repo.list_manifest_files(one)})


def _config(repo: ic.Repository) -> list[str]:
    """List the words of the stored configuration: its containers come in any order."""
    return sorted(repr(ic.Repository.fetch_config(repo.storage)).replace(",", " ").split())


def operations(repo: ic.Repository) -> list[Plain]:
    """Describe the whole log of operations, newest first."""
    return [(_fields(one.kind), one.updated_at, one.backup_path) for one in repo.ops_log()]


def contents(session: ic.Session) -> dict[str, Plain]:
    """Read all that a version holds: metadata, chunks, coordinates, locations, values."""
    nodes = _nodes(session)
    arrays = {path: node for path, node in nodes.items() if isinstance(node, zarr.Array)}
    read = asyncio.run(_read(session, list(nodes), list(arrays)))
    return read | {
        "kinds": {
            path: {c: str(session.chunk_type(f"/{path}", list(c))) for c in _some_of(chunks)}
            for path, chunks in read["coordinates"].items()
        },
        "values": {
            path: values_of(array)
            for path, array in arrays.items()
            if len(read["coordinates"][path]) <= _READ_AT_MOST
        },
        "locations": sorted(session.all_virtual_chunk_locations()),
    }


async def _read(session: ic.Session, nodes: list[str], arrays: list[str]) -> dict[str, Plain]:
    coordinates = {
        path: sorted([tuple(c) async for c in session.chunk_coordinates(f"/{path}")])
        for path in arrays
    }
    keys = [f"{path}/zarr.json".lstrip("/") for path in nodes]
    for path, chunks in coordinates.items():
        keys += ["/".join([path, "c", *map(str, index)]) for index in _some_of(chunks)]
    is_small = sum(map(len, coordinates.values())) <= _LIST_AT_MOST
    return {
        "keys": sorted([key async for key in session.store.list()]) if is_small else None,
        "bytes": {key: await read_key(session, key) for key in keys},
        "coordinates": coordinates,
    }


async def read_key(session: ic.Session, key: str) -> bytes | tuple[str, str] | None:
    """Read what is stored under a key, or say why that fails."""
    try:
        buffer = await session.store.get(key, default_buffer_prototype())
    except ic.IcechunkError as error:
        return _failure(error)
    return None if buffer is None else buffer.to_bytes()


def _nodes(session: ic.Session) -> dict[str, Any]:
    """List groups and arrays by path; there are none where there is no root group."""
    if not asyncio.run(session.store.exists("zarr.json")):
        return {}
    with zarr.config.set({"array.rectilinear_chunks": True}):
        root = zarr.open_group(session.store, mode="r")
        return {"": root} | dict(root.members(max_depth=None))


def values_of(array: Any) -> Plain:
    """Read an array by zarr; which of several bad chunks fails first is left to chance."""
    try:
        return np.asarray(array[...]).tolist()
    except ic.IcechunkError:
        return "unreadable"


def _failure(error: ic.IcechunkError) -> tuple[str, str]:
    return type(error).__name__, str(error.kind)


def _some_of[T](items: list[T]) -> list[T]:
    return items[:: max(1, len(items) // _READ_AT_MOST)]


def _ancestry(repo: ic.Repository, tip: str) -> list[Plain]:
    return [
        (one.id, one.parent_id, one.message, one.metadata, one.written_at)
        for one in repo.ancestry(snapshot_id=tip)
    ]


def _diff(repo: ic.Repository, snapshot: str) -> dict[str, Plain]:
    history = [one.id for one in repo.ancestry(snapshot_id=snapshot)]
    starts = {history[-1], *history[1:2]}
    try:
        return {
            one: _fields(repo.diff(from_snapshot_id=one, to_snapshot_id=snapshot))
            for one in sorted(starts)
        }
    except ic.IcechunkError as error:
        return {"failure": _failure(error)}


def _log(repo: ic.Repository, snapshot: str) -> Plain:
    try:
        return _about(repo.inspect_transaction_log(snapshot))
    except ic.IcechunkError as error:
        return _failure(error)


def _manifest(repo: ic.Repository, manifest: str) -> Plain:
    about = _about(repo.inspect_manifest(manifest))
    del about["compression"]
    return about


def _about(inspected: dict[str, Any]) -> dict[str, Plain]:
    """Take out what is particular to a writer."""
    header = {k: inspected["header"][k] for k in ("spec_version", "file_type", "compression")}
    about = inspected | {"header": header}
    about.pop("size_bytes", None)
    if isinstance(about.get("manifests"), list):
        about["manifests"] = [
            {k: v for k, v in file.items() if k != "size_bytes"} for file in about["manifests"]
        ]
    return about


def _fields(value: object) -> Plain:
    """Turn an object of the reference into its name and public attributes."""
    if isinstance(value, str | int | float | dt.datetime | None):
        return value
    if isinstance(value, set | frozenset):
        return sorted(map(_fields, value))
    if isinstance(value, list | tuple):
        return [_fields(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _fields(item) for key, item in value.items()}
    stored = [
        name
        for name in dir(value)
        if isinstance(getattr(type(value), name), GetSetDescriptorType) and name[0] != "_"
    ]
    if not stored:
        return str(value)
    return type(value).__name__, {name: _fields(getattr(value, name)) for name in stored}
