"""What arrays look like, as values with a digest, and in what two descriptions differ.

A schema leaves out what differs from file to file by nature: lengths along the dimensions that
files are joined along (shown as -1), chunks along these that can be cut anyway (shown as 0), and
attributes that do not change the meaning of stored numbers.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, Final

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


@dataclass(frozen=True, slots=True)
class Difference:
    """One respect in which an array, or a file, is not as expected."""

    kind: Kind
    path: str
    expected: str
    found: str


@dataclass(frozen=True, slots=True)
class ArraySchema:
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
        return cls(tuple(sorted(arrays, key=lambda each: each.path)))

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
        return cls(tuple(_array_from(each) for each in json.loads(text)))


def _array_from(tree: dict[str, Any]) -> ArraySchema:
    tuples = {name: tuple(tree[name]) for name in ("dimensions", "shape", "chunks", "codecs")}
    return ArraySchema(**{**tree, **tuples})


def canonical_json(tree: Any) -> str:
    """Write JSON with sorted keys and without blanks."""
    return json.dumps(tree, sort_keys=True, separators=(",", ":"))


def misfits(expected: DatasetSchema, found: DatasetSchema) -> list[Difference]:
    """List everything in which a file's schema is not the expected one."""
    if expected.digest == found.digest:
        return []
    differences: list[Difference] = []
    for path in sorted(expected.by_path.keys() | found.by_path.keys()):
        wanted, given = expected.by_path.get(path), found.by_path.get(path)
        if given is None:
            differences.append(Difference(Kind.MISSING_VARIABLE, path, "present", "absent"))
        elif wanted is None:
            differences.append(Difference(Kind.EXTRA_VARIABLE, path, "absent", "present"))
        else:
            differences.extend(array_misfits(wanted, given))
    return differences


def array_misfits(expected: ArraySchema, found: ArraySchema) -> Iterator[Difference]:
    """List everything in which an array is not the expected one."""
    if expected == found:
        return
    for kind, wanted, given in (
        (Kind.DTYPE, expected.data_type, found.data_type),
        (Kind.DIMENSIONS, expected.dimensions, found.dimensions),
        (Kind.CODECS, expected.codecs, found.codecs),
        (Kind.FILL_VALUE, expected.fill_value, found.fill_value),
        (Kind.SCALE_OFFSET, *_picked(expected, found, (*_SCALE, "_Unsigned"))),
        (Kind.FILL_VALUE, *_picked(expected, found, _FILL)),
        (Kind.UNITS, *_picked(expected, found, _UNITS)),
    ):
        if canonical_json(wanted) != canonical_json(given):
            yield Difference(kind, expected.path, _shown(wanted), _shown(given))
    if expected.dimensions == found.dimensions:
        if expected.shape != found.shape:
            yield Difference(Kind.SHAPE, expected.path, _shown(expected.shape), _shown(found.shape))
        elif _other_chunks(expected, found):
            yield Difference(
                Kind.CHUNK_SHAPE, expected.path, _shown(expected.chunks), _shown(found.chunks)
            )


def _other_chunks(expected: ArraySchema, found: ArraySchema) -> bool:
    """Compare chunks; whether they can be cut hangs on the codecs, which are compared apart."""
    if canonical_json(expected.codecs) == canonical_json(found.codecs):
        return expected.chunks != found.chunks
    return any(
        wanted != given and ANY_CHUNK not in {wanted, given}
        for wanted, given in zip(expected.chunks, found.chunks, strict=True)
    )


def _picked(
    expected: ArraySchema, found: ArraySchema, names: tuple[str, ...]
) -> tuple[dict[str, Any], dict[str, Any]]:
    return (
        {name: expected.encoding[name] for name in names if name in expected.encoding},
        {name: found.encoding[name] for name in names if name in found.encoding},
    )


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
