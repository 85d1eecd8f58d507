"""Transaction logs: which nodes and chunks a commit touched."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from struct import Struct
from typing import Final

import numpy as np

from icefloe.format.chunk_table import Coordinates, sort_keys
from icefloe.format.columns import Bytes, Ints, is_ascending, ranges, splits_of
from icefloe.format.envelope import (
    BULK_LEVEL,
    MAX_DIMENSIONS,
    FileType,
    decompress,
    open_envelope,
)
from icefloe.format.flatbuffer_reader import Buffer, Tables, Vectors, refuse
from icefloe.format.flatbuffer_scalar import FEW_TABLES, ScalarBuffer, ScalarTable
from icefloe.format.flatbuffer_writer import (
    OFFSET,
    ListSection,
    Section,
    TableShape,
    Tree,
    seal_buffer,
)
from icefloe.format.ids import NodeId, SnapshotId, has_repeated_node, ids_of_rows
from icefloe.format.log_chunks import (
    CoordinateRuns,
    CoordinateSection,
    recognise_coordinates,
    spaced_coordinates,
)
from icefloe.records import Record, field

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

_PART_CHUNKS: Final = 1 << 15
"""So many are read at a time: they fit in the processor's cache."""


class _Move:
    """Slots of one moved node."""

    FROM = 0
    TO = 1
    NODE_ID = 2
    NODE_TYPE = 3


_ROOT: Final = TableShape(
    *((slot, OFFSET) for slot in range(1, _MOVED_NODES + 1)), (_ID, f"{SnapshotId.WIDTH}s")
)
_ARRAY: Final = TableShape((_CHUNKS, OFFSET), (_NODE_ID, f"{NodeId.WIDTH}s"))
_CHUNK: Final = TableShape((_COORDINATES, OFFSET))
_MOVE: Final = TableShape(
    (_Move.FROM, OFFSET),
    (_Move.TO, OFFSET),
    (_Move.NODE_ID, f"{NodeId.WIDTH}s"),
    (_Move.NODE_TYPE, "B"),
)


def _no_ids() -> Bytes:
    return np.empty((0, NodeId.WIDTH), np.uint8)


class Move(Record):
    """A node that a commit renamed."""

    source: str
    target: str
    node: NodeId
    is_array: bool


class TransactionLog(Record, eq=False):
    """The changes of a commit; columns of node ids are sorted by their bytes."""

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
        """Return one of the id lists as objects."""
        return ids_of_rows(NodeId, getattr(self, name))


def encode_transaction_log(
    log: TransactionLog,
    *,
    spec_version: int = 2,
    level: int = BULK_LEVEL,
    few: int = FEW_TABLES,
    runs: Mapping[NodeId, CoordinateRuns] | None = None,
) -> bytes:
    """Write a transaction log file.

    `runs` are the chunks of arrays that have too many of them to be held as they are; they stand
    in place of those in the log.

    >>> from icefloe.format.ids import INITIAL_SNAPSHOT_ID
    >>> file = encode_transaction_log(TransactionLog(INITIAL_SNAPSHOT_ID))
    >>> decode_transaction_log(file).id == INITIAL_SNAPSHOT_ID
    True
    """
    tree = Tree()
    root = tree.table(_ROOT, log.id.raw)
    for slot, name in enumerate(ID_LISTS, start=1):
        ids = sorted_ids(getattr(log, name))
        tree.items(len(ids), ids.tobytes(), root + _ROOT.at[slot])
    _write_moves(tree, log.moves, root + _ROOT.at[_MOVED_NODES])
    updated: dict[NodeId, Coordinates | CoordinateRuns] = {**log.updated_chunks}
    updated |= runs or {}
    below = _write_chunks(tree, updated, root + _ROOT.at[_UPDATED_CHUNKS], few)
    return seal_buffer([tree, *below], FileType.TRANSACTION_LOG, spec_version, level=level)


def log_bytes_of_chunk(dimensions: int) -> int:
    """Return the bytes that each chunk takes in a log, before compression: all have at most 2 GiB.

    >>> 2**31 // log_bytes_of_chunk(3)
    74051160
    """
    return 17 + 4 * dimensions  # two offsets, a link to a vtable, a length; a part of a vtable


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


