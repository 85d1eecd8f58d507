"""Copies of arrays in a session: their metadata, and manifests of the copied objects."""

import base64
import hashlib
import json
import struct
import warnings
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, Final

import numpy as np
import zarr

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.paths import joined_path
from icefloe.pipeline.combining.combine import TargetArray
from icefloe.pipeline.copying.layouts import (
    ArrayLayout,
    CopyShape,
    LayoutOptions,
    Slab,
    SourceArray,
    check_dimensions,
    choose_layout,
    values_bytes,
)
from icefloe.pipeline.copying.origins import CopySource, Needs
from icefloe.pipeline.copying.transfer import ArrayCopy
from icefloe.pipeline.files import RECORDS_GROUP, is_record
from icefloe.pipeline.writing.building import ArrayPlan, MadeArray
from icefloe.pipeline.writing.dataset import find_document, get_document, make_groups
from icefloe.pipeline.writing.provenance import record_path
from icefloe.records import Record
from icefloe.transactions.session import SessionState
from icefloe.zarr_store import IcechunkStore
from icefloe.zarr_store.openings import with_rectilinear

_V2_DIMENSIONS: Final = "_ARRAY_DIMENSIONS"
_FILL_VALUE: Final = "_FillValue"
_RECORDS_PARENT: Final = RECORDS_GROUP.partition("/")[0]
_TEXT_BYTES: Final = 64
"""What a text of any length is taken for: what it really takes is known too late."""


class ArrayToCopy(Record, eq=False):
    """An array to copy, and how its copy is to be stored."""

    source: "zarr.Array[Any]"
    about: SourceArray
    layout: ArrayLayout
    needs: Needs = Needs()

    @property
    def shape(self) -> CopyShape:
        """Return the shape that planning needs."""
        about, needs = self.about, self.needs
        item_bytes = about.item_bytes + needs.value_bytes
        shards = about.item_bytes * prod(about.shards) if about.shards else 0
        largest = max(shards, needs.object_bytes)
        return CopyShape(about.shape, item_bytes, about.chunks, self.layout.objects, largest)


class GroupToCopy(Record, eq=False):
    """The content of a group that will be copied."""

    attributes: Mapping[str, Mapping[str, Any]]
    """By path of group; the empty one is the group itself."""
    arrays: tuple[ArrayToCopy, ...]

    @property
    def paths(self) -> list[str]:
        """Return the path of each array, below the group."""
        return [array.about.path for array in self.arrays]

    @property
    def shapes(self) -> list[CopyShape]:
        """Return the shapes that planning needs."""
        return [array.shape for array in self.arrays]

    def bytes_of(self, slabs: Sequence[Slab]) -> int:
        """Return how many bytes the values of some slabs take."""
        return sum(
            values_bytes(self.arrays[slab.array].about)
            * slab.objects
            // max(prod(self.arrays[slab.array].shape.grid), 1)
            for slab in slabs
        )


def find_arrays(source: CopySource, options: LayoutOptions) -> GroupToCopy:
    """Look at everything in a group, and choose the layouts of the copies."""
    return arrays_below(
        source.group(), options, holds_records=source.holds_records, needs=source.needs
    )


def arrays_below(
    root: zarr.Group,
    options: LayoutOptions,
    *,
    holds_records: bool = False,
    needs: Callable[[str], Needs] = lambda _: Needs(),
) -> GroupToCopy:
    """Look at everything below a group that is open."""
    attributes: dict[str, Mapping[str, Any]] = {"": root.attrs.asdict()}
    arrays: list[tuple[zarr.Array[Any], SourceArray]] = []
    with with_rectilinear():
        members = root.members(max_depth=None)
    for path, node in sorted(members, key=lambda member: member[0]):
        if holds_records and (is_record(path) or path == _RECORDS_PARENT):
            continue
        if isinstance(node, zarr.Array):
            arrays.append((node, described_array(path, node)))
        else:
            attributes[path] = node.attrs.asdict()
    if not arrays:
        raise InvalidInputError("there is no array to copy", ErrorKind.NOT_AN_ARRAY)
    check_dimensions((about for _, about in arrays), options)
    chosen = (
        ArrayToCopy(node, about, choose_layout(about, options), needs(about.path))
        for node, about in arrays
    )
    return GroupToCopy(attributes, tuple(chosen))


def described_array(path: str, array: "zarr.Array[Any]") -> SourceArray:
    """Return the facts about an array that determine the layout of a copy of it."""
    try:
        chunks, shards = tuple(array.chunks), array.shards
    except NotImplementedError:  # chunks have different lengths: the longest ones count
        chunks = tuple(max(lengths, default=1) for lengths in array.read_chunk_sizes)
        shards = None
    kind = array.dtype
    item_bytes = max(kind.itemsize, _TEXT_BYTES) if kind.kind in {"O", "T"} else kind.itemsize
    return SourceArray(
        path=path,
        shape=tuple(array.shape),
        dimensions=dimensions_of(array),
        chunks=tuple(max(chunk, 1) for chunk in chunks),
        shards=None if shards is None else tuple(shards),
        item_bytes=max(item_bytes, 1),
    )


