"""The arrays of a group to their copies in a session: all metadata, and no values."""

import base64
import json
import struct
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import zarr
from zarr.core.buffer import default_buffer_prototype

from icefloe.engine.paths import joined_path
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.pipeline.copying.layouts import (
    ArrayLayout,
    LayoutOptions,
    SourceArray,
    check_dimensions,
    choose_layout,
)
from icefloe.pipeline.copying.origins import CopySource
from icefloe.pipeline.copying.regions import CopyShape
from icefloe.pipeline.holdings.records import is_record, record_path
from icefloe.zarr_store import IcechunkStore

_V2_DIMENSIONS: Final = "_ARRAY_DIMENSIONS"
_FILL_VALUE: Final = "_FillValue"
_TEXT_BYTES: Final = 64
"""What a text of any length is taken for: what it really takes is known too late."""


@dataclass(frozen=True, slots=True, eq=False)
class FoundArray:
    """An array to copy, and how its copy is to be stored."""

    source: "zarr.Array[Any]"
    about: SourceArray
    layout: ArrayLayout

    @property
    def shape(self) -> CopyShape:
        """Give what counts for planning."""
        about = self.about
        shards = about.item_bytes * prod(about.shards) if about.shards else 0
        return CopyShape(about.shape, about.item_bytes, about.chunks, self.layout.objects, shards)


@dataclass(frozen=True, slots=True, eq=False)
class FoundGroup:
    """Everything in a group that is to be copied."""

    attributes: Mapping[str, Mapping[str, Any]]
    """By path of group; the empty one is the group itself."""
    arrays: tuple[FoundArray, ...]


def find_arrays(source: CopySource, options: LayoutOptions) -> FoundGroup:
    """Look at everything in a group, and choose the layouts of the copies."""
    return arrays_below(source.group(), options, holds_records=source.holds_records)


def arrays_in(store: IcechunkStore, options: LayoutOptions) -> FoundGroup:
    """Look at everything that is being written to a session."""
    return arrays_below(zarr.open_group(store, mode="r"), options, holds_records=False)


def arrays_below(root: zarr.Group, options: LayoutOptions, *, holds_records: bool) -> FoundGroup:
    """Look at everything below a group that is open."""
    attributes: dict[str, Mapping[str, Any]] = {"": root.attrs.asdict()}
    found: list[tuple[zarr.Array[Any], SourceArray]] = []
    for path, node in sorted(root.members(max_depth=None), key=lambda member: member[0]):
        if holds_records and _is_ours(path):
            continue
        if isinstance(node, zarr.Array):
            found.append((node, _described(path, node)))
        else:
            attributes[path] = node.attrs.asdict()
    if not found:
        raise InvalidInputError("there is no array to copy", ErrorKind.NOT_AN_ARRAY)
    check_dimensions((about for _, about in found), options)
    arrays = tuple(FoundArray(node, about, choose_layout(about, options)) for node, about in found)
    return FoundGroup(attributes, arrays)


def _is_ours(path: str) -> bool:
    return is_record(path) or path == record_path("").partition("/")[0]


def _described(path: str, array: "zarr.Array[Any]") -> SourceArray:
    try:
        chunks, shards = tuple(array.chunks), array.shards
    except NotImplementedError:
        raise InvalidInputError(
            f"the chunks of the array {path!r} are not all of one length: such arrays cannot be"
            " copied on Spark",
            ErrorKind.INVALID_ARRAY_METADATA,
            path=path,
        ) from None
    kind = array.dtype
    item_bytes = max(kind.itemsize, _TEXT_BYTES) if kind.kind in {"O", "T"} else kind.itemsize
    return SourceArray(
        path,
        tuple(array.shape),
        dimensions_of(array),
        tuple(max(each, 1) for each in chunks),
        None if shards is None else tuple(shards),
        max(item_bytes, 1),
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


def occupied(store: IcechunkStore, group: str, found: FoundGroup) -> list[str]:
    """Name the copies in whose place there is something already."""
    paths = [joined_path(group, array.about.path) for array in found.arrays]
    return [path for path in paths if _read(store, f"{path}/zarr.json") is not None]


def make_groups(store: IcechunkStore, group: str, found: FoundGroup) -> None:
    """Make the groups of the copies; attributes go on top of those that are there."""
    parts = group.strip("/").split("/") if group.strip("/") else []
    for depth in range(len(parts)):
        _put_group(store, "/".join(parts[:depth]), {})
    for path in sorted(found.attributes):
        _put_group(store, joined_path(group, path), found.attributes[path])


def _put_group(store: IcechunkStore, path: str, attributes: Mapping[str, Any]) -> None:
    key = f"{path}/zarr.json" if path else "zarr.json"
    held = _read(store, key)
    document: dict[str, Any] = {"zarr_format": 3, "node_type": "group", "attributes": {}}
    if held is not None:
        document = json.loads(held)
        if not attributes:
            return
    document["attributes"] = {**document.get("attributes", {}), **attributes}
    data = json.dumps(document).encode()
    store.set_sync(key, default_buffer_prototype().buffer.from_bytes(data))


def make_array(store: IcechunkStore, group: str, array: FoundArray, compressors: Any) -> None:
    """Make one copy, without values; what is in its place makes way."""
    path, source = joined_path(group, array.about.path), array.source
    metadata: Any = source.metadata
    given = {} if metadata.fill_value is None else {"fill_value": metadata.fill_value}
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
            **given,
        )


def _attributes(source: "zarr.Array[Any]") -> dict[str, Any]:
    """Give the attributes of a copy, which is of format 3, so that xarray reads it alike.

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


def document_of(store: IcechunkStore, path: str) -> bytes:
    """Read the `zarr.json` of an array that was made."""
    document = _read(store, f"{path}/zarr.json")
    assert document is not None, f"{path} was made before"
    return document


def forget_record(store: IcechunkStore, group: str) -> None:
    """Remove the record of the files that a group was made of: it is something else now."""
    store.delete_sync(f"{record_path(group)}/zarr.json")


def _read(store: IcechunkStore, key: str) -> bytes | None:
    found = store.get_sync(key, prototype=default_buffer_prototype())
    return None if found is None else found.to_bytes()
