"""List the keys of a session, in batches or one at a time, and the references of an array."""

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icefloe.effects import AsyncCloseableIterator
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.chunk_table import ChunkKind, ChunkTable, Extents
from icefloe.format.ids import encode_ids
from icefloe.format.nodes import ArrayNode, Node
from icefloe.format.paths import prefix_below
from icefloe.records import Record
from icefloe.transactions.chunks import chunk_tables, delete_chunks
from icefloe.transactions.nodes import delete_node, require_array
from icefloe.transactions.session import SessionState
from icefloe.zarr_store.keys import METADATA, ChunkKey, chunk_root, metadata_key, parse_key


class FlattenedIterator[T](AsyncCloseableIterator[T]):
    """The items of batches, for `async for` and for `for`; most items cost no suspension.

    Loops walk over generators, which take a fraction of the time that a method needs for each
    item. A loop that stops can go on with the next item: the iterator owns the batches.

    >>> async def batches():
    ...     yield [1, 2]
    ...     yield [3]
    >>> list(FlattenedIterator(batches()))
    [1, 2, 3]
    """

    __slots__ = ("_batch", "_batches")

    def __init__(self, batches: AsyncIterator[Iterable[T]]) -> None:
        self._batches = AsyncCloseableIterator(batches)
        self._batch: Iterator[T] = iter(())

    def __iter__(self) -> Iterator[T]:
        yield from self._batch
        for batch in self._batches:
            self._batch = iter(batch)
            yield from self._batch

    def __next__(self) -> T:
        while True:
            for item in self._batch:
                return item
            self._batch = iter(next(self._batches))

    async def __aiter__(self) -> AsyncIterator[T]:
        for item in self._batch:
            yield item
        async for batch in self._batches:
            self._batch = iter(batch)
            for item in self._batch:
                yield item

    async def __anext__(self) -> T:
        while True:
            for item in self._batch:
                return item
            self._batch = iter(await anext(self._batches))

    async def aclose(self) -> None:
        """Stop early."""
        self._batch = iter(())
        await self._batches.aclose()


class _ChunkRegion(Record):
    """The chunks of an array whose first coordinates are given."""

    node: ArrayNode
    first: tuple[int, ...]

    @property
    def dimensions(self) -> int:
        return len(self.node.array.num_chunks)

    def box(self) -> Extents:
        begin, end = list(self.first), [number + 1 for number in self.first]
        free = len(self.first)
        begin += [0] * (self.dimensions - free)
        end += self.node.array.num_chunks[free:]
        return np.array([begin, end], np.uint32).T.reshape(-1, 2)


async def keys_below(session: SessionState, prefix: str) -> AsyncIterator[Iterable[str]]:
    """Walk all keys in a directory in batches: those of metadata, then those of chunks."""
    paths = session.tree.paths_below(_path_of(prefix))
    yield map(metadata_key, paths)
    for node in _arrays_with_chunks(session, paths):
        async for table in chunk_tables(session, node):
            yield _chunk_keys(node, table)
    if (region := _chunk_region(session, prefix)) is not None:
        async for table in _tables_within(session, region):
            yield _chunk_keys(region.node, table)


async def names_in(session: SessionState, prefix: str) -> AsyncIterator[Iterable[str]]:
    """Walk the names directly in a directory, in batches: of keys, and of directories."""
    path = _path_of(prefix)
    names = _names_of_nodes(session, path)
    node = session.tree.find(path)
    if isinstance(node, ArrayNode):
        names["c"] = None  # also while the array has no chunks, which spares its manifests
    yield names
    if (region := _chunk_region(session, prefix)) is None:
        return
    position = len(region.first)
    async for table in _tables_within(session, region):
        index_names = map(str, np.unique(table.coordinates[:, position]).tolist())
        new = [name for name in index_names if name not in names]
        names.update(dict.fromkeys(new))
        yield new


async def has_keys_below(session: SessionState, prefix: str) -> bool:
    """Return whether a directory holds any key."""
    if session.tree.paths_below(_path_of(prefix)):
        return True
    if (region := _chunk_region(session, prefix)) is not None:
        async for _ in _tables_within(session, region):
            return True
    return False


async def size_below(session: SessionState, prefix: str) -> int:
    """Add up the bytes of all values in a directory."""
    total = 0
    for node in list(session.tree.below(_path_of(prefix))):
        total += len(node.user_data)
        if isinstance(node, ArrayNode) and _has_chunks(session, node):
            async for table in chunk_tables(session, node):
                total += int(table.lengths.sum())
    if (region := _chunk_region(session, prefix)) is not None:
        async for table in _tables_within(session, region):
            total += int(table.lengths.sum())
    return total


async def delete_below(session: SessionState, prefix: str) -> None:
    """Delete all keys in a directory."""
    session.require_writable()
    region = _chunk_region(session, prefix)
    delete_node(session, _path_of(prefix))
    if region is None or session.tree.find(region.node.path) is None:
        return
    async for table in _tables_within(session, region):
        delete_chunks(session, region.node, table.coordinates)


def _path_of(prefix: str) -> str:
    """Return the path of a directory; one that no node can have simply has nothing in it."""
    return "/" + prefix.strip("/")


