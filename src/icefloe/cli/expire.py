"""`icefloe expire`: old versions leave the history."""

from typing import Annotated

import typer

from icefloe.cli.common import (
    OLDER_THAN_HELP,
    JsonOption,
    RepositoryArgument,
    echo,
    interruptible,
    moment,
    present,
    progress_bar,
    require_consent,
    show_json,
)


def expire(
    url: RepositoryArgument,
    *,
    older_than: Annotated[str, typer.Option(help=OLDER_THAN_HELP)],
    delete_expired_branches: Annotated[
        bool,
        typer.Option(
            "--delete-expired-branches",
            help="Delete branches whose newest version is that old; never main.",
        ),
    ] = False,
    delete_expired_tags: Annotated[
        bool, typer.Option("--delete-expired-tags", help="Delete tags of versions that old.")
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
    """Let versions that were written before a time leave the history.

    Shows which versions you lose and what that makes room for, then asks. Their files stay until
    icefloe gc. The newest version of each branch, and what tags name, stays however old it is.

    Can be interrupted: the same command, run again, finishes the work.

    Example: icefloe expire s3://bucket/repository --older-than 30d --protect-tag v1
    """
    from icefloe.api.repository import Repository
    from icefloe.storage import storage_from_url

    cutoff = moment(older_than)
    repository = Repository.open(storage_from_url(url))
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
        require_consent(f"let {count} versions leave the history?", is_given=yes)
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
        echo(f"expired: {len(expired)} versions; icefloe gc makes room")
