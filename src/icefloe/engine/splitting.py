"""How the references of an array are divided over manifests, as the configuration says."""

from collections.abc import Sequence
from functools import lru_cache

from icefloe.config.conditions import (
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    SplitAnd,
    SplitAnyArray,
    SplitAnyDimension,
    SplitAxis,
    SplitDimensionName,
    SplitNameMatches,
    SplitOr,
    SplitPathMatches,
)
from icefloe.config.effective import EffectiveSplitSizes
from icefloe.engine.paths import node_name
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.arrow import pa, pc
from icefloe.format.columns import BytesColumn
from icefloe.format.node_table import Node

type Edges = tuple[range, ...]
"""For each dimension, where one manifest ends and the next begins."""


def split_edges(node: Node, rules: EffectiveSplitSizes) -> Edges:
    """Say where the manifests of an array are cut.

    All rules whose condition holds for the array apply, in their order; along each dimension
    the first size that fits it counts.
    """
    array = node.array
    assert array is not None
    names = array.dimension_names or (None,) * len(array.num_chunks)
    sizes = [pair for condition, sizes in rules if _holds(condition, node.path) for pair in sizes]
    return tuple(
        _edges(count, _size(axis, name, sizes))
        for axis, (count, name) in enumerate(zip(array.num_chunks, names, strict=True))
    )


def _edges(count: int, size: int | None) -> range:
    return range(size, count, size) if size else range(0)


def _size(
    axis: int, name: str | None, sizes: Sequence[tuple[ManifestSplitDimCondition, int]]
) -> int | None:
    for condition, size in sizes:
        match condition:
            case SplitAnyDimension():
                return size
            case SplitAxis(wanted) if wanted == axis:
                return size
            case SplitDimensionName(regex) if name is not None and _found(regex, name):
                return size
    return None


def _holds(condition: ManifestSplitCondition, path: str) -> bool:
    match condition:
        case SplitAnyArray():
            return True
        case SplitPathMatches(regex):
            return _found(regex, path)
        case SplitNameMatches(regex):
            return _found(regex, node_name(path))
        case SplitOr(conditions):
            return any(_holds(each, path) for each in conditions)
        case SplitAnd(conditions):
            return all(_holds(each, path) for each in conditions)
        case _:
            raise InvalidInputError(
                f"{condition!r} is no condition for splitting manifests", ErrorKind.INVALID_CONFIG
            )


@lru_cache(maxsize=4096)
def _found(regex: str, text: str) -> bool:
    """Search text for a pattern.

    Arrow's engine takes time linear in the text, whatever the pattern: the configuration of a
    repository may have been written by anybody.
    """
    if regex == ".*":
        return True
    try:
        found = pc.match_substring_regex(BytesColumn.from_strings([text]).to_arrow_strings(), regex)
    except pa.ArrowInvalid as error:
        raise InvalidInputError(
            f"{regex!r} in the manifest configuration is no regular expression: {error}",
            ErrorKind.INVALID_CONFIG,
        ) from error
    return bool(found[0].as_py())
