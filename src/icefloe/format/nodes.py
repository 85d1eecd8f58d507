"""The groups and arrays of a snapshot: as columns sorted by path, or read one by one."""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from functools import cache
from itertools import chain, pairwise
from operator import lt
from struct import Struct
from typing import Final, Self, cast

import numpy as np
from numpy.typing import NDArray

from icefloe.format.columns import (
    Bools,
    Bytes,
    BytesColumn,
    Ints,
    concat_bytes,
    ranges,
    splits_of,
    take_ragged,
)
from icefloe.format.flatbuffer_reader import Buffer, Tables, refuse
from icefloe.format.flatbuffer_scalar import FEW_TABLES, ScalarBuffer, ScalarTable, StoredList
from icefloe.format.flatbuffer_writer import OFFSET, TableShape, Tree
from icefloe.format.ids import ManifestId, NodeId, id_rows, ids_of_rows, raw_rows
from icefloe.records import Record, force_setattr, replace


class ManifestRef(Record):
    """A manifest of an array, and the box of chunks that it covers."""

    id: ManifestId
    extents: tuple[tuple[int, int], ...]
    """First chunk and first chunk after, for each dimension; none: everything."""


class ArrayInfo(Record):
    """The facts about an array that a snapshot stores beside its Zarr metadata."""

    shape: tuple[int, ...]
    num_chunks: tuple[int, ...]
    dimension_names: tuple[str | None, ...] | None = None
    manifests: tuple[ManifestRef, ...] = ()


class GroupNode(Record):
    """A group at a path."""

    id: NodeId
    path: str
    user_data: bytes
    """The exact bytes of its `zarr.json`."""


class ArrayNode(Record):
    """An array at a path."""

    id: NodeId
    path: str
    user_data: bytes
    """The exact bytes of its `zarr.json`."""
    array: ArrayInfo


type Node = GroupNode | ArrayNode


def node_of(node_id: NodeId, path: str, user_data: bytes, array: ArrayInfo | None) -> Node:
    """Return the node of an array, or of a group if `array` is None."""
    if array is None:
        return GroupNode(node_id, path, user_data)
    return ArrayNode(node_id, path, user_data, array)


