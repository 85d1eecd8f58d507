"""How repositories and sessions show themselves, in terminals and notebooks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from icefloe.format.nodes import ArrayNode, Node
from icefloe.format.paths import ROOT, node_name
from icefloe.printable import printable
from icefloe.reports import object_html, object_text

if TYPE_CHECKING:
    from icefloe.transactions.session import SessionState

_MOST_NODES: Final = 200
"""A tree of more nodes than these is cut, and says so."""


def session_facts(session: SessionState) -> dict[str, object]:
    """Gather what is worth knowing about a session; asks no storage."""
    facts: dict[str, object] = {"mode": session.mode.name, "snapshot_id": session.snapshot_id}
    if session.branch is not None:
        facts["branch"] = session.branch
    if session.mode.name != "readonly":
        facts["has_uncommitted_changes"] = not session.changes.is_empty()
    return facts


def session_text(title: str, session: SessionState) -> str:
    """Describe a session in a few lines."""
    return object_text(title, session_facts(session))


def session_html(title: str, session: SessionState) -> str:
    """Describe a session for a notebook, with its groups and arrays."""
    tree = list(tree_lines(session))
    return object_html(title, session_facts(session), drawing=tree, heading="Groups and arrays")


def tree_lines(session: SessionState) -> Iterator[str]:
    """Draw the groups and arrays of a session, each below the group that holds it."""
    tree = session.tree
    paths = tree.paths_below(ROOT)
    for path in sorted(paths, key=lambda path: path.split("/"))[:_MOST_NODES]:
        if (node := tree.find(path)) is not None:
            depth = 0 if path == ROOT else path.count("/")
            yield "    " * depth + _node_line(node)
    if len(paths) > _MOST_NODES:
        yield f"… and {len(paths) - _MOST_NODES} more"


def _node_line(node: Node) -> str:
    name = printable(node_name(node.path) or ROOT)
    if not isinstance(node, ArrayNode):
        return name if name == ROOT else f"{name}/"
    return f"{name} {tuple(node.array.shape)}"
