"""A cache on a local disk for bytes that are far away and never change.

Files of a repository are immutable, so an entry never expires. An entry is a file: a header with
its name, length and checksum, then the bytes. It is written in another folder and renamed, so a
crash leaves no half entry; an entry that is damaged all the same is deleted and counts as a miss.
Any number of processes share a folder. A counter in the folder, which a lock protects, keeps the
entries of all processes below the limit. The entries that were used least recently are deleted
first. Other files in the folder are neither counted nor deleted.

The name of an entry is a hash of the place of the storage, the key and the range: two storages
never share an entry, whatever the names of their objects are.
"""

import logging
import os
import re
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from functools import partial
from hashlib import blake2b
from pathlib import Path
from secrets import token_hex
from typing import Any, Final, Self

import numpy as np

from icefloe.effects import offload
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.forks import renew_lock_in_children
from icefloe.records import MutableRecord, Record, replace
from icefloe.reports import parse_bytes, shown_bytes
from icefloe.storage.port import Buffer, ByteRange
from icefloe.storage.specs import AzureSpec, GcsSpec, LocalSpec, MemorySpec, Spec

DEFAULT_SIZE: Final = 10 << 30
FOLDER_VARIABLE: Final = "ICEFLOE_CACHE"
SIZE_VARIABLE: Final = "ICEFLOE_CACHE_SIZE"

_HEADER: Final = struct.Struct("<4sIQ32s")
_MAGIC: Final = b"IFC2"
_NAME_BYTES: Final = 32
_FACTS: Final = np.dtype([("used", "f8"), ("size", "i8")])
_COUNTER: Final = struct.Struct("<Q")
_COUNTER_NAME: Final = "used"
_SWEEP_NAME: Final = "sweep.lock"
_UNFINISHED_NAME: Final = "unfinished"
"""The folder of files that are being written; their writers hold locks on them."""
_FOLDER_OF_ENTRIES: Final = re.compile(r"[0-9a-f]{2}")
_ENTRY: Final = re.compile(r"[0-9a-f]{62}")
_KEPT_SHARE: Final = 0.9
"""A sweep deletes entries until this share of the limit is left."""
_LARGEST_SHARE: Final = 4
"""An object that would take more than this part (1 of 4) of the cache is not kept."""
_RECENT_SECONDS: Final = 60
"""The time of the last use of an entry is this exact."""
_INLINE_BYTES: Final = 1 << 20

_log: Final = logging.getLogger(__name__)


class CacheStatistics(MutableRecord):
    """Counts of a cache, for this process.

    >>> CacheStatistics(hits=3, misses=1).hit_rate
    0.75
    """

    hits: int = 0
    misses: int = 0
    hit_bytes: int = 0
    """Bytes that were not requested from a storage."""
    stored: int = 0
    """Entries that were written."""
    stored_bytes: int = 0
    damaged: int = 0
    """Entries that were deleted because their checksum was wrong."""
    failed: int = 0
    """Entries that could not be written: the disk is full, for instance."""

    @property
    def hit_rate(self) -> float:
        """The share of reads that the cache answered; 0 without any read."""
        return self.hits / max(self.hits + self.misses, 1)


