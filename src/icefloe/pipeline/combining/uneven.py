"""Chunks whose lengths differ from file to file, along the first dimension that files join along.

A month of days may be one chunk: 31 steps, then 28. Zarr calls a grid of such chunks rectilinear.
Here it is a list of cuts: the position of the first step of each chunk, and behind the last chunk
the length of the dimension.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

from icefloe.pipeline.combining.insertions import Insertions, Ints
from icefloe.pipeline.files.facts import ANY_CHUNK, ANY_LENGTH, DatasetSchema, FileFacts
from icefloe.records import Record, replace

_NAME: Final = "rectilinear"


def as_uneven(files: Sequence[FileFacts]) -> list[FileFacts]:
    """Return facts whose chunks may have any length along the first growing dimension.

    The lengths are then facts of the files, not of their schemas.
    """
    schemas = {id(file.schema): file.schema for file in files if file.schema is not None}
    changed: dict[int, tuple[DatasetSchema, dict[str, int]]] = {}
    for number, schema in schemas.items():
        arrays, chunks = [], dict[str, int]()
        for array in schema.arrays:
            axis = array.shape.index(ANY_LENGTH) if ANY_LENGTH in array.shape else None
            if axis is not None and array.chunks[axis] != ANY_CHUNK:
                chunks[array.path] = array.chunks[axis]
                lengths = (*array.chunks[:axis], ANY_CHUNK, *array.chunks[axis + 1 :])
                array = replace(array, chunks=lengths)  # noqa: PLW2901 - the same, but for chunks
            arrays.append(array)
        changed[number] = DatasetSchema.of(arrays), chunks
    return [
        file
        if file.schema is None
        else replace(
            file,
            schema=changed[id(file.schema)][0],
            chunks={**changed[id(file.schema)][1], **file.chunks},
        )
        for file in files
    ]


class Cells(Record):
    """The chunks of an array along one axis, all of one length or between cuts."""

    chunk: int
    """The length of chunks; `ANY_CHUNK` if it differs."""
    cuts: tuple[int, ...] = ()

    def of(self, positions: Ints) -> Ints:
        """Return in which chunks positions lie.

        >>> Cells(ANY_CHUNK, (0, 31, 59)).of(np.array([30, 31, 58])).tolist()
        [0, 1, 1]
        """
        if self.chunk != ANY_CHUNK:
            return positions // self.chunk
        cells: Ints = np.searchsorted(np.array(self.cuts), positions, side="right") - 1
        return cells

    def starts(self, cells: Ints) -> Ints:
        """Return the first position of chunks."""
        if self.chunk != ANY_CHUNK:
            return cells * self.chunk
        starts: Ints = np.array(self.cuts, np.int64)[cells]
        return starts

    def span(self, cell: int) -> tuple[int, int]:
        """Return where a chunk begins, and its length, which is 0 outside of the cuts."""
        if self.chunk != ANY_CHUNK:
            return cell * self.chunk, self.chunk
        if not 0 <= cell < len(self.cuts) - 1:
            return self.cuts[-1], 0
        return self.cuts[cell], self.cuts[cell + 1] - self.cuts[cell]


def grid_of(shape: Sequence[int], chunks: Sequence[int], axis: int, cuts: Sequence[int]) -> Any:
    """Return the chunk grid for `zarr.json`, with cuts along an axis.

    >>> grid_of((59, 8), (0, 4), 0, (0, 31, 59))["configuration"]["chunk_shapes"]
    [[31, 28], [[4, 2]]]
    """
    runs = [
        _runs(np.diff(cuts).tolist() if number == axis else [chunk] * -(-length // chunk))
        for number, (length, chunk) in enumerate(zip(shape, chunks, strict=True))
    ]
    return {"name": _NAME, "configuration": {"kind": "inline", "chunk_shapes": runs}}


def _runs(lengths: Sequence[int]) -> list[int | list[int]]:
    edges = np.flatnonzero(np.diff(lengths)).tolist() if len(lengths) else []
    bounds = [0, *(edge + 1 for edge in edges), len(lengths)]
    return [
        lengths[first] if end - first == 1 else [lengths[first], end - first]
        for first, end in pairwise(bounds)
        if end > first
    ]


def cells_of_grid(grid: Mapping[str, Any]) -> tuple[Cells, ...]:
    """Return the chunks along each axis of the chunk grid of an array.

    >>> cells_of_grid(grid_of((59, 8), (0, 4), 0, (0, 31, 59)))
    (Cells(chunk=0, cuts=(0, 31, 59)), Cells(chunk=4, cuts=()))
    """
    configuration = grid["configuration"]
    if grid["name"] != _NAME:
        return tuple(Cells(chunk) for chunk in configuration["chunk_shape"])
    return tuple(_cells_of_runs(runs) for runs in configuration["chunk_shapes"])


def _cells_of_runs(runs: Any) -> Cells:
    pairs = [run if isinstance(run, list | tuple) else (run, 1) for run in runs]
    if len(pairs) == 1:
        return Cells(pairs[0][0])
    lengths = np.repeat([size for size, _ in pairs], [count for _, count in pairs])
    return Cells(ANY_CHUNK, (0, *np.cumsum(lengths).tolist()))


def shortened(grid: Mapping[str, Any], shape: Sequence[int], axis: int) -> Mapping[str, Any]:
    """Return a grid without the chunks beyond a shape, which ends with a chunk along an axis."""
    if grid["name"] != _NAME:
        return grid
    cells, length = cells_of_grid(grid), shape[axis]
    cuts = (*(cut for cut in cells[axis].cuts if cut < length), length)
    if cells[axis].chunk != ANY_CHUNK:
        cuts = (*range(0, length, cells[axis].chunk), length)
    return dict(grid_of(shape, [each.chunk for each in cells], axis, cuts))


class OwnChunks(Record):
    """The steps of a file, and the length of its chunks of an array."""

    start: int
    length: int
    chunk: int

    @property
    def cuts(self) -> Ints:
        """Return where its chunks begin and end."""
        return self.start + np.arange(0, self.length + 1, self.chunk)


def join_cuts(
    length: int,
    there: Sequence[int],
    inserted: Insertions,
    edges: Ints,
    own: Sequence[OwnChunks],
) -> Ints:
    """Return the cuts of an array: of existing chunks, and of files between and behind them.

    `there` are existing cuts, before steps were inserted; `edges` are where any files begin and
    end, for steps that the array has no chunks for. Existing chunks stay whole.

    >>> own = [OwnChunks(31, 28, 28)]
    >>> join_cuts(90, (0, 31, 62), Insertions(((31, 28),)), np.array([31, 59]), own).tolist()
    [0, 31, 59, 90]
    """
    starts, ends = moved_cells(there, inserted)
    files = {file.start: file.start + file.length for file in own}
    taken = np.array(sorted(files.items()), np.int64).reshape(-1, 2)
    edges = _outside(_outside(edges, starts, ends), taken[:, 0], taken[:, 1])
    own_cuts = np.concatenate([[0, length], *(file.cuts for file in own)]).astype(np.int64)
    kept = _outside(own_cuts, starts, ends)
    cuts: Ints = np.unique(np.concatenate([edges, kept, starts, ends])).astype(np.int64)
    return cuts


def _outside(positions: Ints, starts: Ints, ends: Ints) -> Ints:
    """Return positions that are not within runs of steps, which lie one behind the other."""
    if not len(starts):
        return positions
    row = np.searchsorted(starts, positions, side="right") - 1
    outside: Ints = positions[(positions <= starts[row]) | (positions >= ends[row])]
    return outside


def moved_cells(there: Sequence[int], inserted: Insertions) -> tuple[Ints, Ints]:
    """Return where existing chunks begin and end after steps came before them."""
    cuts = np.array(there, np.int64)
    return inserted.moved(cuts[:-1]), inserted.moved(cuts[1:] - 1) + 1


def split_runs(there: Sequence[int], inserted: Insertions, name: str) -> dict[int, str]:
    """Return which runs of steps would come within an existing chunk, by number, and why."""
    return {
        run: f"it belongs before step {position} along {name!r}, which is within an existing chunk"
        for run, (position, _) in enumerate(inserted.runs)
        if position not in there
    }


def fits(cuts: Ints, file: OwnChunks) -> bool:
    """Return whether the chunks of a file are chunks of the array."""
    own = file.cuts
    first, end = np.searchsorted(cuts, [own[0], own[-1] + 1]).tolist()
    return np.array_equal(cuts[first:end], own)
