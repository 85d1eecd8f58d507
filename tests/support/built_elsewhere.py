"""Manifests built apart from the session that links them, in the words that tests need."""

from collections.abc import Awaitable, Callable

import numpy as np

from icefloe.assets import Assets
from icefloe.effects import run_blocking
from icefloe.format.chunk_table import ChunkTable, Coordinates
from icefloe.format.columns import BytesColumn
from icefloe.format.nodes import ArrayNode
from icefloe.format.transaction_log import TransactionLog
from icefloe.manifests.partition import HalvingLayout, layout_of
from icefloe.transactions import nodes
from icefloe.transactions.external_manifests import (
    LinkedRegion,
    NewReferences,
    build_region,
    link_manifests,
    plan_array,
    write_log,
)
from icefloe.transactions.session import SessionState


def virtual_table(coordinates: Coordinates, mark: int = 0) -> ChunkTable:
    """Make references that tell by their offsets who wrote them."""
    rows = len(coordinates)
    return ChunkTable.virtual(
        coordinates,
        BytesColumn.from_strings(["s3://bucket/file"]),
        np.full(rows, mark, np.uint64),
        np.full(rows, 10, np.uint64),
        targets=np.zeros(rows, np.uint32),
    )


def counted(session: SessionState, path: str, coordinates: Coordinates) -> NewReferences:
    """Count references along the dimension that the array is cut along."""
    node = nodes.require_array(session, path)
    layout = layout_of(node, session.context.config.manifest.split_sizes)
    if coordinates.shape[1] == 0:
        return NewReferences(np.array([0]), np.array([len(coordinates)]))
    axis = layout.axes[0] if isinstance(layout, HalvingLayout) else 0
    return NewReferences(*np.unique(coordinates[:, axis], return_counts=True))


def build_elsewhere(
    session: SessionState, path: str, table: ChunkTable, deleted: Coordinates | None = None
) -> list[LinkedRegion]:
    """Divide references as the plan says, and build each region by itself."""
    gone = table.coordinates[:0] if deleted is None else deleted
    node = nodes.require_array(session, path)
    assert isinstance(node, ArrayNode)
    changed = np.concatenate([table.coordinates, gone])
    plan = plan_array(session, path, counted(session, path, changed))
    numbers, gone_numbers = plan.regions(table.coordinates), plan.regions(gone)
    regions = []
    assets = Assets(session.context.backend, session.context.config, session.context.spec_version)
    for region in np.unique(np.concatenate([numbers, gone_numbers])).tolist():
        made = build_region(
            assets,
            node.id,
            table.take(numbers == region),
            layout=plan.layout,
            grid=node.array.num_chunks,
            stored=plan.stored_in(region),
            deleted=gone[gone_numbers == region],
        )
        regions.append(LinkedRegion.from_bytes(run_blocking(made).to_bytes()))
    return regions


def link(
    session: SessionState, path: str, table: ChunkTable, deleted: Coordinates | None = None
) -> None:
    """Build manifests elsewhere, and link them."""
    link_manifests(session, path, build_elsewhere(session, path, table, deleted))


def log_writer(
    session: SessionState, path: str, *pieces: Coordinates
) -> Callable[[TransactionLog], Awaitable[None]]:
    """Write the log where the coordinates are."""
    node = nodes.require_array(session, path)

    async def write(own: TransactionLog) -> None:
        await write_log(session.context.assets, own, ((node.id, piece) for piece in pieces))

    return write
