"""Which version came before which, where nothing says so any more.

Snapshots of spec 2 do not name their parents. But each has a log of what its commit changed: a
version is the child of another if the log explains all that is different between them.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from icefloe.engine.repair.workshop import Workshop
from icefloe.engine.verification.log_rules import NodeStates
from icefloe.errors import FormatError, InvalidInputError
from icefloe.format.ids import SnapshotId
from icefloe.format.layout import transaction_log_key
from icefloe.format.snapshot import Snapshot
from icefloe.format.transaction_log import TransactionLog, decode_transaction_log

_HELD: Final = 64
"""Versions whose nodes are kept in memory."""


class Lineage:
    """Finds parents."""

    def __init__(self, shop: Workshop) -> None:
        self._shop = shop
        self._states: OrderedDict[SnapshotId, NodeStates] = OrderedDict()

    async def parent_of(self, child: Snapshot, earlier: Iterable[SnapshotId]) -> SnapshotId | None:
        """Find the parent of a version among others, given newest first.

        The newest from which its log explains everything; else the newest where only manifests
        differ without a reason, as after they were rewritten. None if no other fits.
        """
        known = [*earlier]
        if child.parent_id is not None:
            return child.parent_id if child.parent_id in known else None
        log = await read_log(self._shop, child.id)
        if log is None:
            return None
        after = NodeStates(child)
        self._hold(child.id, after)
        best: tuple[int, SnapshotId] | None = None
        for candidate in known:
            before = await self._state(candidate)
            if before is None:
                continue
            unexplained = _unexplained(before, after, log)
            if unexplained == 0:
                return candidate
            if unexplained is not None and (best is None or unexplained < best[0]):
                best = (unexplained, candidate)
        return None if best is None else best[1]

    async def _state(self, wanted: SnapshotId) -> NodeStates | None:
        if (held := self._states.get(wanted)) is None:
            snapshot = await self._shop.snapshot(wanted)
            if snapshot is None:
                return None
            held = NodeStates(snapshot)
        self._hold(wanted, held)
        return held

    def _hold(self, snapshot: SnapshotId, state: NodeStates) -> None:
        self._states[snapshot] = state
        self._states.move_to_end(snapshot)
        while len(self._states) > _HELD:
            self._states.popitem(last=False)


async def read_log(shop: Workshop, snapshot: SnapshotId) -> TransactionLog | None:
    """Read the log of a commit if that is possible."""
    fetched = await shop.fetch(transaction_log_key(snapshot))
    if fetched is None:
        return None
    try:
        log = decode_transaction_log(fetched.data)
    except (FormatError, InvalidInputError):
        return None
    return log if log.id == snapshot else None


def _unexplained(before: NodeStates, after: NodeStates, log: TransactionLog) -> int | None:
    """Count arrays with other manifests that a log does not tell of; None: it cannot be."""
    new = _raw(log, "new_groups", "new_arrays")
    deleted = _raw(log, "deleted_groups", "deleted_arrays")
    updated = _raw(log, "updated_groups", "updated_arrays")
    old = before.rows.keys()
    if new & old or ((old | new) - deleted) != after.rows.keys():
        return None
    moved = {move.node.raw for move in log.moves}
    chunks = {node.raw for node in log.updated_chunks}
    unexplained = 0
    for raw in old & after.rows.keys():
        was, now = before.state(raw), after.state(raw)
        if was == now:
            continue
        if (was[0] != now[0] and raw not in moved) or (was[1] != now[1] and raw not in updated):
            return None
        unexplained += was[2] != now[2] and raw not in updated | chunks
    return unexplained


def _raw(log: TransactionLog, *names: str) -> set[bytes]:
    return {node.raw for name in names for node in log.nodes(name)}
