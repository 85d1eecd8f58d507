"""Files that take their own place again: what they had before and have no more must go."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from icefloe.engine.context import RepoContext
from icefloe.engine.linking.linked import StoredManifest
from icefloe.format.chunk_table import ChunkTable, Coordinates, concat_tables
from icefloe.format.ids import NodeId

type CellBox = tuple[tuple[int, int], ...]
"""First cell and first one after, along each dimension of a grid of chunks."""


def cells_of(box: CellBox) -> NDArray[np.int64]:
    """List all cells of a box, a row for each.

    >>> cells_of(((2, 4), (0, 1))).tolist()
    [[2, 0], [3, 0]]
    """
    axes = [np.arange(first, last) for first, last in box]
    if not axes:
        return np.zeros((1, 0), np.int64)
    return np.stack([each.ravel() for each in np.meshgrid(*axes, indexing="ij")], axis=1)


async def vanished(
    context: RepoContext,
    node: NodeId,
    stored: Sequence[StoredManifest],
    boxes: Sequence[CellBox],
    new: Coordinates,
) -> Coordinates:
    """List the chunks that are stored within some boxes, and not among the new ones."""
    tables = [ChunkTable.empty(new.shape[1])]
    for each in stored if boxes else ():
        manifest = await context.assets.load_manifest(each.ref.id, each.size_bytes)
        tables.append(_within(manifest.table(node), boxes))
    return concat_tables(tables).without(new).coordinates


def _within(table: ChunkTable, boxes: Sequence[CellBox]) -> ChunkTable:
    is_inside = np.zeros(len(table), np.bool_)
    for box in boxes:
        first, last = np.array(box, np.int64).reshape(-1, 2).T
        is_inside |= ((table.coordinates >= first) & (table.coordinates < last)).all(axis=1)
    return table.take(np.flatnonzero(is_inside))
