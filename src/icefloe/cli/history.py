"""`icefloe log`, `show` and `diff`: the versions of a repository, and how they differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from icefloe.cli.common import (
    AnonymousOption,
    AsOfOption,
    JsonOption,
    MaxRowsOption,
    RepositoryArgument,
    echo,
    is_coloured,
    open_repository,
    show_json,
    show_table,
)
from icefloe.cli.versions import (
    MAIN,
    OptionalVersionArgument,
    choose_version,
)
from icefloe.errors import ErrorKind, InvalidInputError, SnapshotNotFoundError

if TYPE_CHECKING:
    from icefloe.api.repository import Repository
    from icefloe.cli.changes import Changes
    from icefloe.repo.snapshot_info import SnapshotInfo

MaxRegionsOption = Annotated[
    int,
    typer.Option(
        min=1,
        help="List at most this many regions of an array; if it has more, the box around them.",
    ),
]


def log(
    url: RepositoryArgument,
    version: OptionalVersionArgument = None,
    *,
    all_versions: Annotated[
        bool, typer.Option("--all", help="The history of all branches and tags.")
    ] = False,
    max_rows: Annotated[
        int, typer.Option("--max-rows", "-n", min=1, help="Show at most this many versions.")
    ] = 30,
    as_of: AsOfOption = None,
    as_json: JsonOption = False,
    anonymous: AnonymousOption = False,
) -> None:
    """Draw the history of a version, the newest first, with branches and tags.

    Example: icefloe log ./repo --all -n 100
    """
    from icefloe.values.times import to_datetime

    if all_versions and (version is not None or as_of is not None):
        given = version if version is not None else "--as-of"
        raise InvalidInputError(
            f"--all shows the history of all branches and tags: leave out {given}, or --all",
            ErrorKind.INVALID_REQUEST,
        )
    repository = open_repository(url, anonymous=anonymous)
    start = None
    if not all_versions:
        start = choose_version(repository, version, as_of).snapshot_id
    drawing = repository.ancestry_graph(snapshot_id=start, plain=not is_coloured(), most=max_rows)
    if not as_json:
        # It has colours, and only printable text otherwise.
        typer.echo(str(drawing), color=is_coloured())
        if not drawing.graph.is_complete:
            echo("… older versions are not shown; --max-rows shows more", err=True)
        return
    entries = [
        {
            "id": str(row.entry.id),
            "parent_id": None if row.entry.parent is None else str(row.entry.parent),
            "written_at": to_datetime(row.entry.flushed_at).isoformat(),
            "message": row.entry.message,
            "metadata": dict(row.entry.metadata),
            "branches": list(row.branches),
            "tags": list(row.tags),
        }
        for row in drawing.graph.rows
    ]
    show_json({"versions": entries, "is_complete": drawing.graph.is_complete})


def show(
    url: RepositoryArgument,
    version: OptionalVersionArgument = None,
    *,
    as_of: AsOfOption = None,
    max_rows: MaxRowsOption = 100,
    max_regions: MaxRegionsOption = 20,
    as_json: JsonOption = False,
    anonymous: AnonymousOption = False,
) -> None:
    """Show a version: its time, message and metadata, and what its commit changed.

    Example: icefloe show ./repo v1
    """
    from icefloe.cli.changes import read_changes

    repository = open_repository(url, anonymous=anonymous)
    chosen = choose_version(repository, version, as_of)
    info = repository.lookup_snapshot(chosen.snapshot_id)
    facts = _facts(repository, info)
    changes = None
    parent = _parent(repository, info)
    if parent is not None:
        changes = read_changes(repository, parent, info, max_rows, max_regions)
    if as_json:
        show_json({**facts, "changes": None if changes is None else changes.to_dict()})
        return
    names = ("id", "parent_id", "written_at", "branches", "tags")
    show_table(("version", chosen.name), [(_label(name), _shown(facts[name])) for name in names])
    echo(f"\n{_indented(info.message)}\n")
    if info.metadata:
        show_table(("metadata", "value"), [(key, value) for key, value in info.metadata.items()])
        echo("")
    if changes is None:
        echo("there is no version before it")
    else:
        _show_changes(changes)


def diff(
    url: RepositoryArgument,
    from_: Annotated[
        str,
        typer.Argument(
            metavar="FROM",
            help="The earlier version: a branch, a tag, a snapshot id or its first characters, a"
            " moment of main, or BRANCH@MOMENT.",
        ),
    ],
    to: Annotated[
        str | None,
        typer.Argument(metavar="TO", help="The later version, in the same way. [default: main]"),
    ] = None,
    *,
    max_rows: MaxRowsOption = 100,
    max_regions: MaxRegionsOption = 20,
    as_json: JsonOption = False,
    anonymous: AnonymousOption = False,
) -> None:
    """List groups and arrays that changed between two versions, and the regions of arrays.

    FROM must be in the history of TO. A region is shown by the index of its elements, and by the
    coordinates of its dimensions where they have some.

    Example: icefloe diff ./repo v1 main
    """
    from icefloe.cli.changes import read_changes

    repository = open_repository(url, anonymous=anonymous)
    earlier, later = (
        repository.lookup_snapshot(choose_version(repository, text).snapshot_id)
        for text in (from_, to or MAIN)
    )
    changes = read_changes(repository, earlier, later, max_rows, max_regions)
    if as_json:
        show_json(changes.to_dict())
    else:
        _show_changes(changes)


def _show_changes(changes: Changes) -> None:
    rows = changes.rows()
    if rows:
        show_table(changes.headings, rows)
    for note in changes.notes():
        echo(note)


def _facts(repository: Repository, info: SnapshotInfo) -> dict[str, Any]:
    graph = repository.ancestry_graph(snapshot_id=info.id, most=1).graph
    [row] = graph.rows
    return {
        "id": info.id,
        "parent_id": info.parent_id,
        "written_at": info.written_at.isoformat(),
        "branches": list(row.branches),
        "tags": list(row.tags),
        "message": info.message,
        "metadata": info.metadata,
    }


def _parent(repository: Repository, info: SnapshotInfo) -> SnapshotInfo | None:
    """Return the version before another one; None if there is none, or none any more."""
    if info.parent_id is None:
        return None
    try:
        return repository.lookup_snapshot(info.parent_id)
    except SnapshotNotFoundError:
        return None


def _label(name: str) -> str:
    return name.removesuffix("_id").removesuffix("_at")


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)


def _indented(message: str) -> str:
    return "\n".join(f"    {line}" for line in message.strip().split("\n"))
