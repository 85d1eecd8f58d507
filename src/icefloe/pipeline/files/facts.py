"""The facts of a parsed file: its state, its schema, its coordinates.

They are small enough to gather those of thousands of files. Rows of tasks travel as Arrow columns,
built from buffers: `pyarrow.array` would import pandas.

A schema describes arrays as values with a digest. It leaves out what differs from file to file by
nature: lengths along the dimensions that files are joined along (shown as -1), chunks along these
that can be cut anyway (shown as 0), and attributes that do not change the meaning of stored
numbers.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icefloe.format.arrow import pa
from icefloe.format.columns import BytesColumn
from icefloe.format.paths import node_name
from icefloe.records import Record, asdict, field, replace

ANY_LENGTH: Final = -1
"""The length of a dimension that files are joined along."""

ANY_CHUNK: Final = 0
"""The chunk length where chunks can be cut as needed, as their bytes are plain and in order."""

SCALE_ATTRIBUTES: Final = ("scale_factor", "add_offset")
FILL_ATTRIBUTES: Final = ("_FillValue", "missing_value")
PARENT_UNITS: Final = "units of what it bounds"
"""Stands in an encoding for the units and calendar that bounds take over."""

_UNITS: Final = ("units", "calendar", PARENT_UNITS)
ENCODING_ATTRIBUTES: Final = frozenset(
    (*SCALE_ATTRIBUTES, *FILL_ATTRIBUTES, "units", "calendar", "_Unsigned")
)
"""Attributes that say how stored numbers are to be understood."""


class Single(float):
    """A number of four bytes among attributes, where JSON knows only one kind of number.

    >>> json.dumps(Single(0.5)), isinstance(Single(0.5), float)
    ('0.5', True)
    """

    __slots__ = ()


class Kind(StrEnum):
    """In what way a file does not fit."""

    UNREADABLE = "unreadable"
    TRUNCATED = "truncated"
    WRONG_FORMAT = "wrong-format"
    UNSUPPORTED = "unsupported"
    CHANGED = "changed"
    UNCOVERED = "uncovered"
    DTYPE = "dtype"
    CODECS = "codecs"
    FILL_VALUE = "fill-value"
    SCALE_OFFSET = "scale-offset"
    UNITS = "units"
    CALENDAR = "calendar"
    CHUNK_SHAPE = "chunk-shape"
    SHAPE = "shape"
    DIMENSIONS = "dimensions"
    MISSING_VARIABLE = "missing-variable"
    EXTRA_VARIABLE = "extra-variable"
    ATTRIBUTES = "attributes"
    COORDINATE = "coordinate"
    OTHER_COORDINATE = "other-coordinate"
    NOT_MONOTONIC = "not-monotonic"
    DUPLICATE = "duplicate"
    OVERLAP = "overlap"
    UNALIGNED = "unaligned"
    GAP = "gap"


class Difference(Record):
    """One respect in which an array, or a file, is not as expected."""

    kind: Kind
    path: str
    expected: str
    found: str


class ArraySchema(Record):
    """The storage of an array's values, in the terms of Zarr version 3."""

    path: str
    data_type: Any
    dimensions: tuple[str, ...]
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    codecs: tuple[Any, ...]
    fill_value: Any
    encoding: Mapping[str, Any] = field(default_factory=dict)
    """The attributes among `ENCODING_ATTRIBUTES`; bounds have those of what they bound."""
    is_coordinate: bool = False


@dataclass(frozen=True)
class DatasetSchema:
    """All arrays of a file, sorted by path.

    >>> array = ArraySchema("t", "float32", ("time",), (-1,), (1,), (), 0.0)
    >>> DatasetSchema.of([array]).digest == DatasetSchema.of([array]).digest
    True
    """

    arrays: tuple[ArraySchema, ...]

    @classmethod
    def of(cls, arrays: "list[ArraySchema]") -> "DatasetSchema":
        """Gather arrays."""
        return cls(tuple(sorted(arrays, key=lambda array: array.path)))

    @cached_property
    def by_path(self) -> dict[str, ArraySchema]:
        """Find arrays by path."""
        return {array.path: array for array in self.arrays}

    @cached_property
    def digest(self) -> str:
        """Return a short text that equal schemas share, and no two others."""
        text = canonical_json([asdict(array) for array in self.arrays])
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    @property
    def variables(self) -> frozenset[str]:
        """Name the arrays that are not coordinates; all of them in a file of coordinates only."""
        data = frozenset(array.path for array in self.arrays if not array.is_coordinate)
        return data or frozenset(self.by_path)


