"""Messages of GRIB files: where they lie, and their headers, without their values.

A local file is read from header to header. Of a remote one, the index that weather services put
beside it tells where messages begin; the headers themselves are always read, and an index that does
not match them is not used.
"""

import json
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import Final

from icefloe.codecs import joined_sections
from icefloe.effects import map_concurrently, run_blocking
from icefloe.errors import ErrorKind, IcefloeError, SourceError
from icefloe.pipeline.files.sources import SourceAccess, SourceObject, truncated
from icefloe.records import Record
from icefloe.storage import ByteRange
from icefloe.storage.keys import merge_ranges

_MARK: Final = b"GRIB"
_END: Final = b"7777"
_HEAD: Final = 16
_HEADER_BYTES: Final = 4096
"""Of a message that an index names; nearly all headers are shorter."""
_SMALL_WINDOW: Final = 16 << 10
_LARGE_WINDOW: Final = 8 << 20
_SMALL_FILE: Final = 1 << 20
"""A remote file up to this size is read at once."""
_MERGED: Final = 64 << 10
"""Headers that lie within such a gap are fetched together."""
_CONCURRENCY: Final = 16
_MOST_HEADER: Final = 64 << 20
_MOST_INDEX: Final = 64 << 20
_HEADER_SECTIONS: Final = frozenset({1, 2, 3, 4, 5})
_NO_BITMAP: Final = b"\0\0\0\6\6\xff"
_NO_VALUES: Final = b"\0\0\0\5\7"
_REGULAR: Final = 0
"""The code of grids of latitudes and longitudes in edition 1."""
_KEPT_OF_VALUES: Final = 40
"""As many bytes of the section of values of edition 1 describe their packing."""


class Field(Record):
    """A field: where its message lies, and a message with the same headers and no values."""

    offset: int
    length: int
    number: int
    """In its message, which may have several fields."""
    header: bytes


class Messages(Record):
    """The fields of a file in their order, and what to report."""

    fields: tuple[Field, ...]
    notes: tuple[str, ...] = ()


class _DamagedError(Exception):
    """The file is not a sequence of messages."""


class _CutError(_DamagedError):
    """The file ends before the byte that is the argument."""


class _Windows:
    """Reads parts of a file in windows, and keeps those."""

    def __init__(self, fetch: Callable[[Sequence[ByteRange]], list[bytes]], size: int) -> None:
        self._fetch, self.size = fetch, size
        self._starts: list[int] = []
        self._parts: list[bytes] = []
        self._window = _SMALL_WINDOW

    def prefetch(self, ranges: Sequence[ByteRange]) -> None:
        """Read many parts at once."""
        merged = merge_ranges(ranges, gap=_MERGED, limit=_LARGE_WINDOW)
        self._starts = [start for start, _ in merged]
        self._parts = self._fetch(merged)

    def at(self, start: int, count: int) -> bytes:
        """Return bytes of the file."""
        if start + count > self.size:
            raise _CutError(start + count)
        if count > _MOST_HEADER:
            raise _DamagedError(f"a header at byte {start} claims to have {count} bytes")
        row = bisect_right(self._starts, start) - 1
        if row >= 0:
            skipped = start - self._starts[row]
            if skipped + count <= len(self._parts[row]):
                return self._parts[row][skipped : skipped + count]
            # Small messages are read many at a time, large ones each by its header.
            is_near = start <= self._starts[row] + 2 * len(self._parts[row])
            self._window = min(4 * self._window, _LARGE_WINDOW) if is_near else _SMALL_WINDOW
        end = min(self.size, start + max(count, self._window))
        [part] = self._fetch([(start, end)])
        if len(self._starts) <= 1:
            self._starts, self._parts = [start], [part]
        else:
            self._starts.insert(row + 1, start)
            self._parts.insert(row + 1, part)
        return part[:count]