def _write_chunks(
    tree: Tree,
    updated: Mapping[NodeId, Coordinates | CoordinateRuns],
    field: int,
    few: int,
) -> list[Section]:
    """Add the chunks of each array; give the sections of those that have many."""
    below = list[Section]()
    nodes = sorted(updated)
    for node, link in zip(nodes, tree.links(len(nodes), field), strict=True):
        coordinates = updated[node]
        if isinstance(coordinates, CoordinateRuns):
            if len(coordinates) <= few:
                batches = coordinates.batches(max(few, 1))
                none = np.empty((0, coordinates.dimensions), np.uint32)
                coordinates = np.concatenate([none, *batches])
        else:
            coordinates = sorted_coordinates(coordinates)
        chunks = tree.table(_ARRAY, node.raw, field=link) + _ARRAY.at[_CHUNKS]
        if not isinstance(coordinates, CoordinateRuns) and len(coordinates) <= few:
            index = Struct(f"<{coordinates.shape[1]}I")
            fields = tree.links(len(coordinates), chunks)
            for chunk, index_field in zip(coordinates.tolist(), fields, strict=True):
                position = tree.table(_CHUNK, field=index_field) + _CHUNK.at[_COORDINATES]
                tree.items(len(chunk), index.pack(*chunk), position)
        else:
            block = CoordinateSection(coordinates, _COORDINATES)
            one_list = ListSection(block.rows, block)
            tree.link_outside(one_list, chunks)
            below += [one_list, block]
    return below


def _write_moves(tree: Tree, moves: tuple[Move, ...], field: int) -> None:
    ordered = sorted(moves, key=lambda move: move.target.split("/"))
    for move, link in zip(ordered, tree.links(len(moves), field), strict=True):
        position = tree.table(_MOVE, move.node.raw, move.is_array, field=link)
        tree.blob(move.source.encode(), position + _MOVE.at[_Move.FROM])
        tree.blob(move.target.encode(), position + _MOVE.at[_Move.TO])


def decode_transaction_log(
    data: bytes | bytearray | memoryview, *, few: int = FEW_TABLES
) -> TransactionLog:
    """Read a transaction log file."""
    envelope = open_envelope(data, FileType.TRANSACTION_LOG)
    buffer = ScalarBuffer(decompress(envelope.payload))
    root = buffer.root()
    lists = {name: _read_ids(root, slot) for slot, name in enumerate(ID_LISTS, start=1)}
    has_few = root.vector(_UPDATED_CHUNKS, 4)[1] <= few
    return TransactionLog(
        SnapshotId(root.struct(_ID, SnapshotId.WIDTH)),
        **lists,
        updated_chunks=_read_chunks(buffer, few)
        if has_few
        else _decode_chunks(Buffer(buffer.data).root()),
        moves=_read_moves(root.optional_children(_MOVED_NODES) or []),
    )


def _read_ids(root: ScalarTable, slot: int) -> Bytes:
    raw = root.items(slot, NodeId.WIDTH)
    if raw is None:
        refuse("a required field is missing")
    return np.frombuffer(raw, np.uint8).reshape(-1, NodeId.WIDTH)


def _read_chunks(buffer: ScalarBuffer, few: int) -> dict[NodeId, Coordinates]:
    """Read the chunks of a few arrays, one array after the other."""
    updated = dict[NodeId, Coordinates]()
    columnar = None
    for array in buffer.root().children(_UPDATED_CHUNKS):
        node = NodeId(array.struct(_NODE_ID, NodeId.WIDTH))
        if node in updated:
            refuse("a log lists the chunks of an array twice")
        start, count = array.vector(_CHUNKS, 4)
        if count <= few:
            updated[node] = _read_few(array.children(_CHUNKS))
        else:
            columnar = columnar or Buffer(buffer.data)
            updated[node] = _read_many(buffer, columnar, start, count)
    return updated


def _read_many(scalar: ScalarBuffer, buffer: Buffer, start: int, count: int) -> Coordinates:
    coordinates = recognise_coordinates(buffer.u32, start, count)
    if coordinates is not None:
        buffer.charge(coordinates.nbytes)
        return coordinates
    # Many writers put the vtable of all tables behind the first, which then lies further away.
    edges = [0, *range(1, count, _PART_CHUNKS), count]
    parts = [
        _read_part(scalar, buffer, start + 4 * first, last - first)
        for first, last in pairwise(edges)
    ]
    if any(part.shape[1] != parts[0].shape[1] for part in parts):
        refuse("the coordinates of one array differ in their number of dimensions")
    return np.concatenate(parts)


