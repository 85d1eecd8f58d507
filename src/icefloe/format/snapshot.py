"""Snapshots: the whole state of a repository at one commit, with the list of its manifests."""

from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import InvalidInputError
from icefloe.format.columns import Bytes, Ints, find_sorted
from icefloe.format.envelope import (
    DEFAULT_LEVEL,
    Envelope,
    FileType,
    decompress,
    open_envelope,
    seal,
)
from icefloe.format.flatbuffer_reader import Buffer, refuse
from icefloe.format.flatbuffer_scalar import FEW_TABLES, ScalarBuffer, ScalarTable, StoredList
from icefloe.format.flatbuffer_writer import (
    OFFSET,
    BlobSection,
    Field,
    Link,
    ListSection,
    Section,
    TableSection,
    TableShape,
    Target,
    Tree,
    VectorSection,
    number,
    seal_buffer,
)
from icefloe.format.ids import ManifestId, SnapshotId, id_rows
from icefloe.format.layout import snapshot_key
from icefloe.format.metadata import Metadata, read_metadata, write_metadata
from icefloe.format.nodes import (
    ARRAY_LENGTH,
    DIMENSION_NAME,
    NUM_CHUNKS,
    REF_EXTENTS,
    REF_ID,
    SMALL_BYTES,
    ArraySlot,
    NodeKind,
    NodeSlot,
    NodeTable,
    StoredNodes,
    read_nodes,
    write_node,
)
from icefloe.format.snapshot_table import SnapshotEntry
from icefloe.records import Record, field

_FILE_ID, _SIZE_BYTES, _NUM_REFS = 0, 1, 2
_FILE: Final = TableShape((_NUM_REFS, "I"), (_SIZE_BYTES, "Q"), (_FILE_ID, f"{ManifestId.WIDTH}s"))
FILE_STRUCT: Final = np.dtype(
    {
        "names": ["id", "size_bytes", "num_chunk_refs"],
        "formats": [("u1", ManifestId.WIDTH), "<u8", "<u4"],
        "offsets": [0, 16, 24],
        "itemsize": 32,
    }
)
"""What spec 1 has in place of a table."""


class ManifestFiles(Record, eq=False):
    """The manifests that a snapshot uses, sorted by id."""

    ids: Bytes
    sizes_bytes: NDArray[np.uint64]
    """Exact sizes of the files: readers fetch just this many bytes."""
    num_chunk_refs: NDArray[np.uint32]

    @classmethod
    def from_list(cls, files: list[tuple[ManifestId, int, int]]) -> Self:
        """Pack (id, size in bytes, number of references)."""
        files = sorted(files)
        return cls(
            id_rows(ManifestId, [manifest_id for manifest_id, _, _ in files]),
            np.array([size for _, size, _ in files], np.uint64),
            np.array([refs for _, _, refs in files], np.uint32),
        )

    @classmethod
    def from_structs(cls, raw: bytes) -> Self:
        """Read the list of a file of spec 1."""
        structs = np.frombuffer(raw, FILE_STRUCT)
        return cls(structs["id"], structs["size_bytes"], structs["num_chunk_refs"])

    def to_structs(self) -> bytes:
        """Write the list as spec 1 has it."""
        structs = np.zeros(len(self), FILE_STRUCT)
        structs["id"] = self.ids
        structs["size_bytes"] = self.sizes_bytes
        structs["num_chunk_refs"] = self.num_chunk_refs
        return structs.tobytes()

    def __len__(self) -> int:
        return len(self.sizes_bytes)

    def table(self) -> Self:
        """Return all of them in columns, as those do that are still in a file."""
        return self

    def size_of(self, manifest: ManifestId) -> int:
        """Look up the size of one in bytes; 0 if it is not in the list."""
        row = find_sorted(len(self), manifest.raw, lambda row: self.ids[row].tobytes())
        return 0 if row is None else int(self.sizes_bytes[row])

    def with_files(self, files: list[tuple[ManifestId, int, int]]) -> Self:
        """Add others."""
        new = self.from_list(files)
        ids = np.concatenate([self.ids, new.ids])
        order = np.argsort(np.ascontiguousarray(ids).view(f"S{ManifestId.WIDTH}").ravel())
        return type(self)(
            ids[order],
            np.concatenate([self.sizes_bytes, new.sizes_bytes])[order],
            np.concatenate([self.num_chunk_refs, new.num_chunk_refs])[order],
        )


