"""Packing of arrays into manifests: complete, within limits, few manifests, no churn."""

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from itertools import count
from random import Random

from hypothesis import assume, example, given
from hypothesis import strategies as st

from icefloe.config import ChunkManifestsConfig, ManifestRule, ManifestSet
from icefloe.config.manifest_sets import EffectiveChunkManifests, effective_chunk_manifests
from icefloe.format.ids import ManifestId, NodeId
from icefloe.manifests.packer import ArrayFacts, ManifestPlan, closure, pack, send
from icefloe.records import replace

LARGEST = 24
"""Of array sizes; limits of manifests are of the same order."""


def node(number: int) -> NodeId:
    return NodeId(number.to_bytes(8))


def manifest(number: int) -> ManifestId:
    return ManifestId(number.to_bytes(12))


def some_array(number: int, chunks: int, initialized: int | None = None) -> ArrayFacts:
    path = f"/{'even' if number % 2 == 0 else 'odd'}/{number:04}"
    return ArrayFacts(node(number), path, chunks, chunks if initialized is None else initialized)


sizes = st.integers(0, LARGEST)
arrays = st.lists(sizes, max_size=14).map(
    lambda chunks: [some_array(number, each) for number, each in enumerate(chunks)]
)
sparse_arrays = st.lists(st.tuples(sizes, sizes), max_size=14).map(
    lambda pairs: [some_array(number, max(pair), min(pair)) for number, pair in enumerate(pairs)]
)


@st.composite
def sets(draw: st.DrawFn, name: str, later: Sequence[str]) -> ManifestSet:
    by_size = draw(st.booleans())
    is_default = name == "default"
    return ManifestSet(
        name,
        max_manifest_size=draw(st.integers(1, LARGEST)) if by_size else None,
        arrays_per_manifest=None if by_size else draw(st.integers(1, 4)),
        overflow_to=None if is_default else draw(st.sampled_from([*later, "default", None])),
        cardinality=None if is_default else draw(st.sampled_from([1, 2, 3, None])),
    )


