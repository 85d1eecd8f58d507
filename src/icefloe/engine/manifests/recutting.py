"""Cutting an array anew, without having all of its references in memory.

Stored pieces are told apart by their boxes and counts alone. Only a piece that lies across a cut
is opened there; the others are opened when the part that they belong to is written.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from icefloe.engine.manifests.partition import Blocks, Box, Cut, Layout
from icefloe.engine.manifests.survey import Piece, around
from icefloe.format.chunk_table import ChunkTable, concat_tables

type Open = Callable[[Sequence[Piece]], Awaitable[list[ChunkTable]]]
"""Gives the references of some pieces."""


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """References that belong together: pieces not opened yet, and rows of those that were."""

    pieces: tuple[Piece, ...]
    rows: ChunkTable | None = None

    @property
    def num_refs(self) -> int:
        """Count the references."""
        opened = 0 if self.rows is None else len(self.rows)
        return opened + sum(piece.num_refs for piece in self.pieces)

    @property
    def box(self) -> Box:
        """The box around them."""
        boxes = [piece.box for piece in self.pieces]
        if self.rows is not None:
            boxes.append(tuple((int(a), int(b)) for a, b in self.rows.extents()))
        return around(boxes)

    @property
    def only_piece(self) -> Piece | None:
        """The piece that this is, just as it is stored, in a manifest with nothing else."""
        if self.rows is None and len(self.pieces) == 1 and self.pieces[0].is_alone:
            return self.pieces[0]
        return None

    async def table(self, open_: Open) -> ChunkTable:
        """Give all references, with those of pieces that are opened for it."""
        opened = await open_(self.pieces) if self.pieces else []
        return concat_tables(opened if self.rows is None else [*opened, self.rows])


async def cut(whole: Share, layout: Layout, open_: Open) -> AsyncIterator[Share]:
    """Cut references into the parts that a layout wants, in the order of their places."""
    waiting = [whole]
    while waiting:
        share = waiting.pop()
        if not share.pieces:
            assert share.rows is not None
            for part in _cut_rows(share.rows, layout):
                yield Share((), part)
            continue
        place = layout.next_cut(share.box, share.num_refs)
        if place is None:
            yield share
            continue
        across = [piece for piece in share.pieces if _is_across(piece, place)]
        if across:
            closed = tuple(piece for piece in share.pieces if piece not in across)
            share = replace(share, pieces=closed, rows=await _joined(share.rows, across, open_))
        waiting += [half for half in reversed(_halves(share, place)) if half.num_refs]


def _cut_rows(rows: ChunkTable, layout: Layout) -> list[ChunkTable]:
    nothing = Blocks(np.empty((0, rows.dimensions, 2), np.int64), np.empty(0, np.int64))
    parts = layout.partition(rows.coordinates, nothing).parts
    return [rows if len(parts) == 1 else rows.take(part) for part in parts]


def _is_across(piece: Piece, place: Cut) -> bool:
    axis, edge = place
    first, last = piece.box[axis]
    return first < edge < last


async def _joined(rows: ChunkTable | None, pieces: Sequence[Piece], open_: Open) -> ChunkTable:
    opened = await open_(pieces)
    return concat_tables(opened if rows is None else [rows, *opened])


def _halves(share: Share, place: Cut) -> list[Share]:
    if not share.pieces:  # all is opened: rows are cut at once, and not copied time and again
        return [share]
    axis, edge = place
    early = tuple(piece for piece in share.pieces if piece.box[axis][1] <= edge)
    late = tuple(piece for piece in share.pieces if piece.box[axis][0] >= edge)
    if share.rows is None:
        return [Share(early), Share(late)]
    is_early = share.rows.coordinates[:, axis] < edge
    return [
        Share(early, _or_none(share.rows.take(is_early))),
        Share(late, _or_none(share.rows.take(~is_early))),
    ]


def _or_none(rows: ChunkTable) -> ChunkTable | None:
    return rows if len(rows) else None
