"""The values of a picture in few bytes: each is a place in a table of values.

A table with all values of a picture loses nothing. A picture with more values than a table may have
gets levels instead: most of them in the range without outliers, which the colours show. If the
bytes are still too many, because neighbours have little in common, there are fewer levels. A screen
shows 256 colours of a table, so that the eye does not see the difference. The greatest difference
of a value and its level is known, and the page asks for the exact value of a place that is pointed
at.

Neighbours are alike, so that the difference of a place to the one on its left is stored: small
numbers first, and low and high bytes apart. That is what gzip needs.
"""

import zlib
from typing import Final

import numpy as np
from numpy.typing import NDArray

from icefloe.records import Record

MOST_PLAIN: Final = 4096
"""So many values are sent as they are."""
MOST_BYTES: Final = 280_000
"""How many compressed bytes the values of a picture may have, so that a page has 400 KB at most."""
_LEVELS: Final = (4096, 1024, 256)
"""How long a table may be; with the last length, no picture of 512 by 512 has too many bytes."""
_OUTLIERS: Final = 16
"""Values below the range without outliers have this part of the levels, and so have those above."""
_LOW_BITS: Final = 8


class Packed(Record, eq=False):
    """Values as places in a table."""

    content: bytes
    """The table as 32-bit numbers, the low bytes of all differences, and the high bytes."""
    levels: int
    """The length of the table."""
    rounding: float
    """The greatest difference of a value and the one in its place; 0 if there is none."""


def pack(values: NDArray[np.float32]) -> Packed:
    """Pack the rows and columns of a picture; values that are no numbers become NaN."""
    table, places = np.unique(np.where(np.isfinite(values), values, np.nan), return_inverse=True)
    places = places.reshape(values.shape)
    packed = None
    for most in _LEVELS:
        if len(table) <= most:
            packed = _pack(values, table, places)
        else:
            levels = _levels(values, most)
            packed = _pack(values, levels, _nearest(levels, values))
        if len(zlib.compress(packed.content, 6)) <= MOST_BYTES:
            break
    assert packed is not None
    return packed


def _levels(values: NDArray[np.float32], most: int) -> NDArray[np.float32]:
    """Choose levels for values; the last one is for those that are missing."""
    finite = values[np.isfinite(values)].astype(np.float64)
    low, high = np.percentile(finite, [2, 98])
    outliers = most // _OUTLIERS
    levels = np.concatenate(
        [
            np.linspace(finite.min(), low, outliers, endpoint=False),
            np.linspace(low, high, most - 2 * outliers - 2, endpoint=False),
            np.linspace(high, finite.max(), outliers),
            [0.0] if finite.min() < 0 < finite.max() else [],  # what did not change stays so
        ]
    )
    return np.append(np.unique(levels.astype(np.float32)), np.float32(np.nan))


def _nearest(levels: NDArray[np.float32], values: NDArray[np.float32]) -> NDArray[np.int64]:
    wide = levels[:-1].astype(np.float64)
    places = np.searchsorted((wide[1:] + wide[:-1]) / 2, values)
    return np.where(np.isfinite(values), places, len(levels) - 1)


def _pack(
    values: NDArray[np.float32], table: NDArray[np.float32], places: NDArray[np.int64]
) -> Packed:
    count = len(table)
    # A difference and the one that leads around all places have the same result: the shorter way.
    steps = (np.diff(places, axis=1, prepend=0) + count // 2) % count - count // 2
    codes = np.where(steps >= 0, 2 * steps, -2 * steps - 1).ravel().astype(np.uint16)
    parts = [codes.astype(np.uint8)]
    if count > 1 << _LOW_BITS:
        parts.append((codes >> _LOW_BITS).astype(np.uint8))
    shown = table[places].astype(np.float64)
    rounding = np.nanmax(np.abs(np.where(np.isfinite(values), values, np.nan) - shown), initial=0.0)
    content = table.astype("<f4").tobytes() + b"".join(part.tobytes() for part in parts)
    return Packed(content, count, float(rounding))