def dimensions_of(array: "zarr.Array[Any]") -> tuple[str | None, ...]:
    """Name the dimensions of an array; in format 2 an attribute does."""
    metadata: Any = array.metadata
    if metadata.zarr_format == 2:
        names = array.attrs.asdict().get(_V2_DIMENSIONS)
    else:
        names = metadata.dimension_names
    if not isinstance(names, Sequence) or len(names) != array.ndim:
        return (None,) * array.ndim
    return tuple(name if isinstance(name, str) else None for name in names)


# -- the copies ------------------------------------------------------------------------------


def occupied(store: IcechunkStore, group: str, source_group: GroupToCopy) -> list[str]:
    """Name the copies in whose place there is something already."""
    paths = [joined_path(group, path) for path in source_group.paths]
    return [path for path in paths if find_document(store, f"{path}/zarr.json") is not None]


def make_copies(
    store: IcechunkStore,
    group: str,
    source_group: GroupToCopy,
    options: LayoutOptions,
    *,
    gets_record: bool = False,
) -> None:
    """Make the groups and arrays of the copies, without values; others make way."""
    if gets_record or occupied(store, group, source_group):
        # What the record names as the files of the group is something else now.
        store.delete_sync(f"{record_path(group)}/zarr.json")
    make_groups(store, group, source_group.attributes, keeps_attributes=True)
    for array in source_group.arrays:
        make_array(store, group, array, options.compressors)


def make_array(store: IcechunkStore, group: str, array: ArrayToCopy, compressors: Any) -> None:
    """Make an array without values."""
    path, source = joined_path(group, array.about.path), array.source
    metadata: Any = source.metadata
    fill = {} if metadata.fill_value is None else {"fill_value": metadata.fill_value}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of data types that Zarr finds unusual
        zarr.create_array(
            store,
            name=path,
            shape=source.shape,
            dtype=metadata.dtype,
            chunks=array.layout.chunks,
            shards=array.layout.shards,
            compressors=compressors,
            attributes=_attributes(source),
            dimension_names=list(array.about.dimensions),
            overwrite=True,
            **fill,
        )


def _attributes(source: "zarr.Array[Any]") -> dict[str, Any]:
    """Return the attributes of a copy, which is of format 3, so that xarray reads it alike.

    In format 2 xarray masks the fill value of an array; in format 3 only what an attribute says.
    """
    attributes = dict(source.attrs.asdict())
    metadata: Any = source.metadata
    if metadata.zarr_format != 2:
        return attributes
    attributes.pop(_V2_DIMENSIONS, None)
    fill = metadata.fill_value
    if fill is not None and _FILL_VALUE not in attributes:
        match source.dtype.kind:
            case "f":
                packed = struct.pack("<d", float(fill))
                attributes[_FILL_VALUE] = base64.standard_b64encode(packed).decode()
            case "i" | "u":
                attributes[_FILL_VALUE] = int(fill)
            case "b":
                attributes[_FILL_VALUE] = bool(fill)
    return attributes


def array_copies(
    store: IcechunkStore, group: str, source_group: GroupToCopy
) -> tuple[ArrayCopy, ...]:
    """Describe the copies, which were made before, for workers."""
    return tuple(
        ArrayCopy(
            array.about.path,
            get_document(store, f"{joined_path(group, array.about.path)}/zarr.json"),
            len(array.about.shape),
        )
        for array in source_group.arrays
    )


def plan_copies(
    session: SessionState, group: str, source_group: GroupToCopy, slabs: Sequence[Slab]
) -> list[ArrayPlan]:
    """Plan the manifests of all copies; those in slabs get objects."""
    by_array: dict[int, list[Slab]] = {}
    for slab in slabs:
        by_array.setdefault(slab.array, []).append(slab)
    return [
        _plan_copy(session, number, joined_path(group, path), by_array.get(number, ()))
        for number, path in enumerate(source_group.paths)
    ]


def _plan_copy(session: SessionState, number: int, path: str, slabs: Sequence[Slab]) -> ArrayPlan:
    made = MadeArray.at(session, path)
    whole = [(0, cells) for cells in made.grid]
    boxes = [[*slab.box, *whole[len(slab.box) :]][: len(whole)] for slab in slabs]
    spans = np.array(boxes, np.int64).reshape(len(boxes), len(made.grid), 2)
    return made.plan(number, TargetArray(path, {}, (), is_native=True, families=(0,)), spans)


def digest_of(
    source: CopySource,
    group: GroupToCopy,
    waves: Sequence[Sequence[Slab]],
    options: LayoutOptions,
) -> str:
    """Sum up what is copied and how, to recognise a job that was broken off."""
    arrays = [
        [array.about.path, array.about.shape, array.layout.chunks, array.layout.shards]
        for array in group.arrays
    ]
    ends = [[[slab.array, slab.first, slab.end] for slab in wave] for wave in waves]
    text = json.dumps([source.identity, arrays, ends, repr(options.compressors)])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
