"""The chunk references of one array, as columns sorted by chunk coordinates.

A reference is a row, never an object, on every bulk path. The target of a row (a chunk object, a
range of a foreign file, or bytes stored inline) is stored once, however many rows share it.
`RowFinder` serves repeated lookups of single chunks.
"""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from itertools import accumulate
from math import prod
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.columns import (
    Bools,
    Bytes,
    BytesColumn,
    Ints,
    concat_bytes,
    is_ascending,
    memory_of_columns,
)
from icefloe.format.ids import ChunkId, id_rows
from icefloe.records import Record, field, replace

type Coordinates = NDArray[np.uint32]
"""An (n, dimensions) matrix of chunk coordinates."""
type Extents = NDArray[np.uint32]
"""A (dimensions, 2) matrix: first chunk, and first chunk after, along each dimension."""


class ChunkKind(IntEnum):
    """How a chunk is stored; the numbers equal those of the drop-in `ChunkType`."""

    NATIVE = 1
    VIRTUAL = 2
    INLINE = 3


class NativeChunk(Record):
    """A range of a chunk object of the repository."""

    id: ChunkId
    offset: int
    length: int


class VirtualChunk(Record):
    """A range of a file outside of the repository."""

    location: str
    offset: int
    length: int
    etag: str | None = None
    last_modified: int | None = None
    """Whole seconds since 1970."""


class InlineChunk(Record):
    """Bytes kept within the manifest."""

    data: bytes


type ChunkRef = NativeChunk | VirtualChunk | InlineChunk

_LARGEST_INDEX: Final = 2**32 - 1
_FEW_ROWS: Final = 8
"""So many rows are looked up one by one."""


