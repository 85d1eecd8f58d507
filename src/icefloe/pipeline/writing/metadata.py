"""The metadata and small arrays of a dataset, written through a store; what to record of files."""

import json
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import zarr
from zarr.core.buffer import default_buffer_prototype

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.paths import joined_path
from icefloe.pipeline.combining.combine import Combined, Existing
from icefloe.pipeline.files.facts import SourceState
from icefloe.pipeline.files.references import References
from icefloe.records import Record
from icefloe.zarr_store import IcechunkStore


def write_metadata(
    store: IcechunkStore, group: str, combined: Combined, existing: Existing | None
) -> None:
    """Make the groups and arrays, or give those that are there their new lengths."""
    there = set() if existing is None else set(existing.schema.by_path)
    if existing is None:
        make_groups(store, group, combined.groups)
    for array in combined.arrays:
        key = f"{joined_path(group, array.path)}/zarr.json"
        if array.path in there:
            if not array.growing:
                continue
            stored = json.loads(get_document(store, key))
            metadata: Mapping[str, Any] = {**stored, "shape": array.metadata["shape"]}
        else:
            metadata = array.metadata
        put_document(store, key, json.dumps(metadata).encode())


def make_groups(
    store: IcechunkStore,
    group: str,
    attributes: Mapping[str, Mapping[str, Any]],
    *,
    keeps_attributes: bool = False,
) -> None:
    """Make a group, those above it, and those below it that have attributes, given by path.

    The attributes replace those of groups that exist, or with `keeps_attributes` go on top.
    """
    names = group.strip("/").split("/") if group.strip("/") else []
    above = {"/".join(names[:depth]): None for depth in range(len(names))}
    below = {joined_path(group, path): values for path, values in attributes.items()}
    for path, values in {**above, **below}.items():
        key = f"{path}/zarr.json" if path else "zarr.json"
        stored = find_document(store, key)
        if stored is not None and (values is None or (keeps_attributes and not values)):
            continue
        document: dict[str, Any] = {"zarr_format": 3, "node_type": "group"}
        if stored is not None and keeps_attributes:
            document = json.loads(stored)
        document["attributes"] = {**document.get("attributes", {}), **(values or {})}
        put_document(store, key, json.dumps(document).encode())


def write_native(store: IcechunkStore, group: str, combined: Combined) -> None:
    """Write the values of small arrays; existing values stay where nothing is new."""
    for array in combined.arrays:
        if array.is_native:
            target = zarr.open_array(store, path=joined_path(group, array.path), mode="r+")
            values = np.array(target[...])
            for start, run in combined.native[array.path]:
                values[start : start + len(run)] = run
            target[...] = values


class Check(Record):
    """What readers compare an object with, to notice that it changed."""

    etag: str | None
    seconds: int
    """Since 1970; 0 for none."""


def check_of(state: SourceState, references: References, now: int | None = None) -> Check:
    """Choose what to record of the state of a file.

    For local files it is the time of modification, as programs make etags of these in different
    ways; for what a file only points at, that it was not modified later than now, in seconds
    since 1970.
    """
    is_own = references.locations == (state.url,)
    if is_own and state.etag is not None and not state.url.startswith("file:"):
        return Check(state.etag, 0)
    if is_own and state.modified is not None:
        return Check(None, -(-state.modified // 1_000_000))  # not modified later than that
    return Check(None, int(time.time()) if now is None else now)


def put_document(store: IcechunkStore, key: str, data: bytes) -> None:
    """Write bytes under a key of Zarr."""
    store.set_sync(key, default_buffer_prototype().buffer.from_bytes(data))


def find_document(store: IcechunkStore, key: str) -> bytes | None:
    """Return the bytes under a key of Zarr, if there are any."""
    buffer = store.get_sync(key, prototype=default_buffer_prototype())
    return None if buffer is None else buffer.to_bytes()


def get_document(store: IcechunkStore, key: str) -> bytes:
    """Return the bytes under a key of Zarr; raise if there are none."""
    document = find_document(store, key)
    if document is None:
        raise InvalidInputError(f"nothing is at {key!r}", ErrorKind.NODE_NOT_FOUND)
    return document
