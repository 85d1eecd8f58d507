import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.config import (
    ManifestSplitCondition as Arrays,
)
from icefloe.config import (
    ManifestSplitDimCondition as Dims,
)
from icefloe.config.conditions import COORDINATE_NAME
from icefloe.config.effective import EffectiveSplitSizes
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.ids import NodeId
from icefloe.format.nodes import ArrayInfo, ArrayNode
from icefloe.manifests.partition import (
    GridLayout,
    HalvingLayout,
    append_order,
    is_found,
    layout_of,
    matches,
    split_edges,
)

ANY = Arrays.AnyArray()


def _edges(rules: EffectiveSplitSizes, *, path: str = "/g/t2m") -> list[list[int]]:
    info = ArrayInfo((70, 30, 9), (7, 3, 9), ("time", "lat", None))
    found = split_edges(ArrayNode(NodeId.random(), path, b"", info), rules)
    return [list(cuts) for cuts in found]


def test_without_a_rule_there_is_one_manifest() -> None:
    assert _edges(()) == [[], [], []]
    assert _edges(((ANY, ((Dims.Any(), 2**32 - 1),)),)) == [[], [], []]


def test_cuts_fall_on_multiples_of_the_size() -> None:
    assert _edges(((ANY, ((Dims.Any(), 3),)),)) == [[3, 6], [], [3, 6]]


def test_the_first_fitting_size_counts_for_a_dimension() -> None:
    sizes = ((Dims.Axis(0), 5), (Dims.DimensionName("^l"), 2), (Dims.Any(), 4))
    assert _edges(((ANY, sizes),)) == [[5], [2], [4, 8]]


def test_all_matching_rules_apply_in_their_order() -> None:
    rules: EffectiveSplitSizes = (
        (Arrays.name_matches("^t"), ((Dims.Axis(0), 5),)),
        (Arrays.path_matches("^/other"), ((Dims.Axis(2), 1),)),
        (ANY, ((Dims.Any(), 6),)),
    )
    assert _edges(rules) == [[5], [], [6]]


def test_conditions_combine() -> None:
    both = Arrays.and_conditions([Arrays.name_matches("2m$"), Arrays.path_matches("^/g")])
    either = Arrays.or_conditions([Arrays.name_matches("nothing"), both])
    rules: EffectiveSplitSizes = ((either, ((Dims.Axis(0), 5),)),)
    assert _edges(rules) == [[5], [], []]
    assert _edges(rules, path="/h/t2m") == [[], [], []]


def test_a_pattern_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="no regular expression") as caught:
        _edges(((Arrays.name_matches("("), ((Dims.Any(), 3),)),))
    assert caught.value.kind == ErrorKind.INVALID_CONFIG


names = st.text("tTiIme_l/\nxé", max_size=6)


@given(st.lists(names, max_size=4), names)
def test_plain_patterns_match_as_all_others_do(texts: list[str], ending: str) -> None:
    for pattern in (f".*{ending}", f".*/{ending}"):
        assert matches(pattern, texts) == matches(f"(?:{pattern})", texts)
    for text in texts:
        found = is_found(COORDINATE_NAME, text)
        assert found == is_found(f"(?:{COORDINATE_NAME})", text)


def test_hostile_patterns_take_linear_time() -> None:
    rules: EffectiveSplitSizes = ((Arrays.path_matches("(a+)+$"), ((Dims.Axis(0), 5),)),)
    assert _edges(rules, path="/" + "a" * 50_000 + "!") == [[], [], []]


@pytest.mark.parametrize(
    ("names", "first"),
    [
        (["x", "y"], 0),
        (["lat", "lon", "time"], 2),
        (["y", "valid_time", "time"], 1),
        ([None, "T"], 1),
        (["timeless", "Date"], 1),
        ([None, None], 0),
    ],
)
def test_arrays_grow_along_time_or_else_the_first_dimension(
    names: list[str | None], first: int
) -> None:
    order = append_order(names)
    assert order[0] == first
    assert sorted(order) == list(range(len(names)))
    assert list(order[1:]) == sorted(order[1:])


def test_rules_are_for_the_arrays_that_they_name() -> None:
    info = ArrayInfo((70, 30), (7, 3), ("x", "time"))
    node = ArrayNode(NodeId.random(), "/g/t2m", b"", info)
    by_default = HalvingLayout((1, 0))
    assert layout_of(node, None) == by_default
    assert layout_of(node, ((Arrays.path_matches("^/h"), ((Dims.Any(), 2),)),)) == by_default
    unsplit = layout_of(node, ((ANY, ()),))
    assert unsplit == GridLayout((range(0), range(0)))
    assert layout_of(node, ((ANY, ((Dims.Axis(1), 2),)),)) == GridLayout((range(0), range(2, 3, 2)))
