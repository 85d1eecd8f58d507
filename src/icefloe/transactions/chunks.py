"""The chunks of a session: where each one is, its bytes, how to change it, and lists of them."""

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from icefloe.effects import map_concurrently
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.chunk_table import (
    ChunkKind,
    ChunkRef,
    ChunkTable,
    Coordinates,
    InlineChunk,
    NativeChunk,
    VirtualChunk,
)
from icefloe.format.columns import BytesColumn, is_ascending
from icefloe.format.ids import ChunkId
from icefloe.format.nodes import ArrayNode, Node
from icefloe.format.paths import ROOT, check_path
from icefloe.storage.chunk_type import ChunkType
from icefloe.storage.port import Buffer
from icefloe.transactions.array_changes import MISSING, Index
from icefloe.transactions.nodes import require_array
from icefloe.transactions.session import SessionState

if TYPE_CHECKING:
    from icefloe.virtual_chunks.grouping import LocationQuery

_LOOKED_AT: Final = 64
"""So many references of an array are looked at to find out whether it may be read."""


async def find_ref(session: SessionState, node: Node, index: Index) -> ChunkRef | None:
    """Return the reference of a chunk, or `None` if it was never written."""
    if not is_in_grid(node, index):
        return None
    if session.changes.arrays:
        chunk = session.changes.get_chunk(node.id, index)
        if chunk is not MISSING:
            return chunk
    lookup = session.lookup(node)
    manifest = lookup.find(index)
    if manifest is None:
        return None
    assets = session.context.assets
    file = assets.held_manifest(manifest)
    if file is None:
        file = await assets.load_manifest(manifest, lookup.size_of(manifest))
    return file.find(node.id, index)


async def read_chunk(
    session: SessionState, node: Node, index: Index, window: slice | None = None
) -> Buffer | None:
    """Read a chunk, or a part of it; `None` for one that was never written."""
    ref = await find_ref(session, node, index)
    return None if ref is None else await read_ref(session, ref, window)


async def read_ref(session: SessionState, ref: ChunkRef, window: slice | None = None) -> Buffer:
    """Read what a reference points at, or a part of it."""
    start, stop = 0, size_of(ref)
    if window is not None:
        start, stop, _ = window.indices(stop)
        stop = max(start, stop)
    match ref:
        case NativeChunk():
            if session.packer is not None:
                pending = session.packer.pending(ref)
                if pending is not None:
                    return pending[start:stop]
            assets = session.context.assets
            return await assets.read_chunk(ref.id, ref.offset + start, stop - start)
        case InlineChunk():
            return ref.data if window is None else ref.data[start:stop]
        case VirtualChunk():
            return await session.context.virtual.read(ref, start, stop)


def size_of(ref: ChunkRef) -> int:
    """Return the number of bytes of a chunk."""
    return len(ref.data) if isinstance(ref, InlineChunk) else ref.length


async def write_chunk(session: SessionState, node: Node, index: Index, data: Buffer) -> None:
    """Store a chunk: within the manifest if it is small, in a pack if asked for, or by itself."""
    session.require_writable()
    require_in_grid(node, index)
    size = len(data)
    if size == 0:
        raise InvalidInputError(
            f"chunk {index} of {node.path} has no bytes: delete the chunk instead",
            ErrorKind.ZERO_LENGTH_CHUNK,
            path=node.path,
        )
    ref: ChunkRef
    if size <= session.context.config.inline_chunk_threshold_bytes:
        ref = InlineChunk(bytes(data))
    elif session.packer is not None and session.packer.accepts(size):
        ref = await session.packer.add(data)
    else:
        ref = NativeChunk(ChunkId.random(), 0, size)
        await session.context.assets.save_chunk(ref.id, data)
    session.changes.set_chunk(node.id, index, ref)


def delete_chunk(session: SessionState, node: Node, index: Index) -> None:
    """Delete a chunk; one outside of the grid cannot exist and needs no deleting."""
    session.require_writable()
    if is_in_grid(node, index):
        session.changes.set_chunk(node.id, index, None)


def delete_chunks(session: SessionState, node: Node, coordinates: Coordinates) -> None:
    """Delete many chunks of the grid of an array at once."""
    session.require_writable()
    with session.changes.writing() as changes:
        changes.array(node.id, coordinates.shape[1]).delete_many(coordinates)


