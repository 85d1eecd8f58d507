"""Which chunks of an array are compared, and which parts of chunks that are large."""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from icefloe.pipeline.checking.readers import NotComparableError, Region
from icefloe.pipeline.combining.combine import TargetArray
from icefloe.pipeline.files.references import References
from icefloe.records import Record, replace

_PART_BYTES: Final = 1 << 20
"""Chunks of plain bytes that are larger are compared in such parts."""
_LARGEST_BYTES: Final = 256 << 20
"""Compressed chunks that are larger when they are decoded are not compared."""
_UNKNOWN_BYTES: Final = 64
_POINTWISE: Final = frozenset({"numcodecs.fixedscaleoffset"})
"""Codecs that treat each value by itself."""


class Part(Record):
    """A chunk, or a part of one."""

    cell: tuple[int, ...]
    """Of the grid of the dataset."""
    region: Region
    """In the file, with the axes that the dataset has."""
    shape: tuple[int, ...]
    """To be decoded; larger than the region at the edges of an array."""
    location: str | None = None
    start: int = 0
    end: int = 0
    data: bytes | None = None
    """Of a chunk that is given as bytes."""


def whole_chunk(
    placed: References,
    row: int | None,
    cell: tuple[int, ...],
    chunks: tuple[int, ...],
    origin: Sequence[int],
    extents: Sequence[int],
) -> Part:
    """Describe a chunk by its row; None for one that is not stored."""
    region = tuple(
        slice(begin, begin + extent) for begin, extent in zip(origin, extents, strict=True)
    )
    if row is None:
        return Part(cell, region, chunks)
    if row >= len(placed):
        return Part(cell, region, chunks, data=bytes(placed.inlined[row - len(placed)]))
    start = int(placed.offsets[row])
    location = placed.locations[int(placed.location_rows[row])]
    return Part(cell, region, chunks, location, start, start + int(placed.lengths[row]))


def sampled_cells(
    placed: References,
    low: Sequence[int],
    grid: tuple[int, ...],
    count: int | None,
    chance: random.Random,
) -> Iterator[tuple[tuple[int, ...], int | None]]:
    """Choose chunks, each with its row; those given as bytes follow all others.

    Of a sample the first, the last, some between, and one that is not stored if there is any.
    """
    inlined = placed.inlined_coordinates.reshape(len(placed.inlined), len(low))
    stored = np.concatenate([placed.coordinates, inlined])
    cells = stored - np.array(low, np.int64)
    is_inside = ((cells >= 0) & (cells < np.array(grid, np.int64))).all(axis=1)
    numbers = _chosen(len(stored), count, chance)
    for row in [*np.flatnonzero(~is_inside)[:1].tolist(), *numbers]:
        yield tuple(stored[row].tolist()), row
    total = math.prod(grid)
    if total <= int(is_inside.sum()):
        return
    flat = np.zeros(0, np.int64)
    if grid:
        flat = np.unique(np.ravel_multi_index(tuple(cells[is_inside].T), grid))
    gaps = np.flatnonzero(flat != np.arange(len(flat)))
    absent = [int(gaps[0]) if len(gaps) else len(flat)]
    if count is None:
        absent = np.setdiff1d(np.arange(total), flat).tolist()
    for number in absent:
        cell = np.unravel_index(number, grid) if grid else ()
        yield tuple(int(a) + b for a, b in zip(cell, low, strict=True)), None


def _chosen(total: int, count: int | None, chance: random.Random) -> list[int]:
    """Choose numbers below `total`: the first, the last, and some between.

    >>> _chosen(100, 3, random.Random(0))
    [0, 50, 99]
    >>> _chosen(2, 3, random.Random(0)), _chosen(4, None, random.Random(0))
    ([0, 1], [0, 1, 2, 3])
    """
    if count is None or total <= count:
        return list(range(total))
    between = chance.sample(range(1, total - 1), count - 2) if count > 2 else []
    return [0, *sorted(between), total - 1][:count]


def cut(
    array: TargetArray, whole: Part, count: int | None, chance: random.Random
) -> Iterator[Part]:
    """Yield a chunk, or parts of one whose bytes are plain and many."""
    chunks, size = whole.shape, whole.end - whole.start
    decoded = math.prod(chunks) * (_itemsize(array.metadata["data_type"]) or _UNKNOWN_BYTES)
    is_plain = whole.location is not None and _is_plain(array) and size % math.prod(chunks) == 0
    if whole.location is None and whole.data is None:  # nothing but the fill value
        yield _shortened(whole, decoded)
        return
    if decoded <= _PART_BYTES or not (is_plain and chunks):
        if decoded > _LARGEST_BYTES:
            raise NotComparableError(f"its chunks take {decoded} bytes, which is too much")
        yield whole
        return
    item_bytes = size // math.prod(chunks)
    axis = next(
        axis
        for axis in range(len(chunks))
        if math.prod(chunks[axis + 1 :]) * item_bytes <= _PART_BYTES or axis == len(chunks) - 1
    )
    row_bytes = math.prod(chunks[axis + 1 :]) * item_bytes
    rows = max(1, _PART_BYTES // row_bytes)
    extents = [part.stop - part.start for part in whole.region]
    counts = (*extents[:axis], -(-extents[axis] // rows))
    for number in _chosen(math.prod(counts), count, chance):
        *leading, step = map(int, np.unravel_index(number, counts))
        begin, end = step * rows, min((step + 1) * rows, extents[axis])
        before = 0
        for index, length in zip(leading, chunks[:axis], strict=True):
            before = before * length + index
        start = whole.start + (before * chunks[axis] + begin) * row_bytes
        region = (
            *(
                slice(part.start + index, part.start + index + 1)
                for part, index in zip(whole.region[:axis], leading, strict=True)
            ),
            slice(whole.region[axis].start + begin, whole.region[axis].start + end),
            *whole.region[axis + 1 :],
        )
        shape = (*(1,) * axis, end - begin, *chunks[axis + 1 :])
        stop = start + (end - begin) * row_bytes
        yield replace(whole, region=region, shape=shape, start=start, end=stop)


def _shortened(part: Part, decoded: int) -> Part:
    """Take the first value of a chunk that is not stored, if all of them would be too many."""
    if decoded <= _LARGEST_BYTES:
        return part
    first_item = tuple(slice(span.start, span.start + 1) for span in part.region)
    return replace(part, region=first_item, shape=(1,) * len(first_item))


def _is_plain(array: TargetArray) -> bool:
    """Return whether a range of the bytes of a chunk is a range of its values."""
    *before, last = [codec["name"] for codec in array.metadata["codecs"]]
    return last == "bytes" and not set(before) - _POINTWISE


def _itemsize(data_type: Any) -> int | None:
    if isinstance(data_type, Mapping):
        length: int | None = data_type.get("configuration", {}).get("length_bytes")
        return length
    try:
        size: int = np.dtype(data_type).itemsize
    except TypeError:
        return None
    return size
