"""What maintenance did, or would do, as users see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self, overload

from icefloe.printable import printable
from icefloe.records import asdict
from icefloe.reports import object_html, object_text, shown_bytes, table_html, table_text

if TYPE_CHECKING:
    from icefloe.api.snapshots import SnapshotInfo
    from icefloe.maintenance.reclaiming import ExpirationOutlook
    from icefloe.maintenance.statistics import TotalUsage, Usage, UsageBy
    from icefloe.maintenance.sweeping import Collected

GARBAGE_HEADINGS: Final = ("kind", "objects")
STATS_HEADINGS: Final = ("kind", "bytes", "chunks")
VERSION_HEADINGS: Final = ("version", "written", "message")


@dataclass(frozen=True, slots=True, repr=False)
class GCSummary:
    """What garbage collection removed; in a dry run, what it would remove.

    Objects that could not be deleted are counted, with the reasons in `delete_errors`; kinds
    that were not gone through to the end because of such failures are in `skipped_phases`.
    """

    bytes_deleted: int
    chunks_deleted: int
    manifests_deleted: int
    snapshots_deleted: int
    attributes_deleted: int
    """Always 0: no version of the format stores any such files."""
    transaction_logs_deleted: int
    objects_failed_to_delete: int
    throttled_batches: int
    """Requests of which something failed that may work at another time."""
    delete_errors: list[str]
    skipped_phases: list[str]

    @classmethod
    def of(cls, done: Collected) -> Self:
        """Sum up a collection."""
        from icefloe.maintenance.sweeping import Kind

        return cls(
            done.size_bytes,
            done.objects[Kind.CHUNKS],
            done.objects[Kind.MANIFESTS],
            done.objects[Kind.SNAPSHOTS],
            0,
            done.objects[Kind.TRANSACTION_LOGS],
            done.failed,
            done.throttled,
            list(done.errors),
            [str(kind) for kind in done.skipped],
        )

    @property
    def is_complete(self) -> bool:
        """Whether all that was to go did."""
        return not (self.objects_failed_to_delete or self.delete_errors or self.skipped_phases)

    @property
    def objects_deleted(self) -> int:
        """How many objects went, of all kinds."""
        return (
            self.chunks_deleted
            + self.manifests_deleted
            + self.snapshots_deleted
            + self.transaction_logs_deleted
        )

    def to_dict(self) -> dict[str, Any]:
        """Return everything as a dictionary, ready for JSON."""
        return {**self._facts(), "is_complete": self.is_complete}

    def rows(self) -> list[list[object]]:
        """Write the numbers of objects for people, under `GARBAGE_HEADINGS`."""
        return [
            ["snapshots", self.snapshots_deleted],
            ["transaction logs", self.transaction_logs_deleted],
            ["manifests", self.manifests_deleted],
            ["chunks", self.chunks_deleted],
        ]

    def _facts(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in self.__slots__}

    def __repr__(self) -> str:
        return object_text("ops.GCSummary", self._facts())

    def _repr_html_(self) -> str:
        return object_html("ops.GCSummary", self._facts())


@dataclass(frozen=True, slots=True, repr=False)
class ChunkStorageStats:
    """What the chunks of a repository take, each counted once, however many versions share it.

    Counts versions that branches and tags lead to.
    """

    native_bytes: int
    """In chunk objects of the repository."""
    virtual_bytes: int
    """In files of others."""
    inlined_bytes: int
    """Within manifests."""
    native_chunks: int = 0
    virtual_chunks: int = 0
    inlined_chunks: int = 0
    packed_objects: int = 0
    """Chunk objects that several chunks share; those chunks are among the native ones."""
    packed_chunks: int = 0
    packed_bytes: int = 0

    @classmethod
    def of(cls, total: TotalUsage) -> Self:
        """Show sums to users."""
        return cls(**asdict(total))

    def non_virtual_bytes(self) -> int:
        """Return the bytes that the repository itself stores."""
        return self.native_bytes + self.inlined_bytes

    def total_bytes(self) -> int:
        """Return the sum of all kinds."""
        return self.non_virtual_bytes() + self.virtual_bytes

    def to_dict(self) -> dict[str, Any]:
        """Return everything as a dictionary, ready for JSON."""
        return self._facts()

    def rows(self) -> list[list[object]]:
        """Write the sums for people, under `STATS_HEADINGS`."""
        return [
            ["native", shown_bytes(self.native_bytes), self.native_chunks],
            ["  packed", shown_bytes(self.packed_bytes), self.packed_chunks],
            ["inline", shown_bytes(self.inlined_bytes), self.inlined_chunks],
            ["virtual", shown_bytes(self.virtual_bytes), self.virtual_chunks],
        ]

    def _facts(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in self.__slots__}

    def __repr__(self) -> str:
        return object_text("ChunkStorageStats", self._facts())

    def _repr_html_(self) -> str:
        return object_html("ChunkStorageStats", self._facts())


@dataclass(frozen=True, slots=True)
class StorageUse:
    """What the chunks of one version, array or container take."""

    place: str
    """The id of a version, the path of an array, or the prefix of a container."""
    native_bytes: int
    virtual_bytes: int
    inlined_bytes: int
    native_chunks: int
    virtual_chunks: int
    inlined_chunks: int

    @property
    def total_bytes(self) -> int:
        """The sum of all kinds."""
        return self.native_bytes + self.virtual_bytes + self.inlined_bytes


class StorageUses(Sequence[StorageUse]):
    """What chunks take, a row for each version, array or container."""

    def __init__(self, by: UsageBy, usages: Mapping[str, Usage]) -> None:
        self.by = by
        self._rows = [StorageUse(place, **asdict(usage)) for place, usage in usages.items()]

    @overload
    def __getitem__(self, row: int) -> StorageUse: ...
    @overload
    def __getitem__(self, row: slice) -> list[StorageUse]: ...
    def __getitem__(self, row: int | slice) -> StorageUse | list[StorageUse]:
        return self._rows[row]

    def __len__(self) -> int:
        return len(self._rows)

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return the rows as dictionaries, ready for JSON."""
        return [asdict(row) for row in self]

    @property
    def headings(self) -> tuple[str, ...]:
        """The headings of the table."""
        return (self.by, "native", "virtual", "inline", "chunks")

    def rows(self) -> list[list[object]]:
        """Write the rows for people, under `headings`."""
        return [
            [
                row.place,
                shown_bytes(row.native_bytes),
                shown_bytes(row.virtual_bytes),
                shown_bytes(row.inlined_bytes),
                row.native_chunks + row.virtual_chunks + row.inlined_chunks,
            ]
            for row in self
        ]

    def __repr__(self) -> str:
        return table_text(self.headings, self.rows())

    def _repr_html_(self) -> str:
        return table_html(self.headings, self.rows())


