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
from icefloe.cli.versions import MAIN, OptionalVersionArgument, choose_version
from icefloe.pipeline.files import RECORDS_GROUP, is_record
from icefloe.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from icefloe.api.repository import Repository
    from icefloe.format.nodes import Node
    from icefloe.repo.snapshot_info import SnapshotInfo
    from icefloe.web.versions import Version

_ROOT: Final = "/"
_RECORDS: Final = f"/{RECORDS_GROUP}/"
"""What is below it is not drawn, unless somebody asks for it."""


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
    if not as_json and not is_record(top.lstrip("/")):
        paths = [path for path in paths if not path.startswith(_RECORDS)]
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
        is_records = f"{node.path}/" == _RECORDS and not is_record(top.lstrip("/"))
        facts = "  the record of ingested files: `icefloe sources` lists them" if is_records else ""
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
    from icefloe.cli.refs import show_versions, version_entries
    from icefloe.cli.settings import changed_settings, shown_setting

    repository = open_repository(url, anonymous=anonymous)
    name, reason = _availability(repository)
    branches: dict[str, SnapshotInfo] = {}
    counts: dict[str, int] = {}
    if name != "offline":  # then nothing else can be read
        branches = repository.branch_versions()
        counts = _counts(repository, branches)
    settings = changed_settings(repository)
    if as_json:
        show_json(
            {
                "spec_version": int(repository.spec_version),
                "status": name,
                "reason": reason,
                "branches": version_entries(branches),
                "counts": counts,
                "settings": settings,
            }
        )
        return
    facts = [
        ("spec version", str(int(repository.spec_version))),
        ("status", name if reason is None else f"{name}: {reason}"),
        *((kind, str(count)) for kind, count in counts.items()),
    ]
    show_table(("repository", url), facts)
    if branches:
        echo("")
        show_versions("branch", branches)
    if settings:
        echo("")
        rows = [(key, shown_setting(value)) for key, value in settings.items()]
        show_table(("setting", "value"), rows)


def _availability(repository: Repository) -> tuple[str, str | None]:
    """Return whether a repository takes changes, and why not; spec 1 has no such status."""
    if repository.spec_version == 1:
        return "online", None
    state = repository.status
    return state.availability.name.replace("_", "-"), state.limited_availability_reason


def _counts(repository: Repository, branches: Mapping[str, SnapshotInfo]) -> dict[str, int]:
    """Count branches, tags and versions, and the groups, arrays and chunks of the branch main."""
    from icefloe.format.nodes import ArrayNode
    from icefloe.web.versions import Version

    counts = {"branches": len(branches), "tags": len(repository.list_tags())}
    if repository.spec_version > 1:  # in spec 1, counting would read a file for each version
        listed = repository.inspect_repo_info(max_rows=0)
        counts["versions"] = listed["snapshots_left_out"]
    if MAIN not in branches:
        return counts
    session = repository.readonly_session(snapshot_id=branches[MAIN].id)
    nodes = Version(MAIN, "branch", session, {}).state.tree.below(_ROOT)
    is_array = [isinstance(node, ArrayNode) for node in nodes]
    manifests = repository.list_manifest_files(branches[MAIN].id)
    return counts | {
        "groups": len(is_array) - sum(is_array),
        "arrays": sum(is_array),
        "manifests": len(manifests),
        "chunks": sum(manifest.num_chunk_refs for manifest in manifests),
    }