class ChunkTable(Record, eq=False):
    """Chunk references in columns; rows are sorted by coordinates and unique.

    `targets` gives, for each row, the row of its chunk id, location or inline bytes in the
    column that belongs to its kind.
    """

    coordinates: Coordinates
    kinds: Bytes
    offsets: NDArray[np.uint64]
    lengths: NDArray[np.uint64]
    targets: NDArray[np.uint32]
    chunk_ids: Bytes = field(default_factory=lambda: np.empty((0, ChunkId.WIDTH), np.uint8))
    locations: BytesColumn = field(default_factory=BytesColumn.empty)
    inline: BytesColumn = field(default_factory=BytesColumn.empty)
    etags: BytesColumn = field(default_factory=BytesColumn.empty)
    etag_rows: NDArray[np.int32] | None = None
    """Row in `etags`, or -1; `None` when no reference has one."""
    last_modified: NDArray[np.uint32] | None = None
    """Seconds since 1970, 0 for none; `None` when no reference has one."""

    # -- making tables ---------------------------------------------------------------------

    @classmethod
    def empty(cls, dimensions: int) -> Self:
        """Make a table without rows."""
        wide = np.empty(0, np.uint64)
        none = np.empty(0, np.uint32)
        return cls(np.empty((0, dimensions), np.uint32), none.astype(np.uint8), wide, wide, none)

    @classmethod
    def from_refs(cls, refs: Mapping[tuple[int, ...], ChunkRef], dimensions: int) -> Self:
        """Pack references by their coordinates, in any order.

        >>> ChunkTable.from_refs({(1,): InlineChunk(b"b"), (0,): InlineChunk(b"a")}, 1).ref(0)
        InlineChunk(data=b'a')
        """
        native = {index: ref for index, ref in refs.items() if isinstance(ref, NativeChunk)}
        virtual = {index: ref for index, ref in refs.items() if isinstance(ref, VirtualChunk)}
        inline = {index: ref.data for index, ref in refs.items() if isinstance(ref, InlineChunk)}
        tables = list[Self]()
        if native:
            table = cls.native(
                np.array(list(native), np.uint32).reshape(len(native), dimensions),
                id_rows(ChunkId, [ref.id for ref in native.values()]),
                np.array([ref.length for ref in native.values()], np.uint64),
                np.array([ref.offset for ref in native.values()], np.uint64),
            )
            tables.append(table)
        if virtual:
            locations = [*dict.fromkeys(ref.location for ref in virtual.values())]
            etags = [*dict.fromkeys(ref.etag for ref in virtual.values() if ref.etag is not None)]
            rows = {location: row for row, location in enumerate(locations)}
            etag_rows: dict[str | None, int] = {etag: row for row, etag in enumerate(etags)}
            modified = [ref.last_modified or 0 for ref in virtual.values()]
            table = cls.virtual(
                np.array(list(virtual), np.uint32).reshape(len(virtual), dimensions),
                BytesColumn.from_strings(locations),
                np.array([ref.offset for ref in virtual.values()], np.uint64),
                np.array([ref.length for ref in virtual.values()], np.uint64),
                targets=np.array([rows[ref.location] for ref in virtual.values()], np.uint32),
                etags=BytesColumn.from_strings(etags),
                etag_rows=np.array(
                    [etag_rows.get(ref.etag, -1) for ref in virtual.values()], np.int32
                )
                if etags
                else None,
                last_modified=np.array(modified, np.uint32) if any(modified) else None,
            )
            tables.append(table)
        if inline:
            data = BytesColumn.from_list(list(inline.values()))
            coordinates = np.array(list(inline), np.uint32).reshape(len(inline), dimensions)
            tables.append(cls.inlined(coordinates, data))
        return concat_tables(tables) if tables else cls.empty(dimensions)

    @classmethod
    def native(
        cls,
        coordinates: Coordinates,
        chunk_ids: Bytes,
        lengths: NDArray[np.uint64],
        offsets: NDArray[np.uint64] | None = None,
        targets: NDArray[np.uint32] | None = None,
    ) -> Self:
        """Make references to chunk objects, one id per row unless `targets` shares them."""
        rows = len(coordinates)
        return cls(
            coordinates,
            np.full(rows, ChunkKind.NATIVE, np.uint8),
            np.zeros(rows, np.uint64) if offsets is None else offsets,
            lengths,
            np.arange(rows, dtype=np.uint32) if targets is None else targets,
            chunk_ids=chunk_ids,
        ).sorted()

    @classmethod
    def virtual(
        cls,
        coordinates: Coordinates,
        locations: BytesColumn,
        offsets: NDArray[np.uint64],
        lengths: NDArray[np.uint64],
        *,
        targets: NDArray[np.uint32] | None = None,
        etags: BytesColumn | None = None,
        etag_rows: NDArray[np.int32] | None = None,
        last_modified: NDArray[np.uint32] | None = None,
    ) -> Self:
        """Make references into foreign files, one location per row unless `targets` shares them.

        >>> import numpy as np
        >>> table = ChunkTable.virtual(
        ...     coordinates=np.array([[0], [1]], np.uint32),
        ...     locations=BytesColumn.from_strings(["s3://bucket/2020.nc"]),
        ...     targets=np.array([0, 0], np.uint32),
        ...     offsets=np.array([0, 400], np.uint64),
        ...     lengths=np.array([400, 400], np.uint64),
        ... )
        >>> table.find([1])
        VirtualChunk(location='s3://bucket/2020.nc', offset=400, length=400, ...)
        """
        if targets is None:
            locations, targets = locations.distinct()
        return cls(
            coordinates,
            np.full(len(coordinates), ChunkKind.VIRTUAL, np.uint8),
            offsets,
            lengths,
            targets,
            locations=locations,
            etags=BytesColumn.empty() if etags is None else etags,
            etag_rows=etag_rows,
            last_modified=last_modified,
        ).sorted()

    @classmethod
    def inlined(cls, coordinates: Coordinates, data: BytesColumn) -> Self:
        """Make references that hold their bytes."""
        rows = len(coordinates)
        return cls(
            coordinates,
            np.full(rows, ChunkKind.INLINE, np.uint8),
            np.zeros(rows, np.uint64),
            data.lengths().astype(np.uint64),
            np.arange(rows, dtype=np.uint32),
            inline=data,
        ).sorted()

    # -- reading ---------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.kinds)

    @property
    def dimensions(self) -> int:
        """Return the number of dimensions of the array."""
        return int(self.coordinates.shape[1])

    @property
    def memory_bytes(self) -> int:
        """Return the memory that the columns take."""
        return memory_of_columns(self)

    def extents(self) -> Extents:
        """Return the tight bounds of all coordinates; the table must not be empty."""
        bounds = np.empty((self.dimensions, 2), np.uint32)
        for dimension in range(self.dimensions):
            column = self.coordinates[:, dimension]
            if dimension == 0:  # by which rows are sorted
                first, last = column.item(0), column.item(-1)
            else:
                first, last = int(column.min()), int(column.max())
            if last == _LARGEST_INDEX:
                raise InvalidInputError(
                    f"a chunk coordinate of {last} is one more than an array can have",
                    ErrorKind.INVALID_CHUNK_INDEX,
                )
            bounds[dimension] = first, last + 1
        return bounds

    def row_of(self, coordinates: Sequence[int]) -> int | None:
        """Find the row of a chunk by binary search."""
        return row_of_sorted(self.coordinates, coordinates)

    def rows_of(self, coordinates: Coordinates) -> Ints:
        """Find the rows of many chunks; -1 for one that has none."""
        return RowFinder(self.coordinates).find_many(coordinates)

    def find(self, coordinates: Sequence[int]) -> ChunkRef | None:
        """Look up one chunk."""
        row = self.row_of(coordinates)
        return None if row is None else self.ref(row)

    def ref(self, row: int) -> ChunkRef:
        """Return one row as an object: for single chunks, not for loops."""
        # `item` and plain numbers: this is on the path of every single chunk that is read.
        target = self.targets.item(row)
        offset, length = self.offsets.item(row), self.lengths.item(row)
        match self.kinds.item(row):
            case ChunkKind.NATIVE:
                return NativeChunk(ChunkId(self.chunk_ids[target].tobytes()), offset, length)
            case ChunkKind.VIRTUAL:
                etag_row = -1 if self.etag_rows is None else int(self.etag_rows[row])
                modified = 0 if self.last_modified is None else int(self.last_modified[row])
                return VirtualChunk(
                    self.locations[target].decode(),
                    offset,
                    length,
                    None if etag_row < 0 else self.etags[etag_row].decode(),
                    modified or None,
                )
            case _:
                return InlineChunk(self.inline[target])

    # -- choosing and combining rows -------------------------------------------------------

    def take(self, rows: Ints | Bools | slice) -> Self:
        """Pick rows; the targets they share stay shared."""
        return type(self)(
            self.coordinates[rows],
            self.kinds[rows],
            self.offsets[rows],
            self.lengths[rows],
            self.targets[rows],
            self.chunk_ids,
            self.locations,
            self.inline,
            self.etags,
            etag_rows=None if self.etag_rows is None else self.etag_rows[rows],
            last_modified=None if self.last_modified is None else self.last_modified[rows],
        )

    def compacted(self) -> Self:
        """Drop targets that no row uses any more, so that they take no memory."""
        targets, columns = self.targets, dict[str, Bytes | BytesColumn]()
        for kind, name in _TARGETS.items():
            column: Bytes | BytesColumn = getattr(self, name)
            if len(column) == 0:
                continue
            rows = self.kinds == kind
            is_used = np.zeros(len(column), np.bool_)
            is_used[self.targets[rows]] = True
            if not is_used.all():
                numbers = np.cumsum(is_used, dtype=np.uint32) - np.uint32(1)
                targets = np.where(rows, numbers.take(self.targets, mode="clip"), targets)
                used_rows = np.flatnonzero(is_used)
                is_ids = kind is ChunkKind.NATIVE
                columns[name] = self.chunk_ids[used_rows] if is_ids else column.take(used_rows)
        return replace(self, targets=targets, **columns) if columns else self

    def sorted(self, *, last_wins: bool = False) -> Self:
        """Sort rows by coordinates.

        A coordinate that occurs twice is an error, unless the last row of each is to count.
        """
        if len(self) < 2:
            return self
        [keys] = sort_keys(self.coordinates)
        if is_ascending(keys):
            return self
        order = np.argsort(keys, kind="stable")
        ranked = keys[order]
        is_repeated = ranked[1:] == ranked[:-1]
        if is_repeated.any():
            if last_wins:
                return self.take(order[np.append(~is_repeated, True)])
            raise InvalidInputError(
                "a chunk coordinate occurs more than once: keep one reference for each",
                ErrorKind.INVALID_CHUNK_INDEX,
            )
        return self.take(order)

    def within(self, extents: Extents) -> Self:
        """Keep the rows inside of a box."""
        if self.dimensions == 0:
            return self
        first, last = np.searchsorted(self.coordinates[:, 0], extents[0])
        part = self if last - first == len(self) else self.take(slice(first, last))
        if self.dimensions == 1:
            return part
        inside = np.ones(len(part), np.bool_)
        for dimension in range(1, self.dimensions):
            column = part.coordinates[:, dimension]
            inside &= (column >= extents[dimension, 0]) & (column < extents[dimension, 1])
        return part if inside.all() else part.take(inside)

    def without(self, coordinates: Coordinates) -> Self:
        """Drop the rows of some chunks, whether they exist or not."""
        if len(coordinates) == 0 or len(self) == 0:
            return self
        if self.dimensions == 0:
            return self.empty(0)
        if len(coordinates) <= _FEW_ROWS:
            matches = [row_of_sorted(self.coordinates, chunk) for chunk in coordinates.tolist()]
            rows = [row for row in matches if row is not None]
            return self.take(np.delete(np.arange(len(self)), rows)) if rows else self
        keep = ~are_among(self.coordinates, coordinates)
        return self if keep.all() else self.take(keep)

    def overlay(self, newer: Self, deleted: Coordinates | None = None) -> Self:
        """Put newer references over these, after deleting some."""
        table = self.without(newer.coordinates)
        if deleted is not None:
            table = table.without(deleted)
        return concat_tables([table, newer])

    def __eq__(self, other: object) -> bool:
        """Compare what rows mean, however their targets are numbered."""
        if not isinstance(other, ChunkTable):
            return NotImplemented
        return (
            np.array_equal(self.coordinates, other.coordinates)
            and np.array_equal(self.kinds, other.kinds)
            and np.array_equal(self.offsets, other.offsets)
            and np.array_equal(self.lengths, other.lengths)
            and all(_same_targets(self, other, kind) for kind in ChunkKind)
            and _etags_of_rows(self) == _etags_of_rows(other)
            and np.array_equal(_modified_of_rows(self), _modified_of_rows(other))
        )

    __hash__ = None  # type: ignore[assignment]


