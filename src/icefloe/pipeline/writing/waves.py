"""Very large jobs in several commits, one behind the other along the first dimension.

All files are compared before the first of them. Each wave makes the dataset longer; after a crash
what is missing is appended, as it would be to any dataset.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from icefloe.pipeline.combining.combine import Combined, Existing
from icefloe.pipeline.combining.targets import TargetArray
from icefloe.pipeline.files.facts import FileFacts
from icefloe.pipeline.options import CombineOptions


def cut_into_waves(
    facts: Sequence[FileFacts],
    combined: Combined,
    options: CombineOptions,
    existing: Existing | None,
    *,
    most: int,
) -> Iterator[Combined]:
    """Divide the files that are used so that each part has at most so many references.

    Files at the same place along the first dimension stay together, even if they have more.
    """
    name = options.concat[0]
    reached = 0 if existing is None else existing.lengths[name]
    waves = _rows_of_waves(facts, combined, name, most)
    for rows in waves:
        ends = [
            int(combined.starts[name][row]) + facts[combined.files[row]].lengths[name]
            for row in rows
        ]
        reached = max(reached, *ends)
        yield combined if len(waves) == 1 else _slice(combined, rows, name, reached)


def _rows_of_waves(
    facts: Sequence[FileFacts], combined: Combined, name: str, most: int
) -> list[list[int]]:
    starts = combined.starts[name]
    waves: list[list[int]] = [[]]
    held = 0
    order = np.argsort(starts, kind="stable")
    edges = np.flatnonzero(np.diff(starts[order])) + 1
    for rows in np.split(order, edges):
        count = sum(facts[combined.files[row]].references for row in rows.tolist())
        if waves[-1] and held + count > most:
            waves.append([])
            held = 0
        waves[-1] += rows.tolist()
        held += count
    return [sorted(rows) for rows in waves]


def _slice(combined: Combined, rows: Sequence[int], name: str, length: int) -> Combined:
    """Leave out all other files, and what lies beyond a length along a dimension."""
    arrays = tuple(_shortened(array, name, length) for array in combined.arrays)
    native = {}
    for array in arrays:
        runs = combined.native.get(array.path)
        if runs is None:
            continue
        if array.growing[0] == (0, name):
            runs = tuple((start, run[: length - start]) for start, run in runs if start < length)
        native[array.path] = runs
    return replace(
        combined,
        arrays=arrays,
        files=tuple(combined.files[row] for row in rows),
        families=tuple(combined.families[row] for row in rows),
        starts={each: column[list(rows)] for each, column in combined.starts.items()},
        lengths={**combined.lengths, name: length},
        native=native,
    )


def _shortened(array: TargetArray, name: str, length: int) -> TargetArray:
    shape = list(array.metadata["shape"])
    for axis, each in array.growing:
        if each == name:
            shape[axis] = length
    return replace(array, metadata={**array.metadata, "shape": shape})
