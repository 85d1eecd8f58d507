"""Arrow columns from Python values, made as buffers: `pyarrow.array` would import pandas."""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from icefloe.format.arrow import pa
from icefloe.format.columns import BytesColumn


def text_column(values: Sequence[str | None]) -> "pa.Array":
    """Make a column of strings; None becomes null."""
    return binary_column([None if each is None else each.encode() for each in values]).cast(
        pa.string()
    )


def binary_column(values: Sequence[bytes | None]) -> "pa.Array":
    """Make a column of byte strings; None becomes null."""
    column = BytesColumn.from_list([each or b"" for each in values])
    validity, nulls = _validity([each is not None for each in values])
    buffers = [
        validity,
        pa.py_buffer(column.splits.astype(np.int32)),
        pa.py_buffer(np.ascontiguousarray(column.data)),
    ]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers, nulls)


def int_column(values: Sequence[int | None] | NDArray[np.int64]) -> "pa.Array":
    """Make a column of 64-bit integers; None becomes null."""
    if isinstance(values, np.ndarray):
        whole = np.ascontiguousarray(values, np.int64)
        return pa.Array.from_buffers(pa.int64(), len(whole), [None, pa.py_buffer(whole)])
    validity, nulls = _validity([each is not None for each in values])
    filled = np.array([each or 0 for each in values], np.int64)
    return pa.Array.from_buffers(pa.int64(), len(values), [validity, pa.py_buffer(filled)], nulls)


def list_column(items: "pa.Array", lengths: Sequence[int]) -> "pa.Array":
    """Make a column of lists from their items, one after the other."""
    splits = np.array(list(accumulate(lengths, initial=0)), np.int32)
    kind = pa.list_(items.type)
    return pa.Array.from_buffers(kind, len(lengths), [None, pa.py_buffer(splits)], children=[items])


def _validity(present: Sequence[bool]) -> "tuple[pa.Buffer | None, int]":
    absent = len(present) - sum(present)
    if not absent:
        return None, 0
    return pa.py_buffer(np.packbits(np.array(present, np.bool_), bitorder="little")), absent
