"""`icefloe tree` and `icefloe status`: groups and arrays of a version, state of a repository."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from icefloe.cli.common import (
    AnonymousOption,
    AsOfOption,
    JsonOption,
    RepositoryArgument,
    echo,
    is_coloured,
    open_repository,
    show_json,
    show_table,
)
from icefloe.cli.versions import MAIN, OptionalVersionArgument, choose_version, short_id
from icefloe.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from icefloe.api.repository import Repository
    from icefloe.format.nodes import Node
    from icefloe.web.versions import Version

_ROOT: Final = "/"


def tree(
    url: RepositoryArgument,
    version: OptionalVersionArgument = None,
    *,
    group: Annotated[str, typer.Option(help="Only this group and what is below it.")] = _ROOT,
    depth: Annotated[
        int | None, typer.Option(min=0, help="Show this many levels below it. [default: all]")
    ] = None,
    max_rows: Annotated[int, typer.Option(min=1, help="Show at most this many nodes.")] = 1000,
    as_of: AsOfOption = None,
    as_json: JsonOption = False,
    anonymous: AnonymousOption = False,
) -> None:
    """Draw the groups and arrays of a version: dimensions, type, chunks, units.

    Example: icefloe tree ./repo v1 --depth 2
    """
    from icefloe.web.nodes import find_node
    from icefloe.web.versions import Version

    repository = open_repository(url, anonymous=anonymous)
    chosen = choose_version(repository, version, as_of)
    session = repository.readonly_session(snapshot_id=chosen.snapshot_id)
    shown = Version(chosen.name, chosen.kind, session, {})
    top = "/" + group.strip("/")
    paths = _paths(shown, top, depth)
    if not paths and top != _ROOT:
        find_node(shown, top)  # raises the error that names it
    nodes = [find_node(shown, path) for path in paths[:max_rows]]
    hidden = len(paths) - len(nodes)
    if as_json:
        show_json(
            {
                "snapshot_id": chosen.snapshot_id,
                "nodes": [_described(node) for node in nodes],
                "is_complete": not hidden,
            }
        )
        return
    _draw(nodes, top)
    if not nodes:
        echo("this version has no groups and no arrays", err=True)
    if hidden:
        echo(f"… and {hidden} more nodes; --max-rows shows more", err=True)


def _paths(version: Version, top: str, depth: int | None) -> list[str]:
    """List the paths of a node and those below it, each behind the group that holds it."""
    paths = version.state.tree.paths_below(top)
    levels = _level(top)
    if depth is not None:
        paths = [path for path in paths if _level(path) - levels <= depth]
    return sorted(paths, key=lambda path: path.split("/") if path != _ROOT else [""])


def _level(path: str) -> int:
    return 0 if path == _ROOT else path.count("/")


def _described(node: Node) -> dict[str, Any]:
    from icefloe.format.nodes import ArrayNode
    from icefloe.web.nodes import facts_of

    if not isinstance(node, ArrayNode):
        return {"path": node.path, "kind": "group"}
    facts = facts_of(node)
    return {
        "path": node.path,
        "kind": "array",
        "dimensions": list(facts.dimensions),
        "shape": list(facts.shape),
        "data_type": facts.data_type,
        "chunk_shape": None if facts.chunk_shape is None else list(facts.chunk_shape),
        "num_chunks": list(facts.num_chunks),
        "units": facts.units or None,
    }


def _draw(nodes: Sequence[Node], top: str) -> None:
    from rich.console import Console
    from rich.text import Text

    from icefloe.format.nodes import ArrayNode

    if not is_coloured():
        for branches, name, facts in _lines(nodes, top):
            echo(f"{branches}{name}{facts}")
        return
    console = Console(highlight=False)
    for node, (branches, name, facts) in zip(nodes, _lines(nodes, top), strict=True):
        style = "bold" if isinstance(node, ArrayNode) else "bold blue"
        line = Text.assemble((branches, "dim"), (name, style), facts)
        console.print(line, soft_wrap=True)


def _lines(nodes: Sequence[Node], top: str) -> Iterator[tuple[str, str, str]]:
    """Yield the lines in front of a node, its name, and facts about an array.

    A node is the last of its group if no later one has the same group.
    """
    from icefloe.format.nodes import ArrayNode
    from icefloe.format.paths import node_name, parent_path
    from icefloe.web.nodes import facts_of

    last_of_group = {parent_path(node.path): node.path for node in nodes}
    last = set(last_of_group.values())
    indents = {top: ""}
    for node in nodes:
        facts = ""
        if isinstance(node, ArrayNode):
            known = facts_of(node)
            dimensions = ", ".join(
                f"{name}: {length}"
                for name, length in zip(known.dimensions, known.shape, strict=True)
            )
            chunks = "×".join(map(str, known.chunk_shape)) if known.chunk_shape else "uneven"
            parts = [f"{known.data_type} ({dimensions})"]
            parts += [f"chunks {chunks}"] if known.shape else []
            parts += [known.units] if known.units else []
            facts = "  " + "  ".join(map(printable, parts))
        if node.path == top:
            yield "", printable(top), facts
            continue
        indent = indents[parent_path(node.path) or _ROOT]
        is_last = node.path in last
        indents[node.path] = indent + ("    " if is_last else "│   ")
        branches = indent + ("└── " if is_last else "├── ")
        yield branches, printable(node_name(node.path)), facts


def status(
    url: RepositoryArgument, *, as_json: JsonOption = False, anonymous: AnonymousOption = False
) -> None:
    """Show the state of a repository: branches, spec version, counts, settings.

    Settings are those that are not the default.

    Example: icefloe status ./repo
    """
    from icefloe.cli.settings import shown_setting

    repository = open_repository(url, anonymous=anonymous)
    found = _status(repository)
    if as_json:
        show_json(found)
        return
    facts = [
        ("spec version", found["spec_version"]),
        ("status", found["status"]),
        *((name, number) for name, number in found["counts"].items() if number is not None),
    ]
    if found["reason"]:
        facts.insert(2, ("reason", found["reason"]))
    show_table(("repository", url), [(name.replace("_", " "), str(fact)) for name, fact in facts])
    if found["branches"]:
        echo("")
        columns = ("name", "snapshot_id", "written_at", "message")
        rows = [[entry[column] for column in columns] for entry in found["branches"]]
        show_table(
            ("branch", "version", "written", "message"),
            [(name, short_id(head), when[:16].replace("T", " "), message.partition("\n")[0])
             for name, head, when, message in rows],
        )  # fmt: skip
    if found["settings"]:
        echo("")
        settings = [(key, shown_setting(value)) for key, value in found["settings"].items()]
        show_table(("setting", "value"), settings)


def _status(repository: Repository) -> dict[str, Any]:
    """Gather the facts; of a repository that is offline, those that can be read."""
    from icefloe.api.status import RepoAvailability
    from icefloe.cli.settings import changed_settings

    is_offline = False
    name, reason = "online", None
    if repository.spec_version > 1:
        state = repository.status
        name, reason = state.availability.name.replace("_", "-"), state.limited_availability_reason
        is_offline = state.availability == RepoAvailability.offline
    counts: dict[str, int | None] = {}
    branches: list[dict[str, Any]] = []
    if not is_offline:
        heads = {name: repository.lookup_branch(name) for name in repository.list_branches()}
        for branch in sorted(heads, key=lambda branch: (branch != MAIN, branch)):
            info = repository.lookup_snapshot(heads[branch])
            branches.append(
                {
                    "name": branch,
                    "snapshot_id": info.id,
                    "written_at": info.written_at.isoformat(),
                    "message": info.message,
                }
            )
        counts = _counts(repository, heads.get(MAIN))
    return {
        "spec_version": int(repository.spec_version),
        "status": name,
        "reason": reason,
        "branches": branches,
        "counts": counts,
        "settings": changed_settings(repository),
    }


def _counts(repository: Repository, head: str | None) -> dict[str, int | None]:
    """Count branches, tags and versions, and the arrays and chunks of the branch main."""
    from icefloe.format.nodes import ArrayNode
    from icefloe.web.versions import Version

    counts: dict[str, int | None] = {
        "branches": len(repository.list_branches()),
        "tags": len(repository.list_tags()),
        # In spec 1 each version is a file of its own, and counting would read all of them.
        "versions": None,
        "groups": None,
        "arrays": None,
        "manifests": None,
        "chunks": None,
    }
    if repository.spec_version > 1:
        counts["versions"] = len(repository.ancestry_graph().graph.rows)
    if head is None:
        return counts
    session = repository.readonly_session(snapshot_id=head)
    tree_ = Version(MAIN, "branch", session, {}).state.tree
    kinds = [isinstance(node, ArrayNode) for node in tree_.below(_ROOT)]
    manifests = repository.list_manifest_files(head)
    return counts | {
        "groups": len(kinds) - sum(kinds),
        "arrays": sum(kinds),
        "manifests": len(manifests),
        "chunks": sum(manifest.num_chunk_refs for manifest in manifests),
    }
