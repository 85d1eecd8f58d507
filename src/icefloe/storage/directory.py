"""The parts of POSIX that the local backend uses: directories, drafts and listings.

All work is relative to the descriptor of an open directory, reached from the root one component
at a time without following symbolic links. So a link planted below the root cannot redirect a
write, not even in a race.
"""

import ctypes
import errno
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from itertools import count
from typing import Final

from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.records import Record
from icefloe.storage.keys import decode_key, is_temporary
from icefloe.storage.locks import hold_lock
from icefloe.storage.port import ObjectInfo, Version

# ruff: noqa: PTH103, PTH112, PTH114, PTH120 - paths are plain strings here, and most calls are relative to descriptors


_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_BELOW: Final = _DIRECTORY | os.O_NOFOLLOW
_TMPFILE: Final[int] = getattr(os, "O_TMPFILE", 0)
_CAN_LINK_OPEN_FILES: Final = os.path.isdir("/proc/self/fd")
_HAS_NAMELESS: Final = _TMPFILE != 0 and _CAN_LINK_OPEN_FILES
_UNSUPPORTED: Final = frozenset(
    {
        errno.EOPNOTSUPP,
        errno.ENOTSUP,
        errno.EPERM,
        errno.EINVAL,
        errno.ENOSYS,
        errno.EISDIR,
        errno.EMLINK,
    }
)
_COPY_BYTES: Final = 1 << 30
_RESERVED_BYTES: Final = 512 << 10
"""For longer files blocks are reserved at once: finding them one by one costs a quarter more."""

_TICK_NS: Final = 10_000_000
"""The kernel's clock for file times lags behind the exact clock by no more, unless it is busy."""
_SPREAD_NS: Final = 1_000_000
"""Less than a tick, so that no file seems to be written in the future."""
_spread: Final = count(secrets.randbelow(_SPREAD_NS))

# Not `os.posix_fallocate`, which writes to every block where the file system cannot reserve any.
_fallocate: Final = getattr(ctypes.CDLL(None), "fallocate", None)
if _fallocate is not None:
    _fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)


def open_directory(root: str, folder: str, *, create: bool = False, durable: bool = False) -> int:
    """Open a directory below the root, making it and its parents if told to."""
    try:
        handle = os.open(root, _DIRECTORY)
    except FileNotFoundError:
        if not create:
            raise
        os.makedirs(root, exist_ok=True)
        handle = os.open(root, _DIRECTORY)
        if durable:
            _sync_ancestors(root)
    for name in folder.split("/") if folder else ():
        parent = handle
        try:
            handle = _enter(parent, name, create=create, durable=durable)
        finally:
            os.close(parent)
    return handle


def _sync_ancestors(path: str) -> None:
    """Make the names of new directories durable; which of them are new is not known."""
    while (above := os.path.dirname(path)) != path:
        with suppress(PermissionError):  # then it is not ours, so not new either
            handle = os.open(above, _DIRECTORY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        path = above


def _enter(parent: int, name: str, *, create: bool, durable: bool) -> int:
    try:
        return os.open(name, _BELOW, dir_fd=parent)
    except FileNotFoundError:
        if not create:
            raise
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=parent)
        if durable:
            os.fsync(parent)
        return os.open(name, _BELOW, dir_fd=parent)
    except OSError as error:
        # O_NOFOLLOW reports a link as ELOOP or, because of O_DIRECTORY, as ENOTDIR.
        if error.errno in {errno.ELOOP, errno.ENOTDIR} and os.path.islink(
            f"/proc/self/fd/{parent}/{name}"
        ):
            raise InvalidInputError(
                f"the directory {name!r} in the storage is a symbolic link; writing through it"
                " is refused: move the storage's root there instead, or mount it",
                ErrorKind.INVALID_PATH,
            ) from None
        raise


class Draft:
    """A file being written, not yet under its name."""

    def __init__(self, parent: int, name: str, handle: int, temporary: str | None) -> None:
        self.handle = handle
        self._parent = parent
        self._name = name
        self._temporary = temporary  # None while the file has no name at all
        self._source = temporary or f"/proc/self/fd/{handle}"

    def write(self, data: memoryview) -> None:
        """Append bytes."""
        if _fallocate is not None and len(data) >= _RESERVED_BYTES:
            _fallocate(self.handle, 0, 0, len(data))  # if it fails, writing will do, or say why
        written = os.write(self.handle, data)
        while written < len(data):  # one call moves at most 2 GiB
            written += os.write(self.handle, data[written:])

    def copy_from(self, source: int, size: int) -> None:
        """Append another file."""
        position = 0
        while position < size:
            moved = _copy_some(source, self.handle, position, size - position)
            if moved == 0:
                raise OSError(errno.EIO, "the file got shorter while it was copied")
            position += moved

    def finish(self, modified_ns: int | None = None, *, durable: bool) -> os.stat_result:
        """Date the file and sync it; without a time, the clock of the file system counts."""
        _date(self.handle, modified_ns)
        if durable:
            os.fsync(self.handle)
        return os.fstat(self.handle)

    def publish_new(self) -> bool:
        """Return the file its name unless that is taken; tell whether it was free."""
        try:
            _link(self._source, self._parent, self._name)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _UNSUPPORTED or self._temporary is None:
                raise
            return self._publish_without_links()
        return True

    def publish_over(self) -> None:
        """Take the place of the present file; the caller holds the directory's lock."""
        if self._temporary is None:
            # Under the lock nobody else uses this name; a dead process may have left it.
            staged = f"{self._name}#0"
            try:
                _link(self._source, self._parent, staged)
            except FileExistsError:
                os.unlink(staged, dir_fd=self._parent)
                _link(self._source, self._parent, staged)
            self._temporary = staged
        os.rename(self._temporary, self._name, src_dir_fd=self._parent, dst_dir_fd=self._parent)
        self._temporary = None

    def close(self) -> None:
        """Close the file; an unpublished file disappears."""
        if self._temporary is not None:
            with suppress(FileNotFoundError):
                os.unlink(self._temporary, dir_fd=self._parent)
        os.close(self.handle)

    def _publish_without_links(self) -> bool:
        """Do with a lock what `link` does alone: it keeps at least our own writers apart."""
        with hold_lock(self._parent):
            try:
                os.stat(self._name, dir_fd=self._parent, follow_symlinks=False)
            except FileNotFoundError:
                self.publish_over()
                return True
            return False


