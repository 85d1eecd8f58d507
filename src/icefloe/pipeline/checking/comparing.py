"""Do two arrays hold the same values?"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from icefloe.pipeline.checking.readers import Expected


def first_difference(got: NDArray[Any], expected: Expected) -> tuple[int, ...] | None:
    """Return the index of the first value that differs; None if there is none.

    >>> first_difference(np.array([1.0, np.nan]), Expected(np.array([1.0, np.nan])))
    >>> first_difference(np.array([1, 2]), Expected(np.array([1, 3])))
    (1,)
    """
    differs = _differs(got, expected.values, expected.tolerance, expected.period)
    if not differs.any():
        return None
    return tuple(int(place) for place in np.argwhere(differs)[0])


def _differs(
    got: NDArray[Any], wanted: NDArray[Any], tolerance: float, period: float
) -> NDArray[np.bool_]:
    if got.dtype.names is not None and wanted.dtype.names is not None:
        if len(got.dtype.names) != len(wanted.dtype.names):
            return np.ones(got.shape, np.bool_)
        pairs = zip(got.dtype.names, wanted.dtype.names, strict=True)
        columns = [_differs(got[a], wanted[b], tolerance, period) for a, b in pairs]
        return np.asarray(np.logical_or.reduce(columns))
    if got.dtype.kind in "SUTO" or wanted.dtype.kind in "SUTO":
        return np.asarray(_texts(got) != _texts(wanted))
    if tolerance or period:
        return _far_apart(got, wanted, tolerance, period)
    one, other = _native(got), _native(wanted)
    if one.dtype != other.dtype:
        is_nan = _is_nan(one) & _is_nan(other)
        return np.asarray((one != other) & ~is_nan)
    return _other_bits(one, other)


def _far_apart(
    got: NDArray[Any], wanted: NDArray[Any], tolerance: float, period: float
) -> NDArray[np.bool_]:
    is_nan = _is_nan(got) & _is_nan(wanted)
    with np.errstate(invalid="ignore"):  # infinite values have no difference
        apart = np.where(got == wanted, 0.0, got.astype(np.float64) - wanted)
    if period:
        apart -= period * np.round(apart / period)
    return np.asarray(~(np.abs(apart) <= tolerance) & ~is_nan)


def _other_bits(one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.bool_]:
    if one.dtype.kind == "c":
        return _other_bits(one.real.copy(), other.real.copy()) | _other_bits(
            one.imag.copy(), other.imag.copy()
        )
    if one.dtype.kind != "f":
        return np.asarray(one != other)
    bits = np.dtype(f"u{one.dtype.itemsize}")
    same = np.ascontiguousarray(one).view(bits) == np.ascontiguousarray(other).view(bits)
    is_nan = _is_nan(one) & _is_nan(other)
    return np.asarray(~(same | is_nan)).reshape(one.shape)


def _native(values: NDArray[Any]) -> NDArray[Any]:
    if values.dtype.kind in "mM":
        return values.astype(values.dtype.newbyteorder("=")).view(np.int64)
    return values.astype(values.dtype.newbyteorder("="))


def _is_nan(values: NDArray[Any]) -> NDArray[np.bool_]:
    if values.dtype.kind not in "fc":
        return np.zeros(values.shape, np.bool_)
    return np.asarray(np.isnan(values))


def _texts(values: NDArray[Any]) -> NDArray[Any]:
    """Write all values as text, without the zeros that only fill up a field."""
    texts = np.empty(values.shape, object)
    for index in np.ndindex(values.shape):
        value = values[index]
        if isinstance(value, bytes):
            value = value.decode("utf-8", "surrogateescape")
        texts[index] = str(value).rstrip("\0")
    return texts


def shown_value(values: NDArray[Any], at: tuple[int, ...]) -> str:
    """Return a value as text."""
    value = values[at]
    return repr(value.item() if isinstance(value, np.generic) else value)
