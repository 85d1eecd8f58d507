"""What a layout of manifests costs: how many are fetched and written for common work.

Pure. A layout is one that is stored, or one that a configuration would lead to; of the latter,
counts and sizes are estimates, as if references were spread evenly over the boxes they are in.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Final

import numpy as np

from icefloe.config.chunk_manifests import EffectiveChunkManifests
from icefloe.config.effective import EffectiveSplitSizes
from icefloe.engine.manifests.partition import Blocks, Box, Layout, boxes_of
from icefloe.engine.manifests.sets import pack
from icefloe.engine.manifests.splitting import layout_of
from icefloe.engine.manifests.survey import ArrayPieces, around
from icefloe.format.chunk_table import Coordinates
from icefloe.format.ids import ManifestId, NodeId
from icefloe.format.node_table import Node

_FILE_BYTES: Final = 200
"""What a manifest takes, however few references are in it."""
_MOST_NEW_CHUNKS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Rules:
    """What decides on the layout."""

    split_sizes: EffectiveSplitSizes | None
    sets: EffectiveChunkManifests


@dataclass(frozen=True, slots=True)
class Cost:
    """Manifests fetched and written, and their bytes."""

    fetched: int = 0
    bytes_in: int = 0
    written: int = 0
    bytes_out: int = 0

    @property
    def seconds(self) -> float:
        """Weigh it, with a typical object store: 30 ms for a request, 50 MB a second."""
        return 0.03 * (self.fetched + self.written) + (self.bytes_in + self.bytes_out) / 50e6


@dataclass(frozen=True, slots=True)
class Growth:
    """How an array is usually extended: so many chunks in a commit, at the end of an axis."""

    axis: int
    num_chunks: int


@dataclass(frozen=True, slots=True)
class Extent:
    """The references of one array in one manifest."""

    box: Box
    num_refs: float


@dataclass(slots=True)
class ModelManifest:
    """A manifest, as far as its costs go."""

    size_bytes: float
    arrays: dict[NodeId, Extent] = field(default_factory=dict)


@dataclass(frozen=True)
class LayoutModel:
    """All manifests of a version."""

    arrays: Mapping[NodeId, ArrayPieces]
    manifests: Sequence[ModelManifest]
    bytes_per_ref: Mapping[NodeId, float]

    @classmethod
    def stored(cls, arrays: Iterable[ArrayPieces]) -> "LayoutModel":
        """Take the layout that there is."""
        known = {array.node.id: array for array in arrays}
        files: dict[ManifestId, ModelManifest] = {}
        for node, array in known.items():
            for piece in array.pieces:
                file = files.setdefault(piece.manifest, ModelManifest(piece.size_bytes))
                file.arrays[node] = Extent(piece.box, piece.num_refs)
        return cls(known, list(files.values()), _rates(known))

    @classmethod
    def expected(cls, arrays: Iterable[ArrayPieces], rules: Rules) -> "LayoutModel":
        """Foresee the layout that a rewrite would make."""
        known = {array.node.id: array for array in arrays}
        rates = _rates(known)
        manifests, wholes = list[ModelManifest](), list[ArrayPieces]()
        for node, array in known.items():
            layout = layout_of(array.node, rules.split_sizes)
            parts = _expected_parts(array, layout)
            if len(parts) == 1:
                wholes.append(array)
                continue
            for part in parts:
                size = _FILE_BYTES + rates[node] * part.num_refs
                manifests.append(ModelManifest(size, {node: part}))
        for plan in pack([array.facts for array in wholes], rules.sets):
            members = {node: Extent(known[node].box, known[node].num_refs) for node in plan.arrays}
            size = sum(rates[node] * part.num_refs for node, part in members.items())
            manifests.append(ModelManifest(_FILE_BYTES + size, members))
        return cls(known, manifests, rates)

    def of(self, node: NodeId) -> list[ModelManifest]:
        """List the manifests of an array."""
        return [one for one in self.manifests if node in one.arrays]

    # -- costs -----------------------------------------------------------------------------

    def read(self, nodes: Iterable[NodeId]) -> Cost:
        """Foresee the first read of a chunk of each array; the largest manifest of each counts."""
        fetched = {}
        for node in nodes:
            largest = max(self.of(node), key=lambda each: each.size_bytes)
            fetched[id(largest)] = largest
        return Cost(len(fetched), _total(fetched.values()))

    def change(self, node: NodeId) -> Cost:
        """Foresee a commit that changes one chunk of an array."""
        read = self.read([node])
        return Cost(read.fetched, read.bytes_in, read.fetched, read.bytes_in)

    def append(self, growths: Mapping[NodeId, Growth], rules: Rules) -> Cost:
        """Foresee a commit that extends arrays, as they usually are."""
        opened: dict[int, ModelManifest] = {}
        packs: defaultdict[int, float] = defaultdict(float)
        new_files = list[float]()
        for node, growth in growths.items():
            files, rate = self.of(node), self.bytes_per_ref[node]
            coordinates = _new_coordinates(self.arrays[node], growth)
            wanted, parts = _opened(self.arrays[node], files, coordinates, rules)
            opened |= {id(each): each for each in wanted}
            shared = [each for each in wanted if len(each.arrays) > 1]
            if shared:
                packs[id(shared[0])] += rate * len(coordinates)
            else:
                new_files += [_FILE_BYTES + rate * count for count in parts]
        shared_files = {key: each for key, each in opened.items() if len(each.arrays) > 1}
        new_files += [each.size_bytes + packs[key] for key, each in shared_files.items()]
        return Cost(len(opened), _total(opened.values()), len(new_files), round(sum(new_files)))


def _total(manifests: Iterable[ModelManifest]) -> int:
    return round(sum(each.size_bytes for each in manifests))


def _rates(arrays: Mapping[NodeId, ArrayPieces]) -> dict[NodeId, float]:
    """Say how many bytes a reference of each array takes."""
    rates = {}
    for node, array in arrays.items():
        sizes = sum(max(piece.size_bytes - _FILE_BYTES, 0) for piece in array.pieces)
        rates[node] = sizes / max(sum(piece.file_refs for piece in array.pieces), 1)
    return rates


def _expected_parts(array: ArrayPieces, layout: Layout) -> list[Extent]:
    """Cut boxes instead of references."""
    parts = list[Extent]()
    waiting = [[Extent(piece.box, piece.num_refs) for piece in array.pieces]]
    while waiting:
        some = waiting.pop()
        box = around([one.box for one in some])
        num_refs = sum(one.num_refs for one in some)
        place = layout.next_cut(box, round(num_refs))
        if place is None:
            parts.append(Extent(box, num_refs))
            continue
        halves = [[_clipped(one, *place, late=late) for one in some] for late in (True, False)]
        waiting += [kept for half in halves if (kept := [one for one in half if one.num_refs])]
    return parts


def _clipped(extent: Extent, axis: int, edge: int, *, late: bool) -> Extent:
    first, last = extent.box[axis]
    sides = (max(first, edge), last) if late else (first, min(last, edge))
    if sides[0] >= sides[1]:
        return Extent(extent.box, 0)
    box = (*extent.box[:axis], sides, *extent.box[axis + 1 :])
    return Extent(box, extent.num_refs * (sides[1] - sides[0]) / (last - first))


def _new_coordinates(array: ArrayPieces, growth: Growth) -> Coordinates:
    """List the chunks that come next, step by step along an axis."""
    count = min(growth.num_chunks, _MOST_NEW_CHUNKS)
    others = [size for axis, size in enumerate(array.num_chunks) if axis != growth.axis]
    steps = -(-count // max(prod(others), 1))
    shape = (steps, *others)
    columns = list(np.unravel_index(np.arange(count), shape))
    columns[0] += array.box[growth.axis][1]
    columns.insert(growth.axis, columns.pop(0))
    coordinates = np.stack(columns, axis=1).astype(np.uint32)
    return coordinates[np.lexsort(coordinates.T[::-1])]


def _grown(array: ArrayPieces, coordinates: Coordinates) -> Node:
    """Make room for new chunks."""
    assert array.node.array is not None
    ends = zip(array.num_chunks, (coordinates.max(axis=0) + 1).tolist(), strict=True)
    num_chunks = tuple(max(count, end) for count, end in ends)
    return replace(array.node, array=replace(array.node.array, num_chunks=num_chunks))


def _opened(
    array: ArrayPieces,
    files: Sequence[ModelManifest],
    coordinates: Coordinates,
    rules: Rules,
) -> tuple[list[ModelManifest], list[float]]:
    """Find the manifests to open for new chunks, and how many references new ones will have."""
    layout = layout_of(_grown(array, coordinates), rules.split_sizes)
    extents = [file.arrays[array.node.id] for file in files]
    boxes = boxes_of([extent.box for extent in extents], len(array.num_chunks))
    counts = np.array([round(extent.num_refs) for extent in extents], np.int64)
    partition = layout.partition(coordinates, Blocks(boxes, counts))
    wanted = set(partition.wanted.tolist())
    is_shared = [len(file.arrays) > 1 for file in files]
    wanted |= {place for place, shared in enumerate(is_shared) if shared}
    parts = [float(len(coordinates[rows])) for rows in partition.parts]
    if parts:
        firsts = np.array([coordinates[rows][0] for rows in partition.parts], np.int64)
        for place in sorted(wanted):
            parts[_nearest(firsts, boxes[place])] += counts[place]
    return [files[place] for place in sorted(wanted)], parts


def _nearest(firsts: np.ndarray[tuple[int, ...], np.dtype[np.int64]], box: object) -> int:
    """Choose the part that a block joins: the one that begins closest to it."""
    distance = np.abs(firsts - np.asarray(box)[:, 1]).sum(axis=1)
    return int(distance.argmin())