class StoredFiles(StoredList[ManifestFiles]):
    """The list in a buffer, in which only those are looked up that somebody asks for.

    A large dataset has thousands of manifests, of which most readers want one.
    """

    __slots__ = ()

    def __len__(self) -> int:
        with self._reading() as buffer:
            return buffer.root().vector(self._slot, 4)[1]

    def size_of(self, manifest: ManifestId) -> int:
        """Look up the size of one in bytes; 0 if it is not in the list."""
        if self._is_asked_often():
            return self.table().size_of(manifest)
        with self._reading() as buffer:
            file = buffer.root().find_child(self._slot, manifest.raw, _raw_id)
            return 0 if file is None else file.number(_SIZE_BYTES, "Q")

    def _read(self, buffer: ScalarBuffer) -> ManifestFiles:
        return read_files(buffer, self._slot, FEW_TABLES)


def write_files(tree: Tree, files: ManifestFiles, field: int, few: int) -> list[Section]:
    """Add the list, up to `few` one by one, or give the sections that hold it."""
    if len(files) > few:
        columns = [
            Field(_FILE_ID, files.ids),
            number(_SIZE_BYTES, files.sizes_bytes),
            number(_NUM_REFS, files.num_chunk_refs),
        ]
        tables = TableSection(len(files), columns)
        file_list = ListSection(len(files), tables)
        tree.link_outside(file_list, field)
        return [file_list, tables]
    raw, width = files.ids.tobytes(), ManifestId.WIDTH
    rows = zip(files.sizes_bytes.tolist(), files.num_chunk_refs.tolist(), strict=True)
    fields = tree.links(len(files), field)
    for row, (link, (size, refs)) in enumerate(zip(fields, rows, strict=True)):
        manifest_id = raw[row * width : (row + 1) * width]
        tree.table(_FILE, refs, size, manifest_id, field=link)
    return []


def read_files(buffer: ScalarBuffer, slot: int, few: int) -> ManifestFiles:
    """Read the whole list; up to `few` one by one."""
    root = buffer.root()
    if root.vector(slot, 4)[1] > few:
        tables = Buffer(buffer.data).root().vectors(slot).tables()
        return ManifestFiles(
            tables.struct(_FILE_ID, ManifestId.WIDTH),
            tables.u64(_SIZE_BYTES),
            tables.u32(_NUM_REFS),
        )
    files = root.children(slot)
    return ManifestFiles(
        np.frombuffer(b"".join(map(_raw_id, files)), np.uint8).reshape(-1, ManifestId.WIDTH),
        np.array([file.number(_SIZE_BYTES, "Q") for file in files], np.uint64),
        np.array([file.number(_NUM_REFS, "I") for file in files], np.uint32),
    )


def _raw_id(file: ScalarTable) -> bytes:
    return file.struct(_FILE_ID, ManifestId.WIDTH)


class _Snapshot:
    """Slots of the root table."""

    ID = 0
    PARENT_ID = 1
    NODES = 2
    FLUSHED_AT = 3
    MESSAGE = 4
    METADATA = 5
    MANIFEST_FILES = 6
    MANIFEST_FILES_V2 = 7


_HEAD: Final = (
    (_Snapshot.NODES, OFFSET),
    (_Snapshot.FLUSHED_AT, "Q"),
    (_Snapshot.MESSAGE, OFFSET),
    (_Snapshot.METADATA, OFFSET),
    (_Snapshot.MANIFEST_FILES, OFFSET),
)
_ID: Final = (_Snapshot.ID, f"{SnapshotId.WIDTH}s")
_PARENT_ID: Final = (_Snapshot.PARENT_ID, f"{SnapshotId.WIDTH}s")
_ROOT: Final = TableShape(*_HEAD, (_Snapshot.MANIFEST_FILES_V2, OFFSET), _ID)
_ROOT_V1: Final = TableShape(*_HEAD, _ID)
_ROOT_V1_WITH_PARENT: Final = TableShape(*_HEAD, _ID, _PARENT_ID)


