"""Objects in a dictionary: for tests and scratch work, gone with the process."""

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import batched, count
from threading import Lock
from typing import Final
from uuid import uuid4
from weakref import WeakValueDictionary

from icefloe.errors import (
    ErrorKind,
    InvalidInputError,
    ObjectNotFoundError,
    PreconditionFailedError,
)
from icefloe.forks import renew_lock_in_children
from icefloe.records import Record
from icefloe.storage.keys import check_expected_version, check_key, check_range
from icefloe.storage.port import (
    Buffer,
    ByteRange,
    DeleteReport,
    Fetched,
    ObjectInfo,
    Version,
)

_LIST_BATCH: Final = 1000

type MemoryAddress = tuple[int, str]
"""A process, and a storage in its memory."""


class _Stored(Record):
    data: bytes
    info: ObjectInfo
    attributes: Mapping[str, str]
    content_type: str | None


class MemoryBackend:
    """A dictionary shared by all threads of a process.

    Nothing here waits, so asynchronous callers are answered on their loop at once. Reads hand
    out views of the stored bytes, which never change.
    """

    def __init__(self, version_prefix: str = "") -> None:
        self._version_prefix = version_prefix
        self._objects: dict[str, _Stored] = {}
        self._states = count(1)  # shared by all keys: a key made again gets a new version too
        self._lock = Lock()
        renew_lock_in_children(self)
        self._token: str = uuid4().hex
        _in_use[self._token] = self

    def __contains__(self, key: str) -> bool:
        return key in self._objects

    def address(self) -> MemoryAddress:
        """Return where to find this storage, in this process only."""
        return os.getpid(), self._token

    async def get(self, key: str, byte_range: ByteRange | None = None) -> Fetched:
        """Look an object up."""
        stored = self._find(key)
        data: Buffer = stored.data
        if byte_range is not None:
            data = _slice(key, stored.data, byte_range)
        return Fetched(data, stored.info, stored.attributes)

    async def get_ranges(self, key: str, byte_ranges: Sequence[ByteRange]) -> list[Buffer]:
        """Take several views of one object."""
        stored = self._find(key)
        return [_slice(key, stored.data, byte_range) for byte_range in byte_ranges]

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
        """Store a copy of the bytes."""
        check_key(key)
        if if_version is not None:
            check_expected_version(if_version, if_absent=if_absent)
        copy = bytes(data)
        with self._lock:
            present = self._objects.get(key)
            if if_absent and present is not None:
                raise PreconditionFailedError(f"{key!r} already exists", key=key)
            if if_version is not None and (present is None or present.info.version != if_version):
                raise _changed(key)
            return self._store(key, copy, attributes or {}, content_type)

    async def list(self, prefix: str = "") -> AsyncIterator[list[ObjectInfo]]:
        """Walk the objects that existed when the walk began."""
        with self._lock:
            infos = [stored.info for key, stored in self._objects.items() if key.startswith(prefix)]
        for batch in batched(infos, _LIST_BATCH):
            yield [*batch]

    async def head(self, key: str) -> Fetched:
        """Look at an object without its bytes."""
        stored = self._find(key)
        return Fetched(b"", stored.info, stored.attributes)

    async def copy(self, source: str, target: str, *, if_version: Version | None = None) -> None:
        """Store the same bytes and attributes under another key."""
        check_key(target)
        with self._lock:
            stored = self._find(source)
            if if_version is not None and stored.info.version != if_version:
                raise _changed(source)
            self._store(target, stored.data, stored.attributes, stored.content_type)

    async def delete_many(self, keys: Sequence[str]) -> DeleteReport:
        """Forget objects."""
        for key in keys:
            check_key(key)
        with self._lock:
            absent = frozenset(keys) - self._objects.keys()
            for key in keys:
                self._objects.pop(key, None)
        return DeleteReport(len(set(keys)), absent=absent)

    def _find(self, key: str) -> _Stored:
        stored = self._objects.get(key)
        if stored is None:
            check_key(key)  # no key that is not allowed is ever stored
            raise ObjectNotFoundError(f"no object {key!r}", key=key)
        return stored

    def _store(
        self, key: str, data: bytes, attributes: Mapping[str, str], content_type: str | None
    ) -> Version:
        version = Version(etag=f"{self._version_prefix}{next(self._states)}")
        info = ObjectInfo(key, len(data), _exact_now(), version)
        self._objects[key] = _Stored(data, info, dict(attributes), content_type)
        return version


_in_use: Final = WeakValueDictionary[str, MemoryBackend]()
"""All storages in the memory of this process that something refers to."""


def memory_at(address: MemoryAddress) -> MemoryBackend:
    """Return the storage with an address.

    Raise `InvalidInputError` in another process, and if nothing refers to the storage any more.
    """
    process, token = address
    memory = _in_use.get(token) if process == os.getpid() else None
    if memory is None:
        reason = (
            "nothing in this process uses it any more"
            if process == os.getpid()
            else "it is in the memory of another process"
        )
        raise InvalidInputError(
            f"a storage in memory cannot be unpickled here: {reason}; to share a repository"
            " between processes, use local_filesystem_storage or an object store",
            ErrorKind.PICKLE,
        )
    return memory


def _exact_now() -> datetime:
    """Read the clock; a whole second would be taken for a time that was rounded."""
    now = datetime.now(UTC)
    return now if now.microsecond else now + timedelta(microseconds=1)


def _slice(key: str, data: bytes, byte_range: ByteRange) -> memoryview:
    check_range(key, byte_range, len(data))
    return memoryview(data)[byte_range[0] : byte_range[1]]


def _changed(key: str) -> PreconditionFailedError:
    return PreconditionFailedError(f"{key!r} is no longer in the expected state", key=key)
