"""The facts of a parsed file: its state, its schema, its coordinates.

They are small enough to gather those of thousands of files, and travel as Arrow columns, built
from buffers: `pyarrow.array` would import pandas.

A schema describes arrays as values with a digest. It leaves out what differs from file to file by
nature: lengths along the dimensions that files are joined along (shown as -1), chunks along these
that can be cut anyway (shown as 0), and attributes that do not change the meaning of stored
numbers.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icefloe.format.arrow import pa
from icefloe.format.columns import BytesColumn
from icefloe.records import Record, asdict, field

ANY_LENGTH: Final = -1
"""The length of a dimension that files are joined along."""

ANY_CHUNK: Final = 0
"""The chunk length where chunks can be cut as needed, as their bytes are plain and in order."""

_SCALE: Final = ("scale_factor", "add_offset")
_FILL: Final = ("_FillValue", "missing_value")
PARENT_UNITS: Final = "units of what it bounds"
"""Stands in an encoding for the units and calendar that bounds take over."""

_UNITS: Final = ("units", "calendar", PARENT_UNITS)
ENCODING_ATTRIBUTES: Final = frozenset((*_SCALE, *_FILL, "units", "calendar", "_Unsigned"))
"""Attributes that say how stored numbers are to be understood."""


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
    LATE = "late"


class Difference(Record):
    """One respect in which an array, or a file, is not as expected."""

    kind: Kind
    path: str
    expected: str
    found: str


class ArraySchema(Record):
    """How the values of one array are stored; metadata in the terms of Zarr, version 3."""

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

    @property
    def name(self) -> str:
        """Return the last part of the path."""
        return self.path.rpartition("/")[2]

    def axis(self, dimension: str) -> int | None:
        """Find a dimension."""
        return self.dimensions.index(dimension) if dimension in self.dimensions else None


@dataclass(frozen=True)
class DatasetSchema:
    """All arrays of a file, sorted by path.

    >>> one = DatasetSchema.of([ArraySchema("t", "float32", ("time",), (-1,), (1,), (), 0.0)])
    >>> one.digest == DatasetSchema.from_json(one.to_json()).digest
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
        return hashlib.blake2b(self.to_json().encode(), digest_size=16).hexdigest()

    @property
    def variables(self) -> frozenset[str]:
        """Name the arrays that are not coordinates; all of them in a file of coordinates only."""
        data = frozenset(array.path for array in self.arrays if not array.is_coordinate)
        return data or frozenset(self.by_path)

    def to_json(self) -> str:
        """Write it as text, always in the same way."""
        return canonical_json([asdict(array) for array in self.arrays])

    @classmethod
    def from_json(cls, text: str) -> "DatasetSchema":
        """Read what `to_json` wrote."""
        return cls(tuple(_array_from(document) for document in json.loads(text)))


def _array_from(tree: dict[str, Any]) -> ArraySchema:
    tuples = {name: tuple(tree[name]) for name in ("dimensions", "shape", "chunks", "codecs")}
    return ArraySchema(**{**tree, **tuples})


def canonical_json(tree: Any) -> str:
    """Write JSON with sorted keys and without blanks."""
    return json.dumps(tree, sort_keys=True, separators=(",", ":"))


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
        (Kind.SCALE_OFFSET, *_picked(expected, actual, (*_SCALE, "_Unsigned"))),
        (Kind.FILL_VALUE, *_picked(expected, actual, _FILL)),
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


def list_column(items: "pa.Array", lengths: Sequence[int]) -> "pa.Array":
    """Make a column of lists from their items, one after the other."""
    splits = np.array(list(accumulate(lengths, initial=0)), np.int32)
    kind = pa.list_(items.type)
    return pa.Array.from_buffers(kind, len(lengths), [None, pa.py_buffer(splits)], children=[items])


def _validity(present: Sequence[bool]) -> "tuple[pa.Buffer | None, int]":
    absent = len(present) - sum(present)
    if not absent:
        return None, 0
    return pa.py_buffer(np.packbits(np.array(present, np.bool_), bitorder="little")), absent


class SourceState(Record):
    """Which state of a file was parsed."""

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
            (loaded.units, loaded.calendar, loaded.inherits) for loaded in (self, other)
        )
        return (
            mine == others and self.values.dtype == other.values.dtype and self._same_values(other)
        )

    def _same_values(self, other: "LoadedValues") -> bool:
        if self.values.shape != other.values.shape:
            return False
        is_float = self.values.dtype.kind == "f"
        return bool(np.array_equal(self.values, other.values, equal_nan=is_float))

    __hash__ = None  # type: ignore[assignment] # compares by content that may change


type Attributes = Mapping[str, Mapping[str, Any]]
"""Attributes by path of group ("" for the root) or array, those in the schema left out."""


class FileFacts(Record):
    """What is known of one file."""

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
    references: int = 0
    inlined_bytes: int = 0
    problem: Problem | None = None
    parser: str | None = None
    """Which code found the arrays: a format may have more than one parser."""

    @property
    def url(self) -> str:
        """Name the file."""
        return self.state.url


