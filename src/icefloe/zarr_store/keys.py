"""Zarr keys, parsed to nodes and chunks, and the errors that Zarr's store contract names."""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, Self

from icefloe.errors import ErrorKind, InvalidInputError, NodeNotFoundError, ReadOnlyError
from icefloe.format.paths import ROOT, check_path
from icefloe.records import Record


class ReadOnlyStoreError(ReadOnlyError, ValueError):
    """A write through a store that may only be read; Zarr expects a `ValueError`."""

    default_kind = ErrorKind.READ_ONLY_STORE


class MissingKeyError(NodeNotFoundError, FileNotFoundError):
    """Nothing under that key; Zarr expects a `FileNotFoundError`."""

    default_kind = ErrorKind.KEY_NOT_FOUND

    def __new__(cls, message: str, *_: object, **__: object) -> Self:
        """Make room as an `OSError` needs it; `KeyError`, which comes first, would not."""
        return FileNotFoundError.__new__(cls, message)


METADATA: Final = "zarr.json"
V2_METADATA: Final = frozenset({".zarray", ".zgroup", ".zattrs", ".zmetadata"})

# Greedy: the last `c` that only numbers follow ends the path, so arrays may be called `c`.
_CHUNK: Final = re.compile(r"(?:(.*)/)?c((?:/(?:0|[1-9][0-9]{0,9}))*)", re.DOTALL)
_NUMBERS: Final = re.compile(r"(?:0|[1-9][0-9]{0,9})(?:/(?:0|[1-9][0-9]{0,9}))*")
_LARGEST_INDEX: Final = 2**32 - 1
_SAFE_DIGITS: Final = 10  # fewer make a number that is certainly below that


class MetadataKey(Record):
    """The `zarr.json` of a node."""

    path: str


class ChunkKey(Record):
    """One chunk of an array."""

    path: str
    coordinates: tuple[int, ...]


class V2Key(Record):
    """Metadata of Zarr v2, which no repository holds."""

    key: str


type ParsedKey = MetadataKey | ChunkKey | V2Key


def parse_key(key: str) -> ParsedKey:
    """Return what a key names, whether it exists or not; raise `invalid-key` for other keys.

    >>> parse_key("t2m/c/0/12")
    ChunkKey(path='/t2m', coordinates=(0, 12))
    >>> parse_key("zarr.json")
    MetadataKey(path='/')
    """
    # What nearly all keys look like; the pattern below would find the same.
    head, separator, tail = key.rpartition("/c/")
    if separator and _NUMBERS.fullmatch(tail) is not None:
        coordinates = tuple(map(int, tail.split("/")))
        if len(tail) < _SAFE_DIGITS or max(coordinates) <= _LARGEST_INDEX:
            return ChunkKey(_path_of(head, key), coordinates)
    match = _CHUNK.fullmatch(key)
    if match is not None:
        head, tail = match.groups()
        coordinates = tuple(map(int, tail[1:].split("/"))) if tail else ()
        if coordinates and max(coordinates) > _LARGEST_INDEX:
            raise _invalid(key, f"chunk coordinates end at {_LARGEST_INDEX}")
        return ChunkKey(_path_of(head, key), coordinates)
    head, slash, name = key.rpartition("/")
    if name == METADATA:
        return MetadataKey(_path_of(head if slash else None, key))
    if name in V2_METADATA:
        return V2Key(key)
    raise _invalid(key, "keys end in zarr.json or in c/ and chunk coordinates joined by /")


def _path_of(head: str | None, key: str) -> str:
    try:
        return _checked_path(head)
    except InvalidInputError as error:
        raise _invalid(key, str(error)) from error


@lru_cache(maxsize=4096)
def _checked_path(head: str | None) -> str:
    if not head:  # one leading slash is the root too
        return ROOT
    return check_path(head if head.startswith("/") else f"/{head}")


def _invalid(key: str, problem: str) -> InvalidInputError:
    return InvalidInputError(
        f"{key!r} is not a key of a Zarr v3 hierarchy: {problem}",
        ErrorKind.INVALID_KEY,
        key=repr(key),
    )


def metadata_key(path: str) -> str:
    """Write the key of a node's metadata.

    >>> metadata_key("/"), metadata_key("/a/b")
    ('zarr.json', 'a/b/zarr.json')
    """
    return METADATA if path == ROOT else f"{path[1:]}/{METADATA}"


def chunk_key(path: str, coordinates: Iterable[int]) -> str:
    """Write the key of a chunk.

    >>> chunk_key("/t2m", (0, 12)), chunk_key("/scalar", ())
    ('t2m/c/0/12', 'scalar/c')
    """
    return "/".join([chunk_root(path), *map(str, coordinates)])


def chunk_root(path: str) -> str:
    """Write what the keys of all chunks of an array begin with, without the slash after it.

    >>> chunk_root("/"), chunk_root("/t2m")
    ('c', 't2m/c')
    """
    return "c" if path == ROOT else f"{path[1:]}/c"