def _chunk_region(session: SessionState, prefix: str) -> _ChunkRegion | None:
    """Return which chunks are in a directory, if it is a directory of chunks."""
    try:
        parsed = parse_key(prefix.strip("/"))
    except InvalidInputError:
        return None
    if not isinstance(parsed, ChunkKey):
        return None
    node = session.tree.find(parsed.path)
    if not isinstance(node, ArrayNode) or not _has_chunks(session, node):
        return None
    coordinates, grid = parsed.coordinates, node.array.num_chunks
    # A key is no directory: below `c/0/0` of a matrix, or `c` of a scalar, there is nothing.
    if len(coordinates) >= len(grid) or any(
        number >= n for number, n in zip(coordinates, grid, strict=False)
    ):
        return None
    return _ChunkRegion(node, parsed.coordinates)


async def _tables_within(session: SessionState, region: _ChunkRegion) -> AsyncIterator[ChunkTable]:
    box = region.box()
    async for table in chunk_tables(session, region.node):
        inside = table.within(box)
        if len(inside):
            yield inside


def _arrays_with_chunks(session: SessionState, paths: list[str]) -> Iterator[ArrayNode]:
    """Find arrays that may have chunks without making a node for each of the others."""
    base, changes = session.base, session.changes
    stored = base.paths()
    candidates = {stored[row] for row in np.flatnonzero(np.diff(base.table.manifest_splits))}
    candidates.update(changes.nodes)
    for changed in [*changes.arrays, *changes.links]:
        if changed not in changes.created and (node := base.by_id(changed)) is not None:
            candidates.add(node.path)
    for path in paths:
        if path in candidates:
            node = session.tree.find(path)
            if isinstance(node, ArrayNode) and _has_chunks(session, node):
                yield node


def _has_chunks(session: SessionState, node: ArrayNode) -> bool:
    """Return whether an array may have chunks, as far as can be said without its manifests."""
    if session.tree.manifests(node):
        return True
    if not session.tree.is_changed_array(node):
        return False
    settled = session.changes.settled(node.id)
    return settled is not None and len(settled.table) > 0


def _names_of_nodes(session: SessionState, path: str) -> dict[str, None]:
    """List the names in a node's directory in the order of paths, each once."""
    names: dict[str, None] = {}
    if session.tree.find(path) is not None:
        names[METADATA] = None
    start = len(prefix_below(path))
    below = session.tree.paths_below(path)
    names.update(
        (node_path[start:].partition("/")[0], None)
        for node_path in below
        if len(node_path) >= start
    )
    names.pop("", None)  # the node itself
    return names


def _chunk_keys(node: Node, table: ChunkTable) -> Iterator[str]:
    root = chunk_root(node.path)
    if table.dimensions == 0:
        return iter([root] * len(table))
    rows = table.coordinates.tolist()
    form = "/".join([root.replace("%", "%%"), *["%d"] * table.dimensions])
    return (form % tuple(row) for row in rows)


# -- references in batches of columns ------------------------------------------------------------

type ChunkBatch = tuple[
    np.ndarray[tuple[int, int], np.dtype[np.uint32]],
    np.ndarray[tuple[int], np.dtype[np.uint8]],
    list[str],
    np.ndarray[tuple[int], np.dtype[np.uint64]],
    np.ndarray[tuple[int], np.dtype[np.uint64]],
    dict[int, bytes],
]
"""Coordinates, kinds, locations, offsets, lengths, and the bytes of rows that hold them."""


async def chunk_batches(
    session: SessionState, path: str, batch_size: int
) -> AsyncIterator[ChunkBatch]:
    """Walk the references of an array, at most `batch_size` at a time."""
    if batch_size < 1:
        raise InvalidInputError(
            f"batch_size must be at least 1, got {batch_size}", ErrorKind.INVALID_CONFIG
        )
    node = require_array(session, path)
    async for table in chunk_tables(session, node):
        for first in range(0, len(table), batch_size):
            yield _batch(table.take(slice(first, first + batch_size)))


def _batch(table: ChunkTable) -> ChunkBatch:
    rows: Any = (table.coordinates, table.kinds, table.offsets, table.lengths)
    coordinates, kinds, offsets, lengths = (np.ascontiguousarray(column) for column in rows)
    return coordinates, kinds, _locations(table), offsets, lengths, _inline(table)


def _locations(table: ChunkTable) -> list[str]:
    """Return the location of virtual chunks, the id of native ones, nothing for inline ones."""
    texts: NDArray[np.object_] = np.full(len(table), "", object)
    native = table.kinds == ChunkKind.NATIVE
    if native.any():
        used, numbers = np.unique(table.targets[native], return_inverse=True)
        ids = np.array(encode_ids(table.chunk_ids[used]).astype(str).tolist(), object)
        texts[native] = ids[numbers]
    virtual = table.kinds == ChunkKind.VIRTUAL
    if virtual.any():
        used, numbers = np.unique(table.targets[virtual], return_inverse=True)
        locations = np.array(table.locations.take(used.astype(np.int64)).to_strings(), object)
        texts[virtual] = locations[numbers]
    answer: list[str] = texts.tolist()
    return answer


def _inline(table: ChunkTable) -> dict[int, bytes]:
    rows = np.flatnonzero(table.kinds == ChunkKind.INLINE)
    values = table.inline.take(table.targets[rows].astype(np.int64)).to_list()
    return dict(zip(rows.tolist(), values, strict=True))
