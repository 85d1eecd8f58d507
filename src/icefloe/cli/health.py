"""`icefloe verify`, `doctor` and `repair`: whether a repository or a storage is sound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from icefloe.cli.common import (
    AnonymousOption,
    AuthorizeAnonymousOption,
    AuthorizeOption,
    DeepOption,
    JsonOption,
    MaxRowsOption,
    Place,
    RepositoryArgument,
    authorised,
    interruptible,
    place_of,
    present,
    progress_bar,
)

if TYPE_CHECKING:
    from icefloe.credentials import AnyCredential

REPOSITORY_CODES: Final = {"healthy": 0, "damaged": 10, "incomplete": 11}
STORAGE_CODES: Final = {"sound": 0, "unsafe": 10, "read-only": 11, "incomplete": 11}
"""What the shell sees for a verdict; errors have codes of their own."""


def verify(
    url: RepositoryArgument,
    *,
    deep: DeepOption = False,
    authorize: AuthorizeOption = None,
    authorize_anonymous: AuthorizeAnonymousOption = None,
    max_rows: MaxRowsOption = 50,
    as_json: JsonOption = False,
    anonymous: AnonymousOption = False,
) -> None:
    """Check that every file that some version needs exists, can be read, and fits to the others.

    Changes nothing, and others may go on writing. For each damage: which array, which chunks,
    which versions, and what can be done. Files of virtual chunks are looked at where --authorize
    allows it; so they are if the repository is your own, and both are on this machine.

    Exit code 0: healthy. 10: damaged. 11: no damage found, but not everything could be checked.

    Example: icefloe verify s3://bucket/repository --json
    """
    from icefloe.api.repository import Repository

    place = place_of(url, anonymous=anonymous)
    given = {**place.access, **authorised(authorize or (), authorize_anonymous or ())}
    access = given or _own_folders(place)
    with progress_bar("verifying") as on_progress:
        report = Repository.verify_storage(
            place.storage,
            deep=deep,
            authorize_virtual_chunk_access=access,
            on_progress=on_progress,
        )
    present(report, as_json=as_json, max_rows=max_rows)
    if code := REPOSITORY_CODES[report.verdict]:
        raise typer.Exit(code)


def _own_folders(repository_place: Place) -> Mapping[str, AnyCredential | None]:
    """Authorise folders of this machine for a repository of the user on this machine."""
    from icefloe.errors import IcefloeError
    from icefloe.virtual_chunks.consent import authorised_by

    try:
        containers = (repository_place.open().config.virtual_chunk_containers or {}).values()
        return authorised_by(True, repository_place.storage, containers)  # noqa: FBT003 - a choice of words
    except IcefloeError:  # it is elsewhere, or too damaged to be opened, which is reported
        return {}


def doctor(
    url: Annotated[
        str, typer.Argument(help="The storage: a path, or s3://, gs://, az://, https://…")
    ],
    *,
    as_json: JsonOption = False,
    anonymous: Annotated[bool, typer.Option(help="Send no credentials.")] = False,
) -> None:
    """Test a storage: conditional writes, reads after writes, ranges, listings, deletions.

    Writes under keys of its own and removes them again. A repository in the same place is not
    touched, and may be in use.

    Exit code 0: repositories are safe here. 10: something that they rely on does not hold.
    11: not everything could be tried, for instance because the storage can only be read.

    Example: icefloe doctor s3://bucket/prefix
    """
    from icefloe.maintenance.doctor import check_storage

    place = place_of(url, anonymous=anonymous, writes=not anonymous)
    with progress_bar("trying out") as on_progress:
        report = check_storage(place.storage, on_progress=on_progress)
    present(report, as_json=as_json)
    if code := STORAGE_CODES[report.verdict]:
        raise typer.Exit(code)


def repair(
    url: RepositoryArgument,
    *,
    apply: Annotated[
        bool,
        typer.Option(
            "--apply", help="Apply the repair. Without this option, only show what would be done."
        ),
    ] = False,
    backup: Annotated[
        str | None,
        typer.Option(help="Restore the repo object from this object of overwritten/."),
    ] = None,
    branch: Annotated[
        list[str] | None,
        typer.Option(help="NAME=SNAPSHOT: set a branch to this snapshot. Can be repeated."),
    ] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option(help="NAME=SNAPSHOT: set a tag to this snapshot. Can be repeated."),
    ] = None,
    recover_versions: Annotated[
        bool,
        typer.Option(
            "--recover-versions", help="Create branches for stored versions that no history lists."
        ),
    ] = False,
    drop_lost_versions: Annotated[
        bool,
        typer.Option(
            "--drop-lost-versions",
            help="Remove versions from the history whose snapshots are lost.",
        ),
    ] = False,
    drop_lost_references: Annotated[
        bool,
        typer.Option(
            "--drop-lost-references",
            help="Commit a version without references to lost data to each branch.",
        ),
    ] = False,
    drop_damaged_versions: Annotated[
        bool,
        typer.Option(
            "--drop-damaged-versions",
            help="Remove other versions that lost data from the history.",
        ),
    ] = False,
    rebuild_logs: Annotated[
        bool,
        typer.Option("--rebuild-logs", help="Rewrite logs that are lost or wrong."),
    ] = False,
    deep: DeepOption = False,
    authorize: AuthorizeOption = None,
    authorize_anonymous: AuthorizeAnonymousOption = None,
    max_rows: MaxRowsOption = 50,
    as_json: JsonOption = False,
) -> None:
    """Repair a repository, even if it cannot be opened; without --apply, show the repair.

    A repo object, branch or configuration that is lost or damaged is put back, from a backup or
    from the snapshots. The other options drop what is lost, where it cannot be put back.
    Nothing is deleted: of what is replaced a copy is kept below overwritten/. Can be interrupted:
    the same command, run again, goes on.

    Exit code 0: healthy afterwards. 10: something is still wrong; without --apply, is wrong now.
    11: nothing wrong was found, but not everything could be checked.

    Example: icefloe repair ./repository --drop-lost-references
    """
    from icefloe.api.repository import Repository

    after = "each step leaves the repository no worse; the same command, run again, goes on"
    with progress_bar("looking") as on_progress, interruptible(after):
        report = Repository.repair_storage(
            place_of(url, writes=True).storage,
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
    if code := REPOSITORY_CODES[now.verdict]:
        raise typer.Exit(code)


def _pairs(texts: Sequence[str], option: str) -> dict[str, str]:
    pairs = {}
    for pair in texts:
        name, sign, value = pair.rpartition("=")
        if not (name and sign and value):
            raise typer.BadParameter(f"{pair!r} is not like NAME=SNAPSHOT", param_hint=option)
        pairs[name] = value
    return pairs