class NodeTable(Record, eq=False):
    """Nodes in columns, sorted by the bytes of their paths.

    A column with a `…_splits` beside it holds several items for each row: those of row `i`
    lie from `splits[i]` up to `splits[i + 1]`.
    """

    ids: Bytes
    paths: BytesColumn
    user_data: BytesColumn
    is_array: Bools
    shape_splits: Ints
    array_lengths: NDArray[np.uint64]
    num_chunks: NDArray[np.uint32]
    has_names: Bools
    name_splits: Ints
    names: BytesColumn
    """Dimension names; an empty one stands for none."""
    manifest_splits: Ints
    manifest_ids: Bytes
    extent_splits: Ints
    """Splits `extents` by manifest, not by node."""
    extents: NDArray[np.uint32]
    """(n, 2): first chunk and first chunk after."""
    _known_rows: dict[str, int] | None = None

    @classmethod
    def from_nodes(cls, nodes: Sequence[Node]) -> Self:
        """Pack a list of nodes, in any order.

        >>> root = GroupNode(NodeId.random(), "/", b'{"zarr_format":3,"node_type":"group"}')
        >>> NodeTable.from_nodes([root]).find("/") == root
        True
        """
        nodes = sorted(nodes, key=lambda node: node.path.encode())
        arrays = [
            node.array if isinstance(node, ArrayNode) else ArrayInfo((), ()) for node in nodes
        ]
        names = [array.dimension_names or () for array in arrays]
        manifests = [ref for array in arrays for ref in array.manifests]
        return cls(
            ids=id_rows(NodeId, [node.id for node in nodes]),
            paths=BytesColumn.from_strings([node.path for node in nodes]),
            user_data=BytesColumn.from_list([node.user_data for node in nodes]),
            is_array=np.array([isinstance(node, ArrayNode) for node in nodes], np.bool_),
            shape_splits=_splits([array.shape for array in arrays]),
            array_lengths=np.array([n for array in arrays for n in array.shape], np.uint64),
            num_chunks=np.array([n for array in arrays for n in array.num_chunks], np.uint32),
            has_names=np.array([a.dimension_names is not None for a in arrays], np.bool_),
            name_splits=_splits(names),
            names=BytesColumn.from_strings([name or "" for own in names for name in own]),
            manifest_splits=_splits([array.manifests for array in arrays]),
            manifest_ids=id_rows(ManifestId, [ref.id for ref in manifests]),
            extent_splits=_splits([ref.extents for ref in manifests]),
            extents=np.array([r for ref in manifests for r in ref.extents], np.uint32).reshape(
                -1, 2
            ),
        )

    def table(self) -> Self:
        """Return all nodes in columns, as those do that are still in a file."""
        return self

    def __len__(self) -> int:
        return len(self.is_array)

    def row_of(self, path: str) -> int | None:
        """Find the row of a path."""
        return self._rows.get(path)

    @property
    def _rows(self) -> dict[str, int]:
        """The row of each path; computed on first use, because many tables never need it."""
        if self._known_rows is None:
            rows = {path: row for row, path in enumerate(self.paths.to_strings())}
            force_setattr(self, "_known_rows", rows)
            return rows
        return self._known_rows

    def find(self, path: str) -> Node | None:
        """Look up one node."""
        row = self.row_of(path)
        return None if row is None else self.node(row)

    def node(self, row: int) -> Node:
        """Return one row as an object."""
        if self.is_array[row]:
            return self.array(row)
        node_id, path = NodeId(self.ids[row].tobytes()), self.paths[row].decode()
        return GroupNode(node_id, path, self.user_data[row])

    def array(self, row: int) -> ArrayNode:
        """Return one row, which must be that of an array, as an object."""
        first_dim, last_dim = self.shape_splits[row : row + 2].tolist()
        first_ref, last_ref = self.manifest_splits[row : row + 2].tolist()
        splits = self.extent_splits[first_ref : last_ref + 1].tolist()
        extents = self.extents[splits[0] : splits[-1]].tolist()
        boxes = cast("list[tuple[int, int]]", list(map(tuple, extents)))
        manifests = tuple(
            ManifestRef(manifest_id, tuple(boxes[begin - splits[0] : end - splits[0]]))
            for manifest_id, (begin, end) in zip(
                ids_of_rows(ManifestId, self.manifest_ids[first_ref:last_ref]),
                pairwise(splits),
                strict=True,
            )
        )
        names = None
        if self.has_names[row]:
            first, last = self.name_splits[row : row + 2].tolist()
            names = tuple(name.decode() or None for name in self.names.rows(first, last))
        array = ArrayInfo(
            tuple(self.array_lengths[first_dim:last_dim].tolist()),
            tuple(self.num_chunks[first_dim:last_dim].tolist()),
            names,
            manifests,
        )
        node_id, path = NodeId(self.ids[row].tobytes()), self.paths[row].decode()
        return ArrayNode(node_id, path, self.user_data[row], array)

    def take(self, rows: Ints) -> Self:
        """Pick rows, in the order given."""
        shape_splits, dims = take_ragged(self.shape_splits, rows)
        name_splits, names = take_ragged(self.name_splits, rows)
        manifest_splits, manifests = take_ragged(self.manifest_splits, rows)
        extent_splits, extents = take_ragged(self.extent_splits, manifests)
        return type(self)(
            ids=self.ids[rows],
            paths=self.paths.take(rows),
            user_data=self.user_data.take(rows),
            is_array=self.is_array[rows],
            shape_splits=shape_splits,
            array_lengths=self.array_lengths[dims],
            num_chunks=self.num_chunks[dims],
            has_names=self.has_names[rows],
            name_splits=name_splits,
            names=self.names.take(names),
            manifest_splits=manifest_splits,
            manifest_ids=self.manifest_ids[manifests],
            extent_splits=extent_splits,
            extents=self.extents[extents],
        )

    def with_manifests(self, manifests: Mapping[int, Sequence[ManifestRef]]) -> Self:
        """Replace the manifests of the arrays in some rows."""
        refs = [ref for own in manifests.values() for ref in own]
        # New links and boxes stand behind all others, from where rows take them.
        links, boxes = (
            np.concatenate([stored, stored[-1] + new[1:]])
            for stored, new in (
                (self.manifest_splits, _splits(list(manifests.values()))),
                (self.extent_splits, _splits([ref.extents for ref in refs])),
            )
        )
        ids = np.concatenate([self.manifest_ids, id_rows(ManifestId, [ref.id for ref in refs])])
        pairs = np.array([pair for ref in refs for pair in ref.extents], np.uint32)
        extents = np.concatenate([self.extents, pairs.reshape(-1, 2)])
        rows = np.arange(len(self))
        rows[list(manifests)] = len(self) + np.arange(len(manifests))
        manifest_splits, taken = take_ragged(links, rows)
        extent_splits, taken_extents = take_ragged(boxes, taken)
        return replace(
            self,
            manifest_splits=manifest_splits,
            manifest_ids=ids[taken],
            extent_splits=extent_splits,
            extents=extents[taken_extents],
            _known_rows=self._known_rows,
        )

    def overlay(self, newer: Self, deleted_paths: Sequence[str] = ()) -> Self:
        """Delete some paths, then put newer nodes over these."""
        replaced = {*newer.paths.to_list(), *(path.encode() for path in deleted_paths)}
        united = _concat([self, newer])
        paths = united.paths.to_list()
        rows = [row for row in range(len(self)) if paths[row] not in replaced]
        order = sorted([*rows, *range(len(self), len(united))], key=paths.__getitem__)
        return united.take(np.array(order, np.int64))


