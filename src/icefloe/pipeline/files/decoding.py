"""Stored numbers to the numbers that they mean: scaled, shifted, masked, by the conventions of CF.

Types and rounding are those of xarray. Times stay as they are stored: their units tell what they
mean.
"""

import base64
import math
import struct
from collections.abc import Mapping
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from icefloe.pipeline.files.facts import FILL_ATTRIBUTES, SCALE_ATTRIBUTES, Single
from icefloe.pipeline.files.times import parse_units
from icefloe.records import Record

DECODED_ATTRIBUTES: Final = frozenset((*SCALE_ATTRIBUTES, *FILL_ATTRIBUTES, "_Unsigned"))
"""Attributes that have no meaning for decoded numbers."""

_EXACT_IN_SINGLE: Final = 2
"""Integers of up to this many bytes fit into a float of four bytes."""
_PACKED_DOUBLE: Final = 12
"""The length of eight bytes as base64."""


class Decoding(Record):
    """The rule that unpacks the numbers of an array of one file.

    >>> packed = Decoding.of("int16", {"scale_factor": 0.5, "add_offset": 10.0, "_FillValue": -1})
    >>> out = np.empty(3, packed.decoded)
    >>> packed.into(np.array([2, 4, -1], "i2"), out)
    >>> out
    array([11., 12., nan])
    """

    stored: str
    """The type of the numbers, without `_Unsigned`."""
    decoded: str
    """The type of what they mean."""
    scale: float | None = None
    offset: float | None = None
    missing: tuple[int | float, ...] = ()

    @classmethod
    def of(cls, data_type: Any, attributes: Mapping[str, Any]) -> Self | None:
        """Return how an array is decoded; None for one whose numbers mean what they are."""
        if DECODED_ATTRIBUTES.isdisjoint(attributes) or not isinstance(data_type, str):
            return None
        kind = _number_type(data_type)
        if kind is None or parse_units(attributes.get("units"), attributes.get("calendar")):
            return None
        stored = _with_sign(kind, attributes.get("_Unsigned"))
        missing = tuple(
            value
            for name in FILL_ATTRIBUTES
            for value in _numbers(attributes.get(name), stored, kind)
        )
        scale, offset = (_number(attributes.get(name)) for name in SCALE_ATTRIBUTES)
        if scale is None and offset is None and not missing:
            return None if stored == kind else cls(stored.name, stored.name)
        decoded = _float_type(stored, scale, offset)
        return cls(stored.name, decoded.name, scale, offset, tuple(dict.fromkeys(missing)))

    def into(self, values: NDArray[Any], out: NDArray[Any]) -> None:
        """Decode values into an array of the same shape, which may be of a wider type."""
        stored = values.astype(values.dtype.newbyteorder("="), copy=False).view(self.stored)
        kind = np.dtype(self.decoded)
        scale, offset = (
            None if number is None else kind.type(number) for number in (self.scale, self.offset)
        )
        target = out if out.dtype == kind else np.empty(values.shape, kind)
        if scale is None:
            target[...] = stored
        else:
            np.multiply(stored, scale, out=target, dtype=kind, casting="unsafe")
        if offset is not None:
            target += offset
        for value in self.missing:
            if value == value:  # not NaN, which stays what it is  # noqa: PLR0124
                np.copyto(target, np.nan, where=stored == stored.dtype.type(value))
        if target is not out:
            out[...] = target


def common_type(kinds: set[Any]) -> Any:
    """Return the narrowest type of numbers that holds those of all types; None if there is none.

    >>> common_type({"int16", "float32"}), common_type({"float32", "string"})
    ('float32', None)
    """
    if len(kinds) == 1:
        return next(iter(kinds))
    types = [_number_type(kind) if isinstance(kind, str) else None for kind in kinds]
    numbers = [kind for kind in types if kind is not None]
    return np.result_type(*numbers).name if len(numbers) == len(types) else None


def with_missing(kind: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type of numbers some of which are missing.

    >>> with_missing(np.dtype("i2")), with_missing(np.dtype("i8"))
    (dtype('float32'), dtype('float64'))
    """
    if kind.kind in "fc":
        return kind
    return np.dtype("f4" if kind.itemsize <= _EXACT_IN_SINGLE else "f8")


def missing_marker(data_type: Any, attributes: Mapping[str, Any]) -> Any:
    """Return the value that stands for missing ones, as in `zarr.json`; None if there is none.

    >>> missing_marker("float32", {}), missing_marker("int16", {"missing_value": -1})
    ('NaN', -1)
    """
    if data_type == "string":
        return ""
    kind = _number_type(data_type) if isinstance(data_type, str) else None
    if kind is None:
        return None
    stored = _with_sign(kind, attributes.get("_Unsigned"))
    for name in FILL_ATTRIBUTES:
        for number in _numbers(attributes.get(name), stored, kind):
            if kind.kind == "f":
                return _as_json(float(number))
            return int(np.array(number, stored).view(kind))
    return "NaN" if kind.kind == "f" else None


def _as_json(number: float) -> Any:
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def is_number(data_type: Any) -> bool:
    """Return whether values of a type are real numbers.

    >>> is_number("int8"), is_number("string")
    (True, False)
    """
    return isinstance(data_type, str) and _number_type(data_type) is not None


def _number_type(data_type: str) -> np.dtype[Any] | None:
    try:
        kind = np.dtype(data_type)
    except TypeError:
        return None
    return kind if kind.kind in "iuf" else None


def _with_sign(kind: np.dtype[Any], unsigned: Any) -> np.dtype[Any]:
    if kind.kind == "i" and unsigned == "true":
        return np.dtype(f"u{kind.itemsize}")
    if kind.kind == "u" and unsigned == "false":
        return np.dtype(f"i{kind.itemsize}")
    return kind


def _float_type(stored: np.dtype[Any], scale: float | None, offset: float | None) -> np.dtype[Any]:
    """Choose the type as xarray does: by the types of scale and offset."""
    if scale is None and offset is None:
        return with_missing(stored)
    are_single = isinstance(scale, Single) and (offset is None or isinstance(offset, Single))
    is_wide = offset is not None and stored.kind in "iu" and stored.itemsize == 4
    return np.dtype("f4" if are_single and not is_wide else "f8")


def _number(value: Any) -> float | None:
    value = value[0] if isinstance(value, list) and len(value) == 1 else value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if isinstance(value, Single) else float(value)


def _numbers(value: Any, stored: np.dtype[Any], kind: np.dtype[Any]) -> list[int | float]:
    """Return the numbers of an attribute that can stand in an array."""
    numbers: list[int | float] = []
    for element in value if isinstance(value, list) else [value]:
        number = _from_text(element) if isinstance(element, str) else element
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            continue
        if stored.kind == "f":
            numbers.append(float(number))
        elif float(number).is_integer():
            bits = next(
                (bits_type for bits_type in (kind, stored) if _holds(bits_type, int(number))), None
            )
            if bits is not None:
                numbers.append(int(np.array(int(number), bits).view(stored)))
    return numbers


def _holds(kind: np.dtype[Any], number: int) -> bool:
    return bool(np.iinfo(kind).min <= number <= np.iinfo(kind).max)


def _from_text(text: str) -> float | None:
    """Read a number as Zarr and xarray write it in JSON."""
    if len(text) == _PACKED_DOUBLE and text.endswith("="):
        number: float = struct.unpack("<d", base64.standard_b64decode(text))[0]
        return number
    try:
        return float(text)
    except ValueError:
        return None
