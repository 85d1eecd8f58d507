import pytest

from icefloe.config import (
    ManifestSplitCondition as Arrays,
)
from icefloe.config import (
    ManifestSplitDimCondition as Dims,
)
from icefloe.config.effective import EffectiveSplitSizes
from icefloe.engine.splitting import split_edges
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.ids import NodeId
from icefloe.format.node_table import ArrayInfo, Node

ANY = Arrays.AnyArray()


def _edges(rules: EffectiveSplitSizes, *, path: str = "/g/t2m") -> list[list[int]]:
    info = ArrayInfo((70, 30, 9), (7, 3, 9), ("time", "lat", None))
    found = split_edges(Node(NodeId.random(), path, b"", info), rules)
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


def test_hostile_patterns_take_linear_time() -> None:
    rules: EffectiveSplitSizes = ((Arrays.path_matches("(a+)+$"), ((Dims.Axis(0), 5),)),)
    assert _edges(rules, path="/" + "a" * 50_000 + "!") == [[], [], []]
