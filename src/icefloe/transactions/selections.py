"""Many chunks of an array at once: find their references, and read them with few requests."""

from collections.abc import Sequence
from typing import Final

from icefloe.effects import map_concurrently
from icefloe.format.chunk_table import ChunkRef, InlineChunk, NativeChunk, VirtualChunk
from icefloe.format.nodes import ArrayNode
from icefloe.storage.port import Buffer
from icefloe.transactions.array_changes import Index
from icefloe.transactions.chunks import find_ref, read_ref
from icefloe.transactions.session import SessionState
from icefloe.virtual_chunks.readahead import Limits, merge_reads

_JOINED: Final = Limits(gap_bytes=64 << 10, window_bytes=8 << 20)
"""Which chunks of a pack share a request: those between them were written in the same session."""


async def find_refs(
    session: SessionState, node: ArrayNode, indices: Sequence[Index]
) -> list[ChunkRef | None]:
    """Return the references of many chunks, in order; their manifests are loaded at once."""
    lookup, assets = session.lookup(node), session.context.assets
    needed = dict.fromkeys(manifest for index in indices if (manifest := lookup.find(index)))
    missing = [manifest for manifest in needed if assets.held_manifest(manifest) is None]
    await map_concurrently(
        lambda manifest: assets.load_manifest(manifest, lookup.size_of(manifest)),
        missing,
        limit=session.context.config.max_concurrent_requests,
    )
    return [await find_ref(session, node, index) for index in indices]


def group_refs(refs: Sequence[ChunkRef | None]) -> list[tuple[int, ...]]:
    """Return the rows of references that one request reads, for all references.

    Native chunks that lie side by side in one object share a request. Virtual chunks follow each
    other as in their objects: their reader joins requests that are made at the same time.

    >>> from icefloe.format.ids import ChunkId
    >>> pack = ChunkId(bytes(12))
    >>> group_refs([NativeChunk(pack, 90, 10), None, NativeChunk(pack, 80, 10)])
    [(2, 0)]
    """
    objects: dict[bytes, list[int]] = {}
    virtual: list[tuple[str, int, int]] = []
    groups: list[tuple[int, ...]] = []
    for row, ref in enumerate(refs):
        match ref:
            case NativeChunk():
                objects.setdefault(ref.id.raw, []).append(row)
            case VirtualChunk():
                virtual.append((ref.location, ref.offset, row))
            case InlineChunk():
                groups.append((row,))
    groups += [(row,) for _, _, row in sorted(virtual)]
    for rows in objects.values():
        ranges = [_stored_range(refs[row]) for row in rows]
        requests = merge_reads(ranges, _JOINED) if len(rows) > 1 else ()
        joined = [tuple(rows[place] for place in request.rows) for request in requests]
        groups += joined or [(rows[0],)]
    return groups


def _stored_range(ref: ChunkRef | None) -> tuple[int, int]:
    assert isinstance(ref, NativeChunk)
    return ref.offset, ref.offset + ref.length


async def read_group(session: SessionState, refs: Sequence[ChunkRef]) -> list[Buffer]:
    """Read the chunks of a group that `group_refs` made."""
    natives = [ref for ref in refs if isinstance(ref, NativeChunk)]
    is_pending = session.packer is not None and any(map(session.packer.pending, natives))
    if len(natives) < 2 or is_pending:
        return [await read_ref(session, ref) for ref in refs]
    first = min(ref.offset for ref in natives)
    last = max(ref.offset + ref.length for ref in natives)
    data = memoryview(await session.context.assets.read_chunk(natives[0].id, first, last - first))
    return [data[ref.offset - first : ref.offset - first + ref.length] for ref in natives]
