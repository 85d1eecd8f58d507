"""Stored numbers as the CF conventions mean them: missing values, packed values and times.

The result is that of xarray: packed values are float64, integers with a marker for missing values
are floating-point numbers, and times are `datetime64`. Dates of other calendars are texts in
ISO 8601.
"""

import base64
import binascii
import math
import re
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import InvalidInputError
from icefloe.pipeline.files.times import TimeUnits, parse_units, show_moments

_GREGORIAN: Final = ("standard", "proleptic_gregorian")
_REFORM: Final = -12_219_292_800_000_000
"""The first moment of the Gregorian calendar, in microseconds since 1970."""
_LATEST: Final = 2**62
_NANOSECONDS: Final = re.compile(r"\s*(nanoseconds?|nanosecs?|ns)\s+since\s", re.IGNORECASE)
_NOT_A_TIME: Final = np.iinfo(np.int64).min


def decode(raw: NDArray[Any], attributes: Mapping[str, Any]) -> NDArray[Any]:
    """Decode values; missing ones become NaN, NaT, or None in arrays of objects.

    >>> decode(np.array([1, -9], "i2"), {"_FillValue": -9, "scale_factor": 0.5}).tolist()
    [0.5, nan]
    >>> decode(np.array([0, 1]), {"units": "days since 2024-02-28"}).astype(str).tolist()
    ['2024-02-28T00:00:00.000000', '2024-02-29T00:00:00.000000']
    """
    if raw.ndim == 0:
        return decode(raw.reshape(1), attributes).reshape(())
    values = _as_signed(raw, attributes)
    scale, offset = (_factor(attributes.get(key)) for key in ("scale_factor", "add_offset"))
    is_packed = scale is not None or offset is not None
    units = time_units(attributes) if raw.dtype.kind in "iuf" else None
    markers = _markers(values.dtype, raw.dtype, attributes)
    if markers:
        values = _masked(values, markers, is_packed=is_packed, is_time=units is not None)
    if is_packed and values.dtype.kind in "iuf":
        values = values.astype(np.float64)
        if scale is not None:
            values *= scale
        if offset is not None:
            values += offset
    return values if units is None else _times(values, units, is_fine=is_nanoseconds(attributes))


def decoded_type(dtype: np.dtype[Any], attributes: Mapping[str, Any]) -> np.dtype[Any]:
    """Return the type that decoded values have; dates before the year 1582 may be texts.

    >>> decoded_type(np.dtype("i2"), {"_FillValue": -9})
    dtype('float32')
    """
    return decode(np.zeros(0, dtype), attributes).dtype


def time_units(attributes: Mapping[str, Any]) -> TimeUnits | None:
    """Return the units of a time; None if the values are no times, or have units of no meaning.

    Nanoseconds have the units of microseconds; their values are a thousand times as large.
    """
    units, calendar = attributes.get("units"), attributes.get("calendar")
    if not isinstance(units, str) or not isinstance(calendar, str | None):
        return None
    try:
        parsed = parse_units(_NANOSECONDS.sub("microseconds since ", units), calendar)
    except InvalidInputError:
        return None
    if parsed is not None and is_nanoseconds(attributes) and abs(parsed.origin) > _LATEST // 1000:
        return None
    return parsed


def is_nanoseconds(attributes: Mapping[str, Any]) -> bool:
    """Return whether the unit of a time is a nanosecond."""
    return _NANOSECONDS.match(str(attributes.get("units"))) is not None


def _as_signed(raw: NDArray[Any], attributes: Mapping[str, Any]) -> NDArray[Any]:
    """Return integers with the sign that the attribute `_Unsigned` gives them."""
    unsigned = str(attributes.get("_Unsigned")).lower()
    if raw.dtype.kind == "i" and unsigned == "true":
        return raw.view(f"{raw.dtype.byteorder}u{raw.dtype.itemsize}")
    if raw.dtype.kind == "u" and unsigned == "false":
        return raw.view(f"{raw.dtype.byteorder}i{raw.dtype.itemsize}")
    return raw


