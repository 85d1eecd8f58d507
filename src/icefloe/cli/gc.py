"""`icefloe gc`: files that no version needs go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from icefloe.cli.common import (
    OLDER_THAN_HELP,
    JsonOption,
    RepositoryArgument,
    echo,
    interruptible,
    moment,
    progress_bar,
    require_consent,
    show_json,
    show_table,
)

if TYPE_CHECKING:
    from icefloe.maintenance.sweeping import GCSummary

INCOMPLETE: Final = 11
"""What the shell sees if not all that should go did; errors have codes of their own."""


def gc(
    url: RepositoryArgument,
    *,
    older_than: Annotated[
        str,
        typer.Option(
            help=f"{OLDER_THAN_HELP} Further back than the beginning of the longest session that"
            " is still to be committed."
        ),
    ] = "7d",
    incremental: Annotated[
        bool,
        typer.Option(
            "--incremental",
            help="Look only for what expired versions leave behind: quick, lists no chunks.",
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count, and stop.")] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not count first, and do not ask.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Delete files that no version needs and that were written before a time.

    Counts them first, then asks. Others may go on reading and writing. Can be interrupted at
    any time: nothing that is needed is lost, and the same command, run again, goes on.

    Exit code 0: done. 11: some files could not be deleted; run it again.

    Example: icefloe gc s3://bucket/repository --older-than 7d
    """
    from icefloe.api.repository import Repository
    from icefloe.reports import shown_bytes
    from icefloe.storage import storage_from_url

    cutoff = moment(older_than)
    repository = Repository.open(storage_from_url(url))
    summary: GCSummary | None = None
    if dry_run or not yes:
        with progress_bar("counting garbage") as bar, interruptible("nothing was changed"):
            summary = repository.garbage_collect(
                cutoff, dry_run=True, incremental=incremental, on_progress=bar
            )
        if not as_json:
            show_table(summary.headings, summary.rows())
            echo(f"{shown_bytes(summary.bytes_deleted)} can be reclaimed")
    done: GCSummary | None = None
    if not dry_run and (summary is None or summary.objects_deleted):
        if summary is not None:
            require_consent(f"delete {summary.objects_deleted} objects?", is_given=yes)
        after = "nothing that is needed was lost; the same command, run again, goes on"
        with progress_bar("collecting garbage") as bar, interruptible(after):
            done = repository.garbage_collect(cutoff, incremental=incremental, on_progress=bar)
    _report(done or summary, cutoff.isoformat(), is_done=done is not None, as_json=as_json)


def _report(summary: GCSummary | None, cutoff: str, *, is_done: bool, as_json: bool) -> None:
    from icefloe.reports import shown_bytes

    assert summary is not None
    if as_json:
        show_json({"older_than": cutoff, "dry_run": not is_done, **summary.to_dict()})
    elif is_done:
        show_table(summary.headings, summary.rows())
        for error in summary.delete_errors:
            echo(error, err=True)
        echo(f"reclaimed: {shown_bytes(summary.bytes_deleted)}")
    if not summary.is_complete:
        phases = ", ".join(summary.skipped_phases) or "none"
        echo(
            f"{summary.objects_failed_to_delete} objects could not be deleted; kinds not gone"
            f" through to the end: {phases}; run it again",
            err=True,
        )
        raise typer.Exit(INCOMPLETE)
