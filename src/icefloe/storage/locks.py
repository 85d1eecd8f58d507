"""The lock of a directory, which excludes other writers, and the queue in which writers wait.

The lock is `flock(2)` on the empty file `#0` in the directory. Only those who may write to the
directory may open that file: a lock on the directory itself could be taken, and kept, by everybody
who may read it. Listings, ours and the reference's, skip the name. The kernel releases the lock
when its holder dies, so the file may stay. A directory that is not a storage of ours, such as an
exported Zarr hierarchy, is locked itself and gets no file.

A ticket of the queue is a lock on one byte of the empty file `#1`: the byte whose offset is the
time at which its holder came, in nanoseconds. The writer without a locked byte before its own is
next. The kernel takes back the ticket of a process that dies. Only fairness depends on the queue:
a writer that waits for a holder that does not move goes ahead after a while. Tickets are locks of
an open file (`F_OFD_SETLK`), which Linux has; elsewhere there is no queue.
"""

import errno
import fcntl
import logging
import os
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from icefloe import effects
from icefloe.errors import ErrorKind, InvalidInputError, StorageError

# ruff: noqa: PTH112, PTH115 - paths are plain strings here, and most calls are relative to descriptors


_log = logging.getLogger(__name__)

LOCK_FILE: Final = "#0"
PATIENCE_SECONDS: Final = 60.0
"""How long to wait for a lock unless a caller says otherwise: it is held for milliseconds."""
_SECONDS_TO_NOTICE: Final = 1.0
"""A wait that takes longer is logged."""
_SHORTEST_PAUSE: Final = 0.000_05
_LONGEST_PAUSE: Final = 0.01
_OPEN: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
_TMPFILE: Final[int] = getattr(os, "O_TMPFILE", 0)
_HAS_NAMELESS: Final = _TMPFILE != 0 and os.path.isdir("/proc/self/fd")
_BUSY: Final = frozenset({errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES})
_WRITE: Final = 0o2
_READ_AND_WRITE: Final = 0o6

_open_handles: Final[set[int]] = set()
"""Descriptors through which this process holds locks, or waits for them."""


@contextmanager
def hold_lock(
    parent: int, *, patience_seconds: float = PATIENCE_SECONDS, in_file: bool = True
) -> Iterator[None]:
    """Keep all other writers out of a directory, in this process and in others.

    `StorageError`, which may be tried again, if somebody else keeps the lock for too long.
    """
    is_locked = False
    while not is_locked:
        handle = open_lock_file(parent, LOCK_FILE) if in_file else _opened_again(parent)
        try:
            _wait_for_lock(handle, parent, patience_seconds, in_file=in_file)
            # A writer that waited for a file that was deleted since has locked nothing.
            is_locked = os.fstat(handle).st_nlink > 0
            if is_locked:
                yield
        finally:
            # Closing alone would not do if a child made by fork still has the descriptor.
            fcntl.flock(handle, fcntl.LOCK_UN)
            close_lock_file(handle)


def open_lock_file(parent: int, name: str) -> int:
    """Open a file that is there for its locks only, and make it if need be.

    A child that is forked before `close_lock_file` closes its copy of the descriptor, which would
    keep a lock alive after the death of this process.
    """
    try:
        handle = os.open(name, _OPEN, dir_fd=parent)
    except FileNotFoundError:
        _create(parent, name)
        handle = os.open(name, _OPEN, dir_fd=parent)
    except PermissionError:
        raise StorageError(
            f"cannot open the lock file {_path(parent)}/{name}: it belongs to another user. Give"
            " all who may write to the directory the right to read and write it (chmod, chgrp),"
            " or delete it while nobody writes",
            ErrorKind.IO,
        ) from None
    return _noted(handle)


def open_known_lock_file(path: str) -> int:
    """Open such a file that is there already."""
    return _noted(os.open(path, _OPEN))


def close_lock_file(handle: int) -> None:
    """Close what was opened for its locks."""
    _open_handles.discard(handle)
    os.close(handle)


def _opened_again(parent: int) -> int:
    return _noted(os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=parent))


def _noted(handle: int) -> int:
    _open_handles.add(handle)
    return handle


def _create(parent: int, name: str) -> None:
    """Make an empty file that those may open who may write to the directory, and nobody else."""
    folder = os.fstat(parent)
    mode = 0o600 | sum(
        _READ_AND_WRITE << shift for shift in (6, 3, 0) if folder.st_mode >> shift & _WRITE
    )
    # Nameless, it gets its rights before anybody can see it.
    handle = _open_nameless(parent)
    is_nameless = handle is not None
    try:
        if handle is None:
            handle = os.open(name, _OPEN | os.O_CREAT | os.O_EXCL, mode, dir_fd=parent)
        for owner in (folder.st_uid, -1):
            with suppress(OSError):
                os.fchown(handle, owner, folder.st_gid)
                break
        with suppress(OSError):  # some file systems have no rights
            os.fchmod(handle, mode)
        if is_nameless:
            source = f"/proc/self/fd/{handle}"
            os.link(source, name, src_dir_fd=parent, dst_dir_fd=parent, follow_symlinks=True)
    except FileExistsError:
        pass  # somebody else was quicker
    finally:
        if handle is not None:
            os.close(handle)


def _open_nameless(parent: int) -> int | None:
    if not _HAS_NAMELESS:
        return None
    try:
        return os.open(".", os.O_RDWR | os.O_CLOEXEC | _TMPFILE, 0o600, dir_fd=parent)
    except OSError:
        return None