_TARGETS: Final = {
    ChunkKind.NATIVE: "chunk_ids",
    ChunkKind.VIRTUAL: "locations",
    ChunkKind.INLINE: "inline",
}


def row_of_sorted(matrix: Coordinates, chunk: Sequence[int]) -> int | None:
    """Find coordinates in sorted and unique rows, one dimension after the other."""
    low, high = 0, len(matrix)
    last = matrix.shape[1] - 1
    if len(chunk) != last + 1:
        return None
    for dimension, index in enumerate(chunk):
        if not 0 <= index <= _LARGEST_INDEX:
            return None
        column = matrix[low:high, dimension]
        key = np.uint32(index)
        first = int(column.searchsorted(key))
        if first == high - low or column.item(first) != index:
            return None
        if dimension == last:  # rows are unique: one match is all there is
            return low + first
        low, high = low + first, low + int(column.searchsorted(key, "right"))
    return low if low < high else None


def concat_tables[T: ChunkTable](tables: Sequence[T]) -> T:
    """Unite tables of one array that share no chunk; rows are sorted again where needed."""
    tables = [table for table in tables if len(table)] or list(tables[:1])
    if len(tables) == 1:
        return tables[0]
    targets = []
    starts = [0] * (len(ChunkKind) + 1)
    for table in tables:
        shifts = np.array(starts, np.uint32)
        targets.append(table.targets + shifts[table.kinds] if any(starts) else table.targets)
        for kind, name in _TARGETS.items():
            starts[kind] += len(getattr(table, name))
    return type(tables[0])(
        coordinates=np.concatenate([table.coordinates for table in tables]),
        kinds=np.concatenate([table.kinds for table in tables]),
        offsets=np.concatenate([table.offsets for table in tables]),
        lengths=np.concatenate([table.lengths for table in tables]),
        targets=np.concatenate(targets),
        chunk_ids=np.concatenate([table.chunk_ids for table in tables]),
        locations=concat_bytes([table.locations for table in tables]),
        inline=concat_bytes([table.inline for table in tables]),
        etags=concat_bytes([table.etags for table in tables]),
        etag_rows=None
        if all(table.etag_rows is None for table in tables)
        else _concat_etag_rows(tables),
        last_modified=None
        if all(table.last_modified is None for table in tables)
        else np.concatenate([_modified_of_rows(table) for table in tables]),
    ).sorted()