class Snapshot(Record, eq=False):
    """All nodes at one commit, and the manifests that hold their chunks."""

    id: SnapshotId
    flushed_at: int
    """Microseconds since 1970, UTC."""
    message: str
    contents: NodeTable | StoredNodes = field(default_factory=lambda: NodeTable.from_nodes([]))
    """The nodes, perhaps as they are in a file."""
    files: ManifestFiles | StoredFiles = field(default_factory=lambda: ManifestFiles.from_list([]))
    """The list of manifests, perhaps as it is in a file."""
    metadata: Metadata = field(default_factory=dict)
    parent_id: SnapshotId | None = None
    """Stored in spec 1 only; spec 2 keeps parents in the repo object."""
    spec_version: int = 2

    @property
    def nodes(self) -> NodeTable:
        """All nodes in columns."""
        return self.contents.table()

    @property
    def manifests(self) -> ManifestFiles:
        """The list of manifests in columns."""
        return self.files.table()


# -- writing -------------------------------------------------------------------------------


def encode_snapshot(
    snapshot: Snapshot, *, level: int = DEFAULT_LEVEL, few: int = FEW_TABLES
) -> bytes:
    """Write a snapshot file of the snapshot's own spec version.

    >>> from icefloe.format.ids import INITIAL_SNAPSHOT_ID
    >>> first = Snapshot(INITIAL_SNAPSHOT_ID, 0, "Repository initialized")
    >>> decode_snapshot(encode_snapshot(first)).message
    'Repository initialized'
    """
    is_v1 = snapshot.spec_version == 1
    tree = Tree()
    values: list[int | bytes] = [snapshot.flushed_at, snapshot.id.raw]
    shape = _ROOT
    if is_v1:
        shape = _ROOT_V1 if snapshot.parent_id is None else _ROOT_V1_WITH_PARENT
        values += [] if snapshot.parent_id is None else [snapshot.parent_id.raw]
    root = tree.table(shape, *values)
    tree.blob(snapshot.message.encode(), root + shape.at[_Snapshot.MESSAGE])
    metadata = root + shape.at[_Snapshot.METADATA]
    write_metadata(tree, snapshot.metadata, snapshot.spec_version, metadata)
    structs = snapshot.manifests.to_structs() if is_v1 else b""
    count = len(structs) // FILE_STRUCT.itemsize
    tree.items(count, structs, root + shape.at[_Snapshot.MANIFEST_FILES], alignment=8)
    nodes, node_list = snapshot.nodes, root + shape.at[_Snapshot.NODES]
    sections = list[Section]()
    if len(nodes) > few:
        sections = _node_sections(nodes, is_v1=is_v1)
        tree.link_outside(sections[0], node_list)
    else:
        for row, link in enumerate(tree.links(len(nodes), node_list)):
            write_node(tree, nodes, row, link, is_v1=is_v1)
    if not is_v1:
        files = root + shape.at[_Snapshot.MANIFEST_FILES_V2]
        sections += write_files(tree, snapshot.manifests, files, few)
    return seal_buffer([tree, *sections], FileType.SNAPSHOT, snapshot.spec_version, level=level)


class _Either:
    """Rows of one section where a mask holds, of another where it does not."""

    def __init__(self, mask: NDArray[np.bool_], yes: Target, no: Target) -> None:
        self._mask = mask
        self._yes, self._no = yes, no
        self._number = np.where(mask, np.cumsum(mask), np.cumsum(~mask)) - 1

    def positions(self, rows: NDArray[np.integer]) -> Ints:
        """Return the positions of the rows."""
        numbers, mask = self._number[rows], self._mask[rows]
        where = np.empty(len(rows), np.int64)
        where[mask] = self._yes.positions(numbers[mask])
        where[~mask] = self._no.positions(numbers[~mask])
        return where


