"""Whether an object is still what it was when chunks of it were recorded.

Recorded is an etag, or the second in which the object was last modified, or nothing.
"""

import logging
import re
import threading
import warnings
from datetime import UTC, datetime
from typing import Final

from icefloe.config.containers import OnChange
from icefloe.errors import ErrorKind, StorageError
from icefloe.forks import renew_lock_in_children
from icefloe.format.chunk_table import VirtualChunk
from icefloe.records import Record
from icefloe.storage import ObjectInfo
from icefloe.virtual_chunks.locations import shown

_log: Final = logging.getLogger(__name__)
_REMEMBERED_OBJECTS: Final = 4096
_ETAG_OF_FILE: Final = re.compile(r"([0-9a-f]+)-([0-9a-f]+)-([0-9a-f]+)")


class Change(Record):
    """How an object differs from what was recorded."""

    what: str
    recorded: str
    found: str

    def describe(self, location: str) -> str:
        """Describe it for people."""
        return (
            f"the object {shown(location)!r} changed since a virtual chunk of it was recorded"
            f" (the checksum of the object owning it has changed): {self.what} recorded"
            f" {self.recorded}, found {self.found}"
        )


def find_change(chunk: VirtualChunk, info: ObjectInfo) -> Change | None:
    """Compare the state of an object with what was recorded: its etag, or that it is not newer.

    Times are compared in whole seconds, which is what was recorded. An object whose storage tells
    neither counts as changed: nobody can say that it is the recorded one.
    """
    if chunk.etag is not None and not _has_etag(info, chunk.etag):
        return Change("etag", chunk.etag, info.version.etag or "none")
    if chunk.last_modified is not None:
        modified = info.last_modified
        if not info.is_time_known or int(modified.timestamp()) > chunk.last_modified:
            recorded = datetime.fromtimestamp(chunk.last_modified, UTC).isoformat()
            present = modified.isoformat() if info.is_time_known else "none"
            return Change("last modification", recorded, present)
    return None


def is_watched(chunk: VirtualChunk, policy: OnChange) -> bool:
    """Return whether it matters in which state the object of a chunk is."""
    return policy != "off" and not (chunk.etag is None and chunk.last_modified is None)


class ChangeWatch:
    """Acts on changed objects, as the container of each demands."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        renew_lock_in_children(self)
        self._warned: set[str] = set()

    def check(self, chunk: VirtualChunk, info: ObjectInfo, policy: OnChange) -> None:
        """Raise `StorageError`, warn once per object, or do nothing."""
        if not is_watched(chunk, policy):
            return
        change = find_change(chunk, info)
        if change is None:
            return
        text = change.describe(chunk.location)
        if policy == "strict":
            raise StorageError(
                f"{text}. Record its chunks again; or, if the change does no harm, set"
                " on_change='warn' on its container",
                ErrorKind.VIRTUAL_CHUNK_MODIFIED,
                location=shown(chunk.location),
                recorded=change.recorded,
                found=change.found,
            )
        if self._is_first(chunk.location):
            _log.warning("%s", text)
            warnings.warn(text, stacklevel=2)

    def _is_first(self, location: str) -> bool:
        with self._lock:
            if location in self._warned:
                return False
            if len(self._warned) >= _REMEMBERED_OBJECTS:
                self._warned.clear()
            self._warned.add(location)
            return True


def _has_etag(info: ObjectInfo, recorded: str) -> bool:
    etag = info.version.etag
    if etag is None:
        return False
    return recorded.strip('"') in {etag.strip('"'), _in_microseconds(etag)}


def _in_microseconds(etag: str) -> str | None:
    """Write the etag of a local file as other programs do: ours counts nanoseconds.

    >>> _in_microseconds("1f-3e8-a")
    '1f-1-a'
    """
    if (parts := _ETAG_OF_FILE.fullmatch(etag)) is None:
        return None
    inode, moment, size = parts.groups()
    return f"{inode}-{int(moment, 16) // 1000:x}-{size}"
