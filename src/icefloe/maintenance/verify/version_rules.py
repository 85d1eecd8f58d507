"""Rules for a single version: its nodes, its list of manifests, its position in the history."""

import json
from collections import Counter
from hashlib import blake2b
from itertools import combinations, pairwise
from typing import Any, Final

import numpy as np

from icefloe.errors import InvalidInputError
from icefloe.format.ids import INITIAL_SNAPSHOT_ID, ManifestId, NodeId, raw_rows
from icefloe.format.layout import manifest_key, snapshot_key
from icefloe.format.nodes import ArrayNode, NodeTable
from icefloe.format.snapshot import Snapshot
from icefloe.format.snapshot_table import SnapshotEntry
from icefloe.maintenance.verify.findings import DamageKind, Findings
from icefloe.manifests.partition import Box
from icefloe.transactions.nodes import parse_grid

_FEW_BOXES: Final = 16
_DIGEST_BYTES: Final = 12


class NodeRules:
    """Checks nodes; those that are the same in many versions, once."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._known: dict[bytes, bool] = {}
        """Digest of a node to whether it is sound."""

    def check(self, snapshot: Snapshot) -> None:
        """Check all nodes of a version."""
        nodes = snapshot.nodes
        raw = raw_rows(nodes.ids)
        if len({*raw}) < len(raw):
            for raw_id, times in Counter(raw).items():
                if times > 1:
                    message = f"{times} nodes have the id {NodeId(raw_id)}"
                    self._report(snapshot, message, None)
        for row, digest in enumerate(_digests(nodes, raw)):
            if not self._known.get(digest, False):
                problem = _problem(nodes, row)
                self._known[digest] = problem is None
                if problem is not None:
                    self._report(snapshot, problem, nodes.paths[row].decode())
        self._check_overlaps(snapshot)

    def _report(self, snapshot: Snapshot, message: str, path: str | None) -> None:
        self._findings.report(
            DamageKind.BAD_NODE,
            message,
            snapshot_key(snapshot.id),
            versions=[snapshot.id],
            array=path,
        )

    def _check_overlaps(self, snapshot: Snapshot) -> None:
        nodes = snapshot.nodes
        counts = np.diff(nodes.manifest_splits)
        for row in np.flatnonzero(counts > 1).tolist():
            first, last = nodes.manifest_splits[row : row + 2].tolist()
            splits = nodes.extent_splits[first : last + 1]
            digest = _digest(
                b"overlap", nodes.extents[splits[0] : splits[-1]].tobytes(), splits.tobytes()
            )
            if self._known.get(digest, False):
                continue
            pair = _overlap(nodes, first, last)
            self._known[digest] = pair is None
            if pair is not None:
                left, other = (
                    ManifestId(nodes.manifest_ids[link_row].tobytes()) for link_row in pair
                )
                boxes = [_box(nodes, link_row) for link_row in pair]
                path = nodes.paths[row].decode()
                self._findings.report(
                    DamageKind.BAD_EXTENTS,
                    f"{path}: {left} and {other} overlap",
                    [manifest_key(left), manifest_key(other)],
                    versions=[snapshot.id],
                    array=path,
                    region=[_common(*boxes)],
                )


def _digests(nodes: NodeTable, ids: list[bytes]) -> list[bytes]:
    """Return digests of the states of nodes that these rules check."""
    shapes, grids = nodes.array_lengths.tobytes(), nodes.num_chunks.tobytes()
    splits = nodes.shape_splits.tolist()
    return [
        _digest(
            raw_id,
            path,
            user_data,
            b"a" if is_array else b"g",
            shapes[8 * a : 8 * b],
            grids[4 * a : 4 * b],
        )
        for raw_id, path, user_data, is_array, (a, b) in zip(
            ids,
            nodes.paths.to_list(),
            nodes.user_data.to_list(),
            nodes.is_array.tolist(),
            pairwise(splits),
            strict=True,
        )
    ]


def _digest(*parts: bytes) -> bytes:
    whole = blake2b(digest_size=_DIGEST_BYTES)
    for part in parts:
        whole.update(b"%d:" % len(part))
        whole.update(part)
    return whole.digest()


def _problem(nodes: NodeTable, row: int) -> str | None:
    node = nodes.node(row)
    segments = node.path.split("/")
    is_path = node.path == "/" or (segments[0] == "" and not {"", ".", ".."} & {*segments[1:]})
    if not is_path:
        return f"{node.path!r} is not an absolute path"
    try:
        document: Any = json.loads(node.user_data)
    except (ValueError, RecursionError) as failure:
        return f"the metadata of {node.path} is not JSON: {failure}"
    if not isinstance(document, dict):
        return f"the metadata of {node.path} is not a JSON object"
    kind = "array" if isinstance(node, ArrayNode) else "group"
    node_type = document.get("node_type")
    if node_type != kind:
        return f"{node.path} is stored as {kind}, its metadata {node_type}"
    if isinstance(node, ArrayNode):
        shape = document.get("shape", ())
        shape = tuple(shape) if isinstance(shape, list) else shape
        if shape != node.array.shape:
            return f"{node.path} has the shape {node.array.shape}, its metadata say {shape}"
        try:
            grid = parse_grid(document, node.array.shape, node.path)
        except InvalidInputError:
            return None  # a grid that nothing is known of
        if grid != node.array.num_chunks:
            return f"{node.path} has {node.array.num_chunks} chunks, its metadata say {grid}"
    return None


# -- boxes that must not overlap -----------------------------------------------------------


def _overlap(nodes: NodeTable, first: int, last: int) -> tuple[int, int] | None:
    """Find two manifests of an array that cover the same chunk."""
    splits = nodes.extent_splits[first : last + 1]
    widths = np.diff(splits)
    if (widths != widths[0]).any() or widths[0] == 0 or last - first <= _FEW_BOXES:
        rows = nodes.extents.tolist()
        boxes = [tuple((a, b) for a, b in rows[x:y]) for x, y in pairwise(splits.tolist())]
        for (row, box), (other_at, other) in combinations(enumerate(boxes), 2):
            if _meet(box, other):
                return first + row, first + other_at
        return None
    edges = nodes.extents[splits[0] : splits[-1]].reshape(last - first, int(widths[0]), 2)
    sweep = _sweep(edges.astype(np.int64))
    return None if sweep is None else (first + sweep[0], first + sweep[1])


def _meet(first: Box, second: Box) -> bool:
    # Empty extents contain everything: all() of nothing is true.
    return all(a[0] < b[1] and b[0] < a[1] for a, b in zip(first, second, strict=False))


def _common(first: Box, second: Box) -> Box:
    if len(first) != len(second):
        return first or second  # one has no extents, which stands for everything
    return tuple((max(a[0], b[0]), min(a[1], b[1])) for a, b in zip(first, second, strict=True))


def _box(nodes: NodeTable, manifest: int) -> Box:
    """Return the extents of a manifest, by its row among those of all arrays."""
    first, last = nodes.extent_splits[manifest : manifest + 2].tolist()
    return tuple((a, b) for a, b in nodes.extents[first:last].tolist())


def _sweep(edges: "np.ndarray[tuple[int, ...], np.dtype[np.int64]]") -> tuple[int, int] | None:
    """Look for two boxes that meet, among those whose ranges meet along one dimension."""
    axis = max(range(edges.shape[1]), key=lambda dimension: len(np.unique(edges[:, dimension, 0])))
    order = np.argsort(edges[:, axis, 0], kind="stable")
    edges = edges[order]
    starts = edges[:, axis, 0]
    lasts = np.searchsorted(starts, edges[:, axis, 1], side="left")
    for row, last in enumerate(lasts.tolist()):
        others = edges[row + 1 : last]
        if len(others):
            meets = (others[:, :, 0] < edges[row, :, 1]) & (edges[row, :, 0] < others[:, :, 1])
            hits = np.flatnonzero(meets.all(axis=1))
            if len(hits):
                pair = sorted((int(order[row]), int(order[row + 1 + hits[0]])))
                return pair[0], pair[1]
    return None


# -- the list of manifests, and what the repo object says ----------------------------------


def check_manifest_list(findings: Findings, snapshot: Snapshot) -> None:
    """Check that a version lists the manifests that its arrays use, and no others."""
    listed = raw_rows(snapshot.manifests.ids)
    named = {*raw_rows(snapshot.nodes.manifest_ids)}
    key, versions = snapshot_key(snapshot.id), [snapshot.id]

    if any(manifest_id >= other for manifest_id, other in pairwise(listed)):
        message = f"snapshot {snapshot.id}: its manifests are not listed in order"
        findings.report(DamageKind.BAD_MANIFEST_LIST, message, key, versions=versions)
    for raw in sorted(named - {*listed}):
        manifest_id = ManifestId(raw)
        message = f"an array uses the manifest {manifest_id}, which is not in the list"
        report_listed(findings, snapshot, manifest_id, message)
    for raw in sorted({*listed} - named):
        manifest_id = ManifestId(raw)
        message = f"it lists the manifest {manifest_id}, which no array uses"
        report_listed(findings, snapshot, manifest_id, message)


def report_listed(
    findings: Findings, snapshot: Snapshot, manifest: ManifestId, message: str
) -> None:
    """Record an error in the list of manifests of a version, with the arrays that use it."""
    nodes = snapshot.nodes
    rows = np.flatnonzero((nodes.manifest_ids == np.frombuffer(manifest.raw, np.uint8)).all(axis=1))
    owners = np.searchsorted(nodes.manifest_splits, rows, side="right") - 1
    keys = [snapshot_key(snapshot.id), manifest_key(manifest)]
    users: list[tuple[str | None, list[Box]]] = [
        (nodes.paths[owner].decode(), [_box(nodes, row)])
        for row, owner in zip(rows.tolist(), owners.tolist(), strict=True)
    ]
    for path, region in users or [(None, [])]:
        findings.report(
            DamageKind.BAD_MANIFEST_LIST,
            message,
            keys,
            versions=[snapshot.id],
            array=path,
            region=region,
        )


def check_entry(findings: Findings, snapshot: Snapshot, entry: SnapshotEntry) -> None:
    """Check what the repo object repeats of a snapshot."""
    for name in ("flushed_at", "message", "metadata"):
        stored, copied = getattr(snapshot, name), getattr(entry, name)
        findings.require(
            stored == copied,
            DamageKind.BAD_ENTRY,
            f"the repo object says {name} {copied!r} of {snapshot.id}, its file {stored!r}",
            snapshot_key(snapshot.id),
            versions=[snapshot.id],
        )


def check_times(findings: Findings, snapshot: Snapshot, parent: Snapshot) -> None:
    """Check that a version is later than its parent."""
    findings.require(
        snapshot.flushed_at > parent.flushed_at,
        DamageKind.BAD_HISTORY,
        f"snapshot {snapshot.id} is not later than its parent {parent.id}",
        snapshot_key(snapshot.id),
        versions=[snapshot.id],
    )


def check_initial(findings: Findings, snapshot: Snapshot) -> None:
    """Check that the first version of a repository is empty."""
    findings.require(
        snapshot.id != INITIAL_SNAPSHOT_ID or len(snapshot.nodes) == 0,
        DamageKind.BAD_HISTORY,
        "the initial snapshot has nodes",
        snapshot_key(snapshot.id),
        versions=[snapshot.id],
    )