def _markers(
    dtype: np.dtype[Any], stored: np.dtype[Any], attributes: Mapping[str, Any]
) -> list[Any]:
    """Return the values that stand for missing ones; `dtype` may have another sign."""
    markers: list[Any] = []
    for key in ("_FillValue", "missing_value"):
        value = attributes.get(key)
        for element in value if isinstance(value, list) else [value]:
            marker = marker_of(element, dtype)
            if marker is not None and dtype != stored and dtype.kind in "iu":
                marker = int(marker) % 2 ** (8 * dtype.itemsize)
                if dtype.kind == "i" and marker > np.iinfo(dtype).max:
                    marker -= 2 ** (8 * dtype.itemsize)
            if marker is not None:
                markers.append(marker)
    return markers


def marker_of(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return an attribute that marks missing values as a value of the array; None if it is none.

    xarray stores floating-point markers as the Base64 of 8 bytes.

    >>> marker_of("AAAAAAAA8D8=", np.dtype("f4")), marker_of("", np.dtype("i4"))
    (1.0, None)
    """
    if dtype.kind in "iuf":
        number = _packed_number(value) if isinstance(value, str) else value
        if not isinstance(number, int | float) or isinstance(number, bool):
            return None
        if dtype.kind == "f":
            return None if isinstance(number, int) and abs(number) > 2**1000 else float(number)
        if isinstance(number, float) and not math.isfinite(number):
            return None
        return int(number) if abs(number) < 2**64 else None
    if dtype.kind in "UTO":
        return value if isinstance(value, str) else None
    if dtype.kind == "b":
        return value if isinstance(value, bool) else None
    return None


def _packed_number(text: str) -> float | None:
    if text in ("NaN", "Infinity", "-Infinity"):
        return float(text)
    try:
        return float(np.frombuffer(base64.b64decode(text, validate=True), "<f8").item())
    except (ValueError, binascii.Error):
        return None


def _masked(
    values: NDArray[Any], markers: list[Any], *, is_packed: bool, is_time: bool
) -> NDArray[Any]:
    missing: Any = np.nan
    if values.dtype.kind not in "iuf":
        target: np.dtype[Any] = np.dtype(object)
        missing = None
    elif is_packed:
        target = np.dtype(np.float64)
    elif values.dtype.kind == "f":
        target = values.dtype
    elif is_time:
        target, missing = np.dtype(np.int64), _NOT_A_TIME
    else:
        target = np.dtype(np.float32 if values.dtype.itemsize <= 2 else np.float64)
    copied = values.astype(target)
    is_missing = np.zeros(values.shape, np.bool_)
    for marker in markers:
        is_missing |= copied == marker
    copied[is_missing] = missing
    return copied


def _factor(value: Any) -> float | None:
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number else None


def _times(values: NDArray[Any], units: TimeUnits, *, is_fine: bool) -> NDArray[Any]:
    """Return moments; values that no calendar has a date for are missing."""
    is_missing = np.zeros(values.shape, np.bool_)
    if values.dtype.kind == "f":
        is_missing |= ~np.isfinite(values)
    elif values.dtype == np.int64:
        is_missing |= values == _NOT_A_TIME
    numbers = np.where(is_missing, values.dtype.type(0), values)
    is_missing |= np.abs(numbers.astype(np.float64)) > _LATEST / units.step
    numbers = np.where(is_missing, values.dtype.type(0), numbers)
    if values.dtype.kind != "f":
        numbers = numbers.astype(np.int64)
    is_gregorian = units.calendar in _GREGORIAN
    if is_fine and is_gregorian:
        return _as_dates(numbers.astype(np.int64) + units.origin * 1000, is_missing, "ns")
    moments = units.moments(numbers // 1000 if is_fine else numbers)
    first = moments[~is_missing].min(initial=_LATEST)
    if is_gregorian and (units.calendar != "standard" or first >= _REFORM):
        return _as_dates(moments, is_missing, "us")
    texts = show_moments(moments, units.calendar)
    texts[is_missing] = None
    return texts


def _as_dates(moments: NDArray[np.int64], is_missing: NDArray[Any], unit: str) -> NDArray[Any]:
    dates = moments.astype(f"datetime64[{unit}]")
    dates[is_missing] = np.array("NaT", dates.dtype)
    return dates
