"""The links from versions to manifests, as the steps from each version to the next older one.

Neighbours in a history share nearly all manifests. So of each version only its differences from the
newer one are kept: a walk over the steps meets every part of a manifest once.
"""

from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from icefloe.format.chunk_table import Extents
from icefloe.format.columns import Bools, Bytes, Ints, ranges
from icefloe.format.ids import ManifestId, NodeId, raw_rows
from icefloe.format.nodes import NodeTable
from icefloe.format.snapshot import Snapshot
from icefloe.format.snapshot_table import SnapshotEntry
from icefloe.manifests.lookup import listed_in
from icefloe.manifests.partition import Box
from icefloe.records import MutableRecord, Record, field
from icefloe.repo.context import RepoContext
from icefloe.repo.history import newest_first
from icefloe.walk.history import ManifestFact, ReadLimits, read_snapshots

_LIMITS: Final = ReadLimits(snapshots=8)
_GRID_BYTES: Final = 8


class ManifestPart(Record):
    """The references of one array in one manifest."""

    manifest: ManifestFact
    node: NodeId
    grid: Extents | None
    """The chunks that the array has; None if the manifest has no others."""


class LinkStep(Record):
    """The difference between a version and the newer version before it, in numbers of parts."""

    rank: int
    """The place of the version among all, newest first."""
    added: tuple[int, ...]
    removed: tuple[int, ...]
    begins_line: bool = False
    """Whether it is the first of its line: `added` is all that the version links."""


class ManifestLinks(MutableRecord):
    """All parts of manifests that some versions link."""

    versions: list[SnapshotEntry]
    """Newest first."""
    parts: list[ManifestPart] = field(default_factory=list)
    steps: list[LinkStep] = field(default_factory=list)
    paths: dict[NodeId, tuple[int, str]] = field(default_factory=dict)
    """Where each array was in the newest version that has it, and the rank of that."""

    def last_uses(self) -> dict[int, int]:
        """Return for each part the last step that needs its contents."""
        uses: dict[int, int] = {}
        for number, step in enumerate(self.steps):
            uses.update(dict.fromkeys(step.added, number))
            uses.update(dict.fromkeys(step.removed, number))
        return uses


async def manifest_links(
    context: RepoContext, lines: Sequence[Sequence[SnapshotEntry]]
) -> ManifestLinks:
    """Find what versions link; `lines` are histories, each newest first, that share no version."""
    versions = newest_first([entry for line in lines for entry in line])
    links = ManifestLinks(versions)
    ranks = {entry.id: rank for rank, entry in enumerate(versions)}
    numbers: dict[bytes, int] = {}
    for line in lines:
        rows_before: Mapping[bytes, int] = {}
        begins = True
        ids = [entry.id for entry in line]
        async for snapshot in read_snapshots(
            context, ids, lambda whole: whole, limits=_LIMITS, uses_cache=True
        ):
            table = _LinkTable.of(snapshot)
            rank = ranks[snapshot.id]
            fresh = [(key, row) for key, row in table.rows.items() if key not in rows_before]
            for key, row in fresh:
                node = table.node(row)
                if node not in links.paths or rank < links.paths[node][0]:
                    links.paths[node] = rank, table.path(row)
                if key not in numbers:
                    numbers[key] = len(links.parts)
                    links.parts.append(table.part(row))
            added = tuple(numbers[key] for key, _ in fresh)
            removed = tuple(numbers[key] for key in rows_before if key not in table.rows)
            links.steps.append(LinkStep(rank, added, removed, begins))
            rows_before, begins = table.rows, False
    return links


