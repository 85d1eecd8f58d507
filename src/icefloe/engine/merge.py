"""Forks of a session, for writing from several processes, and their way back.

A fork begins with no changes on a snapshot that holds those of its session. What it changes is
merged into the session, which commits it all. Merging happens completely or not at all.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Final, Literal

import numpy as np

from icefloe.engine.changes import ChangeSet
from icefloe.engine.commit import write_version
from icefloe.engine.detection import common_coordinates, rows_of_paths
from icefloe.engine.paths import ancestors
from icefloe.engine.session import SessionMode, SessionState
from icefloe.engine.tree import BaseNodes
from icefloe.errors import ErrorKind, InvalidInputError, SessionStateError
from icefloe.format.chunk_table import Coordinates
from icefloe.format.ids import NodeId
from icefloe.format.node_table import Node

FORK_MESSAGE: Final = "Changes of a session, written for its forks"

_OVERLAPS: Final = ("newest", "fail")

type Touched = dict[NodeId, list[Coordinates]]


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
    if not session.changes.is_empty():
        with session.changes.frozen():
            if session.packer is not None:
                await session.packer.flush()
            snapshot = (await write_version(session, FORK_MESSAGE, {})).snapshot
    forked = SessionState(session.context, snapshot, SessionMode.writable, packing=session.packing)
    forked.fork_of = session.id
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

    Where two of them wrote the same chunk, the one merged last wins; `on_overlap="fail"` makes
    that an error. `expected` are the ids of the forks that were handed out: one that is missing
    among `others`, and was not merged before or into one of them, is an error too.
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
    with session.changes.writing() as changes:
        united = changes.copy()
        touched = {node: list(parts) for node, parts in session.merged_chunks.items()}
        for other in others:
            theirs = _touched_by(other)
            if on_overlap == "fail":
                # A child fork began with what its session had written, and may change it.
                is_child = other.fork_of == session.id
                _require_apart(session, touched if is_child else _touched_in(united), theirs)
            _unite(united, other.changes)
            for node, coordinates in theirs.items():
                touched.setdefault(node, []).append(coordinates)
        _require_sound(base, united, [other.changes for other in others])
        changes.nodes, changes.created, changes.updated = (
            united.nodes,
            united.created,
            united.updated,
        )
        changes.deleted, changes.arrays = united.deleted, united.arrays
        session.merged_chunks = touched
        session.merged_forks |= _fork_ids(others)
        session.known_update = min(
            [session.known_update, *(other.known_update for other in others)]
        )


# -- who took part ---------------------------------------------------------------------------


def _require_forks(session: SessionState, others: Iterable[SessionState]) -> None:
    if session.is_fork and any(other.branch is not None for other in others):
        raise SessionStateError(
            "a session on a branch cannot be merged into a fork, only other forks can: merge the "
            "fork into the session instead",
            ErrorKind.MERGE_NOT_ALLOWED,
        )


def _fork_ids(others: Iterable[SessionState]) -> set[str]:
    return {one for other in others for one in (other.id, *other.merged_forks)}


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


# -- chunks ----------------------------------------------------------------------------------


def _touched_by(other: SessionState) -> dict[NodeId, Coordinates]:
    return {
        node: other.changes.touched(node)
        for node, array in list(other.changes.arrays.items())
        if not array.is_empty()
    }


def _touched_in(changes: ChangeSet) -> Touched:
    return {node: [array.touched()] for node, array in changes.arrays.items()}


def _require_apart(
    session: SessionState, before: Touched, theirs: dict[NodeId, Coordinates]
) -> None:
    for node, coordinates in theirs.items():
        parts = before.get(node)
        if not parts:
            continue
        both = common_coordinates(coordinates, np.concatenate(parts))
        if len(both):
            path = _path_of(session, node)
            first = both[:10].tolist()
            more = f" and {len(both) - 10} more" if len(both) > 10 else ""
            raise SessionStateError(
                f"two forks wrote the same chunks of {path}: {first}{more}. "
                "Give each worker chunks of its own; nothing was merged",
                ErrorKind.MERGE_FAILED,
                path=path,
                chunks=first,
            )


def _path_of(session: SessionState, node: NodeId) -> str:
    known = next((one for one in session.changes.nodes.values() if one.id == node), None)
    known = known or session.base.by_id(node)
    return f"array {node}" if known is None else known.path


# -- nodes -----------------------------------------------------------------------------------


def _unite(mine: ChangeSet, other: ChangeSet) -> None:
    """Add the changes of another set, or refuse those that contradict ours."""
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
    _refuse(_created_twice(mine, other), "both sides created", "create it before forking")
    _refuse(_updated_apart(mine, other), "both sides changed the metadata of", "change it once")
    _refuse(
        _deleted_and_changed(mine, other) | _deleted_and_changed(other, mine),
        "one side deleted, and the other created or changed,",
        "delete it before forking or after merging",
    )
    _refuse(
        _created_in_deleted(mine, other) | _created_in_deleted(other, mine),
        "one side created, in a group that the other side deleted,",
        "delete the group before forking or after merging",
    )
    mine.nodes.update(other.nodes)
    mine.created |= other.created
    mine.updated |= other.updated
    mine.deleted.update(other.deleted)
    for node in list(other.arrays):
        settled = other.settled(node)
        assert settled is not None
        array = mine.array(node, settled.table.dimensions)
        if len(settled.table):
            array.put_table(settled.table)
        if len(settled.deleted):
            array.delete_many(settled.deleted)


def _refuse(paths: Collection[str], what: str, remedy: str) -> None:
    if paths:
        shown = sorted(paths)
        names = ", ".join(shown[:10]) + (f" and {len(shown) - 10} more" if len(shown) > 10 else "")
        raise SessionStateError(
            f"cannot merge: {what} {names}; {remedy}. Nothing was merged",
            ErrorKind.MERGE_FAILED,
            paths=shown,
        )


def _created_twice(mine: ChangeSet, other: ChangeSet) -> set[str]:
    """Find paths at which two different nodes were created."""
    return {
        path
        for path in mine.nodes.keys() & other.nodes.keys()
        if (ours := mine.nodes[path]).id != (theirs := other.nodes[path]).id
        and ours.id in mine.created
        and theirs.id in other.created
    }


def _updated_apart(mine: ChangeSet, other: ChangeSet) -> set[str]:
    """Find nodes whose metadata became one thing here and another thing there.

    A node that this session created, and that one fork updates, is no such case.
    """
    return {
        path
        for path in mine.nodes.keys() & other.nodes.keys()
        if (ours := mine.nodes[path]).id == (theirs := other.nodes[path]).id
        and ours.user_data != theirs.user_data
        and (ours.id in mine.updated or theirs.id in other.created)
    }


def _deleted_and_changed(mine: ChangeSet, other: ChangeSet) -> set[str]:
    """Find what we deleted and they changed, or replaced by a node of theirs."""
    return {
        node.path
        for one, node in mine.deleted.items()
        if one in other.updated
        or one in other.created
        or one in other.links
        or ((chunks := other.arrays.get(one)) is not None and not chunks.is_empty())
        or (one in other.deleted and _is_created_apart(mine, other, node.path))
    }


def _is_created_apart(mine: ChangeSet, other: ChangeSet, path: str) -> bool:
    """Say whether they created a node that is not ours too, as copies of one fork may have it."""
    theirs, ours = other.nodes.get(path), mine.nodes.get(path)
    return (
        theirs is not None and theirs.id in other.created and (ours is None or ours.id != theirs.id)
    )


def _created_in_deleted(mine: ChangeSet, other: ChangeSet) -> set[str]:
    """Find nodes that we created below what they deleted and nobody created again."""
    gone = {
        node.path
        for node in other.deleted.values()
        if node.path not in mine.nodes and node.path not in other.nodes
    }
    if not gone:
        return set()
    return {
        path
        for path, node in mine.nodes.items()
        if node.id in mine.created and any(above in gone for above in ancestors(path))
    }


def _require_sound(base: BaseNodes, united: ChangeSet, others: Sequence[ChangeSet]) -> None:
    """Check the result against the snapshot of the session, which others may not have seen."""
    created = [
        node for other in others for node in other.nodes.values() if node.id in other.created
    ]
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
        paths.get(one, f"array {one}")
        for one in (united.updated | united.arrays.keys() | united.links.keys()) - united.created
        if base.by_id(one) is None
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
    return any(node is not None and node.array is not None for node in nodes)