def put_refs(session: SessionState, node: ArrayNode, table: ChunkTable) -> None:
    """Set many references at once."""
    session.require_writable()
    if len(table) == 0:
        return
    array = node.array
    if table.dimensions != len(array.num_chunks):
        require_in_grid(node, (0,) * table.dimensions)
    outside = (table.coordinates >= np.array(array.num_chunks, np.uint64)).any(axis=1)
    if outside.any():
        require_in_grid(node, tuple(table.coordinates[int(outside.argmax())].tolist()))
    if (table.lengths == 0).any():
        row = int((table.lengths == 0).argmax())
        raise _no_bytes(node, tuple(table.coordinates[row].tolist()))
    session.changes.put_table(node.id, table)


def put_ref(session: SessionState, node: Node, index: Index, ref: ChunkRef) -> None:
    """Set one reference."""
    session.require_writable()
    require_in_grid(node, index)
    if size_of(ref) == 0:
        raise _no_bytes(node, index)
    session.changes.set_chunk(node.id, index, ref)


def _no_bytes(node: Node, index: Index) -> InvalidInputError:
    return InvalidInputError(
        f"the reference of chunk {index} of {node.path} has no bytes: leave it out",
        ErrorKind.ZERO_LENGTH_CHUNK,
        path=node.path,
    )


async def chunk_tables(session: SessionState, node: ArrayNode) -> AsyncIterator[ChunkTable]:
    """Walk all references of an array, one manifest at a time, then those not committed."""
    array = node.array
    grid = np.array([(0, count) for count in array.num_chunks], np.uint32).reshape(-1, 2)
    settled = session.changes.settled(node.id)
    for manifest, size_bytes in session.lookup(node).sizes():
        file = await session.context.assets.load_manifest(manifest, size_bytes)
        table = file.table(node.id)
        if len(table) == 0:
            continue
        table = table.within(grid)
        if settled is not None:
            table = table.without(settled.table.coordinates).without(settled.deleted)
        if len(table):
            yield table
    if settled is not None:
        own = settled.table.within(grid)
        if len(own):
            yield own


async def require_authorised(session: SessionState, nodes: Iterable[ArrayNode]) -> None:
    """Raise unless the reader authorised the virtual chunks with which arrays begin.

    Only the first manifest of each array is read: what lies elsewhere is refused when it is read.
    """
    context = session.context
    resolver = context.virtual.resolver

    async def check(node: ArrayNode) -> None:
        for manifest, size_bytes in session.lookup(node).sizes():
            file = await context.assets.load_manifest(manifest, size_bytes)
            for table in file.table_parts(node.id, _LOOKED_AT):
                for text in table.locations.to_strings():
                    resolver.require_grant(resolver.locate(text))
                break
            return

    await map_concurrently(check, list(nodes), limit=context.config.max_concurrent_requests)


async def chunk_coordinates(session: SessionState, node: ArrayNode) -> AsyncIterator[Coordinates]:
    """Walk the coordinates of all references of an array, one manifest at a time."""
    array = node.array
    if session.changes.settled(node.id) is not None:
        async for table in chunk_tables(session, node):
            yield table.coordinates
        return
    # Without changes to lay over them, what else the references hold need not be decoded.
    for manifest, size_bytes in session.lookup(node).sizes():
        file = await session.context.assets.load_manifest(manifest, size_bytes)
        coordinates = file.coordinates(node.id)
        if len(coordinates) == 0:
            continue
        inside = (coordinates < np.array(array.num_chunks, np.uint64)).all(axis=1)
        yield coordinates if inside.all() else coordinates[inside]


# -- listing ---------------------------------------------------------------------------------


async def chunk_type(session: SessionState, path: str, index: Sequence[int]) -> ChunkType:
    """Return how a chunk is stored, or that it does not exist."""
    node = require_array(session, check_path(path))
    match await find_ref(session, node, tuple(index)):
        case NativeChunk():
            return ChunkType.native
        case VirtualChunk():
            return ChunkType.virtual
        case InlineChunk():
            return ChunkType.inline
        case None:
            return ChunkType.uninitialized


async def coordinate_batches(
    session: SessionState, path: str, batch_size: int
) -> AsyncIterator[list[tuple[int, ...]]]:
    """Walk the coordinates of all chunks of an array; this many at a time become objects."""
    _check_batch_size(batch_size)
    node = require_array(session, check_path(path))
    async for coordinates in chunk_coordinates(session, node):
        for first in range(0, len(coordinates), batch_size):
            yield _as_tuples(coordinates[first : first + batch_size])


