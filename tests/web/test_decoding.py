"""Decoded values, compared with what xarray makes of the same numbers and attributes."""

import base64
import io
import struct
import warnings
from typing import Any

import numpy as np
import pytest
import xarray
from xarray.coders import CFDatetimeCoder

from icefloe.web.data import Dataset, Variable
from icefloe.web.decoding import decode, decoded_type
from icefloe.web.formats import Format, write
from icefloe.web.selection import AxisSelection
from tests.web.cubes import times_of

NUMBERS = [0, 1, 5, 100, 120]
TYPES = ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "f4", "f8"]
ATTRIBUTES: list[dict[str, Any]] = [
    {},
    {"_FillValue": 5},
    {"missing_value": 100},
    {"_FillValue": 5, "missing_value": 5},
    {"scale_factor": 0.25},
    {"add_offset": 273.15},
    {"scale_factor": 0.25, "add_offset": -3.5, "_FillValue": 100},
    {"units": "days since 2000-02-28"},
    {"units": "hours since 2000-02-28 12:00:00", "calendar": "proleptic_gregorian"},
    {"units": "days since 2000-02-28", "_FillValue": 5},
    {"units": "days since 2000-02-28", "calendar": "360_day"},
    {"units": "days since 2001-02-25", "calendar": "noleap"},
    {"units": "days since 1582-10-01"},
    {"units": "seconds since 1970-01-01", "scale_factor": 0.5},
    {"units": "K"},
    {"units": "months since 2000-01-01 nonsense"},
]


def by_xarray(raw: np.ndarray[Any, Any], attributes: dict[str, Any]) -> np.ndarray[Any, Any]:
    kept = {
        name: raw.dtype.type(value) if name in ("_FillValue", "missing_value") else value
        for name, value in attributes.items()
    }
    variable = xarray.Variable(("x",), raw, kept)
    times = False if "nonsense" in attributes.get("units", "") else CFDatetimeCoder(time_unit="us")
    with warnings.catch_warnings(category=xarray.SerializationWarning, action="ignore"):
        decoded = xarray.conventions.decode_cf_variable("v", variable, decode_times=times)
        return np.asarray(decoded.to_numpy())


@pytest.mark.parametrize("attributes", ATTRIBUTES, ids=str)
def test_numbers_and_times_are_those_of_xarray(attributes: dict[str, Any]) -> None:
    for name in TYPES:
        raw = np.array(NUMBERS, name)
        expected = by_xarray(raw, attributes)
        stored = dict(attributes)
        if name.startswith("f") and "_FillValue" in stored:
            packed = struct.pack("<d", stored["_FillValue"])
            stored["_FillValue"] = base64.b64encode(packed).decode()
        values = decode(raw, stored)
        if "1582" not in attributes.get("units", ""):
            assert values.dtype == decoded_type(raw.dtype, stored)
        if expected.dtype.kind == "O":  # dates of cftime
            assert values.tolist() == times_of(expected)
        else:
            assert values.dtype == expected.dtype, name
            np.testing.assert_array_equal(values, expected)


def test_signs_and_odd_markers() -> None:
    raw = np.array([-1, -128, 5], "i1")
    unsigned = {"_Unsigned": "true", "_FillValue": -1}
    expected = by_xarray(raw, unsigned)
    np.testing.assert_array_equal(decode(raw, unsigned), expected)
    odd: list[Any] = ["", "nonsense", None, {}, [], [None], True, 10**400, float("nan")]
    for marker in odd:
        assert decode(raw, {"_FillValue": marker, "scale_factor": None}).tolist() == raw.tolist()
    assert np.isnan(decode(np.array([np.inf, 1.0]), {"_FillValue": "Infinity"})[0])
    assert decode(np.array(["a", "b"]), {"_FillValue": "a"}).tolist() == [None, "b"]


def test_missing_dates_of_other_calendars() -> None:
    # xarray raises an error for integers, and takes the reference date for floating-point numbers.
    attributes = {"units": "days since 2001-02-28", "calendar": "noleap", "_FillValue": 5}
    for dtype in ("i4", "f8"):
        assert decode(np.array([1, 5], dtype), attributes).tolist() == ["2001-03-01T00:00:00", None]


def test_times_that_no_calendar_has_are_missing() -> None:
    for dtype in ("i8", "f8", "u8"):
        huge = np.array([2**62, 1], dtype)
        for units in ("days since 2000-01-01", "nanoseconds since 2000-01-01"):
            found = decode(huge, {"units": units})
            assert str(found[1]).startswith("2000-01-0")
    fine = decode(np.array([1, 1_000_000_001]), {"units": "nanoseconds since 2000-01-01"})
    assert fine.astype(str).tolist() == [
        "2000-01-01T00:00:00.000000001",
        "2000-01-01T00:00:01.000000001",
    ]


@pytest.mark.parametrize(
    "values",
    [
        np.array(["2024-01-01", "NaT"], "datetime64[D]"),
        np.array(["2024-01-01T00:00:00.5", "2024-01-02"], "datetime64[ms]"),
        np.array([5, 7], "timedelta64[h]"),
        np.array([0, 255], "u1"),
        np.array([0, 2**32 - 1], "u4"),
        np.array([-(2**40), 3], "i8"),
        np.array([True, False]),
        np.array([1.5, 2.5], "f2"),
        np.array(["ü", "bc"]),
    ],
    ids=lambda values: str(values.dtype),
)
def test_all_types_can_be_written(values: np.ndarray[Any, Any]) -> None:
    axis = AxisSelection("x", np.arange(2), is_position=False)
    dataset = Dataset(
        {"x": axis},
        {"x": Variable("x", ("x",), np.arange(2), {})},
        (Variable("v", ("x",), values, {"note": {"a": [1]}}),),
    )
    for form in Format:
        content = b"".join(write(dataset, form, {}))
        if form is Format.NETCDF:
            with xarray.open_dataset(io.BytesIO(content), engine="scipy") as opened:
                found = opened["v"].to_numpy()
            if values.dtype.kind == "M":
                np.testing.assert_array_equal(found.astype("M8[ms]"), values.astype("M8[ms]"))
            elif values.dtype.kind == "m":
                np.testing.assert_array_equal(found.astype(float), values.astype(float))
            elif values.dtype.kind == "U":
                assert [text.decode() for text in found] == values.tolist()
            else:
                np.testing.assert_array_equal(found, values)
        else:
            assert content