def _read_part(scalar: ScalarBuffer, buffer: Buffer, start: int, count: int) -> Coordinates:
    if count > 1:
        first = scalar.child_at(start)
        coordinates = spaced_coordinates(buffer.u32, first, start, count, _COORDINATES)
        if coordinates is not None:
            buffer.charge(coordinates.nbytes)
            return coordinates
    fields = Vectors(buffer, np.array([start]), np.array([count]), np.array([True]))
    return fields.tables().vectors(_COORDINATES, required=True).u32_matrix()


def _read_few(chunks: list[ScalarTable]) -> Coordinates:
    rows = [chunk.items(_COORDINATES, 4, 4) for chunk in chunks]
    dimensions = len(rows[0] or b"") // 4 if rows else 0
    if None in rows:
        refuse("a required field is missing")
    if dimensions > MAX_DIMENSIONS:
        refuse(f"an array of {dimensions} dimensions; the most is {MAX_DIMENSIONS}")
    if any(len(row or b"") != 4 * dimensions for row in rows):
        refuse("the coordinates of one array differ in their number of dimensions")
    flat = np.frombuffer(b"".join(row or b"" for row in rows), "<u4")
    return flat.reshape(len(rows), dimensions)


def _decode_chunks(root: Tables) -> dict[NodeId, Coordinates]:
    """Read the chunks of many arrays together."""
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


def _read_moves(tables: list[ScalarTable]) -> tuple[Move, ...]:
    moves = tuple(map(_read_move, tables))
    if len({move.node for move in moves}) < len(moves):
        refuse("a log moves a node twice")
    return moves


def _read_move(table: ScalarTable) -> Move:
    source, target = table.optional_text(_Move.FROM), table.optional_text(_Move.TO)
    node = table.optional_struct(_Move.NODE_ID, NodeId.WIDTH)
    if source is None or target is None or node is None:
        refuse("a moved node lacks its id or one of its paths")
    return Move(source, target, NodeId(node), bool(table.number(_Move.NODE_TYPE, "B")))


# -- several commits as one ------------------------------------------------------------------


def unite_logs(logs: Sequence[TransactionLog], snapshot: SnapshotId) -> TransactionLog:
    """Unite the logs of commits, oldest first.

    The lists are united as they are, so that a node may be in several of them. A node that
    was moved twice was moved once, from its first place to its last; one that came back was
    not moved.
    """
    return TransactionLog(
        snapshot,
        **{name: _united_ids([getattr(log, name) for log in logs]) for name in ID_LISTS},
        updated_chunks=_united_chunks([log.updated_chunks for log in logs]),
        moves=_chained([log.moves for log in logs]),
    )


def _united_ids(columns: Sequence[Bytes]) -> Bytes:
    united = np.concatenate(columns)
    return np.unique(united, axis=0) if len(united) else united


def _united_chunks(
    logs: Sequence[Mapping[NodeId, Coordinates]],
) -> dict[NodeId, Coordinates]:
    parts: dict[NodeId, list[Coordinates]] = {}
    for chunks in logs:
        for node, coordinates in chunks.items():
            if len(coordinates):
                parts.setdefault(node, []).append(coordinates)
    return {node: _united_coordinates(pieces) for node, pieces in parts.items()}


def _united_coordinates(parts: Sequence[Coordinates]) -> Coordinates:
    if len(parts) == 1:
        return parts[0]
    dimensions = parts[-1].shape[1]
    # An array keeps its number of dimensions for life, whatever a damaged log says.
    united = np.concatenate([part for part in parts if part.shape[1] == dimensions])
    [keys] = sort_keys(united)
    _, rows = np.unique(keys, return_index=True)
    return united[rows]


def _chained(moves: Sequence[tuple[Move, ...]]) -> tuple[Move, ...]:
    chained: dict[NodeId, Move] = {}
    for commit in moves:
        for move in commit:
            first = chained.get(move.node, move)
            chained[move.node] = Move(first.source, move.target, move.node, move.is_array)
    return tuple(move for move in chained.values() if move.source != move.target)
