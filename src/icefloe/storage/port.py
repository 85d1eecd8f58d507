"""The storage port: opaque bytes under keys, with conditional writes.

Keys are relative to the root of a storage, use `/` and never start with it. Every
method is a coroutine of the core (see `icefloe.effects`): the same code serves
blocking and asynchronous callers. What a caller may rely on:

- An object is visible whole or not at all; a listing never shows half of one.
- A write that returned is seen by every later read, listing and condition.
- `put` with `if_absent` or `if_version` is atomic against every other writer that uses
  this port, in this process or another. When it loses, `PreconditionFailedError`. When it
  cannot tell whether it won, `OutcomeUnknownError`: never a guess.
- Absence is `ObjectNotFoundError`, for `get`, `get_ranges`, `head` and `copy`.
- All other failures are a `StorageError` whose `retryable` says whether to try again.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, Protocol, TypedDict

from icefloe.records import Record, field

type Buffer = bytes | bytearray | memoryview
"""Readable bytes, handed over without a copy where the source allows it."""

type ByteRange = tuple[int, int]
"""First byte and first byte after, both from the start of the object."""


class Version(Record):
    """One state of one object, as its storage names it.

    Two states of an object with different bytes never share a version. Where versions are
    made from the bytes (S3), states with the same bytes do, which no reader can tell apart.
    """

    etag: str | None = None
    generation: str | None = None


UNKNOWN_TIME: Final = datetime.fromtimestamp(0, UTC)
"""Stands for the modification time of an object of a server that tells none."""


class ObjectInfo(Record):
    """The facts about an object that need no reading of its content."""

    key: str
    size_bytes: int
    last_modified: datetime
    version: Version = field(default_factory=Version)
    is_time_known: bool = True
    """Whether the storage told when the object was modified; else that is `UNKNOWN_TIME`."""


class Fetched(Record):
    """The bytes of an object (or of one range of it) and the state they belong to."""

    data: Buffer
    info: ObjectInfo
    attributes: Mapping[str, str] = field(default_factory=dict)


class DeleteReport(Record):
    """The result of a batch of deletions; an absent object counts as deleted."""

    deleted: int
    failures: Mapping[str, str] = field(default_factory=dict)
    """Key to reason, for each object that may still exist."""
    retryable: frozenset[str] = frozenset()
    """Those of the failures for which trying again may help."""
    absent: frozenset[str] = frozenset()
    """Those that somebody else had deleted before, where the storage tells."""


class PutOptions(TypedDict, total=False):
    """The options of `put`, for those who hand them on."""

    if_absent: bool
    if_version: Version | None
    attributes: Mapping[str, str] | None
    content_type: str | None


class ReadableBackend(Protocol):
    """A store that can be read by key."""

    async def get(self, key: str, byte_range: ByteRange | None = None) -> Fetched:
        """Read an object, or one range of it; a range past the end is `InvalidInputError`."""
        ...

    async def get_ranges(self, key: str, byte_ranges: Sequence[ByteRange]) -> list[Buffer]:
        """Read several ranges of one object, near ones in one request; results in order."""
        ...

    async def head(self, key: str) -> Fetched:
        """Look at an object without its bytes (`data` is empty)."""
        ...


class Backend(ReadableBackend, Protocol):
    """A place for objects; one small class per kind of storage."""

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
        """Write an object whole; the conditions exclude each other."""
        ...

    def list(self, prefix: str = "") -> AsyncIterator[list[ObjectInfo]]:
        """Walk all objects whose key starts with `prefix`, in batches, in no set order."""
        ...

    async def copy(self, source: str, target: str, *, if_version: Version | None = None) -> None:
        """Copy within the storage, replacing the target.

        With `if_version`, fails with `PreconditionFailedError` unless the source is in that state.
        """
        ...

    async def delete_many(self, keys: Sequence[str]) -> DeleteReport:
        """Delete objects in batches, going on past failures and reporting them."""
        ...
