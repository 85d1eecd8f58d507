"""What letting versions expire would make room for: a look ahead that changes nothing."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from icefloe.format.ids import SnapshotId, ids_of_rows
from icefloe.format.snapshot_table import SnapshotEntry
from icefloe.maintenance import expiration
from icefloe.maintenance.expiration import Expiration, ExpirationRules
from icefloe.maintenance.sweeping import Kind, list_whole_kind
from icefloe.printable import printable
from icefloe.records import Record
from icefloe.repo.context import RepoContext
from icefloe.repo.snapshot_info import SnapshotInfo
from icefloe.reports import FactsReport, object_html, shown_bytes
from icefloe.walk.reachability import ManifestFact, Reachable, ReadLimits, chunk_objects, read_facts
from icefloe.walk.spill import keys_of_ids


class Reclaimable(Record):
    """What nothing would need any more."""

    objects: Mapping[Kind, int]
    size_bytes: int


class ExpirationPlan(FactsReport, Record):
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

    headings = ("version", "written", "message")

    @property
    def snapshot_ids(self) -> set[str]:
        """The ids of the versions that you would lose."""
        return {snapshot.id for snapshot in self.snapshots}

    def to_dict(self) -> dict[str, Any]:
        """Return everything as a dictionary, ready for JSON."""
        snapshots = [
            {
                "id": snapshot.id,
                "written_at": snapshot.written_at.isoformat(),
                "message": snapshot.message,
            }
            for snapshot in self.snapshots
        ]
        return {**super().to_dict(), "snapshots": snapshots}

    def _rows(self) -> Iterator[list[object]]:
        for snapshot in self.snapshots:
            yield [snapshot.id, f"{snapshot.written_at:%Y-%m-%d %H:%M}", snapshot.message]

    def _notes(self) -> Iterator[str]:
        for name, fact in self._facts().items():
            yield f"{name}: {fact}"

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
        return [printable("  ".join(map(str, row))) for row in self._rows()]

    def __repr__(self) -> str:
        return "\n".join([super().__repr__(), *self._lines()])

    def _repr_html_(self) -> str:
        return object_html(
            self._title, self._facts(), drawing=self._lines(), heading="Versions to lose"
        )


async def plan_expiration(
    context: RepoContext, rules: ExpirationRules, limits: ReadLimits | None = None
) -> ExpirationPlan:
    """Return what an expiration would do now."""
    planned, entries, remaining, logs = await _planned(context, rules)
    room = await _reclaimable(context, planned.released, remaining, logs, limits or ReadLimits())
    newest_first = sorted(
        entries.values(), key=lambda entry: (entry.flushed_at, entry.id), reverse=True
    )
    return ExpirationPlan(
        snapshots=tuple(map(SnapshotInfo.of, newest_first)),
        branches={name: str(tip) for name, tip in sorted(planned.branches.items())},
        tags={name: str(tip) for name, tip in sorted(planned.tags.items())},
        kept=len(remaining),
        reclaimable_bytes=room.size_bytes,
        reclaimable_objects={str(kind): count for kind, count in room.objects.items()},
    )


async def _planned(
    context: RepoContext, rules: ExpirationRules
) -> tuple[
    Expiration, dict[SnapshotId, SnapshotEntry], frozenset[SnapshotId], frozenset[SnapshotId]
]:
    """Plan; give also what is known of versions that go, those that stay, and all logs needed."""
    if (repo := await context.ledger.repo()) is not None:
        planned, after = expiration.plan_in_repo(repo, rules)
        rows = [
            row
            for snapshot_id in planned.released
            if (row := repo.snapshots.row_of(snapshot_id)) is not None
        ]
        remaining = frozenset(ids_of_rows(SnapshotId, after.snapshots.ids))
        pruned = ids_of_rows(SnapshotId, after.snapshots.pruned_ids)
        entries = {entry.id: entry for entry in repo.snapshots.entries(rows)}
        return planned, entries, remaining, remaining.union(pruned)
    history = await expiration.read_history(context)
    planned = expiration.plan_among(history.entries, history.branches, history.tags, rules)
    remaining = frozenset(history.entries) - planned.released
    return (
        planned,
        {snapshot_id: history.entries[snapshot_id] for snapshot_id in planned.released},
        remaining,
        remaining,
    )


async def _reclaimable(
    context: RepoContext,
    released: frozenset[SnapshotId],
    remaining: Iterable[SnapshotId],
    logs: frozenset[SnapshotId],
    limits: ReadLimits,
) -> Reclaimable:
    if not released:
        return Reclaimable(dict.fromkeys(Kind, 0), 0)
    with Reachable(context, limits) as live:
        await live.add(remaining)
        manifests: dict[bytes, ManifestFact] = {}
        for facts in await read_facts(context, sorted(released)):
            for manifest in facts.manifests:
                if manifest.id not in live.manifests:
                    manifests[manifest.id.raw] = manifest
        await live.read_chunks()
        chunks = await chunk_objects(context, manifests.values(), limits)
        chunks = chunks.take(~live.chunks.contains(keys_of_ids(chunks.ids)))
    snapshots = await _sizes(context, Kind.SNAPSHOTS, released)
    unneeded_logs = await _sizes(context, Kind.TRANSACTION_LOGS, released - logs)
    return Reclaimable(
        {
            Kind.SNAPSHOTS: len(snapshots),
            Kind.TRANSACTION_LOGS: len(unneeded_logs),
            Kind.MANIFESTS: len(manifests),
            Kind.CHUNKS: len(chunks),
        },
        sum(snapshots)
        + sum(unneeded_logs)
        + sum(manifest.size_bytes for manifest in manifests.values())
        + int(chunks.sizes_bytes.sum(dtype=np.uint64)),
    )


async def _sizes(context: RepoContext, kind: Kind, snapshots: Iterable[SnapshotId]) -> list[int]:
    names = {str(snapshot_id) for snapshot_id in snapshots}
    every = (await list_whole_kind(context.backend, kind, None)).young
    pairs = zip(every.names, every.sizes, strict=True)
    return [size for name, size in pairs if name in names]
