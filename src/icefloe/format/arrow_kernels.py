"""What Arrow does for long columns of byte strings, at the speed of a memory copy.

A column is handed over as its bytes and its splits: row `i` is `data[splits[i]:splits[i + 1]]`.
Numbers go to Arrow and come back as buffers: `pyarrow.array`, `pyarrow.scalar` and `to_numpy`
would import pandas, where it is installed.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from icefloe.format.arrow import pa, pc

type Rows = tuple[NDArray[np.uint8], NDArray[np.int64]]

_INLINE_VIEW_BYTES: Final = 12  # an Arrow view keeps shorter rows within itself


def to_arrow(data: NDArray[np.uint8], splits: NDArray[np.int64]) -> "pa.LargeBinaryArray":
    """Give a column to Arrow without copying it."""
    buffers = [None, pa.py_buffer(np.ascontiguousarray(splits)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_binary(), len(splits) - 1, buffers)


def from_arrow(array: "pa.Array") -> Rows:
    """Take an Arrow array of strings or binaries, without a copy where its type allows."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    array = array.cast(pa.large_binary())
    _, offsets, data = array.buffers()
    splits = np.frombuffer(offsets, np.int64, len(array) + 1, array.offset * 8)
    whole = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    if splits[0] == 0 and splits[-1] == len(whole):
        return whole, splits
    return whole[splits[0] : splits[-1]], splits - splits[0]


def gather(
    source: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> Rows:
    """Copy slices of a buffer, which must be within its bounds."""
    # Views are good for one cast to a plain array: long rows lack the prefix that comparisons
    # of views would need, which a cast does not look at.
    views = np.zeros((len(starts), 4), np.int32)
    views[:, 0] = lengths
    views[:, 3] = starts
    short = np.flatnonzero(lengths <= _INLINE_VIEW_BYTES)
    if len(short):
        views[short, 3] = 0
        within = views.view(np.uint8)[:, 4:]
        for place in range(_INLINE_VIEW_BYTES):
            reaching = short[lengths[short] > place]
            within[reaching, place] = source[starts[reaching] + place]
    buffers = [None, pa.py_buffer(views), pa.py_buffer(source)]
    return from_arrow(pa.Array.from_buffers(pa.binary_view(), len(starts), buffers))


def take(data: NDArray[np.uint8], splits: NDArray[np.int64], rows: NDArray[np.integer]) -> Rows:
    """Pick rows by number."""
    return from_arrow(to_arrow(data, splits).take(numbers_to_arrow(rows)))


def is_text(data: NDArray[np.uint8], splits: NDArray[np.int64]) -> bool:
    """Say whether every row is UTF-8."""
    try:
        to_arrow(data, splits).cast(pa.large_string())
    except pa.ArrowInvalid:
        return False
    return True


def to_strings(data: NDArray[np.uint8], splits: NDArray[np.int64]) -> list[str]:
    """Unpack rows into Python strings; `UnicodeDecodeError` if one is not UTF-8."""
    buffers = to_arrow(data, splits).buffers()
    texts = pa.Array.from_buffers(pa.large_string(), len(splits) - 1, buffers)
    unpacked: list[str] = texts.to_pylist()
    return unpacked


def is_ascending(data: NDArray[np.uint8], splits: NDArray[np.int64]) -> bool:
    """Say whether each row sorts after the one before."""
    rows = to_arrow(data, splits)
    return pc.all(pc.less(rows[:-1], rows[1:])).as_py() is not False


def heads_of_runs(data: NDArray[np.uint8], splits: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Mark each row that differs from the one before."""
    rows = to_arrow(data, splits)
    is_head = np.ones(len(rows), np.bool_)
    is_head[1:] = mask_of(pc.not_equal(rows[1:], rows[:-1]))
    return is_head


def distinct(data: NDArray[np.uint8], splits: NDArray[np.int64]) -> tuple[Rows, NDArray[np.uint32]]:
    """Drop repeated rows; also give, for each old row, its new number."""
    encoded = to_arrow(data, splits).dictionary_encode()
    return from_arrow(encoded.dictionary), numbers_of(encoded.indices).astype(np.uint32)


def sort_order(data: NDArray[np.uint8], splits: NDArray[np.int64]) -> NDArray[np.int64]:
    """List the rows in the order of their bytes."""
    return numbers_of(pc.sort_indices(to_arrow(data, splits))).astype(np.int64)


def framed(data: NDArray[np.uint8], splits: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Put its length before each row, and one to four zero bytes behind, up to a whole word."""
    lengths = np.diff(splits)
    count = len(lengths)
    heads = pa.Array.from_buffers(
        pa.binary(4), count, [None, pa.py_buffer(lengths.astype("<u4"))]
    ).cast(pa.large_binary())
    paddings = np.zeros(count + 1, np.int64)
    np.cumsum(4 - lengths % 4, out=paddings[1:])
    padding = to_arrow(np.zeros(int(paddings[-1]), np.uint8), paddings)
    separator = to_arrow(np.empty(0, np.uint8), np.zeros(2, np.int64))[0]
    joined = pc.binary_join_element_wise(heads, to_arrow(data, splits), padding, separator)
    return from_arrow(joined)[0]


def mask_of(answers: "pa.BooleanArray") -> NDArray[np.bool_]:
    """Take answers from Arrow, none of them missing."""
    return numbers_of(answers.cast(pa.uint8())).astype(np.bool_)


def numbers_to_arrow(values: NDArray[np.integer]) -> "pa.Array":
    """Give numbers to Arrow without copying them."""
    kind = pa.from_numpy_dtype(values.dtype)
    buffer = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(kind, len(values), [None, buffer])


def numbers_of(array: "pa.Array") -> NDArray[np.integer]:
    """Take numbers from Arrow; what stands in for a missing one is not defined."""
    width = array.type.bit_width // 8
    kind = np.dtype(f"{'u' if pa.types.is_unsigned_integer(array.type) else 'i'}{width}")
    if len(array) == 0:
        return np.empty(0, kind)
    return np.frombuffer(array.buffers()[1], kind, len(array), array.offset * width)