@lru_cache(maxsize=1)
def facts_schema() -> "pa.Schema":
    """Return the columns in which facts travel; all types are known to Spark."""
    value = pa.struct(
        [
            ("path", pa.string()),
            ("dtype", pa.string()),
            ("shape", pa.list_(pa.int64())),
            ("data", pa.binary()),
            ("units", pa.string()),
            ("calendar", pa.string()),
            ("inherits", pa.int64()),
        ]
    )
    return pa.schema(
        [
            ("url", pa.string()),
            ("size", pa.int64()),
            ("etag", pa.string()),
            ("modified", pa.int64()),
            ("format", pa.string()),
            ("schema_digest", pa.string()),
            ("schema", pa.string()),
            ("attributes_digest", pa.string()),
            ("attributes", pa.string()),
            ("numbers", pa.string()),
            ("values", pa.list_(value)),
            ("references", pa.int64()),
            ("inlined_bytes", pa.int64()),
            ("problem_kind", pa.string()),
            ("problem", pa.string()),
            ("parser", pa.string()),
        ]
    )


def to_batch(facts: Sequence[FileFacts]) -> "pa.RecordBatch":
    """Write facts as rows."""
    schemas = _Once()
    attributes = _Once()
    for fact in facts:
        schemas.add(*((None, None) if fact.schema is None else _digest_of(fact.schema)))
        text = canonical_json(fact.attributes)
        attributes.add(hashlib.blake2b(text.encode(), digest_size=16).hexdigest(), text)
    columns = [
        text_column([fact.state.url for fact in facts]),
        int_column([fact.state.size for fact in facts]),
        text_column([fact.state.etag for fact in facts]),
        int_column([fact.state.modified for fact in facts]),
        text_column([fact.format for fact in facts]),
        text_column(schemas.digests),
        text_column(schemas.texts),
        text_column(attributes.digests),
        text_column(attributes.texts),
        text_column([_numbers(fact) for fact in facts]),
        _values_column([fact.values for fact in facts]),
        int_column([fact.references for fact in facts]),
        int_column([fact.inlined_bytes for fact in facts]),
        text_column([None if fact.problem is None else fact.problem.kind.value for fact in facts]),
        text_column([None if fact.problem is None else fact.problem.message for fact in facts]),
        text_column([fact.parser for fact in facts]),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=facts_schema())


def from_batches(batches: "Iterable[pa.RecordBatch]") -> list[FileFacts]:
    """Read facts back from the rows of any number of batches, in any order."""
    rows = [row for batch in batches for row in batch.to_pylist()]
    schemas = {
        row["schema_digest"]: DatasetSchema.from_json(row["schema"])
        for row in rows
        if row["schema"] is not None
    }
    attributes = {
        row["attributes_digest"]: json.loads(row["attributes"])
        for row in rows
        if row["attributes"] is not None
    }
    # Most files have the same ones: they share them.
    numbers = {text: json.loads(text) for text in {row["numbers"] for row in rows}}
    return [_from_row(row, schemas, attributes, numbers[row["numbers"]]) for row in rows]


class _Once:
    """Two columns: digests, and texts where a digest first appears."""

    def __init__(self) -> None:
        self.digests: list[str | None] = []
        self.texts: list[str | None] = []
        self._seen: set[str | None] = set()

    def add(self, digest: str | None, text: str | None) -> None:
        self.digests.append(digest)
        self.texts.append(None if digest in self._seen else text)
        self._seen.add(digest)


def _digest_of(schema: DatasetSchema) -> tuple[str, str]:
    return schema.digest, schema.to_json()


def _numbers(facts: FileFacts) -> str:
    return canonical_json([dict(facts.lengths), dict(facts.chunks), dict(facts.digests)])


def _values_column(rows: Sequence[Mapping[str, LoadedValues]]) -> "pa.Array":
    flat = [(path, loaded) for row in rows for path, loaded in row.items()]
    shapes = [loaded.values.shape for _, loaded in flat]
    items = pa.StructArray.from_arrays(
        [
            text_column([path for path, _ in flat]),
            text_column([loaded.values.dtype.str for _, loaded in flat]),
            list_column(
                int_column([length for shape in shapes for length in shape]),
                [len(shape) for shape in shapes],
            ),
            binary_column([np.ascontiguousarray(loaded.values).tobytes() for _, loaded in flat]),
            text_column([loaded.units for _, loaded in flat]),
            text_column([loaded.calendar for _, loaded in flat]),
            int_column([int(loaded.inherits) for _, loaded in flat]),
        ],
        fields=list(facts_schema().field("values").type.value_type),
    )
    return list_column(items, [len(row) for row in rows]).cast(facts_schema().field("values").type)


def _from_row(
    row: Mapping[str, Any],
    schemas: Mapping[str, DatasetSchema],
    attributes: Mapping[str, Attributes],
    numbers: Sequence[dict[str, Any]],
) -> FileFacts:
    lengths, chunks, digests = numbers
    problem = row["problem_kind"]
    return FileFacts(
        state=SourceState(row["url"], row["size"], row["etag"], row["modified"]),
        format=row["format"],
        schema=None if row["schema_digest"] is None else schemas[row["schema_digest"]],
        attributes=attributes[row["attributes_digest"]],
        lengths=lengths,
        chunks=chunks,
        values={entry["path"]: _loaded(entry) for entry in row["values"]},
        digests=digests,
        references=row["references"],
        inlined_bytes=row["inlined_bytes"],
        problem=None if problem is None else Problem(Kind(problem), row["problem"]),
        parser=row["parser"],
    )


def _loaded(entry: Mapping[str, Any]) -> LoadedValues:
    values = np.frombuffer(entry["data"], entry["dtype"]).reshape(entry["shape"])
    return LoadedValues(values, entry["units"], entry["calendar"], inherits=bool(entry["inherits"]))
