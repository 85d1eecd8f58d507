"""Files of which only some may be read, whatever symbolic links there are.

What counts is the file that was opened, not the path that it was asked for under: it is opened
first, in a way that has no effect on it, then the system is asked what its path really is, and
only if that is allowed is it read, through the same handle. So it does not help to exchange a
file or a directory for a link between one step and the next.

A link may lead from one allowed place to another, and an allowed place may be reached through a
link itself. A hard link is a file like any other, which nothing can tell from the original.
"""

import errno
import fcntl
import os
import stat
from collections.abc import Sequence
from typing import Final, NoReturn
from urllib.parse import quote

from icefloe.errors import ErrorKind, InvalidInputError

_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_LOOK: Final[int | None] = getattr(os, "O_PATH", None)
"""Opens a file to look at it only: even a device takes no notice."""
_GET_PATH: Final[int | None] = getattr(fcntl, "F_GETPATH", None)
_LONGEST_PATH: Final = 1024
_DELETED: Final = " (deleted)"


class Confinement:
    """The directories and files that may be read, given by their absolute paths."""

    def __init__(self, places: Sequence[str]) -> None:
        self._places = tuple(os.path.normpath(folder) for folder in places)

    def open(self, path: str) -> int:
        """Open a file for reading if it is allowed, else `InvalidInputError`.

        What is not a regular file is a `FileNotFoundError`.
        """
        if not _lies_in(path, self._places):
            self._refuse(path, path)
        if _LOOK is None:
            return self._open_plainly(path)
        looking = os.open(path, _LOOK | os.O_CLOEXEC)
        try:
            self._check(path, looking)
            return os.open(f"/proc/self/fd/{looking}", _READ)
        finally:
            os.close(looking)

    def _open_plainly(self, path: str) -> int:
        handle = os.open(path, _READ)
        try:
            self._check(path, handle)
        except BaseException:
            os.close(handle)
            raise
        return handle

    def _check(self, path: str, handle: int) -> None:
        status = os.fstat(handle)
        real = _real_path(handle)
        # Without a link on the way the place is not reached through one either: no need to look.
        if real != path and not _lies_in(
            real, [os.path.realpath(folder) for folder in self._places]
        ):
            self._refuse(path, real)
        if not stat.S_ISREG(status.st_mode):
            raise FileNotFoundError(errno.ENOENT, "no regular file", path)

    def _refuse(self, path: str, real: str) -> NoReturn:
        leads = f", which is really {real!r}," if real != path else ""
        folder = quote(f"{os.path.dirname(real).rstrip('/')}/")  # noqa: PTH120
        raise InvalidInputError(
            f"the file {path!r}{leads} lies outside of what you authorised. If it may be read, open"
            " the repository with authorize_virtual_chunk_access=icefloe.containers_credentials("
            f"{{..., 'file://{folder}': icefloe.credentials.LocalFileSystemAccess}})",
            ErrorKind.UNAUTHORIZED_VIRTUAL_CHUNK_CONTAINER,
            path=path,
        )


def _lies_in(path: str, places: Sequence[str]) -> bool:
    """Return whether a path is one of the places or below one; all of them are plain paths.

    >>> _lies_in("/data/a/b", ["/data/a"]), _lies_in("/data/ab", ["/data/a"])
    (True, False)
    """
    return any(path == folder or path.startswith(f"{folder.rstrip('/')}/") for folder in places)


def _real_path(handle: int) -> str:
    """Ask the system for the path of an open file, without any link in it."""
    if _GET_PATH is not None:
        raw_path = fcntl.fcntl(handle, _GET_PATH, bytes(_LONGEST_PATH))
        return os.fsdecode(raw_path.partition(b"\0")[0])
    path = os.readlink(f"/proc/self/fd/{handle}")  # noqa: PTH115
    if path.endswith(_DELETED) and not os.path.lexists(path):
        return path.removesuffix(_DELETED)  # it lost its name since it was opened
    return path
