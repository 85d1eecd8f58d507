"""Which arrays share a manifest: rules send them to manifest sets, sets pack them.

All of this is pure: values in, a plan out. The same input gives the same plan, whatever its
order, and a plan that is put into practice is its own continuation: manifests without a modified
array are left as they are, and the others keep their arrays together as long as they fit. What
is guaranteed about the number of manifests is in decision 012.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

from icefloe.config.chunk_manifests import EffectiveChunkManifests
from icefloe.config.manifest_sets import ManifestSet
from icefloe.engine.manifests.bins import Bin, FirstFit, by_rank, evened, ranks_of
from icefloe.engine.manifests.rules import send
from icefloe.format.ids import ManifestId, NodeId

_NOTHING_PLACED: Final[Mapping[NodeId, ManifestId]] = {}
_NOTHING: Final[AbstractSet[NodeId]] = frozenset()


@dataclass(frozen=True, slots=True)
class ArrayFacts:
    """What the rules and the packing have to know of an array."""

    node_id: NodeId
    path: str
    metadata_chunks: int
    """The chunks that its shape has room for."""
    initialized_chunks: int
    """The chunks that exist; looked at only if the configuration `counts_initialized_chunks`."""


@dataclass(frozen=True, slots=True)
class ManifestPlan:
    """A manifest: the arrays to hold in it, in the order of their paths."""

    set_name: str
    arrays: tuple[NodeId, ...]
    unchanged: ManifestId | None = None
    """The manifest that holds just these arrays already, none of them modified: keep it."""


def closure(
    modified: AbstractSet[NodeId],
    manifests_of: Mapping[NodeId, AbstractSet[ManifestId]],
    arrays_in: Mapping[ManifestId, AbstractSet[NodeId]],
) -> set[NodeId]:
    """Find all arrays of which some manifest must be rewritten if the modified ones are.

    Arrays that are in no manifest yet are a closure by themselves.
    """
    found = set(modified)
    seen: set[ManifestId] = set()
    waiting = list(modified)
    while waiting:
        for manifest in manifests_of.get(waiting.pop(), ()):
            if manifest not in seen:
                seen.add(manifest)
                new = arrays_in.get(manifest, frozenset()) - found
                found |= new
                waiting.extend(new)
    return found


def pack(
    arrays: Sequence[ArrayFacts],
    config: EffectiveChunkManifests,
    current: Mapping[NodeId, ManifestId] = _NOTHING_PLACED,
    modified: AbstractSet[NodeId] = _NOTHING,
) -> list[ManifestPlan]:
    """Say which arrays go into which manifest; every array of `arrays` is in exactly one plan.

    `arrays` are those of the new version that are not split and have references: all of them,
    or at least the closure of the modified ones and whatever may be in a set of limited
    cardinality. `current` tells in which manifest an array was before, if it was in one only;
    those that are not in `arrays` any more (deleted, or split now) belong in there too.
    `modified` are the arrays with other references, another shape or another path than before.
    A manifest that lost no array, and of which none is modified, is taken over as it is
    (`ManifestPlan.unchanged`), unless its set is limited in cardinality and a modified or new
    array is added to it, or unless the configuration no longer allows it.

    With everything in `arrays`, and nothing in `current`, the layout is made from scratch.
    """
    return _Packing(arrays, config, current, modified).plans()


@dataclass(slots=True)
class _Arrivals:
    """What a set has to find room for: arrays, and manifests that need not change."""

    arrays: list[int] = field(default_factory=list)
    untouched: list[Bin] = field(default_factory=list)


class _Packing:
    """One run of the algorithm; arrays are known by their position in the order of paths."""

    def __init__(
        self,
        arrays: Sequence[ArrayFacts],
        config: EffectiveChunkManifests,
        current: Mapping[NodeId, ManifestId],
        modified: AbstractSet[NodeId],
    ) -> None:
        self._arrays = sorted(arrays, key=lambda each: (each.path, each.node_id.raw))
        self._sets = config.sets
        positions = {each.name: position for position, each in enumerate(self._sets)}
        self._overflows = [
            len(self._sets) if each.overflow_to is None else positions[each.overflow_to]
            for each in self._sets
        ]
        sent = send(
            [each.path for each in self._arrays],
            [each.metadata_chunks for each in self._arrays],
            [each.initialized_chunks for each in self._arrays],
            config,
        )
        self._targets = [positions[name] for name in sent.targets]
        self._sizes = sent.sizes
        present = {each.node_id for each in arrays}
        touched = {
            before for each, before in current.items() if each in modified or each not in present
        }
        self._before = [current.get(each.node_id) for each in self._arrays]
        self._is_new = [
            before is None or each.node_id in modified
            for each, before in zip(self._arrays, self._before, strict=True)
        ]
        self._largest_first = ranks_of([-each for each in self._sizes])
        self._smallest_first = ranks_of(self._sizes)
        self._arrivals = [_Arrivals() for _ in self._sets]
        self._let_in(touched)

    def plans(self) -> list[ManifestPlan]:
        """Ask one set after the other; what a set has no room for goes on to a later one."""
        plans = []
        for position, each in enumerate(self._sets):
            for made in self._fill(position, each):
                ids = tuple(self._arrays[member].node_id for member in sorted(made.members))
                kept = made.source if made.is_untouched else None
                plans.append(ManifestPlan(each.name, ids, kept))
        return plans

    def _let_in(self, touched: AbstractSet[ManifestId]) -> None:
        """Send untouched manifests to where they fit as they are, all else where the rules say."""
        groups: defaultdict[ManifestId, list[int]] = defaultdict(list)
        for array, before in enumerate(self._before):
            if before is None or before in touched:
                self._arrivals[self._targets[array]].arrays.append(array)
            else:
                groups[before].append(array)
        for manifest, members in groups.items():
            if homes := self._homes(members):
                self._arrivals[homes[0]].untouched.append(Bin(members, 0, manifest, homes))
                continue
            for array in members:
                self._arrivals[self._targets[array]].arrays.append(array)

    def _homes(self, members: Sequence[int]) -> list[int]:
        """List the sets that all these arrays could come to, and where they fit together."""
        chains = [self._chain(target) for target in {self._targets[each] for each in members}]
        common = set(chains[0]).intersection(*chains[1:])
        return [each for each in chains[0] if each in common and self._fits(members, each)]

    def _chain(self, position: int) -> list[int]:
        chain = []
        while position < len(self._sets):
            chain.append(position)
            position = self._overflows[position]
        return chain

    def _fits(self, members: Sequence[int], position: int) -> bool:
        wanted = self._sets[position]
        if wanted.max_manifest_size is None:
            return self._weight(members, wanted) <= _capacity(wanted)
        is_last = self._overflows[position] == len(self._sets)
        return (is_last and len(members) == 1) or self._size(members) <= wanted.max_manifest_size

    def _size(self, members: Iterable[int]) -> int:
        return sum(self._sizes[each] for each in members)

    def _weight(self, members: Sequence[int], within: ManifestSet) -> int:
        """Measure arrays as the limit of a set does."""
        return len(members) if within.max_manifest_size is None else self._size(members)

    def _fill(self, position: int, within: ManifestSet) -> list[Bin]:
        """Make the manifests of a set; what has no place there is passed on.

        Where their number is limited, the smallest arrays are to be in, else there are to be few.
        """
        arrived = self._arrivals[position]
        alone, arrays = self._without_too_large(position, within, arrived.arrays)
        bundles, single = self._bundles(arrays, within)
        for each in arrived.untouched:
            each.weight = self._weight(each.members, within)
        if (limit := within.cardinality) is None:
            made = FirstFit(_capacity(within), self._is_new)
            made.put_all(by_rank(bundles, self._largest_first))
            made.put_all(self._loose(single, within, self._largest_first))
            return [*alone, *arrived.untouched, *made.opened]
        # Manifests that were there before come first, whether they are touched or not.
        old = FirstFit(_capacity(within), self._is_new)
        old.put_all(by_rank(bundles, self._smallest_first))
        kept, left = self._first_of([*arrived.untouched, *old.opened], limit)
        self._pass_on(position, [each for each in left if each.is_untouched])
        made = FirstFit(_capacity(within), self._is_new, kept)
        made.put_all(each for each in left if not each.is_untouched)
        made.put_all(self._loose(single, within, self._smallest_first))
        kept, left = self._first_of(made.all(), limit)
        self._pass_on(position, left)
        return kept

    def _first_of(self, made: list[Bin], limit: int) -> tuple[list[Bin], list[Bin]]:
        """Choose as many manifests as a set may have; give the others too.

        The first array of a manifest decides, not its size: then the choice is the same again,
        however the arrays that had to go were packed elsewhere.
        """
        ranks = self._smallest_first

        def order(each: Bin) -> tuple[bool, bool, int]:
            was_joined = each.source is not None and each.is_extended
            has_no_other = each.is_untouched and len(each.homes) == 1
            first = min(ranks[member] for member in each.members)
            return not was_joined, not has_no_other, first

        ordered = sorted(made, key=order)
        return ordered[:limit], ordered[limit:]

    def _pass_on(self, position: int, left: Iterable[Bin]) -> None:
        for each in left:
            if each.is_untouched and len(each.homes) > 1:
                homes = each.homes[1:]
                rest = Bin(each.members, 0, each.source, homes)
                self._arrivals[homes[0]].untouched.append(rest)
            else:
                self._arrivals[self._overflows[position]].arrays.extend(each.members)

    def _without_too_large(
        self, position: int, within: ManifestSet, arrived: Sequence[int]
    ) -> tuple[list[Bin], list[int]]:
        """Pass on arrays that no manifest could hold; in the last set, they have one each."""
        if (largest := within.max_manifest_size) is None:
            return [], list(arrived)
        alone = [Bin([each], 0) for each in arrived if self._sizes[each] > largest]
        if self._overflows[position] < len(self._sets):
            self._pass_on(position, alone)
            alone = []
        return alone, [each for each in arrived if self._sizes[each] <= largest]

    def _bundles(self, arrived: Sequence[int], within: ManifestSet) -> tuple[list[Bin], list[int]]:
        """Tell arrays that were together, and still fit, from those to be packed one by one."""
        groups: defaultdict[ManifestId | None, list[int]] = defaultdict(list)
        for array in arrived:
            groups[self._before[array]].append(array)
        single = groups.pop(None, [])
        bundles = []
        for members in groups.values():
            weight = self._weight(members, within)
            if weight <= _capacity(within):
                bundles.append(Bin(members, weight))
            else:
                single.extend(members)
        return bundles, single

    def _loose(self, arrays: Sequence[int], within: ManifestSet, ranks: Sequence[int]) -> list[Bin]:
        """Sort single arrays; those that were modified come last.

        So it is they who leave a manifest that became too large.
        """
        ordered = sorted(arrays, key=ranks.__getitem__)
        loose = []
        for is_new in (False, True):
            some = [each for each in ordered if self._is_new[each] is is_new]
            if within.arrays_per_manifest is not None:
                some = evened(some, within.arrays_per_manifest, within.cardinality)
            loose.extend(some)
        return [Bin([each], self._weight([each], within)) for each in loose]


def _capacity(within: ManifestSet) -> int:
    """Give the limit of a set, in references or in arrays."""
    limit = within.max_manifest_size or within.arrays_per_manifest
    assert limit is not None
    return limit
