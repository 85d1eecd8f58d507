"""From what a parser found to what combining files needs.

Arrays are classified by their role in the dataset: those along a dimension that files are joined
along grow; all others must be the same in every file, and come from one of them. Of the growing
ones, those with a single dimension, and bounds of these, are small: their values are read here,
and later written as they are. That makes them independent of how each file cuts them into chunks,
and of its time units.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icefloe.codecs import FITS_IMAGE, GRIB_FIELD, TIFF_SEGMENT
from icefloe.errors import ErrorKind, SourceError
from icefloe.format.columns import BytesColumn
from icefloe.format.paths import joined_path, node_name
from icefloe.pipeline.files.facts import (
    ANY_CHUNK,
    ANY_LENGTH,
    ENCODING_ATTRIBUTES,
    PARENT_UNITS,
    ArraySchema,
    Attributes,
    DatasetSchema,
    FileFacts,
    LoadedValues,
    SourceState,
)
from icefloe.pipeline.files.options import Format, ParseOptions
from icefloe.pipeline.files.references import References, read_values
from icefloe.pipeline.files.sources import SourceAccess
from icefloe.pipeline.files.times import parse_units
from icefloe.records import Record, field, replace

POINTING: Final = ("coordinates", "bounds", "climatology", "grid_mapping", "ancillary_variables")
"""Attributes that name arrays which describe others."""

_EXPANDABLE: Final = frozenset(
    {
        "bytes",
        "numcodecs.fixedscaleoffset",
        FITS_IMAGE,
        GRIB_FIELD,
        TIFF_SEGMENT,
        "vlen-utf8",
    }
)
"""Codecs of arrays that do not care how many dimensions there are; so do all compressors."""

_TO_BYTES: Final = frozenset({"bytes", "vlen-utf8", FITS_IMAGE, GRIB_FIELD, TIFF_SEGMENT})

_UNKNOWN_BYTES: Final = 64  # taken for the size of a value of variable length


class RawArray(Record):
    """An array as a parser found it: its `zarr.json`, and its references."""

    metadata: Mapping[str, Any]
    references: References

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the lengths of the dimensions."""
        return tuple(self.metadata["shape"])

    @property
    def chunks(self) -> tuple[int, ...]:
        """Return the lengths of chunks."""
        return tuple(self.metadata["chunk_grid"]["configuration"]["chunk_shape"])

    @property
    def dimensions(self) -> tuple[str, ...]:
        """Name the dimensions; those without a name by number."""
        names = self.metadata.get("dimension_names") or (None,) * len(self.shape)
        return tuple(name or f"dim_{number}" for number, name in enumerate(names))

    @property
    def attributes(self) -> Mapping[str, Any]:
        """Return the attributes."""
        attributes: Mapping[str, Any] = self.metadata.get("attributes") or {}
        return attributes

    @property
    def nbytes(self) -> int:
        """Estimate the size of all values."""
        return math.prod(self.shape) * (_itemsize(self.metadata["data_type"]) or _UNKNOWN_BYTES)


class FileContent(Record):
    """The arrays of a file by path, the attributes of its groups by path, and what to report."""

    arrays: dict[str, RawArray]
    attributes: dict[str, dict[str, Any]]
    notes: tuple[str, ...] = ()
    """What was left out or settled without asking."""
    unreferenced: Mapping[str, str] = field(default_factory=dict)
    """By array that only the library of the format can read, why its chunks are not enough."""
    digests: Mapping[str, str] = field(default_factory=dict)
    """By path, of coordinates that all files must share, and whose values are not stored."""


def computed_array(values: Any, names: tuple[str, ...], attributes: Mapping[str, Any]) -> RawArray:
    """Make an array of values that a parser worked out; they travel as bytes."""
    array = np.asarray(values)
    metadata = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": array.shape,
        "data_type": array.dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": array.shape}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0.0 if array.dtype.kind == "f" else 0,
        "codecs": ({"name": "bytes", "configuration": {"endian": "little"}},),
        "attributes": dict(attributes),
        "dimension_names": names,
        "storage_transformers": (),
    }
    little = array.astype(array.dtype.newbyteorder("<"))
    references = replace(
        References.in_file("", np.empty((0, array.ndim)), [], []),
        inlined_coordinates=np.zeros((1, array.ndim), np.int64),
        inlined=BytesColumn.from_list([little.tobytes()]),
    )
    return RawArray(metadata, references)


