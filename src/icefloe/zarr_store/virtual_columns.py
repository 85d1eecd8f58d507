"""Columns of virtual references, from whatever users have them in.

Numbers and texts come as numpy arrays, as Arrow arrays (of pyarrow, or of any library that
exports its columns through the Arrow interface) or as plain lists. They leave as numpy columns,
texts with each distinct one kept once: many chunks usually lie in few files.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import compress
from math import isnan
from operator import ne
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.arrow import pa, pc
from icefloe.format.columns import BytesColumn, Ints, mask_of, numbers_of, splits_of

type TextColumn = Sequence[str | None] | NDArray[Any] | pa.Array | pa.ChunkedArray
type NumberColumn = Sequence[int] | NDArray[Any] | pa.Array | pa.ChunkedArray
type CoordinateColumn = Sequence[Sequence[int]] | NumberColumn
type TimeColumn = Sequence[datetime | int | None] | NDArray[Any] | pa.Array | pa.ChunkedArray

_NONE: Final = -1
_WHOLE: Final = (int, np.integer)
_BLOCK_ROWS: Final = 64 * 1024
"""So many texts are objects at a time."""
_LARGEST_U32: Final = 2**32 - 1
_LARGEST_END: Final = 2**63 - 1
"""No storage can be asked for bytes beyond."""


def refused(problem: str) -> InvalidInputError:
    """Return the error for references that a caller passed."""
    return InvalidInputError(problem, ErrorKind.INVALID_VIRTUAL_REF)


# -- texts ---------------------------------------------------------------------------------


def distinct_texts(user_column: TextColumn, name: str) -> tuple[BytesColumn, Ints]:
    """Return the distinct texts of a column, and which one each row has.

    Rows without a text (`None`, null or empty) have -1.

    >>> texts, rows = distinct_texts(["a", "a", None, "b"], "etags")
    >>> texts.to_strings(), rows.tolist()
    (['a', 'b'], [0, 0, -1, 1])
    """
    array = _as_arrow(user_column)
    if array is None:
        column, rows = _distinct_objects(user_column, name)
    elif pa.types.is_dictionary(array.type):
        column, rows = _of_dictionary(array, name)
    else:
        column, rows = _plain_texts(array, name)
    column, rows = _used(column, rows)
    texts, numbers = column.distinct()
    if len(texts) < len(column):
        rows = np.where(rows < 0, _NONE, numbers[rows].astype(np.int64))
    return texts, rows


def _used(column: BytesColumn, rows: Ints) -> tuple[BytesColumn, Ints]:
    """Leave out empty texts, and those of no row: nobody needs to look at them."""
    is_used = np.zeros(len(column) + 1, np.bool_)  # the last place is that of rows with none
    is_used[rows] = True
    is_used[:-1] &= column.lengths() > 0
    is_used[-1] = False
    if is_used[:-1].all():
        return column, rows
    numbers = np.where(is_used, np.cumsum(is_used) - 1, _NONE)
    return column.take(np.flatnonzero(is_used)), numbers[rows]


def _distinct_objects(objects: Any, name: str) -> tuple[BytesColumn, Ints]:
    """Pack texts that are objects of Python; runs of equal ones are packed once."""
    if isinstance(objects, str | bytes):
        raise refused(f"{name} must be a column with one text for each reference, not one text")
    data, lengths, is_head = bytearray(), list[NDArray[np.int64]](), list[NDArray[np.bool_]]()
    before: object = object()
    for block in _blocks(objects, name):
        flags = np.fromiter(map(ne, block, [before, *block[:-1]]), np.bool_, len(block))
        before = block[-1]
        heads = block if flags.all() else list(compress(block, flags.tolist()))
        raw, sizes = _packed(heads, name)
        data += raw
        lengths.append(sizes)
        is_head.append(flags)
    if not lengths:
        return BytesColumn.empty(), np.empty(0, np.int64)
    column = BytesColumn(np.frombuffer(data, np.uint8), splits_of(np.concatenate(lengths)))
    return column, np.cumsum(np.concatenate(is_head)) - 1


def _blocks(column: Any, name: str) -> Iterator[list[Any]]:
    if isinstance(column, np.ndarray) and column.ndim != 1:
        raise refused(f"{name} must have one dimension, and has the shape {column.shape}")
    for first in range(0, len(column), _BLOCK_ROWS):
        block = column[first : first + _BLOCK_ROWS]
        yield block.tolist() if hasattr(block, "tolist") else list(block)


def _packed(texts: list[str], name: str) -> tuple[bytes, NDArray[np.int64]]:
    try:
        joined = "".join(texts)
    except TypeError:
        texts = [_text(raw_text, name) for raw_text in texts]
        joined = "".join(texts)
    try:
        raw = joined.encode()
        if len(raw) > len(joined):
            sizes = [len(text.encode()) for text in texts]
            return raw, np.array(sizes, np.int64)
    except UnicodeEncodeError as error:
        raise refused(f"{name} hold text that is not Unicode: {error}") from None
    return raw, np.fromiter(map(len, texts), np.int64, len(texts))


def _text(value: object, name: str) -> str:
    if isinstance(value, str):
        return value
    if value is None or (isinstance(value, float) and isnan(value)):
        return ""
    raise refused(f"{name} must be text, and {value!r} is {type(value).__name__}")


def _as_arrow(column: Any) -> "pa.Array | None":
    """Take a column of Arrow, in one piece; `None` if it is none."""
    if not (hasattr(column, "__arrow_c_array__") or hasattr(column, "__arrow_c_stream__")):
        return None
    if isinstance(column, pa.Array):
        return column
    if isinstance(column, pa.ChunkedArray) or hasattr(column, "__arrow_c_stream__"):
        chunked = column if isinstance(column, pa.ChunkedArray) else pa.chunked_array(column)
        if pa.types.is_dictionary(chunked.type):
            chunked = chunked.unify_dictionaries()
        return chunked.combine_chunks()
    # Not `pyarrow.array`, which would import pandas.
    return pa.Array._import_from_c_capsule(*column.__arrow_c_array__())  # noqa: SLF001


def _of_dictionary(array: "pa.DictionaryArray", name: str) -> tuple[BytesColumn, Ints]:
    column, rows_of_values = _plain_texts(array.dictionary, name)
    indices = numbers_of(array.indices).astype(np.int64)
    if array.indices.null_count:
        indices[~mask_of(pc.is_valid(array.indices))] = _NONE
    if len(column) < len(rows_of_values) or array.dictionary.null_count:
        indices = np.where(indices < 0, _NONE, rows_of_values[indices])
    return column, indices


def _plain_texts(array: "pa.Array", name: str) -> tuple[BytesColumn, Ints]:
    kinds = pa.types
    if not any(
        check(array.type) for check in (kinds.is_string, kinds.is_large_string, _is_string_view)
    ):
        raise refused(f"{name} must be text, and this Arrow column holds {array.type}")
    column, numbers = BytesColumn.from_arrow(array).runs()
    rows = numbers.astype(np.int64)
    if array.null_count:
        rows[~mask_of(pc.is_valid(array))] = _NONE
    return column, rows


def _is_string_view(kind: "pa.DataType") -> bool:
    return bool(kind == pa.string_view())


# -- numbers -------------------------------------------------------------------------------


def counts(numbers: NumberColumn | int, rows: int, name: str) -> NDArray[np.uint64]:
    """Return whole numbers from 0, one for each row; a single number applies to all rows."""
    if isinstance(numbers, int | np.integer):
        return np.repeat(counts([int(numbers)], 1, name), rows)
    column = _integers(numbers, name)
    if column.shape != (rows,):
        raise refused(
            f"{name} have the shape {column.shape}, and there are {rows} locations: give one"
            " number for each"
        )
    if column.dtype.kind == "i" and (column < 0).any():
        row = int((column < 0).argmax())
        raise refused(f"{name} must be whole numbers from 0, and row {row} has {column[row]}")
    return column.astype(np.uint64, copy=False)


def _integers(numbers: Any, name: str) -> NDArray[np.integer]:
    array = _as_arrow(numbers)
    if array is not None:
        if not pa.types.is_integer(array.type) or array.null_count:
            problem = "nulls" if pa.types.is_integer(array.type) else array.type
            raise refused(f"{name} must be whole numbers from 0, and this column holds {problem}")
        return numbers_of(array)
    try:
        column = np.asarray(numbers)
        if column.dtype.kind == "f" and not isinstance(numbers, np.ndarray):
            column = np.array(numbers, object)  # perhaps whole numbers of which some are large
        if column.dtype == object and {*map(type, column.flat)} == {int}:
            column = column.astype(np.uint64)
    except (ValueError, OverflowError) as error:
        raise refused(f"{name} must be whole numbers from 0 to 2**64 - 1: {error}") from None
    if column.size == 0:
        return column.astype(np.uint64)
    if column.dtype.kind not in "ui":
        raise refused(
            f"{name} must be whole numbers from 0, as an array of uint64, and are {column.dtype}"
        )
    return column


def check_ends(offsets: NDArray[np.uint64], lengths: NDArray[np.uint64]) -> None:
    """Refuse ranges that end where no object can."""
    limit = np.uint64(_LARGEST_END)
    beyond = (offsets > limit) | (lengths > limit)
    beyond |= offsets > limit - np.minimum(lengths, limit)
    if beyond.any():
        row = int(beyond.argmax())
        raise refused(_ends_beyond(f"the range of row {row}", offsets[row], lengths[row]))


def check_range(offset: Any, length: Any) -> None:
    """Refuse what is no range of an object."""
    for value, name in ((offset, "offset"), (length, "length")):
        if not isinstance(value, _WHOLE) or value < 0:
            raise refused(f"{name} must be a whole number from 0, got {value!r}")
    if int(offset) + int(length) > _LARGEST_END:
        raise refused(_ends_beyond("the range", offset, length))


def _ends_beyond(what: str, offset: object, length: object) -> str:
    return (
        f"{what} starts at {offset} and has {length} bytes: it ends beyond the largest object"
        " that a storage could hold"
    )


def coordinates_of(column: Any, rows: int, dimensions: int) -> NDArray[np.integer]:
    """Return chunk coordinates as a matrix, with a row for each reference."""
    array = _as_arrow(column)
    if array is not None and pa.types.is_fixed_size_list(array.type):
        width = array.type.list_size
        if array.null_count:
            raise refused("coordinates must not have nulls")
        matrix = _integers(array.flatten(), "coordinates").reshape(len(array), width)
    else:
        matrix = _integers(column, "coordinates")
        if matrix.ndim == 1 and dimensions == 1:
            matrix = matrix.reshape(-1, 1)
    if matrix.shape != (rows, dimensions):
        raise refused(
            f"coordinates have the shape {matrix.shape}: for {rows} references to an array of"
            f" {dimensions} dimensions it must be {(rows, dimensions)}"
        )
    return matrix


# -- times ---------------------------------------------------------------------------------


def seconds_of(moment: object) -> int:
    """Return the time of a last modification in whole seconds since 1970.

    A `datetime` without a time zone is in local time.
    """
    if isinstance(moment, datetime):
        seconds, shown = _timestamp(moment), moment.isoformat()
    elif isinstance(moment, int | np.integer):
        seconds, shown = int(moment), f"{moment} (in seconds since 1970)"
    else:
        raise refused(f"{moment!r} is no time: give a datetime, or seconds since 1970")
    if not 0 < seconds <= _LARGEST_U32:
        raise refused(f"the time {shown} is not between 1970 and 2106")
    return seconds


def _timestamp(moment: datetime) -> int:
    try:
        return int(moment.timestamp())
    except (ValueError, OverflowError, OSError):  # local time of the years 1 and 9999
        return -1


def times_of(column: TimeColumn | datetime | int, rows: int) -> NDArray[np.uint32]:
    """Return last modifications in seconds since 1970, one for each row; 0 stands for none.

    One time alone counts for all rows. Times of numpy and Arrow are in UTC.
    """
    if isinstance(column, datetime | int):
        return np.full(rows, seconds_of(column), np.uint32)
    seconds = _seconds_column(column)
    if seconds.shape != (rows,):
        raise refused(
            f"last_modified has the shape {seconds.shape}, and there are {rows} locations: give"
            " one time for each"
        )
    bad = (seconds < 0) | (seconds > _LARGEST_U32)
    if bad.any():
        row = int(bad.argmax())
        raise refused(
            f"the time of row {row}, {seconds[row]} seconds after 1970, is not between 1970 and"
            " 2106: give seconds since 1970, or times"
        )
    return seconds.astype(np.uint32)


def _seconds_column(moments: Any) -> NDArray[np.integer]:
    array = _as_arrow(moments)
    if array is not None:
        if pa.types.is_timestamp(array.type):
            seconds = array.cast(pa.timestamp("s", array.type.tz), safe=False)
            values = numbers_of(seconds.cast(pa.int64()))
        elif pa.types.is_integer(array.type):
            values = numbers_of(array)
        else:
            raise refused(f"last_modified must be times, and this column holds {array.type}")
        return np.where(mask_of(pc.is_valid(array)), values, 0) if array.null_count else values
    if not isinstance(moments, np.ndarray):
        moments = [seconds_of(moment) if moment else 0 for moment in moments]
    column = np.asarray(moments)
    if column.dtype.kind == "M":
        seconds = column.astype("datetime64[s]")
        return np.where(np.isnat(seconds), 0, seconds.astype(np.int64))
    return _integers(column, "last_modified")
