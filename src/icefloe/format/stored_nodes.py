"""The nodes in a snapshot file: read one by one, or all into columns."""

from operator import lt
from typing import Final

import numpy as np
from numpy.typing import NDArray

from icefloe.format.columns import Ints, ranges, splits_of
from icefloe.format.deferred import StoredList
from icefloe.format.flatbuffer_reader import Buffer, Tables, refuse
from icefloe.format.flatbuffer_scalar import ScalarBuffer, ScalarTable
from icefloe.format.ids import ManifestId, NodeId
from icefloe.format.node_table import Node, NodeTable
from icefloe.format.snapshot_nodes import (
    ARRAY_LENGTH,
    DIMENSION_NAME,
    NUM_CHUNKS,
    REF_EXTENTS,
    REF_ID,
    ArraySlot,
    NodeKind,
    NodeSlot,
    num_links,
    read_node,
)

FEW_NODES: Final = 32
"""Up to so many nodes are written and read one by one."""
SMALL_BYTES: Final = 1 << 18
"""A larger file is read at once."""
_FEW_BYTES: Final = 1 << 14  # even a few nodes may have very much below them
_FEW_LINKS: Final = 128
"""A node with more manifests is read with all others in columns, which is quicker."""


class StoredNodes(StoredList[NodeTable]):
    """The nodes in a buffer, of which only those are read that somebody asks for.

    Most readers want one array and its coordinates, of perhaps a hundred. Those who ask for all
    see a list refused that is out of order.
    """

    __slots__ = ()

    @property
    def memory_bytes(self) -> int:
        """About how much memory they take, as they are or in columns."""
        return len(self._data)

    def find(self, path: str) -> Node | None:
        """Look up one node."""
        if self._is_asked_often():
            return self.table().find(path)
        with self._reading() as buffer:
            wanted = path.encode(errors="surrogatepass")
            node = buffer.root().find_child(self._slot, wanted, _raw_path)
            if node is None:
                return None
            if num_links(node) <= _FEW_LINKS:
                return read_node(node)
        return self.table().find(path)

    def _read(self, buffer: ScalarBuffer) -> NodeTable:
        return read_nodes(buffer, self._slot, FEW_NODES)


def _raw_path(node: ScalarTable) -> bytes:
    return node.blob(NodeSlot.PATH)


def read_nodes(buffer: ScalarBuffer, slot: int, few: int) -> NodeTable:
    """Read all nodes; up to `few` of them one by one."""
    count = buffer.root().vector(slot, 4)[1]
    if count > few or buffer.size > _FEW_BYTES:
        return _decode_nodes(Buffer(buffer.data).root().vectors(slot).tables())
    nodes = [read_node(table) for table in buffer.root().children(slot)]
    paths = [node.path.encode() for node in nodes]
    if not all(map(lt, paths, paths[1:])):
        refuse("the nodes are not sorted by their paths")
    return NodeTable.from_nodes(nodes)


def _decode_nodes(tables: Tables) -> NodeTable:
    kinds = tables.u8(NodeSlot.KIND)
    is_array = kinds == NodeKind.ARRAY
    if not (is_array | (kinds == NodeKind.GROUP)).all():
        refuse("a node is neither a group nor an array")
    arrays = tables.children(NodeSlot.CONTENT).where(is_array)
    paths = tables.blobs(NodeSlot.PATH, required=True).column()
    paths.check_text()
    if not paths.is_ascending():
        refuse("the nodes are not sorted by their paths")
    shape_counts, lengths, num_chunks = _decode_shapes(arrays)
    names = arrays.vectors(ArraySlot.DIMENSION_NAMES)
    texts = names.tables().blobs(DIMENSION_NAME).column()
    texts.check_text()
    manifests = arrays.vectors(ArraySlot.MANIFESTS, required=True)
    refs = manifests.tables()
    extents = refs.vectors(REF_EXTENTS, 8, required=True)

    def of_nodes(of_arrays: Ints) -> Ints:
        spread = np.zeros(len(tables), np.int64)
        spread[is_array] = of_arrays
        return spread

    has_names = is_array.copy()
    has_names[is_array] = names.present

    return NodeTable(
        ids=tables.struct(NodeSlot.ID, NodeId.WIDTH),
        paths=paths,
        user_data=tables.blobs(NodeSlot.USER_DATA, required=True).column(),
        is_array=is_array,
        shape_splits=splits_of(of_nodes(shape_counts)),
        array_lengths=lengths,
        num_chunks=num_chunks,
        has_names=has_names,
        name_splits=splits_of(of_nodes(names.counts)),
        names=texts,
        manifest_splits=splits_of(of_nodes(manifests.counts)),
        manifest_ids=refs.struct(REF_ID, ManifestId.WIDTH),
        extent_splits=extents.splits(),
        extents=extents.u32_structs(2),
    )


def _decode_shapes(
    arrays: Tables,
) -> tuple[Ints, NDArray[np.uint64], NDArray[np.uint32]]:
    """Read shapes of either form: number of dimensions, array lengths, numbers of chunks."""
    old = arrays.vectors(ArraySlot.SHAPE, 16, required=True)
    new = arrays.vectors(ArraySlot.SHAPE_V2)
    is_new = new.present
    counts = np.where(is_new, new.counts, old.counts)
    tables = new.tables()
    new_lengths, new_chunks = tables.u64(ARRAY_LENGTH), tables.u32(NUM_CHUNKS)
    if is_new.all():
        return counts, new_lengths, new_chunks
    pairs = old.u64_structs(2)
    old_lengths, old_chunks = pairs[:, 0], _v1_num_chunks(pairs)
    splits = splits_of(counts)
    lengths = np.empty(splits[-1], np.uint64)
    chunks = np.empty(splits[-1], np.uint32)
    to_new = ranges(splits[:-1][is_new], counts[is_new])
    lengths[to_new], chunks[to_new] = new_lengths, new_chunks
    to_old = ranges(splits[:-1][~is_new], counts[~is_new])
    from_old = ranges(splits_of(old.counts)[:-1][~is_new], counts[~is_new])
    lengths[to_old], chunks[to_old] = old_lengths[from_old], old_chunks[from_old]
    return counts, lengths, chunks


def _v1_num_chunks(pairs: NDArray[np.uint64]) -> NDArray[np.uint32]:
    lengths, chunk_lengths = pairs[:, 0], pairs[:, 1]
    if ((chunk_lengths == 0) & (lengths != 0)).any():
        refuse("an array that is not empty has chunks of no length")
    divisors = np.maximum(chunk_lengths, 1)
    chunks = lengths // divisors + (lengths % divisors != 0)
    if len(chunks) and chunks.max() > np.iinfo(np.uint32).max:
        refuse("an array has more chunks along a dimension than 32 bits can count")
    counts: NDArray[np.uint32] = chunks.astype(np.uint32)
    return counts
