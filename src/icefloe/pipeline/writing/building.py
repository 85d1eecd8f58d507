"""The references of many files to whole manifests.

Plans tell workers where references belong; a worker builds the manifests of one region. A file
that is ingested again replaces its old references. Very large jobs are cut into waves, each one
commit, one after the other along the first dimension.
"""

import math
import time
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Final, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from icefloe.effects import map_concurrently, run_blocking
from icefloe.errors import ErrorKind, SourceError
from icefloe.format.arrow import pa
from icefloe.format.chunk_table import ChunkTable, Coordinates, concat_tables
from icefloe.format.columns import BytesColumn, Ints, ranges
from icefloe.format.ids import ChunkId, ManifestId, NodeId, decode_ids
from icefloe.format.layout import chunk_key, manifest_key
from icefloe.format.nodes import ArrayNode
from icefloe.format.paths import absolute_path, joined_path
from icefloe.manifests.partition import append_order
from icefloe.manifests.regions import LinkedRegion, NewReferences, PartPlan, StoredManifest
from icefloe.pipeline.combining.combine import Combined, Existing, PlacedFile, TargetArray
from icefloe.pipeline.combining.insertions import Insertions
from icefloe.pipeline.combining.uneven import Cells, shortened
from icefloe.pipeline.files.facts import (
    ANY_CHUNK,
    ArraySchema,
    FileFacts,
    SourceState,
    binary_column,
    int_column,
)
from icefloe.pipeline.files.options import CombineOptions
from icefloe.pipeline.files.references import References, concat_references
from icefloe.records import Record, replace
from icefloe.repo.context import RepoContext
from icefloe.storage import Backend
from icefloe.transactions.external_manifests import build_region, plan_array
from icefloe.transactions.rearrange import move_stored
from icefloe.transactions.session import SessionState

type CellBox = tuple[tuple[int, int], ...]
"""First cell and first one after, along each dimension of a grid of chunks."""


def cells_of(box: CellBox) -> NDArray[np.int64]:
    """List all cells of a box, a row for each.

    >>> cells_of(((2, 4), (0, 1))).tolist()
    [[2, 0], [3, 0]]
    """
    lengths = [end - first for first, end in box]
    cells = np.indices(lengths, np.int64).reshape(len(box), math.prod(lengths)).T
    return cells + np.array([first for first, _ in box], np.int64)


async def vanished(
    context: RepoContext,
    node: NodeId,
    stored: Sequence[StoredManifest],
    boxes: Sequence[CellBox],
    new: Coordinates,
) -> Coordinates:
    """List the chunks that are stored within some boxes, and not among the new ones."""
    tables = [ChunkTable.empty(new.shape[1])]
    for part in stored if boxes else ():
        manifest = await context.assets.load_manifest(part.ref.id, part.size_bytes)
        tables.append(_within(manifest.table(node), boxes))
    return concat_tables(tables).without(new).coordinates


def _within(table: ChunkTable, boxes: Sequence[CellBox]) -> ChunkTable:
    is_inside = np.zeros(len(table), np.bool_)
    for box in boxes:
        first, last = np.array(box, np.int64).reshape(-1, 2).T
        is_inside |= ((table.coordinates >= first) & (table.coordinates < last)).all(axis=1)
    return table.take(np.flatnonzero(is_inside))


_NO_CELLS: Final = np.empty((0, 0), np.int64)


class ArrayPlan(Record, kw_only=True):
    """An array whose manifests are to be built."""

    number: int
    path: str
    """In the repository."""
    node: NodeId
    grid: tuple[int, ...]
    """Chunks along each dimension."""
    target: TargetArray
    """Of the metadata only the shape and the chunks."""
    givers: frozenset[int] | None
    """The numbers of the files that add to it; None for one to which all files add."""
    parts: PartPlan


def plan_arrays(
    session: SessionState,
    group: str,
    facts: Sequence[FileFacts],
    combined: Combined,
    *,
    kept_paths: AbstractSet[str] = frozenset(),
) -> list[ArrayPlan]:
    """Plan all arrays that get references; they must exist in the session already.

    `kept_paths` are those of arrays that stay as they are, unless files add to them.
    """
    virtual = [
        array
        for array in combined.arrays
        if not array.is_native and (array.growing or array.path not in kept_paths)
    ]
    return [
        _plan(session, number, group, facts, combined, array)
        for number, array in enumerate(virtual)
    ]


