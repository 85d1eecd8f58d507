"""Values of arrays for other programs: a position, an area or a cube, with its coordinates."""

import struct
from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any, Final

import numpy as np
import zarr
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, FormatError, IcefloeError, InvalidInputError
from icefloe.format.nodes import ArrayNode, GroupNode, Node
from icefloe.format.paths import child_path, node_name
from icefloe.records import Record
from icefloe.web import decoding
from icefloe.web.nodes import attributes_of
from icefloe.web.pictures import MOST_BYTES, Dimension, coordinate_of, dimensions_of, open_array
from icefloe.web.selection import (
    AxisSelection,
    Query,
    ReadCost,
    TooLargeError,
    check_cost,
    narrower,
    read_cost,
    reading_grid,
    select,
    size_of,
)
from icefloe.web.versions import Version

_TEXT_BYTES: Final = 64
"""What a text counts for, of which no metadata say how long it is."""
_KINDS: Final = "biufmMUSTO"
"""Kinds of numpy types that can be answered: no complex numbers, no raw bytes."""
_MOST_VARIABLES: Final = 64
_DAMAGES: Final = (
    ArithmeticError,
    AssertionError,
    LookupError,
    MemoryError,
    NotImplementedError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    struct.error,
)
"""The errors that codecs raise for bytes that they cannot decode."""


class Variable(Record, eq=False):
    """The values of an array that a request asked for."""

    name: str
    dimensions: tuple[str, ...]
    """Those that the values have; a position is none."""
    values: NDArray[Any]
    attributes: Mapping[str, Any]

    @property
    def units(self) -> str:
        """The units of the values; none for times that were decoded."""
        units = self.attributes.get("units")
        return units if isinstance(units, str) and self.values.dtype.kind in "iuf" else ""


class Dataset(Record, eq=False):
    """Variables on common dimensions, and the coordinates of these."""

    dimensions: Mapping[str, AxisSelection]
    coordinates: Mapping[str, Variable]
    """For each dimension, also for those of positions; dimensions without values have steps."""
    variables: tuple[Variable, ...]

    @property
    def shape(self) -> dict[str, int]:
        """The lengths of the dimensions that were not selected at a position."""
        return {
            name: len(axis.steps) for name, axis in self.dimensions.items() if not axis.is_position
        }

    @property
    def columns(self) -> list[Variable]:
        """Coordinates, then variables, so that no name occurs twice.

        A coordinate that was asked for is no further variable. A variable with the name of one of
        its several dimensions takes the place of the numbers of steps.
        """
        asked = {variable.name: variable for variable in self.variables}
        coordinates = {
            name: coordinate
            for name, coordinate in self.coordinates.items()
            if name not in asked or asked[name].dimensions == coordinate.dimensions
        }
        return [*coordinates.values(), *(v for v in self.variables if v.name not in coordinates)]


class _Planned(Record, eq=False):
    """An array that is going to be read, and the steps of it."""

    node: ArrayNode
    array: zarr.Array[Any]
    selection: tuple[AxisSelection, ...]

    @property
    def cost(self) -> ReadCost:
        return read_cost(reading_grid(self.node, self.array), self.selection, self.item_bytes)

    @property
    def item_bytes(self) -> int:
        dtype = self.array.dtype
        return _TEXT_BYTES if dtype.kind in "TO" else dtype.itemsize


def find_variables(version: Version, node: Node, names: str | None) -> list[ArrayNode]:
    """Return an array, or the arrays of a group that a request names."""
    if isinstance(node, ArrayNode):
        if names:
            raise _wrong(f"{node.path} is an array: `variables` is for groups")
        return [node]
    chosen = [*dict.fromkeys(name.strip() for name in (names or "").split(",") if name.strip())]
    if not chosen:
        raise _wrong(f"{node.path} is a group: name arrays of it, with variables=first,second")
    if len(chosen) > _MOST_VARIABLES:
        raise TooLargeError(f"a request has {_MOST_VARIABLES} variables at most")
    return [_array_of_group(version, node, name) for name in chosen]


def _array_of_group(version: Version, group: GroupNode, name: str) -> ArrayNode:
    path = child_path(group.path, name)
    node = version.state.tree.find(path) if "/" not in name else None
    if not isinstance(node, ArrayNode):
        raise _wrong(f"there is no array {name!r} in {group.path}")
    return node


def axes_of(version: Version, nodes: Sequence[ArrayNode]) -> dict[str, Dimension]:
    """Return the dimensions of arrays by name; raise an error if they contradict each other."""
    axes: dict[str, Dimension] = {}
    for node in nodes:
        dimensions = dimensions_of(version, node, with_itself=True)
        names = [dimension.name for dimension in dimensions]
        if len(set(names)) < len(names):
            raise _wrong(f"{node.path} has two dimensions of one name: read it with Zarr")
        for dimension in dimensions:
            axis = axes.setdefault(dimension.name, dimension)
            if axis.length != dimension.length:
                lengths = f"{axis.length} and {dimension.length}"
                problem = f"{dimension.name} has {lengths} steps in these variables"
                raise _wrong(f"{problem}: ask for one of them after the other")
    return axes


