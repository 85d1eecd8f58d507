"""How the arrays of a branch grew, as the logs of its newest commits tell."""

from collections import defaultdict
from statistics import median_low
from typing import Final

from icefloe.effects import map_concurrently
from icefloe.engine.context import RepoContext
from icefloe.engine.manifests.costs import Growth
from icefloe.errors import ObjectNotFoundError
from icefloe.format.chunk_table import Coordinates
from icefloe.format.ids import INITIAL_SNAPSHOT_ID, NodeId, SnapshotId
from icefloe.format.transaction_log import TransactionLog

COMMITS_LOOKED_AT: Final = 30
_LOGS_AT_ONCE: Final = 8


async def growths(
    context: RepoContext, tip: SnapshotId, *, commits: int = COMMITS_LOOKED_AT
) -> dict[NodeId, Growth]:
    """Find the arrays that commits extend, each along which axis and by how many chunks."""
    ids = list[SnapshotId]()
    async for entry in context.ledger.ancestry(tip):
        if len(ids) == commits or entry.id == INITIAL_SNAPSHOT_ID:
            break
        ids.append(entry.id)

    async def load(snapshot: SnapshotId) -> TransactionLog | None:
        try:
            return await context.assets.load_transaction_log(snapshot)
        except ObjectNotFoundError:
            return None  # expired, or collected

    logs = await map_concurrently(load, reversed(ids), limit=_LOGS_AT_ONCE)
    return growths_in([log for log in logs if log is not None])


def growths_in(logs: list[TransactionLog]) -> dict[NodeId, Growth]:
    """Find growth in logs, oldest first: each commit beyond all before it, along one axis.

    Two commits in a row are enough to believe it.
    """
    written: defaultdict[NodeId, list[Coordinates]] = defaultdict(list)
    for log in logs:
        for node, coordinates in log.updated_chunks.items():
            if len(coordinates):
                written[node].append(coordinates)
    found = {}
    for node, commits in written.items():
        axis = _growing_axis(commits)
        if axis is not None:
            # The first of many is often the one that filled the array.
            count = median_low(len(one) for one in commits[1:])
            found[node] = Growth(axis, count)
    return found


def _growing_axis(commits: list[Coordinates]) -> int | None:
    if len(commits) < 2 or len({one.shape[1] for one in commits}) > 1:
        return None
    for axis in range(commits[0].shape[1]):
        firsts = [int(one[:, axis].min()) for one in commits]
        lasts = [int(one[:, axis].max()) for one in commits]
        if all(first > last for first, last in zip(firsts[1:], lasts, strict=False)):
            return axis
    return None
