"""What a group of a repository holds, in the terms in which files are compared with it."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import zarr

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.pipeline.combining.combine import NATIVE_CHUNK, Existing
from icefloe.pipeline.files.facts import LoadedValues
from icefloe.pipeline.files.options import CombineOptions
from icefloe.pipeline.files.schema import (
    ANY_LENGTH,
    ENCODING_ATTRIBUTES,
    ArraySchema,
    DatasetSchema,
)
from icefloe.pipeline.provenance.records import is_record, recorded_groups
from icefloe.zarr_store import IcechunkStore


def read_existing(store: IcechunkStore, group: str, options: CombineOptions) -> Existing:
    """Describe a group that files are to be added to."""
    arrays = dict(_arrays(store, group))
    schemas = {path: _schema(path, array, options) for path, array in arrays.items()}
    lengths = {
        name: length
        for path, schema in schemas.items()
        for name, length in zip(schema.dimensions, arrays[path].shape, strict=True)
        if name in options.concat
    }
    if missing := sorted(set(options.concat) - lengths.keys()):
        raise InvalidInputError(
            f"nothing in the group {group!r} has the dimension {missing[0]!r}, along which"
            " files are to be added",
            ErrorKind.BAD_METADATA,
        )
    parents = _parents(arrays)
    values = {
        path: _values(array, parents.get(path))
        for path, array in arrays.items()
        if ANY_LENGTH in schemas[path].shape and is_native(schemas[path])
    }
    return Existing(DatasetSchema.of(list(schemas.values())), lengths, values)


def holds_arrays(store: IcechunkStore, group: str) -> bool:
    """Return whether there is anything in a group that files could be added to."""
    try:
        return any(True for _ in _arrays(store, group))
    except FileNotFoundError:
        return False


def _arrays(store: IcechunkStore, group: str) -> "Iterator[tuple[str, zarr.Array[Any]]]":
    """Yield the arrays of a dataset, without those of other datasets in groups below it."""
    name = group.strip("/")
    others = tuple(
        f"{other}/".removeprefix(f"{name}/" if name else "")
        for other in recorded_groups(store)
        if other != name and (not name or other.startswith(f"{name}/"))
    )
    for path, array in zarr.open_group(store, path=name, mode="r").members(max_depth=None):
        is_foreign = (not name and is_record(path)) or path.startswith(others)
        if isinstance(array, zarr.Array) and not is_foreign:
            yield path, array


def is_native(schema: ArraySchema) -> bool:
    """Return whether an array was written by value, not by reference."""
    return bool(schema.chunks) and schema.chunks[0] == NATIVE_CHUNK and _has_zstd(schema)


def _has_zstd(schema: ArraySchema) -> bool:
    return bool(schema.codecs) and schema.codecs[-1]["name"] == "zstd"


def _schema(path: str, array: "zarr.Array[Any]", options: CombineOptions) -> ArraySchema:
    metadata: dict[str, Any] = dict(array.metadata.to_dict())
    names = tuple(
        name or f"dim_{number}" for number, name in enumerate(metadata["dimension_names"] or ())
    )
    attributes: Mapping[str, Any] = metadata.get("attributes") or {}
    return ArraySchema(
        path,
        metadata["data_type"],
        names,
        tuple(
            ANY_LENGTH if name in options.concat else length
            for name, length in zip(names, array.shape, strict=True)
        ),
        tuple(metadata["chunk_grid"]["configuration"]["chunk_shape"]),
        tuple(metadata["codecs"]),
        metadata["fill_value"],
        {name: attributes[name] for name in ENCODING_ATTRIBUTES & attributes.keys()},
    )


def _parents(arrays: "Mapping[str, zarr.Array[Any]]") -> "dict[str, zarr.Array[Any]]":
    parents = {}
    for path, array in arrays.items():
        bounds = array.attrs.get("bounds") or array.attrs.get("climatology")
        if isinstance(bounds, str):
            group = path.rpartition("/")[0]
            parents[f"{group}/{bounds}" if group else bounds] = array
    return parents


def _values(array: "zarr.Array[Any]", parent: "zarr.Array[Any] | None") -> LoadedValues:
    own = array.attrs.get("units")
    inherits = own is None and parent is not None and "units" in parent.attrs
    source: Mapping[str, Any] = dict((parent if inherits and parent else array).attrs)
    stored = np.asarray(array[...])
    return LoadedValues(stored, source.get("units"), source.get("calendar"), inherits=inherits)
