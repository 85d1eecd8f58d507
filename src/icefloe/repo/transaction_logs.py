"""What several commits did, as one log."""

from collections.abc import Mapping, Sequence

import numpy as np

from icefloe.format.chunk_table import Coordinates, sort_keys
from icefloe.format.columns import Bytes
from icefloe.format.ids import NodeId, SnapshotId
from icefloe.format.transaction_log import ID_LISTS, Move, TransactionLog


def unite_logs(logs: Sequence[TransactionLog], snapshot: SnapshotId) -> TransactionLog:
    """Unite the logs of commits, oldest first.

    The lists are united as they are, so that a node may be in several of them. A node that
    was moved twice was moved once, from its first place to its last; one that came back was
    not moved.
    """
    return TransactionLog(
        snapshot,
        **{name: _united_ids([getattr(log, name) for log in logs]) for name in ID_LISTS},
        updated_chunks=_united_chunks([log.updated_chunks for log in logs]),
        moves=_chained([log.moves for log in logs]),
    )


def _united_ids(columns: Sequence[Bytes]) -> Bytes:
    united = np.concatenate(columns)
    return np.unique(united, axis=0) if len(united) else united


def _united_chunks(
    logs: Sequence[Mapping[NodeId, Coordinates]],
) -> dict[NodeId, Coordinates]:
    parts: dict[NodeId, list[Coordinates]] = {}
    for chunks in logs:
        for node, coordinates in chunks.items():
            if len(coordinates):
                parts.setdefault(node, []).append(coordinates)
    return {node: _united_coordinates(pieces) for node, pieces in parts.items()}


def _united_coordinates(parts: Sequence[Coordinates]) -> Coordinates:
    if len(parts) == 1:
        return parts[0]
    dimensions = parts[-1].shape[1]
    # An array keeps its number of dimensions for life, whatever a damaged log says.
    united = np.concatenate([part for part in parts if part.shape[1] == dimensions])
    [keys] = sort_keys(united)
    _, rows = np.unique(keys, return_index=True)
    return united[rows]


def _chained(moves: Sequence[tuple[Move, ...]]) -> tuple[Move, ...]:
    chained: dict[NodeId, Move] = {}
    for commit in moves:
        for move in commit:
            first = chained.get(move.node, move)
            chained[move.node] = Move(first.source, move.target, move.node, move.is_array)
    return tuple(move for move in chained.values() if move.source != move.target)
