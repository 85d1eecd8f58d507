"""Columns of byte strings, and the few operations on columns that tables share.

A column is its bytes and its splits: row `i` is `data[splits[i]:splits[i + 1]]`. Short columns are
processed by numpy, long ones by Arrow, at the speed of a memory copy. Numbers are passed to Arrow
as buffers: `pyarrow.array`, `pyarrow.scalar` and `to_numpy` would import pandas.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from operator import lt, ne
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import FormatError
from icefloe.format.arrow import pa, pc
from icefloe.records import Record


def mask_of(answers: "pa.BooleanArray") -> NDArray[np.bool_]:
    """Take answers from Arrow, none of them missing."""
    return numbers_of(answers.cast(pa.uint8())).astype(np.bool_)


def numbers_to_arrow(values: NDArray[np.integer]) -> "pa.Array":
    """Pass numbers to Arrow without copying them."""
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


type Bytes = NDArray[np.uint8]
type Ints = NDArray[np.int64]
type Bools = NDArray[np.bool_]

FEW_ROWS: Final = 2048
"""Columns up to this length are handled row by row."""

_INLINE_VIEW_BYTES: Final = 12  # an Arrow view keeps shorter rows within itself
_SHORT_BYTES: Final = 64
"""Rows that are not longer on average are quicker to move byte by byte, all at once."""
_ROWS_OF_A_RUN: Final = 64
"""Unless this many of one length stand together on average, as names of files do."""


class BytesColumn(Record, eq=False):
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
    def from_list(cls, rows: Sequence[bytes | memoryview]) -> Self:
        """Pack a list of rows."""
        splits = np.array(list(accumulate(map(len, rows), initial=0)), np.int64)
        return cls(np.frombuffer(b"".join(rows), np.uint8), splits)

    @classmethod
    def from_strings(cls, rows: Sequence[str]) -> Self:
        """Pack a list of strings as UTF-8."""
        return cls.from_list([row.encode() for row in rows])

    @classmethod
    def from_arrow(cls, array: "pa.Array") -> Self:
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
        if width := _only_length(lengths):
            places = np.ndarray(len(source) - width + 1, f"V{width}", source, strides=1)
            return cls(places[starts].view(np.uint8), splits_of(lengths))
        if len(starts) > FEW_ROWS:
            return cls._gather_many(source, starts, lengths)
        if lengths.sum() <= _SHORT_BYTES * len(starts):
            return cls(source[ranges(starts, lengths)], splits_of(lengths))
        view = source.data
        ends = (starts + lengths).tolist()
        return cls.from_list([view[a:b] for a, b in zip(starts.tolist(), ends, strict=True)])

    @classmethod
    def _gather_many(cls, source: Bytes, starts: Ints, lengths: Ints) -> Self:
        # Views are good for one cast to a plain array: long rows lack the prefix that comparisons
        # of views would need, which a cast does not look at.
        views = np.zeros((len(starts), 4), np.int32)
        views[:, 0] = lengths
        views[:, 3] = starts
        short = np.flatnonzero(lengths <= _INLINE_VIEW_BYTES)
        if len(short):
            views[short, 3] = 0
            within = views.view(np.uint8)[:, 4:]
            for byte in range(_INLINE_VIEW_BYTES):
                reaching = short[lengths[short] > byte]
                within[reaching, byte] = source[starts[reaching] + byte]
        buffers = [None, pa.py_buffer(views), pa.py_buffer(source)]
        return cls.from_arrow(pa.Array.from_buffers(pa.binary_view(), len(starts), buffers))

    def to_arrow(self) -> "pa.LargeBinaryArray":
        """Pass the column to Arrow without copying it."""
        buffers = [None, pa.py_buffer(np.ascontiguousarray(self.splits)), pa.py_buffer(self.data)]
        return pa.Array.from_buffers(pa.large_binary(), len(self), buffers)

    def to_arrow_strings(self) -> "pa.LargeStringArray":
        """Return the column to Arrow as text, checking that it is UTF-8."""
        self.check_text()
        return self.to_arrow().cast(pa.large_string())

    def check_text(self) -> None:
        """Refuse rows that are not UTF-8."""
        if len(self) > FEW_ROWS:
            try:
                self.to_arrow().cast(pa.large_string())
            except pa.ArrowInvalid as error:
                raise FormatError("text that is not UTF-8") from error
        elif not self.data.tobytes().isascii():
            self.to_strings()

    def lengths(self) -> Ints:
        """Return the number of bytes of each row."""
        return self.splits[1:] - self.splits[:-1]

    def take(self, rows: NDArray[np.integer]) -> Self:
        """Pick rows by number."""
        if len(rows) > FEW_ROWS:
            return self.from_arrow(self.to_arrow().take(numbers_to_arrow(rows)))
        return self.gather(self.data, self.splits[rows], self.lengths()[rows])

    def slice(self, start: int, stop: int) -> Self:
        """Share a run of rows."""
        splits = self.splits[start : stop + 1]
        return type(self)(self.data[splits[0] : splits[-1]], splits - splits[0])

    def with_rows(self, row: int, rows: Self) -> Self:
        """Insert rows before a row."""
        cut, more = self.splits[row], rows.splits[-1]
        return type(self)(
            np.concatenate([self.data[:cut], rows.data, self.data[cut:]]),
            np.concatenate([self.splits[:row], rows.splits + cut, self.splits[row + 1 :] + more]),
        )

    def to_list(self) -> list[bytes]:
        """Unpack into Python objects: for small columns."""
        data, splits = self.data.tobytes(), self.splits.tolist()
        return [data[a:b] for a, b in pairwise(splits)]

    def rows(self, start: int, stop: int) -> list[bytes]:
        """Unpack a run of rows."""
        splits = self.splits[start : stop + 1].tolist()
        return [self.data[a:b].tobytes() for a, b in pairwise(splits)]

    def to_strings(self) -> list[str]:
        """Unpack into Python strings."""
        try:
            if len(self) > FEW_ROWS:
                buffers = self.to_arrow().buffers()
                texts: list[str] = pa.Array.from_buffers(
                    pa.large_string(), len(self), buffers
                ).to_pylist()
                return texts
            return [row.decode() for row in self.to_list()]
        except UnicodeDecodeError as error:
            raise FormatError("text that is not UTF-8") from error

    def is_ascending(self) -> bool:
        """Return whether each row sorts after the one before."""
        if len(self) > FEW_ROWS:
            rows = self.to_arrow()
            return pc.all(pc.less(rows[:-1], rows[1:])).as_py() is not False
        if (even := self._even_rows()) is not None:
            return is_ascending(even)
        texts = self.to_list()
        return all(map(lt, texts, texts[1:]))

    def runs(self) -> tuple[Self, NDArray[np.uint32]]:
        """Drop rows that repeat the one before; also give, for each old row, its new number."""
        is_head = self._heads_of_runs()
        if is_head.all():
            return self, np.arange(len(self), dtype=np.uint32)
        numbers = np.cumsum(is_head, dtype=np.uint32) - np.uint32(1)
        return self.take(np.flatnonzero(is_head)), numbers

    def _heads_of_runs(self) -> Bools:
        if len(self) > FEW_ROWS:
            rows = self.to_arrow()
            return np.append(True, mask_of(pc.not_equal(rows[1:], rows[:-1])))
        if (even := self._even_rows()) is not None:
            return np.append(True, even[1:] != even[:-1])
        texts = self.to_list()
        return np.array([True, *map(ne, texts, texts[1:])][: len(texts)], np.bool_)

    def _even_rows(self) -> NDArray[np.bytes_] | None:
        """Return the rows as one numpy array if all have the same length."""
        width = _only_length(self.lengths())
        data = self.data[self.splits[0] : self.splits[-1]]
        return data.view(f"S{width}") if width else None

    def distinct(self) -> tuple[Self, NDArray[np.uint32]]:
        """Drop repeated rows; also give, for each old row, its new number.

        In long columns repeats usually stand next to each other, so those go first, and names
        of files are often in order: comparing is cheap, hashing is not.
        """
        if len(self) <= FEW_ROWS:
            if (even := self._even_rows()) is not None and is_ascending(even):
                return self, np.arange(len(self), dtype=np.uint32)
            texts = self.to_list()
            if len(set(texts)) == len(texts):
                return self, np.arange(len(texts), dtype=np.uint32)
            numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
            of_row = np.array([numbers[text] for text in texts], np.uint32)
            return self.from_list([*numbers]), of_row
        heads, of_head = self.runs()
        if heads.is_ascending():
            return heads, of_head
        encoded = heads.to_arrow().dictionary_encode()
        of_distinct = numbers_of(encoded.indices).astype(np.uint32)
        return self.from_arrow(encoded.dictionary), of_distinct[of_head]

    def sort_order(self) -> Ints:
        """List the rows in the order of their bytes."""
        if len(self) > FEW_ROWS:
            return numbers_of(pc.sort_indices(self.to_arrow())).astype(np.int64)
        rows = self.to_list()
        return np.array(sorted(range(len(rows)), key=rows.__getitem__), np.int64)

    def framed(self) -> Bytes:
        """Put its length before each row, and one to four zero bytes behind, up to a whole word."""
        lengths = self.lengths()
        cuts = np.flatnonzero(lengths[1:] != lengths[:-1]) + 1
        is_even = len(cuts) <= len(self) // _ROWS_OF_A_RUN
        if len(self) > FEW_ROWS and not is_even:
            return self._framed_many()
        starts = splits_of(framed_bytes(lengths))
        out = np.zeros(int(starts[-1]), np.uint8)
        out.view("<u4")[starts[:-1] >> 2] = lengths
        if is_even or len(self.data) > _SHORT_BYTES * len(self):
            self._frame_runs(out, starts, cuts)
        else:
            out[ranges(starts[:-1] + 4, lengths)] = self.data
        return out

    def _framed_many(self) -> Bytes:
        lengths, count = self.lengths(), len(self)
        heads = pa.Array.from_buffers(
            pa.binary(4), count, [None, pa.py_buffer(lengths.astype("<u4"))]
        ).cast(pa.large_binary())
        paddings = splits_of(4 - lengths % 4)
        padding = BytesColumn(np.zeros(int(paddings[-1]), np.uint8), paddings).to_arrow()
        separator = BytesColumn.from_list([b""]).to_arrow()[0]
        joined = pc.binary_join_element_wise(heads, self.to_arrow(), padding, separator)
        return self.from_arrow(joined).data

    def _frame_runs(self, out: Bytes, starts: Ints, cuts: Ints) -> None:
        """Copy rows into their frames, all those of one length that stand together at once."""
        edges = [0, *cuts.tolist(), len(self)]
        positions, splits = starts[edges].tolist(), self.splits[edges].tolist()
        rows = [last - first for first, last in pairwise(edges)]
        view, target = self.data.data, out.data
        for begin, end, first, last, count in zip(
            positions, positions[1:], splits, splits[1:], rows, strict=False
        ):
            if count <= 1:
                target[begin + 4 : begin + 4 + last - first] = view[first:last]
                continue
            run = self.data[first:last].reshape(count, -1)
            out[begin:end].reshape(count, -1)[:, 4 : 4 + run.shape[1]] = run

    def __getitem__(self, row: int) -> bytes:
        splits = self.splits
        return self.data[splits[row] : splits[row + 1]].tobytes()

    def __len__(self) -> int:
        return len(self.splits) - 1

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BytesColumn):
            return NotImplemented
        return np.array_equal(self.splits, other.splits) and np.array_equal(self.data, other.data)

    __hash__ = None  # type: ignore[assignment]


def _only_length(lengths: Ints) -> int:
    """Return the length that all rows have; 0 if they differ, or if there are none."""
    width = lengths.item(0) if len(lengths) else 0
    return width if (lengths == width).all() else 0


def framed_bytes(lengths: Ints) -> Ints:
    """Return the room that framed rows of these lengths take."""
    return 8 + (lengths & ~3)


def concat_bytes(columns: Sequence[BytesColumn]) -> BytesColumn:
    """Put columns one behind the other."""
    columns = [column for column in columns if len(column.splits) > 1]
    if len(columns) == 1:
        return columns[0]
    if not columns:
        return BytesColumn.empty()
    starts = accumulate((column.splits.item(-1) for column in columns), initial=0)
    ends = [column.splits[1:] + start for column, start in zip(columns, starts, strict=False)]
    return BytesColumn(
        np.concatenate([column.data for column in columns]),
        np.concatenate([columns[0].splits[:1], *ends]),
    )


def memory_of_columns(table: Record) -> int:
    """Return the memory that the columns among the fields of a table take."""
    total = 0
    for name in table.__struct_fields__:
        column = getattr(table, name)
        if isinstance(column, np.ndarray):
            total += column.nbytes
        elif isinstance(column, BytesColumn):
            total += column.data.nbytes + column.splits.nbytes
    return total


def find_sorted[K: (bytes, tuple[int, ...])](
    count: int, key: K, key_of: Callable[[int], K]
) -> int | None:
    """Find the row with a key among rows sorted by it, looking at a few of them only."""
    row = bisect_left(range(count), key, key=key_of)
    return row if row < count and key_of(row) == key else None


def is_ascending(keys: NDArray[Any]) -> bool:
    """Return whether each key sorts after the one before."""
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