def _node_sections(nodes: NodeTable, *, is_v1: bool) -> list[Section]:
    """Lay out all nodes; the first section is the vector of them."""
    paths, user_data = BlobSection(nodes.paths), BlobSection(nodes.user_data)
    arrays, below_arrays = _array_sections(nodes, is_v1=is_v1)
    groups = TableSection(int((~nodes.is_array).sum()), [])
    kinds = np.where(nodes.is_array, NodeKind.ARRAY, NodeKind.GROUP).astype(np.uint8)
    tables = TableSection(
        len(nodes),
        [
            Field(NodeSlot.ID, nodes.ids),
            Field(NodeSlot.PATH, Link(paths)),
            Field(NodeSlot.USER_DATA, Link(user_data)),
            Field(NodeSlot.KIND, kinds),
            Field(NodeSlot.CONTENT, Link(_Either(nodes.is_array, arrays, groups))),
        ],
    )
    node_list = ListSection(len(nodes), tables)
    return [node_list, tables, paths, user_data, groups, arrays, *below_arrays]


def _array_sections(nodes: NodeTable, *, is_v1: bool) -> tuple[TableSection, list[Section]]:
    arrays = np.flatnonzero(nodes.is_array)
    dimensions = np.diff(nodes.shape_splits)[arrays]
    lengths, num_chunks = nodes.array_lengths, nodes.num_chunks
    structs = _v1_shapes(lengths, num_chunks) if is_v1 else np.empty((0, 2), np.uint64)
    shapes = VectorSection(dimensions if is_v1 else np.zeros_like(dimensions), structs)
    names, below_names = _name_sections(nodes, arrays)
    manifests, below_manifests = _manifest_ref_sections(nodes, arrays)
    fields = [
        Field(ArraySlot.SHAPE, Link(shapes)),
        Field(ArraySlot.DIMENSION_NAMES, Link(names), nodes.has_names[arrays]),
        Field(ArraySlot.MANIFESTS, Link(manifests)),
    ]
    sections: list[Section] = [shapes, names, *below_names, manifests, *below_manifests]
    if not is_v1:
        tables = TableSection(
            len(lengths), [number(ARRAY_LENGTH, lengths), number(NUM_CHUNKS, num_chunks)]
        )
        shapes_v2 = VectorSection(dimensions, Link(tables))
        fields.append(Field(ArraySlot.SHAPE_V2, Link(shapes_v2)))
        sections += [shapes_v2, tables]
    return TableSection(len(arrays), fields), sections


