"""The dataset of a group: what exists, what is written without Spark, whether it can be opened.

Metadata and small arrays are written through a store. Before a commit the dataset is opened with
zarr and xarray: what nobody can open is refused. Only metadata, and coordinates whose values are
written with it, are looked at; `checking.values` follows references.
"""

import json
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any, Final

import numpy as np
import zarr
from zarr.core.buffer import default_buffer_prototype

from icefloe.api.session import Session
from icefloe.errors import ErrorKind, IcefloeError, InvalidInputError, SourceError
from icefloe.format.paths import joined_path, node_name
from icefloe.pipeline.combining.combine import NATIVE_CHUNK, Combined, Existing
from icefloe.pipeline.combining.uneven import cells_of_grid, grid_of, shortened
from icefloe.pipeline.files import is_record
from icefloe.pipeline.files.facts import (
    ANY_CHUNK,
    ANY_LENGTH,
    ENCODING_ATTRIBUTES,
    ArraySchema,
    DatasetSchema,
    LoadedValues,
)
from icefloe.pipeline.files.options import CombineOptions
from icefloe.pipeline.writing.openable import surely_opens
from icefloe.pipeline.writing.provenance import recorded_groups
from icefloe.zarr_store import IcechunkStore
from icefloe.zarr_store.openings import with_rectilinear

type IsLoaded = Callable[[ArraySchema], bool]
"""Tells whether the values of an array are known while files are placed."""


def read_existing(
    store: IcechunkStore, group: str, options: CombineOptions, is_loaded: IsLoaded | None = None
) -> Existing:
    """Describe a group that files are to be added to.

    `is_loaded` chooses arrays along the dimensions that files join along; those that were written
    by value if not given.
    """
    chosen = is_loaded or is_native
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
        path: _loaded_values(array, parents.get(path))
        for path, array in arrays.items()
        if ANY_LENGTH in schemas[path].shape and chosen(schemas[path])
    }
    cuts = {
        path: tuple(_cuts(array, schemas[path]))
        for path, array in arrays.items()
        if ANY_LENGTH in schemas[path].shape and ANY_CHUNK in schemas[path].chunks
    }
    return Existing(DatasetSchema.of(list(schemas.values())), lengths, values, cuts=cuts)


def _cuts(array: "zarr.Array[Any]", schema: ArraySchema) -> list[int]:
    """Return where chunks begin and end along the first growing axis."""
    axis = schema.shape.index(ANY_LENGTH)
    sizes = array.read_chunk_sizes[axis]
    return [0, *accumulate(sizes)]


def find_existing(store: IcechunkStore, group: str, options: CombineOptions) -> Existing | None:
    """Describe a group that files are to be added to; None if there is no array in it."""
    try:
        has_arrays = any(True for _ in _arrays(store, group))
    except FileNotFoundError:
        return None
    return read_existing(store, group, options) if has_arrays else None


def read_values_of(
    store: IcechunkStore, group: str, paths: Iterable[str]
) -> Iterator[tuple[str, LoadedValues]]:
    """Read arrays as a whole, but for those that cannot be read."""
    for path in paths:
        try:
            with with_rectilinear():
                array = zarr.open_array(store, path=joined_path(group, path), mode="r")
            yield path, LoadedValues(np.asarray(array[...]))
        except (IcefloeError, OSError):  # files that it refers to may be gone
            continue


def _arrays(store: IcechunkStore, group: str) -> "Iterator[tuple[str, zarr.Array[Any]]]":
    """Yield the arrays of a dataset, without those of other datasets in groups below it."""
    name = group.strip("/")
    others = tuple(
        f"{other}/".removeprefix(f"{name}/" if name else "")
        for other in recorded_groups(store)
        if other != name and (not name or other.startswith(f"{name}/"))
    )
    with with_rectilinear():
        members = zarr.open_group(store, path=name, mode="r").members(max_depth=None)
    for path, array in members:
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
    growing = [name in options.concat for name in metadata.get("dimension_names") or ()]
    chunks = [cells.chunk for cells in cells_of_grid(metadata["chunk_grid"])]
    if metadata["chunk_grid"]["name"] == "rectilinear" and any(growing):
        chunks[growing.index(True)] = ANY_CHUNK  # also if all chunks have the same length by now
    given_names = metadata.get("dimension_names") or (None,) * array.ndim
    names = tuple(name or f"dim_{number}" for number, name in enumerate(given_names))
    attributes: Mapping[str, Any] = metadata.get("attributes") or {}
    return ArraySchema(
        path=path,
        data_type=metadata["data_type"],
        dimensions=names,
        shape=tuple(
            ANY_LENGTH if name in options.concat else length
            for name, length in zip(names, array.shape, strict=True)
        ),
        chunks=tuple(chunks),
        codecs=tuple(metadata["codecs"]),
        fill_value=metadata["fill_value"],
        encoding={name: attributes[name] for name in ENCODING_ATTRIBUTES & attributes.keys()},
    )


