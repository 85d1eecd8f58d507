"""Columns of byte strings, and the few numpy operations that tables share.

Arrow kernels do the work on variable-length rows, at the speed of a memory copy.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icefloe.errors import FormatError

type Bytes = NDArray[np.uint8]
type Ints = NDArray[np.int64]
type Bools = NDArray[np.bool_]

_INLINE_VIEW_BYTES: Final = 12  # an Arrow view keeps shorter rows within itself


@dataclass(frozen=True, slots=True, eq=False)
class BytesColumn:
    """Rows of bytes of any length, back to back in one buffer.

    >>> column = BytesColumn.from_list([b"s3://a", b"s3://b"])
    >>> column[1], len(column)
    (b's3://b', 2)
    """

    data: Bytes
    splits: Ints
    """Row `i` is `data[splits[i]:splits[i + 1]]`."""

    @classmethod
    def empty(cls) -> Self:
        """Make a column without rows."""
        return cls(np.empty(0, np.uint8), np.zeros(1, np.int64))

    @classmethod
    def from_list(cls, rows: Sequence[bytes]) -> Self:
        """Pack a list of rows."""
        splits = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, rows), np.int64, len(rows)), out=splits[1:])
        return cls(np.frombuffer(b"".join(rows), np.uint8), splits)

    @classmethod
    def from_strings(cls, rows: Sequence[str]) -> Self:
        """Pack a list of strings as UTF-8."""
        return cls.from_list([row.encode() for row in rows])

    @classmethod
    def from_arrow(cls, array: pa.Array) -> Self:
        """Wrap an Arrow array of strings or binaries, without a copy where its type allows."""
        if isinstance(array, pa.ChunkedArray):
            array = array.combine_chunks()
        array = array.cast(pa.large_binary())
        _, offsets, data = array.buffers()
        splits = np.frombuffer(offsets, np.int64, len(array) + 1, array.offset * 8)
        whole = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
        if splits[0] == 0 and splits[-1] == len(whole):
            return cls(whole, splits)
        return cls(whole[splits[0] : splits[-1]], splits - splits[0])

    @classmethod
    def gather(cls, source: Bytes, starts: Ints, lengths: Ints) -> Self:
        """Copy slices of a buffer, which must be within its bounds, into a column."""
        return cls.from_arrow(_views(source, starts, lengths))

    def to_arrow(self) -> pa.LargeBinaryArray:
        """Give the column to Arrow without copying it."""
        return pa.Array.from_buffers(
            pa.large_binary(),
            len(self),
            [None, pa.py_buffer(np.ascontiguousarray(self.splits)), pa.py_buffer(self.data)],
        )

    def to_arrow_strings(self) -> pa.LargeStringArray:
        """Give the column to Arrow as text, checking that it is UTF-8."""
        try:
            return self.to_arrow().cast(pa.large_string())
        except pa.ArrowInvalid as error:
            raise FormatError("text that is not UTF-8") from error

    def lengths(self) -> Ints:
        """Give the number of bytes of each row."""
        return np.diff(self.splits)

    def take(self, rows: NDArray[np.integer]) -> Self:
        """Pick rows by number."""
        return self.from_arrow(self.to_arrow().take(pa.array(rows)))

    def slice(self, start: int, stop: int) -> Self:
        """Share a run of rows."""
        splits = self.splits[start : stop + 1]
        return type(self)(self.data[splits[0] : splits[-1]], splits - splits[0])

    def to_list(self) -> list[bytes]:
        """Unpack into Python objects: for small columns."""
        data, splits = self.data.tobytes(), self.splits.tolist()
        return [data[a:b] for a, b in pairwise(splits)]

    def to_strings(self) -> list[str]:
        """Unpack into Python strings: for small columns."""
        strings: list[str] = self.to_arrow_strings().to_pylist()
        return strings

    def is_ascending(self) -> bool:
        """Say whether each row sorts after the one before."""
        rows = self.to_arrow()
        return pc.all(pc.less(rows[:-1], rows[1:])).as_py() is not False

    def runs(self) -> tuple[Self, NDArray[np.uint32]]:
        """Drop rows that repeat the one before; also give, for each old row, its new number."""
        rows = self.to_arrow()
        is_head = np.ones(len(self), np.bool_)
        is_head[1:] = ~pc.equal(rows[1:], rows[:-1]).to_numpy(zero_copy_only=False)
        if is_head.all():
            return self, np.arange(len(self), dtype=np.uint32)
        numbers = np.cumsum(is_head, dtype=np.uint32) - np.uint32(1)
        return self.take(np.flatnonzero(is_head)), numbers

    def distinct(self) -> tuple[Self, NDArray[np.uint32]]:
        """Drop repeated rows; also give, for each old row, its new number.

        Repeats usually stand next to each other, so those go first, and names of files are
        often in order: comparing is cheap, hashing is not.
        """
        heads, of_row = self.runs()
        if heads.is_ascending():
            return heads, of_row
        encoded = heads.to_arrow().dictionary_encode()
        numbers = encoded.indices.to_numpy().astype(np.uint32)
        return type(self).from_arrow(encoded.dictionary), numbers[of_row]

    def __getitem__(self, row: int) -> bytes:
        return self.data[self.splits[row] : self.splits[row + 1]].tobytes()

    def __len__(self) -> int:
        return len(self.splits) - 1

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BytesColumn):
            return NotImplemented
        return np.array_equal(self.splits, other.splits) and np.array_equal(self.data, other.data)

    __hash__ = None  # type: ignore[assignment]


def concat_bytes(columns: Sequence[BytesColumn]) -> BytesColumn:
    """Put columns one behind the other."""
    if len(columns) == 1:
        return columns[0]
    starts = np.cumsum([0, *(column.splits[-1] for column in columns)])
    splits = [column.splits[:-1] + start for column, start in zip(columns, starts, strict=False)]
    return BytesColumn(
        np.concatenate([np.empty(0, np.uint8), *(column.data for column in columns)]),
        np.concatenate([*splits, starts[-1:]]),
    )


def _views(source: Bytes, starts: Ints, lengths: Ints) -> pa.BinaryViewArray:
    """Describe slices of a buffer as Arrow views, good for one cast to a plain array.

    Long rows lack the prefix that comparisons of views would need; a cast does not look at it.
    """
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
    return pa.Array.from_buffers(
        pa.binary_view(), len(starts), [None, pa.py_buffer(views), pa.py_buffer(source)]
    )


def find_sorted[K: (bytes, tuple[int, ...])](
    count: int, wanted: K, key_of: Callable[[int], K]
) -> int | None:
    """Find the row with a key among rows sorted by it, looking at a few of them only."""
    row = bisect_left(range(count), wanted, key=key_of)
    return row if row < count and key_of(row) == wanted else None


def is_ascending(keys: NDArray[Any]) -> bool:
    """Say whether each key sorts after the one before."""
    return bool((keys[1:] > keys[:-1]).all())


def splits_of(counts: NDArray[np.integer]) -> Ints:
    """Turn the number of items of each row into where each row starts and ends."""
    splits = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=splits[1:])
    return splits


def ranges(starts: Ints, counts: Ints) -> Ints:
    """List `start, start + 1, …` for each row, one row behind the other."""
    splits = splits_of(counts)
    shift = np.repeat(starts - splits[:-1], counts)
    return shift + np.arange(splits[-1])


def take_ragged(splits: Ints, rows: Ints) -> tuple[Ints, Ints]:
    """Pick rows of a ragged column: their new splits, and which items to take."""
    counts = splits[rows + 1] - splits[rows]
    return splits_of(counts), ranges(splits[rows], counts)