def _concat_etag_rows(tables: Sequence[ChunkTable]) -> NDArray[np.int32]:
    rows = []
    starts = accumulate((len(table.etags) for table in tables), initial=0)
    for table, start in zip(tables, starts, strict=False):
        own = np.full(len(table), -1, np.int32) if table.etag_rows is None else table.etag_rows
        rows.append(np.where(own < 0, own, own + np.int32(start)))
    return np.concatenate(rows)


def _modified_of_rows(table: ChunkTable) -> NDArray[np.uint32]:
    return np.zeros(len(table), np.uint32) if table.last_modified is None else table.last_modified


def _etags_of_rows(table: ChunkTable) -> BytesColumn:
    """Return the etag of each row; a prefix distinguishes a missing one from an empty one."""
    if table.etag_rows is None:
        return BytesColumn.from_list([b""] * len(table))
    marked = [b"", *(b"=" + etag for etag in table.etags.to_list())]
    return BytesColumn.from_list(marked).take(table.etag_rows + 1)


def _same_targets(left: ChunkTable, right: ChunkTable, kind: ChunkKind) -> bool:
    mask = left.kinds == kind
    ours, theirs = getattr(left, _TARGETS[kind]), getattr(right, _TARGETS[kind])
    # Rows may share long targets: each pair of targets is compared once.
    pairs = np.unique(left.targets[mask].astype(np.uint64) << 32 | right.targets[mask])
    our_rows, their_rows = pairs >> np.uint64(32), pairs & np.uint64(_LARGEST_INDEX)
    if kind is ChunkKind.NATIVE:
        return np.array_equal(ours[our_rows], theirs[their_rows])
    return bool(ours.take(our_rows) == theirs.take(their_rows))


