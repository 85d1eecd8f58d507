"""What maintenance did, or would do, as users see it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from icefloe.api.display import object_html, object_text
from icefloe.api.snapshots import SnapshotInfo
from icefloe.api.tables import safe, shown_bytes
from icefloe.engine.reclaiming import ExpirationOutlook
from icefloe.engine.sweeping import Collected, Kind


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

    def _facts(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in self.__slots__}

    def __repr__(self) -> str:
        return object_text("ops.GCSummary", self._facts())

    def _repr_html_(self) -> str:
        return object_html("ops.GCSummary", self._facts())


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
    def of(cls, found: ExpirationOutlook) -> Self:
        """Show a plan to users."""
        entries = sorted(
            found.entries.values(), key=lambda entry: (entry.flushed_at, entry.id), reverse=True
        )
        planned, room = found.planned, found.reclaimable
        return cls(
            tuple(map(SnapshotInfo.of, entries)),
            {name: str(tip) for name, tip in sorted(planned.branches.items())},
            {name: str(tip) for name, tip in sorted(planned.tags.items())},
            found.kept,
            room.size_bytes,
            {str(kind): count for kind, count in room.objects.items()},
        )

    @property
    def snapshot_ids(self) -> set[str]:
        """The ids of the versions that you would lose."""
        return {one.id for one in self.snapshots}

    def _facts(self) -> dict[str, object]:
        objects = ", ".join(f"{count} {kind}" for kind, count in self.reclaimable_objects.items())
        return {
            "versions to lose": len(self.snapshots),
            "versions kept": self.kept,
            "branches to delete": ", ".join(map(safe, self.branches)) or "none",
            "tags to delete": ", ".join(map(safe, self.tags)) or "none",
            "could be reclaimed": f"{shown_bytes(self.reclaimable_bytes)} ({objects})",
        }

    def _lines(self) -> list[str]:
        return [
            f"{one.id}  {one.written_at:%Y-%m-%d %H:%M}  {safe(one.message)}"
            for one in self.snapshots
        ]

    def __repr__(self) -> str:
        return "\n".join([object_text("ExpirationPlan", self._facts()), *self._lines()])

    def _repr_html_(self) -> str:
        return object_html(
            "ExpirationPlan", self._facts(), drawing=self._lines(), heading="Versions to lose"
        )
