"""Locations of virtual chunks compressed one by one with a dictionary they share.

The reference writes them so; we read them, and write them when asked to. Storing each
distinct location once and plain gives smaller files, so that is our own default.
"""

from collections.abc import Callable, Iterable
from typing import Final, cast

import numpy as np
import zstandard
from numpy.typing import NDArray

from icefloe.errors import FormatError
from icefloe.format.columns import Bytes, BytesColumn, Ints, splits_of
from icefloe.format.envelope import Buffer
from icefloe.records import Record

MAX_LOCATION_BYTES: Final = 1024
"""A compressed location that expands beyond this is not valid."""

_MAGIC: Final = 0xFD2FB528
_SMALLEST_FRAME_BYTES: Final = 6
_LONGEST_HEADER_BYTES: Final = 18
_DICTIONARY_ID_BYTES: Final = np.array([0, 1, 2, 4])
_CONTENT_SIZE_BYTES: Final = np.array([0, 2, 4, 8])
_UNKNOWN: Final = -1


class LocationCompression(Record):
    """Settings for the compression of locations in a manifest."""

    min_num_chunks: int = 1000
    """Manifests with fewer virtual references keep plain locations."""
    max_training_samples: int = 100
    max_dictionary_bytes: int = 2048
    level: int = 3


def compress_locations(
    locations: BytesColumn, options: LocationCompression
) -> tuple[BytesColumn, bytes] | None:
    """Compress locations with a dictionary trained on some of them.

    `None` when they do not lend themselves to it: too few or too much alike to train on, or
    one too long to be read back.
    """
    lengths = locations.lengths()
    if not len(lengths) or lengths.max() > MAX_LOCATION_BYTES:
        return None
    samples = np.linspace(0, len(locations) - 1, options.max_training_samples).astype(np.int64)
    texts: list[Buffer] = [*locations.take(np.unique(samples)).to_list()]
    try:
        dictionary = zstandard.train_dictionary(options.max_dictionary_bytes, texts)
    except zstandard.ZstdError:
        return None
    compressor = zstandard.ZstdCompressor(level=options.level, dict_data=dictionary)
    # Tables with other kinds of references beside virtual ones may hold an empty location.
    filled = np.flatnonzero(lengths)
    segments = _segments(locations.take(filled))
    frames = _rows(compressor.multi_compress_to_buffer(segments, threads=-1))
    frames.append(compressor.compress(b""))
    splits = splits_of(np.fromiter(map(len, frames), np.int64, len(frames)))
    distinct = BytesColumn(np.frombuffer(b"".join(frames), np.uint8), splits)
    numbers = np.full(len(locations), len(filled))
    numbers[filled] = np.arange(len(filled))
    return distinct.take(numbers), dictionary.as_bytes()


def expand_locations(
    frames: BytesColumn, dictionary: bytes, *, charge: Callable[[int], None]
) -> BytesColumn:
    """Expand compressed locations, none beyond its limit.

    `charge` hears how many bytes they will take before they take them, and may refuse.
    """
    if len(frames) == 0:
        return frames
    sizes = _announced_sizes(frames)
    if sizes.max() > MAX_LOCATION_BYTES:
        raise FormatError(
            f"a location expands to {sizes.max()} bytes, over the limit of {MAX_LOCATION_BYTES}"
        )
    charge(int(np.where(sizes == _UNKNOWN, MAX_LOCATION_BYTES, sizes).sum()))
    try:
        decompressor = zstandard.ZstdDecompressor(
            dict_data=zstandard.ZstdCompressionDict(dictionary)
        )
        if (sizes == _UNKNOWN).any():
            return BytesColumn.from_list(
                [decompressor.decompress(f, MAX_LOCATION_BYTES) for f in frames.to_list()]
            )
        # The bulk functions corrupt memory when the last rows are empty, so they never see any;
        # those take no room among the others.
        for frame in frames.take(np.flatnonzero(sizes == 0)).to_list():
            decompressor.decompress(frame)
        filled = frames if sizes.all() else frames.take(np.flatnonzero(sizes))
        if len(filled) == 0:
            return BytesColumn(np.empty(0, np.uint8), splits_of(sizes))
        rows = _rows(decompressor.multi_decompress_to_buffer(_segments(filled), threads=-1))
    except (zstandard.ZstdError, ValueError) as error:
        raise FormatError(f"a compressed location is damaged: {error}") from error
    data = np.frombuffer(b"".join(rows), np.uint8)
    if len(data) != sizes.sum():
        raise FormatError("a compressed location has another size than it announces")
    return BytesColumn(data, splits_of(sizes))


def _rows(results: zstandard.BufferWithSegmentsCollection) -> list[Buffer]:
    return list(cast("Iterable[Buffer]", results))  # iterable, though its stubs do not say so


def _segments(column: BytesColumn) -> zstandard.BufferWithSegments:
    segments = np.stack([column.splits[:-1], column.lengths()], axis=1).astype(np.uint64)
    return zstandard.BufferWithSegments(column.data.data, segments.tobytes())


def _announced_sizes(frames: BytesColumn) -> Ints:
    """Read the content size that each frame announces in its header, `_UNKNOWN` if none."""
    if frames.lengths().min() < _SMALLEST_FRAME_BYTES:
        raise FormatError("a compressed location is too short for a zstd frame")
    # Reading past a short last frame is harmless with these spare bytes.
    data = np.concatenate([frames.data, np.zeros(_LONGEST_HEADER_BYTES, np.uint8)])
    starts = frames.splits[:-1]
    if (_little_endian(data, starts, 4) != _MAGIC).any():
        raise FormatError("a compressed location is not a zstd frame")
    descriptor = data[starts + 4]
    is_single = (descriptor & 0x20) != 0
    code = descriptor >> 6
    width = np.where((code == 0) & is_single, 1, _CONTENT_SIZE_BYTES[code])
    position = starts + 5 + ~is_single + _DICTIONARY_ID_BYTES[descriptor & 3]
    sizes = np.full(len(frames), _UNKNOWN, np.int64)
    for size_bytes, extra in ((1, 0), (2, 256), (4, 0), (8, 0)):
        rows = np.flatnonzero(width == size_bytes)
        sizes[rows] = np.minimum(_little_endian(data, position[rows], size_bytes) + extra, 2**62)
    return sizes


def _little_endian(data: Bytes, starts: Ints, width: int) -> NDArray[np.int64]:
    value = np.zeros(len(starts), np.uint64)
    for byte in range(width):
        value |= data[starts + byte].astype(np.uint64) << np.uint64(8 * byte)
    return np.minimum(value, np.uint64(2**62)).astype(np.int64)