def _v1_shapes(lengths: NDArray[np.uint64], num_chunks: NDArray[np.uint32]) -> NDArray[np.uint64]:
    """Pair array lengths with the chunk lengths that give back the number of chunks."""
    counts = np.maximum(num_chunks.astype(np.uint64), 1)
    chunk_lengths = np.where(num_chunks == 0, 0, lengths // counts + (lengths % counts != 0))
    return np.stack([lengths, chunk_lengths.astype(np.uint64)], axis=1)


def _name_sections(nodes: NodeTable, arrays: Ints) -> tuple[VectorSection, list[Section]]:
    texts, rows = nodes.names.distinct()
    strings = BlobSection(texts)
    present = nodes.names.lengths() > 0
    tables = TableSection(len(nodes.names), [Field(DIMENSION_NAME, Link(strings, rows), present)])
    counts = np.diff(nodes.name_splits)[arrays]
    return VectorSection(counts, Link(tables)), [tables, strings]


def _manifest_ref_sections(nodes: NodeTable, arrays: Ints) -> tuple[VectorSection, list[Section]]:
    extents = VectorSection(np.diff(nodes.extent_splits), nodes.extents)
    tables = TableSection(
        len(nodes.manifest_ids),
        [Field(REF_ID, nodes.manifest_ids), Field(REF_EXTENTS, Link(extents))],
    )
    counts = np.diff(nodes.manifest_splits)[arrays]
    return VectorSection(counts, Link(tables)), [tables, extents]


def with_parent(
    data: bytes | bytearray | memoryview, parent: SnapshotId, *, level: int = DEFAULT_LEVEL
) -> bytes:
    """Return a stored snapshot of spec 1 another parent; every other byte of its contents stays.

    That is what expiration does there. Also what another writer put into the file, and we do not
    know of, is kept so.
    """
    envelope = open_envelope(data, FileType.SNAPSHOT)
    contents = decompress(envelope.payload)
    position = ScalarBuffer(contents).root().field(_Snapshot.PARENT_ID, SnapshotId.WIDTH, 1)
    if position is None:
        raise InvalidInputError("a snapshot without a parent cannot be given another one")
    pieces = [contents[:position], parent.raw, contents[position + SnapshotId.WIDTH :]]
    return seal(pieces, len(contents), FileType.SNAPSHOT, envelope.spec_version, level=level)


# -- reading -------------------------------------------------------------------------------


def decode_snapshot(data: bytes | bytearray | memoryview, *, few: int = FEW_TABLES) -> Snapshot:
    """Read a snapshot file, all of it."""
    envelope, buffer = _open(data)
    return _read_whole(buffer, envelope.spec_version, few)


def open_snapshot(data: bytes | bytearray | memoryview) -> Snapshot:
    """Read a snapshot file; its nodes and manifests when somebody asks for them.

    Damage to one that nobody asks for is not noticed. A large file is read at once.
    """
    envelope, buffer = _open(data)
    if buffer.size > SMALL_BYTES:
        return _read_whole(buffer, envelope.spec_version, FEW_TABLES)
    key = snapshot_key(SnapshotId(buffer.root().struct(_Snapshot.ID, SnapshotId.WIDTH)))
    files: ManifestFiles | StoredFiles | None = _read_file_structs(buffer.root())
    if files is None:
        files = StoredFiles(buffer.data, _Snapshot.MANIFEST_FILES_V2, key)
    nodes = StoredNodes(buffer.data, _Snapshot.NODES, key)
    return _read_snapshot(buffer, nodes, files, envelope.spec_version)


def _read_whole(buffer: ScalarBuffer, spec_version: int, few: int) -> Snapshot:
    nodes = read_nodes(buffer, _Snapshot.NODES, few)
    files = _read_file_structs(buffer.root())
    if files is None:
        files = read_files(buffer, _Snapshot.MANIFEST_FILES_V2, few)
    return _read_snapshot(buffer, nodes, files, spec_version)


def _read_file_structs(root: ScalarTable) -> ManifestFiles | None:
    """Read the manifests as spec 1 lists them; None where there is another list."""
    structs = root.items(_Snapshot.MANIFEST_FILES, FILE_STRUCT.itemsize, 8)
    if structs is None:
        refuse("a required field is missing")
    if root.field(_Snapshot.MANIFEST_FILES_V2, 4, 4) is not None:
        return None
    return ManifestFiles.from_structs(structs)


def _open(data: bytes | bytearray | memoryview) -> tuple[Envelope, ScalarBuffer]:
    envelope = open_envelope(data, FileType.SNAPSHOT)
    return envelope, ScalarBuffer(decompress(envelope.payload))


def _read_snapshot(
    buffer: ScalarBuffer,
    nodes: NodeTable | StoredNodes,
    files: ManifestFiles | StoredFiles,
    spec_version: int,
) -> Snapshot:
    root = buffer.root()
    parent = root.optional_struct(_Snapshot.PARENT_ID, SnapshotId.WIDTH)
    return Snapshot(
        SnapshotId(root.struct(_Snapshot.ID, SnapshotId.WIDTH)),
        root.number(_Snapshot.FLUSHED_AT, "Q"),
        root.text(_Snapshot.MESSAGE),
        nodes,
        files,
        read_metadata(root.children(_Snapshot.METADATA), spec_version),
        None if parent is None else SnapshotId(parent),
        spec_version,
    )


def decode_snapshot_entry(data: bytes | bytearray | memoryview) -> SnapshotEntry:
    """Read what a snapshot file says of its place in the history, and none of its nodes."""
    envelope, buffer = _open(data)
    root = buffer.root()
    parent = root.optional_struct(_Snapshot.PARENT_ID, SnapshotId.WIDTH)
    return SnapshotEntry(
        SnapshotId(root.struct(_Snapshot.ID, SnapshotId.WIDTH)),
        None if parent is None else SnapshotId(parent),
        root.number(_Snapshot.FLUSHED_AT, "Q"),
        root.text(_Snapshot.MESSAGE),
        read_metadata(root.children(_Snapshot.METADATA), envelope.spec_version),
    )
