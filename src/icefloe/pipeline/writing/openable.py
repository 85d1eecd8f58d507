"""Datasets of a usual form, of which it is known without xarray that xarray opens them.

Importing xarray takes longer than a small job. What is not known here is opened with xarray.
"""

import base64
import binascii
import re
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

import numpy as np
import zarr

from icefloe.errors import IcefloeError

_NUMBERS: Final = "iuf"
_SINCE: Final = re.compile(
    r"(days|hours|minutes|seconds) since (\d{4})-(\d\d?)-(\d\d?)"
    r"(?:[ T](\d\d?):(\d\d)(?::(\d\d)(?:\.0+)?)?)?"
)
_SECONDS: Final = {"days": 86_400, "hours": 3600, "minutes": 60, "seconds": 1}
_CALENDARS: Final = ("standard", "gregorian", "proleptic_gregorian")
_EARLIEST, _LATEST = datetime(1700, 1, 1), datetime(2250, 1, 1)
_PERIODS: Final = re.compile(r"(?i)(week|day|hour|minute|second|milli|micro|nano)|^(ms|us|ns)$")
_UNUSUAL: Final = ("_Unsigned", "_Encoding", "dtype")
_MOST_BYTES: Final = 1 << 20


def surely_opens(group: zarr.Group, stored: Collection[str]) -> bool:
    """Return whether xarray certainly opens a group, and decodes the coordinates in `stored`.

    >>> from zarr.storage import MemoryStore
    >>> group = zarr.create_group(MemoryStore())
    >>> _ = group.create_array("x", shape=2, dtype="f4", dimension_names=("x",))
    >>> surely_opens(group, {"x"})
    True
    >>> group["x"].attrs["units"] = "days since a while"
    >>> surely_opens(group, {"x"})
    False
    """
    arrays = dict(group.arrays())
    lengths: dict[str, int] = {}
    for array in arrays.values():
        names = _dimensions(array)
        if names is None or len(set(names)) < len(names):
            return False
        for name, length in zip(names, array.shape, strict=True):
            if lengths.setdefault(name, length) != length:
                return False
    units = _units_of_bounds(arrays)
    for name, array in arrays.items():
        if name in lengths and _dimensions(array) != (name,):
            return False
        attributes = {**units.get(name, {}), **array.attrs}
        if not (_is_plain(array) and _masks_and_scales(array.dtype, attributes)):
            return False
        if name in stored and not _decodes(array, attributes):
            return False
    return True


def _dimensions(array: "zarr.Array[Any]") -> tuple[str, ...] | None:
    """Return the names of the dimensions; None if one has no name."""
    names = getattr(array.metadata, "dimension_names", None) or ()
    is_named = len(names) == array.ndim and all(isinstance(name, str) and name for name in names)
    return tuple(names) if is_named else None


def _units_of_bounds(arrays: "Mapping[str, zarr.Array[Any]]") -> dict[str, dict[str, Any]]:
    """Return what the bounds of times take over from their times, by their names."""
    taken = {}
    for array in arrays.values():
        bounds, units = array.attrs.get("bounds"), array.attrs.get("units")
        if isinstance(bounds, str) and isinstance(units, str) and "since" in units:
            shared = {"units": units, "calendar": array.attrs.get("calendar")}
            taken[bounds] = {key: value for key, value in shared.items() if value is not None}
    return taken


def _is_plain(array: "zarr.Array[Any]") -> bool:
    grid = getattr(array.metadata, "chunk_grid", None)
    attributes = array.attrs
    return (
        array.dtype.kind in "biuf"
        and array.metadata.zarr_format == 3
        and type(grid).__name__.startswith("Regular")
        and not any(name in attributes for name in _UNUSUAL)
        and isinstance(attributes.get("coordinates", ""), str)
        and isinstance(attributes.get("bounds", ""), str)
        and isinstance(attributes.get("units", ""), str | int | float)
    )


def _masks_and_scales(kind: np.dtype[Any], attributes: Mapping[str, Any]) -> bool:
    """Return whether values can be masked and scaled, where attributes ask for it."""
    asked = [
        name
        for name in ("_FillValue", "missing_value", "scale_factor", "add_offset")
        if name in attributes
    ]
    if asked and kind.kind not in _NUMBERS:
        return False
    if not all(_is_number(attributes[name]) for name in asked if name != "_FillValue"):
        return False
    return "_FillValue" not in asked or _is_fill_value(kind, attributes["_FillValue"])


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_fill_value(kind: np.dtype[Any], value: object) -> bool:
    """Return whether a value is written as xarray writes fill values in Zarr."""
    if kind.kind == "f":
        try:
            return isinstance(value, str) and len(base64.b64decode(value, validate=True)) == 8
        except (binascii.Error, ValueError):
            return False
    if not isinstance(value, int) or isinstance(value, bool):
        return False
    limits = np.iinfo(kind)
    return int(limits.min) <= value <= int(limits.max)


def _decodes(array: "zarr.Array[Any]", attributes: Mapping[str, Any]) -> bool:
    """Return whether values are no times, or times that can be decoded without doubt."""
    units = str(attributes.get("units", ""))
    if "since" not in units:
        return _PERIODS.search(units) is None
    written = _SINCE.fullmatch(units)
    is_usual = (
        written is not None
        and attributes.get("calendar", "standard") in _CALENDARS
        and array.dtype.kind in _NUMBERS
        and array.nbytes <= _MOST_BYTES
        and not any(name in attributes for name in ("_FillValue", "missing_value", "scale_factor"))
        and "add_offset" not in attributes
    )
    if written is None or not is_usual:
        return False
    try:
        begin = datetime(*(int(number or 0) for number in written.groups()[1:]))  # type: ignore[arg-type]
        values = np.asarray(array[...])
        if values.size == 0:
            return False
        if not np.isfinite(values).all():
            return False
        extremes = (float(values.min()), float(values.max()))
        moments = [begin + timedelta(seconds=_SECONDS[written[1]] * value) for value in extremes]
    except IcefloeError:
        raise
    except (ValueError, OverflowError):  # no such day, or far away
        return False
    return all(_EARLIEST < moment < _LATEST for moment in (begin, *moments))