def _as_tuples(coordinates: Coordinates) -> list[tuple[int, ...]]:
    if coordinates.shape[1] == 0:
        return [()] * len(coordinates)
    # Column by column: half the time of making a tuple of each row.
    return list(zip(*coordinates.T.tolist(), strict=True))


async def virtual_locations(session: SessionState) -> list[str]:
    """List where the virtual chunks of all arrays lie: one entry for each chunk.

    Names of containers are replaced by where those are, as far as they are known. Entries for
    one object are one string.
    """
    all_locations: list[str] = []
    async for table in _virtual_tables(session):
        targets, locations = _targets(table)
        texts = _absolute(session, locations).to_strings()
        if len(targets) == len(texts) and is_ascending(targets):
            all_locations += texts
        else:
            all_locations += np.array(texts, np.object_)[targets].tolist()
    return all_locations


async def virtual_location_batches(
    session: SessionState, query: "LocationQuery", *, is_distinct: bool, batch_size: int
) -> AsyncIterator[BytesColumn]:
    """Walk over where virtual chunks lie, at most this many locations at a time.

    Each place once, or one entry for each chunk.
    """
    from icefloe.virtual_chunks.grouping import PlaceIndex, canonical_all

    _check_batch_size(batch_size)
    seen = PlaceIndex()
    async for table in _virtual_tables(session):
        targets, locations = _targets(table)
        absolute = _absolute(session, locations)
        if is_distinct:
            absolute, _ = absolute.distinct()
            before = len(seen)
            rows: NDArray[np.integer] = np.flatnonzero(seen.numbers(absolute) >= before)
        else:
            rows = targets
        if not query.is_everything:
            rows = rows[query.chosen(canonical_all(absolute))[rows]]
        for first in range(0, len(rows), batch_size):
            yield absolute.take(rows[first : first + batch_size])


async def _virtual_tables(session: SessionState) -> AsyncIterator[ChunkTable]:
    for node in list(session.tree.below(ROOT)):
        if isinstance(node, ArrayNode):
            async for table in chunk_tables(session, node):
                if (table.kinds == ChunkKind.VIRTUAL).any():
                    yield table


def _targets(table: ChunkTable) -> tuple[NDArray[np.integer], BytesColumn]:
    """Return the location of each virtual chunk, as a row of those that are used."""
    is_virtual = table.kinds == ChunkKind.VIRTUAL
    targets = table.targets if is_virtual.all() else table.targets[is_virtual]
    is_used = np.zeros(len(table.locations), np.bool_)
    is_used[targets] = True
    if is_used.all():
        return targets, table.locations
    numbers = np.cumsum(is_used) - 1
    return numbers[targets], table.locations.take(np.flatnonzero(is_used))


def _absolute(session: SessionState, locations: BytesColumn) -> BytesColumn:
    from icefloe.virtual_chunks.grouping import absolute_all

    return absolute_all(locations, session.context.virtual.resolver.absolute)


def _check_batch_size(batch_size: int) -> None:
    if batch_size < 1:
        raise InvalidInputError(
            f"batch_size must be at least 1, got {batch_size}", ErrorKind.INVALID_CONFIG
        )


# -- the grid --------------------------------------------------------------------------------


def is_in_grid(node: Node, index: Index) -> bool:
    """Return whether an array has a chunk at some coordinates."""
    if not isinstance(node, ArrayNode) or len(index) != len(node.array.num_chunks):
        return False
    # `all` takes three times as long, and this is for every chunk that is read.
    for number, count in zip(index, node.array.num_chunks, strict=True):
        if not 0 <= number < count:
            return False
    return True


def require_in_grid(node: Node, index: Index) -> None:
    """Refuse coordinates that an array does not have."""
    if is_in_grid(node, index):
        return
    if not isinstance(node, ArrayNode):
        raise InvalidInputError(
            f"{node.path} is a group, and only arrays have chunks",
            ErrorKind.NOT_AN_ARRAY,
            path=node.path,
        )
    raise InvalidInputError(
        f"the array {node.path} has a grid of {node.array.num_chunks} chunks, in which there is "
        f"no chunk {index}",
        ErrorKind.INVALID_CHUNK_INDEX,
        path=node.path,
    )
