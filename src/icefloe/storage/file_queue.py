"""A queue of the writers of a directory, first come, first served.

A ticket is a lock on one byte of the empty file `#1` in the directory: the byte whose offset is
the time at which its holder came, in nanoseconds. Whoever has no locked byte before their own is
next. So there is nothing to write down and nothing to clean up: the kernel takes back the ticket
of a process that dies. Nothing but fairness hangs on it. Whoever waits for a holder that does not
move, because it is stopped, say, goes ahead without a turn after a while.

These are locks of an open file (`F_OFD_SETLK`), which Linux has. Elsewhere, and on file systems
without them, there is no queue.
"""

import fcntl
import os
import struct
import time
from collections.abc import Callable
from typing import Final

from icefloe import effects
from icefloe.errors import InvalidInputError, StorageError
from icefloe.storage.locks import close_lock_file

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
            return  # who cannot write here is told so by the write itself
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