def _wait_for_lock(handle: int, parent: int, patience_seconds: float, *, in_file: bool) -> None:
    if _try_lock(handle):
        return
    begun = time.monotonic()
    pause, is_noticed = _SHORTEST_PAUSE, False
    while not _try_lock(handle):
        waited = time.monotonic() - begun
        if waited >= _SECONDS_TO_NOTICE and not is_noticed:
            is_noticed = True
            _log.warning(
                "waiting for the lock of %s, which %s holds", _path(parent), _holders(handle)
            )
        if waited >= patience_seconds:
            path = f"{_path(parent)}/{LOCK_FILE}" if in_file else _path(parent)
            raise StorageError(
                f"{_holders(handle)} has held the lock of {path} for {waited:.0f} s: nothing was"
                " written. End that process, or try again later; `lslocks` and `fuser` list who"
                " has a file locked or open, and timeouts.operation_timeout_ms in the settings"
                " of the storage sets how long to wait",
                ErrorKind.IO,
                retryable=True,
                lock=path,
            )
        time.sleep(min(pause, max(patience_seconds - waited, 0)))
        pause = min(2 * pause, _LONGEST_PAUSE)


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _BUSY:
            return False
        raise
    return True


def _holders(handle: int) -> str:
    """Name the processes that hold a lock on an open file, as far as the kernel tells."""
    status = os.fstat(handle)
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    pids: list[str] = []
    with suppress(OSError), open("/proc/locks", encoding="ascii") as table:  # noqa: PTH123
        for line in table:
            fields = line.split()
            if fields[1] == "FLOCK" and fields[5] == device:
                pids.append(fields[4])
    return f"process {', '.join(pids)}" if pids else "another process"


def _path(parent: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{parent}")
    except OSError:
        return "the directory"


def _close_locks_of_parent() -> None:
    """In a forked child: close what other threads of the parent have open for their locks.

    The locks of the parent stay as they are; but should it die, the child would keep them.
    """
    for handle in tuple(_open_handles):
        with suppress(OSError):
            os.close(handle)
    _open_handles.clear()


os.register_at_fork(after_in_child=_close_locks_of_parent)


QUEUE_FILE: Final = "#1"
_PATIENCE_SECONDS: Final = 2.0
"""How long to wait for a holder of the first ticket."""
_NEXT_PAUSE: Final = 0.000_2
_LATER_PAUSE: Final = 0.002
"""Only the one who is next looks often."""
_LOCK: Final = struct.Struct("hhqqi4x")  # `struct flock` where offsets have 64 bits
_SET: Final[int | None] = getattr(fcntl, "F_OFD_SETLK", None)
_GET: Final[int | None] = getattr(fcntl, "F_OFD_GETLK", None)
HAS_QUEUES: Final = _SET is not None and _GET is not None


class FileQueue:
    """Waits in the queue of a directory."""

    def __init__(self) -> None:
        self._stuck = -1
        """The last ticket whose holder we lost patience with: it is not waited for again."""

    def turn(self, open_file: Callable[[], int]) -> "FileTurn":
        """Wait for all who came before, as long as they move.

        `open_file` opens the file of the queue, as `open_lock_file` does.
        """
        return FileTurn(self, open_file)

    async def wait(self, handle: int, ticket: int) -> None:
        """Wait for all earlier tickets."""
        first, since = -1, 0.0
        while (ahead := _first(handle, self._stuck + 1, ticket)) is not None:
            now = time.monotonic()
            if ahead != first:
                first, since = ahead, now
            elif now - since > _PATIENCE_SECONDS:
                self._stuck = ahead
            is_next = _any_between(handle, ahead + 1, ticket) is None
            await effects.sleep(_NEXT_PAUSE if is_next else _LATER_PAUSE)


class FileTurn:
    """A turn in a queue, from its ticket to its end; had at once where there is no queue."""

    __slots__ = ("_handle", "_open_file", "_queue", "_ticket")

    def __init__(self, queue: FileQueue, open_file: Callable[[], int]) -> None:
        self._queue = queue
        self._open_file = open_file
        self._handle: int | None = None

    async def __aenter__(self) -> None:
        try:
            self._handle = handle = self._open_file()
        except (OSError, StorageError, InvalidInputError):
            return  # the write itself will report missing rights
        self._ticket = _draw(handle)
        try:
            if self._ticket is not None:
                await self._queue.wait(handle, self._ticket)
        except BaseException:
            self._end()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        if self._handle is not None:
            if self._ticket is not None:
                # Closing alone would not do if a child made by fork still has the descriptor.
                _lock(self._handle, fcntl.F_UNLCK, self._ticket)
            close_lock_file(self._handle)
            self._handle = None


def _draw(handle: int) -> int | None:
    """Take a ticket; None where there are none."""
    if not HAS_QUEUES:
        return None
    for ticket in range(start := time.time_ns(), start + 100):
        try:
            _lock(handle, fcntl.F_WRLCK, ticket)
        except (BlockingIOError, PermissionError):
            continue  # somebody came in the same moment
        except OSError:
            return None
        return ticket
    return None


def _first(handle: int, start: int, stop: int) -> int | None:
    """Find the earliest ticket in a range; the kernel names any of them."""
    earliest = None
    while (ticket := _any_between(handle, start, stop)) is not None:
        earliest = stop = ticket
    return earliest


def _any_between(handle: int, start: int, stop: int) -> int | None:
    if start >= stop or _GET is None:
        return None
    question = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, stop - start, 0)
    kind, _, offset, _, _ = _LOCK.unpack(fcntl.fcntl(handle, _GET, question))
    return None if kind == fcntl.F_UNLCK else max(offset, start)


def _lock(handle: int, kind: int, ticket: int) -> None:
    assert _SET is not None
    fcntl.fcntl(handle, _SET, _LOCK.pack(kind, os.SEEK_SET, ticket, 1, 0))
