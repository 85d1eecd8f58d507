"""What a repository holds, as plain dictionaries: the judge of the machines in this folder."""

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from functools import reduce
from itertools import count
from typing import Any, Final

from icefloe.records import replace

type Coords = tuple[int, ...]
type Content = dict[str, NodeModel]
"""Nodes by absolute path."""
type Seen = dict[str, tuple[Any, dict[Coords, bytes]]]
"""What a reader sees: metadata and chunks by path."""

CHUNK_LENGTH: Final = 2
INITIAL: Final = "1CECHNKREP0F1RSTCMT0"
_uids = count(1)


@dataclass
class NodeModel:
    """A group, or an array with chunks of any bytes."""

    attributes: dict[str, int]
    shape: Coords | None = None
    chunks: dict[Coords, bytes] = field(default_factory=dict)
    uid: int = field(default_factory=lambda: next(_uids))

    @property
    def is_array(self) -> bool:
        return self.shape is not None

    @property
    def grid(self) -> Coords:
        return tuple(-(-length // CHUNK_LENGTH) for length in self.shape or ())

    def has_room_for(self, coords: Coords) -> bool:
        pairs = zip(coords, self.grid, strict=True)
        return all(0 <= at < size for at, size in pairs)

    def document(self) -> dict[str, Any]:
        common = {"zarr_format": 3, "attributes": dict(sorted(self.attributes.items()))}
        if self.shape is None:
            return {"node_type": "group", **common}
        chunks = {"chunk_shape": [CHUNK_LENGTH] * len(self.shape)}
        return {
            "node_type": "array",
            "shape": list(self.shape),
            "data_type": "uint8",
            "chunk_grid": {"name": "regular", "configuration": chunks},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": 0,
            "codecs": [{"name": "bytes"}],
            "storage_transformers": [],
            **common,
        }

    def encoded(self) -> bytes:
        return json.dumps(self.document()).encode()


def seen_in(content: Content) -> Seen:
    return {path: (node.document(), dict(node.chunks)) for path, node in content.items()}


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def ancestors_of(path: str) -> Iterator[str]:
    while path != "/":
        path = parent_of(path)
        yield path


def is_within(path: str, top: str) -> bool:
    return top in (path, "/") or path.startswith(f"{top}/")


def child_path(parent: str, name: str) -> str:
    return f"/{name}" if parent == "/" else f"{parent}/{name}"


def by_uid(content: Content) -> dict[int, tuple[str, NodeModel]]:
    return {node.uid: (path, node) for path, node in content.items()}


@dataclass
class Record:
    """What a session or a commit changed: the transaction log of the model."""

    created: set[int] = field(default_factory=set)
    updated: set[int] = field(default_factory=set)
    deleted: dict[int, tuple[str, bool]] = field(default_factory=dict)
    """Former path, and whether it was an array."""
    chunks: dict[int, set[Coords]] = field(default_factory=dict)
    moves: dict[int, tuple[str, str]] = field(default_factory=dict)
    is_disputed: bool = False
    """A node came and went: whether that is a change is not laid down."""

    @property
    def is_empty(self) -> bool:
        return not (self.created or self.updated or self.deleted or self.chunks or self.moves)

    @property
    def is_ambiguous(self) -> bool:
        """Whether an amendment deleted what the amended commit had changed.

        How that is told is left open.
        """
        changed = self.created | self.updated | self.chunks.keys() | self.moves.keys()
        return not changed.isdisjoint(self.deleted)

    def gone_from(self, before: Content) -> "Record":
        """Leave out deletions of nodes that were gone already: both sides may delete one."""
        known = by_uid(before)
        deleted = {uid: node for uid, node in self.deleted.items() if uid in known}
        return replace(self, deleted=deleted)

    def united(self, later: "Record") -> "Record":
        """Both one after the other, as an amended commit tells it."""
        chunks = deepcopy(self.chunks)
        for uid, coords in later.chunks.items():
            chunks.setdefault(uid, set()).update(coords)
        return Record(
            self.created | later.created,
            self.updated | later.updated,
            self.deleted | later.deleted,
            chunks,
            self._chained(later.moves),
        )

    def _chained(self, later: dict[int, tuple[str, str]]) -> dict[int, tuple[str, str]]:
        both = self.moves | {
            uid: (self.moves.get(uid, (source,))[0], target)
            for uid, (source, target) in later.items()
        }
        return {uid: move for uid, move in both.items() if move[0] != move[1]}

    def without_passing_nodes(self) -> "Record":
        """The outcome alone: nodes that came and went are not in it."""
        passing = self.created & self.deleted.keys()
        chunks = {uid: at for uid, at in self.chunks.items() if uid not in passing}
        deleted = {uid: node for uid, node in self.deleted.items() if uid not in passing}
        return Record(
            self.created - passing, self.updated - passing, deleted, chunks, dict(self.moves)
        )


@dataclass(frozen=True)
class SnapshotModel:
    parent: str | None
    content: Content
    record: Record
    message: str
    metadata: dict[str, Any]


class SessionModel:
    """A snapshot with changes on top."""

    def __init__(self, base: str, content: Content) -> None:
        self.base = base
        self.content = deepcopy(content)
        self.record = Record()
        self._base_content = content

    # -- changes -----------------------------------------------------------------------------

    def create(self, path: str, node: NodeModel) -> None:
        self.content[path] = node
        self.record.created.add(node.uid)

    def update(self, path: str, attributes: dict[str, int]) -> None:
        """Set metadata; setting what is there already is no change."""
        node = self.content[path]
        if node.attributes != attributes:
            node.attributes = attributes
            self._note_update(node)

    def resize(self, path: str, shape: Coords) -> list[Coords]:
        """Resize as zarr does: delete chunks outside of the new grid, then set metadata.

        Gives the chunks that are deleted.
        """
        node = self.content[path]
        old_grid = node.grid
        node.shape = shape
        outside = [coords for coords in _box(old_grid) if not node.has_room_for(coords)]
        for coords in outside:
            self.delete_chunk(path, coords)
        self._note_update(node)
        return outside

    def _note_update(self, node: NodeModel) -> None:
        if node.uid not in self.record.created:
            self.record.updated.add(node.uid)

    def set_chunk(self, path: str, coords: Coords, data: bytes) -> None:
        node = self.content[path]
        node.chunks[coords] = data
        self.record.chunks.setdefault(node.uid, set()).add(coords)

    def delete_chunk(self, path: str, coords: Coords) -> None:
        node = self.content[path]
        node.chunks.pop(coords, None)
        self.record.chunks.setdefault(node.uid, set()).add(coords)

    def shift(self, path: str, offset: Coords) -> None:
        """Move chunks; what leaves the grid is lost, and vacated places become empty."""
        node = self.content[path]
        old = dict(node.chunks)
        if not any(offset):
            return
        for coords in old:
            self.delete_chunk(path, coords)
        for coords, data in old.items():
            target = tuple(at + step for at, step in zip(coords, offset, strict=True))
            if node.has_room_for(target):
                self.set_chunk(path, target, data)

    def reindex(self, path: str, moves: Callable[[Coords], Coords | None]) -> None:
        """Relabel chunks; a place that nothing moves to keeps its own.

        Places that were emptied since the last commit move like chunks do.
        """
        node = self.content[path]
        old = dict(node.chunks)
        touched = self.record.chunks.get(node.uid, set())
        holes = [at for at in touched if at not in old and node.has_room_for(at)]
        for source, data in old.items():
            if (target := moves(source)) is not None:
                self.set_chunk(path, target, data)
        for source in holes:
            if (target := moves(source)) is not None:
                self.delete_chunk(path, target)

    def delete(self, top: str) -> None:
        for path in [path for path in self.content if is_within(path, top)]:
            node = self.content.pop(path)
            self.record.chunks.pop(node.uid, None)
            self.record.updated.discard(node.uid)
            if node.uid in self.record.created:
                self.record.created.remove(node.uid)
                self.record.is_disputed = True
            else:
                self.record.deleted[node.uid] = (path, node.is_array)

    def move(self, source: str, target: str) -> None:
        origins = {node.uid: path for path, node in self._base_content.items()}
        for path in [path for path in self.content if is_within(path, source)]:
            node = self.content.pop(path)
            new = target + path.removeprefix(source)
            self.content[new] = node
            self.record.moves[node.uid] = (origins[node.uid], new)
        self.record.moves = {u: m for u, m in self.record.moves.items() if m[0] != m[1]}
        self.record.is_disputed = True

    def discard(self) -> None:
        self.content = deepcopy(self._base_content)
        self.record = Record()

    # -- rebase ------------------------------------------------------------------------------

    def conflicts_with(self, theirs: SnapshotModel) -> list[str]:
        """Name the conflicts with a commit that the usual solver cannot solve."""
        mine, other = self.record, theirs.record
        found = []
        if other.moves:
            found.append("MoveOperationCannotBeRebased")
        for path, node in self.content.items():
            if node.uid in mine.created:
                replaced = any(p == path for p, _ in mine.deleted.values())
                if path in theirs.content and not replaced:
                    found.append("NewNodeConflictsWithExistingNode")
                groups = (theirs.content.get(one) for one in ancestors_of(path))
                if any(one is not None and one.is_array for one in groups):
                    found.append("NewNodeInInvalidGroup")
        if mine.updated & other.updated:
            found.append("ZarrMetadataDoubleUpdate")
        if mine.updated & other.deleted.keys():
            found.append("ZarrMetadataUpdateOfDeleted")
        touched = {uid for uid in mine.chunks if uid not in mine.created}
        if touched & other.deleted.keys():
            found.append("ChunksUpdatedInDeletedArray")
        if touched & other.updated:
            found.append("ChunksUpdatedInUpdatedArray")
        return found

    def is_unsettled_with(self, theirs: SnapshotModel) -> bool:
        """Whether the two meet in a way that implementations answer differently."""
        mine, other = self.record, theirs.record
        their_new = [p for p, n in theirs.content.items() if n.uid in other.created]
        gone = [path for path, _ in mine.deleted.values()]
        their_gone = [path for path, _ in other.deleted.values()]
        our_new = [p for p, n in self.content.items() if n.uid in mine.created]
        return (
            any(is_within(new, top) for new in their_new for top in gone)
            or any(is_within(new, top) for new in our_new for top in their_gone)
            or bool(mine.moves and not other.is_empty)
        )

    def rebase_on(self, snapshot: str, theirs: SnapshotModel) -> None:
        """Put the changes on top of a commit without unsolvable conflicts; ours win."""
        mine, ours = self.record, by_uid(self.content)
        fresh = deepcopy(theirs.content)
        for path, _ in mine.deleted.values():
            fresh.pop(path, None)
        known = by_uid(fresh)
        for uid in mine.updated:
            _, node = known[uid]
            node.attributes, node.shape = ours[uid][1].attributes, ours[uid][1].shape
            node.chunks = {c: d for c, d in node.chunks.items() if node.has_room_for(c)}
        for uid, coords in mine.chunks.items():
            if uid in mine.created:
                continue
            _, node = known[uid]
            for at in coords:
                if at in ours[uid][1].chunks:
                    node.chunks[at] = ours[uid][1].chunks[at]
                else:
                    node.chunks.pop(at, None)
        for path, node in self.content.items():
            if node.uid in mine.created:
                fresh[path] = node
        self.base, self.content, self._base_content = snapshot, fresh, theirs.content

    # -- what status tells -------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        return described(self.record.gone_from(self._base_content), self.content)


def described(record: Record, content: Content) -> dict[str, Any]:
    """Tell a record as `Diff` does: node by path."""
    nodes = by_uid(content)

    def paths(uids: set[int], *, is_array: bool) -> set[str]:
        found = (nodes[uid] for uid in uids if uid in nodes)
        return {path for path, node in found if node.is_array == is_array}

    return {
        "new_groups": paths(record.created, is_array=False),
        "new_arrays": paths(record.created, is_array=True),
        "deleted_groups": {path for path, is_array in record.deleted.values() if not is_array},
        "deleted_arrays": {path for path, is_array in record.deleted.values() if is_array},
        "updated_groups": paths(record.updated, is_array=False),
        "updated_arrays": paths(record.updated, is_array=True),
        "updated_chunks": {
            nodes[uid][0]: sorted(list(at) for at in coords)
            for uid, coords in record.chunks.items()
            if uid in nodes and coords
        },
        "moved_nodes": sorted(record.moves.values()),
    }


def _box(grid: Coords) -> Iterator[Coords]:
    boxes: list[Coords] = reduce(
        lambda done, size: [(*one, at) for one in done for at in range(size)], grid, [()]
    )
    return iter(boxes)


class RepositoryModel:
    """Branches, tags and all snapshots."""

    def __init__(self) -> None:
        first = SnapshotModel(None, {}, Record(), "Repository initialized", {})
        self.snapshots = {INITIAL: first}
        self.branches = {"main": INITIAL}
        self.tags: dict[str, str] = {}
        self.used_tags: set[str] = set()

    def history(self, tip: str) -> list[str]:
        found = [tip]
        while (parent := self.snapshots[found[-1]].parent) is not None:
            found.append(parent)
        return found

    def between(self, base: str, tip: str) -> list[str] | None:
        """Give the commits after a base, oldest first; `None` if it is no ancestor."""
        history = self.history(tip)
        return None if base not in history else history[: history.index(base)][::-1]
