"""What users learn about a snapshot and its files."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Self

from icefloe.api.times import to_datetime
from icefloe.format.snapshot_table import SnapshotEntry
from icefloe.values import U64, Moment, Value


def _own_copy(given: Mapping[str, Any], place: str) -> dict[str, Any]:
    del place
    return dict(given)


@dataclass(frozen=True, slots=True)
class SnapshotInfo(Value):
    """One version of the data: when it was written, by which commit, after which.

    `parent_id` is None for the first snapshot of a repository; the time is in UTC.

    >>> import icefloe
    >>> repository = icefloe.Repository.create(icefloe.in_memory_storage())
    >>> first = repository.lookup_snapshot(repository.lookup_branch("main"))
    >>> first.message, first.parent_id
    ('Repository initialized', None)
    """

    id: str
    parent_id: str | None
    written_at: Moment
    message: str
    metadata: Annotated[dict[str, Any], _own_copy]

    @classmethod
    def of(cls, entry: SnapshotEntry) -> Self:
        """Show an entry of the history to users."""
        return cls(
            str(entry.id),
            None if entry.parent is None else str(entry.parent),
            to_datetime(entry.flushed_at),
            entry.message,
            dict(entry.metadata),
        )


@dataclass(frozen=True, slots=True)
class ManifestFileInfo(Value):
    """A manifest that a snapshot uses: its size, and how many chunks it locates.

    >>> ManifestFileInfo("2366RVGR4DYH4HDQG9EG", size_bytes=159, num_chunk_refs=2).num_chunk_refs
    2
    """

    id: str
    size_bytes: U64
    num_chunk_refs: U64
