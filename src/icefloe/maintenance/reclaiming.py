"""What letting versions expire would make room for: a look ahead that changes nothing."""

from collections.abc import Iterable, Mapping

import numpy as np

from icefloe.format.ids import SnapshotId, ids_of_rows
from icefloe.format.snapshot_table import SnapshotEntry
from icefloe.maintenance import expiration
from icefloe.maintenance.expiration import Expiration, ExpirationRules
from icefloe.maintenance.sweeping import Kind, list_whole_kind
from icefloe.records import Record
from icefloe.repo.context import RepoContext
from icefloe.walk.reachability import ManifestFact, Reachable, ReadLimits, chunk_objects, read_facts
from icefloe.walk.spill import keys_of_ids


class Reclaimable(Record):
    """What nothing would need any more."""

    objects: Mapping[Kind, int]
    size_bytes: int


class ExpirationOutlook(Record):
    """What would go, what is known about it, and what it would make room for."""

    planned: Expiration
    entries: Mapping[SnapshotId, SnapshotEntry]
    """Of the versions that would go."""
    kept: int
    """How many versions would stay."""
    reclaimable: Reclaimable


async def outlook(
    context: RepoContext, rules: ExpirationRules, limits: ReadLimits | None = None
) -> ExpirationOutlook:
    """Return what an expiration would do now."""
    planned, entries, remaining, logs = await _planned(context, rules)
    room = await _reclaimable(context, planned.released, remaining, logs, limits or ReadLimits())
    return ExpirationOutlook(planned, entries, len(remaining), room)


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