def _splits(rows: Sequence[Sequence[object]]) -> Ints:
    return splits_of(np.array([len(row) for row in rows], np.int64))


def _concat[T: NodeTable](tables: Sequence[T]) -> T:
    def splits(name: str) -> Ints:
        return splits_of(np.concatenate([np.diff(getattr(table, name)) for table in tables]))

    return type(tables[0])(
        ids=np.concatenate([t.ids for t in tables]),
        paths=concat_bytes([t.paths for t in tables]),
        user_data=concat_bytes([t.user_data for t in tables]),
        is_array=np.concatenate([t.is_array for t in tables]),
        shape_splits=splits("shape_splits"),
        array_lengths=np.concatenate([t.array_lengths for t in tables]),
        num_chunks=np.concatenate([t.num_chunks for t in tables]),
        has_names=np.concatenate([t.has_names for t in tables]),
        name_splits=splits("name_splits"),
        names=concat_bytes([t.names for t in tables]),
        manifest_splits=splits("manifest_splits"),
        manifest_ids=np.concatenate([t.manifest_ids for t in tables]),
        extent_splits=splits("extent_splits"),
        extents=np.concatenate([t.extents for t in tables]),
    )


class NodeSlot:
    """Slots of one node."""

    ID = 0
    PATH = 1
    USER_DATA = 2
    KIND = 3
    CONTENT = 4


class NodeKind(IntEnum):
    """The kind of a node: group or array."""

    ARRAY = 1
    GROUP = 2


class ArraySlot:
    """Slots of what is particular to an array."""

    SHAPE = 0
    DIMENSION_NAMES = 1
    MANIFESTS = 2
    SHAPE_V2 = 3


DIMENSION_NAME: Final = 0
ARRAY_LENGTH, NUM_CHUNKS = 0, 1
REF_ID, REF_EXTENTS = 0, 1

