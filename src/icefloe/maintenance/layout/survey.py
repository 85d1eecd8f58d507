"""References of each array in the manifests of a snapshot: their number and bounding boxes.

A snapshot says so of manifests with one array. Those that arrays share, and those that reach
beyond an array that shrank, are read to find out.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Final

import numpy as np

from icefloe.effects import map_concurrently
from icefloe.format.ids import ManifestId, NodeId
from icefloe.format.manifest import Manifest
from icefloe.format.nodes import ArrayNode, ManifestRef
from icefloe.format.snapshot import ManifestFiles, Snapshot
from icefloe.manifests.lookup import listed_in
from icefloe.manifests.packer import ArrayFacts
from icefloe.manifests.partition import Box
from icefloe.records import Record
from icefloe.repo.context import RepoContext
from icefloe.reports import shown_bytes


class Piece(Record):
    """The references of one array in one manifest."""

    ref: ManifestRef
    size_bytes: int
    """Of the file, with all arrays in it."""
    box: Box
    """The exact box around the references that are inside of the array."""
    num_refs: int
    file_refs: int
    """How many references the manifest has in all."""

    @property
    def is_alone(self) -> bool:
        """Whether the manifest has these references and no others."""
        return self.num_refs == self.file_refs

    @property
    def link(self) -> ManifestRef:
        """The link from the array to the manifest, if the manifest stays."""
        return ManifestRef(self.ref.id, self.box)

    @property
    def manifest(self) -> ManifestId:
        """The manifest that it is in."""
        return self.ref.id


@dataclass(frozen=True)
class ArrayPieces:
    """An array with at least one reference, and where they are."""

    node: ArrayNode
    pieces: tuple[Piece, ...]

    @cached_property
    def num_refs(self) -> int:
        """Count its references."""
        return sum(piece.num_refs for piece in self.pieces)

    @cached_property
    def box(self) -> Box:
        """The box around all of them."""
        return around([piece.box for piece in self.pieces])

    @property
    def num_chunks(self) -> tuple[int, ...]:
        """The grid of its chunks."""
        return self.node.array.num_chunks

    @property
    def facts(self) -> ArrayFacts:
        """The facts that decide which manifest the array shares."""
        return ArrayFacts(self.node.id, self.node.path, prod(self.num_chunks), self.num_refs)


def around(boxes: list[Box]) -> Box:
    """Return the box around some boxes.

    >>> around([((0, 2), (5, 6)), ((1, 4), (2, 3))])
    ((0, 4), (2, 6))
    """
    return tuple(
        (min(first for first, _ in sides), max(last for _, last in sides))
        for sides in zip(*boxes, strict=True)
    )


async def survey(context: RepoContext, snapshot: Snapshot) -> list[ArrayPieces]:
    """Look at all arrays of a snapshot that have references, in the order of their paths."""
    table, files = snapshot.nodes, snapshot.manifests
    nodes = [table.array(row) for row in np.flatnonzero(table.is_array).tolist()]
    links = [(node, ref) for node in nodes for ref in node.array.manifests]
    sizes, counts = listed_in(files, [ref.id for _, ref in links])
    users: defaultdict[ManifestId, list[ArrayNode]] = defaultdict(list)
    for node, ref in links:
        users[ref.id].append(node)
    unclear = {
        ref.id
        for (node, ref), count in zip(links, counts, strict=True)
        if len(users[ref.id]) > 1 or count == 0 or not _is_inside(ref, node)
    }
    read = await _read(
        context, {manifest_id: users[manifest_id] for manifest_id in sorted(unclear)}, files
    )
    pieces: defaultdict[NodeId, list[Piece]] = defaultdict(list)
    for (node, ref), size, count in zip(links, sizes, counts, strict=True):
        if ref.id not in unclear:
            pieces[node.id].append(Piece(ref, size, ref.extents, count, count))
        elif (box_and_count := read[node.id, ref.id]) is not None:
            box, num_refs = box_and_count
            pieces[node.id].append(Piece(ref, size, box, num_refs, count))
    return [ArrayPieces(node, tuple(pieces[node.id])) for node in nodes if node.id in pieces]


def _is_inside(ref: ManifestRef, node: ArrayNode) -> bool:
    """Return whether the box of a manifest is known and inside of the array."""
    chunks = node.array.num_chunks
    return len(ref.extents) == len(chunks) and all(
        last <= count for (_, last), count in zip(ref.extents, chunks, strict=True)
    )


async def _read(
    context: RepoContext,
    nodes_by_manifest: Mapping[ManifestId, list[ArrayNode]],
    files: ManifestFiles,
) -> dict[tuple[NodeId, ManifestId], tuple[Box, int] | None]:
    """Find boxes and numbers of references by reading manifests, each once."""
    sizes, _ = listed_in(files, list(nodes_by_manifest))
    boxes_and_counts: dict[tuple[NodeId, ManifestId], tuple[Box, int] | None] = {}

    async def read(entry: tuple[ManifestId, int]) -> None:
        manifest = await context.assets.load_manifest(*entry)
        for node in nodes_by_manifest[manifest.id]:
            boxes_and_counts[node.id, manifest.id] = _found_in(manifest, node)

    limit = context.config.manifest.max_concurrent_manifest_fetches_during_commit
    await map_concurrently(read, zip(nodes_by_manifest, sizes, strict=True), limit=limit)
    return boxes_and_counts


def _found_in(manifest: Manifest, node: ArrayNode) -> tuple[Box, int] | None:
    coordinates = manifest.coordinates(node.id)
    if len(coordinates) and coordinates.shape[1]:
        inside = (coordinates < np.array(node.array.num_chunks, np.int64)).all(axis=1)
        coordinates = coordinates[inside]
    if len(coordinates) == 0:
        return None
    first, last = coordinates.min(axis=0).tolist(), coordinates.max(axis=0).tolist()
    return tuple((a, b + 1) for a, b in zip(first, last, strict=True)), len(coordinates)


LAYOUT_HEADINGS: Final = ("manifest", "arrays", "references", "bytes", "paths")
_SHOWN_PATHS: Final = 3


class ManifestContents(Record):
    """A manifest of a version, and the arrays with references in it."""

    id: str
    size_bytes: int
    num_chunk_refs: int
    arrays: tuple[str, ...]

    def to_row(self) -> list[object]:
        """Return the row of a table, under `LAYOUT_HEADINGS`."""
        more = len(self.arrays) - _SHOWN_PATHS
        paths = [*self.arrays[:_SHOWN_PATHS], *([f"and {more} more"] if more > 0 else [])]
        size = shown_bytes(self.size_bytes)
        return [self.id, len(self.arrays), self.num_chunk_refs, size, ", ".join(paths)]


async def manifest_layout(context: RepoContext, snapshot: Snapshot) -> list[ManifestContents]:
    """List the manifests of a version with the arrays that have references in them."""
    files: dict[ManifestId, tuple[int, int, list[str]]] = {}
    for array in await survey(context, snapshot):
        for piece in array.pieces:
            file = (piece.size_bytes, piece.file_refs, list[str]())
            files.setdefault(piece.manifest, file)[2].append(array.node.path)
    return [
        ManifestContents(str(manifest_id), size, refs, tuple(paths))
        for manifest_id, (size, refs, paths) in files.items()
    ]
