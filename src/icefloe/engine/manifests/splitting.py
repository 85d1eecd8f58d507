"""How the references of an array are divided over manifests: as configured, or by default."""

import re
from collections.abc import Sequence
from typing import Final

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
from icefloe.engine.manifests.partition import Edges, GridLayout, HalvingLayout, Layout
from icefloe.engine.manifests.patterns import is_found
from icefloe.engine.paths import node_name
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.node_table import Node

_TIME_NAME: Final = re.compile(r"(?i)(t|datetime|(.+_)?(time|date))")
"""Dimensions with such names are those that data sets grow along, wherever they stand."""


def layout_of(node: Node, rules: EffectiveSplitSizes | None) -> Layout:
    """Choose how an array is cut: by the rules that are for it, or by default if there is none.

    A rule that says not to split an array is one, too; `None` says that no rules were ever set.
    """
    array = node.array
    assert array is not None
    if rules is not None and any(_holds(condition, node.path) for condition, _ in rules):
        return GridLayout(split_edges(node, rules))
    names = array.dimension_names or (None,) * len(array.num_chunks)
    return HalvingLayout(append_order(names))


def append_order(names: Sequence[str | None]) -> tuple[int, ...]:
    """Put the dimension that an array grows along before the others.

    It is the first with the name of a time, or else the first of all.

    >>> append_order(["lat", "lon", "time"])
    (2, 0, 1)
    """
    times = [axis for axis, name in enumerate(names) if name and _TIME_NAME.fullmatch(name)]
    first = times[:1]
    return (*first, *(axis for axis in range(len(names)) if axis not in first))


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
            case SplitDimensionName(regex) if name is not None and is_found(regex, name):
                return size
    return None


def _holds(condition: ManifestSplitCondition, path: str) -> bool:
    match condition:
        case SplitAnyArray():
            return True
        case SplitPathMatches(regex):
            return is_found(regex, path)
        case SplitNameMatches(regex):
            return is_found(regex, node_name(path))
        case SplitOr(conditions):
            return any(_holds(each, path) for each in conditions)
        case SplitAnd(conditions):
            return all(_holds(each, path) for each in conditions)
        case _:
            raise InvalidInputError(
                f"{condition!r} is no condition for splitting manifests", ErrorKind.INVALID_CONFIG
            )