def equal_rows(left: ChunkTable, right: ChunkTable) -> Bools:
    """Mark the rows that are the same reference in two tables with the same coordinates."""
    equal: Bools = (
        (left.kinds == right.kinds)
        & (left.offsets == right.offsets)
        & (left.lengths == right.lengths)
        & (_modified_of_rows(left) == _modified_of_rows(right))
    )
    for kind, name in _TARGETS.items():
        rows = np.flatnonzero(equal & (left.kinds == kind))
        if len(rows):
            ours, theirs = getattr(left, name), getattr(right, name)
            equal[rows] = _equal_targets(ours, left.targets[rows], theirs, right.targets[rows])
    if left.etag_rows is not None or right.etag_rows is not None:
        all_rows = np.arange(len(left))
        equal &= _equal_targets(_etags_of_rows(left), all_rows, _etags_of_rows(right), all_rows)
    return equal


def _equal_targets(
    ours: Bytes | BytesColumn,
    our_rows: NDArray[np.integer],
    theirs: Bytes | BytesColumn,
    their_rows: NDArray[np.integer],
) -> Bools:
    if isinstance(ours, BytesColumn) and isinstance(theirs, BytesColumn):
        _, numbers = concat_bytes([ours, theirs]).distinct()
        equal: Bools = numbers[our_rows] == numbers[len(ours) + their_rows.astype(np.int64)]
        return equal
    assert not isinstance(ours, BytesColumn)
    assert not isinstance(theirs, BytesColumn)
    all_bytes: Bools = (ours[our_rows] == theirs[their_rows]).all(axis=1)
    return all_bytes


