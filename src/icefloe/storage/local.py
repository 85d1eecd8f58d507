"""Objects as files of a directory, safe for many processes and threads at once.

How each promise of the port is kept:

- *Whole or not at all.* An object is written to a nameless file (`O_TMPFILE`) and gets its
  name when it is complete; it is never changed in place. Where the file system has no
  nameless files, a temporary name ending in `#` and digits is used, which listings (ours and
  the reference's) pass over. A process that dies leaves at most such a file.
- *Create if absent* is `link(2)`, which fails when the name is taken: no lock needed, and
  safe against other programs too.
- *Replace if unchanged* holds the lock of the parent directory (`icefloe.storage.locks`) from
  the comparison to the rename. The kernel drops it when its holder dies, so no stale lock can
  exist. Plain writes over an existing object and deletions take the same lock; plain writes
  under a new name need none, because `link` orders them.
- *Versions never name two contents.* A version is inode, modification time and size; the time of a
  replacement is moved strictly beyond that of the file it replaces.
- *Times are those of the file system*, not of the process that writes: garbage collection compares
  them, and on a network file system the clocks of writers differ.
- *Copies* are further names of the same file, which stays as it is for as long as it has any;
  so they have the version and the time of what they are a copy of.
- *Durable*, when asked for: the file is synced before it gets its name, its directory after.

Symbolic links below the root are followed when reading and listing, never when writing or
deleting; the root itself may be one. With a `Confinement` none is followed out of it. Directories
that become empty stay: removing them would race with writers. User metadata is not stored, as in
the reference's local repositories.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from itertools import batched, islice
from typing import TYPE_CHECKING, Final, NoReturn

from icefloe import effects
from icefloe.errors import (
    ErrorKind,
    InvalidInputError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    PreconditionFailedError,
    StorageError,
)
from icefloe.storage.capabilities import Batch, Wanted
from icefloe.storage.directory import (
    Draft,
    create_file,
    info_of,
    link_open_file,
    open_directory,
    open_draft,
    version_of,
    walk,
    walk_entries,
)
from icefloe.storage.keys import (
    check_expected_version,
    check_key,
    check_range,
    encode_key,
    encode_prefix,
)
from icefloe.storage.locks import (
    HAS_QUEUES,
    PATIENCE_SECONDS,
    QUEUE_FILE,
    FileQueue,
    hold_lock,
    open_known_lock_file,
    open_lock_file,
)
from icefloe.storage.port import (
    Buffer,
    ByteRange,
    DeleteReport,
    Fetched,
    ObjectInfo,
    Version,
)

if TYPE_CHECKING:
    from icefloe.storage.sandbox import Confinement

# ruff: noqa: PTH100, PTH116 - paths are plain strings here, and most calls are relative to descriptors


_INLINE_BYTES: Final = 256 * 1024
"""Asynchronous callers get smaller transfers on the loop: a thread would cost more."""

_MOST_AT_ONCE: Final = 1 << 30
"""The system reads no more than 2 GiB in one call."""

_LIST_BATCH: Final = 1000
_WANTED_BATCH: Final = 4 * 1024
"""Names that are judged at once."""
_DELETE_BATCH: Final = 256  # deletions under one lock
_MOST_AHEAD_NS: Final = 24 * 3600 * 10**9
"""Many replacements on a file system that keeps whole seconds stay far below."""
_READ_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a FIFO must not hang us
_NOT_THERE: Final = (FileNotFoundError, NotADirectoryError)
_ABSENT: Final = "absent"
"""What becomes of a deletion of something that is not there."""
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class LocalBackend:
    """A directory of the local file system."""

    def __init__(
        self,
        root: str,
        *,
        durable: bool = False,
        encodes_keys: bool = True,
        confinement: Confinement | None = None,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._root = os.path.abspath(root)
        # What does not encode keys is no storage of ours: it gets no files beyond its own.
        self._lock = partial(hold_lock, patience_seconds=patience_seconds, in_file=encodes_keys)
        self._durable = durable
        self._confinement = confinement
        self._encodes = encodes_keys
        self._name_of = encode_key if encodes_keys else _checked
        self._queue = FileQueue()
        self.has_queue = HAS_QUEUES and encodes_keys

    async def get(self, key: str, byte_range: ByteRange | None = None) -> Fetched:
        """Read a file, or one range of it."""
        handle, status = self._open(key)
        try:
            start, end = byte_range or (0, status.st_size)
            check_range(key, (start, end), status.st_size)
            data = await _transfer(lambda: _read(handle, start, end - start), end - start)
        except OSError as error:
            _fail(error, "read", key)
        finally:
            os.close(handle)
        return Fetched(data, info_of(key, status))

    async def get_ranges(self, key: str, byte_ranges: Sequence[ByteRange]) -> list[Buffer]:
        """Read several ranges through one open file."""
        if len(byte_ranges) == 1 and self._confinement is None:
            start, end = byte_ranges[0]
            if 0 <= start < end < start + _INLINE_BYTES:
                data = self._read_at_once(key, start, end - start)
                if data is not None:
                    return [data]
        handle, status = self._open(key)
        try:
            for byte_range in byte_ranges:
                check_range(key, byte_range, status.st_size)
            return await _transfer(
                lambda: [_read(handle, start, end - start) for start, end in byte_ranges],
                sum(end - start for start, end in byte_ranges),
            )
        except OSError as error:
            _fail(error, "read", key)
        finally:
            os.close(handle)

    async def put(
        self,
        key: str,
        data: Buffer,
        *,
        if_absent: bool = False,
        if_version: Version | None = None,
        attributes: Mapping[str, str] | None = None,
        content_type: str | None = None,
    ) -> Version:
        """Write a file whole; every condition is atomic, also between processes."""
        if if_version is not None:
            check_expected_version(if_version, if_absent=if_absent)
        view = memoryview(data).cast("B")
        if len(view) < _INLINE_BYTES and not (if_absent or if_version or self._durable):
            version = self._put_at_once(key, view)
            if version is not None:
                return version
        if if_version is not None:
            # May wait for a lock, so never on an event loop.
            return await effects.offload(lambda: self._replace(key, view, if_version))
        fill = partial(Draft.write, data=view)
        if not effects.is_blocking() and len(view) < _INLINE_BYTES and not self._durable:
            with suppress(BlockingIOError):
                return self._put(key, fill, if_absent=if_absent, may_wait=False)
        return await effects.offload(lambda: self._put(key, fill, if_absent=if_absent))

    async def list(self, prefix: str = "") -> AsyncIterator[list[ObjectInfo]]:
        """Walk the files whose key starts with `prefix`; unfinished writes are passed over."""
        batches = self._walk(encode_prefix(prefix) if self._encodes else prefix)
        while batch := await effects.offload(lambda: list(islice(batches, _LIST_BATCH))):
            yield batch

    async def list_wanted(self, prefix: str, is_wanted: Wanted) -> AsyncIterator[Batch]:
        """Walk the files as `list` does, and look only at those that are wanted."""
        entries = self._walk_entries(encode_prefix(prefix) if self._encodes else prefix)

        def look() -> Batch | None:
            batch = list(islice(entries, _WANTED_BATCH))
            if not batch:
                return None
            chosen = is_wanted([key for key, _ in batch])
            pairs = [pair for pair, yes in zip(batch, chosen, strict=True) if yes]
            return list(_infos(pairs))

        while (infos := await effects.offload(look)) is not None:
            yield infos

    async def head(self, key: str) -> Fetched:
        """Look at a file."""
        if self._confinement is not None:
            handle, status = self._open(key)
            os.close(handle)
            return Fetched(b"", info_of(key, status))
        name = self._name_of(key)
        try:
            status = os.stat(f"{self._root}/{name}")
        except OSError as error:
            _fail(error, "look at", key)
        if not stat.S_ISREG(status.st_mode):
            raise _missing(key)
        return Fetched(b"", info_of(key, status))

    async def copy(self, source: str, target: str, *, if_version: Version | None = None) -> None:
        """Copy a file: by a link if the name is free, because files are never changed in place.

        Otherwise the bytes are copied, within the kernel where it can do that.
        """

        def run() -> None:
            handle, status = self._open(source)
            try:
                if if_version is not None and if_version != version_of(status):
                    raise _changed(source)
                if not self._link(handle, target):
                    self._put(target, lambda draft: draft.copy_from(handle, status.st_size))
            finally:
                os.close(handle)

        await effects.offload(run)

    def turn(self, key: str) -> AbstractAsyncContextManager[None]:
        """Wait for all who came before to write in the directory of a file."""
        folder, _ = _split(self._name_of(key))
        return self._queue.turn(partial(self._open_queue, folder))

    def _open_queue(self, folder: str) -> int:
        if not folder:
            with suppress(FileNotFoundError):
                return open_known_lock_file(f"{self._root}/{QUEUE_FILE}")
        parent = open_directory(self._root, folder)
        try:
            return open_lock_file(parent, QUEUE_FILE)
        finally:
            os.close(parent)

    async def delete_many(self, keys: Sequence[str]) -> DeleteReport:
        """Delete files; each directory is locked once per batch."""
        names = {self._name_of(key): key for key in keys}
        return await effects.offload(lambda: self._delete(names))

    def _read_at_once(self, key: str, start: int, length: int) -> bytes | None:
        """Read a range that is all there, without a look at the file; `None` if it is not.

        Each call to the system lets other threads go first, so the fewer the better.
        """
        try:
            handle = os.open(f"{self._root}/{self._name_of(key)}", _READ_FLAGS)
        except OSError as error:
            _fail(error, "read", key)
        try:
            data = os.pread(handle, length, start)
        except OSError:
            return None  # a directory, for instance: the reader will notice
        finally:
            os.close(handle)
        return data if len(data) == length else None

    def _open(self, key: str) -> tuple[int, os.stat_result]:
        path = f"{self._root.rstrip('/')}/{self._name_of(key)}"
        try:
            if self._confinement is None:
                handle = os.open(path, _READ_FLAGS)
            else:
                handle = self._confinement.open(path)
        except OSError as error:
            _fail(error, "read", key)
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            os.close(handle)
            raise _missing(key)
        return handle, status

    def _link(self, handle: int, key: str) -> bool:
        """Put an open file under a new name; tell whether that was possible."""
        folder, name = _split(self._name_of(key))
        try:
            parent = open_directory(self._root, folder, create=True, durable=self._durable)
            try:
                if self._durable:
                    os.fsync(handle)  # its writer may not have done so
                if not link_open_file(handle, parent, name):
                    return False
                self._settle(parent, key)
            finally:
                os.close(parent)
        except OSError as error:
            _fail(error, "write", key)
        return True

    def _put_at_once(self, key: str, data: memoryview) -> Version | None:
        """Publish a new file in the plainest case, with as few calls as possible.

        `None` if that was not possible, for whatever reason; nothing was published then.
        """
        folder, name = _split(self._name_of(key))
        if "/" in folder:
            return None  # directories are entered one by one, as none of them may be a link
        try:
            status = create_file(f"{self._root}/{folder}", name, data)
        except OSError:
            return None
        return None if status is None else version_of(status)

    def _put(
        self,
        key: str,
        fill: Callable[[Draft], None],
        *,
        if_absent: bool = False,
        may_wait: bool = True,
    ) -> Version:
        """Publish a new file under its name, or else replace the existing file.

        That takes a lock: `BlockingIOError` if it may not wait for one.
        """
        folder, name = _split(self._name_of(key))
        try:
            parent = open_directory(self._root, folder, create=True, durable=self._durable)
            try:
                status = self._publish(parent, name, fill, if_absent, may_wait)
                self._settle(parent, key)
            finally:
                os.close(parent)
        except FileExistsError:
            raise PreconditionFailedError(f"{key!r} already exists", key=key) from None
        except BlockingIOError:
            raise
        except OSError as error:
            _fail(error, "write", key)
        return version_of(status)

    def _publish(
        self,
        parent: int,
        name: str,
        fill: Callable[[Draft], None],
        if_absent: bool,  # noqa: FBT001
        may_wait: bool,  # noqa: FBT001
    ) -> os.stat_result:
        draft = open_draft(parent, name)
        try:
            fill(draft)
            status = draft.finish(durable=self._durable)
            if draft.publish_new():
                return status
            if if_absent:
                raise FileExistsError
            if not may_wait:
                raise BlockingIOError
            with self._lock(parent):
                status = self._overtake(draft, parent, name)
                draft.publish_over()
                return status
        finally:
            draft.close()

    def _replace(self, key: str, data: memoryview, expected: Version) -> Version:
        """Replace a file if it is in the expected state."""
        folder, name = _split(self._name_of(key))
        try:
            parent = open_directory(self._root, folder)
            try:
                status = self._publish_if(parent, name, data, expected)
                self._settle(parent, key)
            finally:
                os.close(parent)
        except _NOT_THERE:
            raise _changed(key) from None
        except OSError as error:
            _fail(error, "write", key)
        if status is None:
            raise _changed(key)
        return version_of(status)

    def _publish_if(
        self, parent: int, name: str, data: memoryview, expected: Version
    ) -> os.stat_result | None:
        """Keep the directory's lock from the comparison to the rename."""
        draft = open_draft(parent, name)
        try:
            draft.write(data)
            draft.finish(durable=self._durable)
            with self._lock(parent):
                current = _status_in(parent, name)
                if current is None or version_of(current) != expected:
                    return None
                status = self._overtake(draft, parent, name)
                draft.publish_over()
                return status
        finally:
            draft.close()

    def _overtake(self, draft: Draft, parent: int, name: str) -> os.stat_result:
        """Make the draft's time later than that of the file it is about to replace.

        A file from the far future is not followed: a wrong time would never go away again.
        """
        status = os.fstat(draft.handle)
        current = _status_in(parent, name)
        if current is not None and current.st_mtime_ns - status.st_mtime_ns > _MOST_AHEAD_NS:
            return status
        step = 1
        while current is not None and status.st_mtime_ns <= current.st_mtime_ns:
            # The step grows until it exceeds the resolution of the file system's clock.
            status = draft.finish(current.st_mtime_ns + step, durable=self._durable)
            step *= 1000
        return status

    def _settle(self, parent: int, key: str) -> None:
        """Make a name durable; failing here leaves open whether it will survive a crash."""
        if not self._durable:
            return
        try:
            os.fsync(parent)
        except OSError as error:
            raise OutcomeUnknownError(
                f"{key!r} was written, but its directory could not be made durable:"
                f" {error.strerror}",
                key=key,
            ) from error

    def _delete(self, names: Mapping[str, str]) -> DeleteReport:
        # In the order in which they come: that of a listing is quicker than any other.
        by_folder: dict[str, list[str]] = {}
        for name in names:
            by_folder.setdefault(name.rpartition("/")[0], []).append(name)
        failures: dict[str, str] = {}
        absent: list[str] = []
        for folder, group in by_folder.items():
            skip = len(folder) + bool(folder)
            for batch in batched(group, _DELETE_BATCH):
                reasons = self._delete_in(folder, [name[skip:] for name in batch])
                for name, reason in zip(batch, reasons, strict=True):
                    if reason is _ABSENT:
                        absent.append(names[name])
                    elif reason is not None:
                        failures[names[name]] = reason
        return DeleteReport(len(names) - len(failures), failures, absent=frozenset(absent))

    def _delete_in(self, folder: str, names: Sequence[str]) -> Sequence[str | None]:
        """Delete files of one directory; per file, why it may still be there, or `_ABSENT`."""
        try:
            parent = open_directory(self._root, folder)
            try:
                with self._lock(parent):
                    reasons = [_unlink(parent, name) for name in names]
                self._settle(parent, folder)
            finally:
                os.close(parent)
        except _NOT_THERE:
            return [_ABSENT] * len(names)
        except (OSError, StorageError, InvalidInputError) as error:
            return [str(error)] * len(names)
        return reasons

    def _walk_entries(self, prefix: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
        try:
            yield from walk_entries(self._root, prefix, encoded=self._encodes)
        except OSError as error:
            _fail(error, "list", prefix)

    def _walk(self, prefix: str) -> Iterator[ObjectInfo]:
        try:
            yield from walk(self._root, prefix, encoded=self._encodes)
        except OSError as error:
            _fail(error, "list", prefix)


def _infos(pairs: Iterable[tuple[str, os.DirEntry[str]]]) -> Iterator[ObjectInfo]:
    for key, entry in pairs:
        try:
            yield info_of(key, entry.stat())
        except FileNotFoundError:
            continue  # deleted since
        except OSError as error:
            _fail(error, "look at", key)


async def _transfer[T](work: Callable[[], T], size: int) -> T:
    return work() if size < _INLINE_BYTES else await effects.offload(work)


def _read(handle: int, start: int, length: int) -> Buffer:
    if length <= _MOST_AT_ONCE:
        data = os.pread(handle, length, start)
        if len(data) == length:
            return data
    # Pieces would have to be joined, and memory would hold the bytes twice.
    whole = memoryview(bytearray(length))
    have = 0
    while have < length and (count := os.preadv(handle, [whole[have:]], start + have)):
        have += count
    if have != length:
        raise OSError(f"the file ended after {start + have} bytes while it was read")
    return whole.toreadonly()


def _unlink(parent: int, name: str) -> str | None:
    try:
        os.unlink(name, dir_fd=parent)
    except _NOT_THERE:
        return _ABSENT
    except IsADirectoryError:
        return _ABSENT  # a directory is no object
    except OSError as error:
        return error.strerror or type(error).__name__
    return None


def _split(name: str) -> tuple[str, str]:
    folder, _, last = name.rpartition("/")
    return folder, last


def _status_in(parent: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _checked(key: str) -> str:
    """Return a key as the name of its file."""
    check_key(key)
    return key


def _missing(key: str) -> ObjectNotFoundError:
    return ObjectNotFoundError(f"no object {key!r}", key=key)


def _changed(key: str) -> PreconditionFailedError:
    return PreconditionFailedError(f"{key!r} is no longer in the expected state", key=key)


def _fail(error: OSError, verb: str, key: str) -> NoReturn:
    """Turn an error of the operating system into one of ours."""
    if isinstance(error, FileNotFoundError | NotADirectoryError) and verb != "write":
        raise _missing(key) from None
    reason = error.strerror or str(error)
    kind = ErrorKind.STORAGE_FULL if error.errno in _FULL else ErrorKind.IO
    raise StorageError(f"cannot {verb} {key!r}: {reason}", kind, key=key) from error
