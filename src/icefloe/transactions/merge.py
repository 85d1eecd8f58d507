"""Forks of a session, for writing from several processes, and their way back.

A fork begins with no changes on a snapshot that holds those of its session. What it changes is
merged into the session, which commits it all. Merging happens completely or not at all.

A merge takes in what the session does not know yet, and compares it with what the fork does not
know: changes of the session before it was forked, and changes that both sides took from a third,
are common to both and never contradict.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from icefloe.errors import ErrorKind, InvalidInputError, SessionStateError
from icefloe.format.chunk_table import Coordinates, are_among, sort_keys
from icefloe.format.columns import is_ascending
from icefloe.format.ids import NodeId
from icefloe.format.nodes import ArrayNode, Node
from icefloe.format.paths import ancestors
from icefloe.transactions.array_changes import Settled
from icefloe.transactions.causality import History, Origin
from icefloe.transactions.changes import ChangeSet, DeletedNode
from icefloe.transactions.commit import write_version
from icefloe.transactions.rebase import rows_of_paths
from icefloe.transactions.session import SessionMode, SessionState
from icefloe.transactions.tree import BaseNodes

FORK_MESSAGE: Final = "Changes of a session, written for its forks"

_OVERLAPS: Final = ("newest", "fail")


async def fork(session: SessionState) -> SessionState:
    """Make a session that other processes can write through, to be merged into this one.

    Uncommitted changes are written as a snapshot that nothing points at, on which the fork
    begins; without any, it begins on the snapshot of the session.
    """
    if session.mode is SessionMode.readonly:
        raise SessionStateError(
            "a read-only session needs no fork: pickle it as it is",
            ErrorKind.CANNOT_FORK_READ_ONLY_SESSION,
        )
    if session.mode is SessionMode.rearrange:
        raise SessionStateError(
            "a session that moves nodes cannot be forked, as nothing can be merged into it: "
            "commit it, then fork a writable session",
            ErrorKind.REARRANGE_SESSION_ONLY,
        )
    snapshot = session.snapshot
    origin = session.changes.end_period()
    if not session.changes.is_empty():
        with session.changes.frozen():
            origin = session.changes.end_period()
            snapshot = (await write_version(session, FORK_MESSAGE, {})).snapshot
    forked = SessionState(session.context, snapshot, SessionMode.writable, packing=session.packing)
    forked.changes = ChangeSet(origin)
    forked.fork_of, forked.root, forked.rests_on = session.id, session.root, session.rests_on
    if session.fork_of is not None and (periods := dict(session.changes.history.held)):
        forked.rests_on += ((session.id, periods),)
    forked.known_update = session.known_update
    return forked


async def merge(
    session: SessionState,
    others: Sequence[SessionState],
    *,
    expected: Collection[str] | None = None,
    on_overlap: Literal["newest", "fail"] = "newest",
) -> None:
    """Take in the changes of forks, all of them or, if anything is wrong, none.

    Where two of them wrote the same chunk without knowing of each other, the one merged last
    wins; `on_overlap="fail"` makes that an error. `expected` are the ids of the forks that were
    handed out: one that is missing among `others`, and was not merged before or into one of
    them, is an error too.
    """
    session.require_writable()
    _require_forks(session, others)
    if on_overlap not in _OVERLAPS:
        raise InvalidInputError(
            f"on_overlap must be one of {', '.join(_OVERLAPS)}, got {on_overlap!r}",
            ErrorKind.INVALID_CONFIG,
        )
    if expected is not None:
        _require_all(session, others, expected)
    for other in others:
        if other.packer is not None:
            await other.packer.flush()
    base = session.base  # loaded here: nobody should wait for that
    # Copied before the lock is taken: two sessions may take in each other at the same time.
    copies = [(other, other.changes.ended_copy()) for other in others]
    with session.changes.writing() as changes:
        united = changes.copy()
        may_overlap = on_overlap == "fail" and _is_any_chunk_touched_twice(united, copies)
        created = list[Node]()
        for theirs in _parents_first(session, united.history, copies):
            _require_mergeable(theirs)
            mine, news = News(united, theirs.history), News(theirs, united.history)
            _require_agreement(mine, news)
            if may_overlap:
                _require_apart(session, mine, news)
            created += news.created_nodes()
            _unite(base, united, news)
        _require_sound(base, united, created)
        changes.take_over(united)
        session.merged_forks |= _fork_ids(others)
        session.known_update = min(
            [session.known_update, *(other.known_update for other in others)]
        )


class News:
    """The changes of one side of a merge that the other side does not know.

    Of use until something is merged into one of the sides.
    """

    def __init__(self, changes: ChangeSet, other: History) -> None:
        self.changes = changes
        self._other = other

    def _is_news(self, origin: Origin | None) -> bool:
        return origin is not None and self.changes.history.is_news_for(self._other, origin)

    def has_created(self, node: NodeId) -> bool:
        """Return whether the node was created."""
        return self._is_news(self.changes.origins.created.get(node))

    def has_metadata(self, node: NodeId) -> bool:
        """Return whether the metadata of the node changed, or the node was created."""
        return self._is_news(self.changes.origins.metadata.get(node))

    def has_changed(self, node: NodeId) -> bool:
        """Return whether anything of the node changed."""
        if self.has_metadata(node) or self._is_news(self.changes.origins.linked.get(node)):
            return True
        chunks = self.chunks(node)
        return chunks is not None and len(chunks) > 0

    def created_nodes(self) -> list[Node]:
        """List the nodes that were created."""
        return [node for node in self.changes.nodes.values() if self.has_created(node.id)]

    @cached_property
    def deleted(self) -> dict[NodeId, DeletedNode]:
        """The nodes that were deleted."""
        origins = self.changes.origins.deleted
        return {
            node: deleted
            for nodes in (self.changes.deleted, self.changes.undone)
            for node, deleted in nodes.items()
            if self._is_news(origins.get(node))
        }

    def chunks(self, node: NodeId) -> Settled | None:
        """Return the chunks of an array that were set or deleted."""
        settled = self.changes.settled(node)
        return None if settled is None else settled.of_origins(self._origins)

    @cached_property
    def _origins(self) -> NDArray[np.bool_]:
        return self.changes.history.news_for(self._other)


# -- who took part ---------------------------------------------------------------------------


def _require_forks(session: SessionState, others: Iterable[SessionState]) -> None:
    if session.fork_of is not None and any(other.branch is not None for other in others):
        raise SessionStateError(
            "a session on a branch cannot be merged into a fork, only other forks can: merge the "
            "fork into the session instead",
            ErrorKind.MERGE_NOT_ALLOWED,
        )


def _fork_ids(others: Iterable[SessionState]) -> set[str]:
    return {fork_id for other in others for fork_id in (other.id, *other.merged_forks)}


def _require_all(
    session: SessionState, others: Sequence[SessionState], expected: Collection[str]
) -> None:
    missing = set(expected) - _fork_ids(others) - session.merged_forks
    if missing:
        raise SessionStateError(
            f"the changes of {len(missing)} of {len(set(expected))} forks are missing: "
            f"{', '.join(sorted(missing))}. A worker may have failed; nothing was merged",
            ErrorKind.MERGE_FAILED,
            missing=sorted(missing),
        )


type _Copies = Sequence[tuple[SessionState, ChangeSet]]


def _parents_first(session: SessionState, history: History, copies: _Copies) -> Iterator[ChangeSet]:
    """Walk the changes of forks, those of a fork before those of forks that were made from it.

    `known` grows meanwhile.
    """
    waiting = list(copies)
    while waiting:
        later = []
        for other, changes in waiting:
            if _is_ready(session, history, other):
                yield changes
            else:
                later.append((other, changes))
        if len(later) == len(waiting):
            other, _ = later[0]
            missing = [fork for fork, origin in other.rests_on if not history.knows_all(origin)]
            raise SessionStateError(
                f"cannot merge the fork {other.id}: it was made from another fork, and rests on "
                f"changes of {', '.join(missing)} that are not here. Merge that fork before this "
                "one, or both at once. Nothing was merged",
                ErrorKind.MERGE_FAILED,
                missing=missing,
            )
        waiting = later


def _is_ready(session: SessionState, history: History, other: SessionState) -> bool:
    if session.root != other.root:  # who knows what was committed in between
        return True
    return all(history.knows_all(origin) for _, origin in other.rests_on)


# -- chunks ----------------------------------------------------------------------------------


def _is_any_chunk_touched_twice(mine: ChangeSet, copies: _Copies) -> bool:
    """Look whether chunks have to be compared fork by fork, as they need not most of the time."""
    touched: dict[NodeId, list[Coordinates]] = {}
    for _, theirs in copies:
        news = News(theirs, mine.history)
        for node in theirs.arrays:
            if (chunks := news.chunks(node)) is not None and len(chunks):
                touched.setdefault(node, []).append(chunks.touched())
    for node, parts in touched.items():
        if node in mine.arrays:
            parts.append(mine.touched(node))
        [keys] = sort_keys(np.concatenate(parts))
        if not is_ascending(keys) and not is_ascending(np.sort(keys)):
            return True
    return False


def _require_apart(session: SessionState, mine: News, theirs: News) -> None:
    for node in theirs.changes.arrays.keys() & mine.changes.arrays.keys():
        ours, news = mine.chunks(node), theirs.chunks(node)
        assert ours is not None
        assert news is not None
        touched = news.touched()
        both = touched[are_among(touched, ours.touched())]
        if len(both):
            path = _path_of(session, node)
            first = both[:10].tolist()
            more = f" and {len(both) - 10} more" if len(both) > 10 else ""
            raise SessionStateError(
                f"two sides wrote the same chunks of {path}: {first}{more}. "
                "Give each worker chunks of its own; nothing was merged",
                ErrorKind.MERGE_FAILED,
                path=path,
                chunks=first,
            )


def _path_of(session: SessionState, node: NodeId) -> str:
    found_node = next(
        (candidate for candidate in session.changes.nodes.values() if candidate.id == node), None
    )
    found_node = found_node or session.base.by_id(node)
    return f"array {node}" if found_node is None else found_node.path


# -- nodes -----------------------------------------------------------------------------------


def _require_mergeable(other: ChangeSet) -> None:
    if other.moves:
        raise SessionStateError(
            "the moves of a session cannot be merged into another: commit it by itself",
            ErrorKind.MERGE_NOT_ALLOWED,
        )
    if other.links:
        raise SessionStateError(
            "a fork has manifests that were built elsewhere: link them to the session that commits",
            ErrorKind.MERGE_NOT_ALLOWED,
        )


def _require_agreement(mine: News, theirs: News) -> None:
    """Refuse changes that contradict ours, of which they do not know."""
    _refuse(_created_twice(mine, theirs), "both sides created", "create it before forking")
    _refuse(_updated_apart(mine, theirs), "both sides changed the metadata of", "change it once")
    _refuse(
        _deleted_and_changed(mine, theirs) | _deleted_and_changed(theirs, mine),
        "one side deleted, and the other created or changed,",
        "delete it before forking or after merging",
    )
    _refuse(
        _created_in_deleted(mine, theirs) | _created_in_deleted(theirs, mine),
        "one side created, in a group that the other side deleted,",
        "delete the group before forking or after merging",
    )
    _refuse(
        _written_outside(mine, theirs) | _written_outside(theirs, mine),
        "one side wrote chunks that are outside of the new shape that the other side gave to",
        "resize it before forking or after merging",
    )


def _unite(base: BaseNodes, mine: ChangeSet, news: News) -> None:
    """Add changes that do not contradict ours."""
    theirs = news.changes
    # Looked up before the merge: after it, nothing of this is news.
    deleted = news.deleted
    chunks = {node: news.chunks(node) for node in theirs.arrays}
    nodes = [
        (path, node, news.has_created(node.id))
        for path, node in theirs.nodes.items()
        if news.has_metadata(node.id)
    ]
    origins = mine.history.take_in(theirs.history)
    for node_id, gone in deleted.items():
        origin = int(origins[theirs.origins.deleted[node_id]])
        if node_id in mine.created or base.by_id(node_id) is not None:
            mine.remove(node_id, gone, origin)
        else:
            mine.undone[node_id] = gone
            mine.origins.deleted[node_id] = origin
    for path, node, is_new in nodes:
        mine.nodes[path] = node
        mine.origins.metadata[node.id] = int(origins[theirs.origins.metadata[node.id]])
        if is_new:
            mine.created.add(node.id)
            mine.origins.created[node.id] = int(origins[theirs.origins.created[node.id]])
        elif node.id in theirs.updated or node.id not in mine.created:
            mine.updated.add(node.id)
    for node_id, settled in chunks.items():
        if settled is not None and len(settled):
            mine.take_in_chunks(node_id, settled.with_origins(origins))


def _refuse(paths: Collection[str], what: str, remedy: str) -> None:
    if paths:
        shown = sorted(paths)
        names = ", ".join(shown[:10]) + (f" and {len(shown) - 10} more" if len(shown) > 10 else "")
        raise SessionStateError(
            f"cannot merge: {what} {names}; {remedy}. Nothing was merged",
            ErrorKind.MERGE_FAILED,
            paths=shown,
        )


def _created_twice(mine: News, theirs: News) -> set[str]:
    """Find paths at which two different nodes were created."""
    return {
        path
        for path in mine.changes.nodes.keys() & theirs.changes.nodes.keys()
        if (ours := mine.changes.nodes[path]).id != (other := theirs.changes.nodes[path]).id
        and theirs.has_metadata(other.id)
        and ours.id not in theirs.deleted
    }


def _updated_apart(mine: News, theirs: News) -> set[str]:
    """Find nodes whose metadata became one thing here and another thing there."""
    return {
        path
        for path in mine.changes.nodes.keys() & theirs.changes.nodes.keys()
        if (ours := mine.changes.nodes[path]).id == (other := theirs.changes.nodes[path]).id
        and ours.user_data != other.user_data
        and mine.has_metadata(ours.id)
        and theirs.has_metadata(other.id)
    }


def _deleted_and_changed(mine: News, theirs: News) -> set[str]:
    """Find nodes that we deleted and they changed, or replaced by another node."""
    return {
        node.path
        for node_id, node in mine.deleted.items()
        if theirs.has_changed(node_id)
        or (node_id in theirs.deleted and _is_created_apart(mine, theirs, node.path))
    }


def _is_created_apart(mine: News, theirs: News, path: str) -> bool:
    """Return whether they created a node at a path that is not ours too."""
    other, ours = theirs.changes.nodes.get(path), mine.changes.nodes.get(path)
    return (
        other is not None and theirs.has_created(other.id) and (ours is None or ours.id != other.id)
    )


def _created_in_deleted(mine: News, theirs: News) -> set[str]:
    """Find nodes that we created below a node that they deleted and nobody created again."""
    gone = {
        node.path
        for node_id, node in theirs.deleted.items()
        if not any(
            (there := side.changes.nodes.get(node.path)) is not None and there.id != node_id
            for side in (mine, theirs)
        )
    }
    if not gone:
        return set()
    return {
        node.path
        for node in mine.created_nodes()
        if any(above in gone for above in ancestors(node.path))
    }


def _written_outside(mine: News, theirs: News) -> set[str]:
    """Find arrays with chunks that they wrote, outside of the shape that we chose."""
    return {
        path
        for path, node in mine.changes.nodes.items()
        if isinstance(node, ArrayNode)
        and node.id in theirs.changes.arrays
        and mine.has_metadata(node.id)
        and (chunks := theirs.chunks(node.id)) is not None
        and _is_any_outside(chunks.table.coordinates, node.array.num_chunks)
    }


def _is_any_outside(coordinates: Coordinates, num_chunks: Sequence[int]) -> bool:
    return coordinates.shape[1] == len(num_chunks) and bool(
        (coordinates >= np.array(num_chunks, np.uint64)).any()
    )


def _require_sound(base: BaseNodes, united: ChangeSet, created: Sequence[Node]) -> None:
    """Check the result against the snapshot of the session, which others may not have seen."""
    _refuse(_unknown_nodes(base, united), "a fork changed", _OTHER_BASE)
    _refuse(_overwritten(base, united, created), "a fork created", _OTHER_BASE)
    _refuse(_hit_by_mistake(base, united), "a fork deleted", _OTHER_BASE)
    _refuse(
        {node.path for node in created if _is_in_array(base, united, node.path)},
        "a fork created, where there is an array above it,",
        "only groups hold nodes",
    )


_OTHER_BASE: Final = (
    "the session has no such node, or another one in its place: merge forks of this session only, "
    "and a fork of a fork after the fork it came from"
)


def _unknown_nodes(base: BaseNodes, united: ChangeSet) -> set[str]:
    paths = {node.id: path for path, node in united.nodes.items()}
    return {
        paths.get(node_id, f"array {node_id}")
        for node_id in (united.updated | united.arrays.keys() | united.links.keys())
        - united.created
        if base.by_id(node_id) is None
    }


def _overwritten(base: BaseNodes, united: ChangeSet, created: Sequence[Node]) -> set[str]:
    rows = rows_of_paths(base.table, [node.path for node in created])
    return {path for path, row in rows.items() if base.table.node(row).id not in united.deleted}


def _hit_by_mistake(base: BaseNodes, united: ChangeSet) -> set[str]:
    rows = rows_of_paths(base.table, [node.path for node in united.deleted.values()])
    return {path for path, row in rows.items() if base.table.node(row).id not in united.deleted}


def _is_in_array(base: BaseNodes, united: ChangeSet, path: str) -> bool:
    def node_at(above: str) -> Node | None:
        node = united.nodes.get(above) or base.find(above)
        return None if node is None or node.id in united.deleted else node

    nodes = (node_at(above) for above in ancestors(path))
    return any(isinstance(node, ArrayNode) for node in nodes)
