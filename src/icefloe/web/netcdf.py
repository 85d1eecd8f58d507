"""Values as a netCDF-3 file (64-bit offset), which every netCDF library reads.

The file has the numbers as they are stored, with the attributes that decode them. Types that
netCDF-3 lacks become wider ones: unsigned integers signed ones, 64-bit integers 32-bit ones or
floating-point numbers, where that changes no value.
"""

import json
import re
import struct
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.records import Record
from icefloe.web.data import Dataset, Variable
from icefloe.web.decoding import marker_of

_MAGIC: Final = b"CDF\x02"
_DIMENSION, _VARIABLE, _ATTRIBUTE = 10, 11, 12
_TYPES: Final = {"i1": 1, "S1": 2, "i2": 3, "i4": 4, "f4": 5, "f8": 6}
_TEXT: Final = 2
_EXACT: Final = 2**53
"""Whole numbers up to this one are floating-point numbers, too."""
_NOT_IN_NAMES: Final = re.compile(r"[\x00-\x1f\x7f/]")
_MARKERS: Final = ("_FillValue", "missing_value")
_UNITS: Final = {
    "D": "days",
    "h": "hours",
    "m": "minutes",
    "s": "seconds",
    "ms": "milliseconds",
    "us": "microseconds",
    "ns": "nanoseconds",
}
_WIDER: Final = {"b1": "i1", "u1": "i2", "u2": "i4", "f2": "f4"}


class _Written(Record, eq=False):
    """A variable in the types of netCDF-3."""

    name: str
    dimensions: tuple[str, ...]
    values: NDArray[Any]
    attributes: dict[str, Any]

    @property
    def type_code(self) -> int:
        return _TYPES[self.values.dtype.str[1:]]

    @property
    def size_bytes(self) -> int:
        return self.values.nbytes + -self.values.nbytes % 4

    @property
    def data(self) -> bytes:
        swapped = self.values.astype(self.values.dtype.newbyteorder(">"), copy=False)
        return _padded(np.ascontiguousarray(swapped).tobytes())


def to_netcdf(dataset: Dataset) -> bytes:
    """Write variables and coordinates, whose values are as they are stored."""
    lengths = dict(dataset.shape)
    written = [_prepare(variable, lengths) for variable in dataset.columns]
    scalars = [name for name, v in dataset.coordinates.items() if not v.dimensions]
    for variable_written in written:
        if variable_written.name not in dataset.coordinates and scalars:
            named = variable_written.attributes.get("coordinates")
            names = [*(named.split() if isinstance(named, str) else ()), *scalars]
            variable_written.attributes["coordinates"] = " ".join(dict.fromkeys(names))
    numbers = {name: number for number, name in enumerate(lengths)}
    dimensions = [_name(name) + struct.pack(">i", length) for name, length in lengths.items()]
    # The header has the positions of the values, which begin where it ends: 8 bytes for each.
    start = len(_header(dimensions, written, numbers, [0] * len(written)))
    positions = []
    for variable_written in written:
        positions.append(start)
        start += variable_written.size_bytes
    header = _header(dimensions, written, numbers, positions)
    return b"".join([header, *(variable_written.data for variable_written in written)])


def _header(
    dimensions: list[bytes],
    variables: list[_Written],
    numbers: Mapping[str, int],
    positions: list[int],
) -> bytes:
    described = []
    for variable, position in zip(variables, positions, strict=True):
        axes = [numbers[name] for name in variable.dimensions]
        described.append(
            _name(variable.name)
            + struct.pack(f">{len(axes) + 1}i", len(axes), *axes)
            + _list(
                _ATTRIBUTE, [_attribute(*attribute) for attribute in variable.attributes.items()]
            )
            + struct.pack(">iIq", variable.type_code, variable.size_bytes, position)
        )
    conventions = _list(_ATTRIBUTE, [_attribute("Conventions", "CF-1.10")])
    parts = [_list(_DIMENSION, dimensions), conventions, _list(_VARIABLE, described)]
    return _MAGIC + struct.pack(">i", 0) + b"".join(parts)


def _list(tag: int, items: list[bytes]) -> bytes:
    return struct.pack(">ii", tag if items else 0, len(items)) + b"".join(items)


def _name(text: str) -> bytes:
    name = (_NOT_IN_NAMES.sub("_", text).rstrip() or "_").encode("utf-8", "replace")
    return struct.pack(">i", len(name)) + _padded(name)


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 4)


