r"""Keys and byte ranges: which are allowed, how keys are encoded, how ranges are joined and cut.

A key is a non-empty sequence of non-empty segments joined by `/`. Segments `.` and `..` are
refused, so no key can name anything outside the root of its storage. Where a storage keeps
keys in percent-encoded form (files; the object stores that the reference reaches the same
way), the characters are those the reference encodes: controls, everything beyond ASCII, and
``"#%*<>?[\]^`{|}~``. Neither an encoded nor an allowed name can therefore end in `#` and
digits, which is the form of names of temporary files.
"""

import re
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final
from urllib.parse import unquote

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.storage.port import Buffer, ByteRange, Version

# What is left of ASCII, spelled out: a set of all that must be encoded takes long to compile.
_PLAIN: Final = r"[ !$&'()+,\-.0-9:;=@A-Z_a-z]+"
_PLAIN_KEY: Final = re.compile(rf"(?:(?!\.\.?/){_PLAIN}/)*(?!\.\.?\Z){_PLAIN}\Z")
_TO_ENCODE: Final = re.compile(r"[^ !$&'()+,\-./0-9:;=@A-Z_a-z]")
_TEMPORARY: Final = re.compile(r"#[0-9]+\Z")


def encode_key(key: str) -> str:
    """Check a key and percent-encode it.

    >>> encode_key("refs/branch.señal/ref.json")
    'refs/branch.se%C3%B1al/ref.json'
    """
    if _PLAIN_KEY.match(key):
        return key
    check_key(key)
    return _encode(key)


def encode_prefix(prefix: str) -> str:
    """Percent-encode the beginning of a key, which may be empty or end in `/`.

    >>> encode_prefix("refs/tag.ñ")
    'refs/tag.%C3%B1'
    """
    if prefix:
        check_key(prefix.removesuffix("/"))
    return _encode(prefix)


def decode_key(name: str) -> str | None:
    """Turn an encoded name back into its key; None if `encode_key` never makes that name.

    >>> decode_key("refs/branch.se%C3%B1al/ref.json")
    'refs/branch.señal/ref.json'
    >>> decode_key("repo#1") is None
    True
    """
    if _PLAIN_KEY.match(name):
        return name
    key = unquote(name, errors="replace")
    return key if _encode(key) == name and _fault(key) is None else None


def check_key(key: str) -> None:
    """Refuse keys that are empty, absolute, climb upwards or hold a NUL."""
    if not _PLAIN_KEY.match(key) and (fault := _fault(key)) is not None:
        raise InvalidInputError(
            f"{key!r} is not a key: {fault}", ErrorKind.INVALID_KEY, key=repr(key)
        )


def _fault(key: str) -> str | None:
    """Return what is wrong with a key, if anything."""
    segments = key.split("/")
    if "\0" in key or not _is_text(key):
        return "it holds characters that cannot be stored"
    if not all(segments):
        return "a segment is empty; keys never start or end with `/`"
    if "." in segments or ".." in segments:
        return "it would leave the root of the storage"
    return None


def is_temporary(name: str) -> bool:
    """Return whether a file name belongs to an unfinished write (ours or the reference's).

    >>> is_temporary("repo#0"), is_temporary("repo")
    (True, False)
    """
    return _TEMPORARY.search(name) is not None


def _encode(key: str) -> str:
    return _TO_ENCODE.sub(lambda match: _percent(match.group()), key)


def _percent(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode())


def _is_text(key: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in key)


def check_expected_version(if_version: Version, *, if_absent: bool) -> None:
    """Refuse a write with two conditions, or with a version that says nothing."""
    if if_absent:
        raise InvalidInputError("`if_absent` and `if_version` exclude each other: give one")
    if if_version.etag is None and if_version.generation is None:
        raise InvalidInputError("`if_version` holds neither an etag nor a generation")


def check_order(key: str, byte_range: ByteRange) -> None:
    """Refuse a range that could not lie in any object."""
    start, end = byte_range
    if not 0 <= start <= end:
        raise InvalidInputError(
            f"({start}, {end}) is no byte range: expected 0 <= start <= end",
            ErrorKind.INVALID_BYTE_RANGE,
            key=key,
        )


def check_range(key: str, byte_range: ByteRange, size_bytes: int) -> None:
    """Refuse a range that does not lie within an object."""
    check_order(key, byte_range)
    if byte_range[1] > size_bytes:
        raise range_past_end(key, byte_range, size_bytes)


def range_past_end(
    key: str, byte_range: ByteRange, size_bytes: int | None = None
) -> InvalidInputError:
    """Describe a range that reaches past the end of an object."""
    size = "" if size_bytes is None else f" of {size_bytes} bytes"
    return InvalidInputError(
        f"bytes {byte_range[0]} to {byte_range[1]} reach past the end of {key!r}{size}",
        ErrorKind.INVALID_BYTE_RANGE,
        key=key,
    )


def same_state(version: Version, other: Version) -> bool:
    """Return whether two versions name the same state; generations decide where both are known.

    >>> same_state(Version(etag="a", generation="1"), Version(etag="a"))
    True
    """
    if version.generation is not None and other.generation is not None:
        return version.generation == other.generation
    return version.etag is not None and version.etag == other.etag


def merge_ranges(byte_ranges: Sequence[ByteRange], *, gap: int, limit: int) -> list[ByteRange]:
    """Find few windows that cover all ranges that are not empty.

    Ranges at most `gap` bytes apart share a window while that stays below `limit`.

    >>> merge_ranges([(10, 20), (0, 5), (90, 95)], gap=8, limit=100)
    [(0, 20), (90, 95)]
    """
    windows: list[ByteRange] = []
    for start, end in sorted(
        byte_range for byte_range in byte_ranges if byte_range[0] < byte_range[1]
    ):
        if windows:
            first, last = windows[-1]
            is_inside = end <= last
            if is_inside or (start <= last + gap and end - first <= limit):
                windows[-1] = (first, max(last, end))
                continue
        windows.append((start, end))
    return windows


def split_range(byte_range: ByteRange, part_bytes: int) -> list[ByteRange]:
    """Cut a range into parts of equal size, but for the last.

    >>> split_range((0, 25), 10)
    [(0, 10), (10, 20), (20, 25)]
    """
    start, end = byte_range
    return [(first, min(first + part_bytes, end)) for first in range(start, end, part_bytes)]


def cut_range(
    windows: Sequence[ByteRange], fetched: Sequence[memoryview], byte_range: ByteRange
) -> Buffer:
    """Take a range out of the last window that begins before it, which covers it."""
    start, end = byte_range
    if start == end:
        return b""
    position = bisect_right(windows, start, key=lambda window: window[0]) - 1
    first = windows[position][0]
    return fetched[position][start - first : end - first]