class DiskCache:
    """Bytes on a local disk, in a folder that belongs to the user alone.

    >>> import tempfile
    >>> cache = DiskCache(tempfile.mkdtemp(), "1 MB")
    >>> cache.find(b"key")
    >>> cache.keep(b"key", b"bytes")
    >>> bytes(cache.find(b"key"))
    b'bytes'
    >>> cache.statistics.hits, cache.statistics.misses
    (1, 1)
    """

    def __init__(self, path: str | os.PathLike[str], size: int | str = DEFAULT_SIZE) -> None:
        self.size_bytes: Final = _checked_size(size)
        self.path: Final = _own_folder(Path(path).expanduser().absolute())
        self._statistics = CacheStatistics()
        self._lock = threading.Lock()
        renew_lock_in_children(self)
        self._delete_abandoned()

    def __repr__(self) -> str:
        counts = self._statistics
        try:
            used = shown_bytes(self.used_bytes)
        except OSError:
            used = "none"  # the folder was deleted, or its disk is gone
        return (
            f"<icefloe.DiskCache {str(self.path)!r}: {used} of"
            f" {shown_bytes(self.size_bytes)}, {counts.hits} hits, {counts.misses} misses>"
        )

    def __enter__(self) -> Self:
        """Use this cache for repositories that are opened within a `with` statement."""
        return self

    def __exit__(self, *_: object) -> None:
        _choice.leave(self)

    @property
    def statistics(self) -> CacheStatistics:
        """The counts of this process so far."""
        with self._lock:
            return replace(self._statistics)

    @property
    def used_bytes(self) -> int:
        """The size of all entries, of all processes."""
        with self._counter() as counter:
            return counter.value

    def find(self, key: bytes) -> memoryview | None:
        """Return the bytes of an entry, or None."""
        name = _name_of(key)
        path = self._path_of(name)
        try:
            with path.open("rb", buffering=0) as file:
                state = os.fstat(file.fileno())
                # Nobody else can make files of this user, wherever a path leads.
                stored = file.readall() if state.st_uid == os.getuid() else b""
        except OSError:
            self._count(misses=1)
            return None
        if not _is_sound(stored, name):
            _log.warning("deleted a damaged entry of the cache: %s", path)
            with suppress(OSError):
                path.unlink()
            self._count(misses=1, damaged=1)
            return None
        if time.time() - state.st_mtime > _RECENT_SECONDS:
            with suppress(OSError):
                os.utime(path)
        self._count(hits=1, hit_bytes=len(stored) - _HEADER.size)
        return memoryview(stored)[_HEADER.size :]

    def keep(self, key: bytes, data: Buffer) -> None:
        """Store bytes under a key, if there is room for them; a failure only counts."""
        name, size = _name_of(key), len(data) + _HEADER.size
        if size * _LARGEST_SHARE > self.size_bytes or self._path_of(name).exists():
            return
        header = _HEADER.pack(_MAGIC, zlib.crc32(data), len(data), name)
        try:
            try:
                is_kept = self._write(name, header, data)
            except FileNotFoundError:  # somebody deleted the folder
                _own_folder(self.path)
                is_kept = self._write(name, header, data)
        except (OSError, InvalidInputError) as error:
            if not self.statistics.failed:
                _log.warning("cannot write to the cache in %s: %s", self.path, error)
            self._count(failed=1)
        else:
            if is_kept:
                self._count(stored=1, stored_bytes=len(data))

    def clear(self) -> None:
        """Delete all entries."""
        self._sweep(0, waits=True)

    def _path_of(self, name: bytes) -> Path:
        text = name.hex()
        return self.path / text[:2] / text[2:]

    def _write(self, name: bytes, header: bytes, data: Buffer) -> bool:
        """Write an entry in the folder of unfinished files, and move it to its place."""
        path = self._path_of(name)
        temporary = self.path / _UNFINISHED_NAME / token_hex(16)
        for folder in (path.parent, temporary.parent):
            folder.mkdir(mode=0o700, exist_ok=True)
        try:
            with temporary.open("xb", buffering=0) as file:
                flock(file, LOCK_EX)  # until it is closed, whatever ends the process
                _write_all(file, header)
                _write_all(file, data)
                return self._publish(temporary, path, len(header) + len(data))
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)

    def _delete_abandoned(self) -> None:
        """Delete what processes that were killed left unfinished."""
        with suppress(OSError):
            for path in (self.path / _UNFINISHED_NAME).iterdir():
                with suppress(OSError), path.open("rb") as file:
                    flock(file, LOCK_EX | LOCK_NB)  # fails while its writer lives
                    path.unlink()

    def _count(self, **changes: int) -> None:
        with self._lock:
            for name, change in changes.items():
                setattr(self._statistics, name, getattr(self._statistics, name) + change)

    def _publish(self, temporary: Path, path: Path, size: int) -> bool:
        """Count a new entry, and give it its name; without room, sweep first.

        The count comes first: a crash between makes it too large, never too small, until the next
        sweep counts again.
        """
        for _ in range(2):
            with self._counter() as counter:
                if path.exists():
                    return False  # another process was faster
                if counter.value + size <= self.size_bytes:
                    counter.value += size
                    counter.save()
                    temporary.rename(path)
                    return True
            if not self._sweep(int(self.size_bytes * _KEPT_SHARE) - size):
                return False  # another process makes room now
        return False

    def _sweep(self, target_bytes: int, *, waits: bool = False) -> bool:
        """Delete entries, the least recently used first, until few enough bytes are left."""
        with (self.path / _SWEEP_NAME).open("ab") as lock:
            try:
                flock(lock, LOCK_EX if waits else LOCK_EX | LOCK_NB)
            except BlockingIOError:
                return False
            self._delete_abandoned()
            with self._counter() as counter:
                before = counter.value
            total, last_used = self._limit_of(target_bytes)
            for entry, state in self._entries():
                if total <= target_bytes:
                    break
                if state.st_mtime <= last_used:
                    with suppress(FileNotFoundError):
                        Path(entry).unlink()
                    total -= state.st_size
            with self._counter() as counter:
                counter.value = total + counter.value - before  # with entries made meanwhile
                counter.save()
        return True

    def _limit_of(self, target_bytes: int) -> tuple[int, float]:
        """Return the bytes of all entries, and until when those to delete were last used."""
        states = (state for _, state in self._entries())
        facts = np.fromiter(((state.st_mtime, state.st_size) for state in states), _FACTS)
        facts.sort(order="used", kind="stable")
        sizes = np.cumsum(facts["size"])
        total = int(sizes[-1]) if len(sizes) else 0
        deleted = min(int(np.searchsorted(sizes, total - target_bytes)), len(sizes) - 1)
        return total, float(facts["used"][deleted]) if len(sizes) else 0.0

    def _entries(self) -> Iterator[tuple[os.DirEntry[str], os.stat_result]]:
        """Yield all entries; other files in the folder are somebody else's."""
        with os.scandir(self.path) as folders:
            names = [entry.name for entry in folders if _FOLDER_OF_ENTRIES.fullmatch(entry.name)]
        for name in names:
            if (self.path / name).is_symlink() or not (self.path / name).is_dir():
                continue
            with os.scandir(self.path / name) as entries:
                for entry in entries:
                    if _ENTRY.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                        with suppress(FileNotFoundError):
                            yield entry, entry.stat(follow_symlinks=False)

    @contextmanager
    def _counter(self) -> Iterator["_Counter"]:
        """Read the number of used bytes, while no other process changes it."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
        descriptor = os.open(self.path / _COUNTER_NAME, flags, 0o600)
        try:
            flock(descriptor, LOCK_EX)
            stored = os.pread(descriptor, _COUNTER.size + 1, 0)
            is_sound = len(stored) == _COUNTER.size
            value = (
                _COUNTER.unpack(stored)[0]
                if is_sound
                else sum(state.st_size for _, state in self._entries())
            )
            yield _Counter(descriptor, value)
        finally:
            os.close(descriptor)


class _Counter(MutableRecord):
    descriptor: int
    value: int

    def save(self) -> None:
        os.pwrite(self.descriptor, _COUNTER.pack(max(self.value, 0)), 0)


def _write_all(file: Any, data: Buffer) -> None:
    view = memoryview(data).cast("B")
    while len(view):
        view = view[file.write(view) :]


def _name_of(key: bytes) -> bytes:
    return blake2b(key, digest_size=_NAME_BYTES).digest()


def _is_sound(stored: bytes, name: bytes) -> bool:
    if len(stored) < _HEADER.size:
        return False
    magic, checksum, length, own_name = _HEADER.unpack_from(stored)
    data = memoryview(stored)[_HEADER.size :]
    is_whole = magic == _MAGIC and own_name == name and length == len(data)
    return bool(is_whole and checksum == zlib.crc32(data))


def _checked_size(size: int | str) -> int:
    try:
        size_bytes = parse_bytes(size) if isinstance(size, str) else size
    except ValueError as error:
        raise InvalidInputError(f"the size of a cache: {error}", ErrorKind.INVALID_CONFIG) from None
    if size_bytes < 1:
        raise InvalidInputError(
            f"the size of a cache is {size!r}: it must be a positive number of bytes",
            ErrorKind.INVALID_CONFIG,
        )
    return size_bytes


def _own_folder(path: Path) -> Path:
    """Create a folder for the user alone; refuse one that others can write to."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = path.stat()
        is_usable = path.is_dir() and os.access(path, os.W_OK | os.X_OK)
    except OSError as error:
        raise InvalidInputError(
            f"{path} cannot be a cache: {error.strerror}. Choose a folder that you can write to",
            ErrorKind.INVALID_CONFIG,
        ) from error
    if not is_usable or state.st_uid != os.getuid() or state.st_mode & 0o022:
        raise InvalidInputError(
            f"{path} cannot be a cache: it must be a folder of yours that nobody else can write to"
            f" (chmod go-w {path}), as others could put false data into it",
            ErrorKind.INVALID_CONFIG,
        )
    return path