_NODE: Final = TableShape(
    (NodeSlot.PATH, OFFSET),
    (NodeSlot.USER_DATA, OFFSET),
    (NodeSlot.CONTENT, OFFSET),
    (NodeSlot.ID, f"{NodeId.WIDTH}s"),
    (NodeSlot.KIND, "B"),
)
_GROUP: Final = TableShape()
_DIMENSION: Final = TableShape((NUM_CHUNKS, "I"), (ARRAY_LENGTH, "Q"))
_NAME: Final = TableShape((DIMENSION_NAME, OFFSET))
_NO_NAME: Final = TableShape()
_REF: Final = TableShape((REF_EXTENTS, OFFSET), (REF_ID, f"{ManifestId.WIDTH}s"))
_REF_START: Final = _REF.blank()[: _REF.lead_bytes + _REF.at[REF_EXTENTS]]
_REF_HEAD: Final = _REF_START + (_REF.table_bytes - _REF.at[REF_EXTENTS]).to_bytes(4, "little")
"""What all links to manifests begin with, up to the id."""
_EXTENT_BYTES: Final = 8
_LARGEST_COUNT: Final = 2**32 - 1


@cache
def _array_shape(*, has_names: bool, is_v1: bool) -> TableShape:
    slots = [ArraySlot.SHAPE, ArraySlot.MANIFESTS]
    slots += [ArraySlot.DIMENSION_NAMES] if has_names else []
    slots += [] if is_v1 else [ArraySlot.SHAPE_V2]
    return TableShape(*((slot, OFFSET) for slot in slots))


def write_node(tree: Tree, nodes: NodeTable, row: int, field: int, *, is_v1: bool) -> None:
    """Add a node and all that is below it."""
    is_array = bool(nodes.is_array[row])
    kind = NodeKind.ARRAY if is_array else NodeKind.GROUP
    position = tree.table(_NODE, nodes.ids[row].tobytes(), kind, field=field)
    tree.blob(nodes.paths[row], position + _NODE.at[NodeSlot.PATH])
    tree.blob(nodes.user_data[row], position + _NODE.at[NodeSlot.USER_DATA])
    content = position + _NODE.at[NodeSlot.CONTENT]
    if not is_array:
        tree.table(_GROUP, field=content)
        return
    has_names = bool(nodes.has_names[row])
    shape = _array_shape(has_names=has_names, is_v1=is_v1)
    array = tree.table(shape, field=content)
    fields = {slot: array + offset for slot, offset in shape.at.items()}
    _write_shape(tree, nodes, row, fields)
    if has_names:
        _write_names(tree, nodes, row, fields[ArraySlot.DIMENSION_NAMES])
    refs = _written_refs(nodes, row)
    tree.written_tables(refs, _REF.lead_bytes, fields[ArraySlot.MANIFESTS])


