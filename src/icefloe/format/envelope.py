"""The envelope of every metadata file: 39 bytes of header, then one zstd frame.

Everything read here is untrusted: sizes are checked before memory is allocated.
"""

import threading
from collections.abc import Iterable
from enum import IntEnum
from typing import Final

import numpy as np
import zstandard

from icefloe.errors import ErrorKind, FormatError, InvalidInputError
from icefloe.records import Record
from icefloe.version import VERSION

type Buffer = bytes | bytearray | memoryview

MAGIC: Final = b"ICE\xf0\x9f\xa7\x8aCHUNK"
WRITER_NAME: Final = f"icefloe-{VERSION}"[:24]
HEADER_BYTES: Final = 39
NEWEST_SPEC: Final = 2

MAX_DIMENSIONS: Final = 1024
"""Of one array: far more than any array library has, but few enough for a loop over them."""

DEFAULT_LEVEL: Final = 3
BULK_LEVEL: Final = 2
"""For many alike rows; the matching strategy above this level finds more, shorter matches
between them, and ends up with larger files."""

MAX_BUFFER_BYTES: Final = 2**31 - 1
"""Offsets in a buffer are 31 bits wide, so no valid file expands beyond this."""
MAX_EXPANSION: Final = 1_000
"""How many times its compressed size a file may expand to, once past the free allowance."""
FREE_EXPANSION_BYTES: Final = 64 * 2**20

_ZSTD: Final = 1
_WHOLE_BYTES: Final = 1 << 22
"""Smaller buffers are compressed in one go."""
_LARGE_BYTES: Final = 1 << 22
"""Larger contents are expanded into an array: numpy asks for pages of 2 MiB, and the system
prepares these in half of the time that it needs for as many bytes in small ones."""
_RUN_BLOCK: Final = 1
"""A block of one byte that repeats; its header tells how often."""
_UNSIZED_STEP_BYTES: Final = 256
"""Four compressed bytes can make a block of 128 KiB, so this many make at most 8 MiB."""


def check_dimensions(dimensions: int) -> int:
    """Return the number of dimensions of an array, or raise if it is too large to be stored."""
    if dimensions > MAX_DIMENSIONS:
        raise InvalidInputError(
            f"an array of {dimensions} dimensions; the most that can be stored is {MAX_DIMENSIONS}",
            ErrorKind.LIMIT_EXCEEDED,
        )
    return dimensions


class FileType(IntEnum):
    """The kind of a metadata file."""

    SNAPSHOT = 1
    MANIFEST = 2
    TRANSACTION_LOG = 4
    REPO_INFO = 6

    @property
    def attribute(self) -> str:
        """Return the name under which object stores see this type in the user metadata."""
        return self.name.lower().replace("_", "-")


class Envelope(Record):
    """The header of a file, and the payload that it announces."""

    file_type: FileType
    spec_version: int
    writer: str
    payload: memoryview


def object_attributes(file_type: FileType, spec_version: int) -> dict[str, str]:
    """Return the user metadata that goes with a metadata file in an object store."""
    return {
        "icspecver": str(int(spec_version)),  # the name of a `SpecVersion` is no number
        "icclient": WRITER_NAME,
        "icfiletype": file_type.attribute,
        "iccompalg": "zstd",
    }


def seal(
    pieces: Iterable[Buffer],
    size_bytes: int,
    file_type: FileType,
    spec_version: int,
    *,
    level: int = DEFAULT_LEVEL,
) -> bytes:
    """Compress a buffer that arrives in pieces, and put the header before it.

    A large buffer is never held whole, so a manifest costs little more than its compressed size.
    """
    codes = bytes([spec_version, file_type.value, _ZSTD])
    header = MAGIC + WRITER_NAME.encode().ljust(24) + codes
    if size_bytes <= _WHOLE_BYTES:
        return header + _compressor(level).compress(b"".join(pieces))
    frame = _new_compressor(level).compressobj(size=size_bytes)
    return b"".join([header, *(frame.compress(piece) for piece in pieces), frame.flush()])


_own: Final = threading.local()
"""What each thread compresses with: making it again would take longer than a small file."""


def _compressor(level: int) -> zstandard.ZstdCompressor:
    compressors: dict[int, zstandard.ZstdCompressor] = _own.__dict__.setdefault("compressors", {})
    if level not in compressors:
        compressors[level] = _new_compressor(level)
    return compressors[level]


def _new_compressor(level: int) -> zstandard.ZstdCompressor:
    if level != BULK_LEVEL:
        return zstandard.ZstdCompressor(level=level)
    # Columns of numbers repeat in pieces of five bytes; the level itself looks for six.
    options = zstandard.ZstdCompressionParameters.from_level(level, min_match=5)
    return zstandard.ZstdCompressor(compression_params=options)


