"""Taking snapshots out of the history that a repo object of spec 2 tells."""

import numpy as np

from icefloe.format.columns import Bools, Bytes
from icefloe.format.ids import SnapshotId
from icefloe.format.snapshot_table import NO_PARENT, Shortened, SnapshotTable


def without(table: SnapshotTable, is_kept: Bools, *, to_root: bool) -> SnapshotTable:
    """Keep some snapshots; what follows one that goes gets an older parent.

    With `to_root` that is the first snapshot of its history, otherwise the nearest that is kept.
    All ancestors in between are listed as pruned, so that their logs are not lost to those who
    compare versions.
    """
    if is_kept.all():
        return table
    parents = table.parents.tolist()
    # The row of no parent is -1, the last one: nothing goes where there is no parent.
    follows = np.append(~is_kept, False)[table.parents] & is_kept
    shortened = {
        row: _shortened(table, parents, is_kept, row, to_root=to_root)
        for row in np.flatnonzero(follows).tolist()
    }
    return table.kept(is_kept, shortened)


def _shortened(
    table: SnapshotTable, parents: list[int], is_kept: Bools, row: int, *, to_root: bool
) -> Shortened:
    skipped: list[int] = []
    at = parents[row]
    while parents[at] != NO_PARENT and (to_root or not is_kept[at]):
        skipped.append(at)
        at = parents[at]
    if len(table.pruned_ids) == 0:
        return Shortened(at, table.ids[skipped[::-1]])
    pieces: list[Bytes] = [np.empty((0, SnapshotId.WIDTH), np.uint8)]
    for one in reversed(skipped):
        pieces += [_pruned(table, one), table.ids[one : one + 1]]
    return Shortened(at, np.concatenate([*pieces, _pruned(table, row)]))


def _pruned(table: SnapshotTable, row: int) -> Bytes:
    return table.pruned_ids[table.pruned_splits[row] : table.pruned_splits[row + 1]]