def _plan(
    session: SessionState,
    number: int,
    group: str,
    facts: Sequence[FileFacts],
    combined: Combined,
    array: TargetArray,
) -> ArrayPlan:
    made = MadeArray.at(session, joined_path(group, array.path))
    slim = {name: array.metadata[name] for name in ("shape", "chunk_grid")}
    target = TargetArray(array.path, slim, array.growing, is_native=False, families=array.families)
    spans = _spans(facts, combined, array, made.grid)
    return made.plan(number, target, spans, combined.givers(array))


class MadeArray(Record):
    """An array that exists in a session, whose manifests are to be planned."""

    session: SessionState
    path: str
    node: NodeId
    grid: tuple[int, ...]
    """Chunks along each dimension."""
    dimension_names: tuple[str | None, ...]

    @classmethod
    def at(cls, session: SessionState, path: str) -> Self:
        """Look an array up that was made before."""
        node = session.tree.find(absolute_path(path))
        assert isinstance(node, ArrayNode), f"{path} was made before"
        grid = node.array.num_chunks
        names = node.array.dimension_names or (None,) * len(grid)
        return cls(session, absolute_path(path), node.id, grid, tuple(names))

    def plan(
        self,
        number: int,
        target: TargetArray,
        spans: NDArray[np.int64],
        givers: frozenset[int] | None = None,
    ) -> ArrayPlan:
        """Plan the manifests; spans are boxes of chunks that may get references."""
        new = _new_references(spans, append_order(self.dimension_names))
        return ArrayPlan(
            number=number,
            path=self.path,
            node=self.node,
            grid=self.grid,
            target=target,
            givers=givers,
            parts=plan_array(self.session, self.path, new),
        )


def _spans(
    facts: Sequence[FileFacts], combined: Combined, array: TargetArray, grid: Sequence[int]
) -> NDArray[np.int64]:
    """Return the box of chunks that each file may bring: (files, dimensions, first and end)."""
    rows, cells = combined.rows_of(array), array.cells
    # Whole along all axes, then cut along those that grow: from the chunk in which the file starts
    # to the one behind its last step.
    spans = np.zeros((len(rows), len(grid), 2), np.int64)
    spans[:, :, 1] = grid
    for axis, name in array.growing:
        starts = combined.starts[name][rows]
        lengths = np.array([facts[combined.files[row]].lengths[name] for row in rows], np.int64)
        spans[:, axis, 0] = cells[axis].of(starts)
        spans[:, axis, 1] = cells[axis].of(starts + lengths - 1) + 1
    return spans


def make_room(
    session: SessionState,
    stored: SessionState,
    group: str,
    facts: Sequence[FileFacts],
    combined: Combined,
    existing: Existing,
) -> None:
    """Move chunks behind the steps that come before them.

    `stored` has the chunks as they were. Places of the files stay as they are.
    """
    targets = {array.path: array for array in combined.arrays}
    for array in existing.schema.arrays:
        if array.path in existing.values or combined.inserted.keys().isdisjoint(array.dimensions):
            continue
        axes = [
            (axis, combined.inserted[name], *_old_and_new_cells(combined, existing, array, axis))
            for axis, name in enumerate(array.dimensions)
            if name in combined.inserted
        ]
        made = MadeArray.at(session, joined_path(group, array.path))
        taken = None
        if stored is not session and array.path in targets:
            spans = _spans(facts, combined, targets[array.path], made.grid)
            boxes = [cells_of(tuple(box)) for box in spans.tolist()]
            if boxes:  # its files may come in later waves
                taken = np.concatenate(boxes).astype(np.uint32)
        run_blocking(move_stored(session, stored, made.path, partial(_moved_cells, axes), taken))


def _old_and_new_cells(
    combined: Combined, existing: Existing, array: ArraySchema, axis: int
) -> tuple[Cells, Cells]:
    before = Cells(array.chunks[axis], existing.cuts.get(array.path, ()))
    is_first = not any(name in combined.starts for name in array.dimensions[:axis])
    if array.path in combined.cuts and is_first:
        return before, Cells(ANY_CHUNK, combined.cuts[array.path])
    return before, before


def _moved_cells(axes: Sequence[tuple[int, Insertions, Cells, Cells]], cells: Ints) -> Ints:
    """Return where chunks go; by axis, the steps that are inserted, and old and new chunks."""
    moved = cells.copy()
    for axis, inserted, before, after in axes:
        moved[:, axis] = after.of(inserted.moved(before.starts(cells[:, axis])))
    return moved


