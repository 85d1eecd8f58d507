"""Differences: between two snapshots, or between a session and its base."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from icefloe.effects import map_concurrently
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.format.chunk_table import Coordinates
from icefloe.format.columns import Bytes
from icefloe.format.ids import NodeId, SnapshotId
from icefloe.format.nodes import ArrayNode, NodeTable
from icefloe.format.transaction_log import ID_LISTS, TransactionLog, unite_logs
from icefloe.printable import printable
from icefloe.repo.context import RepoContext
from icefloe.reports import counted, object_html
from icefloe.transactions.changes import ChangeSet
from icefloe.transactions.rearrange import moves_made
from icefloe.transactions.rebase import rows_of_ids
from icefloe.transactions.session import SessionState
from icefloe.transactions.tree import BaseNodes

_SHOWN_CHUNKS: Final = 10
_SHOWN_ROWS: Final = 100
_TITLES: Final = {
    "new_groups": "Groups created",
    "new_arrays": "Arrays created",
    "updated_groups": "Group definitions updated",
    "updated_arrays": "Array definitions updated",
    "deleted_groups": "Groups deleted",
    "deleted_arrays": "Arrays deleted",
}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Diff:
    """Nodes and chunks that were created, updated, deleted or moved; paths are absolute.

    >>> import numpy as np
    >>> diff = Diff(new_arrays={"/t2m"}, chunk_coordinates={"/t2m": np.array([[0, 1]], np.uint32)})
    >>> diff.updated_chunks
    {'/t2m': [[0, 1]]}
    >>> print(str(diff).rstrip())
    Arrays created:
        /t2m
    <BLANKLINE>
    Chunks updated:
        /t2m:
            [0, 1]
    """

    new_groups: set[str] = field(default_factory=set)
    new_arrays: set[str] = field(default_factory=set)
    deleted_groups: set[str] = field(default_factory=set)
    deleted_arrays: set[str] = field(default_factory=set)
    updated_groups: set[str] = field(default_factory=set)
    updated_arrays: set[str] = field(default_factory=set)
    chunk_coordinates: Mapping[str, Coordinates] = field(default_factory=dict)
    """The chunks set or deleted, by the path of their array, in the order of the paths."""
    linked_chunks: Mapping[str, int] = field(default_factory=dict)
    """How many chunks a session has in manifests built elsewhere, whose coordinates are there."""
    moved_nodes: list[tuple[str, str]] = field(default_factory=list)
    """From and to; those of the newest commit first, each commit in the order of the targets."""

    @property
    def updated_chunks(self) -> dict[str, list[list[int]]]:
        """Return the chunks set or deleted as lists; `chunk_coordinates` has them in columns."""
        return {path: chunks.tolist() for path, chunks in self.chunk_coordinates.items()}

    def is_empty(self) -> bool:
        """Return whether nothing changed."""
        return not (
            any(getattr(self, name) for name in ID_LISTS)
            or self.chunk_coordinates
            or self.linked_chunks
            or self.moved_nodes
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Diff):
            return NotImplemented
        ours, theirs = self.chunk_coordinates, other.chunk_coordinates
        return (
            all(getattr(self, name) == getattr(other, name) for name in ID_LISTS)
            and self.moved_nodes == other.moved_nodes
            and self.linked_chunks == other.linked_chunks
            and ours.keys() == theirs.keys()
            and all(np.array_equal(chunks, theirs[path]) for path, chunks in ours.items())
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return str(self) or "<Diff: no changes>"

    def __str__(self) -> str:
        return "".join(f"{line}\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        for name, title in _TITLES.items():
            if paths := getattr(self, name):
                yield f"{title}:"
                yield from (f"    {printable(path)}" for path in sorted(paths))
                yield ""
        if self.chunk_coordinates:
            yield "Chunks updated:"
            for path, chunks in self.chunk_coordinates.items():
                yield f"    {printable(path)}:"
                yield from (f"        {index}" for index in chunks[:_SHOWN_CHUNKS].tolist())
                if len(chunks) > _SHOWN_CHUNKS:
                    yield f"        ... {len(chunks) - _SHOWN_CHUNKS} more"
        if self.linked_chunks:
            yield "Chunks in linked manifests:"
            yield from (
                f"    {printable(path)}: {count}" for path, count in self.linked_chunks.items()
            )
        if self.moved_nodes:
            yield "Nodes moved/renamed:"
            yield from (
                f"    {printable(source)} -> {printable(target)}"
                for source, target in self.moved_nodes
            )
            yield ""

    def _repr_html_(self) -> str:
        rows = list(self._rows())
        shown = rows[:_SHOWN_ROWS]
        if len(rows) > _SHOWN_ROWS:
            shown.append((f"… and {len(rows) - _SHOWN_ROWS} more", "", ""))
        facts = {} if rows else {"changes": "none"}
        tables = {counted(len(rows), "change"): (("change", "path", "what"), shown)}
        return object_html("Diff", facts, tables=tables)

    def _rows(self) -> Iterator[tuple[str, str, str]]:
        """Yield a row for each change: what happened, to which node, and how much."""
        for name, title in _TITLES.items():
            noun, verb = title.lower().split(" ", 1)
            yield from (
                (f"{noun.removesuffix('s')} {verb}", path, "")
                for path in sorted(getattr(self, name))
            )
        for path, chunks in self.chunk_coordinates.items():
            yield "chunks written or deleted", path, _extent(chunks)
        for path, count in self.linked_chunks.items():
            yield "chunks linked", path, counted(count, "chunk")
        for source, target in self.moved_nodes:
            yield "moved", source, f"to {target}"


def _extent(chunks: Coordinates) -> str:
    """Write how many chunks changed, and the box of the chunk grid around them."""
    text = counted(len(chunks), "chunk")
    if len(chunks) == 0 or chunks.shape[1] == 0:
        return text
    first, last = chunks.min(axis=0).tolist(), chunks.max(axis=0).tolist()
    ranges = (
        str(low) if low == high else f"{low}–{high}" for low, high in zip(first, last, strict=True)
    )
    return f"{text}, at [{', '.join(ranges)}] of the chunk grid"


def status(session: SessionState) -> Diff:
    """Return the uncommitted changes of a session."""
    changes = session.changes
    # Copies, as other threads may go on writing.
    created, updated = set(changes.created), set(changes.updated)
    # After a rebase over a commit that deleted the same node, it is not there to be deleted.
    deleted = [gone for node, gone in list(changes.deleted.items()) if session.base.by_id(node)]
    groups, arrays = _paths_by_kind(changes)
    return Diff(
        new_groups={groups[node] for node in created if node in groups},
        new_arrays={arrays[node] for node in created if node in arrays},
        deleted_groups={node.path for node in deleted if not node.is_array},
        deleted_arrays={node.path for node in deleted if node.is_array},
        updated_groups={groups[node] for node in updated if node in groups},
        updated_arrays={arrays[node] for node in updated if node in arrays},
        chunk_coordinates=_touched_by_path(session, arrays),
        linked_chunks=_linked_by_path(session, arrays),
        moved_nodes=[(move.source, move.target) for move in moves_made(session)],
    )


def _paths_by_kind(changes: ChangeSet) -> tuple[dict[NodeId, str], dict[NodeId, str]]:
    groups: dict[NodeId, str] = {}
    arrays: dict[NodeId, str] = {}
    for node in list(changes.nodes.values()):
        (arrays if isinstance(node, ArrayNode) else groups)[node.id] = node.path
    return groups, arrays


def _touched_by_path(session: SessionState, paths: Mapping[NodeId, str]) -> dict[str, Coordinates]:
    touched: dict[str, Coordinates] = {}
    for node, changes in list(session.changes.arrays.items()):
        if changes.is_empty():
            continue
        path = _path_of(session, node, paths)
        if path is not None:
            touched[path] = session.changes.touched(node)
    return dict(sorted(touched.items()))


def _linked_by_path(session: SessionState, paths: Mapping[NodeId, str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for node, linked in list(session.changes.links.items()):
        path = _path_of(session, node, paths)
        if path is not None:
            counts[path] = linked.num_changed
    return dict(sorted(counts.items()))


def _path_of(session: SessionState, node: NodeId, paths: Mapping[NodeId, str]) -> str | None:
    if (path := paths.get(node)) is not None:
        return path
    stored = session.base.by_id(node)
    return None if stored is None else stored.path


async def diff(context: RepoContext, before: SnapshotId, after: SnapshotId) -> Diff:
    """Unite what all commits after one snapshot, up to another, changed.

    A node is shown under its path in the later snapshot or, if it is gone, in the earlier one;
    one that is in neither came and went between them.
    """
    logs = await _load_logs(context, before, after)
    earlier, later = await map_concurrently(
        context.assets.load_snapshot,
        [before, after],
        limit=context.config.max_concurrent_requests,
    )
    log = logs[0] if len(logs) == 1 else unite_logs(logs, after)
    return _named(log, logs, earlier.nodes, later.nodes)


async def _load_logs(
    context: RepoContext, before: SnapshotId, after: SnapshotId
) -> list[TransactionLog]:
    """Load the logs between two snapshots, oldest first, with those of pruned commits."""
    ids: list[SnapshotId] = []
    is_found = False
    async for entry in context.ledger.ancestry(after):
        if entry.id == before:
            is_found = True
            break
        ids += [entry.id, *reversed(entry.pruned_ancestors)]
    if not is_found or not ids:
        raise InvalidInputError(
            f"cannot compare: snapshot {before} is not an ancestor of {after}; "
            "`from` must be earlier in the history of `to`",
            ErrorKind.BAD_SNAPSHOT_CHAIN_FOR_DIFF,
        )
    return await map_concurrently(
        context.assets.load_transaction_log,
        ids[::-1],
        limit=context.config.max_concurrent_requests,
    )


def _named(
    log: TransactionLog, logs: Sequence[TransactionLog], earlier: NodeTable, later: NodeTable
) -> Diff:
    lists = {name: _paths_of(getattr(log, name), earlier, later) for name in ID_LISTS}
    was, now = BaseNodes(earlier), BaseNodes(later)
    chunks: dict[str, Coordinates] = {}
    for node, coordinates in log.updated_chunks.items():
        either = now.by_id(node) or was.by_id(node)
        if either is not None and len(coordinates):
            chunks[either.path] = coordinates
    moves = [
        (move.source, move.target)
        for transaction_log in reversed(logs)
        for move in transaction_log.moves
    ]
    by_path = dict(sorted(chunks.items()))
    return Diff(**lists, chunk_coordinates=by_path, linked_chunks={}, moved_nodes=moves)


def _paths_of(ids: Bytes, earlier: NodeTable, later: NodeTable) -> set[str]:
    rows = rows_of_ids(later, ids)
    paths = later.paths.take(rows).to_strings()
    if len(rows) < len(ids):
        gone = rows_of_ids(earlier, ids)
        is_there = np.zeros(len(gone), np.bool_)
        if len(rows):
            is_there = np.isin(
                np.ascontiguousarray(earlier.ids[gone]).view(np.uint64),
                np.ascontiguousarray(later.ids[rows]).view(np.uint64),
            ).ravel()
        paths += earlier.paths.take(gone[~is_there]).to_strings()
    return set(paths)
