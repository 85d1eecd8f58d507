"""Pack arrays into shared manifests: rules assign arrays to manifest sets, and each set is packed.

A bin is a manifest in the making. A segment tree finds the first bin with enough room, in
logarithmic time.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from icefloe.config.manifest_sets import (
    DEFAULT_SET,
    ChunkRange,
    EffectiveChunkManifests,
    ManifestRule,
    ManifestSet,
)
from icefloe.format.ids import ManifestId, NodeId
from icefloe.manifests.partition import matches
from icefloe.records import MutableRecord, Record, field


class Rooms:
    """The room left in containers, in their order.

    >>> rooms = Rooms()
    >>> rooms.add(5), rooms.add(9)
    (None, None)
    >>> rooms.take(6), rooms.take(4), rooms.take(4)
    (1, 0, None)
    """

    __slots__ = ("_count", "_leaves", "_most")

    def __init__(self) -> None:
        """Start without containers."""
        self._count = 0
        self._leaves = 1
        self._most = [-1, -1]
        """A binary tree from [1]: each node has the most room of any container below it."""

    def add(self, room: int) -> None:
        """Add a container after all others."""
        if self._count == self._leaves:
            self._grow()
        self._count += 1
        self._set(self._leaves + self._count - 1, room)

    def take(self, room: int) -> int | None:
        """Take room from the first container that has enough, and tell which; None if none has."""
        most = self._most
        if most[1] < room:
            return None
        node = 1
        while node < self._leaves:
            node *= 2
            if most[node] < room:
                node += 1
        self._set(node, most[node] - room)
        return node - self._leaves

    def _set(self, node: int, room: int) -> None:
        most = self._most
        most[node] = room
        while node > 1:
            node //= 2
            most[node] = max(most[2 * node], most[2 * node + 1])

    def _grow(self) -> None:
        rooms = self._most[self._leaves :]
        levels = [rooms + [-1] * self._leaves]
        while len(levels[-1]) > 1:
            below = levels[-1]
            levels.append([max(pair) for pair in zip(below[::2], below[1::2], strict=True)])
        self._most = [-1, *(room for level in reversed(levels) for room in level)]
        self._leaves *= 2


class Bin(MutableRecord):
    """A manifest in the making."""

    members: list[int]
    weight: int
    source: ManifestId | None = None
    """The untouched manifest that this was before."""
    homes: Sequence[int] = ()
    """The sets where that fits as it is: this one, and those to be asked after it."""
    is_extended: bool = False

    @property
    def is_untouched(self) -> bool:
        """Whether this can stay the file that it is."""
        return self.source is not None and not self.is_extended

    def add(self, other: "Bin") -> None:
        """Put more arrays in."""
        self.members.extend(other.members)
        self.weight += other.weight
        self.is_extended = True


class FirstFit:
    """Manifests of one capacity, to each of which things are added as long as there is room."""

    def __init__(self, capacity: int, is_new: Sequence[bool], before: Sequence[Bin] = ()) -> None:
        self._capacity = capacity
        self._is_new = is_new
        self._untouched = [entry for entry in before if entry.is_untouched]
        self._old_room = Rooms()
        for entry in self._untouched:
            self._old_room.add(capacity - entry.weight)
        self.opened: list[Bin] = []
        self._room = Rooms()
        for entry in before:
            if not entry.is_untouched:
                self._open(entry)

    def all(self) -> list[Bin]:
        """List all manifests."""
        return [*self._untouched, *self.opened]

    def put_all(self, units: Iterable[Bin]) -> None:
        """Put each unit into the first manifest with room, or else into a new one.

        To those that could stay as they are, only what changed may be added.
        """
        for unit in units:
            if (number := self._room.take(unit.weight)) is not None:
                self.opened[number].add(unit)
            elif (
                any(self._is_new[member] for member in unit.members)
                and (number := self._old_room.take(unit.weight)) is not None
            ):
                self._untouched[number].add(unit)
            else:
                self._open(unit)

    def _open(self, unit: Bin) -> None:
        self._room.add(self._capacity - unit.weight)
        self.opened.append(unit)


def by_rank(bins: Iterable[Bin], ranks: Sequence[int]) -> list[Bin]:
    """Sort manifests by the first of their arrays."""
    return sorted(bins, key=lambda bin_: min(ranks[member] for member in bin_.members))


def ranks_of(keys: Sequence[int]) -> list[int]:
    """Return the rank of each key in sorted order."""
    ranks = [0] * len(keys)
    for rank, position in enumerate(sorted(range(len(keys)), key=keys.__getitem__)):
        ranks[position] = rank
    return ranks


def evened(arrays: Sequence[int], size: int, cardinality: int | None) -> list[int]:
    """Rearrange sorted arrays so that manifests of this many have similar sizes.

    The first is matched with the last, the second with the last but one, and so on; of those
    that there is room for, if that is limited.
    """
    count = len(arrays) if cardinality is None else min(size * cardinality, len(arrays))
    head, tail = arrays[:count], arrays[count:]
    half = (count + 1) // 2
    pairs = zip(head[:half], reversed(head), strict=False)
    return [*[one for pair in pairs for one in pair][:count], *tail]


_ANY_PATH: Final = (None, ".*")


class Sent(Record):
    """For each array: the set it is sent to, and the references it may bring."""

    targets: list[str]
    sizes: list[int]


def send(
    paths: Sequence[str],
    metadata_chunks: Sequence[int],
    initialized_chunks: Sequence[int],
    config: EffectiveChunkManifests,
) -> Sent:
    """Apply the rules to many arrays; those for which none holds go to the default set.

    An array counts for as many references as its shape has room for: then its place does not
    change while it is filled. Only if it was sent by how many chunks exist, these count.
    """
    targets = [DEFAULT_SET] * len(paths)
    sizes = list(metadata_chunks)
    undecided = list(range(len(paths)))
    for rule in config.rules:
        chosen = _those_that_match(rule, paths, undecided)
        chosen = _those_within(rule.metadata_chunks, metadata_chunks, chosen)
        chosen = _those_within(rule.initialized_chunks, initialized_chunks, chosen)
        for array in chosen:
            targets[array] = rule.target
            if rule.initialized_chunks is not None:
                sizes[array] = initialized_chunks[array]
        if chosen:
            decided = set(chosen)
            undecided = [array for array in undecided if array not in decided]
    return Sent(targets, sizes)


def _those_that_match(rule: ManifestRule, paths: Sequence[str], among: list[int]) -> list[int]:
    if rule.path is None or rule.path in _ANY_PATH or not among:
        return among
    has_match = matches(rule.path, [paths[array] for array in among])
    return [array for array, is_match in zip(among, has_match, strict=True) if is_match]


def _those_within(bounds: ChunkRange | None, counts: Sequence[int], among: list[int]) -> list[int]:
    if bounds is None:
        return among
    low = bounds[0] or 0
    if (high := bounds[1]) is None:
        return [array for array in among if counts[array] >= low]
    return [array for array in among if low <= counts[array] < high]


_NOTHING_PLACED: Final[Mapping[NodeId, ManifestId]] = {}
_NOTHING: Final[AbstractSet[NodeId]] = frozenset()


class ArrayFacts(Record):
    """The facts about an array that rules and packing need."""

    node_id: NodeId
    path: str
    metadata_chunks: int
    """The chunks that its shape has room for."""
    initialized_chunks: int
    """The chunks that exist; looked at only if the configuration `counts_initialized_chunks`."""


class ManifestPlan(Record):
    """A manifest: the arrays to hold in it, in the order of their paths."""

    set_name: str
    arrays: tuple[NodeId, ...]
    unchanged: ManifestId | None = None
    """The manifest that holds just these arrays already, none of them modified: keep it."""


def closure(
    modified: AbstractSet[NodeId],
    manifests_of: Callable[[NodeId], AbstractSet[ManifestId]],
    arrays_in: Callable[[ManifestId], AbstractSet[NodeId]],
) -> set[NodeId]:
    """Find all arrays of which some manifest must be rewritten if the modified ones are.

    Arrays that are in no manifest yet are a closure by themselves.
    """
    reached = set(modified)
    seen: set[ManifestId] = set()
    waiting = list(modified)
    while waiting:
        for manifest in manifests_of(waiting.pop()):
            if manifest not in seen:
                seen.add(manifest)
                new = arrays_in(manifest) - reached
                reached |= new
                waiting.extend(new)
    return reached


def pack(
    arrays: Sequence[ArrayFacts],
    config: EffectiveChunkManifests,
    current: Mapping[NodeId, ManifestId] = _NOTHING_PLACED,
    modified: AbstractSet[NodeId] = _NOTHING,
) -> list[ManifestPlan]:
    """Return which arrays go into which manifest; every array is in exactly one plan.

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


