"""`icefloe stats`, `expire` and `gc`: what takes space, and how to reclaim it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from icefloe.cli.common import (
    OLDER_THAN_HELP,
    AllRowsJsonOption,
    AnonymousOption,
    JsonOption,
    MaxRowsOption,
    RepositoryArgument,
    echo,
    interruptible,
    moment,
    open_repository,
    present,
    progress_bar,
    require_consent,
    show_json,
    show_table,
)
from icefloe.reports import counted

if TYPE_CHECKING:
    from icefloe.maintenance.sweeping import GCSummary
    from icefloe.reports import Report


def stats(
    url: RepositoryArgument,
    *,
    by: Annotated[
        Literal["kind", "snapshot", "array", "container"],
        typer.Option(
            help="The unit of a row: the kind of chunk, the version that added the chunks, the"
            " array, or the container of virtual chunks."
        ),
    ] = "kind",
    max_rows: MaxRowsOption = 100,
    as_json: AllRowsJsonOption = False,
    anonymous: AnonymousOption = False,
) -> None:
    """Show the size of chunks, in all versions that branches and tags reach.

    Each chunk counts once, however many versions share it.

    Example: icefloe stats ./repo --by array
    """
    repository = open_repository(url, anonymous=anonymous)
    report: Report
    with progress_bar("reading manifests") as bar, interruptible("nothing was changed"):
        if by == "kind":
            report = repository.chunk_storage_stats(on_progress=bar)
        else:
            report = repository.storage_use(by, on_progress=bar)
    present(report, as_json=as_json, max_rows=max_rows)
    if not as_json and (hidden := len(report.rows()) - max_rows) > 0:
        echo(f"... and {hidden} more")


def expire(
    url: RepositoryArgument,
    *,
    older_than: Annotated[str, typer.Option(help=OLDER_THAN_HELP)],
    delete_expired_branches: Annotated[
        bool,
        typer.Option(
            "--delete-expired-branches",
            help="Delete branches whose newest version expires; never main.",
        ),
    ] = False,
    delete_expired_tags: Annotated[
        bool, typer.Option("--delete-expired-tags", help="Delete tags of versions that expire.")
    ] = False,
    protect_branch: Annotated[
        list[str] | None,
        typer.Option(help="A branch that keeps all of its history. Can be repeated."),
    ] = None,
    protect_tag: Annotated[
        list[str] | None,
        typer.Option(help="A tag that keeps all of its history. Can be repeated."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan, and stop.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    max_rows: Annotated[int, typer.Option(help="Show at most this many versions.", min=0)] = 50,
    as_json: JsonOption = False,
) -> None:
    """Remove versions from the history that were written before a time.

    Shows which versions you lose and what that makes room for, then asks. Their files stay until
    icefloe gc. The newest version of each branch, and what tags name, stays however old it is.

    Can be interrupted: the same command, run again, finishes the work.

    Example: icefloe expire s3://bucket/repository --older-than 30d --protect-tag v1
    """
    cutoff = moment(older_than)
    repository = open_repository(url, writes=True)
    branches, tags = protect_branch or (), protect_tag or ()
    with progress_bar("planning"), interruptible("nothing was changed"):
        plan = repository.plan_expiration(
            cutoff,
            delete_expired_branches=delete_expired_branches,
            delete_expired_tags=delete_expired_tags,
            protected_branches=branches,
            protected_tags=tags,
        )
    if not as_json:
        present(plan, as_json=False, max_rows=max_rows)
    is_needed = bool(plan.snapshots or plan.branches or plan.tags)
    expired = set[str]()
    if is_needed and not dry_run:
        count = len(plan.snapshots)
        require_consent(f"let {counted(count, 'version')} leave the history?", is_given=yes)
        after = "the repository is whole; the same command, run again, finishes the work"
        with progress_bar("expiring"), interruptible(after):
            expired = repository.expire_snapshots(
                cutoff,
                delete_expired_branches=delete_expired_branches,
                delete_expired_tags=delete_expired_tags,
                protected_branches=branches,
                protected_tags=tags,
            )
    if as_json:
        done = None if dry_run else sorted(expired)
        show_json({"older_than": cutoff.isoformat(), "plan": plan.to_dict(), "expired": done})
    elif is_needed and not dry_run:
        echo(f"expired: {counted(len(expired), 'version')}; icefloe gc makes room")


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
            help="Collect only files of expired versions: quick, lists no chunks.",
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count the files, and stop.")] = False,
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
    from icefloe.reports import shown_bytes

    cutoff = moment(older_than)
    repository = open_repository(url, writes=True)
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
            require_consent(f"delete {counted(summary.objects_deleted, 'object')}?", is_given=yes)
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
            f"{counted(summary.objects_failed_to_delete, 'object')} could not be deleted; kinds"
            f" not gone through to the end: {phases}; run it again",
            err=True,
        )
        raise typer.Exit(INCOMPLETE)
