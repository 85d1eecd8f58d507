"""What workers must know to put the references of a file where they belong.

The arrays of a dataset are described once; each file adds one small row. All of it is plain, and
holds nothing secret.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from icefloe.config.effective import EffectiveSplitSizes
from icefloe.engine.lookup import sizes_of
from icefloe.engine.paths import absolute_path
from icefloe.engine.session import SessionState
from icefloe.errors import ErrorKind, InvalidInputError, SourceError
from icefloe.format.arrow import pa
from icefloe.format.ids import NodeId
from icefloe.format.node_table import Node
from icefloe.pipeline.arrow_columns import int_column, text_column
from icefloe.pipeline.combine import Combined, placed_references
from icefloe.pipeline.facts import FileFacts, SourceState
from icefloe.pipeline.references import References
from icefloe.pipeline.regions import RegionGroups, group_regions, region_grid, touched_cells
from icefloe.pipeline.report import Report
from icefloe.pipeline.targets import TargetArray

_NO_REPORT: Final = Report(0, 0)


@dataclass(frozen=True, slots=True)
class ArrayPlan:
    """An array whose manifests are to be built."""

    number: int
    target: TargetArray
    """Of the metadata only the shape and the chunks."""
    path: str
    """In the repository."""
    node: NodeId
    donor: int | None
    """The number of the only file that gives it; None for one to which all files add."""
    regions: RegionGroups
    cells: tuple[int, ...]
    """Where something may change."""

    @property
    def dimensions(self) -> int:
        """Count the dimensions."""
        return len(self.target.metadata["shape"])

    def possible_cells(self) -> list[int]:
        """Number the cells for which a manifest may be written."""
        old = [
            cell
            for group in self.regions.old.values()
            for manifest in group
            for cell in self.regions.grid.cells_within(manifest.box)
        ]
        return sorted({*self.cells, *old})


def plan_arrays(session: SessionState, group: str, combined: Combined) -> list[ArrayPlan]:
    """Plan all arrays that get references; they must exist in the session already."""
    rules = session.context.config.manifest.split_sizes
    virtual = [array for array in combined.arrays if not array.is_native]
    return [
        _plan(session, number, group, combined, array, rules)
        for number, array in enumerate(virtual)
    ]


def _plan(
    session: SessionState,
    number: int,
    group: str,
    combined: Combined,
    array: TargetArray,
    rules: EffectiveSplitSizes | None,
) -> ArrayPlan:
    path = absolute_path("/".join(part for part in (group.strip("/"), array.path) if part))
    node = session.tree.find(path)
    assert node is not None, f"{path} was created before"
    grid = region_grid(node, rules)
    cells = touched_cells(grid, _whole(node), _spans(combined, array))
    before = session.tree.manifests(node)
    sizes = sizes_of([ref.id for ref in before], session.snapshot.manifests) if before else []
    slim = {name: array.metadata[name] for name in ("shape", "chunk_grid")}
    target = TargetArray(array.path, slim, array.growing, is_native=False, family=array.family)
    regions = group_regions(grid, cells, before, sizes)
    return ArrayPlan(
        number, target, path, node.id, combined.donor(array), regions, tuple(cells)
    )


def _whole(node: Node) -> tuple[tuple[int, int], ...]:
    assert node.array is not None
    return tuple((0, count) for count in node.array.num_chunks)


def _spans(combined: Combined, array: TargetArray) -> dict[int, NDArray[np.int64]]:
    """Give for each growing axis the chunks that files bring, a row for each file."""
    rows = [row for row, family in enumerate(combined.families) if family == array.family]
    spans = {}
    for axis, name in array.growing:
        starts = combined.starts[name][rows]
        lengths = combined.steps[name][rows]
        chunk = array.chunks[axis]
        spans[axis] = np.stack([starts // chunk, -(-(starts + lengths) // chunk)], axis=1)
    return spans


# -- files -----------------------------------------------------------------------------------


def stamp(state: SourceState) -> str:
    """Sum up which state of a file was parsed."""
    return f"{state.size}/{state.etag}/{state.modified}"


@dataclass(frozen=True, slots=True)
class FilePlace:
    """Where one file goes."""

    facts: FileFacts
    """Without what only combining needs."""
    family: int
    starts: dict[str, int]

    def to_json(self) -> str:
        """Write it as text."""
        state, facts = self.facts.state, self.facts
        return json.dumps(
            [
                [state.url, state.size, state.etag, state.modified],
                dict(facts.lengths),
                dict(facts.chunks),
                self.family,
                self.starts,
            ]
        )

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote."""
        state, lengths, chunks, family, starts = json.loads(text)
        return cls(FileFacts(SourceState(*state), lengths=lengths, chunks=chunks), family, starts)


@lru_cache(maxsize=1)
def places_schema() -> "pa.Schema":
    """Give the columns in which places travel."""
    return pa.schema([("number", pa.int64()), ("place", pa.string())])


def places_table(facts: Sequence[FileFacts], combined: Combined) -> "pa.Table":
    """Write down where each file goes that is used; files are numbered as in `facts`."""
    texts = []
    for row, (number, family) in enumerate(zip(combined.files, combined.families, strict=True)):
        starts = {name: int(column[row]) for name, column in combined.starts.items()}
        texts.append(FilePlace(facts[number], family, starts).to_json())
    columns = [int_column(list(combined.files)), text_column(texts)]
    return pa.Table.from_arrays(columns, schema=places_schema())


def put_in_place(
    array: ArrayPlan, number: int, place: FilePlace, references: References, found: str
) -> References | None:
    """Move the references of a file to their place; None if the array is not for this file.

    `found` is the stamp of the state in which the file was when it was parsed. Workers that lost
    their work parse files again, and a file may have changed meanwhile.
    """
    if place.family != array.target.family or array.donor not in {None, number}:
        return None
    if found != stamp(place.facts.state):
        raise SourceError(
            f"{place.facts.url} changed after it was compared with the others: try again",
            ErrorKind.SOURCE_CHANGED,
            url=place.facts.url,
        )
    alone = Combined(
        _NO_REPORT,
        starts={name: np.array([start], np.int64) for name, start in place.starts.items()},
    )
    return placed_references(alone, array.target, 0, references, place.facts)


def cut_by_group(
    array: ArrayPlan, references: References
) -> Iterator[tuple[int, References]]:
    """Divide placed references by the group of cells that they belong to."""
    groups = _groups(array, references.coordinates)
    inlined = _groups(array, references.inlined_coordinates)
    everything: Any = np.unique(np.concatenate([groups, inlined]))
    if len(everything) == 1:
        yield int(everything[0]), references
        return
    for group in everything.tolist():
        yield group, references.take(np.flatnonzero(groups == group), np.flatnonzero(inlined == group))


def _groups(array: ArrayPlan, coordinates: NDArray[np.int64]) -> NDArray[np.int64]:
    if not len(coordinates):
        return np.empty(0, np.int64)
    _require_inside(array, coordinates)
    return array.regions.groups(array.regions.grid.numbers(coordinates))


def _require_inside(array: ArrayPlan, coordinates: NDArray[np.int64]) -> None:
    grid = [
        -(-length // chunk)
        for length, chunk in zip(array.target.metadata["shape"], array.target.chunks, strict=True)
    ]
    if coordinates.shape[1] and (coordinates >= np.array(grid)).any():
        row = int((coordinates >= np.array(grid)).any(axis=1).argmax())
        raise InvalidInputError(
            f"{array.path} has {tuple(grid)} chunks, and none at {coordinates[row].tolist()}",
            ErrorKind.INVALID_CHUNK_INDEX,
        )
