"""Checks of arguments that every backend makes in the same way."""

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.storage.port import ByteRange, Version


def check_conditions(*, if_absent: bool, if_version: Version | None) -> None:
    """Refuse a write with two conditions, or with a version that says nothing."""
    if if_version is None:
        return
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


def same_state(one: Version, other: Version) -> bool:
    """Tell whether two versions name the same state; generations decide where both are known.

    >>> same_state(Version(etag="a", generation="1"), Version(etag="a"))
    True
    """
    if one.generation is not None and other.generation is not None:
        return one.generation == other.generation
    return one.etag is not None and one.etag == other.etag