def sort_keys(*matrices: Coordinates) -> list[NDArray[Any]]:
    """Return each coordinate a key that sorts as the coordinates do, equal in all matrices.

    One number where the box around all coordinates is small enough, else bytes.
    """
    dimensions = matrices[0].shape[1]
    if dimensions == 0:  # a scalar: its chunks are all the same one
        return [np.zeros(len(matrix), np.int64) for matrix in matrices]
    if dimensions == 1:
        return [matrix[:, 0] for matrix in matrices]
    sizes = [
        max(int(matrix[:, dimension].max(initial=0)) for matrix in matrices) + 1
        for dimension in range(dimensions)
    ]
    if prod(sizes) >= 2**63:
        width = f"S{4 * dimensions}"
        return [np.ascontiguousarray(m.astype(">u4")).view(width).ravel() for m in matrices]
    all_keys = list[NDArray[Any]]()
    for matrix in matrices:
        keys = matrix[:, 0].astype(np.int64)
        for dimension in range(1, dimensions):
            keys *= sizes[dimension]
            keys += matrix[:, dimension]
        all_keys.append(keys)
    return all_keys


def are_among(coordinates: Coordinates, others: Coordinates) -> Bools:
    """Mark the coordinates that are among others."""
    if len(coordinates) == 0 or len(others) == 0 or coordinates.shape[1] != others.shape[1]:
        return np.zeros(len(coordinates), np.bool_)
    mine, theirs = sort_keys(coordinates, others)
    return np.isin(mine, theirs)


class RowFinder:
    """Finds coordinates in sorted and unique rows.

    Most arrays have all of their chunks: then a row is found by counting.

    >>> RowFinder(np.array([[4, 0], [4, 1], [5, 0], [5, 1]], np.uint32)).find((5, 0))
    2
    """

    __slots__ = ("_box", "_matrix")

    def __init__(self, matrix: Coordinates) -> None:
        self._box = _filled_box(matrix)
        self._matrix = matrix if self._box is None else matrix[:0]

    def find(self, chunk: Sequence[int]) -> int | None:
        """Return the row of some coordinates; `None` if there is none."""
        box = self._box
        if box is None:
            return row_of_sorted(self._matrix, chunk)
        if len(chunk) != len(box):
            return None
        row = 0
        for index, (first, count) in zip(chunk, box, strict=True):
            if not first <= index < first + count:
                return None
            row = row * count + index - first
        return row

    def find_many(self, chunks: Coordinates) -> Ints:
        """Return the row of each of some coordinates; -1 where there is none.

        >>> finder = RowFinder(np.array([[4, 0], [4, 1], [5, 0], [5, 1]], np.uint32))
        >>> finder.find_many(np.array([[5, 1], [6, 0], [4, 0]], np.uint32)).tolist()
        [3, -1, 0]
        """
        box = self._box
        if box is None:
            return self._search(chunks)
        if chunks.shape[1] != len(box):
            return np.full(len(chunks), -1, np.int64)
        rows, inside = np.zeros(len(chunks), np.int64), np.ones(len(chunks), np.bool_)
        for dimension, (first, count) in enumerate(box):
            steps = chunks[:, dimension].astype(np.int64) - first
            inside &= (steps >= 0) & (steps < count)
            rows = rows * count + steps
        return np.where(inside, rows, -1)

    def _search(self, chunks: Coordinates) -> Ints:
        count = len(self._matrix)
        if len(chunks) * _FEW_ROWS <= count or chunks.shape[1] != self._matrix.shape[1]:
            matches = (row_of_sorted(self._matrix, chunk) for chunk in chunks.tolist())
            return np.array([-1 if row is None else row for row in matches], np.int64)
        if count == 0:
            return np.full(len(chunks), -1, np.int64)
        mine, wanted = sort_keys(self._matrix, chunks)
        rows = np.minimum(np.searchsorted(mine, wanted), count - 1)
        return np.where(mine[rows] == wanted, rows, -1)


def _filled_box(matrix: Coordinates) -> list[tuple[int, int]] | None:
    """Return first index and length of each dimension, if the rows fill the whole box."""
    if len(matrix) == 0:
        return None
    firsts, lasts = np.min(matrix, axis=0).tolist(), np.max(matrix, axis=0).tolist()
    box = [(first, last - first + 1) for first, last in zip(firsts, lasts, strict=True)]
    return box if prod(count for _, count in box) == len(matrix) else None
