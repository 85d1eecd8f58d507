"""The chunks of an array: how many of each kind there are, and where in the grid they are."""

from math import prod
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from icefloe.effects import AsyncCloseableIterator
from icefloe.format.chunk_table import ChunkKind, Coordinates
from icefloe.format.ids import ManifestId, id_rows
from icefloe.format.nodes import ArrayNode
from icefloe.manifests.lookup import listed_in
from icefloe.records import Record
from icefloe.transactions.chunks import chunk_tables
from icefloe.web.versions import Version

MOST_REFERENCES: Final = 2_000_000
"""How many references a page reads, of an array with more."""
MOST_COUNTED: Final = 200_000
"""Kinds of more chunks than these are not counted in a table of arrays."""
MOST_CELLS: Final = 96
"""How many cells of the drawn grid are beside each other, and one above the other."""
KINDS: Final = {
    ChunkKind.NATIVE: "native",
    ChunkKind.VIRTUAL: "virtual",
    ChunkKind.INLINE: "inline",
}


class ChunkCounts(Record):
    """How many chunks of each kind an array has."""

    native: int
    virtual: int
    inline: int
    grid_chunks: int
    is_complete: bool
    """Whether all references were read; otherwise the numbers are of the first ones."""
    listed: int | None = None
    """The number of chunks by the list of the manifests; None if it does not tell."""

    @property
    def present(self) -> int:
        """The number of chunks that exist."""
        return self.native + self.virtual + self.inline

    @property
    def missing(self) -> int:
        """The number of chunks that the grid has room for and that do not exist."""
        return self.grid_chunks - self.present


class Cells(Record):
    """The two dimensions of a grid with the most chunks, in cells: each stands for some chunks."""

    num_chunks: tuple[int, ...]
    axes: tuple[int | None, int | None]
    """The dimensions that are drawn downwards and to the right; None for none."""
    shape: tuple[int, int]

    @classmethod
    def of(cls, num_chunks: tuple[int, ...]) -> Self:
        """Choose the dimensions of a grid to draw, and how many chunks a cell stands for.

        >>> [Cells.of(grid).axes for grid in ((5, 1, 7), (5,), ())]
        [(0, 2), (None, 0), (None, None)]
        """
        longest = sorted(range(len(num_chunks)), key=lambda axis: (-num_chunks[axis], axis))[:2]
        axes: tuple[int | None, int | None] = (None, longest[0] if longest else None)
        if len(longest) == 2:
            axes = min(longest), max(longest)
        rows, columns = (
            1 if axis is None else max(1, min(num_chunks[axis], MOST_CELLS)) for axis in axes
        )
        return cls(num_chunks, axes, (rows, columns))

    def numbers(self, coordinates: Coordinates) -> NDArray[np.int64]:
        """Return the number of the cell of each chunk, counted row by row."""
        rows, columns = (
            np.zeros(len(coordinates), np.int64)
            if axis is None
            else coordinates[:, axis].astype(np.int64) * count // self.num_chunks[axis]
            for axis, count in zip(self.axes, self.shape, strict=True)
        )
        return rows * self.shape[1] + columns

    def count(self, coordinates: Coordinates) -> NDArray[np.int64]:
        """Count the chunks in each cell."""
        counts = np.bincount(self.numbers(coordinates), minlength=prod(self.shape))
        return counts.reshape(self.shape)

    def room(self) -> NDArray[np.int64]:
        """Return how many chunks each cell stands for."""
        drawn = [1 if axis is None else self.num_chunks[axis] for axis in self.axes]
        rows, columns = (
            _chunks_in_cells(length, cells) for length, cells in zip(drawn, self.shape, strict=True)
        )
        return np.outer(rows, columns) * (prod(self.num_chunks) // max(1, prod(drawn)))

    def edges(self, direction: int) -> list[int]:
        """Return the first chunk of each cell downwards (0) or to the right (1), and the end.

        >>> Cells.of((7,)).edges(1)
        [0, 1, 2, 3, 4, 5, 6, 7]
        """
        axis, count = self.axes[direction], self.shape[direction]
        length = 1 if axis is None else self.num_chunks[axis]
        return [int(edge) for edge in _edges(length, count)]


class ChunkGrid(Record, eq=False):
    """The chunks of an array in the cells of a drawing."""

    counts: ChunkCounts
    cells: Cells
    kinds: dict[str, NDArray[np.int64]]
    """For each kind, the number of chunks in each cell."""


def read_grid(version: Version, node: ArrayNode) -> ChunkGrid:
    """Count the chunks of an array in the cells of a drawing.

    The drawing shows the two dimensions with the most chunks.
    """
    cells = Cells.of(node.array.num_chunks)
    size = prod(cells.shape)
    counts = {kind: np.zeros(size, np.int64) for kind in KINDS}
    grid_chunks, total = prod(node.array.num_chunks), 0
    for table in AsyncCloseableIterator(chunk_tables(version.state, node)):
        numbers = cells.numbers(table.coordinates)
        for kind in KINDS:
            counts[kind] += np.bincount(numbers[table.kinds == kind], minlength=size)
        total += len(table)
        if total >= MOST_REFERENCES:
            break
    native, virtual, inline = (int(counts[kind].sum()) for kind in KINDS)
    is_complete = total < MOST_REFERENCES or total == grid_chunks
    listed = None if is_complete else listed_chunks(version, node)
    return ChunkGrid(
        ChunkCounts(native, virtual, inline, grid_chunks, is_complete, listed),
        cells,
        {name: counts[kind].reshape(cells.shape) for kind, name in KINDS.items()},
    )


def read_counts(version: Version, node: ArrayNode) -> ChunkCounts:
    """Count the chunks of an array; if there are many, only their number, without reading any."""
    listed = listed_chunks(version, node)
    if listed is not None:
        return ChunkCounts(0, 0, 0, prod(node.array.num_chunks), is_complete=False, listed=listed)
    return read_grid(version, node).counts


def listed_chunks(version: Version, node: ArrayNode) -> int | None:
    """Return the number of chunks that the list of manifests has for an array with many chunks.

    None if there are few, or if the array shares manifests with others.
    """
    ids = [ref.id for ref in version.state.lookup(node).manifests]
    listed = sum(listed_in(version.state.manifest_files, ids)[1])
    if listed <= MOST_COUNTED:
        return None
    is_own = np.isin(
        _keys(version.state.snapshot.nodes.manifest_ids), _keys(id_rows(ManifestId, ids))
    )
    return listed if np.count_nonzero(is_own) == len(ids) else None


def _keys(ids: NDArray[np.uint8]) -> NDArray[np.bytes_]:
    return np.ascontiguousarray(ids).view(f"S{ManifestId.WIDTH}").ravel()


def _chunks_in_cells(length: int, cells: int) -> NDArray[np.int64]:
    """Return how many chunks along a dimension belong to each cell.

    >>> _chunks_in_cells(7, 3).tolist()
    [3, 2, 2]
    """
    return np.diff(_edges(length, cells))


def _edges(length: int, cells: int) -> NDArray[np.int64]:
    # Chunk i is in cell i * cells // length, so that cell c begins at ceil(c * length / cells).
    return -(-np.arange(cells + 1) * length // cells)
