"""How to read the chunks of a selection without this server: addresses, ranges, codecs.

A chunk is in the plan itself if it is small, or has the signed address of an object and a range of
it, or a key of this server. Addresses are signed with the credentials with which this process
reads the repository, and only for places that its user authorised.
"""

import base64
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import product
from math import prod
from typing import Any, Final

from icefloe.effects import map_concurrently, run_blocking
from icefloe.errors import StorageError
from icefloe.format.chunk_table import ChunkRef, InlineChunk, NativeChunk, VirtualChunk
from icefloe.format.nodes import ArrayNode
from icefloe.storage.capabilities import LONGEST_SIGNATURE
from icefloe.transactions.chunks import find_ref
from icefloe.virtual_chunks.reader import SignedChunk
from icefloe.web.data import axes_of, open_checked
from icefloe.web.nodes import document_of
from icefloe.web.pictures import MOST_CHUNKS
from icefloe.web.selection import Query, TooLargeError, narrower, select, storage_grid
from icefloe.web.versions import Version
from icefloe.zarr_store.keys import chunk_key

_INLINE_BYTES: Final = 16 << 10
"""A larger chunk that is within a manifest is read by its key."""
_LOOKUPS: Final = 16
"""How many references are looked up at the same time."""

type Index = tuple[int, ...]


def make_plan(version: Version, node: ArrayNode, query: Query, zarr_url: str) -> dict[str, Any]:
    """Return the plan of a selection as plain values.

    `zarr_url` is the address of the version as Zarr over HTTP.
    """
    axes = axes_of(version, [node])
    selection = select([*axes.values()], query)
    grid = storage_grid(node, lambda: open_checked(version, node))
    chunks = [grid.chunks_of(axis, chosen.steps) for axis, chosen in enumerate(selection)]
    count = prod(len(numbers) for numbers in chunks)
    if count > MOST_CHUNKS:
        raise TooLargeError(
            f"the selection is in {count:,} chunks, and a plan has {MOST_CHUNKS:,} at most:"
            f" {narrower(selection)}"
        )
    indexes: list[Index] = [*product(*(numbers.tolist() for numbers in chunks))]
    expires_at = datetime.now(UTC) + LONGEST_SIGNATURE
    document = document_of(node)
    return {
        "path": node.path,
        "version": version.name,
        "snapshot": version.session.snapshot_id,
        "shape": list(node.array.shape),
        "dimensions": [*axes],
        "selection": {axis.name: axis.to_json() for axis in selection},
        "data_type": document.get("data_type"),
        "chunk_grid": document.get("chunk_grid"),
        "codecs": document.get("codecs"),
        "fill_value": document.get("fill_value"),
        "zarr": zarr_url,
        "expires_at": expires_at.isoformat(timespec="seconds"),
        "chunks": run_blocking(_chunks(version, node, indexes, zarr_url)),
    }


async def _chunks(
    version: Version, node: ArrayNode, indexes: Sequence[Index], zarr_url: str
) -> list[dict[str, Any]]:
    refs = await map_concurrently(
        lambda index: find_ref(version.state, node, index), indexes, limit=_LOOKUPS
    )
    signed = {**await _sign_native(version, refs), **await _sign_virtual(version, refs)}
    return [
        {
            "index": list(index),
            **_way(ref, signed.get(row), f"{zarr_url}/{chunk_key(node.path, index)}"),
        }
        for row, (index, ref) in enumerate(zip(indexes, refs, strict=True))
    ]


async def _sign_native(
    version: Version, refs: Sequence[ChunkRef | None]
) -> Mapping[int, SignedChunk]:
    rows = {row: ref for row, ref in enumerate(refs) if isinstance(ref, NativeChunk)}
    ids = [*dict.fromkeys(ref.id for ref in rows.values())]
    try:
        urls = (
            await version.state.context.assets.sign_chunks(ids, LONGEST_SIGNATURE) if ids else None
        )
    except StorageError:
        return {}  # what cannot be signed can still be read through this server
    if urls is None:
        return {}
    url_of = dict(zip(ids, urls, strict=True))
    return {row: SignedChunk(url_of[ref.id], {}) for row, ref in rows.items()}


async def _sign_virtual(
    version: Version, refs: Sequence[ChunkRef | None]
) -> Mapping[int, SignedChunk]:
    rows = {row: ref for row, ref in enumerate(refs) if isinstance(ref, VirtualChunk)}
    if not rows:
        return {}
    try:
        signed = await version.state.context.virtual.sign_reads([*rows.values()], LONGEST_SIGNATURE)
    except StorageError:
        return {}
    return {row: chunk for row, chunk in zip(rows, signed, strict=True) if chunk is not None}


def _way(ref: ChunkRef | None, signed: SignedChunk | None, url: str) -> dict[str, Any]:
    """Return how to get the bytes of a chunk."""
    match ref:
        case None:
            return {"kind": "missing"}
        case InlineChunk(data) if len(data) <= _INLINE_BYTES:
            return {"kind": "inline", "data": base64.b64encode(data).decode()}
        case InlineChunk():
            return {"kind": "inline", "url": url, "signed": False, "headers": {}}
        case NativeChunk() | VirtualChunk():
            kind = "native" if isinstance(ref, NativeChunk) else "virtual"
            way: dict[str, Any] = {"kind": kind, "length": ref.length}
            if signed is None:
                return {**way, "url": url, "signed": False, "headers": {}}
            last = ref.offset + ref.length - 1
            headers = {"Range": f"bytes={ref.offset}-{last}", **signed.conditions}
            return {**way, "url": signed.url, "signed": True, "headers": headers}