def _new_references(spans: NDArray[np.int64], axes: Sequence[int]) -> NewReferences:
    """Count references along the first of the axes, as if no chunk of a box were missing."""
    if not len(spans):
        return NewReferences(np.empty(0, np.int64), np.empty(0, np.int64))
    if not axes:
        return NewReferences(np.zeros(1, np.int64), np.ones(1, np.int64))
    lengths = spans[:, :, 1] - spans[:, :, 0]
    steps = lengths[:, axes[0]]
    per_step = np.prod(lengths[:, list(axes[1:])], axis=1)
    # All steps of all boxes in one column, a box after the other; equal steps are then summed up.
    all_steps: Ints = ranges(spans[:, axes[0], 0], steps)
    positions, rows = np.unique(all_steps, return_inverse=True)
    counts = np.bincount(rows, np.repeat(per_step, steps), len(positions)).astype(np.int64)
    low, high = spans[:, :, 0].min(axis=0), spans[:, :, 1].max(axis=0)
    extents = tuple(zip(low.tolist(), high.tolist(), strict=True))
    return NewReferences(positions, counts, extents)


# -- files -----------------------------------------------------------------------------------


def stamp(state: SourceState) -> str:
    """Sum up which state of a file was parsed."""
    return f"{state.size}/{state.etag}/{state.modified}"


def places_table(
    facts: Sequence[FileFacts], combined: Combined, known_urls: AbstractSet[str] = frozenset()
) -> "pa.Table":
    """Write down where each file goes that is used; files are numbered as in `facts`.

    `known_urls` are those of files that exist already.
    """
    texts = []
    for row in range(len(combined.files)):
        file = combined.placed_file(row, facts)
        state, lengths, chunks = file.facts.state, file.facts.lengths, file.facts.chunks
        slim = replace(
            file,
            facts=FileFacts(state, lengths=lengths, chunks=chunks),
            is_again=state.url in known_urls,
        )
        texts.append(msgspec.json.encode(slim))
    return pa.table({"number": int_column(list(combined.files)), "place": binary_column(texts)})


def placed_file(text: bytes) -> PlacedFile:
    """Read a row of `places_table`."""
    return msgspec.json.decode(text, type=PlacedFile)


def put_in_place(
    array: ArrayPlan, number: int, file: PlacedFile, references: References, parsed: str
) -> References | None:
    """Move the references of a file to their place; None if the array is not for this file.

    `parsed` is the stamp of the state in which the file was when it was parsed. Workers that lost
    their work parse files again, and a file may have changed meanwhile.
    """
    if file.family not in array.target.families:
        return None
    if array.givers is not None and number not in array.givers:
        return None
    if parsed != stamp(file.facts.state):
        raise SourceError(
            f"{file.facts.url} changed after it was compared with the others: try again",
            ErrorKind.SOURCE_CHANGED,
            url=file.facts.url,
        )
    return file.references_in(array.target, references)


def box_to_clear(array: ArrayPlan, file: PlacedFile) -> CellBox | None:
    """Return the chunks that a file had before, if it was there, or that others had of it."""
    growing = dict(array.target.growing)
    if not file.is_again and (growing or not array.parts.stored):
        return None
    box = []
    for axis, cells in enumerate(array.grid):
        name = growing.get(axis)
        if name is None:
            box.append((0, cells))
            continue
        start, length = file.starts[name], file.facts.lengths[name]
        first, last = array.target.cells[axis].of(np.array([start, start + length - 1])).tolist()
        box.append((first, last + 1))
    return tuple(box)


def cut_by_region(
    array: ArrayPlan, references: References, box: CellBox | None = None
) -> Iterator[tuple[int, References]]:
    """Divide placed references by the region that they belong to.

    All regions of a box that is to be cleared are among them, also without references.
    """
    regions = _regions(array, references.coordinates)
    inlined = _regions(array, references.inlined_coordinates)
    cleared = _regions(array, _NO_CELLS if box is None else cells_of(box))
    regions_met: list[int] = np.unique(np.concatenate([regions, inlined, cleared])).tolist()
    if len(regions_met) == 1:
        yield regions_met[0], references
        return
    for region in regions_met:
        rows, inlined_rows = np.flatnonzero(regions == region), np.flatnonzero(inlined == region)
        yield region, references.take(rows, inlined_rows)


