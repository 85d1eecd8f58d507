"""What arrays look like, as values with a digest, and in what two descriptions differ.

A schema leaves out what differs from file to file by nature: lengths along the dimensions that
files are joined along (shown as -1), chunks along these that can be cut anyway (shown as 0), and
attributes that do not change the meaning of stored numbers.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, Final

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
