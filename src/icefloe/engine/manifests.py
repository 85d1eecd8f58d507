"""The manifests of a new version: those with changes are rewritten, the others are kept."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from icefloe.assets.files import EncodedManifest
from icefloe.effects import map_concurrently
from icefloe.engine.array_changes import Settled
from icefloe.engine.session import SessionState
from icefloe.engine.splitting import Edges, split_edges
from icefloe.format.chunk_table import ChunkTable, Coordinates, concat_tables
from icefloe.format.columns import Ints
from icefloe.format.ids import ManifestId
from icefloe.format.node_table import ManifestRef, Node

_HELD_BACK_BYTES: Final = 16 * 1024
"""Smaller manifests wait for the snapshot, to be written together with it: one wait less."""


@dataclass(frozen=True, slots=True)
class NewManifest:
    """A manifest made for a commit, as the snapshot lists it."""

    id: ManifestId
    size_bytes: int
    num_chunk_refs: int


@dataclass(frozen=True, slots=True)
class ArrayManifests:
    """Where the references of an array are after a change."""

    refs: tuple[ManifestRef, ...]
    new: tuple[NewManifest, ...] = ()
    """Those that were made for it."""
    held_back: tuple[EncodedManifest, ...] = ()
    """Those of the new ones that are still to be written."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """Manifests written for a commit that may have to be tried again, and what they hold."""

    before: tuple[ManifestRef, ...]
    revision: int
    num_chunks: tuple[int, ...]
    result: ArrayManifests


async def write_manifests(session: SessionState, node: Node) -> ArrayManifests:
    """Write the manifests of an array that a session changed, but for small ones.

    Those are for the caller to write, with the snapshot. A commit that lost a race finds here
    what it made before, unless the other commit changed the same array.
    """
    array = node.array
    assert array is not None
    before = session.tree.manifests(node)
    changes = session.changes.arrays.get(node.id)
    revision = -1 if changes is None else changes.revision
    known = session.written.get(node.id)
    if isinstance(known, Attempt):
        if (known.before, known.revision, known.num_chunks) == (before, revision, array.num_chunks):
            return known.result
        session.context.assets.forget_manifests(one.id for one in known.result.new)
    settled = session.changes.settled(node.id)
    result = await _rewrite(session, node, before, settled)
    session.written[node.id] = Attempt(before, revision, array.num_chunks, result)
    return result


def note_written(session: SessionState) -> None:
    """Remember that the manifests that were held back are written now."""
    for node, attempt in session.written.items():
        if isinstance(attempt, Attempt) and attempt.result.held_back:
            result = replace(attempt.result, held_back=())
            session.written[node] = replace(attempt, result=result)


async def _rewrite(
    session: SessionState,
    node: Node,
    before: tuple[ManifestRef, ...],
    settled: Settled | None,
) -> ArrayManifests:
    array = node.array
    assert array is not None
    grid = np.array([(0, count) for count in array.num_chunks], np.uint32).reshape(-1, 2)
    dimensions = len(array.num_chunks)
    nothing = ChunkTable.empty(dimensions)
    new = nothing if settled is None else settled.table.within(grid)
    deleted = nothing.coordinates if settled is None else settled.deleted
    edges = split_edges(node, session.context.config.manifest.split_sizes)
    touched = _cells(np.concatenate([new.coordinates, deleted]), edges)
    kept, opened = [], []
    for ref in before:
        if _is_untouched(ref, edges, touched, array.num_chunks):
            kept.append(ref)
        elif _meets_grid(ref, array.num_chunks):
            opened.append(ref)
    old = await _load_tables(session, node, opened)
    table = concat_tables([part.within(grid) for part in old] or [nothing])
    table = table.overlay(new, deleted)
    parts = table.split(edges)
    made = await map_concurrently(
        partial(_make_manifest, session, node),
        [part.compacted() for part in parts],
        limit=session.context.write_concurrency,
    )
    listed = tuple(manifest for manifest, _ in made)
    refs = [ManifestRef(one.id, _box(part)) for one, part in zip(listed, parts, strict=True)]
    held_back = tuple(encoded for _, encoded in made if encoded is not None)
    return ArrayManifests((*kept, *refs), listed, held_back)


async def _make_manifest(
    session: SessionState, node: Node, part: ChunkTable
) -> tuple[NewManifest, EncodedManifest | None]:
    """Make a manifest, and write it unless it is small: then it is given back too."""
    assets = session.context.assets
    encoded = await assets.encode_manifest({node.id: part})
    new = NewManifest(encoded.id, encoded.size_bytes, encoded.num_chunk_refs)
    if new.size_bytes <= _HELD_BACK_BYTES:
        return new, encoded
    await assets.save_manifest(encoded)
    return new, None


async def _load_tables(
    session: SessionState, node: Node, refs: Sequence[ManifestRef]
) -> list[ChunkTable]:
    sizes = {ref.id: size for ref, size in session.lookup(node).sizes()}
    assets = session.context.assets

    async def load(ref: ManifestRef) -> ChunkTable:
        file = await assets.load_manifest(ref.id, sizes.get(ref.id, 0))
        return file.table(node.id)

    limit = session.context.config.manifest.max_concurrent_manifest_fetches_during_commit
    tables = await map_concurrently(load, refs, limit=limit)
    return [table for table in tables if len(table)]


def _cells(coordinates: Coordinates, edges: Edges) -> Ints:
    """Give the cells of the splitting grid that hold some chunks, each once."""
    cells = np.empty(coordinates.shape, np.int64)
    if not any(edges):
        return np.zeros((min(len(cells), 1), len(edges)), np.int64)  # there is one cell
    for dimension, cuts in enumerate(edges):
        cells[:, dimension] = np.searchsorted(cuts, coordinates[:, dimension], side="right")
    return np.unique(cells, axis=0) if len(cells) else cells


def _is_untouched(
    ref: ManifestRef, edges: Edges, touched: Ints, num_chunks: tuple[int, ...]
) -> bool:
    """Say whether a manifest can stay: within the grid, and in no cell with changes."""
    if not ref.extents:
        return len(touched) == 0
    if any(last > count for (_, last), count in zip(ref.extents, num_chunks, strict=True)):
        return False
    if not any(edges):
        return len(touched) == 0
    inside = np.ones(len(touched), np.bool_)
    for dimension, ((first, last), cuts) in enumerate(zip(ref.extents, edges, strict=True)):
        low, high = np.searchsorted(cuts, [first, last - 1], side="right")
        inside &= (touched[:, dimension] >= low) & (touched[:, dimension] <= high)
    return not inside.any()


def _meets_grid(ref: ManifestRef, num_chunks: tuple[int, ...]) -> bool:
    return all(first < count for (first, _), count in zip(ref.extents, num_chunks, strict=False))


def _box(table: ChunkTable) -> tuple[tuple[int, int], ...]:
    return tuple((int(first), int(last)) for first, last in table.extents())