@dataclass(frozen=True, slots=True, repr=False)
class ExpirationPlan:
    """What `expire_snapshots` would do; see `Repository.plan_expiration`."""

    snapshots: tuple[SnapshotInfo, ...]
    """The versions that you would lose, newest first."""
    branches: Mapping[str, str]
    """Branches that would be deleted, with the snapshots they end at."""
    tags: Mapping[str, str]
    kept: int
    """How many versions would stay."""
    reclaimable_bytes: int
    """What garbage collection could then make room for, as far as references tell."""
    reclaimable_objects: Mapping[str, int]
    """The same in numbers of objects, by kind."""

    @classmethod
    def of(cls, outlook: ExpirationOutlook) -> Self:
        """Show a plan to users."""
        from icefloe.api.snapshots import SnapshotInfo

        entries = sorted(
            outlook.entries.values(), key=lambda entry: (entry.flushed_at, entry.id), reverse=True
        )
        planned, room = outlook.planned, outlook.reclaimable
        return cls(
            tuple(map(SnapshotInfo.of, entries)),
            {name: str(tip) for name, tip in sorted(planned.branches.items())},
            {name: str(tip) for name, tip in sorted(planned.tags.items())},
            outlook.kept,
            room.size_bytes,
            {str(kind): count for kind, count in room.objects.items()},
        )

    @property
    def snapshot_ids(self) -> set[str]:
        """The ids of the versions that you would lose."""
        return {snapshot.id for snapshot in self.snapshots}

    def to_dict(self) -> dict[str, Any]:
        """Return everything as a dictionary, ready for JSON."""
        return {
            "snapshots": [
                {
                    "id": snapshot.id,
                    "written_at": snapshot.written_at.isoformat(),
                    "message": snapshot.message,
                }
                for snapshot in self.snapshots
            ],
            "branches": dict(self.branches),
            "tags": dict(self.tags),
            "kept": self.kept,
            "reclaimable_bytes": self.reclaimable_bytes,
            "reclaimable_objects": dict(self.reclaimable_objects),
        }

    def rows(self) -> list[list[object]]:
        """Write the versions that you would lose for people, under `VERSION_HEADINGS`."""
        return [
            [snapshot.id, f"{snapshot.written_at:%Y-%m-%d %H:%M}", snapshot.message]
            for snapshot in self.snapshots
        ]

    def notes(self) -> list[str]:
        """Sum up in sentences."""
        return [f"{name}: {fact}" for name, fact in self._facts().items()]

    def _facts(self) -> dict[str, object]:
        objects = ", ".join(f"{count} {kind}" for kind, count in self.reclaimable_objects.items())
        return {
            "versions to lose": len(self.snapshots),
            "versions kept": self.kept,
            "branches to delete": ", ".join(map(printable, self.branches)) or "none",
            "tags to delete": ", ".join(map(printable, self.tags)) or "none",
            "could be reclaimed": f"{shown_bytes(self.reclaimable_bytes)} ({objects})",
        }

    def _lines(self) -> list[str]:
        return [
            f"{snapshot.id}  {snapshot.written_at:%Y-%m-%d %H:%M}  {printable(snapshot.message)}"
            for snapshot in self.snapshots
        ]

    def __repr__(self) -> str:
        return "\n".join([object_text("ExpirationPlan", self._facts()), *self._lines()])

    def _repr_html_(self) -> str:
        return object_html(
            "ExpirationPlan", self._facts(), drawing=self._lines(), heading="Versions to lose"
        )
