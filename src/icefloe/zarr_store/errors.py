"""Failures that Zarr's own contract names, as members of our error tree too."""

from typing import Self

from icefloe.errors import ErrorKind, NodeNotFoundError, ReadOnlyError


class ReadOnlyStoreError(ReadOnlyError, ValueError):
    """A write through a store that may only be read; Zarr expects a `ValueError`."""

    default_kind = ErrorKind.READ_ONLY_STORE


class MissingKeyError(NodeNotFoundError, FileNotFoundError):
    """Nothing under that key; Zarr expects a `FileNotFoundError`."""

    default_kind = ErrorKind.KEY_NOT_FOUND

    def __new__(cls, message: str, *_: object, **__: object) -> Self:
        """Make room as an `OSError` needs it; `KeyError`, which comes first, would not."""
        return FileNotFoundError.__new__(cls, message)
