"""Two versions compared: their nodes, and the chunks of their arrays.

Nodes are compared as columns of the two snapshots. Chunks come from the logs of the commits between
the versions, up to the version that both come from, if these are few and small: then no manifest is
read. Otherwise the manifests that only one of the versions has are read and compared as columns.
All of this has limits; a comparison that reached one says that it is not complete.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from math import prod
from operator import eq
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from icefloe.effects import iterate_blocking, map_concurrently, run_blocking
from icefloe.errors import ObjectNotFoundError
from icefloe.format.arrow import pc
from icefloe.format.chunk_table import (
    ChunkTable,
    Coordinates,
    concat_tables,
    equal_rows,
    sort_keys,
)
from icefloe.format.columns import (
    FEW_ROWS,
    Bools,
    BytesColumn,
    Ints,
    concat_bytes,
    is_ascending,
    mask_of,
    take_ragged,
)
from icefloe.format.ids import ManifestId, NodeId, SnapshotId
from icefloe.format.layout import transaction_log_key
from icefloe.format.nodes import ArrayNode, ManifestRef, Node, NodeTable
from icefloe.format.snapshot_table import SnapshotEntry
from icefloe.format.transaction_log import unite_logs
from icefloe.manifests.lookup import listed_in
from icefloe.records import Record
from icefloe.repo.context import RepoContext
from icefloe.transactions.session import SessionState
from icefloe.web.nodes import document_of, facts_of
from icefloe.web.versions import Version

MOST_REFERENCES: Final = 2_000_000
"""How many references of manifests a comparison reads."""
MOST_LOGS: Final = 64
"""How many commits lie between two versions whose logs are read."""
MOST_LOG_BYTES: Final = 4 << 20
"""How large these logs are in all."""
MOST_NODES: Final = 200
"""How many nodes of each kind of change a page lists, and of how many it compares the chunks."""
_ID_BYTES: Final = 8
_MOST_RUNS: Final = 64
"""Rows in more runs than these are copied before they are compared."""


class Pairs(Record, eq=False):
    """The rows of two tables of nodes that belong together."""

    old: Ints
    new: Ints
    is_replaced: Bools
    """Where the path is the same, but the node is another one."""
    created: Ints
    deleted: Ints


class MovedNode(Record):
    """A node that has another path now."""

    source: str
    target: str


class ChangedArray(Record):
    """An array of which chunks changed, or may have."""

    path: str
    chunks: int | None
    """How many; None if that was not found out."""
    grid_chunks: int
    is_complete: bool = True


class NodeList[T](Record):
    """Some of the nodes that changed in the same way."""

    title: str
    nodes: tuple[T, ...]
    total: int

    @property
    def left_out(self) -> int:
        """The number of nodes that are not listed."""
        return self.total - len(self.nodes)


class Comparison(Record, eq=False):
    """The differences of two versions, as a page lists them."""

    before: Version
    after: Version
    lists: tuple[NodeList[str], ...]
    """Paths by kind of change."""
    moved: NodeList[MovedNode]
    arrays: NodeList[ChangedArray]
    is_by_logs: bool
    """Whether the chunks are those that commits wrote or deleted."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing changed."""
        return not (self.lists or self.moved.total or self.arrays.total)


class ArrayComparison(Record, eq=False):
    """The differences of an array between two versions."""

    before: Version
    after: Version
    old: ArrayNode
    new: ArrayNode
    coordinates: Coordinates
    """The chunks that changed, sorted."""
    is_complete: bool
    is_by_logs: bool

    @property
    def has_same_grid(self) -> bool:
        """Whether the chunks of both versions have the same, known, length."""
        shapes = facts_of(self.old).chunk_shape, facts_of(self.new).chunk_shape
        return shapes[0] is not None and shapes[0] == shapes[1]


class FieldChange(Record):
    """A field of the metadata that differs; None where a version does not have it."""

    name: str
    before: Any
    after: Any


# Nodes