def canonical_json(tree: Any) -> str:
    """Write JSON with sorted keys and without blanks."""
    return json.dumps(tree, sort_keys=True, separators=(",", ":"))


def is_named(path: str, name: str) -> bool:
    """Return whether a path, or its last segment, is a name."""
    return name in {path, node_name(path)}


def misfits(expected: DatasetSchema, actual: DatasetSchema) -> list[Difference]:
    """List everything in which a file's schema is not the expected one."""
    if expected.digest == actual.digest:
        return []
    differences: list[Difference] = []
    for path in sorted(expected.by_path.keys() | actual.by_path.keys()):
        expected_array, actual_array = expected.by_path.get(path), actual.by_path.get(path)
        if actual_array is None:
            differences.append(Difference(Kind.MISSING_VARIABLE, path, "present", "absent"))
        elif expected_array is None:
            differences.append(Difference(Kind.EXTRA_VARIABLE, path, "absent", "present"))
        else:
            differences.extend(array_misfits(expected_array, actual_array))
    return differences


def array_misfits(expected: ArraySchema, actual: ArraySchema) -> Iterator[Difference]:
    """List everything in which an array is not the expected one."""
    if expected == actual:
        return
    for kind, expected_value, actual_value in (
        (Kind.DTYPE, expected.data_type, actual.data_type),
        (Kind.DIMENSIONS, expected.dimensions, actual.dimensions),
        (Kind.CODECS, expected.codecs, actual.codecs),
        (Kind.FILL_VALUE, expected.fill_value, actual.fill_value),
        (Kind.SCALE_OFFSET, *_picked(expected, actual, (*SCALE_ATTRIBUTES, "_Unsigned"))),
        (Kind.FILL_VALUE, *_picked(expected, actual, FILL_ATTRIBUTES)),
        (Kind.UNITS, *_picked(expected, actual, _UNITS)),
    ):
        if canonical_json(expected_value) != canonical_json(actual_value):
            yield Difference(kind, expected.path, _shown(expected_value), _shown(actual_value))
    if expected.dimensions == actual.dimensions:
        if expected.shape != actual.shape:
            yield Difference(
                Kind.SHAPE, expected.path, _shown(expected.shape), _shown(actual.shape)
            )
        elif _other_chunks(expected, actual):
            yield Difference(
                Kind.CHUNK_SHAPE, expected.path, _shown(expected.chunks), _shown(actual.chunks)
            )


def _other_chunks(expected: ArraySchema, actual: ArraySchema) -> bool:
    """Compare chunks; whether they can be cut hangs on the codecs, which are compared apart."""
    if canonical_json(expected.codecs) == canonical_json(actual.codecs):
        return expected.chunks != actual.chunks
    return any(
        expected_length != actual_length and ANY_CHUNK not in {expected_length, actual_length}
        for expected_length, actual_length in zip(expected.chunks, actual.chunks, strict=True)
    )


def _picked(
    expected: ArraySchema, actual: ArraySchema, names: tuple[str, ...]
) -> tuple[dict[str, Any], dict[str, Any]]:
    return (
        {name: expected.encoding[name] for name in names if name in expected.encoding},
        {name: actual.encoding[name] for name in names if name in actual.encoding},
    )


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def text_column(values: Sequence[str | None]) -> "pa.Array":
    """Make a column of strings; None becomes null."""
    return binary_column([None if text is None else text.encode() for text in values]).cast(
        pa.string()
    )


def binary_column(values: Sequence[bytes | None]) -> "pa.Array":
    """Make a column of byte strings; None becomes null."""
    column = BytesColumn.from_list([value or b"" for value in values])
    validity, nulls = _validity([value is not None for value in values])
    buffers = [
        validity,
        pa.py_buffer(column.splits.astype(np.int32)),
        pa.py_buffer(np.ascontiguousarray(column.data)),
    ]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers, nulls)


def int_column(values: Sequence[int | None] | NDArray[np.int64]) -> "pa.Array":
    """Make a column of 64-bit integers; None becomes null."""
    if isinstance(values, np.ndarray):
        whole = np.ascontiguousarray(values, np.int64)
        return pa.Array.from_buffers(pa.int64(), len(whole), [None, pa.py_buffer(whole)])
    validity, nulls = _validity([number is not None for number in values])
    filled = np.array([number or 0 for number in values], np.int64)
    return pa.Array.from_buffers(pa.int64(), len(values), [validity, pa.py_buffer(filled)], nulls)


