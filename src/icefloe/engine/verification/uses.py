"""How the arrays of a version use manifests: told apart quickly, made into objects rarely."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from icefloe.engine.verification.regions import Box
from icefloe.format.columns import Ints
from icefloe.format.ids import ManifestId, NodeId, raw_rows
from icefloe.format.snapshot import Snapshot

type UseKey = tuple[bytes, bytes, bytes, bytes]
"""Manifest, node, number of chunks along each dimension, extents."""


@dataclass(frozen=True, slots=True)
class ManifestUse:
    """A manifest as an array uses it."""

    manifest: ManifestId
    node: NodeId
    grid: tuple[int, ...]
    """How many chunks the array has, along each dimension."""
    extents: Box


def use_keys(snapshot: Snapshot) -> list[UseKey]:
    """Tell apart all uses of manifests in a version, in the order in which it has them."""
    nodes = snapshot.nodes
    ids = raw_rows(nodes.ids)
    grids = _slices(nodes.num_chunks, nodes.shape_splits)
    extents = _slices(nodes.extents, nodes.extent_splits)
    owners = use_owners(snapshot).tolist()
    manifests = raw_rows(nodes.manifest_ids)
    return [
        (manifest, ids[owner], grids[owner], box)
        for manifest, owner, box in zip(manifests, owners, extents, strict=True)
    ]


def use_owners(snapshot: Snapshot) -> Ints:
    """Give the row of the node of each use."""
    nodes = snapshot.nodes
    return np.repeat(np.arange(len(nodes)), np.diff(nodes.manifest_splits))


def use_of(key: UseKey) -> ManifestUse:
    """Write out what a key stands for."""
    manifest, node, grid, extents = key
    pairs = np.frombuffer(extents, np.uint32).reshape(-1, 2).tolist()
    return ManifestUse(
        ManifestId(manifest),
        NodeId(node),
        tuple(np.frombuffer(grid, np.uint32).tolist()),
        tuple((first, last) for first, last in pairs),
    )


def _slices(
    column: "np.ndarray[tuple[int, ...], np.dtype[np.uint32]]", splits: Ints
) -> list[bytes]:
    raw = np.ascontiguousarray(column).tobytes()
    width = 4 * (column.shape[1] if column.ndim > 1 else 1)
    return [raw[first * width : last * width] for first, last in pairwise(splits.tolist())]
