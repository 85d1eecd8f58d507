"""Groups and arrays of a session: look up, create, update and delete them, all in memory."""

from collections.abc import Iterator

from icefloe.errors import AlreadyExistsError, ErrorKind, InvalidInputError, NodeNotFoundError
from icefloe.format.ids import NodeId
from icefloe.format.nodes import ArrayNode, Node, node_of
from icefloe.format.paths import check_path
from icefloe.transactions.session import SessionState
from icefloe.transactions.zarr_metadata import parse_metadata


def find_node(session: SessionState, path: str) -> Node | None:
    """Look up the group or array at a path."""
    return session.tree.find(path)


def require_node(session: SessionState, path: str) -> Node:
    """Look up a node that must exist."""
    if (node := session.tree.find(path)) is None:
        raise NodeNotFoundError(f"there is no group or array at {path}", path=path)
    return node


def require_array(session: SessionState, path: str) -> ArrayNode:
    """Look up an array that must exist."""
    node = require_node(session, path)
    if not isinstance(node, ArrayNode):
        raise InvalidInputError(
            f"{path} is a group, and only arrays have chunks", ErrorKind.NOT_AN_ARRAY, path=path
        )
    return node


def put_metadata(session: SessionState, path: str, raw: bytes) -> None:
    """Create a node from its `zarr.json`, or update it; the bytes are kept as they are."""
    session.require_writable()
    array = parse_metadata(raw, check_path(path))
    existing = session.tree.find(path)
    if existing is None:
        session.changes.put_node(node_of(NodeId.random(), path, raw, array), is_new=True)
        return
    was_array = isinstance(existing, ArrayNode)
    if was_array is (array is None):
        old, new = ("an array", "a group") if was_array else ("a group", "an array")
        raise AlreadyExistsError(
            f"{path} is {old} and cannot become {new}: delete it first",
            ErrorKind.NODE_ALREADY_EXISTS,
            path=path,
        )
    if existing.user_data != raw:
        session.changes.put_node(node_of(existing.id, path, raw, array), is_new=False)


def delete_node(session: SessionState, path: str) -> None:
    """Delete a node and everything below it; what does not exist is deleted already."""
    session.require_writable()
    for node in list(session.tree.below(path)):
        session.changes.delete_node(node)


def subtree(session: SessionState, path: str) -> Iterator[Node]:
    """Walk a node, if there is one, and all below it."""
    return session.tree.below(path)


def paths_below(session: SessionState, path: str) -> list[str]:
    """List the paths of a node and of all below it, without making the nodes."""
    return session.tree.paths_below(path)
