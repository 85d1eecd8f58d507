"""Which chunks and shards the copy of an array gets. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final

from icefloe.errors import ErrorKind, InvalidInputError

WHOLE: Final = -1
"""Stands for the length of a dimension."""

_COORDINATE_BYTES: Final = 2**20
"""Coordinates are not cut into smaller chunks than this: they are read whole."""


@dataclass(frozen=True, slots=True)
class LayoutOptions:
    """How the copies are to be stored."""

    chunks: Mapping[str, int] = field(default_factory=dict)
    """By dimension, the length of chunks; `-1` for one chunk. Others stay as they are."""
    shards: Mapping[str, int] = field(default_factory=dict)
    """By dimension, the length of shards, each of several chunks; `-1` for one shard."""
    compressors: Any = "auto"
    """As in `zarr.create_array`."""

    def __post_init__(self) -> None:
        for what, lengths in (("chunks", self.chunks), ("shards", self.shards)):
            for name, length in lengths.items():
                if length < 1 and length != WHOLE:
                    raise InvalidInputError(
                        f"{what} of length {length} along {name!r}: give a positive number, or -1"
                        " for the whole dimension",
                        ErrorKind.BAD_METADATA,
                    )


@dataclass(frozen=True, slots=True)
class SourceArray:
    """What of an array decides on the layout of its copy."""

    path: str
    shape: tuple[int, ...]
    dimensions: tuple[str | None, ...]
    chunks: tuple[int, ...]
    shards: tuple[int, ...] | None
    item_bytes: int

    @property
    def is_coordinate(self) -> bool:
        """Tell whether it gives the values along the dimension of its name."""
        return self.dimensions == (self.path.rpartition("/")[2],)


@dataclass(frozen=True, slots=True)
class ArrayLayout:
    """Chunks and shards of a copy."""

    chunks: tuple[int, ...]
    shards: tuple[int, ...] | None = None

    @property
    def objects(self) -> tuple[int, ...]:
        """Give the lengths of what is stored as one object."""
        return self.shards or self.chunks


def choose_layout(array: SourceArray, options: LayoutOptions) -> ArrayLayout:
    """Choose the chunks and shards of one array.

    >>> cube = SourceArray("t2m", (365, 180), ("time", "lat"), (1, 180), None, 4)
    >>> choose_layout(cube, LayoutOptions({"time": 30, "lat": 60}, {"time": 90}))
    ArrayLayout(chunks=(30, 60), shards=(90, 60))
    """
    names = set(array.dimensions)
    if not names & (options.chunks.keys() | options.shards.keys()):
        return ArrayLayout(array.chunks, array.shards)
    chunks = tuple(
        _length(options.chunks.get(name or ""), whole, usual)
        for name, whole, usual in zip(array.dimensions, array.shape, array.chunks, strict=True)
    )
    if array.is_coordinate:
        least = min(array.shape[0], _COORDINATE_BYTES // array.item_bytes)
        return ArrayLayout((max(chunks[0], least, 1),))
    if not names & options.shards.keys():
        return ArrayLayout(chunks)
    return ArrayLayout(chunks, _shards(array, chunks, options))


def _length(wanted: int | None, whole: int, usual: int) -> int:
    if wanted is None:
        return usual
    return max(whole, 1) if wanted == WHOLE else wanted


def _shards(array: SourceArray, chunks: tuple[int, ...], options: LayoutOptions) -> tuple[int, ...]:
    shards = []
    for name, whole, chunk in zip(array.dimensions, array.shape, chunks, strict=True):
        wanted = options.shards.get(name or "")
        length = _length(wanted, whole, chunk)
        if wanted == WHOLE:
            length = -(-length // chunk) * chunk
        if length % chunk:
            raise InvalidInputError(
                f"shards of {length} along {name!r} cannot hold chunks of {chunk} of the array"
                f" {array.path!r}: give a multiple of {chunk}",
                ErrorKind.BAD_METADATA,
                path=array.path,
            )
        shards.append(length)
    return tuple(shards)


def check_dimensions(arrays: Iterable[SourceArray], options: LayoutOptions) -> None:
    """Refuse dimensions that no array has: most likely a slip of the pen."""
    known = sorted({name for array in arrays for name in array.dimensions if name})
    for name in (*options.chunks, *options.shards):
        if name not in known:
            raise InvalidInputError(
                f"no array has the dimension {name!r}: there are {', '.join(known) or 'none'}",
                ErrorKind.BAD_METADATA,
            )


def values_bytes(array: SourceArray) -> int:
    """Give the bytes of all values of an array."""
    return array.item_bytes * prod(array.shape)