def read_messages(url: str, size: int, access: SourceAccess) -> Messages:
    """Read the headers of all messages of a file."""
    source = access.place(url)
    path = source.local_path
    try:
        if path is not None:
            with open(path, "rb") as file:  # noqa: PTH123 - a path of any kind

                def seek_and_read(ranges: Sequence[ByteRange]) -> list[bytes]:
                    parts = []
                    for start, end in ranges:
                        file.seek(start)
                        parts.append(file.read(end - start))
                    return parts

                return Messages(tuple(_scanned(_Windows(seek_and_read, size))))
        return _remote(source, url, size, access)
    except _CutError as error:
        raise truncated(url, error.args[0], size) from error
    except _DamagedError as error:
        raise SourceError(
            f"{url} cannot be read as GRIB: {error}", ErrorKind.SOURCE_DAMAGED, url=url
        ) from error


def _remote(source: SourceObject, url: str, size: int, access: SourceAccess) -> Messages:
    def fetch(ranges: Sequence[ByteRange]) -> list[bytes]:
        async def get(part: ByteRange) -> bytes:
            return bytes((await source.backend.get(source.key, part)).data)

        return run_blocking(map_concurrently(get, ranges, limit=_CONCURRENCY))

    windows = _Windows(fetch, size)
    if size <= _SMALL_FILE:
        windows.prefetch([(0, size)])
        return Messages(tuple(_scanned(windows)))
    notes: list[str] = []
    for index_url in index_urls(url):
        starts = _indexed(index_url, access)
        if starts is None:
            continue
        fields = _at(starts, _Windows(fetch, size))
        if fields is not None:
            return Messages(fields)
        notes.append(
            f"the index {index_url.rpartition('/')[2]!r} does not describe the file beside it, and"
            " was not used"
        )
    return Messages(tuple(_scanned(windows)), tuple(notes))


def index_urls(url: str) -> tuple[str, ...]:
    """Return the names that indices of a GRIB file have.

    >>> index_urls("s3://gfs/a.f000"), index_urls("s3://ifs/a-oper-fc.grib2")[1:]
    (('s3://gfs/a.f000.idx',), ('s3://ifs/a-oper-fc.index',))
    """
    stem, _, suffix = url.rpartition(".")
    is_named = PurePosixPath(url).suffix and suffix.lower() in {"grib", "grib1", "grib2", "grb"}
    return (f"{url}.idx", *((f"{stem}.index",) if is_named else ()))


def _indexed(url: str, access: SourceAccess) -> list[int] | None:
    """Return where messages begin, as an index tells; None if there is no index."""
    source = access.place(url)
    try:
        data = bytes(run_blocking(source.backend.get(source.key)).data)
    except IcefloeError:  # not there, or not for us: the file itself tells all
        return None
    return starts_of_index(data) if len(data) <= _MOST_INDEX else []


def starts_of_index(data: bytes) -> list[int]:
    """Return where messages begin, in order; nothing if the text is no index.

    Lines are those of wgrib2 (number:offset:...), or JSON as ECMWF writes it.

    >>> starts_of_index(b"1:0:d=2024010100:TMP:500 mb:anl:\\n2.1:1200:d=2024010100:UGRD:\\n")
    [0, 1200]
    """
    starts: set[int] = set()
    try:
        for line in data.decode().splitlines():
            if line.startswith("{"):
                starts.add(int(json.loads(line)["_offset"]))
            elif line.strip():
                starts.add(int(line.split(":")[1]))
    except (ValueError, KeyError, IndexError, TypeError):
        return []
    return sorted(starts)


def _at(starts: Sequence[int], windows: _Windows) -> tuple[Field, ...] | None:
    """Read the messages that an index names; None unless these are the whole file."""
    if not starts or starts[0] != 0 or starts[-1] >= windows.size:
        return None
    windows.prefetch([(start, min(start + _HEADER_BYTES, windows.size)) for start in starts])
    fields: list[Field] = []
    try:
        for start, end in zip(starts, [*starts[1:], windows.size], strict=True):
            if windows.at(start, 4) != _MARK:
                return None
            message = list(_fields(windows, start))
            if start + message[0].length != end:
                return None
            fields += message
    except _DamagedError:
        return None
    return tuple(fields)


