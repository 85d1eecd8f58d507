"""Copies of arrays in a session: their metadata, and manifests of the copied objects."""

import base64
import json
import struct
import warnings
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Final

import numpy as np
import zarr
from zarr.core.buffer import default_buffer_prototype

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.chunk_table import ChunkTable, concat_tables
from icefloe.format.ids import ChunkId, ManifestId, decode_ids
from icefloe.format.layout import manifest_key
from icefloe.format.paths import joined_path
from icefloe.pipeline.copying.layouts import (
    ArrayLayout,
    CopyShape,
    LayoutOptions,
    SourceArray,
    check_dimensions,
    choose_layout,
)
from icefloe.pipeline.copying.origins import CopySource
from icefloe.pipeline.files.references import References
from icefloe.pipeline.provenance.records import is_record, record_path
from icefloe.pipeline.writing.building import BuiltRegion, Notes
from icefloe.pipeline.writing.plans import ArrayPlan
from icefloe.records import Record
from icefloe.repo.context import RepoContext
from icefloe.transactions.external_manifests import build_region
from icefloe.zarr_store import IcechunkStore

_V2_DIMENSIONS: Final = "_ARRAY_DIMENSIONS"
_FILL_VALUE: Final = "_FillValue"
_TEXT_BYTES: Final = 64
"""What a text of any length is taken for: what it really takes is known too late."""


class FoundArray(Record, eq=False):
    """An array to copy, and how its copy is to be stored."""

    source: "zarr.Array[Any]"
    about: SourceArray
    layout: ArrayLayout

    @property
    def shape(self) -> CopyShape:
        """Return the shape that planning needs."""
        about = self.about
        shards = about.item_bytes * prod(about.shards) if about.shards else 0
        return CopyShape(about.shape, about.item_bytes, about.chunks, self.layout.objects, shards)


class FoundGroup(Record, eq=False):
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
        tuple(max(chunk, 1) for chunk in chunks),
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


def occupied(store: IcechunkStore, group: str, source_group: FoundGroup) -> list[str]:
    """Name the copies in whose place there is something already."""
    paths = [joined_path(group, array.about.path) for array in source_group.arrays]
    return [path for path in paths if _read(store, f"{path}/zarr.json") is not None]


def make_groups(store: IcechunkStore, group: str, source_group: FoundGroup) -> None:
    """Make the groups of the copies; attributes go on top of those that are there."""
    parts = group.strip("/").split("/") if group.strip("/") else []
    for depth in range(len(parts)):
        _put_group(store, "/".join(parts[:depth]), {})
    for path in sorted(source_group.attributes):
        _put_group(store, joined_path(group, path), source_group.attributes[path])


def _put_group(store: IcechunkStore, path: str, attributes: Mapping[str, Any]) -> None:
    key = f"{path}/zarr.json" if path else "zarr.json"
    stored = _read(store, key)
    document: dict[str, Any] = {"zarr_format": 3, "node_type": "group", "attributes": {}}
    if stored is not None:
        document = json.loads(stored)
        if not attributes:
            return
    document["attributes"] = {**document.get("attributes", {}), **attributes}
    data = json.dumps(document).encode()
    store.set_sync(key, default_buffer_prototype().buffer.from_bytes(data))


def make_array(store: IcechunkStore, group: str, array: FoundArray, compressors: Any) -> None:
    """Make one copy, without values; what is in its place makes way."""
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


def document_of(store: IcechunkStore, path: str) -> bytes:
    """Read the `zarr.json` of an array that was made."""
    document = _read(store, f"{path}/zarr.json")
    assert document is not None, f"{path} was made before"
    return document


def forget_record(store: IcechunkStore, group: str) -> None:
    """Remove the record of the files that a group was made of: it is something else now."""
    store.delete_sync(f"{record_path(group)}/zarr.json")


def _read(store: IcechunkStore, key: str) -> bytes | None:
    buffer = store.get_sync(key, prototype=default_buffer_prototype())
    return None if buffer is None else buffer.to_bytes()


async def build_native(
    context: RepoContext,
    array: ArrayPlan,
    region: int,
    parts: Sequence[References],
    notes: Notes,
) -> BuiltRegion:
    """Write the manifests of a region over the existing ones."""
    table = concat_tables([table for part in parts for table in tables_of(part)])

    async def note(ids: Sequence[ManifestId]) -> None:
        await notes.add([manifest_key(manifest_id) for manifest_id in ids])

    built = await build_region(
        context.assets,
        array.node,
        table,
        layout=array.parts.layout,
        grid=array.grid,
        stored=array.parts.stored_in(region),
        before_writing=note,
    )
    return BuiltRegion(built, table.coordinates, len(table), int(table.lengths.sum()))


def tables_of(part: References) -> tuple[ChunkTable, ChunkTable]:
    """Return references to copied objects, and references that hold their bytes inline."""
    return _stored_table(part), _inlined_table(part)


def _stored_table(part: References) -> ChunkTable:
    if not len(part):
        return ChunkTable.empty(part.dimensions)
    return ChunkTable.native(
        part.coordinates.astype(np.uint32),
        decode_ids(np.array(part.locations, np.bytes_), ChunkId.WIDTH),
        part.lengths,
        part.offsets,
        part.location_rows,
    )


def _inlined_table(part: References) -> ChunkTable:
    if not len(part.inlined):
        return ChunkTable.empty(part.dimensions)
    return ChunkTable.inlined(part.inlined_coordinates.astype(np.uint32), part.inlined)