def compare(before: Version, after: Version) -> Comparison:
    """Compare two versions; neither needs to come from the other."""
    old, new = before.state.snapshot.nodes, after.state.snapshot.nodes
    pairs = pair_nodes(old, new)
    candidates = _arrays_with_other_manifests(old, new, pairs)
    touched = chunks_by_logs(before.state, after.state) if len(candidates) else {}
    is_same = ~pairs.is_replaced
    is_moved = is_same & ~_equal(old.paths, pairs.old, new.paths, pairs.new)
    is_updated = is_same & ~_equal(old.user_data, pairs.old, new.user_data, pairs.new)
    lists = [
        *_by_kind("created", new, pairs.created),
        *_by_kind("deleted", old, pairs.deleted),
        *_by_kind("replaced by new ones", new, pairs.new[pairs.is_replaced]),
        *_by_kind("with changed metadata", new, pairs.new[is_updated]),
    ]
    moves = np.flatnonzero(is_moved)
    moved = zip(
        old.paths.take(pairs.old[moves[:MOST_NODES]]).to_strings(),
        new.paths.take(pairs.new[moves[:MOST_NODES]]).to_strings(),
        strict=True,
    )
    return Comparison(
        before,
        after,
        tuple(entry for entry in lists if entry.total),
        NodeList("Nodes moved", tuple(MovedNode(*paths) for paths in moved), len(moves)),
        _changed_arrays(before, after, candidates, touched),
        touched is not None,
    )


def pair_nodes(old: NodeTable, new: NodeTable) -> Pairs:
    """Pair the nodes of two tables: those with the same id, then others with the same path."""
    old_ids, new_ids = _numbers(old.ids), _numbers(new.ids)
    _, old_rows, new_rows = np.intersect1d(
        old_ids, new_ids, assume_unique=True, return_indices=True
    )
    deleted, created = _others(old_rows, len(old)), _others(new_rows, len(new))
    paths = concat_bytes([old.paths.take(deleted), new.paths.take(created)])
    _, numbers = paths.distinct()
    _, old_places, new_places = np.intersect1d(
        numbers[: len(deleted)], numbers[len(deleted) :], assume_unique=True, return_indices=True
    )
    rows = np.concatenate([new_rows, created[new_places]])
    order = np.argsort(rows, kind="stable")  # of the paths of the later version
    is_replaced = np.arange(len(rows)) >= len(new_rows)
    return Pairs(
        np.concatenate([old_rows, deleted[old_places]])[order],
        rows[order],
        is_replaced[order],
        np.delete(created, new_places),
        np.delete(deleted, old_places),
    )


def _numbers(ids: NDArray[np.uint8]) -> NDArray[np.uint64]:
    return np.ascontiguousarray(ids).reshape(-1, _ID_BYTES).view(np.uint64).ravel()


def _others(rows: Ints, count: int) -> Ints:
    is_other = np.ones(count, np.bool_)
    is_other[rows] = False
    return np.flatnonzero(is_other)


def _equal(left: BytesColumn, left_rows: Ints, right: BytesColumn, right_rows: Ints) -> Bools:
    """Return for pairs of rows whether their bytes are the same.

    Most rows stand behind each other in both columns, where they are compared without a copy.
    """
    if not len(left_rows):
        return np.empty(0, np.bool_)
    ends = np.flatnonzero((np.diff(left_rows) != 1) | (np.diff(right_rows) != 1))
    heads, tails = np.append(0, ends + 1), np.append(ends, len(left_rows) - 1)
    if len(heads) > _MOST_RUNS:
        return _same_rows(left.take(left_rows), right.take(right_rows))
    parts = [
        _same_rows(
            left.slice(int(left_rows[head]), int(left_rows[tail]) + 1),
            right.slice(int(right_rows[head]), int(right_rows[tail]) + 1),
        )
        for head, tail in zip(heads, tails, strict=True)
    ]
    return np.concatenate(parts)


def _same_rows(left: BytesColumn, right: BytesColumn) -> Bools:
    if len(left) <= FEW_ROWS:
        return np.array(list(map(eq, left.to_list(), right.to_list())), np.bool_)
    return mask_of(pc.equal(left.to_arrow(), right.to_arrow()))


