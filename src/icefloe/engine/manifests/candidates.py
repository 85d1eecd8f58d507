"""The arrays that may share a manifest with one that was changed."""

from collections import Counter
from collections.abc import Collection
from math import prod

import numpy as np

from icefloe.engine.manifests.lookup import listed_in
from icefloe.engine.manifests.sets import ArrayFacts
from icefloe.engine.manifests.written import WholeArray
from icefloe.engine.session import SessionState
from icefloe.format.ids import NodeId
from icefloe.format.manifest import Manifest
from icefloe.format.node_table import Node


def facts_of(node: Node, num_refs: int) -> ArrayFacts:
    """Tell of an array what decides which manifest it goes to."""
    assert node.array is not None
    return ArrayFacts(node.id, node.path, prod(node.array.num_chunks), num_refs)


def neighbour(
    session: SessionState, node_id: NodeId, manifest: Manifest, changed: Node | None
) -> WholeArray | None:
    """Take over an array that is all in one manifest, and to whose chunks nothing happened.

    `changed` is the array if its metadata are others than they were. There may be many such
    arrays, so nothing is made that is not needed.
    """
    nodes, row = session.base.table, session.base.row_by_id(node_id)
    table = manifest.table(node_id)
    if len(table) == 0:
        return None
    if changed is None:
        first, last = nodes.shape_splits[row : row + 2].tolist()
        chunks = prod(nodes.num_chunks[first:last].tolist())
        facts = ArrayFacts(node_id, nodes.paths[row].decode(), chunks, len(table))
    else:
        facts = facts_of(changed, len(table))
    link = int(nodes.manifest_splits[row])
    begin, end = nodes.extent_splits[link : link + 2].tolist()
    box = tuple((first, last) for first, last in nodes.extents[begin:end].tolist())
    return WholeArray(manifest.id, table, facts, box or None)


async def untouched_candidates(
    session: SessionState, others: Collection[NodeId]
) -> list[ArrayFacts]:
    """List the arrays in one manifest that nothing happened to.

    They are needed where the number of manifests is limited, because arrays may have to join one
    that is there already.
    """
    table, gone = session.base.table, session.changes.deleted
    rows = np.flatnonzero(table.is_array & (np.diff(table.manifest_splits) == 1)).tolist()
    nodes = [table.node(row) for row in rows]
    nodes = [node for node in nodes if node.id not in others and node.id not in gone]
    grown = {node.id: node for node in session.changes.nodes.values() if node.array is not None}
    counts = await _num_refs(session, nodes)
    return [
        facts_of(grown.get(node.id, node), count) for node, count in zip(nodes, counts, strict=True)
    ]


async def _num_refs(session: SessionState, nodes: list[Node]) -> list[int]:
    """Count references: what a snapshot says is enough, but for manifests of several arrays."""
    ids = [node.array.manifests[0].id for node in nodes if node.array is not None]
    sizes, counts = listed_in(session.snapshot.manifests, ids)
    if not session.context.config.chunk_manifests.counts_initialized_chunks:
        return counts
    times = Counter(ids)
    result = []
    for node, one, size, count in zip(nodes, ids, sizes, counts, strict=True):
        if times[one] > 1:
            manifest = await session.context.assets.load_manifest(one, size)
            result.append(len(manifest.table(node.id)))
        else:
            result.append(count)
    return result
