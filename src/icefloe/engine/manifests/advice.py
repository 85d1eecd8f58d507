"""Which configuration of manifests suits a repository: a proposal, with what it would cost.

Pure. What was observed goes in: the arrays, where their references are, and how they grew. The
proposal differs from what applies only where it is clearly better for that.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Final

from icefloe.config import RepositoryConfig
from icefloe.config.chunk_manifests import (
    DEFAULT_CHUNK_MANIFESTS,
    ChunkManifestsConfig,
    effective_chunk_manifests,
)
from icefloe.config.conditions import (
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    SplitAxis,
)
from icefloe.config.effective import EffectiveConfig, EffectiveSplitSizes
from icefloe.config.manifest import ManifestConfig, ManifestSplittingConfig
from icefloe.config.manifest_sets import ManifestRule, ManifestSet
from icefloe.engine.manifests.costs import Cost, Growth, LayoutModel, Rules
from icefloe.engine.manifests.partition import MAX_PART_REFS
from icefloe.engine.manifests.splitting import append_order
from icefloe.engine.manifests.survey import ArrayPieces
from icefloe.engine.paths import node_name
from icefloe.format.ids import NodeId

_SMALL_CHUNKS: Final = 100
"""Arrays of no more chunks are taken for coordinates, if none has the name of a dimension."""
_PACK_SIZES: Final = (1_000, 10_000, 50_000)
_MUCH_BETTER: Final = 0.9
_UNCUT: Final = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs of common work."""

    first_read: Cost
    """Of a chunk of the largest array."""
    coordinates: Cost
    """To read all coordinates, as whoever opens a dataset does."""
    append: Cost
    """A commit that extends arrays as they were extended before."""
    change: Cost
    """A commit that changes one chunk of the largest array."""
    num_manifests: int

    @property
    def seconds(self) -> float:
        """Weigh all of it."""
        return sum(
            each.seconds for each in (self.first_read, self.coordinates, self.append, self.change)
        )


@dataclass(frozen=True, slots=True)
class Advice:
    """A proposal."""

    now: Costs
    """With the manifests as they are."""
    proposed: Costs
    """After they were rewritten by the proposal."""
    config: RepositoryConfig
    """What is to be set; empty if nothing is."""
    reasons: tuple[str, ...]
    largest: str
    """The path of the largest array."""
    growing: Mapping[str, Growth]
    """How arrays are extended, by path."""

    @property
    def is_worth_a_rewrite(self) -> bool:
        """Whether the stored manifests should be rewritten."""
        return self.proposed.seconds < _MUCH_BETTER * self.now.seconds


def advise(
    arrays: Sequence[ArrayPieces], growths: Mapping[NodeId, Growth], config: EffectiveConfig
) -> Advice | None:
    """Propose a configuration; None for a repository without references."""
    if not arrays:
        return None
    observed = _Observed.of(arrays, growths)
    rules = Rules(config.manifest.split_sizes, config.chunk_manifests)
    reasons = list[str]()
    splitting, why = _splitting(observed, rules.split_sizes)
    reasons += why
    wanted = replace(rules, split_sizes=splitting)
    sets, why = _sets(observed, wanted)
    reasons += why
    if sets is not None:
        wanted = replace(wanted, sets=effective_chunk_manifests(sets))
    manifest = None
    if splitting != rules.split_sizes:
        manifest = ManifestConfig(splitting=_splitting_config(splitting))
    now = observed.costs(LayoutModel.stored(arrays), rules)
    proposed = observed.costs(LayoutModel.expected(arrays, wanted), wanted)
    return Advice(
        now,
        proposed,
        RepositoryConfig(manifest=manifest, chunk_manifests=sets),
        tuple(reasons),
        observed.largest.node.path,
        {observed.known[node].node.path: growth for node, growth in observed.growths.items()},
    )


@dataclass(frozen=True, slots=True)
class _Observed:
    """The arrays that the costs are about."""

    known: Mapping[NodeId, ArrayPieces]
    largest: ArrayPieces
    coordinates: Sequence[NodeId]
    growths: Mapping[NodeId, Growth]

    @classmethod
    def of(cls, arrays: Sequence[ArrayPieces], growths: Mapping[NodeId, Growth]) -> "_Observed":
        known = {array.node.id: array for array in arrays}
        largest = max(arrays, key=lambda array: (array.num_refs, array.node.path))
        growing = {node: growth for node, growth in growths.items() if node in known}
        if not growing and largest.num_chunks:
            axis = append_order(_names(largest))[0]
            growing = {largest.node.id: Growth(axis, _step(largest, axis))}
        return cls(known, largest, _coordinates(arrays), growing)

    def costs(self, layout: LayoutModel, rules: Rules) -> Costs:
        return Costs(
            layout.read([self.largest.node.id]),
            layout.read(self.coordinates),
            layout.append(self.growths, rules),
            layout.change(self.largest.node.id),
            len(layout.manifests),
        )


def _names(array: ArrayPieces) -> Sequence[str | None]:
    assert array.node.array is not None
    return array.node.array.dimension_names or (None,) * len(array.num_chunks)


def _step(array: ArrayPieces, axis: int) -> int:
    """Count the chunks of one step along an axis."""
    return prod(count for at, count in enumerate(array.num_chunks) if at != axis)


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
        sizes = _sizes(array, (axis, *(one for one in guessed if one != axis)))
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