def _by_kind(title: str, table: NodeTable, rows: Ints) -> list[NodeList[str]]:
    lists = []
    for kind, is_kind in (("Groups", ~table.is_array[rows]), ("Arrays", table.is_array[rows])):
        own = rows[is_kind]
        paths = table.paths.take(own[:MOST_NODES]).to_strings()
        lists.append(NodeList(f"{kind} {title}", tuple(paths), len(own)))
    return lists


def find_pair(before: Version, after: Version, path: str) -> tuple[Node | None, Node | None]:
    """Return the node at a path in both versions; one that moved is the same node."""
    new = after.state.tree.find(path)
    if new is not None:
        return before.state.base.by_id(new.id) or before.state.tree.find(path), new
    old = before.state.tree.find(path)
    return old, None if old is None else after.state.base.by_id(old.id)


def changed_fields(old: Node, new: Node) -> list[FieldChange]:
    """Return the fields of the metadata that differ, with the attributes one by one."""
    documents = [_flat(document_of(node)) for node in (old, new)]
    return [
        FieldChange(name, *(document.get(name) for document in documents))
        for name in sorted(documents[0] | documents[1])
        if repr(documents[0].get(name)) != repr(documents[1].get(name))  # NaN is the same as NaN
    ]


def _flat(document: Mapping[str, Any]) -> dict[str, Any]:
    """Put the attributes beside the other fields.

    >>> _flat({"shape": [3], "attributes": {"units": "K"}, "consolidated_metadata": None})
    {'shape': [3], 'attribute units': 'K'}
    """
    attributes = document.get("attributes")
    flat = {key: value for key, value in document.items() if key != "consolidated_metadata"}
    if isinstance(attributes, dict):
        del flat["attributes"]
        flat |= {f"attribute {key}": value for key, value in attributes.items()}
    return flat


# Chunks


def _arrays_with_other_manifests(old: NodeTable, new: NodeTable, pairs: Pairs) -> Ints:
    """Return the rows of arrays, in the earlier and the later table, that may have other chunks."""
    is_array = ~pairs.is_replaced & old.is_array[pairs.old] & new.is_array[pairs.new]
    old_rows, new_rows = pairs.old[is_array], pairs.new[is_array]
    old_counts, new_counts = np.diff(old.manifest_splits), np.diff(new.manifest_splits)
    differs: Bools = old_counts[old_rows] != new_counts[new_rows]
    alike = np.flatnonzero(~differs)
    _, old_items = take_ragged(old.manifest_splits, old_rows[alike])
    splits, new_items = take_ragged(new.manifest_splits, new_rows[alike])
    is_other = (old.manifest_ids[old_items] != new.manifest_ids[new_items]).any(axis=1)
    totals = np.append(0, np.cumsum(is_other))
    differs[alike] = totals[splits[1:]] > totals[splits[:-1]]
    return np.stack([old_rows[differs], new_rows[differs]], axis=1)


def _changed_arrays(
    before: Version, after: Version, rows: Ints, touched: Mapping[NodeId, Coordinates] | None
) -> NodeList[ChangedArray]:
    """List the arrays, among candidates, of which chunks changed."""
    old, new = before.state.snapshot.nodes, after.state.snapshot.nodes
    if touched is not None:
        ids = np.frombuffer(b"".join(node.raw for node in touched), np.uint64)
        rows = rows[np.isin(_numbers(new.ids)[rows[:, 1]], ids)]
    arrays, room, without_changes = list[ChangedArray](), MOST_REFERENCES, 0
    for old_row, new_row in rows[:MOST_NODES].tolist():
        nodes = old.array(old_row), new.array(new_row)
        if touched is not None:
            coordinates = _within_either(touched[nodes[1].id], *nodes)
            compared = _Compared(coordinates, _has_same_rank(*nodes), references=0)
        else:
            compared = run_blocking(_by_manifests(before.state, after.state, *nodes, room))
            room -= compared.references
        if compared.is_complete and not len(compared.coordinates):
            without_changes += 1
            continue
        count = len(compared.coordinates) or None
        grid = prod(nodes[1].array.num_chunks)
        arrays.append(ChangedArray(nodes[1].path, count, grid, compared.is_complete))
    return NodeList("Arrays with changed chunks", tuple(arrays), len(rows) - without_changes)