def _validity(present: Sequence[bool]) -> "tuple[pa.Buffer | None, int]":
    absent = len(present) - sum(present)
    if not absent:
        return None, 0
    return pa.py_buffer(np.packbits(np.array(present, np.bool_), bitorder="little")), absent


class SourceState(Record):
    """The state of a file at the time of its parsing."""

    url: str
    size: int | None = None
    etag: str | None = None
    modified: int | None = None
    """Microseconds since 1970."""


class Problem(Record):
    """Why a file could not be parsed."""

    kind: Kind
    message: str


class LoadedValues(Record, eq=False):
    """The values of a small array along a dimension that files are joined along."""

    values: NDArray[Any]
    units: str | None = None
    calendar: str | None = None
    inherits: bool = False
    """Whether units and calendar stand at what these values bound, not at their own array."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LoadedValues):
            return NotImplemented
        mine, others = (
            (loaded.units, loaded.calendar, loaded.inherits, loaded.values.dtype)
            for loaded in (self, other)
        )
        is_float = self.values.dtype.kind == "f"
        return mine == others and np.array_equal(self.values, other.values, equal_nan=is_float)

    __hash__ = None  # type: ignore[assignment] # compares by content that may change


type Attributes = Mapping[str, Mapping[str, Any]]
"""Attributes by path of group ("" for the root) or array, those in the schema left out."""


class FileFacts(Record, omit_defaults=True):
    """The facts about a file."""

    state: SourceState
    format: str | None = None
    schema: DatasetSchema | None = None
    attributes: Attributes = field(default_factory=dict)
    lengths: Mapping[str, int] = field(default_factory=dict)
    """By dimension, of those that files are joined along."""
    chunks: Mapping[str, int] = field(default_factory=dict)
    """By array, the chunk length along such a dimension where it may be cut (`ANY_CHUNK`)."""
    values: Mapping[str, LoadedValues] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)
    """By array, of the values of coordinates that all files must share."""
    shared_values: Mapping[str, LoadedValues] = field(default_factory=dict)
    """By array, these values, as far as there is room for them."""
    added: tuple[str, ...] = ()
    """Dimensions that files are joined along, and that no array of the file has."""
    references: int = 0
    inlined_bytes: int = 0
    problem: Problem | None = None
    parser: str | None = None
    """Which code found the arrays: a format may have more than one parser."""
    names: Mapping[str, str] = field(default_factory=dict)
    """By path of array, its path in the file if that is another; empty for one not in the file."""
    notes: tuple[str, ...] = ()
    """What the parser left out or settled without asking."""
    unreferenced: Mapping[str, str] = field(default_factory=dict)
    """By array that only the library of the format can read, why its chunks are not enough."""

    @property
    def url(self) -> str:
        """Name the file."""
        return self.state.url


_MOST_STATIC_BYTES: Final = 64 << 20
"""Of distinct values of coordinates that all files should share."""


def share_equal(facts: Sequence[FileFacts]) -> list[FileFacts]:
    """Return facts in which equal schemas and mappings are one object, in memory and pickled.

    Most files of an archive have the same ones.
    """
    shared_values = _DistinctValues()
    schemas: dict[str, DatasetSchema] = {}
    by_text: dict[str, Any] = {}
    by_id: dict[int, Any] = {}  # what was pickled together is shared already

    def shared(mapping: Any) -> Any:
        if id(mapping) not in by_id:
            by_id[id(mapping)] = by_text.setdefault(canonical_json(mapping), mapping)
        return by_id[id(mapping)]

    return [
        replace(
            fact,
            schema=fact.schema and schemas.setdefault(fact.schema.digest, fact.schema),
            attributes=shared(fact.attributes),
            lengths=shared(fact.lengths),
            chunks=shared(fact.chunks),
            digests=shared(fact.digests),
            shared_values=shared_values.of(fact),
            names=shared(fact.names),
        )
        for fact in facts
    ]


class _DistinctValues:
    """Keeps one copy of equal values, and forgets values that are too many."""

    def __init__(self) -> None:
        self._by_digest: dict[tuple[str, str], LoadedValues] = {}
        self._left = _MOST_STATIC_BYTES

    def of(self, fact: FileFacts) -> Mapping[str, LoadedValues]:
        """Return the values of a file that are kept."""
        kept = {}
        for path, loaded in fact.shared_values.items():
            key = (path, fact.digests[path])
            if key not in self._by_digest and loaded.values.nbytes <= self._left:
                self._by_digest[key] = loaded
                self._left -= loaded.values.nbytes
            if key in self._by_digest:
                kept[path] = self._by_digest[key]
        return kept
