"""`icefloe verify`: whether all versions of a repository are whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import typer

from icefloe.cli.common import (
    AnonymousOption,
    AuthorizeAnonymousOption,
    AuthorizeOption,
    DeepOption,
    JsonOption,
    MaxRowsOption,
    RepositoryArgument,
    authorised,
    echo,
    progress_bar,
    show_json,
    show_table,
)

if TYPE_CHECKING:
    from icefloe.api.verification import VerificationReport

VERDICT_CODES: Final = {"healthy": 0, "damaged": 10, "incomplete": 11}
"""What the shell sees; errors have codes of their own."""


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
    which versions, and what can be done.

    Exit code 0: healthy. 10: damaged. 11: no damage found, but not everything could be checked.

    Example: icefloe verify s3://bucket/repository --json
    """
    from icefloe.api.repository import Repository
    from icefloe.storage import storage_from_url

    with progress_bar("verifying") as on_progress:
        report = Repository.verify_storage(
            storage_from_url(url, anonymous=anonymous),
            deep=deep,
            authorize_virtual_chunk_access=authorised(authorize or (), authorize_anonymous or ()),
            on_progress=on_progress,
        )
    if as_json:
        show_json(report.to_dict())
    else:
        _show(report, max_rows)
    if code := VERDICT_CODES[report.verdict]:
        raise typer.Exit(code)


def _show(report: VerificationReport, max_rows: int) -> None:
    from icefloe.api.verification import DAMAGE_HEADINGS

    if report.damages:
        show_table(DAMAGE_HEADINGS, report.rows(max_rows))
    for note in report.notes():
        echo(note)