def open_draft(parent: int, name: str, *, nameless: bool = _HAS_NAMELESS) -> Draft:
    """Begin a file in a directory."""
    return (_nameless_draft(parent, name) if nameless else None) or _named_draft(parent, name)


def _nameless_draft(parent: int, name: str) -> Draft | None:
    try:
        handle = os.open(".", os.O_WRONLY | os.O_CLOEXEC | _TMPFILE, 0o666, dir_fd=parent)
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            return None
        raise
    return Draft(parent, name, handle, None)


def _named_draft(parent: int, name: str) -> Draft:
    temporary = f"{name}#{secrets.randbits(62) + 1}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    return Draft(parent, name, os.open(temporary, flags, 0o666, dir_fd=parent), temporary)


def create_file(folder: str, name: str, data: memoryview) -> os.stat_result | None:
    """Publish a new file in a directory that exists and is not a link.

    Does what a nameless draft does, in a row; `None` or an error if anything is in the way.
    """
    if not _HAS_NAMELESS:
        return None
    parent = os.open(folder, _BELOW)
    try:
        handle = os.open(".", os.O_WRONLY | os.O_CLOEXEC | _TMPFILE, 0o666, dir_fd=parent)
        try:
            if os.write(handle, data) != len(data):
                return None
            _date(handle)
            status = os.fstat(handle)
            _link(f"/proc/self/fd/{handle}", parent, name)
            return status
        finally:
            os.close(handle)
    finally:
        os.close(parent)


def _date(handle: int, modified_ns: int | None = None) -> None:
    """Set the time of a file that was just written; by default that of the file system's clock.

    The file system dated the file when it was written. That clock has ticks of milliseconds, and
    two states of an object must not share a time. So this process's clock refines the time within
    a tick; if it disagrees with the file system's clock, a counter does.
    """
    if modified_ns is None:
        dated_ns = os.fstat(handle).st_mtime_ns
        past_tick_ns = time.time_ns() - dated_ns
        if not 0 <= past_tick_ns <= _TICK_NS:
            past_tick_ns = next(_spread) % _SPREAD_NS
        modified_ns = dated_ns + past_tick_ns
    os.utime(handle, ns=(modified_ns, modified_ns))


def link_open_file(handle: int, parent: int, name: str) -> bool:
    """Return an open file one more name; tell whether that was possible and the name was free."""
    if not _CAN_LINK_OPEN_FILES:
        return False
    try:
        _link(f"/proc/self/fd/{handle}", parent, name)
    except OSError as error:
        # A file that was unlinked since it was opened cannot be found any more.
        if error.errno in _UNSUPPORTED | {errno.EEXIST, errno.EXDEV, errno.EACCES, errno.ENOENT}:
            return False
        raise
    return True


def _link(source: str, parent: int, name: str) -> None:
    # The directory arguments make Python call linkat(2), which can follow /proc's link.
    os.link(source, name, src_dir_fd=parent, dst_dir_fd=parent, follow_symlinks=True)


def _copy_some(source: int, target: int, position: int, length: int) -> int:
    try:
        return os.copy_file_range(source, target, min(length, _COPY_BYTES), position, position)
    except OSError as error:
        if error.errno not in _UNSUPPORTED | {errno.EXDEV, errno.EBADF}:
            raise
    data = os.pread(source, min(length, 1 << 20), position)
    return os.pwrite(target, data, position)


# ruff: noqa: PTH116 - paths are plain strings here


_NOT_THERE: Final = (FileNotFoundError, NotADirectoryError)


def version_of(status: os.stat_result) -> Version:
    """Name the state of a file."""
    return Version(etag=f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}")


def info_of(key: str, status: os.stat_result) -> ObjectInfo:
    """Return the information in a file's status."""
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
            continue  # deleted meanwhile, so it must not be listed


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


class _Folder(Record):
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
        identity = (status.st_dev, status.st_ino)
        with entries:
            if identity in self.ancestors:
                return  # a symbolic link led back to where we came from
            ancestors = self.ancestors | {identity}
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
                    continue  # deleted meanwhile, so it must not be listed


def _key_of(name: str) -> str | None:
    return None if is_temporary(name) else decode_key(name)
