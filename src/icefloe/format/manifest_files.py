"""The manifests that a snapshot uses: their list in its file, searched or read into columns."""

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from icefloe.format.columns import Bytes, find_sorted
from icefloe.format.deferred import StoredList
from icefloe.format.flatbuffer_reader import Buffer
from icefloe.format.flatbuffer_scalar import ScalarBuffer, ScalarTable
from icefloe.format.flatbuffer_tree import TableShape, Tree
from icefloe.format.flatbuffer_writer import Field, ListSection, Section, TableSection, number
from icefloe.format.ids import ManifestId, id_rows

FEW_FILES: Final = 32
"""Up to so many are written and read one by one."""
_ID, _SIZE_BYTES, _NUM_REFS = 0, 1, 2
_FILE: Final = TableShape((_NUM_REFS, "I"), (_SIZE_BYTES, "Q"), (_ID, f"{ManifestId.WIDTH}s"))
FILE_STRUCT: Final = np.dtype(
    {
        "names": ["id", "size_bytes", "num_chunk_refs"],
        "formats": [("u1", ManifestId.WIDTH), "<u8", "<u4"],
        "offsets": [0, 16, 24],
        "itemsize": 32,
    }
)
"""What spec 1 has in place of a table."""


@dataclass(frozen=True, slots=True, eq=False)
class ManifestFiles:
    """The manifests that a snapshot uses, sorted by id."""

    ids: Bytes
    sizes_bytes: NDArray[np.uint64]
    """Exact sizes of the files: readers fetch just so many bytes."""
    num_chunk_refs: NDArray[np.uint32]

    @classmethod
    def from_list(cls, files: list[tuple[ManifestId, int, int]]) -> Self:
        """Pack (id, size in bytes, number of references)."""
        files = sorted(files)
        return cls(
            id_rows(ManifestId, [one for one, _, _ in files]),
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
        """Give all of them in columns, as those do that are still in a file."""
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
        return read_files(buffer, self._slot, FEW_FILES)


def write_files(tree: Tree, files: ManifestFiles, field: int, few: int) -> list[Section]:
    """Add the list, up to `few` one by one, or give the sections that hold it."""
    if len(files) > few:
        columns = [
            Field(_ID, files.ids),
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
    for place, (each, (size, refs)) in enumerate(zip(fields, rows, strict=True)):
        one = raw[place * width : (place + 1) * width]
        tree.table(_FILE, refs, size, one, field=each)
    return []


def read_files(buffer: ScalarBuffer, slot: int, few: int) -> ManifestFiles:
    """Read the whole list; up to `few` one by one."""
    root = buffer.root()
    if root.vector(slot, 4)[1] > few:
        tables = Buffer(buffer.data).root().vectors(slot).tables()
        return ManifestFiles(
            tables.struct(_ID, ManifestId.WIDTH), tables.u64(_SIZE_BYTES), tables.u32(_NUM_REFS)
        )
    files = root.children(slot)
    return ManifestFiles(
        np.frombuffer(b"".join(map(_raw_id, files)), np.uint8).reshape(-1, ManifestId.WIDTH),
        np.array([file.number(_SIZE_BYTES, "Q") for file in files], np.uint64),
        np.array([file.number(_NUM_REFS, "I") for file in files], np.uint32),
    )


def _raw_id(file: ScalarTable) -> bytes:
    return file.struct(_ID, ManifestId.WIDTH)