def _has_same_rank(old: ArrayNode, new: ArrayNode) -> bool:
    return len(old.array.num_chunks) == len(new.array.num_chunks)


def compare_array(
    before: Version, after: Version, old: ArrayNode, new: ArrayNode
) -> ArrayComparison:
    """Find the chunks of an array that differ between two versions."""
    if old.id == new.id:
        touched = chunks_by_logs(before.state, after.state)
        if touched is not None:
            none = np.empty((0, len(new.array.num_chunks)), np.uint32)
            coordinates = _within_either(touched.get(new.id, none), old, new)
            return ArrayComparison(
                before,
                after,
                old,
                new,
                coordinates,
                is_complete=_has_same_rank(old, new),
                is_by_logs=True,
            )
    compared = run_blocking(_by_manifests(before.state, after.state, old, new, MOST_REFERENCES))
    return ArrayComparison(
        before,
        after,
        old,
        new,
        compared.coordinates,
        is_complete=compared.is_complete,
        is_by_logs=False,
    )


def _within_either(coordinates: Coordinates, old: ArrayNode, new: ArrayNode) -> Coordinates:
    """Keep the chunks that the grid of one of the versions has."""
    grids = old.array.num_chunks, new.array.num_chunks
    if coordinates.shape[1] != len(grids[1]) or len(grids[0]) != len(grids[1]):
        return np.empty((0, len(grids[1])), np.uint32)
    is_within = np.zeros(len(coordinates), np.bool_)
    for grid in grids:
        is_within |= (coordinates < np.array(grid, np.uint64)).all(axis=1)
    return coordinates if is_within.all() else coordinates[is_within]


# Logs


def chunks_by_logs(
    before: SessionState, after: SessionState
) -> Mapping[NodeId, Coordinates] | None:
    """Return the chunks that commits between two versions wrote or deleted.

    None if the commits are many, if their logs are large or deleted, or if the versions have no
    common history.
    """
    context, snapshots = after.context, (before.snapshot_id, after.snapshot_id)
    if snapshots[0] == snapshots[1]:
        return {}
    commits = _commits_between(context, *snapshots)
    if commits is None:
        return None
    ids = [log for entry in commits for log in (entry.id, *entry.pruned_ancestors)]
    if len(ids) > MOST_LOGS:
        return None
    try:
        return run_blocking(_united_logs(context, ids, snapshots[1]))
    except ObjectNotFoundError:  # the logs of old commits may be deleted
        return None


def _commits_between(
    context: RepoContext, before: SnapshotId, after: SnapshotId
) -> list[SnapshotEntry] | None:
    """Return the commits of both versions up to their first common one; None if they are many."""
    walks = [iterate_blocking(context.ledger.ancestry(snapshot)) for snapshot in (after, before)]
    seen = dict[SnapshotId, SnapshotEntry](), dict[SnapshotId, SnapshotEntry]()
    for _ in range(MOST_LOGS + 1):
        for own, others, walk in zip(seen, reversed(seen), walks, strict=True):
            entry = next(walk, None)
            if entry is None:
                continue
            own[entry.id] = entry
            if entry.id in others:
                return [*_until(own, entry.id), *_until(others, entry.id)]
    return None


def _until(
    commits: Mapping[SnapshotId, SnapshotEntry], last: SnapshotId
) -> Iterator[SnapshotEntry]:
    return takewhile(lambda entry: entry.id != last, commits.values())


async def _united_logs(
    context: RepoContext, ids: Sequence[SnapshotId], snapshot: SnapshotId
) -> Mapping[NodeId, Coordinates] | None:
    limit = context.config.max_concurrent_requests

    async def size_of(log: SnapshotId) -> int:
        return (await context.backend.head(transaction_log_key(log))).info.size_bytes

    if sum(await map_concurrently(size_of, ids, limit=limit)) > MOST_LOG_BYTES:
        return None
    logs = await map_concurrently(context.assets.load_transaction_log, ids, limit=limit)
    chunks = unite_logs(logs, snapshot).updated_chunks if logs else {}
    return {node: _sorted(coordinates) for node, coordinates in chunks.items() if len(coordinates)}


