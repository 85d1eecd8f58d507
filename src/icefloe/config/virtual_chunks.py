"""Chunks that are byte ranges of foreign objects, as users describe them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.values import U64, LocalMoment, Value, integer

_coordinate = integer(0, 2**32 - 1)


def _coordinates(given: object, place: str) -> list[int]:
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise InvalidInputError(
            f"{place} must be the coordinates of a chunk, such as [0, 3], "
            f"got {type(given).__name__}",
            ErrorKind.INVALID_CHUNK_INDEX,
        )
    return [_coordinate(each, place) for each in given]


@dataclass(frozen=True, slots=True)
class VirtualChunkSpec(Value):
    """A chunk of an array that lies in a foreign object: where, and how to notice changes of it.

    `index` are the coordinates of the chunk. Reading fails when the object no longer has the
    etag, or was modified after the time that is given here; a time without a time zone, such as
    `datetime.now()`, is in local time.

    >>> VirtualChunkSpec([0, 3], "s3://bucket/era5.nc", offset=8192, length=4096).index
    [0, 3]
    """

    index: Annotated[list[int], _coordinates]
    location: str
    offset: U64
    length: U64
    etag_checksum: str | None = None
    last_updated_at_checksum: LocalMoment | None = None
