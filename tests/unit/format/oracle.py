"""A second reader and writer of the same files: one field at a time, with the usual library.

Slow, simple and written from the tables of the specification alone, so that the columnar
codecs have something to agree with.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flatbuffers import Builder
from flatbuffers import number_types as kinds
from flatbuffers.table import Table

from icefloe.format.chunk_table import ChunkRef, ChunkTable, InlineChunk, NativeChunk, VirtualChunk
from icefloe.format.envelope import FileType, seal
from icefloe.format.ids import ChunkId, ManifestId, NodeId, SnapshotId
from icefloe.format.nodes import ArrayInfo, ArrayNode, ManifestRef, Node, NodeTable, node_of
from icefloe.format.transaction_log import ID_LISTS, Move
from icefloe.format.update_table import Status, UpdateEntry, UpdateKind

type Coordinate = tuple[int, ...]
type References = list[tuple[Coordinate, ChunkRef]]


def references(table: ChunkTable) -> References:
    """What a table of ours holds, row by row."""
    return [(tuple(table.coordinates[row].tolist()), table.ref(row)) for row in range(len(table))]


def node_list(table: NodeTable) -> list[Node]:
    return [table.node(row) for row in range(len(table))]


# -- reading -------------------------------------------------------------------------------


class Row:
    """One table."""

    def __init__(self, buffer: bytes, position: int) -> None:
        self._table = Table(buffer, position)

    @classmethod
    def root(cls, buffer: bytes) -> "Row":
        return cls(buffer, int.from_bytes(buffer[:4], "little"))

    def _field(self, slot: int) -> int | None:
        offset: int = self._table.Offset(4 + 2 * slot)
        return self._table.Pos + offset if offset else None

    def number(self, slot: int, kind: Any, default: int = 0) -> int:
        at = self._field(slot)
        return default if at is None else int(self._table.Get(kind, at))

    def struct(self, slot: int, width: int) -> bytes | None:
        at = self._field(slot)
        return None if at is None else bytes(self._table.Bytes[at : at + width])

    def id(self, slot: int, width: int = 12) -> bytes:
        raw = self.struct(slot, width)
        assert raw is not None
        return raw

    def _vector(self, slot: int) -> tuple[int, int] | None:
        offset: int = self._table.Offset(4 + 2 * slot)
        return (self._table.Vector(offset), self._table.VectorLen(offset)) if offset else None

    def blob(self, slot: int) -> bytes | None:
        found = self._vector(slot)
        return None if found is None else bytes(self._table.Bytes[found[0] : sum(found)])

    def text(self, slot: int) -> str | None:
        raw = self.blob(slot)
        return None if raw is None else raw.decode()

    def items(self, slot: int, width: int) -> list[bytes] | None:
        found = self._vector(slot)
        if found is None:
            return None
        start, count = found
        return [
            bytes(self._table.Bytes[at : at + width])
            for at in range(start, start + width * count, width)
        ]

    def numbers(self, slot: int, width: int = 4) -> list[int] | None:
        items = self.items(slot, width)
        return None if items is None else [int.from_bytes(one, "little") for one in items]

    def rows(self, slot: int) -> list["Row"] | None:
        found = self._vector(slot)
        if found is None:
            return None
        start, count = found
        places = range(start, start + 4 * count, 4)
        return [Row(self._table.Bytes, self._table.Indirect(at)) for at in places]

    def texts(self, slot: int) -> list[str]:
        start, count = self._vector(slot) or (0, 0)
        return [self._table.String(at).decode() for at in range(start, start + 4 * count, 4)]

    def child(self, slot: int) -> "Row":
        at = self._field(slot)
        assert at is not None
        return Row(self._table.Bytes, self._table.Indirect(at))


def _required[T](value: T | None) -> T:
    assert value is not None, "a required field is missing"
    return value


def read_manifest(buffer: bytes) -> tuple[ManifestId, dict[NodeId, References]]:
    """Read plain references; compressed locations are not for this reader."""
    root = Row.root(buffer)
    return ManifestId(root.id(0)), {
        NodeId(array.id(0, 8)): [
            (tuple(_required(ref.numbers(0))), _read_reference(ref))
            for ref in _required(array.rows(1))
        ]
        for array in _required(root.rows(1))
    }


def _read_reference(ref: Row) -> ChunkRef:
    offset, length = ref.number(2, kinds.Uint64Flags), ref.number(3, kinds.Uint64Flags)
    chunk_id, location = ref.struct(4, 12), ref.text(5)
    if chunk_id is not None:
        return NativeChunk(ChunkId(chunk_id), offset, length)
    if location is not None:
        modified = ref.number(7, kinds.Uint32Flags) or None
        return VirtualChunk(location, offset, length, ref.text(6), modified)
    return InlineChunk(_required(ref.blob(1)))


def compressed_references(buffer: bytes) -> int:
    """Count the references whose location is compressed."""
    arrays = _required(Row.root(buffer).rows(1))
    refs = [ref for array in arrays for ref in _required(array.rows(1))]
    return sum(ref.blob(8) is not None for ref in refs)


def dictionary(buffer: bytes) -> bytes | None:
    return Row.root(buffer).blob(2)


def read_log(buffer: bytes) -> dict[str, Any]:
    root = Row.root(buffer)
    return {
        "id": SnapshotId(root.id(0)),
        **{
            name: [NodeId(raw) for raw in _required(root.items(slot, 8))]
            for slot, name in enumerate(ID_LISTS, start=1)
        },
        "updated_chunks": {
            NodeId(array.id(0, 8)): [
                tuple(_required(chunk.numbers(0))) for chunk in _required(array.rows(1))
            ]
            for array in _required(root.rows(7))
        },
        "moves": tuple(
            Move(
                _required(move.text(0)),
                _required(move.text(1)),
                NodeId(move.id(2, 8)),
                bool(move.number(3, kinds.Uint8Flags)),
            )
            for move in root.rows(8) or []
        ),
    }


def read_snapshot(buffer: bytes) -> dict[str, Any]:
    root = Row.root(buffer)
    parent = root.struct(1, 12)
    return {
        "id": SnapshotId(root.id(0)),
        "parent_id": None if parent is None else SnapshotId(parent),
        "flushed_at": root.number(3, kinds.Uint64Flags),
        "message": root.text(4),
        "metadata": read_items(root, 5),
        "nodes": [_read_node(node) for node in _required(root.rows(2))],
        "manifests": _read_files(root),
        "is_v2": root.rows(7) is not None,
    }


def read_items(row: Row, slot: int) -> list[tuple[str, bytes]]:
    return [(_required(item.text(0)), _required(item.blob(1))) for item in row.rows(slot) or []]


def _read_files(root: Row) -> list[tuple[ManifestId, int, int]]:
    tables, structs = root.rows(7), _required(root.items(6, 32))
    if tables is None:
        return [
            (
                ManifestId(raw[:12]),
                int.from_bytes(raw[16:24], "little"),
                int.from_bytes(raw[24:28], "little"),
            )
            for raw in structs
        ]
    assert structs == []
    return [
        (
            ManifestId(one.id(0)),
            one.number(1, kinds.Uint64Flags),
            one.number(2, kinds.Uint32Flags),
        )
        for one in tables
    ]


def _read_node(node: Row) -> Node:
    array = None
    if node.number(3, kinds.Uint8Flags) == 1:
        array = _read_array(node.child(4))
    return node_of(NodeId(node.id(0, 8)), _required(node.text(1)), _required(node.blob(2)), array)


def _read_array(array: Row) -> ArrayInfo:
    names, shapes = array.rows(1), array.rows(3)
    pairs = [
        (shape.number(0, kinds.Uint64Flags), shape.number(1, kinds.Uint32Flags))
        for shape in shapes or []
    ]
    if shapes is None:
        for raw in _required(array.items(0, 16)):
            length, chunk = int.from_bytes(raw[:8], "little"), int.from_bytes(raw[8:], "little")
            pairs.append((length, -(-length // chunk) if chunk else 0))
    return ArrayInfo(
        tuple(length for length, _ in pairs),
        tuple(count for _, count in pairs),
        None if names is None else tuple(name.text(0) or None for name in names),
        tuple(
            ManifestRef(
                ManifestId(ref.id(0)),
                tuple(
                    (int.from_bytes(raw[:4], "little"), int.from_bytes(raw[4:], "little"))
                    for raw in _required(ref.items(1, 8))
                ),
            )
            for ref in _required(array.rows(2))
        ),
    )


_NAMED = {5: 0, 6: 0, 7: 0, 8: 0, 9: 0, 10: 0, 11: 0}
_PREVIOUS = {6: 1, 8: 1, 9: 1, 11: 1}
_NEW = {10: 1, 11: 2, 12: 0}


def read_update(update: Row) -> UpdateEntry:
    kind = update.number(0, kinds.Uint8Flags)
    payload = update.child(1)
    numbers = (0, 0, 0)
    if kind == UpdateKind.REPO_MIGRATED:
        numbers = (
            payload.number(0, kinds.Uint8Flags),
            payload.number(1, kinds.Uint8Flags),
            0,
        )
    if kind == UpdateKind.FEATURE_FLAG_CHANGED:
        numbers = (
            payload.number(0, kinds.Uint16Flags),
            payload.number(1, kinds.Uint8Flags),
            payload.number(2, kinds.Uint8Flags),
        )
    return UpdateEntry(
        UpdateKind(kind),
        update.number(2, kinds.Uint64Flags),
        update.text(3),
        payload.text(_NAMED[kind]) if kind in _NAMED else None,
        SnapshotId(payload.id(_PREVIOUS[kind])) if kind in _PREVIOUS else None,
        SnapshotId(payload.id(_NEW[kind])) if kind in _NEW else None,
        numbers,
        read_status(payload.child(0)) if kind == UpdateKind.REPO_STATUS_CHANGED else None,
    )


def read_status(status: Row) -> Status:
    return Status(
        status.number(0, kinds.Uint8Flags), status.number(1, kinds.Uint64Flags), status.text(2)
    )


def read_repo(buffer: bytes) -> dict[str, Any]:
    root = Row.root(buffer)
    snapshots = _required(root.rows(4))
    ids = [SnapshotId(one.id(0)) for one in snapshots]

    def refs(slot: int) -> dict[str, SnapshotId]:
        return {
            _required(ref.text(0)): ids[ref.number(1, kinds.Uint32Flags)]
            for ref in _required(root.rows(slot))
        }

    return {
        "spec_version": root.number(0, kinds.Uint8Flags),
        "tags": refs(1),
        "branches": refs(2),
        "deleted_tags": root.texts(3),
        "snapshots": [
            (
                SnapshotId(one.id(0)),
                None if (parent := one.number(1, kinds.Int32Flags)) == -1 else ids[parent],
                one.number(2, kinds.Uint64Flags),
                one.text(3),
                read_items(one, 4),
                [SnapshotId(raw) for raw in one.items(5, 12) or []],
            )
            for one in snapshots
        ],
        "status": read_status(root.child(5)),
        "metadata": read_items(root, 6),
        "updates": [read_update(update) for update in _required(root.rows(7))],
        "repo_before_updates": root.text(8),
        "config": root.blob(9),
        "enabled_flags": root.numbers(10, 2),
        "disabled_flags": root.numbers(11, 2),
    }


# -- writing -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Habits:
    """What writers may do differently without changing what a file means."""

    explicit_defaults: bool = False
    extras: bool = False
    """Fill the reserved fields, and one that no reader knows yet."""
    identifier: bool = True


class Writer:
    """Builds one file with the usual library."""

    def __init__(self, habits: Habits) -> None:
        self.builder = Builder(64)
        self.builder.ForceDefaults(habits.explicit_defaults)
        self._habits = habits

    def finish(self, root: int, file_type: FileType, spec_version: int) -> bytes:
        self.builder.Finish(root, b"Ichk" if self._habits.identifier else None)
        buffer = bytes(self.builder.Output())
        return seal([buffer], len(buffer), file_type, spec_version)

    def blob(self, data: bytes) -> int:
        return int(self.builder.CreateByteVector(data))

    def text(self, text: str) -> int:
        return int(self.builder.CreateString(text))

    def numbers(self, values: Sequence[int]) -> int:
        self.builder.StartVector(4, len(values), 4)
        for value in reversed(values):
            self.builder.PrependUint32(value)
        return int(self.builder.EndVector())

    def structs(self, items: Sequence[bytes], width: int, alignment: int) -> int:
        self.builder.StartVector(width, len(items), alignment)
        for item in reversed(items):
            self._bytes(item)
        return int(self.builder.EndVector())

    def offsets(self, targets: Sequence[int]) -> int:
        self.builder.StartVector(4, len(targets), 4)
        for target in reversed(targets):
            self.builder.PrependUOffsetTRelative(target)
        return int(self.builder.EndVector())

    def _bytes(self, raw: bytes) -> None:
        for byte in reversed(raw):
            self.builder.PrependByte(byte)

    def table(self, slots: int, fields: Mapping[int, tuple[str, Any, Any]]) -> int:
        """Write a table; a field is (type, value, default), an absent one has the value `None`."""
        extras = {}
        if self._habits.extras:
            extras = {slots: ("offset", self.blob(b"extra"), 0), slots + 1: ("u32", 77, 0)}
        self.builder.StartObject(slots + 2)
        for slot, (kind, value, default) in (dict(fields) | extras).items():
            if value is None:
                continue
            match kind:
                case "offset":
                    self.builder.PrependUOffsetTRelativeSlot(slot, value, default)
                case "struct":
                    self.builder.Prep(1, len(value))
                    self._bytes(value)
                    self.builder.PrependStructSlot(slot, self.builder.Offset(), 0)
                case _:
                    getattr(self.builder, f"Prepend{_SCALARS[kind]}Slot")(slot, value, default)
        return int(self.builder.EndObject())


_SCALARS = {"u8": "Uint8", "u16": "Uint16", "u32": "Uint32", "i32": "Int32", "u64": "Uint64"}


def write_manifest(
    manifest: ManifestId,
    arrays: Mapping[NodeId, References],
    *,
    spec_version: int = 2,
    habits: Habits | None = None,
) -> bytes:
    writer = Writer(habits or Habits())
    tables = []
    for node in sorted(arrays):
        refs = [_write_reference(writer, index, ref) for index, ref in arrays[node]]
        fields = {0: ("struct", node.raw, 0), 1: ("offset", writer.offsets(refs), 0)}
        tables.append(writer.table(2, fields))
    arrays_at = writer.offsets(tables)
    root: dict[int, tuple[str, Any, Any]] = {
        0: ("struct", manifest.raw, 0),
        1: ("offset", arrays_at, 0),
    }
    if spec_version > 1:
        root[3] = ("u8", 0, 1)
    return writer.finish(writer.table(4, root), FileType.MANIFEST, spec_version)


def _write_reference(writer: Writer, index: Coordinate, ref: ChunkRef) -> int:
    fields: dict[int, tuple[str, Any, Any]] = {0: ("offset", writer.numbers(index), 0)}
    match ref:
        case InlineChunk(data):
            fields[1] = ("offset", writer.blob(data), 0)
        case NativeChunk(chunk, offset, length):
            fields |= {2: ("u64", offset, 0), 3: ("u64", length, 0), 4: ("struct", chunk.raw, 0)}
        case VirtualChunk(location, offset, length, etag, modified):
            fields |= {
                2: ("u64", offset, 0),
                3: ("u64", length, 0),
                5: ("offset", writer.text(location), 0),
                6: ("offset", None if etag is None else writer.text(etag), 0),
                7: ("u32", modified, 0),
            }
    return writer.table(9, fields)


def write_log(
    log: Mapping[str, Any], *, spec_version: int = 2, habits: Habits | None = None
) -> bytes:
    """Write what `read_log` gives."""
    writer = Writer(habits or Habits())
    arrays = []
    for node, chunks in log["updated_chunks"].items():
        rows = [writer.table(1, {0: ("offset", writer.numbers(c), 0)}) for c in chunks]
        fields = {0: ("struct", node.raw, 0), 1: ("offset", writer.offsets(rows), 0)}
        arrays.append(writer.table(2, fields))
    root: dict[int, tuple[str, Any, Any]] = {0: ("struct", log["id"].raw, 0)}
    for slot, name in enumerate(ID_LISTS, start=1):
        root[slot] = ("offset", writer.structs([one.raw for one in log[name]], 8, 1), 0)
    root[7] = ("offset", writer.offsets(arrays), 0)
    if spec_version > 1:
        moves = [_write_move(writer, move) for move in log["moves"]]
        root[8] = ("offset", writer.offsets(moves), 0)
    return writer.finish(writer.table(9, root), FileType.TRANSACTION_LOG, spec_version)


def _write_move(writer: Writer, move: Move) -> int:
    return writer.table(
        4,
        {
            0: ("offset", writer.text(move.source), 0),
            1: ("offset", writer.text(move.target), 0),
            2: ("struct", move.node.raw, 0),
            3: ("u8", int(move.is_array), 0),
        },
    )


def write_snapshot(
    snapshot: Mapping[str, Any], *, spec_version: int = 2, habits: Habits | None = None
) -> bytes:
    """Write what `read_snapshot` gives."""
    writer = Writer(habits or Habits())
    nodes = [_write_node(writer, node, spec_version) for node in snapshot["nodes"]]
    items = [
        writer.table(2, {0: ("offset", writer.text(name), 0), 1: ("offset", writer.blob(raw), 0)})
        for name, raw in snapshot["metadata"]
    ]
    parent = snapshot["parent_id"]
    root: dict[int, tuple[str, Any, Any]] = {
        0: ("struct", snapshot["id"].raw, 0),
        1: ("struct", None if parent is None else parent.raw, 0),
        2: ("offset", writer.offsets(nodes), 0),
        3: ("u64", snapshot["flushed_at"], 0),
        4: ("offset", writer.text(snapshot["message"]), 0),
        5: ("offset", writer.offsets(items), 0),
    }
    structs = [
        one.raw + bytes(4) + size.to_bytes(8, "little") + refs.to_bytes(4, "little") + bytes(4)
        for one, size, refs in snapshot["manifests"]
    ]
    root[6] = ("offset", writer.structs(structs if spec_version == 1 else [], 32, 8), 0)
    if spec_version > 1:
        files = [
            writer.table(3, {0: ("struct", one.raw, 0), 1: ("u64", size, 0), 2: ("u32", refs, 0)})
            for one, size, refs in snapshot["manifests"]
        ]
        root[7] = ("offset", writer.offsets(files), 0)
    return writer.finish(writer.table(8, root), FileType.SNAPSHOT, spec_version)


def _write_node(writer: Writer, node: Node, spec_version: int) -> int:
    if not isinstance(node, ArrayNode):
        content = writer.table(0, {})
    else:
        content = _write_array(writer, node.array, spec_version)
    return writer.table(
        5,
        {
            0: ("struct", node.id.raw, 0),
            1: ("offset", writer.text(node.path), 0),
            2: ("offset", writer.blob(node.user_data), 0),
            3: ("u8", 1 if isinstance(node, ArrayNode) else 2, 0),
            4: ("offset", content, 0),
        },
    )


def _write_array(writer: Writer, array: ArrayInfo, spec_version: int) -> int:
    names = None
    if array.dimension_names is not None:
        texts = [None if name is None else writer.text(name) for name in array.dimension_names]
        names = writer.offsets([writer.table(1, {0: ("offset", one, 0)}) for one in texts])
    refs = []
    for ref in array.manifests:
        boxes = [a.to_bytes(4, "little") + b.to_bytes(4, "little") for a, b in ref.extents]
        extents = writer.structs(boxes, 8, 4)
        refs.append(writer.table(2, {0: ("struct", ref.id.raw, 0), 1: ("offset", extents, 0)}))
    structs = []
    if spec_version == 1:
        for length, count in zip(array.shape, array.num_chunks, strict=True):
            chunk = -(-length // count) if count else 0
            structs.append(length.to_bytes(8, "little") + chunk.to_bytes(8, "little"))
    fields: dict[int, tuple[str, Any, Any]] = {
        0: ("offset", writer.structs(structs, 16, 8), 0),
        1: ("offset", names, 0),
        2: ("offset", writer.offsets(refs), 0),
    }
    if spec_version > 1:
        shapes = [
            writer.table(2, {0: ("u64", length, 0), 1: ("u32", count, 0)})
            for length, count in zip(array.shape, array.num_chunks, strict=True)
        ]
        fields[3] = ("offset", writer.offsets(shapes), 0)
    return writer.table(4, fields)
