"""The chunks of an array: how many of each kind there are, and where in the grid they are."""

from math import prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from icefloe.effects import AsyncCloseableIterator
from icefloe.format.chunk_table import ChunkKind, Coordinates
from icefloe.format.nodes import ArrayNode
from icefloe.records import Record
from icefloe.transactions.chunks import chunk_tables
from icefloe.web.versions import Version

MOST_REFERENCES: Final = 2_000_000
"""How many references a page reads, of an array with more."""
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

    @property
    def present(self) -> int:
        """The number of chunks that exist."""
        return self.native + self.virtual + self.inline

    @property
    def missing(self) -> int:
        """The number of chunks that the grid has room for and that do not exist."""
        return self.grid_chunks - self.present


class ChunkGrid(Record, eq=False):
    """Two dimensions of the grid of an array in cells, each of which stands for some chunks."""

    counts: ChunkCounts
    axes: tuple[int | None, int | None]
    """The dimensions that are drawn downwards and to the right; None for none."""
    cells: dict[str, NDArray[np.int64]]
    """For each kind, the number of chunks in each cell."""
    room: NDArray[np.int64]
    """The number of chunks that each cell has room for."""


def read_grid(version: Version, node: ArrayNode) -> ChunkGrid:
    """Count the chunks of an array in the cells of a drawing.

    The drawing shows the two dimensions with the most chunks.
    """
    lengths = node.array.num_chunks
    axes = _drawn_axes(lengths)
    drawn = [1 if axis is None else lengths[axis] for axis in axes]
    shape = (_cells_along(drawn[0]), _cells_along(drawn[1]))
    counts = {kind: np.zeros(shape[0] * shape[1], np.int64) for kind in KINDS}
    grid_chunks, total = prod(lengths), 0
    for table in AsyncCloseableIterator(chunk_tables(version.state, node)):
        cells = _cells_of(table.coordinates, axes, lengths, shape)
        for kind in KINDS:
            counts[kind] += np.bincount(cells[table.kinds == kind], minlength=prod(shape))
        total += len(table)
        if total >= MOST_REFERENCES:
            break
    native, virtual, inline = (int(counts[kind].sum()) for kind in KINDS)
    is_complete = total < MOST_REFERENCES or total == grid_chunks
    room = np.outer(*(_chunks_in_cells(n, m) for n, m in zip(drawn, shape, strict=True)))
    return ChunkGrid(
        ChunkCounts(native, virtual, inline, grid_chunks, is_complete),
        axes,
        {name: counts[kind].reshape(shape) for kind, name in KINDS.items()},
        room * (grid_chunks // max(1, prod(drawn))),
    )


def _drawn_axes(lengths: tuple[int, ...]) -> tuple[int | None, int | None]:
    """Return the dimensions to draw.

    >>> _drawn_axes((5, 1, 7)), _drawn_axes((5,)), _drawn_axes(())
    ((0, 2), (None, 0), (None, None))
    """
    longest = sorted(range(len(lengths)), key=lambda axis: (-lengths[axis], axis))[:2]
    if len(longest) < 2:
        return None, longest[0] if longest else None
    return min(longest), max(longest)


def _cells_along(length: int) -> int:
    return max(1, min(length, MOST_CELLS))


def _cells_of(
    coordinates: Coordinates,
    axes: tuple[int | None, int | None],
    lengths: tuple[int, ...],
    shape: tuple[int, int],
) -> NDArray[np.int64]:
    """Return the number of the cell of each chunk, counted row by row."""
    rows, columns = (
        np.zeros(len(coordinates), np.int64)
        if axis is None
        else coordinates[:, axis].astype(np.int64) * count // lengths[axis]
        for axis, count in zip(axes, shape, strict=True)
    )
    return rows * shape[1] + columns


def _chunks_in_cells(length: int, cells: int) -> NDArray[np.int64]:
    """Return how many chunks along a dimension belong to each cell.

    >>> _chunks_in_cells(7, 3).tolist()
    [3, 2, 2]
    """
    # Chunk i is in cell i * cells // length, so that cell c begins at ceil(c * length / cells).
    edges = -(-np.arange(cells + 1) * length // cells)
    return np.diff(edges)