def _scanned(windows: _Windows) -> Iterator[Field]:
    """Go from message to message; there may be other bytes between them."""
    position = _next_mark(windows, 0)
    if position is None:
        raise _DamagedError("it has no message")
    while position is not None:
        message = list(_fields(windows, position))
        yield from message
        end = position + message[0].length
        if windows.at(end - 4, 4) != _END:
            raise _DamagedError(f"the message at byte {position} has no end at byte {end}")
        position = _next_mark(windows, end)


def _next_mark(windows: _Windows, start: int) -> int | None:
    while start + _HEAD <= windows.size:
        if windows.at(start, 4) == _MARK:
            return start
        piece = windows.at(start, min(_HEADER_BYTES, windows.size - start))
        offset = piece.find(_MARK)
        if offset >= 0:
            return start + offset
        start += len(piece) - 3
    return None


def _fields(windows: _Windows, start: int) -> Iterator[Field]:
    head = windows.at(start, _HEAD)
    match head[7]:
        case 1:
            yield _field_1(windows, start, head)
        case 2:
            yield from _fields_2(windows, start, head)
        case edition:
            raise _DamagedError(
                f"the message at byte {start} has the edition {edition} of GRIB, and only 1"
                " and 2 can be read"
            )


def _fields_2(windows: _Windows, start: int, head: bytes) -> Iterator[Field]:
    length = int.from_bytes(head[8:])
    end = start + length - 4
    if start + length > windows.size:
        raise _CutError(start + length)
    sections: dict[int, bytes] = {}
    position, number = start + _HEAD, 0
    while position < end:
        piece = windows.at(position, 5)
        size, section = int.from_bytes(piece[:4]), piece[4]
        if size < 5 or not 1 <= section <= 7 or position + size > end:
            raise _DamagedError(f"the sections of the message at byte {start} do not fit together")
        if section in _HEADER_SECTIONS:
            sections[section] = windows.at(position, size)
        elif section == 7:
            if not {1, 3, 4, 5} <= sections.keys():
                raise _DamagedError(f"the message at byte {start} has values without headers")
            described = {**sections, 6: _NO_BITMAP, 7: _NO_VALUES}
            yield Field(start, length, number, joined_sections(head, described))
            number += 1
        position += size
    if not number:
        raise _DamagedError(f"the message at byte {start} has no values")


def _field_1(windows: _Windows, start: int, head: bytes) -> Field:
    length = int.from_bytes(head[4:7])
    position = start + 8
    product = bytearray(windows.at(position, int.from_bytes(windows.at(position, 3))))
    position += len(product)
    if len(product) < 28 or not product[7] & 0x80:
        raise _DamagedError(
            f"the message at byte {start} does not describe its grid, but refers to a catalogue"
        )
    grid = windows.at(position, int.from_bytes(windows.at(position, 3)))
    position += len(grid)
    if product[7] & 0x40:
        position += int.from_bytes(windows.at(position, 3))
    size = int.from_bytes(windows.at(position, 3))
    if length & 0x800000 and size < 120:  # the way in which large messages tell their length
        length = (length & 0x7FFFFF) * 120 - size + 4
    if start + length > windows.size:
        raise _CutError(start + length)
    if len(grid) < 6 or position >= start + length:
        raise _DamagedError(f"the sections of the message at byte {start} do not fit together")
    if grid[5] != _REGULAR:  # ecCodes counts the points of other grids by the length of the values
        return Field(start, length, 0, windows.at(start, length))
    product[7] &= ~0x40
    length_read = min(start + length - 4 - position, _KEPT_OF_VALUES)
    values = length_read.to_bytes(3) + windows.at(position, length_read)[3:]
    body = bytes(product) + grid + values + _END
    return Field(start, length, 0, _MARK + (8 + len(body)).to_bytes(3) + b"\1" + body)
