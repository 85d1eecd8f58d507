"""Single nodes of a snapshot: written and read one by one, where there are few."""

from collections.abc import Mapping
from enum import IntEnum
from functools import cache
from itertools import chain, pairwise
from struct import Struct
from typing import Final

from icefloe.format.flatbuffer_reader import refuse
from icefloe.format.flatbuffer_scalar import ScalarTable
from icefloe.format.flatbuffer_tree import OFFSET, TableShape, Tree
from icefloe.format.ids import ManifestId, NodeId, raw_rows
from icefloe.format.node_table import ArrayInfo, ManifestRef, Node, NodeTable


class NodeSlot(IntEnum):
    """Slots of one node."""

    ID = 0
    PATH = 1
    USER_DATA = 2
    KIND = 3
    CONTENT = 4


class NodeKind(IntEnum):
    """What the content of a node is."""

    ARRAY = 1
    GROUP = 2


class ArraySlot(IntEnum):
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
    at = tree.table(_NODE, nodes.ids[row].tobytes(), kind, field=field)
    tree.blob(nodes.paths[row], at + _NODE.at[NodeSlot.PATH])
    tree.blob(nodes.user_data[row], at + _NODE.at[NodeSlot.USER_DATA])
    content = at + _NODE.at[NodeSlot.CONTENT]
    if is_array:
        _write_array(tree, nodes, row, content, is_v1=is_v1)
    else:
        tree.table(_GROUP, field=content)


def _write_array(tree: Tree, nodes: NodeTable, row: int, field: int, *, is_v1: bool) -> None:
    has_names = bool(nodes.has_names[row])
    shape = _array_shape(has_names=has_names, is_v1=is_v1)
    at = tree.table(shape, field=field)
    fields = {slot: at + place for slot, place in shape.at.items()}
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
        for each, (length, count) in zip(dimensions, sizes, strict=True):
            tree.table(_DIMENSION, count, length, field=each)
    else:
        pairs = [(length, -(-length // count) if count else 0) for length, count in sizes]
        raw = Struct(f"<{2 * len(pairs)}Q").pack(*chain.from_iterable(pairs))
        tree.items(len(pairs), raw, fields[ArraySlot.SHAPE], alignment=8)


def _write_names(tree: Tree, nodes: NodeTable, row: int, field: int) -> None:
    first, last = nodes.name_splits[row : row + 2].tolist()
    fields = tree.links(last - first, field)
    for each, name in zip(fields, nodes.names.rows(first, last), strict=True):
        if name:
            named = tree.table(_NAME, field=each)
            tree.blob(name, named + _NAME.at[DIMENSION_NAME])
        else:
            tree.table(_NO_NAME, field=each)


def _written_refs(nodes: NodeTable, row: int) -> list[bytes]:
    """Write the links to manifests, of which an array may have hundreds; extents lie behind."""
    first, last = nodes.manifest_splits[row : row + 2].tolist()
    splits = nodes.extent_splits[first : last + 1].tolist()
    extents = nodes.extents[splits[0] : splits[-1]].astype("<u4").tobytes()
    edges = [_EXTENT_BYTES * (split - splits[0]) for split in splits]
    return [
        b"".join((_REF_HEAD, raw, (end - begin).to_bytes(4, "little"), extents[at:to]))
        for raw, (begin, end), (at, to) in zip(
            raw_rows(nodes.manifest_ids[first:last]), pairwise(splits), pairwise(edges), strict=True
        )
    ]


def read_node(table: ScalarTable) -> Node:
    """Read a node and all that is below it."""
    kind = table.number(NodeSlot.KIND, "B")
    if kind not in (NodeKind.ARRAY, NodeKind.GROUP):
        refuse("a node is neither a group nor an array")
    content = table.child(NodeSlot.CONTENT)
    return Node(
        NodeId(table.struct(NodeSlot.ID, NodeId.WIDTH)),
        table.text(NodeSlot.PATH),
        table.blob(NodeSlot.USER_DATA),
        _read_array(content) if kind == NodeKind.ARRAY else None,
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
            tuple(each.number(ARRAY_LENGTH, "Q") for each in dimensions),
            tuple(each.number(NUM_CHUNKS, "I") for each in dimensions),
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