class _Choice:
    """The cache that this process uses."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        renew_lock_in_children(self)
        self._chosen: list[DiskCache] = []
        self._of_environment: tuple[tuple[str | None, str | None], DiskCache | None] | None = None

    def enter(self, cache: DiskCache) -> None:
        with self._lock:
            self._chosen.append(cache)

    def leave(self, cache: DiskCache) -> None:
        with self._lock:
            self._chosen = [other for other in self._chosen if other is not cache]

    def current(self) -> DiskCache | None:
        with self._lock:
            if self._chosen:
                return self._chosen[-1]
            variables = os.environ.get(FOLDER_VARIABLE), os.environ.get(SIZE_VARIABLE)
            if self._of_environment is None or self._of_environment[0] != variables:
                folder, size = variables
                found = DiskCache(folder, size or DEFAULT_SIZE) if folder else None
                self._of_environment = variables, found
            return self._of_environment[1]


_choice: Final = _Choice()


def cache(path: str | os.PathLike[str], size: int | str = DEFAULT_SIZE) -> DiskCache:
    """Keep chunks and metadata that are far away on a local disk, for all repositories from now on.

    Chunks, manifests, snapshots and logs of repositories on object stores and web servers are read
    from there the first time, and from the disk afterwards, by all processes that use the folder.
    Virtual chunks are kept if their references have a checksum. Repositories that are open already
    do not use the cache. `ICEFLOE_CACHE` and `ICEFLOE_CACHE_SIZE` in the environment do the same.

    Args:
        path: a folder of yours that nobody else can write to; it is created if necessary.
        size: the limit for all entries: a number of bytes, or a text such as `"50 GB"`.

    Returns:
        The cache, with its `statistics`. It is in use until the program ends, or until the end of a
        `with` statement.

    Example:
        >>> import icefloe, tempfile
        >>> with icefloe.cache(tempfile.mkdtemp(), "2 GB") as cache:
        ...     repository = icefloe.Repository.create(icefloe.in_memory_storage())
        >>> cache.statistics.misses  # nothing was far away
        0
    """
    opened = DiskCache(path, size)
    _choice.enter(opened)
    return opened


def current_cache() -> DiskCache | None:
    """Return the cache that `cache` or the environment chose, or None."""
    return _choice.current()


class PlaceCache(Record):
    """The part of a cache that belongs to one storage.

    `state` tells states of an object apart that is not immutable, such as a file of an archive.
    """

    disk: DiskCache
    place: bytes

    async def find(
        self, key: str, byte_range: ByteRange | None = None, state: str = ""
    ) -> Buffer | None:
        """Return a range of an object, or the whole object, if it is kept."""
        entry = self._entry(key, byte_range, state)
        is_short = byte_range is not None and byte_range[1] - byte_range[0] <= _INLINE_BYTES
        # A short entry is read sooner than a thread is woken up.
        return self.disk.find(entry) if is_short else await offload(partial(self.disk.find, entry))

    async def keep(
        self, key: str, data: Buffer, byte_range: ByteRange | None = None, state: str = ""
    ) -> None:
        """Keep a range of an object, or the whole object."""
        entry = self._entry(key, byte_range, state)
        await offload(partial(self.disk.keep, entry, data))

    def _entry(self, key: str, byte_range: ByteRange | None, state: str) -> bytes:
        return repr((self.place, key, byte_range, state)).encode()


def cache_of(spec: Spec) -> PlaceCache | None:
    """Return the part of the current cache for a storage; None without a cache, or if it is near.

    People with different credentials share entries; whether they may read is decided before.
    """
    if isinstance(spec, LocalSpec | MemorySpec) or (disk := current_cache()) is None:
        return None
    config = spec.config.items() if isinstance(spec, GcsSpec | AzureSpec) else ()
    shown = f"{spec!r} {sorted(config)!r}"  # without secrets, but for options, which are hashed
    return PlaceCache(disk, blake2b(shown.encode(), digest_size=32).digest())