def _regions(array: ArrayPlan, coordinates: NDArray[np.int64]) -> Ints:
    if not len(coordinates):
        return np.empty(0, np.int64)
    return array.parts.regions(coordinates.astype(np.uint32))


def cut_into_waves(
    facts: Sequence[FileFacts],
    combined: Combined,
    options: CombineOptions,
    existing: Existing | None,
    *,
    most: int,
) -> Iterator[Combined]:
    """Divide the files that are used so that each part has at most this many references.

    Files at the same place along the first dimension stay together, even if they have more.
    """
    name = options.concat[0]
    inserted = combined.inserted.get(name, Insertions())
    reached = 0 if existing is None else existing.lengths[name] + inserted.steps
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
    # Rows of files in the order of their starts, split where another start begins.
    starts = combined.starts[name]
    waves: list[list[int]] = [[]]
    total = 0
    order = np.argsort(starts, kind="stable")
    edges = np.flatnonzero(np.diff(starts[order])) + 1
    for rows in np.split(order, edges):
        count = sum(facts[combined.files[row]].references for row in rows.tolist())
        if waves[-1] and total + count > most:
            waves.append([])
            total = 0
        waves[-1] += rows.tolist()
        total += count
    return [sorted(rows) for rows in waves]


def _slice(combined: Combined, rows: Sequence[int], name: str, length: int) -> Combined:
    """Leave out all other files, and what lies beyond a length along a dimension."""
    families = tuple(combined.families[row] for row in rows)
    arrays = tuple(
        _shortened(array, name, length)
        for array in combined.arrays
        # Those that do not grow come with the first of their files.
        if array.growing or not set(array.families).isdisjoint(families)
    )
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
        families=families,
        starts={dimension: column[list(rows)] for dimension, column in combined.starts.items()},
        lengths={**combined.lengths, name: length},
        native=native,
    )


def _shortened(array: TargetArray, name: str, length: int) -> TargetArray:
    shape, grid = list(array.metadata["shape"]), array.metadata["chunk_grid"]
    for axis, growing_dimension in array.growing:
        if growing_dimension == name:
            shape[axis] = length
            grid = shortened(grid, shape, array.growing[0][0])
    return replace(array, metadata={**array.metadata, "shape": shape, "chunk_grid": grid})


class BuiltRegion(Record, eq=False):
    """The result of building a region."""

    region: LinkedRegion
    changed: Coordinates
    """The chunks that are new, and those that are gone."""
    references: int
    """How many of these are new."""
    data_bytes: int
    """Of the new chunks."""


class Notes:
    """A record of objects that a task will write, so that lost objects can be found."""

    def __init__(self, backend: Backend, key: str) -> None:
        self._backend, self._key = backend, key
        self._keys: list[str] = []

    async def add(self, keys: Sequence[str]) -> None:
        """Note keys of objects; must be done before they are written."""
        self._keys += keys
        await self._backend.put(self._key, "\n".join(self._keys).encode())


class RegionContent(Record, eq=False):
    """All new references of one region."""

    table: ChunkTable
    cleared: Sequence[CellBox] = ()
    """Boxes of which nothing stays that is stored there."""
    copies: frozenset[str] = frozenset()
    """Keys of the notes of copied objects that the table refers to."""


async def build(
    context: RepoContext, array: ArrayPlan, region: int, content: RegionContent, notes: Notes
) -> BuiltRegion:
    """Write the manifests of a region: new references over the existing ones."""
    table = content.table

    async def note(ids: Sequence[ManifestId]) -> None:
        await notes.add([manifest_key(manifest_id) for manifest_id in ids])

    stored = array.parts.stored_in(region)
    gone = await vanished(context, array.node, stored, content.cleared, table.coordinates)
    built = await build_region(
        context.assets,
        array.node,
        table,
        layout=array.parts.layout,
        grid=array.grid,
        stored=stored,
        deleted=gone if len(gone) else None,
        before_writing=note,
    )
    changed = np.concatenate([table.coordinates, gone])
    return BuiltRegion(built, changed, len(table), int(table.lengths.sum()))


class Check(Record):
    """The validator that readers compare an object with, to notice changes."""

    etag: str | None
    seconds: int
    """Since 1970; 0 for none."""


