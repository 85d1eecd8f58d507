"""References to objects that were copied, to whole manifests."""

from collections.abc import Sequence

import numpy as np

from icefloe.engine.context import RepoContext
from icefloe.engine.linking.regions import build_region
from icefloe.format.chunk_table import ChunkTable, concat_tables
from icefloe.format.ids import ChunkId, ManifestId, decode_ids
from icefloe.format.layout import manifest_key
from icefloe.pipeline.files.references import References
from icefloe.pipeline.writing.building import BuiltRegion, Notes
from icefloe.pipeline.writing.plans import ArrayPlan


async def build_native(
    context: RepoContext,
    array: ArrayPlan,
    region: int,
    parts: Sequence[References],
    notes: Notes,
) -> BuiltRegion:
    """Write the manifests of a region over what is there."""
    table = concat_tables([table for part in parts for table in tables_of(part)])

    async def note(ids: Sequence[ManifestId]) -> None:
        await notes.add([manifest_key(each) for each in ids])

    made = await build_region(
        context.assets,
        array.node,
        table,
        layout=array.parts.layout,
        grid=array.grid,
        stored=array.parts.stored_in(region),
        before_writing=note,
    )
    return BuiltRegion(made, table.coordinates, len(table), int(table.lengths.sum()))


def tables_of(part: References) -> tuple[ChunkTable, ChunkTable]:
    """Give references to objects that were copied, and those that hold their bytes."""
    return _stored_table(part), _inlined_table(part)


def _stored_table(part: References) -> ChunkTable:
    if not len(part):
        return ChunkTable.empty(part.dimensions)
    return ChunkTable.native(
        part.coordinates.astype(np.uint32),
        decode_ids(np.array(part.locations, np.bytes_), ChunkId.WIDTH),
        part.lengths,
        part.offsets,
        part.location_rows,
    )


def _inlined_table(part: References) -> ChunkTable:
    if not len(part.inlined):
        return ChunkTable.empty(part.dimensions)
    return ChunkTable.inlined(part.inlined_coordinates.astype(np.uint32), part.inlined)
