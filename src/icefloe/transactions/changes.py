"""Uncommitted changes of a session."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import TYPE_CHECKING, Any, Final, Self

import zstandard

from icefloe.errors import ErrorKind, ReadOnlyError
from icefloe.forks import renew_lock_in_children
from icefloe.format.chunk_table import ChunkRef, ChunkTable, Coordinates
from icefloe.format.ids import NodeId, SnapshotId, id_rows
from icefloe.format.nodes import ArrayNode, Node
from icefloe.records import MutableRecord, Record, field
from icefloe.transactions.array_changes import MISSING, ArrayChanges, Index, Missing, Settled
from icefloe.transactions.causality import Clock, History, Origin

if TYPE_CHECKING:
    from icefloe.format.transaction_log import TransactionLog
    from icefloe.manifests.regions import LinkedArray

_QUICK_LEVEL: Final = 1  # changes travel once: half the bytes are not worth twice the time


class DeletedNode(Record):
    """A node of the base snapshot that the session deleted."""

    path: str
    is_array: bool


class NodeOrigins(MutableRecord):
    """The origins of changes in the history of a change set, by node."""

    created: dict[NodeId, Origin] = field(default_factory=dict)
    metadata: dict[NodeId, Origin] = field(default_factory=dict)
    """The newest change of the metadata, which may be the creation."""
    linked: dict[NodeId, Origin] = field(default_factory=dict)
    deleted: dict[NodeId, Origin] = field(default_factory=dict)

    def forget(self, node: NodeId) -> None:
        """Forget all changes of a node."""
        for origins in (self.created, self.metadata, self.linked, self.deleted):
            origins.pop(node, None)

    def copy(self) -> NodeOrigins:
        """Copy the four dictionaries."""
        return NodeOrigins(
            dict(self.created), dict(self.metadata), dict(self.linked), dict(self.deleted)
        )


class ChangeSet:
    """Nodes and chunks that a session created, updated or deleted.

    Writers of chunks come from several threads: what they do goes through the methods here,
    which take a lock for as long as a dictionary needs. A change set that is being committed
    is frozen, so that no write is accepted and then left out.

    Every change has an origin in `history`, by which a merge finds out what both sides know.
    """

    def __init__(self, beneath: Clock | None = None) -> None:
        self.nodes: dict[str, Node] = {}
        """Path to node, for nodes created or with changed metadata; without manifests."""
        self.created: set[NodeId] = set()
        self.updated: set[NodeId] = set()
        self.deleted: dict[NodeId, DeletedNode] = {}
        self.arrays: dict[NodeId, ArrayChanges] = {}
        self.links: dict[NodeId, LinkedArray] = {}
        """Manifests that were built elsewhere; changes in `arrays` are newer."""
        self.moves: list[tuple[str, str]] = []
        """Renames of a rearranging session, in the order in which they were made."""
        self.undone: dict[NodeId, DeletedNode] = {}
        """Nodes created and deleted here, that others may have heard of in between."""
        self.history = History(beneath)
        self.origins = NodeOrigins()
        self._lock = RLock()
        renew_lock_in_children(self, "RLock")
        self._frozen = False

    def is_empty(self) -> bool:
        """Return whether there is nothing to commit."""
        return (
            not (self.nodes or self.deleted or self.moves or self.links)
            and all(changes.is_empty() for changes in self.arrays.values())
        )  # fmt: skip

    @contextmanager
    def writing(self) -> Iterator[Self]:
        """Keep the lock during a change; raise while a commit is under way."""
        with self._lock:
            self._require_open()
            yield self

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Refuse changes by others for as long as a commit writes this state."""
        with self._lock:
            self._require_open()
            self._frozen = True
        try:
            yield
        finally:
            self._frozen = False

    def _require_open(self) -> None:
        if self._frozen:
            raise ReadOnlyError(
                "the session is being committed: wait for the commit, then open a new session",
                ErrorKind.READ_ONLY_SESSION,
            )

    def ended_copy(self) -> ChangeSet:
        """Copy the changes until now, of a period that ends."""
        with self._lock:
            self.end_period()
            return self.copy()

    def end_period(self) -> Clock:
        """End a period of changes; return the known changes."""
        with self._lock:
            before = self.history.own
            origin = self.history.end_period()
            if self.history.own != before:
                for changes in self.arrays.values():
                    changes.begin_origin(self.history.own)
            return origin

    def get_chunk(self, node: NodeId, index: Index) -> ChunkRef | Missing | None:
        """Look up what was done to one chunk."""
        if (changes := self.arrays.get(node)) is None:
            return MISSING
        with self._lock:
            return changes.get(index)

    def set_chunk(self, node: NodeId, index: Index, ref: ChunkRef | None) -> None:
        """Set one chunk, or delete it with `None`."""
        with self._lock:
            self._require_open()
            changes = self.array(node, len(index))
            if ref is None:
                changes.delete(index)
            else:
                changes.set(index, ref)

    def put_table(self, node: NodeId, table: ChunkTable) -> None:
        """Set many chunks of one array."""
        with self.writing():
            self.array(node, table.dimensions).put_table(table)

    def array(self, node: NodeId, dimensions: int) -> ArrayChanges:
        """Return the chunk changes of an array, making room for the first ones."""
        self.history.note_use()
        return self._array(node, dimensions)

    def _array(self, node: NodeId, dimensions: int) -> ArrayChanges:
        if (changes := self.arrays.get(node)) is None:
            changes = ArrayChanges(dimensions, self.history.own)
            changes = self.arrays.setdefault(node, changes)
        return changes

    def take_in_chunks(self, node: NodeId, chunks: Settled) -> None:
        """Set and delete chunks of an array as others did, with the origins that they have."""
        array = self._array(node, chunks.table.dimensions)
        if len(chunks.table):
            array.put_table(chunks.table, chunks.table_origins)
        if len(chunks.deleted):
            array.delete_many(chunks.deleted, chunks.deleted_origins)

    def settled(self, node: NodeId) -> Settled | None:
        """Return all chunk changes of an array in columns, if there are any."""
        if (changes := self.arrays.get(node)) is None:
            return None
        with self._lock:
            return changes.settled()

    def touched(self, node: NodeId) -> Coordinates:
        """List every chunk of an array that was set or deleted, sorted."""
        with self._lock:
            return self.arrays[node].settled().touched()

    def put_node(self, node: Node, *, is_new: bool) -> None:
        """Note a node that was created, or whose metadata changed."""
        with self.writing():
            self.history.note_use()
            self.nodes[node.path] = node
            self.origins.metadata[node.id] = self.history.own
            if is_new:
                self.created.add(node.id)
                self.origins.created[node.id] = self.history.own
            elif node.id not in self.created:
                self.updated.add(node.id)

    def put_link(self, node: NodeId, linked: LinkedArray) -> None:
        """Set the manifests of an array that were built elsewhere."""
        with self.writing():
            self.history.note_use()
            self.links[node] = linked
            self.origins.linked[node] = self.history.own

    def delete_node(self, node: Node) -> None:
        """Delete a node; one that only this session knows leaves no trace."""
        with self.writing():
            self.history.note_use()
            is_known_elsewhere = self.origins.created.get(node.id) != self.history.own
            is_array = isinstance(node, ArrayNode)
            self.remove(node.id, DeletedNode(node.path, is_array), self.history.own)
            if not is_known_elsewhere:
                self.undone.pop(node.id, None)
                self.origins.forget(node.id)

    def remove(self, node: NodeId, deleted: DeletedNode, origin: Origin) -> None:
        """Forget what was done to a node, and note that it is deleted."""
        if (node_here := self.nodes.get(deleted.path)) is not None and node_here.id == node:
            del self.nodes[deleted.path]
        self.arrays.pop(node, None)
        self.links.pop(node, None)
        self.updated.discard(node)
        (self.undone if node in self.created else self.deleted)[node] = deleted
        self.created.discard(node)
        self.origins.forget(node)
        self.origins.deleted[node] = origin

    def to_log(self, snapshot: SnapshotId) -> TransactionLog:
        """Return the log of a commit of these changes, without moves.

        Of linked manifests nobody here knows the chunks.
        """
        from icefloe.format.transaction_log import TransactionLog

        with self._lock:
            arrays = {node.id for node in self.nodes.values() if isinstance(node, ArrayNode)}
            deleted_arrays = {node_id for node_id, node in self.deleted.items() if node.is_array}
            return TransactionLog(
                snapshot,
                new_groups=id_rows(NodeId, sorted(self.created - arrays)),
                new_arrays=id_rows(NodeId, sorted(self.created & arrays)),
                deleted_groups=id_rows(NodeId, sorted(self.deleted.keys() - deleted_arrays)),
                deleted_arrays=id_rows(NodeId, sorted(deleted_arrays)),
                updated_arrays=id_rows(NodeId, sorted(self.updated & arrays)),
                updated_groups=id_rows(NodeId, sorted(self.updated - arrays)),
                updated_chunks={
                    node: changes.settled().touched()
                    for node, changes in self.arrays.items()
                    if not changes.is_empty()
                },
            )

    def copy(self) -> ChangeSet:
        """Copy in a moment, sharing columns."""
        other = ChangeSet()
        with self._lock:
            other.nodes = dict(self.nodes)
            other.created, other.updated = set(self.created), set(self.updated)
            other.deleted, other.undone = dict(self.deleted), dict(self.undone)
            other.arrays = {node: changes.copy() for node, changes in self.arrays.items()}
            other.links = dict(self.links)
            other.moves = list(self.moves)
            other.history, other.origins = self.history.copy(), self.origins.copy()
        return other

    def take_over(self, other: ChangeSet) -> None:
        """Become what a changed copy of this set is."""
        with self.writing():
            self.nodes, self.created, self.updated = other.nodes, other.created, other.updated
            self.deleted, self.undone = other.deleted, other.undone
            self.arrays, self.links = other.arrays, other.links
            self.history, self.origins = other.history, other.origins

    def __getstate__(self) -> dict[str, Any]:
        """Pack chunk changes as compressed columns."""
        with self._lock:
            self.end_period()
            origins = self.origins
            by_node = origins.created, origins.metadata, origins.linked, origins.deleted
            columns = pickle.dumps((self.arrays, self.history, by_node), pickle.HIGHEST_PROTOCOL)
            return {
                "nodes": self.nodes,
                "created": self.created,
                "updated": self.updated,
                "deleted": self.deleted,
                "undone": self.undone,
                "links": self.links,
                "moves": self.moves,
                "columns": zstandard.ZstdCompressor(level=_QUICK_LEVEL).compress(columns),
            }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc] # the lock is made again
        columns = zstandard.ZstdDecompressor().decompress(state.pop("columns"))
        packed = pickle.loads(columns)  # noqa: S301 - a part of what is being unpickled
        self.arrays, self.history, by_node = packed
        self.origins = NodeOrigins(*by_node)
        for name, value in state.items():
            setattr(self, name, value)