def read_dataset(
    version: Version, nodes: Sequence[ArrayNode], query: Query, *, decode: bool = True
) -> Dataset:
    """Read arrays; raise `TooLargeError` before reading anything if that is too much."""
    axes = axes_of(version, nodes)
    selection = {axis.name: axis for axis in select([*axes.values()], query)}
    planned = [_plan(version, node, selection) for node in nodes]
    coordinates: dict[str, _Planned | None] = {}
    for name, axis in axes.items():
        path = next(node.path for node in nodes if name in _names(version, node))
        coordinate = coordinate_of(version, path, name, axis.length)
        coordinates[name] = None if coordinate is None else _plan(version, coordinate, selection)
    everything = [*planned, *(plan for plan in coordinates.values() if plan is not None)]
    check_cost((plan.cost for plan in everything), [*selection.values()])
    _check_answer(everything, decode=decode)
    return Dataset(
        selection,
        {
            name: _steps(selection[name]) if plan is None else _read(plan, decode=decode)
            for name, plan in coordinates.items()
        },
        tuple(_read(plan, decode=decode) for plan in planned),
    )


def _names(version: Version, node: ArrayNode) -> list[str]:
    return [dimension.name for dimension in dimensions_of(version, node)]


def _plan(version: Version, node: ArrayNode, selection: Mapping[str, AxisSelection]) -> _Planned:
    array = open_checked(version, node)
    return _Planned(node, array, tuple(selection[name] for name in _names(version, node)))


def open_checked(version: Version, node: ArrayNode) -> zarr.Array[Any]:
    """Open an array with Zarr; raise an error if Zarr cannot, or if its values have no text."""
    try:
        array = open_array(version, node.path)
    except IcefloeError:
        raise
    except _DAMAGES as error:
        raise _undecodable(node, error) from error
    if array.dtype.kind not in _KINDS:
        raise _wrong(f"values of the type {array.dtype} have no text: read {node.path} with Zarr")
    return array


def _check_answer(planned: Sequence[_Planned], *, decode: bool) -> None:
    size = 0
    for plan in planned:
        item_bytes = plan.item_bytes
        if decode and plan.array.dtype.kind in "iuf":
            dtype = decoding.decoded_type(plan.array.dtype, attributes_of(plan.node))
            item_bytes = _TEXT_BYTES if dtype.kind == "O" else dtype.itemsize
        size += item_bytes * size_of(plan.selection)
    if size > MOST_BYTES:
        widest = max(planned, key=lambda plan: size_of(plan.selection))
        raise TooLargeError(
            f"the values have {ceil(size / 2**20):,} MiB, and an answer has {MOST_BYTES >> 20} MiB"
            f" at most: {narrower(widest.selection)}"
        )


def _steps(axis: AxisSelection) -> Variable:
    values = axis.steps[0] if axis.is_position else axis.steps
    return Variable(axis.name, () if axis.is_position else (axis.name,), np.asarray(values), {})


def _read(plan: _Planned, *, decode: bool) -> Variable:
    attributes = attributes_of(plan.node)
    raw = read_values(plan.node, plan.array, plan.selection)
    dimensions = tuple(axis.name for axis in plan.selection if not axis.is_position)
    if raw.dtype.kind in "TO" and sum(len(str(text)) for text in raw.flat) > MOST_BYTES:
        raise TooLargeError(
            f"the texts have more than {MOST_BYTES >> 20} MiB: {narrower(plan.selection)}"
        )
    values = decoding.decode(raw, attributes) if decode else raw
    return Variable(node_name(plan.node.path), dimensions, values, attributes)


def read_values(
    node: ArrayNode, array: zarr.Array[Any], selection: Sequence[AxisSelection]
) -> NDArray[Any]:
    """Read the steps of an array, in the byte order of this machine."""
    keys = tuple(_key(axis) for axis in selection)
    is_basic = all(isinstance(key, int | slice) for key in keys)
    try:
        values = np.asarray(array[keys] if is_basic else array.oindex[keys])
    except IcefloeError:
        raise
    except _DAMAGES as error:
        raise _undecodable(node, error) from error
    return values.astype(values.dtype.newbyteorder("="), copy=False)


def _key(axis: AxisSelection) -> int | slice | NDArray[np.int64]:
    """Return what Zarr is asked for: it reads all chunks of a slice, whatever the stride."""
    if axis.is_position:
        return int(axis.steps[0])
    if not len(axis.steps):
        return slice(0, 0)
    if axis.is_contiguous:
        return slice(int(axis.steps[0]), int(axis.steps[-1]) + 1)
    return axis.steps


def _undecodable(node: ArrayNode, error: Exception) -> FormatError:
    problem = f"the values of {node.path} cannot be decoded: {type(error).__name__}: {error}"
    return FormatError(problem, ErrorKind.INVALID_ARRAY_METADATA)


def _wrong(problem: str) -> InvalidInputError:
    return InvalidInputError(problem, ErrorKind.INVALID_REQUEST)