class _LinkTable(Record):
    """The links of a snapshot from arrays to manifests."""

    snapshot: Snapshot
    rows: Mapping[bytes, int]
    """Manifest, array, and a digest of the grid if the manifest may reach beyond it."""
    node_rows: Ints
    is_clipped: Bools

    @classmethod
    def of(cls, snapshot: Snapshot) -> "_LinkTable":
        nodes = snapshot.nodes
        node_rows = _node_rows(nodes)
        is_clipped = _reaches_beyond(nodes, node_rows)
        digests = np.zeros((len(node_rows), _GRID_BYTES), np.uint8)
        for row in np.flatnonzero(is_clipped).tolist():
            digests[row] = _grid_digest(nodes, int(node_rows[row]))
        keys = np.concatenate([nodes.manifest_ids, nodes.ids[node_rows], digests], axis=1)
        raw, width = keys.tobytes(), keys.shape[1]
        starts = range(0, len(raw), width)
        rows = {raw[start : start + width]: row for row, start in enumerate(starts)}
        return cls(snapshot, rows, node_rows, is_clipped)

    def node(self, row: int) -> NodeId:
        return NodeId(self.snapshot.nodes.ids[self.node_rows[row]].tobytes())

    def path(self, row: int) -> str:
        return self.snapshot.nodes.paths[self.node_rows[row]].decode()

    def part(self, row: int) -> ManifestPart:
        nodes, files = self.snapshot.nodes, self.snapshot.manifests
        manifest = ManifestId(nodes.manifest_ids[row].tobytes())
        [size_bytes], [num_refs] = listed_in(files, [manifest])
        grid = _grid(nodes, int(self.node_rows[row])) if self.is_clipped[row] else None
        return ManifestPart(ManifestFact(manifest, size_bytes, num_refs), self.node(row), grid)


def _reaches_beyond(nodes: NodeTable, node_rows: Ints) -> Bools:
    """Mark links to manifests that may hold chunks outside of the array, after it shrank."""
    boxes = np.diff(nodes.extent_splits)
    first_dims = nodes.shape_splits[node_rows]
    dims = nodes.shape_splits[node_rows + 1] - first_dims
    is_known = boxes == dims  # others cover everything
    counts = np.where(is_known, boxes, 0)
    ends = nodes.extents[ranges(nodes.extent_splits[:-1], counts), 1]
    inside = ends <= nodes.num_chunks[ranges(first_dims, counts)]
    links = np.repeat(np.arange(len(node_rows)), counts)
    reaching = np.bincount(links[~inside], minlength=len(node_rows)) > 0
    beyond: Bools = ~is_known | reaching
    return beyond


def _grid(nodes: NodeTable, row: int) -> Extents:
    first, last = nodes.shape_splits[row : row + 2].tolist()
    counts = nodes.num_chunks[first:last]
    return np.stack([np.zeros_like(counts), counts], axis=1)


def _grid_digest(nodes: NodeTable, row: int) -> Bytes:
    digest = blake2b(_grid(nodes, row).tobytes(), digest_size=_GRID_BYTES).digest()
    return np.frombuffer(digest, np.uint8)


# -- how arrays use manifests --------------------------------------------------------------

type UseKey = tuple[bytes, bytes, bytes, bytes]
"""Manifest, node, number of chunks along each dimension, extents."""


class ManifestUse(Record):
    """A manifest as an array uses it."""

    manifest: ManifestId
    node: NodeId
    grid: tuple[int, ...]
    """How many chunks the array has, along each dimension."""
    extents: Box

    @classmethod
    def of(cls, key: UseKey) -> "ManifestUse":
        """Decode a key."""
        manifest, node, grid, extents = key
        pairs = np.frombuffer(extents, np.uint32).reshape(-1, 2).tolist()
        return cls(
            ManifestId(manifest),
            NodeId(node),
            tuple(np.frombuffer(grid, np.uint32).tolist()),
            tuple((first, last) for first, last in pairs),
        )


def uses_of(snapshot: Snapshot) -> Iterator[tuple[UseKey, int]]:
    """List the uses of manifests in a version, each with the row of its array."""
    nodes = snapshot.nodes
    ids, manifests = raw_rows(nodes.ids), raw_rows(nodes.manifest_ids)
    grids = _slices(nodes.num_chunks, nodes.shape_splits)
    extents = _slices(nodes.extents, nodes.extent_splits)
    for manifest, row, box in zip(manifests, _node_rows(nodes).tolist(), extents, strict=True):
        yield (manifest, ids[row], grids[row], box), row


def _slices(column: NDArray[np.uint32], splits: Ints) -> list[bytes]:
    raw = np.ascontiguousarray(column).tobytes()
    width = 4 * (column.shape[1] if column.ndim > 1 else 1)
    return [raw[first * width : last * width] for first, last in pairwise(splits.tolist())]


def _node_rows(nodes: NodeTable) -> Ints:
    """Return the row of the array of each link."""
    return np.repeat(np.arange(len(nodes)), np.diff(nodes.manifest_splits))
