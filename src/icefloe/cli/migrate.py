"""`icefloe migrate`: a repository of spec 1 becomes one of spec 2."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from icefloe.cli.common import (
    JsonOption,
    RepositoryArgument,
    echo,
    interruptible,
    place_of,
    present,
    progress_bar,
    require_consent,
    show_json,
)
from icefloe.errors import ErrorKind, SessionStateError

if TYPE_CHECKING:
    from icefloe.maintenance.migrate import MigrationReport

INCOMPLETE: Final = 11
"""What the shell sees if old files could not be removed; errors have codes of their own."""


def migrate(
    url: RepositoryArgument,
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read everything, show the changes, and stop.")
    ] = False,
    delete_unused_v1_files: Annotated[
        bool,
        typer.Option(
            "--delete-unused-v1-files",
            help="Move the small files of spec 1 below overwritten/spec-1/. [default: keep them]",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Migrate a repository from spec version 1 to 2; all versions, branches and tags stay.

    Writes one object, `repo`. Programs that use icefloe may go on: what they commit meanwhile is
    migrated. They then get an error that says to open the repository again. Stop programs that
    write with icechunk first: they do not notice. Can be interrupted at any time and run again.

    Exit code 0: done, or there was nothing to do. 11: migrated, but some files of spec 1 could
    not be removed; they do no harm, run it again.

    Example: icefloe migrate s3://bucket/repository --dry-run
    """
    from icefloe.api.migration import migrate_repository

    storage = place_of(url, writes=True).storage

    def run(title: str, *, is_dry: bool) -> MigrationReport:
        with (
            progress_bar(title) as on_progress,
            interruptible("the repository is whole, of spec version 1 or 2; run it again"),
        ):
            return migrate_repository(
                storage,
                dry_run=is_dry,
                delete_unused_v1_files=delete_unused_v1_files,
                on_progress=on_progress,
            )

    try:
        if dry_run or not yes:
            report = run("looking", is_dry=True)
        if not dry_run:
            if not yes:
                require_consent(f"{report.notes()[0]}. Migrate?", is_given=False)
            report = run("migrating", is_dry=False)
    except SessionStateError as error:
        if error.kind != ErrorKind.INVALID_REPOSITORY_MIGRATION:
            raise
        # The repository is already up to date, which is no failure.
        if as_json:
            show_json({"was_migrated": True, "message": error.message})
        else:
            echo(error.message)
        return
    present(report, as_json=as_json)
    if report.not_removed:
        raise typer.Exit(INCOMPLETE)