def _decompressor() -> zstandard.ZstdDecompressor:
    decompressor: zstandard.ZstdDecompressor | None = getattr(_own, "decompressor", None)
    if decompressor is None:
        decompressor = _own.decompressor = zstandard.ZstdDecompressor()
    return decompressor


def open_envelope(data: Buffer, expected: FileType | None = None) -> Envelope:
    """Check the header of a metadata file."""
    view = memoryview(data)
    if len(view) < HEADER_BYTES or bytes(view[:12]) != MAGIC:
        raise FormatError(
            f"not an Icechunk metadata file: {len(view)} bytes without the expected header"
        )
    spec_version, type_code, compression = view[36:39]
    if spec_version > NEWEST_SPEC:
        raise FormatError(
            f"the file is of spec version {spec_version}, newer than {NEWEST_SPEC}, "
            "the newest this release reads: upgrade icefloe",
            ErrorKind.UNSUPPORTED_SPEC_VERSION,
        )
    try:
        file_type = FileType(type_code)
    except ValueError:
        raise FormatError(f"unknown file type {type_code}") from None
    if expected is not None and file_type is not expected:
        raise FormatError(f"expected a {expected.attribute} file, found a {file_type.attribute}")
    if spec_version < 1 or (file_type is FileType.REPO_INFO and spec_version < 2):
        raise FormatError(
            f"a {file_type.attribute} file cannot be of spec version {spec_version}",
            ErrorKind.UNSUPPORTED_OPERATION_FOR_VERSION,
        )
    if compression != _ZSTD:
        raise FormatError(f"unknown compression {compression}: only zstd (1) is in use")
    writer = bytes(view[12:36]).rstrip(b" \0").decode(errors="replace")
    return Envelope(file_type, spec_version, writer, view[HEADER_BYTES:])


def decompress(payload: memoryview, *, max_bytes: int = MAX_BUFFER_BYTES) -> bytes | memoryview:
    """Expand the frame of a metadata file, within bounds that no valid file exceeds.

    The bounds hold before anything is allocated, by the size the frame announces, and
    again while expanding one that announces none.
    """
    limit = min(max_bytes, max(FREE_EXPANSION_BYTES, MAX_EXPANSION * len(payload)))
    try:
        announced = zstandard.frame_content_size(payload)
        if announced > limit:
            raise FormatError(_too_large(len(payload), announced, limit))
        if announced > _LARGE_BYTES:
            return _expand_large(payload, announced)
        if announced >= 0:
            return _decompressor().decompress(payload, allow_extra_data=False)
        return _expand_unsized(payload, limit)
    except zstandard.ZstdError as error:
        raise FormatError(f"the zstd frame is damaged: {error}") from error


def _expand_large(payload: memoryview, size_bytes: int) -> memoryview:
    expanded = np.empty(size_bytes, np.uint8)
    reader = _decompressor().stream_reader(payload)
    # With room for all that the frame holds, it is expanded at once and where it stays.
    if reader.readinto(expanded) != size_bytes or reader.read(1):
        raise FormatError(f"the zstd frame does not hold the {size_bytes} bytes that it announces")
    if _frame_bytes(payload) != len(payload):
        raise FormatError("the zstd frame is cut short or followed by other bytes")
    return memoryview(expanded).toreadonly()


def _frame_bytes(payload: memoryview) -> int:
    """Return where a frame ends: its blocks tell their sizes."""
    end, is_last = zstandard.frame_header_size(payload), False
    while not is_last and end < len(payload):
        header = int.from_bytes(payload[end : end + 3], "little")
        is_last, kind, size_bytes = bool(header & 1), header >> 1 & 3, header >> 3
        end += 3 + (1 if kind == _RUN_BLOCK else size_bytes)
    has_checksum: bool = zstandard.get_frame_parameters(payload).has_checksum
    return end + 4 * has_checksum


def _expand_unsized(payload: memoryview, limit: int) -> bytes:
    expanding = zstandard.ZstdDecompressor(max_window_size=2**27).decompressobj()
    pieces, total = [], 0
    for start in range(0, len(payload), _UNSIZED_STEP_BYTES):
        if expanding.eof:
            raise FormatError("the zstd frame is followed by other bytes")
        piece = expanding.decompress(payload[start : start + _UNSIZED_STEP_BYTES])
        pieces.append(piece)
        total += len(piece)
        if total > limit:
            raise FormatError(_too_large(len(payload), total, limit))
    if not expanding.eof or expanding.unused_data:
        raise FormatError("the zstd frame is cut short or followed by other bytes")
    return b"".join(pieces)


def _too_large(compressed: int, expanded: int, limit: int) -> str:
    return (
        f"a file of {compressed} compressed bytes expands to {expanded} or more, "
        f"over the limit of {limit}: refused as damaged or hostile"
    )
