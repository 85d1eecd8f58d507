"""Walking a directory of the local file system, and what a file tells without being read."""

# ruff: noqa: PTH116 - paths are plain strings here
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from icefloe.storage.keys import decode_key, is_temporary
from icefloe.storage.port import ObjectInfo, Version

_NOT_THERE: Final = (FileNotFoundError, NotADirectoryError)


def version_of(status: os.stat_result) -> Version:
    """Name the state of a file."""
    return Version(etag=f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}")


def info_of(key: str, status: os.stat_result) -> ObjectInfo:
    """Say what a file's status tells."""
    moment = datetime.fromtimestamp(status.st_mtime, UTC)
    return ObjectInfo(key, status.st_size, moment, version_of(status))


def walk(root: str, prefix: str, *, encoded: bool = True) -> Iterator[ObjectInfo]:
    """Visit the files below the deepest directory that a prefix names for sure.

    Names of files, and the prefix with them, are encoded keys, or keys as they are.
    """
    for key, entry in walk_entries(root, prefix, encoded=encoded):
        try:
            yield info_of(key, entry.stat())
        except FileNotFoundError:
            continue  # deleted since; whoever did it wants it unlisted


def walk_entries(
    root: str, prefix: str, *, encoded: bool = True
) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Visit the same files without a look at them."""
    folder = prefix.rpartition("/")[0]
    key_of = _key_of if encoded else str
    first = (
        _Folder(f"{root}/{folder}", f"{folder}/", key_of) if folder else _Folder(root, "", key_of)
    )
    todo = [first]
    while todo:
        yield from todo.pop().visit(prefix, todo)


@dataclass(frozen=True, slots=True)
class _Folder:
    """A directory to list: its path, how keys in it begin, and which directories led to it."""

    path: str
    base: str
    key_of: Callable[[str], str | None]
    ancestors: frozenset[tuple[int, int]] = frozenset()

    def visit(self, prefix: str, todo: list["_Folder"]) -> Iterator[tuple[str, os.DirEntry[str]]]:
        """Yield the objects in this directory and add the directories in it to `todo`."""
        try:
            status = os.stat(self.path)
            entries = os.scandir(self.path)
        except _NOT_THERE:
            return
        place = (status.st_dev, status.st_ino)
        with entries:
            if place in self.ancestors:
                return  # a symbolic link led back to where we came from
            ancestors = self.ancestors | {place}
            is_below = self.base.startswith(prefix)
            is_plain = self.key_of(f"{self.base}x") == f"{self.base}x"
            for entry in entries:
                name = self.base + entry.name
                if not (is_below or name.startswith(prefix) or prefix.startswith(f"{name}/")):
                    continue
                try:
                    if entry.is_dir():
                        todo.append(_Folder(entry.path, f"{name}/", self.key_of, ancestors))
                    elif entry.is_file():
                        # Ids are the names of nearly all files, and there may be millions.
                        is_id = is_plain and entry.name.isalnum() and name.isascii()
                        if (key := name if is_id else self.key_of(name)) is not None:
                            yield key, entry
                except FileNotFoundError:
                    continue  # deleted since; whoever did it wants it unlisted


def _key_of(name: str) -> str | None:
    return None if is_temporary(name) else decode_key(name)
