"""`icefloe repair`: put back what makes a repository one; drop what is lost, on request."""

from collections.abc import Sequence
from typing import Annotated

import typer

from icefloe.cli.common import (
    AuthorizeAnonymousOption,
    AuthorizeOption,
    DeepOption,
    JsonOption,
    MaxRowsOption,
    RepositoryArgument,
    authorised,
    interruptible,
    present,
    progress_bar,
)
from icefloe.cli.verify import VERDICT_CODES


def repair(
    url: RepositoryArgument,
    *,
    apply: Annotated[
        bool, typer.Option("--apply", help="Do it; otherwise it is only said what would be done.")
    ] = False,
    backup: Annotated[
        str | None,
        typer.Option(help="Restore the repo object from this object of overwritten/."),
    ] = None,
    branch: Annotated[
        list[str] | None,
        typer.Option(help="NAME=SNAPSHOT: where a branch is to end. Can be repeated."),
    ] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option(help="NAME=SNAPSHOT: what a tag is to name. Can be repeated."),
    ] = None,
    recover_versions: Annotated[
        bool,
        typer.Option(
            "--recover-versions", help="Give branches to versions that are there but not listed."
        ),
    ] = False,
    drop_lost_versions: Annotated[
        bool,
        typer.Option(
            "--drop-lost-versions",
            help="Take versions out of the history whose snapshots are lost.",
        ),
    ] = False,
    drop_lost_references: Annotated[
        bool,
        typer.Option(
            "--drop-lost-references",
            help="Commit to each branch a version without references to what is lost.",
        ),
    ] = False,
    drop_damaged_versions: Annotated[
        bool,
        typer.Option(
            "--drop-damaged-versions",
            help="Take other versions that lost data out of the history.",
        ),
    ] = False,
    rebuild_logs: Annotated[
        bool,
        typer.Option("--rebuild-logs", help="Write logs again that are lost or untrue."),
    ] = False,
    deep: DeepOption = False,
    authorize: AuthorizeOption = None,
    authorize_anonymous: AuthorizeAnonymousOption = None,
    max_rows: MaxRowsOption = 50,
    as_json: JsonOption = False,
) -> None:
    """Repair a repository, also one that cannot be opened; without --apply, say what to do.

    A repo object, branch or configuration that is lost or damaged is put back, from a backup or
    from the snapshots. The other options drop what is lost, where it cannot be put back.
    Nothing is deleted: of what is replaced a copy is kept below overwritten/. Can be interrupted:
    the same command, run again, goes on.

    Exit code 0: healthy afterwards. 10: something is still wrong; without --apply, is wrong now.
    11: nothing wrong was found, but not everything could be checked.

    Example: icefloe repair ./repository --drop-lost-references
    """
    from icefloe.api.repository import Repository
    from icefloe.storage import storage_from_url

    after = "each step leaves the repository no worse; the same command, run again, goes on"
    with progress_bar("looking") as on_progress, interruptible(after):
        report = Repository.repair_storage(
            storage_from_url(url),
            dry_run=not apply,
            backup=backup,
            branches=_pairs(branch or (), "--branch"),
            tags=_pairs(tag or (), "--tag"),
            recover_versions=recover_versions,
            drop_lost_versions=drop_lost_versions,
            drop_lost_references=drop_lost_references,
            drop_damaged_versions=drop_damaged_versions,
            rebuild_logs=rebuild_logs,
            deep=deep,
            authorize_virtual_chunk_access=authorised(authorize or (), authorize_anonymous or ()),
            on_progress=on_progress,
        )
    present(report, as_json=as_json, max_rows=max_rows)
    now = report.after if apply else report.before
    if code := VERDICT_CODES[now.verdict]:
        raise typer.Exit(code)


def _pairs(texts: Sequence[str], option: str) -> dict[str, str]:
    pairs = {}
    for pair in texts:
        name, sign, value = pair.rpartition("=")
        if not (name and sign and value):
            raise typer.BadParameter(f"{pair!r} is not like NAME=SNAPSHOT", param_hint=option)
        pairs[name] = value
    return pairs
