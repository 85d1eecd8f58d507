"""Transaction logs: which nodes and chunks a commit touched."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

import numpy as np

from icefloe.format.chunk_table import Coordinates, sort_keys
from icefloe.format.columns import Bytes, BytesColumn, Ints, is_ascending, ranges, splits_of
from icefloe.format.envelope import BULK_LEVEL, FileType, decompress, open_envelope
from icefloe.format.flatbuffer_blocks import CoordinateSection
from icefloe.format.flatbuffer_reader import Buffer, Tables, Vectors, refuse
from icefloe.format.flatbuffer_writer import (
    BlobSection,
    Field,
    Link,
    Section,
    Spread,
    TableSection,
    VectorSection,
    number,
    seal_buffer,
)
from icefloe.format.ids import NodeId, SnapshotId, has_repeated_node, id_rows, ids_of_rows

ID_LISTS: Final = (
    "new_groups",
    "new_arrays",
    "deleted_groups",
    "deleted_arrays",
    "updated_arrays",
    "updated_groups",
)
"""The lists of node ids, in the order of their slots, which start at 1."""

_ID, _UPDATED_CHUNKS, _MOVED_NODES = 0, 7, 8
_NODE_ID, _CHUNKS = 0, 1
_COORDINATES = 0


class _Move(IntEnum):
    """Slots of one moved node."""

    FROM = 0
    TO = 1
    NODE_ID = 2
    NODE_TYPE = 3


def _no_ids() -> Bytes:
    return np.empty((0, NodeId.WIDTH), np.uint8)


@dataclass(frozen=True, slots=True)
class Move:
    """A node that a commit renamed."""

    source: str
    target: str
    node: NodeId
    is_array: bool


@dataclass(frozen=True, slots=True, eq=False)
class TransactionLog:
    """What one commit did; columns of node ids are sorted by their bytes."""

    id: SnapshotId
    new_groups: Bytes = field(default_factory=_no_ids)
    new_arrays: Bytes = field(default_factory=_no_ids)
    deleted_groups: Bytes = field(default_factory=_no_ids)
    deleted_arrays: Bytes = field(default_factory=_no_ids)
    updated_arrays: Bytes = field(default_factory=_no_ids)
    updated_groups: Bytes = field(default_factory=_no_ids)
    updated_chunks: Mapping[NodeId, Coordinates] = field(default_factory=dict)
    moves: tuple[Move, ...] = ()
    """In the order of the targets, compared segment by segment."""

    def nodes(self, name: str) -> list[NodeId]:
        """Give one of the id lists as objects."""
        return ids_of_rows(NodeId, getattr(self, name))


def encode_transaction_log(
    log: TransactionLog, *, spec_version: int = 2, level: int = BULK_LEVEL
) -> bytes:
    """Write a transaction log file.

    >>> from icefloe.format.ids import INITIAL_SNAPSHOT_ID
    >>> file = encode_transaction_log(TransactionLog(INITIAL_SNAPSHOT_ID))
    >>> decode_transaction_log(file).id == INITIAL_SNAPSHOT_ID
    True
    """
    lists = [
        VectorSection(np.array([len(ids)]), sorted_ids(ids))
        for ids in (getattr(log, name) for name in ID_LISTS)
    ]
    chunks, chunk_sections = _encode_chunks(log.updated_chunks)
    moves, move_sections = _encode_moves(log.moves)
    fields = [
        Field(_ID, id_rows(SnapshotId, [log.id])),
        *(Field(slot, Link(ids)) for slot, ids in enumerate(lists, start=1)),
        Field(_UPDATED_CHUNKS, Link(chunks)),
        Field(_MOVED_NODES, Link(moves)),
    ]
    sections: list[Section] = [TableSection(1, fields), *lists, moves, *move_sections]
    sections += [chunks, *chunk_sections]
    return seal_buffer(sections, FileType.TRANSACTION_LOG, spec_version, level=level)


def sorted_ids(ids: Bytes) -> Bytes:
    """Sort rows of bytes, as readers expect that search them."""
    if len(ids) < 2:
        return ids
    keys = np.ascontiguousarray(ids).view(f"S{ids.shape[1]}").ravel()
    return ids[np.argsort(keys, kind="stable")]


def sorted_coordinates(coordinates: Coordinates) -> Coordinates:
    """Sort coordinates by their elements."""
    [keys] = sort_keys(coordinates)
    if is_ascending(keys):
        return coordinates
    return coordinates[np.argsort(keys, kind="stable")]


def _encode_chunks(updated: Mapping[NodeId, Coordinates]) -> tuple[VectorSection, list[Section]]:
    nodes = sorted(updated)
    blocks = [CoordinateSection(sorted_coordinates(updated[node]), _COORDINATES) for node in nodes]
    lists = [VectorSection(np.array([block.rows]), Link(block)) for block in blocks]
    tables = TableSection(
        len(nodes),
        [Field(_NODE_ID, id_rows(NodeId, nodes)), Field(_CHUNKS, Link(Spread(lists)))],
    )
    sections: list[Section] = [tables]
    for one_list, block in zip(lists, blocks, strict=True):
        sections += [one_list, block]
    return VectorSection(np.array([len(nodes)]), Link(tables)), sections


def _encode_moves(moves: tuple[Move, ...]) -> tuple[VectorSection, list[Section]]:
    ordered = sorted(moves, key=lambda move: move.target.split("/"))
    sources = BlobSection(BytesColumn.from_strings([move.source for move in ordered]))
    targets = BlobSection(BytesColumn.from_strings([move.target for move in ordered]))
    fields = [
        Field(_Move.FROM, Link(sources)),
        Field(_Move.TO, Link(targets)),
        Field(_Move.NODE_ID, id_rows(NodeId, [move.node for move in ordered])),
        number(_Move.NODE_TYPE, np.array([move.is_array for move in ordered], np.uint8)),
    ]
    tables = TableSection(len(ordered), fields)
    return VectorSection(np.array([len(ordered)]), Link(tables)), [tables, sources, targets]


def decode_transaction_log(data: bytes | bytearray | memoryview) -> TransactionLog:
    """Read a transaction log file."""
    envelope = open_envelope(data, FileType.TRANSACTION_LOG)
    root = Buffer(decompress(envelope.payload)).root()
    lists = {
        name: root.vectors(slot, NodeId.WIDTH, required=True).byte_structs(NodeId.WIDTH)
        for slot, name in enumerate(ID_LISTS, start=1)
    }
    return TransactionLog(
        SnapshotId(root.struct(_ID, SnapshotId.WIDTH).tobytes()),
        **lists,
        updated_chunks=_decode_chunks(root),
        moves=_decode_moves(root.vectors(_MOVED_NODES).tables()),
    )


def _decode_chunks(root: Tables) -> dict[NodeId, Coordinates]:
    arrays = root.vectors(_UPDATED_CHUNKS, required=True).tables()
    ids = arrays.struct(_NODE_ID, NodeId.WIDTH)
    if has_repeated_node(ids):
        refuse("a log lists the chunks of an array twice")
    lists = arrays.vectors(_CHUNKS, required=True)
    coordinates = lists.tables().vectors(_COORDINATES, required=True)
    nodes = ids_of_rows(NodeId, ids)
    return dict(zip(nodes, _split_by_array(lists.counts, coordinates), strict=True))


def _split_by_array(chunk_counts: Ints, coordinates: Vectors) -> list[Coordinates]:
    """Read the coordinates of all arrays, those with equally many dimensions together."""
    firsts = splits_of(chunk_counts)[:-1]
    dimensions = np.zeros(len(chunk_counts), np.int64)
    dimensions[chunk_counts > 0] = coordinates.counts[firsts[chunk_counts > 0]]
    if (np.repeat(dimensions, chunk_counts) != coordinates.counts).any():
        refuse("the coordinates of one array differ in their number of dimensions")
    matrices = [np.empty((0, 0), np.uint32)] * len(chunk_counts)
    order = np.argsort(dimensions, kind="stable")
    _, edges = np.unique(dimensions[order], return_index=True)
    for alike in np.split(order, edges[1:]):
        counts = chunk_counts[alike]
        is_all = len(alike) == len(order)
        theirs = coordinates if is_all else coordinates.pick(ranges(firsts[alike], counts))
        matrix = theirs.u32_matrix()
        splits = splits_of(counts).tolist()
        for array, first, last in zip(alike.tolist(), splits, splits[1:], strict=False):
            matrices[array] = matrix[first:last]
    return matrices


def _decode_moves(tables: Tables) -> tuple[Move, ...]:
    if len(tables) == 0:
        return ()
    sources, targets = tables.blobs(_Move.FROM), tables.blobs(_Move.TO)
    ids, has_id = tables.optional_struct(_Move.NODE_ID, NodeId.WIDTH)
    if not (has_id & sources.present & targets.present).all():
        refuse("a moved node lacks its id or one of its paths")
    if has_repeated_node(ids):
        refuse("a log moves a node twice")
    return tuple(
        Move(source, target, node, bool(is_array))
        for source, target, node, is_array in zip(
            sources.column().to_strings(),
            targets.column().to_strings(),
            ids_of_rows(NodeId, ids),
            tables.u8(_Move.NODE_TYPE),
            strict=True,
        )
    )
