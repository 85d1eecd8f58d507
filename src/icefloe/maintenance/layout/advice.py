"""Propose a configuration of manifests for a repository, and estimate what a layout costs.

Costs are pure: the numbers of manifests that are fetched and written for common work. A layout is
either stored, or the result of a configuration; for the latter, counts and sizes are estimates,
as if references were spread evenly over their boxes. The logs of the newest commits show how the
arrays of a branch grow.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from statistics import median_low
from typing import Any, Final

import numpy as np

from icefloe.config import RepositoryConfig
from icefloe.config.conditions import (
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    SplitAxis,
)
from icefloe.config.effective import EffectiveConfig, EffectiveSplitSizes
from icefloe.config.manifest_sets import (
    DEFAULT_CHUNK_MANIFESTS,
    ChunkManifestsConfig,
    EffectiveChunkManifests,
    ManifestRule,
    ManifestSet,
    effective_chunk_manifests,
)
from icefloe.config.manifests import ManifestConfig, ManifestSplittingConfig
from icefloe.effects import map_concurrently
from icefloe.errors import ObjectNotFoundError
from icefloe.format.chunk_table import Coordinates
from icefloe.format.config_file import encode_partial_config_yaml
from icefloe.format.ids import INITIAL_SNAPSHOT_ID, ManifestId, NodeId, SnapshotId
from icefloe.format.nodes import ArrayNode
from icefloe.format.paths import node_name
from icefloe.format.transaction_log import TransactionLog
from icefloe.maintenance.layout.survey import ArrayPieces, around
from icefloe.manifests.packer import pack
from icefloe.manifests.partition import (
    MAX_PART_REFS,
    Blocks,
    Box,
    Layout,
    append_order,
    boxes_of,
    layout_of,
)
from icefloe.records import MutableRecord, Record, field, replace
from icefloe.repo.context import RepoContext
from icefloe.reports import Report, shown_bytes

_FILE_BYTES: Final = 200
"""What a manifest takes, however few references are in it."""
_MOST_NEW_CHUNKS: Final = 1_000_000


class Rules(Record):
    """The rules that determine the layout."""

    split_sizes: EffectiveSplitSizes | None
    sets: EffectiveChunkManifests


class Cost(Record):
    """Manifests fetched and written, and their bytes."""

    fetched: int = 0
    bytes_in: int = 0
    written: int = 0
    bytes_out: int = 0

    @property
    def seconds(self) -> float:
        """Weigh it, with a typical object store: 30 ms for a request, 50 MB a second."""
        return 0.03 * (self.fetched + self.written) + (self.bytes_in + self.bytes_out) / 50e6

    def shown(self) -> tuple[str, str]:
        """Write requests and bytes for people."""
        requests, sizes = f"{self.fetched} in", shown_bytes(self.bytes_in)
        if self.written:
            requests += f", {self.written} out"
            sizes += f", {shown_bytes(self.bytes_out)}"
        return requests, sizes


class Growth(Record):
    """The usual extension of an array: a number of chunks per commit, at the end of an axis."""

    axis: int
    num_chunks: int


class Extent(Record):
    """The references of one array in one manifest."""

    box: Box
    num_refs: float


class ModelManifest(MutableRecord):
    """A manifest, with the numbers that decide its costs."""

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
        arrays_by_id = {array.node.id: array for array in arrays}
        files: dict[ManifestId, ModelManifest] = {}
        for node, array in arrays_by_id.items():
            for piece in array.pieces:
                file = files.setdefault(piece.manifest, ModelManifest(piece.size_bytes))
                file.arrays[node] = Extent(piece.box, piece.num_refs)
        return cls(arrays_by_id, list(files.values()), _rates(arrays_by_id))

    @classmethod
    def expected(cls, arrays: Iterable[ArrayPieces], rules: Rules) -> "LayoutModel":
        """Foresee the layout that a rewrite would make."""
        arrays_by_id = {array.node.id: array for array in arrays}
        rates = _rates(arrays_by_id)
        manifests, wholes = list[ModelManifest](), list[ArrayPieces]()
        for node, array in arrays_by_id.items():
            layout = layout_of(array.node, rules.split_sizes)
            parts = _expected_parts(array, layout)
            if len(parts) == 1:
                wholes.append(array)
                continue
            for part in parts:
                size = _FILE_BYTES + rates[node] * part.num_refs
                manifests.append(ModelManifest(size, {node: part}))
        for plan in pack([array.facts for array in wholes], rules.sets):
            members = {
                node: Extent(arrays_by_id[node].box, arrays_by_id[node].num_refs)
                for node in plan.arrays
            }
            size = sum(rates[node] * part.num_refs for node, part in members.items())
            manifests.append(ModelManifest(_FILE_BYTES + size, members))
        return cls(arrays_by_id, manifests, rates)

    def of(self, node: NodeId) -> list[ModelManifest]:
        """List the manifests of an array."""
        return [manifest for manifest in self.manifests if node in manifest.arrays]

    # -- costs -----------------------------------------------------------------------------

    def read(self, nodes: Iterable[NodeId]) -> Cost:
        """Foresee the first read of a chunk of each array; the largest manifest of each counts."""
        fetched = {}
        for node in nodes:
            largest = max(self.of(node), key=lambda manifest: manifest.size_bytes)
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
            opened_files, parts = _opened(self.arrays[node], files, coordinates, rules)
            opened |= {id(file): file for file in opened_files}
            shared = [file for file in opened_files if len(file.arrays) > 1]
            if shared:
                packs[id(shared[0])] += rate * len(coordinates)
            else:
                new_files += [_FILE_BYTES + rate * count for count in parts]
        shared_files = {key: file for key, file in opened.items() if len(file.arrays) > 1}
        new_files += [file.size_bytes + packs[key] for key, file in shared_files.items()]
        return Cost(len(opened), _total(opened.values()), len(new_files), round(sum(new_files)))


def _total(manifests: Iterable[ModelManifest]) -> int:
    return round(sum(manifest.size_bytes for manifest in manifests))


def _rates(arrays: Mapping[NodeId, ArrayPieces]) -> dict[NodeId, float]:
    """Return the bytes per reference of each array."""
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
        box = around([share.box for share in some])
        num_refs = sum(share.num_refs for share in some)
        cut = layout.next_cut(box, round(num_refs))
        if cut is None:
            parts.append(Extent(box, num_refs))
            continue
        halves = [[_clipped(share, *cut, late=late) for share in some] for late in (True, False)]
        waiting += [
            remaining
            for half in halves
            if (remaining := [share for share in half if share.num_refs])
        ]
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


def _grown(array: ArrayPieces, coordinates: Coordinates) -> ArrayNode:
    """Make room for new chunks."""
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
    opened_rows = set(partition.wanted.tolist())
    is_shared = [len(file.arrays) > 1 for file in files]
    opened_rows |= {row for row, shared in enumerate(is_shared) if shared}
    parts = [float(len(coordinates[rows])) for rows in partition.parts]
    if parts:
        firsts = np.array([coordinates[rows][0] for rows in partition.parts], np.int64)
        for row in sorted(opened_rows):
            parts[_nearest(firsts, boxes[row])] += counts[row]
    return [files[row] for row in sorted(opened_rows)], parts


def _nearest(firsts: np.ndarray[tuple[int, ...], np.dtype[np.int64]], box: object) -> int:
    """Choose the part that a block joins: the one that begins closest to it."""
    distance = np.abs(firsts - np.asarray(box)[:, 1]).sum(axis=1)
    return int(distance.argmin())


COMMITS_LOOKED_AT: Final = 30
_LOGS_AT_ONCE: Final = 8


async def growths(
    context: RepoContext, tip: SnapshotId, *, commits: int = COMMITS_LOOKED_AT
) -> dict[NodeId, Growth]:
    """Find the arrays that commits extend, each along which axis and by how many chunks."""
    ids = list[SnapshotId]()
    async for entry in context.ledger.ancestry(tip):
        if len(ids) == commits or entry.id == INITIAL_SNAPSHOT_ID:
            break
        ids.append(entry.id)

    async def load(snapshot: SnapshotId) -> TransactionLog | None:
        try:
            return await context.assets.load_transaction_log(snapshot)
        except ObjectNotFoundError:
            return None  # expired, or collected

    logs = await map_concurrently(load, reversed(ids), limit=_LOGS_AT_ONCE)
    return growths_in([log for log in logs if log is not None])


def growths_in(logs: list[TransactionLog]) -> dict[NodeId, Growth]:
    """Find growth in logs, oldest first: each commit beyond all before it, along one axis.

    Two commits in a row are enough to believe it.
    """
    written: defaultdict[NodeId, list[Coordinates]] = defaultdict(list)
    for log in logs:
        for node, coordinates in log.updated_chunks.items():
            if len(coordinates):
                written[node].append(coordinates)
    growths = {}
    for node, commits in written.items():
        axis = _growing_axis(commits)
        if axis is not None:
            # The first of many is often the one that filled the array.
            count = median_low(len(commit) for commit in commits[1:])
            growths[node] = Growth(axis, count)
    return growths


def _growing_axis(commits: list[Coordinates]) -> int | None:
    if len(commits) < 2 or len({commit.shape[1] for commit in commits}) > 1:
        return None
    for axis in range(commits[0].shape[1]):
        firsts = [int(commit[:, axis].min()) for commit in commits]
        lasts = [int(commit[:, axis].max()) for commit in commits]
        if all(first > last for first, last in zip(firsts[1:], lasts, strict=False)):
            return axis
    return None


_SMALL_CHUNKS: Final = 100
"""Arrays of no more chunks are taken for coordinates, if none has the name of a dimension."""
_PACK_SIZES: Final = (1_000, 10_000, 50_000)
_MUCH_BETTER: Final = 0.9
_UNCUT: Final = 2**32 - 1
_WORK: Final = {
    "first_read": "the first chunk of the largest array",
    "coordinates": "all coordinates",
    "append": "an append and its commit",
    "change": "a commit of one changed chunk",
}


class Costs(Record):
    """The costs of common work."""

    first_read: Cost = Cost()
    """Of a chunk of the largest array."""
    coordinates: Cost = Cost()
    """To read all coordinates, as opening a dataset does."""
    append: Cost = Cost()
    """A commit that extends arrays as they were extended before."""
    change: Cost = Cost()
    """A commit that changes one chunk of the largest array."""
    num_manifests: int = 0

    @property
    def seconds(self) -> float:
        """Weigh all of it."""
        return sum(
            cost.seconds for cost in (self.first_read, self.coordinates, self.append, self.change)
        )


class ManifestAdvice(Report, Record):
    """A configuration of manifests that suits a repository, with what it would cost.

    Costs count manifests, and their bytes, that are fetched and written; those of the proposal
    are estimates. `config` holds what is to be set, and nothing else.
    """

    largest: str | None = None
    """The path of the largest array; None if there are no references."""
    growing: Mapping[str, Growth] = field(default_factory=dict)
    """How arrays are extended, by path."""
    now: Costs = Costs()
    """With the manifests as they are."""
    proposed: Costs = Costs()
    """After they were rewritten by the proposal."""
    config: RepositoryConfig = field(default_factory=RepositoryConfig)
    """What to set: nothing if what applies is good."""
    reasons: tuple[str, ...] = ()

    headings = ("manifests for", "now", "bytes", "proposed", "bytes")

    @property
    def changes_config(self) -> bool:
        """Whether there is something to set."""
        return self.config != RepositoryConfig()

    @property
    def is_worth_a_rewrite(self) -> bool:
        """Whether manifests that are stored should be rewritten."""
        return self.proposed.seconds < _MUCH_BETTER * self.now.seconds

    @property
    def yaml(self) -> str:
        """The configuration in the form of `config.yaml`; empty if there is nothing to set."""
        return encode_partial_config_yaml(self.config).decode() if self.changes_config else ""

    def cost_rows(self) -> Iterator[list[object]]:
        """Yield the rows of a table of costs."""
        if self.largest is None:
            return
        for name, text in _WORK.items():
            yield [text, *getattr(self.now, name).shown(), *getattr(self.proposed, name).shown()]
        yield ["in all", self.now.num_manifests, "", self.proposed.num_manifests, ""]

    _rows = cost_rows

    def _notes(self) -> Iterator[str]:
        if self.largest is None:
            yield "there are no references yet: nothing to suggest"
            return
        for path, growth in self.growing.items():
            yield f"{path} grows along axis {growth.axis}, {growth.num_chunks} chunks at a time"
        yield from self.reasons
        if not self.changes_config:
            yield "the configuration is good as it is"
        if self.is_worth_a_rewrite:
            yield "manifests that are stored should be rewritten: icefloe manifests rewrite"

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        if self.largest is None:
            return {"now": None, "proposed": None, "config": "", "reasons": []}
        return super().to_dict() | {
            "config": self.yaml,
            "is_worth_a_rewrite": self.is_worth_a_rewrite,
        }

    def __repr__(self) -> str:
        return f"{super().__repr__()}\n{self.yaml}".rstrip()


def advise(
    arrays: Sequence[ArrayPieces], growths: Mapping[NodeId, Growth], config: EffectiveConfig
) -> ManifestAdvice:
    """Propose a configuration; nothing for a repository without references."""
    if not arrays:
        return ManifestAdvice()
    observed = _Observed.of(arrays, growths)
    rules = Rules(config.manifest.split_sizes, config.chunk_manifests)
    reasons = list[str]()
    splitting, why = _splitting(observed, rules.split_sizes)
    reasons += why
    new_rules = replace(rules, split_sizes=splitting)
    sets, why = _sets(observed, new_rules)
    reasons += why
    if sets is not None:
        new_rules = replace(new_rules, sets=effective_chunk_manifests(sets))
    manifest = None
    if splitting != rules.split_sizes:
        manifest = ManifestConfig(splitting=_splitting_config(splitting))
    now = observed.costs(LayoutModel.stored(arrays), rules)
    proposed = observed.costs(LayoutModel.expected(arrays, new_rules), new_rules)
    growing = {observed.known[node].node.path: growth for node, growth in observed.growths.items()}
    return ManifestAdvice(
        largest=observed.largest.node.path,
        growing=growing,
        now=now,
        proposed=proposed,
        config=RepositoryConfig(manifest=manifest, chunk_manifests=sets),
        reasons=tuple(reasons),
    )


class _Observed(Record):
    """The arrays that the costs are about."""

    known: Mapping[NodeId, ArrayPieces]
    largest: ArrayPieces
    coordinates: Sequence[NodeId]
    growths: Mapping[NodeId, Growth]

    @classmethod
    def of(cls, arrays: Sequence[ArrayPieces], growths: Mapping[NodeId, Growth]) -> "_Observed":
        arrays_by_id = {array.node.id: array for array in arrays}
        largest = max(arrays, key=lambda array: (array.num_refs, array.node.path))
        growing = {node: growth for node, growth in growths.items() if node in arrays_by_id}
        if not growing and largest.num_chunks:
            axis = append_order(_names(largest))[0]
            growing = {largest.node.id: Growth(axis, _step(largest, axis))}
        return cls(arrays_by_id, largest, _coordinates(arrays), growing)

    def costs(self, layout: LayoutModel, rules: Rules) -> Costs:
        return Costs(
            layout.read([self.largest.node.id]),
            layout.read(self.coordinates),
            layout.append(self.growths, rules),
            layout.change(self.largest.node.id),
            len(layout.manifests),
        )


def _names(array: ArrayPieces) -> Sequence[str | None]:
    return array.node.array.dimension_names or (None,) * len(array.num_chunks)


def _step(array: ArrayPieces, axis: int) -> int:
    """Count the chunks of one step along an axis."""
    return prod(count for dimension, count in enumerate(array.num_chunks) if dimension != axis)


def _coordinates(arrays: Sequence[ArrayPieces]) -> list[NodeId]:
    names = {name for array in arrays for name in _names(array) if name}
    named = [array.node.id for array in arrays if node_name(array.node.path) in names]
    small = [array.node.id for array in arrays if prod(array.num_chunks) <= _SMALL_CHUNKS]
    return named or small


# -- splitting -----------------------------------------------------------------------------


def _splitting(
    observed: _Observed, rules: EffectiveSplitSizes | None
) -> tuple[EffectiveSplitSizes | None, list[str]]:
    """Cut large arrays along the axis that they grow along, where that does not happen yet."""
    added = list[tuple[ManifestSplitCondition, tuple[tuple[ManifestSplitDimCondition, int], ...]]]()
    reasons = []
    for node, array in observed.known.items():
        if array.num_refs <= MAX_PART_REFS:
            continue
        growth = observed.growths.get(node)
        guessed = append_order(_names(array))
        axis = guessed[0] if growth is None else growth.axis
        path = array.node.path
        only = {node: Growth(axis, _step(array, axis) if growth is None else growth.num_chunks)}
        if rules is None and axis == guessed[0]:
            continue  # this is what happens by itself
        sizes = _sizes(array, (axis, *(guess for guess in guessed if guess != axis)))
        rule = (ManifestSplitCondition.path_matches(f"^{re.escape(path)}$"), sizes)
        if rules is not None and not _is_better(array, only, rules, (rule, *rules)):
            continue
        added.append(rule)
        name = _names(array)[axis] or f"axis {axis}"
        reasons.append(f"{path} has {array.num_refs} references and grows along {name}")
    return (rules if not added else (*added, *(rules or ()))), reasons


def _is_better(
    array: ArrayPieces,
    growths: Mapping[NodeId, Growth],
    before: EffectiveSplitSizes,
    after: EffectiveSplitSizes,
) -> bool:
    sets = effective_chunk_manifests(DEFAULT_CHUNK_MANIFESTS)
    seconds = []
    for split_sizes in (before, after):
        rules = Rules(split_sizes, sets)
        layout = LayoutModel.expected([array], rules)
        node = array.node.id
        seconds.append(layout.read([node]).seconds + layout.append(growths, rules).seconds)
    return seconds[1] < _MUCH_BETTER * seconds[0]


def _sizes(
    array: ArrayPieces, axes: Sequence[int]
) -> tuple[tuple[ManifestSplitDimCondition, int], ...]:
    """Choose where to cut each axis: the first as often as it takes, the others only then."""
    room, sizes = MAX_PART_REFS, dict[int, int]()
    for axis in reversed(axes):
        count = array.num_chunks[axis]
        is_first = axis == axes[0]
        if count <= room and not is_first:
            sizes[axis], room = _UNCUT, room // max(count, 1)
        else:
            sizes[axis], room = 1 << (max(room, 1).bit_length() - 1), 1
    return tuple((SplitAxis(axis), sizes[axis]) for axis in sorted(sizes))


def _splitting_config(rules: EffectiveSplitSizes | None) -> ManifestSplittingConfig:
    return ManifestSplittingConfig.from_dict(
        {condition: dict(sizes) for condition, sizes in rules or ()}
    )


# -- manifest sets -------------------------------------------------------------------------


def _sets(observed: _Observed, rules: Rules) -> tuple[ChunkManifestsConfig | None, list[str]]:
    """Try manifests of other sizes for small arrays."""
    arrays = list(observed.known.values())
    best, best_seconds = None, _MUCH_BETTER * _seconds(observed, arrays, rules)
    for config in (DEFAULT_CHUNK_MANIFESTS, *map(_with_larger_packs, _PACK_SIZES)):
        seconds = _seconds(observed, arrays, replace(rules, sets=effective_chunk_manifests(config)))
        if seconds < best_seconds:
            best, best_seconds = config, seconds
    if best is None:
        return None, []
    size = best.sets[0].max_manifest_size
    count = len(observed.coordinates)
    return best, [f"{count} coordinates are quicker to read from manifests of {size} references"]


def _seconds(observed: _Observed, arrays: Sequence[ArrayPieces], rules: Rules) -> float:
    return observed.costs(LayoutModel.expected(arrays, rules), rules).seconds


def _with_larger_packs(size: int) -> ChunkManifestsConfig:
    return ChunkManifestsConfig(
        [
            ManifestSet("coordinates", max_manifest_size=size, cardinality=None),
            ManifestSet("default", arrays_per_manifest=1),
        ],
        [ManifestRule("coordinates", metadata_chunks=(0, size // 10 + 1))],
        preload=DEFAULT_CHUNK_MANIFESTS.preload,
    )