class ParsedFile(Record):
    """The content of a parsed file; only `facts` is small."""

    facts: FileFacts
    references: Mapping[str, References] = field(default_factory=dict)
    """By path of array."""
    metadata: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By path of array, as in `zarr.json`."""


def describe(
    state: SourceState,
    kind: Format,
    arrays: Mapping[str, RawArray],
    group_attributes: Attributes,
    options: ParseOptions,
    access: SourceAccess,
    names: Mapping[str, str] | None = None,
    digests: Mapping[str, str] | None = None,
) -> ParsedFile:
    """Work out what all arrays of a file are, and read the values of its coordinates.

    `names` are those of arrays that have other names in the file. `digests` are those of
    coordinates whose values need not be read, by path in the file.
    """
    helpers = find_helpers(arrays, group_attributes)
    present = {name for array in arrays.values() for name in array.dimensions}
    added = tuple(name for name in options.concat if name not in present)
    for dimension in reversed(options.concat):
        arrays = _with_dimension(state.url, arrays, dimension, helpers)
    lengths = {name: _length(state.url, arrays, name) for name in options.concat}
    values = dict(_loaded(arrays, options, access))
    shared_values = dict(_shared_values(arrays, options, access))
    schemas: list[ArraySchema] = []
    attributes: dict[str, Mapping[str, Any]] = dict(group_attributes)
    chunks: dict[str, int] = {}
    parents = _parents(arrays)
    for path, array in arrays.items():
        cut = _divisible_axis(array, options.concat)
        if cut is not None:
            chunks[path] = array.chunks[cut]
        encoding = _encoding(array, arrays.get(parents.get(path, "")))
        if path in values and parse_units(values[path].units, values[path].calendar):
            encoding = {
                name: setting
                for name, setting in encoding.items()
                if name not in {"units", "calendar", PARENT_UNITS}
            }
        schemas.append(_schema(path, array, options.concat, cut, encoding, path in helpers))
        attributes[path] = {
            name: value
            for name, value in array.attributes.items()
            if name not in ENCODING_ATTRIBUTES
        }
    facts = FileFacts(
        state=state,
        format=kind.value,
        schema=DatasetSchema.of(schemas),
        attributes=attributes,
        lengths=lengths,
        chunks=chunks,
        values=values,
        digests={
            **_known_digests(arrays, names or {}, digests or {}),
            **{path: _digest(values) for path, values in shared_values.items()},
        },
        shared_values={path: LoadedValues(values) for path, values in shared_values.items()},
        references=sum(len(array.references) for array in arrays.values()),
        inlined_bytes=sum(len(array.references.inlined.data) for array in arrays.values()),
        names=names or {},
        added=added,
    )
    return ParsedFile(
        facts,
        {path: array.references for path, array in arrays.items()},
        {path: array.metadata for path, array in arrays.items()},
    )


def _known_digests(
    arrays: Mapping[str, RawArray], names: Mapping[str, str], digests: Mapping[str, str]
) -> dict[str, str]:
    in_file = {path: names.get(path, path) for path in arrays}
    return {path: digests[name] for path, name in in_file.items() if name in digests}


def find_helpers(arrays: Mapping[str, RawArray], groups: Attributes) -> set[str]:
    """Name the arrays that describe others: coordinates, bounds, mappings."""
    helpers = {path for path, array in arrays.items() if array.dimensions == (node_name(path),)}
    nodes = [(_group(path), array.attributes) for path, array in arrays.items()]
    nodes += list(groups.items())
    for group, attributes in nodes:
        for attribute in POINTING:
            text = attributes.get(attribute)
            if isinstance(text, str):
                helpers |= {joined_path(group, word.rstrip(":")) for word in text.split()}
    return helpers & arrays.keys()


def _parents(arrays: Mapping[str, RawArray]) -> dict[str, str]:
    """For each array of bounds, name what it bounds."""
    parents: dict[str, str] = {}
    for path, array in arrays.items():
        for attribute in ("bounds", "climatology"):
            bounds = array.attributes.get(attribute)
            if isinstance(bounds, str) and (named := joined_path(_group(path), bounds)) in arrays:
                parents[named] = path
    return parents


def _with_dimension(
    url: str, arrays: Mapping[str, RawArray], dimension: str, helpers: set[str]
) -> Mapping[str, RawArray]:
    """Add a dimension to data of a file that holds a single step of it."""
    if any(dimension in array.dimensions for array in arrays.values()):
        return arrays
    return {
        path: _expanded(url, path, array, dimension)
        if (path not in helpers if array.shape else node_name(path) == dimension)
        else array
        for path, array in arrays.items()
    }


def _expanded(url: str, path: str, array: RawArray, dimension: str) -> RawArray:
    codecs = []
    for codec in array.metadata["codecs"]:
        name, settings = codec["name"], codec.get("configuration", {})
        if name == "transpose":
            order = [0, *(axis + 1 for axis in settings["order"])]
            codecs.append({"name": name, "configuration": {"order": order}})
        elif name in _EXPANDABLE or any(before["name"] in _TO_BYTES for before in codecs):
            codecs.append(codec)
        else:
            raise SourceError(
                f"{path!r} in {url} cannot get the dimension {dimension!r}, along which files"
                f" are to be joined: its codec {name!r} depends on the number of dimensions."
                " Leave it out (drop=...)",
                ErrorKind.SOURCE_UNSUPPORTED,
                url=url,
            )
    metadata = {
        **array.metadata,
        "shape": (1, *array.shape),
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": (1, *array.chunks)}},
        "dimension_names": (dimension, *array.dimensions),
        "codecs": tuple(codecs),
    }
    return RawArray(metadata, array.references.expanded())


def _length(url: str, arrays: Mapping[str, RawArray], dimension: str) -> int:
    lengths = {
        array.shape[array.dimensions.index(dimension)]: path
        for path, array in arrays.items()
        if dimension in array.dimensions
    }
    if len(lengths) != 1:
        listed = ", ".join(f"{length} in {path!r}" for length, path in lengths.items())
        raise SourceError(
            f"files are to be joined along {dimension!r}, but {url} has "
            + (f"lengths of it that differ: {listed}" if listed else "no data to give it to"),
            ErrorKind.SOURCE_UNSUPPORTED,
            url=url,
        )
    return next(iter(lengths))


def _loaded(
    arrays: Mapping[str, RawArray], options: ParseOptions, access: SourceAccess
) -> Iterator[tuple[str, LoadedValues]]:
    parents = _parents(arrays)
    for path, array in arrays.items():
        parent = arrays.get(parents.get(path, ""))
        if not _is_small_and_growing(path, array, parent, options):
            continue
        values = _portable(read_values(array.metadata, array.references, access))
        own = array.attributes.get("units")
        source = array.attributes if own is not None or parent is None else parent.attributes
        yield (
            path,
            LoadedValues(
                values,
                source.get("units"),
                source.get("calendar"),
                inherits=own is None and source.get("units") is not None,
            ),
        )


def _is_small_and_growing(
    path: str, array: RawArray, parent: RawArray | None, options: ParseOptions
) -> bool:
    growing = [name for name in array.dimensions if name in options.concat]
    if array.dimensions == (node_name(path),) and growing:
        return True
    is_bounds = parent is not None and len(parent.shape) == 1 and len(array.shape) == 2
    is_slim = len(array.shape) == 1 or is_bounds
    return bool(growing) and is_slim and array.nbytes <= options.load_below


def _shared_values(
    arrays: Mapping[str, RawArray], options: ParseOptions, access: SourceAccess
) -> Iterator[tuple[str, NDArray[Any]]]:
    """Read the values of coordinates and single numbers that all files should share."""
    mappings = {
        joined_path(_group(path), word.rstrip(":"))
        for path, array in arrays.items()
        if isinstance(text := array.attributes.get("grid_mapping"), str)
        for word in text.split()
    }
    for path, array in arrays.items():
        is_static = not set(array.dimensions) & set(options.concat)
        is_own = array.dimensions == (node_name(path),) or not array.shape
        if is_static and is_own and path not in mappings and array.nbytes <= options.load_below:
            yield path, _portable(read_values(array.metadata, array.references, access))


def _digest(values: NDArray[Any]) -> str:
    return hashlib.blake2b(np.ascontiguousarray(values).tobytes(), digest_size=12).hexdigest()


def _portable(values: NDArray[Any]) -> NDArray[Any]:
    """Convert strings to a fixed width, so that they can travel as bytes."""
    if values.dtype.kind not in "TO":
        return values
    return np.array(values.tolist(), np.str_).reshape(values.shape)


def _divisible_axis(array: RawArray, concat: tuple[str, ...]) -> int | None:
    """Find the growing axis along which chunks can be cut anyway."""
    codecs = array.metadata["codecs"]
    itemsize = _itemsize(array.metadata["data_type"])
    if len(codecs) != 1 or codecs[0]["name"] != "bytes" or itemsize is None:
        return None
    growing = [axis for axis, name in enumerate(array.dimensions) if name in concat]
    if not growing or math.prod(array.chunks[: growing[0]]) != 1:
        return None
    expected = math.prod(array.chunks) * itemsize
    is_plain = bool((array.references.lengths == expected).all())
    return growing[0] if is_plain and not len(array.references.inlined) else None


def _encoding(array: RawArray, parent: RawArray | None) -> dict[str, Any]:
    own = {name: array.attributes[name] for name in ENCODING_ATTRIBUTES & array.attributes.keys()}
    if parent is not None and "units" in parent.attributes and "units" not in own:
        inherited = [parent.attributes.get("units"), parent.attributes.get("calendar")]
        own[PARENT_UNITS] = inherited
    return own


def _schema(
    path: str,
    array: RawArray,
    concat: tuple[str, ...],
    cut: int | None,
    encoding: Mapping[str, Any],
    is_helper: bool,  # noqa: FBT001 - named by its place in the record
) -> ArraySchema:
    return ArraySchema(
        path=path,
        data_type=array.metadata["data_type"],
        dimensions=array.dimensions,
        shape=tuple(
            ANY_LENGTH if name in concat else length
            for name, length in zip(array.dimensions, array.shape, strict=True)
        ),
        chunks=tuple(
            ANY_CHUNK if axis == cut else length for axis, length in enumerate(array.chunks)
        ),
        codecs=tuple(array.metadata["codecs"]),
        fill_value=array.metadata["fill_value"],
        encoding=encoding,
        is_coordinate=is_helper,
    )


def _itemsize(data_type: Any) -> int | None:
    try:
        return np.dtype(data_type).itemsize if isinstance(data_type, str) else None
    except TypeError:
        return None


def _group(path: str) -> str:
    return path.rpartition("/")[0]