def _parents(arrays: "Mapping[str, zarr.Array[Any]]") -> "dict[str, zarr.Array[Any]]":
    parents = {}
    for path, array in arrays.items():
        bounds = array.attrs.get("bounds") or array.attrs.get("climatology")
        if isinstance(bounds, str):
            group = path.rpartition("/")[0]
            parents[f"{group}/{bounds}" if group else bounds] = array
    return parents


def _loaded_values(array: "zarr.Array[Any]", parent: "zarr.Array[Any] | None") -> LoadedValues:
    own = array.attrs.get("units")
    inherits = own is None and parent is not None and "units" in parent.attrs
    source: Mapping[str, Any] = dict((parent if inherits and parent else array).attrs)
    stored = np.asarray(array[...])
    return LoadedValues(stored, source.get("units"), source.get("calendar"), inherits=inherits)


def write_metadata(
    store: IcechunkStore, group: str, combined: Combined, existing: Existing | None
) -> None:
    """Make the groups and arrays, or give those that are there their new lengths.

    Values of small arrays move where steps come before them.
    """
    there = set() if existing is None else set(existing.schema.by_path)
    if existing is None:
        make_groups(store, group, combined.groups)
    for array in combined.arrays:
        key = f"{joined_path(group, array.path)}/zarr.json"
        if array.path in there:
            if not array.growing:
                continue
            changed = {"shape": array.metadata["shape"]}
            if array.path in combined.cuts:
                changed["chunk_grid"] = array.metadata["chunk_grid"]
            stored = json.loads(get_document(store, key))
            metadata: Mapping[str, Any] = {**stored, **changed}
        else:
            metadata = array.metadata
        put_document(store, key, json.dumps(metadata).encode())
    if existing is not None:
        _lengthen_others(store, group, combined, existing)
        _move_values(store, group, combined, existing)


def _lengthen_others(
    store: IcechunkStore, group: str, combined: Combined, existing: Existing
) -> None:
    """Lengthen arrays to which no file adds like the others, if coordinates place files."""
    if not combined.by_values:
        return
    others = existing.schema.by_path.keys() - {array.path for array in combined.arrays}
    for path in sorted(others):
        schema, key = existing.schema.by_path[path], f"{joined_path(group, path)}/zarr.json"
        if ANY_LENGTH not in schema.shape:
            continue
        metadata = json.loads(get_document(store, key))
        metadata["shape"] = [
            combined.lengths[name] if length == ANY_LENGTH else length
            for name, length in zip(schema.dimensions, schema.shape, strict=True)
        ]
        if (cuts := combined.cuts.get(path)) is not None:
            axis = schema.shape.index(ANY_LENGTH)
            whole = (*metadata["shape"][:axis], cuts[-1], *metadata["shape"][axis + 1 :])
            grid = grid_of(whole, schema.chunks, axis, cuts)
            metadata["chunk_grid"] = shortened(grid, metadata["shape"], axis)
        put_document(store, key, json.dumps(metadata).encode())


def _move_values(store: IcechunkStore, group: str, combined: Combined, existing: Existing) -> None:
    """Move the values of small arrays behind the steps that come before them."""
    for path, loaded in existing.values.items():
        inserted = combined.inserted.get(existing.schema.by_path[path].dimensions[0])
        if inserted is None:
            continue
        target = zarr.open_array(store, path=joined_path(group, path), mode="r+")
        values = np.array(target[...])
        values[...] = target.fill_value
        values[inserted.moved(np.arange(len(loaded.values)))] = loaded.values
        target[...] = values


def make_groups(
    store: IcechunkStore,
    group: str,
    attributes: Mapping[str, Mapping[str, Any]],
    *,
    keeps_attributes: bool = False,
) -> None:
    """Make a group, those above it, and those below it that have attributes, given by path.

    The attributes replace those of groups that exist, or with `keeps_attributes` go on top.
    """
    names = group.strip("/").split("/") if group.strip("/") else []
    above = {"/".join(names[:depth]): None for depth in range(len(names))}
    below = {joined_path(group, path): values for path, values in attributes.items()}
    for path, values in {**above, **below}.items():
        key = f"{path}/zarr.json" if path else "zarr.json"
        stored = find_document(store, key)
        if stored is not None and (values is None or (keeps_attributes and not values)):
            continue
        document: dict[str, Any] = {"zarr_format": 3, "node_type": "group"}
        if stored is not None and keeps_attributes:
            document = json.loads(stored)
        document["attributes"] = {**document.get("attributes", {}), **(values or {})}
        put_document(store, key, json.dumps(document).encode())


def write_native(store: IcechunkStore, group: str, combined: Combined) -> None:
    """Write the values of small arrays; existing values stay where nothing is new."""
    for array in combined.arrays:
        if array.is_native:
            target = zarr.open_array(store, path=joined_path(group, array.path), mode="r+")
            values = np.array(target[...])
            for start, run in combined.native[array.path]:
                values[start : start + len(run)] = run
            target[...] = values


def put_document(store: IcechunkStore, key: str, data: bytes) -> None:
    """Write bytes under a key of Zarr."""
    store.set_sync(key, default_buffer_prototype().buffer.from_bytes(data))


