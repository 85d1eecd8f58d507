"""What must hold of transaction logs: in order, and true of the versions they lie between."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

from tests.support.file_rules import (
    Coordinate,
    Target,
    grid_of,
    is_array,
    is_ascending,
    manifest_refs,
    references,
)
from tests.support.oracle import Record, id_text, remembered

_LISTS: Final = [
    f"{change}_{kind}" for change in ("new", "deleted", "updated") for kind in ("groups", "arrays")
]


@remembered
def log_problems(log: Record) -> tuple[str, ...]:
    """Find what is wrong within a log: readers rely on the order of its lists."""
    problems = [
        f"{name} is not in order" for name in _LISTS if not is_ascending(getattr(log, name))
    ]
    if not is_ascending(part.node_id for part in log.updated_chunks):
        problems.append("updated_chunks is not in order")
    problems += [
        f"the chunks of {id_text(part.node_id)} are not in order"
        for part in log.updated_chunks
        if not is_ascending(chunk.coords for chunk in part.chunks)
    ]
    if not is_ascending(move.to.split("/") for move in log.moved_nodes or ()):
        problems.append("moved_nodes is not in order")
    return tuple(problems)


@remembered
def step_problems(
    child: Record,
    parent: Record,
    manifests: tuple[Record, ...],
    logs: tuple[Record, ...],
    is_whole: bool,
) -> tuple[str, ...]:
    """Check that logs tell what happened between two versions, and nothing else.

    `is_whole` says whether the logs cover the whole way.
    """
    if not logs:
        return ()
    step = _Step(parent, child, manifests, logs)
    return (*step.untrue(), *(step.untold() if is_whole else ()))


class _Step:
    """Two versions of a history, and the logs of what happened between them."""

    def __init__(
        self, parent: Record, child: Record, manifests: Iterable[Record], logs: Sequence[Record]
    ) -> None:
        self._old = {node.id: node for node in parent.nodes}
        self._new = {node.id: node for node in child.nodes}
        self._manifests = {manifest.id: manifest for manifest in manifests}
        self._logs = logs
        self._moves = {move.node_id: move for log in logs for move in log.moved_nodes or ()}
        self._chunks: dict[bytes, set[Coordinate]] = {}
        for log in logs:
            for part in log.updated_chunks:
                coordinates = {chunk.coords for chunk in part.chunks}
                self._chunks.setdefault(part.node_id, set()).update(coordinates)

    def _ids(self, *changes: str) -> set[bytes]:
        names = [name for name in _LISTS if name.startswith(changes)]
        return {raw for log in self._logs for name in names for raw in getattr(log, name)}

    # -- what logs say and versions do not show --------------------------------------------

    def untrue(self) -> Iterator[str]:
        created, deleted, updated = self._ids("new"), self._ids("deleted"), self._ids("updated")
        here = self._new.keys() | deleted
        for text, ids in {
            "new, but the parent has it": created & self._old.keys(),
            "new, but it is not there": created - here,
            "deleted, but it is there": deleted & self._new.keys(),
            "updated, but it is not there": updated - here,
            "written to, but it is not there": self._chunks.keys() - here,
        }.items():
            yield from (f"{id_text(raw)} is {text}" for raw in sorted(ids))
        yield from self._untrue_kinds()
        yield from self._untrue_chunks()
        for raw, move in self._moves.items():
            if raw not in self._new or self._new[raw].path != move.to:
                yield f"a node moved to {move.to}, where it is not"

    def _untrue_kinds(self) -> Iterator[str]:
        nodes = self._old | self._new
        for log in self._logs:
            for name in _LISTS:
                for raw in getattr(log, name):
                    if raw in nodes and is_array(nodes[raw]) != name.endswith("arrays"):
                        yield f"{nodes[raw].path} is in {name}, and of another kind"

    def _untrue_chunks(self) -> Iterator[str]:
        for raw, coordinates in self._chunks.items():
            if raw not in self._new:
                continue
            node = self._new[raw]
            if not is_array(node):
                yield f"the group {node.path} has chunks"
            elif {len(index) for index in coordinates} - {len(grid_of(node))}:
                yield f"chunks of {node.path} have other dimensions than it"

    # -- what versions show and logs do not say --------------------------------------------

    def untold(self) -> Iterator[str]:
        for raw in sorted(self._new.keys() - self._old.keys() - self._ids("new")):
            yield f"the new node {self._new[raw].path} is not named"
        for raw in sorted(self._new.keys() - self._old.keys()):
            if self._chunks_of(self._new[raw]).keys() - self._chunks.get(raw, set()):
                yield f"some chunks of the new array {self._new[raw].path} are not named"
        for raw in sorted(self._old.keys() - self._new.keys() - self._ids("deleted")):
            yield f"the deleted node {self._old[raw].path} is not named"
        named = self._ids("updated", "new")
        for raw in sorted(self._old.keys() & self._new.keys()):
            old, new = self._old[raw], self._new[raw]
            if old.path != new.path and raw not in self._moves:
                yield f"the move of {old.path} to {new.path} is not named"
            if old.user_data != new.user_data and raw not in named:
                yield f"the new metadata of {new.path} is not named"
            if is_array(old) and is_array(new) and self._has_unnamed_chunks(old, new):
                yield f"some chunks of {new.path} that changed are not named"

    def _has_unnamed_chunks(self, old: Record, new: Record) -> bool:
        shared = {(ref.object_id, *ref.extents) for ref in manifest_refs(old)}
        shared &= {(ref.object_id, *ref.extents) for ref in manifest_refs(new)}
        before, after = self._chunks_of(old, shared), self._chunks_of(new, shared)
        grid, named = grid_of(new), self._chunks.get(new.id, set())
        return any(
            index not in named
            and before.get(index) != after.get(index)
            # Chunks that a smaller grid cuts off go without a word.
            and all(at < count for at, count in zip(index, grid, strict=False))
            for index in before.keys() | after.keys()
        )

    def _chunks_of(
        self, node: Record, but: Collection[tuple[object, ...]] = ()
    ) -> dict[Coordinate, Target]:
        """Return the references of a node, but those in some manifests."""
        found: dict[Coordinate, Target] = {}
        for ref in manifest_refs(node):
            if (ref.object_id, *ref.extents) not in but:
                found.update(references(self._manifests[ref.object_id]).get(node.id, ()))
        return found