def _attribute(name: str, value: Any) -> bytes:
    if isinstance(value, np.ndarray):
        code = _TYPES[value.dtype.str[1:]]
        data = value.astype(value.dtype.newbyteorder(">")).tobytes()
        return _name(name) + struct.pack(">ii", code, value.size) + _padded(data)
    text = value if isinstance(value, str) else json.dumps(value)
    data = text.encode("utf-8", "replace")
    return _name(name) + struct.pack(">ii", _TEXT, len(data)) + _padded(data)


def _attribute_value(value: Any) -> Any:
    """Return numbers as arrays; everything else becomes text.

    >>> _attribute_value([1, 2]).dtype.name, _attribute_value(0.5).dtype.name
    ('int32', 'float64')
    """
    items = value if isinstance(value, list) else [value]
    if not items or not all(type(element) in (int, float) for element in items):
        return value
    if all(isinstance(element, int) and abs(element) < 2**31 for element in items):
        return np.array(items, np.int32)
    return np.array(items, np.float64)


def _prepare(variable: Variable, lengths: dict[str, int]) -> _Written:
    """Return a variable in the types of netCDF-3; texts get a dimension for their letters."""
    stored = variable.values
    attributes = {
        name: _attribute_value(value)
        for name, value in variable.attributes.items()
        if name not in _MARKERS
    }
    if stored.dtype.kind in "UTSO":
        letters = _letters(stored)
        dimension, width = f"string{letters.shape[-1]}", letters.shape[-1]
        while lengths.setdefault(dimension, width) != width:
            dimension += "_"
        return _Written(variable.name, (*variable.dimensions, dimension), letters, attributes)
    if stored.dtype.kind in "mM":
        stored, attributes["units"] = _plain_times(stored)
    markers = {name: _markers(variable.attributes.get(name), stored.dtype) for name in _MARKERS}
    values = _narrowed(variable.name, stored, [m for texts in markers.values() for m in texts])
    for name, numbers in markers.items():
        storable = numbers[:1] if name == "_FillValue" else numbers  # of which netCDF has one
        if storable:
            with np.errstate(over="ignore"):
                attributes[name] = np.array(storable).astype(values.dtype)
    return _Written(variable.name, variable.dimensions, values, attributes)


def _markers(value: Any, dtype: np.dtype[Any]) -> list[Any]:
    """Return the numbers of an attribute that mark missing values."""
    markers = [
        marker_of(element, dtype) for element in (value if isinstance(value, list) else [value])
    ]
    numbers = [number for number in markers if number is not None]
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        numbers = [number for number in numbers if limits.min <= number <= limits.max]
    return numbers


def _narrowed(name: str, values: NDArray[Any], markers: list[Any]) -> NDArray[Any]:
    """Return numbers in a type of netCDF-3 that has all of them, and their markers."""
    code = values.dtype.str[1:]
    if code in _WIDER:
        return values.astype(_WIDER[code])
    if code not in ("u4", "i8", "u8"):
        return values
    everything = [int(values.min(initial=0)), int(values.max(initial=0)), *markers]
    if all(-(2**31) <= number < 2**31 for number in everything):
        return values.astype(np.int32)
    if all(abs(number) <= _EXACT for number in everything):
        return values.astype(np.float64)
    raise InvalidInputError(
        f"netCDF-3 has no integers as large as those of {name}: use format=arrow",
        ErrorKind.INVALID_REQUEST,
    )


def _plain_times(values: NDArray[Any]) -> tuple[NDArray[Any], str]:
    """Return moments as seconds, spans as the numbers that they are, and the units of both."""
    if values.dtype.kind == "M":
        seconds = values.astype("datetime64[us]").astype(np.int64) / 1e6
        return np.where(np.isnat(values), np.nan, seconds), "seconds since 1970-01-01"
    unit, count = np.datetime_data(values.dtype)
    return values.astype(np.int64) * count, _UNITS.get(unit, unit)


def _letters(values: NDArray[Any]) -> NDArray[Any]:
    texts = [
        value if isinstance(value, bytes) else ("" if value is None else str(value)).encode()
        for value in values.reshape(-1).tolist()
    ]
    width = max([1, *map(len, texts)])
    return (
        np.array(texts, f"S{width}").reshape(values.shape).view("S1").reshape(*values.shape, width)
    )
