"""Which set the rules send an array to, and what the packing makes of it."""

from collections import defaultdict

import pytest

from icefloe.config import ChunkManifestsConfig, ManifestRule, ManifestSet
from icefloe.config.manifest_sets import effective_chunk_manifests
from icefloe.errors import InvalidInputError
from icefloe.format.ids import ManifestId, NodeId
from icefloe.manifests.packer import ArrayFacts, closure, pack, send
from icefloe.manifests.partition import matches

A, B, C = (NodeId(bytes([number]) * 8) for number in range(3))
M1, M2, M3 = (ManifestId(bytes([number]) * 12) for number in range(3))
COORDINATES = ChunkManifestsConfig(
    [ManifestSet("coordinates", max_manifest_size=50_000)],
    [ManifestRule("coordinates", metadata_chunks=(0, 5000))],
)


def array(name: str, chunks: int, initialized: int | None = None) -> ArrayFacts:
    """Make an array whose id is its name."""
    initialized = chunks if initialized is None else initialized
    return ArrayFacts(NodeId(name.encode().ljust(8)), f"/{name}", chunks, initialized)


def layout(
    arrays: list[ArrayFacts], config: ChunkManifestsConfig, **past: object
) -> list[tuple[str, str]]:
    """Pack, and name what is in each manifest."""
    plans = pack(arrays, effective_chunk_manifests(config), **past)  # type: ignore[arg-type]
    return [
        (plan.set_name, " ".join(each.raw.decode().strip() for each in plan.arrays))
        for plan in plans
    ]


def test_the_first_rule_that_holds_counts() -> None:
    config = ChunkManifestsConfig(
        [ManifestSet("x", max_manifest_size=1), ManifestSet("y", max_manifest_size=1)],
        [
            ManifestRule("x", path=".*/time", metadata_chunks=(0, 10)),
            ManifestRule("y", initialized_chunks=(5, None), metadata_chunks=(None, 20)),
        ],
    )
    paths = ["/time", "/a/time", "/time_bounds", "/time", "/z"]
    sent = send(paths, [9, 10, 3, 10, 20], [9, 4, 3, 5, 7], effective_chunk_manifests(config))
    assert sent.targets == ["x", "default", "default", "y", "default"]
    # by how many exist, if that is why the array was sent there
    assert sent.sizes == [9, 10, 3, 5, 20]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (".*", [True, True, True]),
        (".*/time", [True, False, False]),
        ("/a|/time", [True, False, False]),
        ("(?i)/TIME.*", [True, True, False]),
        ("/t.*s", [False, True, True]),
    ],
)
def test_patterns_match_from_end_to_end(pattern: str, expected: list[bool]) -> None:
    assert matches(pattern, ["/time", "/time_bounds", "/t\ns"]) == expected


def test_patterns_take_linear_time() -> None:
    # Backtracking would not come to an end in the age of the universe.
    assert matches("(a*)*(a*)*(a*)*b", ["a" * 5000]) == [False]


def test_a_pattern_that_cannot_be_used_is_named() -> None:
    with pytest.raises(InvalidInputError, match=r"'\(' in the chunk-manifests configuration"):
        matches("(", ["/a"])


def test_the_closure_follows_shared_manifests() -> None:
    manifests_of = defaultdict(set, {A: {M1, M2}, B: {M1, M2}, C: {M2, M3}}).__getitem__
    arrays_in = {M1: {A, B}, M2: {A, B, C}, M3: {C}}.__getitem__
    for modified in ({A}, {A, B}, {A, B, C}, {C}):
        assert closure(modified, manifests_of, arrays_in) == {A, B, C}
    assert closure(set(), manifests_of, arrays_in) == set()
    new = NodeId(b"new     ")
    assert closure({new}, manifests_of, arrays_in) == {new}


def test_small_arrays_share_a_manifest() -> None:
    arrays = [array("lat", 1), array("lon", 1), array("t", 600_000), array("u", 500_000)]
    assert layout(arrays, COORDINATES) == [
        ("coordinates", "lat lon"),
        ("default", "t"),
        ("default", "u"),
    ]


def test_what_a_set_has_no_room_for_overflows() -> None:
    config = ChunkManifestsConfig(
        [
            ManifestSet("small", max_manifest_size=10, overflow_to="second"),
            ManifestSet("second", max_manifest_size=20, cardinality=2),
            ManifestSet("default", max_manifest_size=100),
        ],
        [ManifestRule("small")],
    )
    arrays = [array(name, chunks) for name, chunks in zip("abcdefg", [6, 4, 15, 16, 15, 5, 200])]  # noqa: B905
    assert layout(arrays, config) == [
        ("small", "b f"),  # the smallest arrays that fit
        ("second", "a"),
        ("second", "c"),
        ("default", "g"),  # is larger than all limits
        ("default", "d e"),
    ]


def test_a_number_of_arrays_matches_the_largest_with_the_smallest() -> None:
    config = ChunkManifestsConfig([ManifestSet("default", arrays_per_manifest=2)])
    arrays = [array(name, chunks) for name, chunks in zip("abcde", [1, 2, 3, 4, 5])]  # noqa: B905
    assert layout(arrays, config) == [
        ("default", "a e"),
        ("default", "b d"),
        ("default", "c"),
    ]


def test_an_array_that_grew_leaves_the_others_together() -> None:
    config = ChunkManifestsConfig(
        [ManifestSet("coords", max_manifest_size=10)], [ManifestRule("coords")]
    )
    before = {array(name, 1).node_id: M1 for name in "abc"}
    arrays = [array("a", 3), array("b", 3), array("c", 5)]
    grown = {array("c", 1).node_id}
    assert layout(arrays, config, current=before, modified=grown) == [
        ("coords", "a b"),
        ("default", "c"),
    ]


def test_a_new_array_joins_the_manifest_of_a_limited_set() -> None:
    config = effective_chunk_manifests(COORDINATES)
    lat, lon, data, more = (
        array("lat", 1),
        array("lon", 1),
        array("data", 9000),
        array("more", 9000),
    )
    before = {lat.node_id: M1, data.node_id: M2}
    plans = pack([lat, lon, data, more], config, before)
    assert [(plan.arrays, plan.unchanged) for plan in plans] == [
        ((lat.node_id, lon.node_id), None),
        ((data.node_id,), M2),  # is not limited, so that the new array has a manifest of its own
        ((more.node_id,), None),
    ]


def test_a_manifest_that_lost_an_array_is_written_again() -> None:
    config = effective_chunk_manifests(COORDINATES)
    lat, lon = array("lat", 1), array("lon", 1)
    before = {lat.node_id: M1, lon.node_id: M1}
    (plan,) = pack([lat], config, before)
    assert (plan.arrays, plan.unchanged) == ((lat.node_id,), None)


def test_what_is_written_again_joins_its_set_if_there_is_room() -> None:
    """As the arrays of a repository whose manifests have one array each."""
    config = effective_chunk_manifests(COORDINATES)
    lat, lon = array("lat", 1), array("lon", 1)
    before = {lat.node_id: M1, lon.node_id: M2}
    (plan,) = pack([lat, lon], config, before, {lon.node_id})
    assert (plan.arrays, plan.unchanged) == ((lat.node_id, lon.node_id), None)
