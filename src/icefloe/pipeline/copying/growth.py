"""Copies that grow: which objects are written again, and which only move.

Objects that new files meet are copied: what the array has already, with the values of the files
over it. All others stay as they are. If steps come before the first one, objects move by whole
numbers of objects; of an array where that is not possible, all objects from there on are copied.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import zarr

from icefloe.pipeline.combining.combine import (
    Combined,
    Existing,
    TargetArray,
    array_metadata,
)
from icefloe.pipeline.combining.insertions import Insertions
from icefloe.pipeline.combining.report import Misfit
from icefloe.pipeline.copying.copies import ArrayToCopy, described_array
from icefloe.pipeline.copying.joined import JoinedArray, is_new_step
from icefloe.pipeline.copying.layouts import ArrayLayout, Slab
from icefloe.pipeline.copying.origins import Needs
from icefloe.pipeline.copying.pieces import Ints, Pieces
from icefloe.pipeline.files.decoding import missing_marker
from icefloe.pipeline.files.facts import ANY_LENGTH, ArraySchema, FileFacts, Kind
from icefloe.pipeline.writing.building import CellBox
from icefloe.pipeline.writing.provenance import SourceRecord
from icefloe.records import Record, replace


class GrownArray(Record, eq=False):
    """An array of a copy that has its new shape, and what is to be copied into it."""

    array: ArrayToCopy
    joined: JoinedArray
    boxes: tuple[CellBox, ...]
    """Of objects to copy; no two of them meet."""
    inserted: tuple[Insertions, ...] = ()
    """By axis, the chunks that come before existing ones, which move; empty if all stay."""

    @classmethod
    def of(cls, target: "zarr.Array[Any]", path: str, joined: JoinedArray) -> "GrownArray":
        """Find out what is to be copied into an array."""
        about = described_array(path, target)
        layout = ArrayLayout(about.chunks, about.shards)
        array = ArrayToCopy(target, about, layout, joined.needs)
        grid, inserted = array.shape.grid, joined.inserted
        whole = (tuple((0, cells) for cells in grid),) if prod(grid) else ()
        if inserted is None:
            return cls(array, joined, whole)
        objects, needs = layout.objects, joined.needs
        earlier_bytes = about.item_bytes * prod(objects)
        needs = Needs(
            max(needs.value_bytes, about.item_bytes), max(needs.object_bytes, earlier_bytes)
        )
        array = replace(array, needs=needs)
        chunks = [
            of_axis.in_chunks(length) for of_axis, length in zip(inserted, objects, strict=True)
        ]
        moving = tuple(of_axis for of_axis in chunks if of_axis is not None)
        if len(moving) < len(chunks):
            return cls(array, joined, _behind(inserted, joined.pieces, objects, grid))
        is_moved = any(of_axis.runs for of_axis in moving)
        boxes = boxes_met(joined.pieces, objects)
        return cls(array, joined, boxes, moving if is_moved else ())

    def moved(self, cells: Ints) -> Ints:
        """Return where chunks go, a row for each."""
        moved = cells.copy()
        for axis, of_axis in enumerate(self.inserted):
            moved[:, axis] = of_axis.moved(cells[:, axis])
        return moved

    def slabs(self, number: int) -> list[Slab]:
        """Return what is to be copied as slabs of the array of this number."""
        return [
            Slab(
                number,
                *(box[0] if box else (0, 1)),
                objects=prod(end - first for first, end in box),
                across=box[1:],
            )
            for box in self.boxes
        ]


def _behind(
    inserted: Sequence[Insertions], pieces: Pieces, objects: Sequence[int], grid: Sequence[int]
) -> tuple[CellBox, ...]:
    """Return the box of objects from the first one that changes along the axis of insertions.

    With insertions along several axes these are all objects.
    """
    if not prod(grid):
        return ()
    first, axes = 0, [axis for axis, of_axis in enumerate(inserted) if of_axis.runs]
    if len(axes) == 1:
        position, _ = inserted[axes[0]].runs[0]
        first = min([position, *pieces.starts[:, axes[0]].tolist()]) // objects[axes[0]]
    return (tuple((first if [axis] == axes else 0, cells) for axis, cells in enumerate(grid)),)


def boxes_met(pieces: Pieces, objects: Sequence[int]) -> tuple[CellBox, ...]:
    """Return boxes of the objects that pieces meet, so that no object is in two of them.

    >>> boxes_met(Pieces.of([[3, 0], [5, 0]], [[2, 4], [4, 4]], [[0, 0], [0, 0]], [0, 1]), (2, 4))
    (((1, 5), (0, 1)),)
    """
    if not len(pieces):
        return ()
    if not objects:
        return ((),)
    lengths = np.array(objects, np.int64)
    low = pieces.starts // lengths
    high = -(-(pieces.starts + pieces.lengths) // lengths)
    edges = [
        np.unique(np.concatenate([low[:, axis], high[:, axis]])) for axis in range(len(objects))
    ]
    met = np.zeros([len(of_axis) for of_axis in edges], np.bool_)
    first, last = (
        np.stack(
            [np.searchsorted(edges[axis], ends[:, axis]) for axis in range(len(objects))], axis=1
        ).reshape(len(pieces), len(objects))
        for ends in (low, high)
    )
    for begin, end in zip(first.tolist(), last.tolist(), strict=True):
        met[tuple(map(slice, begin, end))] = True
    cells = np.argwhere(met)
    starts = _picked(edges, cells)
    boxes = Pieces(starts, _picked(edges, cells + 1) - starts, starts, np.zeros(len(cells), int))
    merged = boxes.merged()
    corners = np.stack([merged.starts, merged.starts + merged.lengths], axis=2)
    return tuple(tuple((low, high) for low, high in box) for box in corners.tolist())


def _picked(edges: Sequence[Ints], cells: Ints) -> Ints:
    return np.stack([edge[cells[:, axis]] for axis, edge in enumerate(edges)], axis=1)


def variables_of(file: FileFacts) -> frozenset[str]:
    """Name the variables of a file."""
    return frozenset() if file.schema is None else file.schema.variables


def with_lacking(
    facts: Sequence[FileFacts], combined: Combined, existing: Existing, record: SourceRecord
) -> tuple[Combined, dict[int, Misfit]]:
    """Add the arrays that all new files lack, and earlier files of the same variables have.

    What reads as missing without that is left out. Return also the files that lack an array whose
    values cannot be marked as missing.
    """
    families = [set(names.split()) for names in {file.variables for file in record.files}]
    lacking: dict[str, set[int]] = {}
    present = {array.path for array in combined.arrays}
    for number in combined.files:
        own = variables_of(facts[number])
        for variables in families:
            if own & variables:
                for path in variables - own - present:
                    lacking.setdefault(path, set()).add(number)
    misfits: dict[int, Misfit] = {}
    arrays = list(combined.arrays)
    for path, numbers in sorted(lacking.items()):
        schema = existing.schema.by_path.get(path)
        if schema is None or ANY_LENGTH not in schema.shape:
            continue
        marker = missing_marker(schema.data_type, schema.encoding)
        if marker is None:
            text = f"{path} is missing, and nothing marks its values as missing in the copy"
            for number in numbers:
                misfit = Misfit(facts[number].url, Kind.MISSING_VARIABLE, text, path)
                misfits.setdefault(number, misfit)
        elif marker != schema.fill_value:
            arrays.append(_lacked_array(schema, combined))
    known = {path: frozenset(numbers) for path, numbers in lacking.items()}
    added = replace(combined, arrays=tuple(arrays), lacking={**combined.lacking, **known})
    return added, misfits


def _lacked_array(schema: ArraySchema, combined: Combined) -> TargetArray:
    growing = tuple(
        (axis, name)
        for axis, (name, length) in enumerate(zip(schema.dimensions, schema.shape, strict=True))
        if length == ANY_LENGTH
    )
    shape = list(schema.shape)
    for axis, name in growing:
        shape[axis] = combined.lengths[name]
    metadata = array_metadata(schema, tuple(shape), schema.chunks, [], {})
    families = tuple(sorted(set(combined.families)))
    return TargetArray(schema.path, metadata, growing, is_native=False, families=families)


def objects_of_files(
    facts: Sequence[FileFacts], combined: Combined, layouts: Mapping[str, Sequence[int]]
) -> list[FileFacts]:
    """Return facts that count the objects of a copy as references, as commits are cut by them.

    `layouts` are the lengths of the objects of existing arrays.
    """
    arrays = [array for array in combined.arrays if array.growing]
    counted = list(facts)
    for number in combined.files:
        lengths = facts[number].lengths
        objects = 0.0
        for array in arrays:
            growing = dict(array.growing)
            units = layouts.get(array.path, array.chunks)
            objects += prod(
                (lengths[growing[axis]] if axis in growing else length) / unit
                for axis, (length, unit) in enumerate(
                    zip(array.metadata["shape"], units, strict=True)
                )
            )
        counted[number] = replace(facts[number], references=int(objects) + 1)
    return counted


def is_loaded_of(facts: Sequence[FileFacts]) -> "Loaded":
    """Find out which arrays of an existing copy are known by value, given the files to add."""
    schemas = {id(file.schema): file.schema for file in facts if file.schema is not None}
    return Loaded(
        frozenset(path for schema in schemas.values() for path in schema.by_path),
        frozenset(path for file in facts for path in file.values),
    )


class Loaded(Record):
    """The arrays of a copy whose values are known while files are placed."""

    paths: frozenset[str]
    """Of all arrays of the new files."""
    by_value: frozenset[str]
    """Those of them whose values some files gave."""

    def __call__(self, array: Any) -> bool:
        """Return whether an array is written by value: also one of which files know nothing."""
        return array.path in self.by_value or (
            array.path not in self.paths and len(array.shape) == 1
        )


def native_runs(
    combined: Combined, facts: Sequence[FileFacts], existing: Existing, path: str
) -> list[tuple[int, Any]]:
    """Return the runs of values of a small array, also of files that lack it."""
    runs = list(combined.native[path])
    there = existing.schema.by_path.get(path)
    lacking = combined.lacking.get(path)
    if there is None or not lacking:
        return runs
    name = there.dimensions[there.shape.index(ANY_LENGTH)]
    starts = {start for start, _ in runs}
    marker = missing_marker(there.data_type, there.encoding)
    kind, rest = runs[0][1].dtype, runs[0][1].shape[1:]
    for row, number in enumerate(combined.files):
        start = int(combined.starts[name][row])
        is_new = is_new_step(combined, existing, name, start)
        if number in lacking and start not in starts and (is_new or len(combined.starts) == 1):
            steps = facts[number].lengths[name]
            runs.append((start, np.full((steps, *rest), marker, kind)))
    return runs