def _sorted(coordinates: Coordinates) -> Coordinates:
    [keys] = sort_keys(coordinates)
    return coordinates if is_ascending(keys) else coordinates[np.unique(keys, return_index=True)[1]]


# Manifests


class _Compared(Record, eq=False):
    """The chunks that differ, and the number of references that were read to find them."""

    coordinates: Coordinates
    is_complete: bool
    references: int


async def _by_manifests(
    before: SessionState, after: SessionState, old: ArrayNode, new: ArrayNode, room: int
) -> _Compared:
    """Compare the references in manifests that only one of the versions has.

    Manifests whose boxes meet are compared together, and groups of them one after the other, up to
    `room` references.
    """
    none = np.empty((0, len(new.array.num_chunks)), np.uint32)
    if not _has_same_rank(old, new):
        return _Compared(none, is_complete=False, references=0)
    refs = before.lookup(old).manifests, after.lookup(new).manifests
    if old.id == new.id:
        ids = [{ref.id for ref in own} for own in refs]
        refs = (
            tuple(r for r in refs[0] if r.id not in ids[1]),
            tuple(r for r in refs[1] if r.id not in ids[0]),
        )
    counts = [
        dict(zip(ids, listed_in(state.manifest_files, ids)[1], strict=True))
        for state, own in zip((before, after), refs, strict=True)
        for ids in [[ref.id for ref in own]]
    ]
    changed, read, is_complete = [none], 0, True
    for group in _groups(refs):
        needed = sum(counts[side][ref.id] for side, ref in group)
        if read + needed > room:
            is_complete = False
            continue
        read += needed
        tables = [
            await _load(state, node, [ref.id for number, ref in group if number == side])
            for side, (state, node) in enumerate(((before, old), (after, new)))
        ]
        changed.append(_differing(*tables))
    return _Compared(_sorted(np.concatenate(changed)), is_complete=is_complete, references=read)


def _groups(
    refs: tuple[tuple[ManifestRef, ...], tuple[ManifestRef, ...]],
) -> list[list[tuple[int, ManifestRef]]]:
    """Sort manifests of both sides into groups whose boxes do not meet along the first dimension.

    An item is the side, 0 or 1, and the manifest.
    """
    items = [(side, ref) for side, own in enumerate(refs) for ref in own]
    if not all(ref.extents for _, ref in items):  # such a manifest covers everything
        return [items] if items else []
    items.sort(key=lambda manifest: manifest[1].extents[0])
    groups, end = list[list[tuple[int, ManifestRef]]](), 0
    for side, ref in items:
        first, last = ref.extents[0]
        if groups and first < end:
            groups[-1].append((side, ref))
        else:
            groups.append([(side, ref)])
        end = max(end, last)
    return groups


async def _load(state: SessionState, node: ArrayNode, ids: list[ManifestId]) -> ChunkTable:
    """Load the references of an array in some manifests, within its grid."""
    assets, lookup = state.context.assets, state.lookup(node)
    files = await map_concurrently(
        lambda manifest: assets.load_manifest(manifest, lookup.size_of(manifest)),
        ids,
        limit=state.context.config.max_concurrent_requests,
    )
    grid = np.array([(0, count) for count in node.array.num_chunks], np.uint32).reshape(-1, 2)
    tables = [table for file in files if len(table := file.table(node.id))]
    if not tables:
        return ChunkTable.empty(len(node.array.num_chunks))
    return concat_tables([table.within(grid) for table in tables])


def _differing(old: ChunkTable, new: ChunkTable) -> Coordinates:
    """Return the chunks that only one of two tables has, or that are not the same in both."""
    old_keys, new_keys = sort_keys(old.coordinates, new.coordinates)
    _, old_rows, new_rows = np.intersect1d(
        old_keys, new_keys, assume_unique=True, return_indices=True
    )
    is_other = ~equal_rows(old.take(old_rows), new.take(new_rows))
    return np.concatenate(
        [
            old.coordinates[_others(old_rows, len(old))],
            new.coordinates[_others(new_rows, len(new))],
            new.coordinates[new_rows[is_other]],
        ]
    )
