"""The groups and arrays that a session sees: those of its snapshot, under its changes."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator

from icefloe.format.columns import BytesColumn
from icefloe.format.ids import ManifestId, NodeId, raw_rows
from icefloe.format.nodes import ArrayNode, ManifestRef, Node, NodeTable, StoredNodes
from icefloe.records import Record, replace
from icefloe.transactions.changes import ChangeSet


class BaseNodes:
    """The nodes of a snapshot, with what repeated lookups need; shared by what reads it."""

    def __init__(self, nodes: NodeTable | StoredNodes) -> None:
        self._nodes = nodes
        self._found: dict[str, Node | None] = {}
        self._paths: list[str] | None = None
        self._by_id: dict[bytes, int] | None = None

    @property
    def table(self) -> NodeTable:
        """All of them in columns."""
        return self._nodes.table()

    def find(self, path: str) -> Node | None:
        """Look up a node by its path."""
        try:
            return self._found[path]
        except KeyError:
            node = self._found[path] = self._nodes.find(path)
            return node

    def by_id(self, node: NodeId) -> Node | None:
        """Look up a node by its id."""
        row = self.find_row(node)
        return None if row is None else self.table.node(row)

    def row_by_id(self, node: NodeId) -> int:
        """Find the row of a node that must be there."""
        row = self.find_row(node)
        assert row is not None, f"{node} is not in the snapshot"
        return row

    def only_manifests(self, nodes: Iterable[NodeId]) -> dict[NodeId, ManifestId]:
        """Map each array that has exactly one manifest to that manifest."""
        table, manifests = self.table, dict[NodeId, ManifestId]()
        for node in nodes:
            if (row := self.find_row(node)) is not None:
                first, last = table.manifest_splits[row : row + 2].tolist()
                if last - first == 1:
                    manifests[node] = ManifestId(table.manifest_ids[first].tobytes())
        return manifests

    def find_row(self, node: NodeId) -> int | None:
        """Find the row of a node, if it is there."""
        if self._by_id is None:
            self._by_id = {raw: row for row, raw in enumerate(raw_rows(self.table.ids))}
        return self._by_id.get(node.raw)

    def paths(self) -> list[str]:
        """List all paths in the order of their bytes."""
        if self._paths is None:
            self._paths = self.table.paths.to_strings()
        return self._paths

    def paths_below(self, path: str) -> list[str]:
        """List the path itself, if it is a node, and all below it."""
        paths = self.paths()
        if path == "/":
            return paths
        own_path = [path] if self.find(path) is not None else []
        below = path.encode() + b"/"
        first = bisect_left(paths, below, key=str.encode)
        last = bisect_left(paths, path.encode() + b"0", lo=first, key=str.encode)  # "0" is next
        return own_path + paths[first:last]


class Tree(Record, eq=False):
    """A view: cheap to make, and always of the present state."""

    base: BaseNodes
    changes: ChangeSet

    def find(self, path: str) -> Node | None:
        """Look up a node; one with changed metadata comes without its manifests."""
        if (node := self.changes.nodes.get(path)) is not None:
            return node
        node = self.base.find(path)
        if node is None or node.id in self.changes.deleted:
            return None
        return node

    def manifests(self, node: Node) -> tuple[ManifestRef, ...]:
        """List the manifests of an array: those of the base snapshot, and linked ones."""
        stored = None
        if node.id not in self.changes.created:
            stored = self.base.find(node.path)
            if stored is None or stored.id != node.id:  # it was moved, or another took its place
                stored = self.base.by_id(node.id)
        refs = stored.array.manifests if isinstance(stored, ArrayNode) else ()
        linked = self.changes.links.get(node.id)
        return refs if linked is None else linked.over(refs)

    def paths_below(self, path: str) -> list[str]:
        """List the paths of a node, if there is one, and of all below it, in byte order."""
        stored = self.base.paths_below(path)
        changes = self.changes
        if changes.deleted:
            gone = {node.path for node in changes.deleted.values()}
            stored = [node_path for node_path in stored if node_path not in gone]
        if not changes.nodes:
            return stored
        below = path if path.endswith("/") else f"{path}/"
        known_paths = set(stored)
        new = [
            node_path
            for node_path in list(changes.nodes)
            if node_path not in known_paths and (node_path == path or node_path.startswith(below))
        ]
        return sorted([*stored, *new], key=str.encode) if new else stored

    def below(self, path: str) -> Iterator[Node]:
        """Walk a node, if there is one, and all below it."""
        for node_path in self.paths_below(path):
            if (node := self.find(node_path)) is not None:
                yield node

    def is_changed_array(self, node: Node) -> bool:
        """Return whether chunks of an array were set or deleted."""
        changes = self.changes.arrays.get(node.id)
        return changes is not None and not changes.is_empty()


def renamed(table: NodeTable, source: str, target: str) -> NodeTable:
    """Move a node, and all nodes below it, to another path."""
    old, new, below = source.encode(), target.encode(), f"{source}/".encode()
    paths = BytesColumn.from_list(
        [
            new + path[len(old) :] if path == old or path.startswith(below) else path
            for path in table.paths.to_list()
        ]
    )
    return replace(table, paths=paths).take(paths.sort_order())