ranges = st.none() | st.tuples(
    st.none() | st.integers(0, LARGEST // 2), st.none() | st.integers(LARGEST // 2 + 1, LARGEST)
)


@st.composite
def configs(draw: st.DrawFn) -> EffectiveChunkManifests:
    names = ["a", "b", "c"][: draw(st.integers(0, 3))]
    made = [draw(sets(name, names[position + 1 :])) for position, name in enumerate(names)]
    if draw(st.booleans()):
        made.append(draw(sets("default", [])))
    rules = [
        ManifestRule(
            draw(st.sampled_from([*names, "default"])),
            path=draw(st.sampled_from([None, ".*/even/.*", "/odd/.*", ".*"])),
            metadata_chunks=draw(ranges),
            initialized_chunks=draw(ranges),
        )
        for _ in range(draw(st.integers(0, 4)))
    ]
    rules += [ManifestRule(name) for name in names]  # so that each set can be reached
    return effective_chunk_manifests(ChunkManifestsConfig(draw(st.permutations(made)), rules))


def placement(plans: Sequence[ManifestPlan], *, first: int = 0) -> dict[NodeId, ManifestId]:
    """Put plans into practice, those to be kept as well."""
    ids = map(manifest, count(first))
    return {
        each: kept
        for plan in plans
        for kept in [plan.unchanged or next(ids)]
        for each in plan.arrays
    }


def groups(plans: Sequence[ManifestPlan]) -> set[frozenset[NodeId]]:
    return {frozenset(plan.arrays) for plan in plans}


def size_of(facts: Sequence[ArrayFacts], config: EffectiveChunkManifests) -> dict[NodeId, int]:
    sent = send(
        [each.path for each in facts],
        [each.metadata_chunks for each in facts],
        [each.initialized_chunks for each in facts],
        config,
    )
    return {each.node_id: size for each, size in zip(facts, sent.sizes, strict=True)}


def assert_sound(
    plans: Sequence[ManifestPlan], facts: Sequence[ArrayFacts], config: EffectiveChunkManifests
) -> None:
    """Check that all arrays are placed once, and that no set is over its limits."""
    placed = Counter(each for plan in plans for each in plan.arrays)
    assert placed == Counter(each.node_id for each in facts)
    assert all(plan.arrays for plan in plans)
    sizes = size_of(facts, config)
    references = {each.node_id: each.initialized_chunks for each in facts}
    by_name = {each.name: each for each in config.sets}
    per_set = Counter(plan.set_name for plan in plans)
    for name, number in per_set.items():
        assert number <= (by_name[name].cardinality or len(plans))
    for plan in plans:
        limits = by_name[plan.set_name]
        if limits.arrays_per_manifest is not None:
            assert len(plan.arrays) <= limits.arrays_per_manifest
        elif not (plan.set_name == "default" and len(plan.arrays) == 1):
            assert limits.max_manifest_size is not None
            total = sum(sizes[each] for each in plan.arrays)
            assert sum(references[each] for each in plan.arrays) <= total
            assert total <= limits.max_manifest_size


@given(sparse_arrays, configs(), st.data())
def test_each_array_is_placed_once_within_the_limits(
    facts: list[ArrayFacts], config: EffectiveChunkManifests, data: st.DataObject
) -> None:
    assert_sound(pack(facts, config), facts, config)
    # whatever was there before, and whatever was modified
    ids = st.sampled_from([each.node_id for each in facts] or [node(0)])
    gone = node(99)
    before = data.draw(st.dictionaries(ids | st.just(gone), st.integers(0, 4).map(manifest)))
    modified = data.draw(st.frozensets(ids | st.just(gone)))
    plans = pack(facts, config, before, modified)
    assert_sound(plans, facts, config)
    for plan in plans:
        if plan.unchanged is not None:
            assert {before[each] for each in plan.arrays} == {plan.unchanged}
            assert set(plan.arrays) == {
                each for each, held in before.items() if held == plan.unchanged
            }
            assert modified.isdisjoint(plan.arrays)


@given(sparse_arrays, configs(), st.randoms())
def test_the_order_of_the_input_does_not_matter(
    facts: list[ArrayFacts], config: EffectiveChunkManifests, random: Random
) -> None:
    shuffled = list(facts)
    random.shuffle(shuffled)
    assert pack(shuffled, config) == pack(facts, config)
    before = placement(pack(facts, config))
    assert pack(shuffled, config, before) == pack(facts, config, before)


@given(sparse_arrays, configs())
def test_what_is_packed_stays(facts: list[ArrayFacts], config: EffectiveChunkManifests) -> None:
    plans = pack(facts, config)
    before = placement(plans)
    again = pack(facts, config, before)
    assert groups(again) == groups(plans)
    assert all(plan.unchanged is not None for plan in again)


@given(sparse_arrays, configs(), st.data())
def test_writing_again_to_some_arrays_rewrites_their_manifests_only(
    facts: list[ArrayFacts], config: EffectiveChunkManifests, data: st.DataObject
) -> None:
    assume(facts)
    plans = pack(facts, config)
    modified = data.draw(st.frozensets(st.sampled_from([each.node_id for each in facts])))
    again = pack(facts, config, placement(plans), modified)
    assert groups(again) == groups(plans)
    for plan in again:
        assert (plan.unchanged is None) == bool(modified.intersection(plan.arrays))


def replaced(facts: Sequence[ArrayFacts], number: int, chunks: int) -> list[ArrayFacts]:
    """Resize one of the arrays."""
    return [
        replace(each, metadata_chunks=chunks, initialized_chunks=chunks)
        if each.node_id == node(number)
        else each
        for each in facts
    ]


def fits_default(
    members: Sequence[NodeId], facts: Sequence[ArrayFacts], config: EffectiveChunkManifests
) -> bool:
    """Say whether arrays find a place together, even if all other sets are full."""
    default = config.sets[-1]
    sizes = size_of(facts, config)
    total = sum(sizes[each] for each in members)
    if default.arrays_per_manifest is not None:
        return len(members) <= default.arrays_per_manifest
    return len(members) == 1 or total <= (default.max_manifest_size or 0)


@given(sparse_arrays, configs(), st.data())
def test_changes_of_some_arrays_leave_other_manifests_alone(
    facts: list[ArrayFacts], config: EffectiveChunkManifests, data: st.DataObject
) -> None:
    """Resize, create and delete arrays, commit after commit."""
    plans = pack(facts, config)
    held = placement(plans)
    for step in range(1, 4):
        resized = data.draw(st.dictionaries(st.integers(0, 15), sizes, max_size=2))
        gone = {node(number) for number in data.draw(st.frozensets(st.integers(0, 15), max_size=2))}
        known = {each.node_id for each in facts}
        for number, chunks in resized.items():
            is_known = node(number) in known
            facts = (
                replaced(facts, number, chunks)
                if is_known
                else [*facts, some_array(number, chunks)]
            )
        facts = [each for each in facts if each.node_id not in gone]
        modified = {node(number) for number in resized} | gone
        before = plans
        plans = pack(facts, config, held, modified)
        assert_sound(plans, facts, config)
        after = {each: frozenset(plan.arrays) for plan in plans for each in plan.arrays}
        for plan in before:
            if modified.isdisjoint(plan.arrays) and fits_default(plan.arrays, facts, config):
                # the arrays are together as before, perhaps with others
                assert len({after[each] for each in plan.arrays}) == 1
        added = {each for plan in plans for each in plan.arrays if each in modified}
        kept = {held[plan.arrays[0]] for plan in before if modified.isdisjoint(plan.arrays)}
        rewritten = kept - {plan.unchanged for plan in plans}
        limited = {each.name for each in config.sets if each.cardinality is not None}
        for plan in plans:  # only a modified array is a reason to open such a manifest
            if rewritten & {held.get(each) for each in plan.arrays}:
                assert added.intersection(plan.arrays)
                assert plan.set_name in limited
        held = placement(plans, first=1000 * step)


def fewest(weights: Sequence[int], capacity: int) -> int:
    """Find the least number of bins by trying everything."""
    best = len(weights)

    def place(position: int, rooms: list[int]) -> None:
        nonlocal best
        if len(rooms) >= best:
            return
        if position == len(ordered):
            best = len(rooms)
            return
        for index in {room: index for index, room in enumerate(rooms)}.values():
            if rooms[index] >= ordered[position]:
                rooms[index] -= ordered[position]
                place(position + 1, rooms)
                rooms[index] += ordered[position]
        place(position + 1, [*rooms, capacity - ordered[position]])

    ordered = sorted(weights, reverse=True)
    place(0, [])
    return best


small_sizes = st.lists(st.integers(1, 20), min_size=1, max_size=9)


def one_set(capacity: int) -> EffectiveChunkManifests:
    default = ManifestSet("default", max_manifest_size=capacity)
    return effective_chunk_manifests(ChunkManifestsConfig([default]))


def test_the_fewest_bins_are_counted_right() -> None:
    assert fewest([5, 5, 5, 5, 10, 10], 20) == 2
    assert fewest([11, 11, 11], 20) == 3
    assert fewest([7, 7, 6, 6, 7, 7], 20) == 2


@example([6, 6, 4, 4, 3, 3, 2, 2], 10)
@given(small_sizes, st.integers(20, 30))
def test_a_new_layout_has_few_manifests(chunks: list[int], capacity: int) -> None:
    facts = [some_array(number, each) for number, each in enumerate(chunks)]
    number = len(pack(facts, one_set(capacity)))
    assert number <= Fraction(11, 9) * fewest(chunks, capacity) + Fraction(6, 9)


@given(small_sizes, st.integers(20, 30), st.data())
def test_a_layout_with_a_past_has_less_than_twice_the_manifests(
    chunks: list[int], capacity: int, data: st.DataObject
) -> None:
    facts = [some_array(number, each) for number, each in enumerate(chunks)]
    ids = [each.node_id for each in facts]
    where = st.none() | st.integers(0, 6).map(manifest)
    before = {each: held for each in ids if (held := data.draw(where)) is not None}
    # each manifest is touched: others are not for packing to improve
    modified = {next(each for each in ids if before.get(each) == one) for one in before.values()}
    number = len(pack(facts, one_set(capacity), before, modified))
    assert number <= 2 * fewest(chunks, capacity) - 1


@given(small_sizes, st.integers(1, 4))
def test_a_number_of_arrays_fills_all_manifests_but_one(chunks: list[int], each: int) -> None:
    facts = [some_array(number, size) for number, size in enumerate(chunks)]
    default = ManifestSet("default", arrays_per_manifest=each)
    plans = pack(facts, effective_chunk_manifests(ChunkManifestsConfig([default])))
    assert len(plans) == -(-len(facts) // each)
    assert sum(len(plan.arrays) != each for plan in plans) <= 1


@given(
    st.frozensets(st.integers(0, 9)),
    st.lists(st.frozensets(st.integers(0, 9), min_size=1), max_size=6),
)
def test_the_closure_is_the_least_set_that_no_manifest_leaves(
    modified: frozenset[int], held: list[frozenset[int]]
) -> None:
    manifests_of = {
        node(each): frozenset(manifest(n) for n, inside in enumerate(held) if each in inside)
        for each in range(10)
    }
    arrays_in = {manifest(n): frozenset(map(node, inside)) for n, inside in enumerate(held)}
    expected = set(modified)
    for _ in held:
        expected = expected.union(*(inside for inside in held if not expected.isdisjoint(inside)))
    found = closure(frozenset(map(node, modified)), manifests_of.__getitem__, arrays_in.__getitem__)
    assert found == set(map(node, expected))