def find_document(store: IcechunkStore, key: str) -> bytes | None:
    """Return the bytes under a key of Zarr, if there are any."""
    buffer = store.get_sync(key, prototype=default_buffer_prototype())
    return None if buffer is None else buffer.to_bytes()


def get_document(store: IcechunkStore, key: str) -> bytes:
    """Return the bytes under a key of Zarr; raise if there are none."""
    document = find_document(store, key)
    if document is None:
        raise InvalidInputError(f"nothing is at {key!r}", ErrorKind.NODE_NOT_FOUND)
    return document


_MOST_BYTES: Final = 1 << 20
"""Coordinates up to this size are read."""

_NO_XARRAY: Final = (
    'xarray is not installed, so the dataset was opened with zarr only: pip install "icefloe'
    '[xarray]" to have it opened with both before it is committed'
)


def require_openable(
    session: Session,
    group: str,
    paths: Collection[str],
    stored: Collection[str],
    *,
    needs_xarray: bool = True,
) -> tuple[str, ...]:
    """Open the arrays of a dataset, given by paths below a group; raise `SourceError` if one fails.

    `stored` are those whose values are in the repository already. Not every Zarr hierarchy is
    meant for xarray: without `needs_xarray`, its failure is a note. Returns notes for a report.
    """
    with warnings.catch_warnings(), with_rectilinear():
        warnings.simplefilter("ignore")  # codecs that zarr finds unusual are no obstacle
        for path in sorted(paths):
            try:
                zarr.open_array(session.store, path=joined_path(group, path), mode="r")
            except IcefloeError:
                raise
            except Exception as error:
                raise _unopenable(group, path, "zarr", error) from error
        try:
            return _open_with_xarray(session, group, paths, stored)
        except SourceError as error:
            if needs_xarray or error.kind != ErrorKind.SOURCE_UNOPENABLE:
                raise
            return (f"copied nevertheless: {error}",)


def _open_with_xarray(
    session: Session, group: str, paths: Collection[str], stored: Collection[str]
) -> tuple[str, ...]:
    for folder in sorted({path.rpartition("/")[0] for path in paths}):
        names = {node_name(path) for path in paths if path.rpartition("/")[0] == folder}
        here = {node_name(path) for path in stored if path.rpartition("/")[0] == folder}
        whole = joined_path(group, folder)
        if _is_usual(session, whole, here):
            continue
        try:
            import xarray  # noqa: F401 - optional
        except ImportError:
            return (_NO_XARRAY,)
        try:
            _open(session, whole, here, without=())
        except IcefloeError:
            raise
        except Exception as error:
            name = _culprit(session, whole, names, here)
            raise _unopenable(group, joined_path(folder, name or ""), "xarray", error) from error
    return ()


def _is_usual(session: Session, group: str, stored: Collection[str]) -> bool:
    """Return whether a group is of a form that xarray is known to open."""
    try:
        return surely_opens(zarr.open_group(session.store, path=group, mode="r"), stored)
    except IcefloeError:
        raise
    except Exception:  # noqa: BLE001 - xarray tells what is wrong
        return False


def _open(session: Session, group: str, stored: Collection[str], without: Iterable[str]) -> None:
    import xarray

    decoded = {name: name in stored for name in _array_names(session, group)}
    dataset = xarray.open_zarr(
        session.store,
        group=group or None,
        consolidated=False,
        chunks=None,
        decode_times=decoded,
        decode_timedelta=decoded,
        drop_variables=list(without),
        create_default_indexes=False,
    )
    for name in dataset.coords:
        if name in stored and dataset[name].nbytes <= _MOST_BYTES:
            dataset.variables[name].load()


def _culprit(
    session: Session, group: str, names: Collection[str], stored: Collection[str]
) -> str | None:
    """Find the array that xarray cannot open even alone; None if only all together fail."""
    present = _array_names(session, group)
    for name in sorted(names):
        try:
            _open(session, group, stored, without=present - {name})
        except IcefloeError:
            raise
        except Exception:  # noqa: BLE001 - the reason is reported already
            return name
    return None


def _array_names(session: Session, group: str) -> set[str]:
    return set(zarr.open_group(session.store, path=group, mode="r").array_keys())


def _unopenable(group: str, path: str, library: str, error: Exception) -> SourceError:
    text = " ".join(str(error).split())[:500]
    what = f"the array {path!r}" if path else f"the group {group!r}"
    return SourceError(
        f"{library} could not open {what} of the dataset ({type(error).__name__}: {text}). Leave"
        " variables out (drop=...) that cannot be opened, or not together with others",
        ErrorKind.SOURCE_UNOPENABLE,
        path=path,
    )


def require_opening(session: Session, group: str, combined: Combined) -> tuple[str, ...]:
    """Open a dataset whose metadata and coordinates are written; return notes for a report."""
    paths = [array.path for array in combined.arrays]
    native = [array.path for array in combined.arrays if array.is_native]
    return require_openable(session, group, paths, native)