def _write_shape(tree: Tree, nodes: NodeTable, row: int, fields: Mapping[int, int]) -> None:
    first, last = nodes.shape_splits[row : row + 2].tolist()
    lengths, counts = nodes.array_lengths[first:last], nodes.num_chunks[first:last]
    sizes = list(zip(lengths.tolist(), counts.tolist(), strict=True))
    if ArraySlot.SHAPE_V2 in fields:
        tree.items(0, b"", fields[ArraySlot.SHAPE], alignment=8)
        dimensions = tree.links(len(sizes), fields[ArraySlot.SHAPE_V2])
        for dimension, (length, count) in zip(dimensions, sizes, strict=True):
            tree.table(_DIMENSION, count, length, field=dimension)
    else:
        pairs = [(length, -(-length // count) if count else 0) for length, count in sizes]
        raw = Struct(f"<{2 * len(pairs)}Q").pack(*chain.from_iterable(pairs))
        tree.items(len(pairs), raw, fields[ArraySlot.SHAPE], alignment=8)


def _write_names(tree: Tree, nodes: NodeTable, row: int, field: int) -> None:
    first, last = nodes.name_splits[row : row + 2].tolist()
    fields = tree.links(last - first, field)
    for link, name in zip(fields, nodes.names.rows(first, last), strict=True):
        if name:
            named = tree.table(_NAME, field=link)
            tree.blob(name, named + _NAME.at[DIMENSION_NAME])
        else:
            tree.table(_NO_NAME, field=link)


def _written_refs(nodes: NodeTable, row: int) -> list[bytes]:
    """Write the links to manifests, of which an array may have hundreds; extents lie behind."""
    first, last = nodes.manifest_splits[row : row + 2].tolist()
    splits = nodes.extent_splits[first : last + 1].tolist()
    extents = nodes.extents[splits[0] : splits[-1]].astype("<u4").tobytes()
    edges = [_EXTENT_BYTES * (split - splits[0]) for split in splits]
    return [
        b"".join((_REF_HEAD, raw, (end - begin).to_bytes(4, "little"), extents[start:to]))
        for raw, (begin, end), (start, to) in zip(
            raw_rows(nodes.manifest_ids[first:last]), pairwise(splits), pairwise(edges), strict=True
        )
    ]


def read_node(table: ScalarTable) -> Node:
    """Read a node and all that is below it."""
    kind = table.number(NodeSlot.KIND, "B")
    if kind not in (NodeKind.ARRAY, NodeKind.GROUP):
        refuse("a node is neither a group nor an array")
    content = table.child(NodeSlot.CONTENT)
    node_id = NodeId(table.struct(NodeSlot.ID, NodeId.WIDTH))
    path, user_data = table.text(NodeSlot.PATH), table.blob(NodeSlot.USER_DATA)
    return node_of(
        node_id, path, user_data, _read_array(content) if kind == NodeKind.ARRAY else None
    )


def num_links(table: ScalarTable) -> int:
    """Count the manifests of a node."""
    if table.number(NodeSlot.KIND, "B") != NodeKind.ARRAY:
        return 0
    return table.child(NodeSlot.CONTENT).vector(ArraySlot.MANIFESTS, 4)[1]


def _read_array(table: ScalarTable) -> ArrayInfo:
    names = table.optional_children(ArraySlot.DIMENSION_NAMES)
    shape, num_chunks = _read_shape(table)
    return ArrayInfo(
        shape,
        num_chunks,
        None if names is None else tuple(n.optional_text(DIMENSION_NAME) or None for n in names),
        tuple(map(_read_manifest, table.children(ArraySlot.MANIFESTS))),
    )


def _read_shape(table: ScalarTable) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Read a shape of either form: array lengths, numbers of chunks."""
    raw = table.items(ArraySlot.SHAPE, 16, 8)
    if raw is None:
        refuse("a required field is missing")
    dimensions = table.optional_children(ArraySlot.SHAPE_V2)
    if dimensions is not None:
        return (
            tuple(dimension.number(ARRAY_LENGTH, "Q") for dimension in dimensions),
            tuple(dimension.number(NUM_CHUNKS, "I") for dimension in dimensions),
        )
    pairs = list(Struct("<QQ").iter_unpack(raw))
    if any(chunk == 0 and length != 0 for length, chunk in pairs):
        refuse("an array that is not empty has chunks of no length")
    counts = tuple(-(-length // max(chunk, 1)) for length, chunk in pairs)
    if any(count > _LARGEST_COUNT for count in counts):
        refuse("an array has more chunks along a dimension than 32 bits can count")
    return tuple(length for length, _ in pairs), counts


def _read_manifest(table: ScalarTable) -> ManifestRef:
    raw = table.items(REF_EXTENTS, 8, 4)
    if raw is None:
        refuse("a required field is missing")
    extents = tuple((first, last) for first, last in Struct("<II").iter_unpack(raw))
    return ManifestRef(ManifestId(table.struct(REF_ID, ManifestId.WIDTH)), extents)


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
            raw_path = path.encode(errors="surrogatepass")
            node = buffer.root().find_child(
                self._slot, raw_path, lambda node: node.blob(NodeSlot.PATH)
            )
            if node is None:
                return None
            if num_links(node) <= _FEW_LINKS:
                return read_node(node)
        return self.table().find(path)

    def _read(self, buffer: ScalarBuffer) -> NodeTable:
        return read_nodes(buffer, self._slot, FEW_TABLES)


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