class _Arrivals(MutableRecord):
    """The input of a set: arrays, and manifests that need not change."""

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
        self._arrays = sorted(arrays, key=lambda entry: (entry.path, entry.node_id.raw))
        self._sets = config.sets
        positions = {entry.name: position for position, entry in enumerate(self._sets)}
        self._overflows = [
            len(self._sets) if entry.overflow_to is None else positions[entry.overflow_to]
            for entry in self._sets
        ]
        sent = send(
            [array.path for array in self._arrays],
            [array.metadata_chunks for array in self._arrays],
            [array.initialized_chunks for array in self._arrays],
            config,
        )
        self._targets = [positions[name] for name in sent.targets]
        self._sizes = sent.sizes
        present = {array.node_id for array in arrays}
        touched = {
            before for entry, before in current.items() if entry in modified or entry not in present
        }
        self._before = [current.get(array.node_id) for array in self._arrays]
        self._is_new = [
            before is None or entry.node_id in modified
            for entry, before in zip(self._arrays, self._before, strict=True)
        ]
        self._largest_first = ranks_of([-size for size in self._sizes])
        self._smallest_first = ranks_of(self._sizes)
        self._arrivals = [_Arrivals() for _ in self._sets]
        self._let_in(touched)

    def plans(self) -> list[ManifestPlan]:
        """Ask one set after the other; what a set has no room for goes on to a later one."""
        plans = []
        for position, manifest_set in enumerate(self._sets):
            for filled in self._fill(position, manifest_set):
                ids = tuple(self._arrays[member].node_id for member in sorted(filled.members))
                source = filled.source if filled.is_untouched else None
                plans.append(ManifestPlan(manifest_set.name, ids, source))
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
        chains = [self._chain(target) for target in {self._targets[member] for member in members}]
        common = set(chains[0]).intersection(*chains[1:])
        return [chain for chain in chains[0] if chain in common and self._fits(members, chain)]

    def _chain(self, position: int) -> list[int]:
        chain = []
        while position < len(self._sets):
            chain.append(position)
            position = self._overflows[position]
        return chain

    def _fits(self, members: Sequence[int], position: int) -> bool:
        manifest_set = self._sets[position]
        if manifest_set.max_manifest_size is None:
            return self._weight(members, manifest_set) <= _capacity(manifest_set)
        is_last = self._overflows[position] == len(self._sets)
        return (is_last and len(members) == 1) or self._size(
            members
        ) <= manifest_set.max_manifest_size

    def _size(self, members: Iterable[int]) -> int:
        return sum(self._sizes[member] for member in members)

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
        for bin_ in arrived.untouched:
            bin_.weight = self._weight(bin_.members, within)
        if (limit := within.cardinality) is None:
            fit = FirstFit(_capacity(within), self._is_new)
            fit.put_all(by_rank(bundles, self._largest_first))
            fit.put_all(self._loose(single, within, self._largest_first))
            return [*alone, *arrived.untouched, *fit.opened]
        # Manifests that were there before come first, whether they are touched or not.
        old = FirstFit(_capacity(within), self._is_new)
        old.put_all(by_rank(bundles, self._smallest_first))
        kept_bins, left = self._first_of([*arrived.untouched, *old.opened], limit)
        self._pass_on(position, [bin_ for bin_ in left if bin_.is_untouched])
        fit = FirstFit(_capacity(within), self._is_new, kept_bins)
        fit.put_all(bin_ for bin_ in left if not bin_.is_untouched)
        fit.put_all(self._loose(single, within, self._smallest_first))
        kept_bins, left = self._first_of(fit.all(), limit)
        self._pass_on(position, left)
        return kept_bins

    def _first_of(self, bins: list[Bin], limit: int) -> tuple[list[Bin], list[Bin]]:
        """Choose as many manifests as a set may have; give the others too.

        The first array of a manifest decides, not its size: then the choice is the same again,
        however the arrays that had to go were packed elsewhere.
        """
        ranks = self._smallest_first

        def order(bin_: Bin) -> tuple[bool, bool, int]:
            was_joined = bin_.source is not None and bin_.is_extended
            has_no_other = bin_.is_untouched and len(bin_.homes) == 1
            first = min(ranks[member] for member in bin_.members)
            return not was_joined, not has_no_other, first

        ordered = sorted(bins, key=order)
        return ordered[:limit], ordered[limit:]

    def _pass_on(self, position: int, left: Iterable[Bin]) -> None:
        for bin_ in left:
            if bin_.is_untouched and len(bin_.homes) > 1:
                homes = bin_.homes[1:]
                rest = Bin(bin_.members, 0, bin_.source, homes)
                self._arrivals[homes[0]].untouched.append(rest)
            else:
                self._arrivals[self._overflows[position]].arrays.extend(bin_.members)

    def _without_too_large(
        self, position: int, within: ManifestSet, arrived: Sequence[int]
    ) -> tuple[list[Bin], list[int]]:
        """Pass on arrays that no manifest could hold; in the last set, they have one each."""
        if (largest := within.max_manifest_size) is None:
            return [], list(arrived)
        alone = [Bin([array], 0) for array in arrived if self._sizes[array] > largest]
        if self._overflows[position] < len(self._sets):
            self._pass_on(position, alone)
            alone = []
        return alone, [array for array in arrived if self._sizes[array] <= largest]

    def _bundles(self, arrived: Sequence[int], within: ManifestSet) -> tuple[list[Bin], list[int]]:
        """Separate bundles of arrays that still fit together from arrays to pack one by one."""
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
            some = [array for array in ordered if self._is_new[array] is is_new]
            if within.arrays_per_manifest is not None:
                some = evened(some, within.arrays_per_manifest, within.cardinality)
            loose.extend(some)
        return [Bin([array], self._weight([array], within)) for array in loose]


def _capacity(within: ManifestSet) -> int:
    """Return the limit of a set, in references or in arrays."""
    limit = within.max_manifest_size or within.arrays_per_manifest
    assert limit is not None
    return limit
