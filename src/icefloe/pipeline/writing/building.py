"""The references of many files to whole manifests: what a worker does with one region."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from icefloe.effects import map_concurrently
from icefloe.format.chunk_table import ChunkTable, Coordinates, concat_tables
from icefloe.format.columns import BytesColumn, concat_bytes
from icefloe.format.ids import ChunkId, ManifestId, decode_ids
from icefloe.format.layout import chunk_key, manifest_key
from icefloe.manifests.external import LinkedRegion
from icefloe.pipeline.files.references import References
from icefloe.pipeline.writing.metadata import Check
from icefloe.pipeline.writing.plans import ArrayPlan, CellBox, vanished
from icefloe.records import Record
from icefloe.repo.context import RepoContext
from icefloe.storage import Backend
from icefloe.transactions.external_manifests import build_region


class BuiltRegion(Record, eq=False):
    """What became of one region."""

    region: LinkedRegion
    changed: Coordinates
    """The chunks that are new, and those that are gone."""
    references: int
    """How many of these are new."""
    data_bytes: int
    """Of the new chunks."""


class Notes:
    """Where a task notes what it is about to write, so that it can be found if it is lost."""

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


async def virtual_table(
    context: RepoContext,
    array: ArrayPlan,
    rows: Sequence[tuple[Check, References]],
    notes: Notes,
) -> ChunkTable:
    """Return references to files; data that came along is kept in the table, or as objects."""
    inlined = await _kept_table(context, array, rows, notes)
    return concat_tables([_located_table(context, array, rows), inlined])


def native_table(parts: Sequence[References]) -> ChunkTable:
    """Return references to chunk objects, whose ids are the locations, and inlined chunks."""
    return concat_tables([table for part in parts for table in _native_tables(part)])


def _native_tables(part: References) -> tuple[ChunkTable, ChunkTable]:
    stored = inlined = ChunkTable.empty(part.dimensions)
    if len(part):
        stored = ChunkTable.native(
            part.coordinates.astype(np.uint32),
            decode_ids(np.array(part.locations, np.bytes_), ChunkId.WIDTH),
            part.lengths,
            part.offsets,
            part.location_rows,
        )
    if len(part.inlined):
        inlined = ChunkTable.inlined(part.inlined_coordinates.astype(np.uint32), part.inlined)
    return stored, inlined


def _located_table(
    context: RepoContext, array: ArrayPlan, rows: Sequence[tuple[Check, References]]
) -> ChunkTable:
    filled = [(check, references) for check, references in rows if len(references)]
    if not filled:
        return ChunkTable.empty(len(array.grid))
    counts = np.array([len(references) for _, references in filled], np.int64)
    tables = [references for _, references in filled]
    firsts = np.cumsum([0, *(len(table.locations) for table in tables)])[:-1]
    targets = np.concatenate(
        [
            references.location_rows.astype(np.int64) + first
            for references, first in zip(tables, firsts, strict=True)
        ]
    )
    texts = BytesColumn.from_strings([text for table in tables for text in table.locations])
    recorded, _ = context.virtual.recorded(texts, validate=False)  # looked at when it was parsed
    locations, numbers = recorded.distinct()
    etags, etag_rows = _etag_columns([check.etag for check, _ in filled], counts)
    seconds = np.array([check.seconds for check, _ in filled], np.uint32)
    return ChunkTable.virtual(
        np.concatenate([table.coordinates for table in tables]).astype(np.uint32),
        locations,
        np.concatenate([table.offsets for table in tables]),
        np.concatenate([table.lengths for table in tables]),
        targets=numbers[targets],
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


async def _kept_table(
    context: RepoContext,
    array: ArrayPlan,
    rows: Sequence[tuple[Check, References]],
    notes: Notes,
) -> ChunkTable:
    """Keep data that came along: small chunks in the manifest, others as objects."""
    filled = [references for _, references in rows if len(references.inlined)]
    if not filled:
        return ChunkTable.empty(len(array.grid))
    coordinates = np.concatenate([references.inlined_coordinates for references in filled]).astype(
        np.uint32
    )
    data = concat_bytes([references.inlined for references in filled])
    lengths = data.lengths()
    is_large = lengths > context.config.inline_chunk_threshold_bytes
    small, large = np.flatnonzero(~is_large), np.flatnonzero(is_large)
    inline_table = ChunkTable.inlined(coordinates[small], data.take(small))
    if not len(large):
        return inline_table
    ids = [ChunkId.random() for _ in large]
    await notes.add([chunk_key(references) for references in ids])

    async def save(chunk_and_row: tuple[ChunkId, int]) -> None:
        await context.assets.save_chunk(chunk_and_row[0], data[chunk_and_row[1]])

    limit = context.write_concurrency
    await map_concurrently(save, list(zip(ids, large.tolist(), strict=True)), limit=limit)
    raw = np.frombuffer(b"".join(references.raw for references in ids), np.uint8).reshape(
        -1, ChunkId.WIDTH
    )
    written = ChunkTable.native(coordinates[large], raw, lengths[large].astype(np.uint64))
    return concat_tables([inline_table, written])