def check_of(state: SourceState, references: References, now: int | None = None) -> Check:
    """Choose what to record of the state of a file.

    For local files it is the time of modification, as programs make etags of these in different
    ways; for what a file only points at, that it was not modified later than now, in seconds
    since 1970.
    """
    is_own = references.locations == (state.url,)
    if is_own and state.etag is not None and not state.url.startswith("file:"):
        return Check(state.etag, 0)
    if is_own and state.modified is not None:
        return Check(None, -(-state.modified // 1_000_000))  # not modified later than that
    return Check(None, int(time.time()) if now is None else now)


async def virtual_table(
    context: RepoContext, rows: Sequence[tuple[Check, References]], notes: Notes
) -> ChunkTable:
    """Return references to files; data that came along is kept in the table, or as objects."""
    tables = [ChunkTable.empty(rows[0][1].dimensions)]
    if located := [(check, references) for check, references in rows if len(references)]:
        tables.append(_located_table(context, located))
    if inlined := [references for _, references in rows if len(references.inlined)]:
        tables += await _kept_tables(context, concat_references(inlined), notes)
    return concat_tables(tables)


def native_table(parts: Sequence[References]) -> ChunkTable:
    """Return references to chunk objects, whose ids are the locations, and inlined chunks."""
    whole = concat_references(parts)
    tables = [ChunkTable.empty(whole.dimensions)]
    if len(whole):
        ids = decode_ids(np.array(whole.locations, np.bytes_), ChunkId.WIDTH)
        coordinates = whole.coordinates.astype(np.uint32)
        tables.append(
            ChunkTable.native(coordinates, ids, whole.lengths, whole.offsets, whole.location_rows)
        )
    if len(whole.inlined):
        coordinates = whole.inlined_coordinates.astype(np.uint32)
        tables.append(ChunkTable.inlined(coordinates, whole.inlined))
    return concat_tables(tables)


def _located_table(context: RepoContext, rows: Sequence[tuple[Check, References]]) -> ChunkTable:
    whole = concat_references([references for _, references in rows])
    texts = BytesColumn.from_strings(whole.locations)
    recorded, _ = context.virtual.recorded(texts, validate=False)  # looked at when it was parsed
    locations, numbers = recorded.distinct()  # files of one wave may point at the same objects
    counts = np.array([len(references) for _, references in rows], np.int64)
    etags, etag_rows = _etag_columns([check.etag for check, _ in rows], counts)
    seconds = np.array([check.seconds for check, _ in rows], np.uint32)
    return ChunkTable.virtual(
        whole.coordinates.astype(np.uint32),
        locations,
        whole.offsets,
        whole.lengths,
        targets=numbers[whole.location_rows],
        etags=etags,
        etag_rows=etag_rows,
        last_modified=np.repeat(seconds, counts) if seconds.any() else None,
    )


def _etag_columns(
    etags: Sequence[str | None], counts: NDArray[np.int64]
) -> tuple[BytesColumn | None, NDArray[np.int32] | None]:
    """Return the distinct etags, and for each reference which one it has."""
    distinct = {etag: row for row, etag in enumerate(dict.fromkeys(filter(None, etags)))}
    if not distinct:
        return None, None
    numbers = [-1 if etag is None else distinct.get(etag, -1) for etag in etags]
    column = BytesColumn.from_strings(list(distinct))
    return column, np.repeat(np.array(numbers, np.int32), counts)


async def _kept_tables(
    context: RepoContext, references: References, notes: Notes
) -> list[ChunkTable]:
    """Keep data that came along: small chunks in the manifest, others as objects."""
    coordinates = references.inlined_coordinates.astype(np.uint32)
    data = references.inlined
    lengths = data.lengths()
    is_large = lengths > context.config.inline_chunk_threshold_bytes
    small, large = np.flatnonzero(~is_large), np.flatnonzero(is_large)
    tables = [ChunkTable.inlined(coordinates[small], data.take(small))]
    if len(large):
        ids = [ChunkId.random() for _ in large]
        await notes.add([chunk_key(chunk_id) for chunk_id in ids])

        async def save(chunk_and_row: tuple[ChunkId, int]) -> None:
            await context.assets.save_chunk(chunk_and_row[0], data[chunk_and_row[1]])

        chunks = list(zip(ids, large.tolist(), strict=True))
        await map_concurrently(save, chunks, limit=context.write_concurrency)
        raw = np.frombuffer(b"".join(chunk_id.raw for chunk_id in ids), np.uint8)
        rows = raw.reshape(-1, ChunkId.WIDTH)
        tables.append(ChunkTable.native(coordinates[large], rows, lengths[large].astype(np.uint64)))
    return tables
